//! Backups against a model: each export can be proven and becomes the store that it was made of, whatever fails on the way.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use duramen::Store;
use duramen::topic::{Start, TopicOptions, Topics};
use duramen::tree::Trees;
use duramen_backup::object_store::memory::InMemory;
use duramen_backup::object_store::path::Path;
use duramen_backup::object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use duramen_backup::{Backup, BackupError, Compression, Export, ExportOptions, Moment};

fn export(backup: &Backup, store: &Store) -> Result<Export, BackupError> {
    backup.export(store, &ExportOptions::new(), &mut |_| ())
}

fn verify(backup: &Backup, number: Option<u64>) -> Result<Export, BackupError> {
    let moment = number.map_or(Moment::Newest, Moment::Export);
    backup.verify(moment, &mut |_| ()).map(|state| state.export)
}

/// What the store has that an export becomes.
fn imported(backup: &Backup, number: Option<u64>) -> Content {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let moment = number.map_or(Moment::Newest, Moment::Export);
    backup.import(moment, &path, &mut |_| ()).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
    assert!(store.checkpoints().list().unwrap().is_empty());
    content(&store)
}

#[test]
fn each_export_becomes_the_store_that_it_was_made_of() {
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path().join("store")).unwrap();
        let place = directory.path().join("backup");
        let backup = Backup::open(place.to_str().unwrap()).unwrap();
        let mut states = Vec::new();
        for number in 1..=10 {
            change(&store, &mut rng);
            let compression = [Compression::None, Compression::Zstd][rng.usize(..2)];
            let options = ExportOptions::new()
                .full_every(4)
                .compression(compression)
                .metadata(number.to_string());
            let export = backup.export(&store, &options, &mut |_| ()).unwrap();
            assert_eq!((export.number, export.is_full()), (number, number % 4 == 1));
            states.push(content(&store));
            // The store keeps few checkpoints for it.
            assert!(store.checkpoints().list().unwrap().len() <= 2);
        }
        let listed = backup.list().unwrap();
        assert_eq!(
            listed.iter().map(|export| &export.metadata[..]).collect::<Vec<_>>()[..2],
            ["1", "2"]
        );
        for (export, state) in listed.iter().zip(&states) {
            assert_eq!(verify(&backup, Some(export.number)).unwrap(), *export);
            assert!(
                imported(&backup, Some(export.number)) == *state,
                "seed {seed}, export {}",
                export.number
            );
        }
        assert!(imported(&backup, None) == states[9]);
    }
}

#[test]
fn topics_trees_and_numbers_are_in_it_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let orders = Topics::open(&store)
        .unwrap()
        .ensure("orders", TopicOptions::default())
        .unwrap();
    let config = Trees::open(&store).unwrap().ensure("config").unwrap();
    let log = store.map("log").unwrap();
    orders.publish("one").unwrap();
    config.put("a", "1").unwrap();
    log.append("", "one").unwrap();
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    export(&backup, &store).unwrap();
    orders.publish("two").unwrap();
    config.put("a", "2").unwrap();
    log.append("", "two").unwrap();
    let newest = export(&backup, &store).unwrap();
    assert!(!newest.is_full());
    let copy = directory.path().join("copy");
    backup.import(Moment::Newest, &copy, &mut |_| ()).unwrap();
    let copy = Store::open(&copy).unwrap();
    assert!(copy.id() != store.id());
    assert_eq!(copy.snapshot().unwrap().commit(), newest.commit);
    assert_eq!(copy.map("log").unwrap().append("", "three").unwrap(), 2);
    let orders = Topics::open(&copy).unwrap().topic("orders").unwrap();
    let mut messages = orders.subscribe(Start::Beginning).unwrap();
    assert_eq!(
        messages.next_message(Duration::ZERO).unwrap().unwrap().payload(),
        b"one"
    );
    assert_eq!(
        messages.next_message(Duration::ZERO).unwrap().unwrap().payload(),
        b"two"
    );
    assert_eq!(orders.publish("three").unwrap().offset, 2);
    let config = Trees::open(&copy).unwrap().get("config").unwrap().unwrap();
    assert_eq!(config.view().unwrap().get("a").unwrap().unwrap().payload, b"2");
    assert_eq!(copy.check(&mut |_| ()).unwrap().problems, [""; 0]);
    // The copy is another store, so its first export is full.
    let of_copy = export(&backup, &copy).unwrap();
    assert_eq!((of_copy.number, of_copy.is_full()), (3, true));
    // And the next one of the first store: the newest export is not its own.
    assert!(export(&backup, &store).unwrap().is_full());
}

