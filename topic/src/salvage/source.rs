//! The damaged store: its maps that belong to topics, and their rows as far as they can be read.
//!
//! The maps were created one after the other. So their numbers are consecutive, in the order in which [`crate::tables`]
//! creates them. If their names are lost, their numbers and their contents identify them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use duramen_engine::{Lost, Map, Result, SequenceState, Snapshot};

use super::{check_id, understood};
use crate::delayed::Delayed;
use crate::group::Rule;
use crate::group::deferred_deletes;
use crate::group::record::GroupRecord;
use crate::group::state::Row;
use crate::index::ID_TIME;
use crate::message::Stored;
use crate::publisher_rows::Newest;
use crate::tables::{CREATES, GONE, NEXT_ID, RULES, Tables, after_id};

/// The maps, in the order of their numbers.
const NAMES: [&str; 8] = [
    "topics",
    "messages",
    "payloads",
    "publishers",
    "groups",
    "states",
    "delayed",
    "index",
];

/// Receives a row: its key and value.
pub(super) type TakeRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// A number that no map has.
const NO_MAP: u32 = u32::MAX - 1;
/// Number of rows that are examined to recognise a map.
const LOOKED_AT_MAX: usize = 64;
/// Plausible times of a message, in milliseconds since 1970: some centuries. Bytes that are not a time are rarely among
/// them.
const TIMES: Range<u64> = 1 << 39..1 << 43;

/// The readable part of a damaged store, as described at the top of this file.
pub(super) struct Source<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) tables: Tables,
    pub(super) lost: &'a Lost,
}

impl<'a> Source<'a> {
    /// Finds the maps. `None`: topics were never used, or nothing shows that they were. Moves maps that have lost their
    /// names out of `maps`. `names` records the pages with names of maps that cannot be read.
    pub(super) fn find(
        snapshot: &'a Snapshot,
        maps: &mut Vec<Map>,
        names: &Lost,
        lost: &'a Lost,
    ) -> Result<Option<Source<'a>>> {
        let named = snapshot.salvage_reserved_maps(names)?;
        let first_by_name = |(place, name): (usize, &&str)| named.get(*name)?.number().checked_sub(place as u32);
        let first = match NAMES.iter().enumerate().find_map(first_by_name) {
            Some(first) => first,
            None => match recognised(snapshot, maps)? {
                Some(first) => first,
                None => return Ok(None),
            },
        };
        let mut table = |place: usize| match named.get(NAMES[place]) {
            Some(map) => Ok(map.clone()),
            None => {
                let number = first + place as u32;
                let is_taken = named.values().any(|map| map.number() == number);
                unnamed(snapshot, maps, place, if is_taken { NO_MAP } else { number }, lost)
            }
        };
        let tables = Tables {
            topics: table(0)?,
            messages: table(1)?,
            payloads: table(2)?,
            publishers: table(3)?,
            groups: table(4)?,
            states: table(5)?,
            delayed: table(6)?,
            index: table(7)?,
        };
        Ok(Some(Source { snapshot, tables, lost }))
    }

    /// Passes the rows of a map that begin with a prefix to `take`, as far as they can be read. Returns whether no page
    /// was unreadable. A lost page may also hold only rows before or after the prefix.
    pub(super) fn rows(&self, map: &Map, prefix: &[u8], take: &mut TakeRow<'_>) -> Result<bool> {
        let here = Lost::new();
        let mut walk = self.snapshot.salvage_prefix(map, prefix, &here)?;
        while let Some((key, value)) = walk.next()? {
            take(key, &value)?;
        }
        drop(walk);
        Ok(self.is_nothing(&here))
    }

    /// Passes on what was lost in a walk. Returns whether nothing was lost.
    pub(super) fn is_nothing(&self, here: &Lost) -> bool {
        let lines = here.list();
        let is_nothing = lines.is_empty();
        lines.into_iter().for_each(|line| self.lost.note(line));
        is_nothing
    }

    /// The numbers at the start of a map's keys.
    pub(super) fn ids(&self, map: &Map) -> Result<BTreeSet<u32>> {
        let mut ids = BTreeSet::new();
        let mut walk = self.snapshot.salvage(map, self.lost)?;
        while let Some((key, _)) = walk.next()? {
            if let Some(id) = id_at(key).filter(|id| check_id(*id).is_ok()) {
                ids.insert(id);
                walk.seek(&after_id(id));
            }
        }
        Ok(ids)
    }

    /// States of the topics' sequences, by number.
    pub(super) fn counters(&self) -> Result<BTreeMap<u32, SequenceState>> {
        let states = self.snapshot.salvage_sequences(&self.tables.messages, self.lost)?;
        let by_id = states.into_iter().filter_map(|(prefix, state)| {
            let id = id_at(&prefix).filter(|id| prefix.len() == 4 && check_id(*id).is_ok())?;
            Some((id, state))
        });
        Ok(by_id.collect())
    }
}

