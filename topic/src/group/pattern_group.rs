//! Groups over all topics of a pattern, including topics that are created later: see [`super::rule`].

use std::time::SystemTime;

use duramen_engine::{Result, Snapshot, Transaction};

use super::administration::{Existing, other_kind};
use super::deferred_deletes;
use super::description::describe;
use super::record::{GroupOptions, GroupRecord, Kind};
use super::rule::{Rule, RuleHandle, Wanted, change_in};
use super::state::Cursor;
use super::{Group, GroupDescription, PatternMember, bell_of};
use crate::error::{TopicError, is_deleted};
use crate::handle::{Topic, Topics};
use crate::name::Pattern;
use crate::read::{Reading, Start};
use crate::tables::{Tables, name_key};
use crate::time::at;

/// A group over all topics of a pattern: its members compete for the messages of all of them. A topic that is created
/// later belongs to it from its first message on.
///
/// In every topic it is a group of its name, which [`Topic::groups`] lists with the others. Limits and order apply to
/// each topic separately: [`GroupOptions::in_flight`] and [`GroupOptions::order_by_key`] do not span topics. A topic
/// where the group was deleted ([`Topic::delete_group`]) is left out from then on; [`Topic::ensure_group`] creates it
/// again.
///
/// Messages whose last attempt failed go to one dead-letter topic for all topics. Its default name is `dead.` and the
/// name of the group. The group leaves that topic out, and every topic whose name begins with `dead.`, unless the
/// pattern also begins with `dead.`.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// use duramen_topic::{GroupOptions, Pattern, Start, TopicOptions, TopicWrites, Topics};
/// use std::time::Duration;
///
/// let topics = Topics::open(&store)?;
/// let stock = store.map("stock")?;
/// let pattern = Pattern::new("orders.>")?;
/// let group = topics.ensure_group(&pattern, "packers", Start::Beginning, GroupOptions::new())?;
/// topics.create("orders.eu", TopicOptions::new())?.publish(b"12 apples")?;
///
/// let mut member = group.member("worker 1");
/// let deliveries = member.receive(10, Duration::from_secs(1))?.unwrap();
/// assert_eq!(deliveries.messages().topic(), "orders.eu");
/// for delivery in deliveries {
///     store.transact(|tx| {
///         tx.put(&stock, b"apples", b"12")?;
///         tx.acknowledge(&delivery)
///     })?;
/// }
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PatternGroup {
    pub(super) rule: RuleHandle,
}

/// State and options of a group over a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PatternGroupDescription {
    /// Name of the group.
    pub name: String,
    /// Pattern of the group.
    pub pattern: Pattern,
    /// Time when the group was created.
    pub created: SystemTime,
    /// Options of the group.
    pub options: GroupOptions,
    /// Whether the group is paused.
    pub is_paused: bool,
    /// Its topics, and the state of the group in each, sorted by the names of topics.
    pub topics: Vec<(String, GroupDescription)>,
}

impl PatternGroupDescription {
    /// Messages that members hold, or that wait for redelivery, in all topics.
    pub fn pending(&self) -> u64 {
        self.topics.iter().map(|(_, group)| group.pending).sum()
    }

    /// Messages that topics keep and that were never delivered.
    pub fn lag(&self) -> u64 {
        self.topics.iter().map(|(_, group)| group.lag).sum()
    }

    /// Messages that retention deleted before the group had processed them.
    pub fn skipped(&self) -> u64 {
        self.topics.iter().map(|(_, group)| group.skipped).sum()
    }
}

impl Topics {
    /// Creates a group over all topics of a pattern. `start` selects where it begins in existing topics; in topics that
    /// are created later it begins with the first message. A topic that already has a group of this name keeps its
    /// position, and gets these options. Everything happens in one commit.
    ///
    /// # Errors
    /// [`TopicError::GroupExists`], which lists the differences; [`TopicError::OtherPattern`];
    /// [`TopicError::OtherKind`] when there is a durable subscription of this name; [`TopicError::InvalidName`],
    /// [`TopicError::InvalidOptions`], [`TopicError::NotYetPublished`], and those of a commit.
    pub fn create_group(
        &self,
        pattern: &Pattern,
        name: &str,
        start: Start,
        options: GroupOptions,
    ) -> Result<PatternGroup> {
        self.put_group(pattern, name, (start, options), Existing::Refuse)
    }

    /// Makes sure that there is a group over all topics of a pattern with these options. A missing group is created,
    /// and `start` selects where it begins. An existing group gets all these options, in all its topics, and keeps its
    /// positions.
    ///
    /// # Errors
    /// As [`Topics::create_group`], except for [`TopicError::GroupExists`].
    pub fn ensure_group(
        &self,
        pattern: &Pattern,
        name: &str,
        start: Start,
        options: GroupOptions,
    ) -> Result<PatternGroup> {
        self.put_group(pattern, name, (start, options), Existing::Change)
    }

