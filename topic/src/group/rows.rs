//! Reading and writing the rows of a group in a transaction.

use std::time::Duration;

use duramen_engine::{Map, Result, Transaction};

use super::Group;
use super::state::{Cursor, Due, DueKind, Lease, List, Run, Single, anchor_key, closed_key, counted, parked_key};
use crate::record::millis;
use crate::tables::offset_of;

impl Group {
    pub(super) fn states(&self) -> &Map {
        &self.topic.home().tables.states
    }

    /// The time that deadlines are compared with, in milliseconds.
    pub(super) fn now(&self) -> u64 {
        millis(self.topic.home().store.shared_clock())
    }

    /// The time that a transaction compares deadlines with, in milliseconds.
    pub(super) fn now_in(&self, tx: &Transaction) -> u64 {
        millis(tx.shared_clock())
    }

    /// Time left until a time of the shared clock.
    pub(super) fn until(&self, time: u64) -> Duration {
        Duration::from_millis(time.saturating_sub(self.now()).max(1))
    }

    pub(super) fn cursor_in(&self, tx: &Transaction) -> Result<Cursor> {
        let cursor = tx.get_ref(self.states(), Cursor::key(self.shared.id))?;
        Cursor::decode(&cursor.ok_or_else(|| self.deleted())?)
    }

    pub(super) fn put_cursor(&self, tx: &mut Transaction, cursor: Cursor) -> Result<()> {
        tx.put(self.states(), Cursor::key(self.shared.id), cursor.encode())
    }

    pub(super) fn single_in(&self, tx: &Transaction, offset: u64) -> Result<Option<Single>> {
        let single = tx.get_ref(self.states(), Single::key(self.shared.id, offset))?;
        single.map(|single| Single::decode(&single)).transpose()
    }

    pub(super) fn put_single(&self, tx: &mut Transaction, offset: u64, single: &Single) -> Result<()> {
        tx.put(self.states(), Single::key(self.shared.id, offset), single.encode())
    }

    pub(super) fn delete_single(&self, tx: &mut Transaction, offset: u64) -> Result<()> {
        tx.delete(self.states(), Single::key(self.shared.id, offset))
    }

    pub(super) fn run_in(&self, tx: &Transaction, first: u64) -> Result<Option<Run>> {
        let run = tx.get_ref(self.states(), Run::key(self.shared.id, first))?;
        run.map(|run| Run::decode(&run)).transpose()
    }

    /// Replaces the run that is stored, if there is one.
    pub(super) fn put_run(&self, tx: &mut Transaction, first: u64, before: Option<&Run>, run: &Run) -> Result<()> {
        self.move_due(tx, before.and_then(|run| run_due(first, run)), run_due(first, run))?;
        tx.put(self.states(), Run::key(self.shared.id, first), run.encode())
    }

    pub(super) fn delete_run(&self, tx: &mut Transaction, first: u64, run: &Run) -> Result<()> {
        self.move_due(tx, run_due(first, run), None)?;
        tx.delete(self.states(), Run::key(self.shared.id, first))
    }

    /// The run that covers a message.
    pub(super) fn run_over(&self, tx: &Transaction, offset: u64) -> Result<Option<(u64, Run)>> {
        let (low, high) = (Run::key(self.shared.id, 0), Run::key(self.shared.id, offset));
        let mut walk = tx.range(self.states(), &low[..]..=&high[..])?;
        walk.seek_end();
        let Some((key, run)) = walk.prev()? else {
            return Ok(None);
        };
        let run = Run::decode(&run)?;
        Ok((offset < run.end).then(|| (offset_of(key), run)))
    }

    pub(super) fn list_in(&self, tx: &Transaction, token: u64) -> Result<Option<List>> {
        let list = tx.get_ref(self.states(), List::key(self.shared.id, token))?;
        list.map(|list| List::decode(&list)).transpose()
    }