/// Returns the map at a position in `NAMES` that has lost its name, and should have this number.
fn unnamed(snapshot: &Snapshot, maps: &mut Vec<Map>, place: usize, number: u32, lost: &Lost) -> Result<Map> {
    let Some(found) = maps.iter().position(|map| map.number() == number) else {
        // It has no readable rows.
        return Ok(snapshot.salvage_nameless_map(number));
    };
    if !is_nameless(snapshot, &maps[found]) {
        // The process that was creating the map ended before it was done.
        return Ok(snapshot.salvage_nameless_map(NO_MAP));
    }
    if looks_like(place, snapshot, &maps[found])? {
        return Ok(maps.remove(found));
    }
    lost.note(format!("which map has the {} of topics", NAMES[place]));
    Ok(snapshot.salvage_nameless_map(NO_MAP))
}

/// Returns the number of the first map, found by contents: one map holds messages, and the maps beside it, if not
/// empty, hold what belongs to messages.
fn recognised(snapshot: &Snapshot, maps: &[Map]) -> Result<Option<u32>> {
    let nameless: Vec<&Map> = maps.iter().filter(|map| is_nameless(snapshot, map)).collect();
    for map in &nameless {
        let Some(first) = map
            .number()
            .checked_sub(1)
            .filter(|first| *first < NO_MAP - NAMES.len() as u32)
        else {
            continue;
        };
        let mut looks_right = true;
        for (place, number) in (first..).take(NAMES.len()).enumerate() {
            let there = nameless.iter().find(|map| map.number() == number);
            looks_right &= there.map_or(Ok(true), |map| looks_like(place, snapshot, map))?;
        }
        if looks_right {
            return Ok(Some(first));
        }
    }
    Ok(None)
}

/// Whether the first rows of a map fit the map at this position in `NAMES`.
fn looks_like(place: usize, snapshot: &Snapshot, map: &Map) -> Result<bool> {
    let lost = Lost::new();
    let mut walk = snapshot.salvage(map, &lost)?;
    for _ in 0..LOOKED_AT_MAX {
        let Some((key, value)) = walk.next()? else { break };
        let is_right = match (NAMES[place], key.len()) {
            ("topics", _) if key.starts_with(RULES) => Rule::decode(&value).is_ok(),
            ("topics", _) if key.starts_with(GONE) => deferred_deletes::decode(key, &value).is_ok(),
            ("topics", _) => key == NEXT_ID || key == CREATES || understood(key, &value).is_ok(),
            ("messages", 12) => Stored::decode(&value).is_ok_and(|message| TIMES.contains(&message.time)),
            ("payloads", 12) => true,
            ("publishers", 4..) => Newest::decode(&value).is_ok(),
            ("groups", 5..) => GroupRecord::decode(&value).is_ok(),
            ("states", 5..) => Row::decode(key, &value).is_ok(),
            ("delayed", _) => Delayed::check(key, &value).is_ok(),
            ("index", 5..) => key[4] <= ID_TIME,
            _ => false,
        };
        if !is_right {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_nameless(snapshot: &Snapshot, map: &Map) -> bool {
    snapshot.salvage_nameless_map(map.number()).name() == map.name()
}

/// The number at the start of a key.
fn id_at(key: &[u8]) -> Option<u32> {
    key.first_chunk::<4>().map(|id| u32::from_be_bytes(*id))
}
