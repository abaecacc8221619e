//! What one moment of the store looks like: a root and the log generations above it, up to a commit. Point reads and
//! counts go through here; the walk in key order is in `scan`.
//!
//! Of all places that hold a key the newest commit up to the view's own counts: generations from the newest to the
//! oldest, then the base. Within one commit range deletes come first, then its run, then its single operations.

use crate::btree::{self, Location, Root};
use crate::checksum::key_hash;
use crate::datafile::pages::MappedPages;
use crate::error::Result;
use crate::index::{Finger, Version};
use crate::key::full_key::FullRange;
use crate::read::deleted::Deleted;
use crate::read::generation_view::GenerationView;
use crate::read::value::{Entry, Source, Value};

/// A moment of the store, for as long as a pin or a lock keeps it.
#[derive(Clone, Debug)]
pub(crate) struct View<'p> {
    /// Newest commit that is seen.
    pub(crate) commit: u64,
    /// Slot of the newest generation.
    pub(crate) newest_slot: u16,
    /// The data file, for what the view refers to.
    pub(crate) pages: MappedPages<'p>,
    pub(crate) root: Root,
    pub(crate) hash_seed: u64,
    /// Oldest first.
    pub(crate) generations: Vec<GenerationView<'p>>,
    pub(crate) deleted: Deleted,
}

impl<'p> View<'p> {
    /// The view, for a holder of the pin itself, which no lifetime can name.
    ///
    /// # Safety
    /// What is returned, and what it leads to, is used only while a pin or a lock keeps the view.
    #[inline(always)]
    pub(crate) unsafe fn unbound(self) -> View<'static> {
        // SAFETY: the types differ in their lifetime only.
        unsafe { std::mem::transmute::<View<'p>, View<'static>>(self) }
    }

    /// The value of a key.
    #[inline]
    pub(crate) fn get(&self, full_key: &[u8]) -> Result<Option<Value<'p>>> {
        let hash = key_hash(self.hash_seed, full_key);
        // Each generation's filter is a miss of its own: all of them at once.
        self.generations
            .iter()
            .for_each(|generation| generation.index.prefetch(hash));
        if let Some((_, entry)) = self.recent(full_key, hash)? {
            return entry.resolve(self.pages);
        }
        match self.in_base(full_key, hash)? {
            Some(entry) => entry.resolve(self.pages),
            None => Ok(None),
        }
    }

    /// Whether a key is there. A long value is not read for that.
    pub(crate) fn contains(&self, full_key: &[u8]) -> Result<bool> {
        let hash = key_hash(self.hash_seed, full_key);
        Ok(match self.recent(full_key, hash)? {
            Some((_, entry)) => !matches!(entry, Entry::Deleted),
            None => self.in_base(full_key, hash)?.is_some(),
        })
    }

    /// What the base holds at a key.
    #[inline]
    pub(crate) fn in_base(&self, key: &[u8], hash: u64) -> Result<Option<Entry<'p>>> {
        in_tree(self.pages, self.root, key, hash)
    }

    /// The newest commit above the base that touched a key, and what it left there.
    #[inline]
    pub(crate) fn recent(&self, full_key: &[u8], hash: u64) -> Result<Option<(u64, Entry<'p>)>> {
        recent(
            self.pages,
            &self.generations,
            &self.deleted,
            full_key,
            hash,
            self.commit,
        )
    }

    /// Whether anything above the base can exist.
    pub(crate) fn has_recent(&self) -> bool {
        self.generations.iter().any(|generation| generation.has_anything())
    }
}

impl<'p> GenerationView<'p> {
    pub(crate) fn has_anything(self) -> bool {
        self.index.has_keys() || self.index.has_notes()
    }

