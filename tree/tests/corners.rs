//! Corners of trees: each test was a defect once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use duramen_engine::{Options, Reason, Store, TransactionOptions};
use duramen_io::SimDisk;
use duramen_topic::{TopicOptions, Topics};
use duramen_tree::{
    ChangeKind, Compare, Condition, LeaseChange, Node, Pattern, Projection, Quota, Tree, TreeError, Trees,
    TreesOptions, Trigger, WatchOptions,
};

fn open(disk: &SimDisk) -> (Store, Trees, Tree) {
    let store = Options::new().open_on(disk.platform()).unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let tree = trees.ensure("tree").unwrap();
    (store, trees, tree)
}

fn pattern(text: &str) -> Pattern {
    text.parse().unwrap()
}

fn keep(tree: &Tree, path: &str, watched: &str, condition: Condition) {
    tree.transact(|tree| tree.put_keeping(path, "kept", LeaseChange::Detach, &[(watched.as_bytes(), condition)]))
        .unwrap();
}

#[test]
fn a_projection_of_a_subtree_has_the_paths_of_it_and_no_others() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let deep = [&b"x"[..]; 200].join(&b'/');
    for (number, top) in [
        &b"a*"[..],
        b"{a",
        b"b\\c",
        b"\xFF",
        b"}",
        b"",
        b"/",
        b"a\xFF\0/\\*",
        &deep,
    ]
    .into_iter()
    .enumerate()
    {
        let map = format!("map {number}");
        let projection = Projection {
            pattern: Pattern::subtree(top),
            map: map.clone(),
        };
        tree.transact(|tree| tree.set_projection(&map, &projection)).unwrap();
        let below = [top, &b"/b"[..]].concat();
        tree.put(&below, "inside").unwrap();
        tree.put("ab", "outside").unwrap();
        tree.put("\u{FFFD}/b", "outside").unwrap();
        let snapshot = store.snapshot().unwrap();
        let map = store.map(&map).unwrap();
        let keys: Vec<_> = snapshot
            .range(&map, ..)
            .unwrap()
            .iter()
            .map(|pair| pair.unwrap().0.to_vec())
            .collect();
        assert_eq!(keys, std::slice::from_ref(&below), "{top:?}");
        assert!(
            projection
                .pattern
                .to_string()
                .parse::<Pattern>()
                .unwrap()
                .matches(&below)
        );
    }
}

#[test]
fn a_regular_expression_cannot_end_the_group_around_it() {
    for text in ["{a)|(?:b}", "{a)|(b}", "{)(}"] {
        assert!(text.parse::<Pattern>().is_err(), "{text}");
    }
    assert!(!pattern("{(?m)^a$}").matches(b"a\nb"));
    assert!(!pattern("{a|b}").matches(b"ab"));
}

#[test]
fn an_implied_path_that_loses_its_children_ends_what_was_kept_for_them() {
    for top in ["queue/jobs", "queue"] {
        let disk = SimDisk::new(1);
        let (_store, _trees, tree) = open(&disk);
        tree.put("queue/jobs/1", "").unwrap();
        keep(&tree, "busy", "queue/jobs", Condition::Children(Compare::Greater(0)));
        tree.delete_subtree(top).unwrap();
        assert!(!tree.exists("busy").unwrap(), "{top}");
    }
}

#[test]
fn new_conditions_replace_those_from_before() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let keep = |payload: &str| {
        let condition = Condition::Payload(payload.into());
        tree.transact(|tree| tree.put_keeping("a", payload, LeaseChange::Detach, &[(b"a", condition)]))
            .unwrap();
    };
    keep("1");
    keep("2");
    assert_eq!(tree.get("a").unwrap().unwrap().payload, b"2");
    tree.put("a", "3").unwrap();
    assert!(!tree.exists("a").unwrap());
}

#[test]
fn a_node_whose_condition_its_own_put_breaks_ends_at_once() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    keep(&tree, "list/a", "list", Condition::Children(Compare::Less(1)));
    assert!(!tree.exists("list/a").unwrap());
    assert!(tree.transact(|tree| tree.kept_while("list/a")).unwrap().is_empty());
}

