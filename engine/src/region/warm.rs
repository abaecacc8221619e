//! The region as a closed store leaves it for the next opening: a *warm* region.
//!
//! Folding the log takes seconds after a large load, and replaying it takes a good part of one. The region holds the
//! indexes of the log and what the allocator knows. So the last process to close a store leaves the region as it is, with a
//! mark in it, and the next opening goes on with it ([decision 22](../../../docs/decisions/0022-closing-leaves-the-region.md)).
//!
//! An opening believes a mark only if nothing can have changed since:
//!
//! - **The machine was not started again.** After a start, pages that no sync covered may be lost.
//! - **The files are those that the store closed**: data file, log files and region have the stamps
//!   ([`duramen_io::FileStamp`]) that they had. A copy, a restored backup and a program that wrote to one of them change those.
//! - **The region holds what it held**: the mark has a checksum of all that is in use.
//! - **The library is this one**, and lays the region out as this one does.
//!
//! The opening takes the mark away before it looks at anything else, so a mark is believed once. Whatever fails, the store
//! is opened from the data file and the log, as after a crash.

use std::hash::Hasher;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duramen_io::{File, OpenMode, Platform};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Control, GENERATION_BYTES, GENERATIONS_START, LAYOUT, MEMORY_START, Piece, REGION_FILE, Region, SLOT_BYTES,
    SLOTS_START, library,
};
use crate::datafile::meta::DATA_FILE;
use crate::index::Index;
use crate::limits::{GENERATIONS_MAX, SNAPSHOTS_MAX};
use crate::region::processes::Seat;

const MARK_BYTES: usize = size_of::<SharedMark>();
const MARK_WORDS: usize = MARK_BYTES / 8;

/// The mark, in the control block of the region. All zeros: there is none.
#[repr(C)]
pub(super) struct SharedMark([AtomicU64; 7]);

/// What the mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    boot: u128,
    /// A hash of the stamps of all files.
    files: u64,
    /// Length of the region's file.
    length: u64,
    /// A hash of the head of the region, taken with a mark of zeros.
    head: u64,
    /// A hash of its memory.
    memory: u64,
}

impl Mark {
    /// The last word says that there is a mark.
    fn words(self) -> [u64; MARK_WORDS] {
        let boot = [self.boot as u64, (self.boot >> 64) as u64];
        [boot[0], boot[1], self.files, self.length, self.head, self.memory, 1]
    }

    fn of_words(words: [u64; MARK_WORDS]) -> Option<Mark> {
        let [low, high, files, length, head, memory, is_set] = words;
        (is_set == 1).then_some(Mark {
            boot: u128::from(high) << 64 | u128::from(low),
            files,
            length,
            head,
            memory,
        })
    }
}

impl Region {
    /// Leaves the region to the next opening. The caller is the last one, keeps others out, has given up its entry, and
    /// has made the log durable; `memory` is what [`Region::hash_of_memory`] said, and nothing was committed or folded since.
    /// `false`: the next opening must do without it.
    pub(crate) fn leave_warm(&self, platform: &Platform, memory: u64) -> bool {
        // Memory elsewhere would stay if the directory is removed; private memory cannot be found again.
        if self.elsewhere.is_some() || self.is_private || !self.is_at_rest() {
            return false;
        }
        let mark = || -> std::io::Result<Option<Mark>> {
            let Some(boot) = platform.clock.boot() else {
                return Ok(None);
            };
            let Some(files) = stamps(platform)? else {
                return Ok(None);
            };
            Ok(Some(Mark {
                boot,
                files,
                length: self.file.len()?,
                head: self.hash_of_head(),
                memory,
            }))
        };
        let Ok(Some(mark)) = mark() else { return false };
        let places = self.control().mark.0.iter().zip(mark.words());
        // Release: the last word says that the others are there.
        places.for_each(|(place, word)| place.store(word, Ordering::Release));
        self.is_last.store(false, Ordering::Relaxed);
        true
    }

    /// A hash of what indexes and arrays hold: all but the head. Memory without an owner is left out.
    pub(crate) fn hash_of_memory(&self) -> u64 {
        let mut hasher = Xxh3::new();
        for (_, entry) in self.generations() {
            let (offset, bytes) = entry.memory.place();
            if bytes == 0 {
                continue;
            }
            // SAFETY: the piece lies in the mapping, and its owner may have made an index of it.
            let index = unsafe { Index::attach(self.memory(offset), bytes as usize) };
            for used in index.iter().flat_map(Index::used_parts) {
                self.hash_part(&mut hasher, offset + used.start..offset + used.end);
            }
        }
        for array in self.control().space.arrays() {
            for (offset, bytes) in array.pieces.iter().map(Piece::place) {
                self.hash_part(&mut hasher, offset..offset + bytes);
            }
        }
        hasher.digest()
    }

    /// A hash of the control block and of the tables.
    fn hash_of_head(&self) -> u64 {
        let control = self.control();
        let generations = u64::from(control.generations_allocated.load(Ordering::Acquire));
        let slots = u64::from(control.slots_allocated.load(Ordering::Acquire));
        let mut hasher = Xxh3::new();
        let tables_end = GENERATIONS_START + generations.min(GENERATIONS_MAX as u64) * GENERATION_BYTES;
        self.hash_part(&mut hasher, 0..tables_end);
        let slots_end = SLOTS_START + slots.min(SNAPSHOTS_MAX as u64) * SLOT_BYTES;
        self.hash_part(&mut hasher, SLOTS_START..slots_end);
        hasher.digest()
    }

