//! One writer and several readers at the same time: in threads, and interleaved at every reading of a key in one thread,
//! where a failure can be repeated.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use super::*;

/// What one writer inserts while readers look: known in advance, so that readers can tell what must be there.
struct Script {
    log: Log,
    operations: Vec<(Vec<u8>, Version)>,
    model: Vec<(Vec<u8>, Vec<Version>)>,
}

impl Script {
    fn new(random: &mut fastrand::Rng, shape: Shape, arrival: Arrival, count: usize) -> Script {
        let mut log = Log::default();
        let (mut operations, mut model, mut commit) = (Vec::new(), Model::new(), 1);
        let keys = arriving_keys(random, shape, arrival, count);
        for round in 0..count {
            let again = random.u8(..) < 50;
            let key = if again {
                &keys[random.usize(..=round)]
            } else {
                &keys[round]
            };
            let version = Version {
                commit,
                position: log.append(key),
            };
            operations.push((key.clone(), version));
            model.entry(key.clone()).or_default().insert(0, version);
            commit += u64::from(random.u8(..) < 100);
        }
        Script {
            log,
            operations,
            model: model.into_iter().collect(),
        }
    }

    /// Inserts the operation at `place` and makes its commit visible if it is the last of it. False when there is none.
    fn write<'a, K: Keys<'a>>(&self, index: Index, keys: K, place: usize, visible: &AtomicU64) -> bool {
        let Some((key, version)) = self.operations.get(place) else {
            return false;
        };
        index.insert(keys, key, hash(key), version.commit, version.position);
        let next = self.operations.get(place + 1);
        if next.is_none_or(|(_, next)| next.commit != version.commit) {
            visible.store(version.commit, Release);
        }
        true
    }

    /// Inserts all, with pauses in which readers come to look.
    fn write_all(&self, index: Index, visible: &AtomicU64, pause: Duration) {
        let mut place = 0;
        while self.write(index, &self.log, place, visible) {
            let start = Instant::now();
            while place % 64 == 0 && start.elapsed() < pause {
                std::hint::spin_loop();
            }
            place += 1;
        }
    }

    /// The keys that exist at `commit`, with the version seen.
    fn state(&self, commit: u64) -> Vec<(&[u8], Version)> {
        let visible = |versions: &[Version]| Tester::visible(versions, commit);
        let seen = self
            .model
            .iter()
            .filter_map(|(key, versions)| Some((&key[..], visible(versions)?)));
        seen.collect()
    }

    fn check_finds<'a, K: Keys<'a>>(&self, index: Index, keys: K, random: &mut fastrand::Rng, commit: u64) {
        for _ in 0..scaled(100, 10) {
            let (key, versions) = &self.model[random.usize(..self.model.len())];
            let found = index.find(keys, key, hash(key), commit);
            assert_eq!(found, Tester::visible(versions, commit), "key {key:?} at {commit}");
        }
    }

    fn check_scan<'a, K: Keys<'a>>(&self, index: Index, keys: K, commit: u64, is_forward: bool) {
        let mut expected = self.state(commit);
        let mut cursor = IndexCursor::new(index, keys);
        match is_forward {
            true => cursor.first().unwrap(),
            false => cursor.last(),
        }
        let mut seen: Vec<(&[u8], Version)> = Vec::new();
        let mut previous: Option<&[u8]> = None;
        while cursor.is_valid() {
            let key = cursor.key();
            assert!(previous.is_none_or(|previous| if is_forward { previous < key } else { previous > key }));
            previous = Some(key);
            seen.extend(cursor.visible(commit).map(|version| (key, version)));
            step(&mut cursor, is_forward);
        }
        if !is_forward {
            expected.reverse();
        }
        assert!(
            seen == expected,
            "a scan at {commit} saw {} of {} entries",
            seen.len(),
            expected.len()
        );
    }

    fn check_all<'a, K: Keys<'a>>(&self, index: Index, keys: K, random: &mut fastrand::Rng, commit: u64) {
        self.check_finds(index, keys, random, commit);
        self.check_walk(index, keys, random, commit);
        self.check_scan(index, keys, commit, true);
        self.check_scan(index, keys, commit, false);
    }

    /// Steps to and fro from random keys, over what is visible.
    fn check_walk<'a, K: Keys<'a>>(&self, index: Index, keys: K, random: &mut fastrand::Rng, commit: u64) {
        let state = self.state(commit);
        let mut cursor = IndexCursor::new(index, keys);
        let target = &self.model[random.usize(..self.model.len())].0;
        let mut rank = state.partition_point(|(key, _)| *key < target.as_slice());
        cursor.seek(target).unwrap();
        skip_invisible(&mut cursor, commit, true);
        for _ in 0..scaled(200, 20) {
            let seen = cursor
                .is_valid()
                .then(|| (cursor.key(), cursor.visible(commit).unwrap()));
            assert_eq!(seen, state.get(rank).copied(), "walking at {commit}");
            if !cursor.is_valid() {
                break;
            }
            let is_forward = random.u8(..) < 140;
            step(&mut cursor, is_forward);
            skip_invisible(&mut cursor, commit, is_forward);
            rank = if is_forward { rank + 1 } else { rank.wrapping_sub(1) };
        }
    }
}

fn step<'a, K: Keys<'a>>(cursor: &mut IndexCursor<'a, K>, is_forward: bool) {
    match is_forward {
        true => cursor.next().unwrap(),
        false => cursor.prev().unwrap(),
    }
}

fn skip_invisible<'a, K: Keys<'a>>(cursor: &mut IndexCursor<'a, K>, commit: u64, is_forward: bool) {
    while cursor.is_valid() && cursor.visible(commit).is_none() {
        step(cursor, is_forward);
    }
}