#[test]
fn an_incremental_export_has_only_what_has_changed() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    let put = |keys: std::ops::Range<u32>, with: u8| {
        store
            .transact(|tx| {
                keys.clone()
                    .try_for_each(|key| tx.put(&map, key.to_be_bytes(), [with; 100]))
            })
            .unwrap();
    };
    put(0..20_000, 1);
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    let options = ExportOptions::new().compression(Compression::None);
    let full = backup.export(&store, &options, &mut |_| ()).unwrap();
    assert!(full.bytes() > 2_000_000);
    put(500..520, 2);
    map.delete(7u32.to_be_bytes()).unwrap();
    // Moving all pages changes no pair.
    store.compact(&mut |_| ()).unwrap();
    let mut told = Vec::new();
    let next = backup.export(&store, &options, &mut |now| told.push(now)).unwrap();
    let records: u64 = next.packs.iter().map(|pack| pack.records).sum();
    assert_eq!((records, next.pairs), (21, full.pairs - 1));
    assert!(next.bytes() < 3_000, "{}", next.bytes());
    assert_eq!(told.last().map(|now| (now.records, now.skipped)), Some((21, 0)));
    // An export of nothing new has no packs, and is an export.
    let same = backup.export(&store, &options, &mut |_| ()).unwrap();
    assert_eq!((same.packs.len(), &same.digest), (0, &next.digest));
    verify(&backup, None).unwrap();
}

#[test]
fn values_of_many_packs_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let long: Vec<u8> = (0..40_000_000).map(|_| rng.u8(..)).collect();
    store.map("map").unwrap().put("long", &long).unwrap();
    store.map("map").unwrap().put("z", "short").unwrap();
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap().parallel(2);
    let full = export(&backup, &store).unwrap();
    assert!(full.packs.len() >= 3);
    store.map("map").unwrap().put("a", "first").unwrap();
    export(&backup, &store).unwrap();
    assert!(imported(&backup, None) == content(&store));
}

/// Whatever the place does at a call, earlier exports stay good, and the next export works.
#[test]
fn a_place_that_misbehaves_at_any_call_costs_no_export() {
    use Fault::*;
    for fault in [Fail, FailAfterwards, Slow, Truncate, Lie, Die] {
        let mut faults = 0;
        for calls in 0.. {
            let mut rng = fastrand::Rng::with_seed(calls as u64);
            let directory = tempfile::tempdir().unwrap();
            let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let good = Backup::over(objects.clone(), "memory").unwrap();
            let mut store = Store::open(directory.path()).unwrap();
            change(&store, &mut rng);
            let is_first = calls % 2 == 0;
            let before = (!is_first).then(|| (export(&good, &store).unwrap(), content(&store)));
            change(&store, &mut rng);
            let faulty = Faulty::over(objects.clone(), fault, calls / 2);
            let backup = Backup::over(faulty.clone(), "memory").unwrap();
            let exported = export(&backup, &store);
            drop(backup);
            let is_over = !faulty.has_failed();
            faults += u32::from(!is_over);
            if fault == Die {
                // The process is gone, and another one opens the store.
                store.close().unwrap();
                store = Store::open(directory.path()).unwrap();
            }
            let state = content(&store);
            if let Some((before, state)) = &before {
                // A lie about `backup.json` or an export leaves what was there.
                assert_eq!(
                    verify(&good, Some(before.number)).unwrap(),
                    *before,
                    "{fault:?} at {calls}"
                );
                assert!(imported(&good, Some(before.number)) == *state);
            }
            match &exported {
                Err(error) => {
                    assert!(
                        matches!(
                            error,
                            BackupError::Object { .. } | BackupError::Damaged { .. } | BackupError::NotABackup { .. }
                        ),
                        "{error}"
                    );
                    assert!(fault != Slow && !is_over, "{fault:?} at {calls}: {error}");
                }
                // What a liar keeps is found out.
                Ok(export) => match verify(&good, Some(export.number)) {
                    Ok(_) => assert!(imported(&good, Some(export.number)) == state),
                    Err(_) => assert!(matches!(fault, Truncate | Lie), "{fault:?} at {calls}"),
                },
            }
            if matches!(fault, Fail | FailAfterwards | Slow | Die) {
                let again = export(&good, &store).unwrap();
                verify(&good, Some(again.number)).unwrap();
                assert!(imported(&good, None) == state, "{fault:?} at {calls}");
                assert!(store.checkpoints().list().unwrap().len() <= 2);
            }
            if is_over && calls % 2 == 1 {
                break;
            }
        }
        assert!(faults >= 8, "{fault:?}: {faults}");
    }
}

