//! Sequences: appends that carry time and place, for layers above the engine that keep messages.
//!
//! A sequence is a prefix in a map of *heads*. An append stores a head under the prefix and the next number, and may
//! store a *body* under the same key in a second map, for what is too long for a record. Number, time and position are
//! filled in under the commit lock, as numbers of ordinary appends are: so appends never conflict, numbers have no
//! gaps, and neither time nor position runs back. All of it is stored as ordinary puts.
//!
//! ```text
//! counter  8  number of the next append, big-endian
//!          8  time of the newest append, milliseconds since 1970
//!          8  bytes of all appends so far
//! head     8  its time                                       filled in at commit
//!          8  bytes of all appends before it                 filled in at commit
//!          .. what the layer above put there
//! ```
//!
//! A sequence exists while its counter does: transactions begin and end it. An append to a sequence that does not exist
//! fails at commit.

use std::sync::{Arc, OnceLock};

use crate::api::batch::{pages_of, stored};
use crate::api::future::CommitFuture;
use crate::api::map::{Map, check_value};
use crate::api::snapshot::Snapshot;
use crate::api::store::{Store, with_draft};
use crate::btree::Extent;
use crate::commit::Commit;
use crate::commit::draft::{Draft, counter_of};
use crate::commit::exclusive::NOT_EXCLUSIVE;
use crate::commit::sequence_state::Place;
pub use crate::commit::sequence_state::{STAMP_BYTES, SequenceState, Stamp};
use crate::core::Core;
use crate::core::bell::Bell;
use crate::error::{Error, Result};
use crate::index::KeptFingers;
use crate::limits::LOGGED_VALUE_BYTES_MAX;
use crate::log::OperationKind;
use crate::settings::Durability;

/// What a transaction or a batch appended; it knows its place once that is committed.
#[derive(Clone, Debug, Default)]
pub struct Ticket {
    stamp: Arc<OnceLock<Stamp>>,
}

impl Ticket {
    /// What the commit assigned; `None` before it, and if there was none.
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp.get().copied()
    }

    pub(crate) fn resolve(&self, stamp: Stamp) {
        self.stamp.set(stamp).expect("what is appended is committed once");
    }
}

/// What is appended.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// [`STAMP_BYTES`] that the commit fills in, and what belongs to them.
    pub head: &'a [u8],
    /// What is too long for a record.
    pub body: Option<&'a [u8]>,
}

impl Item<'_> {
    pub(crate) fn bytes(&self) -> u64 {
        (self.head.len() + self.body.map_or(0, <[u8]>::len)) as u64
    }
}

/// Refuses what cannot be appended.
pub(crate) fn check_item(item: &Item<'_>) -> Result<()> {
    assert!(item.head.len() >= STAMP_BYTES, "a head begins with room for its stamp");
    assert!(item.head.len() <= LOGGED_VALUE_BYTES_MAX, "a head goes into a record");
    item.body.map_or(Ok(()), check_value)
}

/// A body as it goes into a record.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) map: u32,
    pub(crate) kind: OperationKind,
    pub(crate) value: Vec<u8>,
}

impl Body {
    pub(crate) fn as_put(&self) -> (u32, OperationKind, &[u8]) {
        (self.map, self.kind, &self.value)
    }
}

/// A handle of a sequence.
#[derive(Clone, Debug)]
pub struct Sequence {
    heads: Map,
    bodies: Map,
    place: Arc<Place>,
}

impl Sequence {
    /// The sequence of a prefix, whether it has begun or not. `name` is for messages.
    ///
    /// # Errors
    /// [`crate::Reason::KeyTooLong`].
    pub fn new(heads: &Map, bodies: &Map, prefix: &[u8], name: &str) -> Result<Sequence> {
        Sequence::with(heads, bodies, prefix, name, false)
    }

    /// A sequence whose rings count whether or not any process listens, so that [`Store::rings`] tells of every commit
    /// that appends to it. Every such commit writes to memory that all processes share.
    ///
    /// # Errors
    /// As [`Sequence::new`].
    pub fn counted(heads: &Map, bodies: &Map, prefix: &[u8], name: &str) -> Result<Sequence> {
        Sequence::with(heads, bodies, prefix, name, true)
    }

    fn with(heads: &Map, bodies: &Map, prefix: &[u8], name: &str, is_counted: bool) -> Result<Sequence> {
        let counter = counter_of(heads.info.id, prefix)?;
        let place = Place {
            prefix: prefix.into(),
            bell: heads.store.core().bells.bell(&counter, name, is_counted),
            counter: counter.to_vec().into(),
            fingers: KeptFingers::default(),
        };
        Ok(Sequence {
            heads: heads.clone(),
            bodies: bodies.clone(),
            place: Arc::new(place),
        })
    }