#[test]
fn put_many_does_not_bring_back_what_it_ended() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    tree.put("a", "1").unwrap();
    keep(&tree, "b", "a", Condition::Payload(b"1".to_vec()));
    assert_eq!(tree.put_many(&pattern("*"), "2").unwrap(), 1);
    assert!(!tree.exists("b").unwrap());
}

#[test]
fn a_change_without_the_topic_of_its_trigger_leaves_nothing() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let topics = Topics::open(&store).unwrap();
    topics.create("changes", TopicOptions::new()).unwrap();
    tree.put("a/b", "").unwrap();
    tree.put("other", "").unwrap();
    keep(&tree, "a/kept", "other", Condition::Exists);
    let trigger = Trigger {
        pattern: pattern("a/**"),
        kind: None,
        topic: "changes".into(),
    };
    tree.transact(|tree| tree.set_trigger("news", &trigger)).unwrap();
    topics.delete("changes").unwrap();
    let before = tree.revision().unwrap();
    tree.transact(|tree| {
        tree.put("a/c", "").unwrap_err();
        tree.delete("a/b").unwrap_err();
        tree.delete_subtree("a").unwrap_err();
        Ok::<_, duramen_engine::Error>(())
    })
    .unwrap();
    assert_eq!(tree.revision().unwrap(), before);
    assert!(tree.exists("a/b").unwrap() && !tree.exists("a/c").unwrap());
    // Ending a node is part of the change that ends it, so that change is not made either.
    let swallowed = tree.transact(|tree| {
        tree.delete("other").unwrap_err();
        Ok::<_, duramen_engine::Error>(())
    });
    swallowed.unwrap_err();
    assert!(tree.exists("other").unwrap() && tree.exists("a/kept").unwrap());
}

#[test]
fn a_tree_that_cannot_expire_its_leases_holds_up_no_other_tree() {
    let disk = SimDisk::new(1);
    let (store, trees, tree) = open(&disk);
    let other = trees.ensure("tree 2").unwrap();
    let topics = Topics::open(&store).unwrap();
    topics.create("changes", TopicOptions::new()).unwrap();
    let trigger = Trigger {
        pattern: pattern("**"),
        kind: None,
        topic: "changes".into(),
    };
    for tree in [&tree, &other] {
        let lease = tree.grant_lease(Duration::from_millis(20)).unwrap();
        tree.transact(|tree| tree.put_with("a", "", LeaseChange::Attach(lease.id)))
            .unwrap();
    }
    tree.transact(|tree| tree.set_trigger("news", &trigger)).unwrap();
    topics.delete("changes").unwrap();
    disk.advance(Duration::from_secs(3));
    trees.work().unwrap_err();
    assert!(tree.exists("a").unwrap());
    assert!(!other.exists("a").unwrap());
}

#[test]
fn a_lease_that_is_revoked_beside_a_put_keeps_no_node() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let lease = tree.grant_lease(Duration::from_secs(10)).unwrap();
    let mut put = store.begin(TransactionOptions::new()).unwrap();
    let mut revoke = store.begin(TransactionOptions::new()).unwrap();
    tree.writes(&mut put)
        .unwrap()
        .put_with("a", "", LeaseChange::Attach(lease.id))
        .unwrap();
    tree.writes(&mut revoke).unwrap().revoke_lease(lease.id).unwrap();
    put.commit().unwrap();
    assert!(revoke.commit().unwrap_err().is_conflict());
    assert_eq!(tree.revoke_lease(lease.id).unwrap(), 1);
}

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
fn leases_end_while_the_program_has_a_tree_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let tree = Trees::open(&store).unwrap().ensure("tree").unwrap();
    let lease = tree.grant_lease(Duration::from_secs(2)).unwrap();
    let mut watch = tree.watch(WatchOptions::path("a")).unwrap();
    tree.transact(|tree| tree.put_with("a", "", LeaseChange::Attach(lease.id)))
        .unwrap();
    assert_eq!(watch.next(Duration::from_secs(5)).unwrap().unwrap().len(), 1);
    assert!(watch.next(Duration::from_secs(60)).unwrap().is_some());
    assert!(!tree.exists("a").unwrap());
    drop((tree, watch));
    // The thread has ended and holds nothing.
    drop(store);
    Options::new().exclusive(true).open(directory.path()).unwrap();
}

