//! Reading the log: where a stream is in it, and the generations in which it looks old values up.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::limits::STREAM_KEYS_MAX;
use crate::log::{LOG_START, RECORD_HEADER_BYTES, SegmentHeader, first_record, record_bytes};
use crate::read::deleted::Replayed;
use crate::read::generation_view::GenerationView;
use crate::read::value::Entry;
use crate::region::Version;

/// Where a stream reads the log, and the generations in which it looks old values up. Valid for one pinned version.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Number of the version that `generations` belong to; 0: none yet.
    version: u64,
    cursor: Option<LogCursor>,
    /// Those above the version's base, up to that of the cursor.
    pub(super) generations: Vec<GenerationView<'static>>,
    /// What is deleted by ranges in those.
    pub(super) deleted: Replayed,
    pub(super) latest: Latest,
}

/// A record of the log.
#[derive(Debug)]
pub(super) struct Record<'a> {
    /// Where its body begins.
    pub(super) start: u32,
    /// When it was committed, in microseconds since 1970.
    pub(super) time: u64,
    pub(super) body: &'a [u8],
}

/// A place in the log.
#[derive(Clone, Copy, Debug)]
struct LogCursor {
    slot: u16,
    segment: SegmentHeader,
    /// A record begins here, or at the next write unit.
    position: u64,
}

impl LogCursor {
    /// `None`: the log file has lost its header.
    fn at(core: &Core, slot: u16, position: Option<u64>) -> Option<LogCursor> {
        // SAFETY: the caller holds the generation.
        let log = unsafe { core.log_view(slot) }.ok()?;
        // SAFETY: the header was written before the generation went live.
        let head = unsafe { log.bytes(0, LOG_START) };
        let segment = SegmentHeader::decode(head, core.store)?;
        Some(LogCursor {
            slot,
            segment,
            position: position.unwrap_or(first_record(segment.unit.into())),
        })
    }

    /// Whether the generation is still there and holds a commit that is not before the cursor.
    fn leads_to(&self, core: &Core, commit: u64) -> bool {
        let entry = core.entry(self.slot);
        core.readable_slots().any(|slot| slot == self.slot)
            && entry.number.load(Ordering::Relaxed) == self.segment.generation
            && entry.last_commit.load(Ordering::Relaxed) >= commit
    }
}

impl Reader {
    /// A reader that begins at a position in the log of a generation, which the caller holds.
    pub(super) fn at(core: &Core, slot: u16, position: u64) -> Reader {
        Reader {
            cursor: LogCursor::at(core, slot, Some(position)),
            ..Reader::default()
        }
    }

    /// The record of a commit. The caller holds the version, keeps the generations ([`Core::keep_generations`]), and does both as
    /// long as it uses the body.
    pub(super) fn record<'a>(&mut self, core: &'a Core, version: &Version, commit: u64) -> Result<Record<'a>> {
        self.enter(core, version, commit)?;
        let damaged = || Error::damaged(format!("the log has no intact record of commit {commit}"));
        let cursor = self.cursor.as_mut().ok_or_else(damaged)?;
        // SAFETY: the caller keeps the generations while it uses the body.
        let log = unsafe { core.log_view(cursor.slot) }?;
        // Acquire: pairs with the release by the committer, who wrote the record before.
        let end = core.entry(cursor.slot).tail.load(Ordering::Acquire);
        loop {
            // SAFETY: the end is the entry's, and the caller keeps the generation.
            let found = unsafe { log.record(cursor.position, end, &cursor.segment, &core.seeds) };
            let (position, header, body) = found.ok_or_else(damaged)?;
            cursor.position = position;
            match header.commit.cmp(&commit) {
                std::cmp::Ordering::Less => cursor.position += record_bytes(body.len()),
                std::cmp::Ordering::Equal => {
                    return Ok(Record {
                        start: position as u32 + RECORD_HEADER_BYTES as u32,
                        time: header.time,
                        body,
                    });
                }
                std::cmp::Ordering::Greater => return Err(damaged()),
            }
        }
    }

    /// Puts the cursor into the generation of a commit.
    fn enter(&mut self, core: &Core, version: &Version, commit: u64) -> Result<()> {
        let stays = self.cursor.is_some_and(|cursor| cursor.leads_to(core, commit));
        if stays && self.version == version.number {
            return Ok(());
        }
        if !stays {
            let holds = |slot: &u16| {
                let entry = core.entry(*slot);
                entry.first_commit.load(Ordering::Relaxed) <= commit
                    && commit <= entry.last_commit.load(Ordering::Relaxed)
            };
            let slot = core.readable_slots().find(holds);
            self.cursor = slot.and_then(|slot| LogCursor::at(core, slot, None));
        }
        let newest = self.cursor.map_or(u32::MAX, |cursor| cursor.segment.generation);
        // SAFETY: the caller holds the version and keeps the generations while it uses what is here. Each later use begins
        // with this method: for another version it replaces them, and clears what `latest` has of them.
        let generations = unsafe { core.generations_between(version.base_commit, newest) }?;
        // SAFETY: as above.
        let kept = generations
            .into_iter()
            .map(|generation| unsafe { generation.unbound() });
        self.generations = kept.collect();
        self.deleted.generations_changed();
        if self.version != version.number {
            self.latest.clear();
        }
        self.version = version.number;
        Ok(())
    }
}

/// Where the newest operation on a key lies, for keys that were read lately. Without it a stream far behind would walk
/// through all newer versions of a key that is written again and again, once for each.
///
/// Invariant: of a key in it nothing newer was read than what it says.
#[derive(Default)]
pub(super) struct Latest {
    is_on: bool,
    operations: HashMap<Box<[u8]>, (GenerationView<'static>, u32)>,
}

impl fmt::Debug for Latest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latest")
            .field("keys", &self.operations.len())
            .finish_non_exhaustive()
    }
}

impl Latest {
    pub(super) fn switch(&mut self, is_on: bool) {
        if !is_on {
            self.clear();
        }
        self.is_on = is_on;
    }

    pub(super) fn clear(&mut self) {
        self.operations.clear();
    }

    pub(super) fn entry<'a>(&self, full_key: &[u8]) -> Result<Option<Entry<'a>>> {
        let Some((generation, position)) = self.operations.get(full_key) else {
            return Ok(None);
        };
        Ok(Some(Entry::stored(generation.stored(*position)?)))
    }

    pub(super) fn note(&mut self, full_key: &[u8], generation: GenerationView<'static>, position: u32) {
        if !self.is_on {
            return;
        }
        if let Some(known) = self.operations.get_mut(full_key) {
            *known = (generation, position);
            return;
        }
        if self.operations.len() == STREAM_KEYS_MAX {
            self.clear();
        }
        self.operations.insert(full_key.into(), (generation, position));
    }
}