    fn put_group(
        &self,
        pattern: &Pattern,
        name: &str,
        (start, options): (Start, GroupOptions),
        existing: Existing,
    ) -> Result<PatternGroup> {
        let rule = self.put_rule(&Wanted {
            pattern,
            name,
            start,
            kind: Kind::Group(options),
            existing,
        })?;
        Ok(PatternGroup::new(self, name, rule))
    }

    /// Returns an existing group over a pattern.
    ///
    /// # Errors
    /// [`TopicError::UnknownPatternGroup`], [`TopicError::OtherKind`].
    pub fn existing_group(&self, name: &str) -> Result<PatternGroup> {
        let rule = self.rule(&self.store().snapshot()?, name)?;
        let rule = rule.ok_or_else(|| TopicError::UnknownPatternGroup { name: name.into() })?;
        match rule.record.kind {
            Kind::Group(_) => Ok(PatternGroup::new(self, name, rule)),
            Kind::Durable => {
                let (found, asked) = (rule.record.kind.name(), "group");
                Err(other_kind(rule.pattern.as_str(), name, found, asked))
            }
        }
    }

    /// The groups over patterns, sorted by name. Those of a single topic: [`Topic::groups`].
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn pattern_groups(&self) -> Result<Vec<PatternGroup>> {
        let rules = self.rules()?.into_iter();
        let groups = rules.filter(|(_, rule)| matches!(rule.record.kind, Kind::Group(_)));
        Ok(groups
            .map(|(name, rule)| PatternGroup::new(self, &name, rule))
            .collect())
    }
}

impl PatternGroup {
    fn new(topics: &Topics, name: &str, rule: Rule) -> PatternGroup {
        PatternGroup {
            rule: RuleHandle::new(topics, name, rule),
        }
    }

