//! What deleted groups leave behind, and how it is removed.
//!
//! A transaction can delete a limited number of ranges. A topic has any number of groups, and a group over a pattern is
//! in any number of topics. So the transaction that deletes a topic, or such a group, deletes all records and cursors
//! of its groups, which ends the groups for every reader. Of the other rows it deletes a limited number of ranges. For
//! each remaining range it puts a row into the map `topics`. Later transactions remove what these rows name: right
//! after the delete, when a topic is trimmed, and in the background.
//!
//! ```text
//! 00 "gone" 00, first id, big-endian -> id after the last one, big-endian
//! ```
//!
//! Ids are never reused, so remaining rows take space and have no effect.

use std::ops::Range;

use duramen_engine::{Durability, Error, Result, Transaction, TransactionOptions};

use crate::group::record::{GroupRecord, Kind};
use crate::group::state::{Cursor, anchor_key};
use crate::home::Inner;
use crate::limits::GROUPS_DELETED_AT_ONCE;
use crate::tables::{GONE, Tables};

/// Deletes the rows of all groups and durable subscriptions of a topic, but not their records, or records them for
/// later.
pub(crate) fn delete_states(tx: &mut Transaction, tables: &Tables, topic: u32) -> Result<()> {
    let (mut all, mut groups, mut durables) = (Vec::new(), Vec::new(), Vec::new());
    let mut cursor = tx.prefix(&tables.groups, topic.to_be_bytes())?;
    while let Some((_, record)) = cursor.next()? {
        let record = GroupRecord::decode(&record)?;
        all.push(record.id);
        // A durable subscription has no rows except its cursor and its anchor.
        match record.kind {
            Kind::Group(_) => groups.push(record.id),
            Kind::Durable => durables.push(record.id),
        }
    }
    drop(cursor);
    // A member that delivers messages meanwhile writes the cursor, so its commit conflicts.
    all.iter()
        .try_for_each(|id| tx.delete(&tables.states, Cursor::key(*id)))?;
    durables
        .iter()
        .try_for_each(|id| tx.delete(&tables.states, anchor_key(*id)))?;
    delete_rows(tx, tables, groups)
}

/// Deletes the rows of groups, or records them for later: [`Inner::run_deferred_deletes`].
pub(crate) fn delete_rows(tx: &mut Transaction, tables: &Tables, groups: Vec<u32>) -> Result<()> {
    for (place, range) in joined(groups).into_iter().enumerate() {
        match place < GROUPS_DELETED_AT_ONCE {
            true => delete_range(tx, tables, &range)?,
            false => tx.put(&tables.topics, key(range.start), range.end.to_be_bytes())?,
        }
    }
    Ok(())
}

/// Joins ids into as few ranges as possible.
fn joined(mut ids: Vec<u32>) -> Vec<Range<u32>> {
    ids.sort_unstable();
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some(last) if last.end == id => last.end += 1,
            _ => ranges.push(id..id + 1),
        }
    }
    ranges
}

fn delete_range(tx: &mut Transaction, tables: &Tables, ids: &Range<u32>) -> Result<()> {
    let (low, high) = (ids.start.to_be_bytes(), ids.end.to_be_bytes());
    tx.delete_range(&tables.states, &low[..]..&high[..])
}

fn key(first: u32) -> Vec<u8> {
    [GONE, &first.to_be_bytes()].concat()
}

/// The ids that a row names.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Range<u32>> {
    let first = key.strip_prefix(GONE).and_then(|first| first.try_into().ok());
    let ids = first.zip(value.try_into().ok());
    let ids = ids.map(|(first, end)| u32::from_be_bytes(first)..u32::from_be_bytes(end));
    ids.filter(|ids| !ids.is_empty())
        .ok_or_else(|| Error::damaged("what is left of a deleted topic's groups is named by no range of ids"))
}

