//! The topics of a store: create, look up, list, delete.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use duramen_engine::{Map, Reason, Result, Sequence, Snapshot, Store, Transaction};

use crate::alarm::Alarm;
use crate::brake::Movers;
use crate::error::TopicError;
use crate::group::apply_rules;
use crate::index::{self, EXPIRES, ID, ID_TIME, POSITION};
use crate::keeper::{TICK, Users};
use crate::name::{Pattern, check_name};
use crate::presence::Presence;
use crate::record::{TopicOptions, TopicRecord, millis};
use crate::registry::{Event, RegistryTrimming};
use crate::rubbish;
use crate::tables::{self, CREATES, FIRST_ID, NEXT_ID, Tables, name_key};
use crate::topic::{Shared, Topic};

/// Options for the maintenance of a store's topics.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopicsOptions {
    no_background: bool,
}

impl TopicsOptions {
    /// A background thread of this process deletes expired contents of topics, and publishes delayed messages.
    pub fn new() -> TopicsOptions {
        TopicsOptions::default()
    }

    /// Whether the background thread runs. Without it, the program calls [`Topic::trim`] and [`Topics::publish_due`].
    /// Default: yes.
    pub fn background(mut self, background: bool) -> TopicsOptions {
        self.no_background = !background;
        self
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

/// The link from a handle to the topics of an open store.
#[derive(Clone)]
pub(crate) struct Home {
    inner: Arc<Inner>,
    /// Set in handles that the program has. The last of them ends the background thread before it releases the store.
    _users: Option<Arc<Users>>,
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
    pub(crate) registry_trimming: RegistryTrimming,
    topics: Mutex<HashMap<u32, Weak<Shared>>>,
    groups: Mutex<HashMap<u32, Weak<crate::group::Shared>>>,
    users: Mutex<Weak<Users>>,
    pub(crate) presence: Presence,
    pub(crate) movers: Movers,
    pub(crate) alarm: Alarm,
    /// The last number that a delayed message got in this process.
    pub(crate) delayed_numbers: AtomicU64,
}

impl fmt::Debug for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Topics").field(&self.home.store).finish()
    }
}

/// The open stores of this process with at least one handle of their topics. All handles of a store share their state.
static OPEN: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

impl Topics {
    /// Opens the topics of a store. The first call for a store prepares the store for topics.
    ///
    /// # Errors
    /// Those of a commit; [`TopicError::InvalidOptions`] when the store is read-only and was never prepared.
    pub fn open(store: &Store) -> Result<Topics> {
        Topics::open_with(store, TopicsOptions::new())
    }

    /// Opens the topics of a store with options. The options of the first handle apply; later handles share with it.
    ///
    /// # Errors
    /// As [`Topics::open`].
    pub fn open_with(store: &Store, options: TopicsOptions) -> Result<Topics> {
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
        let home = Home::of_user(inner?, !options.no_background && !store.is_read_only());
        Ok(Topics { home })
    }

    /// Whether topics were ever used in a store.
    ///
    /// # Errors
    /// As [`Store::snapshot`].
    pub fn exist(store: &Store) -> Result<bool> {
        tables::exist(store)
    }

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

    /// Creates a topic with these options, in one commit.
    ///
    /// # Errors
    /// [`TopicError::TopicExists`] when a topic of this name exists; nothing is changed then. If its options differ
    /// from `options`, the error names each difference. [`TopicError::InvalidName`], [`TopicError::InvalidOptions`],
    /// and those of a commit.
    pub fn create(&self, name: &str, options: TopicOptions) -> Result<Topic> {
        self.home.create(name, &options)
    }

