//! The base against a model: a `BTreeMap` takes the same cuts and changes, and a store in memory keeps account of every
//! page and extent, overwrites what is retired the moment it is retired, and reuses its numbers.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use fastrand::Rng;

use super::any_page::{Anything, Nowhere};
use super::leaf::Leaf;
use super::page::{self, HEADER_BYTES};
use super::*;
use crate::checksum::{checksum, key_hash};
use crate::error::{Error, Kind};
use crate::key::full_key::FullRange;
use crate::limits::{BRANCH_BYTES, BRANCH_PAGES, FULL_KEY_BYTES_MAX, INLINE_VALUE_BYTES_MAX};

mod damage;
mod leaf_ends;
mod likely;
mod overwrite;
mod parts;
mod read_ahead;

const HASH_SEED: u64 = 7;
/// Begins the checksums of pages.
const SEED: u32 = 11;

/// Seeds to run: the one in the environment, or `count` of them from a fixed start.
fn for_each_seed(count: u64, mut run: impl FnMut(&mut Rng)) {
    let given = std::env::var("DURAMEN_SEED")
        .ok()
        .map(|seed| seed.parse().expect("DURAMEN_SEED is a number"));
    let seeds = given.map_or(1..=count, |seed: u64| seed..=seed);
    for seed in seeds {
        println!("DURAMEN_SEED={seed}");
        run(&mut Rng::with_seed(seed));
    }
}

/// Pages and extents in memory.
#[derive(Clone, Default)]
struct Memory {
    pages: RefCell<HashMap<u32, Rc<[u8]>>>,
    extents: RefCell<HashMap<u32, (Extent, Vec<u8>)>>,
    free: RefCell<Vec<u32>>,
    next: Cell<u32>,
    version: Cell<u64>,
    leaves_read: Cell<usize>,
    pages_written: Cell<usize>,
    wants_read_ahead: Cell<bool>,
    /// Leaves that were asked for and not read yet, and how many were read that had been asked for.
    asked: RefCell<HashSet<u32>>,
    asked_and_read: Cell<usize>,
}

impl Memory {
    fn number(&self, pages: u32) -> u32 {
        if pages == 1
            && let Some(number) = self.free.borrow_mut().pop()
        {
            return number;
        }
        self.next.replace(self.next.get() + pages)
    }

    fn write_value(&self, bytes: &[u8]) -> Extent {
        let mut extent = Extent {
            page: 0,
            checksum: checksum(bytes),
            length: bytes.len() as u64,
            birth: self.version.get(),
        };
        extent.page = self.number(extent.pages());
        self.extents.borrow_mut().insert(extent.page, (extent, bytes.to_vec()));
        extent
    }

    fn retire_extent(&self, extent: Extent) {
        let (found, _) = self
            .extents
            .borrow_mut()
            .remove(&extent.page)
            .expect("an extent is retired once");
        assert_eq!(found, extent);
    }
}

impl PageSource for &Memory {
    type Page = Rc<[u8]>;

    fn page(self, number: u32, bytes: usize, checksum: impl FnOnce() -> u32) -> Result<Rc<[u8]>> {
        let page = self.pages.borrow().get(&number).cloned();
        let page = page.ok_or_else(|| Error::damaged(format!("no page {number}")))?;
        assert_eq!(page.len(), bytes);
        let checksum = checksum();
        verify_page(Link { page: number, checksum }, &page, SEED)?;
        self.leaves_read
            .set(self.leaves_read.get() + (bytes == PAGE_BYTES) as usize);
        let was_asked = self.asked.borrow_mut().remove(&number);
        self.asked_and_read.set(self.asked_and_read.get() + was_asked as usize);
        Ok(page)
    }

    fn wants_read_ahead(self) -> bool {
        self.wants_read_ahead.get()
    }

    fn read_ahead(self, numbers: &mut dyn Iterator<Item = u32>) {
        for number in numbers {
            assert!(
                self.asked.borrow_mut().insert(number),
                "leaf {number} was asked for before"
            );
        }
    }
}

/// What a merge does to a [`Memory`].
struct Sink<'a> {
    memory: &'a Memory,
    /// Numbers that come free when the merge is over.
    freed: Vec<u32>,
}

