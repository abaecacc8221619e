//! NATS, with its server in a process of its own. `nats` is its core, which delivers and keeps nothing. `jetstream` has a
//! stream in files for each topic; the offset of a message is its sequence number in the stream.
//!
//! The core acknowledges nothing. After each publication the lab asks for a subject without subscribers. The server
//! answers what a connection asks in order, so its answer proves that it has dealt with the publication.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use async_nats::jetstream::consumer::pull::Config as Consuming;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, Message, stream};
use async_nats::{Client, ConnectOptions, RequestErrorKind};
use duramen_client::Bytes;
use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::runtime::Runtime;

use crate::answer::Answer;
use crate::answer::Unsupported;
use crate::broker::{Acknowledge, Broker, Member, Receiver};
use crate::connection::{Connection, Way};
use crate::peer::{Class, Description, Driver, Peer, Setting};
use crate::servers::{self, NATS, PATIENCE, Server, TOGETHER, deliver};

/// The driver of NATS without streams.
pub struct Core;
/// The driver of NATS with streams.
pub struct JetStream;

/// Messages that wait in the client for one subscriber. The client drops messages beyond its capacity.
const WAITING: usize = 1 << 30;
/// Messages that wait in the client to be sent. More than are in flight, so that none overtakes another.
const SENDING: usize = 1 << 16;
/// Most streams: each keeps a file open.
const STREAMS_MAX: usize = 10_000;
/// Most subscribers of streams, each with a consumer in the server.
const CONSUMERS_MAX: usize = 4_000;
const GROUP: &str = "group";
/// How long a member waits for messages.
const MEMBER_WAITS: Duration = Duration::from_millis(20);

fn options(more: &[&str]) -> Vec<String> {
    let all = [
        "max_pending 1GB, write_deadline 60s, and no limit of waiting messages in the client: none is dropped for a \
         subscriber that is slow",
        "publisher and subscribers have a connection each",
    ];
    all.iter().chain(more).map(|option| option.to_string()).collect()
}

