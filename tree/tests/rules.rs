//! Triggers, projections, quotas, and nodes that are kept while conditions hold.

use std::collections::BTreeMap;

use duramen_engine::{Options, Store};
use duramen_io::SimDisk;
use duramen_topic::{Start, TopicOptions, Topics};
use duramen_tree::{
    ChangeKind, Compare, Condition, LeaseChange, Pattern, Projection, Quota, Tree, TreeError, Trees, TreesOptions,
    Trigger,
};

fn open(disk: &SimDisk) -> (Store, Tree) {
    let store = Options::new().open_on(disk.platform()).unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let tree = trees.ensure("tree").unwrap();
    (store, tree)
}

fn pattern(text: &str) -> Pattern {
    text.parse().unwrap()
}

#[test]
fn a_trigger_publishes_each_change_of_its_paths_in_the_same_commit() {
    let disk = SimDisk::new(1);
    let (store, tree) = open(&disk);
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
    let (mut store, mut tree) = open(&disk);
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
                (store, tree) = open(&disk);
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
    let (_store, tree) = open(&disk);
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
fn a_node_ends_with_the_conditions_that_it_is_kept_for() {
    let disk = SimDisk::new(1);
    let (_store, tree) = open(&disk);
    let keep = |path: &str, watched: &str, condition: Condition| {
        tree.transact(|tree| tree.put_keeping(path, "kept", LeaseChange::Detach, &[(watched.as_bytes(), condition)]))
    };
    let refused = keep("queue/info", "queue/owner", Condition::Exists).unwrap_err();
    assert!(
        matches!(TreeError::of(&refused), Some(TreeError::NotKept { .. })),
        "{refused}"
    );
    assert!(!tree.exists("queue/info").unwrap());
    tree.put("queue/owner", "ada").unwrap();
    keep("queue/info", "queue/owner", Condition::Exists).unwrap();
    keep("index/queue", "queue/info", Condition::Version(Compare::Greater(0))).unwrap();
    keep("index/queue/2", "index/queue", Condition::Exists).unwrap();
    // A list of children that becomes empty ends its parent.
    keep("jobs", "jobs", Condition::Children(Compare::Greater(0))).unwrap_err();
    tree.put("jobs/1", "").unwrap();
    keep("jobs", "jobs", Condition::Children(Compare::Greater(0))).unwrap();
    tree.put("jobs/2/part", "").unwrap();
    // A usual put leaves the conditions.
    tree.put("queue/info", "new").unwrap();
    let before = tree.revision().unwrap();
    tree.delete("queue/owner").unwrap();
    assert_eq!(tree.revision().unwrap(), before + 1, "all of it is one change");
    assert_eq!(
        tree.count(&pattern("queue/**")).unwrap() + tree.count(&pattern("index/**")).unwrap(),
        0
    );
    assert!(tree.view_at(before).unwrap().exists("index/queue/2").unwrap());
    tree.delete("jobs/1").unwrap();
    assert!(tree.exists("jobs").unwrap());
    tree.delete_subtree("jobs/2").unwrap();
    assert!(!tree.exists("jobs").unwrap());
    // What it was kept for is forgotten with it.
    tree.put("queue/info", "stays").unwrap();
    tree.put("queue/owner", "bob").unwrap();
    tree.delete("queue/owner").unwrap();
    assert!(tree.exists("queue/info").unwrap());
}

#[test]
fn nodes_that_keep_each_other_end_together() {
    let disk = SimDisk::new(1);
    let (_store, tree) = open(&disk);
    tree.put("a", "").unwrap();
    tree.put("b", "").unwrap();
    for (path, watched) in [("a", "b"), ("b", "a")] {
        tree.transact(|tree| {
            tree.put_keeping(
                path,
                "",
                LeaseChange::Detach,
                &[(watched.as_bytes(), Condition::Exists)],
            )
        })
        .unwrap();
    }
    tree.delete("a").unwrap();
    assert!(!tree.exists("b").unwrap());
}