impl PageSink for Sink<'_> {
    fn write(&mut self, page: &mut [u8]) -> Result<Link> {
        let number = self.memory.number((page.len() / PAGE_BYTES) as u32);
        let link = seal_page(page, number, self.memory.version.get(), SEED);
        verify_page(link, page, SEED)?;
        self.memory.pages.borrow_mut().insert(number, page.to_vec().into());
        self.memory.pages_written.set(self.memory.pages_written.get() + 1);
        Ok(link)
    }

    fn write_value(&mut self, bytes: &[u8]) -> Result<Extent> {
        assert!(bytes.len() > INLINE_VALUE_BYTES_MAX);
        Ok(self.memory.write_value(bytes))
    }

    fn retire(&mut self, number: u32, pages: u32, birth: u64) {
        let poison: Rc<[u8]> = vec![0xDD; pages as usize * PAGE_BYTES].into();
        let old = self
            .memory
            .pages
            .borrow_mut()
            .insert(number, poison)
            .expect("only pages of the tree are retired");
        verify_alone(number, &old).expect("a page is retired once");
        assert_eq!(old.len(), pages as usize * PAGE_BYTES);
        assert!(
            birth == page::birth(&old) || (birth == 0 && pages == 1),
            "wrong birth of page {number}"
        );
        assert!(page::birth(&old) < self.memory.version.get(), "page {number} is new");
        self.freed.push(number);
    }

    fn retire_extent(&mut self, extent: Extent) {
        self.memory.retire_extent(extent);
    }
}

/// Verifies a page to which nothing refers.
fn verify_alone(number: u32, page: &[u8]) -> Result<()> {
    let checksum = page::u32_at(page, 0);
    verify_page(Link { page: number, checksum }, page, SEED)
}

/// A change as the tests make it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Put(Vec<u8>),
    Extent(Extent),
    Delete,
}

struct Changes<'a>(std::iter::Peekable<std::collections::btree_map::Iter<'a, Vec<u8>, Change>>);

impl<'a> Changes<'a> {
    fn new(changes: &'a BTreeMap<Vec<u8>, Change>) -> Self {
        Changes(changes.iter().peekable())
    }

    fn peek(&self) -> Option<(&'a Vec<u8>, &'a Change)> {
        self.0.clone().peek().copied()
    }
}

impl ChangeStream for Changes<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.peek().map(|(key, _)| key.as_slice())
    }

    fn change(&self) -> Stored<'_> {
        match self.peek().expect("asked only while there is a key").1 {
            Change::Put(value) => Stored::Inline(value),
            Change::Extent(extent) => Stored::Extent(*extent),
            Change::Delete => Stored::Deleted,
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.0.next();
        Ok(())
    }
}

/// A tree, its store, and what it should hold: `None` is a stored deletion.
#[derive(Default)]
struct Subject {
    memory: Memory,
    root: Root,
    model: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    keep_deletes: bool,
    /// Into how many parts trees are divided, where they are large enough.
    parts: Option<usize>,
    /// How many trees are put together at most before all parts are merged.
    trees_between: usize,
}

impl Subject {
    fn merge(&mut self, changes: &BTreeMap<Vec<u8>, Change>, cuts: &[FullRange]) {
        self.memory.version.set(self.memory.version.get() + 1);
        let options = MergeOptions {
            keep_deletes: self.keep_deletes,
            hash_seed: HASH_SEED,
        };
        let mut sink = Sink {
            memory: &self.memory,
            freed: Vec::new(),
        };
        self.root = self
            .merge_in_parts(changes, cuts, options, &mut sink)
            .unwrap_or_else(|| {
                let mut changes = Changes::new(changes);
                merge(&self.memory, self.root, &mut changes, cuts, options, &mut sink).unwrap()
            });
        for number in sink.freed {
            let page = self.memory.pages.borrow_mut().remove(&number).unwrap();
            if page.len() == PAGE_BYTES {
                self.memory.free.borrow_mut().push(number);
            }
        }
        for cut in cuts {
            self.model.retain(|key, _| !(cut.low <= *key && *key < cut.high));
        }
        for (key, change) in changes {
            match change {
                Change::Put(value) => drop(self.model.insert(key.clone(), Some(value.clone()))),
                Change::Extent(extent) => {
                    let bytes = self.memory.extents.borrow()[&extent.page].1.clone();
                    self.model.insert(key.clone(), Some(bytes));
                }
                Change::Delete if self.keep_deletes => drop(self.model.insert(key.clone(), None)),
                Change::Delete => drop(self.model.remove(key)),
            }
        }
    }

