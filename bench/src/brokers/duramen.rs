//! Duramen's topics, through its public interface, with the default options. Subscribers belong to a dispatcher; a
//! thread that waits for itself has a subscription.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use duramen::topic::{
    Dispatcher, DispatcherOptions, Group, GroupOptions, Member as GroupMember, Start, Topic, TopicBatch, TopicOptions,
    TopicWrites, Topics,
};
use duramen::{Batch, Durability, Map, Options, Store};

use crate::answer::Found;
use crate::broker::{Acknowledge, Broker, Member, Receiver, Together};
use crate::peer::{Class, Setting};

/// How long a member waits for messages.
const WAIT: Duration = Duration::from_millis(20);
const GROUP: &str = "group";

struct Opened {
    // The order matters: the dispatcher, which calls receivers, must end before the store is closed.
    dispatcher: Dispatcher,
    topics: Vec<Topic>,
    all: Topics,
    pairs: Map,
    store: Store,
}

/// Opens the store as a broker.
pub fn open(directory: &Path, setting: Setting) -> Result<Box<dyn Broker>> {
    let durability = match setting.class {
        Class::Synced => Durability::Synced,
        Class::Written | Class::None => Durability::Written,
    };
    let store = Options::new().durability(durability).open(directory)?;
    let all = Topics::open(&store)?;
    Ok(Box::new(Opened {
        dispatcher: Dispatcher::start(&all, DispatcherOptions::new())?,
        topics: Vec::new(),
        pairs: store.map("pairs")?,
        all,
        store,
    }))
}

impl Broker for Opened {
    fn make_topics(&mut self, count: usize) -> Result<()> {
        for number in self.topics.len()..count {
            let topic = self.all.ensure(&format!("topic.{number}"), TopicOptions::new())?;
            self.topics.push(topic);
        }
        Ok(())
    }

    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()> {
        self.topics[topic].publish(payload)?;
        Ok(())
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()> {
        self.topics[topic].publish_all(payloads.iter().copied())?;
        Ok(())
    }

    fn subscribe(&self, topic: usize, mut receiver: Receiver) -> Result<()> {
        self.dispatcher
            .subscribe(&self.topics[topic], Start::Tail, move |messages| match messages {
                Ok(messages) => receiver.take(messages.iter().map(|message| (message.offset(), message.payload()))),
                Err(error) => receiver.fail(error.to_string()),
            })?;
        Ok(())
    }

    fn follow(&self, topic: usize, receiver: &mut Receiver, messages: u64) -> Result<()> {
        let mut subscription = self.topics[topic].subscribe(Start::Beginning)?;
        while receiver.taken() < messages && !receiver.is_wrong() {
            if let Some(batch) = subscription.next_batch(Duration::from_secs(20))? {
                receiver.take(batch.iter().map(|message| (message.offset(), message.payload())));
            } else {
                receiver.fail(format!("message {} does not come", receiver.taken()));
            }
        }
        Ok(())
    }

    fn make_group(&self, topic: usize) -> Result<()> {
        self.topics[topic].ensure_group(GROUP, Start::Beginning, GroupOptions::new())?;
        Ok(())
    }

    fn member(&self, topic: usize) -> Result<Box<dyn Member + '_>> {
        let group: Group = self.topics[topic].existing_group(GROUP)?;
        Ok(Box::new(Sharing(group.member("lab"))))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.pairs.put(key, value)?)
    }

    fn put_and_publish(&self, how: Together, pair: (&[u8], &[u8]), topic: usize, payload: &[u8]) -> Result<()> {
        let ((key, value), topic) = (pair, &self.topics[topic]);
        if how == Together::Transaction {
            self.store.transact(|tx| {
                tx.put(&self.pairs, key, value)?;
                tx.publish(topic, payload)
            })?;
        } else {
            let mut batch = Batch::new();
            batch.put(&self.pairs, key, value)?;
            batch.publish(topic, payload)?;
            self.store.write(batch)?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.pairs.get(key)?.as_deref())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Opened {
            dispatcher,
            topics,
            all,
            pairs,
            store,
        } = *self;
        drop((dispatcher, topics, all, pairs));
        store.close().context("closing the store of a broker")
    }
}

struct Sharing(GroupMember);

impl Member for Sharing {
    fn receive(
        &mut self,
        most: usize,
        acknowledge: Acknowledge,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        let Some(deliveries) = self.0.receive(most, WAIT)? else {
            return Ok(0);
        };
        let received = deliveries.len() as u64;
        if acknowledge == Acknowledge::Each {
            for delivery in deliveries {
                let message = delivery.message();
                work(message.offset(), message.payload())?;
                delivery.acknowledge()?;
            }
            return Ok(received);
        }
        for message in deliveries.messages().iter() {
            work(message.offset(), message.payload())?;
        }
        deliveries.acknowledge()?;
        Ok(received)
    }
}