#[test]
fn two_projections_do_not_share_a_map() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let projection = |text: &str| Projection {
        pattern: pattern(text),
        map: "map".into(),
    };
    tree.transact(|tree| tree.set_projection("a", &projection("a/**")))
        .unwrap();
    let refused = tree.transact(|tree| tree.set_projection("b", &projection("b/**")));
    assert!(refused.unwrap_err().to_string().contains("projection"));
    tree.transact(|tree| tree.set_projection("a", &projection("b/**")))
        .unwrap();
}

#[test]
fn conditions_on_long_paths_are_refused_before_anything_is_written() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let (long, other) = ("a".repeat(600), "b".repeat(600));
    tree.put(&other, "").unwrap();
    tree.transact(|tree| {
        let kept = tree.put_keeping(&long, "", LeaseChange::Detach, &[(other.as_bytes(), Condition::Exists)]);
        let error = kept.unwrap_err();
        assert!(TreeError::of(&error).is_some(), "{error}");
        Ok::<_, duramen_engine::Error>(())
    })
    .unwrap();
    assert!(!tree.exists(&long).unwrap());
}

#[test]
fn nodes_that_are_created_and_deleted_in_one_transaction_leave_no_change() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let deleted = tree.transact(|tree| {
        for number in 0..2_000 {
            tree.put(format!("a/{number}"), "")?;
        }
        tree.put("b", "")?;
        tree.delete_subtree("a")
    });
    assert_eq!(deleted.unwrap(), 2_000);
    let events = watch.next(Duration::ZERO).unwrap().unwrap();
    assert_eq!(events.iter().map(|event| &event.path[..]).collect::<Vec<_>>(), [b"b"]);
}

#[test]
fn a_watch_that_passes_many_other_changes_finds_its_own() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut watch = tree.watch(WatchOptions::path("z")).unwrap();
    tree.transact(|tree| {
        for number in 0..10_500 {
            tree.put(format!("a/{number}"), "")?;
        }
        tree.put("z", "")
    })
    .unwrap();
    assert_eq!(watch.next(Duration::ZERO).unwrap().unwrap().len(), 1);
}

type Nodes = BTreeMap<Vec<u8>, Node>;

fn nodes_at(tree: &Tree, revision: u64) -> Nodes {
    let mut nodes = Nodes::new();
    let view = tree.view_at(revision).unwrap();
    view.range(b"", None, |path, node| {
        assert_eq!(view.get(path).unwrap().as_ref(), Some(&node));
        nodes.insert(path.to_vec(), node);
        Ok(true)
    })
    .unwrap();
    nodes
}

fn check_children(tree: &Tree, nodes: &Nodes) {
    let mut children = BTreeMap::<Option<Vec<u8>>, BTreeSet<Vec<u8>>>::new();
    for path in nodes.keys() {
        let mut path = &path[..];
        loop {
            let at = path.iter().rposition(|byte| *byte == b'/');
            let (parent, name) = at.map_or((None, path), |at| (Some(&path[..at]), &path[at + 1..]));
            children
                .entry(parent.map(<[u8]>::to_vec))
                .or_default()
                .insert(name.to_vec());
            let Some(parent) = parent else { break };
            path = parent;
        }
    }
    let view = tree.view().unwrap();
    for path in nodes
        .keys()
        .cloned()
        .map(Some)
        .chain(children.keys().cloned())
        .chain([None])
    {
        let expected: Vec<_> = children.get(&path).into_iter().flatten().cloned().collect();
        let found = match &path {
            Some(path) => {
                assert_eq!(view.child_count(path).unwrap().count, expected.len() as u64, "{path:?}");
                view.children(path, None, usize::MAX).unwrap()
            }
            None => view.top(None, usize::MAX).unwrap(),
        };
        let names: Vec<_> = found.into_iter().map(|child| child.name).collect();
        assert_eq!(names, expected, "{path:?}");
    }
}

