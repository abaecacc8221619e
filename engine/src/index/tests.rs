//! Tests of the whole index against a map from keys to their versions.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use super::arena::LINE_BYTES;
use super::{Index, IndexCursor, Keys, Version};
use crate::checksum::key_hash;
use crate::limits::FULL_KEY_BYTES_MAX;

/// Keys one behind the other, each with its length in front.
#[derive(Default)]
struct Log(Vec<u8>);

impl Log {
    fn append(&mut self, key: &[u8]) -> u32 {
        let position = self.0.len() as u32;
        self.0.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.0.extend_from_slice(key);
        position
    }
}

impl<'a> Keys<'a> for &'a Log {
    fn key(self, position: u32) -> &'a [u8] {
        let start = position as usize + 2;
        let length = u16::from_le_bytes(self.0[start - 2..start].try_into().unwrap()) as usize;
        &self.0[start..start + length]
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// Memory with garbage in it.
struct Memory(Vec<Line>);

impl Memory {
    fn new(bytes: usize) -> Memory {
        Memory(vec![Line([0xA7; LINE_BYTES]); bytes.div_ceil(LINE_BYTES)])
    }

    fn bytes(&self) -> usize {
        self.0.len() * LINE_BYTES
    }

    fn create(&mut self) -> Index {
        let bytes = self.bytes();
        // SAFETY: aligned to a line, owned by this value, which the tests keep while they use the index.
        unsafe { Index::create(self.0.as_mut_ptr().cast(), bytes) }
    }

    fn attach(&mut self) -> Option<Index> {
        let bytes = self.bytes();
        // SAFETY: as above.
        unsafe { Index::attach(self.0.as_mut_ptr().cast(), bytes) }
    }
}

type Model = BTreeMap<Vec<u8>, Vec<Version>>;

const HASH_SEED: u64 = 7;

fn hash(key: &[u8]) -> u64 {
    key_hash(HASH_SEED, key)
}

fn random() -> fastrand::Rng {
    let seed = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// What keys look like.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Random,
    Decimal,
    LongPrefixes,
    Nested,
    OneByte,
    Longest,
    Extremes,
    Mixed,
}

const SHAPES: [Shape; 8] = [
    Shape::Random,
    Shape::Decimal,
    Shape::LongPrefixes,
    Shape::Nested,
    Shape::OneByte,
    Shape::Longest,
    Shape::Extremes,
    Shape::Mixed,
];

fn key_of_shape(random: &mut fastrand::Rng, shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Random => random.u128(..).to_be_bytes().to_vec(),
        Shape::Decimal => format!("\0\0\0\x01key{:010}", random.u32(..200_000)).into_bytes(),
        Shape::LongPrefixes => {
            let mut key = vec![b'p'; 300 + random.usize(..3) * 5];
            key.extend(format!("{:06}", random.u32(..20_000)).bytes());
            key
        }
        Shape::Nested => {
            let mut key = vec![[0, b'a'][random.usize(..2)]; random.usize(..600)];
            key.extend(vec![0; random.usize(..4)]);
            key
        }
        Shape::OneByte => vec![random.u8(..)],
        Shape::Longest => {
            let mut key = vec![0xFF; FULL_KEY_BYTES_MAX];
            let end = key.len() - random.usize(..2) * 500;
            key[end - 2..end].copy_from_slice(&random.u16(..).to_be_bytes());
            key
        }
        Shape::Extremes => (0..random.usize(..24)).map(|_| [0, 0xFF][random.usize(..2)]).collect(),
        Shape::Mixed => {
            let shape = SHAPES[random.usize(..SHAPES.len() - 1)];
            key_of_shape(random, shape)
        }
    }
}

/// In which order keys arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrival {
    Random,
    Ascending,
    Descending,
    /// Several ascending streams at once.
    Streams,
}

const ARRIVALS: [Arrival; 4] = [
    Arrival::Random,
    Arrival::Ascending,
    Arrival::Descending,
    Arrival::Streams,
];

