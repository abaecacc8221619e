//! Maps that keep their changes, for watchers.
//!
//! ```text
//! 0                      how many maps there were so far that keep their changes (`next`), and the number with which the
//!                        changes of a new map begin (`first`), as a `StoredKept`
//! map                    limits, and which changes are kept (`StoredKept`)
//! map number             a change (`StoredChange`); each has the next number
//! ```
//! Both parts are big-endian; `map` is the number of the map in the store, so a new name changes nothing here. It comes from
//! the count in the first row: the numbers that the engine gives depend on commits that failed. The rows of a change are
//! written in the commit that makes it. Its limits are applied there as well, with the time of the entry. So equal entries
//! keep equal changes.
//!
//! The engine guards such a map: a program that opens the store itself reads it and cannot write it. So no change is
//! missing here.

use std::collections::HashMap;

use duramen::{Map, Result, Sequence, Snapshot, Transaction};
use duramen_proto::command::{StoredChange, StoredKept};
use duramen_proto::v1::{KeepChanges, KeyRange};
use prost::Message;
use prost::bytes::Bytes;
use tonic::Code;

use super::HANDLES_MAX;
use super::stopped::Stopped;
use crate::refusal::refused;

/// The reserved map of the changes.
pub(super) const CHANGES: &str = "server.changes";
/// The row of the count of maps: guarded maps have large numbers.
const COUNT: [u8; 4] = [0; 4];
/// The longest value of a map that keeps its changes: old and new value must fit into one message.
pub(crate) const KEPT_VALUE_BYTES_MAX: usize = 8 << 20;
/// The most pairs that a range delete takes from such a map, each of them a change, and the most bytes of their values.
const DELETED_PAIRS_MAX: usize = 10_000;
const DELETED_BYTES_MAX: usize = 64 << 20;
/// The most old changes that a new one removes.
const REMOVED_MAX: usize = 64;

/// What the store holds of the changes of maps.
#[derive(Clone)]
pub(crate) struct Kept {
    rows: Map,
}

impl Kept {
    /// # Errors
    /// Those of opening the map.
    pub(crate) fn open(store: &duramen::Store) -> Result<Kept> {
        let rows = store.reserved_map(CHANGES)?;
        Ok(Kept { rows })
    }

    /// What each change of a map rings.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn sequence(&self, map: &Map) -> Result<Sequence> {
        Sequence::new(&self.rows, &self.rows, &map.number().to_be_bytes(), map.name())
    }

    /// What a map keeps; `None`: it keeps no changes, or was dropped.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn state(&self, snapshot: &Snapshot, map: &Map) -> Result<Option<StoredKept>> {
        let row = snapshot.get(&self.rows, map.number().to_be_bytes())?;
        row.map(|row| decoded(&row)).transpose()
    }

    /// Lets the changes of all maps go on with larger numbers when the store is put back to a checkpoint, and lets watches from
    /// earlier numbers fail. The snapshot shows the checkpoint, the transaction what there was before.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub(crate) fn keep_numbers(store: &duramen::Store, restored: &Snapshot, tx: &mut Transaction) -> Result<()> {
        let Some(rows) = store.existing_reserved_map(CHANGES)? else {
            return Ok(());
        };
        let kept = Kept { rows };
        let stored = |row: Option<duramen::Value<'_>>| -> Result<Option<StoredKept>> {
            row.map(|row| decoded(&row)).transpose()
        };
        let mut of_all = stored(tx.get_ref(&kept.rows, COUNT)?)?.unwrap_or_default();
        for number in 0..of_all.next {
            let id = Map::guarded_id(number as u32).to_be_bytes();
            let (before, now) = (
                stored(restored.get(&kept.rows, id)?)?,
                stored(tx.get_ref(&kept.rows, id)?)?,
            );
            // A map that is gone had no number from this one on. A watch that has seen all asks for the next number; it has
            // missed the restore.
            let next = 1 + now.map_or(of_all.first, |now| now.next);
            match before {
                Some(before) => {
                    let next = next.max(before.next + 1);
                    let readable = next;
                    let state = StoredKept {
                        next,
                        readable,
                        ..before
                    };
                    tx.put(&kept.rows, id, state.encode_to_vec())?;
                }
                // The map is not in the checkpoint; another one of its name begins above.
                None => of_all.first = of_all.first.max(next),
            }
        }
        if of_all.next > 0 {
            tx.put(&kept.rows, COUNT, of_all.encode_to_vec())?;
        }
        Ok(())
    }

    /// Calls `visit` with the changes of a map from a number on, until it returns false.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn each_from(
        &self,
        snapshot: &Snapshot,
        map: &Map,
        first: u64,
        mut visit: impl FnMut(u64, StoredChange) -> bool,
    ) -> Result<()> {
        let id = map.number();
        // The state of the next map stands before its changes.
        let mut rows = snapshot.range(&self.rows, &row(id, first)[..]..&(id + 1).to_be_bytes()[..])?;
        while let Some((key, value)) = rows.next()? {
            let number = key.last_chunk().map_or(0, |number| u64::from_be_bytes(*number));
            if !visit(number, decoded(&value)?) {
                break;
            }
        }
        Ok(())
    }
}