/// Several writes of one tree in one transaction, with savepoints, errors that are ignored, leases, quotas, conditions, and a
/// projection: the watch tells all of it, and each revision can be read.
#[test]
fn what_several_writes_of_a_transaction_do_is_what_a_watch_tells() {
    let seed = std::env::var("DURAMEN_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("DURAMEN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let disk = SimDisk::new(seed);
    let (store, _trees, tree) = open(&disk);
    let tops = [&b"a"[..], b"a-b", b"a0", b"", b"\0", b"\xFF", b"a\0"];
    let path = |rng: &mut fastrand::Rng| {
        let names: Vec<_> = (0..rng.usize(1..4)).map(|_| tops[rng.usize(..tops.len())]).collect();
        let path = names.join(&b'/');
        if path.is_empty() { b"a".to_vec() } else { path }
    };
    let leases: Vec<u64> = (0..2)
        .map(|_| tree.grant_lease(Duration::from_secs(1_000)).unwrap().id)
        .collect();
    let quotas = [&b"a"[..], b"a/a", b"\xFF"];
    let projection = Projection {
        pattern: pattern("a/**"),
        map: "map".into(),
    };
    tree.transact(|tree| {
        for path in quotas {
            tree.set_quota(path, Quota { nodes: 9, bytes: 120 })?;
        }
        tree.set_projection("map", &projection)
    })
    .unwrap();
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let (mut states, mut nodes) = (BTreeMap::new(), Nodes::new());
    let mut last = tree.revision().unwrap();
    states.insert(last, nodes.clone());
    for step in 0..400 {
        let options = match rng.bool() {
            true => TransactionOptions::new(),
            false => TransactionOptions::new().exclusive(),
        };
        let mut tx = store.begin(options).unwrap();
        for _ in 0..rng.usize(1..4) {
            let savepoint = tx.savepoint().unwrap();
            let mut writes = tree.writes(&mut tx).unwrap();
            for _ in 0..rng.usize(1..7) {
                let (path, other) = (path(&mut rng), path(&mut rng));
                let payload = vec![b'x'; rng.usize(..20)];
                let lease = match rng.u8(..4) {
                    0 => LeaseChange::Attach(leases[rng.usize(..2)]),
                    1 => LeaseChange::Detach,
                    _ => LeaseChange::Keep,
                };
                let condition = match rng.u8(..4) {
                    0 => Condition::Exists,
                    1 => Condition::Children(Compare::Less(2)),
                    2 => Condition::Children(Compare::Greater(0)),
                    _ => Condition::Missing,
                };
                match rng.u8(..16) {
                    0..5 => drop(writes.put_with(&path, &payload, lease)),
                    5 => drop(writes.create(&path, &payload)),
                    6 | 7 => drop(writes.delete(&path).unwrap()),
                    8 => drop(writes.delete_subtree(&path).unwrap()),
                    9 => drop(writes.put_many(&pattern("a/*"), &payload)),
                    10 => drop(writes.delete_many(&pattern("**/a")).unwrap()),
                    11..14 => drop(writes.put_keeping(&path, &payload, lease, &[(&other, condition)])),
                    14 => drop(writes.delete_range(&path, Some(&other)).unwrap()),
                    _ => drop(writes.update(&path, &payload)),
                }
            }
            if rng.u8(..4) == 0 {
                tx.rollback_to(&savepoint).unwrap();
            }
        }
        match rng.u8(..5) {
            0 => tx.rollback(),
            _ => drop(tx.commit().unwrap()),
        }
        while let Some(events) = watch.next(Duration::ZERO).unwrap() {
            for event in events {
                assert!(event.revision >= last, "step {step}");
                while last < event.revision {
                    states.insert(last, nodes.clone());
                    last += 1;
                }
                let before = nodes.remove(&event.path);
                assert_eq!(before, event.old, "step {step} {event:?}");
                match event.kind {
                    ChangeKind::Put => drop(nodes.insert(event.path, event.node.unwrap())),
                    ChangeKind::Delete => assert!(before.is_some() && event.node.is_none()),
                }
            }
        }
        while last < tree.revision().unwrap() {
            states.insert(last, nodes.clone());
            last += 1;
        }
        states.insert(last, nodes.clone());
        assert_eq!(nodes_at(&tree, last), nodes, "step {step}");
        check_children(&tree, &nodes);
        for used in tree.view().unwrap().quotas().unwrap() {
            let counted = nodes
                .iter()
                .filter(|(path, _)| Pattern::subtree(&used.path).matches(path))
                .map(|(path, node)| path.len() + node.payload.len());
            assert_eq!(used.nodes, counted.clone().count() as u64, "step {step}");
            assert_eq!(used.bytes, counted.sum::<usize>() as u64, "step {step}");
        }
        for lease in &leases {
            let attached: Vec<_> = nodes
                .iter()
                .filter(|(_, node)| node.lease == *lease)
                .map(|(path, _)| path.clone())
                .collect();
            assert_eq!(tree.view().unwrap().lease_paths(*lease, usize::MAX).unwrap(), attached);
        }
        let projected: Vec<_> = nodes
            .iter()
            .filter(|(path, _)| projection.pattern.matches(path))
            .map(|(path, node)| (path.clone(), node.payload.clone()))
            .collect();
        let pairs: Vec<_> = store
            .snapshot()
            .unwrap()
            .range(&store.map("map").unwrap(), ..)
            .unwrap()
            .iter()
            .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert_eq!(pairs, projected);
        // No node is kept whose condition does not hold.
        tree.transact(|tree| {
            for path in nodes.keys() {
                for (watched, condition) in tree.kept_while(path)? {
                    assert!(
                        tree.holds(&watched, &condition)?,
                        "step {step} {path:?} {watched:?} {condition:?}"
                    );
                }
            }
            Ok::<_, duramen_engine::Error>(())
        })
        .unwrap();
        for _ in 0..3 {
            let (&revision, state) = states.iter().nth(rng.usize(..states.len())).unwrap();
            assert_eq!(&nodes_at(&tree, revision), state, "step {step} revision {revision}");
        }
        if rng.u8(..20) == 0 {
            let first = rng.u64(*states.keys().next().unwrap()..=last);
            tree.compact(first).unwrap();
            states = states.split_off(&first);
        }
    }
    assert!(last > 100, "{last}");
}

#[test]
fn a_projection_goes_on_beside_a_program_that_drops_its_map() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let projection = Projection {
        pattern: pattern("**"),
        map: "map".into(),
    };
    tree.transact(|tree| tree.set_projection("map", &projection)).unwrap();
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    tree.writes(&mut tx).unwrap().put("a", "1").unwrap();
    store.transact(|tx| tx.drop_map("map")).unwrap();
    let conflict = tx.commit().unwrap_err();
    assert!(conflict.is_conflict(), "{conflict}");
    tree.put("a", "1").unwrap();
    assert!(store.maps().get("map").unwrap().is_none());
    store.map("map").unwrap();
    assert_eq!(tree.transact(|tree| tree.rebuild_projection("map")).unwrap(), 1);
}

