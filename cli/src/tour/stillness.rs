//! Third chapter: a snapshot does not change while writers continue.
//!
//! Two threads move money between accounts. The sum over all accounts is constant, so a snapshot that mixed two moments
//! would show it. The old snapshot must also show exactly its original bytes at the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use duramen::{Durability, Map, Snapshot, Store, TransactionOptions};
use serde_json::json;

use super::source;
use super::stage::Stage;
use crate::exit::{Failure, Outcome};
use crate::text::grouped;

const SOURCE: &str = include_str!("stillness.rs");

const ACCOUNTS: u32 = 100;
const IN_EACH: i64 = 1_000;
const WRITERS: usize = 2;
/// How long the writers run.
const LASTING: Duration = Duration::from_millis(1_000);

pub fn stand_still(stage: &mut Stage<'_>, store: &Store) -> Outcome<()> {
    let about = "Two threads now move money between accounts, as fast as they can, with this transaction:";
    stage.chapter("A snapshot stands still", about)?;
    let accounts = store.map("accounts")?;
    fill(store, &accounts)?;
    stage.listing(&source::function(SOURCE, "transfer"))?;
    shown! { stage;
        let before = store.snapshot()?;
    }
    let stop = AtomicBool::new(false);
    let (transfers, looks) = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| scope.spawn(|| transfer_until(&stop, store, &accounts)))
            .collect();
        let looks = watch(stage, store, &accounts, &before);
        stop.store(true, Ordering::Relaxed);
        let transfers = writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer does not panic"));
        Ok::<_, Failure>((transfers.sum::<Outcome<u64>>()?, looks?))
    })?;
    let (moved, looked) = (grouped(transfers), grouped(looks));
    stage.result(format!(
        "{moved} transfers went through; {looked} times both sums were {}",
        sum_expected()
    ))?;
    shown! { stage;
        let difference = changed(&before, &store.snapshot()?, &accounts)?;
    }
    stage.result(format!(
        "{difference} of {ACCOUNTS} accounts differ now from the old snapshot, which shows what it showed"
    ))?;
    stage.figure(
        "snapshot",
        json!({"transfers": transfers, "looks": looks, "accounts_changed": difference}),
    );
    Ok(())
}

fn fill(store: &Store, accounts: &Map) -> Outcome<()> {
    store.transact(|tx| {
        for number in 0..ACCOUNTS {
            tx.put(accounts, account(number).as_bytes(), IN_EACH.to_be_bytes())?;
        }
        Ok::<_, duramen::Error>(())
    })?;
    Ok(())
}

fn transfer(store: &Store, accounts: &Map, from: &[u8], to: &[u8]) -> duramen::Result<()> {
    let quickly = TransactionOptions::new().durability(Durability::Written);
    store.transact_with(quickly, |tx| {
        let (payer, payee) = (balance(tx.get(accounts, from)?), balance(tx.get(accounts, to)?));
        tx.put(accounts, from, (payer - 1).to_be_bytes())?;
        tx.put(accounts, to, (payee + 1).to_be_bytes())
    })
}

fn transfer_until(stop: &AtomicBool, store: &Store, accounts: &Map) -> Outcome<u64> {
    let mut transfers = 0;
    while !stop.load(Ordering::Relaxed) {
        let from = fastrand::u32(..ACCOUNTS);
        let to = (from + fastrand::u32(1..ACCOUNTS)) % ACCOUNTS;
        transfer(store, accounts, account(from).as_bytes(), account(to).as_bytes())?;
        transfers += 1;
    }
    Ok(transfers)
}

/// Checks the old snapshot and new snapshots continuously. Returns the number of checks.
fn watch(stage: &mut Stage<'_>, store: &Store, accounts: &Map, before: &Snapshot) -> Outcome<u64> {
    let print = all(before, accounts)?;
    let until = Instant::now() + LASTING;
    let mut looks = 0;
    shown! { stage, looks;
        while Instant::now() < until {
            let now = store.snapshot()?;
            expect(sum(before, accounts)? == sum(&now, accounts)?)?;
            looks += 1;
        }
    }
    expect(all(before, accounts)? == print)?;
    expect(sum(before, accounts)? == sum_expected())?;
    Ok(looks)
}

fn account(number: u32) -> String {
    format!("account/{number:03}")
}

fn sum_expected() -> i64 {
    ACCOUNTS as i64 * IN_EACH
}

fn balance(value: Option<impl AsRef<[u8]>>) -> i64 {
    value
        .and_then(|value| value.as_ref().try_into().ok())
        .map_or(0, i64::from_be_bytes)
}

fn sum(snapshot: &Snapshot, accounts: &Map) -> Outcome<i64> {
    let mut sum = 0;
    let mut cursor = snapshot.range(accounts, ..)?;
    while let Some((_, value)) = cursor.next()? {
        sum += balance(Some(&value));
    }
    Ok(sum)
}

fn all(snapshot: &Snapshot, accounts: &Map) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut pairs = Vec::new();
    let mut cursor = snapshot.range(accounts, ..)?;
    while let Some((key, value)) = cursor.next()? {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    Ok(pairs)
}

fn changed(before: &Snapshot, now: &Snapshot, accounts: &Map) -> Outcome<usize> {
    let (before, now) = (all(before, accounts)?, all(now, accounts)?);
    Ok(before.iter().zip(&now).filter(|(before, now)| before != now).count())
}

/// Fails the tour unless a claim holds.
fn expect(holds: bool) -> Outcome<()> {
    match holds {
        true => Ok(()),
        false => Err(Failure::damaged(
            "a snapshot changed, or showed two moments at once: this is a bug in Duramen",
        )),
    }
}
