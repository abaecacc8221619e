//! Pages that are not what they should be.

use super::*;

#[test]
fn any_changed_byte_is_noticed() {
    let mut subject = Subject::default();
    subject.put((0..3000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 30])));
    let pages = subject.memory.pages.borrow();
    for (number, page) in pages.iter().take(20) {
        for at in (0..page.len()).step_by(7) {
            let mut changed = page.to_vec();
            changed[at] ^= 0x10;
            let checksum = page::u32_at(page, 0);
            let link = Link {
                page: *number,
                checksum,
            };
            let error = verify_page(link, &changed, SEED).unwrap_err();
            assert_eq!(error.kind(), Kind::Damaged);
            assert!(
                error
                    .to_string()
                    .contains(&format!("page {number} of the data file: checksum"))
            );
        }
        assert!(
            verify_alone(number + 1, page)
                .unwrap_err()
                .to_string()
                .contains("it says it is page")
        );
    }
}

/// Does with these pages all that can be done with pages; any result will do.
fn exercise(rng: &mut Rng, source: Anything<'_>, root: Root) {
    let mut cursor = Cursor::new(source, root);
    let steps = 2000;
    let _ = cursor.first();
    for _ in 0..steps {
        if !cursor.is_valid() {
            break;
        }
        let (page, location) = cursor.value();
        let _ = location.stored(page);
        let key = cursor.key().to_vec();
        let _ = find(source, root, &key, key_hash(HASH_SEED, &key)).map(|found| found.map(|found| found.value));
        let _ = cursor.next();
    }
    let _ = cursor.last();
    for _ in 0..steps {
        if !cursor.is_valid() || cursor.prev().is_err() {
            break;
        }
    }
    let mut changes = BTreeMap::new();
    for _ in 0..20 {
        let shape = rng.u32(0..SHAPES);
        let key = random_key(rng, shape, 1000);
        let _ = cursor.seek(&key);
        let _ = cursor.seek_before(&key);
        let _ = count_below(source, root, &key);
        let _ = find(source, root, &key, rng.u64(..));
        changes.insert(key, Change::Put(vec![1; rng.usize(0..2000)]));
    }
    if root.height < 3 {
        let _ = check_tree(source, root, HASH_SEED, &mut Vec::new(), &mut |_| Ok(()));
        let cuts = random_cuts(rng, 1, 1000);
        let options = MergeOptions {
            keep_deletes: false,
            hash_seed: HASH_SEED,
        };
        let _ = merge(source, root, &mut Changes::new(&changes), &cuts, options, &mut Nowhere);
    }
}

/// One of the pages with some of its bytes changed, mostly where offsets and lengths are, and a checksum that says all is well.
fn random_damage(rng: &mut Rng, pages: &[&Rc<[u8]>]) -> Vec<u8> {
    let mut page = rng.choice(pages).unwrap().to_vec();
    for _ in 0..rng.usize(0..8) {
        let at = match rng.u32(0..4) {
            0 => rng.usize(8..HEADER_BYTES),
            1 => rng.usize(page::heap_top(&page).clamp(HEADER_BYTES, page.len() - 1)..page.len()),
            _ => rng.usize(HEADER_BYTES..page.len()),
        };
        match rng.u32(0..3) {
            0 => page[at] ^= 1 << rng.u32(0..8),
            1 => page[at] = rng.u8(..),
            _ => page[at] = rng.choice([0, 1, 0xFF]).unwrap(),
        }
    }
    seal_page(&mut page, 1, 1, SEED);
    page
}

#[test]
fn pages_of_any_bytes_never_cause_a_panic() {
    for_each_seed(10, |rng| {
        let mut subject = Subject::default();
        let shape = rng.u32(0..SHAPES);
        let mut changes = BTreeMap::new();
        for _ in 0..3000 {
            let key = random_key(rng, shape, 100_000);
            if let Some(Change::Extent(replaced)) = changes.insert(key, random_change(rng, &subject.memory)) {
                subject.memory.retire_extent(replaced);
            }
        }
        subject.merge(&changes, &[]);
        let pages: Vec<_> = subject.memory.pages.borrow().values().cloned().collect();
        let (leaves, branches): (Vec<_>, Vec<_>) = pages.iter().partition(|page| page.len() == PAGE_BYTES);
        let mut sound = 0;
        for _ in 0..300 {
            let leaf = random_damage(rng, &leaves);
            if verify_alone(1, &leaf).is_err() {
                continue;
            }
            sound += 1;
            exercise(
                rng,
                Anything {
                    leaf: &leaf,
                    branch: &[],
                },
                Root {
                    page: 1,
                    height: 1,
                    pairs: 1,
                    checksum: 0,
                },
            );
            if branches.is_empty() {
                continue;
            }
            let branch = random_damage(rng, &branches);
            if verify_alone(1, &branch).is_ok() {
                let height = page::level(&branch) + 1;
                exercise(
                    rng,
                    Anything {
                        leaf: &leaf,
                        branch: &branch,
                    },
                    Root {
                        page: 1,
                        height,
                        pairs: 1,
                        checksum: 0,
                    },
                );
            }
        }
        assert!(sound > 10, "the test must meet pages that pass");
    });
}