/// Number of the oldest change that a watch can read.
pub(crate) fn oldest(kept: &StoredKept) -> u64 {
    kept.first.max(kept.readable)
}

/// Records the changes that commands make.
pub(super) struct Recorder {
    kept: Kept,
    /// By the number of the map.
    sequences: HashMap<u32, Sequence>,
}

/// A change that is about to be recorded.
struct New {
    key: Bytes,
    old: Option<Bytes>,
    new: Option<Bytes>,
}

impl Recorder {
    pub(super) fn new(kept: Kept) -> Recorder {
        Recorder {
            kept,
            sequences: HashMap::new(),
        }
    }

    /// Makes a map that keeps its changes.
    pub(super) fn begin(&self, tx: &mut Transaction, name: &str, limits: KeepChanges) -> Result<()> {
        let mut of_all = self.of_all(tx)?;
        let map = tx.guarded_map(name, of_all.next as u32)?;
        of_all.next += 1;
        tx.put(&self.kept.rows, COUNT, of_all.encode_to_vec())?;
        let state = StoredKept {
            limits: Some(limits),
            first: of_all.first,
            next: of_all.first,
            bytes: 0,
            readable: 0,
        };
        self.put_state(tx, &map, &state)
    }

    /// The limits of a map; `None`: it keeps no changes.
    pub(super) fn limits(&self, tx: &Transaction, map: &Map) -> Result<Option<KeepChanges>> {
        let state = self.state(tx, map)?;
        Ok(state.map(|state| state.limits.unwrap_or_default()))
    }

    /// Replaces the limits of a map. The next change removes what is beyond them.
    pub(super) fn configure(
        &self,
        tx: &mut Transaction,
        map: &Map,
        limits: KeepChanges,
    ) -> std::result::Result<(), Stopped> {
        let Some(state) = self.state(tx, map)? else {
            return Err(keeps_none(map.name()).into());
        };
        let limits = Some(limits);
        Ok(self.put_state(tx, map, &StoredKept { limits, ..state })?)
    }

    /// What the store holds of all maps together.
    fn of_all(&self, tx: &Transaction) -> Result<StoredKept> {
        let row = tx.get_ref(&self.kept.rows, COUNT)?;
        let mut of_all: StoredKept = row.map(|row| decoded(&row)).transpose()?.unwrap_or_default();
        of_all.first = of_all.first.max(1);
        Ok(of_all)
    }

    /// Removes all changes of a map that is dropped. Another map of its name begins with a larger number: a watcher that comes
    /// back must not take the changes of one map for those of the other.
    pub(super) fn end(&mut self, tx: &mut Transaction, map: &Map) -> Result<()> {
        let id = map.number();
        if let Some(state) = self.state(tx, map)? {
            let mut of_all = self.of_all(tx)?;
            of_all.first = of_all.first.max(state.next + 1);
            tx.put(&self.kept.rows, COUNT, of_all.encode_to_vec())?;
        }
        self.ring(tx, map)?;
        self.sequences.remove(&id);
        tx.delete_range(
            &self.kept.rows,
            id.to_be_bytes().as_slice()..(id + 1).to_be_bytes().as_slice(),
        )
    }

