//! The topics of a store: create, look up, list, delete.

use duramen_engine::{Reason, Result, Store, Transaction};

use crate::error::TopicError;
use crate::group::deferred_deletes;
use crate::handle::{Topic, Topics};
use crate::home::{Home, Inner};
use crate::index::{self, EXPIRES, ID, ID_TIME, POSITION};
use crate::name::{Pattern, check_name};
use crate::record::{TopicOptions, TopicRecord};
use crate::registry::Event;
use crate::retention_worker;
use crate::tables::{self, CREATES, name_key};

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
        let home = Home::open(store)?;
        if !options.no_background && !store.is_read_only() {
            retention_worker::start(&home);
        }
        Ok(Topics::of(&home))
    }

    /// Whether topics were ever used in a store.
    ///
    /// # Errors
    /// As [`Store::snapshot`].
    pub fn exist(store: &Store) -> Result<bool> {
        tables::exist(store)
    }

    /// Creates a topic with these options, in one commit.
    ///
    /// # Errors
    /// [`TopicError::TopicExists`] when a topic of this name exists; nothing is changed then. If its options differ
    /// from `options`, the error names each difference. [`TopicError::InvalidName`], [`TopicError::InvalidOptions`],
    /// and those of a commit.
    pub fn create(&self, name: &str, options: TopicOptions) -> Result<Topic> {
        self.home().create(name, &options)
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
        self.home().ensure(name, &options)
    }

    /// Returns a topic, creating a missing topic with these options. The options of an existing topic do not change.
    pub(crate) fn get_or_create(&self, name: &str, options: TopicOptions) -> Result<Topic> {
        loop {
            if let Some(topic) = self.get(name)? {
                return Ok(topic);
            }
            match self.home().create(name, &options) {
                Err(error) if matches!(TopicError::of(&error), Some(TopicError::TopicExists { .. })) => continue,
                created => return created,
            }
        }
    }

    /// The names of all topics, sorted.
    ///
    /// # Errors
    /// Those of [`Store::snapshot`].
    pub fn list(&self) -> Result<Vec<String>> {
        Ok(self.home().records("")?.into_iter().map(|(name, _)| name).collect())
    }

    /// The names of all topics that match a pattern, sorted.
    ///
    /// # Errors
    /// Those of [`Store::snapshot`].
    pub fn matching(&self, pattern: &Pattern) -> Result<Vec<String>> {
        let records = self.home().records(pattern.literal_start())?;
        let names = records.into_iter().map(|(name, _)| name);
        Ok(names.filter(|name| pattern.matches(name)).collect())
    }

    /// Deletes a topic with its messages and groups. From then on its handles return [`Reason::TopicDeleted`]. The cost
    /// depends on the number of pages, not of messages.
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`], [`TopicError::InvalidName`], and those of a commit.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.home().delete(name)
    }

    /// Whether topics are created when they are first used.
    ///
    /// # Errors
    /// Those of [`Store::snapshot`].
    pub fn creates_on_use(&self) -> Result<bool> {
        Ok(self.home().tables.topics.get(CREATES)?.is_some())
    }

    /// Sets whether [`Topics::topic`] creates missing topics. The store remembers the setting. Default: no, so a
    /// misspelled name is an error.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn create_on_use(&self, create: bool) -> Result<()> {
        match create {
            true => self.home().tables.topics.put(CREATES, b""),
            false => self.home().tables.topics.delete(CREATES),
        }
    }
}

/// Topics in transactions: what these calls do takes effect with the transaction's other writes, when it commits.
impl Topics {
    /// Creates a topic. Publishing to it is possible after the commit.
    ///
    /// # Errors
    /// As [`Topics::create`].
    pub fn create_in(&self, tx: &mut Transaction, name: &str, options: &TopicOptions) -> Result<()> {
        check_name(name)?;
        options.check()?;
        self.home().create_new_in(tx, name, options).map(|_| ())
    }

    /// Replaces all options of a topic.
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`], [`TopicError::InvalidOptions`].
    pub fn configure_in(&self, tx: &mut Transaction, name: &str, options: &TopicOptions) -> Result<()> {
        check_name(name)?;
        options.check()?;
        let Some(record) = self.home().record_in(tx, name)? else {
            return Err(TopicError::UnknownTopic { name: name.into() }.into());
        };
        self.home().configure_in(tx, name, record, &options.stored())
    }

    /// Deletes a topic with its messages and groups. The background thread of a process that has one removes what is
    /// left of its groups.
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`].
    pub fn delete_in(&self, tx: &mut Transaction, name: &str) -> Result<()> {
        check_name(name)?;
        self.home().delete_in(tx, name)
    }
}

impl Inner {
    fn delete_contents(&self, tx: &mut Transaction, id: u32, name: &str) -> Result<()> {
        deferred_deletes::delete_states(tx, &self.tables, id)?;
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
    fn create(&self, name: &str, options: &TopicOptions) -> Result<Topic> {
        check_name(name)?;
        options.check()?;
        let id = self.store.transact(|tx| self.create_new_in(tx, name, options))?;
        self.topic(id, name)
    }

    fn create_new_in(&self, tx: &mut Transaction, name: &str, options: &TopicOptions) -> Result<u32> {
        match self.record_in(tx, name)? {
            Some(found) => Err(TopicError::TopicExists {
                name: name.into(),
                differences: found.options.differences(&options.stored()),
            }
            .into()),
            None => self.create_in(tx, name, options),
        }
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
        let _ = self.run_deferred_deletes(&|| false);
        Ok(())
    }

    /// Deletes a topic; rows of its groups may be left.
    pub(crate) fn delete_in_one_commit(&self, name: &str) -> Result<()> {
        self.store.transact(|tx| self.delete_in(tx, name))
    }

    fn delete_in(&self, tx: &mut Transaction, name: &str) -> Result<()> {
        let Some(record) = self.record_in(tx, name)? else {
            return Err(TopicError::UnknownTopic { name: name.into() }.into());
        };
        self.delete_contents(tx, record.id, name)?;
        tx.delete(&self.tables.topics, name.as_bytes())?;
        self.register(tx, Event::Deleted, record.id, name)
    }
}

impl Topic {
    /// Replaces all options of the topic. To keep some options, start with those that [`Topic::describe`] returns.
    ///
    /// # Errors
    /// [`TopicError::InvalidOptions`], [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn configure(&self, options: TopicOptions) -> Result<()> {
        self.home().configure(self, options)
    }
}
