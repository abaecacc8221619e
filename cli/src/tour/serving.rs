//! Seventh chapter: a server puts the store behind gRPC. Another process publishes, and this one follows. The server is
//! killed several times meanwhile.
//!
//! The client library reconnects by itself. It repeats a publication that got no answer with its idempotency key, and
//! resumes the subscription at the next offset. So each order must arrive once, in order, and must be stored once.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use duramen::Store;
use duramen::topic::{Start, Topics};
use duramen_client::{Acknowledge, Client, Received, Start as At, Subscription, TopicOptions, WriteOptions};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::source;
use super::stage::Stage;
use super::victim::{Part, Victim, Worker};
use crate::exit::{Exit, Failure, Outcome};
use crate::text::grouped;

const SOURCE: &str = include_str!("serving.rs");

const ORDERS: u64 = 1_000;
const KILL_EVERY: u64 = 200;
const KILLS: u64 = (ORDERS - 1) / KILL_EVERY;

pub fn serve(stage: &mut Stage<'_>, store: Store, directory: &Path) -> Outcome<Store> {
    let about = "A server puts the store behind gRPC (duramen serve). Another process publishes orders through it, and \
                 this process receives them, while the server is killed and started again. This is what publishes:";
    stage.chapter("Serve it", about)?;
    stage.listing(&source::function(SOURCE, "publish"))?;
    shown! { stage;
        store.close()?;
    }
    let temporary = directory_of_socket()?;
    let socket = temporary.path().join("duramen.sock");
    let (acknowledged, received) = runtime()?.block_on(follow(stage, directory, &socket))?;
    shown! { stage;
        let store = Store::open(directory)?;
    }
    let stored = stored(&store)?;
    stage.figure(
        "server",
        json!({"kills": KILLS, "acknowledged": acknowledged, "received": received, "stored": stored}),
    );
    let (acknowledged, received, stored) = (grouped(acknowledged), grouped(received), grouped(stored));
    stage.result(format!(
        "killed {KILLS} times: {acknowledged} orders acknowledged, {received} received, {stored} stored, each once and in order"
    ))?;
    Ok(store)
}

/// The work of the child that publishes.
pub fn publish_orders(socket: &Path) -> Outcome {
    runtime()?.block_on(publish(&address(socket)))?;
    Ok(Exit::Done)
}

async fn publish(server: &str) -> Outcome<()> {
    let options = WriteOptions::new().acknowledge(Acknowledge::Written);
    let ordered = Client::connect(server)?.topic("plums.ordered").with(options);
    let mut pipe = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    for number in 0..ORDERS {
        let offset = ordered.publish(order(number)).await?; // repeated, and published once
        pipe.write_all(&offset.unwrap_or(u64::MAX).to_le_bytes())?;
    }
    Ok(())
}

/// Receives all orders, and kills the server now and then. Returns the numbers of orders that the server acknowledged,
/// and of those that arrived.
async fn follow(stage: &mut Stage<'_>, directory: &Path, socket: &Path) -> Outcome<(u64, u64)> {
    shown! { stage;
        let mut server = Server::start(directory, socket)?; // duramen serve --unix-socket ...
    }
    shown! { stage;
        let client = Client::connect(&address(socket))?;
        client.create_topic("plums.ordered", TopicOptions::default()).await?;
        let mut orders = client.topic("plums.ordered").subscribe(At::Earliest).await?;
    }
    let publisher = Worker::start(Part::Publisher, socket)?;
    let mut received = 0;
    shown! { stage, ORDERS;
        while received < ORDERS {
            let order = next(&mut orders).await?; // resumes by itself
            expect(order.offset, &order.payload, received)?;
            received += 1;
            if received % KILL_EVERY == 0 && received < ORDERS {
                drop(server); // SIGKILL
                server = Server::start(directory, socket)?;
            }
        }
    }
    let acknowledged = publisher.finish()?;
    drop(server);
    match acknowledged.iter().copied().eq(0..ORDERS) {
        true => Ok((ORDERS, received)),
        false => Err(wrong("an order was published twice, or not at all")),
    }
}

/// A server process, which is killed when it is dropped.
struct Server(#[expect(dead_code, reason = "it is dropped")] Victim);

impl Server {
    /// Starts a server, and waits until it serves.
    fn start(directory: &Path, socket: &Path) -> Outcome<Server> {
        let failed = |error: io::Error| Failure::of_io("running a server", &error);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // The settings of this server are not those of the environment.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DURAMEN_") || name == "NOTIFY_SOCKET" {
                command.env_remove(name);
            }
        }
        command
            .args(["serve", "--json", "--log", "off", "--listen", "", "--unix-socket"])
            .arg(socket)
            .arg("--data-dir")
            .arg(directory);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut victim = Victim(child.map_err(failed)?);
        let pipe = victim.0.stdout.as_mut().expect("stdout was asked for");
        let mut line = String::new();
        BufReader::new(pipe).read_line(&mut line).map_err(failed)?;
        match line.is_empty() {
            true => Err(failed(io::Error::other("it ended before it served"))),
            false => Ok(Server(victim)),
        }
    }
}

fn runtime() -> Outcome<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::of_io("starting a runtime", &error))
}

/// A temporary directory with a short path: the path of a socket has at most 107 bytes.
fn directory_of_socket() -> Outcome<TempDir> {
    let made = match std::env::temp_dir().as_os_str().len() {
        ..=80 => tempfile::tempdir(),
        _ => tempfile::tempdir_in("/tmp"),
    };
    made.map_err(|error| Failure::of_io("making a temporary directory", &error))
}

fn address(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

fn order(number: u64) -> String {
    format!("order {number}: {} plums", number % 97 + 1)
}

async fn next(orders: &mut Subscription) -> Outcome<Received> {
    match orders.next().await {
        Some(order) => Ok(order?),
        None => Err(wrong("a subscription ended without an error")),
    }
}

/// Fails the tour unless this message is the order of this number.
fn expect(offset: u64, payload: &[u8], number: u64) -> Outcome<()> {
    match offset == number && payload == order(number).as_bytes() {
        true => Ok(()),
        false => Err(wrong("an order is missing, or is there twice")),
    }
}

/// Counts the orders in the store, and compares each.
fn stored(store: &Store) -> Outcome<u64> {
    let ordered = Topics::open(store)?.topic("plums.ordered")?;
    let mut stored = 0;
    while stored < ordered.describe()?.next {
        for message in ordered.read(Start::Offset(stored), 1000)?.iter() {
            expect(message.offset(), message.payload(), stored)?;
            stored += 1;
        }
    }
    match stored == ORDERS {
        true => Ok(stored),
        false => Err(wrong("the store has more orders than were published, or fewer")),
    }
}

fn wrong(what: &str) -> Failure {
    Failure::damaged(format!("{what}: this is a bug in Duramen"))
}
