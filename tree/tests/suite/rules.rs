//! Triggers, projections and quotas.

use super::*;

#[test]
fn a_trigger_publishes_each_change_of_its_paths_in_the_same_commit() {
    let disk = SimDisk::new(1);
    let (store, _, tree) = open(&disk);
    let trigger = Trigger {
        pattern: pattern("services/**"),
        kind: None,
        topic: "changes".into(),
    };
    let missing = tree.transact(|tree| tree.set_trigger("news", &trigger)).unwrap_err();
    assert!(
        matches!(TreeError::of(&missing), Some(TreeError::TriggerTopic { .. })),
        "{missing}"
    );
    let topics = Topics::open(&store).unwrap();
    let topic = topics.create("changes", TopicOptions::new()).unwrap();
    tree.transact(|tree| tree.set_trigger("news", &trigger)).unwrap();
    let deletes = Trigger {
        kind: Some(ChangeKind::Delete),
        ..trigger.clone()
    };
    tree.transact(|tree| tree.set_trigger("ends", &deletes)).unwrap();
    tree.put("services/web", "up").unwrap();
    tree.put("other", "up").unwrap();
    tree.delete_subtree("services").unwrap();
    let failed = tree.transact(|tree| {
        tree.put("services/db", "up")?;
        Err::<(), _>(duramen_engine::Error::damaged("not really"))
    });
    failed.unwrap_err();
    let messages = topic.read(Start::Beginning, 10).unwrap();
    let seen: Vec<_> = messages
        .iter()
        .map(|message| {
            let header = |wanted: &str| {
                let found = message.headers().find(|(name, _)| *name == wanted);
                String::from_utf8(found.unwrap().1.to_vec()).unwrap()
            };
            let key = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
            (key, header("change"), header("revision"), message.payload().to_vec())
        })
        .collect();
    let change = |change: &str, revision: &str, payload: &[u8]| {
        (
            "services/web".to_string(),
            change.to_string(),
            revision.to_string(),
            payload.to_vec(),
        )
    };
    // Both triggers are for the deletion.
    assert_eq!(
        seen,
        [
            change("put", "2", b"up"),
            change("delete", "4", b""),
            change("delete", "4", b"")
        ]
    );
    let names: Vec<_> = tree
        .view()
        .unwrap()
        .triggers()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["ends", "news"]);
    // Without its topic the change fails, and leaves nothing; without the trigger it is made.
    topics.delete("changes").unwrap();
    let refused = tree.put("services/web", "up").unwrap_err();
    assert!(
        matches!(TreeError::of(&refused), Some(TreeError::TriggerTopic { .. })),
        "{refused}"
    );
    assert!(!tree.exists("services/web").unwrap());
    for name in ["news", "ends"] {
        tree.transact(|tree| tree.remove_trigger(name)).unwrap();
    }
    tree.put("services/web", "up").unwrap();
    assert!(tree.transact(|tree| tree.remove_trigger("news")).is_err());
}

