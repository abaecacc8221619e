//! The registry: a sequence of entries that record which topics were created, configured and deleted.
//!
//! ```text
//! message key  1  event: 1 created, 2 configured, 3 deleted, 4 exists
//!              4  id of the topic, big-endian
//! payload     ..  name of the topic
//! ```
//!
//! A store of an older version has entries without a key. The first entry of a name records the creation of its topic,
//! the next entry its deletion, and so on.
//!
//! Trimming removes the oldest entries. It first appends an entry for each existing topic that has an entry among them.
//! So the registry always has an entry for every existing topic, from which salvage takes the topic's name.

use std::collections::HashSet;
use std::ops::Range;

use duramen_engine::{Durability, Error, Item, Result, Snapshot, Transaction, TransactionOptions};

use crate::home::{Inner, RegistryTrimming};
use crate::lock::locked;
use crate::message::{Message, Stored};
use crate::record::TopicRecord;
use crate::tables::{REGISTRY, offset_key, offset_of};

/// What happened to a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Created,
    Configured,
    Deleted,
    /// Nothing happened: the entry replaces an older entry that was trimmed.
    Exists,
}

/// An entry of the registry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    /// `None` in entries of an older version.
    pub(crate) what: Option<(Event, u32)>,
}

impl Event {
    fn code(self) -> u8 {
        match self {
            Event::Created => 1,
            Event::Configured => 2,
            Event::Deleted => 3,
            Event::Exists => 4,
        }
    }

    fn of_code(code: u8) -> Result<Event> {
        match code {
            1 => Ok(Event::Created),
            2 => Ok(Event::Configured),
            3 => Ok(Event::Deleted),
            4 => Ok(Event::Exists),
            _ => Err(Error::damaged(format!(
                "the registry has an event {code}, which is unknown"
            ))),
        }
    }
}

/// Maximum entries that a reader of the registry reads one by one. With more entries it checks all topics.
const NEWS_MAX: u64 = 4096;
/// Number of entries, in addition to two for each topic, that are kept before the registry is trimmed.
const KEPT_ENTRIES: u64 = 1_000;
/// Number of entries that one commit trims. They fit into a commit however long their names are.
const TRIMMED_AT_ONCE: u64 = 500;

/// Changes of topics since a reader last read the registry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Too many changes, or the reader cannot tell: it checks all topics.
    Everything,
    /// Event, id and name, in order.
    Of(Vec<(Event, u32, String)>),
}

impl<'a> Entry<'a> {
    /// Decodes the stored message of an entry.
    pub(crate) fn decode(head: &'a [u8]) -> Result<Entry<'a>> {
        let stored = Stored::decode(head)?;
        let payload = stored.payload.unwrap_or_default();
        let name =
            std::str::from_utf8(payload).map_err(|_| Error::damaged("the registry has a name that is not UTF-8"))?;
        let what = match stored.key {
            None => None,
            Some([code, id @ ..]) => {
                let id = id
                    .try_into()
                    .map_err(|_| Error::damaged("the registry has a key of the wrong length"))?;
                Some((Event::of_code(*code)?, u32::from_be_bytes(id)))
            }
            Some([]) => return Err(Error::damaged("the registry has an empty key")),
        };
        Ok(Entry { name, what })
    }
}

impl Inner {
    /// Appends an entry, which wakes the subscribers of patterns in all processes.
    pub(crate) fn register(&self, tx: &mut Transaction, event: Event, id: u32, name: &str) -> Result<()> {
        let [a, b, c, d] = id.to_be_bytes();
        let mut head = Vec::new();
        Message::new(name).key(&[event.code(), a, b, c, d]).encode(&mut head)?;
        let item = Item {
            head: &head,
            body: None,
        };
        tx.append_to(self.registry(), item).map(|_| ())
    }

    /// A number that changes with every commit of any process that creates, configures or deletes a topic. Reading it
    /// is one load of shared memory.
    ///
    /// Read this number before the snapshot from which options are read. While it stays the same, the options are
    /// current. The exception is a process that dies right after its commit; see [`duramen_engine::Store::rings`].
    pub(crate) fn registry_rings(&self) -> u64 {
        self.store.rings(self.registry().bell())
    }

    /// Returns the changes recorded from entry `seen` on, and the entry where the next call begins.
    pub(crate) fn news(&self, snapshot: &Snapshot, seen: Option<u64>) -> Result<(News, u64)> {
        let next = snapshot.sequence_state(self.registry())?.map_or(0, |state| state.next);
        let from = seen.filter(|seen| *seen <= next && next - seen <= NEWS_MAX);
        let Some(from) = from else {
            return Ok((News::Everything, next));
        };
        let (low, high) = (offset_key(REGISTRY, from), offset_key(REGISTRY, next));
        let mut walk = snapshot.range(&self.tables.messages, &low[..]..&high[..])?;
        let mut news = Vec::new();
        while let Some((_, head)) = walk.next()? {
            let Ok(Entry {
                name,
                what: Some((event, id)),
            }) = Entry::decode(&head)
            else {
                return Ok((News::Everything, next));
            };
            news.push((event, id, name.to_string()));
        }
        // Some entries may be trimmed already.
        let is_whole = news.len() as u64 == next - from;
        Ok((if is_whole { News::Of(news) } else { News::Everything }, next))
    }

