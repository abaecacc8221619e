//! What is empty because it was deleted, as reads need it.
//!
//! A generation lists its range deletes in the order of commits. A read that looked through the list would cost time in
//! proportion to all that are not folded. So each process keeps them as ordered sets besides (`ranges`), one for each of the last
//! commits that deleted a range. Making a view brings them up to date, and the view holds the set of its commit.
//!
//! A walk that passed many deleted keys one by one adds the stretch without a living one: after the commit that it sees, that
//! is as if a range delete at the beginning of the next commit had emptied it. So the next walk jumps over it, and a queue whose
//! first keys are taken away again and again costs each time what few keys cost.
//!
//! A commit is in a set with its number: what was put later counts again, by comparing commits. Nothing here is shared between
//! processes, and nothing is lost with a process.

mod ranges;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub(crate) use ranges::Ranges;

use crate::error::{Error, Result};
use crate::key::full_key::FullRange;
use crate::read::generation_view::GenerationView;

/// Sets of earlier commits that are kept: threads make views of slightly different commits at the same time.
const MOMENTS_MAX: usize = 64;

/// What the view of one commit finds deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deleted {
    /// `None`: nothing.
    set: Option<Arc<Set>>,
    /// What commits up to this one deleted is gone from the base.
    base: u64,
}

#[derive(Debug)]
enum Set {
    Ranges(Ranges),
    /// What could not be read of the range deletes.
    Damage(String),
}

impl Deleted {
    /// All range deletes in generations, oldest first, up to a commit.
    pub(crate) fn all(generations: &[GenerationView], base: u64, commit: u64) -> Result<Deleted> {
        let mut ranges = Ranges::default();
        for (commit, range) in ascending(generations, base, commit)? {
            ranges.add(&range.low, &range.high, commit);
        }
        Ok(Deleted::of(ranges, base))
    }

    /// Nothing, over a base as of this commit.
    #[inline]
    pub(crate) fn nothing(base: u64) -> Deleted {
        Deleted { set: None, base }
    }

    /// The commit up to which all deletions are in the base.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    fn of(ranges: Ranges, base: u64) -> Deleted {
        Deleted {
            set: (!ranges.is_empty()).then(|| Arc::new(Set::Ranges(ranges))),
            base,
        }
    }

    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.set.is_none()
    }

    /// The ranges, if they could be read.
    pub(crate) fn ranges(&self) -> Option<&Ranges> {
        match self.set.as_deref()? {
            Set::Ranges(ranges) => Some(ranges),
            Set::Damage(_) => None,
        }
    }

    /// Says what could not be read.
    pub(crate) fn sound(&self) -> Result<()> {
        match self.set.as_deref() {
            Some(Set::Damage(damage)) => Err(Error::damaged(damage)),
            _ => Ok(()),
        }
    }

    /// The newest commit that deleted a range with `key` in it.
    #[inline]
    pub(crate) fn at(&self, key: &[u8]) -> Result<Option<u64>> {
        match &self.set {
            None => Ok(None),
            Some(set) => set.at(key, self.base),
        }
    }

    /// Whether anything is deleted inside of a range, or the range deletes could not be read.
    #[inline]
    pub(crate) fn touches(&self, range: &FullRange) -> bool {
        self.set.as_deref().is_some_and(|set| set.touches(range))
    }

    /// All that is deleted, in order; ranges that touch are one.
    pub(crate) fn union(&self) -> Vec<FullRange> {
        let mut joined: Vec<FullRange> = Vec::new();
        for range in self.ranges().into_iter().flat_map(Ranges::iter) {
            match joined.last_mut() {
                Some(last) if *last.high == *range.low => last.high = range.high.to_vec(),
                _ => joined.push(FullRange::between(&range.low, &range.high)),
            }
        }
        joined
    }

    /// What is deleted of a range, in order.
    pub(crate) fn within(&self, range: &FullRange) -> impl Iterator<Item = FullRange> {
        let mut next = self.ranges().and_then(|ranges| ranges.at_or_after(&range.low));
        std::iter::from_fn(move || {
            loop {
                let found = next.take().filter(|found| *found.low < *range.high)?;
                next = self.ranges().and_then(|ranges| ranges.at_or_after(&found.high));
                if found.commit > self.base {
                    let (low, high): (&[u8], &[u8]) = (&found.low, &found.high);
                    return Some(FullRange::between(low.max(&range.low), high.min(&range.high)));
                }
            }
        })
    }
}