fn arriving_keys(random: &mut fastrand::Rng, shape: Shape, arrival: Arrival, count: usize) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = (0..count).map(|_| key_of_shape(random, shape)).collect();
    match arrival {
        Arrival::Random => {}
        Arrival::Ascending => keys.sort(),
        Arrival::Descending => keys.sort_by(|left, right| right.cmp(left)),
        Arrival::Streams => {
            keys.sort();
            let length = count.div_ceil(7);
            keys = (0..length)
                .flat_map(|place| keys.iter().skip(place).step_by(length).cloned())
                .collect();
        }
    }
    keys
}

/// An index, its log and what must be in it.
struct Tester {
    memory: Memory,
    index: Index,
    log: Log,
    model: Model,
    commit: u64,
}

impl Tester {
    fn new(bytes: usize) -> Tester {
        let mut memory = Memory::new(bytes);
        let index = memory.create();
        Tester {
            memory,
            index,
            log: Log::default(),
            model: Model::new(),
            commit: 1,
        }
    }

    fn insert(&mut self, key: &[u8]) {
        let position = self.log.append(key);
        self.index.insert(&self.log, key, hash(key), self.commit, position);
        self.model.entry(key.to_vec()).or_default().insert(
            0,
            Version {
                commit: self.commit,
                position,
            },
        );
    }

    fn visible(versions: &[Version], commit: u64) -> Option<Version> {
        versions.iter().copied().find(|version| version.commit <= commit)
    }

    fn check_finds(&self, commit: u64) {
        for (key, versions) in &self.model {
            let found = self.index.find(&self.log, key, hash(key), commit);
            assert_eq!(found, Self::visible(versions, commit), "key {key:?} at {commit}");
        }
    }

    fn check_scans(&self) {
        assert_eq!(self.index.entries(), self.model.len() as u64);
        assert_eq!(
            self.index.versions(),
            self.model.values().map(|versions| versions.len() as u64).sum::<u64>()
        );
        let mut cursor = IndexCursor::new(self.index, &self.log);
        assert!(!cursor.is_valid());
        cursor.first();
        for (key, versions) in &self.model {
            assert_eq!(cursor.key(), key);
            assert!(cursor.versions().eq(versions.iter().copied()));
            cursor.next();
        }
        assert!(!cursor.is_valid());
        cursor.last();
        for key in self.model.keys().rev() {
            assert_eq!(cursor.key(), key);
            cursor.prev();
        }
        assert!(!cursor.is_valid());
    }

    fn check_seeks(&self, random: &mut fastrand::Rng, shape: Shape, count: usize) {
        let existing: Vec<_> = self.model.keys().collect();
        let mut cursor = IndexCursor::new(self.index, &self.log);
        for round in 0..count {
            let target = match round % 3 {
                0 => key_of_shape(random, shape),
                1 => key_of_shape(random, Shape::Mixed),
                _ => existing[random.usize(..existing.len())].clone(),
            };
            let rank = existing.partition_point(|key| **key < target);
            cursor.seek(&target);
            Self::check_at(&cursor, existing.get(rank).copied(), &target);
            if cursor.is_valid() {
                cursor.prev();
                Self::check_at(&cursor, rank.checked_sub(1).map(|rank| existing[rank]), &target);
            }
            cursor.seek_before(&target);
            Self::check_at(&cursor, rank.checked_sub(1).map(|rank| existing[rank]), &target);
            if cursor.is_valid() {
                cursor.next();
                Self::check_at(&cursor, existing.get(rank).copied(), &target);
            }
        }
    }

    fn check_at(cursor: &IndexCursor<'_, &Log>, expected: Option<&Vec<u8>>, target: &[u8]) {
        let key = cursor.is_valid().then(|| cursor.key());
        assert_eq!(key, expected.map(Vec::as_slice), "after going to {target:?}");
    }

    fn check(&self, random: &mut fastrand::Rng, shape: Shape) {
        for commit in [0, self.commit / 3, self.commit / 2, self.commit] {
            self.check_finds(commit);
        }
        self.check_scans();
        self.check_seeks(random, shape, 200);
    }
}

