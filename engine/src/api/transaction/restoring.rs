//! The transaction that puts a store back to a checkpoint.
//!
//! The simple version: it deletes everything, and brings the tree of the checkpoint as a run. Reads, conflicts, recovery and
//! other processes take it as such. The fold does not copy the run: it takes the tree for its base.
//!
//! What must never run back is written on top: numbers that were assigned since the checkpoint, by the engine here and by the
//! layers above in a closure of theirs. How far a counter came that was deleted since is not known: it leaps.

use std::collections::BTreeSet;

use crate::api::map::counters_of;
use crate::api::snapshot::Snapshot;
use crate::api::store::Store;
use crate::api::transaction::{Transaction, TransactionOptions};
use crate::commit::draft::{Draft, first_number_key};
use crate::commit::sequence_state::{STATE_BYTES, SequenceState};
use crate::core::catalog::map_id;
use crate::datafile::register::Kept;
use crate::error::{Error, Reason, Result};
use crate::key::full_key::{CATALOG, COUNTERS, FullKey, FullRange, split};
use crate::log::{OperationKind, checkpoint_key, encode_root};
use crate::map_name::{is_reserved, user_name};
use crate::read::write_set::{OwnWrites, Written};

/// By how much a number leaps that was deleted since the checkpoint, at the first restore of a store: more were hardly assigned.
/// It leaps further at each later one, because the same number may have been deleted before.
const LEAP: u64 = 1 << 32;

impl Store {
    /// Puts the store back to a checkpoint, in one commit, whose number it returns. The commit survives power loss when the call
    /// returns. From it on, all handles of the store that were opened before are refused, with [`Reason::Restored`], in all processes. Snapshots
    /// that are open go on to show what they showed.
    ///
    /// `layers` names the reserved maps that the caller knows. `keep` writes on top what must not run back in these: the
    /// transaction shows the present, and the snapshot the checkpoint. It may put and delete single keys.
    ///
    /// # Errors
    /// [`Reason::UnknownCheckpoint`]; [`Reason::InvalidArgument`], if a reserved map is not in `layers`; those of a fold and of
    /// a commit.
    #[doc(hidden)]
    pub fn restore_checkpoint(
        &self,
        name: &str,
        layers: &[&str],
        keep: impl FnOnce(&Snapshot, &mut Transaction) -> Result<()>,
    ) -> Result<u64> {
        let core = self.core();
        core.refuse_beside("checkpoints().restore", || name.to_string())?;
        // A run beside that of the checkpoint would be one too many.
        let options = TransactionOptions::new().exclusive().memory_bytes(usize::MAX);
        let mut tx = Transaction::begin(self, options)?;
        let restored = Snapshot::of_checkpoint(self, name)?;
        tx.keep_numbers(&restored, layers)?;
        keep(&restored, &mut tx)?;
        core.restore(name, |kept| {
            tx.restores = Some(kept.clone());
            let commit = tx.append_all()?;
            // The pins of both hold what the fold will retire.
            drop(tx);
            drop(restored);
            Ok(commit.number())
        })
    }
}