impl Set {
    #[inline(never)]
    fn at(&self, key: &[u8], base: u64) -> Result<Option<u64>> {
        match self {
            Set::Ranges(ranges) => Ok(ranges.emptied_at(key).filter(|&commit| commit > base)),
            Set::Damage(damage) => Err(Error::damaged(damage)),
        }
    }

    #[inline(never)]
    fn touches(&self, range: &FullRange) -> bool {
        match self {
            Set::Ranges(ranges) => ranges.touches(range),
            Set::Damage(_) => true,
        }
    }
}

/// Range deletes of generations, oldest first, after a commit and up to another, with their commits.
fn ascending(generations: &[GenerationView], after: u64, upto: u64) -> Result<Vec<(u64, FullRange)>> {
    let mut all = Vec::new();
    for generation in generations.iter().rev() {
        for deleted in generation.range_deletes(after, upto) {
            all.push(deleted?);
        }
    }
    all.reverse();
    Ok(all)
}

/// What a process knows of the range deletes that are not folded.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    known: RwLock<Known>,
    /// The last commit of those for which a walk has passed a stretch.
    passed: AtomicU64,
}

#[derive(Debug)]
struct Known {
    /// What commits up to this one deleted is left out of the newest set.
    base: u64,
    /// All range deletes up to this commit are in.
    upto: u64,
    /// The sets of the last commits that deleted ranges, oldest first. Never empty.
    moments: VecDeque<Moment>,
}

/// The set for views of this commit and later ones, until the next moment.
#[derive(Debug)]
struct Moment {
    from: u64,
    set: Arc<Set>,
}

impl Moment {
    fn new(from: u64, ranges: Ranges) -> Moment {
        Moment {
            from,
            set: Arc::new(Set::Ranges(ranges)),
        }
    }

    pub(crate) fn ranges(&self) -> Ranges {
        match &*self.set {
            Set::Ranges(ranges) => ranges.clone(),
            Set::Damage(_) => Ranges::default(),
        }
    }
}

impl Default for Known {
    fn default() -> Known {
        Known {
            base: 0,
            upto: 0,
            moments: VecDeque::from([Moment::new(0, Ranges::default())]),
        }
    }
}

impl Deletions {
    /// Whether a walk passed a stretch that the base, as of this commit, still shows.
    #[inline]
    pub(crate) fn has_passed(&self, base: u64) -> bool {
        self.passed.load(Ordering::Acquire) > base
    }

    /// What the view of a commit finds deleted. `generations`, oldest first, hold all commits after `base` up to that one. The
    /// caller holds a pin, or the commit lock.
    #[inline(never)]
    pub(crate) fn at(&self, generations: &[GenerationView], base: u64, commit: u64) -> Deleted {
        let newest = generations
            .iter()
            .map(|generation| generation.index.newest_range_delete());
        let newest = newest.max().unwrap_or(0);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = Ok(known.find(newest, base, commit));
        drop(known);
        if let Ok(None) = found {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            found = known
                .learn(generations, newest, base, commit)
                .map(|()| known.find(newest, base, commit));
        }
        let made = match found {
            Ok(Some(set)) => Ok(Deleted { set: Some(set), base }),
            // The view is older than what is kept.
            Ok(None) => Deleted::all(generations, base, commit),
            Err(error) => Err(error),
        };
        made.unwrap_or_else(|error| Deleted {
            set: Some(Arc::new(Set::Damage(error.fact()))),
            base,
        })
    }

    /// Takes note that nothing lived in `low..high` after a commit, as a walk found that sees it, over this base.
    pub(crate) fn passed(&self, low: &[u8], high: &[u8], base: u64, commit: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.pass(low, high, base, commit);
        self.passed.fetch_max(commit, Ordering::Release);
    }
}

