//! Walks that jump over what is older than a commit.

use super::*;

/// The place of the first key from `from` on that a walk may not jump over, in one direction.
fn expected(
    newest: &[u64],
    mut places: impl Iterator<Item = usize>,
    stop: impl Fn(usize) -> bool,
    commit: u64,
) -> Option<usize> {
    places.find(|&place| stop(place) || newest[place] >= commit)
}

#[test]
fn walks_jump_over_what_is_older_and_meet_what_is_newer() {
    let mut random = random();
    for (round, shape) in SHAPES.iter().cycle().take(scaled(24, 8)).enumerate() {
        let mut tester = Tester::new(1 << 22);
        let arrival = ARRIVALS[round % ARRIVALS.len()];
        for key in arriving_keys(&mut random, *shape, arrival, scaled(3_000, 80)) {
            tester.insert(&key);
            tester.commit += 1;
        }
        // A few are written later, so that most nodes are old.
        let existing: Vec<_> = tester.model.keys().cloned().collect();
        for _ in 0..random.usize(..40) {
            tester.insert(&existing[random.usize(..existing.len())]);
            tester.commit += 1;
        }
        let newest: Vec<u64> = tester.model.values().map(|versions| versions[0].commit).collect();
        let mut cursor = IndexCursor::new(tester.index, &tester.log);
        for _ in 0..scaled(400, 15) {
            let from = random.usize(..existing.len());
            let commit = match random.bool() {
                true => tester.commit - random.u64(..50),
                false => random.u64(..tester.commit),
            };
            cursor.seek(&existing[from]).unwrap();
            let key = |place: Option<usize>| place.map(|place| &existing[place]);
            let bound = random.usize(from + 1..=existing.len());
            let high = existing.get(bound).cloned().unwrap_or(vec![0xFF; 2_000]);
            cursor.skip_forward(&high, commit).unwrap();
            let at = expected(&newest, from..existing.len(), |place| place >= bound, commit);
            assert_eq!(cursor.is_valid().then(|| cursor.key()), key(at).map(Vec::as_slice));
            if cursor.is_valid() {
                cursor.next().unwrap();
                let after = at.map(|place| place + 1).filter(|&place| place < existing.len());
                assert_eq!(cursor.is_valid().then(|| cursor.key()), key(after).map(Vec::as_slice));
            }
            cursor.seek(&existing[from]).unwrap();
            let bound = random.usize(..=from);
            cursor.skip_backward(&existing[bound], commit).unwrap();
            let at = expected(&newest, (0..=from).rev(), |place| place < bound, commit);
            assert_eq!(cursor.is_valid().then(|| cursor.key()), key(at).map(Vec::as_slice));
            if cursor.is_valid() {
                cursor.prev().unwrap();
                let before = at.and_then(|place| place.checked_sub(1));
                assert_eq!(cursor.is_valid().then(|| cursor.key()), key(before).map(Vec::as_slice));
            }
        }
    }
}