#[test]
fn an_export_that_was_interrupted_goes_on_with_what_was_sent() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let map = store.map("map").unwrap();
    for key in 0..60u32 {
        let value: Vec<u8> = (0..1_000_000).map(|_| rng.u8(..)).collect();
        map.put(key.to_be_bytes(), value).unwrap();
    }
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    // Two calls for the backup's name, and two for each pack.
    let faulty = Faulty::over(objects.clone(), Fault::Die, 2 + 2 * 2 + 1);
    let backup = Backup::over(faulty, "memory").unwrap().parallel(1);
    assert!(matches!(export(&backup, &store), Err(BackupError::Object { .. })));
    drop(backup);
    // What comes now is not in the first: the checkpoint of the interrupted export is exported.
    map.put("later", "value").unwrap();
    let backup = Backup::over(objects, "memory").unwrap();
    let mut skipped = 0;
    let done = backup
        .export(&store, &ExportOptions::new(), &mut |now| {
            skipped = now.skipped.max(skipped)
        })
        .unwrap();
    assert!(skipped >= 1);
    // And what has come since is in another one.
    assert_eq!((done.number, done.is_full()), (2, false));
    assert!(backup.list().unwrap()[0].packs.len() > 3);
    assert!(!imported(&backup, Some(1))["map"].contains_key(&b"later"[..]));
    assert!(imported(&backup, None) == content(&store));
}