impl Known {
    /// The set of a commit, if it is known; `newest`: there is no range delete after this one.
    fn find(&self, newest: u64, base: u64, commit: u64) -> Option<Arc<Set>> {
        let is_complete = newest.min(commit) <= self.upto && base >= self.base;
        let mut moments = self.moments.iter().rev().filter(|_| is_complete);
        moments
            .find(|moment| moment.from <= commit)
            .map(|moment| moment.set.clone())
    }

    /// Takes in what is missing for the view of a commit.
    fn learn(&mut self, generations: &[GenerationView], newest: u64, base: u64, commit: u64) -> Result<()> {
        // Commits after that of the view may be half entered.
        let upto = newest.min(commit);
        if upto <= self.upto || base < self.base {
            return Ok(());
        }
        let newer = ascending(generations, self.upto.max(base), upto)?;
        let mut ranges = self.moments.back().map(Moment::ranges).unwrap_or_default();
        if base > self.base {
            ranges = ranges.after(base);
            self.base = base;
        }
        // Moments beyond those that are kept would only share nodes, which then had to be copied. What is before them goes, so
        // that no view in between takes an earlier set for its own.
        let kept = newer.len().saturating_sub(MOMENTS_MAX);
        if kept > 0 {
            self.moments.clear();
        }
        for (number, (commit, range)) in newer.iter().enumerate() {
            ranges.add(&range.low, &range.high, *commit);
            if number + 1 >= kept && newer.get(number + 1).is_none_or(|(next, _)| next != commit) {
                self.moments.push_back(Moment::new(*commit, ranges.clone()));
            }
        }
        let too_many = self.moments.len().saturating_sub(MOMENTS_MAX);
        self.moments.drain(..too_many);
        self.upto = upto;
        Ok(())
    }

    /// Takes in a stretch that is empty after a commit, up to which all range deletes are in.
    fn pass(&mut self, low: &[u8], high: &[u8], base: u64, commit: u64) {
        let Some(last) = self.moments.back_mut().filter(|_| base >= self.base) else {
            return;
        };
        // As if the next commit had emptied it before it did anything else: what this commit deleted is below that, and what the
        // next one puts there is not.
        let mut ranges = last.ranges().with(low, high, commit + 1);
        if base > self.base {
            ranges = ranges.after(base);
            self.base = base;
        }
        if commit <= last.from {
            *last = Moment::new(last.from, ranges);
            return;
        }
        self.moments.push_back(Moment::new(commit, ranges));
        if self.moments.len() > MOMENTS_MAX {
            self.moments.pop_front();
        }
        self.upto = self.upto.max(commit);
    }
}

/// The range deletes up to a commit that goes on, as a stream of commits reads them.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    base: u64,
    /// All up to this commit are in `ranges`, all up to `collected` there or among those that wait.
    upto: u64,
    collected: u64,
    ranges: Ranges,
    /// The newest first.
    waiting: Vec<(u64, FullRange)>,
}

impl Replayed {
    /// To be called when there are other generations than before.
    pub(crate) fn generations_changed(&mut self) {
        self.waiting.clear();
        self.collected = self.upto;
    }

    /// What the view of `commit` finds deleted, in generations above a base, oldest first. All commits up to `visible` that lie
    /// in them can be read.
    pub(crate) fn at(
        &mut self,
        generations: &[GenerationView],
        base: u64,
        commit: u64,
        visible: u64,
    ) -> Result<Deleted> {
        if base != self.base || commit < self.upto {
            *self = Replayed {
                base,
                upto: base,
                collected: base,
                ..Replayed::default()
            };
        }
        if self.waiting.is_empty() && commit > self.collected {
            self.waiting = ascending(generations, self.collected, visible)?;
            self.waiting.reverse();
            self.collected = visible;
        }
        while let Some((at, range)) = self.waiting.pop_if(|(at, _)| *at <= commit) {
            self.ranges = self.ranges.with(&range.low, &range.high, at);
        }
        self.upto = commit;
        Ok(Deleted::of(self.ranges.clone(), base))
    }
}
