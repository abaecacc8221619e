//! The unsynced state of one simulated file: every change since its last sync, with the bytes before and after.
//!
//! To find the durable bytes, the bytes before are restored from the current content, one effect after the other.
//! Applying the effects again gives every version that a sector has had since. [`History::survivors`] picks one of
//! them. A cut (the file was shortened) is metadata: file systems make it durable in order with other changes of
//! length, together with the loss of everything after it. So a cut that survives turns older versions into zeros, and
//! after a cut that does not survive no newer version survives.
//!
//! Invariant: undoing all effects in reverse order gives the device's content. The exception is `lost` sectors, for
//! which the device's content is kept there.

use std::collections::BTreeMap;
use std::ops::Range;

use fastrand::Rng;

use super::bits::Bits;
use super::content::Content;
use super::survival::{Survival, kept_in_order};

/// The unit that a device writes completely, or tears.
pub(super) const SECTOR: u64 = 512;

/// The bytes of one sector.
pub(super) type Sector = [u8; SECTOR as usize];

#[derive(Clone, Debug)]
struct Effect {
    sequence: u64,
    offset: u64,
    length: usize,
    /// Positions in `bytes` of the bytes before and after. None: they are zeros, which are most of what large writes
    /// replace.
    before: Option<usize>,
    after: Option<usize>,
    /// The index of the change of length that this effect is part of, if it is a cut.
    cut: Option<usize>,
}

impl Effect {
    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

/// The state of a file that survives.
#[derive(Debug)]
pub(super) struct Survivors {
    /// Every sector that differed, or may have differed, between device and current content.
    pub(super) sectors: Vec<(u64, Sector)>,
    /// The length on the device.
    pub(super) length: u64,
    /// Whether all changes of length survived.
    pub(super) whole: bool,
}

/// All unsynced changes of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    effects: Vec<Effect>,
    bytes: Vec<u8>,
    durable_length: u64,
    /// Sequence and new length of each change of length.
    lengths: Vec<(u64, u64)>,
    /// Sectors that a failed sync dropped: the kernel believes that they are on the device, which holds these bytes.
    lost: BTreeMap<u64, Sector>,
    /// Sectors that were written since the last sync, even with unchanged bytes.
    dirty: Bits,
    /// The blocks before their first unsynced change.
    pub(super) durable_blocks: Option<Bits>,
}

impl History {
    /// The history of a file with durable content.
    pub(super) fn settled(length: u64) -> History {
        History {
            durable_length: length,
            ..History::default()
        }
    }

    /// Records a write: `content` still holds the bytes before.
    pub(super) fn record(&mut self, sequence: u64, offset: u64, after: &[u8], content: &Content) {
        let length = after.len();
        self.note_dirty(offset, length);
        let (start, before) = (self.bytes.len(), self.keep_current(offset, length, content));
        let is_same = match before {
            Some(position) => self.bytes[position..] == *after,
            None => after.iter().all(|byte| *byte == 0),
        };
        // Rewriting existing bytes changes nothing, unless a failed sync dropped them.
        if is_same && self.lost.is_empty() {
            self.bytes.truncate(start);
            return;
        }
        let after = self.keep(after);
        self.effects.push(Effect {
            sequence,
            offset,
            length,
            before,
            after,
            cut: None,
        });
    }

    /// Records a write of zeros: `content` still holds the bytes before.
    pub(super) fn record_zeros(&mut self, sequence: u64, offset: u64, length: usize, content: &Content) {
        self.record_lost(sequence, offset, length, content, None);
    }

    /// Records a store through a mapping, which has already happened.
    pub(super) fn record_store(&mut self, sequence: u64, offset: u64, before: &[u8], after: &[u8]) {
        self.note_dirty(offset, after.len());
        let (before, length) = (self.keep(before), after.len());
        let after = self.keep(after);
        self.effects.push(Effect {
            sequence,
            offset,
            length,
            before,
            after,
            cut: None,
        });
    }

