//! Writers that die in the middle of an insert, and the ones that come after them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

#[test]
fn the_operations_of_an_interrupted_commit_can_be_inserted_again() {
    let mut tester = Tester::new(1 << 20);
    for round in 0..2000u32 {
        tester.insert(&(round % 700 * 7919 % 701).to_be_bytes());
        tester.commit += 1;
    }
    let last: Vec<_> = (0..40u32).map(|key| (key * 97).to_be_bytes()).collect();
    last.iter().for_each(|key| tester.insert(key));
    last.iter().for_each(|key| tester.insert(key));
    for (key, versions) in &tester.model {
        for version in versions.iter().rev().filter(|version| version.commit == tester.commit) {
            tester
                .index
                .insert(&tester.log, key, hash(key), version.commit, version.position);
        }
    }
    tester.check_finds(u64::MAX);
    tester.check_scans();
}

/// A log whose reader dies at a chosen reading.
#[derive(Clone, Copy)]
struct DyingLog<'a> {
    log: &'a Log,
    readings_left: &'a AtomicU64,
}

struct Died;

impl<'a> Keys<'a> for DyingLog<'a> {
    fn key(self, position: u32) -> &'a [u8] {
        let left = self.readings_left.load(Relaxed);
        self.readings_left.store(left.wrapping_sub(1), Relaxed);
        if left == 0 {
            resume_unwind(Box::new(Died));
        }
        self.log.key(position)
    }
}

#[test]
fn a_writer_that_dies_in_an_insert_harms_nothing() {
    let mut random = random();
    for (shape, arrival) in SHAPES.iter().zip(ARRIVALS.iter().cycle()) {
        let mut tester = Tester::new(1 << 22);
        let readings_left = AtomicU64::new(0);
        for (round, key) in arriving_keys(&mut random, *shape, *arrival, 2500).iter().enumerate() {
            let position = tester.log.append(key);
            let version = Version {
                commit: tester.commit,
                position,
            };
            readings_left.store(random.u64(..300), Relaxed);
            let keys = DyingLog {
                log: &tester.log,
                readings_left: &readings_left,
            };
            let insert = || tester.index.insert(keys, key, hash(key), version.commit, position);
            if catch_unwind(AssertUnwindSafe(insert)).is_err() && round % 10 == 0 {
                tester.check_finds(tester.commit - 1);
            }
            tester
                .index
                .insert(&tester.log, key, hash(key), version.commit, position);
            tester.model.entry(key.clone()).or_default().insert(0, version);
            tester.commit += 1;
        }
        tester.check_finds(tester.commit);
        let mut cursor = IndexCursor::new(tester.index, &tester.log);
        cursor.first();
        for key in tester.model.keys() {
            assert_eq!(cursor.key(), key);
            cursor.next();
        }
    }
}