#[test]
fn every_shape_and_arrival_agrees_with_the_model() {
    let mut random = random();
    for shape in SHAPES {
        for arrival in ARRIVALS {
            println!("{shape:?} {arrival:?}");
            let mut tester = Tester::new(1 << 21);
            let keys = arriving_keys(&mut random, shape, arrival, 4000);
            for (round, key) in keys.iter().enumerate() {
                tester.insert(key);
                tester.commit += random.u64(..2);
                if round < 70 || round % 1300 == 0 {
                    tester.check_scans();
                }
                if random.u8(..) < 60 {
                    tester.insert(&keys[random.usize(..=round)]);
                }
            }
            tester.check(&mut random, shape);
        }
    }
}

#[test]
fn a_large_index_agrees_with_the_model() {
    let mut random = random();
    for shape in [Shape::Random, Shape::Decimal, Shape::LongPrefixes] {
        let mut tester = Tester::new(1 << 24);
        for key in arriving_keys(&mut random, shape, Arrival::Random, 120_000) {
            tester.insert(&key);
            tester.commit += 1;
        }
        tester.check(&mut random, shape);
    }
}

#[test]
fn hashes_that_collide_do_no_harm() {
    let mut random = random();
    let mut memory = Memory::new(1 << 20);
    let (index, mut log, mut keys) = (memory.create(), Log::default(), Vec::new());
    for commit in 0..3000 {
        let key = key_of_shape(&mut random, Shape::Random);
        let position = log.append(&key);
        index.insert(&log, &key, 5, commit, position);
        keys.push((key, Version { commit, position }));
    }
    for (key, version) in &keys {
        assert_eq!(index.find(&log, key, 5, u64::MAX), Some(*version));
    }
    assert_eq!(index.find(&log, b"never inserted", 5, u64::MAX), None);
}

#[test]
fn every_snapshot_sees_its_own_state_through_cursors_and_finds() {
    let mut random = random();
    let mut tester = Tester::new(1 << 20);
    for _ in 0..400 {
        for _ in 0..random.usize(1..4) {
            let key = format!("key{:03}", random.u32(..300)).into_bytes();
            tester.insert(&key);
        }
        tester.commit += 1;
    }
    for commit in 0..=tester.commit {
        tester.check_finds(commit);
        let expected = tester
            .model
            .iter()
            .filter_map(|(key, versions)| Tester::visible(versions, commit).map(|version| (key.as_slice(), version)));
        let mut cursor = IndexCursor::new(tester.index, &tester.log);
        let mut seen = Vec::new();
        cursor.first();
        while cursor.is_valid() {
            seen.extend(cursor.visible(commit).map(|version| (cursor.key(), version)));
            cursor.next();
        }
        assert!(expected.eq(seen));
    }
}

#[test]
fn a_hot_key_keeps_all_its_versions() {
    let mut tester = Tester::new(1 << 19);
    for round in 0..10_000u32 {
        tester.insert(b"hot");
        if round % 100 == 0 {
            tester.insert(format!("other{round}").as_bytes());
        }
        tester.commit += 1;
    }
    for commit in (0..tester.commit).step_by(997) {
        tester.check_finds(commit);
    }
    tester.check_scans();
}

#[test]
fn an_empty_index_holds_nothing() {
    let mut tester = Tester::new(4096);
    tester.check_scans();
    assert_eq!(tester.index.find(&tester.log, b"a", hash(b"a"), u64::MAX), None);
    assert_eq!(tester.index.notes().count(), 0);
    let mut cursor = IndexCursor::new(tester.index, &tester.log);
    cursor.seek(b"a");
    assert!(!cursor.is_valid());
    cursor.seek_before(b"a");
    assert!(!cursor.is_valid());
    cursor.next();
    cursor.prev();
    assert!(!cursor.is_valid());
    tester.insert(b"");
    tester.check_scans();
}

#[test]
fn notes_come_newest_first() {
    let mut memory = Memory::new(4096);
    let index = memory.create();
    let notes: Vec<_> = (0..50)
        .map(|commit| Version {
            commit: commit / 2,
            position: commit as u32 * 3,
        })
        .collect();
    for note in &notes {
        index.note(note.commit, note.position);
        index.note(note.commit, note.position);
    }
    assert!(index.notes().eq(notes.into_iter().rev()));
}