    /// Trims the registry, until `is_over`, if it has far more entries than there are topics.
    pub(crate) fn trim_registry(&self, is_over: &dyn Fn() -> bool) -> Result<()> {
        let mut trimming = locked(&self.registry_trimming);
        while !is_over() {
            let snapshot = self.store.snapshot()?;
            let next = snapshot.sequence_state(self.registry())?.map_or(0, |state| state.next);
            let (low, high) = (offset_key(REGISTRY, 0), offset_key(REGISTRY, next));
            let oldest = snapshot
                .range(&self.tables.messages, &low[..]..&high[..])?
                .next()?
                .map(|(key, _)| offset_of(key));
            let Some(first) = oldest else { return Ok(()) };
            if trimming.as_ref().is_none_or(|trimming| trimming.end <= first) {
                *trimming = None;
                // Counting topics is expensive, so the cheap condition comes first.
                let entries = next - first;
                if entries <= KEPT_ENTRIES {
                    return Ok(());
                }
                let topics = snapshot.count(&self.tables.topics, &b"\x01"[..]..)?;
                if entries <= KEPT_ENTRIES + 2 * topics {
                    return Ok(());
                }
            }
            let trimming = trimming.get_or_insert_with(|| RegistryTrimming {
                end: next,
                moved: HashSet::new(),
            });
            let part = first..trimming.end.min(first + TRIMMED_AT_ONCE);
            let moved = self.trim_entries(part, &trimming.moved)?;
            trimming.moved.extend(moved);
        }
        Ok(())
    }

    /// Trims the oldest entries in one commit. Returns the topics for which it appended an entry; none of them is in
    /// `moved`.
    fn trim_entries(&self, part: Range<u64>, moved: &HashSet<u32>) -> Result<HashSet<u32>> {
        let tables = &self.tables;
        let (low, high) = (offset_key(REGISTRY, part.start), offset_key(REGISTRY, part.end));
        let options = TransactionOptions::new().durability(Durability::Written);
        self.store.transact_with(options, |tx| {
            let (mut exist, mut appended) = (Vec::new(), HashSet::new());
            let mut walk = tx.range(&tables.messages, &low[..]..&high[..])?;
            while let Some((_, head)) = walk.next()? {
                // A damaged entry tells nothing; trimming it loses nothing.
                let Ok(Entry { name, what }) = Entry::decode(&head) else {
                    continue;
                };
                let record = tx.get_ref(&tables.topics, name.as_bytes())?;
                let Some(Ok(record)) = record.map(|record| TopicRecord::decode(&record)) else {
                    continue;
                };
                let is_its = what.is_none_or(|(_, id)| id == record.id);
                if is_its && !moved.contains(&record.id) && appended.insert(record.id) {
                    exist.push((record.id, name.to_string()));
                }
            }
            drop(walk);
            for (id, name) in exist {
                // A topic that is deleted meanwhile must not get an entry after its deletion entry.
                tx.depends_on_key(&tables.topics, name.as_bytes())?;
                self.register(tx, Event::Exists, id, &name)?;
            }
            tx.delete_range(&tables.messages, &low[..]..&high[..])?;
            Ok(appended)
        })
    }
}

#[cfg(test)]
mod tests {
    use duramen_engine::{Maintenance, Options};
    use duramen_io::SimDisk;

    use super::*;
    use crate::handle::Topics;
    use crate::record::TopicOptions;
    use crate::topics::TopicsOptions;

    fn open(disk: &SimDisk) -> Topics {
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(disk.platform()).unwrap();
        Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap()
    }

    #[test]
    fn entries_tell_what_happened_to_which_topic() {
        let topics = open(&SimDisk::new(1));
        let topic = topics.create("orders", TopicOptions::new()).unwrap();
        topic.configure(TopicOptions::new().keep_messages(1)).unwrap();
        topics.delete("orders").unwrap();
        let home = topics.home();
        let snapshot = home.store.snapshot().unwrap();
        let mut walk = snapshot.prefix(&home.tables.messages, REGISTRY.to_be_bytes()).unwrap();
        let id = topic.shared().id;
        for event in [Event::Created, Event::Configured, Event::Deleted] {
            let (_, head) = walk.next().unwrap().unwrap();
            let what = Some((event, id));
            assert_eq!(Entry::decode(&head).unwrap(), Entry { name: "orders", what });
        }
        assert!(walk.next().unwrap().is_none());
    }

