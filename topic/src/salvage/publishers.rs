//! The newest sequences of publishers. If a page of them is lost, they are taken from the kept messages: a publisher
//! must not publish its last message again.

use std::collections::BTreeMap;

use duramen_engine::Result;

use super::{Found, Saving};
use crate::message::Stored;
use crate::publisher_rows::Newest;
use crate::tables::name_key;

/// Publishers and their newest sequences, as far as messages contain them.
#[derive(Debug, Default)]
pub(super) struct Newests {
    newest: BTreeMap<String, Newest>,
}

impl Newests {
    /// Records the publisher of a message.
    pub(super) fn see(&mut self, offset: u64, message: &Stored<'_>) {
        let Some((name, sequence)) = message.publisher else {
            return;
        };
        let newest = Newest {
            sequence,
            at_least: offset,
            time: message.time,
        };
        match self.newest.get_mut(name) {
            Some(known) if known.sequence >= sequence => {}
            Some(known) => *known = newest,
            None => drop(self.newest.insert(name.into(), newest)),
        }
    }
}

impl Saving<'_> {
    /// Copies the readable state of publishers. Returns what to look for in messages, if something is lost, and an
    /// offset above all offsets in that state.
    pub(super) fn publishers(&mut self, found: &Found) -> Result<(Option<Newests>, u64)> {
        let mut next = 0;
        let (mut newest, mut is_understood) = (BTreeMap::new(), true);
        let prefix = found.id.to_be_bytes();
        let map = self.source.tables.publishers.clone();
        let writer = &mut self.writer;
        let target = &self.home.tables.publishers;
        let is_whole = self.source.rows(&map, &prefix, &mut |key, row| {
            let name = std::str::from_utf8(&key[prefix.len()..]);
            let (Ok(name), Ok(known)) = (name, Newest::decode(row)) else {
                is_understood = false;
                return Ok(());
            };
            next = next.max(known.at_least.saturating_add(1));
            newest.insert(name.to_string(), known);
            writer.put(target, key, row)
        })?;
        if is_whole && is_understood {
            return Ok((None, next));
        }
        self.lose(format!(
            "topic {:?}: newest sequences of publishers, but for those that messages tell which are left",
            found.name
        ));
        Ok((Some(Newests { newest }), next))
    }

    /// Writes what was found in messages.
    pub(super) fn put_publishers(&mut self, found: &Found, publishers: &Newests) -> Result<()> {
        for (name, newest) in &publishers.newest {
            let key = name_key(found.id, name);
            self.writer.put(&self.home.tables.publishers, &key, &newest.encode())?;
        }
        Ok(())
    }
}
