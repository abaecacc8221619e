//! The walk through a view in key order, in both directions: the base, the generations above it and (in a
//! transaction) its own writes, merged.
//!
//! Every source holds its keys in order, with ranks as in `above`: 0 in the base, and above all commits in the layers
//! of a transaction.
//!
//! A scan is a gap between two keys. While it moves forward all sources stand at their first key after the gap, but
//! those that gave the key just returned, which stand on it until the next step (so that the key can be borrowed).
//! Backward is the mirror image; a change of direction puts all sources to the other side of the gap.

use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};

use crate::btree::{Cursor, Root};
use crate::error::{Error, Result};
use crate::index::OUT_OF_ORDER;
use crate::key::full_key::{FullRange, successor};
use crate::read::above::{Above, Input};
use crate::read::around::{Around, NOTHING_RANK};
use crate::read::deleted::{Deleted, Deletions, Ranges};
use crate::read::generation_view::GenerationView;
use crate::read::value::{Entry, Source, Value};
use crate::read::view::{View, entry_at};
use crate::read::write_set::{Layer, OwnWrites};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// Where the gap is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Gap {
    /// Right before this key; no source is positioned.
    Before(Vec<u8>),
    /// The sources stand on one side of it; `true`: on the key that was just returned.
    Positioned(Direction, bool),
}

/// A walk through a range of a view.
pub(crate) struct Scan<'a, S: Source<'a>> {
    limit: u64,
    range: FullRange,
    base: Cursor<S>,
    others: Vec<Input<'a, S>>,
    /// `None`: nothing is deleted by ranges.
    deletes: Option<Box<Around<'a>>>,
    gap: Gap,
    /// The sources that stand on the current key: `BASE`, and indexes of `others` behind it.
    standing: Vec<usize>,
    /// Steps forward, and steps backward, that only the standing source has anything for, all of them inside its leaf.
    /// They are steps in the direction of the gap; the other number is 0.
    ahead: usize,
    behind: usize,
    /// Keys in a row that only one source gave, and which.
    in_a_row: (usize, usize),
    /// The key that was left last: where to go on when what comes next could not be read.
    left: Vec<u8>,
    /// Whether it was left in the direction of the gap.
    has_left: bool,
    /// Whether keys are returned whose newest entry says that they were deleted.
    shows_deleted: bool,
    /// What of the range deletes could not be read: each step is this error.
    damage: Option<String>,
    /// Who learns where nothing lives.
    learner: Option<Learner<'a>>,
    /// Keys that the current step passed one by one because nothing lives there, and the first that it passed in any
    /// way.
    passed: usize,
    first_passed: Option<Vec<u8>>,
}

