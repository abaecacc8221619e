//! The slots in which snapshots, transactions and streams pin versions, and what a reclaim must respect of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use duramen_io::Owner;

use super::{Region, SLOT_BYTES, SLOTS_START, SLOTS_STEP, Version};
use crate::error::{Reason, Result};
use crate::limits::SNAPSHOTS_MAX;

/// Pin value of a free slot.
const FREE: u64 = 0;
/// Bit of the pin value of a slot whose owner, whose number is the rest, has not yet chosen its version: nothing at all
/// may be reclaimed.
const CLAIMED: u64 = 1 << 63;
/// `follow` value of a snapshot that does not need the generations after its own.
const FOLLOW_NONE: u64 = 0;

/// Where one snapshot pins its version.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pin: AtomicU64,
    /// Number of the oldest generation that must be kept, with all after it, beyond those of the version.
    follow: AtomicU64,
    /// Process id of the owner.
    pub(crate) process: AtomicU32,
    /// 0 snapshot, 1 write transaction, 2 commit stream.
    pub(crate) purpose: AtomicU32,
    /// Commit that the snapshot shows.
    pub(crate) commit: AtomicU64,
    /// Time of day at which it was taken, in milliseconds since 1970.
    pub(crate) since: AtomicU64,
    /// Counts the uses of this slot that are over, so that an id never names two snapshots. Written by the owner.
    uses: AtomicU64,
    /// One more than the newest use that was ended from outside, so that it does not end a later use.
    ended: AtomicU64,
    /// Number of the entry of the process whose slot it is.
    owner: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// Bits of an id that are the slot's index. The rest counts its uses: at a million a second they last nine years.
const SLOT_INDEX_BITS: u32 = 16;
const _: () = assert!(SNAPSHOTS_MAX <= 1 << SLOT_INDEX_BITS);

/// The pins that a reclaim must respect.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// A reader is just beginning: reclaim nothing.
    pub(crate) everything: bool,
    /// Pinned versions, ascending.
    pub(crate) versions: Vec<u64>,
    /// Oldest generation number that a write transaction or stream follows.
    pub(crate) follow: Option<u64>,
    /// Oldest version of a stream that follows the log and can continue.
    pub(crate) follow_version: Option<u64>,
}

impl Pins {
    /// Whether a version in `birth..death` is pinned.
    pub(crate) fn hold(&self, birth: u64, death: u64) -> bool {
        let first = self.versions.partition_point(|&version| version < birth);
        self.everything || self.versions.get(first).is_some_and(|&version| version < death)
    }

    /// Whether a stream follows the log from before `death`, and so may meet a reference to what died then.
    pub(crate) fn hold_logged(&self, death: u64) -> bool {
        self.follow_version.is_some_and(|version| version < death)
    }
}

impl Region {
    /// Takes a slot and pins the published version in it; `hint` is where to look first.
    #[inline(always)]
    pub(crate) fn pin(&self, hint: usize, limit: &AtomicU64) -> Result<(Pin, Version, u64)> {
        let index = self.claim(hint)?;
        let slot = self.slot(index);
        // The claim stored that nothing may go; this fence orders it before the reads of the version. It pairs with the
        // fence in `pins`: either the reclaimer sees our pin, or we see the version it published before it looked.
        fence(Ordering::SeqCst);
        let (version, commit) = self.read_version(limit);
        slot.commit.store(commit, Ordering::Relaxed);
        slot.pin.store(version.number, Ordering::Release);
        Ok((Pin { index: index as u32 }, version, commit))
    }

    #[inline]
    fn claim(&self, hint: usize) -> Result<usize> {
        let used = &self.control().slots_used.0;
        let claimed = CLAIMED | u64::from(self.me().number());
        loop {
            let count = used.load(Ordering::Acquire) as usize;
            for step in 0..count {
                let index = (hint + step) % count;
                let slot = self.slot(index);
                if slot.pin.load(Ordering::Relaxed) == FREE
                    && slot
                        .pin
                        .compare_exchange(FREE, claimed, Ordering::SeqCst, Ordering::Relaxed)
                        .is_ok()
                {
                    // Before the version is in its place, which is what the owner is looked up for.
                    slot.owner.store(u32::from(self.me().number()), Ordering::Relaxed);
                    return Ok(index);
                }
            }
            if count == SNAPSHOTS_MAX {
                return Err(Reason::TooManySnapshots { open: count }.into());
            }
            self.add_slot(count)?;
        }
    }

