//! Watches, and views beside compactions.

use super::*;

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

/// A watch of a set, and what it must have seen.
struct Expected {
    options: WatchOptions,
    selection: Selection,
    from: u64,
    kind: Option<ChangeKind>,
    has_old: bool,
    seen: Vec<Event>,
}

impl Expected {
    fn random(rng: &mut fastrand::Rng, newest: u64) -> Expected {
        let path = format!("{}/{}", rng.u8(..3), rng.u8(..5));
        let selection = match rng.u8(..5) {
            0 => Selection::all(),
            1 => Selection::path(path),
            2 => Selection::subtree(&path[..1]),
            3 => Selection::pattern(pattern("*/1")),
            _ => Selection::range(path, Some(b"2")),
        };
        let kind = [None, Some(ChangeKind::Put), Some(ChangeKind::Delete)][rng.usize(..3)];
        let from = rng.u64(2..=newest + 1);
        let has_old = rng.bool();
        let mut options = WatchOptions::of(selection.clone()).from_revision(from);
        if let Some(kind) = kind {
            options = options.only(kind);
        }
        if !has_old {
            options = options.without_old_nodes();
        }
        Expected {
            options,
            selection,
            from,
            kind,
            has_old,
            seen: Vec::new(),
        }
    }

    fn of(&self, all: &[Event]) -> Vec<Event> {
        let wanted = all.iter().filter(|event| {
            event.revision >= self.from
                && self.selection.matches(&event.path)
                && self.kind.is_none_or(|kind| kind == event.kind)
        });
        let shown = wanted.map(|event| Event {
            old: event.old.clone().filter(|_| self.has_old),
            ..event.clone()
        });
        shown.collect()
    }
}

#[test]
fn watches_of_a_set_see_what_each_of_them_wants_from_where_it_began() {
    let seed = fastrand::u64(..);
    println!("DURAMEN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(std::env::var("DURAMEN_SEED").map_or(seed, |seed| seed.parse().unwrap()));
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut every = tree.watch(WatchOptions::all()).unwrap();
    let mut all: Vec<Event> = Vec::new();
    let mut set = tree.watches().unwrap();
    let mut watches: BTreeMap<u64, Expected> = BTreeMap::new();
    for id in 0..600 {
        match rng.u8(..10) {
            0..3 => {
                let newest = tree.revision().unwrap();
                let watch = Expected::random(&mut rng, newest);
                assert_eq!(set.add(id, watch.options.clone()).unwrap(), watch.from);
                watches.insert(id, watch);
            }
            3 => {
                let ids: Vec<_> = watches.keys().copied().collect();
                if let Some(id) = rng.choice(ids) {
                    assert!(set.remove(id) && !set.remove(id));
                    watches.remove(&id);
                }
            }
            4..6 => {
                let (seen, _) = set.take().unwrap();
                for (id, seen) in seen {
                    let Watched::Events(events) = seen else {
                        panic!("nothing is compacted")
                    };
                    watches.get_mut(&id).expect("it was not removed").seen.extend(events);
                }
            }
            _ => {
                let changed = tree.transact(|tree| {
                    for _ in 0..rng.usize(1..4) {
                        let path = format!("{}/{}", rng.u8(..3), rng.u8(..5));
                        match rng.u8(..4) {
                            0 => drop(tree.delete(path)?),
                            _ => drop(tree.put(path, rng.u32(..).to_string())?),
                        }
                    }
                    Ok::<_, duramen_engine::Error>(())
                });
                changed.unwrap();
            }
        }
        while let Some(events) = every.next(Duration::ZERO).unwrap() {
            all.extend(events);
        }
        // A watch that comes back from there misses nothing, and has seen all before.
        for (id, watch) in &watches {
            let from = set.resume_from(*id).unwrap();
            let (mut before, mut seen) = (watch.of(&all), watch.seen.clone());
            before.retain(|event| event.revision < from);
            // A batch may end within a revision.
            seen.retain(|event| event.revision < from);
            assert_eq!(seen, before, "watch {id} that goes on from {from}: {set:?}");
            assert!(watch.seen[seen.len()..].iter().all(|event| event.revision == from));
            assert!(set.revision() < from);
        }
    }
    while let Some(seen) = set.next(Duration::ZERO).unwrap() {
        for (id, seen) in seen {
            let Watched::Events(events) = seen else {
                panic!("nothing is compacted")
            };
            watches.get_mut(&id).expect("it was not removed").seen.extend(events);
        }
    }
    assert_eq!((set.len(), set.revision()), (watches.len(), tree.revision().unwrap()));
    for (id, watch) in watches {
        assert_eq!(watch.seen, watch.of(&all), "watch {id}: {:?}", watch.options);
    }
}

#[test]
fn a_compaction_ends_the_watches_of_a_set_that_have_not_come_so_far() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut set = tree.watches().unwrap();
    set.add(1, WatchOptions::all()).unwrap();
    (2..=9).for_each(|revision| drop(tree.put("a", revision.to_string()).unwrap()));
    // Behind, level, and level in the future of the set.
    set.add(2, WatchOptions::path("a").from_revision(2)).unwrap();
    set.add(3, WatchOptions::path("a").from_revision(9)).unwrap();
    assert!(set.add(3, WatchOptions::all()).is_err(), "the id is taken");
    tree.compact(7).unwrap();
    assert!(set.add(4, WatchOptions::all().from_revision(6)).is_err());
    let (mut ended, mut seen) = (BTreeSet::new(), BTreeMap::new());
    while let Some(news) = set.next(Duration::ZERO).unwrap() {
        for (id, news) in news {
            match news {
                Watched::Ended(error) => {
                    let cause = TreeError::of(&error);
                    assert!(matches!(cause, Some(TreeError::Compacted { first: 7, .. })), "{error}");
                    ended.insert(id);
                }
                Watched::Events(events) => drop(seen.insert(id, events.len())),
            }
        }
    }
    assert_eq!((ended, seen), (BTreeSet::from([1, 2]), BTreeMap::from([(3, 1)])));
    assert_eq!(set.len(), 1);
}