impl Driver for Core {
    fn describe(&self) -> Description {
        let description = Description {
            classes: vec![(
                Class::None,
                "at most once: the server has dealt with the message, and keeps none".to_string(),
            )],
            options: options(&[]),
            ..Description::default()
        };
        NATS.describe("nats", "async-nats", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a broker"))
    }

    fn open_broker(&self, directory: &Path, _setting: Setting) -> Result<Box<dyn Broker>> {
        Opened::open(directory, None)
    }
}

impl Driver for JetStream {
    fn describe(&self) -> Description {
        let description = Description {
            classes: vec![
                (Class::Synced, "sync_interval always".to_string()),
                (
                    Class::Written,
                    "as it comes: written to the file before it is acknowledged, synced every two minutes".to_string(),
                ),
            ],
            options: options(&[
                "a stream in files for each topic",
                "consumers of subscribers are in memory, without acknowledgements",
            ]),
            is_persistent: true,
            ..Description::default()
        };
        NATS.describe("jetstream", "async-nats", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a broker"))
    }

    fn open_broker(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Broker>> {
        Opened::open(directory, Some(setting.class))
    }
}

/// A client that publishes, on a connection of its own.
#[derive(Clone)]
struct Publishing {
    client: Client,
    /// The streams, if there are any.
    streams: Option<Context>,
}

impl Publishing {
    async fn connect(server: &Server, has_streams: bool) -> Result<Publishing> {
        let options = ConnectOptions::new()
            .subscription_capacity(WAITING)
            .client_capacity(SENDING);
        let client = options.connect(server.address.to_string()).await?;
        let streams = ContextBuilder::new().timeout(PATIENCE).build(client.clone());
        Ok(Publishing {
            client,
            streams: has_streams.then_some(streams),
        })
    }

    /// Returns when the server has dealt with everything that was sent before on this connection.
    async fn ping(&self) -> Result<()> {
        match self.client.request("lab.nothing", Bytes::new()).await {
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("a subject without subscribers has an answer"),
        }
    }

    /// Publishes messages one after another, and waits until all are acknowledged.
    async fn publish(&self, topic: usize, payloads: Vec<Bytes>) -> Result<()> {
        let subject = name(topic);
        let Some(streams) = &self.streams else {
            for payload in payloads {
                self.client.publish(subject.clone(), payload).await?;
            }
            return self.ping().await;
        };
        let mut acknowledgements = Vec::with_capacity(payloads.len());
        for payload in payloads {
            let message = PublishMessage::build().payload(payload);
            acknowledgements.push(streams.send_publish(subject.clone(), message).await?);
        }
        for acknowledgement in acknowledgements {
            ensure!(!acknowledgement.await?.duplicate, "a message was taken for a duplicate");
        }
        Ok(())
    }
}

impl Connection for Publishing {
    fn publish(&self, topic: usize, payload: &[u8]) -> Answer<'_> {
        Connection::publish_many(self, topic, &[payload])
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Answer<'_> {
        Box::pin(Publishing::publish(self, topic, copied(payloads)))
    }
}

/// Returns the subject and the stream of a topic.
fn name(topic: usize) -> String {
    format!("topic-{topic}")
}

fn copied(payloads: &[&[u8]]) -> Vec<Bytes> {
    payloads.iter().map(|payload| Bytes::copy_from_slice(payload)).collect()
}

/// Returns the offset and the payload of a message of a stream.
fn numbered(message: &Message) -> Result<(u64, Bytes)> {
    let info = message.info().map_err(anyhow::Error::from_boxed)?;
    Ok((info.stream_sequence - 1, message.payload.clone()))
}

struct Opened {
    runtime: Runtime,
    publishing: Publishing,
    subscribing: Publishing,
    server: Server,
    topics: usize,
}

impl Opened {
    /// Opens the server with streams of a class, or without streams.
    fn open(directory: &Path, streams: Option<Class>) -> Result<Box<dyn Broker>> {
        let server = NATS.start(directory, |port| {
            let mut text = format!("listen: \"127.0.0.1:{port}\"\nmax_pending: 1GB\nwrite_deadline: \"60s\"\n");
            if let Some(class) = streams {
                let sync = if class == Class::Synced {
                    "sync_interval: always"
                } else {
                    ""
                };
                text += &format!("jetstream {{ store_dir: {directory:?}\n {sync} }}\n");
            }
            let path = directory.join("server.conf");
            std::fs::write(&path, text)?;
            Ok(vec!["--config".to_string(), path.display().to_string()])
        })?;
        let runtime = servers::runtime()?;
        let connect = || runtime.block_on(Publishing::connect(&server, streams.is_some()));
        Ok(Box::new(Opened {
            publishing: connect()?,
            subscribing: connect()?,
            runtime,
            server,
            topics: 0,
        }))
    }

    /// Returns the streams, for what only they can do.
    fn streams(&self) -> Result<&Context> {
        match &self.subscribing.streams {
            Some(streams) => Ok(streams),
            None => bail!(Unsupported("keeps no message that was delivered")),
        }
    }

    /// Fails when a topic was not made because there would be too many.
    fn needs_topic(&self, topic: usize) -> Result<()> {
        ensure!(topic < self.topics, Unsupported("takes at most 10,000 topics"));
        Ok(())
    }

    async fn consumer(&self, topic: usize, config: Consuming) -> Result<PullConsumer> {
        Ok(self.streams()?.create_consumer_on_stream(config, name(topic)).await?)
    }

