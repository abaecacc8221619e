//! Many threads at once, while the log is folded at full rate, generations are tiny and freed pages are overwritten.
//! The guarantees of transactions and snapshots must hold.
//!
//! Threads record histories, and `common::history` judges them afterwards.

#[path = "../common/history.rs"]
mod history;

use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Pair, Place, assert_sound, backwards, block_on, forwards, number_from_environment, restless, seed,
};
use duramen::{
    Batch, Commit, CommitFuture, Cursor, Durability, Error, Kind, Maintenance, Map, Maps, Options, Reason, Result,
    Savepoint, Snapshot, Statistics, Store, Transaction, TransactionOptions, Value, ValueReader,
};
use fastrand::Rng;
use history::{Done, Lists};

/// Raises the flag when a test ends in any way, so that the threads that disturb it end too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Folds without a pause: most of these rounds find no commit to fold.
fn fold_for_ever(store: &Store, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        store.maintain().unwrap();
    }
}

/// Returns how long the open-ended tests run, set in milliseconds.
fn duration() -> Duration {
    Duration::from_millis(number_from_environment("DURAMEN_MILLISECONDS", 1500) as u64)
}

// Histories.

/// Lists below this number are values that are read and written; transactions append to the others without reading
/// them.
const VALUE_LISTS: u32 = 5;
const LISTS: u32 = 9;
const HISTORY_THREADS: usize = 4;

fn list_key(list: u32) -> Vec<u8> {
    format!("list {list}/").into_bytes()
}

fn decode(value: &[u8]) -> Vec<u64> {
    value
        .chunks_exact(8)
        .map(|id| u64::from_be_bytes(id.try_into().unwrap()))
        .collect()
}

/// Reads the whole list as a transaction sees it, in one of several ways.
fn read_list(tx: &Transaction, map: &Map, list: u32, rng: &mut Rng) -> Result<Vec<u64>> {
    let key = list_key(list);
    if list < VALUE_LISTS {
        return Ok(tx.get(map, &key)?.map_or_else(Vec::new, |value| decode(&value)));
    }
    let mut cursor = tx.prefix(map, &key)?;
    let mut found = if rng.bool() {
        forwards(&mut cursor)
    } else {
        cursor.seek_end();
        let mut pairs = backwards(&mut cursor);
        pairs.reverse();
        pairs
    };
    assert!(
        found
            .iter()
            .zip(0u64..)
            .all(|((key, _), number)| key.ends_with(&number.to_be_bytes())),
        "{found:?}"
    );
    Ok(found.drain(..).flat_map(|(_, value)| decode(&value)).collect())
}

fn append_to_list(tx: &mut Transaction, map: &Map, list: u32, done: &mut Done, rng: &mut Rng) -> Result<()> {
    if !done.appends.insert(list) {
        return Ok(());
    }
    if list >= VALUE_LISTS {
        return tx.append(map, list_key(list), done.id.to_be_bytes());
    }
    let mut seen = read_list(tx, map, list, rng)?;
    done.reads.push((list, seen.clone()));
    seen.push(done.id);
    let value: Vec<u8> = seen.iter().flat_map(|id| id.to_be_bytes()).collect();
    tx.put(map, list_key(list), &value)
}

