//! The handles that programs hold: of one topic, and of all topics of a store.
//!
//! Here is what every operation needs. Operations are in the modules above, each beside what it does.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use duramen_engine::{Durability, Result, Snapshot, Store};

use crate::home::{Home, SharedTopic, prune};
use crate::lock::locked;
use crate::name::check_name;

/// A topic: an ordered, durable sequence of messages. Clones are handles of the same topic.
///
/// Every method that publishes makes its own commit, with the durability of the handle ([`Topic::with_durability`]). To
/// publish together with other writes see [`TopicBatch`] and [`TopicWrites`].
#[derive(Clone)]
pub struct Topic {
    home: Home,
    shared: Arc<SharedTopic>,
    durability: Durability,
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic")
            .field("name", &self.shared.name)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl Topic {
    pub(crate) fn new(home: &Home, shared: Arc<SharedTopic>) -> Topic {
        Topic {
            home: home.clone(),
            shared,
            durability: home.store.default_durability(),
        }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn shared(&self) -> &Arc<SharedTopic> {
        &self.shared
    }

    /// The topics of the same store.
    pub fn topics(&self) -> Topics {
        Topics::of(&self.home)
    }

    /// Name of the topic.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns a handle of the topic whose commits have another durability.
    pub fn with_durability(&self, durability: Durability) -> Topic {
        Topic {
            durability,
            ..self.clone()
        }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// A snapshot of the topic's store.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.home.store.snapshot()
    }

    /// Raises the hint for the first offset of the topic.
    pub(crate) fn trimmed_to(&self, first: u64) {
        self.shared.first_hint.fetch_max(first, Ordering::Relaxed);
    }
}

/// The topics of a store. Clones share the same topics. The store stays open while any clone, or any handle obtained
/// from a clone, exists.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{Start, TopicOptions, Topics};
///
/// let topics = Topics::open(&store)?;
/// let orders = topics.create("orders.eu", TopicOptions::new())?;
/// orders.publish(b"12 apples")?;
/// let messages = orders.read(Start::Beginning, 10)?;
/// assert_eq!(messages.get(0).unwrap().payload(), b"12 apples");
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Topics {
    home: Home,
}

impl fmt::Debug for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Topics").field(&self.home.store).finish()
    }
}

impl Topics {
    pub(crate) fn of(home: &Home) -> Topics {
        Topics { home: home.clone() }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.home.store
    }

    /// Returns the topic with a name, if it exists.
    ///
    /// # Errors
    /// [`TopicError::InvalidName`], and those of [`Store::snapshot`].
    pub fn get(&self, name: &str) -> Result<Option<Topic>> {
        check_name(name)?;
        let snapshot = self.home.store.snapshot()?;
        let record = self.home.existing_record(&snapshot, name)?;
        record.map(|record| self.home.topic(record.id, name)).transpose()
    }
}

impl Home {
    /// Returns the handle of an existing topic.
    pub(crate) fn topic(&self, id: u32, name: &str) -> Result<Topic> {
        let mut topics = locked(&self.topics);
        if let Some(shared) = topics.get(&id).and_then(Weak::upgrade) {
            drop(topics);
            return Ok(Topic::new(self, shared));
        }
        prune(&mut topics);
        let shared = Arc::new(SharedTopic::new(id, name, self.tables.sequence(id, name)?));
        topics.insert(id, Arc::downgrade(&shared));
        drop(topics);
        Ok(Topic::new(self, shared))
    }
}