#[test]
fn rules_of_a_transaction_that_was_rolled_back_are_forgotten() {
    let disk = SimDisk::new(1);
    let (store, trees, tree) = open(&disk);
    let other = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let other = other.get("tree").unwrap().unwrap();
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    let savepoint = tx.savepoint().unwrap();
    let full = Quota::default();
    tree.writes(&mut tx).unwrap().set_quota("a", full).unwrap();
    assert!(tree.writes(&mut tx).unwrap().put("a", "").is_err());
    tx.rollback_to(&savepoint).unwrap();
    tree.writes(&mut tx).unwrap().set_quota("b", full).unwrap();
    tree.writes(&mut tx).unwrap().put("a", "").unwrap();
    tx.rollback();
    tree.put("b", "").unwrap();
    other.transact(|tree| tree.set_quota("a", full)).unwrap();
    assert!(tree.put("a/b", "").is_err() && other.put("a/b", "").is_err());
    other
        .transact(|tree| tree.set_quota("a", Quota { nodes: 1, bytes: 9 }))
        .unwrap();
    tree.put("a/b", "").unwrap();
    assert!(other.put("a/c", "").is_err());
    other.transact(|tree| tree.remove_quota("a")).unwrap();
    tree.put("a/c", "").unwrap();
    // Of a tree that was deleted and made again nothing is left.
    other.transact(|tree| tree.set_quota("a", full)).unwrap();
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    assert!(trees.delete("tree").unwrap());
    let again = trees.ensure("tree").unwrap();
    again.put("a", "new").unwrap();
    assert_eq!(again.revision().unwrap(), 2);
    for error in [
        tree.put("a", "").unwrap_err(),
        tree.get("a").unwrap_err(),
        watch.next(Duration::ZERO).unwrap_err(),
        tree.compact(1).unwrap_err(),
        tree.grant_lease(Duration::from_secs(1)).unwrap_err(),
    ] {
        assert!(
            matches!(TreeError::of(&error), Some(TreeError::UnknownTree { .. })),
            "{error}"
        );
    }
    assert_eq!(nodes_at(&again, 2).len(), 1);
    trees.work().unwrap();
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
fn writes_in_a_usual_transaction_conflict_with_every_change_and_run_again() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let mut runs = 0;
    store
        .transact(|tx| {
            runs += 1;
            tree.writes(tx)?.put("a", format!("{runs}"))?;
            if runs < 3 {
                let other = tree.clone();
                std::thread::spawn(move || other.put(format!("other/{}", other.revision().unwrap()), "").unwrap())
                    .join()
                    .unwrap();
            }
            tree.writes(tx)?.put("b", "").map(drop)
        })
        .unwrap();
    assert_eq!((runs, tree.revision().unwrap()), (3, 5));
    assert_eq!(tree.get("a").unwrap().unwrap().payload, b"3");
    let mut watch = tree.watch(WatchOptions::all().from_revision(2)).unwrap();
    let revisions: Vec<_> = watch
        .next(Duration::ZERO)
        .unwrap()
        .unwrap()
        .iter()
        .map(|event| event.revision)
        .collect();
    assert_eq!(revisions, [2, 3, 4, 5]);
}

