//! Redis, with its server in a process of its own. `redis-streams` has a stream for each topic, and pairs, in an
//! append-only file, see [`crate::servers::redis`]. `redis-pubsub` delivers and keeps nothing.
//!
//! Streams number no messages, so the lab counts them, and finds what is missing by the numbers in the payloads.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use duramen_client::Bytes;
use futures_util::StreamExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, Value};
use tokio::runtime::Runtime;

use crate::answer::Answer;
use crate::answer::{Found, Unsupported};
use crate::broker::{Acknowledge, Broker, Member, Receiver, Together, number_and_time};
use crate::connection::{Connection, Way};
use crate::peer::{Class, Description, Driver, Peer, Setting};
use crate::servers::{self, PATIENCE, REDIS, Server, TOGETHER, deliver};

/// The driver of Redis with a stream for each topic.
pub struct Streams;
/// The driver of Redis with a channel for each topic.
pub struct PubSub;

/// Most subscribers: each has a connection, and the server takes at most 10,000.
const SUBSCRIBERS_MAX: usize = 4_000;
/// Commands that wait in the client to be sent. More than are in flight, so that none overtakes another.
const SENDING: usize = 1 << 16;
const GROUP: &str = "group";
/// How long a member waits for messages, in milliseconds.
const MEMBER_WAITS: usize = 20;

impl Driver for Streams {
    fn describe(&self) -> Description {
        let description = Description {
            classes: servers::redis::classes(),
            options: vec![
                "appendonly yes, no snapshots".to_string(),
                "a connection for each subscriber".to_string(),
            ],
            is_persistent: true,
            ..Description::default()
        };
        REDIS.describe("redis-streams", "redis", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a broker"))
    }

    fn open_broker(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Broker>> {
        Opened::open(directory, &servers::redis::append_only(setting.class), true)
    }
}

impl Driver for PubSub {
    fn describe(&self) -> Description {
        let description = Description {
            classes: vec![(
                Class::None,
                "at most once: the server has dealt with the message, and keeps none".to_string(),
            )],
            options: vec![
                "client-output-buffer-limit pubsub 0 0 0: no subscriber is disconnected because it is slow".to_string(),
                "a connection for each subscriber".to_string(),
            ],
            ..Description::default()
        };
        REDIS.describe("redis-pubsub", "redis", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a broker"))
    }

    fn open_broker(&self, directory: &Path, _setting: Setting) -> Result<Box<dyn Broker>> {
        Opened::open(directory, &["--client-output-buffer-limit", "pubsub 0 0 0"], false)
    }
}

fn command(name: &str, key: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key);
    command
}

fn topic_key(topic: usize) -> String {
    format!("topic-{topic}")
}

/// Returns the key of a pair. The prefix keeps it apart from the topics.
fn pair_key(key: &[u8]) -> Vec<u8> {
    [b"pair-", key].concat()
}

/// A connection that takes commands while others are under way.
#[derive(Clone)]
struct Open {
    connection: MultiplexedConnection,
    has_streams: bool,
}

impl Open {
    async fn connect(client: &Client, has_streams: bool) -> Result<Open> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(2 * PATIENCE));
        let config = config.set_pipeline_buffer_size(SENDING);
        Ok(Open {
            connection: client.get_multiplexed_async_connection_with_config(&config).await?,
            has_streams,
        })
    }

    async fn ask(&self, command: Cmd) -> Result<Value> {
        Ok(command.query_async(&mut self.connection.clone()).await?)
    }

    fn publication(&self, topic: usize, payload: &[u8]) -> Cmd {
        let mut command = command(if self.has_streams { "XADD" } else { "PUBLISH" }, &topic_key(topic));
        if self.has_streams {
            command.arg("*").arg("p");
        }
        command.arg(payload);
        command
    }

    fn needs_streams(&self) -> Result<()> {
        match self.has_streams {
            true => Ok(()),
            false => bail!(Unsupported("keeps no message that was delivered")),
        }
    }

    fn pair(&self, name: &str, key: &[u8]) -> Result<Cmd> {
        ensure!(self.has_streams, Unsupported("stores no pairs in class none"));
        let mut command = redis::cmd(name);
        command.arg(pair_key(key));
        Ok(command)
    }

    /// Reads messages after the ID `last`, and sets it to that of the last of them. Returns none when none arrived.
    async fn read(&self, topic: usize, last: &mut Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let mut command = redis::cmd("XREAD");
        command
            .arg("COUNT")
            .arg(TOGETHER)
            .arg("BLOCK")
            .arg(PATIENCE.as_millis() as u64);
        command.arg("STREAMS").arg(topic_key(topic)).arg(&*last);
        let entries = entries(self.ask(command).await?)?;
        if let Some((id, _)) = entries.last() {
            last.clone_from(id);
        }
        Ok(entries.into_iter().map(|(_, payload)| payload).collect())
    }

