//! Duramen's server, and the floor below it. The server has one serving thread, and listens on a free port of the loopback
//! address. It runs in the process of its clients, or in a process of its own (`-apart`), where both sides may spin (`-spinning`).

mod apart;
mod floor;

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use duramen_server::{Config, Running};

use crate::peer::{Class, Description};

pub use apart::serve;

/// Where the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// In the process of its clients.
    Together,
    /// In a process of its own.
    Apart,
    /// In a process of its own; server and client go on looking for bytes instead of sleeping.
    Spinning,
}

/// Keeps a runtime from sleeping as long as this runs.
pub async fn spin() {
    loop {
        tokio::task::yield_now().await;
    }
}

impl Shape {
    /// Adds the name to a description, and whether the server can run here.
    pub fn describe(self, name: &str, description: Description) -> Description {
        let name = match self {
            Shape::Together => name.to_string(),
            Shape::Apart => format!("{name}-apart"),
            Shape::Spinning => format!("{name}-spinning"),
        };
        match self {
            // The server is this program again, and the tests of the lab are another program.
            Shape::Apart | Shape::Spinning if cfg!(test) => Description {
                name,
                classes: Vec::new(),
                options: Vec::new(),
                unavailable: Some("the tests have no program that serves".to_string()),
                ..description
            },
            Shape::Together | Shape::Apart | Shape::Spinning => Description { name, ..description },
        }
    }
}

enum Server {
    Duramen(Box<Running>),
    Floor(floor::Floor),
    Apart(apart::Apart),
}

/// Starts Duramen's server with its store in a directory, or the floor without one. With a class, the server speaks etcd's
/// protocol, and acknowledges in this class.
fn start(directory: Option<&Path>, etcd: Option<Class>, spins: bool) -> Result<(SocketAddr, Server)> {
    let Some(directory) = directory else {
        let floor = floor::Floor::start(spins)?;
        return Ok((floor.address, Server::Floor(floor)));
    };
    let directory = directory.display().to_string();
    let class = etcd.map(|class| class.to_string());
    let mut flags = vec![("data_dir", &*directory), ("listen", "127.0.0.1:0")];
    match &class {
        None => flags.push(("threads", "1")),
        Some(class) => flags.extend([("etcd_listen", "127.0.0.1:0"), ("acknowledge", class)]),
    }
    if spins {
        flags.push(("spin_us", "1000"));
    }
    let flags: Vec<_> = flags.iter().map(|(name, value)| (*name, value.to_string())).collect();
    let server = duramen_server::start(&Config::collect(&flags, None)?)?;
    let listening = server.listening();
    let address = listening.etcd.first().copied().or(listening.tcp);
    Ok((
        address.context("the server listens on TCP")?,
        Server::Duramen(Box::new(server)),
    ))
}

/// A running server.
pub struct Serving {
    address: SocketAddr,
    server: Server,
}

impl Serving {
    /// Starts a server with its store in a directory, or the floor without one.
    pub fn start(shape: Shape, directory: Option<&Path>) -> Result<Serving> {
        Serving::start_as(shape, directory, None)
    }

    /// Starts a server that speaks etcd's protocol and acknowledges in a class.
    pub fn start_etcd(shape: Shape, directory: &Path, class: Class) -> Result<Serving> {
        Serving::start_as(shape, Some(directory), Some(class))
    }

    fn start_as(shape: Shape, directory: Option<&Path>, etcd: Option<Class>) -> Result<Serving> {
        let (address, server) = match shape {
            Shape::Together => start(directory, etcd, false)?,
            Shape::Apart | Shape::Spinning => {
                let apart = apart::Apart::start(directory, etcd, shape == Shape::Spinning)?;
                (apart.address, Server::Apart(apart))
            }
        };
        Ok(Serving { address, server })
    }

    /// Returns the address for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops the server, and waits until it has closed its store.
    pub fn stop(self) -> Result<()> {
        match self.server {
            Server::Duramen(server) => server.stop().context("stopping the server"),
            Server::Floor(floor) => floor.stop(),
            Server::Apart(apart) => apart.stop(),
        }
    }
}
