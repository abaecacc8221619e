//! What applies entries: a store, and what is open of it. Applying itself is in `apply`, `groups`, `trees` and `etcd`.

use std::collections::HashMap;

use duramen::topic::{Group, Topic, TopicWrites, Topics, TopicsOptions};
use duramen::tree::{Trees, TreesOptions};
use duramen::{Map, Result, Store, Transaction};
use duramen_proto::command::{Refusal, StoredSession};
use tonic::Code;

use super::HANDLES_MAX;
use super::idempotency::Keys;
use super::kept::{Kept, Recorder};
use super::sessions::Sessions;
use super::stopped::Stopped;
use super::token::TOKENS;
use crate::refusal::refused;
use crate::security::Tokens;

/// Applies entries to a store: all writes of the server go through here.
pub struct Applier {
    pub(super) store: Store,
    pub(super) topics: Topics,
    pub(super) trees: Trees,
    pub(super) keys: Keys,
    pub(super) sessions: Sessions,
    pub(super) tokens: Tokens,
    pub(super) recorder: Recorder,
    pub(super) maps: HashMap<String, Map>,
    pub(super) known_topics: HashMap<String, Topic>,
    /// By topic and name.
    pub(super) known_groups: HashMap<(String, String), Group>,
}

/// The reserved map of commands with a key.
pub(super) const IDEMPOTENCY: &str = "server.idempotency";

impl Applier {
    /// An applier for a store. The store may have other users at the same time.
    ///
    /// # Errors
    /// Those of opening the topics of the store.
    pub fn new(store: &Store, topics: TopicsOptions) -> Result<Applier> {
        Ok(Applier {
            store: store.clone(),
            topics: Topics::open_with(store, topics)?,
            // Commands do what trees need in the background.
            trees: Trees::open_with(store, TreesOptions::new().background(false))?,
            keys: Keys::new(store.reserved_map(IDEMPOTENCY)?),
            sessions: Sessions::open_in(store)?,
            tokens: Tokens::new(store.reserved_map(TOKENS)?),
            recorder: Recorder::new(Kept::open(store)?),
            maps: HashMap::new(),
            known_topics: HashMap::new(),
            known_groups: HashMap::new(),
        })
    }

    /// The time that deadlines are compared with, in microseconds since 1970, for an entry that is made now.
    pub fn clock_us(&self) -> u64 {
        u64::try_from(self.store.shared_clock().as_micros()).unwrap_or(u64::MAX)
    }

    /// The sessions of the store.
    ///
    /// # Errors
    /// Those of reading.
    pub fn sessions(&self) -> Result<Vec<(Vec<u8>, StoredSession)>> {
        self.sessions.list(&self.store.snapshot()?)
    }

    /// The store's tokens.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The store's topics.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// The store's trees.
    pub fn trees(&self) -> &Trees {
        &self.trees
    }

    pub(super) fn map(&mut self, tx: &Transaction, name: &str) -> std::result::Result<Map, Stopped> {
        if let Some(map) = self.maps.get(name).filter(|map| map.is_current()) {
            return Ok(map.clone());
        }
        let map = tx.existing_map(name)?.ok_or_else(|| map_not_found(name))?;
        if self.maps.len() >= HANDLES_MAX {
            self.maps.clear();
        }
        self.maps.insert(name.into(), map.clone());
        Ok(map)
    }

    /// A topic, with the offset of its next message.
    pub(super) fn topic(&mut self, tx: &Transaction, name: &str) -> std::result::Result<(Topic, u64), Stopped> {
        // A handle of a topic that was deleted gives an error, and there may be another topic of that name.
        if let Some(topic) = self.known_topics.get(name)
            && let Ok(next) = tx.next_offset(topic)
        {
            return Ok((topic.clone(), next));
        }
        // The transaction is exclusive: what is committed is what it sees, unless it changed topics itself.
        let topic = self.topics.get(name)?.ok_or_else(|| {
            let message = format!("there is no topic {name:?}; create it with CreateTopic");
            refused(Code::NotFound, "TOPIC_NOT_FOUND", message)
        })?;
        if self.known_topics.len() >= HANDLES_MAX {
            self.known_topics.clear();
        }
        let next = tx.next_offset(&topic)?;
        self.known_topics.insert(name.into(), topic.clone());
        Ok((topic, next))
    }
}

pub(crate) fn map_not_found(name: &str) -> Refusal {
    let message = format!("there is no map {name:?}; create it with CreateMap");
    refused(Code::NotFound, "MAP_NOT_FOUND", message)
}