/// Runs one transaction of a few reads and appends. Returns `None` after a conflict.
fn random_transaction(
    store: &Store,
    map: &Map,
    options: TransactionOptions,
    mut done: Done,
    rng: &mut Rng,
) -> Option<Done> {
    let mut tx = store.begin(options).unwrap();
    for _ in 0..rng.usize(1..5) {
        let list = rng.u32(0..LISTS);
        // A transaction's own writes say nothing about the others.
        if rng.bool() && !done.appends.contains(&list) {
            let seen = read_list(&tx, map, list, rng).unwrap();
            done.reads.push((list, seen));
        } else {
            append_to_list(&mut tx, map, list, &mut done, rng).unwrap();
        }
        thread::yield_now();
    }
    match tx.commit() {
        Ok(_) => Some(done),
        Err(error) if matches!(error.reason(), Reason::Conflict { .. } | Reason::TooOld { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn record(store: &Store, map: &Map, options: TransactionOptions, rounds: u64, seed: u64) -> Vec<Done> {
    let ids = AtomicU64::new(1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| fold_for_ever(store, &stop));
        let run = |thread: usize| {
            let ids = &ids;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed.wrapping_add(thread as u64));
                let attempt = |_| {
                    let id = ids.fetch_add(1, Ordering::Relaxed);
                    let done = Done {
                        id,
                        thread,
                        ..Done::default()
                    };
                    random_transaction(store, map, options, done, &mut rng)
                };
                (0..rounds).filter_map(attempt).collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..HISTORY_THREADS).map(run).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn final_lists(store: &Store, map: &Map) -> Lists {
    let tx = store.begin(TransactionOptions::new()).unwrap();
    let list = |list| (list, read_list(&tx, map, list, &mut Rng::new()).unwrap());
    (0..LISTS).map(list).filter(|(_, list)| !list.is_empty()).collect()
}

fn check_histories(options: TransactionOptions, judge: fn(&[Done], &Lists)) {
    let seed = seed();
    let rounds = number_from_environment("DURAMEN_ROUNDS", 250) as u64;
    for round in 0..3 {
        let place = Place::new();
        let store = restless().open(place.path()).unwrap();
        let map = store.map("lists").unwrap();
        let history = record(&store, &map, options, rounds, seed.wrapping_add(round * 100));
        let lists = final_lists(&store, &map);
        println!(
            "{} of {} transactions committed",
            history.len(),
            rounds as usize * HISTORY_THREADS
        );
        assert!(history.len() > rounds as usize, "nearly everything conflicts");
        judge(&history, &lists);
        assert_sound(&store);
        drop(map);
        store.close().unwrap();
        let store = restless().open(place.path()).unwrap();
        assert_eq!(final_lists(&store, &store.map("lists").unwrap()), lists);
    }
}

fn assert_snapshot_isolated(history: &[Done], lists: &Lists) {
    history::assert_snapshot_isolated(history, lists, |list| list >= VALUE_LISTS);
}

#[test]
fn histories_are_snapshot_isolated() {
    check_histories(TransactionOptions::new(), assert_snapshot_isolated);
}

#[test]
fn serializable_histories_are_serializable() {
    check_histories(TransactionOptions::new().serializable(), history::assert_serializable);
}

#[test]
fn exclusive_histories_are_serializable_and_lose_no_transaction() {
    check_histories(TransactionOptions::new().exclusive(), |history, lists| {
        assert_eq!(
            history.len() % HISTORY_THREADS,
            0,
            "an exclusive transaction met a conflict"
        );
        history::assert_serializable(history, lists);
    });
}

// Money.

const ACCOUNTS: u64 = 60;
const MONEY: i64 = 100 * ACCOUNTS as i64;

fn account(number: u64) -> Vec<u8> {
    // The other keys in the map spread the accounts over leaves.
    format!("account {number:03}").into_bytes()
}

/// Encodes an amount with a tail of random length, so that leaves split and shrink.
fn amount(amount: i64, rng: &mut Rng) -> Vec<u8> {
    let mut value = amount.to_be_bytes().to_vec();
    value.resize(8 + rng.usize(0..400), 0xAA);
    value
}

fn amount_of(value: &[u8]) -> i64 {
    assert!(value[8..].iter().all(|byte| *byte == 0xAA), "torn: {value:?}");
    i64::from_be_bytes(value[..8].try_into().unwrap())
}

fn transfer(store: &Store, map: &Map, rng: &mut Rng) {
    let (from, to) = (account(rng.u64(0..ACCOUNTS)), account(rng.u64(0..ACCOUNTS)));
    let sum = rng.i64(1..20);
    if from == to {
        return;
    }
    let move_it = |tx: &mut Transaction| {
        let from_now = amount_of(&tx.get(map, &from)?.expect("an account stays"));
        let to_now = amount_of(&tx.get(map, &to)?.expect("an account stays"));
        tx.put(map, &from, amount(from_now - sum, rng))?;
        tx.put(map, &to, amount(to_now + sum, rng))
    };
    store.transact(move_it).unwrap();
}

/// Writes and deletes beside and between the accounts.
fn disturb(map: &Map, rng: &mut Rng) {
    let key = format!("account {:03}/{}", rng.u64(0..ACCOUNTS), rng.u64(0..50));
    match rng.u32(0..20) {
        0..12 => map.put(key.as_bytes(), vec![1; rng.usize(0..1500)]).unwrap(),
        12..18 => map.delete(key.as_bytes()).unwrap(),
        18 => map.put(key.as_bytes(), vec![2; rng.usize(65_000..90_000)]).unwrap(),
        _ => {
            let number = rng.u64(0..ACCOUNTS);
            let (low, high) = (format!("account {number:03}/"), format!("account {number:03}0"));
            map.delete_range(low.as_bytes()..high.as_bytes()).unwrap();
        }
    }
}

fn is_account(key: &[u8]) -> bool {
    key.len() == account(0).len()
}

fn money(pairs: &[Pair]) -> i64 {
    let accounts: Vec<&Pair> = pairs.iter().filter(|(key, _)| is_account(key)).collect();
    assert_eq!(accounts.len() as u64, ACCOUNTS);
    accounts.iter().map(|(_, value)| amount_of(value)).sum()
}

/// Reads all pairs of a snapshot forwards and backwards, by single gets, and by counting. All results must agree.
fn read_everything(snapshot: &Snapshot, map: &Map) -> Vec<Pair> {
    let mut cursor = snapshot.range(map, ..).unwrap();
    let pairs = forwards(&mut cursor);
    let mut back = backwards(&mut cursor);
    back.reverse();
    assert!(pairs == back, "the way back shows something else");
    assert_eq!(snapshot.count(map, ..).unwrap(), pairs.len() as u64);
    pairs
}

fn audit(snapshot: &Snapshot, map: &Map) {
    let accounts: Vec<Vec<u8>> = (0..ACCOUNTS).map(account).collect();
    let single: i64 = accounts
        .iter()
        .map(|key| amount_of(&snapshot.get(map, key).unwrap().unwrap()))
        .sum();
    let many = snapshot.multi_get(map, &accounts).unwrap();
    let many: i64 = many.into_iter().map(|value| amount_of(&value.unwrap())).sum();
    assert_eq!(
        (single, many, money(&read_everything(snapshot, map))),
        (MONEY, MONEY, MONEY)
    );
}

fn open_bank(place: &Place, options: Options) -> (Store, Map) {
    let store = options.open(place.path()).unwrap();
    let map = store.map("bank").unwrap();
    let mut batch = Batch::new();
    (0..ACCOUNTS).for_each(|number| batch.put(&map, account(number), 100i64.to_be_bytes()).unwrap());
    store.write(batch).unwrap();
    (store, map)
}

/// Starts threads that change the bank until `stop`.
fn keep_busy<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    store: &'scope Store,
    map: &'scope Map,
    stop: &'scope AtomicBool,
    seed: u64,
) {
    scope.spawn(move || fold_for_ever(store, stop));
    for thread in 0..2 {
        scope.spawn(move || {
            let mut rng = Rng::with_seed(seed.wrapping_add(thread));
            while !stop.load(Ordering::Relaxed) {
                transfer(store, map, &mut rng);
            }
        });
    }
    scope.spawn(move || {
        let mut rng = Rng::with_seed(seed.wrapping_add(9));
        while !stop.load(Ordering::Relaxed) {
            disturb(map, &mut rng);
        }
    });
}

fn sum_stays_the_same(options: Options) {
    let (place, seed) = (Place::new(), seed());
    let (store, map) = open_bank(&place, options);
    let stop = AtomicBool::new(false);
    let (end, audits) = (Instant::now() + duration(), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        keep_busy(scope, &store, &map, &stop, seed);
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                while Instant::now() < end {
                    audit(&store.snapshot().unwrap(), &map);
                    audits.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    let figures = store.stat().unwrap();
    println!(
        "{} audits, {} commits, {} folds",
        audits.into_inner(),
        figures.counts.commits,
        figures.counts.folds
    );
    assert!(figures.counts.folds > 3, "nothing was folded meanwhile");
    assert_sound(&store);
}

#[test]
fn sum_of_all_accounts_stays_the_same_in_every_snapshot() {
    sum_stays_the_same(restless());
}

#[test]
fn sum_of_all_accounts_stays_the_same_in_durable_snapshots() {
    let (place, seed) = (Place::new(), seed());
    let (store, map) = open_bank(&place, restless());
    store.sync().unwrap();
    let stop = AtomicBool::new(false);
    let end = Instant::now() + duration();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        keep_busy(scope, &store, &map, &stop, seed);
        let mut newest = 0;
        while Instant::now() < end {
            let snapshot = store.snapshot_durable().unwrap();
            assert!(snapshot.commit() >= newest, "what is durable goes back");
            newest = snapshot.commit();
            audit(&snapshot, &map);
        }
    });
}

// Long-lived snapshots.

/// A snapshot and its content when it was taken.
struct Held {
    snapshot: Snapshot,
    pairs: Vec<Pair>,
}

impl Held {
    fn take(store: &Store, map: &Map) -> Held {
        let snapshot = store.snapshot().unwrap();
        let pairs = read_everything(&snapshot, map);
        Held { snapshot, pairs }
    }

    fn assert_unchanged(&self, map: &Map) {
        assert!(
            read_everything(&self.snapshot, map) == self.pairs,
            "the snapshot changed"
        );
        for (key, value) in &self.pairs {
            assert!(self.snapshot.get(map, key).unwrap().unwrap() == *value);
            if value.len() > 60_000 {
                let mut streamed = Vec::new();
                let mut reader = self.snapshot.stream(map, key).unwrap().unwrap();
                reader.read_to_end(&mut streamed).unwrap();
                assert!(streamed == *value, "the stream of {key:?} gives something else");
            }
        }
        assert_eq!(money(&self.pairs), MONEY);
    }
}

#[test]
fn held_snapshots_show_the_same_bytes_later_in_whatever_thread() {
    let (place, seed) = (Place::new(), seed());
    let (store, map) = open_bank(&place, restless());
    let stop = AtomicBool::new(false);
    let (send, receive) = mpsc::sync_channel::<Held>(1);
    thread::scope(|scope| {
        let stop = Stop(&stop);
        keep_busy(scope, &store, &map, stop.0, seed);
        let map = &map;
        let verifier = scope.spawn(move || {
            let (mut held, mut rng) = (Vec::new(), Rng::with_seed(seed));
            while let Ok(next) = receive.recv() {
                held.push(next);
                held[rng.usize(0..held.len())].assert_unchanged(map);
                if held.len() == 6 {
                    held.swap_remove(rng.usize(0..6));
                }
            }
            held
        });
        let end = Instant::now() + duration();
        while Instant::now() < end {
            send.send(Held::take(&store, map)).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        drop(send);
        let held = verifier.join().unwrap();
        drop(stop);
        (0..3).for_each(|_| store.maintain().unwrap());
        held.iter().for_each(|held| held.assert_unchanged(map));
    });
    assert_sound(&store);
}

#[test]
fn writers_that_held_snapshots_stop_are_told_and_go_on_when_those_are_dropped() {
    let place = Place::new();
    let files = 300;
    let (store, map) = open_bank(&place, restless().maintenance(Maintenance::Manual).log_files(files));
    let mut held = Vec::new();
    let fill = |held: &mut Vec<Held>| -> Result<()> {
        (0..10u32).try_for_each(|number| map.put(number.to_be_bytes(), [7; 1000]))?;
        store.maintain()?;
        held.push(Held::take(&store, &map));
        Ok(())
    };
    let error = loop {
        // The last log file takes some more commits without a fold.
        assert!(held.len() < files + 20, "each holds a log file of its own");
        if let Err(error) = fill(&mut held) {
            break error;
        }
    };
    println!("{} snapshots, each of another moment, can be held", held.len());
    assert!(held.len() >= files - 20);
    assert_eq!(error.kind(), Kind::MakeSpace);
    let Reason::LogHeld { holders, .. } = error.reason() else {
        panic!("{error}");
    };
    let process = format!("of process {}", std::process::id());
    assert!(holders.contains("snapshot ") && holders.contains(&process), "{error}");
    held.iter().for_each(|held| held.assert_unchanged(&map));
    held.drain(..held.len() / 2);
    store.maintain().unwrap();
    (0..10).for_each(|_| fill(&mut held).unwrap());
    held.iter().for_each(|held| held.assert_unchanged(&map));
}

#[test]
fn borrowed_values_stay_while_everything_around_them_is_replaced() {
    let place = Place::new();
    let (store, map) = open_bank(&place, restless());
    map.put(b"long", vec![3; 200_000]).unwrap();
    store.maintain().unwrap();
    let snapshot = store.snapshot().unwrap();
    let values: Vec<Value<'_>> = (0..ACCOUNTS)
        .map(|n| snapshot.get(&map, account(n)).unwrap().unwrap())
        .collect();
    let long = snapshot.get(&map, b"long").unwrap().unwrap();
    let mut rng = Rng::with_seed(2);
    for _ in 0..20 {
        map.clear().unwrap();
        (0..200).for_each(|_| disturb(&map, &mut rng));
        store.maintain().unwrap();
    }
    assert!(values.iter().all(|value| **value == 100i64.to_be_bytes()));
    assert!(long == [3; 200_000]);
    thread::scope(|scope| {
        let long = &long;
        scope.spawn(move || assert!(*long == [3; 200_000]));
    });
}

// Threads and handles.

#[test]
fn everything_can_be_sent_and_shared() {
    fn check<T: Send + Sync>() {}
    check::<Store>();
    check::<Map>();
    check::<Maps<'_>>();
    check::<Options>();
    check::<Batch>();
    check::<Snapshot>();
    check::<Cursor<'_>>();
    check::<Value<'_>>();
    check::<ValueReader<'_>>();
    check::<Transaction>();
    check::<TransactionOptions>();
    check::<Savepoint>();
    check::<Commit>();
    check::<CommitFuture>();
    check::<Statistics>();
    check::<Error>();
}

#[test]
fn transaction_goes_on_in_another_thread() {
    let place = Place::new();
    let (store, map) = open_bank(&place, restless());
    for options in [TransactionOptions::new(), TransactionOptions::new().exclusive()] {
        let mut tx = store.begin(options).unwrap();
        tx.put(&map, b"first", b"1").unwrap();
        thread::scope(|scope| {
            let written = scope.spawn(|| {
                let mut tx = tx;
                tx.put(&map, b"second", b"2").unwrap();
                tx
            });
            let tx = written.join().unwrap();
            scope.spawn(|| tx.commit().unwrap());
        });
        assert!(map.get(b"first").unwrap().is_some() && map.get(b"second").unwrap().is_some());
        map.clear().unwrap();
    }
}

#[test]
fn many_threads_read_one_transaction() {
    let place = Place::new();
    let (store, map) = open_bank(&place, restless());
    let mut tx = store.begin(TransactionOptions::new().serializable()).unwrap();
    tx.put(&map, account(0), 200i64.to_be_bytes()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let pairs = forwards(&mut tx.range(&map, ..).unwrap());
                assert_eq!(money(&pairs), MONEY + 100);
                assert_eq!(amount_of(&tx.get(&map, account(0)).unwrap().unwrap()), 200);
            });
        }
    });
    map.put(account(7), 0i64.to_be_bytes()).unwrap();
    assert!(matches!(tx.commit().unwrap_err().reason(), Reason::Conflict { .. }));
}