#[test]
fn damage_of_any_object_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let objects = Arc::new(InMemory::new());
    let backup = Backup::over(objects.clone(), "memory").unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..3 {
        change(&store, &mut rng);
        export(&backup, &store).unwrap();
    }
    let chain = backup.list().unwrap();
    let packs = chain
        .iter()
        .flat_map(|export| &export.packs)
        .map(|pack| format!("packs/{}", pack.blake3));
    let target = tempfile::tempdir().unwrap();
    for path in packs.map(Path::from) {
        let good = run(async { objects.get(&path).await.unwrap().bytes().await.unwrap() });
        for damage in 0..4 {
            let mut bytes = good.to_vec();
            match damage {
                0 => bytes.truncate(bytes.len() / 2),
                1 => *bytes.last_mut().unwrap() ^= 1,
                2 => bytes[20] ^= 128,
                _ => bytes.clear(),
            }
            run(objects.put(&path, PutPayload::from(bytes))).unwrap();
            let error = verify(&backup, None).unwrap_err();
            assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
            let store = target.path().join("store");
            let error = backup.import(Moment::Newest, &store, &mut |_| ()).unwrap_err();
            assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
            assert!(
                std::fs::read_dir(target.path()).unwrap().next().is_none(),
                "nothing is left"
            );
        }
        run(objects.delete(&path)).unwrap();
        assert!(matches!(verify(&backup, None), Err(BackupError::Damaged { .. })));
        run(objects.put(&path, PutPayload::from(good.to_vec()))).unwrap();
        verify(&backup, None).unwrap();
    }
    // A manifest that claims something else.
    let path = Path::from(format!("exports/{:020}.json", 3));
    let good = run(async { objects.get(&path).await.unwrap().bytes().await.unwrap() });
    let text = String::from_utf8(good.to_vec()).unwrap();
    let digest = chain[2].digest.clone();
    for (from, to) in [
        (&digest[..], "00000000000000000000000000000000".to_string()),
        ("\"number\": 3", "\"number\": 4".to_string()),
        ("\"pairs\"", "\"pears\"".to_string()),
        (&chain[1].id[..], "0".repeat(32)),
    ] {
        let other = text.replace(from, &to);
        assert_ne!(other, text);
        run(objects.put(&path, PutPayload::from(other.into_bytes()))).unwrap();
        let error = verify(&backup, Some(3)).unwrap_err();
        let is_told = matches!(
            error,
            BackupError::Damaged { .. } | BackupError::MissingLink { number: 3, parent: 2 }
        );
        assert!(is_told, "{error}");
    }
    let of_format = |format: u32| {
        let current = format!("\"format\": {}", chain[2].format);
        let other = text.replace(&current, &format!("\"format\": {format}"));
        assert_ne!(other, text);
        run(objects.put(&path, PutPayload::from(other.into_bytes()))).unwrap();
        verify(&backup, None).unwrap_err()
    };
    let (newer, older) = (of_format(9), of_format(1));
    assert!(matches!(newer, BackupError::NewerFormat { found: 9, .. }), "{newer}");
    assert!(matches!(older, BackupError::OlderFormat { found: 1, .. }), "{older}");
    run(objects.put(&path, PutPayload::from(good.to_vec()))).unwrap();
    run(objects.delete(&Path::from(format!("exports/{:020}.json", 1)))).unwrap();
    let error = verify(&backup, None).unwrap_err();
    assert!(
        matches!(error, BackupError::MissingLink { number: 2, parent: 1 }),
        "{error}"
    );
}

#[test]
fn wrong_places_and_calls_get_clear_errors() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    store.map("map").unwrap().put("key", "value").unwrap();
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    for error in [
        verify(&backup, None).unwrap_err(),
        backup
            .import(Moment::Newest, directory.path().join("copy"), &mut |_| ())
            .unwrap_err(),
    ] {
        assert!(matches!(error, BackupError::NoExports { .. }), "{error}");
    }
    assert!(backup.list().unwrap().is_empty());
    export(&backup, &store).unwrap();
    let error = verify(&backup, Some(7)).unwrap_err();
    assert!(matches!(error, BackupError::UnknownExport { number: 7, .. }), "{error}");
    let occupied = directory.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    std::fs::write(occupied.join("file"), "text").unwrap();
    for occupied in [occupied.clone(), occupied.join("file")] {
        let error = backup.import(Moment::Newest, &occupied, &mut |_| ()).unwrap_err();
        assert!(matches!(error, BackupError::Occupied { .. }), "{error}");
    }
    let other = Backup::open(occupied.to_str().unwrap()).unwrap();
    let error = export(&other, &store).unwrap_err();
    assert!(matches!(error, BackupError::NotABackup { .. }), "{error}");
    assert!(occupied.join("file").exists());
    for place in ["nowhere://x", "://"] {
        let error = Backup::open(place).unwrap_err();
        assert!(matches!(error, BackupError::Place { .. }), "{error}");
    }
    let file = occupied.join("file").join("below");
    assert!(matches!(
        Backup::open(file.to_str().unwrap()),
        Err(BackupError::Io { .. })
    ));
    // An empty directory is as good as none, and what an interrupted import left is removed.
    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    std::fs::create_dir(directory.path().join("empty.importing")).unwrap();
    std::fs::write(directory.path().join("empty.importing").join("data"), "half").unwrap();
    backup.import(Moment::Export(1), &empty, &mut |_| ()).unwrap();
    assert_eq!(
        Store::open(&empty)
            .unwrap()
            .map("map")
            .unwrap()
            .get("key")
            .unwrap()
            .unwrap(),
        "value"
    );
}

