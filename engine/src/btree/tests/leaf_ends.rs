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

#[test]
fn steps_in_leaf_are_those_to_the_bound_or_to_the_end_of_the_leaf() {
    for_each_seed(3, |random| {
        let subject = subject(random);
        let keys: Vec<&Vec<u8>> = subject.model.keys().collect();
        for _ in 0..300 {
            let start = random.usize(..keys.len());
            let mut cursor = Cursor::new(&subject.memory, subject.root);
            cursor.seek(keys[start]).expect("a sound tree");
            let leaf = cursor.leaf();
            // Near, at the place itself, far away, and between two keys.
            let near = (start + random.usize(..200)).saturating_sub(100).min(keys.len() - 1);
            let mut bound = keys[[near, start, random.usize(..keys.len())][random.usize(..3)]].clone();
            if random.bool() {
                bound.push(0);
            }
            for is_forward in [true, false] {
                let steps = cursor.steps_in_leaf(is_forward, &bound);
                let mut other = Cursor::new(&subject.memory, subject.root);
                other.seek(keys[start]).expect("a sound tree");
                let mut expected = 0;
                loop {
                    match is_forward {
                        true => other.next().expect("a sound tree"),
                        false => other.prev().expect("a sound tree"),
                    }
                    let is_beyond = |key: &[u8]| if is_forward { key >= &bound } else { key <= &bound };
                    if !other.is_valid() || other.leaf() != leaf || is_beyond(other.key()) {
                        break;
                    }
                    expected += 1;
                }
                assert_eq!(steps, expected, "from {start}, forward: {is_forward}");
                for step in 1..=steps {
                    cursor.step_in_leaf(is_forward);
                    let place = if is_forward { start + step } else { start - step };
                    assert_eq!(cursor.key(), keys[place]);
                }
                for _ in 0..steps {
                    cursor.step_in_leaf(!is_forward);
                }
            }
        }
    });
}