#[test]
fn many_threads_that_open_a_map_by_name_get_the_same() {
    let place = Place::new();
    let store = restless().open(place.path()).unwrap();
    for round in 0..20 {
        let name = format!("map {round}");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let map = store.map(&name).unwrap();
                    for _ in 0..5 {
                        map.append(b"", b"x").unwrap();
                    }
                });
            }
        });
        assert_eq!(store.map(&name).unwrap().count().unwrap(), 20);
        if round % 2 == 0 {
            store.maps().drop(&name).unwrap();
        }
    }
    assert_eq!(store.maps().list().unwrap().len(), 10);
    assert_sound(&store);
}

#[test]
fn maps_that_are_dropped_while_others_write_take_nothing_along() {
    let place = Place::new();
    let (store, bank) = open_bank(&place, restless());
    let seed = seed();
    thread::scope(|scope| {
        let writers = [1, 2].map(|thread| {
            let store = &store;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed.wrapping_add(thread));
                for _ in 0..400 {
                    let map = store.map("short-lived").unwrap();
                    let put = (0..20u32).try_for_each(|n| map.put(n.to_be_bytes(), vec![7; rng.usize(0..900)]));
                    if let Err(error) = put {
                        assert!(matches!(error.reason(), Reason::MapDropped { .. }), "{error}");
                    }
                }
            })
        });
        while writers.iter().any(|writer| !writer.is_finished()) {
            store.map("short-lived").unwrap();
            match store.maps().drop("short-lived") {
                Err(error) if !matches!(error.reason(), Reason::UnknownMap { .. }) => panic!("{error}"),
                _ => store.maintain().unwrap(),
            }
        }
    });
    audit(&store.snapshot().unwrap(), &bank);
    assert_sound(&store);
}

