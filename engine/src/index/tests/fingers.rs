//! Fingers lead to where the next row belongs, or nowhere.

use super::*;

/// The rows of a few topics, and one counter each, as commits write them.
#[test]
fn rows_one_behind_the_other_are_written_where_the_finger_leads() {
    let mut tester = Tester::new(8 << 20);
    let (mut hits, mut inserts) = (0, 0);
    let mut kept = [[Finger::NONE; 2]; 5];
    let mut random = random();
    for number in 0..scaled(3_000, 400) as u64 {
        // Others come in between.
        tester.commit += 1;
        tester.insert(&key_of_shape(&mut random, Shape::Random));
        for (topic, fingers) in kept.iter_mut().enumerate() {
            tester.commit += 1;
            let head = [b"\0\0\0\x08".as_slice(), &[topic as u8; 4], &number.to_be_bytes()].concat();
            let counter = [b"\0\0\0\x01".as_slice(), &[topic as u8; 4]].concat();
            for (key, finger) in [head, counter].iter().zip(fingers) {
                let (position, commit) = (tester.log.append(key), tester.commit);
                let version = Version { commit, position };
                let before = *finger;
                let newest = tester.index.find_near(&tester.log, key, hash(key), before);
                assert_eq!(
                    newest.as_ref(),
                    tester.model.get(key).and_then(|versions| versions.first())
                );
                *finger = tester.index.insert_near(&tester.log, key, hash(key), version, before);
                tester.model.entry(key.to_vec()).or_default().insert(0, version);
                hits += usize::from(*finger == before);
                inserts += 1;
            }
        }
    }
    // One leaf of 32 rows is begun after the other.
    assert!(hits * 100 > inserts * 95, "{hits} of {inserts}");
    tester.check_finds(u64::MAX);
    tester.check_scans();
}
