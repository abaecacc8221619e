//! One simulated file: its bytes, its length, its blocks, and its changes that the device does not have yet.
//!
//! Invariants: bytes after `length` are zeros; blocks are below `length`; every change of bytes, length or blocks is in
//! `history` until the next sync. The layer above decides on free space and failures.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;

use crate::memory::Reservation;

use super::bits::Bits;
use super::content::{Content, PAGE};
use super::history::{History, SECTOR};
use super::survival::Survival;

/// A file without its name.
#[derive(Debug, Default)]
pub(super) struct Inode {
    content: Content,
    length: u64,
    blocks: Bits,
    history: History,
    /// Number of open handles. An inode without handles and without a name is gone.
    pub(super) handles: usize,
    /// Counts the changes that calls made.
    pub(super) changes: u64,
    /// The content at the last check, once the file is mapped for stores: stores are found by comparing.
    seen: Option<Vec<u8>>,
}

impl Inode {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.blocks.count() * PAGE
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.content.read(offset, buffer);
    }

    /// The device's content once the kernel has written everything that it would still write.
    pub(super) fn read_device(&self, offset: u64, buffer: &mut [u8]) {
        self.content.read(offset, buffer);
        self.history.show_lost(offset, buffer);
    }

    /// How many bytes of `offset..offset + length`, from its start, can get blocks when `room` bytes are free.
    pub(super) fn fitting(&self, offset: u64, length: u64, room: u64) -> u64 {
        let end = offset + length;
        let (mut room, mut block) = (room / PAGE, offset / PAGE);
        if self.blocks.missing(block..end.div_ceil(PAGE)) <= room {
            return length;
        }
        while room > 0 || self.blocks.contains(block) {
            room -= u64::from(!self.blocks.contains(block));
            block += 1;
        }
        (block * PAGE).clamp(offset, end) - offset
    }

    /// Whether writing there needs blocks that the file does not have.
    pub(super) fn needs_blocks(&self, offset: u64, length: u64) -> bool {
        length > 0 && self.blocks.missing(offset / PAGE..(offset + length).div_ceil(PAGE)) > 0
    }

    pub(super) fn write(&mut self, sequence: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.allocate(sequence, offset, bytes.len() as u64)?;
        self.changes += 1;
        self.history.record(sequence, offset, bytes, &self.content);
        self.content.write(offset, bytes);
        self.look_at(offset, bytes.len());
        Ok(())
    }

    /// Records that the kernel is about to write a range to the device, up to the end of the file, changed or not.
    pub(super) fn note_dirty(&mut self, range: Range<u64>) {
        let length = range.end.min(self.length).saturating_sub(range.start);
        self.history.note_dirty(range.start, length as usize);
    }

    pub(super) fn write_zeros(&mut self, sequence: u64, offset: u64, length: u64) -> io::Result<()> {
        self.allocate(sequence, offset, length)?;
        for range in self.content.touched(offset, offset + length) {
            let length = (range.end - range.start) as usize;
            self.history.record_zeros(sequence, range.start, length, &self.content);
            self.content.write(range.start, &vec![0; length]);
            self.look_at(range.start, length);
        }
        Ok(())
    }

    /// Gives a range blocks and extends the file over it.
    pub(super) fn allocate(&mut self, sequence: u64, offset: u64, length: u64) -> io::Result<()> {
        self.find_stores(sequence);
        self.changes += 1;
        if length == 0 {
            return Ok(());
        }
        let end = offset + length;
        self.content.reserve(end)?;
        if self.needs_blocks(offset, length) {
            self.history.durable_blocks.get_or_insert_with(|| self.blocks.clone());
            self.blocks.insert(offset / PAGE..end.div_ceil(PAGE));
        }
        if end > self.length {
            self.change_length(sequence, end);
        }
        Ok(())
    }

    pub(super) fn set_length(&mut self, sequence: u64, length: u64) -> io::Result<()> {
        self.find_stores(sequence);
        self.content.reserve(length)?;
        if length != self.length {
            self.change_length(sequence, length);
        }
        Ok(())
    }

    fn change_length(&mut self, sequence: u64, length: u64) {
        self.changes += 1;
        self.history.record_length(sequence, self.length, length, &self.content);
        if length < self.length {
            self.history.durable_blocks.get_or_insert_with(|| self.blocks.clone());
            self.blocks.remove_from(length.div_ceil(PAGE));
            self.content.cut(length);
        }
        self.length = length;
        if let Some(seen) = &mut self.seen {
            seen.resize(length as usize, 0);
        }
    }

    pub(super) fn sync(&mut self, sequence: u64) {
        self.find_stores(sequence);
        self.history.settle(self.length);
    }

    /// Simulates a sync that failed and dropped what it could not write.
    pub(super) fn sync_badly(&mut self, sequence: u64, survival: Survival, random: &mut Rng) {
        self.find_stores(sequence);
        self.history.settle_badly(self.length, survival, random, &self.content);
    }

    pub(super) fn map(&mut self, reserve: u64, for_stores: bool) -> io::Result<Arc<Reservation>> {
        let memory = self.content.map(reserve, for_stores)?;
        if for_stores && self.seen.is_none() {
            self.seen = Some(self.content.bytes(0, self.length as usize));
        }
        Ok(memory)
    }

    /// Finds what was stored through mappings since the last check, and treats it as writes made now. Checks only where
    /// the file has blocks: a process that stores elsewhere may be killed, and must allocate first.
    pub(super) fn find_stores(&mut self, sequence: u64) {
        let Some(seen) = &mut self.seen else {
            return;
        };
        let mut buffer = [0; PAGE as usize];
        for block in self.blocks.runs(0..self.length.div_ceil(PAGE)).into_iter().flatten() {
            let end = ((block + 1) * PAGE).min(self.length);
            let old = &mut seen[(block * PAGE) as usize..end as usize];
            let new = &mut buffer[..old.len()];
            self.content.read(block * PAGE, new);
            if new == old {
                continue;
            }
            let sectors = old.chunks_mut(SECTOR as usize).zip(new.chunks(SECTOR as usize));
            for (index, (old, new)) in sectors.enumerate().filter(|(_, (old, new))| old != new) {
                let offset = block * PAGE + index as u64 * SECTOR;
                self.history.record_store(sequence, offset, old, new);
                self.content.touch(offset, new.len());
                old.copy_from_slice(new);
            }
        }
    }

    fn look_at(&mut self, offset: u64, length: usize) {
        if let Some(seen) = &mut self.seen {
            self.content
                .read(offset, &mut seen[offset as usize..offset as usize + length]);
        }
    }

    /// Changes bytes as if they had always been there.
    pub(super) fn rewrite(&mut self, sequence: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.find_stores(sequence);
        self.changes += 1;
        let end = offset + bytes.len() as u64;
        self.content.reserve(end)?;
        self.content.write(offset, bytes);
        self.blocks.insert(offset / PAGE..end.div_ceil(PAGE));
        self.length = self.length.max(end);
        self.history.rewrite(offset, bytes);
        if let Some(seen) = &mut self.seen {
            seen.resize(self.length as usize, 0);
        }
        self.look_at(offset, bytes.len());
        Ok(())
    }

    /// The file after the death of all processes: the same content and unsynced changes, but closed and unmapped.
    pub(super) fn after_kill(&mut self, sequence: u64) -> io::Result<Inode> {
        self.find_stores(sequence);
        Ok(Inode {
            content: self.content.copy()?,
            length: self.length,
            blocks: self.blocks.clone(),
            history: self.history.clone(),
            handles: 0,
            changes: self.changes,
            seen: None,
        })
    }

    /// The file as a power cut leaves it, with `torn` units that were being written torn. The caller has called
    /// [`Inode::find_stores`].
    pub(super) fn after_power_cut(
        &self,
        survival: Survival,
        (unit, torn): (u64, usize),
        stale: &[u8],
        random: &mut Rng,
    ) -> io::Result<Inode> {
        let survivors = self.history.survivors(survival, random, &self.content);
        let mut content = self.content.copy()?;
        let blocks_survive = match survival {
            Survival::Nothing => false,
            Survival::Everything => true,
            _ => random.bool(),
        };
        let mut blocks = self.surviving_blocks(survivors.whole, blocks_survive);
        content.reserve(survivors.length)?;
        for (sector, bytes) in survivors.sectors {
            let offset = sector * SECTOR;
            if offset < survivors.length {
                content.reserve(offset + SECTOR)?;
                content.write(offset, &bytes);
                if bytes.iter().any(|byte| *byte != 0) {
                    blocks.insert(offset / PAGE..offset / PAGE + 1);
                }
            }
        }
        for range in self.history.torn(unit, torn, random) {
            let end = range.end.min(survivors.length);
            if range.start < end {
                let left = stale.get(range.start as usize..end as usize);
                let bytes: Vec<u8> = match left.filter(|_| random.bool()) {
                    Some(left) => left.to_vec(),
                    None => (range.start..end).map(|_| random.u8(..)).collect(),
                };
                content.reserve(end)?;
                content.write(range.start, &bytes);
                blocks.insert(range.start / PAGE..end.div_ceil(PAGE));
            }
        }
        content.cut(survivors.length);
        blocks.remove_from(survivors.length.div_ceil(PAGE));
        let history = History::settled(survivors.length);
        Ok(Inode {
            content,
            length: survivors.length,
            blocks,
            history,
            handles: 0,
            changes: self.changes + 1,
            seen: None,
        })
    }

    /// The blocks after a power cut, apart from blocks with surviving data.
    fn surviving_blocks(&self, lengths_whole: bool, blocks_survive: bool) -> Bits {
        let Some(durable) = &self.history.durable_blocks else {
            return self.blocks.clone();
        };
        if !lengths_whole {
            return durable.clone();
        }
        let mut blocks = self.blocks.clone();
        if !blocks_survive {
            blocks.intersect(durable);
        }
        blocks
    }
}
