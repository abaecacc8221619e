//! The topics of a pattern, as one reader watches them: existing topics, and topics that are created later.
//!
//! One listener listens to the bells of all of them, and to the registry's bell, which rings when a topic is created or
//! deleted. Topics that may have messages are in a queue, each once, so a reader takes them in turn.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use duramen_engine::{Listener, Result, Snapshot};

use crate::error::is_deleted;
use crate::handle::{Topic, Topics};
use crate::listening::Listening;
use crate::name::Pattern;
use crate::registry::{Event, News};
use crate::tables::REGISTRY;

/// The token of the registry's bell; no topic has this id.
const REGISTRY_TOKEN: u64 = REGISTRY as u64;

/// The watched topics of a pattern. A `T` is the reader's state for a topic. It listens to the bells of its topic, with
/// the id as token.
pub(crate) struct Watched<T> {
    topics: Topics,
    pattern: Pattern,
    followed: HashMap<u32, T>,
    /// Topics that may have messages, each once.
    queue: VecDeque<u32>,
    queued: HashSet<u32>,
    /// Whether topics were created or deleted since the last check.
    registry_rang: bool,
    /// The entry of the registry where the next check begins.
    seen: Option<u64>,
    /// Whether some matching topics are not followed now, but may be later, without a notice from the registry.
    leaves_topics_out: bool,
    listener: Arc<Listener>,
    _registry: Listening,
}

/// What a reader does with topics.
pub(crate) trait Watcher<T> {
    /// Returns a snapshot, unless the reader has nothing to read any more.
    fn snapshot(&self) -> Result<Snapshot>;

    /// Begins to read a topic.
    fn begin(&self, snapshot: &Snapshot, topic: &Topic, listener: &Arc<Listener>) -> Result<Begun<T>>;
}

/// Result of beginning to read a matching topic.
pub(crate) enum Begun<T> {
    Followed(T),
    /// The reader leaves it out for now.
    LeftOut,
    /// The topic never concerns the reader.
    Foreign,
}

impl<T> Watched<T> {
    /// Watches no topic yet: the next check finds all of them.
    pub(crate) fn new(topics: &Topics, pattern: &Pattern) -> Watched<T> {
        let (home, listener) = (topics.home(), Listener::new());
        Watched {
            topics: topics.clone(),
            pattern: pattern.clone(),
            followed: HashMap::new(),
            queue: VecDeque::new(),
            queued: HashSet::new(),
            registry_rang: true,
            seen: None,
            leaves_topics_out: false,
            _registry: Listening::begin(&home.store, home.registry(), &listener, REGISTRY_TOKEN),
            listener,
        }
    }

    pub(crate) fn topics(&self) -> &Topics {
        &self.topics
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    pub(crate) fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// Number of followed topics.
    pub(crate) fn len(&self) -> usize {
        self.followed.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.followed.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.followed.get_mut(&id)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.followed.iter_mut().map(|(id, followed)| (*id, followed))
    }

    /// Whether topics were created or deleted since the last check.
    pub(crate) fn has_news(&self) -> bool {
        self.registry_rang
    }

    /// Whether a topic may have messages.
    pub(crate) fn is_any_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Begins to follow new topics, and forgets deleted topics. Reads the registry's entries since the last check, and
    /// all topics only if those entries are not enough.
    pub(crate) fn look_for_topics(&mut self, watcher: &dyn Watcher<T>) -> Result<()> {
        let home = self.topics.home().clone();
        home.registry().bell().arm();
        let snapshot = watcher.snapshot()?;
        let seen = self.seen.filter(|_| !self.leaves_topics_out);
        let (news, next) = home.news(&snapshot, seen)?;
        match news {
            News::Everything => self.look_at_all_topics(&snapshot, watcher)?,
            News::Of(news) => {
                for (event, id, name) in news {
                    match event {
                        Event::Deleted => drop(self.forget(id)),
                        Event::Created if self.pattern.matches(&name) => {
                            // It may be deleted meanwhile, and created again: later entries tell.
                            let record = home.existing_record(&snapshot, &name)?;
                            if record.is_some_and(|record| record.id == id) {
                                self.follow(&snapshot, id, &name, watcher)?;
                            }
                        }
                        Event::Created | Event::Configured | Event::Exists => {}
                    }
                }
            }
        }
        self.seen = Some(next);
        self.registry_rang = false;
        Ok(())
    }

    fn look_at_all_topics(&mut self, snapshot: &Snapshot, watcher: &dyn Watcher<T>) -> Result<()> {
        let home = self.topics.home().clone();
        self.leaves_topics_out = false;
        let mut gone: HashSet<u32> = self.followed.keys().copied().collect();
        for (name, record) in home.records_in(snapshot, self.pattern.literal_start())? {
            if !self.pattern.matches(&name) {
                continue;
            }
            let id = record?.id;
            gone.remove(&id);
            self.follow(snapshot, id, &name, watcher)?;
        }
        gone.into_iter().for_each(|id| drop(self.forget(id)));
        Ok(())
    }

    /// Begins to follow a topic, unless it is followed already.
    fn follow(&mut self, snapshot: &Snapshot, id: u32, name: &str, watcher: &dyn Watcher<T>) -> Result<()> {
        if self.followed.contains_key(&id) {
            return Ok(());
        }
        let topic = self.topics.home().topic(id, name)?;
        match watcher.begin(snapshot, &topic, &self.listener) {
            Ok(Begun::Foreign) => {}
            Ok(Begun::LeftOut) => self.leaves_topics_out = true,
            Ok(Begun::Followed(followed)) => {
                self.followed.insert(id, followed);
                self.enqueue(id);
            }
            // The topic was deleted meanwhile.
            Err(error) if is_deleted(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Forgets a deleted topic.
    pub(crate) fn forget(&mut self, id: u32) -> Option<T> {
        self.followed.remove(&id)
    }

    /// Forgets an existing topic, which may be followed again.
    pub(crate) fn leave_out(&mut self, id: u32) -> Option<T> {
        self.leaves_topics_out = true;
        self.forget(id)
    }

    /// Records which bells rang, before anything can fail: a bell rings only once until it is armed again.
    pub(crate) fn note(&mut self, tokens: &[u64]) {
        self.registry_rang |= tokens.contains(&REGISTRY_TOKEN);
        for token in tokens.iter().filter(|token| **token != REGISTRY_TOKEN) {
            self.enqueue(*token as u32);
        }
    }

    /// Removes the next topic from the queue.
    pub(crate) fn dequeue(&mut self) -> Option<u32> {
        let id = self.queue.pop_front()?;
        self.queued.remove(&id);
        Some(id)
    }

    /// Puts a topic at the end of the queue, unless it is in it.
    pub(crate) fn enqueue(&mut self, id: u32) {
        if self.queued.insert(id) {
            self.queue.push_back(id);
        }
    }

    pub(crate) fn enqueue_all(&mut self) {
        let all: Vec<u32> = self.followed.keys().copied().collect();
        all.into_iter().for_each(|id| self.enqueue(id));
    }

    /// As if the registry had more changes than its entries record.
    #[cfg(test)]
    pub(crate) fn lose_track(&mut self) {
        self.seen = None;
    }
}
