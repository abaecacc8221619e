//! The lines that a point read asks for before it has seen the leaf.

use super::*;
use crate::btree::find::descend;

/// How many of a hundred values begin in the lines that are asked for.
fn percent_in_likely_lines(pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> usize {
    let mut subject = Subject::default();
    subject.put(pairs);
    let (mut hits, all) = (0, subject.model.len());
    for key in subject.model.keys() {
        let (_, lines, _) = descend(&subject.memory, subject.root, key).unwrap().expect("a tree");
        let hash = key_hash(HASH_SEED, key);
        let found = find(&subject.memory, subject.root, key, hash).unwrap();
        let Location::Inline(value, _) = found.expect("it was put").value else {
            panic!("a short value in pages of its own");
        };
        hits += usize::from(lines.contains(&(value as usize / LINE_BYTES)));
    }
    hits * 100 / all
}

/// Values of lengths that depend on nothing else.
fn with_lengths<K: AsRef<[u8]>>(
    keys: impl IntoIterator<Item = K>,
    length: impl Fn(&mut Rng) -> usize,
) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let mut random = Rng::with_seed(8);
    keys.into_iter()
        .map(move |key| (key.as_ref().to_vec(), vec![1; length(&mut random)]))
}

#[test]
fn records_of_random_keys_and_of_sequences_lie_mostly_where_they_are_looked_for() {
    let mut random = Rng::with_seed(7);
    let keys: Vec<[u8; 16]> = (0..20_000).map(|_| random.u128(..).to_be_bytes()).collect();
    assert!(percent_in_likely_lines(with_lengths(&keys, |_| 100)) >= 70);
    assert!(percent_in_likely_lines(with_lengths(&keys, |_| 8)) >= 70);
    assert!(percent_in_likely_lines(with_lengths(&keys, |random| random.usize(20..180))) >= 60);
    let numbers = (0..20_000u64).map(u64::to_be_bytes);
    assert!(percent_in_likely_lines(with_lengths(numbers.clone(), |_| 100)) >= 95);
    assert!(percent_in_likely_lines(with_lengths(numbers, |_| 8)) >= 75);
}

#[test]
fn keys_of_whose_place_heads_tell_nothing_are_found() {
    let keys = (0..20_000u64).map(|number| {
        let rest = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        [
            &[number as u8 % 3],
            &b"the same in many, and longer than a head "[..],
            &rest,
        ]
        .concat()
    });
    percent_in_likely_lines(with_lengths(keys, |_| 100));
}