    /// Makes slot number `count` usable, unless another thread just did.
    fn add_slot(&self, count: usize) -> Result<()> {
        let used = &self.control().slots_used.0;
        if count < self.control().slots_allocated.load(Ordering::Acquire) as usize {
            // A reader that begins must not wait for a process that was suspended while it made room.
            let _ = used.compare_exchange(count as u32, count as u32 + 1, Ordering::SeqCst, Ordering::Relaxed);
            return Ok(());
        }
        let _growing = self.hold_growth()?;
        if count == self.control().slots_allocated.load(Ordering::Relaxed) as usize {
            let offset = SLOTS_START + count as u64 * SLOT_BYTES;
            let bytes = SLOTS_STEP as u64 * SLOT_BYTES;
            self.file
                .allocate(offset, bytes)
                .map_err(|error| self.full_or_io("snapshot slots", bytes, error))?;
            self.control()
                .slots_allocated
                .store((count + SLOTS_STEP) as u32, Ordering::Release);
        }
        let _ = used.compare_exchange(count as u32, count as u32 + 1, Ordering::SeqCst, Ordering::Relaxed);
        Ok(())
    }

    /// The slot behind a pin.
    pub(crate) fn pinned(&self, pin: &Pin) -> &Slot {
        self.slot(pin.index as usize)
    }

    /// Lets all generations from `number` on be kept for this pin, or no longer.
    pub(crate) fn follow(&self, pin: &Pin, number: Option<u32>) {
        self.pinned(pin)
            .follow
            .store(number.map_or(FOLLOW_NONE, |n| n as u64 + 1), Ordering::SeqCst);
    }

    /// Takes a slot for a version that another pin holds meanwhile.
    pub(crate) fn pin_again(&self, version: u64, commit: u64) -> Result<Pin> {
        let index = self.claim(0)?;
        let slot = self.slot(index);
        slot.commit.store(commit, Ordering::Relaxed);
        slot.pin.store(version, Ordering::SeqCst);
        Ok(Pin { index: index as u32 })
    }