    #[test]
    fn every_process_learns_that_options_may_have_changed() {
        let disk = SimDisk::new(1);
        let (one, other) = (open(&disk), open(&disk));
        let topic = one.create("orders", TopicOptions::new()).unwrap();
        let rings = || (one.home().registry_rings(), other.home().registry_rings());
        let before = rings();
        topic.publish(b"message").unwrap();
        assert_eq!(rings(), before, "publishing changes no options");
        topic.configure(TopicOptions::new().keep_messages(1)).unwrap();
        let after = rings();
        assert!(after.0 != before.0 && after.1 != before.1, "{before:?} {after:?}");
        other.topic("orders").unwrap().configure(TopicOptions::new()).unwrap();
        let last = rings();
        assert!(last.0 != after.0 && last.1 != after.1, "{after:?} {last:?}");
    }

    /// Number of entries in the registry, and the last entry of each topic.
    fn entries(topics: &Topics) -> (usize, std::collections::BTreeMap<u32, (Event, String)>) {
        let home = topics.home();
        let snapshot = home.store.snapshot().unwrap();
        let mut walk = snapshot.prefix(&home.tables.messages, REGISTRY.to_be_bytes()).unwrap();
        let (mut count, mut last) = (0, std::collections::BTreeMap::new());
        while let Some((_, head)) = walk.next().unwrap() {
            let entry = Entry::decode(&head).unwrap();
            let (event, id) = entry.what.unwrap();
            last.insert(id, (event, entry.name.to_string()));
            count += 1;
        }
        (count, last)
    }

    #[test]
    fn registry_stays_as_small_as_the_topics_that_exist_and_keeps_an_entry_of_each() {
        let topics = open(&SimDisk::new(1));
        let lasting = ["first", "second", "third"].map(|name| topics.create(name, TopicOptions::new()).unwrap());
        for round in 0..10 {
            for number in 0..300 {
                let name = format!("reply.{round}.{number}");
                topics.create(&name, TopicOptions::new()).unwrap();
                topics.delete(&name).unwrap();
                lasting[number % 3]
                    .configure(TopicOptions::new().keep_messages(1))
                    .unwrap();
            }
            topics.home().trim_registry(&|| false).unwrap();
            let (count, last) = entries(&topics);
            assert!(count as u64 <= KEPT_ENTRIES + 2 * 3, "{count} entries");
            for topic in &lasting {
                let (event, name) = &last[&topic.shared().id];
                assert!(*event != Event::Deleted && name == topic.name());
            }
        }
    }

    #[test]
    fn trimming_in_parts_and_by_several_processes_ends() {
        let disk = SimDisk::new(2);
        let (one, other) = (open(&disk), open(&disk));
        let lasting: Vec<_> = (0..400)
            .map(|number| one.create(&format!("t.{number}"), TopicOptions::new()).unwrap())
            .collect();
        for _ in 0..10 {
            lasting
                .iter()
                .for_each(|topic| topic.configure(TopicOptions::new().keep_messages(1)).unwrap());
        }
        for round in 0..100 {
            let calls = std::cell::Cell::new(0);
            let topics = if round % 2 == 0 { &one } else { &other };
            topics
                .home()
                .trim_registry(&|| calls.replace(calls.get() + 1) > 0)
                .unwrap();
        }
        let (count, last) = entries(&one);
        assert!(count as u64 <= KEPT_ENTRIES + 2 * 400, "{count} entries");
        assert_eq!(last.len(), 400);
        let rings = one.home().registry_rings();
        one.home().trim_registry(&|| false).unwrap();
        assert_eq!(one.home().registry_rings(), rings, "there is nothing more to trim");
    }

    #[test]
    fn a_reader_is_told_what_is_new_or_to_look_at_everything() {
        let topics = open(&SimDisk::new(3));
        let home = topics.home();
        topics.create("old", TopicOptions::new()).unwrap();
        let (news, seen) = home.news(&home.store.snapshot().unwrap(), None).unwrap();
        assert_eq!(news, News::Everything);
        let id = topics.create("new", TopicOptions::new()).unwrap().shared().id;
        let (news, seen) = home.news(&home.store.snapshot().unwrap(), Some(seen)).unwrap();
        assert_eq!(news, News::Of(vec![(Event::Created, id, "new".into())]));
        for _ in 0..=NEWS_MAX {
            topics.topic("old").unwrap().configure(TopicOptions::new()).unwrap();
        }
        let (news, _) = home.news(&home.store.snapshot().unwrap(), Some(seen)).unwrap();
        assert_eq!(news, News::Everything, "it missed too much");
        home.trim_registry(&|| false).unwrap();
        let (news, _) = home
            .news(&home.store.snapshot().unwrap(), Some(seen + NEWS_MAX))
            .unwrap();
        assert_eq!(news, News::Everything, "some of it is trimmed");
    }
}
