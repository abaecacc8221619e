//! The messages of a topic during salvage, and what is missing between them.

use std::ops::Range;

use duramen_engine::{Lost, Result, Salvage, Value};

use super::publishers::Newests;
use super::{Found, Saving};
use crate::message::Stored;
use crate::tables::{offset_key, offset_of};

/// Number of messages between two progress reports.
const TOLD_EVERY: u64 = 256;

/// The remaining messages of a topic.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The first message that was saved; the next offset if none was saved.
    pub(super) first: u64,
    /// Above every offset that was seen.
    pub(super) next: u64,
    /// Time of the newest message.
    pub(super) time: u64,
    /// End of the newest message, in published bytes.
    pub(super) bytes: u64,
}

/// State of copying a topic's messages.
#[derive(Debug, Default)]
struct Copied {
    kept: Kept,
    gaps: Gaps,
    count: u64,
    /// Whether rows before the first message were unreadable; `None`: no message was found yet.
    is_front_lost: Option<bool>,
}

impl Copied {
    /// Records a message of `bytes` bytes.
    fn note(&mut self, offset: u64, message: &Stored<'_>, bytes: u64) {
        self.gaps.here(offset);
        if self.count == 0 {
            self.kept.first = offset;
        }
        self.count += 1;
        self.kept.time = self.kept.time.max(message.time);
        self.kept.bytes = self.kept.bytes.max(message.position.saturating_add(bytes));
    }

    /// Looks for payloads after the last message: a lost message may have left its payload.
    fn look_for_payloads(&mut self, id: u32, payloads: &mut Salvage<'_>) -> Result<()> {
        payloads.seek(&offset_key(id, self.gaps.seen));
        while let Some((key, _)) = payloads.next()? {
            offset_in(key).inspect(|offset| self.gaps.spoilt(*offset));
        }
        Ok(())
    }
}

/// Finds out which messages are missing.
#[derive(Debug, Default)]
struct Gaps {
    /// The next expected offset. `None`: the first offset of the topic is not known yet.
    expected: Option<u64>,
    /// Above every message that existed.
    seen: u64,
    missing: Vec<Range<u64>>,
    /// Messages that exist but cannot be read completely.
    spoilt: Vec<u64>,
}

impl Gaps {
    /// Records a readable message.
    fn here(&mut self, offset: u64) {
        self.end(offset);
        self.expected = Some(offset + 1);
        self.seen = self.seen.max(offset + 1);
    }

    /// Records a message that existed and cannot be read.
    fn spoilt(&mut self, offset: u64) {
        self.spoilt.push(offset);
        self.expected.get_or_insert(offset);
        self.seen = self.seen.max(offset + 1);
    }

    /// Records that everything before this offset has been seen.
    fn end(&mut self, next: u64) {
        if let Some(expected) = self.expected.filter(|expected| *expected < next) {
            self.missing.push(expected..next);
        }
    }
}

/// A completely readable message, with its payload if that is stored separately.
type Whole<'h, 'p> = (Stored<'h>, Option<Value<'p>>);

impl Saving<'_> {
    /// Copies the messages that can be read completely.
    pub(super) fn messages(&mut self, found: &Found, mut publishers: Option<&mut Newests>) -> Result<Kept> {
        let prefix = found.id.to_be_bytes();
        let (snapshot, tables) = (self.source.snapshot, self.source.tables.clone());
        let (here, elsewhere) = (Lost::new(), Lost::new());
        let mut walk = snapshot.salvage_prefix(&tables.messages, &prefix, &here)?;
        let mut payloads = snapshot.salvage_prefix(&tables.payloads, &prefix, &elsewhere)?;
        let mut copied = Copied::default();
        while let Some((key, head)) = walk.next()? {
            copied.is_front_lost.get_or_insert_with(|| !here.list().is_empty());
            let Some(offset) = offset_in(key) else {
                let line = format!("topic {:?}: a message whose offset is none", found.name);
                self.saved.lost.push(line);
                continue;
            };
            let Some((message, payload)) = whole(key, &head, &mut payloads)? else {
                copied.gaps.spoilt(offset);
                continue;
            };
            let bytes = head.len() + payload.as_ref().map_or(0, |payload| payload.len());
            copied.note(offset, &message, bytes as u64);
            publishers
                .iter_mut()
                .for_each(|publishers| publishers.see(offset, &message));
            if let Some(payload) = payload {
                self.writer.put(&self.home.tables.payloads, key, &payload)?;
            }
            self.writer.put(&self.home.tables.messages, key, &head)?;
            if copied.count.is_multiple_of(TOLD_EVERY) {
                (self.progress)(self.saved.messages + copied.count);
            }
        }
        drop(walk);
        if found.state.is_none() {
            copied.look_for_payloads(found.id, &mut payloads)?;
        }
        drop(payloads);
        self.source.is_nothing(&elsewhere);
        let is_all_read = self.source.is_nothing(&here);
        self.saved.messages += copied.count;
        Ok(self.missing(found, copied, is_all_read))
    }

    /// Reports the missing messages.
    fn missing(&mut self, found: &Found, copied: Copied, is_all_read: bool) -> Kept {
        let Copied { mut kept, mut gaps, .. } = copied;
        let name = &found.name;
        kept.next = gaps.seen.max(found.state.map_or(0, |state| state.next));
        if copied.count == 0 {
            kept.first = kept.next;
        }
        gaps.end(kept.next);
        if kept.first > 0 && copied.is_front_lost.unwrap_or(!is_all_read) {
            let first = kept.first;
            self.lose(format!(
                "topic {name:?}: messages before {first}, as far as it kept them"
            ));
        }
        if found.record.is_sparse {
            // In a sparse topic missing messages count as removed; nothing shows otherwise.
            gaps.missing = gaps.spoilt.iter().map(|offset| *offset..offset + 1).collect();
            if !is_all_read {
                self.lose(format!(
                    "topic {name:?}: messages that were neither expired nor replaced, if some are missing between others"
                ));
            }
        }
        for missing in &gaps.missing {
            self.lose(match missing.end - missing.start {
                1 => format!("topic {name:?}: message {}", missing.start),
                _ => format!("topic {name:?}: messages {} to {}", missing.start, missing.end - 1),
            });
        }
        if !is_all_read && found.state.is_none() {
            self.lose(format!(
                "topic {name:?}: messages after the last one, if there were any"
            ));
        }
        kept
    }
}

/// The offset in the key of a message.
fn offset_in(key: &[u8]) -> Option<u64> {
    let is_key = key.len() == offset_key(0, 0).len();
    is_key.then(|| offset_of(key)).filter(|offset| *offset < u64::MAX)
}

/// Returns a message, if it can be read completely.
fn whole<'h, 'p>(key: &[u8], head: &'h [u8], payloads: &mut Salvage<'p>) -> Result<Option<Whole<'h, 'p>>> {
    let Ok(message) = Stored::decode(head) else {
        return Ok(None);
    };
    let Err(length) = message.payload else {
        return Ok(Some((message, None)));
    };
    payloads.seek(key);
    Ok(match payloads.next()? {
        Some((at, payload)) if at == key && payload.len() as u64 == length => Some((message, Some(payload))),
        _ => None,
    })
}
