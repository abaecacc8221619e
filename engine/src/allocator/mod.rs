//! Which pages of the data file are free, which wait until no reader can see them, and how many are promised.
//!
//! Three kinds of pages: *free*; *used* by the newest base, by values and runs that the log refers to, or being
//! written; *retired*: replaced by version `death`, but perhaps still read by a snapshot, or needed by the durable
//! base. A retired page born in version `birth` becomes free when no pinned version lies in `birth..death`, and one
//! that the log refers to (of a long value, or of a run) only when no stream follows the log from before `death`
//! either; the version of the durable base always counts as pinned. Versions count published roots, not commits: a fold
//! gives the same commits a new root.
//!
//! Before a commit is accepted, the room that folding it may take is promised (see `promises`): `needed(pending) +
//! reserve <= available`, in pages and in blocks of them, where available are the free pages, those that the running
//! fold has taken of them, and the retired ones that wait for nothing but the next durable base: they are free before
//! the next fold begins, and a snapshot that is taken from now on does not see them. So a fold never meets a full disk,
//! and because deletions may use the reserve, a full store can always be emptied.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use duramen_io::File;

use crate::btree::Extent;
use crate::checksum::checksum_with;
use crate::datafile::bitmap::{self, Bitmap, Blocks, LARGE_BLOCK_PAGES, LONG_RUN_PAGES};
use crate::datafile::meta::{META_PAGES, SavedBitmap};
use crate::datafile::pages::Pages;
use crate::datafile::promises::Room;
use crate::error::{Error, Reason, Result, unless_full};
use crate::limits::{BRANCH_PAGES, DATA_PAGES_MAX, PAGE_BYTES};
use crate::log::FoldCosts;
use crate::planted::{PlantedBug, is_planted, kill_point};
use crate::region::shared_array::SharedArray;
use crate::region::{Pins, Region, SpaceHead, full_or_io};

mod death;
mod end;
mod retired;
mod state;

pub(crate) use end::Slack;
pub(crate) use retired::Retired;
use retired::StoredRetired;
use state::{Locked, State};

/// The file grows by a sixty-fourth part of itself, within these bounds.
const GROWTH_PAGES_MIN: u64 = 64;
const GROWTH_PAGES_MAX: u64 = 16_384;
/// What the kernel maps with one entry of a page table.
const LARGE_PIECE_PAGES: u64 = 512;
/// From this size on the file grows by whole large pieces.
const LARGE_FILE_PAGES: u64 = 4 * LARGE_PIECE_PAGES;

/// The allocator of the data file. All that it knows lies in the shared region.
#[derive(Debug)]
pub(crate) struct Space {
    file: Arc<dyn File>,
    region: Arc<Region>,
    /// Fill pages that come free with 0xDD, so that tests notice readers that still use them.
    overwrites: bool,
    /// Pages to give back, while a suspended process holds the lock.
    owed: Mutex<Vec<(u32, u32)>>,
}

/// What pages are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// From what was promised to the fold of the commits that a new tree holds.
    Promised,
    /// From the same, for a part of the tree. Parts together may need more than was promised: for that the file grows,
    /// and if it cannot, one thread folds, which needs no more.
    Part,
    /// From what is left beyond all promises, for a new tree: no commit reserved room for a rewrite.
    Beyond,
    /// From the same, but behind all other pages while the file can grow.
    Behind,
    /// From the same, but the lowest pages in however short runs.
    Front,
    /// From the same, for a value or a run of changes that a commit will refer to.
    Loose,
}

impl Claim {
    /// Whether folds of what was committed take them.
    pub(crate) fn is_promised(self) -> bool {
        matches!(self, Claim::Promised | Claim::Part)
    }
}

/// The file cannot grow, whatever the reason: a fold by one thread does not ask for that, or says what is wrong.
fn left_to_one_thread(_: Error) -> Error {
    let (needed, what) = (0, "a fold in parts");
    Reason::Full { needed, what }.into()
}

/// What pages are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Leaves: a run of at most so many pages.
    Leaves(u32),
    /// Branches: a run of blocks, of at most so many pages in all.
    Branches(u32),
    /// A value: just so many pages in one piece.
    Piece(u32),
}

impl Want {
    pub(crate) fn pages(self) -> u32 {
        match self {
            Want::Leaves(pages) | Want::Branches(pages) | Want::Piece(pages) => pages,
        }
    }

