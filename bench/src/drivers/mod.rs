//! Peers in programs of other languages, for the systems of the documents whose loads are run here. The lab starts a
//! driver, talks to it in the line protocol of `docs/lab/drivers.md`, and hands it whole loads in files; nothing of a load
//! goes through the pipe.
//!
//! `protocol.rs` is what is said, `session.rs` the process that says it, `foreign.rs` the peer that the workloads see,
//! `java.rs` and `go.rs` how the drivers of `bench/drivers` are built and started, `serve.rs` a driver of our own.

mod foreign;
mod go;
mod java;
mod protocol;
mod serve;
mod session;
mod tools;

use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

pub use foreign::Foreign;
pub use serve::{Fault, Server};

use crate::peer::Driver;

static LMDBJAVA: LazyLock<Foreign> = LazyLock::new(|| java::driver("lmdbjava"));
static ROCKSDBJNI: LazyLock<Foreign> = LazyLock::new(|| java::driver("rocksdbjni"));
static MMCMAP: LazyLock<Foreign> = LazyLock::new(go::mmcmap);

/// The drivers of other languages, in the order of the reports.
pub fn all() -> [&'static dyn Driver; 3] {
    [&*LMDBJAVA, &*ROCKSDBJNI, &*MMCMAP]
}

/// What the name of a peer behind the lab's own driver begins with.
const SERVED: &str = "served-";

/// The lab's own driver for a peer, by names as `served-lmdb` and, with a planted fault, `served-lmdb+dies`. They are
/// reached by name only and never listed.
pub fn served(name: &str) -> Option<&'static dyn Driver> {
    name.strip_prefix(SERVED)?;
    let served = name.to_string();
    let start = move || {
        let mut command = Command::new("/proc/self/exe");
        command.args(["serve", &served]);
        Ok(command)
    };
    // Once for each name that somebody asks for.
    Some(Box::leak(Box::new(Foreign::new(name, Box::new(start)))))
}

/// The peer and the fault in the name of a served peer.
pub fn served_parts(name: &str) -> Result<(&str, Option<Fault>)> {
    let peer = name.strip_prefix(SERVED).context("the name of a served peer")?;
    match peer.split_once('+') {
        None => Ok((peer, None)),
        Some((peer, fault)) => {
            let fault = Fault::from_str(fault, false).map_err(anyhow::Error::msg)?;
            Ok((peer, Some(fault)))
        }
    }
}
