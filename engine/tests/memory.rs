//! Memory under the worst mix: a small budget, readers that stay, transactions larger than the budget, and 10,000 maps.
//!
//! It is the only test of its program, because it looks at the memory of the whole process.

use duramen_engine::{Durability, Map, Options, Store, TransactionOptions};

const BUDGET: u64 = 16 << 20;
const MAPS: usize = 10_000;
const VALUE_BYTES: usize = 1_000;
/// Single puts of a round: twice the budget.
const SINGLE: u64 = 32_000;
/// Pairs of a transaction, of which `LARGE_BYTES` may be in memory.
const LARGE: u64 = 20_000;
const LARGE_BYTES: usize = 8 << 20;
const ROUNDS_WITH_READERS: u64 = 3;
/// What anything may take beside: handles of maps, threads, the allocator.
const SLACK: u64 = 16 << 20;

/// Memory of this process that is no file's.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)).expect("a number");
    number.parse::<u64>().expect("a number") << 10
}

/// Indexes and log of what is not folded, or held by a snapshot.
fn recent_bytes(store: &Store) -> u64 {
    let memory = store.stat().expect("figures").memory;
    assert_eq!(memory.budget_bytes, BUDGET);
    memory.index_bytes + memory.log_bytes
}

fn value(round: u64, number: u64) -> Vec<u8> {
    [round.to_be_bytes(), number.to_be_bytes()]
        .concat()
        .repeat(VALUE_BYTES / 16)
}

struct Mix {
    store: Store,
    maps: Vec<Map>,
    anonymous_before: u64,
}

impl Mix {
    fn map_of(&self, number: u64) -> &Map {
        &self.maps[number as usize * 7 % MAPS]
    }

    fn check_anonymous(&self) {
        let grown = anonymous_bytes().saturating_sub(self.anonymous_before);
        let allowed = LARGE_BYTES as u64 + SLACK;
        assert!(grown <= allowed, "{} KiB of {} KiB", grown >> 10, allowed >> 10);
    }

    /// Puts one by one; the most that indexes and log took meanwhile.
    fn put_each(&self, round: u64) -> u64 {
        let mut most = 0;
        for number in 0..SINGLE {
            let put = self.map_of(number).put(number.to_be_bytes(), value(round, number));
            put.expect("a put");
            if number % (SINGLE / 16) == 0 {
                most = most.max(recent_bytes(&self.store));
                self.check_anonymous();
            }
        }
        most
    }

    fn put_in_one_transaction(&self, round: u64) {
        let options = TransactionOptions::new().memory_bytes(LARGE_BYTES);
        let mut large = self.store.begin(options).expect("a transaction");
        for number in 0..LARGE {
            large
                .put(self.map_of(number), number.to_be_bytes(), value(round, number))
                .expect("a put");
            if number % 1_000 == 0 {
                self.check_anonymous();
            }
        }
        large.commit().expect("a commit");
    }
}

#[test]
fn budget_holds_with_long_readers_large_transactions_and_ten_thousand_maps() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options::new().memory_bytes(BUDGET).durability(Durability::Written);
    let store = options.open(directory.path().join("store")).expect("a store");
    let map = |number| store.map(&format!("map {number}")).expect("a map");
    let maps = (0..MAPS).map(map).collect();
    let mix = Mix {
        maps,
        anonymous_before: anonymous_bytes(),
        store,
    };
    let most = mix.put_each(0);
    assert!(most <= BUDGET, "{} KiB without readers", most >> 10);
    let mut readers = Vec::new();
    for round in 1..=ROUNDS_WITH_READERS {
        mix.put_in_one_transaction(round);
        readers.push((round, mix.store.snapshot().expect("a snapshot")));
        let most = mix.put_each(round + ROUNDS_WITH_READERS);
        // What a snapshot shows of the log is kept for it: eight generations at most, each with its index.
        let held = readers.len() as u64 * 8 * (BUDGET / 10 * 16 / 10);
        assert!(most <= BUDGET + held, "{} KiB with {round} readers", most >> 10);
    }
    for (round, reader) in &readers {
        for number in (0..LARGE).step_by(97) {
            let found = reader.get(mix.map_of(number), number.to_be_bytes()).expect("a read");
            assert!(
                found.is_some_and(|found| *found == *value(*round, number)),
                "{round} {number}"
            );
        }
    }
    drop(readers);
    // Nobody holds anything any more.
    let most = mix.put_each(100);
    mix.store.maintain().expect("a fold");
    let left = recent_bytes(&mix.store);
    assert!(left <= BUDGET, "{} KiB left of {} KiB", left >> 10, most >> 10);
    for number in 0..SINGLE {
        let found = mix.map_of(number).get(number.to_be_bytes()).expect("a read");
        assert!(found.is_some_and(|found| *found == *value(100, number)), "{number}");
    }
}
