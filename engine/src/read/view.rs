//! What one moment of the store looks like: a root and the log generations above it, up to a commit. Point reads and
//! counts go through here; the walk in key order is in `scan`.
//!
//! Of all places that hold a key the newest commit up to the view's own counts: generations from the newest to the
//! oldest, then the base. Within one commit range deletes come first, then its run, then its single operations.

use crate::btree::{self, Location, Root, Stored};
use crate::checksum::key_hash;
use crate::datafile::pages::MappedPages;
use crate::error::Result;
use crate::index::{Finger, Index, Keys, Version};
use crate::key::full_key::FullRange;
use crate::log::{LogView, NewCheckpoint, Operation, OperationKind, changed, checkpoint_of_key, decode_root};
use crate::read::deleted::Deleted;
use crate::read::value::{Entry, Source, Value};

/// One generation as readers see it, for as long as a pin or a lock keeps it.
#[derive(Clone, Copy)]
pub(crate) struct GenerationView<'p> {
    pub(crate) log: LogView<'p>,
    pub(crate) index: Index,
}

/// A sorted tree of changes that a commit brought.
pub(crate) struct Run {
    pub(crate) commit: u64,
    pub(crate) root: Root,
    /// The checkpoint that the tree belongs to, where the commit restored that.
    pub(crate) checkpoint: Option<u64>,
}

impl std::fmt::Debug for GenerationView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GenerationView")
            .field("entries", &self.index.entries())
            .finish_non_exhaustive()
    }
}

impl<'p> Keys<'p> for LogView<'p> {
    #[inline]
    fn key(self, position: u32) -> &'p [u8] {
        // SAFETY: the index hands out only positions that a commit put into it after writing the record.
        unsafe { self.full_key(position) }
    }

    #[inline]
    fn prefetch(self, position: u32) {
        self.prefetch_operation(position);
    }
}

impl<'p> GenerationView<'p> {
    /// The generation, for a holder of the pin itself, which no lifetime can name.
    ///
    /// # Safety
    /// What is returned, and what it leads to, is used only while the generation stays alive or held.
    pub(crate) unsafe fn unbound(self) -> GenerationView<'static> {
        GenerationView {
            // SAFETY: passed on.
            log: unsafe { self.log.unbound() },
            index: self.index,
        }
    }

    /// What the operation at `position` stored.
    #[inline]
    pub(crate) fn stored(self, position: u32) -> Result<Stored<'p>> {
        // SAFETY: positions come from this generation's index, see `Keys`.
        unsafe { self.log.stored(position) }
    }

    /// The operation at `position`, likewise.
    fn operation(self, position: u32) -> Result<Operation<'p>> {
        // SAFETY: positions come from this generation's index, see `Keys`.
        unsafe { self.log.operation(position) }
    }

    /// Range deletes of commits after `since` and up to `limit`, newest first, with their commits.
    pub(crate) fn range_deletes(
        self,
        since: u64,
        limit: u64,
    ) -> impl Iterator<Item = Result<(u64, FullRange)>> + use<'p> {
        let visible = self.index.range_deletes().skip_while(move |note| note.commit > limit);
        let newer = visible.take_while(move |note| note.commit > since);
        newer.map(move |note| match self.operation(note.position)? {
            operation if operation.kind == OperationKind::DeleteRange => {
                Ok((note.commit, FullRange::between(operation.full_key, operation.value)))
            }
            _ => Err(changed(note.position)),
        })
    }

    /// Runs, likewise. The tree of a checkpoint that was restored is one too.
    pub(crate) fn runs(self, since: u64, limit: u64) -> impl Iterator<Item = Result<Run>> + use<'p> {
        let visible = self.index.runs().skip_while(move |note| note.commit > limit);
        let newer = visible.take_while(move |note| note.commit > since);
        newer.map(move |note| {
            let operation = self.operation(note.position)?;
            let checkpoint = match operation.kind {
                OperationKind::Run => None,
                OperationKind::Restore => Some(checkpoint_of_key(operation.full_key)),
                _ => return Err(changed(note.position)),
            };
            Ok(Run {
                commit: note.commit,
                root: decode_root(operation.value),
                checkpoint,
            })
        })
    }

    /// The newest restore: its commit, and the id of the checkpoint.
    pub(crate) fn restore(self) -> Result<Option<(u64, u64)>> {
        for run in self.runs(0, u64::MAX) {
            let run = run?;
            if let Some(checkpoint) = run.checkpoint {
                return Ok(Some((run.commit, checkpoint)));
            }
        }
        Ok(None)
    }

    /// The checkpoint that the operation at `position` makes. It is one of this generation.
    pub(crate) fn new_checkpoint(self, position: u32) -> Result<NewCheckpoint<'p>> {
        match self.operation(position)? {
            operation if operation.kind == OperationKind::Checkpoint => {
                NewCheckpoint::decode(operation.full_key, operation.value)
            }
            _ => Err(changed(position)),
        }
    }
}

impl GenerationView<'_> {
    /// Enters an operation into the index that is in the log at `position`. Conditions as for [`Index::insert`].
    pub(crate) fn enter(self, operation: Operation<'_>, hash_seed: u64, commit: u64, position: u32) {
        match operation.kind {
            OperationKind::DeleteRange => self.index.add_range_delete(commit, position),
            OperationKind::Run | OperationKind::Restore => self.index.add_run(commit, position),
            // It changes no pair.
            OperationKind::Checkpoint => {}
            OperationKind::Put | OperationKind::PutExtent | OperationKind::Delete => {
                let hash = key_hash(hash_seed, operation.full_key);
                self.index.insert(self.log, operation.full_key, hash, commit, position);
            }
        }
    }
}

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
