//! Views: what a moment of the store shows, and the pins and locks that keep it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::Core;
use crate::datafile::pages::MappedPages;
use crate::datafile::register::{Kept, Register};
use crate::error::{Error, Reason, Result};
use crate::log::LogView;
use crate::read::deleted::Deleted;
use crate::read::generation_view::GenerationView;
use crate::read::view::View;
use crate::region::{GenerationEntry, Pin, Version};

impl Core {
    /// The log of a generation. Another process may have made its file.
    ///
    /// # Safety
    /// What is returned, and what it leads to, is used only while the generation is alive or held: by a pin of a version
    /// that has it, by the commit lock, by the maintenance lock, or by [`Core::keep_generations`].
    ///
    /// # Errors
    /// [`Reason::Io`] when it cannot be opened or mapped in this process.
    #[inline]
    pub(crate) unsafe fn log_view(&self, slot: u16) -> Result<LogView<'_>> {
        // SAFETY: passed on.
        unsafe { self.log_of(slot, self.entry(slot)) }
    }

    /// As [`Core::log_view`], with the entry at hand.
    ///
    /// # Safety
    /// As for [`Core::log_view`].
    #[inline(always)]
    unsafe fn log_of<'p>(&'p self, slot: u16, entry: &'p GenerationEntry) -> Result<LogView<'p>> {
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        // SAFETY: passed on.
        match unsafe { self.segments.view(slot, incarnation, &entry.filled) } {
            Some(view) => Ok(view),
            // SAFETY: passed on.
            None => unsafe { self.map_log(slot, incarnation) },
        }
    }

    /// As [`Core::log_view`], where this process has not mapped the file.
    ///
    /// # Safety
    /// As for [`Core::log_view`].
    #[cold]
    unsafe fn map_log(&self, slot: u16, incarnation: u32) -> Result<LogView<'_>> {
        self.segments.file(slot, incarnation, &self.entry(slot).number)?;
        // SAFETY: passed on.
        let mapped = unsafe { self.segments.view(slot, incarnation, &self.entry(slot).filled) };
        mapped.ok_or_else(|| Error::damaged(format!("the log file of slot {slot} was removed while it is in use")))
    }

    /// A generation as readers see it.
    ///
    /// # Safety
    /// As for [`Core::log_view`].
    #[inline(always)]
    pub(crate) unsafe fn generation_view(&self, slot: u16) -> Result<GenerationView<'_>> {
        let entry = self.entry(slot);
        // SAFETY: passed on.
        let log = unsafe { self.log_of(slot, entry) }?;
        Ok(GenerationView {
            log,
            index: self.index_of(entry),
        })
    }

    /// What the given version shows up to `commit`. The caller has called [`Core::cover_data`].
    ///
    /// # Safety
    /// As for [`Core::log_view`], for each generation of the version.
    pub(crate) unsafe fn view(&self, version: &Version, commit: u64) -> Result<View<'_>> {
        let mut view = self.empty_view(version, commit);
        // SAFETY: passed on.
        unsafe { self.fill_view(&mut view, version, |_| true) }?;
        Ok(view)
    }

    #[inline(always)]
    fn empty_view(&self, version: &Version, commit: u64) -> View<'_> {
        View {
            commit,
            newest_slot: version.generations.last().copied().unwrap_or(0),
            pages: self.pages.mapped(),
            root: version.root,
            hash_seed: self.hash_seed,
            generations: Default::default(),
            deleted: Deleted::nothing(version.base_commit),
        }
    }

    /// Adds the generations of a version. In place, because a view is large and every snapshot makes one.
    ///
    /// # Safety
    /// As for [`Core::view`].
    #[inline(always)]
    unsafe fn fill_view<'p>(
        &'p self,
        view: &mut View<'p>,
        version: &Version,
        is_seen: impl Fn(&GenerationView<'p>) -> bool,
    ) -> Result<()> {
        let mut has_range_deletes = false;
        for &slot in &version.generations {
            // SAFETY: passed on.
            let generation = unsafe { self.generation_view(slot) }?;
            if is_seen(&generation) {
                if view.generations.capacity() == 0 {
                    view.generations = spare_generations();
                }
                has_range_deletes |= generation.index.has_range_deletes();
                view.generations.push(generation);
            }
        }
        if has_range_deletes || self.deletions.has_passed(version.base_commit) {
            view.deleted = self.deletions.at(&view.generations, version.base_commit, view.commit);
        }
        Ok(())
    }

    /// Makes sure that all of the data file is mapped, which another process may have made longer, and that no page
    /// counts as verified here that another process has rewritten since.
    #[inline]
    pub(crate) fn cover_data(&self) -> Result<()> {
        if !self.is_shared() {
            return Ok(());
        }
        // After the version was read: a process that rewrote one of its pages had found the page free, and the count
        // says so.
        let freed = self.control().freed.load(Ordering::Acquire);
        if !self.pages.has_seen_freed(freed) {
            self.pages.forget_freed(freed);
        }
        let bytes = self.space.file_bytes();
        if bytes <= self.pages.span() {
            return Ok(());
        }
        self.pages.cover(bytes)
    }

    /// What is visible now.
    ///
    /// # Safety
    /// The caller has the commit lock, and keeps it while it uses what is returned and what that leads to.
    pub(crate) unsafe fn view_under_lock(&self) -> Result<View<'_>> {
        self.cover_data()?;
        let (version, _) = self.region.read_version(&self.control().visible.0);
        // SAFETY: under the commit lock no generation of the visible version goes.
        unsafe { self.view(&version, u64::MAX) }
    }

    /// Pins what is visible up to a limit that is never below the base: `visible` or `synced`.
    ///
    /// # Safety
    /// The view, and what it leads to, is used only until the pin is given back.
    #[inline(always)]
    pub(crate) unsafe fn pin_limit(&self, limit: &AtomicU64) -> Result<(Pin, View<'_>)> {
        self.own()?;
        let (pin, version, commit) = self.region.pin(slot_hint(), limit)?;
        // Checked after the pin was set: either this thread sees that the store is closed, or the closing thread sees
        // the pin.
        if self.closed.load(Ordering::SeqCst) {
            self.unpin(&pin);
            return Err(Reason::Closed.into());
        }
        remember_slot(pin.index);
        let mut view = self.empty_view(&version, commit);
        let filled = self.cover_data().and_then(|()| {
            // Covering the file may have mapped it again.
            view.pages = self.pages.mapped();
            // What is empty now has nothing for this commit later either, and every read would look there.
            // SAFETY: the pin keeps the version, and with it the generations.
            unsafe { self.fill_view(&mut view, &version, |generation| generation.has_anything()) }
        });
        if let Err(error) = filled {
            self.unpin(&pin);
            return Err(error);
        }
        Ok((pin, view))
    }

    /// Pins a checkpoint of the present register.
    ///
    /// # Safety
    /// As for [`Core::pin_limit`].
    pub(crate) unsafe fn pin_checkpoint(&self, name: &str) -> Result<(Pin, View<'_>)> {
        self.own()?;
        // This pin keeps the register, and all that the checkpoints in it hold, until the checkpoint has one of its own.
        let (pin, version, _) = self.region.pin(slot_hint(), &self.control().visible.0)?;
        let pinned = self.pin_kept(&version, name);
        self.unpin(&pin);
        let (pin, kept) = pinned?;
        if self.closed.load(Ordering::SeqCst) {
            self.unpin(&pin);
            return Err(Reason::Closed.into());
        }
        let kept = Version {
            number: kept.version,
            root: kept.root,
            base_commit: kept.commit,
            reaches: kept.commit,
            ..version
        };
        let mut view = self.empty_view(&kept, kept.base_commit);
        if let Err(error) = self.cover_data() {
            self.unpin(&pin);
            return Err(error);
        }
        view.pages = self.pages.mapped();
        Ok((pin, view))
    }

    /// The register of what folds have reached.
    pub(crate) fn register_now(&self) -> Result<Arc<Register>> {
        self.present()?;
        let (pin, version, _) = self.region.pin(slot_hint(), &self.control().visible.0)?;
        let register = self.register(version.register);
        self.unpin(&pin);
        register
    }

    fn pin_kept(&self, version: &Version, name: &str) -> Result<(Pin, Kept)> {
        let register = self.register(version.register)?;
        let unknown = || Reason::UnknownCheckpoint { name: name.into() };
        let kept = register.named(name).ok_or_else(unknown)?.clone();
        Ok((self.region.pin_again(kept.version, kept.commit)?, kept))
    }

    /// Gives a pin back; the last one of a closed store lets others open it.
    #[inline]
    pub(crate) fn unpin(&self, pin: &Pin) {
        self.region.unpin(pin);
        if self.closed.load(Ordering::SeqCst) {
            self.let_go_if_unused();
        }
    }

    /// Runs a read on what is visible now.
    pub(crate) fn with_view<T>(&self, read: impl FnOnce(&View<'_>) -> Result<T>) -> Result<T> {
        // SAFETY: `read` cannot keep anything of the view, and the pin is given back after it.
        let (pin, view) = unsafe { self.pin_limit(&self.control().visible.0) }?;
        let pin = PinGuard { core: self, pin };
        let result = read(&view);
        drop(pin);
        keep_generations(view.generations);
        result
    }

    /// The pages of the data file. The caller holds a pin or a lock that keeps those which it reads; readers use the
    /// pages of their view.
    #[inline]
    pub(crate) fn source(&self) -> MappedPages<'_> {
        self.pages.mapped()
    }
}

