//! Rewriting: a consistent copy of a store in use, and compaction in place. Both stream all pairs in key order into a
//! new, densely filled tree.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::allocator::{Claim, Slack};
use crate::api::options::Options;
use crate::api::snapshot::Pinned;
use crate::api::store::Store;
use crate::btree::{self, ChangeStream, PageSink, Root, Stored};
use crate::core::pins::Purpose;
use crate::core::{Core, MaintenanceState};
use crate::error::{Kind, Reason, Result};
use crate::fold::NewTree;
use crate::fold::page_sink::FileSink;
use crate::key::full_key::FullRange;
use crate::limits::PAGE_BYTES;
use crate::progress::{Progress, with_progress};
use crate::read::scan::Scan;
use crate::read::value::{Source, Value};
use crate::read::view::View;
use crate::settings::Maintenance;

/// What a compaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// Bytes of the data file before.
    pub bytes_before: u64,
    /// Bytes of the data file after.
    pub bytes_after: u64,
}

impl Store {
    /// Copies the store, as it is at this moment, into another directory, which must be missing or empty; the store
    /// goes on being used. The copy is a store of its own, densely filled and durable when this returns.
    ///
    /// # Errors
    /// [`Reason::InvalidArgument`] when the directory is not empty, or is this store's directory or inside it.
    /// [`Reason::Full`], [`Reason::Io`], [`Reason::Damaged`] when this store is damaged. Remove what a copy that failed
    /// has left.
    pub fn copy(&self, directory: impl AsRef<Path>, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let directory = directory.as_ref();
        let pinned = Pinned::new(self, &self.core().control().visible.0, Purpose::Snapshot)?;
        if duramen_io::is_within(directory, self.core().platform.storage.path()) {
            let what = "a copy cannot lie in the store that it is made of: name another directory";
            return Err(Reason::InvalidArgument(what.to_string()).into());
        }
        if duramen_io::is_occupied(directory) {
            let cause = format!(
                "{} is not empty, and a copy needs a directory of its own: name a directory that is missing or empty",
                directory.display()
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        let target = Options::new().maintenance(Maintenance::Manual).open(directory)?;
        target.core().take_copy_of(&pinned, progress)?;
        target.close()
    }

    /// Rewrites the base densely and gives the space that comes free back to the file system, while the store is in
    /// use. Needs room for a second copy of the data meanwhile, and for as long as a snapshot holds the first: call it
    /// when none is open. A store that is dense already can end a few pages larger than it was. `progress` is called in
    /// this thread and may use the store; a commit that must wait for a fold waits until the rewriting is done.
    ///
    /// # Errors
    /// [`Reason::Full`], [`Reason::Damaged`], [`Reason::Io`], [`Reason::ReadOnly`]. The store holds what it held then.
    pub fn compact(&self, progress: &mut dyn FnMut(Progress)) -> Result<Compaction> {
        let core = self.core();
        let _user = core.enter()?;
        core.maintain()?;
        let bytes_before = core.data_bytes()?;
        with_progress(progress, |progress| {
            let mut state = core.hold_maintenance()?;
            core.rewrite(&mut state, progress)
        })?;
        let mut state = core.hold_maintenance()?;
        core.leave_large_generations(&mut state)?;
        drop(state);
        Ok(Compaction {
            bytes_before,
            bytes_after: core.data_bytes()?,
        })
    }
}

impl Core {
    fn data_bytes(&self) -> Result<u64> {
        Ok(self.space.figures()?.file_pages * PAGE_BYTES as u64)
    }

    /// Fills this store, which is new and empty, with everything that a view of another one shows.
    fn take_copy_of(&self, other: &Pinned, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let (commit, next_map) = (other.view().commit, other.core().next_map());
        let (root, sink) = self.write_tree(other.core().source(), other.view(), Claim::Beyond, progress)?;
        self.begin_with(commit, next_map, root, &sink)
    }

    /// Fills this store, which is new and empty, with the tree that `write` writes.
    pub(crate) fn load(
        &self,
        commit: u64,
        next_map: u32,
        write: impl FnOnce(&mut FileSink<'_>) -> Result<Root>,
    ) -> Result<()> {
        let sink = FileSink::new(self, self.region.version().number + 1, Claim::Beyond);
        let (root, sink) = sink.filled_by(write)?;
        self.begin_with(commit, next_map, root, &sink)
    }

    /// The id of the next map.
    pub(crate) fn next_map(&self) -> u32 {
        self.control().tail.0.next_map.load(Ordering::Relaxed)
    }

    /// Makes a tree the base of this store, which is new and empty. Its commits go on after `commit`.
    fn begin_with(&self, commit: u64, next_map: u32, root: Root, sink: &FileSink<'_>) -> Result<()> {
        let control = self.control();
        let guard = self.hold_commits()?;
        // The log of the copy begins after the commit that it shows.
        control.visible.0.store(commit, Ordering::Release);
        control.synced.0.store(commit, Ordering::Release);
        control.tail.0.next_map.store(next_map, Ordering::Relaxed);
        self.rotate(0, 0)?;
        let mut version = self.region.version();
        version.number += 1;
        version.root = root;
        (version.base_commit, version.reaches) = (commit, commit);
        self.region.publish(&version);
        drop(guard);
        let mut state = self.hold_maintenance()?;
        self.control().installing.store(version.number, Ordering::Release);
        self.finish_install()?;
        self.note_published(&mut state, sink.birth, version.number);
        self.maintain_frozen(&mut state)
    }

    /// Writes all pairs of a view into a new tree in this store's data file, beyond what is promised to commits.
    fn write_tree<'a, S: Source<'a>>(
        &self,
        source: S,
        view: &View<'a>,
        claim: Claim,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Root, FileSink<'_>)> {
        let sink = FileSink::new(self, self.region.version().number + 1, claim);
        let everything = FullRange {
            low: Vec::new(),
            high: vec![0xFF; 4],
        };
        let mut pairs = Pairs {
            scan: Scan::new(source, view, &[], everything),
            source,
            value: None,
            progress,
            now: Progress {
                done: 0,
                total: view.root.pairs,
            },
        };
        sink.filled_by(|sink| {
            pairs.advance()?;
            let options = self.fold_options();
            btree::merge(self.source(), Root::default(), &mut pairs, &[], options, sink)
        })
    }

    /// Replaces the base by a densely filled tree with the same pairs, at the front of its file.
    fn rewrite(&self, state: &mut MaintenanceState, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        self.finish_begun(state)?;
        let rewritten = self.replace_towards_front(state, progress);
        if let Err(error) = &rewritten
            && error.kind() == Kind::MakeSpace
        {
            // What the file has grown by is not needed; the caller must learn why there was no room.
            let _ = self.give_space_back(state, Slack::Least);
        }
        rewritten?;
        self.give_space_back(state, Slack::Nothing)
    }

    /// Writes the tree after everything else, so that all of the front is free, and then moves it there. But a reader of
    /// the old tree keeps the front. Then the new tree goes to what is free already: a third copy after those two would
    /// only make the file longer.
    fn replace_towards_front(&self, state: &mut MaintenanceState, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let first = if self.region.is_pinned() {
            Claim::Front
        } else {
            Claim::Behind
        };
        self.replace(state, first, progress)?;
        let figures = self.space.figures()?;
        let used_pages = self.space.used_bytes() / PAGE_BYTES as u64;
        if 2 * figures.retired_pages <= used_pages || figures.free_pages >= used_pages {
            self.replace(state, Claim::Front, progress)?;
        }
        Ok(())
    }

    fn replace(&self, state: &mut MaintenanceState, claim: Claim, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let mut version = self.region.version();
        version.generations.clear();
        // SAFETY: the version has no generation any more.
        let base_only = unsafe { self.view(&version, u64::MAX) }?;
        let written = self.write_tree(self.source(), &base_only, claim, progress);
        let (root, mut sink) = written?;
        // Before the new tree counts: what cannot be walked cannot be retired.
        let kept: Vec<_> = self.origin().map(|origin| origin.root).into_iter().collect();
        let walked = btree::walk_alone(self.source(), version.root, &kept, self.hash_seed, &mut |visit| {
            match visit {
                btree::Visit::Page {
                    number, pages, birth, ..
                } => sink.retire(number, pages, birth),
                btree::Visit::Extent(value) => sink.retire_extent(value),
            }
            Ok(())
        });
        walked.inspect_err(|_| sink.abandon())?;
        let tree = NewTree {
            birth: sink.birth,
            retired: &sink.retired,
            adopted: &[],
        };
        self.publish_tree(state, tree, |next| next.root = root)?;
        self.make_durable(state)?;
        self.reclaim(state)
    }
}

/// All pairs of a scan as changes to an empty tree.
struct Pairs<'a, 'w, S: Source<'a>> {
    scan: Scan<'a, S>,
    source: S,
    value: Option<Value<'a>>,
    progress: &'w mut dyn FnMut(Progress),
    now: Progress,
}

impl<'a, S: Source<'a>> ChangeStream for Pairs<'a, '_, S> {
    fn key(&self) -> Option<&[u8]> {
        self.value.is_some().then(|| self.scan.key())
    }

    fn change(&self) -> Stored<'_> {
        Stored::Inline(self.value.as_deref().expect("asked for only while there is a key"))
    }

    fn advance(&mut self) -> Result<()> {
        self.value = match self.scan.next()? {
            Some(entry) => entry.resolve(self.source)?,
            None => None,
        };
        self.now.done += self.value.is_some() as u64;
        self.now.total = self.now.total.max(self.now.done);
        if self.now.done.is_multiple_of(1024) || self.value.is_none() {
            (self.progress)(self.now);
        }
        Ok(())
    }
}