    /// Records a change of length, and the loss of the bytes after the new end: `content` still holds them.
    pub(super) fn record_length(&mut self, sequence: u64, old: u64, new: u64, content: &Content) {
        self.lengths.push((sequence, new));
        let cut = Some(self.lengths.len() - 1);
        for range in content.touched(new, old) {
            self.record_lost(sequence, range.start, (range.end - range.start) as usize, content, cut);
        }
    }

    fn record_lost(&mut self, sequence: u64, offset: u64, length: usize, content: &Content, cut: Option<usize>) {
        self.note_dirty(offset, length);
        let before = self.keep_current(offset, length, content);
        self.effects.push(Effect {
            sequence,
            offset,
            length,
            before,
            after: None,
            cut,
        });
    }

    /// Records that bytes are written to the device, whether they change or not.
    pub(super) fn note_dirty(&mut self, offset: u64, length: usize) {
        if length > 0 {
            self.dirty
                .insert(offset / SECTOR..(offset + length as u64).div_ceil(SECTOR));
        }
    }

    /// Ranges of bytes that a power cut destroys: whole sectors of up to `count` units that the kernel may have been
    /// writing. If any byte of a unit was written, every sector of the unit is at risk.
    pub(super) fn torn(&self, unit: u64, count: usize, random: &mut Rng) -> Vec<Range<u64>> {
        let sectors = unit / SECTOR;
        let runs = self.dirty.runs(0..u64::MAX / 2);
        let mut units: Vec<u64> = runs
            .into_iter()
            .flat_map(|run| run.start / sectors..run.end.div_ceil(sectors))
            .collect();
        units.dedup();
        random.shuffle(&mut units);
        // The last units of a file hold the newest records.
        if let Some(newest) = units.iter().copied().max()
            && random.bool()
        {
            units.insert(0, newest);
        }
        let torn = units.into_iter().take(count).map(|number| {
            let first = random.u64(0..sectors);
            let end = random.u64(first + 1..=sectors);
            number * unit + first * SECTOR..number * unit + end * SECTOR
        });
        torn.collect()
    }

    /// Keeps bytes of an effect.
    fn keep(&mut self, bytes: &[u8]) -> Option<usize> {
        let position = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Some(position)
    }

    /// Keeps the current bytes of a range, unless they are certainly zeros.
    fn keep_current(&mut self, offset: u64, length: usize, content: &Content) -> Option<usize> {
        if content.touched(offset, offset + length as u64).is_empty() {
            return None;
        }
        let position = self.bytes.len();
        self.bytes.resize(position + length, 0);
        content.read(offset, &mut self.bytes[position..]);
        Some(position)
    }

    /// The sequences of all changes.
    pub(super) fn sequences(&self) -> impl Iterator<Item = u64> {
        let effects = self.effects.iter().map(|effect| effect.sequence);
        effects.chain(self.lengths.iter().map(|(sequence, _)| *sequence))
    }

    /// Copies the bytes of lost sectors, which begin at multiples of a sector, into `bytes` from `offset` on.
    pub(super) fn show_lost(&self, offset: u64, bytes: &mut [u8]) {
        let rewritten = self.effects_by_sector();
        for (sector, old) in self.lost.range(offset / SECTOR..(offset + bytes.len() as u64) / SECTOR) {
            if rewritten.binary_search_by_key(sector, |touch| touch.0).is_err() {
                let start = (sector * SECTOR - offset) as usize;
                bytes[start..start + SECTOR as usize].copy_from_slice(old);
            }
        }
    }

    /// Handles a successful sync of a file with this length.
    pub(super) fn settle(&mut self, length: u64) {
        if !self.lost.is_empty() {
            for (sector, _) in self.effects_by_sector() {
                self.lost.remove(&sector);
            }
        }
        self.settle_as(length);
    }

    /// Handles a failed sync: some sectors reached the device, the others are dropped, and the kernel considers itself
    /// clean.
    pub(super) fn settle_badly(&mut self, length: u64, survival: Survival, random: &mut Rng, content: &Content) {
        let survivors = self.survivors_with(survival, self.lengths.len(), random, content);
        self.lost.clear();
        for (sector, bytes) in survivors {
            let mut current = [0; SECTOR as usize];
            content.read(sector * SECTOR, &mut current);
            if current != bytes {
                self.lost.insert(sector, bytes);
            }
        }
        self.settle_as(length);
    }