/// Who learns of stretches that a walk found empty.
#[derive(Clone, Copy)]
pub(crate) enum Learner<'a> {
    /// All later views. All deletions up to this commit are in the base.
    Views(&'a Deletions, u64),
    /// Later walks of the transaction.
    Transaction(&'a Mutex<Ranges>),
}

/// A step that passes so many deleted keys tells the others. (In tests nearly each one does.)
const PASSED_MIN: usize = if cfg!(debug_assertions) { 2 } else { 16 };
/// A source that gave so many keys in a row is asked how many more it has before those of others.
const IN_A_ROW_MIN: usize = 2;
/// Number of the base among the sources.
const BASE: usize = usize::MAX;

impl<'a, S: Source<'a>> Scan<'a, S> {
    /// A scan of `range`, standing before its first key. `layers` are a transaction's own writes, oldest first.
    pub(crate) fn new(source: S, view: &View<'a>, layers: &'a [Layer], range: FullRange) -> Scan<'a, S> {
        let (generations, deleted) = (&view.generations, &view.deleted);
        Scan::over(
            source,
            view.root,
            generations,
            deleted,
            view.commit,
            OwnWrites::of(layers),
            range,
        )
    }

    /// A scan of `range` over a base and any number of generations above it, oldest first, up to the commit `limit`.
    pub(crate) fn over(
        source: S,
        root: Root,
        generations: &[GenerationView<'a>],
        deleted: &Deleted,
        limit: u64,
        own: OwnWrites<'a>,
        range: FullRange,
    ) -> Scan<'a, S> {
        let layers = own.layers;
        let mut above = Above::nothing();
        let mut damage = deleted.sound().err().map(|error| error.fact());
        for generation in generations {
            if let Err(error) = above.add_generation(source, generation, limit) {
                damage = Some(error.fact());
            }
        }
        above.add_layers(source, layers);
        let gap = Gap::Before(range.low.clone());
        let base = Cursor::new(source, root);
        let deletes = Around::within(&range, deleted, layers, own.nothing());
        Scan {
            limit,
            range,
            base,
            others: above.inputs,
            deletes,
            gap,
            standing: Vec::new(),
            ahead: 0,
            behind: 0,
            in_a_row: (0, BASE),
            left: Vec::new(),
            has_left: false,
            shows_deleted: false,
            damage,
            learner: None,
            passed: 0,
            first_passed: None,
        }
    }

    /// Makes the scan tell where it found that nothing lives: all views only if it is one of a view and nothing else.
    pub(crate) fn teach(mut self, learner: Learner<'a>) -> Scan<'a, S> {
        self.learner = Some(learner);
        self
    }

    /// Steps to the next pair that a reader sees.
    pub(crate) fn next_pair(&mut self) -> Result<Option<(&[u8], Value<'a>)>> {
        let entry = self.next()?;
        self.pair(entry)
    }

    /// Steps back to the pair before.
    #[inline]
    pub(crate) fn prev_pair(&mut self) -> Result<Option<(&[u8], Value<'a>)>> {
        let entry = self.prev()?;
        self.pair(entry)
    }

    #[inline]
    fn pair(&self, entry: Option<Entry<'a>>) -> Result<Option<(&[u8], Value<'a>)>> {
        let Some(entry) = entry else { return Ok(None) };
        let value = entry.resolve(self.base.source())?;
        Ok(value.map(|value| (self.key(), value)))
    }

    /// Makes the scan return deleted keys too, but for those that only a range delete covers.
    pub(crate) fn show_deleted(&mut self) {
        self.shows_deleted = true;
    }

    /// Moves the gap right before the first key at or after `key`, inside the range.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        let key = key.clamp(
            self.range.low.as_slice(),
            self.range.high.as_slice().max(&self.range.low),
        );
        self.go_to(Gap::Before(key.to_vec()));
    }

    /// Moves the gap behind the last key.
    pub(crate) fn seek_end(&mut self) {
        self.go_to(Gap::Before(self.range.high.clone()));
    }

    fn go_to(&mut self, gap: Gap) {
        (self.ahead, self.behind, self.in_a_row.0) = (0, 0, 0);
        self.gap = gap;
    }

    /// The keys that it walks through.
    pub(crate) fn range(&self) -> &FullRange {
        &self.range
    }

    /// Whether the gap is in front of a key.
    pub(crate) fn is_before(&self, key: &[u8]) -> bool {
        match &self.gap {
            Gap::Before(place) => key >= place.as_slice(),
            Gap::Positioned(Direction::Forward, true) => key > self.key(),
            Gap::Positioned(Direction::Backward, true) => key >= self.key(),
            // At one of the ends.
            Gap::Positioned(direction, false) => *direction == Direction::Backward,
        }
    }

    /// Steps over the next key and returns what is there; the key is `self.key()`.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'a>>> {
        self.go(Direction::Forward)
    }

    /// Steps back over the key before the gap.
    #[inline]
    pub(crate) fn prev(&mut self) -> Result<Option<Entry<'a>>> {
        self.go(Direction::Backward)
    }

    #[inline(always)]
    fn go(&mut self, direction: Direction) -> Result<Option<Entry<'a>>> {
        // Most steps are from one pair of a leaf to the next, with nothing to compare.
        let alone = match direction {
            Direction::Forward => &mut self.ahead,
            Direction::Backward => &mut self.behind,
        };
        if *alone > 0 {
            *alone -= 1;
            if self.in_a_row.1 == BASE {
                self.base.step_in_leaf(direction == Direction::Forward);
                let (page, location) = self.base.value();
                return Ok(Some(entry_at::<S>(page, location)));
            }
            if let Some(entry) = self.step_alone_above(direction) {
                return Ok(Some(entry));
            }
        }
        self.step_among_all(direction)
    }

    /// A step of the only source that has anything here, above the base; `None`, and no step, where the next key is
    /// deleted or newer than the view.
    #[inline(never)]
    fn step_alone_above(&mut self, direction: Direction) -> Option<Entry<'a>> {
        let is_forward = direction == Direction::Forward;
        let input = &mut self.others[self.in_a_row.1];
        input.step_in_leaf(is_forward);
        let entry = match input {
            // Here and not in `entry_of`: an entry that passes through several results is moved in pieces, and waits for them.
            Input::Index(cursor, generation) => cursor
                .visible(self.limit)
                .and_then(|version| generation.stored(version.position).ok())
                .map(Entry::stored),
            Input::Run(_, cursor) => {
                let (page, location) = cursor.value();
                Some(entry_at::<S>(page, location))
            }
            Input::Layer(_, cursor) => Some(cursor.entry()),
        };
        match entry {
            Some(entry) if self.shows_deleted || !matches!(entry, Entry::Deleted) => Some(entry),
            _ => {
                input.step_in_leaf(!is_forward);
                None
            }
        }
    }

    /// A step from anywhere.
    #[inline(never)]
    fn step_among_all(&mut self, direction: Direction) -> Result<Option<Entry<'a>>> {
        (self.ahead, self.behind) = (0, 0);
        self.face(direction)?;
        let stepped = self.try_step(direction);
        match &stepped {
            Ok(Some(_)) => self.note_alone(direction),
            Ok(None) => {}
            Err(_) => self.stay_behind(direction),
        }
        stepped
    }

    /// Finds out how many steps the source that stands alone can take before anything else counts, once it gave some
    /// keys in a row: where sources take turns, asking would cost more than it saves.
    fn note_alone(&mut self, direction: Direction) {
        let &[source] = &self.standing[..] else {
            self.in_a_row.0 = 0;
            return;
        };
        if self.in_a_row.1 != source {
            self.in_a_row = (0, source);
        }
        self.in_a_row.0 += 1;
        let has_rivals = self.others.len() > 1 || source != BASE && self.base.is_valid();
        if has_rivals && self.in_a_row.0 < IN_A_ROW_MIN {
            return;
        }
        // The nearest place at which something else counts.
        let mut bound: &[u8] = match direction {
            Direction::Forward => &self.range.high,
            Direction::Backward => &self.range.low,
        };
        let base = (source != BASE && self.base.is_valid()).then(|| self.base.key());
        let others = self.others.iter().enumerate().filter(|(other, _)| *other != source);
        for key in base.into_iter().chain(others.filter_map(|(_, other)| other.key())) {
            bound = match direction {
                Direction::Forward => bound.min(key),
                Direction::Backward => bound.max(key),
            };
        }
        if let Some(deletes) = &self.deletes {
            let Some((low, high)) = deletes.living_stretch() else {
                return;
            };
            bound = match direction {
                Direction::Forward => high.map_or(bound, |high| bound.min(high)),
                Direction::Backward => bound.max(low),
            };
        }
        let is_forward = direction == Direction::Forward;
        let alone = match self.others.get(source) {
            None => self.base.steps_in_leaf(is_forward, bound),
            Some(input) => input.steps_in_leaf(is_forward, bound),
        };
        match direction {
            Direction::Forward => self.ahead = alone,
            Direction::Backward => self.behind = alone,
        }
    }

    /// The key that the last step went over.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        key_of(&self.standing, &self.base, &self.others)
    }

    /// Puts all sources to the side of the gap that `direction` moves to.
    fn face(&mut self, direction: Direction) -> Result<()> {
        let boundary = match &self.gap {
            Gap::Positioned(facing, _) if *facing == direction => return Ok(()),
            Gap::Before(key) => key.clone(),
            Gap::Positioned(Direction::Forward, true) => successor(self.key()),
            Gap::Positioned(Direction::Backward, true) => self.key().to_vec(),
            Gap::Positioned(Direction::Forward, false) => self.range.high.clone(),
            Gap::Positioned(Direction::Backward, false) => self.range.low.clone(),
        };
        if let Some(deletes) = &mut self.deletes {
            deletes.forget();
        }
        self.has_left = false;
        let others = &mut self.others;
        let sought = match direction {
            Direction::Forward => {
                let base = self.base.seek(&boundary);
                base.and_then(|()| others.iter_mut().try_for_each(|other| other.seek(&boundary)))
            }
            Direction::Backward => {
                let base = self.base.seek_before(&boundary);
                base.and_then(|()| others.iter_mut().try_for_each(|other| other.seek_before(&boundary)))
            }
        };
        self.gap = match sought {
            Ok(()) => Gap::Positioned(direction, false),
            Err(_) => Gap::Before(boundary),
        };
        sought
    }

    /// Remembers the key that is about to be left.
    fn note_key(&mut self) {
        let mut left = std::mem::take(&mut self.left);
        left.clear();
        left.extend_from_slice(self.key());
        self.left = left;
    }

    /// Puts the gap behind the last key, because what comes next could not be read. The next step in this direction
    /// fails again.
    #[cold]
    fn stay_behind(&mut self, direction: Direction) {
        self.gap = Gap::Before(match direction {
            Direction::Forward => successor(&self.left),
            Direction::Backward => self.left.clone(),
        });
    }

    fn try_step(&mut self, direction: Direction) -> Result<Option<Entry<'a>>> {
        if let Some(damage) = &self.damage {
            return Err(Error::damaged(damage.clone()));
        }
        if self.gap == Gap::Positioned(direction, true) {
            self.leave_key(direction)?;
        }
        self.passed = 0;
        if self.first_passed.is_some() {
            self.first_passed = None;
        }
        loop {
            if !self.find_key(direction) {
                self.tell_passed(direction, true);
                self.gap = Gap::Positioned(direction, false);
                return Ok(None);
            }
            let best = self.best_entry()?;
            if let Some((rank, _)) = best
                && let Some(deletes) = &mut self.deletes
            {
                let key = key_of(&self.standing, &self.base, &self.others);
                let deleted = match direction {
                    Direction::Forward => deletes.rank_forward(key),
                    Direction::Backward => deletes.rank_backward(key),
                };
                if deleted > rank {
                    count_passed();
                    self.note_passed(0);
                    self.leave_key(direction)?;
                    self.skip(direction, deleted)?;
                    continue;
                }
            }
            match best {
                Some((_, entry)) if self.shows_deleted || !matches!(entry, Entry::Deleted) => {
                    self.tell_passed(direction, false);
                    self.gap = Gap::Positioned(direction, true);
                    return Ok(Some(entry));
                }
                _ => {
                    count_passed();
                    self.note_passed(PASSED_MIN / 4);
                    self.passed += 1;
                    self.leave_key(direction)?;
                }
            }
        }
    }

    /// Finds out which sources stand on the nearest key; `false` when there is none inside the range.
    fn find_key(&mut self, direction: Direction) -> bool {
        self.standing.clear();
        let mut nearest: Option<&[u8]> = self.base.is_valid().then(|| self.base.key());
        if nearest.is_some() {
            self.standing.push(BASE);
        }
        for (index, other) in self.others.iter().enumerate() {
            let Some(key) = other.key() else { continue };
            let order = nearest.map_or(Ordering::Less, |nearest| match direction {
                Direction::Forward => key.cmp(nearest),
                Direction::Backward => nearest.cmp(key),
            });
            match order {
                Ordering::Less => {
                    nearest = Some(key);
                    self.standing.clear();
                    self.standing.push(index);
                }
                Ordering::Equal => self.standing.push(index),
                Ordering::Greater => {}
            }
        }
        nearest.is_some_and(|key| match direction {
            Direction::Forward => key < self.range.high.as_slice(),
            Direction::Backward => key >= self.range.low.as_slice(),
        })
    }

    /// The entry of the highest rank at the current key; `None` when everything there is newer than the view.
    fn best_entry(&self) -> Result<Option<(u64, Entry<'a>)>> {
        let mut best = None;
        for &source in &self.standing {
            let found = if source == BASE {
                let (page, location) = self.base.value();
                Some((0, entry_at::<S>(page, location)))
            } else {
                entry_of(&self.others[source], self.limit)?
            };
            let Some((rank, entry)) = found else { continue };
            if best.as_ref().is_none_or(|(highest, _)| rank >= *highest) {
                best = Some((rank, entry));
            }
        }
        Ok(best)
    }

    /// Remembers where the step began to pass what does not live, once it has passed so many keys one by one: most pass
    /// few.
    #[inline]
    fn note_passed(&mut self, from: usize) {
        if self.learner.is_some() && self.first_passed.is_none() && self.passed >= from {
            self.first_passed = Some(self.key().to_vec());
        }
    }

    /// Tells what the step passed: up to the key that it comes to, or to the end of the range.
    #[inline]
    fn tell_passed(&self, direction: Direction, is_at_end: bool) {
        if self.passed < PASSED_MIN {
            return;
        }
        let (Some(learner), Some(first)) = (self.learner, &self.first_passed) else {
            return;
        };
        let (low, high) = match direction {
            Direction::Forward if is_at_end => (first.clone(), self.range.high.clone()),
            Direction::Forward => (first.clone(), self.key().to_vec()),
            Direction::Backward if is_at_end => (self.range.low.clone(), successor(first)),
            Direction::Backward => (successor(self.key()), successor(first)),
        };
        match learner {
            Learner::Views(deletions, base) => deletions.passed(&low, &high, base, self.limit),
            Learner::Transaction(nothing) => {
                let mut nothing = nothing.lock().unwrap_or_else(PoisonError::into_inner);
                *nothing = nothing.with(&low, &high, 1);
            }
        }
    }

    /// Jumps over what a range delete of this rank covers around the last place, with those sources that have nothing
    /// newer: they may hold millions of keys there.
    fn skip(&mut self, direction: Direction, deleted: u64) -> Result<()> {
        let Some(deletes) = &self.deletes else {
            return Ok(());
        };
        let (low, high) = deletes.stretch();
        if self.base.is_valid() && (low..high).contains(&self.base.key()) {
            match direction {
                Direction::Forward => self.base.seek(high)?,
                Direction::Backward => self.base.seek_before(low)?,
            }
        }
        for other in &mut self.others {
            if other.key().is_some_and(|key| (low..high).contains(&key)) {
                match direction {
                    // Whatever is newer than the view does not count.
                    Direction::Forward if deleted == NOTHING_RANK => other.seek(high)?,
                    Direction::Backward if deleted == NOTHING_RANK => other.seek_before(low)?,
                    Direction::Forward => other.skip_forward(high, deleted)?,
                    Direction::Backward => other.skip_backward(low, deleted)?,
                }
            }
        }
        Ok(())
    }

    /// Moves the sources that stand on the current key on.
    fn leave_key(&mut self, direction: Direction) -> Result<()> {
        if self.has_left && self.deletes.is_some() {
            // A jump searches again, so a log whose keys are other bytes than were written could lead it in a circle.
            let has_moved_on = match direction {
                Direction::Forward => self.key() > &self.left[..],
                Direction::Backward => self.key() < &self.left[..],
            };
            if !has_moved_on {
                return Err(Error::damaged(OUT_OF_ORDER));
            }
        }
        self.note_key();
        self.has_left = true;
        for &source in &self.standing {
            match direction {
                Direction::Forward if source == BASE => self.base.next()?,
                Direction::Backward if source == BASE => self.base.prev()?,
                Direction::Forward => self.others[source].next()?,
                Direction::Backward => self.others[source].prev()?,
            }
        }
        Ok(())
    }
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PASSED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Keys that walks of the calling thread have looked at in vain since it began, for tests.
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub fn keys_passed_by_walks() -> u64 {
    PASSED.get()
}

#[inline(always)]
fn count_passed() {
    #[cfg(feature = "planted-bugs")]
    PASSED.set(PASSED.get() + 1);
}

/// The key that these sources stand on.
#[inline]
fn key_of<'k, 'a, S: Source<'a>>(standing: &[usize], base: &'k Cursor<S>, others: &'k [Input<'a, S>]) -> &'k [u8] {
    match standing.first() {
        Some(&BASE) | None => base.key(),
        Some(&other) => others[other].key().expect("it stands on the current key"),
    }
}

/// Rank and content of the entry that an input stands on, if a view up to `limit` sees one.
fn entry_of<'a, S: Source<'a>>(input: &Input<'a, S>, limit: u64) -> Result<Option<(u64, Entry<'a>)>> {
    Ok(match input {
        Input::Index(cursor, generation) => match cursor.visible(limit) {
            Some(version) => Some((version.commit, Entry::stored(generation.stored(version.position)?))),
            None => None,
        },
        Input::Run(rank, cursor) => {
            let (page, location) = cursor.value();
            Some((*rank, entry_at::<S>(page, location)))
        }
        Input::Layer(rank, cursor) => Some((*rank, cursor.entry())),
    })
}
