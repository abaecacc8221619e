//! One writer and several readers at the same time.

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

    /// Inserts all and makes commits visible one by one.
    fn write(&self, index: Index, visible: &AtomicU64, pause: Duration) {
        for (place, (key, version)) in self.operations.iter().enumerate() {
            index.insert(&self.log, key, hash(key), version.commit, version.position);
            if self
                .operations
                .get(place + 1)
                .is_none_or(|(_, next)| next.commit != version.commit)
            {
                visible.store(version.commit, Release);
            }
            if place % 64 == 0 {
                let start = Instant::now();
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Ranks of keys that exist at `commit`, with the version seen.
    fn state(&self, commit: u64) -> Vec<(&[u8], Version)> {
        let visible = |(key, versions): &'_ (Vec<u8>, Vec<Version>)| {
            Tester::visible(versions, commit).map(|version| (key.len(), version))
        };
        let seen = self
            .model
            .iter()
            .filter_map(|pair| visible(pair).map(|(_, version)| (&pair.0[..], version)));
        seen.collect()
    }

    fn check_finds(&self, index: Index, random: &mut fastrand::Rng, commit: u64) {
        for _ in 0..300 {
            let (key, versions) = &self.model[random.usize(..self.model.len())];
            let found = index.find(&self.log, key, hash(key), commit);
            assert_eq!(found, Tester::visible(versions, commit), "key {key:?} at {commit}");
        }
    }

    fn check_scan(&self, index: Index, commit: u64, is_forward: bool) {
        let mut expected = self.state(commit);
        let mut cursor = IndexCursor::new(index, &self.log);
        if is_forward {
            cursor.first()
        } else {
            cursor.last()
        };
        let mut seen: Vec<(&[u8], Version)> = Vec::new();
        let mut previous: Option<&[u8]> = None;
        while cursor.is_valid() {
            let key = cursor.key();
            assert!(previous.is_none_or(|previous| if is_forward { previous < key } else { previous > key }));
            previous = Some(key);
            seen.extend(cursor.visible(commit).map(|version| (key, version)));
            if is_forward {
                cursor.next()
            } else {
                cursor.prev()
            };
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

    /// Steps to and fro from random keys, over what is visible.
    fn check_walk(&self, index: Index, random: &mut fastrand::Rng, commit: u64) {
        let state = self.state(commit);
        let mut cursor = IndexCursor::new(index, &self.log);
        let target = &self.model[random.usize(..self.model.len())].0;
        let mut rank = state.partition_point(|(key, _)| *key < target.as_slice());
        cursor.seek(target);
        skip_invisible(&mut cursor, commit, true);
        for _ in 0..200 {
            let seen = cursor
                .is_valid()
                .then(|| (cursor.key(), cursor.visible(commit).unwrap()));
            assert_eq!(seen, state.get(rank).copied(), "walking at {commit}");
            if !cursor.is_valid() {
                break;
            }
            let is_forward = random.u8(..) < 140;
            if is_forward {
                cursor.next()
            } else {
                cursor.prev()
            };
            skip_invisible(&mut cursor, commit, is_forward);
            rank = if is_forward { rank + 1 } else { rank.wrapping_sub(1) };
        }
    }
}

fn skip_invisible<'a>(cursor: &mut IndexCursor<'a, &'a Log>, commit: u64, is_forward: bool) {
    while cursor.is_valid() && cursor.visible(commit).is_none() {
        if is_forward {
            cursor.next()
        } else {
            cursor.prev()
        };
    }
}

#[test]
fn readers_see_exactly_their_commit_while_the_writer_goes_on() {
    let mut random = random();
    let cases = [
        (Shape::Random, Arrival::Random),
        (Shape::Decimal, Arrival::Random),
        (Shape::LongPrefixes, Arrival::Streams),
        (Shape::Random, Arrival::Ascending),
        (Shape::Decimal, Arrival::Descending),
        (Shape::Mixed, Arrival::Random),
    ];
    for (shape, arrival) in cases {
        println!("{shape:?} {arrival:?}");
        let script = Script::new(&mut random, shape, arrival, 12_000);
        let mut memory = Memory::new(1 << 22);
        let (index, visible) = (memory.create(), AtomicU64::new(0));
        let last = script.operations.last().unwrap().1.commit;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (script, visible, mut random) = (&script, &visible, random.fork());
                scope.spawn(move || {
                    loop {
                        let commit = visible.load(Acquire);
                        script.check_finds(index, &mut random, commit);
                        script.check_walk(index, &mut random, commit);
                        script.check_scan(index, commit, true);
                        script.check_scan(index, commit, false);
                        if commit == last {
                            break;
                        }
                    }
                });
            }
            script.write(index, &visible, Duration::from_millis(1));
        });
    }
}