#[test]
fn an_attached_index_is_the_one_that_was_created() {
    let mut random = random();
    let mut tester = Tester::new(1 << 20);
    tester.memory = Memory::new(1 << 20);
    assert!(tester.memory.attach().is_none(), "garbage is not an index");
    tester.index = tester.memory.create();
    for key in arriving_keys(&mut random, Shape::Mixed, Arrival::Random, 3000) {
        tester.insert(&key);
        tester.commit += 1;
        tester.index = tester.memory.attach().unwrap();
    }
    tester.check(&mut random, Shape::Mixed);
    let other_size = tester.memory.bytes() - 4096;
    // SAFETY: a part of the memory that the tester owns.
    assert!(unsafe { Index::attach(tester.memory.0.as_mut_ptr().cast(), other_size) }.is_none());
    tester.index = tester.memory.create();
    tester.model.clear();
    tester.check_scans();
}

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

#[test]
fn an_index_that_has_room_takes_what_it_promised() {
    let mut random = random();
    for round in 0..600 {
        let bytes = 4096 + random.usize(..2000) * [8, 64, 256][round % 3];
        let (shape, arrival) = (
            SHAPES[random.usize(..SHAPES.len())],
            ARRIVALS[random.usize(..ARRIVALS.len())],
        );
        let mut tester = Tester::new(bytes);
        let mut keys = arriving_keys(&mut random, shape, arrival, 4000).into_iter();
        let largest_batch = [1, 10, 1000][random.usize(..3)];
        let mut batch = largest_batch;
        while batch > 0 {
            if !tester.index.has_room(batch) {
                batch /= 2;
                continue;
            }
            for key in keys.by_ref().take(batch) {
                if random.u8(..) < 20 {
                    tester.index.note(tester.commit, 1);
                } else {
                    tester.insert(&key);
                }
                tester.commit += 1;
            }
            if keys.len() == 0 {
                break;
            }
        }
        assert!(keys.len() == 0 || tester.memory.bytes() - tester.index.used_bytes() < 24_000);
        tester.check_scans();
    }
}

#[test]
fn hostile_arrivals_stay_within_the_worst_case() {
    // Just behind and just before full leaves, where uneven divisions leave the emptiest leaves.
    let patterns: [fn(u32) -> u32; 4] = [
        |round| {
            if round % 34 < 32 {
                round / 34 * 1000 + round % 34
            } else {
                round / 34 * 1000 + 500 - round % 34
            }
        },
        |round| {
            if round < 3200 {
                round / 32 * 100_000 + round % 32
            } else {
                round % 100 * 100_000 + 90_000 - round / 100
            }
        },
        |round| u32::MAX - (round / 34 * 1000 + if round % 34 < 32 { round % 34 } else { 500 - round % 34 }),
        |round| (round % 64) * 1_000_000 + round / 64,
    ];
    for pattern in patterns {
        for count in [1000usize, 20_000] {
            let mut tester = Tester::new(Index::bytes_for_entries(count));
            assert!(tester.index.has_room(count));
            for round in 0..count as u32 {
                tester.insert(&pattern(round).to_be_bytes());
            }
            tester.check_scans();
        }
    }
}

#[test]
fn the_filter_rarely_errs_and_never_denies_an_entry() {
    let mut random = random();
    let log_bytes = 4 << 20;
    let mut tester = Tester::new(Index::bytes_for(log_bytes));
    for _ in 0..log_bytes / 170 {
        tester.insert(&key_of_shape(&mut random, Shape::Random));
    }
    assert!(tester.model.keys().all(|key| tester.index.may_contain(hash(key))));
    let errors = (0..100_000)
        .filter(|_| tester.index.may_contain(random.u64(..)))
        .count();
    assert!(errors < 600, "{errors} errors in 100,000 probes");
}

#[test]
fn memory_per_entry_stays_within_its_budget() {
    let mut random = random();
    let count = 100_000;
    for (arrival, bytes_max) in [
        (Arrival::Random, 60),
        (Arrival::Ascending, 32),
        (Arrival::Descending, 32),
    ] {
        let mut tester = Tester::new(1 << 24);
        let empty = tester.index.used_bytes();
        for key in arriving_keys(&mut random, Shape::Random, arrival, count) {
            tester.insert(&key);
        }
        let bytes = (tester.index.used_bytes() - empty) / count;
        assert!(bytes <= bytes_max, "{arrival:?}: {bytes} bytes per entry");
    }
}

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
        let (mut seen, mut previous): (Vec<(&[u8], Version)>, Option<&[u8]>) = (Vec::new(), None);
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

