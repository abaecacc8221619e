//! What the branch above a leaf says about where the leaf ends.

use super::*;

/// A tree whose separators need more than their heads: many keys share their first bytes.
fn subject(random: &mut Rng) -> Subject {
    let mut subject = Subject::default();
    subject.put((0..30_000).map(|_| {
        let shared = b"a prefix of all keys, and then ";
        let (middle, length) = (random.u8(..3), random.usize(..20));
        let mut key = [shared.as_slice(), &[middle; 9]].concat();
        key.extend((0..length).map(|_| random.u8(..)));
        (key, vec![7; random.usize(..90)])
    }));
    subject
}

#[test]
fn leaf_is_below_a_key_exactly_when_all_of_its_keys_are_and_its_branch_tells() {
    for_each_seed(3, |random| {
        let subject = subject(random);
        let keys: Vec<&Vec<u8>> = subject.model.keys().collect();
        let mut cursor = Cursor::new(&subject.memory, subject.root);
        cursor.first().expect("a sound tree");
        let (mut told, mut leaves) = (0, 0);
        let mut first = 0;
        while first < keys.len() {
            let leaf = cursor.leaf();
            let mut next = first;
            while cursor.is_valid() && cursor.leaf() == leaf {
                assert_eq!(cursor.key(), keys[next]);
                cursor.next().expect("a sound tree");
                next += 1;
            }
            // Stand in it again, and ask about keys in it, around its end, and far away.
            let mut inside = Cursor::new(&subject.memory, subject.root);
            inside.seek(keys[first]).expect("a sound tree");
            let last = keys[next - 1];
            assert!(!inside.leaf_is_below(keys[first]) && !inside.leaf_is_below(last));
            for key in [next, next + 1, random.usize(..keys.len())] {
                let Some(&key) = keys.get(key) else { continue };
                assert!(!inside.leaf_is_below(key) || last < key);
                // A separator lies between two leaves, so that the first key of the next one is never below it.
                told += usize::from(last < key && inside.leaf_is_below(key));
                leaves += usize::from(last < key);
            }
            first = next;
        }
        assert!(leaves > 1_000 && told * 100 > leaves * 95, "{told} of {leaves}");
    });
}

#[test]
fn leaf_that_is_all_of_a_tree_is_below_nothing_that_its_branch_could_tell() {
    let mut subject = Subject::default();
    subject.put([(b"a".to_vec(), vec![])]);
    let mut cursor = Cursor::new(&subject.memory, subject.root);
    cursor.first().expect("a sound tree");
    assert!(!cursor.leaf_is_below(b"b"));
}
