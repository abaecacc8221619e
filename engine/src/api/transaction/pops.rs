//! Taking pairs from the ends of a map, again and again, in one transaction.
//!
//! The simple version: walk to the first pair, delete it, and remember that nothing lies before it.
//!
//! Why there is more to it: each walk begins with a search in the base and in everything above it. So a walk reads some
//! pairs ahead, twice as many as the walk before, and the next pops take those. Every other write of the transaction forgets
//! what was read ahead, because it may change what comes next.

use std::collections::VecDeque;

use super::Transaction;
use crate::api::map::Map;
use crate::api::snapshot::Cursor;
use crate::error::Result;
use crate::key::full_key::{FullKey, FullRange, successor};
use crate::read::value::Value;

/// Pairs that a walk reads, at most, and bytes after which it reads no more.
const PAIRS_MAX: usize = 64;
const BYTES_MAX: usize = 64 << 10;

/// Where a map ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    First,
    Last,
}

/// A key and its value, both with bytes of their own.
type Pair = (Vec<u8>, Value<'static>);

/// What was read ahead at the ends of one map.
#[derive(Debug)]
pub(super) struct Ahead {
    map: u32,
    first: AtEnd,
    last: AtEnd,
}

#[derive(Debug, Default)]
struct AtEnd {
    /// In the order in which they are popped.
    pairs: VecDeque<Pair>,
    /// Pairs that the next walk reads.
    count: usize,
    /// Full key that was popped last, if that is not yet known as a stretch in which nothing is. Empty: it is.
    popped: Vec<u8>,
}

impl Ahead {
    fn of(map: u32) -> Box<Ahead> {
        Box::new(Ahead {
            map,
            first: AtEnd::default(),
            last: AtEnd::default(),
        })
    }

    /// An end, and the other one.
    fn ends(&mut self, end: End) -> (&mut AtEnd, &mut AtEnd) {
        match end {
            End::First => (&mut self.first, &mut self.last),
            End::Last => (&mut self.last, &mut self.first),
        }
    }
}

impl AtEnd {
    /// Reads pairs from a cursor that stands at the end.
    fn fill(&mut self, cursor: &mut Cursor<'_>, end: End) -> Result<()> {
        self.count = (self.count * 2).clamp(1, PAIRS_MAX);
        let mut bytes = 0;
        while self.pairs.len() < self.count && bytes < BYTES_MAX {
            let next = match end {
                End::First => cursor.next()?,
                End::Last => cursor.prev()?,
            };
            let Some((key, value)) = next else { break };
            bytes += key.len() + value.len();
            self.pairs.push_back((key.to_vec(), value.into_owned()));
        }
        Ok(())
    }
}

impl Transaction {
    /// Removes the pair with the smallest key, and returns it. Two transactions that take the same pair conflict.
    ///
    /// # Errors
    /// As [`Transaction::range`] and [`Transaction::delete`].
    pub fn pop_first(&mut self, map: &Map) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.pop(map, End::First)
    }

    /// Removes the pair with the greatest key, and returns it. Two transactions that take the same pair conflict.
    ///
    /// # Errors
    /// As [`Transaction::range`] and [`Transaction::delete`].
    pub fn pop_last(&mut self, map: &Map) -> Result<Option<(Vec<u8>, Value<'static>)>> {
        self.pop(map, End::Last)
    }

    fn pop(&mut self, map: &Map, end: End) -> Result<Option<Pair>> {
        self.is_used_here();
        self.pinned.alive()?;
        let id = map.id_in(self.pinned.core())?;
        if self.work.ahead.as_ref().is_some_and(|ahead| ahead.map != id) {
            self.forget_ahead();
        }
        // Taken out, because a write forgets what it finds there; an error forgets it too.
        let mut ahead = self.work.ahead.take().unwrap_or_else(|| Ahead::of(id));
        if ahead.ends(end).0.pairs.is_empty() {
            self.note_popped(&mut ahead);
            self.read_ahead(&mut ahead, end)?;
        }
        let (this, other) = ahead.ends(end);
        let Some((key, value)) = this.pairs.pop_front() else {
            return Ok(None);
        };
        // All beyond it is gone, so it can be nothing but the last one there.
        if other.pairs.back().is_some_and(|(last, _)| *last == key) {
            other.pairs.pop_back();
        }
        self.delete(map, &key)?;
        this.popped.clear();
        this.popped.extend_from_slice(&FullKey::new(id, &key)?);
        self.work.ahead = Some(ahead);
        Ok(Some((key, value)))
    }

    /// Reads the next pairs at an end, which may be none.
    fn read_ahead(&mut self, ahead: &mut Ahead, end: End) -> Result<()> {
        let all = FullRange::map(ahead.map);
        self.note_read(|reads| reads.range(&all))?;
        let left = self.nothing().trim(&all);
        if !left.is_empty() {
            let mut cursor = Cursor::new(&self.pinned, self.own_writes(), left);
            if end == End::Last {
                cursor.seek_end();
            }
            ahead.ends(end).0.fill(&mut cursor, end)?;
        }
        if ahead.ends(end).0.pairs.is_empty() {
            self.nothing().add(&all.low, &all.high, 1);
        }
        Ok(())
    }

    /// Forgets what was read ahead, before a write that may change it.
    #[inline]
    pub(super) fn forget_ahead(&mut self) {
        if let Some(mut ahead) = self.work.ahead.take() {
            self.note_popped(&mut ahead);
        }
    }

    /// Notes that nothing is left beyond what was popped: the next walk need not look there.
    fn note_popped(&mut self, ahead: &mut Ahead) {
        let all = FullRange::map(ahead.map);
        let nothing = self.nothing();
        if !ahead.first.popped.is_empty() {
            nothing.add(&all.low, &successor(&ahead.first.popped), 1);
            ahead.first.popped.clear();
        }
        if !ahead.last.popped.is_empty() {
            nothing.add(&ahead.last.popped, &all.high, 1);
            ahead.last.popped.clear();
        }
    }
}
