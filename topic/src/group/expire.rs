//! Taking back expired leases and leases of processes that are gone; and finding out when the next lease ends.

use std::collections::HashSet;

use duramen_engine::{Error, Result, Transaction};

use super::hints::Hints;
use super::lease_key::LeaseKey;
use super::record::GroupOptions;
use super::settle::{Again, OpenMessage, earliest};
use super::state::{Cursor, Due, DueKind, Lease, List, OF_NO_PROCESS_HERE, Run, Single};
use super::{Group, written};
use crate::lock::locked;
use crate::read::Reading;
use crate::record::millis;
use crate::tables::offset_of;

/// Maximum age of hints, in milliseconds.
const RENEW_EVERY: u64 = 1000;
/// Minimum time between two searches of `due` from its beginning, in milliseconds: deleted rows there cost time until
/// they are folded.
const SEARCH_EVERY: u64 = 100;
/// Maximum leases that are examined together.
const LOOKED_AT_ONCE: usize = 256;
/// Number of leases that were settled message by message before their rows are removed.
const FINISHED_MAX: usize = 32;

/// Why a lease is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeBackReason {
    /// Its time is over.
    Over,
    /// The process of its member is gone.
    Gone,
}

/// Leases that cannot be taken back, and why: for example, the topic of their dead letters does not exist. They must
/// not prevent other deliveries.
#[derive(Debug, Default)]
pub(super) struct StuckLeases {
    leases: HashSet<(DueKind, u64)>,
    pub(super) error: Option<Error>,
}

impl Group {
    /// Finds out when something is due next, if that is not known.
    pub(super) fn renew(&self, hints: &mut Hints, options: &GroupOptions, now: u64) -> Result<()> {
        let good_for = RENEW_EVERY.min(millis(options.lease)).max(1);
        let is_good = |renewed: u64| now < renewed.saturating_add(good_for) && now < hints.next_event();
        let is_rung = self.shared.changes.is_rung();
        if !is_rung && hints.renewed.is_some_and(is_good) {
            return Ok(());
        }
        // Armed before the search, so that a commit after it rings again.
        self.shared.bell.bell().arm();
        let snapshot = self.topic.snapshot()?;
        let states = self.states();
        let cursor = snapshot.get(states, Cursor::key(self.shared.id))?;
        let cursor = Cursor::decode(&cursor.ok_or_else(|| self.deleted())?)?;
        hints.enter_epoch(cursor.epoch);
        if now >= hints.searched.saturating_add(SEARCH_EVERY) {
            (hints.searched, hints.due_from) = (now, 0);
        } else if is_rung {
            self.shared.changes.ring_again();
        }
        let (low, high) = Due::keys_from(self.shared.id, hints.due_from);
        let mut rows = snapshot.range(states, &low[..]..&high[..])?;
        let first = rows.next()?.map(|(key, _)| Due::decode(key)).transpose()?;
        hints.due = first.map_or(u64::MAX, |due| due.time);
        // A row that is written later is for that time or a later time.
        hints.due_from = hints.due.min(now);
        let (low, high) = Run::keys_from(self.shared.id, hints.runs_from.max(cursor.floor));
        let mut rows = snapshot.range(states, &low[..]..&high[..])?;
        hints.runs = u64::MAX;
        let mut first_run = None;
        while let Some((key, run)) = rows.next()? {
            first_run = first_run.or(Some(offset_of(key)));
            let run = Run::decode(&run)?;
            if !run.is_extended {
                hints.runs = run.lease.deadline;
                break;
            }
        }
        hints.runs_from = first_run.unwrap_or(cursor.next);
        let reading = Reading::new(&self.topic, &snapshot);
        let from = Cursor {
            floor: cursor.floor.max(hints.floor),
            ..cursor
        };
        hints.floor = super::description::floor(&reading, self.shared.id, &from)?;
        hints.renewed = Some(now);
        Ok(())
    }

    /// Takes back what is due, and finds messages that waited long enough, at most `most` of them.
    pub(super) fn collect_due(
        &self,
        hints: &mut Hints,
        options: &GroupOptions,
        (now, most): (u64, usize),
        stuck: &mut StuckLeases,
    ) -> Result<Vec<Due>> {
        if hints.runs <= now {
            self.take_back_runs(hints, options, now, stuck)?;
        }
        if hints.due > now {
            return Ok(Vec::new());
        }
        loop {
            let (mut leases, mut waiting) = (Vec::new(), Vec::new());
            let snapshot = self.topic.snapshot()?;
            let (low, high) = Due::keys_from(self.shared.id, hints.due_from);
            let mut rows = snapshot.range(self.states(), &low[..]..&high[..])?;
            let mut is_first = true;
            while leases.len() < LOOKED_AT_ONCE
                && waiting.len() < most
                && let Some((key, _)) = rows.next()?
            {
                let due = Due::decode(key)?;
                if std::mem::take(&mut is_first) {
                    hints.due_from = due.time.min(now);
                }
                if due.time > now {
                    break;
                }
                match due.kind {
                    DueKind::Waits => waiting.push(due),
                    _ if stuck.leases.contains(&(due.kind, due.id)) => {}
                    _ => leases.push(due),
                }
            }
            drop(rows);
            drop(snapshot);
            if leases.is_empty() {
                return Ok(waiting);
            }
            for due in leases {
                self.take_back(hints, (due.kind, due.id), options, (TakeBackReason::Over, now), stuck);
                self.forget_stale(due)?;
            }
        }
    }