/// Not a test of right and wrong: prints times and sizes. Run in release with `--ignored --nocapture`.
#[test]
#[ignore = "measures; run it alone, in release"]
fn measure() {
    for count in [400_000, 1_600_000] {
        for (name, keys) in measured_keys(count) {
            measure_one(name, &keys);
        }
    }
}

fn measured_keys(count: usize) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mut random = fastrand::Rng::with_seed(1);
    let sequence = |key: fn(usize) -> Vec<u8>| (0..count).map(key).collect::<Vec<_>>();
    let mut decimal = sequence(|number| format!("\0\0\0\x01key{number:010}").into_bytes());
    let ascending = decimal.clone();
    random.shuffle(&mut decimal);
    vec![
        (
            "random 16 bytes",
            arriving_keys(&mut random, Shape::Random, Arrival::Random, count),
        ),
        ("key%010d random", decimal),
        ("key%010d ascending", ascending),
    ]
}

fn measure_one(name: &str, keys: &[Vec<u8>]) {
    let mut log = Log::default();
    let append = |key: &Vec<u8>| {
        let position = log.append(key);
        log.0.extend_from_slice(&[0; 150]);
        (hash(key), position)
    };
    let operations: Vec<_> = keys.iter().map(append).collect();
    let mut memory = Memory::new(keys.len() * 100);
    let index = memory.create();
    let empty = index.used_bytes();
    let start = Instant::now();
    for (commit, (key, (hash, position))) in keys.iter().zip(&operations).enumerate() {
        index.insert(&log, key, *hash, commit as u64, *position);
    }
    let insert = start.elapsed().as_nanos() as f64 / keys.len() as f64;
    let bytes = (index.used_bytes() - empty) as f64 / keys.len() as f64;
    let mut random = fastrand::Rng::with_seed(2);
    // One behind the other, so that the times are those of the index and the log alone.
    let picks: Vec<([u8; 24], usize, u64, u32)> = std::iter::repeat_with(|| random.usize(..keys.len()))
        .take(400_000)
        .map(|pick| {
            let mut key = [0; 24];
            key[..keys[pick].len()].copy_from_slice(&keys[pick]);
            (key, keys[pick].len(), operations[pick].0, operations[pick].1)
        })
        .collect();
    let time = |work: &mut dyn FnMut(&[u8], u64, u32)| {
        let start = Instant::now();
        picks
            .iter()
            .for_each(|(key, length, hash, position)| work(&key[..*length], *hash, *position));
        start.elapsed().as_nanos() as f64 / picks.len() as f64
    };
    let mut sum = 0;
    let read_log = time(&mut |key, _, position| sum += usize::from((&log).key(position) == key));
    let find = time(&mut |key, hash, _| assert!(index.find(&log, key, hash, u64::MAX).is_some()));
    let mut errors = 0;
    let miss =
        time(&mut |_, hash, _| errors += usize::from(index.may_contain(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15))));
    let mut cursor = IndexCursor::new(index, &log);
    let seek = time(&mut |key, _, _| cursor.seek(key));
    let overwrite = time(&mut |key, hash, position| index.insert(&log, key, hash, u64::MAX, position));
    let start = Instant::now();
    let mut scanned = 0;
    cursor.first();
    while cursor.is_valid() {
        scanned += usize::from(cursor.visible(u64::MAX).is_some());
        cursor.next();
    }
    let scan = start.elapsed().as_nanos() as f64 / keys.len() as f64;
    assert_eq!((scanned, sum), (keys.len(), picks.len()));
    println!(
        "{:8} {name:20} insert {insert:4.0} ns, find {find:4.0} (of which reading the key {read_log:3.0}), \
         miss {miss:4.1} ({errors} errors), seek {seek:4.0}, overwrite {overwrite:4.0}, scan {scan:3.0}, bytes {bytes:4.1}",
        keys.len(),
    );
}
