//! What a group holds, as its rows say: where it is, what is pending, and the first message that it still needs.

use std::ops::Range;
use std::time::SystemTime;

use duramen_engine::{Result, Transaction};

use super::in_flight::count_open;
use super::record::{GroupOptions, GroupRecord, Kind};
use super::state::{Cursor, Lease, List, Run, Single, anchor_key};
use crate::read::Reading;
use crate::tables::{after_id, offset_of};
use crate::time::at;

/// State and options of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescription {
    /// Name of the group.
    pub name: String,
    /// Time when the group was created.
    pub created: SystemTime,
    /// Options of the group; `None`: it is a durable subscription.
    pub options: Option<GroupOptions>,
    /// Whether the group is paused.
    pub is_paused: bool,
    /// Every message before this offset was acknowledged or given up.
    pub acknowledged: u64,
    /// Every message before this offset was delivered at least once, or was skipped.
    pub next: u64,
    /// Messages that members hold, or that wait for redelivery.
    pub pending: u64,
    /// Messages that the topic keeps and that were never delivered. A filter may skip some of them.
    pub lag: u64,
    /// Messages that retention deleted before the group had processed them, since the group was created.
    pub skipped: u64,
    /// Publication time of the oldest message that is kept and not acknowledged.
    pub oldest: Option<SystemTime>,
}

/// A message that a member holds, or that waits for redelivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Offset of the message.
    pub offset: u64,
    /// Number of deliveries so far.
    pub tries: u32,
    /// Time when its lease ends, or when it is due again. `None`: it waits for an earlier message of its key.
    pub until: Option<SystemTime>,
    /// Name of the member that holds it; `None`: it waits.
    pub member: Option<String>,
    /// Reason of the last failure.
    pub error: Option<String>,
}

/// Names and records of the groups and durable subscriptions of a topic.
pub(super) fn group_records(reading: &Reading<'_>) -> Result<Vec<(String, GroupRecord)>> {
    let topic = reading.topic.shared().id;
    let mut cursor = reading
        .snapshot
        .prefix(&reading.topic.home().tables.groups, topic.to_be_bytes())?;
    let mut records = Vec::new();
    while let Some((key, record)) = cursor.next()? {
        let name = String::from_utf8_lossy(&key[4..]).into_owned();
        records.push((name, GroupRecord::decode(&record)?));
    }
    Ok(records)
}

pub(super) fn describe(
    reading: &Reading<'_>,
    next: u64,
    name: String,
    record: &GroupRecord,
) -> Result<GroupDescription> {
    let cursor = stored_cursor(reading, &name, record.id)?;
    let bounds = reading.bounds()?;
    let states = &reading.topic.home().tables.states;
    let (low, high) = Run::keys_from(record.id, cursor.floor);
    let runs = reading.snapshot.range(states, &low[..]..&high[..])?;
    let (low, high) = Single::keys(record.id, cursor.floor..u64::MAX);
    let pending = count_open(runs, reading.snapshot.range(states, &low[..]..&high[..])?)?.count;
    let acknowledged = first_open(reading, record.id, &cursor)?;
    let kept_from = cursor.next.max(bounds.first);
    Ok(GroupDescription {
        name,
        created: at(record.created),
        options: match &record.kind {
            Kind::Durable => None,
            Kind::Group(options) => Some(options.clone()),
        },
        is_paused: record.is_paused,
        acknowledged,
        next: cursor.next,
        pending,
        lag: reading.kept_since(kept_from, next)?,
        skipped: cursor.skipped + bounds.first.saturating_sub(cursor.next),
        oldest: reading.time_from(acknowledged.max(bounds.first))?.map(at),
    })
}

pub(super) fn stored_cursor(reading: &Reading<'_>, name: &str, id: u32) -> Result<Cursor> {
    let cursor = reading
        .snapshot
        .get(&reading.topic.home().tables.states, Cursor::key(id))?;
    let cursor = cursor.ok_or_else(|| reading.topic.group_deleted(name))?;
    Cursor::decode(&cursor)
}

/// The open messages of a group, by offset.
pub(super) fn pending(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<Vec<Pending>> {
    let states = &reading.topic.home().tables.states;
    let mut leases = std::collections::HashMap::new();
    let (low, high) = List::keys(id);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, list)) = walk.next()? {
        leases.insert(offset_of(key), List::decode(&list)?.lease);
    }
    let mut found = std::collections::BTreeMap::new();
    let (low, high) = Single::keys(id, cursor.floor..u64::MAX);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, single)) = walk.next()? {
        let offset = offset_of(key);
        found.insert(offset, pending_single(offset, Single::decode(&single)?, &leases));
    }
    let (low, high) = Run::keys_from(id, cursor.floor);
    let mut walk = reading.snapshot.range(states, &low[..]..&high[..])?;
    while let Some((key, run)) = walk.next()? {
        let run = Run::decode(&run)?;
        for offset in offset_of(key)..run.end {
            let in_run = || Some(held(offset, 1, Some(&run.lease)));
            found.entry(offset).or_insert_with(in_run);
        }
    }
    Ok(found.into_values().flatten().collect())
}

