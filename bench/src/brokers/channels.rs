//! A broker built like the published in-memory brokers. Every message stays in the list of its topic. Every subscriber
//! has its own channel: the publisher puts each message into it, and a task empties it. Tasks run on as many threads as
//! there are processors. A thread that follows a topic reads the list, and sleeps at its end until the list grows.
//! Nothing survives the process.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::answer::Unsupported;
use crate::broker::{Broker, Receiver};
use crate::peer::{Class, Description, Driver, Peer, Setting};

/// Maximum time to wait for a message.
const WAIT: Duration = Duration::from_secs(20);
/// Maximum number of messages taken from the list together.
const FOLLOWED_AT_ONCE: usize = 4096;

/// The driver.
pub struct Channels;

impl Driver for Channels {
    fn describe(&self) -> Description {
        Description {
            name: "channels".to_string(),
            version: "the lab's own".to_string(),
            classes: vec![(
                Class::None,
                "a list and a channel for each subscriber, in memory".to_string(),
            )],
            is_broker: true,
            is_no_store: true,
            ..Description::default()
        }
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("is a broker, and stores no pairs"))
    }

    fn open_broker(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Broker>> {
        let ready = Arc::new(Ready::default());
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let run = |_| {
            let ready = ready.clone();
            std::thread::spawn(move || ready.run())
        };
        Ok(Box::new(Opened {
            threads: (0..threads).map(run).collect(),
            ready,
            topics: Vec::new(),
        }))
    }
}

struct Opened {
    topics: Vec<Topic>,
    ready: Arc<Ready>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Topic {
    kept: Mutex<Kept>,
    /// Signals new messages to sleeping threads.
    grown: Condvar,
    subscribers: RwLock<Vec<Arc<Subscriber>>>,
}

type Message = Arc<[u8]>;

#[derive(Default)]
struct Kept {
    messages: Vec<Message>,
    /// Number of threads that sleep until there are more messages.
    asleep: usize,
}

impl Topic {
    /// Returns the messages from position `first` on, once there are any. Returns none if none arrived for a long time.
    fn since(&self, first: usize) -> Vec<Message> {
        let mut kept = locked(&self.kept);
        if kept.messages.len() <= first {
            kept.asleep += 1;
            let is_short = |kept: &mut Kept| kept.messages.len() <= first;
            let slept = self.grown.wait_timeout_while(kept, WAIT, is_short);
            kept = slept.unwrap_or_else(PoisonError::into_inner).0;
            kept.asleep -= 1;
        }
        kept.messages[first..].iter().take(FOLLOWED_AT_ONCE).cloned().collect()
    }
}

struct Subscriber {
    channel: Mutex<VecDeque<Message>>,
    /// Whether the subscriber's task is about to run. The task will find what was put into the channel before this was
    /// set.
    is_ready: AtomicBool,
    /// Position of the receiver, and the receiver itself.
    receiver: Mutex<(u64, Receiver)>,
}

/// Tasks that have work to do.
#[derive(Default)]
struct Ready {
    state: Mutex<ReadyState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReadyState {
    queue: VecDeque<Arc<Subscriber>>,
    is_over: bool,
}

impl Ready {
    fn push(&self, subscriber: &Arc<Subscriber>) {
        if !subscriber.is_ready.swap(true, Ordering::AcqRel) {
            locked(&self.state).queue.push_back(subscriber.clone());
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        while let Some(subscriber) = self.next() {
            let mut receiver = locked(&subscriber.receiver);
            subscriber.is_ready.store(false, Ordering::Release);
            let messages = std::mem::take(&mut *locked(&subscriber.channel));
            let (next, receiver) = &mut *receiver;
            let first = *next;
            *next += messages.len() as u64;
            receiver.take((first..).zip(messages.iter().map(|message| &**message)));
        }
    }

    fn next(&self) -> Option<Arc<Subscriber>> {
        let mut state = locked(&self.state);
        loop {
            if let Some(subscriber) = state.queue.pop_front() {
                return Some(subscriber);
            }
            if state.is_over {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Broker for Opened {
    fn make_topics(&mut self, count: usize) -> Result<()> {
        self.topics.resize_with(count.max(self.topics.len()), Topic::default);
        Ok(())
    }

    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()> {
        let topic = &self.topics[topic];
        let message: Message = payload.into();
        // Holds the lock until the message is in all channels, so that every subscriber sees the same order.
        let mut kept = locked(&topic.kept);
        kept.messages.push(message.clone());
        if kept.asleep > 0 {
            topic.grown.notify_all();
        }
        let subscribers = topic.subscribers.read().unwrap_or_else(PoisonError::into_inner);
        for subscriber in subscribers.iter() {
            locked(&subscriber.channel).push_back(message.clone());
            self.ready.push(subscriber);
        }
        Ok(())
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()> {
        payloads.iter().try_for_each(|payload| self.publish(topic, payload))
    }

    fn subscribe(&self, topic: usize, receiver: Receiver) -> Result<()> {
        let mut subscribers = self.topics[topic]
            .subscribers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        subscribers.push(Arc::new(Subscriber {
            channel: Mutex::default(),
            is_ready: AtomicBool::new(false),
            receiver: Mutex::new((0, receiver)),
        }));
        Ok(())
    }

    fn follow(&self, topic: usize, receiver: &mut Receiver, messages: u64) -> Result<()> {
        while receiver.taken() < messages && !receiver.is_wrong() {
            let first = receiver.taken();
            let batch = self.topics[topic].since(first as usize);
            if batch.is_empty() {
                receiver.fail(format!("message {first} does not come"));
            }
            receiver.take((first..).zip(batch.iter().map(|message| &**message)));
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        locked(&self.ready.state).is_over = true;
        self.ready.changed.notify_all();
        for thread in self.threads {
            if thread.join().is_err() {
                bail!("a thread of the broker panicked");
            }
        }
        Ok(())
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