    /// `None`, and nothing is changed, where that cannot be done.
    fn merge_in_parts(
        &self,
        changes: &BTreeMap<Vec<u8>, Change>,
        cuts: &[FullRange],
        options: MergeOptions,
        sink: &mut Sink<'_>,
    ) -> Option<Root> {
        // Samples may be of changes that count no more, or come without any.
        let every = 1 + changes.len() / 40;
        let strangers = self.model.keys().step_by(50).chain(cuts.iter().map(|cut| &cut.high));
        let sampled = changes.keys().step_by(every).chain(strangers);
        let mut samples: Vec<&[u8]> = sampled.map(Vec::as_slice).chain([&[][..]]).collect();
        samples.sort_unstable();
        let mut division = divide(&self.memory, self.root, self.parts?, self.parts? * 2, &samples).unwrap()?;
        let before = self.memory.clone();
        let merged_part = |part: &Part, sink: &mut Sink<'_>| {
            let (low, high) = part.range();
            let mut changes = changes.clone();
            changes.retain(|key, _| low <= key.as_slice() && high.is_none_or(|high| key.as_slice() < high));
            merge_part(&self.memory, part, &mut Changes::new(&changes), cuts, options, sink).unwrap()
        };
        let mut merged = Vec::new();
        for _ in 0..self.trees_between {
            let end = division.end_of_step(merged.len(), self.trees_between + 1, 1);
            merged.extend(
                division.parts[merged.len()..end]
                    .iter()
                    .map(|part| merged_part(part, sink)),
            );
            let rest: Vec<_> = (end..division.parts.len())
                .map(|part| division.as_it_is(part))
                .collect();
            let all: Vec<_> = merged.iter().chain(&rest).collect();
            if let Some(root) = assemble(&self.memory, &division, &all, options, sink).unwrap() {
                merged.iter_mut().for_each(MergedPart::is_published);
                division.is_under(&self.memory, root).unwrap();
                self.memory.version.set(self.memory.version.get() + 1);
            }
        }
        merged.extend(
            division.parts[merged.len()..]
                .iter()
                .map(|part| merged_part(part, sink)),
        );
        let all: Vec<_> = merged.iter().collect();
        let root = assemble(&self.memory, &division, &all, options, sink).unwrap();
        if root.is_none() {
            self.memory.pages.swap(&before.pages);
            self.memory.extents.swap(&before.extents);
            self.memory.free.swap(&before.free);
            sink.freed.clear();
        }
        root
    }

    fn put(&mut self, pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        self.merge(
            &pairs
                .into_iter()
                .map(|(key, value)| (key, Change::Put(value)))
                .collect(),
            &[],
        );
    }

    fn read(&self, stored: Stored<'_>) -> Option<Vec<u8>> {
        match stored {
            Stored::Inline(bytes) => Some(bytes.to_vec()),
            Stored::Extent(extent) => Some(self.memory.extents.borrow()[&extent.page].1.clone()),
            Stored::Deleted => None,
        }
    }

    fn assert_at(&self, cursor: &Cursor<&Memory>, expected: Option<(&Vec<u8>, &Option<Vec<u8>>)>) {
        match expected {
            None => assert!(!cursor.is_valid()),
            Some((key, value)) => {
                assert!(cursor.is_valid());
                assert_eq!(cursor.key(), key);
                let (page, location) = cursor.value();
                assert_eq!(self.read(location.stored(page)), *value);
            }
        }
    }

    fn assert_scans(&self) {
        let mut cursor = Cursor::new(&self.memory, self.root);
        cursor.first().unwrap();
        for pair in &self.model {
            self.assert_at(&cursor, Some(pair));
            cursor.next().unwrap();
        }
        assert!(!cursor.is_valid());
        cursor.last().unwrap();
        for pair in self.model.iter().rev() {
            self.assert_at(&cursor, Some(pair));
            cursor.prev().unwrap();
        }
        assert!(!cursor.is_valid());
    }

    fn assert_key(&self, key: &[u8]) {
        let found = find(&self.memory, self.root, key, key_hash(HASH_SEED, key)).unwrap();
        let found = found.map(|found| self.read(found.value.stored(&found.page)));
        assert_eq!(found.as_ref(), self.model.get(key), "find {}", key.escape_ascii());
        let mut cursor = Cursor::new(&self.memory, self.root);
        cursor.seek(key).unwrap();
        self.assert_at(&cursor, self.model.range(key.to_vec()..).next());
        if cursor.is_valid() {
            cursor.prev().unwrap();
            self.assert_at(&cursor, self.model.range(..key.to_vec()).next_back());
        }
        cursor.seek_before(key).unwrap();
        self.assert_at(&cursor, self.model.range(..key.to_vec()).next_back());
        if cursor.is_valid() {
            cursor.next().unwrap();
            self.assert_at(&cursor, self.model.range(key.to_vec()..).next());
        }
    }

    /// The tree is sound, and holds every page and extent of the store that is not retired, and no other.
    fn assert_sound(&self) {
        assert_eq!(self.root.pairs, self.model.len() as u64);
        let (mut problems, mut visits) = (Vec::new(), Vec::new());
        let mut visit = |visit| {
            visits.push(visit);
            Ok(())
        };
        check_tree(&self.memory, self.root, HASH_SEED, &mut problems, &mut visit).unwrap();
        assert_eq!(problems, [] as [String; 0]);
        let mut walked = Vec::new();
        let mut visit = |visit| {
            walked.push(visit);
            Ok(())
        };
        walk(&self.memory, self.root, &mut visit).unwrap();
        assert_eq!(walked, visits);
        let (mut pages, mut extents) = (BTreeSet::new(), BTreeSet::new());
        for visit in visits {
            match visit {
                Visit::Page { number, .. } => assert!(pages.insert(number), "page {number} is there twice"),
                Visit::Extent(extent) => assert!(extents.insert(extent.page), "an extent is there twice"),
            }
        }
        assert_eq!(pages, self.memory.pages.borrow().keys().copied().collect());
        assert_eq!(extents, self.memory.extents.borrow().keys().copied().collect());
    }

    fn leaves(&self) -> Vec<Rc<[u8]>> {
        let pages = self.memory.pages.borrow();
        pages
            .values()
            .filter(|page| page.len() == PAGE_BYTES)
            .cloned()
            .collect()
    }

    /// Used part of all leaves together.
    fn fill(&self) -> f64 {
        let leaves = self.leaves();
        let used = |page: &Rc<[u8]>| HEADER_BYTES + 7 * page::count(page) + PAGE_BYTES - page::heap_top(page);
        leaves.iter().map(used).sum::<usize>() as f64 / (leaves.len() * PAGE_BYTES) as f64
    }
}