// Commits as futures.

#[test]
fn commit_future_is_visible_at_once_and_resolves_when_durable() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let map = store.map("futures").unwrap();
    for number in 0..20u64 {
        let mut batch = Batch::new();
        batch.put(&map, number.to_be_bytes(), b"value").unwrap();
        batch.append(&map, b"log/", b"entry").unwrap();
        let future = store.write_async(batch).unwrap();
        assert!(map.get(number.to_be_bytes()).unwrap().is_some());
        let expected = future.commit().clone();
        let commit = block_on(future).unwrap();
        assert_eq!((&commit, commit.assigned()), (&expected, &[number][..]));
        assert!(store.stat().unwrap().synced_commit >= commit.number());
    }
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    tx.put(&map, b"key", b"value").unwrap();
    let commit = block_on(tx.commit_async().unwrap()).unwrap();
    assert_eq!(store.snapshot_durable().unwrap().commit(), commit.number());
}

#[test]
fn written_commit_future_is_ready_without_a_sync() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let map = store.map("futures").unwrap();
    let syncs = store.stat().unwrap().counts.syncs;
    let mut batch = Batch::new();
    batch.durability(Durability::Written);
    batch.put(&map, b"key", b"value").unwrap();
    let mut future = store.write_async(batch).unwrap();
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(Pin::new(&mut future).poll(&mut context).is_ready());
    assert_eq!(store.stat().unwrap().counts.syncs, syncs);
}