    /// The map of the heads.
    pub fn heads(&self) -> &Map {
        &self.heads
    }

    /// The map of the bodies.
    pub fn bodies(&self) -> &Map {
        &self.bodies
    }

    /// What stands in front of the number in every key.
    pub fn prefix(&self) -> &[u8] {
        &self.place.prefix
    }

    /// What every append rings.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.place.bell
    }

    /// The store it is in.
    pub fn store(&self) -> &Store {
        &self.heads.store
    }

    /// Full key of its counter.
    pub(crate) fn counter(&self) -> &[u8] {
        &self.place.counter
    }

    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Appends items in one commit, one after the other, and returns what the first of them got.
    ///
    /// # Errors
    /// [`crate::Reason::TopicDeleted`], and those of a commit.
    pub fn append(&self, items: &[Item<'_>], durability: Durability) -> Result<Stamp> {
        let (stamp, commit) = self.append_written(items, durability)?;
        if durability == Durability::Synced {
            self.store().core().wait_durable(commit.number())?;
        }
        Ok(stamp)
    }

    /// Appends items as [`Sequence::append`] does. The future resolves when they are durable.
    ///
    /// # Errors
    /// As [`Sequence::append`], but for what comes up while syncing: that is the future's.
    pub fn append_async(&self, items: &[Item<'_>], durability: Durability) -> Result<(Stamp, CommitFuture)> {
        let (stamp, commit) = self.append_written(items, durability)?;
        Ok((stamp, CommitFuture::new(self.store().handle(), commit, durability)))
    }

    fn append_written(&self, items: &[Item<'_>], durability: Durability) -> Result<(Stamp, Commit)> {
        assert!(!items.is_empty(), "there is something to append");
        let core = self.store().core();
        core.writable()?;
        core.refuse_beside("topic.publish", || self.place.bell.name().into())?;
        let mut extents = Vec::new();
        let appended = with_draft(|draft| {
            let values = core.value_durability(durability);
            draft.values_may_tear(values == Durability::Written);
            draft.needs(&self.heads.info);
            draft.needs(&self.bodies.info);
            items
                .iter()
                .try_for_each(|item| self.draft(draft, item, &mut extents))?;
            if !extents.is_empty() {
                core.ready_values(pages_of(&extents), values)?;
            }
            let number = core.append(draft, None, NOT_EXCLUSIVE)?;
            let assigned = Vec::new();
            Ok((draft.heads[0].stamp, Commit { number, assigned }))
        });
        if appended
            .as_ref()
            .is_err_and(|error: &Error| !error.is_of_a_made_commit())
        {
            core.give_back_values(&extents);
        }
        appended
    }

    fn draft(&self, draft: &mut Draft, item: &Item<'_>, extents: &mut Vec<Extent>) -> Result<()> {
        check_item(item)?;
        let head = (self.heads.info.id, item.head);
        let body = item.body.map(|body| (self.bodies.info.id, body));
        draft_item(self.store().core(), draft, &self.place, head, body, extents)
    }
}

/// Adds an append to a draft. Head and body come with the ids of their maps.
pub(crate) fn draft_item(
    core: &Core,
    draft: &mut Draft,
    place: &Arc<Place>,
    head: (u32, &[u8]),
    body: Option<(u32, &[u8])>,
    extents: &mut Vec<Extent>,
) -> Result<()> {
    let bytes = head.1.len() + body.map_or(0, |(_, body)| body.len());
    let body = body.map(|(map, body)| stored(core, body, extents).map(|(kind, value)| (map, kind, value)));
    let body = body.transpose()?;
    let body = body.as_ref().map(|(map, kind, value)| (*map, *kind, &**value));
    draft.push_numbered(place, head, body, bytes as u64, core.hash_seed)
}

impl Snapshot {
    /// How far a sequence has come; `None`: it has not begun, or has ended.
    #[doc(hidden)]
    pub fn sequence_state(&self, sequence: &Sequence) -> Result<Option<SequenceState>> {
        let held = self.get_full(&sequence.heads, sequence.counter())?;
        held.map(|held| SequenceState::decode(&held)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::sequence_state::STATE_BYTES;

    #[test]
    fn a_counter_of_another_length_is_damage() {
        let state = SequenceState {
            next: 7,
            time: 8,
            bytes: 9,
        };
        assert_eq!(SequenceState::decode(&state.encode()).unwrap(), state);
        for length in (0..STATE_BYTES).chain([STATE_BYTES + 1]) {
            assert!(SequenceState::decode(&vec![1; length]).is_err(), "{length}");
        }
    }
}
