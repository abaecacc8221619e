//! What the crate `topic` needs of a transaction: appending to sequences, and depending on single rows.

use std::time::Duration;

use super::{APPEND_BYTES, Append, AppendTo, Numbered, Transaction, appended_bytes};
use crate::api::batch::stored;
use crate::api::map::Map;
use crate::api::sequence::{Body, Item, Sequence, SequenceState, Ticket, check_item};
use crate::error::Result;
use crate::key::bounds::KeyBounds;
use crate::key::full_key::{FullKey, FullRange};
use crate::limits::LOGGED_VALUE_BYTES_MAX;
use crate::log::OperationKind;
use crate::read::write_set::Written;

impl Transaction {
    /// Appends to a sequence; the ticket knows the number once the transaction has committed. It never conflicts, and
    /// the transaction itself cannot read it.
    #[doc(hidden)]
    pub fn append_to(&mut self, sequence: &Sequence, item: Item<'_>) -> Result<Ticket> {
        check_item(&item)?;
        let map = self.needs(sequence.heads())?;
        let bodies = self.needs(sequence.bodies())?;
        let body_bytes = item
            .body
            .map_or(0, |body| body.len().min(LOGGED_VALUE_BYTES_MAX) + APPEND_BYTES);
        self.check_resolved(appended_bytes(sequence.prefix().len(), item.head.len()) + body_bytes)?;
        let mut extents = Vec::new();
        let body = match item.body {
            Some(body) => {
                let (kind, value) = stored(self.core(), body, &mut extents)?;
                let value = value.into_owned();
                Some(Body {
                    map: bodies,
                    kind,
                    value,
                })
            }
            None => None,
        };
        self.work.extents.extend(extents);
        let ticket = Ticket::default();
        let numbered = Numbered {
            place: sequence.place().clone(),
            body,
            bytes: item.bytes(),
            ticket: ticket.clone(),
        };
        self.push_append(map, OperationKind::Put, item.head, AppendTo::Sequence(numbered));
        Ok(ticket)
    }

    /// Lets the commit conflict with any change in a range since the transaction began, as if it wrote there. What a
    /// serialisable transaction does for all that it reads, this does for what cannot be true together with its writes.
    #[doc(hidden)]
    pub fn depends_on(&mut self, map: &Map, range: impl KeyBounds) -> Result<()> {
        self.pinned.alive()?;
        self.work
            .needed
            .push(FullRange::of(map.id_in(self.pinned.core())?, range)?);
        Ok(())
    }

    /// Requires that one key does not change before the commit.
    #[doc(hidden)]
    pub fn depends_on_key(&mut self, map: &Map, key: &[u8]) -> Result<()> {
        self.pinned.alive()?;
        let key = FullKey::new(map.id_in(self.pinned.core())?, key)?;
        self.work.needed_keys.push(key.to_vec());
        Ok(())
    }

    /// The time that the commit will have, since 1970: the requested time, or that of the clock.
    #[doc(hidden)]
    pub fn wall_clock(&self) -> Duration {
        self.commit_time
            .map_or_else(|| self.core().platform.clock.wall(), Duration::from_micros)
    }

    /// The time that deadlines are compared with, since 1970: the requested time, or that of the shared clock.
    #[doc(hidden)]
    pub fn shared_clock(&self) -> Duration {
        let clock = || self.core().shared_micros();
        Duration::from_micros(self.shared_time.unwrap_or_else(clock))
    }

    /// How many items this transaction has appended to all sequences.
    #[doc(hidden)]
    pub fn appended(&self) -> u64 {
        self.work.appends.len() as u64
    }

    /// How many items this transaction has appended to a sequence. The cost grows with its appends.
    #[doc(hidden)]
    pub fn appended_to(&self, sequence: &Sequence) -> u64 {
        let is_to = |append: &&Append| match &append.to {
            AppendTo::Sequence(numbered) => numbered.place.counter == sequence.place().counter,
            AppendTo::Prefix(_) => false,
        };
        self.work.appends.iter().filter(is_to).count() as u64
    }

    /// Begins a sequence. Appends to it are possible by transactions after this one.
    #[doc(hidden)]
    pub fn begin_sequence(&mut self, sequence: &Sequence) -> Result<()> {
        self.begin_sequence_at(sequence, SequenceState::default())
    }

    /// Begins a sequence that has come so far elsewhere: it goes on from there.
    #[doc(hidden)]
    pub fn begin_sequence_at(&mut self, sequence: &Sequence, state: SequenceState) -> Result<()> {
        self.needs(sequence.heads())?;
        self.write(sequence.counter(), Written::Put(&state.encode()))
    }

    /// Ends a sequence, with all that was appended to it. Later appends fail. The commit rings the sequence's bell.
    #[doc(hidden)]
    pub fn end_sequence(&mut self, sequence: &Sequence) -> Result<()> {
        for map in [sequence.heads(), sequence.bodies()] {
            let id = self.needs(map)?;
            self.delete_full_range(FullRange::prefix(id, sequence.prefix())?)?;
        }
        self.ring(sequence);
        self.write(sequence.counter(), Written::Delete)
    }

    /// Has the commit ring the bell of a sequence in all processes, as an append does.
    #[doc(hidden)]
    pub fn ring(&mut self, sequence: &Sequence) {
        self.work.rung.push(sequence.bell().clone());
    }

    /// How far a sequence has come; `None`: it has not begun, or has ended.
    #[doc(hidden)]
    pub fn sequence_state(&self, sequence: &Sequence) -> Result<Option<SequenceState>> {
        self.pinned.alive()?;
        let counter = sequence.counter();
        self.note_read(|reads| reads.key(counter))?;
        let held = self.read(counter)?;
        held.map(|held| SequenceState::decode(&held)).transpose()
    }
}