    /// Returns an existing topic. A missing topic is created if the store creates topics when they are first used (see
    /// [`Topics::create_on_use`]).
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`], [`TopicError::InvalidName`], and those of a commit.
    pub fn topic(&self, name: &str) -> Result<Topic> {
        check_name(name)?;
        if let Some(topic) = self.get(name)? {
            return Ok(topic);
        }
        if !self.creates_on_use()? {
            return Err(TopicError::UnknownTopic { name: name.into() }.into());
        }
        self.get_or_create(name, TopicOptions::new())
    }

    /// Makes sure that there is a topic of this name with exactly these options. It creates a missing topic, and
    /// configures an existing topic as [`Topic::configure`] does. The check and the change are one transaction. If the
    /// topic already has these options, the call costs a read and no commit.
    ///
    /// # Errors
    /// [`TopicError::InvalidName`], [`TopicError::InvalidOptions`], and those of a commit.
    pub fn ensure(&self, name: &str, options: TopicOptions) -> Result<Topic> {
        self.home.ensure(name, &options)
    }

    /// Returns a topic, creating a missing topic with these options. The options of an existing topic do not change.
    pub(crate) fn get_or_create(&self, name: &str, options: TopicOptions) -> Result<Topic> {
        loop {
            if let Some(topic) = self.get(name)? {
                return Ok(topic);
            }
            match self.home.create(name, &options) {
                Err(error) if matches!(TopicError::of(&error), Some(TopicError::TopicExists { .. })) => continue,
                created => return created,
            }
        }
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

    /// The names of all topics, sorted.
    ///
    /// # Errors
    /// Those of [`Store::snapshot`].
    pub fn list(&self) -> Result<Vec<String>> {
        Ok(self.home.records("")?.into_iter().map(|(name, _)| name).collect())
    }

    /// The names of all topics that match a pattern, sorted.
    ///
    /// # Errors
    /// Those of [`Store::snapshot`].
    pub fn matching(&self, pattern: &Pattern) -> Result<Vec<String>> {
        let records = self.home.records(pattern.literal_start())?;
        let names = records.into_iter().map(|(name, _)| name);
        Ok(names.filter(|name| pattern.matches(name)).collect())
    }

    /// Deletes a topic with its messages and groups. From then on its handles return [`Reason::TopicDeleted`]. The cost
    /// depends on the number of pages, not of messages.
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`], [`TopicError::InvalidName`], and those of a commit.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.home.delete(name)
    }

    /// Whether topics are created when they are first used.
    ///
    /// # Errors
    /// Those of [`Store::snapshot`].
    pub fn creates_on_use(&self) -> Result<bool> {
        Ok(self.home.tables.topics.get(CREATES)?.is_some())
    }

    /// Sets whether [`Topics::topic`] creates missing topics. The store remembers the setting. Default: no, so a
    /// misspelled name is an error.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn create_on_use(&self, create: bool) -> Result<()> {
        match create {
            true => self.home.tables.topics.put(CREATES, b""),
            false => self.home.tables.topics.delete(CREATES),
        }
    }
}

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
            registry_trimming: RegistryTrimming::default(),
            topics: Mutex::default(),
            groups: Mutex::default(),
            users: Mutex::default(),
            presence: Presence::default(),
            movers: Movers::default(),
            alarm: Alarm::default(),
            delayed_numbers: AtomicU64::new(0),
        }))
    }

    /// The sequence that records which topics were created, configured and deleted.
    pub(crate) fn registry(&self) -> &Sequence {
        &self.registry
    }

    /// Returns the state that the handles of a group share. `make` creates it for the first handle.
    pub(crate) fn group(&self, id: u32, make: impl FnOnce() -> Arc<crate::group::Shared>) -> Arc<crate::group::Shared> {
        let mut groups = locked(&self.groups);
        if let Some(shared) = groups.get(&id).and_then(Weak::upgrade) {
            return shared;
        }
        prune(&mut groups);
        let shared = make();
        groups.insert(id, Arc::downgrade(&shared));
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

    /// Tells the background thread of this process, if there is one, of a delayed message that is due before the
    /// thread's next check.
    pub(crate) fn wake_keeper(&self, due: u64) {
        if due > millis(self.store.wall_clock() + TICK) {
            return;
        }
        let users = locked(&self.users).upgrade();
        users.inspect(|users| users.expect(due));
    }

    fn delete_contents(&self, tx: &mut Transaction, id: u32, name: &str) -> Result<()> {
        rubbish::delete_states(tx, &self.tables, id)?;
        let (low, high) = (name_key(id, ""), tables::after_id(id));
        tx.delete_range(&self.tables.groups, &low[..]..&high[..])?;
        tx.delete_range(&self.tables.publishers, &low[..]..&high[..])?;
        tx.delete_range(&self.tables.index, &low[..]..&high[..])?;
        tx.end_sequence(&self.tables.sequence(id, name)?)
    }

    pub(crate) fn configure(&self, topic: &Topic, options: TopicOptions) -> Result<()> {
        options.check()?;
        let name = topic.name();
        self.store.transact(|tx| {
            let record = self.record_in(tx, name)?;
            let Some(record) = record.filter(|record| record.id == topic.shared().id) else {
                return Err(Reason::TopicDeleted { name: name.into() }.into());
            };
            self.configure_in(tx, name, record, &options)
        })?;
        topic.shared().known.forget();
        Ok(())
    }

    pub(crate) fn record_in(&self, tx: &Transaction, name: &str) -> Result<Option<TopicRecord>> {
        let record = tx.get_ref(&self.tables.topics, name.as_bytes())?;
        record.map(|record| TopicRecord::decode(&record)).transpose()
    }

    /// Replaces the options in a topic's record.
    fn configure_in(
        &self,
        tx: &mut Transaction,
        name: &str,
        mut record: TopicRecord,
        options: &TopicOptions,
    ) -> Result<()> {
        if options.deduplicate_for.is_none() && record.options.deduplicate_for.is_some() {
            index::clear_in(tx, &self.tables, record.id, ID, ID_TIME)?;
        }
        let indexed = |options: &TopicOptions| (options.message_expiry, options.latest_per_key);
        if indexed(options) != indexed(&record.options) {
            // The index is built again, from the first message.
            index::clear_in(tx, &self.tables, record.id, POSITION, EXPIRES)?;
        }
        record.is_sparse |= options.is_sparse();
        record.options = options.clone();
        tx.put(&self.tables.topics, name.as_bytes(), record.encode())?;
        self.register(tx, Event::Configured, record.id, name)
    }
}

