//! Peers in programs of other languages, for systems whose published loads the lab runs. The lab starts a driver, talks
//! to it in the line protocol of `docs/lab/drivers.md`, and hands it whole loads in files. No part of a load goes
//! through the pipe.
//!
//! `protocol.rs` defines the messages, `session.rs` runs the driver's process, and `foreign.rs` is the peer that the
//! workloads see. `java.rs` and `go.rs` build and start the drivers of `bench/drivers`, and `serve.rs` is a driver of
//! our own.

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

/// Returns the drivers of other languages, in the order of the reports.
pub fn all() -> [&'static dyn Driver; 3] {
    [&*LMDBJAVA, &*ROCKSDBJNI, &*MMCMAP]
}

/// Prefix of the name of a peer behind the lab's own driver.
const SERVED: &str = "served-";

/// Returns the lab's own driver for a peer, by a name such as `served-lmdb` or, with a planted fault,
/// `served-lmdb+dies`. These drivers are reached by name only and never listed.
pub fn served(name: &str) -> Option<&'static dyn Driver> {
    name.strip_prefix(SERVED)?;
    let served = name.to_string();
    let start = move || {
        let mut command = Command::new("/proc/self/exe");
        command.args(["serve", &served]);
        Ok(command)
    };
    // Leaks once for each requested name.
    Some(Box::leak(Box::new(Foreign::new(name, Box::new(start)))))
}

/// Returns the peer and the fault in the name of a served peer.
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
