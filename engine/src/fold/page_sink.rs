//! Where a merge writes its pages: free places of the data file, in runs. It remembers what it took, so that a merge
//! that fails leaves nothing behind, and what the new tree no longer holds, so that it can be retired once that is
//! published.

use std::ops::Range;

use crate::allocator::{Claim, Retired, Want};
use crate::btree::{self, Extent, Link, PageSink};
use crate::core::Core;
use crate::core::kept_roots::Origin;
use crate::error::{Error, Result};
use crate::limits::{BRANCH_PAGES, PAGE_BYTES};

/// Pages are written in runs of about this many, small trees in shorter ones, so that they stay together.
const LEAF_RUN_PAGES: (u32, u32) = (8, 64);
/// Branches, which are few, in runs of about this many pages.
const BRANCH_RUN_PAGES: (u32, u32) = (BRANCH_PAGES, 16);
/// The device is asked to begin with pages when so many were written. Where free places are short, one request for many
/// of them costs the kernel a fraction of one for each: it goes through all of a large piece of its cache every time.
const WRITEBACK_PAGES: u32 = 64;

/// Writes pages to free places of the data file, in runs: leaves in long ones, branches in blocks of their own, so that
/// a block that comes free again can take another branch.
pub(crate) struct FileSink<'a> {
    core: &'a Core,
    /// The version that the pages say they were born in.
    pub(crate) birth: u64,
    claim: Claim,
    leaves: Run,
    branches: Run,
    unstarted: Unstarted,
    /// Everything taken, to give back when the merge fails.
    taken: Vec<(Want, u32, u32)>,
    /// What the new tree does not hold; its death is the version that will be published.
    pub(crate) retired: Vec<Retired>,
    pub(crate) adopted: Vec<Extent>,
    /// The checkpoint that the old tree comes from: what it holds is not retired.
    origin: Option<Origin>,
}

/// Free pages at hand: the next one, and the end of the run.
#[derive(Default)]
struct Run {
    next: u32,
    end: u32,
    /// Pages that are chosen but not yet written; they end right before `next`.
    buffer: Vec<u8>,
    /// Place of the run among all that was taken.
    place: usize,
    /// Pages that were asked for: there may have been none so long.
    wanted: u32,
}

/// What was written since the device was last asked to begin with it.
#[derive(Default)]
struct Unstarted {
    /// All of it lies in these bytes.
    bytes: Range<u64>,
    pages: u32,
}

impl<'a> FileSink<'a> {
    pub(crate) fn new(core: &'a Core, birth: u64, claim: Claim) -> FileSink<'a> {
        FileSink {
            core,
            birth,
            claim,
            leaves: Run::default(),
            branches: Run::default(),
            unstarted: Unstarted::default(),
            taken: Vec::new(),
            retired: Vec::new(),
            adopted: Vec::new(),
            // Runs are no part of a tree that a checkpoint has.
            origin: if claim == Claim::Loose { None } else { core.origin() },
        }
    }

    /// The tree is made from that of a checkpoint.
    pub(crate) fn over(mut self, origin: Origin) -> FileSink<'a> {
        self.origin = Some(origin);
        self
    }

    /// Lets `merge` write a tree, and finishes it, or gives everything back when that fails.
    pub(crate) fn filled_by<T>(
        mut self,
        merge: impl FnOnce(&mut FileSink<'a>) -> Result<T>,
    ) -> Result<(T, FileSink<'a>)> {
        let merged = merge(&mut self).and_then(|merged| self.finish().map(|()| merged));
        let merged = merged.inspect_err(|_| self.abandon())?;
        Ok((merged, self))
    }

    pub(crate) fn take(&mut self, want: Want) -> Result<(u32, u32)> {
        let take = || self.core.space.take(self.claim, want, &self.core.pages);
        let (page, count) = match take() {
            // Runs are written outside all locks, unlike new trees.
            Err(error) if self.claim == Claim::Loose => self.core.after_folding(error, take)?,
            taken => taken?,
        };
        self.taken.push((want, page, count));
        Ok((page, count))
    }

    /// Makes sure that there is a run for a page of `count` pages.
    fn have_run(&mut self, count: u32) -> Result<()> {
        let run = self.run(count);
        if run.end - run.next >= count {
            return Ok(());
        }
        let full = std::mem::take(run);
        let longer = |(least, most): (u32, u32)| (full.wanted * 2).clamp(least, most);
        let want = if count == BRANCH_PAGES {
            Want::Branches(longer(BRANCH_RUN_PAGES))
        } else {
            Want::Leaves(longer(LEAF_RUN_PAGES))
        };
        let mut buffer = self.leave(full)?;
        if self.claim == Claim::Front {
            // What the other run does not need in the end lies in front of the pages that are taken now.
            self.finish()?;
        }
        let (next, length) = self.take(want)?;
        // One buffer for all runs: memory that comes and goes is cleared by the kernel each time.
        buffer.clear();
        buffer.reserve(want.pages().min(length) as usize * PAGE_BYTES);
        let run = Run {
            next,
            end: next + length,
            buffer,
            place: self.taken.len() - 1,
            wanted: want.pages(),
        };
        *self.run(count) = run;
        Ok(())
    }

    fn run(&mut self, count: u32) -> &mut Run {
        if count == BRANCH_PAGES {
            &mut self.branches
        } else {
            &mut self.leaves
        }
    }

    /// Writes the pages of a run, and gives back those that are left. Returns the buffer.
    fn leave(&mut self, run: Run) -> Result<Vec<u8>> {
        if run.next < run.end {
            let (want, first, count) = &mut self.taken[run.place];
            *count = run.next - *first;
            let space = &self.core.space;
            space.give_back_run(self.claim, *want, run.next, run.end - run.next, &self.core.pages)?;
        }
        if run.buffer.is_empty() {
            return Ok(run.buffer);
        }
        let count = (run.buffer.len() / PAGE_BYTES) as u32;
        let first = (run.next - count) as u64 * PAGE_BYTES as u64;
        self.core
            .data
            .write_at(&run.buffer, first)
            .map_err(|error| Error::io("writing pages", error))?;
        self.start_writeback(first..first + run.buffer.len() as u64);
        self.core.pages.written(run.next - count, count);
        self.core.beat();
        Ok(run.buffer)
    }

    /// Asks the device to begin with what was written, when it is enough.
    fn start_writeback(&mut self, written: Range<u64>) {
        let Unstarted { bytes, pages } = &mut self.unstarted;
        let count = ((written.end - written.start) / PAGE_BYTES as u64) as u32;
        *bytes = match *pages {
            0 => written,
            _ => bytes.start.min(written.start)..bytes.end.max(written.end),
        };
        *pages += count;
        if *pages >= WRITEBACK_PAGES {
            if self.claim != Claim::Loose {
                self.core.let_syncs_pass();
            }
            self.core.data.start_writeback(bytes.start, bytes.end - bytes.start);
            *pages = 0;
        }
    }

    /// Writes what is buffered.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let (leaves, branches) = (std::mem::take(&mut self.leaves), std::mem::take(&mut self.branches));
        self.leave(leaves)?;
        self.leave(branches).map(drop)
    }

