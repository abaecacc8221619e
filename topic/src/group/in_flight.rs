//! How many messages may be delivered: up to the maximum in flight, in all processes together.
//!
//! Deliveries write the cursor, so of two processes that deliver concurrently one runs again and sees what the other
//! did. What remains to be known is how many messages are open. There are two ways, because counting costs an
//! acknowledgement as much as settling does:
//!
//! - **Looking.** Each process remembers how many messages were open when it last looked at the rows, and how many had
//!   been opened by then. At most that number and the number opened since can be open now. Only when this bound leaves
//!   no room, the process looks again, in the delivering transaction. The cost of a look depends on the open messages,
//!   so this is for groups that allow few.
//! - **Counting.** Messages of ordered groups, and of groups that allow many, are counted when they are opened and
//!   closed. A message records whether it is counted. So messages that were delivered before the options changed are
//!   closed without counting.

use std::time::Instant;

use duramen_engine::{Cursor as Rows, Result, Transaction};

use super::Group;
use super::hints::{Hints, OpenBound};
use super::record::GroupOptions;
use super::state::{Cursor, Run, Single};
use crate::limits::PARKED_MAX;
use crate::tables::offset_of;

/// Groups that allow more messages in flight count them.
const LOOKED_AT_MAX: u32 = 10_000;
/// The next look waits this many times as long as the last look took.
const REST: u32 = 20;

impl GroupOptions {
    /// Whether delivered messages are counted.
    pub(super) fn is_counted(&self) -> bool {
        self.order_by_key || self.in_flight > LOOKED_AT_MAX
    }
}

impl Group {
    /// How many new messages may be delivered, of those wanted.
    pub(super) fn room_in(
        &self,
        tx: &Transaction,
        hints: &mut Hints,
        cursor: &Cursor,
        options: &GroupOptions,
        wanted: usize,
    ) -> Result<usize> {
        hints.enter_epoch(cursor.epoch);
        let room = |open: u64| u64::from(options.in_flight).saturating_sub(open).min(wanted as u64) as usize;
        if options.is_counted() {
            return self.counted_room_in(tx, hints, cursor, options, &|open| room(open));
        }
        if let Some(looked) = &hints.looked {
            let room = room(looked.bound(cursor.opened));
            if room == wanted || looked.is_too_soon() {
                return Ok(room);
            }
        }
        let began = Instant::now();
        let from = cursor.floor.max(hints.floor_in_attempt());
        let (low, high) = Run::keys_from(self.shared.id, from);
        let runs = tx.range(self.states(), &low[..]..&high[..])?;
        let (low, high) = Single::keys(self.shared.id, from..u64::MAX);
        let OpenCount { count: open, first } = count_open(runs, tx.range(self.states(), &low[..]..&high[..])?)?;
        // The next look begins there: rows that were deleted before it cost time until they are folded.
        hints.looked_floor = first.unwrap_or(cursor.next);
        let took = began.elapsed();
        let is_nearly_full = open > u64::from(options.in_flight) / 8 * 7;
        hints.looked = Some(OpenBound {
            open,
            opened: cursor.opened,
            closed: 0,
            again: (is_nearly_full && took.as_millis() > 0).then(|| Instant::now() + took * REST),
        });
        hints.has_looked = true;
        Ok(room(open))
    }

    fn counted_room_in(
        &self,
        tx: &Transaction,
        hints: &mut Hints,
        cursor: &Cursor,
        options: &GroupOptions,
        room: &dyn Fn(u64) -> usize,
    ) -> Result<usize> {
        let open = |closed: i64| (cursor.counted as i64).saturating_sub(closed).max(0) as u64;
        // Closed messages stay closed, except in ordered groups. So there is no less room than there was.
        if !options.order_by_key
            && let Some(closed) = hints.closed
            && room(open(closed)) == room(0)
        {
            return Ok(room(0));
        }
        if options.order_by_key && self.parked_in(tx)? >= PARKED_MAX as i64 {
            return Ok(0);
        }
        let closed = self.closed_in(tx)?;
        hints.closed = Some(closed);
        Ok(room(open(closed)))
    }
}

/// The open messages according to the rows.
pub(super) struct OpenCount {
    pub(super) count: u64,
    /// The first message that a row refers to.
    pub(super) first: Option<u64>,
}

/// Counts open messages by the rows of runs and singles.
pub(super) fn count_open(mut runs: Rows<'_>, mut singles: Rows<'_>) -> Result<OpenCount> {
    let mut open = 0;
    // The messages of the last run that begins at or before the current single.
    let mut covered = 0..0;
    let mut next_run = next_run(&mut runs)?;
    let mut first = next_run.as_ref().map(|run| run.start);
    while let Some((key, single)) = singles.next()? {
        let offset = offset_of(key);
        first = Some(first.map_or(offset, |first| first.min(offset)));
        while let Some(run) = next_run.clone().filter(|run| run.start <= offset) {
            open += run.end - run.start;
            covered = run;
            next_run = self::next_run(&mut runs)?;
        }
        open -= u64::from(covered.contains(&offset));
        open += u64::from(!matches!(Single::decode(&single)?, Single::Settled { .. }));
    }
    while let Some(run) = next_run {
        open += run.end - run.start;
        next_run = self::next_run(&mut runs)?;
    }
    Ok(OpenCount { count: open, first })
}

fn next_run(runs: &mut Rows<'_>) -> Result<Option<std::ops::Range<u64>>> {
    let Some((key, run)) = runs.next()? else {
        return Ok(None);
    };
    Ok(Some(offset_of(key)..Run::decode(&run)?.end))
}