fn held(offset: u64, tries: u32, lease: Option<&Lease>) -> Pending {
    Pending {
        offset,
        tries,
        until: lease.map(|lease| at(lease.deadline)),
        member: lease.map(|lease| lease.member.clone()),
        error: None,
    }
}

fn pending_single(offset: u64, single: Single, leases: &std::collections::HashMap<u64, Lease>) -> Option<Pending> {
    match single {
        Single::Settled { .. } => None,
        Single::Waits { due, tries, error, .. } => Some(Pending {
            offset,
            tries,
            until: Some(at(due)),
            member: None,
            error: Some(error).filter(|error| !error.is_empty()),
        }),
        Single::Held { token, tries, .. } => Some(held(offset, tries, leases.get(&token))),
        Single::Parked { tries, .. } => Some(held(offset, tries, None)),
    }
}

/// The first message that not every group and durable subscription has acknowledged; `None`: there are no groups or
/// subscriptions.
pub(crate) fn acknowledged_by_all(reading: &Reading<'_>) -> Result<Option<u64>> {
    let mut floor = None;
    for (name, record) in group_records(reading)? {
        let cursor = stored_cursor(reading, &name, record.id)?;
        let open = first_open(reading, record.id, &cursor)?;
        floor = Some(floor.map_or(open, |floor: u64| floor.min(open)));
    }
    Ok(floor)
}

/// Makes a transaction conflict with everything that makes an unneeded message of the topic needed again: a group that
/// is created, reset to an earlier position, or brings back dead letters.
pub(crate) fn depend_on_openings(tx: &mut Transaction, reading: &Reading<'_>) -> Result<()> {
    let (tables, topic) = (&reading.topic.home().tables, reading.topic.shared().id);
    let (low, high) = (topic.to_be_bytes(), after_id(topic));
    tx.depends_on(&tables.groups, &low[..]..&high[..])?;
    for (_, record) in group_records(reading)? {
        tx.depends_on_key(&tables.states, &anchor_key(record.id))?;
    }
    Ok(())
}

/// Start of the first run, or offset of the first single, whichever comes first; otherwise the end of what was
/// delivered.
pub(super) fn floor(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<u64> {
    Ok(match first_row(reading, id, cursor)? {
        FirstRow::Run(run) => run.start,
        FirstRow::Other(first) => first,
    })
}

/// The first row of a group from its floor on.
enum FirstRow {
    /// A run of these messages.
    Run(Range<u64>),
    /// A message that no run covers, or the end of what was delivered.
    Other(u64),
}

fn first_row(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<FirstRow> {
    let states = &reading.topic.home().tables.states;
    let (low, high) = Run::keys_from(id, cursor.floor);
    let mut runs = reading.snapshot.range(states, &low[..]..&high[..])?;
    let run = match runs.next()? {
        Some((key, run)) => Some(offset_of(key)..Run::decode(&run)?.end),
        None => None,
    };
    let end = run.as_ref().map_or(cursor.next, |run| run.start);
    let (low, high) = Single::keys(id, cursor.floor..end);
    let mut singles = reading.snapshot.range(states, &low[..]..&high[..])?;
    let single = singles.next()?.map(|(key, _)| offset_of(key));
    Ok(match (single, run) {
        (None, Some(run)) => FirstRow::Run(run),
        (single, _) => FirstRow::Other(single.unwrap_or(cursor.next)),
    })
}

/// Returns the first open message of a group. A run whose messages were all settled stays until it is removed.
fn first_open(reading: &Reading<'_>, id: u32, cursor: &Cursor) -> Result<u64> {
    let mut from = *cursor;
    loop {
        match first_row(reading, id, &from)? {
            FirstRow::Other(first) => return Ok(first),
            FirstRow::Run(run) => {
                let open = open_in_run(reading, id, run.clone())?;
                if open < run.end {
                    return Ok(open);
                }
                from.floor = run.end;
            }
        }
    }
}

/// The first open message of a run, whose first messages may be settled; the end of the run when all are settled.
fn open_in_run(reading: &Reading<'_>, id: u32, run: Range<u64>) -> Result<u64> {
    let states = &reading.topic.home().tables.states;
    let (low, high) = Single::keys(id, run.clone());
    let mut singles = reading.snapshot.range(states, &low[..]..&high[..])?;
    let mut open = run.start;
    while let Some((key, single)) = singles.next()? {
        match Single::decode(&single)? {
            Single::Settled { .. } if offset_of(key) == open => open += 1,
            _ => break,
        }
    }
    Ok(open)
}