#[test]
fn pages_of_random_bytes_never_cause_a_panic() {
    for_each_seed(20, |rng| {
        for _ in 0..200 {
            let is_leaf = rng.bool();
            let mut page = random_bytes(rng, if is_leaf { PAGE_BYTES } else { BRANCH_BYTES });
            page[16] = if is_leaf { page::LEAF } else { page::BRANCH };
            page[17] = !is_leaf as u8;
            page[18..20].copy_from_slice(&rng.u16(0..20).to_le_bytes());
            page[20..22].copy_from_slice(&rng.u16(0..40).to_le_bytes());
            page[22..24].copy_from_slice(&rng.u16(64..600).to_le_bytes());
            let link = seal_page(&mut page, 1, 1, SEED);
            let _ = verify_page(link, &page, SEED);
        }
    });
    assert!(verify_alone(1, &[0; 100]).is_err());
    assert_eq!(BRANCH_PAGES as usize * PAGE_BYTES, BRANCH_BYTES);
    assert!(Leaf::open(&[0; PAGE_BYTES], 5).is_err());
}

/// A page that the device has replaced by its own older version, which is sound in itself.
#[test]
fn an_older_version_of_any_page_is_damage_at_its_first_read() {
    let mut subject = Subject::default();
    subject.put((0..40_000u32).map(|number| (number.to_be_bytes().to_vec(), vec![1; 100])));
    assert_eq!(subject.root.height, 3);
    let numbers: Vec<u32> = subject.memory.pages.borrow().keys().copied().collect();
    let (branches, leaves): (Vec<u32>, Vec<u32>) = numbers
        .into_iter()
        .partition(|number| subject.memory.pages.borrow()[number].len() == BRANCH_BYTES);
    assert!(branches.len() > 2 && leaves.len() > 1000);
    let some_leaves = leaves.iter().step_by(leaves.len() / 20).chain(leaves.last());
    for &number in branches.iter().chain(some_leaves) {
        let sound = subject.memory.pages.borrow()[&number].clone();
        let mut older = sound.to_vec();
        seal_page(&mut older, number, page::birth(&sound) - 1, SEED);
        verify_alone(number, &older).expect("it is sound in itself");
        subject.memory.pages.borrow_mut().insert(number, older.into());
        assert_is_noticed(&subject, number);
        subject.memory.pages.borrow_mut().insert(number, sound);
    }
    subject.assert_sound();
}

fn assert_is_noticed(subject: &Subject, number: u32) {
    let (source, root) = (&subject.memory, subject.root);
    let assert_damaged = |what: &str, error: Error| {
        assert_eq!(error.kind(), Kind::Damaged, "{what}: {error}");
        let named = format!("page {number} of the data file: it is another version");
        assert!(error.to_string().contains(&named), "{what}: {error}");
    };
    let mut cursor = Cursor::new(source, root);
    let mut forwards = || {
        cursor.first()?;
        while cursor.is_valid() {
            cursor.next()?;
        }
        cursor.last()
    };
    assert_damaged("forwards", forwards().expect_err("every page was read"));
    let mut backwards = || {
        cursor.last()?;
        while cursor.is_valid() {
            cursor.prev()?;
        }
        Ok(())
    };
    assert_damaged("backwards", backwards().expect_err("every page was read"));
    let (mut gets, mut seeks, mut counts) = (0, 0, 0);
    for key in subject.model.keys().step_by(11) {
        match find(source, root, key, key_hash(HASH_SEED, key)) {
            Ok(found) => assert!(found.is_some()),
            Err(error) => {
                gets += 1;
                assert_damaged("a get", error);
            }
        }
        if let Err(error) = count_below(source, root, key) {
            counts += 1;
            assert_damaged("a count", error);
        }
        if let Err(error) = cursor.seek(key) {
            seeks += 1;
            assert_damaged("a seek", error);
        }
    }
    assert!(gets > 0 && gets == seeks && gets == counts, "{gets} {seeks} {counts}");
    // Values of the length that they have are overwritten; a leaf with others is taken apart.
    for length in [100, 101] {
        let put = |key: &Vec<u8>| (key.clone(), Change::Put(vec![2; length]));
        let changes: BTreeMap<_, _> = subject.model.keys().map(put).collect();
        let options = MergeOptions {
            keep_deletes: false,
            hash_seed: HASH_SEED,
        };
        let merged = merge(source, root, &mut Changes::new(&changes), &[], options, &mut Nowhere);
        assert_damaged("a merge", merged.expect_err("every page was read"));
    }
    let walked = walk(source, root, &mut |_| Ok(()));
    assert_damaged("a walk", walked.expect_err("every page was read"));
    let mut problems = Vec::new();
    check_tree(source, root, HASH_SEED, &mut problems, &mut |_| Ok(())).expect("only problems");
    assert!(
        problems
            .iter()
            .any(|line| line.contains(&format!("page {number} of the data file: it is another version"))),
        "{problems:?}"
    );
}