impl Inner {
    /// Removes what groups of deleted topics left behind, until `is_over`.
    pub(crate) fn run_deferred_deletes(&self, is_over: &dyn Fn() -> bool) -> Result<()> {
        let (tables, options) = (&self.tables, TransactionOptions::new().durability(Durability::Written));
        let mut is_all = self.store.snapshot()?.prefix(&tables.topics, GONE)?.next()?.is_none();
        while !is_all && !is_over() {
            is_all = self.store.transact_with(options, |tx| {
                let mut found = Vec::new();
                let mut rows = tx.prefix(&tables.topics, GONE)?;
                while found.len() < GROUPS_DELETED_AT_ONCE
                    && let Some((key, ids)) = rows.next()?
                {
                    found.push((key.to_vec(), decode(key, &ids)?));
                }
                drop(rows);
                for (key, ids) in &found {
                    delete_range(tx, tables, ids)?;
                    tx.delete(&tables.topics, key)?;
                }
                Ok::<_, Error>(found.len() < GROUPS_DELETED_AT_ONCE)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use duramen_engine::{Maintenance, Options};
    use duramen_io::SimDisk;

    use super::*;
    use crate::group::GroupOptions;
    use crate::handle::Topics;
    use crate::read::Start;
    use crate::record::TopicOptions;
    use crate::topics::TopicsOptions;

    /// More groups than one transaction can delete the ranges of.
    const GROUPS: usize = 4_500;

    fn open(disk: &SimDisk) -> Topics {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Written);
        let store = options.open_on(disk.platform()).unwrap();
        Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap()
    }

    /// Two topics with groups whose ids alternate; each group has rows beside its cursor.
    fn with_groups(disk: &SimDisk) -> Topics {
        let topics = open(disk);
        let topic_names = ["one", "other"];
        let both = topic_names.map(|name| topics.create(name, TopicOptions::new()).unwrap());
        both.iter().for_each(|topic| assert!(topic.publish(b"message").is_ok()));
        for number in 0..GROUPS {
            for topic in &both {
                let name = format!("group-{number}");
                let group = topic
                    .ensure_group(&name, Start::Beginning, GroupOptions::new().discard_dead_letters())
                    .unwrap();
                let taken = group.member("member").receive(1, std::time::Duration::ZERO).unwrap();
                // A returned message has two rows.
                assert!(taken.is_some());
            }
        }
        topics
    }

    fn states(topics: &Topics) -> u64 {
        topics
            .store()
            .snapshot()
            .unwrap()
            .count(&topics.home().tables.states, ..)
            .unwrap()
    }

    fn deferred(topics: &Topics) -> usize {
        let snapshot = topics.store().snapshot().unwrap();
        let mut rows = snapshot.prefix(&topics.home().tables.topics, GONE).unwrap();
        let mut found = 0;
        while let Some((key, ids)) = rows.next().unwrap() {
            decode(key, &ids).unwrap();
            found += 1;
        }
        found
    }

    #[test]
    fn topic_with_any_number_of_groups_can_be_deleted_and_leaves_nothing() {
        let topics = with_groups(&SimDisk::new(1));
        let before = states(&topics);
        topics.delete("one").unwrap();
        assert_eq!(topics.list().unwrap(), ["other"]);
        assert_eq!((states(&topics), deferred(&topics)), (before / 2, 0));
        let group = topics.topic("other").unwrap().existing_group("group-7").unwrap();
        assert_eq!(group.pending().unwrap().len(), 1);
        topics.delete("other").unwrap();
        assert_eq!((states(&topics), deferred(&topics)), (0, 0));
    }

    #[test]
    fn what_a_crash_after_the_delete_leaves_is_removed_later() {
        let disk = SimDisk::new(2);
        let topics = with_groups(&disk);
        let home = topics.home();
        let group = topics.topic("one").unwrap().existing_group("group-4499").unwrap();
        home.delete_in_one_commit("one").unwrap();
        assert!(group.pending().is_err() && group.describe().is_err());
        assert!(deferred(&topics) > 0 && topics.get("one").unwrap().is_none());
        let left = states(&topics);
        // One of the later transactions commits, and then the process is killed.
        let calls = std::cell::Cell::new(0);
        home.run_deferred_deletes(&|| calls.replace(calls.get() + 1) > 0)
            .unwrap();
        assert!(states(&topics) < left && deferred(&topics) > 0);
        let topics = open(&disk.kill());
        assert!(deferred(&topics) > 0);
        topics.topic("other").unwrap().trim().unwrap();
        assert_eq!((states(&topics), deferred(&topics)), (3 * GROUPS as u64, 0));
    }

    #[test]
    fn ids_that_follow_each_other_are_one_range() {
        assert_eq!(joined(vec![9, 3, 1, 2, 5]), [1..4, 5..6, 9..10]);
        assert_eq!(joined(Vec::new()), []);
    }
}
