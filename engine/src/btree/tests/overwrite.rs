//! Leaves in which values are replaced by others of the same length, alone and among leaves that change in other ways.

use super::*;
use crate::key::full_key::FullRange;

/// The keys of each leaf, in order.
fn keys_of_leaves(subject: &Subject) -> Vec<Vec<Vec<u8>>> {
    let keys = |page: &Rc<[u8]>| {
        let leaf = Leaf::open(page, 0).expect("a leaf");
        let key = |index| [leaf.prefix(), leaf.suffix(index)].concat();
        (0..leaf.count()).map(key).collect()
    };
    let mut leaves: Vec<Vec<Vec<u8>>> = subject.leaves().iter().map(keys).collect();
    leaves.sort_unstable();
    leaves
}

/// Values of a key are always of the same length, and differ with `version`.
fn value(key: &[u8], version: u8) -> Vec<u8> {
    vec![version; key_hash(1, key) as usize % 200]
}

fn random_keys(random: &mut Rng, count: usize) -> BTreeSet<Vec<u8>> {
    (0..count)
        .map(|_| (0..random.usize(4..12)).map(|_| random.u8(..)).collect())
        .collect()
}

fn puts<'k>(keys: impl IntoIterator<Item = &'k Vec<u8>>, version: u8) -> BTreeMap<Vec<u8>, Change> {
    let put = |key: &Vec<u8>| (key.clone(), Change::Put(value(key, version)));
    keys.into_iter().map(put).collect()
}

#[test]
fn leaves_that_are_only_overwritten_hold_the_same_keys_as_before() {
    for_each_seed(3, |random| {
        let mut subject = Subject::default();
        let keys = random_keys(random, 20_000);
        // In two merges, so that leaves are not all equally full.
        subject.merge(&puts(keys.iter().step_by(2), 0), &[]);
        subject.merge(&puts(keys.iter().skip(1).step_by(2), 0), &[]);
        let before = keys_of_leaves(&subject);
        let touched: Vec<_> = keys.iter().filter(|_| random.u8(..5) == 0).collect();
        let leaf_of = |key: &Vec<u8>| before.partition_point(|leaf| leaf[0] <= *key);
        let leaves: BTreeSet<usize> = touched.iter().map(|key| leaf_of(key)).collect();
        subject.memory.pages_written.set(0);
        subject.merge(&puts(touched.iter().copied(), 1), &[]);
        assert!(keys_of_leaves(&subject) == before);
        let branches = subject.memory.pages_written.get() - leaves.len();
        assert!(branches < 20, "{branches} pages beside the leaves");
        subject.assert_sound();
        subject.assert_scans();
        for key in touched {
            subject.assert_key(key);
        }
    });
}

#[test]
fn leaf_under_a_quarter_takes_in_the_one_before_when_that_was_only_overwritten() {
    let mut full = Subject::default();
    let pairs = |version| (0..400u32).map(move |number| (number.to_be_bytes().to_vec(), vec![version; 100]));
    full.put(pairs(1));
    let leaves = keys_of_leaves(&full);
    for (emptied, keys) in leaves.iter().enumerate() {
        let mut subject = Subject::default();
        subject.put(pairs(1));
        let mut changes: BTreeMap<_, _> = pairs(2).map(|(key, value)| (key, Change::Put(value))).collect();
        for key in &keys[1..] {
            changes.insert(key.clone(), Change::Delete);
        }
        subject.merge(&changes, &[]);
        for page in subject.leaves() {
            let is_nearly_empty = page::heap_top(&page) >= PAGE_BYTES * 3 / 4;
            assert!(!is_nearly_empty, "after leaf {emptied} was emptied");
        }
        subject.assert_sound();
        subject.assert_scans();
    }
}

#[test]
fn leaves_that_change_in_every_way_side_by_side_agree_with_the_model() {
    for_each_seed(12, |random| {
        for parts in [None, Some(3)] {
            let mut subject = Subject {
                parts,
                ..Subject::default()
            };
            let keys = random_keys(random, 6_000);
            subject.merge(&puts(&keys, 0), &[]);
            for version in 1..8 {
                // Each stretch of about a leaf is overwritten, mixed, thinned out, or left alone.
                let mut changes = BTreeMap::new();
                let mut way = 0;
                for key in &keys {
                    if random.u8(..30) == 0 {
                        way = random.u8(..6);
                    }
                    let change = match (way, random.u8(..8)) {
                        (0, _) | (1, 1..) => continue,
                        (2, 0) => Change::Extent(subject.memory.write_value(&vec![version; 5_000])),
                        (3, 0) => Change::Put(vec![version; random.usize(..300)]),
                        (4, 0..3) | (5, 0..7) => Change::Delete,
                        _ => Change::Put(value(key, version)),
                    };
                    changes.insert(key.clone(), change);
                }
                let cut = random.bool().then(|| {
                    let key = |random: &mut Rng| keys.iter().nth(random.usize(..keys.len())).expect("one of them");
                    let (one, other) = (key(random), key(random));
                    FullRange {
                        low: one.min(other).clone(),
                        high: one.max(other).iter().copied().chain([0]).collect(),
                    }
                });
                subject.merge(&changes, cut.as_slice());
                subject.assert_sound();
                subject.assert_scans();
            }
        }
    });
}
