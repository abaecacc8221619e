//! Rows that are damaged.

use super::*;

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
            "trees", "nodes", "changes", "versions", "implied", "parents", "leases", "rules",
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