const SHAPES: u32 = 8;

fn random_bytes(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes);
    bytes
}

/// Neighbours share most of their bytes, but not with all: separators are long, so branches hold few children, and trees
/// are high.
fn long_key(number: u32) -> Vec<u8> {
    let mut key = (number / 100).to_be_bytes().to_vec();
    key.resize(800, 7);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// A key of one of the shapes that trees find hard, from a space of about `space` keys.
fn random_key(rng: &mut Rng, shape: u32, space: u32) -> Vec<u8> {
    let number = rng.u32(0..space);
    match shape {
        0 => random_bytes(&mut Rng::with_seed(number as u64), 16),
        1 => format!("key{number:010}").into_bytes(),
        2 => [&[b'p'; 300][..], &number.to_be_bytes()].concat(),
        3 => vec![number as u8; 1],
        4 => {
            // Beginnings of each other, with zeros, which is what stands in for missing bytes in heads.
            let mut key = vec![b'a'; (number % 3) as usize];
            key.resize((number % 41) as usize, 0);
            key.extend((0..number % 5).map(|at| (number >> at) as u8 & 1));
            key
        }
        5 => {
            let mut key = random_bytes(&mut Rng::with_seed(number as u64), FULL_KEY_BYTES_MAX);
            let same = rng.choice([0, 4, 500, 1020]).unwrap();
            key[..same].fill(b's');
            key
        }
        6 => [&[b'x', b'y'][..(number % 3) as usize], &(number as u64).to_le_bytes()].concat(),
        _ => {
            let shape = rng.u32(0..SHAPES - 1);
            let mut key = rng.u32(0..3).to_be_bytes().to_vec();
            key.extend(random_key(rng, shape, space));
            key.truncate(FULL_KEY_BYTES_MAX);
            key
        }
    }
}

fn random_change(rng: &mut Rng, memory: &Memory) -> Change {
    match rng.u32(0..20) {
        0..5 => Change::Delete,
        5 => {
            let length = rng.usize(1..20_000);
            Change::Extent(memory.write_value(&random_bytes(rng, length)))
        }
        6 => {
            let length = rng.usize(0..5000);
            Change::Put(random_bytes(rng, length))
        }
        7 => {
            let length = rng.usize(INLINE_VALUE_BYTES_MAX - 2..INLINE_VALUE_BYTES_MAX + 3);
            Change::Put(random_bytes(rng, length))
        }
        _ => {
            let length = rng.usize(0..150);
            Change::Put(random_bytes(rng, length))
        }
    }
}

fn random_cuts(rng: &mut Rng, shape: u32, space: u32) -> Vec<FullRange> {
    let mut ends: Vec<_> = (0..2 * rng.usize(0..4))
        .map(|_| random_key(rng, shape, space))
        .collect();
    ends.sort();
    if rng.u32(0..4) == 0 && !ends.is_empty() {
        ends[0].clear();
    }
    ends.chunks(2)
        .map(|ends| FullRange {
            low: ends[0].clone(),
            high: ends[1].clone(),
        })
        .collect()
}

fn run_model(rng: &mut Rng, shape: u32, keep_deletes: bool, parts: Option<usize>) {
    let mut subject = Subject {
        keep_deletes,
        parts,
        trees_between: rng.usize(..4),
        ..Subject::default()
    };
    let space = rng.choice([50, 1000, 20_000]).unwrap();
    for _ in 0..rng.usize(3..9) {
        let cuts = if rng.bool() {
            random_cuts(rng, shape, space)
        } else {
            Vec::new()
        };
        let mut changes = BTreeMap::new();
        let delete_all = rng.u32(0..6) == 0;
        for _ in 0..rng.choice([0, 1, 3, 100, 1500]).unwrap() {
            let key = random_key(rng, shape, space);
            let change = if delete_all {
                Change::Delete
            } else {
                random_change(rng, &subject.memory)
            };
            if let Some(Change::Extent(replaced)) = changes.insert(key, change) {
                subject.memory.retire_extent(replaced);
            }
        }
        if delete_all {
            let count = subject.model.len();
            changes.extend(
                subject
                    .model
                    .keys()
                    .take(rng.usize(0..count + 1))
                    .map(|key| (key.clone(), Change::Delete)),
            );
        }
        subject.merge(&changes, &cuts);
        subject.assert_sound();
        subject.assert_scans();
        for _ in 0..50 {
            let key = random_key(rng, shape, space);
            subject.assert_key(&key);
            let below = subject.model.range(..key.clone()).count() as u64;
            assert_eq!(count_below(&subject.memory, subject.root, &key).unwrap(), below);
        }
        subject
            .model
            .keys()
            .step_by(subject.model.len() / 20 + 1)
            .for_each(|key| subject.assert_key(key));
        subject.assert_key(b"");
        subject.assert_key(&[0xFF; FULL_KEY_BYTES_MAX]);
    }
}

#[test]
fn random_merges_agree_with_the_model() {
    for_each_seed(40, |rng| {
        (0..SHAPES).for_each(|shape| run_model(rng, shape, false, None))
    });
}

#[test]
fn runs_of_changes_keep_deletes() {
    for_each_seed(10, |rng| {
        (0..SHAPES).for_each(|shape| run_model(rng, shape, true, None))
    });
}

#[test]
fn merge_without_changes_keeps_the_root_page() {
    let mut subject = Subject::default();
    subject.put((0..5000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 30])));
    let before = subject.root;
    subject.merge(&BTreeMap::new(), &[]);
    assert_eq!(subject.root, before);
}