    /// Hands the messages of a topic after the ID `last` to a receiver, until it has `most`.
    async fn read_all(
        &self,
        topic: usize,
        mut last: Vec<u8>,
        receiver: &mut Receiver,
        most: Option<u64>,
    ) -> Result<()> {
        while receiver.taken() < most.unwrap_or(u64::MAX) && !receiver.is_wrong() {
            let payloads = self.read(topic, &mut last).await?;
            let first = receiver.taken();
            ensure!(!payloads.is_empty() || most.is_none(), "message {first} does not come");
            receiver.take((first..).zip(payloads.iter().map(Vec::as_slice)));
        }
        Ok(())
    }
}

/// Takes the IDs and payloads out of an answer with the entries of one stream, or none.
fn entries(answer: Value) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let Value::Array(mut streams) = answer else {
        return Ok(Vec::new());
    };
    let entries = match streams.pop() {
        Some(Value::Array(mut stream)) => stream.pop(),
        _ => None,
    };
    let Some(Value::Array(entries)) = entries else {
        bail!("an answer has no entries");
    };
    entries.into_iter().map(entry).collect()
}

/// Takes the ID and the payload out of an entry of a stream.
fn entry(entry: Value) -> Result<(Vec<u8>, Vec<u8>)> {
    let parts = match entry {
        Value::Array(parts) => <[Value; 2]>::try_from(parts).ok(),
        _ => None,
    };
    if let Some([Value::BulkString(id), Value::Array(mut fields)]) = parts
        && let Some(Value::BulkString(payload)) = fields.pop()
    {
        return Ok((id, payload));
    }
    bail!("an entry of a stream has no ID or no payload")
}

impl Connection for Open {
    fn publish(&self, topic: usize, payload: &[u8]) -> Answer<'_> {
        let publication = self.publication(topic, payload);
        Box::pin(async move { self.ask(publication).await.map(drop) })
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Answer<'_> {
        let mut pipeline = Pipeline::with_capacity(payloads.len());
        for payload in payloads {
            pipeline.add_command(self.publication(topic, payload));
        }
        Box::pin(async move {
            let answers: Vec<Value> = pipeline.query_async(&mut self.connection.clone()).await?;
            ensure!(answers.len() == pipeline.len(), "an answer is missing");
            Ok(())
        })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Answer<'_> {
        let command = self.pair("SET", key).map(|mut command| {
            command.arg(value);
            command
        });
        Box::pin(async move { self.ask(command?).await.map(drop) })
    }

    fn get(&self, key: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        let command = self.pair("GET", key);
        Box::pin(async move {
            match self.ask(command?).await? {
                Value::Nil => Ok(None),
                Value::BulkString(value) => Ok(Some(value)),
                other => bail!("a get has the answer {other:?}"),
            }
        })
    }
}

struct Opened {
    runtime: Runtime,
    client: Client,
    open: Open,
    server: Server,
}

impl Opened {
    fn open(directory: &Path, arguments: &[&str], has_streams: bool) -> Result<Box<dyn Broker>> {
        let server = servers::redis::start(directory, arguments)?;
        let runtime = servers::runtime()?;
        let client = Client::open(format!("redis://{}", server.address))?;
        let open = runtime.block_on(Open::connect(&client, has_streams))?;
        servers::redis::wait_until_ready(|| runtime.block_on(open.ask(redis::cmd("PING"))))?;
        Ok(Box::new(Opened {
            runtime,
            client,
            open,
            server,
        }))
    }

    /// Opens another connection, for commands that block it.
    fn another(&self) -> Result<Open> {
        self.runtime
            .block_on(Open::connect(&self.client, self.open.has_streams))
    }
}