    /// Gives everything back: nothing will refer to it.
    pub(crate) fn abandon(&mut self) {
        (self.leaves, self.branches) = (Run::default(), Run::default());
        for (want, page, count) in std::mem::take(&mut self.taken) {
            let (space, pages) = (&self.core.space, &self.core.pages);
            // First: what cannot be given back now is given up by another process, which does not know these bits.
            pages.forget(page, count);
            // What could not be given back now is given up with the whole tree by the next holder of the maintenance
            // lock.
            let given_back = space.give_back_run(self.claim, want, page, count, pages);
            let _ = self.core.owed_if_busy(given_back);
        }
    }

    /// Takes over what another one did for the same tree.
    pub(crate) fn absorb(&mut self, other: FileSink<'a>) {
        // Places in `taken` are those of open runs alone, and the other one is finished.
        self.taken.extend(other.taken);
        self.retired.extend(other.retired);
        self.adopted.extend(other.adopted);
    }

    /// Pages that were taken so far.
    pub(crate) fn pages(&self) -> u64 {
        self.taken.iter().map(|&(_, _, count)| u64::from(count)).sum()
    }

    /// Retires pages that records of the log refer to.
    pub(crate) fn retire_logged(&mut self, page: u32, pages: u32, birth: u64) {
        self.retired.push(Retired {
            page,
            pages,
            birth,
            death: u64::MAX,
            is_logged: true,
        });
    }
}

impl PageSink for FileSink<'_> {
    fn write(&mut self, page: &mut [u8]) -> Result<Link> {
        let count = (page.len() / PAGE_BYTES) as u32;
        self.have_run(count)?;
        let (birth, seed) = (self.birth, self.core.seeds.pages);
        let run = self.run(count);
        let link = btree::seal_page(page, run.next, birth, seed);
        run.buffer.extend_from_slice(page);
        run.next += count;
        Ok(link)
    }

    fn write_value(&mut self, bytes: &[u8]) -> Result<Extent> {
        let length = bytes.len() as u64;
        let mut extent = Extent {
            page: 0,
            checksum: 0,
            length,
            birth: self.birth,
        };
        (extent.page, _) = self.take(Want::Piece(extent.pages()))?;
        self.core.write_value_at(extent, bytes)
    }

    fn retire(&mut self, number: u32, pages: u32, birth: u64) {
        if self.origin.is_some_and(|origin| birth <= origin.version) {
            return;
        }
        self.retired.push(Retired {
            page: number,
            pages,
            birth,
            death: u64::MAX,
            is_logged: false,
        });
    }

    fn retire_extent(&mut self, extent: Extent) {
        self.retire_logged(extent.page, extent.pages(), extent.birth);
    }

    fn keeps(&self, extent: Extent, key: &dyn Fn() -> Vec<u8>) -> Result<bool> {
        match self.origin {
            // A value is written before its commit, so one as old as the checkpoint may have come into the tree later.
            Some(origin) if extent.birth <= origin.version => {
                btree::holds_extent(self.core.source(), origin.root, &key(), self.core.hash_seed, extent)
            }
            _ => Ok(false),
        }
    }

    fn asks_for_births(&self) -> bool {
        self.origin.is_some()
    }
}
