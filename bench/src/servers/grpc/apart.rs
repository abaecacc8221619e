//! A gRPC server in a process of its own: this program again, with the hidden command `grpc-server`.

use std::io::{BufRead, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::{Server, start};
use crate::children::{self, end_with_this_thread};
use crate::peer::Class;

/// A server in another process. It stops when its standard input ends, and is killed with the thread that started it.
pub struct Apart {
    child: Child,
    pub address: SocketAddr,
}

impl Apart {
    /// Starts the server with its store in a directory, or the floor without one; with a class, for clients of etcd.
    pub fn start(directory: Option<&Path>, etcd: Option<Class>, spins: bool) -> Result<Apart> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("grpc-server").args(directory);
        command.args(spins.then_some("--spin"));
        command.args(etcd.map(|class| format!("--etcd={class}")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        end_with_this_thread(&mut command);
        let mut child = command.spawn().context("starting a gRPC server")?;
        children::measure(child.id());
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("it has a pipe")?).read_line(&mut line)?;
        let address = line.trim().parse().context("a gRPC server did not start")?;
        Ok(Apart { child, address })
    }

    /// Stops the server, and waits until it has closed its store.
    pub fn stop(mut self) -> Result<()> {
        children::forget(self.child.id());
        drop(self.child.stdin.take());
        let ended = self.child.wait()?;
        ensure!(ended.success(), "the gRPC server ended with {ended}");
        Ok(())
    }
}

/// Serves until standard input ends; prints the address first.
pub fn serve(directory: Option<&Path>, etcd: Option<Class>, spins: bool) -> Result<()> {
    let (address, server) = start(directory, etcd, spins)?;
    println!("{address}");
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    match server {
        Server::Duramen(server) => server.stop().context("stopping the server"),
        Server::Floor(floor) => floor.stop(),
        Server::Apart(_) => unreachable!("this process serves itself"),
    }
}