impl Broker for Opened {
    fn make_topics(&mut self, _count: usize) -> Result<()> {
        // The first message makes a stream.
        Ok(())
    }

    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()> {
        self.runtime.block_on(self.open.publish(topic, payload))
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()> {
        self.runtime.block_on(self.open.publish_many(topic, payloads))
    }

    fn subscribers_max(&self) -> usize {
        SUBSCRIBERS_MAX
    }

    fn subscribe(&self, topic: usize, mut receiver: Receiver) -> Result<()> {
        if !self.open.has_streams {
            let messages = self.runtime.block_on(async {
                let mut subscription = self.client.get_async_pubsub().await?;
                subscription.subscribe(topic_key(topic)).await?;
                Ok::<_, anyhow::Error>(subscription.into_on_message())
            })?;
            let numbered = messages.enumerate();
            let numbered =
                numbered.map(|(at, message)| Ok((at as u64, Bytes::copy_from_slice(message.get_payload_bytes()))));
            self.runtime
                .spawn(async move { deliver(numbered, &mut receiver, u64::MAX, Duration::MAX).await });
            return Ok(());
        }
        let open = self.another()?;
        let mut newest = command("XREVRANGE", &topic_key(topic));
        newest.arg("+").arg("-").arg("COUNT").arg(1);
        let last = match self.runtime.block_on(open.ask(newest))? {
            Value::Array(mut newest) => newest.pop().map(entry).transpose()?,
            _ => None,
        };
        let last = last.map_or(b"0-0".to_vec(), |(id, _)| id);
        self.runtime.spawn(async move {
            if let Err(error) = open.read_all(topic, last, &mut receiver, None).await {
                receiver.fail(format!("{error:#}"));
            }
        });
        Ok(())
    }

    fn keeps_messages(&self) -> bool {
        self.open.has_streams
    }

    fn follow(&self, topic: usize, receiver: &mut Receiver, messages: u64) -> Result<()> {
        self.open.needs_streams()?;
        let open = self.another()?;
        let all = open.read_all(topic, b"0-0".to_vec(), receiver, Some(messages));
        self.runtime.block_on(all)
    }

    fn make_group(&self, topic: usize) -> Result<()> {
        self.open.needs_streams()?;
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(topic_key(topic)).arg(GROUP).arg("0");
        self.runtime.block_on(self.open.ask(create)).map(drop)
    }

    fn member(&self, topic: usize) -> Result<Box<dyn Member + '_>> {
        self.open.needs_streams()?;
        let open = self.another()?;
        let id = self.runtime.block_on(open.ask({
            let mut id = redis::cmd("CLIENT");
            id.arg("ID");
            id
        }))?;
        Ok(Box::new(Sharing {
            runtime: &self.runtime,
            open,
            topic: topic_key(topic),
            name: format!("{id:?}"),
        }))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.runtime.block_on(self.open.put(key, value))
    }

    fn put_and_publish(&self, _how: Together, pair: (&[u8], &[u8]), topic: usize, payload: &[u8]) -> Result<()> {
        let mut transaction = redis::pipe();
        let mut put = self.open.pair("SET", pair.0)?;
        put.arg(pair.1);
        transaction.atomic().add_command(put);
        transaction.add_command(self.open.publication(topic, payload));
        let mut connection = self.open.connection.clone();
        let answers: Vec<Value> = self.runtime.block_on(transaction.query_async(&mut connection))?;
        ensure!(answers.len() == 2, "a transaction has {} answers", answers.len());
        Ok(())
    }

    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.runtime.block_on(self.open.get(key))?.as_deref())
    }

    fn connect(&self, _way: Way) -> Answer<'_, Box<dyn Connection + '_>> {
        Box::pin(async {
            let open = Open::connect(&self.client, self.open.has_streams).await?;
            Ok(Box::new(open) as Box<dyn Connection>)
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        // The runtime ends the subscriptions and drops their receivers. After it the server is killed.
        drop(self.runtime);
        drop(self.server);
        Ok(())
    }
}

/// A member of a group, with a connection of its own.
struct Sharing<'r> {
    runtime: &'r Runtime,
    open: Open,
    topic: String,
    name: String,
}

impl Sharing<'_> {
    /// Acknowledges messages by their IDs.
    fn acknowledge(&self, ids: &[&[u8]]) -> Result<()> {
        let mut command = command("XACK", &self.topic);
        command.arg(GROUP).arg(ids);
        let count = ids.len() as i64;
        let acknowledged = self.runtime.block_on(self.open.ask(command))?;
        ensure!(
            acknowledged == Value::Int(count),
            "{count} acknowledgements have the answer {acknowledged:?}"
        );
        Ok(())
    }
}

impl Member for Sharing<'_> {
    fn receive(
        &mut self,
        most: usize,
        acknowledge: Acknowledge,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(&self.name).arg("COUNT").arg(most);
        read.arg("BLOCK")
            .arg(MEMBER_WAITS)
            .arg("STREAMS")
            .arg(&self.topic)
            .arg(">");
        let entries = entries(self.runtime.block_on(self.open.ask(read))?)?;
        for (id, payload) in &entries {
            let (number, _) = number_and_time(payload).context("a message is none of the lab")?;
            work(number, payload)?;
            if acknowledge == Acknowledge::Each {
                self.acknowledge(&[id])?;
            }
        }
        if acknowledge == Acknowledge::Together && !entries.is_empty() {
            let ids: Vec<&[u8]> = entries.iter().map(|(id, _)| id.as_slice()).collect();
            self.acknowledge(&ids)?;
        }
        Ok(entries.len() as u64)
    }
}