#[test]
fn a_view_reads_on_after_a_compaction_to_the_newest_revision() {
    let disk = SimDisk::new(1);
    let (_store, trees, tree) = open(&disk);
    for number in 0..50 {
        tree.put(format!("a/{}", number % 7), format!("{number}")).unwrap();
    }
    let view = tree.view().unwrap();
    let mut watch = tree.watch(WatchOptions::all().from_revision(51)).unwrap();
    let mut late = tree.watch(WatchOptions::all().from_revision(50)).unwrap();
    tree.compact(51).unwrap();
    assert_eq!(view.at_revision(3).unwrap().count_subtree("a").unwrap(), 2);
    assert_eq!(tree.view_at(51).unwrap().count_subtree("a").unwrap(), 7);
    let error = tree.view_at(50).unwrap_err();
    assert!(
        matches!(TreeError::of(&error), Some(TreeError::Compacted { first: 51, .. })),
        "{error}"
    );
    let event = watch.next(Duration::ZERO).unwrap().unwrap().remove(0);
    assert_eq!((event.revision, event.node.unwrap().version), (51, 8));
    let error = late.next(Duration::ZERO).unwrap_err();
    assert!(
        matches!(TreeError::of(&error), Some(TreeError::Compacted { .. })),
        "{error}"
    );
    trees.work().unwrap();
}

