//! A writer: runs transactions one after another. Each touches several maps, and the writer reports it to the
//! supervisor before and after its commit.

use std::sync::atomic::{AtomicBool, Ordering};

use duramen::{Durability, Error, Kind, Reason, Store, Transaction, TransactionOptions};

use super::checkpoints;
use super::content::{
    ACCOUNTS, BALANCE, KEPT, LISTS, MEMORY_BYTES, Maps, RECORDS, ledger_key, ledger_value, long_key, long_value,
    number_of,
};
use super::invariants::newest_of;
use super::lists::{Element, List};
use super::messages::{Message, Reporter};

/// One commit in `SYNCED_EVERY` is synced. One transaction in `SERIALIZABLE_EVERY` is serialisable.
const SYNCED_EVERY: u32 = 4;
const SERIALIZABLE_EVERY: u32 = 8;
/// After one transaction in `KEPT_EVERY` the writer makes a checkpoint. More would leave it little time for commits: it waits for folds.
const KEPT_EVERY: u32 = 1_000;

/// Why a transaction did not commit.
enum Obstacle {
    /// Nothing is wrong; the writer retries the transaction.
    Again(Error),
    Wrong(String),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Obstacle {
        match error.kind() {
            Kind::Retry => Obstacle::Again(error),
            _ => Obstacle::Wrong(error.to_string()),
        }
    }
}

impl From<String> for Obstacle {
    fn from(problem: String) -> Obstacle {
        Obstacle::Wrong(problem)
    }
}

/// Continues where the previous writer in this slot ended, until it is told to end.
pub fn write(
    store: &Store,
    slot: u32,
    slots: u32,
    seed: u64,
    goes_on: &AtomicBool,
    reporter: &mut Reporter<'_>,
) -> Result<(), String> {
    let maps = Maps::open(store).map_err(|error| format!("opening the maps: {error}"))?;
    make_accounts(store, &maps)?;
    let snapshot = store.snapshot().map_err(|error| error.to_string())?;
    let newest = newest_of(&snapshot, &maps, slot)?;
    drop(snapshot);
    reporter.tell(&Message::Found(newest))?;
    assert!(slot < slots, "a place of its own");
    let mut writer = Writer {
        store,
        maps,
        slot,
        random: fastrand::Rng::with_seed(seed),
    };
    let mut number = newest + 1;
    while goes_on.load(Ordering::Relaxed) {
        match writer.transact(number, reporter) {
            Ok(()) => {
                reporter.tell(&Message::Acknowledged(number))?;
                if writer.random.u32(..KEPT_EVERY) == 0 {
                    writer.keep(number, reporter)?;
                }
                number += 1;
            }
            Err(Obstacle::Again(error)) => tell_if_busy(&error, reporter)?,
            Err(Obstacle::Wrong(problem)) => return Err(format!("writer {slot}, transaction {number}: {problem}")),
        }
    }
    Ok(())
}

/// Tells the supervisor where a suspended process blocked a call.
fn tell_if_busy(error: &Error, reporter: &mut Reporter<'_>) -> Result<(), String> {
    match error.reason() {
        Reason::Busy { .. } | Reason::LockTimeout { .. } => reporter.tell(&Message::Busy),
        _ => Ok(()),
    }
}

/// Gives each account its initial balance. The first writer to commit does this.
fn make_accounts(store: &Store, maps: &Maps) -> Result<(), String> {
    loop {
        let made = store.transact(|tx| -> duramen::Result<()> {
            if tx.count(&maps.accounts, ..)? == 0 {
                for account in 0..ACCOUNTS {
                    tx.put(&maps.accounts, account.to_be_bytes(), BALANCE.to_be_bytes())?;
                }
            }
            Ok(())
        });
        match made {
            // After a failed sync, the next attempt finds the accounts created.
            Err(error) if matches!(error.kind(), Kind::Retry | Kind::Sync) => {}
            made => return made.map_err(|error| format!("making the accounts: {error}")),
        }
    }
}

struct Writer<'s> {
    store: &'s Store,
    maps: Maps,
    slot: u32,
    random: fastrand::Rng,
}

