//! Nodes that are kept while conditions hold.

use super::*;

#[test]
fn a_node_ends_with_the_conditions_that_it_is_kept_for() {
    let disk = SimDisk::new(1);
    let (_store, _, tree) = open(&disk);
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
    let (_store, _, tree) = open(&disk);
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

/// A transaction deletes some thousand ranges at most.
#[test]
fn one_change_ends_any_number_of_subtrees() {
    let disk = SimDisk::new(1);
    let (_store, trees, tree) = open(&disk);
    let lease = tree.grant_lease(Duration::from_secs(1)).unwrap();
    tree.transact(|tree| tree.put_with("owner", "", LeaseChange::Attach(lease.id)).map(drop))
        .unwrap();
    let all = 4_200;
    let conditions = [(&b"owner"[..], Condition::Exists)];
    tree.transact(|tree| {
        for number in 0..all {
            let path = format!("kept/{number}");
            tree.put_keeping(&path, "", LeaseChange::Detach, &conditions)?;
            tree.put(format!("{path}/below"), "")?;
            tree.put(format!("{path}/implied/below"), "")?;
        }
        // So many that its rows are deleted as a range.
        (0..100).try_for_each(|number| tree.put(format!("kept/0/{number}/below"), "").map(drop))
    })
    .unwrap();
    let before = tree.revision().unwrap();
    disk.advance(Duration::from_secs(2));
    trees.work().unwrap();
    assert_eq!(tree.revision().unwrap(), before + 1);
    assert_eq!(tree.count(&pattern("**")).unwrap(), 0);
    assert!(tree.view().unwrap().top(None, 1).unwrap().is_empty());
    let earlier = tree.view_at(before).unwrap();
    assert_eq!(earlier.count_subtree("kept").unwrap(), 3 * all + 100);
}