/// Shapes and arrivals that divide nodes in every way.
const CASES: [(Shape, Arrival); 6] = [
    (Shape::Random, Arrival::Random),
    (Shape::Decimal, Arrival::Random),
    (Shape::LongPrefixes, Arrival::Streams),
    (Shape::Random, Arrival::Ascending),
    (Shape::Decimal, Arrival::Descending),
    (Shape::Mixed, Arrival::Random),
];

#[test]
fn readers_see_exactly_their_commit_while_the_writer_goes_on() {
    let mut random = random();
    for (shape, arrival) in CASES {
        println!("{shape:?} {arrival:?}");
        let script = Script::new(&mut random, shape, arrival, scaled(12_000, 200));
        let mut memory = Memory::new(1 << 22);
        let (index, visible) = (memory.create(), AtomicU64::new(0));
        let last = script.operations.last().unwrap().1.commit;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (script, visible, mut random) = (&script, &visible, random.fork());
                scope.spawn(move || {
                    loop {
                        let commit = visible.load(Acquire);
                        script.check_all(index, &script.log, &mut random, commit);
                        if commit == last {
                            break;
                        }
                    }
                });
            }
            script.write_all(index, &visible, Duration::from_millis(1));
        });
    }
}

#[test]
fn whoever_attaches_while_the_writer_goes_on_finds_the_index_sound() {
    let mut random = random();
    let mut memory = Memory::new(1 << 21);
    for _ in 0..scaled(3000, 3) {
        let script = Script::new(&mut random, Shape::Longest, Arrival::Random, scaled(150, 80));
        let (index, visible) = (memory.create(), AtomicU64::new(0));
        let (first, bytes) = (memory.0.as_ptr().expose_provenance(), memory.bytes());
        let last = script.operations.last().unwrap().1.commit;
        std::thread::scope(|scope| {
            scope.spawn(|| script.write_all(index, &visible, Duration::ZERO));
            while visible.load(Acquire) < last {
                // SAFETY: the memory of the index above, which outlives this loop.
                let attached = unsafe { Index::attach(std::ptr::with_exposed_provenance_mut(first), bytes) };
                assert!(attached.is_some());
            }
        });
    }
}

#[test]
fn a_reader_at_the_heels_of_the_writer_sees_whole_entries() {
    let mut log = Log::default();
    let positions: Vec<_> = (0..scaled(200_000, 400) as u32)
        .map(|number| log.append(&number.to_be_bytes()))
        .collect();
    let mut memory = Memory::new(1 << 24);
    let (index, inserted) = (memory.create(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for position in &positions {
                let key = (&log).key(*position);
                index.insert(&log, key, hash(key), u64::from(*position), *position);
                inserted.fetch_add(1, Release);
            }
        });
        let mut cursor = IndexCursor::new(index, &log);
        let mut least = 0;
        while least < positions.len() as u64 {
            least = inserted.load(Acquire);
            cursor.last();
            assert!(least == 0 || cursor.key() >= &(least as u32 - 1).to_be_bytes()[..]);
            while cursor.is_valid() {
                let version = cursor.versions().next().unwrap();
                assert_eq!((&log).key(version.position), cursor.key());
                assert_eq!(version.commit, u64::from(version.position));
                assert_eq!(
                    index.find(&log, cursor.key(), hash(cursor.key()), u64::MAX),
                    Some(version)
                );
                match cursor.key().ends_with(&[0]) {
                    true => break,
                    false => cursor.prev().unwrap(),
                }
            }
        }
    });
}

/// A log at whose readings somebody else gets a turn, unless it is his already.
#[derive(Clone, Copy)]
struct TurningLog<'a> {
    log: &'a Log,
    other: &'a RefCell<&'a mut dyn FnMut()>,
}

impl<'a> Keys<'a> for TurningLog<'a> {
    fn key(self, position: u32) -> &'a [u8] {
        if let Ok(mut other) = self.other.try_borrow_mut() {
            other();
        }
        self.log.key(position)
    }
}

#[test]
fn a_writer_may_go_on_between_any_two_readings_of_a_reader() {
    let mut random = random();
    for (shape, arrival) in CASES {
        for pace in [3, 50, 1000] {
            let script = Script::new(&mut random, shape, arrival, scaled(5000, 120));
            let mut memory = Memory::new(1 << 21);
            let (index, visible) = (memory.create(), AtomicU64::new(0));
            let (mut place, mut turns) = (0, random.fork());
            let mut write = || {
                // Now and then a whole run, long enough to divide what the reader is in.
                let count = if turns.u32(..pace) == 0 { turns.usize(..80) } else { 0 };
                for _ in 0..count {
                    place += usize::from(script.write(index, &script.log, place, &visible));
                }
            };
            let keys = TurningLog {
                log: &script.log,
                other: &RefCell::new(&mut write),
            };
            for _ in 0..scaled(12, 2) {
                script.check_all(index, keys, &mut random, visible.load(Acquire));
            }
        }
    }
}

#[test]
fn a_reader_may_look_between_any_two_readings_of_the_writer() {
    let mut random = random();
    for (shape, arrival) in CASES {
        let script = Script::new(&mut random, shape, arrival, scaled(3000, 120));
        let mut memory = Memory::new(1 << 21);
        let (index, visible) = (memory.create(), AtomicU64::new(0));
        let mut turns = random.fork();
        let mut read = || {
            if turns.u32(..100) == 0 {
                script.check_all(index, &script.log, &mut turns, visible.load(Acquire));
            }
        };
        let keys = TurningLog {
            log: &script.log,
            other: &RefCell::new(&mut read),
        };
        (0..script.operations.len()).for_each(|place| assert!(script.write(index, keys, place, &visible)));
    }
}