/// Rows that were changed at random: no call panics or goes round without end.
#[test]
fn damaged_rows_are_errors() {
    let seed = std::env::var("DURAMEN_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("DURAMEN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..150 {
        let disk = SimDisk::new(1);
        let (store, trees, tree) = open(&disk);
        let lease = tree.grant_lease(Duration::from_millis(5)).unwrap();
        Topics::open(&store)
            .unwrap()
            .create("changes", TopicOptions::new())
            .unwrap();
        tree.transact(|tree| {
            tree.put_with("a/b", "1", LeaseChange::Attach(lease.id))?;
            tree.put("a/c", "1")?;
            tree.put_keeping("k", "", LeaseChange::Detach, &[(b"a/c", Condition::Exists)])?;
            tree.set_quota("a", Quota { nodes: 9, bytes: 99 })?;
            let trigger = Trigger {
                pattern: pattern("a/*"),
                kind: None,
                topic: "changes".into(),
            };
            tree.set_trigger("trigger", &trigger)?;
            tree.set_projection(
                "map",
                &Projection {
                    pattern: pattern("a/*"),
                    map: "map".into(),
                },
            )
        })
        .unwrap();
        tree.put("a/c", "2").unwrap();
        let names = [
            "trees", "nodes", "changes", "versions", "children", "parents", "leases", "rules",
        ];
        for _ in 0..rng.usize(1..4) {
            let map = store
                .reserved_map(&format!("tree.{}", names[rng.usize(..names.len())]))
                .unwrap();
            let rows: Vec<(Vec<u8>, Vec<u8>)> = store
                .snapshot()
                .unwrap()
                .range(&map, ..)
                .unwrap()
                .iter()
                .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
                .collect();
            if rows.is_empty() {
                continue;
            }
            let (mut key, mut row) = rows[rng.usize(..rows.len())].clone();
            let broken = if rng.u8(..3) == 0 { &mut key } else { &mut row };
            match rng.u8(..5) {
                0 => broken.truncate(rng.usize(..=broken.len())),
                1 if !broken.is_empty() => {
                    let at = rng.usize(..broken.len());
                    broken[at] = rng.u8(..);
                }
                2 => broken.iter_mut().for_each(|byte| *byte = 255),
                3 => broken
                    .splice(.., [255, 255, 255, 255, 255, 255, 255, 255, 255, 1])
                    .for_each(drop),
                _ => broken.push(rng.u8(..)),
            }
            store.transact(|tx| tx.put(&map, &key, &row)).unwrap();
        }
        disk.advance(Duration::from_secs(3));
        let name = "tree";
        let _ = trees.ensure("other").and_then(|tree| tree.put("a", ""));
        let _ = trees.list();
        let _ = trees.work();
        let Ok(Some(tree)) = trees.get(name) else { continue };
        let _ = tree.put("a/b", "2");
        let _ = tree.put("a/d/e", "2");
        let _ = tree.keep_lease_alive(lease.id);
        let _ = tree.grant_lease(Duration::from_secs(9));
        if let Ok(view) = tree.view() {
            let _ = (view.leases(), view.triggers(), view.projections(), view.quotas());
            for revision in 0..=view.revision().min(9) {
                if let Ok(view) = view.at_revision(revision) {
                    let _ = (
                        view.top(None, 9),
                        view.children("a", None, 9),
                        view.count(&pattern("**")),
                        view.get("a/c"),
                    );
                }
            }
        }
        for from in [1, 2, 3] {
            if let Ok(mut watch) = tree.watch(WatchOptions::all().from_revision(from)) {
                let _ = watch.next(Duration::ZERO);
                let _ = watch.next(Duration::ZERO);
            }
        }
        let _ = tree.delete("a/c");
        let _ = tree.delete_subtree("a");
        let _ = tree.revoke_lease(lease.id);
        let _ = tree.transact(|tree| tree.rebuild_projection("map"));
        let _ = tree.compact(3);
        let _ = trees.delete(name);
        println!("round {round}");
    }
}

#[test]
fn leases_end_with_all_of_their_nodes_and_no_others() {
    let disk = SimDisk::new(1);
    let (_store, trees, tree) = open(&disk);
    let short = tree.grant_lease(Duration::from_secs(4)).unwrap().id;
    let long = tree.grant_lease(Duration::from_secs(1_000)).unwrap().id;
    tree.transact(|tree| {
        for number in 0..2_500 {
            tree.put_with(format!("n/{number}"), "", LeaseChange::Attach(short))?;
        }
        tree.put_with("n/1", "moved", LeaseChange::Attach(long))?;
        tree.put("n/2", "free")?;
        tree.delete("n/3")?;
        tree.create("n/3", "again")
    })
    .unwrap();
    for wrong in [0, 77] {
        let error = tree
            .transact(|tree| tree.put_with("x", "", LeaseChange::Attach(wrong)).map(drop))
            .unwrap_err();
        assert!(
            matches!(TreeError::of(&error), Some(TreeError::LeaseGone { .. })),
            "{error}"
        );
    }
    for (id, ttl) in [(0, 1_000), (5, 0), (5, u64::MAX)] {
        let error = tree
            .transact(|tree| tree.grant_lease(id, Duration::from_millis(ttl)))
            .unwrap_err();
        assert!(
            matches!(TreeError::of(&error), Some(TreeError::InvalidLease { .. })),
            "{error}"
        );
    }
    // An hour without a tick counts for two seconds.
    disk.advance(Duration::from_secs(3_600));
    trees.work().unwrap();
    assert_eq!(tree.count(&pattern("n/*")).unwrap(), 2_500);
    tree.keep_lease_alive(short).unwrap();
    for _ in 0..3 {
        disk.advance(Duration::from_secs(1));
        trees.work().unwrap();
    }
    assert_eq!(tree.count(&pattern("n/*")).unwrap(), 2_500);
    disk.advance(Duration::from_secs(1));
    let error = tree.keep_lease_alive(short).unwrap_err();
    assert!(
        matches!(TreeError::of(&error), Some(TreeError::LeaseGone { .. })),
        "{error}"
    );
    trees.work().unwrap();
    let left: Vec<_> = tree
        .get_many(&pattern("n/*"), 9)
        .unwrap()
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    assert_eq!(left, [b"n/1", b"n/2", b"n/3"]);
    // Revoked and granted in one transaction, it is another lease.
    let deleted = tree.transact(|tree| {
        let deleted = tree.revoke_lease(long)?;
        assert!(tree.put_with("n/4", "", LeaseChange::Attach(long)).is_err());
        tree.grant_lease(long, Duration::from_secs(9))?;
        tree.put_with("n/4", "", LeaseChange::Attach(long))?;
        Ok::<_, duramen_engine::Error>(deleted)
    });
    assert_eq!(deleted.unwrap(), 1);
    assert_eq!(tree.view().unwrap().lease_paths(long, 9).unwrap(), [b"n/4"]);
}

#[test]
fn long_chains_of_kept_nodes_end_in_one_revision() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    tree.put("0", "").unwrap();
    tree.transact(|tree| {
        for number in 1..3_000 {
            let before = (number - 1).to_string();
            let conditions = [(before.as_bytes(), Condition::Exists)];
            tree.put_keeping(number.to_string(), "", LeaseChange::Detach, &conditions)?;
        }
        Ok::<_, duramen_engine::Error>(())
    })
    .unwrap();
    let before = tree.revision().unwrap();
    tree.delete("0").unwrap();
    assert_eq!(
        (tree.count(&pattern("**")).unwrap(), tree.revision().unwrap()),
        (0, before + 1)
    );
    let mut watch = tree.watch(WatchOptions::all().from_revision(before + 1)).unwrap();
    let mut events = 0;
    while let Some(batch) = watch.next(Duration::ZERO).unwrap() {
        events += batch.len();
    }
    assert_eq!(events, 3_000);
}

