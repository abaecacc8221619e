//! Places, paths, clocks and sizes at the edges, and manifests that are not what was written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use duramen::Store;
use duramen_backup::object_store::memory::InMemory;
use duramen_backup::object_store::path::Path;
use duramen_backup::object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use duramen_backup::{Backup, BackupError, Export, ExportOptions, Moment, Policy};

fn export(backup: &Backup, store: &Store) -> Result<Export, BackupError> {
    backup.export(store, &ExportOptions::new(), &mut |_| ())
}

fn manifest(number: u64) -> Path {
    Path::from(format!("exports/{number:020}.json"))
}

fn text_at(objects: &InMemory, path: &Path) -> String {
    let bytes = run(async { objects.get(path).await.unwrap().bytes().await.unwrap() });
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn put(objects: &InMemory, path: &Path, bytes: impl Into<Vec<u8>>) {
    run(objects.put(path, PutPayload::from(bytes.into()))).unwrap();
}

/// The second one must not remove what the first one has made so far.
#[test]
fn two_imports_into_one_directory_do_not_mix() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let map = store.map("map").unwrap();
    // Two packs.
    map.put("first", vec![1; 17 << 20]).unwrap();
    map.put("second", vec![2; 1 << 20]).unwrap();
    let objects = Arc::new(InMemory::new());
    export(&Backup::over(objects.clone(), "memory").unwrap(), &store).unwrap();
    let counted = Faulty::over(objects.clone(), Fault::Wait, i64::MAX);
    let once = directory.path().join("once");
    let import = |objects: &Arc<Faulty>, target: &std::path::Path| {
        let backup = Backup::over(objects.clone(), "memory").unwrap();
        backup.import(Moment::Newest, target, &mut |_| ())
    };
    import(&counted, &once).unwrap();
    // It waits for its last pack, with the first one in its store.
    let waiting = Faulty::over(objects.clone(), Fault::Wait, i64::MAX - counted.left() - 1);
    let target = directory.path().join("copy");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| import(&waiting, &target));
        while !waiting.has_failed() && !first.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let refused = import(&Faulty::over(objects.clone(), Fault::Fail, i64::MAX), &target).unwrap_err();
        waiting.go_on();
        assert!(matches!(refused, BackupError::ImportRuns { .. }), "{refused}");
        first.join().unwrap().unwrap();
    });
    assert!(content(&Store::open(&target).unwrap()) == content(&store));
}

/// Whichever way a directory that is there and empty is named, a store can be put there.
#[test]
fn a_store_can_be_imported_into_a_directory_by_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    store.map("map").unwrap().put("key", "value").unwrap();
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    export(&backup, &store).unwrap();
    let empty = |name: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let mut slash = empty("slash").into_os_string();
    slash.push("/");
    let dot = empty("dot").join(".");
    let inner = empty("up").join("inner");
    std::fs::create_dir(&inner).unwrap();
    let linked = empty("linked");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&linked, &link).unwrap();
    let mut missing = directory.path().join("missing").into_os_string();
    missing.push("/");
    for target in [PathBuf::from(slash), dot, link, PathBuf::from(missing)] {
        let imported = backup.import(Moment::Newest, &target, &mut |_| ());
        assert!(imported.is_ok(), "{}: {}", target.display(), imported.unwrap_err());
        let copy = Store::open(&target).unwrap();
        assert!(content(&copy) == content(&store));
        assert!(!target.join(".importing").exists());
    }
}

/// The next export is full then, and the store has a backup again.
#[test]
fn a_damaged_manifest_stops_no_later_export() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    store.map("map").unwrap().put("key", "value").unwrap();
    let objects = Arc::new(InMemory::new());
    let backup = Backup::over(objects.clone(), "memory").unwrap();
    export(&backup, &store).unwrap();
    export(&backup, &store).unwrap();
    put(&objects, &manifest(2), "");
    let again = export(&backup, &store).unwrap();
    assert_eq!((again.number, again.is_full()), (3, true));
    backup.verify(Moment::Newest, &mut |_| ()).unwrap();
    let next = export(&backup, &store).unwrap();
    assert_eq!(next.parent.as_ref().map(|parent| parent.number), Some(3));
    // Nor does it stop a full one.
    put(&objects, &manifest(4), "{}");
    assert!(
        backup
            .export(&store, &ExportOptions::new().full(true), &mut |_| ())
            .unwrap()
            .is_full()
    );
}

/// A store with a wrong id of its next map would mix two maps.
#[test]
fn damage_of_each_number_in_a_manifest_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    for name in ["a", "b", "c"] {
        store.map(name).unwrap().put("key", name).unwrap();
    }
    let objects = Arc::new(InMemory::new());
    let backup = Backup::over(objects.clone(), "memory").unwrap();
    let export = export(&backup, &store).unwrap();
    let good = text_at(&objects, &manifest(1));
    for (name, is) in [
        ("next_map", u64::from(export.next_map)),
        ("commit", export.commit),
        ("created_ms", export.created_ms),
    ] {
        let other = good.replace(&format!("\"{name}\": {is}"), &format!("\"{name}\": 1"));
        assert_ne!(other, good);
        put(&objects, &manifest(1), other);
        let found = backup.verify(Moment::Newest, &mut |_| ());
        assert!(matches!(found, Err(BackupError::Damaged { .. })), "{name}: {found:?}");
    }
}

