//! Calls beside other transactions, closed stores, and the end of handles.

use super::*;

#[test]
fn a_call_beside_an_exclusive_transaction_of_its_thread_fails_also_while_another_waits() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .lock_timeout(Duration::from_secs(5))
        .open(directory.path())
        .unwrap();
    let tree = Trees::open(&store).unwrap().ensure("tree").unwrap();
    let tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    std::thread::scope(|scope| {
        let other = tree.clone();
        let waiting = scope.spawn(move || other.put("b", ""));
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        let refused = tree.put("a", "").unwrap_err();
        assert!(
            matches!(refused.reason(), Reason::WouldWaitForItself { .. }),
            "{refused}"
        );
        // The lock timeout is what it would wait for.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop(tx);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_call_waits_for_another_writer_once() {
    let directory = tempfile::tempdir().unwrap();
    let wait = Duration::from_secs(3);
    let store = Options::new().lock_timeout(wait).open(directory.path()).unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let tree = trees.ensure("tree").unwrap();
    let tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| {
            let begun = Instant::now();
            let error = tree.put("a", "").unwrap_err();
            assert!(matches!(error.reason(), Reason::LockTimeout { .. }), "{error}");
            begun.elapsed()
        });
        assert!(waited.join().unwrap() < wait * 2);
    });
    drop(tx);
}

#[test]
fn a_transaction_of_another_store_is_refused() {
    let disks = [SimDisk::new(1), SimDisk::new(2)];
    let (_store, _trees, tree) = open(&disks[0]);
    let (other, _others, _tree) = open(&disks[1]);
    let mut tx = other.begin(TransactionOptions::new()).unwrap();
    assert!(tree.writes(&mut tx).and_then(|mut tree| tree.put("a", "")).is_err());
}

#[test]
fn a_closed_store_and_one_that_is_only_read_refuse_changes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let empty = tempfile::tempdir().unwrap();
    Store::open(empty.path()).unwrap().close().unwrap();
    let read_only = Options::new().read_only(true).open(empty.path()).unwrap();
    let error = Trees::open(&read_only).unwrap_err();
    assert!(matches!(TreeError::of(&error), Some(TreeError::NoTrees)), "{error}");
    let trees = Trees::open(&store).unwrap();
    let tree = trees.ensure("tree").unwrap();
    tree.put("a", "1").unwrap();
    let lease = tree.grant_lease(Duration::from_secs(1)).unwrap();
    let read_only = Options::new().read_only(true).open(directory.path()).unwrap();
    let read = Trees::open(&read_only).unwrap();
    let same = read.ensure("tree").unwrap();
    let mut watch = same.watch(WatchOptions::all()).unwrap();
    assert!(same.put("a", "2").is_err() && read.ensure("other").is_err() && same.revoke_lease(lease.id).is_err());
    assert_eq!(same.get("a").unwrap().unwrap().payload, b"1");
    tree.put("a", "2").unwrap();
    assert_eq!(watch.next(Duration::from_secs(5)).unwrap().unwrap().len(), 1);
    drop((same, watch, read, read_only));
    std::thread::sleep(Duration::from_millis(700));
    store.close().unwrap();
    let error = tree.put("a", "3").unwrap_err();
    assert!(matches!(error.reason(), Reason::Closed), "{error}");
    assert!(tree.get("a").is_err() && trees.ensure("other").is_err() && trees.work().is_err());
    Options::new().exclusive(true).open(directory.path()).unwrap();
}

#[test]
#[ignore = "dropping the last handle waits for the background thread, which waits for the transaction of the dropping thread"]
fn dropping_the_last_tree_beside_an_exclusive_transaction_does_not_wait_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .lock_timeout(Duration::from_secs(3))
        .open(directory.path())
        .unwrap();
    let tree = Trees::open(&store).unwrap().ensure("tree").unwrap();
    tree.grant_lease(Duration::from_millis(1)).unwrap();
    let tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    let begun = Instant::now();
    drop(tree);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(tx);
}

