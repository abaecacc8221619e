//! The registry: a sequence of entries that tell which topics were created, configured and deleted.
//!
//! ```text
//! message key  1  event: 1 created, 2 configured, 3 deleted
//!              4  id of the topic, big-endian
//! payload     ..  name of the topic
//! ```
//!
//! A store of an older version has entries without a key: the first one of a name says that its topic was created, the
//! next one tells of its deletion, and so on.

use duramen_engine::{Error, Item, Result, Transaction};

use crate::message::{Message, Stored};
use crate::topics::Inner;

/// What happened to a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Created,
    Configured,
    Deleted,
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
        }
    }

    fn of_code(code: u8) -> Result<Event> {
        match code {
            1 => Ok(Event::Created),
            2 => Ok(Event::Configured),
            3 => Ok(Event::Deleted),
            _ => Err(Error::damaged(format!(
                "the registry has an event {code}, which is unknown"
            ))),
        }
    }
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

    /// Changes with every commit of any process that creates, configures or deletes a topic: one load of shared memory.
    ///
    /// Read this before the snapshot from which options are read. While the number stays, the options are current, but for
    /// a process that dies right after its commit; see [`duramen_engine::Store::rings`].
    #[allow(dead_code)]
    pub(crate) fn registry_rings(&self) -> u64 {
        self.store.rings(self.registry().bell())
    }
}

#[cfg(test)]
mod tests {
    use duramen_engine::{Maintenance, Options};
    use duramen_io::SimDisk;

    use super::*;
    use crate::record::TopicOptions;
    use crate::tables::REGISTRY;
    use crate::topics::{Topics, TopicsOptions};

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
        let mut walk = snapshot.prefix(&home.tables.messages, &REGISTRY.to_be_bytes()).unwrap();
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
}