    /// The newest commit up to `limit` in this generation that wrote a key, range deletes not counted, and what it left
    /// there.
    #[inline]
    pub(crate) fn written<S: Source<'p>>(
        self,
        source: S,
        full_key: &[u8],
        hash: u64,
        limit: u64,
    ) -> Result<Option<(u64, Entry<'p>)>> {
        let single = self.index.find(self.log, full_key, hash, limit);
        self.after_runs(source, full_key, hash, single, limit)
    }

    /// The newest commit of all in this generation that wrote a key, looked for at a finger first. Under the commit
    /// lock.
    #[inline]
    pub(crate) fn written_near<S: Source<'p>>(
        self,
        source: S,
        full_key: &[u8],
        hash: u64,
        finger: Finger,
    ) -> Result<Option<(u64, Entry<'p>)>> {
        let single = self.index.find_near(self.log, full_key, hash, finger);
        self.after_runs(source, full_key, hash, single, u64::MAX)
    }

    /// What `single`, the newest single operation up to `limit`, comes to with the runs that are newer.
    #[inline(always)]
    fn after_runs<S: Source<'p>>(
        self,
        source: S,
        full_key: &[u8],
        hash: u64,
        single: Option<Version>,
        limit: u64,
    ) -> Result<Option<(u64, Entry<'p>)>> {
        if self.index.has_runs() {
            let newer_than = single.map_or(0, |version| version.commit);
            if let Some(found) = self.in_runs(source, full_key, hash, newer_than, limit)? {
                return Ok(Some(found));
            }
        }
        let Some(version) = single else { return Ok(None) };
        Ok(Some((version.commit, Entry::stored(self.stored(version.position)?))))
    }

    /// What the newest run after `newer_than` that wrote a key left there.
    #[cold]
    fn in_runs<S: Source<'p>>(
        self,
        source: S,
        full_key: &[u8],
        hash: u64,
        newer_than: u64,
        limit: u64,
    ) -> Result<Option<(u64, Entry<'p>)>> {
        for run in self.runs(newer_than, limit) {
            let run = run?;
            if let Some(entry) = in_tree(source, run.root, full_key, hash)? {
                return Ok(Some((run.commit, entry)));
            }
        }
        Ok(None)
    }
}

/// The newest commit in generations, oldest first, that touched a key, and what it left there. In a commit range
/// deletes come before everything else.
#[inline]
pub(crate) fn recent<'a, S: Source<'a>>(
    source: S,
    generations: &[GenerationView<'a>],
    deleted: &Deleted,
    full_key: &[u8],
    hash: u64,
    limit: u64,
) -> Result<Option<(u64, Entry<'a>)>> {
    if !deleted.is_nothing() {
        return recent_or_deleted(source, generations, deleted, full_key, hash, limit);
    }
    for generation in generations.iter().rev() {
        let written = generation.written(source, full_key, hash, limit)?;
        if written.is_some() {
            return Ok(written);
        }
    }
    Ok(None)
}

#[inline(never)]
fn recent_or_deleted<'a, S: Source<'a>>(
    source: S,
    generations: &[GenerationView<'a>],
    deleted: &Deleted,
    full_key: &[u8],
    hash: u64,
    limit: u64,
) -> Result<Option<(u64, Entry<'a>)>> {
    let written = recent(source, generations, &Deleted::default(), full_key, hash, limit)?;
    match deleted.at(full_key)? {
        Some(commit) if written.as_ref().is_none_or(|(newest, _)| commit > *newest) => {
            Ok(Some((commit, Entry::Deleted)))
        }
        _ => Ok(written),
    }
}

/// What a tree (the base, or a run) holds at a key.
#[inline]
pub(crate) fn in_tree<'a, S: Source<'a>>(source: S, root: Root, key: &[u8], hash: u64) -> Result<Option<Entry<'a>>> {
    Ok(btree::find(source, root, key, hash)?.map(|found| entry_at::<S>(&found.page, found.value)))
}

#[inline]
pub(crate) fn entry_at<'a, S: Source<'a>>(page: &S::Page, location: Location) -> Entry<'a> {
    match location {
        Location::Inline(start, end) => Entry::Inline(S::value(page, start as usize..end as usize)),
        Location::Extent(extent) => Entry::Extent(extent),
        Location::Deleted => Entry::Deleted,
    }
}

/// Sorts ranges and joins those that overlap or touch.
pub(crate) fn union(mut ranges: Vec<FullRange>) -> Vec<FullRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by(|a, b| a.low.cmp(&b.low));
    let mut joined: Vec<FullRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.low <= last.high => last.high = std::mem::take(&mut last.high).max(range.high),
            _ => joined.push(range),
        }
    }
    joined
}