/// Resolves when all futures have resolved.
struct All(Vec<Option<CommitFuture>>);

impl Future for All {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        for place in &mut self.0 {
            if let Some(future) = place
                && let Poll::Ready(commit) = Pin::new(future).poll(context)
            {
                commit.unwrap();
                *place = None;
            }
        }
        if self.0.iter().all(Option::is_none) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

#[test]
fn many_commit_futures_resolve_together_with_few_syncs() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let map = store.map("futures").unwrap();
    let before = store.stat().unwrap().counts.syncs;
    let make = |number: u64| {
        let mut batch = Batch::new();
        batch.put(&map, number.to_be_bytes(), b"value").unwrap();
        store.write_async(batch).unwrap()
    };
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let make = &make;
            scope.spawn(move || {
                let futures: Vec<_> = (0..500).map(|number| Some(make(thread * 1000 + number))).collect();
                block_on(All(futures));
            });
        }
        // Some futures are dropped unresolved; their commits remain in effect.
        (0..100).for_each(|number| drop(make(10_000 + number)));
    });
    let figures = store.stat().unwrap();
    assert_eq!(map.count().unwrap(), 2100);
    println!("{} syncs for 2000 futures", figures.counts.syncs - before);
    assert!(figures.counts.syncs - before < 1000);
}