#[test]
fn a_projection_is_at_any_moment_what_its_nodes_are() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let (mut store, _, mut tree) = open(&disk);
    for name in ["a/b", "b", "a/c"] {
        tree.put(name, "before").unwrap();
    }
    let projection = Projection {
        pattern: pattern("a/**"),
        map: "under-a".into(),
    };
    tree.transact(|tree| tree.set_projection("under-a", &projection))
        .unwrap();
    for step in 0..300 {
        let path: String = (0..rng.usize(1..4))
            .map(|_| ["a/", "b/", "c/"][rng.usize(..3)])
            .collect();
        let path = path.trim_end_matches('/');
        match rng.u8(0..8) {
            0..4 => drop(tree.put(path, step.to_string()).unwrap()),
            4 => drop(tree.delete(path).unwrap()),
            5 => drop(tree.delete_subtree(path).unwrap()),
            6 => {
                drop((tree, store));
                disk = disk.power_cut(rng.u64(..));
                (store, _, tree) = open(&disk);
            }
            _ => drop(tree.put_many(&pattern("**/b"), step.to_string()).unwrap()),
        }
        let mut nodes = BTreeMap::new();
        tree.view()
            .unwrap()
            .matching(&projection.pattern, |path, node| {
                nodes.insert(path.to_vec(), node.payload);
                Ok(true)
            })
            .unwrap();
        let map = store.map("under-a").unwrap();
        let snapshot = store.snapshot().unwrap();
        let pairs: BTreeMap<_, _> = snapshot
            .range(&map, ..)
            .unwrap()
            .iter()
            .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert_eq!(pairs, nodes, "step {step}");
    }
    // What a program breaks is mended by a rebuild.
    store.map("under-a").unwrap().put("a/x", "wrong").unwrap();
    let count = tree.transact(|tree| tree.rebuild_projection("under-a")).unwrap();
    assert_eq!(count, tree.count(&projection.pattern).unwrap());
    // A map that has pairs already is not taken.
    store.map("mine").unwrap().put("key", "value").unwrap();
    let mine = Projection {
        map: "mine".into(),
        ..projection
    };
    let refused = tree.transact(|tree| tree.set_projection("mine", &mine)).unwrap_err();
    assert!(refused.to_string().contains("name an empty map"), "{refused}");
    assert!(tree.transact(|tree| tree.rebuild_projection("none")).is_err());
}

#[test]
fn a_quota_counts_what_is_there_and_refuses_what_is_too_much() {
    let disk = SimDisk::new(1);
    let (_store, _, tree) = open(&disk);
    tree.put("a/b", "12345").unwrap();
    let quota = Quota { nodes: 3, bytes: 40 };
    tree.transact(|tree| tree.set_quota("a", quota)).unwrap();
    let used = || tree.view().unwrap().quotas().unwrap().remove(0);
    assert_eq!((used().nodes, used().bytes, used().quota), (1, 8, quota));
    tree.put("a", "").unwrap();
    tree.put("a/c", "").unwrap();
    tree.put("b", "elsewhere").unwrap();
    let full = tree.put("a/d", "").unwrap_err();
    assert!(
        matches!(TreeError::of(&full), Some(TreeError::QuotaReached { nodes: 3, .. })),
        "{full}"
    );
    assert_eq!(full.kind(), duramen_engine::Kind::MakeSpace);
    // A larger payload is too much as well, a smaller one is not.
    assert!(tree.put("a/b", [0; 100]).is_err());
    tree.put("a/b", "1234").unwrap();
    assert_eq!((used().nodes, used().bytes), (3, 1 + 3 + 7));
    // In a transaction, what is deleted first makes room.
    tree.transact(|tree| {
        tree.delete("a/c")?;
        tree.put("a/d", "")
    })
    .unwrap();
    assert_eq!(tree.delete_subtree("a").unwrap(), 3);
    assert_eq!((used().nodes, used().bytes), (0, 0));
    tree.transact(|tree| tree.remove_quota("a")).unwrap();
    tree.put("a/b", [0; 100]).unwrap();
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
fn a_projection_leaves_a_map_alone_that_keeps_its_changes() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let projection = Projection {
        pattern: pattern("**"),
        map: "map".into(),
    };
    tree.transact(|tree| tree.set_projection("all", &projection)).unwrap();
    store.maps().drop("map").unwrap();
    let guarded = TransactionOptions::new().guarded();
    let mut tx = store.begin(guarded).unwrap();
    let map = tx.guarded_map("map", 1).unwrap();
    tx.commit().unwrap();
    tree.put("a", "").unwrap();
    let mut tx = store.begin(guarded).unwrap();
    tree.writes(&mut tx).unwrap().put("b", "").unwrap();
    tx.commit().unwrap();
    assert!(tree.exists("a").unwrap() && tree.exists("b").unwrap());
    assert!(map.is_empty().unwrap());
}
