//! Brokers with a planted fault, to test the workloads of messages. Like other faulty peers, they are reached by name
//! only and never listed. They behave like Duramen, except for one message in fifty.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};

use super::duramen;
use crate::answer::{Found, Unsupported};
use crate::broker::{Broker, Member, Receiver, Together};
use crate::peer::{Class, Description, Driver, Peer, Setting};

/// The fault of a faulty broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A message is acknowledged and not published.
    Gap,
    /// A message is published twice.
    Twice,
    /// A message is published after its successor.
    Swaps,
    /// A message is acknowledged, with its pair, before it is published. A killed process therefore loses it.
    Late,
}

/// The driver of a faulty broker.
pub struct Faulty(Fault);

/// All faulty brokers.
pub const ALL: &[&dyn Driver] = &[
    &Faulty(Fault::Gap),
    &Faulty(Fault::Twice),
    &Faulty(Fault::Swaps),
    &Faulty(Fault::Late),
];

const EVERY: u64 = 50;

impl Driver for Faulty {
    fn describe(&self) -> Description {
        let name = match self.0 {
            Fault::Gap => "faulty-gap",
            Fault::Twice => "faulty-twice",
            Fault::Swaps => "faulty-swaps",
            Fault::Late => "faulty-late",
        };
        Description {
            name: name.to_string(),
            version: "the lab's own".to_string(),
            classes: [Class::Synced, Class::Written]
                .map(|class| (class, "claimed, wrongly".to_string()))
                .to_vec(),
            is_persistent: true,
            is_broker: true,
            is_no_store: true,
            ..Description::default()
        }
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("is a broker, and stores no pairs"))
    }

    fn open_broker(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Broker>> {
        Ok(Box::new(Wrong {
            inner: duramen::open(directory, setting)?,
            fault: self.0,
            published: AtomicU64::new(0),
            held: std::sync::Mutex::default(),
            late: std::sync::Mutex::default(),
        }))
    }
}

struct Wrong {
    inner: Box<dyn Broker>,
    fault: Fault,
    published: AtomicU64,
    held: std::sync::Mutex<Option<(usize, Vec<u8>)>>,
    late: std::sync::Mutex<VecDeque<Late>>,
}

/// A message with its pair, acknowledged and not yet published.
struct Late {
    how: Together,
    key: Vec<u8>,
    value: Vec<u8>,
    topic: usize,
    payload: Vec<u8>,
}

/// Number of messages that wait.
const LATE: usize = 16;

impl Wrong {
    fn is_chosen(&self) -> bool {
        self.published.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY / 2
    }

    /// Queues this message, and publishes the message queued `LATE` messages earlier.
    fn put_off(&self, message: Late) -> Result<()> {
        let mut late = self.late.lock().expect("no thread panics with it");
        late.push_back(message);
        match late.len() > LATE {
            true => late.pop_front().map_or(Ok(()), |first| {
                let pair = (&first.key[..], &first.value[..]);
                self.inner.put_and_publish(first.how, pair, first.topic, &first.payload)
            }),
            false => Ok(()),
        }
    }
}

impl Broker for Wrong {
    fn make_topics(&mut self, count: usize) -> Result<()> {
        self.inner.make_topics(count)
    }

    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()> {
        match (self.is_chosen(), self.fault) {
            (true, Fault::Gap) => return Ok(()),
            (true, Fault::Twice) => self.inner.publish(topic, payload)?,
            (true, Fault::Swaps) => {
                let mut held = self.held.lock().expect("no thread panics with it");
                *held = Some((topic, payload.to_vec()));
                return Ok(());
            }
            (true, Fault::Late) | (false, _) => {}
        }
        self.inner.publish(topic, payload)?;
        let mut held = self.held.lock().expect("no thread panics with it");
        match held.take_if(|(held, _)| *held == topic) {
            Some((topic, payload)) => self.inner.publish(topic, &payload),
            None => Ok(()),
        }
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()> {
        payloads.iter().try_for_each(|payload| self.publish(topic, payload))
    }

    fn subscribe(&self, topic: usize, receiver: Receiver) -> Result<()> {
        self.inner.subscribe(topic, receiver)
    }

    fn follow(&self, topic: usize, receiver: &mut Receiver, messages: u64) -> Result<()> {
        self.inner.follow(topic, receiver, messages)
    }

    fn make_group(&self, topic: usize) -> Result<()> {
        self.inner.make_group(topic)
    }

    fn member(&self, topic: usize) -> Result<Box<dyn Member + '_>> {
        self.inner.member(topic)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.inner.put(key, value)
    }

    fn put_and_publish(&self, how: Together, pair: (&[u8], &[u8]), topic: usize, payload: &[u8]) -> Result<()> {
        let (key, value) = pair;
        if self.fault != Fault::Late {
            self.inner.put(key, value)?;
            return self.publish(topic, payload);
        }
        self.put_off(Late {
            how,
            key: key.to_vec(),
            value: value.to_vec(),
            topic,
            payload: payload.to_vec(),
        })
    }

    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        self.inner.get(key, found)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.inner.close()
    }
}
