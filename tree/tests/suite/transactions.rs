//! Changes of a tree in transactions of the store.

use super::*;

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
fn writes_that_were_paused_go_on_with_their_revision() {
    let disk = SimDisk::new(1);
    let (store, trees, tree) = open(&disk);
    let other = trees.ensure("other").unwrap();
    tree.put("a", "old").unwrap();
    let map = store.map("map").unwrap();
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let mut tx = store.begin(TransactionOptions::new().exclusive()).unwrap();
    let mut writes = tree.writes(&mut tx).unwrap();
    writes.put("a", "new").unwrap();
    writes.put("b", "").unwrap();
    let paused = writes.pause();
    tx.put(&map, "key", "value").unwrap();
    other.writes(&mut tx).unwrap().put("x", "").unwrap();
    let mut writes = tree.resume(&mut tx, paused).unwrap();
    assert_eq!(writes.get("a").unwrap().unwrap().payload, b"new");
    writes.put("a", "newest").unwrap();
    writes.delete("b").unwrap();
    assert_eq!(writes.revision(), 3);
    let paused = writes.pause();
    // Other writes in between would have another revision.
    tree.writes(&mut tx).unwrap().put("c", "").unwrap();
    assert!(tree.resume(&mut tx, paused).is_err());
    tx.commit().unwrap();
    let events = watch.next(Duration::ZERO).unwrap().unwrap();
    let seen: Vec<_> = events.iter().map(|event| (event.revision, &event.path[..])).collect();
    assert_eq!(seen, [(3, &b"a"[..]), (4, b"c")]);
    let old = events[0].old.as_ref().unwrap();
    assert_eq!((&old.payload[..], old.version), (&b"old"[..], 1));
    assert_eq!(tree.get("a").unwrap().unwrap().version, 3);
}

#[test]
fn paused_writes_go_on_only_in_their_transaction_and_tree() {
    let disk = SimDisk::new(1);
    let (store, trees, tree) = open(&disk);
    let other = trees.ensure("other").unwrap();
    let pause = |tx: &mut Transaction| {
        let mut writes = tree.writes(tx).unwrap();
        writes.put("a", "").unwrap();
        writes.pause()
    };
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    let paused = pause(&mut tx);
    tx.rollback();
    // It takes the revision that the paused writes had.
    tree.put("b", "").unwrap();
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    assert!(tree.resume(&mut tx, paused).is_err());
    let paused = pause(&mut tx);
    other.writes(&mut tx).unwrap().put("a", "").unwrap();
    other.writes(&mut tx).unwrap().put("b", "").unwrap();
    assert!(other.resume(&mut tx, paused).is_err());
    tx.commit().unwrap();
    assert_eq!(tree.revision().unwrap(), 3);
}