#[test]
fn pages_of_children_end_after_some_bytes() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let payload = vec![7; 80 << 10];
    for number in 0..40 {
        tree.put(format!("a/{number:02}"), &payload).unwrap();
        tree.put(format!("a/{number:02}-implied/b"), "").unwrap();
    }
    let newest = tree.view().unwrap();
    let earlier = tree.view_at(newest.revision()).unwrap();
    tree.put("a/99", "").unwrap();
    for (view, expected) in [(&newest, 80), (&earlier, 80), (&tree.view().unwrap(), 81)] {
        let all = view.children("a", None, usize::MAX).unwrap();
        assert_eq!(all.len(), expected);
        for most in [1, 7, 1_000] {
            let (mut pages, mut found, mut after) = (0, Vec::new(), None);
            loop {
                let page = view.children_page(Some(b"a"), after.as_deref(), most).unwrap();
                let bytes: usize = page
                    .content
                    .iter()
                    .flat_map(|child| &child.node)
                    .map(|node| node.payload.len())
                    .sum();
                assert!(page.content.len() <= most && bytes < (1 << 20) + payload.len());
                found.extend(page.content);
                pages += 1;
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, all);
            assert!(pages >= 4 && pages <= expected / most + 4, "{pages} pages of {most}");
        }
    }
}

/// Creates and deletes nodes at random, and compares the pages of children at each revision with those of a plain walk.
#[test]
fn children_at_earlier_revisions_are_those_that_were_there() {
    (0..20).for_each(children_at_earlier_revisions);
}

fn children_at_earlier_revisions(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = SimDisk::new(seed);
    let (_store, _trees, tree) = open(&disk);
    // Bytes below and above the separator: a name that only has nodes below it comes after longer names.
    let name = |random: &mut fastrand::Rng| {
        (0..random.usize(..3))
            .map(|_| random.choice(*b"-.az").unwrap() as char)
            .collect::<String>()
    };
    for _ in 0..300 {
        let mut path = "p".to_string();
        for _ in 0..random.usize(1..4) {
            path = path + "/" + &name(&mut random);
        }
        match random.u32(..4) {
            0 => drop(tree.delete(&path).unwrap()),
            1 => drop(tree.delete_subtree(&path).unwrap()),
            _ => drop(tree.put(&path, "").unwrap()),
        }
        if random.u32(..8) > 0 {
            continue;
        }
        let view = tree.view_at(random.u64(1..=tree.revision().unwrap())).unwrap();
        let nodes = nodes_at(&tree, view.revision());
        let below = nodes.keys().filter_map(|path| path.strip_prefix(b"p/"));
        let expected: BTreeSet<&[u8]> = below
            .filter_map(|rest| rest.split(|byte| *byte == b'/').next())
            .collect();
        assert_eq!(view.child_count("p").unwrap().count, expected.len() as u64);
        for most in 1..5 {
            let (mut found, mut after) = (Vec::new(), None::<Vec<u8>>);
            loop {
                let children = view.children("p", after.as_deref(), most).unwrap();
                let Some(last) = children.last() else { break };
                assert!(children.len() <= most);
                after = Some(last.name.clone());
                for child in &children {
                    assert_eq!(child.node.as_ref(), nodes.get(&child.path), "seed {seed}");
                }
                found.extend(children.into_iter().map(|child| child.name));
            }
            let expected: Vec<_> = expected.iter().map(|name| name.to_vec()).collect();
            assert_eq!(
                found,
                expected,
                "seed {seed}, {most} a page, revision {}",
                view.revision()
            );
        }
    }
}

#[test]
fn a_page_of_an_earlier_revision_examines_no_more_than_others() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    tree.put("z", "").unwrap();
    let earlier = tree.view().unwrap();
    tree.transact(|tree| (0..25_000).try_for_each(|number| tree.put(format!("a/{number}"), "").map(drop)))
        .unwrap();
    let earlier = tree.view_at(earlier.revision()).unwrap();
    let (mut pages, mut after, mut found) = (0, None, 0);
    loop {
        let page = earlier.page(&Selection::all(), after.as_deref(), 10).unwrap();
        (pages, found, after) = (pages + 1, found + page.content.len(), page.next);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((pages, found), (3, 1));
}