#[test]
fn one_change_writes_one_page_per_level() {
    let mut subject = Subject::default();
    subject.put((0..200_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100])));
    assert_eq!(subject.root.height, 3);
    subject.memory.pages_written.set(0);
    subject.memory.leaves_read.set(0);
    subject.put([(77_777u32.to_be_bytes().to_vec(), vec![2; 100])]);
    assert_eq!(subject.memory.pages_written.get(), 3);
    assert_eq!(subject.memory.leaves_read.get(), 1);
    subject.assert_sound();
}

#[test]
fn cut_reads_only_the_leaves_at_its_ends() {
    let mut subject = Subject::default();
    subject.put((0..200_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100])));
    subject.memory.leaves_read.set(0);
    let cut = FullRange {
        low: 10u32.to_be_bytes().to_vec(),
        high: 199_000u32.to_be_bytes().to_vec(),
    };
    subject.merge(&BTreeMap::new(), &[cut]);
    assert!(
        subject.memory.leaves_read.get() <= 4,
        "{} leaves were read",
        subject.memory.leaves_read.get()
    );
    subject.assert_sound();
    subject.assert_scans();
}

#[test]
fn cut_of_everything_leaves_the_empty_tree() {
    let mut subject = Subject::default();
    subject.put((0..100_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; (number % 2000) as usize])));
    subject.merge(
        &BTreeMap::new(),
        &[FullRange {
            low: Vec::new(),
            high: vec![0xFF; 5],
        }],
    );
    assert_eq!(subject.root, Root::default());
    subject.assert_sound();
    subject.assert_scans();
}

