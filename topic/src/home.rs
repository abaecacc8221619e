//! The state that all handles of the topics of one open store share.
//!
//! It is the ground of this crate: every module that works on topics takes a [`Home`], and [`Home`] knows none of them.
//! So state of a higher layer is here by its fields or as an unnamed type, and its behaviour is above.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use duramen_engine::{Reason, Result, Sequence, Snapshot, Store, Transaction};

use crate::background_thread::{BackgroundThread, Signal, TICK};
use crate::brake_threads::BrakeThreads;
use crate::known_options::KnownOptions;
use crate::lock::locked;
use crate::presence::Presence;
use crate::record::{TopicRecord, millis};
use crate::tables::Tables;
use crate::timer::Timer;

/// The link from a handle to the topics of an open store.
#[derive(Clone)]
pub(crate) struct Home {
    inner: Arc<Inner>,
    /// Set in handles that the program has. The last of them ends the background thread before it releases the store.
    thread: Option<Arc<BackgroundThread>>,
}

impl Deref for Home {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// State that all handles of the topics of one open store share.
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) tables: Tables,
    /// Records which topics were created, configured and deleted.
    registry: Sequence,
    pub(crate) registry_trimming: Mutex<Option<RegistryTrimming>>,
    pub(crate) topics: Mutex<HashMap<u32, Weak<SharedTopic>>>,
    /// States of groups. Their type is that of a higher layer.
    groups: Mutex<HashMap<u32, Weak<dyn Any + Send + Sync>>>,
    thread: Mutex<Weak<BackgroundThread>>,
    pub(crate) presence: Presence,
    pub(crate) brake_threads: BrakeThreads,
    pub(crate) timer: Timer,
    /// The last number that a delayed message got in this process.
    pub(crate) delayed_numbers: AtomicU64,
}

/// The state of a trimming in progress.
#[derive(Debug)]
pub(crate) struct RegistryTrimming {
    /// The entries before this one are trimmed.
    pub(crate) end: u64,
    /// Topics for which the trimming has appended an entry.
    pub(crate) moved: HashSet<u32>,
}

/// State that the handles of one topic in this process share.
#[derive(Debug)]
pub(crate) struct SharedTopic {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    pub(crate) sequence: Sequence,
    /// No message before this offset is kept.
    pub(crate) first_hint: AtomicU64,
    pub(crate) known: KnownOptions,
}

impl SharedTopic {
    pub(crate) fn new(id: u32, name: &str, sequence: Sequence) -> SharedTopic {
        SharedTopic {
            id,
            name: name.into(),
            sequence,
            first_hint: AtomicU64::new(0),
            known: KnownOptions::default(),
        }
    }
}

/// The open stores of this process with at least one handle of their topics. All handles of a store share their state.
static OPEN: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

impl Inner {
    fn new(store: &Store) -> Result<Arc<Inner>> {
        let tables = Tables::open(store)?;
        let registry = tables.registry()?;
        if store.snapshot()?.sequence_state(&registry)?.is_none() && !store.is_read_only() {
            store.transact(|tx| match tx.sequence_state(&registry)? {
                None => tx.begin_sequence(&registry),
                Some(_) => Ok(()),
            })?;
        }
        Ok(Arc::new(Inner {
            store: store.clone(),
            tables,
            registry,
            registry_trimming: Mutex::default(),
            topics: Mutex::default(),
            groups: Mutex::default(),
            thread: Mutex::default(),
            presence: Presence::default(),
            brake_threads: BrakeThreads::default(),
            timer: Timer::default(),
            delayed_numbers: AtomicU64::new(0),
        }))
    }

    /// The sequence that records which topics were created, configured and deleted.
    pub(crate) fn registry(&self) -> &Sequence {
        &self.registry
    }

    /// Returns the state that the handles of a group share. `make` creates it for the first handle.
    pub(crate) fn group<T: Any + Send + Sync>(&self, id: u32, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut groups = locked(&self.groups);
        if let Some(shared) = groups.get(&id).and_then(Weak::upgrade) {
            return shared.downcast().expect("all states of groups have one type");
        }
        prune(&mut groups);
        let shared = make();
        let unnamed: Arc<dyn Any + Send + Sync> = shared.clone();
        groups.insert(id, Arc::downgrade(&unnamed));
        shared
    }

    pub(crate) fn existing_record(&self, snapshot: &Snapshot, name: &str) -> Result<Option<TopicRecord>> {
        let record = snapshot.get(&self.tables.topics, name.as_bytes())?;
        record.map(|record| TopicRecord::decode(&record)).transpose()
    }

    /// Returns the record of the topic with this name, if the topic has this number.
    pub(crate) fn same_record(&self, snapshot: &Snapshot, name: &str, id: u32) -> Result<TopicRecord> {
        let record = self.record(snapshot, name)?;
        let is_it = record.id == id;
        is_it
            .then_some(record)
            .ok_or_else(|| Reason::TopicDeleted { name: name.into() }.into())
    }