    fn settle_as(&mut self, length: u64) {
        self.effects.clear();
        self.bytes.clear();
        self.lengths.clear();
        self.dirty = Bits::default();
        self.durable_length = length;
        self.durable_blocks = None;
    }

    /// The state that a power cut now leaves on the device.
    pub(super) fn survivors(&self, survival: Survival, random: &mut Rng, content: &Content) -> Survivors {
        let sequences: Vec<u64> = self.lengths.iter().map(|(sequence, _)| *sequence).collect();
        let kept = kept_in_order(survival, &sequences, random);
        let length = if kept == 0 {
            self.durable_length
        } else {
            self.lengths[kept - 1].1
        };
        let sectors = self.survivors_with(survival, kept, random, content);
        Survivors {
            sectors,
            length,
            whole: kept == self.lengths.len(),
        }
    }

    fn survivors_with(
        &self,
        survival: Survival,
        lengths_kept: usize,
        random: &mut Rng,
        content: &Content,
    ) -> Vec<(u64, Sector)> {
        let touches = self.effects_by_sector();
        let mut versions = Versions::default();
        let mut survivors = Vec::new();
        for group in touches.chunk_by(|left, right| left.0 == right.0) {
            let sector = group[0].0;
            self.collect_versions(&mut versions, sector, group, lengths_kept, content);
            survivors.push((sector, versions.choose(survival, random)));
        }
        let untouched = |sector: &u64| touches.binary_search_by_key(sector, |touch| touch.0).is_err();
        survivors.extend(
            self.lost
                .iter()
                .filter(|(sector, _)| untouched(sector))
                .map(|(sector, old)| (*sector, *old)),
        );
        survivors
    }

    /// Pairs of sector and index of an effect on it, ordered.
    fn effects_by_sector(&self) -> Vec<(u64, usize)> {
        let mut touches = Vec::new();
        for (index, effect) in self.effects.iter().enumerate() {
            touches.extend((effect.offset / SECTOR..effect.end().div_ceil(SECTOR)).map(|sector| (sector, index)));
        }
        touches.sort_unstable();
        touches
    }

    /// Finds all contents of `sector` that may be on the device, oldest first.
    fn collect_versions(
        &self,
        versions: &mut Versions,
        sector: u64,
        group: &[(u64, usize)],
        lengths_kept: usize,
        content: &Content,
    ) {
        let mut bytes = [0; SECTOR as usize];
        content.read(sector * SECTOR, &mut bytes);
        for (_, index) in group.iter().rev() {
            self.apply(&self.effects[*index], Side::Before, sector, &mut bytes);
        }
        versions.start(self.lost.get(&sector).copied().unwrap_or(bytes));
        for (_, index) in group {
            let effect = &self.effects[*index];
            let part = self.apply(effect, Side::After, sector, &mut bytes);
            match effect.cut {
                // An ordinary write zeroes the tail of the sector that the file ends in. It reaches the device no later
                // than the change of length.
                Some(change) if part.start > 0 => {
                    if change < lengths_kept {
                        versions.zero_from(part.start);
                    }
                    versions.push(effect.sequence, bytes, None);
                }
                Some(change) if change < lengths_kept => versions.start([0; SECTOR as usize]),
                Some(_) => break,
                None => {
                    let skipped = (sector * SECTOR + part.start as u64) - effect.offset;
                    versions.push(
                        effect.sequence,
                        bytes,
                        Some(Piece {
                            part,
                            skipped,
                            length: effect.length as u64,
                        }),
                    );
                }
            }
        }
    }

    /// Copies the part of an effect that falls into `sector` over `bytes`, and returns the range of that part.
    fn apply(&self, effect: &Effect, side: Side, sector: u64, bytes: &mut Sector) -> Range<usize> {
        let start = effect.offset.max(sector * SECTOR);
        let end = effect.end().min((sector + 1) * SECTOR);
        let part = (start - sector * SECTOR) as usize..(end - sector * SECTOR) as usize;
        let source = match side {
            Side::Before => effect.before,
            Side::After => effect.after,
        };
        match source.map(|position| position + (start - effect.offset) as usize) {
            Some(position) => bytes[part.clone()].copy_from_slice(&self.bytes[position..position + part.len()]),
            None => bytes[part.clone()].fill(0),
        }
        part
    }