    /// Replaces the list that is stored, if there is one.
    pub(super) fn put_list(&self, tx: &mut Transaction, before: Option<&List>, list: &List) -> Result<()> {
        self.move_due(tx, before.map(list_due), Some(list_due(list)))?;
        tx.put(
            self.states(),
            List::key(self.shared.id, list.lease.token),
            list.encode(),
        )
    }

    pub(super) fn delete_list(&self, tx: &mut Transaction, list: &List) -> Result<()> {
        self.move_due(tx, Some(list_due(list)), None)?;
        tx.delete(self.states(), List::key(self.shared.id, list.lease.token))
    }

    pub(super) fn move_due(&self, tx: &mut Transaction, from: Option<Due>, to: Option<Due>) -> Result<()> {
        if from == to {
            return Ok(());
        }
        if let Some(due) = from {
            tx.delete(self.states(), due.key(self.shared.id))?;
        }
        match to {
            Some(due) => tx.put(self.states(), due.key(self.shared.id), b""),
            None => Ok(()),
        }
    }

    /// Schedules the delivery of a message. Members of all processes check again.
    pub(super) fn wait_in(&self, tx: &mut Transaction, offset: u64, waits: Single) -> Result<()> {
        let Single::Waits { due, .. } = &waits else {
            unreachable!("only what waits has a time");
        };
        self.move_due(tx, None, Some(message_due(*due, offset)))?;
        self.ring(tx);
        self.put_single(tx, offset, &waits)
    }

    /// Makes members in all processes check again once the transaction has committed.
    pub(super) fn ring(&self, tx: &mut Transaction) {
        tx.ring(&self.shared.bell);
    }

    /// Counts messages that were closed. A negative number counts messages that were opened again.
    pub(super) fn count_closed(&self, tx: &mut Transaction, messages: i64) -> Result<()> {
        if messages == 0 {
            return Ok(());
        }
        tx.add(self.states(), closed_key(self.shared.id), messages)
    }

    pub(super) fn count_parked(&self, tx: &mut Transaction, messages: i64) -> Result<()> {
        tx.add(self.states(), parked_key(self.shared.id), messages)
    }

    pub(super) fn closed_in(&self, tx: &Transaction) -> Result<i64> {
        counted(tx.get_ref(self.states(), closed_key(self.shared.id))?.as_deref())
    }

    pub(super) fn parked_in(&self, tx: &Transaction) -> Result<i64> {
        counted(tx.get_ref(self.states(), parked_key(self.shared.id))?.as_deref())
    }

    /// Declares that messages below the floor may be open from now on. What was derived from the rows before no longer
    /// holds.
    pub(super) fn reopen_in(&self, tx: &mut Transaction, cursor: Cursor) -> Result<()> {
        tx.put(self.states(), anchor_key(self.shared.id), b"")?;
        self.ring(tx);
        let epoch = cursor.epoch + 1;
        self.put_cursor(tx, Cursor { epoch, ..cursor })
    }

    /// A lease of a member of this process, which begins with the transaction.
    pub(super) fn lease(&self, tx: &Transaction, length: Duration, member: &str) -> Lease {
        let store = &self.topic.home().store;
        Lease {
            token: self.shared.token(store),
            process: store.process_number(),
            deadline: self.now_in(tx).saturating_add(millis(length)),
            member: member.into(),
        }
    }
}

/// Due time of a message that waits for delivery.
pub(super) fn message_due(time: u64, offset: u64) -> Due {
    let kind = DueKind::Waits;
    Due { time, kind, id: offset }
}

fn list_due(list: &List) -> Due {
    Due {
        time: list.lease.deadline,
        kind: DueKind::List,
        id: list.lease.token,
    }
}

/// Runs that were not extended end in the order of their offsets, and that order is enough to find them.
fn run_due(first: u64, run: &Run) -> Option<Due> {
    run.is_extended.then_some(Due {
        time: run.lease.deadline,
        kind: DueKind::Run,
        id: first,
    })
}
