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
        assert_eq!(keys, [below.clone()], "{top:?}");
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
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        drop(tx);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn leases_end_while_the_program_has_a_tree_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let tree = Trees::open(&store).unwrap().ensure("tree").unwrap();
    let lease = tree.grant_lease(Duration::from_millis(100)).unwrap();
    let mut watch = tree.watch(WatchOptions::path("a")).unwrap();
    tree.transact(|tree| tree.put_with("a", "", LeaseChange::Attach(lease.id)))
        .unwrap();
    assert_eq!(watch.next(Duration::from_secs(5)).unwrap().unwrap().len(), 1);
    assert!(watch.next(Duration::from_secs(5)).unwrap().is_some());
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
fn creating_and_deleting_many_nodes_in_a_transaction_takes_no_square_of_time() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let time = |count: usize| {
        let begun = Instant::now();
        tree.transact(|tree| {
            for number in 0..count {
                tree.put(format!("a/{number}"), "")?;
            }
            tree.delete_subtree("a")
        })
        .unwrap();
        begun.elapsed()
    };
    let least = |count: usize| (0..3).map(|_| time(count)).min().unwrap();
    let (few, many) = (least(500), least(4_000));
    assert!(many < few * 30, "{few:?} {many:?}");
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