impl Writer<'_> {
    fn transact(&mut self, number: u64, reporter: &mut Reporter<'_>) -> Result<(), Obstacle> {
        let durability = if self.random.u32(..SYNCED_EVERY) == 0 {
            Durability::Synced
        } else {
            Durability::Written
        };
        let mut options = TransactionOptions::new().durability(durability);
        if self.random.u32(..SERIALIZABLE_EVERY) == 0 {
            options = options.serializable();
        }
        if RECORDS
            .iter()
            .any(|records| records.are_many() && records.group_of(number).is_some())
        {
            options = options.memory_bytes(MEMORY_BYTES);
        }
        let mut tx = self.store.begin(options)?;
        self.enter(&mut tx, number)?;
        self.transfer(&mut tx)?;
        if self.random.bool() {
            self.append(&mut tx, number)?;
        }
        reporter.tell(&Message::Begins(number))?;
        match tx.commit() {
            // The commit survives any kill, and kills are the only faults here.
            Err(error) if error.kind() == Kind::Sync => Ok(reporter.tell(&Message::Busy)?),
            committed => Ok(committed.map(drop)?),
        }
    }

    /// Looks whether the last checkpoint of this slot is there, drops those before it, and makes another one. A call that a
    /// suspended process blocks is given up.
    fn keep(&self, number: u64, reporter: &mut Reporter<'_>) -> Result<(), String> {
        let (store, slot) = (self.store, self.slot);
        let old = match checkpoints::numbers(store, slot) {
            Err(error) if error.kind() == Kind::Retry => return tell_if_busy(&error, reporter),
            old => old.map_err(|error| format!("writer {slot}, listing checkpoints: {error}"))?,
        };
        let newest = old.iter().copied().max().unwrap_or(0);
        reporter.tell(&Message::FoundKept(newest))?;
        let mut dropped = old.into_iter().filter(|old| *old < newest);
        let kept = match dropped.try_for_each(|old| checkpoints::remove(store, slot, old)) {
            Ok(()) => {
                reporter.tell(&Message::Keeps(number))?;
                checkpoints::keep(store, slot, number)
            }
            refused => refused,
        };
        match kept {
            Ok(()) => reporter.tell(&Message::Kept(number)),
            Err(error) if error.kind() == Kind::Retry => tell_if_busy(&error, reporter),
            // Kills are the only faults here: what was done is done, and survives them.
            Err(error) if error.kind() == Kind::Sync => reporter.tell(&Message::Busy),
            Err(error) => Err(format!("writer {slot}, checkpoint after {number}: {error}")),
        }
    }

    /// Records the transaction and all that it replaces, increments the counter, and removes an old transaction.
    fn enter(&self, tx: &mut Transaction, number: u64) -> Result<(), Obstacle> {
        let maps = &self.maps;
        tx.put(
            &maps.ledger,
            ledger_key(self.slot, number),
            ledger_value(self.slot, number),
        )?;
        if let Some(old) = number.checked_sub(KEPT).filter(|old| *old > 0) {
            tx.delete(&maps.ledger, ledger_key(self.slot, old))?;
        }
        tx.add(&maps.counts, self.slot.to_be_bytes(), 1)?;
        if let Some(value) = long_value(self.slot, number) {
            tx.put(&maps.long, long_key(self.slot, number), &value)?;
        }
        for records in &RECORDS {
            let Some(group) = records.group_of(number) else {
                continue;
            };
            for key in records.keys(self.slot, group) {
                tx.put(&maps.records, key, records.value(&key, self.slot, number))?;
            }
        }
        Ok(())
    }

    /// Moves money between two accounts.
    fn transfer(&mut self, tx: &mut Transaction) -> Result<(), Obstacle> {
        let (from, to) = (self.random.u32(..ACCOUNTS), self.random.u32(..ACCOUNTS));
        if from == to {
            return Ok(());
        }
        let mut balances = [0; 2];
        for (balance, account) in balances.iter_mut().zip([from, to]) {
            let found = tx.get(&self.maps.accounts, account.to_be_bytes())?;
            *balance = number_of(&found.ok_or_else(|| format!("account {account} is not there"))?)?;
        }
        let amount = self.random.i64(0..=balances[0].clamp(0, 100));
        let changed = [(from, balances[0] - amount), (to, balances[1] + amount)];
        for (account, balance) in changed {
            tx.put(&self.maps.accounts, account.to_be_bytes(), balance.to_be_bytes())?;
        }
        Ok(())
    }

    /// Appends to some lists.
    fn append(&mut self, tx: &mut Transaction, number: u64) -> Result<(), Obstacle> {
        let mut names: Vec<u8> = (0..self.random.usize(1..=3)).map(|_| self.random.u8(..LISTS)).collect();
        names.sort_unstable();
        names.dedup();
        let mut lists = Vec::new();
        for name in &names {
            let list = tx.get(&self.maps.lists, [*name])?;
            lists.push(list.map_or(Ok(List::default()), |list| List::decode(&list))?);
        }
        let places = names
            .iter()
            .zip(&lists)
            .map(|(name, list)| (*name, list.end()))
            .collect();
        let element = Element {
            by: (self.slot, number),
            places,
        };
        for (name, mut list) in names.into_iter().zip(lists) {
            list.append(element.clone());
            tx.put(&self.maps.lists, [name], list.encode())?;
        }
        Ok(())
    }
}
