//! Duramen's server through its Rust client, and the floor below it. The server has one serving thread, and listens on a free
//! port of the loopback address. It runs in the process of its clients, or in a process of its own (`-apart`), where both sides may
//! spin (`-spinning`).
//!
//! Calls from the lab's threads go through a runtime with one thread, which also calls the receivers. A [`Connection`]
//! belongs to the runtime of its caller, so its requests wake no other thread of the client.

mod calls;
mod members;

use std::path::Path;

use anyhow::{Result, bail};
use duramen_client::{Acknowledge, Bytes, Client, GroupOptions, Map, Start, Topic, TopicOptions, WriteOptions};
use tokio::runtime::{Builder, Runtime};

use crate::answer::Answer;
use crate::answer::{Found, Unsupported};
use crate::broker::{Broker, Member, Receiver, Together};
use crate::connection::{Connection, Way};
use crate::peer::{Class, Description, Driver, Peer, Setting};
use crate::servers::grpc::{Serving, Shape, spin};
use crate::tree::Tree;
use crate::trees;
use crate::versions::locked_version;

/// Most subscribers: each is a stream of one connection, which has at most 4,096.
const SUBSCRIBERS_MAX: usize = 4_000;
const PAIRS: &str = "pairs";

/// The driver of Duramen's server.
pub struct DuramenGrpc(pub Shape);
/// The driver of a server that acknowledges and stores nothing.
pub struct TonicFloor(pub Shape);

