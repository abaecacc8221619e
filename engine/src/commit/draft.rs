//! A commit being put together: the encoded body of its record, and what the commit lock's holder still has to fill in
//! (numbers of appends, sums of additions). Made outside the lock by `map`, `batch` and `transaction`; written by
//! `commit`.

use std::sync::Arc;

use crate::btree::Stored;
use crate::checksum::key_hash;
use crate::commit::sequence_state::{Place, SequenceState, Stamp};
use crate::core::bell::Bell;
use crate::core::catalog::MapInfo;
use crate::error::Result;
use crate::index::{Finger, Fingers};
use crate::key::full_key::{CATALOG, COUNTERS, FullKey, check_key_bytes, check_prefix};
use crate::log::{Body, Operation, OperationKind};
use crate::log::{FoldCosts, fold_costs};

/// Bytes of the number at the end of the key of an append.
const NUMBER_BYTES: usize = 8;

/// Bytes of a body, and operations, up to which the memory of a draft is kept for the next one: beside a larger commit
/// it does not count what asking for memory costs.
const BODY_BYTES_KEPT: usize = 1 << 20;
const OPERATIONS_KEPT: usize = 16 << 10;

/// A commit being put together.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) body: Body,
    pub(crate) planned: Vec<Planned>,
    pub(crate) appends: Vec<Append>,
    pub(crate) sequences: Vec<Numbering>,
    /// Appends to them, in the order of the calls.
    pub(crate) heads: Vec<Head>,
    pub(crate) adds: Vec<Add>,
    pub(crate) maps: Vec<Arc<MapInfo>>,
    /// Maps that the commit makes and drops, and new names it gives.
    pub(crate) created: Vec<u32>,
    pub(crate) dropped: Vec<u32>,
    pub(crate) renamed: Vec<(u32, String)>,
    /// Bells that ring beside those of the sequences that are appended to.
    pub(crate) rung: Vec<Arc<Bell>>,
    pub(crate) assigned: Vec<u64>,
    /// The requested time of the commit, instead of the clock's, in microseconds since 1970.
    pub(crate) time: Option<u64>,
    pub(crate) adds_anything: bool,
    /// Runs that it attaches.
    pub(crate) runs: u64,
    /// Whether it restores a checkpoint.
    pub(crate) restores: bool,
    /// Whether it makes a checkpoint: its record must be the first one of its generation.
    pub(crate) makes_checkpoint: bool,
    /// What folding the draft takes beyond what its operations and bytes say; see [`fold_costs`].
    pub(crate) costs: FoldCosts,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Position of the operation in the body.
    pub(crate) position: u32,
    pub(crate) hash: u64,
    /// The kind of what is not about one key.
    pub(crate) note: Option<OperationKind>,
    /// Whether the commit conflicts with changes of the key since its transaction began.
    pub(crate) is_checked: bool,
    /// Which finger may lead to the key.
    pub(crate) near: Near,
}

impl Planned {
    fn at(position: u32, hash: u64) -> Planned {
        Planned {
            position,
            hash,
            note: None,
            is_checked: false,
            near: Near::Nothing,
        }
    }
}

/// Which finger may lead to a key. The number is that of a sequence of the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Near {
    Nothing,
    Counter(u8),
    Head(u8),
}

/// Appends of one prefix: the operations whose keys end in the assigned number, and the counter.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) counter: Vec<u8>,
    /// Index of the counter's operation in `planned`, then of the others, with their places in `assigned`.
    pub(crate) counter_operation: usize,
    pub(crate) operations: Vec<(usize, usize)>,
}

/// A sequence that is appended to.
#[derive(Debug)]
pub(crate) struct Numbering {
    pub(crate) place: Arc<Place>,
    pub(crate) counter_operation: usize,
    /// How far it has come, as the commit finds it and counts on.
    pub(crate) state: SequenceState,
    /// Where its rows belong, as the commit finds it and goes on.
    pub(crate) fingers: Fingers,
}

/// An append to a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Which one of the draft.
    pub(crate) sequence: usize,
    pub(crate) operation: usize,
    /// The operation whose key ends in the same number, if there is one.
    pub(crate) body: Option<usize>,
    /// Bytes of both.
    pub(crate) bytes: u64,
    /// What the commit gave it.
    pub(crate) stamp: Stamp,
}

