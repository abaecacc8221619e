//! Reading what a group knows from its rows, and removing rows that say nothing any more.
//!
//! A run can go when every message of it has a row of its own; a settled row can go when no run covers it, because a
//! message without rows below the cursor is settled. Only here does `floor` move up, to what the rows just read say.

use std::collections::BTreeMap;

use duramen_engine::{Result, Transaction};

use super::memory::{Memory, OpenRun, OpenSingle, lease_over};
use super::state::{Cursor, Row, Run, Single};
use super::{Group, written};
use crate::record::millis;

/// The rows of a group.
#[derive(Debug, Default)]
struct Rows {
    runs: BTreeMap<u64, Run>,
    singles: BTreeMap<u64, Single>,
}

impl Rows {
    fn read(tx: &Transaction, group: &Group, floor: u64) -> Result<Rows> {
        let states = &group.topic.home().tables.states;
        let mut rows = Rows::default();
        let (low, runs_end) = Row::runs_from(group.shared.id, floor);
        let (first_single, end) = Row::singles(group.shared.id, floor..u64::MAX);
        let mut walk = tx.range(states, &low[..]..&runs_end[..])?;
        while let Some((key, row)) = walk.next()? {
            rows.take(Row::decode(key, &row)?);
        }
        let mut walk = tx.range(states, &first_single[..]..&end[..])?;
        while let Some((key, row)) = walk.next()? {
            rows.take(Row::decode(key, &row)?);
        }
        Ok(rows)
    }

    fn take(&mut self, row: Row) {
        match row {
            Row::Run(first, run) => drop(self.runs.insert(first, run)),
            Row::Single(offset, single) => drop(self.singles.insert(offset, single)),
        }
    }

    /// No message before this one is open.
    fn floor(&self) -> Option<u64> {
        let is_open = |single: &Single| !matches!(single, Single::Settled { .. });
        let single = self.singles.iter().find(|(_, single)| is_open(single));
        let run = self.runs.keys().next();
        run.into_iter().chain(single.map(|(offset, _)| offset)).min().copied()
    }

    /// Messages of a run that have no row of their own.
    fn left(&self, first: u64, run: &Run) -> u64 {
        (run.end - first) - self.singles.range(first..run.end).count() as u64
    }
}

impl Group {
    /// Reads all rows, and removes those that say nothing.
    pub(super) fn sweep(&self, before: Option<&Memory>) -> Result<Memory> {
        let home = self.topic.home();
        let rows = home.store.transact_with(written(), |tx| {
            let cursor = self.cursor_in(tx)?;
            let mut rows = Rows::read(tx, self, cursor.floor)?;
            self.clean(tx, &mut rows)?;
            let floor = rows.floor().unwrap_or(cursor.next);
            if floor != cursor.floor {
                let cursor = Cursor { floor, ..cursor };
                tx.put(&home.tables.states, &Cursor::key(self.shared.id), &cursor.encode())?;
            }
            Ok(rows)
        })?;
        let (wall, now) = (millis(home.store.wall_clock()), home.store.monotonic_clock());
        let runs = rows.runs.iter().map(|(first, run)| {
            let open = OpenRun {
                token: run.lease.token,
                left: rows.left(*first, run),
                is_counted: true,
                deadline: lease_over(&run.lease, wall, now),
                written: run.lease.deadline,
            };
            (*first, open)
        });
        let singles = rows
            .singles
            .iter()
            .filter_map(|(offset, single)| Some((*offset, OpenSingle::of(single, wall, now)?)));
        let mut memory = Memory {
            runs: runs.collect(),
            singles: singles.collect(),
            swept: now,
            ..Memory::default()
        };
        before.inspect(|before| memory.keep_deadlines(before));
        Ok(memory)
    }

    fn clean(&self, tx: &mut Transaction, rows: &mut Rows) -> Result<()> {
        let states = &self.topic.home().tables.states;
        let done = rows.runs.iter().filter(|(first, run)| rows.left(**first, run) == 0);
        let done: Vec<u64> = done.map(|(first, _)| *first).collect();
        for first in done {
            tx.delete(states, &Run::key(self.shared.id, first))?;
            rows.runs.remove(&first);
        }
        let is_covered = |offset: u64| {
            let before = rows.runs.range(..=offset).next_back();
            before.is_some_and(|(_, run)| offset < run.end)
        };
        let is_over =
            |(offset, single): (&u64, &Single)| matches!(single, Single::Settled { .. }) && !is_covered(*offset);
        let over: Vec<u64> = rows
            .singles
            .iter()
            .filter(|row| is_over(*row))
            .map(|(offset, _)| *offset)
            .collect();
        for offset in over {
            tx.delete(states, &Single::key(self.shared.id, offset))?;
            rows.singles.remove(&offset);
        }
        Ok(())
    }

    pub(super) fn cursor_in(&self, tx: &Transaction) -> Result<Cursor> {
        let cursor = tx.get(&self.topic.home().tables.states, &Cursor::key(self.shared.id))?;
        Cursor::decode(&cursor.ok_or_else(|| self.deleted())?)
    }
}