    /// Removes a row of `due` whose time is over, if no lease has that time any more. Only damage, or a bug in this
    /// code, leaves such a row. It must not be found again and again.
    fn forget_stale(&self, due: Due) -> Result<()> {
        self.topic.home().store.transact_with(written(), |tx| {
            let is_meant = match due.kind {
                // The delivery of a message removes such a row.
                DueKind::Waits => true,
                DueKind::List => self
                    .list_in(tx, due.id)?
                    .is_some_and(|list| list.lease.deadline == due.time),
                DueKind::Run => self
                    .run_in(tx, due.id)?
                    .is_some_and(|run| run.is_extended && run.lease.deadline == due.time),
            };
            match is_meant {
                true => Ok(()),
                false => tx.delete(self.states(), due.key(self.shared.id)),
            }
        })
    }

    /// Takes back expired runs, from the first on: runs after a run that has not expired were delivered later.
    fn take_back_runs(
        &self,
        hints: &mut Hints,
        options: &GroupOptions,
        now: u64,
        stuck: &mut StuckLeases,
    ) -> Result<()> {
        let mut from = hints.runs_from;
        loop {
            let ended = {
                let snapshot = self.topic.snapshot()?;
                let (low, high) = Run::keys_from(self.shared.id, from);
                let mut rows = snapshot.range(self.states(), &low[..]..&high[..])?;
                let mut ended = Vec::new();
                while ended.len() < LOOKED_AT_ONCE
                    && let Some((key, run)) = rows.next()?
                {
                    let (first, run) = (offset_of(key), Run::decode(&run)?);
                    if !run.is_extended && run.lease.deadline > now {
                        break;
                    }
                    if !run.is_extended && !stuck.leases.contains(&(DueKind::Run, first)) {
                        ended.push(first);
                    }
                }
                ended
            };
            let Some(last) = ended.last() else { return Ok(()) };
            from = last + 1;
            for first in ended {
                self.take_back(
                    hints,
                    (DueKind::Run, first),
                    options,
                    (TakeBackReason::Over, now),
                    stuck,
                );
            }
        }
    }

    /// Takes back, at once, the leases of processes that are gone.
    pub(super) fn take_back_gone(
        &self,
        hints: &mut Hints,
        options: &GroupOptions,
        now: u64,
        stuck: &mut StuckLeases,
    ) -> Result<()> {
        let presence = &self.topic.home().presence;
        let store = &self.topic.home().store;
        let departed = presence.departed(store);
        if hints.departed == Some(departed) {
            return Ok(());
        }
        let alive = store.processes_alive();
        let is_gone = |lease: &Lease| lease.process != OF_NO_PROCESS_HERE && !alive.contains(&lease.process);
        let mut gone = Vec::new();
        {
            let snapshot = self.topic.snapshot()?;
            let (low, high) = Run::keys_from(self.shared.id, 0);
            let mut rows = snapshot.range(self.states(), &low[..]..&high[..])?;
            while let Some((key, run)) = rows.next()? {
                if is_gone(&Run::decode(&run)?.lease) {
                    gone.push((DueKind::Run, offset_of(key)));
                }
            }
            let (low, high) = List::keys(self.shared.id);
            let mut rows = snapshot.range(self.states(), &low[..]..&high[..])?;
            while let Some((key, list)) = rows.next()? {
                if is_gone(&List::decode(&list)?.lease) {
                    gone.push((DueKind::List, offset_of(key)));
                }
            }
        }
        for lease_key in gone {
            self.take_back(hints, lease_key, options, (TakeBackReason::Gone, now), stuck);
        }
        hints.departed = Some(departed);
        Ok(())
    }

    /// Takes one lease back, in a separate transaction: the dead letters of several leases may be too many for one. Its
    /// error is reported when there is nothing else to report.
    fn take_back(
        &self,
        hints: &mut Hints,
        (kind, id): (DueKind, u64),
        options: &GroupOptions,
        (end, now): (TakeBackReason, u64),
        stuck: &mut StuckLeases,
    ) {
        let taken = self.topic.home().store.transact_with(written(), |tx| match kind {
            DueKind::Run => self.take_back_run(tx, id, options, (end, now)),
            _ => self.take_back_list(tx, id, options, (end, now)),
        });
        hints.doubt();
        match taken {
            Ok(again) => again.into_iter().for_each(|time| hints.note_due(time)),
            Err(error) => {
                stuck.leases.insert((kind, id));
                stuck.error.get_or_insert(error);
            }
        }
    }