/// Two stores with the checkpoints of one: a copy of the files went on.
#[test]
fn two_exporters_of_one_backup_do_not_mix() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("store");
    let store = Store::open(&place).unwrap();
    store.map("map").unwrap().put("key", "both").unwrap();
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let backup = Backup::over(objects.clone(), "memory").unwrap();
    export(&backup, &store).unwrap();
    store.close().unwrap();
    let twin = directory.path().join("twin");
    std::fs::create_dir(&twin).unwrap();
    for file in std::fs::read_dir(&place).unwrap().map(|file| file.unwrap()) {
        std::fs::copy(file.path(), twin.join(file.file_name())).unwrap();
    }
    let (store, twin) = (Store::open(&place).unwrap(), Store::open(&twin).unwrap());
    store.map("map").unwrap().put("key", "first").unwrap();
    twin.map("map").unwrap().put("key", "twin").unwrap();
    let first = export(&backup, &store).unwrap();
    assert!(!first.is_full());
    // The newest export is not that of the twin.
    let of_twin = export(&backup, &twin).unwrap();
    assert!(of_twin.is_full());
    assert_eq!(imported(&backup, None)["map"][&b"key"[..]], b"twin");
    assert_eq!(imported(&backup, Some(2))["map"][&b"key"[..]], b"first");
    // Both at once: the number goes to one of them.
    twin.map("map").unwrap().put("key", "more").unwrap();
    let taken = Faulty::over(objects, Fault::Fail, i64::MAX);
    let slow = Backup::over(taken, "memory").unwrap();
    let mut is_taken = false;
    let result = slow.export(&twin, &ExportOptions::new(), &mut |_| {
        if !is_taken {
            is_taken = true;
            // While the twin sends its packs. A runtime cannot block in another one, so another thread does it.
            std::thread::scope(|scope| scope.spawn(|| export(&backup, &store).unwrap()).join().unwrap());
        }
    });
    assert!(
        matches!(result, Err(BackupError::TakenMeanwhile { number: 4 })),
        "{result:?}"
    );
    verify(&backup, Some(4)).unwrap();
    let again = export(&backup, &twin).unwrap();
    assert_eq!((again.number, again.is_full()), (5, true));
    assert_eq!(imported(&backup, None)["map"][&b"key"[..]], b"more");
}

#[test]
fn an_export_goes_on_beside_writers_and_shows_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    let put = |round: u32| {
        let pairs = (0..200u32).map(|key| (key.to_be_bytes(), round.to_be_bytes()));
        store
            .transact(|tx| pairs.clone().try_for_each(|(key, value)| tx.put(&map, key, value)))
            .unwrap();
    };
    put(0);
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..300).for_each(put));
        let mut exports = 0;
        while !writer.is_finished() || exports < 3 {
            export(&backup, &store).unwrap();
            exports += 1;
        }
    });
    for export in backup.list().unwrap() {
        let found = imported(&backup, Some(export.number));
        let rounds: std::collections::BTreeSet<_> = found["map"].values().collect();
        assert_eq!((found["map"].len(), rounds.len()), (200, 1), "export {}", export.number);
    }
}

/// A store that was put back is exported as any other.
#[test]
fn a_restore_between_two_exports_is_a_difference_like_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    map.put("a", "1").unwrap();
    store.checkpoints().create("mine", "").unwrap();
    map.put("a", "2").unwrap();
    map.put("b", "2").unwrap();
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    export(&backup, &store).unwrap();
    drop(map);
    duramen::restore(&store, "mine").unwrap();
    store.close().unwrap();
    let store = Store::open(directory.path()).unwrap();
    assert!(!export(&backup, &store).unwrap().is_full());
    assert!(imported(&backup, None) == content(&store));
    // Checkpoints of the program stay.
    let names: Vec<_> = store
        .checkpoints()
        .list()
        .unwrap()
        .into_iter()
        .map(|kept| kept.name)
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(names[0], "mine");
}