#[test]
fn patterns_do_not_read_past_their_paths() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let names = ["", "a", "a*", "b", "ab", "\u{e9}"];
    let mut paths = Vec::new();
    for first in names {
        paths.push(first.to_string());
        for second in names {
            paths.push(format!("{first}/{second}"));
            paths.extend(names.map(|third| format!("{first}/{second}/{third}")));
        }
    }
    paths.retain(|path| !path.is_empty());
    tree.transact(|tree| paths.iter().try_for_each(|path| tree.put(path, "").map(drop)))
        .unwrap();
    let parts = ["**", "*", "a*", "a", r"a\*", "", "{a|b}", "{(?i)A.?}", "{.*}", "{}"];
    let mut texts: Vec<String> = parts.map(String::from).to_vec();
    for first in parts {
        texts.extend(parts.map(|second| format!("{first}/{second}")));
        texts.extend(parts.map(|second| format!("{first}/**/{second}")));
        texts.extend(parts.map(|second| format!("{first}/{second}/**")));
    }
    for text in texts {
        let pattern = pattern(&text);
        assert_eq!(pattern.to_string(), text);
        let expected = paths.iter().filter(|path| pattern.matches(path.as_bytes())).count() as u64;
        assert_eq!(tree.count(&pattern).unwrap(), expected, "{text}");
        let deleted = tree.transact(|tree| {
            let deleted = tree.delete_many(&pattern)?;
            Err::<(), _>(duramen_engine::Error::from(Reason::InvalidArgument(
                deleted.to_string(),
            )))
        });
        assert!(
            deleted.unwrap_err().to_string().contains(&expected.to_string()),
            "{text}"
        );
    }
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
fn a_watch_waits_as_long_as_it_takes() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let other = tree.clone();
    let put = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        other.put("a", "").unwrap();
    });
    assert_eq!(watch.next(Duration::MAX).unwrap().unwrap().len(), 1);
    put.join().unwrap();
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