    /// Name of the group.
    pub fn name(&self) -> &str {
        &self.rule.name
    }

    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.rule.pattern
    }

    /// The topics of the same store.
    pub fn topics(&self) -> &Topics {
        &self.rule.topics
    }

    /// Creates a member, which receives messages of all topics. The name is for people who look at pending messages.
    pub fn member(&self, name: &str) -> PatternMember {
        PatternMember::new(self, name)
    }

    /// The group in one of its topics, for example to list what is pending there.
    ///
    /// # Errors
    /// [`TopicError::UnknownTopic`]; [`TopicError::UnknownGroup`] when the topic does not match, or is left out;
    /// [`TopicError::GroupDeleted`], [`TopicError::InvalidName`].
    pub fn at(&self, topic: &str) -> Result<Group> {
        let snapshot = self.rule.topics.store().snapshot()?;
        let rule = self.rule.rule(&snapshot)?;
        let topic = self.rule.topic(&snapshot, topic)?;
        let group = self.group_of(&snapshot, &rule, &topic)?;
        group.ok_or_else(|| topic.unknown_group(&self.rule.name))
    }

    /// The group in a topic; `None`: the topic is left out.
    pub(super) fn group_of(&self, snapshot: &Snapshot, rule: &Rule, topic: &Topic) -> Result<Option<Group>> {
        let record = self.record_of(snapshot, rule, topic)?;
        record
            .map(|record| Group::new(topic, &self.rule.name, &record))
            .transpose()
    }

    fn record_of(&self, snapshot: &Snapshot, rule: &Rule, topic: &Topic) -> Result<Option<GroupRecord>> {
        if !rule.covers(&self.rule.name, topic.name()) {
            return Ok(None);
        }
        let record = topic.group_record(snapshot, &self.rule.name)?;
        Ok(record.filter(|record| matches!(record.kind, Kind::Group(_))))
    }

    /// Returns the state and the options of the group.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`].
    pub fn describe(&self) -> Result<PatternGroupDescription> {
        let snapshot = self.rule.topics.store().snapshot()?;
        let rule = self.rule.rule(&snapshot)?;
        let mut topics = Vec::new();
        for topic in self.rule.topics_in(&snapshot)? {
            let Some(record) = self.record_of(&snapshot, &rule, &topic)? else {
                continue;
            };
            let reading = Reading::new(&topic, &snapshot);
            let next = reading.state()?.next;
            let group = describe(&reading, next, self.rule.name.clone(), &record)?;
            topics.push((topic.name().to_string(), group));
        }
        Ok(PatternGroupDescription {
            name: self.rule.name.clone(),
            pattern: rule.pattern,
            created: at(rule.record.created),
            options: match rule.record.kind {
                Kind::Group(options) => options,
                Kind::Durable => return Err(self.rule.deleted()),
            },
            is_paused: rule.record.is_paused,
            topics,
        })
    }

    pub(super) fn describe_options(&self) -> Result<GroupOptions> {
        let rule = self.rule.rule(&self.rule.topics.store().snapshot()?)?;
        match rule.record.kind {
            Kind::Group(options) => Ok(options),
            Kind::Durable => Err(self.rule.deleted()),
        }
    }

    /// Replaces all options of the group, in all its topics and in one commit. Messages that were delivered before keep
    /// their leases.
    ///
    /// # Errors
    /// [`TopicError::InvalidOptions`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn configure(&self, options: GroupOptions) -> Result<()> {
        self.rule.snapshot()?;
        let wanted = Wanted {
            pattern: &self.rule.pattern,
            name: &self.rule.name,
            start: Start::Tail,
            kind: Kind::Group(options),
            existing: Existing::Change,
        };
        self.rule.topics.change_rule(&wanted, &self.rule)
    }

    /// Stops delivering messages of all topics, for all members in all processes, including topics that are created
    /// later. Members can still settle the messages that they hold.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn pause(&self) -> Result<()> {
        self.change(|record| record.is_paused = true)
    }

    /// Resumes delivering messages.
    ///
    /// # Errors
    /// As [`PatternGroup::pause`].
    pub fn resume(&self) -> Result<()> {
        self.change(|record| record.is_paused = false)
    }

    fn change(&self, change: impl Fn(&mut GroupRecord)) -> Result<()> {
        let home = self.rule.topics.home();
        home.store.transact(|tx| {
            let rule = self.rule.rule_in(tx)?;
            change_in(tx, home, &self.rule.name, rule, &change).map(|_| ())
        })
    }

    /// Continues from another position in all existing topics, forward or back, and forgets what is pending. Members
    /// lose the messages that they hold. Each topic has its own commit; after an error, some topics may have been
    /// reset.
    ///
    /// # Errors
    /// [`TopicError::NotYetPublished`], [`TopicError::GroupDeleted`], and those of a commit.
    pub fn reset(&self, start: Start) -> Result<()> {
        let snapshot = self.rule.topics.store().snapshot()?;
        let rule = self.rule.rule(&snapshot)?;
        let mut groups = Vec::new();
        for topic in self.rule.topics_in(&snapshot)? {
            if let Some(group) = self.group_of(&snapshot, &rule, &topic)? {
                // Finds a position that a topic does not have before anything is changed.
                Reading::new(&topic, &snapshot).resolve(start)?;
                groups.push(group);
            }
        }
        drop(snapshot);
        for group in groups {
            match group.reset(start) {
                // The group or the topic was deleted meanwhile.
                Err(error) if is_gone(&error) => {}
                reset => reset?,
            }
        }
        self.rule.snapshot().map(|_| ())
    }

    /// Deletes the group in all topics in one commit, including topics that had a group of its name before. Topics that
    /// are created later do not get it. Its members in all processes wake up with [`TopicError::GroupDeleted`]. The
    /// dead-letter topic stays.
    ///
    /// # Errors
    /// [`TopicError::GroupDeleted`], and those of a commit.
    pub fn delete(&self) -> Result<()> {
        let home = self.rule.topics.home();
        self.rule.delete(|tx, tables, topics| {
            let mut ids = Vec::new();
            for (_, topic) in topics {
                ids.extend(self.delete_record(tx, tables, *topic)?);
            }
            for id in &ids {
                tx.ring(&bell_of(home, *id, &self.rule.name)?);
                // A member that delivers messages meanwhile writes the cursor, so its commit conflicts.
                tx.delete(&tables.states, Cursor::key(*id))?;
            }
            deferred_deletes::delete_rows(tx, tables, ids)
        })?;
        // The group is deleted, whatever the result of this cleanup. The background thread removes the rest.
        let _ = home.run_deferred_deletes(&|| false);
        Ok(())
    }

    fn delete_record(&self, tx: &mut Transaction, tables: &Tables, topic: u32) -> Result<Option<u32>> {
        let key = name_key(topic, &self.rule.name);
        let record = tx.get_ref(&tables.groups, &key)?;
        let record = record.map(|record| GroupRecord::decode(&record)).transpose()?;
        let Some(record) = record.filter(|record| matches!(record.kind, Kind::Group(_))) else {
            return Ok(None);
        };
        tx.delete(&tables.groups, &key)?;
        Ok(Some(record.id))
    }
}

/// Whether a topic, or the group in it, was deleted.
pub(super) fn is_gone(error: &duramen_engine::Error) -> bool {
    is_deleted(error) || matches!(TopicError::of(error), Some(TopicError::GroupDeleted { .. }))
}