impl Transaction {
    /// Writes the numbers that were assigned since a checkpoint, and keeps the maps of layers above the engine.
    fn keep_numbers(&mut self, restored: &Snapshot, layers: &[&str]) -> Result<()> {
        let mut writes: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let old = restored.pinned().view();
        let (leap, mut present) = (self.leap()?, BTreeSet::new());
        let mut maps: BTreeSet<u32> = restored.map_names()?.into_keys().collect();
        let mut names = self.pinned.scan(OwnWrites::default(), FullRange::map(CATALOG));
        while let Some((key, id)) = names.next_pair()? {
            let name = String::from_utf8_lossy(split(key).1).into_owned();
            present.insert(map_id(&id)?);
            if !is_reserved(&name) {
                continue;
            }
            if !layers.contains(&user_name(&name)) {
                let cause = format!(
                    "the store has data of a server ({:?}), which this call cannot put back; use `duramen checkpoint restore`",
                    user_name(&name)
                );
                return Err(Reason::InvalidArgument(cause).into());
            }
            maps.insert(map_id(&id)?);
            if old.get(&FullKey::new(CATALOG, name.as_bytes())?)?.is_none() {
                writes.push((key.to_vec(), id.to_vec()));
            }
        }
        let leaps = |map: u32, writes: &mut Vec<(Vec<u8>, Vec<u8>)>| -> Result<()> {
            let mut before = restored.pinned().scan(OwnWrites::default(), counters_of(map)?);
            while let Some((key, value)) = before.next_pair()? {
                if self.pinned.view().get(key)?.is_none() {
                    writes.push((key.to_vec(), after_leap(&value, leap)?));
                }
            }
            Ok(())
        };
        maps.iter().try_for_each(|&map| leaps(map, &mut writes))?;
        // What is kept here of maps and of restores stays.
        let mut dropped = maps.clone();
        dropped.retain(|map| !present.contains(map));
        maps.insert(CATALOG);
        let mut counters = self.pinned.scan(OwnWrites::default(), FullRange::map(COUNTERS));
        while let Some((key, now)) = counters.next_pair()? {
            let map = split(key).1.first_chunk().map(|id| u32::from_be_bytes(*id));
            if map.is_none_or(|map| !maps.contains(&map)) {
                // The map was made after the checkpoint.
                continue;
            }
            let before = old.get(&FullKey::new(COUNTERS, split(key).1)?)?;
            let kept = later_counter(before.as_deref(), &now)?;
            if before.as_deref() != Some(&kept[..]) {
                writes.push((key.to_vec(), kept));
            }
        }
        drop((names, counters));
        for map in dropped {
            writes.push((first_number_key(map)?.to_vec(), leap.to_be_bytes().to_vec()));
        }
        writes.push((restores_key()?.to_vec(), (leap / LEAP).to_be_bytes().to_vec()));
        writes
            .iter()
            .try_for_each(|(key, value)| self.write(key, Written::Put(value)))
    }

    /// By how much a number leaps that was deleted since the checkpoint, when this transaction restores that.
    #[doc(hidden)]
    pub fn leap(&self) -> Result<u64> {
        let restores = self.pinned.view().get(&restores_key()?)?;
        let restores = restores.map_or(Ok(0), |restores| number(&restores))?;
        Ok(LEAP.saturating_mul(restores + 1))
    }

    /// The operations that replace everything by the checkpoint that is restored.
    pub(super) fn draft_restore(&self, draft: &mut Draft) {
        if let Some(Kept { id, root, .. }) = self.restores {
            let all = FullRange::from_map(CATALOG);
            draft.push_note(OperationKind::DeleteRange, &all.low, &all.high);
            draft.push_note(OperationKind::Restore, &checkpoint_key(id), &encode_root(root));
        }
    }
}

/// A counter as it was at a checkpoint, far above what can have been assigned since.
fn after_leap(counter: &[u8], leap: u64) -> Result<Vec<u8>> {
    let mut counter = counter.to_vec();
    let next = counter.first_chunk_mut().ok_or_else(wrong_length)?;
    *next = u64::from_be_bytes(*next).saturating_add(leap).to_be_bytes();
    Ok(counter)
}

/// Key of how often the store was restored. The catalog has no counters of its own.
fn restores_key() -> Result<FullKey> {
    FullKey::new(COUNTERS, &CATALOG.to_be_bytes())
}

fn number(bytes: &[u8]) -> Result<u64> {
    let number = bytes.first_chunk().ok_or_else(wrong_length)?;
    Ok(u64::from_be_bytes(*number))
}

fn wrong_length() -> Error {
    Error::damaged("a counter of appends has the wrong length")
}

/// A counter as it was at a checkpoint, with the next number of now.
fn later_counter(before: Option<&[u8]>, now: &[u8]) -> Result<Vec<u8>> {
    if now.len() != STATE_BYTES {
        let before = before.map_or(Ok(0), number)?;
        return Ok(number(now)?.max(before).to_be_bytes().to_vec());
    }
    let now = SequenceState::decode(now)?;
    let before = before.map_or(Ok(SequenceState::default()), SequenceState::decode)?;
    let kept = SequenceState {
        next: now.next.max(before.next),
        time: now.time.max(before.time),
        // Those of what is there.
        bytes: before.bytes,
    };
    Ok(kept.encode().to_vec())
}
