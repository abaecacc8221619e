//! Tests of the whole index: against a map from keys to their versions, with readers at work, in memory that runs out
//! and with writers that die. Here is what they share.

mod damage;
mod death;
mod fingers;
mod model;
mod newer;
mod readers;
mod room;

use std::collections::BTreeMap;

use super::arena::LINE_BYTES;
use super::leaf::LEAF_ENTRIES;
use super::{Finger, Index, IndexCursor, Keys, Version};
use crate::checksum::key_hash;
use crate::error::Result;
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
        // Miri fills memory byte by byte, and its tests insert few keys.
        let bytes = bytes.min(scaled(usize::MAX, 1 << 18));
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

/// A count, or a smaller one under Miri, which runs a thousand times slower.
fn scaled(count: usize, under_miri: usize) -> usize {
    if cfg!(miri) { under_miri } else { count }
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
    /// Fingers of all ages: every other insert and every find begins at one of them.
    fingers: Vec<Finger>,
    inserts: usize,
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
            fingers: vec![Finger::NONE; 9],
            inserts: 0,
        }
    }

    fn insert(&mut self, key: &[u8]) {
        let (position, commit) = (self.log.append(key), self.commit);
        let version = Version { commit, position };
        self.inserts += 1;
        if self.inserts.is_multiple_of(2) {
            self.index.insert(&self.log, key, hash(key), commit, position);
        } else {
            let place = self.inserts / 2 % self.fingers.len();
            let finger = self.fingers[place];
            self.fingers[place] = self.index.insert_near(&self.log, key, hash(key), version, finger);
        }
        self.model.entry(key.to_vec()).or_default().insert(0, version);
    }

    fn visible(versions: &[Version], commit: u64) -> Option<Version> {
        versions.iter().copied().find(|version| version.commit <= commit)
    }

    fn check_finds(&self, commit: u64) {
        for (number, (key, versions)) in self.model.iter().enumerate() {
            let found = self.index.find(&self.log, key, hash(key), commit);
            assert_eq!(found, Self::visible(versions, commit), "key {key:?} at {commit}");
            let finger = self.fingers[number % self.fingers.len()];
            let newest = self.index.find_near(&self.log, key, hash(key), finger);
            assert_eq!(newest.as_ref(), versions.first(), "key {key:?} near {finger:?}");
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
        cursor.first().unwrap();
        for (key, versions) in &self.model {
            assert_eq!(cursor.key(), key);
            assert!(cursor.versions().eq(versions.iter().copied()));
            cursor.next().unwrap();
        }
        assert!(!cursor.is_valid());
        cursor.last();
        for key in self.model.keys().rev() {
            assert_eq!(cursor.key(), key);
            cursor.prev().unwrap();
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
            cursor.seek(&target).unwrap();
            Self::check_at(&cursor, existing.get(rank).copied(), &target);
            if cursor.is_valid() {
                cursor.prev().unwrap();
                Self::check_at(&cursor, rank.checked_sub(1).map(|rank| existing[rank]), &target);
            }
            cursor.seek_before(&target);
            Self::check_at(&cursor, rank.checked_sub(1).map(|rank| existing[rank]), &target);
            if cursor.is_valid() {
                cursor.next().unwrap();
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
        self.check_seeks(random, shape, scaled(200, 9));
    }
}