/// Unpins when dropped, also when a read panics.
struct PinGuard<'a> {
    core: &'a Core,
    pin: Pin,
}

impl Drop for PinGuard<'_> {
    fn drop(&mut self) {
        self.core.unpin(&self.pin);
    }
}

thread_local! {
    /// Where this thread found a free slot last: a hint that keeps threads off each other's cache lines.
    static SLOT_HINT: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

static NEXT_HINT: AtomicU64 = AtomicU64::new(0);

fn slot_hint() -> usize {
    SLOT_HINT.with(|hint| {
        if hint.get() == usize::MAX {
            hint.set(NEXT_HINT.fetch_add(1, Ordering::Relaxed) as usize);
        }
        hint.get()
    })
}

fn remember_slot(index: u32) {
    SLOT_HINT.with(|hint| hint.set(index as usize));
}

thread_local! {
    /// Memory for the generations of a view, which every snapshot needs and nearly always one snapshot after the other.
    static SPARE_GENERATIONS: std::cell::Cell<Vec<GenerationView<'static>>> = const { std::cell::Cell::new(Vec::new()) };
}

#[inline]
fn spare_generations<'p>() -> Vec<GenerationView<'p>> {
    // A thread that is ending has none.
    SPARE_GENERATIONS.try_with(std::cell::Cell::take).unwrap_or_default()
}

/// Gives the memory back to which views of this thread come next.
#[inline]
pub(crate) fn keep_generations(mut generations: Vec<GenerationView<'_>>) {
    if generations.capacity() > 0 {
        generations.clear();
        // Empty, so of any lifetime. The standard library collects into the memory that the iterator had; it does not promise
        // that, and without it each view would allocate.
        let generations = generations.into_iter().map(|_| unreachable!("it is empty")).collect();
        let _ = SPARE_GENERATIONS.try_with(|spare| spare.set(generations));
    }
}