    /// The least that will do.
    fn least(self) -> Want {
        match self {
            Want::Leaves(_) => Want::Leaves(1),
            Want::Branches(_) => Want::Branches(BRANCH_PAGES),
            Want::Piece(pages) => Want::Piece(pages),
        }
    }

    /// Room that the request takes when blocks are not spared.
    fn room_in_blocks(self) -> Room {
        let blocks = |pages: u32| (self.pages() / pages) as u64 + 2;
        Room {
            pages: self.pages() as u64,
            blocks: Blocks {
                small: blocks(BRANCH_PAGES),
                large: blocks(LARGE_BLOCK_PAGES),
            },
        }
    }

    /// What taking it takes from the room that others have. A piece need not begin or end with a block.
    fn room(self) -> Room {
        let pages = self.pages() as u64;
        let blocks = match self {
            Want::Leaves(_) | Want::Piece(1) => Blocks::default(),
            Want::Branches(_) => Blocks {
                small: pages / BRANCH_PAGES as u64,
                large: 0,
            },
            Want::Piece(_) => Blocks {
                small: 0,
                large: pages / LARGE_BLOCK_PAGES as u64 + 2,
            },
        };
        Room { pages, blocks }
    }
}

/// Figures for statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceFigures {
    pub(crate) file_pages: u64,
    pub(crate) free_pages: u64,
    pub(crate) retired_pages: u64,
    pub(crate) pending_operations: u64,
    pub(crate) pending_bytes: u64,
}

impl Space {
    /// A space whose used pages are those of `bitmap`, which is stored as `saved`. Only for reading, until
    /// [`Space::be_ready_to_retire`].
    pub(crate) fn new(
        file: Arc<dyn File>,
        region: Arc<Region>,
        overwrites: bool,
        bitmap: Bitmap,
        saved: SavedBitmap,
    ) -> Result<Space> {
        let space = Space::attach(file, region, overwrites);
        space.head().promises.begin();
        space.head().preloaded.store(bitmap.pages() as u64, Ordering::Relaxed);
        let mut state = space.lock()?;
        state.reserve_bits(bitmap.pages() as u64)?;
        state.extend(bitmap.pages());
        state.bitmap.take_over(&bitmap);
        state.saved = (saved.page, saved.pages);
        state.durable_ends = [bitmap.pages(); 2];
        space.mirror(&state);
        drop(state);
        Ok(space)
    }

    /// The space of a store that other processes have open.
    pub(crate) fn attach(file: Arc<dyn File>, region: Arc<Region>, overwrites: bool) -> Space {
        Space {
            file,
            region,
            overwrites,
            owed: Mutex::default(),
        }
    }

    /// Makes room for all that writing may make of the file.
    pub(crate) fn be_ready_to_retire(&self) -> Result<()> {
        let mut state = self.lock()?;
        let pages = state.bitmap.pages() as u64;
        self.reserve(&mut state, pages)
    }

    /// Makes room for what may have to be said of a file of so many pages.
    fn reserve(&self, state: &mut State<'_>, pages: u64) -> Result<()> {
        state.reserve(pages)?;
        if self.region.seat().is_shared() {
            // An attempt: folds and deletions work without it, and a put of a long value reserves it again.
            unless_full(state.reserve_loose_runs(pages))?;
        }
        Ok(())
    }

    fn head(&self) -> &SpaceHead {
        &self.region.control().space
    }