    pub(super) fn put(
        &mut self,
        tx: &mut Transaction,
        map: &Map,
        (key, value): (&Bytes, &Bytes),
        time_us: u64,
    ) -> std::result::Result<(), Stopped> {
        check_value(map, value.len())?;
        let old = get(tx, map, key)?;
        tx.put(map, key, value)?;
        let new = Some(value.clone());
        self.record(
            tx,
            map,
            [New {
                key: key.clone(),
                old,
                new,
            }],
            time_us,
        )
    }

    pub(super) fn delete(
        &mut self,
        tx: &mut Transaction,
        map: &Map,
        key: &Bytes,
        time_us: u64,
    ) -> std::result::Result<(), Stopped> {
        let Some(old) = get(tx, map, key)? else { return Ok(()) };
        tx.delete(map, key)?;
        let deleted = New {
            key: key.clone(),
            old: Some(old),
            new: None,
        };
        self.record(tx, map, [deleted], time_us)
    }

    pub(super) fn add(
        &mut self,
        tx: &mut Transaction,
        map: &Map,
        (key, delta): (&Bytes, i64),
        time_us: u64,
    ) -> std::result::Result<(), Stopped> {
        let old = get(tx, map, key)?;
        tx.add(map, key, delta)?;
        let new = get(tx, map, key)?;
        self.record(
            tx,
            map,
            [New {
                key: key.clone(),
                old,
                new,
            }],
            time_us,
        )
    }

    /// Deletes the pairs of a range, each of them a change.
    pub(super) fn delete_range(
        &mut self,
        tx: &mut Transaction,
        map: &Map,
        range: &KeyRange,
        time_us: u64,
    ) -> std::result::Result<(), Stopped> {
        let mut deleted = Vec::new();
        let mut bytes = 0;
        {
            let mut pairs = match &range.end {
                None => tx.range(map, &range.start[..]..)?,
                Some(end) => tx.range(map, &range.start[..]..&end[..])?,
            };
            while let Some((key, value)) = pairs.next()? {
                bytes += value.len();
                if deleted.len() == DELETED_PAIRS_MAX || bytes > DELETED_BYTES_MAX {
                    return Err(too_many(map.name()).into());
                }
                deleted.push(New {
                    key: Bytes::copy_from_slice(key),
                    old: Some(Bytes::copy_from_slice(&value)),
                    new: None,
                });
            }
        }
        for change in &deleted {
            tx.delete(map, &change.key)?;
        }
        self.record(tx, map, deleted, time_us)
    }

    /// Stores changes, and removes those that are beyond the limits.
    fn record(
        &mut self,
        tx: &mut Transaction,
        map: &Map,
        changes: impl IntoIterator<Item = New>,
        time_us: u64,
    ) -> std::result::Result<(), Stopped> {
        let Some(mut state) = self.state(tx, map)? else {
            let what = format!(
                "the map {:?} keeps its changes, and the rows of them are gone",
                map.name()
            );
            return Err(Stopped::Failed(duramen::Reason::Damaged(what).into()));
        };
        let (id, limits) = (map.number(), state.limits.unwrap_or_default());
        for change in changes {
            let change = StoredChange {
                time_us,
                key: change.key,
                old_value: change.old,
                new_value: change.new,
            };
            let change = change.encode_to_vec();
            state.bytes += bytes_of(&change);
            tx.put(&self.kept.rows, row(id, state.next), &change)?;
            state.next += 1;
            self.remove_old(tx, id, &mut state, limits, time_us)?;
        }
        self.put_state(tx, map, &state)?;
        self.ring(tx, map)?;
        Ok(())
    }