/// An addition: the value of the planned operation is filled in under the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Add {
    pub(crate) operation: usize,
    pub(crate) delta: i64,
    pub(crate) base: AddTo,
}

/// What an addition adds to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddTo {
    /// What the store holds when the commit is made.
    Newest,
    /// What an earlier operation of the same draft leaves.
    Operation(usize),
    /// Nothing: the draft deletes a range that holds the key.
    Nothing,
}

impl Default for Draft {
    fn default() -> Draft {
        Draft::new()
    }
}

impl Draft {
    pub(crate) fn new() -> Draft {
        Draft {
            body: Body::new(),
            planned: Vec::new(),
            appends: Vec::new(),
            sequences: Vec::new(),
            heads: Vec::new(),
            adds: Vec::new(),
            maps: Vec::new(),
            created: Vec::new(),
            dropped: Vec::new(),
            renamed: Vec::new(),
            rung: Vec::new(),
            assigned: Vec::new(),
            time: None,
            adds_anything: false,
            runs: 0,
            restores: false,
            makes_checkpoint: false,
            costs: FoldCosts::default(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.body.clear();
        self.planned.clear();
        self.appends.clear();
        self.sequences.clear();
        self.heads.clear();
        self.adds.clear();
        self.maps.clear();
        self.created.clear();
        self.dropped.clear();
        self.renamed.clear();
        self.rung.clear();
        self.assigned.clear();
        self.time = None;
        self.adds_anything = false;
        self.runs = 0;
        self.restores = false;
        self.makes_checkpoint = false;
        self.costs = FoldCosts::default();
    }

    /// Whether its commit may fold to make room. A commit that restores has folded, and has the maintenance lock.
    pub(crate) fn may_fold(&self) -> bool {
        !self.restores
    }

    /// Whether it has too much memory to keep for the next draft.
    pub(crate) fn is_large(&self) -> bool {
        let operations = [
            self.planned.capacity(),
            self.appends.capacity(),
            self.sequences.capacity(),
            self.heads.capacity(),
            self.adds.capacity(),
            self.maps.capacity(),
            self.assigned.capacity(),
        ];
        self.body.capacity() > BODY_BYTES_KEPT || operations.iter().any(|&capacity| capacity > OPERATIONS_KEPT)
    }

    /// Says whether values and runs that the operations that follow refer to are synced only after the record is
    /// written.
    pub(crate) fn values_may_tear(&mut self, may_tear: bool) {
        self.body.values_may_tear = may_tear;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// Adds a put, delete or put of an extent. Returns its index.
    pub(crate) fn push(&mut self, kind: OperationKind, full_key: &[u8], value: &[u8], seed: u64) -> usize {
        let position = self.body.push(kind, full_key, value) as u32;
        let hash = key_hash(seed, full_key);
        self.planned.push(Planned::at(position, hash));
        self.costs += fold_costs(kind, value);
        self.adds_anything |= kind != OperationKind::Delete;
        self.planned.len() - 1
    }

    /// Adds what is not about one key; these come before all single operations.
    pub(crate) fn push_note(&mut self, kind: OperationKind, low: &[u8], value: &[u8]) {
        let position = self.body.push(kind, low, value) as u32;
        self.planned.push(Planned {
            note: Some(kind),
            ..Planned::at(position, 0)
        });
        self.costs += fold_costs(kind, value);
        let is_restore = kind == OperationKind::Restore;
        let is_tree = is_restore || kind == OperationKind::Run;
        self.restores |= is_restore;
        self.makes_checkpoint |= kind == OperationKind::Checkpoint;
        self.adds_anything |= is_tree || self.makes_checkpoint;
        self.runs += u64::from(is_tree);
    }

    /// Adds an append: `prefix` is a full key to which the commit adds a number.
    pub(crate) fn push_append(&mut self, map: u32, prefix: &[u8], kind: OperationKind, value: &[u8]) -> Result<()> {
        let counter = counter_of(map, prefix)?;
        let full = FullKey::new(map, &[prefix, &[0; NUMBER_BYTES]].concat())?;
        let position = self.body.push(kind, &full, value) as u32;
        self.planned.push(Planned::at(position, 0));
        let operation = self.planned.len() - 1;
        let place = self.assigned.len();
        self.assigned.push(0);
        self.costs += fold_costs(kind, value);
        self.adds_anything = true;
        match self.appends.iter_mut().find(|append| append.counter[..] == counter[..]) {
            Some(append) => append.operations.push((operation, place)),
            None => {
                let position = self.body.push(OperationKind::Put, &counter, &[0; 8]) as u32;
                self.planned.push(Planned::at(position, 0));
                self.appends.push(Append {
                    counter: counter.to_vec(),
                    counter_operation: self.planned.len() - 1,
                    operations: vec![(operation, place)],
                });
            }
        }
        Ok(())
    }

    /// Adds an append to a sequence: a head, whose first bytes the commit fills in, and what is too long for it.
    pub(crate) fn push_numbered(
        &mut self,
        place: &Arc<Place>,
        (map, head): (u32, &[u8]),
        body: Option<(u32, OperationKind, &[u8])>,
        bytes: u64,
        seed: u64,
    ) -> Result<()> {
        let operation = self.push_unnumbered(map, &place.prefix, OperationKind::Put, head)?;
        let body = body.map(|(map, kind, value)| self.push_unnumbered(map, &place.prefix, kind, value));
        let body = body.transpose()?;
        let sequence = self.sequence(place, seed);
        self.planned[operation].near = u8::try_from(sequence).map_or(Near::Nothing, Near::Head);
        self.heads.push(Head {
            sequence,
            operation,
            body,
            bytes,
            stamp: Stamp::default(),
        });
        Ok(())
    }

    /// Adds a put whose key ends in a number that is filled in later. Returns its index.
    fn push_unnumbered(&mut self, map: u32, prefix: &[u8], kind: OperationKind, value: &[u8]) -> Result<usize> {
        check_key_bytes(prefix.len() + NUMBER_BYTES)?;
        let key = [&map.to_be_bytes(), prefix, &[0; NUMBER_BYTES]];
        let position = self.body.push_joined(kind, key, value) as u32;
        self.planned.push(Planned::at(position, 0));
        self.costs += fold_costs(kind, value);
        self.adds_anything = true;
        Ok(self.planned.len() - 1)
    }

    /// The sequence of a place, with the operation of its counter, which the draft has once.
    fn sequence(&mut self, place: &Arc<Place>, seed: u64) -> usize {
        let is_it = |known: &Numbering| Arc::ptr_eq(&known.place.bell, &place.bell);
        // The one of the append before, nearly always.
        if let Some(sequence) = self.sequences.iter().rposition(is_it) {
            return sequence;
        }
        let state = SequenceState::default();
        let counter_operation = self.push(OperationKind::Put, &place.counter, &state.encode(), seed);
        let sequence = self.sequences.len();
        self.planned[counter_operation].near = u8::try_from(sequence).map_or(Near::Nothing, Near::Counter);
        self.sequences.push(Numbering {
            place: place.clone(),
            counter_operation,
            state,
            fingers: Fingers::NONE,
        });
        sequence
    }

    /// The finger that may lead to the key of an operation, to be read and replaced.
    #[inline]
    pub(crate) fn finger(&mut self, near: Near) -> Option<&mut Finger> {
        match near {
            Near::Nothing => None,
            Near::Counter(sequence) => Some(&mut self.sequences[sequence as usize].fingers.counter),
            Near::Head(sequence) => Some(&mut self.sequences[sequence as usize].fingers.head),
        }
    }

    /// What appends to sequences got, in the order of the calls.
    pub(crate) fn stamps(&self) -> impl Iterator<Item = Stamp> {
        self.heads.iter().map(|head| head.stamp)
    }

    /// Tells those who wait for appends to the sequences of the draft, which is committed: those in this process, and
    /// by `elsewhere`, which gets the bell of each sequence, those in others.
    #[inline]
    pub(crate) fn ring(&self, elsewhere: impl Fn(&Bell)) {
        let appended = self.sequences.iter().map(|sequence| &sequence.place.bell);
        appended.chain(&self.rung).for_each(|bell| {
            bell.ring();
            elsewhere(bell);
        });
    }

    /// Adds an addition to a counter. Returns its index.
    pub(crate) fn push_add(&mut self, full_key: &[u8], delta: i64, base: AddTo, seed: u64) -> usize {
        let operation = self.push(OperationKind::Put, full_key, &[0; 8], seed);
        self.adds.push(Add { operation, delta, base });
        operation
    }

    /// The sum that the commit computed for its first addition.
    pub(crate) fn first_sum(&self) -> i64 {
        let operation = self.adds[0].operation;
        let start = self.planned[operation].position as usize + 8 + self.full_key(operation).len();
        i64::from_be_bytes(self.body.body()[start..start + 8].try_into().expect("eight bytes"))
    }

    /// What folding the draft takes.
    pub(crate) fn fold_costs(&self) -> FoldCosts {
        FoldCosts {
            operations: self.costs.operations + self.planned.len() as u64,
            bytes: self.costs.bytes + self.body.len() as u64,
            value_pages: self.costs.value_pages,
        }
    }

    /// The numbers that the commit assigned.
    pub(crate) fn assigned(&self) -> &[u64] {
        &self.assigned
    }

    /// Remembers that the commit needs this map to exist.
    pub(crate) fn needs(&mut self, map: &Arc<MapInfo>) {
        // From the end: it is the map of the operation before, nearly always.
        if !self.maps.iter().rev().any(|known| Arc::ptr_eq(known, map)) {
            self.maps.push(map.clone());
        }
    }

    pub(crate) fn full_key(&self, operation: usize) -> &[u8] {
        let body = &self.body.body()[self.planned[operation].position as usize..];
        &body[8..12 + u16::from_le_bytes([body[2], body[3]]) as usize]
    }

    /// Kind and value of an operation.
    pub(crate) fn operation(&self, operation: usize) -> (OperationKind, &[u8]) {
        let body = &self.body.body()[self.planned[operation].position as usize..];
        let (operation, _) = Operation::decode(body).expect("the draft encoded it itself");
        (operation.kind, operation.value)
    }

    /// What an operation, which is a put or delete, leaves at its key.
    pub(crate) fn stored(&self, operation: usize) -> Result<Stored<'_>> {
        let body = &self.body.body()[self.planned[operation].position as usize..];
        Ok(Operation::decode(body)?.0.stored())
    }

    /// The eight bytes at the end of an operation's key.
    pub(crate) fn set_key_end(&mut self, operation: usize, number: u64, seed: u64) {
        let start = self.planned[operation].position as usize;
        let end = start + 8 + self.full_key(operation).len();
        self.body.body_mut()[end - 8..end].copy_from_slice(&number.to_be_bytes());
        self.planned[operation].hash = key_hash(seed, self.full_key(operation));
    }

    /// The first bytes of an operation's value.
    pub(crate) fn set_value<const N: usize>(&mut self, operation: usize, value: [u8; N]) {
        let start = self.planned[operation].position as usize + 8 + self.full_key(operation).len();
        self.body.body_mut()[start..start + N].copy_from_slice(&value);
    }

    pub(crate) fn rehash(&mut self, operation: usize, seed: u64) {
        self.planned[operation].hash = key_hash(seed, self.full_key(operation));
    }
}

/// Key of the first number of a map that was dropped and came back with a restore, for prefixes without a counter.
pub(crate) fn first_number_key(map: u32) -> Result<FullKey> {
    FullKey::new(COUNTERS, &[CATALOG.to_be_bytes(), map.to_be_bytes()].concat())
}

/// The key of the counter of a prefix.
pub(crate) fn counter_of(map: u32, prefix: &[u8]) -> Result<FullKey> {
    check_prefix(prefix)?;
    FullKey::new(COUNTERS, &[&map.to_be_bytes(), prefix].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::store::with_draft;

    fn kept() -> [usize; 2] {
        with_draft(|draft| [draft.body.capacity(), draft.planned.capacity()])
    }

    #[test]
    fn memory_of_a_large_commit_is_not_kept() {
        let put = |draft: &mut Draft, length| {
            draft.push(OperationKind::Put, b"\0\0\0\x09key", &vec![7; length], 1);
        };
        with_draft(|draft| put(draft, BODY_BYTES_KEPT / 4));
        assert!(kept()[0] >= BODY_BYTES_KEPT / 4, "the next one uses it again");
        with_draft(|draft| put(draft, BODY_BYTES_KEPT));
        assert!(kept()[0] < 1_000, "a body that is too large");
        with_draft(|draft| (0..=OPERATIONS_KEPT).for_each(|_| put(draft, 0)));
        assert!(kept()[1] <= OPERATIONS_KEPT, "too many operations");
    }
}