    fn hash_part(&self, hasher: &mut Xxh3, part: Range<u64>) {
        let first = self.mapping.base().wrapping_add(part.start as usize);
        // SAFETY: the part lies in the mapping and below the end of the file. No thread stores there: the caller keeps others
        // out, and has stopped its own threads.
        let bytes = unsafe { std::slice::from_raw_parts(first, (part.end - part.start) as usize) };
        hasher.update(bytes);
    }

    /// Whether no process uses the region, and no change of it is half done.
    fn is_at_rest(&self) -> bool {
        let control = self.control();
        let locks = [
            &control.commit_lock,
            &control.sync_lock,
            &control.data_sync_lock,
            &control.maintenance_lock,
            &control.burial_lock,
            &control.preparing_lock,
            &control.growth_lock,
            &control.space.lock,
        ];
        let words = [
            &control.exclusive.0,
            &control.maintenance_owed,
            &control.freeing,
            &control.life.0,
            &control.damaged,
            &control.sync_doubts[0],
            &control.sync_doubts[1],
        ];
        let number = |word: &AtomicU64| word.load(Ordering::SeqCst);
        locks.iter().all(|lock| lock.0.holder().is_none())
            && words.iter().all(|word| word.load(Ordering::SeqCst) == 0)
            && number(&control.installing) == 0
            && number(&control.visible.0) == number(&control.synced.0)
            && self.processes().next().is_none()
            && !self.is_pinned()
            && !self.generations().any(|(_, entry)| entry.is_being_prepared())
    }

    /// The warm region of a store, for the process that sits in `seat` and keeps others out. `Err`: there is none, or it
    /// cannot be relied on.
    pub(crate) fn take_warm(platform: &Platform, seat: Seat) -> std::result::Result<Region, Seat> {
        let taken = || -> std::io::Result<Option<(Arc<dyn File>, Mark)>> {
            let file = platform.storage.open(REGION_FILE, OpenMode::Write)?;
            // One that names memory elsewhere is shorter.
            if file.len()? < MEMORY_START {
                return Ok(None);
            }
            let Some(mark) = take_mark(&*file)? else {
                return Ok(None);
            };
            let is_of_this_library = || -> std::io::Result<bool> {
                let layout: [u64; 1] = words_at(&*file, offset_of!(Control, layout))?;
                Ok(layout == [LAYOUT] && words_at(&*file, offset_of!(Control, library))? == library())
            };
            let is_warm = platform.clock.boot() == Some(mark.boot)
                && is_of_this_library()?
                && stamps(platform)? == Some(mark.files)
                && file.len()? == mark.length;
            Ok(is_warm.then_some((file, mark)))
        };
        let Some((file, mark)) = taken().ok().flatten() else {
            return Err(seat);
        };
        // This process may not have so many addresses.
        let Ok((mapping, span)) = Region::mapping_of_its_maker(&*file) else {
            return Err(seat);
        };
        let mut region = Region::of(file, mapping, span, seat);
        // Only what the head says of the memory is needed to look at that.
        if region.hash_of_head() == mark.head
            && region.end_of_memory() <= mark.length
            && region.hash_of_memory() == mark.memory
        {
            return Ok(region);
        }
        region.is_last.store(false, Ordering::Relaxed);
        Err(std::mem::replace(&mut region.seat, Seat::alone()))
    }
}

/// Takes the mark away, so that it is believed once.
fn take_mark(file: &dyn File) -> std::io::Result<Option<Mark>> {
    let place = offset_of!(Control, mark);
    let Some(mark) = Mark::of_words(words_at(file, place)?) else {
        return Ok(None);
    };
    file.write_at(&[0; MARK_BYTES], place as u64)?;
    Ok(Some(mark))
}

fn words_at<const N: usize>(file: &dyn File, offset: usize) -> std::io::Result<[u64; N]> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        file.read_at(&mut bytes, (offset + index * 8) as u64)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

/// A hash of the stamps of the files of a store. `None`: the machine cannot tell.
fn stamps(platform: &Platform) -> std::io::Result<Option<u64>> {
    let is_ours = |name: &str| name == DATA_FILE || name == REGION_FILE || name.starts_with("wal-");
    let mut names = platform.storage.list()?;
    names.retain(|name| is_ours(name));
    names.sort_unstable();
    let mut hasher = Xxh3::new();
    for name in names {
        let Some(stamp) = platform.storage.stamp(&name)? else {
            return Ok(None);
        };
        hasher.write(name.as_bytes());
        hasher.write_u64(stamp.file.0);
        hasher.write_u64(stamp.file.1);
        // The region itself changes with the mark, and has a checksum.
        if name != REGION_FILE {
            hasher.write_u64(stamp.length);
            hasher.write_u64(stamp.changed.0);
            hasher.write_u64(stamp.changed.1);
        }
    }
    Ok(Some(hasher.finish()))
}