    fn lock(&self) -> Result<Locked<'_>> {
        let head = self.head();
        let guard = self.region.hold(&head.lock.0, || self.undo())?;
        let step = head.step.load(Ordering::Acquire);
        let undo = self.region.undo_log();
        undo.begin(step);
        // SAFETY: the lock is held, as long as what is returned lives.
        let mut state = unsafe { self.state() };
        state.set_counts(
            head.counts[step as usize % 2]
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
        );
        Ok(Locked {
            state,
            head,
            undo,
            region: &self.region,
            was_panicking: std::thread::panicking(),
            _guard: guard,
        })
    }

    /// The arrays, with nothing known of them.
    ///
    /// # Safety
    /// The caller has the lock: everybody who uses the arrays comes here with it, and is done before giving it back.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one lock guards all five arrays")]
    unsafe fn state(&self) -> State<'_> {
        let head = self.head();
        // SAFETY: passed on.
        let (used, loose, taken_bits, retired, loose_runs) = unsafe {
            (
                SharedArray::new(&self.region, &head.used, 0),
                SharedArray::new(&self.region, &head.loose, 1),
                SharedArray::new(&self.region, &head.taken, 2),
                SharedArray::new(&self.region, &head.retired, 3),
                SharedArray::new(&self.region, &head.loose_runs, 4),
            )
        };
        State {
            bitmap: Bitmap::over(used, bitmap::Counts::default()),
            loose: Bitmap::over(loose, bitmap::Counts::default()),
            taken_bits,
            loose_runs,
            retired,
            staged: 0,
            retired_pages: 0,
            awaited: Room::default(),
            taken: Room::default(),
            taken_value_pages: 0,
            taken_beyond: 0,
            for_bitmap: (0, 0),
            saved: (0, 0),
            durable_ends: [0, 0],
        }
    }

    fn mirror(&self, state: &State<'_>) {
        let (head, available) = (self.head(), state.available());
        head.available.0.store(available.pages, Ordering::Relaxed);
        head.small_blocks.store(available.blocks.small, Ordering::Relaxed);
        head.large_blocks.store(available.blocks.large, Ordering::Relaxed);
        head.base.store(state.base(), Ordering::Relaxed);
        // Release: who sees a page in use sees that the file is so long.
        head.file_pages.store(state.bitmap.pages() as u64, Ordering::Release);
    }

    /// Bytes of the file, whichever process made it so long.
    #[inline]
    pub(crate) fn file_bytes(&self) -> u64 {
        self.head().file_pages.load(Ordering::Acquire) * PAGE_BYTES as u64
    }

    /// What the mirrors say is available.
    fn available(&self) -> Room {
        Room {
            pages: self.head().available.0.load(Ordering::Relaxed),
            blocks: Blocks {
                small: self.head().small_blocks.load(Ordering::Relaxed),
                large: self.head().large_blocks.load(Ordering::Relaxed),
            },
        }
    }

    /// What is promised to the commits that are not folded.
    fn promised(&self) -> Room {
        self.head().promises.needed(self.head().base.load(Ordering::Relaxed))
    }

    /// Promises the room for a commit, growing the file when needed. `uses_reserve`: the commit only deletes.
    pub(crate) fn promise(&self, costs: FoldCosts, uses_reserve: bool, pages: &Pages) -> Result<()> {
        self.head().promises.add(costs);
        let reserve = if uses_reserve { Room::default() } else { Room::RESERVE };
        let reserve = reserve.and(self.kept_for_registers());
        let result = self.have(self.promised().and(reserve), pages);
        if result.is_err() {
            self.settle(costs);
        }
        result
    }

    /// Takes back what was promised: the commit was refused, or is folded.
    pub(crate) fn settle(&self, costs: FoldCosts) {
        self.head().promises.settle(costs);
    }

    /// Adds what recovery found in the log, without asking for room: the fold will ask.
    pub(crate) fn promise_recovered(&self, costs: FoldCosts) {
        self.head().promises.add(costs);
    }

    /// In how many steps changes to all of the base are folded.
    pub(crate) fn fold_steps(&self) -> u64 {
        let head = self.head();
        head.promises.fold_steps(head.base.load(Ordering::Relaxed))
    }

    /// Whether they are folded in one, however large it is.
    pub(crate) fn folds_in_one(&self) -> bool {
        self.head().promises.fold_steps(DATA_PAGES_MAX) == 1
    }

    /// From now on folds are not done step by step: what they replace is kept for commit streams in any case.
    pub(crate) fn fold_in_one(&self) {
        self.head().promises.fold_in_one();
    }

    /// Room that even deletions leave: what they replace may belong to checkpoints, which must then be dropped. And a fold must have
    /// room to keep the pending one.
    fn kept_for_registers(&self) -> Room {
        let room = |pages: &AtomicU64| match pages.load(Ordering::Relaxed) {
            0 => Room::default(),
            pages => Want::Piece(pages as u32).room(),
        };
        room(&self.head().register_pages).and(room(&self.head().next_register_pages))
    }

    /// A checkpoint is about to be made: from now on what folds replace does not come free, so they are not done step by step, and
    /// room for the register is left. The caller shuts other writers out, and there is no pending checkpoint. Returns what
    /// [`Space::gives_up_root`] needs to know.
    ///
    /// # Errors
    /// [`Reason::Full`]: there is no room for folding so what was promised to commits. Nothing has changed then.
    pub(crate) fn begin_to_keep_root(&self, register_pages: u32, pages: &Pages) -> Result<bool> {
        let was_in_one = self.has_root_to_keep(register_pages);
        let room = self.have(self.promised().and(self.kept_for_registers()), pages);
        room.inspect_err(|_| self.gives_up_root(was_in_one))
            .map(|()| was_in_one)
    }

    /// There is a pending checkpoint, which will be in a register of so many pages. Returns whether folds were done in one before.
    pub(crate) fn has_root_to_keep(&self, register_pages: u32) -> bool {
        let head = self.head();
        head.next_register_pages.store(register_pages.into(), Ordering::Relaxed);
        head.promises.fold_in_one()
    }

    /// The checkpoint is not made.
    pub(crate) fn gives_up_root(&self, was_in_one: bool) {
        self.keeps_root();
        if !was_in_one {
            self.head().promises.fold_in_steps();
        }
    }

    /// There is no pending checkpoint any more.
    pub(crate) fn keeps_root(&self) {
        self.head().next_register_pages.store(0, Ordering::Relaxed);
    }

    /// The register of checkpoints has so many pages; 0: there are none. Folds stay as they are then until the store is opened again.
    pub(crate) fn keeps_roots(&self, register_pages: u32) {
        let head = self.head();
        head.register_pages.store(register_pages.into(), Ordering::Relaxed);
        if register_pages > 0 {
            head.promises.fold_in_one();
        }
    }

    /// Notes the height of the new base, and the number of its branches, if they could be counted.
    pub(crate) fn tree_is(&self, height: u8, branches: Option<u64>) {
        self.head().promises.tree_is(height, branches);
    }

    fn have(&self, needed: Room, pages: &Pages) -> Result<()> {
        if needed.missing_in(self.available()) == 0 {
            return Ok(());
        }
        let mut state = self.lock()?;
        self.have_locked(&mut state, needed, pages)
    }

    fn have_locked(&self, state: &mut State<'_>, needed: Room, pages: &Pages) -> Result<()> {
        match needed.missing_in(state.available()) {
            0 => Ok(()),
            missing => self.grow(state, missing, pages),
        }
    }

    fn grow(&self, state: &mut State<'_>, short: u64, pages: &Pages) -> Result<()> {
        let now = state.bitmap.pages() as u64;
        let step = (now / 64).clamp(GROWTH_PAGES_MIN, GROWTH_PAGES_MAX);
        let mut wanted = short.next_multiple_of(step);
        if now + wanted >= LARGE_FILE_PAGES {
            wanted = (now + wanted).next_multiple_of(LARGE_PIECE_PAGES) - now;
        }
        let grown = self.grow_by(state, wanted, pages);
        // Near the end of the disk less may be had than is handy.
        let grown = grown.or_else(|error| {
            if wanted == short {
                Err(error)
            } else {
                self.grow_by(state, short, pages)
            }
        });
        self.mirror(state);
        grown
    }

    fn grow_by(&self, state: &mut State<'_>, more: u64, pages: &Pages) -> Result<()> {
        let now = state.bitmap.pages() as u64;
        let bytes = more * PAGE_BYTES as u64;
        if now + more > DATA_PAGES_MAX {
            return Err(Reason::Full {
                needed: bytes,
                what: "the data file, which ends at 16 TiB",
            }
            .into());
        }
        // First, because it is little: were the file to take all that the disk has left, it could not be used.
        self.reserve(state, now + more)?;
        self.file
            .allocate(now * PAGE_BYTES as u64, bytes)
            .map_err(|error| full_or_io("the data file", bytes, error))?;
        pages.cover((now + more) * PAGE_BYTES as u64)?;
        state.extend(more as u32);
        Ok(())
    }

    /// Takes free pages, and says which: as many as wanted, or fewer where that makes sense.
    pub(crate) fn take(&self, claim: Claim, want: Want, pages: &Pages) -> Result<(u32, u32)> {
        let mut state = self.lock()?;
        if claim == Claim::Loose && state.loose_runs.is_full() {
            // Values of transactions that were dropped are listed until then.
            state.forget_needless_runs();
        }
        let mut where_from = claim;
        if !claim.is_promised() {
            let beside = self.promised().and(Room::RESERVE);
            let room = match claim {
                // The end of the file is taken whatever blocks lie there.
                Claim::Behind => want.room_in_blocks(),
                _ => want.room(),
            };
            if self.have_locked(&mut state, beside.and(room), pages).is_err() {
                self.have_locked(&mut state, beside.and(want.least().room()), pages)?;
                if claim == Claim::Behind {
                    where_from = Claim::Beyond;
                }
            }
        }
        let (page, count) = self.find_or_grow(&mut state, where_from, want, pages)?;
        if claim == Claim::Loose && self.region.seat().is_shared() {
            state.note_loose_run(page, count, self.region.me())?;
        }
        state.bitmap.set(page, count, true);
        kill_point();
        match claim {
            Claim::Promised | Claim::Part => state.count_taken(want, count, u64::wrapping_add),
            Claim::Beyond | Claim::Behind | Claim::Front => state.taken_beyond += count as u64,
            Claim::Loose => state.loose.set(page, count, true),
        }
        if claim != Claim::Loose {
            state.mark_taken(page, count, true);
        }
        self.mirror(&state);
        let end = (page + count) as u64;
        let file_pages = state.bitmap.pages() as u64;
        drop(state);
        pages.forget(page, count);
        if !pages.exceeds_memory() {
            self.preload(end, file_pages, claim);
        }
        Ok((page, count))
    }

    fn find_or_grow(&self, state: &mut State<'_>, claim: Claim, want: Want, pages: &Pages) -> Result<(u32, u32)> {
        // What others, and this fold later, count on.
        let promised = self.promised();
        let mut kept = promised.and(Room::RESERVE);
        if claim.is_promised() && matches!(want, Want::Piece(_)) {
            kept.blocks.large = 0;
        }
        if claim == Claim::Behind {
            let alignment = if matches!(want, Want::Branches(_)) {
                BRANCH_PAGES
            } else {
                1
            };
            let page = state.bitmap.end_of_used().next_multiple_of(alignment);
            let missing = (page + want.pages()).saturating_sub(state.bitmap.pages());
            if missing == 0 || self.grow(state, missing as u64, pages).is_ok() {
                return Ok((page, want.pages()));
            }
        }
        let beside = BRANCH_PAGES as u64;
        if claim == Claim::Part && state.would_take_more(want, promised) {
            self.grow(state, want.pages() as u64 + beside, pages)
                .map_err(left_to_one_thread)?;
        }
        let enough = match claim {
            Claim::Front => 1,
            _ => LONG_RUN_PAGES,
        };
        if let Some(run) = state.find(want, enough, kept) {
            return Ok(run);
        }
        let grown = self
            .grow(state, want.pages() as u64 + beside, pages)
            .or_else(|_| self.grow(state, want.least().pages() as u64 + beside, pages));
        match grown {
            Ok(()) => Ok(state.find_any(want).expect("the file has just grown")),
            // Better to take what is kept for later than to stop now.
            Err(error) if claim == Claim::Promised => state.find_any(want.least()).ok_or(error),
            Err(error) if claim == Claim::Part => Err(left_to_one_thread(error)),
            Err(error) => Err(error),
        }
    }

    /// Brings the part of the file up to page `end`, when it is about to be written for the first time, into memory in
    /// large pieces. Only in large files: a small one would occupy several times its size. Here and not when the file
    /// grows, because that is in the way of a commit. Not for long values and runs: they are written in long pieces,
    /// and read so, and the kernel would clear memory first that they fill right after. Not for copies and imports
    /// either: those who read them are other processes, later.
    fn preload(&self, end: u64, file_pages: u64, claim: Claim) {
        let whole = file_pages / LARGE_PIECE_PAGES * LARGE_PIECE_PAGES;
        let end = end.next_multiple_of(LARGE_PIECE_PAGES).min(whole);
        // Relaxed: only a hint depends on it.
        let start = self.head().preloaded.load(Ordering::Relaxed);
        if start >= end {
            return;
        }
        self.head().preloaded.store(end, Ordering::Relaxed);
        if end >= LARGE_FILE_PAGES && !matches!(claim, Claim::Loose | Claim::Beyond) {
            let bytes = |pages: u64| pages * PAGE_BYTES as u64;
            self.file.preload_in_large_pieces(bytes(start), bytes(end - start));
        }
    }

    /// Loose pages that were taken and are not needed after all. While a suspended process holds the lock, they wait,
    /// and are given back with later pages, or when this process ends.
    ///
    /// This process forgets that it verified them: another process may take them without counting them as freed.
    pub(crate) fn give_back(&self, page: u32, count: u32, pages: &Pages) {
        pages.forget(page, count);
        let mut owed = self.owed.lock().unwrap_or_else(|e| e.into_inner());
        owed.push((page, count));
        let Ok(mut state) = self.lock() else { return };
        for (page, count) in owed.drain(..) {
            // Only a test notices that it was not done.
            let _ = self.overwrite(page, count);
            state.bitmap.set(page, count, false);
            state.loose.set(page, count, false);
        }
        self.mirror(&state);
    }

    /// Pages that were taken for a new tree, which does not need them. This process forgets that it verified them.
    ///
    /// # Errors
    /// [`Reason::Busy`]: the tree must be given up.
    pub(crate) fn give_back_run(&self, claim: Claim, want: Want, page: u32, count: u32, pages: &Pages) -> Result<()> {
        if claim == Claim::Loose {
            self.give_back(page, count, pages);
            return Ok(());
        }
        pages.forget(page, count);
        let mut state = self.lock()?;
        match claim {
            Claim::Promised | Claim::Part => state.count_taken(want, count, u64::wrapping_sub),
            Claim::Beyond | Claim::Behind | Claim::Front => state.taken_beyond -= count as u64,
            Claim::Loose => {}
        }
        state.mark_taken(page, count, false);
        state.bitmap.set(page, count, false);
        self.mirror(&state);
        Ok(())
    }

    /// Notes what becomes of pages when a tree is published that is ready now: those that are retired then, and those
    /// that a commit brought and it refers to.
    pub(crate) fn stage(&self, retired: impl IntoIterator<Item = Retired>, adopted: &[Extent]) -> Result<()> {
        let retired = retired.into_iter().map(Retired::encode);
        let adopted = adopted
            .iter()
            .map(|extent| Retired::encode_adopted(extent.page, extent.pages()));
        let staged: Vec<StoredRetired> = retired.chain(adopted).collect();
        let mut state = self.lock()?;
        assert_eq!(state.staged, 0, "one tree is published at a time");
        // There is room: each page is one of these at most once.
        state.retired.append(&staged);
        state.staged = staged.len() as u64;
        Ok(())
    }

    /// The tree was published as version `death`: what was taken for it belongs to the base, and what it does not hold
    /// is retired. `pins` are those of snapshots, looked up after it was published. If this process dies here, the next
    /// holder of the maintenance lock continues.
    pub(crate) fn install(&self, death: u64, pins: &Pins) -> Result<()> {
        let mut state = self.lock()?;
        while state.staged > 0 {
            let last = *state.retired.last().expect("what is staged is among the elements");
            if let Some((page, pages)) = Retired::decode_adopted(last) {
                state.loose.set(page, pages, false);
                let count = state.retired.len() - 1;
                state.retired.resize(count, StoredRetired::default());
            } else {
                self.retire_first(&mut state, death, pins);
            }
            state.staged -= 1;
            state.end_long_step();
        }
        state.taken = Room::default();
        state.taken_value_pages = 0;
        state.taken_beyond = 0;
        state.forget_needless_runs();
        // Not noted: a process that finds it half done repeats it.
        state.taken_bits.fill(0);
        kill_point();
        self.mirror(&state);
        Ok(())
    }

    /// Retires the first of the staged elements; those that are none come last.
    fn retire_first(&self, state: &mut State<'_>, death: u64, pins: &Pins) {
        let first = state.retired_count();
        let item = Retired {
            death,
            ..Retired::decode(state.retired[first])
        };
        state.retired.put(first, item.encode());
        kill_point();
        state.retired_pages += item.pages as u64;
        if !item.is_held(pins) {
            state.awaited = state.awaited.and(item.room());
        }
        state.loose.set(item.page, item.pages, false);
    }

    /// Marks pages as used that a replayed record refers to.
    pub(crate) fn mark_used(&self, page: u32, count: u32) -> Result<()> {
        let mut state = self.lock()?;
        if page < META_PAGES || page as u64 + count as u64 > state.bitmap.pages() as u64 {
            return Err(Error::damaged(format!(
                "the log refers to pages {page}+{count}, beyond the data file"
            )));
        }
        if (page..page + count).any(|page| state.bitmap.is_used(page)) {
            return Err(Error::damaged(format!(
                "the log refers to pages {page}+{count}, which are in use elsewhere"
            )));
        }
        state.bitmap.set(page, count, true);
        state.loose.set(page, count, true);
        self.mirror(&state);
        Ok(())
    }

    /// Whether there are pages that the newest base does not use and that are not free.
    pub(crate) fn has_retired(&self) -> Result<bool> {
        Ok(self.lock()?.retired_pages > 0)
    }

    fn overwrite(&self, page: u32, count: u32) -> std::io::Result<()> {
        if !self.overwrites {
            return Ok(());
        }
        let rubbish = vec![0xDD; count as usize * PAGE_BYTES];
        self.file.write_at(&rubbish, page as u64 * PAGE_BYTES as u64)
    }

    /// Frees retired pages that neither a snapshot nor the durable base needs.
    pub(crate) fn reclaim(&self, pins: &Pins, durable_version: u64, pages: &Pages) -> Result<u64> {
        let mut state = self.lock()?;
        assert_eq!(state.staged, 0, "nothing is freed while a tree is published");
        // As long as no base of `death` or later is durable, recovery may go back to a base that refers to these pages,
        // or replay records that do.
        let is_kept = |item: &Retired| item.is_held(pins) || item.death > durable_version;
        let awaited = state.all_retired().filter(|item| is_kept(item) && !item.is_held(pins));
        // Before anything is free: a process that dies halfway leaves the count too low, never too high.
        state.awaited = awaited.fold(Room::default(), |room, item| room.and(item.room()));
        let (mut freed, mut overwritten, mut index) = (0, Ok(()), 0);
        if state.all_retired().any(|item| !is_kept(&item)) {
            // Before any process can take them. First what this process has seen: a snapshot that begins between the
            // two would forget all that was verified here. No process counts without the lock.
            let count = &self.region.control().freed;
            pages.freed_here(count.load(Ordering::Relaxed));
            // Release: pairs with the load in `cover_data`.
            count.fetch_add(1, Ordering::AcqRel);
        }
        while let Some(&stored) = state.retired.get(index) {
            let item = Retired::decode(stored);
            if is_kept(&item) {
                index += 1;
                continue;
            }
            freed += item.pages as u64;
            pages.forget(item.page, item.pages);
            state.bitmap.set(item.page, item.pages, false);
            state.retired_pages -= item.pages as u64;
            let last = state.retired.len() - 1;
            if index < last {
                let moved = state.retired[last];
                state.retired.put(index, moved);
            }
            kill_point();
            state.retired.resize(last, StoredRetired::default());
            state.end_long_step();
            // An error must not leave the rest as it is.
            overwritten = overwritten.and(self.overwrite(item.page, item.pages));
        }
        self.mirror(&state);
        overwritten
            .map(|()| freed)
            .map_err(|error| Error::io("overwriting freed pages", error))
    }

    /// Writes the bitmap of the pages that the newest base uses: all used pages but those that are retired or loose.
    /// `previous` is the saved bitmap that this one replaces: it is not marked.
    pub(crate) fn save(&self, previous: SavedBitmap, pages: &Pages) -> Result<(SavedBitmap, u32)> {
        let mut state = self.lock()?;
        let (page, count) = self.room_for_bitmap(&mut state, pages)?;
        // Until it is the bitmap in use. A process that dies before that leaves the place to the next one.
        state.for_bitmap = (page, count);
        let mut durable = state.bitmap.copy();
        for item in state.all_retired() {
            durable.set(item.page, item.pages, false);
        }
        durable.set(previous.page, previous.pages, false);
        if is_planted(PlantedBug::BitmapNotSaved) {
            durable = Bitmap::new(durable.pages());
        }
        durable.remove(&state.loose);
        let (image, end) = (durable.image(count), state.bitmap.end_of_used());
        drop(state);
        self.file
            .write_at(&image, page as u64 * PAGE_BYTES as u64)
            .map_err(|error| match error.kind() {
                // A file system that copies on write; the place is kept for the next attempt.
                std::io::ErrorKind::StorageFull => full_or_io("the bitmap of used pages", image.len() as u64, error),
                _ => Error::io("saving the bitmap of used pages", error),
            })?;
        let saved = SavedBitmap {
            page,
            pages: count,
            checksum: checksum_with(pages.seed(), &image),
        };
        Ok((saved, end))
    }

    /// Pages for the next bitmap, in one piece, now used: those that are kept for it, unless it has become longer, or
    /// there are others nearer to the beginning of the file, whose end should come free.
    fn room_for_bitmap(&self, state: &mut State<'_>, pages: &Pages) -> Result<(u32, u32)> {
        let (kept, length) = state.for_bitmap;
        // The file may grow by one step when the pages are taken: leave room for that.
        let count = state.bitmap.image_pages(GROWTH_PAGES_MAX);
        let is_enough = length >= count;
        let found = match state.find(Want::Piece(count), count, self.promised().and(Room::RESERVE)) {
            Some((page, _)) if !is_enough || page < kept => page,
            _ if is_enough => {
                // It was kept when the file was longer.
                state.bitmap.set(kept + count, length - count, false);
                self.mirror(state);
                return Ok((kept, count));
            }
            _ => self.find_or_grow(state, Claim::Promised, Want::Piece(count), pages)?.0,
        };
        state.bitmap.set(kept, length, false);
        state.bitmap.set(found, count, true);
        self.mirror(state);
        pages.forget(found, count);
        Ok((found, count))
    }

    /// Keeps room for the next bitmap, if there is any. On a disk that is full it could not be had in one piece later.
    pub(crate) fn keep_room_for_bitmap(&self) -> Result<()> {
        let mut state = self.lock()?;
        let count = state.bitmap.image_pages(GROWTH_PAGES_MAX);
        if let Some((page, count)) = state.find_any(Want::Piece(count)) {
            state.bitmap.set(page, count, true);
            state.for_bitmap = (page, count);
            self.mirror(&state);
        }
        Ok(())
    }

    /// A meta page that refers to this bitmap, and to no page from `end` on, is durable. The pages of the bitmap that
    /// no meta page needs any more take the next one.
    pub(crate) fn saved(&self, bitmap: SavedBitmap, end: u32) -> Result<()> {
        let mut state = self.lock()?;
        if state.saved == (bitmap.page, bitmap.pages) {
            // A process died right after this.
            return Ok(());
        }
        state.for_bitmap = (0, 0);
        state.durable_ends = [state.durable_ends[1], end];
        let old = std::mem::replace(&mut state.saved, (bitmap.page, bitmap.pages));
        if old.1 == 0 {
            drop(state);
            return self.keep_room_for_bitmap();
        }
        let needed = state.bitmap.image_pages(GROWTH_PAGES_MAX).min(old.1);
        let (page, count) = std::mem::replace(&mut state.for_bitmap, (old.0, needed));
        state.bitmap.set(page, count, false);
        // It was made when the file was longer.
        state.bitmap.set(old.0 + needed, old.1 - needed, false);
        self.mirror(&state);
        Ok(())
    }

    /// Bytes of the pages in use, those that are only retired not counted.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.head().base.load(Ordering::Relaxed) * PAGE_BYTES as u64
    }

    /// Bytes in the log that wait for a fold.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.head().promises.pending().bytes
    }

    pub(crate) fn figures(&self) -> Result<SpaceFigures> {
        let state = self.lock()?;
        let pending = self.head().promises.pending();
        Ok(SpaceFigures {
            file_pages: state.bitmap.pages() as u64,
            // Nothing is kept where the next bitmap goes.
            free_pages: state.bitmap.free() + state.for_bitmap.1 as u64,
            retired_pages: state.retired_pages,
            pending_operations: pending.operations,
            pending_bytes: pending.bytes,
        })
    }

    /// Copies of the bitmaps of used and of loose pages and of the retired pages, for the checker.
    pub(crate) fn contents(&self) -> Result<(Bitmap, Bitmap, Vec<Retired>)> {
        let state = self.lock()?;
        let mut used = state.bitmap.copy();
        // Nothing is there yet.
        used.set(state.for_bitmap.0, state.for_bitmap.1, false);
        Ok((used, state.loose.copy(), state.all_retired().collect()))
    }
}