#[test]
fn a_large_change_that_many_watches_want_comes_to_them_in_turns() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let mut set = tree.watches().unwrap();
    for id in 0..100 {
        let options = match id % 2 {
            0 => WatchOptions::all(),
            _ => WatchOptions::path("a"),
        };
        set.add(id, options).unwrap();
    }
    tree.transact(|tree| {
        tree.put("a", vec![1; 1 << 20])?;
        tree.put("a/b", "")?;
        tree.put("c", "")
    })
    .unwrap();
    tree.put("a", "small").unwrap();
    let mut all: BTreeMap<u64, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    loop {
        let (seen, has_more) = set.take().unwrap();
        let mut bytes = 0;
        for (id, seen) in seen {
            let Watched::Events(events) = seen else {
                panic!("nothing is compacted")
            };
            for event in events {
                bytes += event.node.map_or(0, |node| node.payload.len());
                all.entry(id).or_default().push((event.revision, event.path));
            }
        }
        assert!(bytes <= 18 << 20, "{bytes} bytes came together");
        if !has_more {
            break;
        }
        // A watch that waits for its turn can end.
        if set.remove(99) {
            all.remove(&99);
        }
    }
    let first = all[&0][0].0;
    let event = |revision, path: &str| (revision, path.as_bytes().to_vec());
    for id in 0..99 {
        let expected = match id % 2 {
            0 => vec![
                event(first, "a"),
                event(first, "a/b"),
                event(first, "c"),
                event(first + 1, "a"),
            ],
            _ => vec![event(first, "a"), event(first + 1, "a")],
        };
        assert_eq!(all[&id], expected, "{id}");
    }
    // They are together again.
    assert_eq!(set.revision(), first + 1);
    tree.put("a", "once more").unwrap();
    let (seen, _) = set.take().unwrap();
    assert_eq!(seen.len(), 99);
}
