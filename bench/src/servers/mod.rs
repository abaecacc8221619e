//! Servers of other brokers: whether one is installed, its process, and the parts that their adapters share.
//!
//! A broker starts its server on a free port of the loopback address, with its files in the directory of the run. The
//! server is killed when the broker closes, and when the thread that opened it ends.

pub mod grpc;
pub mod redis;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use duramen_client::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::runtime::{Builder, Runtime};

use crate::broker::Receiver;
use crate::children::{self, end_with_this_thread};
use crate::peer::Description;
use crate::versions::locked_version;

/// Maximum time to wait for a message, an acknowledgement, or the start of a server.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum number of messages handed to a receiver at once.
pub const TOGETHER: usize = 1_000;

/// The program of a server.
pub struct Program {
    /// Name on the search path.
    pub name: &'static str,
    /// The command that installs it.
    pub install: &'static str,
    version: OnceLock<Option<String>>,
}

/// The server of NATS.
pub static NATS: Program = Program::new("nats-server", "go install github.com/nats-io/nats-server/v2@latest");
/// The server of Redis.
pub static REDIS: Program = Program::new("redis-server", "apt-get install redis-server");
/// The server of etcd.
pub static ETCD: Program = Program::new("etcd", "apt-get install etcd-server");
/// All servers.
pub static ALL: [&Program; 3] = [&NATS, &REDIS, &ETCD];

/// Returns a port of the loopback address that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Program {
    const fn new(name: &'static str, install: &'static str) -> Program {
        Program {
            name,
            install,
            version: OnceLock::new(),
        }
    }

    /// Returns the version of the server, or how to install it.
    pub fn version(&self) -> Result<&str, String> {
        let version = self.version.get_or_init(|| {
            let output = Command::new(self.name).arg("--version").output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let words = text.split([' ', '=', '\n']).map(|word| word.trim_start_matches('v'));
            let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
            Some(words.into_iter().find(is_number)?.to_string())
        });
        let reason = || format!("{} is not installed; for it, run `{}`", self.name, self.install);
        version.as_deref().ok_or_else(reason)
    }

    /// Adds to the description of a peer what all of them have in common, or why its server cannot run here.
    pub fn describe(&self, name: &str, client: &str, description: Description) -> Description {
        let common = Description {
            name: name.to_string(),
            is_broker: !description.is_tree,
            is_no_store: true,
            ..description
        };
        match self.version() {
            Ok(version) => Description {
                version: format!("{} {version}, {}", self.name, locked_version(client)),
                ..common
            },
            Err(reason) => Description {
                version: format!("n/a: {reason}"),
                classes: Vec::new(),
                options: Vec::new(),
                unavailable: Some(reason),
                ..common
            },
        }
    }

    /// Starts the server with the arguments for a port, and waits until it takes connections.
    pub fn start(&self, directory: &Path, arguments: impl FnOnce(u16) -> Result<Vec<String>>) -> Result<Server> {
        // A server that finds the port taken meanwhile ends, which is reported.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let talk = directory.join("server.log");
        let mut command = Command::new(self.name);
        command.args(arguments(address.port())?);
        let output = File::create(&talk)?;
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        end_with_this_thread(&mut command);
        let child = command.spawn().with_context(|| format!("starting {}", self.name))?;
        children::measure(child.id());
        let mut server = Server { child, address };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = server.child.try_wait()?;
            if ended.is_some() || started.elapsed() > PATIENCE {
                let talk = std::fs::read_to_string(&talk).unwrap_or_default();
                bail!(
                    "{} did not start: {}",
                    self.name,
                    talk.lines().last().unwrap_or("it said nothing")
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }
}

/// A running server, killed on drop.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        children::forget(self.child.id());
        // The server may have ended already; then there is nothing to kill or report.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates the runtime of a client, with one thread, which also calls the receivers.
pub fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Hands messages to a receiver, each with its offset, until it has `most`. Waits for each at most `patience`.
pub async fn deliver(
    messages: impl Stream<Item = Result<(u64, Bytes)>>,
    receiver: &mut Receiver,
    most: u64,
    patience: Duration,
) {
    let mut chunks = pin!(messages.ready_chunks(TOGETHER));
    while receiver.taken() < most && !receiver.is_wrong() {
        let chunk = match tokio::time::timeout(patience, chunks.next()).await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return receiver.fail("the server ended the subscription".to_string()),
            Err(_) => return receiver.fail(format!("message {} does not come", receiver.taken())),
        };
        let good = chunk.iter().map_while(|message| message.as_ref().ok());
        receiver.take(good.map(|(offset, payload)| (*offset, &payload[..])));
        if let Some(error) = chunk.into_iter().find_map(Result::err) {
            return receiver.fail(format!("{error:#}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Board, Broker, Payload};
    use crate::peer::{CACHE_BYTES, Class, Setting};
    use crate::peers;
    use crate::scratch::Scratch;

    #[test]
    fn missing_server_is_not_applicable_and_says_how_to_install_it() {
        let missing = Program::new("no-such-server", "install it");
        let description = missing.describe("broker", "redis", Description::default());
        let reason = description.unavailable.expect("a reason");
        assert_eq!(reason, "no-such-server is not installed; for it, run `install it`");
        assert!(description.is_broker && description.classes.is_empty());
    }

    /// Closing a broker kills its server with SIGKILL, at once after the last acknowledgement.
    #[test]
    fn acknowledged_messages_are_there_when_the_server_was_killed() -> Result<()> {
        const MESSAGES: u64 = 300;
        for (peer, class) in [
            ("jetstream", Class::Written),
            ("jetstream", Class::Synced),
            ("redis-streams", Class::Written),
            ("redis-streams", Class::Synced),
        ] {
            let driver = peers::one(peer)?;
            if let Some(reason) = driver.describe().unavailable {
                eprintln!("skipped: {peer}: {reason}");
                continue;
            }
            let scratch = Scratch::new(&std::env::temp_dir())?;
            let open = || -> Result<Box<dyn Broker>> {
                let setting = Setting {
                    class,
                    cache_bytes: CACHE_BYTES,
                    has_read_ahead: true,
                };
                let mut broker = driver.open_broker(scratch.path(), setting)?;
                broker.make_topics(1)?;
                Ok(broker)
            };
            let mut payload = Payload::new(1, 128);
            let mut round = |first| -> Result<()> {
                let (broker, all) = (open()?, first + MESSAGES);
                (first..all).try_for_each(|number| broker.publish(0, payload.of(number)))?;
                broker.close()?;
                let (broker, board) = (open()?, Board::new());
                broker.follow(0, &mut board.receiver(0), all)?;
                broker.close()?;
                board.verify(1, &[all])
            };
            for first in [0, MESSAGES, 2 * MESSAGES] {
                round(first).with_context(|| format!("{peer}, class {class}, messages from {first}"))?;
            }
        }
        Ok(())
    }
}