    /// Frees a slot.
    pub(crate) fn unpin(&self, pin: &Pin) {
        if self.is_forked() {
            // It is the parent's.
            return;
        }
        let slot = self.pinned(pin);
        slot.follow.store(FOLLOW_NONE, Ordering::Relaxed);
        slot.uses
            .store(slot.uses.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Release: all reads of the snapshot happen before a reclaimer that sees the slot free.
        slot.pin.store(FREE, Ordering::Release);
    }

    /// Whether this process holds a slot.
    pub(crate) fn is_pinned_here(&self) -> bool {
        let used = self.control().slots_used.0.load(Ordering::SeqCst) as usize;
        (0..used).any(|index| self.slot(index).is_of(self.me()))
    }

    /// Frees the slots of a process that is dead.
    pub(crate) fn unpin_all_of(&self, owner: Owner) {
        let used = self.control().slots_used.0.load(Ordering::SeqCst) as usize;
        for index in (0..used).filter(|&index| self.slot(index).is_of(owner)) {
            self.unpin(&Pin { index: index as u32 });
        }
    }

    /// Whether anybody holds a slot.
    pub(crate) fn is_pinned(&self) -> bool {
        let used = self.control().slots_used.0.load(Ordering::SeqCst) as usize;
        (0..used).any(|index| self.slot(index).pin.load(Ordering::SeqCst) != FREE)
    }

    /// Everything that is pinned. To be called after the version that the caller wants to protect was published.
    pub(crate) fn pins(&self) -> Pins {
        // Pairs with the fence in `pin`.
        fence(Ordering::SeqCst);
        let mut pins = Pins::default();
        let readable_since = self.control().tail.0.checkable_since.load(Ordering::Relaxed);
        for index in 0..self.control().slots_used.0.load(Ordering::SeqCst) as usize {
            let slot = self.slot(index);
            let follow = slot.follow.load(Ordering::SeqCst);
            let version = slot.pin.load(Ordering::SeqCst);
            match version {
                FREE => continue,
                claimed if claimed >= CLAIMED => pins.everything = true,
                version => pins.versions.push(version),
            }
            if follow != FOLLOW_NONE {
                pins.follow = Some(pins.follow.map_or(follow - 1, |oldest| oldest.min(follow - 1)));
            }
            // Who has lost a generation that it follows gets an error and reads no further.
            if follow != FOLLOW_NONE && slot.commit.load(Ordering::Relaxed) >= readable_since {
                pins.follow_version = Some(pins.follow_version.map_or(version, |oldest| oldest.min(version)));
            }
        }
        pins.versions.sort_unstable();
        pins
    }

    /// Who pins the oldest commits, in words: at most so many of them, and how many more there are.
    pub(crate) fn holders(&self, most: usize) -> String {
        let mut slots = self.slots_in_use();
        slots.sort_by_key(|(_, _, slot)| slot.commit.load(Ordering::Relaxed));
        let named: Vec<String> = slots
            .iter()
            .take(most)
            .map(|(index, _, slot)| {
                let (id, process) = (slot.id(*index), slot.process.load(Ordering::Relaxed));
                let commit = slot.commit.load(Ordering::Relaxed);
                format!("{} {id} of process {process} at commit {commit}", slot.purpose_name())
            })
            .collect();
        let more = slots.len() - named.len();
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        named.join(", ") + &rest
    }

    /// The slots in use with their indexes, for statistics and for ending snapshots.
    pub(crate) fn slots_in_use(&self) -> Vec<(u32, u64, &Slot)> {
        let count = self.control().slots_used.0.load(Ordering::Acquire) as usize;
        let pinned = |index: usize| {
            (
                index as u32,
                self.slot(index).pin.load(Ordering::Acquire),
                self.slot(index),
            )
        };
        (0..count).map(pinned).filter(|(_, pin, _)| is_version(*pin)).collect()
    }
}

impl Slot {
    /// Whether a process has this slot.
    pub(crate) fn is_of(&self, owner: Owner) -> bool {
        // Acquire: who sees a version sees whose it is.
        match self.pin.load(Ordering::SeqCst) {
            FREE => false,
            claimed if claimed >= CLAIMED => claimed == CLAIMED | u64::from(owner.number()),
            _ => self.owner.load(Ordering::Acquire) == u32::from(owner.number()),
        }
    }

    /// The id of the slot's present use: index and number of the use.
    pub(crate) fn id(&self, index: u32) -> u64 {
        self.uses.load(Ordering::Relaxed) << SLOT_INDEX_BITS | index as u64
    }

    /// Ends the use that an id names, which may be over by now: then nothing happens to the present one.
    pub(crate) fn end(&self, id: u64) {
        self.ended.fetch_max((id >> SLOT_INDEX_BITS) + 1, Ordering::Release);
    }

    /// Whether the present use was ended. For its owner, and for figures that may be a moment old.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == self.uses.load(Ordering::Relaxed) + 1
    }

    /// What the slot is used for, in words.
    pub(crate) fn purpose_name(&self) -> &'static str {
        match self.purpose.load(Ordering::Relaxed) {
            0 => "snapshot",
            1 => "transaction",
            _ => "changes",
        }
    }
}

/// Whether the pin value of a slot is a version.
fn is_version(pin: u64) -> bool {
    pin != FREE && pin < CLAIMED
}

/// A pinned version; give it back with [`Region::unpin`].
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) index: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_a_use_of_a_slot_that_is_over_leaves_the_next_one_alone() {
        let region = Region::private().unwrap();
        let pin = || region.pin(0, &region.control().visible.0).unwrap().0;
        let first = pin();
        let (index, id) = (first.index, region.pinned(&first).id(first.index));
        region.unpin(&first);
        let second = pin();
        assert_eq!(second.index, index);
        let slot = region.pinned(&second);
        // A thread found the first use, and ends it only now.
        slot.end(id);
        assert!(!slot.is_ended());
        slot.end(slot.id(index));
        slot.end(id);
        assert!(slot.is_ended());
        region.unpin(&second);
        assert!(!region.pinned(&pin()).is_ended());
    }
}