    /// Removes some of the oldest changes, where they are beyond the limits; the newest one is kept.
    fn remove_old(
        &self,
        tx: &mut Transaction,
        id: u32,
        state: &mut StoredKept,
        limits: KeepChanges,
        time_us: u64,
    ) -> Result<()> {
        let oldest_kept_us = time_us.saturating_sub(limits.age_ms.saturating_mul(1_000));
        for _ in 0..REMOVED_MAX {
            let is_beyond_bytes = limits.bytes > 0 && state.bytes > limits.bytes;
            if state.first + 1 >= state.next || limits.age_ms == 0 && !is_beyond_bytes {
                break;
            }
            let key = row(id, state.first);
            let bytes = match tx.get_ref(&self.kept.rows, key)? {
                Some(old) => {
                    let is_old = limits.age_ms > 0 && decoded::<StoredChange>(&old)?.time_us < oldest_kept_us;
                    if !is_old && !is_beyond_bytes {
                        break;
                    }
                    bytes_of(&old)
                }
                None => 0,
            };
            tx.delete(&self.kept.rows, key)?;
            state.bytes = state.bytes.saturating_sub(bytes);
            state.first += 1;
        }
        Ok(())
    }

    fn state(&self, tx: &Transaction, map: &Map) -> Result<Option<StoredKept>> {
        let row = tx.get_ref(&self.kept.rows, map.number().to_be_bytes())?;
        row.map(|row| decoded(&row)).transpose()
    }

    fn put_state(&self, tx: &mut Transaction, map: &Map, state: &StoredKept) -> Result<()> {
        tx.put(&self.kept.rows, map.number().to_be_bytes(), state.encode_to_vec())
    }

    fn ring(&mut self, tx: &mut Transaction, map: &Map) -> Result<()> {
        let id = map.number();
        if !self.sequences.contains_key(&id) {
            if self.sequences.len() >= HANDLES_MAX {
                self.sequences.clear();
            }
            self.sequences.insert(id, self.kept.sequence(map)?);
        }
        tx.ring(&self.sequences[&id]);
        Ok(())
    }
}

fn row(map: u32, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&map.to_be_bytes());
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

/// What a change takes in the limit of bytes.
fn bytes_of(change: &[u8]) -> u64 {
    (size_of_val(&row(0, 0)) + change.len()) as u64
}

/// A row that cannot be read must not count as an empty one: the next change would be written over the first.
fn decoded<M: Message + Default>(row: &[u8]) -> Result<M> {
    M::decode(row).map_err(|error| {
        let what = format!("a row of the changes that a map keeps cannot be read ({error}); run `duramen check`");
        duramen::Reason::Damaged(what).into()
    })
}

fn get(tx: &Transaction, map: &Map, key: &[u8]) -> Result<Option<Bytes>> {
    let value = tx.get_ref(map, key)?;
    Ok(value.map(|value| Bytes::copy_from_slice(&value)))
}

fn check_value(map: &Map, bytes: usize) -> std::result::Result<(), Stopped> {
    if bytes <= KEPT_VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the map {:?} keeps its changes, so its values have at most {KEPT_VALUE_BYTES_MAX} bytes, and this one has \
         {bytes}; store it in another map",
        map.name()
    );
    Err(refused(Code::InvalidArgument, "VALUE_TOO_LONG", message).into())
}

fn too_many(map: &str) -> duramen_proto::command::Refusal {
    let message = format!(
        "the map {map:?} keeps its changes, and the range has more than {DELETED_PAIRS_MAX} pairs or {DELETED_BYTES_MAX} \
         bytes of values; delete it in smaller ranges"
    );
    refused(Code::FailedPrecondition, "RANGE_TOO_LARGE", message)
}

/// The refusal of what needs a map that keeps its changes.
pub(crate) fn keeps_none(map: &str) -> duramen_proto::command::Refusal {
    let message = format!("the map {map:?} keeps no changes; create a map with keep_changes, and copy the pairs there");
    refused(Code::FailedPrecondition, "KEEPS_NO_CHANGES", message)
}