impl Home {
    /// Creates the program's handle. The background thread runs from then on, if `background` is set.
    fn of_user(inner: Arc<Inner>, background: bool) -> Home {
        let mut known = locked(&inner.users);
        let users = known.upgrade().unwrap_or_default();
        *known = Arc::downgrade(&users);
        drop(known);
        if background {
            users.start_keeper(&inner);
        }
        let _users = Some(users);
        Home { inner, _users }
    }

    /// Creates a handle for an internal thread, which does not keep the background thread running.
    pub(crate) fn of_worker(inner: &Arc<Inner>) -> Home {
        Home {
            inner: inner.clone(),
            _users: None,
        }
    }

    /// Returns the handle of an existing topic.
    pub(crate) fn topic(&self, id: u32, name: &str) -> Result<Topic> {
        let mut topics = locked(&self.topics);
        if let Some(shared) = topics.get(&id).and_then(Weak::upgrade) {
            drop(topics);
            return Ok(Topic::new(self, shared));
        }
        prune(&mut topics);
        let shared = Arc::new(Shared::new(id, name, self.tables.sequence(id, name)?));
        topics.insert(id, Arc::downgrade(&shared));
        drop(topics);
        Ok(Topic::new(self, shared))
    }

    fn create(&self, name: &str, options: &TopicOptions) -> Result<Topic> {
        check_name(name)?;
        options.check()?;
        let id = self.store.transact(|tx| match self.record_in(tx, name)? {
            Some(found) => Err(TopicError::TopicExists {
                name: name.into(),
                differences: found.options.differences(&options.stored()),
            }
            .into()),
            None => self.create_in(tx, name, options),
        })?;
        self.topic(id, name)
    }