impl Driver for DuramenGrpc {
    fn describe(&self) -> Description {
        let versions = ["duramen-server", "duramen-client", "tonic"].map(locked_version);
        let description = Description {
            version: versions.join(", "),
            classes: vec![
                (Class::Synced, "acknowledgement level synced".to_string()),
                (Class::Written, "acknowledgement level written".to_string()),
                (
                    Class::None,
                    "acknowledgement level memory, for messages only".to_string(),
                ),
            ],
            options: vec!["threads 1: the client needs the other core".to_string()],
            is_persistent: true,
            is_broker: true,
            is_tree: true,
            is_no_store: true,
            ..Description::default()
        };
        self.0.describe("duramen-grpc", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a broker"))
    }

    fn open_broker(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Broker>> {
        Opened::open(self.0, Some(directory), setting.class)
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        trees::grpc::open(self.0, directory, setting)
    }
}

impl Driver for TonicFloor {
    fn describe(&self) -> Description {
        let nothing = "acknowledged at once, nothing is stored; shown in every class as the floor".to_string();
        let description = Description {
            version: locked_version("tonic"),
            classes: [Class::Synced, Class::Written, Class::None]
                .map(|class| (class, nothing.clone()))
                .to_vec(),
            is_exempt: true,
            is_broker: true,
            is_no_store: true,
            ..Description::default()
        };
        self.0.describe("tonic-floor", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("stores nothing"))
    }

    fn open_broker(&self, _directory: &Path, setting: Setting) -> Result<Box<dyn Broker>> {
        Opened::open(self.0, None, setting.class)
    }
}

struct Opened {
    shape: Shape,
    runtime: Runtime,
    address: String,
    level: Acknowledge,
    /// The client of topics and maps as a whole.
    client: Client,
    topics: Vec<Topic>,
    serving: Serving,
    has_store: bool,
}

impl Opened {
    /// Starts a server, with a store in a directory or without one, and opens a client of it.
    fn open(shape: Shape, directory: Option<&Path>, class: Class) -> Result<Box<dyn Broker>> {
        let serving = Serving::start(shape, directory)?;
        let (address, has_store) = (serving.url(), directory.is_some());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let level = match class {
            Class::Synced => Acknowledge::Synced,
            Class::Written => Acknowledge::Written,
            Class::None => Acknowledge::Memory,
        };
        let client = {
            let _guard = runtime.enter();
            // Only publishing accepts the level memory.
            let options = WriteOptions::new().acknowledge(level.max(Acknowledge::Written));
            Client::connect(&address)?.with(options)
        };
        if has_store {
            runtime.block_on(client.create_map(PAIRS))?;
        }
        Ok(Box::new(Opened {
            shape,
            runtime,
            address,
            level,
            client,
            topics: Vec::new(),
            serving,
            has_store,
        }))
    }

    /// Returns whether a row needs what the server does not have.
    fn needs_store(&self) -> Result<()> {
        match self.has_store {
            true => Ok(()),
            false => bail!(Unsupported("acknowledges messages and keeps nothing")),
        }
    }

    /// Returns the map of the pairs, when its class is one of maps.
    fn pairs(&self) -> Result<Map> {
        self.needs_store()?;
        match self.level {
            Acknowledge::Memory => bail!(Unsupported("has class none for messages only")),
            _ => Ok(self.client.map(PAIRS)),
        }
    }
}

fn topic_name(number: usize) -> String {
    format!("topic.{number}")
}

fn copied(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

impl Broker for Opened {
    fn make_topics(&mut self, count: usize) -> Result<()> {
        for number in self.topics.len()..count {
            let name = topic_name(number);
            if self.has_store {
                let created = self.client.create_topic(&name, TopicOptions::default());
                self.runtime.block_on(created)?;
            }
            let options = WriteOptions::new().acknowledge(self.level);
            self.topics.push(self.client.topic(name).with(options));
        }
        Ok(())
    }

    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()> {
        self.runtime.block_on(self.topics[topic].publish(copied(payload)))?;
        Ok(())
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()> {
        let batch = payloads.iter().copied().map(copied);
        self.runtime.block_on(self.topics[topic].publish_batch(batch))?;
        Ok(())
    }

    fn subscribers_max(&self) -> usize {
        SUBSCRIBERS_MAX
    }

    fn subscribe(&self, topic: usize, mut receiver: Receiver) -> Result<()> {
        self.needs_store()?;
        let mut subscription = self.runtime.block_on(self.topics[topic].subscribe(Start::Next))?;
        self.runtime.spawn(async move {
            while let Some(received) = subscription.next().await {
                match received {
                    Ok(message) => receiver.take(std::iter::once((message.offset, &message.payload[..]))),
                    Err(error) => receiver.fail(error.to_string()),
                }
            }
        });
        Ok(())
    }

    fn follow(&self, topic: usize, receiver: &mut Receiver, messages: u64) -> Result<()> {
        const WAIT: std::time::Duration = std::time::Duration::from_secs(20);
        self.needs_store()?;
        self.runtime.block_on(async {
            let mut subscription = self.topics[topic].subscribe(Start::Earliest).await?;
            while receiver.taken() < messages && !receiver.is_wrong() {
                match tokio::time::timeout(WAIT, subscription.next()).await {
                    Ok(Some(received)) => {
                        let message = received?;
                        receiver.take(std::iter::once((message.offset, &message.payload[..])));
                    }
                    Ok(None) | Err(_) => receiver.fail(format!("message {} does not come", receiver.taken())),
                }
            }
            Ok(())
        })
    }

    fn make_group(&self, topic: usize) -> Result<()> {
        self.needs_store()?;
        let group = self.client.topic(topic_name(topic)).group(members::GROUP);
        Ok(self
            .runtime
            .block_on(group.create(Start::Earliest, GroupOptions::new()))
            .map(drop)?)
    }

    fn member(&self, topic: usize) -> Result<Box<dyn Member + '_>> {
        self.needs_store()?;
        let group = self.client.topic(topic_name(topic)).group(members::GROUP);
        Ok(Box::new(members::Sharing::new(&self.runtime, group)))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.runtime.block_on(self.pairs()?.put(key, copied(value)))?)
    }

    fn put_and_publish(&self, _how: Together, pair: (&[u8], &[u8]), topic: usize, payload: &[u8]) -> Result<()> {
        // A program has one way for both: a request with all changes, which the server commits together.
        self.pairs()?;
        let transaction = self.client.transaction().put(PAIRS, pair.0, copied(pair.1));
        let transaction = transaction.publish(&topic_name(topic), copied(payload));
        self.runtime.block_on(transaction.commit())?;
        Ok(())
    }

    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        self.needs_store()?;
        found(self.runtime.block_on(self.client.map(PAIRS).get(key))?.as_deref())
    }

    fn connect(&self, way: Way) -> Answer<'_, Box<dyn Connection + '_>> {
        Box::pin(async move {
            if self.shape == Shape::Spinning {
                // It ends with the runtime of the caller.
                tokio::spawn(spin());
            }
            let client = Client::builder().connections(1).connect(&self.address)?;
            let client = client.with(WriteOptions::new().acknowledge(self.level));
            // The client connects with its first call, which is none of those that are measured.
            client.topic(topic_name(0)).describe().await?;
            let connection: Box<dyn Connection> = match way {
                Way::Calls => Box::new(calls::Calls {
                    topics: (0..self.topics.len())
                        .map(|number| client.topic(topic_name(number)))
                        .collect(),
                    pairs: self.pairs().is_ok().then(|| client.map(PAIRS)),
                }),
                Way::Stream(topic) => Box::new(calls::Stream(client.topic(topic_name(topic)).publisher().await?)),
            };
            Ok(connection)
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Opened {
            runtime,
            client,
            topics,
            serving,
            ..
        } = *self;
        drop((topics, client));
        // This ends the subscriptions and drops their receivers.
        drop(runtime);
        serving.stop()
    }
}