    /// Returns the record of a topic that a handle refers to.
    pub(crate) fn record(&self, snapshot: &Snapshot, name: &str) -> Result<TopicRecord> {
        let record = self.existing_record(snapshot, name)?;
        record.ok_or_else(|| Reason::TopicDeleted { name: name.into() }.into())
    }

    /// Names and records of all topics whose names begin with `start`. A damaged record is an error of its topic alone.
    pub(crate) fn records(&self, start: &str) -> Result<Vec<(String, Result<TopicRecord>)>> {
        self.records_in(&self.store.snapshot()?, start)
    }

    pub(crate) fn records_in(&self, snapshot: &Snapshot, start: &str) -> Result<Vec<(String, Result<TopicRecord>)>> {
        let mut cursor = snapshot.prefix(&self.tables.topics, start.as_bytes())?;
        let mut records = Vec::new();
        while let Some((key, record)) = cursor.next()? {
            if key.first() == Some(&0) {
                continue;
            }
            let name = String::from_utf8_lossy(key).into_owned();
            records.push((name, TopicRecord::decode(&record)));
        }
        Ok(records)
    }

    /// Wakes all waiters for messages or topics, because the store was closed.
    pub(crate) fn tell_all(&self) {
        let topics: Vec<_> = locked(&self.topics).values().filter_map(Weak::upgrade).collect();
        topics.iter().for_each(|topic| topic.sequence.bell().tell());
        self.registry.bell().tell();
    }

    /// Tells the background thread of this process, if it runs, of a delayed message that is due before the
    /// thread's next check.
    pub(crate) fn wake_background(&self, due: u64) {
        if due > millis(self.store.wall_clock() + TICK) {
            return;
        }
        let thread = locked(&self.thread).upgrade();
        thread.inspect(|thread| thread.expect(due));
    }

    pub(crate) fn record_in(&self, tx: &Transaction, name: &str) -> Result<Option<TopicRecord>> {
        let record = tx.get_ref(&self.tables.topics, name.as_bytes())?;
        record.map(|record| TopicRecord::decode(&record)).transpose()
    }
}

impl Home {
    /// Opens the topics of a store for the program. All handles of one open store share their state.
    pub(crate) fn open(store: &Store) -> Result<Home> {
        let mut open = locked(&OPEN);
        open.retain(|inner| inner.strong_count() > 0);
        // Upgraded all at once and dropped outside the lock: dropping the last handle closes a store.
        let known: Vec<Arc<Inner>> = open.iter().filter_map(Weak::upgrade).collect();
        let same = known.iter().find(|inner| inner.store.is(store)).cloned();
        let inner = match same {
            Some(inner) => Ok(inner),
            None => Inner::new(store).inspect(|inner| open.push(Arc::downgrade(inner))),
        };
        drop(open);
        drop(known);
        let inner = inner?;
        let mut known = locked(&inner.thread);
        let thread = known.upgrade().unwrap_or_default();
        *known = Arc::downgrade(&thread);
        drop(known);
        let thread = Some(thread);
        Ok(Home { inner, thread })
    }

    /// Starts the background thread unless it runs. `work` gets the state as long as any handle keeps it.
    pub(crate) fn start_background(&self, work: impl FnOnce(&Signal, &Weak<Inner>) + Send + 'static) {
        if let Some(thread) = &self.thread {
            let inner = Arc::downgrade(&self.inner);
            thread.start(move |signal| work(signal, &inner));
        }
    }

    /// Creates a handle for an internal thread, which does not keep the background thread running.
    pub(crate) fn of_worker(inner: &Arc<Inner>) -> Home {
        Home {
            inner: inner.clone(),
            thread: None,
        }
    }
}

/// Removes dropped handles when the map is full, and then reserves room for as many handles as are left. So an
/// insertion costs the same however many handles are open. Returns whether it checked all handles.
pub(crate) fn prune<T: ?Sized>(handles: &mut HashMap<u32, Weak<T>>) -> bool {
    let is_full = handles.len() == handles.capacity();
    if is_full {
        handles.retain(|_, shared| shared.strong_count() > 0);
        handles.reserve(handles.len() + 1);
    }
    is_full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_looked_at_rarely_and_those_that_are_gone_do_not_pile_up() {
        let mut handles = HashMap::new();
        let open: Vec<Arc<u32>> = (0..10_000).map(Arc::new).collect();
        let mut looks = 0;
        for id in 0..200_000 {
            looks += u32::from(prune(&mut handles));
            // Other handles are created and dropped beside those that stay open.
            let shared = open.get(id as usize).cloned().unwrap_or_default();
            handles.insert(id, Arc::downgrade(&shared));
        }
        assert!(looks < 100, "all handles were looked at {looks} times");
        assert!(handles.len() < 50_000, "{} are remembered", handles.len());
    }
}