/// Numbers as no export has them: an error, and no panic.
#[test]
fn impossible_numbers_in_a_manifest_are_damage() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    store.map("map").unwrap().put("key", "value").unwrap();
    let objects = Arc::new(InMemory::new());
    let backup = Backup::over(objects.clone(), "memory").unwrap();
    export(&backup, &store).unwrap();
    let good = text_at(&objects, &manifest(1));
    put(
        &objects,
        &manifest(1),
        good.replace("\"full\": 1", "\"full\": 18446744073709551615"),
    );
    assert!(export(&backup, &store).unwrap().is_full());
    let sha = good.split("\"blake3\": \"").nth(1).unwrap()[..64].to_string();
    for other in ["../backup.json", "/", ""] {
        put(&objects, &manifest(1), good.replace(&sha, other));
        let error = backup.verify(Moment::Export(1), &mut |_| ()).unwrap_err();
        assert!(matches!(error, BackupError::Damaged { .. }), "{other}: {error}");
    }
    put(
        &objects,
        &Path::from("backup.json"),
        "{\"format\":1,\"id\":\"aaaaaaaaaaaaaaa\u{e9}\"}",
    );
    let _ = export(&backup, &store);
}

#[test]
fn a_policy_takes_any_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    export(&backup, &store).unwrap();
    export(&backup, &store).unwrap();
    let policy = Policy::keep_last(1).keep_within(Duration::MAX).grace(Duration::MAX);
    assert_eq!(backup.prune(policy, &mut |_| ()).unwrap().kept, 2);
}

/// What was exported when the call returns has what was committed before the call.
#[test]
fn an_export_has_the_present_also_after_one_that_was_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let map = store.map("map").unwrap();
    map.put("key", "old").unwrap();
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let faulty = Faulty::over(objects.clone(), Fault::Die, 3);
    let error = export(&Backup::over(faulty, "memory").unwrap(), &store).unwrap_err();
    assert!(matches!(error, BackupError::Object { .. }), "{error}");
    map.put("key", "new").unwrap();
    let backup = Backup::over(objects, "memory").unwrap();
    export(&backup, &store).unwrap();
    let copy = directory.path().join("copy");
    backup.import(Moment::Newest, &copy, &mut |_| ()).unwrap();
    assert!(content(&Store::open(&copy).unwrap()) == content(&store));
}

/// The store can be closed and opened again at once.
#[test]
fn an_export_that_fails_leaves_no_reader() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    let pairs = (0..40_000u32).map(|key| (key.to_be_bytes(), [key as u8; 2_000]));
    store
        .transact(|tx| pairs.clone().try_for_each(|(key, value)| tx.put(&map, key, value)))
        .unwrap();
    for parallel in [1, 4] {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let faulty = Faulty::over(objects, Fault::Die, 4);
        let backup = Backup::over(faulty, "memory").unwrap().parallel(parallel);
        let error = export(&backup, &store).unwrap_err();
        assert!(matches!(error, BackupError::Object { .. }), "{error}");
    }
}

/// A backup may be a value of an asynchronous program that calls it in other threads.
#[test]
fn a_backup_can_be_dropped_in_a_runtime() {
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    run(async move { drop(backup) });
}

/// A page that cannot be read ends an export with the error of the store.
#[test]
fn a_damaged_page_ends_an_export_with_its_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let map = store.map("map").unwrap();
    let pairs = (0..40_000u32).map(|key| (key.to_be_bytes(), [key as u8; 500]));
    store
        .transact(|tx| pairs.clone().try_for_each(|(key, value)| tx.put(&map, key, value)))
        .unwrap();
    store.maintain().unwrap();
    drop(map);
    store.close().unwrap();
    let path = directory.path().join("data");
    let mut bytes = std::fs::read(&path).unwrap();
    let pages = bytes.chunks_mut(4096).skip(16).step_by(7);
    pages
        .filter(|page| page.iter().any(|&byte| byte != 0))
        .for_each(|page| page[2_000] ^= 1);
    std::fs::write(&path, bytes).unwrap();
    let store = Store::open(directory.path()).unwrap();
    let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
    let error = export(&backup, &store).unwrap_err();
    assert!(matches!(error, BackupError::Store(_)), "{error}");
    assert!(backup.list().unwrap().is_empty());
}

/// Of the long values that a key had in a chain one is in memory, and not each.
#[test]
fn long_values_that_were_replaced_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let map = store.map("map").unwrap();
    let backup = Backup::open(directory.path().join("backup").to_str().unwrap()).unwrap();
    for round in 0..12u8 {
        map.put("long", vec![round; 30_000_000 - usize::from(round)]).unwrap();
        map.put([b'm', round], "short").unwrap();
        if round == 11 {
            map.delete("long").unwrap();
            map.put("z", vec![7; 5_000_000]).unwrap();
        }
        export(&backup, &store).unwrap();
    }
    for number in [5, 12] {
        backup.verify(Moment::Export(number), &mut |_| ()).unwrap();
    }
    let copy = directory.path().join("copy");
    backup.import(Moment::Newest, &copy, &mut |_| ()).unwrap();
    assert!(content(&Store::open(&copy).unwrap()) == content(&store));
}