#[test]
fn future_that_moves_between_executors_is_woken_in_the_last_one() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let map = store.map("futures").unwrap();
    for number in 0..20u64 {
        let mut batch = Batch::new();
        batch.put(&map, number.to_be_bytes(), b"value").unwrap();
        let mut future = store.write_async(batch).unwrap();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = Pin::new(&mut future).poll(&mut context);
        thread::spawn(move || block_on(future).unwrap()).join().unwrap();
    }
}

#[test]
fn synced_commits_of_many_threads_share_syncs() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let map = store.map("shared").unwrap();
    let before = store.stat().unwrap().counts.syncs;
    thread::scope(|scope| {
        for thread in 0..8u64 {
            let (map, store) = (&map, &store);
            scope.spawn(move || {
                for number in 0..50u64 {
                    map.put((thread << 32 | number).to_be_bytes(), b"value").unwrap();
                    let durable = store.snapshot_durable().unwrap();
                    assert!(
                        durable
                            .get(map, (thread << 32 | number).to_be_bytes())
                            .unwrap()
                            .is_some()
                    );
                }
            });
        }
    });
    let syncs = store.stat().unwrap().counts.syncs - before;
    println!("{syncs} syncs for 400 commits");
    assert!(syncs < 400, "no sync was shared");
}