#[test]
fn random_inserts_fill_leaves_to_more_than_six_tenths() {
    for_each_seed(2, |rng| {
        for batch in [300, 3000, 30_000] {
            let mut subject = Subject::default();
            for _ in 0..60_000 / batch {
                subject.put(
                    (0..batch)
                        .map(|_| (random_bytes(rng, 16), vec![3; 100]))
                        .collect::<Vec<_>>(),
                );
            }
            let fill = subject.fill();
            println!("batches of {batch}: {fill:.3}");
            assert!(fill >= 0.6, "batches of {batch} fill leaves to {fill}");
            subject.assert_sound();
        }
    });
}

#[test]
fn sequential_inserts_fill_leaves_to_more_than_nine_tenths() {
    for batch in [1, 7, 1000, 40_000] {
        let mut subject = Subject::default();
        for start in (0..40_000 / 40.min(40_000 / batch) as u64).step_by(batch) {
            let numbers = start..start + batch as u64;
            subject.put(numbers.map(|number| (format!("key{number:010}").into_bytes(), vec![3; 100])));
        }
        let fill = subject.fill();
        println!("batches of {batch}: {fill:.3}");
        assert!(fill >= 0.9, "batches of {batch} fill leaves to {fill}");
        subject.assert_sound();
    }
}

#[test]
fn sequence_in_the_middle_fills_leaves_too() {
    let mut subject = Subject::default();
    subject.put((0..2000u32).map(|number| ([&[9], &number.to_be_bytes()[..]].concat(), vec![3; 100])));
    for start in (0..40_000u32).step_by(1000) {
        subject.put((start..start + 1000).map(|number| ([&[5], &number.to_be_bytes()[..]].concat(), vec![3; 100])));
    }
    assert!(subject.fill() >= 0.85, "{}", subject.fill());
    subject.assert_sound();
}

#[test]
fn deletes_leave_no_page_under_a_quarter_beside_its_brothers() {
    for_each_seed(5, |rng| {
        let mut subject = Subject::default();
        subject.put((0..20_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100])));
        for _ in 0..10 {
            let deletes = subject
                .model
                .keys()
                .filter(|_| rng.u32(0..10) < 3)
                .map(|key| (key.clone(), Change::Delete));
            let deletes = deletes.collect();
            subject.merge(&deletes, &[]);
            subject.assert_sound();
        }
        assert!(
            subject.leaves().len() == 1 || subject.fill() > 0.4,
            "{}",
            subject.fill()
        );
    });
}