    /// Changes bytes in every version, as if they had always been there.
    pub(super) fn rewrite(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        for effect in &mut self.effects {
            let (from, to) = (effect.offset.max(offset), effect.end().min(end));
            if from >= to {
                continue;
            }
            let new = &bytes[(from - offset) as usize..(to - offset) as usize];
            for side in [&mut effect.before, &mut effect.after] {
                let position = *side.get_or_insert(self.bytes.len());
                if position == self.bytes.len() {
                    self.bytes.resize(position + effect.length, 0);
                }
                let position = position + (from - effect.offset) as usize;
                self.bytes[position..position + new.len()].copy_from_slice(new);
            }
        }
        for (sector, old) in &mut self.lost {
            let start = sector * SECTOR;
            let (from, to) = (start.max(offset), (start + SECTOR).min(end));
            if from < to {
                let new = &bytes[(from - offset) as usize..(to - offset) as usize];
                old[(from - start) as usize..(to - start) as usize].copy_from_slice(new);
            }
        }
        self.durable_length = self.durable_length.max(end);
        for (_, length) in &mut self.lengths {
            *length = (*length).max(end);
        }
    }
}

/// Which bytes of an effect.
#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

/// The part of a write that made a version of a sector.
#[derive(Clone, Debug)]
struct Piece {
    part: Range<usize>,
    /// Bytes of the write before this part, and in total.
    skipped: u64,
    length: u64,
}

/// The possible contents of one sector on the device, oldest first, each with the call that made it.
#[derive(Debug, Default)]
struct Versions {
    contents: Vec<(u64, Sector, Option<Piece>)>,
}

impl Versions {
    fn start(&mut self, oldest: Sector) {
        self.contents.clear();
        self.contents.push((0, oldest, None));
    }

    fn push(&mut self, sequence: u64, bytes: Sector, piece: Option<Piece>) {
        self.contents.push((sequence, bytes, piece));
    }

    fn zero_from(&mut self, start: usize) {
        for (_, bytes, _) in &mut self.contents {
            bytes[start..].fill(0);
        }
    }

    fn choose(&self, survival: Survival, random: &mut Rng) -> Sector {
        let newest = self.contents.len() - 1;
        match survival {
            Survival::Nothing => self.contents[0].1,
            Survival::Everything => self.contents[newest].1,
            Survival::OnlyNewest { sequence } if self.contents[newest].0 == sequence => self.contents[newest].1,
            Survival::OnlyNewest { .. } => self.contents[0].1,
            Survival::Prefix { sequence, torn } => self.choose_prefix(sequence, torn),
            Survival::Each { keep } => self.choose_any(keep, random),
        }
    }

    /// The newest version up to `sequence`, and of the next call's write the part before the tear.
    fn choose_prefix(&self, sequence: u64, torn: u64) -> Sector {
        let mut chosen = self.contents[0].1;
        for (made_by, bytes, piece) in &self.contents {
            if *made_by <= sequence {
                chosen = *bytes;
            } else if let (true, Some(piece)) = (*made_by == sequence + 1, piece) {
                let survives = (torn % (piece.length + 1)).saturating_sub(piece.skipped) as usize;
                let end = (piece.part.start + survives).min(piece.part.end);
                chosen[piece.part.start..end].copy_from_slice(&bytes[piece.part.start..end]);
            }
        }
        chosen
    }

    /// The oldest version, or any version, or a tear between two.
    fn choose_any(&self, keep: u8, random: &mut Rng) -> Sector {
        if random.u8(..8) >= keep {
            return self.contents[0].1;
        }
        let index = random.usize(..self.contents.len());
        let mut chosen = self.contents[index].1;
        if index > 0 && random.u8(..6) == 0 {
            let under = &self.contents[random.usize(..index)].1;
            let tear = random.usize(..SECTOR as usize);
            chosen[tear..].copy_from_slice(&under[tear..]);
        }
        chosen
    }
}
