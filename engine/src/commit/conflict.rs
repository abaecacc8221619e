//! Conflicts: whether anything that a transaction wrote or, if serialisable, read was changed by a commit after the one it
//! sees. Exact, by the newest version of each key in the generations, and by any change inside a range. Under the commit lock.

use std::sync::atomic::Ordering;

use crate::btree::{Cursor, PageSource, Root};
use crate::checksum::key_hash;
use crate::commit::draft::{Draft, Planned};
use crate::core::Core;
use crate::error::{Error, Reason, Result, printable};
use crate::index::IndexCursor;
use crate::key::full_key::FullRange;
use crate::planted::{PlantedBug, is_planted};
use crate::read::deleted::Deleted;
use crate::read::generation_view::GenerationView;

/// What must not have changed since a transaction began.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// The commit that the transaction sees.
    pub(crate) since: u64,
    /// Beside those of the draft's operations that say so themselves.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) ranges: Vec<FullRange>,
    /// Runs of changes whose keys are written; their keys are checked one by one.
    pub(crate) runs: Vec<Root>,
}

impl Core {
    /// Refuses the commit when something that it depends on was changed since. Under the commit lock.
    pub(crate) fn check_conflicts(&self, checks: &Checks, draft: &Draft) -> Result<()> {
        let control = self.control();
        let oldest = control.tail.0.checkable_since.load(Ordering::Relaxed);
        if checks.since < oldest {
            return Err(Reason::TooOld {
                began: checks.since,
                oldest,
            }
            .into());
        }
        if control.visible.0.load(Ordering::Relaxed) == checks.since {
            return Ok(());
        }
        // SAFETY: the caller has the commit lock, under which no generation goes, until the end of this function.
        let generations = unsafe { self.generations_between(checks.since, u32::MAX) }?;
        let newer = Newer::new(generations, checks.since)?;
        let checked = |(_, planned): &(usize, &Planned)| planned.is_checked;
        for (operation, planned) in draft.planned.iter().enumerate().filter(checked) {
            let key = draft.full_key(operation);
            if self.changed_since(&newer, key, planned.hash)? {
                return Err(self.conflict(key));
            }
        }
        for key in &checks.keys {
            let hash = key_hash(self.hash_seed, key);
            if self.changed_since(&newer, key, hash)? {
                return Err(self.conflict(key));
            }
        }
        for range in &checks.ranges {
            if is_planted(PlantedBug::RangesNotChecked) {
                break;
            }
            if let Some(key) = self.changed_in_range(&newer, range)? {
                return Err(self.conflict(&key));
            }
        }
        for &run in &checks.runs {
            if let Some(key) = self.changed_in_run(&newer, run)? {
                return Err(self.conflict(&key));
            }
        }
        Ok(())
    }

    pub(crate) fn conflict(&self, full_key: &[u8]) -> Error {
        let (map, key) = crate::key::full_key::split(full_key);
        let (map, key) = (self.catalog.name_of(map), printable(key));
        self.count_conflict(&map, &key);
        Reason::Conflict { map, key }.into()
    }

    fn changed_since(&self, newer: &Newer<'_>, key: &[u8], hash: u64) -> Result<bool> {
        for generation in &newer.generations {
            let found = generation.written(self.source(), key, hash, u64::MAX)?.map(|(c, _)| c);
            if found.is_some_and(|commit| commit > newer.since) {
                return Ok(true);
            }
        }
        Ok(newer.deleted.at(key)?.is_some())
    }

    /// A key in `range` (or the beginning of a range delete) that was changed since.
    fn changed_in_range(&self, newer: &Newer<'_>, range: &FullRange) -> Result<Option<Vec<u8>>> {
        for generation in &newer.generations {
            let mut cursor = IndexCursor::new(generation.index, generation.log);
            cursor.seek(&range.low)?;
            while cursor.is_valid() && cursor.key() < range.high.as_slice() {
                if cursor
                    .visible(u64::MAX)
                    .is_some_and(|version| version.commit > newer.since)
                {
                    return Ok(Some(cursor.key().to_vec()));
                }
                cursor.next()?;
            }
            for run in generation.runs(newer.since, u64::MAX) {
                let first = first_in(self.source(), run?.root, range)?;
                if first.is_some() {
                    return Ok(first);
                }
            }
        }
        Ok(newer.deleted.within(range).next().map(|deleted| deleted.low))
    }

    /// A key of a run that was changed since: looks every changed key up in the run.
    fn changed_in_run(&self, newer: &Newer<'_>, run: Root) -> Result<Option<Vec<u8>>> {
        for generation in &newer.generations {
            let mut cursor = IndexCursor::new(generation.index, generation.log);
            cursor.first()?;
            while cursor.is_valid() {
                if cursor
                    .visible(u64::MAX)
                    .is_some_and(|version| version.commit > newer.since)
                {
                    let hash = key_hash(self.hash_seed, cursor.key());
                    let found = crate::btree::find(self.source(), run, cursor.key(), hash)?.is_some();
                    if found {
                        return Ok(Some(cursor.key().to_vec()));
                    }
                }
                cursor.next()?;
            }
            for other in generation.runs(newer.since, u64::MAX) {
                // Two runs: walk the other one through this one.
                let found = common_key(self.source(), run, other?.root)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        for deleted in newer.deleted.union() {
            let found = first_in(self.source(), run, &deleted)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// What came after the commit that a transaction sees.
struct Newer<'a> {
    since: u64,
    /// Those with commits after that.
    generations: Vec<GenerationView<'a>>,
    /// What those commits deleted by ranges.
    deleted: Deleted,
}

impl<'a> Newer<'a> {
    fn new(generations: Vec<GenerationView<'a>>, since: u64) -> Result<Newer<'a>> {
        let deleted = Deleted::all(&generations, since, u64::MAX)?;
        Ok(Newer {
            since,
            generations,
            deleted,
        })
    }
}

/// The first key of a tree inside a range.
fn first_in<S: PageSource>(source: S, root: Root, range: &FullRange) -> Result<Option<Vec<u8>>> {
    let mut cursor = Cursor::new(source, root);
    cursor.seek(&range.low)?;
    Ok((cursor.is_valid() && cursor.key() < range.high.as_slice()).then(|| cursor.key().to_vec()))
}

/// A key that two trees have in common, found by leaping from one to the other.
fn common_key<S: PageSource>(source: S, one: Root, other: Root) -> Result<Option<Vec<u8>>> {
    let mut one = Cursor::new(source, one);
    let mut other = Cursor::new(source, other);
    one.seek(&[])?;
    other.seek(&[])?;
    while one.is_valid() && other.is_valid() {
        match one.key().cmp(other.key()) {
            std::cmp::Ordering::Equal => return Ok(Some(one.key().to_vec())),
            std::cmp::Ordering::Less => one.seek(other.key())?,
            std::cmp::Ordering::Greater => other.seek(one.key())?,
        }
    }
    Ok(None)
}
