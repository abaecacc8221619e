//! Merging in parts.

use super::*;
use crate::key::full_key::FullRange;

#[test]
fn merges_in_parts_agree_with_the_model() {
    for_each_seed(40, |rng| {
        let parts = *rng.choice(&[1, 2, 5, 40]).unwrap();
        (0..SHAPES).for_each(|shape| run_model(rng, shape, false, Some(parts)));
    });
}

#[test]
fn merge_in_parts_takes_untouched_pages_over() {
    let pairs = || (0..200_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 30]));
    let mut subject = Subject::default();
    subject.put(pairs());
    assert_eq!(subject.root.height, 3);
    subject.parts = Some(8);
    let written = subject.memory.pages_written.replace(0);
    assert!(written > 1_000);
    subject.put([(77_777u32.to_be_bytes().to_vec(), vec![2; 30])]);
    subject.assert_sound();
    // A leaf, and the branches above it, of which those above the parts are written in any case.
    assert!((3..8).contains(&subject.memory.pages_written.get()));
}

#[test]
fn appending_in_parts_fills_leaves_and_branches() {
    let mut subject = Subject {
        parts: Some(40),
        ..Subject::default()
    };
    let mut next = 0u32;
    for _ in 0..40 {
        let numbers = next..next + 5_000;
        next = numbers.end;
        subject.put(numbers.map(|number| (number.to_be_bytes().to_vec(), vec![1; 30])));
        subject.assert_sound();
    }
    subject.assert_scans();
    let (leaves, fill) = (subject.leaves().len() as u64, subject.fill());
    let branches = count_branches(&subject.memory, subject.root).unwrap();
    println!("{leaves} leaves, filled to {fill:.3}, under {branches} branches");
    assert!(fill >= 0.7);
    assert_eq!(subject.root.height, 3);
    assert!(branches <= 3 + leaves / 250);
}

#[test]
fn appending_in_parts_above_the_leaves_is_sound() {
    let key = long_key;
    for left in [None, Some(0), Some(1)] {
        let mut subject = Subject::default();
        subject.put((0..3_000).map(|number| (key(number), vec![1; 300])));
        subject.parts = Some(2);
        let samples = [key(3_000), key(3_300)];
        let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
        let division = divide(&subject.memory, subject.root, 2, 4, &samples).unwrap();
        assert!(division.expect("several parts").is_above_leaves());
        for round in 0..3 {
            let numbers = 3_000 + round * 600..3_600 + round * 600;
            let changes = numbers.map(|number| (key(number), Change::Put(vec![2; 300])));
            // Everything old goes, or all but one pair.
            let cut = left.filter(|_| round == 0).map(|left| FullRange {
                low: key(left),
                high: key(3_000),
            });
            subject.merge(&changes.collect(), &Vec::from_iter(cut));
            subject.assert_sound();
            subject.assert_scans();
        }
    }
}

#[test]
fn merge_in_parts_of_nearly_everything_is_left_to_one() {
    let mut subject = Subject {
        parts: Some(4),
        ..Subject::default()
    };
    subject.put((0..20_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100])));
    let delete = |number: u32| (number.to_be_bytes().to_vec(), Change::Delete);
    subject.merge(&(0..19_999).map(delete).collect(), &[]);
    subject.assert_sound();
    assert_eq!((subject.root.height, subject.root.pairs), (1, 1));
    subject.merge(&[delete(19_999)].into(), &[]);
    assert_eq!(subject.root, Root::default());
}