    /// Hands the messages of a stream to a receiver, from the first one or from now on.
    async fn consume(
        &self,
        topic: usize,
        deliver_policy: DeliverPolicy,
    ) -> Result<impl futures_util::Stream<Item = Result<(u64, Bytes)>> + use<>> {
        let config = Consuming {
            deliver_policy,
            ack_policy: AckPolicy::None,
            memory_storage: true,
            ..Consuming::default()
        };
        let consumer = self.consumer(topic, config).await?;
        let messages = consumer.stream().max_messages_per_batch(TOGETHER).messages().await?;
        Ok(messages.map(|message| numbered(&message?)))
    }
}

impl Broker for Opened {
    fn make_topics(&mut self, count: usize) -> Result<()> {
        let is_too_many = self.streams().is_ok() && count > STREAMS_MAX;
        ensure!(!is_too_many, Unsupported("takes at most 10,000 topics"));
        for topic in self.topics..count {
            if let Some(streams) = &self.publishing.streams {
                let config = stream::Config {
                    name: name(topic),
                    subjects: vec![name(topic)],
                    ..stream::Config::default()
                };
                self.runtime.block_on(streams.get_or_create_stream(config))?;
            }
        }
        self.topics = self.topics.max(count);
        Ok(())
    }

    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()> {
        self.publish_many(topic, &[payload])
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()> {
        self.needs_topic(topic)?;
        self.runtime.block_on(self.publishing.publish(topic, copied(payloads)))
    }

    fn subscribers_max(&self) -> usize {
        match self.streams() {
            Ok(_) => CONSUMERS_MAX,
            Err(_) => usize::MAX,
        }
    }

    fn subscribe(&self, topic: usize, mut receiver: Receiver) -> Result<()> {
        if self.streams().is_ok() {
            let messages = self.runtime.block_on(self.consume(topic, DeliverPolicy::New))?;
            self.runtime
                .spawn(async move { deliver(messages, &mut receiver, u64::MAX, Duration::MAX).await });
            return Ok(());
        }
        let messages = self.runtime.block_on(async {
            let messages = self.subscribing.client.subscribe(name(topic)).await?;
            self.subscribing.ping().await?;
            Ok::<_, anyhow::Error>(messages)
        })?;
        // The core numbers no messages. The receiver finds what is missing by the numbers in the payloads.
        let numbered = messages
            .enumerate()
            .map(|(at, message)| Ok((at as u64, message.payload)));
        self.runtime
            .spawn(async move { deliver(numbered, &mut receiver, u64::MAX, Duration::MAX).await });
        Ok(())
    }

    fn keeps_messages(&self) -> bool {
        self.streams().is_ok()
    }

    fn follow(&self, topic: usize, receiver: &mut Receiver, messages: u64) -> Result<()> {
        self.streams()?;
        self.needs_topic(topic)?;
        self.runtime.block_on(async {
            let kept = self.consume(topic, DeliverPolicy::All).await?;
            deliver(kept, receiver, messages, PATIENCE).await;
            Ok(())
        })
    }

    fn make_group(&self, topic: usize) -> Result<()> {
        let config = Consuming {
            durable_name: Some(GROUP.to_string()),
            ack_policy: AckPolicy::Explicit,
            ..Consuming::default()
        };
        self.runtime.block_on(self.consumer(topic, config)).map(drop)
    }

    fn member(&self, topic: usize) -> Result<Box<dyn Member + '_>> {
        let streams = self.streams()?;
        let consumer = streams.get_consumer_from_stream(GROUP, name(topic));
        Ok(Box::new(Sharing {
            consumer: self.runtime.block_on(consumer)?,
            runtime: &self.runtime,
        }))
    }

    fn connect(&self, _way: Way) -> Answer<'_, Box<dyn Connection + '_>> {
        Box::pin(async {
            let connection = Publishing::connect(&self.server, self.publishing.streams.is_some()).await?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        // The runtime ends the subscriptions and drops their receivers.
        drop(self.runtime);
        Ok(())
    }
}

/// A member of a group. Acknowledgements are confirmed by the server.
struct Sharing<'r> {
    runtime: &'r Runtime,
    consumer: PullConsumer,
}

impl Member for Sharing<'_> {
    fn receive(
        &mut self,
        most: usize,
        acknowledge: Acknowledge,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        self.runtime.block_on(async {
            let batch = self.consumer.batch().max_messages(most).expires(MEMBER_WAITS);
            let messages: Vec<Message> = batch
                .messages()
                .await?
                .try_collect()
                .await
                .map_err(anyhow::Error::from_boxed)?;
            for message in &messages {
                let (offset, payload) = numbered(message)?;
                work(offset, &payload)?;
                if acknowledge == Acknowledge::Each {
                    message.double_ack().await.map_err(anyhow::Error::from_boxed)?;
                }
            }
            if acknowledge == Acknowledge::Together {
                let all = try_join_all(messages.iter().map(Message::double_ack));
                all.await.map_err(anyhow::Error::from_boxed)?;
            }
            Ok(messages.len() as u64)
        })
    }
}
