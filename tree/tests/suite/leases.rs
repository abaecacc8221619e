//! Leases: their clock, what ends with them, and who ends them.

use super::*;

#[test]
fn leases_keep_their_remaining_time_while_no_process_runs() {
    let mut disk = SimDisk::new(1);
    let open = |disk: &SimDisk| {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Synced);
        let store = options.open_on(disk.platform()).unwrap();
        let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
        let tree = trees.ensure("tree").unwrap();
        (store, trees, tree)
    };
    let (store, trees, tree) = open(&disk);
    let lease = tree.grant_lease(Duration::from_secs(10)).unwrap();
    tree.transact(|tree| tree.put_with("a/b", "payload", LeaseChange::Attach(lease.id)).map(drop))
        .unwrap();
    tree.put("a/c", "stays").unwrap();
    // Without steps in between, an hour counts as two seconds.
    disk.advance(Duration::from_secs(3_600));
    trees.work().unwrap();
    let left = tree.view().unwrap().lease(lease.id).unwrap().remaining;
    assert_eq!(left, Duration::from_secs(8));
    drop((store, trees, tree));
    disk = disk.power_cut(1);
    disk.advance(Duration::from_secs(3_600));
    let (_store, trees, tree) = open(&disk);
    trees.work().unwrap();
    for _ in 0..6 {
        assert!(tree.exists("a/b").unwrap());
        disk.advance(Duration::from_secs(1));
        trees.work().unwrap();
    }
    assert!(!tree.exists("a/b").unwrap() && tree.exists("a/c").unwrap());
    assert!(tree.view().unwrap().leases().unwrap().is_empty());
    let gone = tree.keep_lease_alive(lease.id).unwrap_err();
    assert!(
        matches!(TreeError::of(&gone), Some(TreeError::LeaseGone { .. })),
        "{gone}"
    );
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
fn leases_go_on_after_a_restart_although_the_system_time_was_set_back() {
    let mut disk = SimDisk::new(1);
    let (store, trees, tree) = open(&disk);
    let lease = tree.grant_lease(Duration::from_secs(10)).unwrap();
    tree.transact(|tree| tree.put_with("a", "", LeaseChange::Attach(lease.id)).map(drop))
        .unwrap();
    // While the store is open, its clock does not follow the system's.
    disk.set_wall(Duration::from_secs(7));
    for _ in 0..100 {
        disk.advance(Duration::from_secs(1));
        trees.work().unwrap();
        tree.keep_lease_alive(lease.id).unwrap();
    }
    let killed = disk.kill();
    drop((store, trees, tree));
    disk = killed;
    let (_store, trees, tree) = open(&disk);
    for passed in 0..12 {
        assert_eq!(tree.exists("a").unwrap(), passed < 11, "after {passed} s");
        disk.advance(Duration::from_secs(1));
        trees.work().unwrap();
    }
    assert!(tree.view().unwrap().leases().unwrap().is_empty());
}

#[test]
fn a_lease_of_which_some_nodes_have_ended_is_not_kept_alive() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let lease = tree.grant_lease(Duration::from_millis(1_500)).unwrap();
    let of_lease = LeaseChange::Attach(lease.id);
    tree.transact(|tree| {
        (0..1_500).try_for_each(|number| tree.put_with(format!("a/{number}"), "", of_lease).map(drop))
    })
    .unwrap();
    disk.advance(Duration::from_millis(500));
    let mut tx = store.begin(TransactionOptions::new()).unwrap();
    tree.writes(&mut tx).unwrap().keep_lease_alive(lease.id).unwrap();
    disk.advance(Duration::from_millis(1_500));
    assert_eq!(tree.transact(|tree| tree.expire_leases()).unwrap(), (1_000, true));
    assert!(tx.commit().unwrap_err().is_conflict());
    assert_eq!(tree.transact(|tree| tree.expire_leases()).unwrap(), (500, false));
}

#[test]
fn a_lease_that_cannot_end_holds_up_no_other() {
    let disk = SimDisk::new(1);
    let (store, _trees, tree) = open(&disk);
    let topics = Topics::open(&store).unwrap();
    topics.create("news", TopicOptions::new()).unwrap();
    let trigger = Trigger {
        pattern: pattern("a/**"),
        kind: None,
        topic: "news".into(),
    };
    tree.transact(|tree| tree.set_trigger("news", &trigger)).unwrap();
    let lease_of = |paths: &[&str]| {
        let lease = tree.grant_lease(Duration::from_secs(1)).unwrap();
        let of_lease = LeaseChange::Attach(lease.id);
        tree.transact(|tree| {
            paths
                .iter()
                .try_for_each(|path| tree.put_with(path, "", of_lease).map(drop))
        })
        .unwrap();
        disk.advance(Duration::from_millis(1));
        lease.id
    };
    let (held, other) = (lease_of(&["a/1", "b/1"]), lease_of(&["b/2"]));
    topics.delete("news").unwrap();
    disk.advance(Duration::from_secs(2));
    assert_eq!(tree.transact(|tree| tree.expire_leases()).unwrap(), (2, false));
    let left = || tree.view().unwrap().leases().unwrap();
    assert_eq!(left().iter().map(|lease| lease.id).collect::<Vec<_>>(), [held]);
    assert!(tree.exists("a/1").unwrap() && !tree.exists("b/1").unwrap() && held != other);
    // Now only what is refused is left.
    tree.transact(|tree| tree.expire_leases()).unwrap_err();
    tree.revoke_lease(held).unwrap_err();
    topics.create("news", TopicOptions::new()).unwrap();
    assert_eq!(tree.transact(|tree| tree.expire_leases()).unwrap(), (1, false));
    assert!(left().is_empty() && !tree.exists("a/1").unwrap());
}