    pub(super) fn take_back_run(
        &self,
        tx: &mut Transaction,
        first: u64,
        options: &GroupOptions,
        (end, now): (TakeBackReason, u64),
    ) -> Result<Again> {
        let Some(run) = self
            .run_in(tx, first)?
            .filter(|run| is_taken_back(&run.lease, end, now))
        else {
            return Ok(None);
        };
        let mut again = None;
        for offset in self.end_run_in(tx, first, &run)?.offsets() {
            let open = OpenMessage::first(&run);
            again = earliest(again, self.lose_in(tx, offset, open, &run.lease, (end, options))?);
        }
        Ok(again)
    }

    pub(super) fn take_back_list(
        &self,
        tx: &mut Transaction,
        token: u64,
        options: &GroupOptions,
        (end, now): (TakeBackReason, u64),
    ) -> Result<Again> {
        let Some(list) = self
            .list_in(tx, token)?
            .filter(|list| is_taken_back(&list.lease, end, now))
        else {
            return Ok(None);
        };
        let mut again = None;
        for &offset in &list.offsets {
            if let Some(open) = self.held_in(tx, offset, token)? {
                again = earliest(again, self.lose_in(tx, offset, open, &list.lease, (end, options))?);
            }
        }
        self.delete_list(tx, &list)?;
        Ok(again)
    }

    /// Handles a message whose lease was taken back: it failed. If its process is gone, it does not wait the first
    /// time. But a message that ends one process after the other waits longer each time.
    fn lose_in(
        &self,
        tx: &mut Transaction,
        offset: u64,
        open: OpenMessage,
        lease: &Lease,
        (end, options): (TakeBackReason, &GroupOptions),
    ) -> Result<Again> {
        let member = &lease.member;
        let (delay, error) = match end {
            TakeBackReason::Over => (None, format!("the lease of {member:?} ended")),
            TakeBackReason::Gone => {
                let delay = (open.tries > 1).then(|| options.delay(open.tries - 1));
                (
                    Some(delay.unwrap_or_default()),
                    format!("the process of {member:?} is gone"),
                )
            }
        };
        self.fail_in(tx, offset, open, lease.token, (delay, &error), options)
    }

    /// Removes the rows of leases that were settled message by message.
    pub(super) fn remove_finished(&self, is_idle: bool) -> Result<()> {
        let finished = {
            let mut finished = locked(&self.shared.finished);
            if finished.is_empty() || (!is_idle && finished.len() < FINISHED_MAX) {
                return Ok(());
            }
            std::mem::take(&mut *finished)
        };
        self.topic.home().store.transact_with(written(), |tx| {
            for &lease_key in &finished {
                self.remove_one_finished(tx, lease_key)?;
            }
            Ok(())
        })
    }

    /// A transaction that would settle the last message may have failed. Then its row stays until the lease ends.
    pub(super) fn remove_one_finished(&self, tx: &mut Transaction, lease_key: LeaseKey) -> Result<()> {
        match lease_key {
            LeaseKey::Run { first, token, .. } => {
                let Some(run) = self.run_in(tx, first)?.filter(|run| run.lease.token == token) else {
                    return Ok(());
                };
                let (low, high) = Single::keys(self.shared.id, first..run.end);
                let own = tx.count(self.states(), &low[..]..&high[..])?;
                if own == run.end - first {
                    self.end_run_in(tx, first, &run)?;
                }
                Ok(())
            }
            LeaseKey::List { token } => {
                let Some(list) = self.list_in(tx, token)? else {
                    return Ok(());
                };
                for &offset in &list.offsets {
                    if self.held_in(tx, offset, token)?.is_some() {
                        return Ok(());
                    }
                }
                self.delete_list(tx, &list)
            }
        }
    }
}

/// Whether a lease must still be taken back.
fn is_taken_back(lease: &Lease, end: TakeBackReason, now: u64) -> bool {
    match end {
        TakeBackReason::Over => lease.deadline <= now,
        // No later process has its number.
        TakeBackReason::Gone => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duramen_engine::{Maintenance, Options};
    use duramen_io::SimDisk;

    use super::*;
    use crate::{GroupOptions, Start, TopicOptions, Topics, TopicsOptions};

    #[test]
    fn rows_that_nothing_means_are_removed_and_keep_no_member_busy() {
        let disk = SimDisk::new(1);
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(disk.platform()).unwrap();
        let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
        let topic = topics.create("orders", TopicOptions::new()).unwrap();
        let group = topic
            .create_group("group", Start::Beginning, GroupOptions::new())
            .unwrap();
        topic.publish(b"message").unwrap();
        for kind in [DueKind::Waits, DueKind::List, DueKind::Run] {
            let due = Due { time: 1, kind, id: 7 };
            group.states().put(due.key(group.shared.id), b"").unwrap();
        }
        let mut member = group.member("member");
        let taken = member.receive(1, Duration::ZERO).unwrap().unwrap();
        taken.acknowledge().unwrap();
        assert!(member.receive(1, Duration::ZERO).unwrap().is_none());
        let (low, high) = Due::keys_from(group.shared.id, 0);
        let left = store.snapshot().unwrap().count(group.states(), &low[..]..&high[..]);
        assert_eq!(left.unwrap(), 0);
    }
}