    /// Creates a topic that does not exist, and returns its number.
    pub(crate) fn create_in(&self, tx: &mut Transaction, name: &str, options: &TopicOptions) -> Result<u32> {
        let topics = &self.tables.topics;
        let (id, now) = (next_id(tx, topics)?, millis(self.store.wall_clock()));
        let record = TopicRecord {
            id,
            created: now,
            options: options.clone(),
            is_sparse: options.is_sparse(),
        };
        tx.put(topics, name.as_bytes(), record.encode())?;
        tx.begin_sequence(&self.tables.sequence(id, name)?)?;
        apply_rules(tx, self, (name, id), now)?;
        self.register(tx, Event::Created, id, name)?;
        Ok(id)
    }

    fn ensure(&self, name: &str, options: &TopicOptions) -> Result<Topic> {
        check_name(name)?;
        options.check()?;
        let options = options.stored();
        let found = self.existing_record(&self.store.snapshot()?, name)?;
        if let Some(found) = found.filter(|found| found.options == options) {
            return self.topic(found.id, name);
        }
        let id = self.store.transact(|tx| match self.record_in(tx, name)? {
            Some(found) => {
                let id = found.id;
                self.configure_in(tx, name, found, &options)?;
                Ok(id)
            }
            None => self.create_in(tx, name, &options),
        })?;
        let topic = self.topic(id, name)?;
        topic.shared().known.forget();
        Ok(topic)
    }

    fn delete(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.delete_in_one_commit(name)?;
        // The topic is deleted, whatever the result of this cleanup. The background thread removes the rest.
        let _ = self.remove_rubbish(&|| false);
        Ok(())
    }

    /// Deletes a topic; rows of its groups may be left.
    pub(crate) fn delete_in_one_commit(&self, name: &str) -> Result<()> {
        self.store.transact(|tx| {
            let record = tx.get_ref(&self.tables.topics, name.as_bytes())?;
            let Some(record) = record.map(|record| TopicRecord::decode(&record)).transpose()? else {
                return Err(TopicError::UnknownTopic { name: name.into() }.into());
            };
            self.delete_contents(tx, record.id, name)?;
            tx.delete(&self.tables.topics, name.as_bytes())?;
            self.register(tx, Event::Deleted, record.id, name)
        })
    }
}

/// Takes an id for a topic or group. Ids are never reused.
pub(crate) fn next_id(tx: &mut Transaction, topics: &Map) -> Result<u32> {
    let next = match tx.get_ref(topics, NEXT_ID)? {
        None => FIRST_ID,
        Some(bytes) => {
            let bytes = (*bytes).try_into();
            let wrong = |_| duramen_engine::Error::damaged("the next id of topics has the wrong length");
            u32::from_be_bytes(bytes.map_err(wrong)?)
        }
    };
    // The number after the highest id must be usable as a key too.
    if next == u32::MAX {
        let cause = "four billion topics and groups were made, which is all there can be".into();
        return Err(TopicError::InvalidOptions { cause }.into());
    }
    tx.put(topics, NEXT_ID, (next + 1).to_be_bytes())?;
    Ok(next)
}

/// Removes dropped handles when the map is full, and then reserves room for as many handles as are left. So an
/// insertion costs the same however many handles are open. Returns whether it checked all handles.
fn prune<T>(handles: &mut HashMap<u32, Weak<T>>) -> bool {
    let is_full = handles.len() == handles.capacity();
    if is_full {
        handles.retain(|_, shared| shared.strong_count() > 0);
        handles.reserve(handles.len() + 1);
    }
    is_full
}

pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
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
