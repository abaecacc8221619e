//! Writers that die in the middle of an insert, and the ones that come after them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

#[test]
fn the_operations_of_an_interrupted_commit_can_be_inserted_again() {
    let mut tester = Tester::new(1 << 20);
    for round in 0..scaled(2000, 150) as u32 {
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
        for (round, key) in arriving_keys(&mut random, *shape, *arrival, scaled(2500, 60))
            .iter()
            .enumerate()
        {
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
        cursor.first().unwrap();
        for key in tester.model.keys() {
            assert_eq!(cursor.key(), key);
            cursor.next().unwrap();
        }
    }
}

/// A process that writes rows of topics, and remembers where.
struct Writer {
    /// Of each topic the finger to its counter and that to its newest row.
    kept: [[Finger; 2]; TOPICS],
}

const TOPICS: usize = 3;

impl Writer {
    const NEW: Writer = Writer {
        kept: [[Finger::NONE; 2]; TOPICS],
    };
}

/// What one commit writes: the counter of a topic, its next row, and what lies beside them, in some order.
fn rows(random: &mut fastrand::Rng, topic: usize, number: u64) -> Vec<(Vec<u8>, Option<usize>)> {
    let counter = [b"\0\0\0\x01".as_slice(), &[topic as u8; 4]].concat();
    let row = [b"\0\0\0\x08".as_slice(), &[topic as u8; 4], &number.to_be_bytes()].concat();
    let mut rows = vec![(counter, Some(0)), (row, Some(1))];
    for _ in 0..random.usize(..4) {
        // Behind a row or a counter, between topics, or anywhere.
        let near = [&rows[random.usize(..2)].0[..], &random.u16(..).to_be_bytes()].concat();
        let between = [b"\0\0\0\x08".as_slice(), &[random.u8(..4)], &[random.u8(..)]].concat();
        let anywhere = key_of_shape(random, Shape::Mixed);
        rows.push(([near, between, anywhere][random.usize(..3)].clone(), None));
    }
    rows.sort();
    rows.dedup();
    random.shuffle(&mut rows);
    rows
}

#[test]
fn fingers_of_the_living_stay_true_when_a_writer_dies() {
    let mut random = random();
    for _ in 0..scaled(12, 1) {
        let mut tester = Tester::new(1 << 22);
        let mut writers = [Writer::NEW; 3];
        let (readings_left, mut numbers, mut deaths) = (AtomicU64::new(0), [0; TOPICS], 0);
        for _ in 0..scaled(1_500, 150) {
            let (who, topic) = (random.usize(..writers.len()), random.usize(..TOPICS));
            let rows = rows(&mut random, topic, numbers[topic]);
            numbers[topic] += 1;
            let commit = tester.commit;
            let positions: Vec<_> = rows.iter().map(|(key, _)| tester.log.append(key)).collect();
            readings_left.store(random.u64(..600), Relaxed);
            let (log, index) = (&tester.log, tester.index);
            let readings_left = &readings_left;
            let dying = DyingLog { log, readings_left };
            let fingers = &mut writers[who].kept[topic];
            let write = || {
                for ((key, near), &position) in rows.iter().zip(&positions) {
                    let finger = near.map_or(Finger::NONE, |near| fingers[near]);
                    let version = Version { commit, position };
                    let found = index.insert_near(dying, key, hash(key), version, finger);
                    if let Some(near) = near {
                        fingers[*near] = found;
                    }
                }
            };
            if catch_unwind(AssertUnwindSafe(write)).is_err() {
                deaths += 1;
                writers[who] = Writer::NEW;
                // As `repair.rs` does.
                for ((key, _), &position) in rows.iter().zip(&positions) {
                    index.insert(log, key, hash(key), commit, position);
                }
            }
            for ((key, _), &position) in rows.iter().zip(&positions) {
                let version = Version { commit, position };
                tester.model.entry(key.clone()).or_default().insert(0, version);
            }
            for (key, near) in &rows {
                let newest = tester.model[key].first().copied();
                for writer in &writers {
                    let finger = near.map_or(Finger::NONE, |near| writer.kept[topic][near]);
                    assert_eq!(tester.index.find_near(&tester.log, key, hash(key), finger), newest);
                }
            }
            tester.commit += 1;
        }
        assert!(deaths > scaled(50, 0), "{deaths}");
        tester.check_finds(u64::MAX);
        let mut cursor = IndexCursor::new(tester.index, &tester.log);
        cursor.first().unwrap();
        for (key, versions) in &tester.model {
            assert_eq!(cursor.key(), key);
            assert!(cursor.versions().eq(versions.iter().copied()));
            cursor.next().unwrap();
        }
        assert!(!cursor.is_valid());
    }
}
