//! The server of Redis, as its adapters start it.
//!
//! With `appendfsync no` and with `always` the server writes the append-only file before it sends a reply. A reply
//! therefore means that the write survives `kill -9` of the server, and with `always` also power loss. `everysec`, which
//! is the default of Redis, does not promise as much: while a sync in the background takes long, the server delays the
//! writes for up to two seconds and replies meanwhile (`flushAppendOnlyFile` in its `aof.c`).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{PATIENCE, REDIS, Server};
use crate::peer::Class;

/// Returns the classes of writes that an append-only file offers, each with its setting.
pub fn classes() -> Vec<(Class, String)> {
    vec![
        (Class::Synced, "appendfsync always".to_string()),
        (
            Class::Written,
            "appendfsync no: written to the file before the reply, synced when the kernel likes".to_string(),
        ),
    ]
}

/// Returns the arguments for an append-only file with writes of a class.
pub fn append_only(class: Class) -> [&'static str; 4] {
    let sync = match class {
        Class::Synced => "always",
        Class::Written | Class::None => "no",
    };
    ["--appendonly", "yes", "--appendfsync", sync]
}

/// Starts the server without snapshots, with its files in a directory.
pub fn start(directory: &Path, more: &[&str]) -> Result<Server> {
    REDIS.start(directory, |port| {
        let port = port.to_string();
        let directory = directory
            .to_str()
            .context("redis-server takes a directory that is text")?;
        let common = ["--port", &port, "--bind", "127.0.0.1", "--dir", directory, "--save", ""];
        Ok(common.iter().chain(more).map(|argument| argument.to_string()).collect())
    })
}

/// Pings until the server has read its file. It takes connections before.
pub fn wait_until_ready(mut ping: impl FnMut() -> Result<redis::Value>) -> Result<()> {
    let started = Instant::now();
    while let Err(error) = ping() {
        ensure!(started.elapsed() < PATIENCE, "redis-server is not ready: {error}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
