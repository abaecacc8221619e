//! Groups and durable subscriptions of a topic during salvage.
//!
//! A message below a group's cursor without a row is settled. So if a lost page may have held rows, the group delivers
//! all messages that may have been open again. It goes back to its floor, below which no message was open, and forgets
//! the rest. If the cursor itself is lost, the group goes back to the first message that is kept.

use duramen_engine::Result;

use super::messages::Kept;
use super::{Found, Saving, check_id, text};
use crate::group::Rule;
use crate::group::record::{GroupRecord, Kind};
use crate::group::state::{Cursor, Row};
use crate::record::millis;
use crate::tables::{FIRST_ID, name_key};

/// The readable part of a group's state.
#[derive(Debug, Default)]
struct Known {
    cursor: Option<Cursor>,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Above every message that a row refers to.
    next: u64,
    is_strange: bool,
}

impl Known {
    fn take(&mut self, key: &[u8], row: &[u8]) {
        let found = Row::decode(key, row);
        // A process of the new store may get the number of a process that had the old store open.
        let row = match &found {
            Ok(Row::Run(_, run)) => run.of_no_process().encode(),
            Ok(Row::List(_, list)) => list.of_no_process().encode(),
            _ => row.to_vec(),
        };
        let next = found.map(|found| match found {
            Row::Cursor(cursor) => {
                self.cursor = Some(cursor);
                cursor.next
            }
            Row::Run(first, run) if first >= run.end => u64::MAX,
            Row::Run(_, run) => run.end,
            Row::Single(offset, _) => offset.saturating_add(1),
            Row::List(_, list) => list.offsets.last().map_or(0, |last| last.saturating_add(1)),
            Row::Other => 0,
        });
        match next {
            Ok(next) if next < u64::MAX => {
                self.next = self.next.max(next);
                self.rows.push((key.to_vec(), row));
            }
            _ => self.is_strange = true,
        }
    }

    /// Whether none of the state is lost. `is_all_read`: every page could be read.
    fn is_whole(&self, kind: &Kind, is_all_read: bool) -> bool {
        match (kind, self.cursor) {
            // It has no other row.
            (Kind::Durable, Some(_)) => true,
            // Rows refer only to messages that were delivered.
            (Kind::Group(_), Some(cursor)) => is_all_read && !self.is_strange && self.next <= cursor.next,
            (_, None) => false,
        }
    }
}

impl Saving<'_> {
    /// Copies the groups of a topic. Returns an offset above all offsets in their state.
    pub(super) fn groups(&mut self, found: &Found, kept: &Kept) -> Result<u64> {
        let prefix = found.id.to_be_bytes();
        let (mut records, mut lost) = (Vec::new(), Vec::new());
        let groups = self.source.tables.groups.clone();
        let is_whole = self.source.rows(&groups, &prefix, &mut |key, row| {
            match understood(&key[prefix.len()..], row) {
                Ok((name, record)) => records.push((key.to_vec(), name, record)),
                Err(_) => lost.push(String::from_utf8_lossy(&key[prefix.len()..]).into_owned()),
            }
            Ok(())
        })?;
        let is_each_left = is_whole && lost.is_empty();
        for name in lost {
            self.lose(format!("group {name:?} of topic {:?}", found.name));
        }
        if !is_whole {
            self.lose(format!(
                "groups of topic {:?}, if it had more than are left",
                found.name
            ));
        }
        if !is_each_left {
            self.follow_anew(found, kept, |name| records.iter().any(|(_, known, _)| known == name));
        }
        let mut next = 0;
        for (key, name, record) in records {
            if !self.group_ids.insert(record.id) {
                self.lose(format!(
                    "group {name:?} of topic {:?}: another one has its number",
                    found.name
                ));
                continue;
            }
            self.has_id(record.id);
            self.writer.put(&self.home.tables.groups, &key, &record.encode())?;
            next = next.max(self.group(found, kept, &name, &record)?);
            self.saved.groups += 1;
        }
        Ok(next)
    }

    /// Records which durable subscriptions and groups over patterns have lost their rows in a topic. Otherwise the
    /// topic would be missing from them.
    fn follow_anew(&mut self, found: &Found, kept: &Kept, is_left: impl Fn(&str) -> bool) {
        let rules = self.rules.iter();
        let lost = rules.filter(|(name, rule)| rule.covers(name, &found.name) && !is_left(name));
        let lost: Vec<(String, Rule)> = lost.cloned().collect();
        for (name, rule) in lost {
            self.lose(format!(
                "{} {name:?} in topic {:?}: how far it had come, if it was there; it begins again with message {}, the first that is kept",
                rule.record.kind.name(),
                found.name,
                kept.first
            ));
            self.made_anew.push((found.id, name, rule, kept.first));
        }
    }

    /// Creates the recorded subscriptions and groups again, once all numbers in use are known.
    pub(super) fn make_anew(&mut self) -> Result<()> {
        let now = millis(self.home.store.wall_clock());
        for (topic, name, rule, from) in std::mem::take(&mut self.made_anew) {
            let id = self.next_id.max(FIRST_ID);
            self.has_id(id);
            let kind = rule.kind_in_topics(&name);
            let (record, cursor) = rule.new_group(&name, topic, &kind, (from, now)).rows(id);
            let tables = &self.home.tables;
            self.writer
                .put(&tables.groups, &name_key(topic, &name), &record.encode())?;
            self.writer.put(&tables.states, &Cursor::key(id), &cursor.encode())?;
            self.saved.groups += 1;
        }
        Ok(())
    }

    /// Copies the state of a group, or sets the group back.
    fn group(&mut self, found: &Found, kept: &Kept, name: &str, record: &GroupRecord) -> Result<u64> {
        let id = record.id;
        let mut known = Known::default();
        let states = self.source.tables.states.clone();
        let is_all_read = self.source.rows(&states, &id.to_be_bytes(), &mut |key, row| {
            known.take(key, row);
            Ok(())
        })?;
        let states = self.home.tables.states.clone();
        if known.is_whole(&record.kind, is_all_read) {
            for (key, row) in &known.rows {
                self.writer.put(&states, key, row)?;
            }
            return Ok(known.next);
        }
        let back = known.cursor.map_or(kept.first, |cursor| cursor.floor.min(cursor.next));
        let whose = format!("{} {name:?} of topic {:?}", record.kind.name(), found.name);
        self.lose(match known.cursor {
            Some(_) => format!(
                "{whose}: what it knew of messages from {back} on; it delivers them again, those too that were acknowledged"
            ),
            None => format!("{whose}: how far it had come; it begins again with message {back}, the first that is kept"),
        });
        let cursor = Cursor::at(back);
        self.writer.put(&states, &Cursor::key(id), &cursor.encode())?;
        Ok(known.next)
    }

    /// Reports the groups of which only the state is left.
    pub(super) fn groups_without_a_record(&mut self) -> Result<()> {
        for id in self.source.ids(&self.source.tables.states)? {
            self.has_id(id);
            let is_gone = self.gone.iter().any(|ids| ids.contains(&id));
            if !is_gone && !self.group_ids.contains(&id) {
                self.lose(format!(
                    "group number {id}: its name, its topic and how it delivers, so it is left out"
                ));
            }
        }
        Ok(())
    }
}

fn understood(name: &[u8], record: &[u8]) -> Result<(String, GroupRecord)> {
    let name = text(name)?;
    let record = GroupRecord::decode(record)?;
    check_id(record.id)?;
    if let Kind::Group(options) = &record.kind {
        options.check()?;
    }
    Ok((name, record))
}