#[test]
fn extent_that_is_put_again_is_not_retired() {
    let mut subject = Subject::default();
    let extent = subject.memory.write_value(&[7; 5000]);
    let change: BTreeMap<_, _> = [(b"key".to_vec(), Change::Extent(extent))].into();
    subject.merge(&change, &[]);
    subject.merge(&change, &[]);
    subject.assert_sound();
    subject.assert_scans();
}

#[test]
fn root_with_one_child_left_gives_way_to_it() {
    let pairs = |count: u32| (0..count).map(|number| (number.to_be_bytes().to_vec(), vec![1; 1200]));
    let mut count = 3000;
    let mut subject = loop {
        let mut subject = Subject::default();
        subject.put(pairs(count));
        if subject.root.height == 3 {
            break subject;
        }
        count += 3;
    };
    // The second branch has one leaf of three pairs, and the cut ends just where it begins.
    subject.merge(
        &BTreeMap::new(),
        &[FullRange {
            low: Vec::new(),
            high: (count - 3).to_be_bytes().to_vec(),
        }],
    );
    assert_eq!((subject.root.height, subject.root.pairs), (1, 3));
    subject.assert_sound();
    subject.assert_scans();
}

#[test]
fn leaf_under_a_quarter_takes_in_a_neighbour() {
    let mut full = Subject::default();
    full.put((0..400u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100])));
    let leaves = full.leaves().len();
    for emptied in 0..leaves {
        let mut subject = Subject::default();
        subject.put((0..400u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100])));
        let mut keys_of_leaves = Vec::new();
        walk(&subject.memory, subject.root, &mut |visit| {
            if let Visit::Page { number, level: 0, .. } = visit {
                let page = subject.memory.pages.borrow()[&number].clone();
                let leaf = Leaf::open(&page, number)?;
                let key = |index| [leaf.prefix(), leaf.suffix(index)].concat();
                keys_of_leaves.push((0..leaf.count()).map(key).collect::<Vec<_>>());
            }
            Ok(())
        })
        .unwrap();
        let deletes = keys_of_leaves[emptied]
            .iter()
            .skip(1)
            .map(|key| (key.clone(), Change::Delete))
            .collect();
        subject.merge(&deletes, &[]);
        for page in subject.leaves() {
            assert!(
                page::heap_top(&page) < PAGE_BYTES * 3 / 4,
                "a leaf is nearly empty after leaf {emptied} was"
            );
        }
        subject.assert_sound();
    }
}

#[test]
fn separator_that_would_be_too_long_a_key_is_damage() {
    let mut subject = Subject::default();
    let key = |number: u32| {
        [
            &[b'p'; 500][..],
            &number.to_be_bytes(),
            &[b'q'; 10],
            &number.to_be_bytes(),
        ]
        .concat()
    };
    let twice = |number: u32| [[key(number), vec![1]].concat(), [key(number), vec![2]].concat()];
    subject.put((0..300).flat_map(twice).map(|key| (key, vec![1; 1000])));
    let pages = subject.memory.pages.borrow();
    let (number, page) = pages.iter().find(|(_, page)| page.len() == BRANCH_BYTES).unwrap();
    let mut page = page.to_vec();
    let rest = page::heap_top(&page);
    page[rest..rest + 2].copy_from_slice(&1000u16.to_le_bytes());
    let link = seal_page(&mut page, *number, 1, SEED);
    let error = verify_page(link, &page, SEED).unwrap_err();
    assert!(error.to_string().contains("a separator is too long"), "{error}");
}

