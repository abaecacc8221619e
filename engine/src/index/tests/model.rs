//! One thread: what the index says is what the model says, for all shapes of keys and orders of arrival.

use super::*;

#[test]
fn every_shape_and_arrival_agrees_with_the_model() {
    let mut random = random();
    for shape in SHAPES {
        for arrival in ARRIVALS {
            println!("{shape:?} {arrival:?}");
            let mut tester = Tester::new(1 << 21);
            let keys = arriving_keys(&mut random, shape, arrival, scaled(4000, 70));
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
        for key in arriving_keys(&mut random, shape, Arrival::Random, scaled(120_000, 300)) {
            tester.insert(&key);
            tester.commit += 1;
        }
        tester.check(&mut random, shape);
    }
}

#[test]
fn samples_divide_an_index_into_pieces_of_about_the_same_length() {
    let mut random = random();
    for arrival in ARRIVALS {
        for count in [0, 1, 30, 40, scaled(1_000, 200), scaled(30_000, 300)] {
            let mut tester = Tester::new(1 << 23);
            for key in arriving_keys(&mut random, Shape::Random, arrival, count) {
                tester.insert(&key);
            }
            let keys: Vec<&[u8]> = tester.model.keys().map(Vec::as_slice).collect();
            for wanted in [1, 10, 100, 10_000] {
                let every = (tester.index.leaves() / wanted).max(1);
                let samples = tester.index.samples(&tester.log, every);
                assert_eq!(samples[0], b"");
                let places: Vec<usize> = samples[1..]
                    .iter()
                    .map(|sample| keys.binary_search(sample).expect("a key of the index"))
                    .collect();
                let ends = std::iter::once(0).chain(places.iter().copied());
                let lengths = ends.zip(places.iter().copied().chain([keys.len()]));
                // A leaf that was just divided holds half of what a full one does, and one that keys pass by holds one.
                let longest = lengths.map(|(from, to)| to.checked_sub(from).expect("in order")).max();
                let most = (keys.len() / wanted * 4).max(2 * LEAF_ENTRIES);
                assert!(
                    longest.expect("one piece") <= most,
                    "{arrival:?} {count} {wanted}: {longest:?} of {most}"
                );
                assert!(samples.len() <= 2 * wanted + 2);
            }
        }
    }
}

#[test]
fn hashes_that_collide_do_no_harm() {
    let mut random = random();
    let mut memory = Memory::new(1 << 20);
    let (index, mut log, mut keys) = (memory.create(), Log::default(), Vec::new());
    for commit in 0..scaled(3000, 150) as u64 {
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
    for _ in 0..scaled(400, 20) {
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
        cursor.first().unwrap();
        while cursor.is_valid() {
            seen.extend(cursor.visible(commit).map(|version| (cursor.key(), version)));
            cursor.next().unwrap();
        }
        assert!(expected.eq(seen));
    }
}

#[test]
fn a_hot_key_keeps_all_its_versions() {
    let mut tester = Tester::new(1 << 19);
    for round in 0..scaled(10_000, 300) as u32 {
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
    assert!(!tester.index.has_notes());
    let mut cursor = IndexCursor::new(tester.index, &tester.log);
    cursor.seek(b"a").unwrap();
    assert!(!cursor.is_valid());
    cursor.seek_before(b"a");
    assert!(!cursor.is_valid());
    cursor.next().unwrap();
    cursor.prev().unwrap();
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
        index.add_range_delete(note.commit, note.position);
        index.add_range_delete(note.commit, note.position);
    }
    assert_eq!(index.newest_range_delete(), notes.last().unwrap().commit);
    assert!(index.range_deletes().eq(notes.into_iter().rev()));
    assert!(!index.has_runs());
}

#[test]
fn an_attached_index_is_the_one_that_was_created() {
    let mut random = random();
    let mut tester = Tester::new(1 << 20);
    tester.memory = Memory::new(1 << 20);
    assert!(tester.memory.attach().is_none(), "garbage is not an index");
    tester.index = tester.memory.create();
    for key in arriving_keys(&mut random, Shape::Mixed, Arrival::Random, scaled(3000, 100)) {
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
#[cfg_attr(miri, ignore = "counts the errors of a large filter")]
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
fn steps_in_leaf_are_to_keys_that_follow_up_to_the_bound() {
    let mut random = random();
    for shape in SHAPES {
        let mut tester = Tester::new(1 << 21);
        for key in arriving_keys(&mut random, shape, Arrival::Random, scaled(2000, 100)) {
            tester.insert(&key);
        }
        let keys: Vec<&[u8]> = tester.model.keys().map(Vec::as_slice).collect();
        let mut stepped = 0;
        for _ in 0..scaled(500, 20) {
            let start = random.usize(..keys.len());
            let mut cursor = IndexCursor::new(tester.index, &tester.log);
            cursor.seek(keys[start]).expect("in order");
            let near = (start + random.usize(..40)).saturating_sub(20).min(keys.len() - 1);
            let mut bound = keys[near].to_vec();
            if random.bool() {
                bound.push(0);
            }
            for is_forward in [true, false] {
                let steps = cursor.steps_in_leaf(is_forward, &bound);
                for step in 1..=steps {
                    cursor.step_in_leaf(is_forward);
                    let place = if is_forward { start + step } else { start - step };
                    assert_eq!(cursor.key(), keys[place]);
                    assert!(if is_forward {
                        keys[place] < &bound[..]
                    } else {
                        keys[place] > &bound[..]
                    });
                }
                // One more is beyond the bound, or in the next leaf, of which the copy knows nothing.
                let next = if is_forward {
                    start + steps + 1
                } else {
                    start.wrapping_sub(steps + 1)
                };
                let is_in_reach = keys.get(next).is_some_and(|key| {
                    if is_forward {
                        *key < &bound[..]
                    } else {
                        *key > &bound[..]
                    }
                });
                assert!(
                    !is_in_reach
                        || cursor.steps_in_leaf(is_forward, &[0xFF; 2000][..if is_forward { 2000 } else { 0 }]) == 0
                );
                for _ in 0..steps {
                    cursor.step_in_leaf(!is_forward);
                }
                stepped += steps;
            }
        }
        assert!(stepped > scaled(500, 10), "{shape:?}: {stepped}");
    }
}