#[test]
fn merge_holds_only_a_few_pages_of_what_it_has_read() {
    struct Numbers<'a>(u32, &'a Cell<usize>, [u8; 4]);
    impl ChangeStream for Numbers<'_> {
        fn key(&self) -> Option<&[u8]> {
            (self.0 < 200_000).then_some(&self.2)
        }
        fn change(&self) -> Stored<'_> {
            Stored::Inline(&[1; 50])
        }
        fn advance(&mut self) -> Result<()> {
            self.1.set(self.1.get() + 1);
            self.0 += 1;
            self.2 = self.0.to_be_bytes();
            Ok(())
        }
    }
    struct Counting<'a>(&'a Cell<usize>, usize, u32);
    impl PageSink for Counting<'_> {
        fn write(&mut self, page: &mut [u8]) -> Result<Link> {
            self.1 = self.1.max(self.0.get());
            if page.len() == PAGE_BYTES {
                self.0.set(self.0.get().saturating_sub(page::count(page)));
            }
            self.2 += 4;
            Ok(Link {
                page: self.2,
                checksum: 0,
            })
        }
        fn write_value(&mut self, _: &[u8]) -> Result<Extent> {
            unreachable!("all values are short")
        }
        fn retire(&mut self, _: u32, _: u32, _: u64) {}
        fn retire_extent(&mut self, _: Extent) {}
    }
    let mut old = Subject::default();
    old.put([(vec![0], vec![]), (vec![9], vec![])]);
    for root in [Root::default(), old.root] {
        let held = Cell::new(0);
        let mut sink = Counting(&held, 0, 1000);
        let options = MergeOptions {
            keep_deletes: false,
            hash_seed: HASH_SEED,
        };
        let root = merge(
            &old.memory,
            root,
            &mut Numbers(0, &held, [0; 4]),
            &[],
            options,
            &mut sink,
        )
        .unwrap();
        assert!(root.pairs >= 200_000);
        assert!(sink.1 < 2000, "{} pairs were held at once", sink.1);
    }
}

#[test]
fn stream_out_of_order_is_an_error() {
    struct Backwards(u8);
    impl ChangeStream for Backwards {
        fn key(&self) -> Option<&[u8]> {
            (self.0 > 0).then(|| std::slice::from_ref(&self.0))
        }
        fn change(&self) -> Stored<'_> {
            Stored::Inline(b"value")
        }
        fn advance(&mut self) -> Result<()> {
            self.0 -= 1;
            Ok(())
        }
    }
    let memory = Memory::default();
    let options = MergeOptions {
        keep_deletes: false,
        hash_seed: HASH_SEED,
    };
    let mut sink = Sink {
        memory: &memory,
        freed: Vec::new(),
    };
    let error = merge(&memory, Root::default(), &mut Backwards(9), &[], options, &mut sink).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
}

#[test]
fn extents_count_their_pages_with_the_table_of_checksums() {
    let pages = |length| {
        Extent {
            page: 1,
            checksum: 2,
            length,
            birth: 3,
        }
        .pages()
    };
    let page = PAGE_BYTES as u64;
    let chunk = VALUE_CHUNK_BYTES as u64;
    assert_eq!([pages(1), pages(page), pages(page + 1)], [1, 1, 2]);
    assert_eq!(pages(chunk), (chunk / page) as u32);
    assert_eq!(pages(chunk + 1), (chunk / page) as u32 + 1);
    assert_eq!(pages(2 * chunk), 2 * (chunk / page) as u32 + 1);
    assert_eq!(pages(2 * chunk - 7), 2 * (chunk / page) as u32 + 1);
    let extent = Extent {
        page: 1,
        checksum: 2,
        length: 3,
        birth: 4,
    };
    assert_eq!(Extent::decode(&extent.encode()), extent);
}

/// Cuts that leave one pair, or the pairs of one leaf, at any place of a tree of any height.
#[test]
fn root_is_no_branch_with_one_child_after_any_cut() {
    let key = long_key;
    for (pairs, height) in [(3, 1), (80, 2), (2500, 3)] {
        for first in [0, 1, pairs / 3, pairs - 2, pairs - 1] {
            for left in [1, 3, 20] {
                let mut subject = Subject::default();
                subject.put((0..pairs).map(|number| (key(number), vec![1; 300])));
                assert_eq!(subject.root.height, height);
                let range = |low: u32, high: u32| FullRange {
                    low: key(low),
                    high: key(high),
                };
                let mut cuts = vec![range(0, first), range(first + left, pairs)];
                cuts.retain(|cut| cut.low < cut.high);
                subject.merge(&BTreeMap::new(), &cuts);
                subject.assert_sound();
            }
        }
    }
}
