//! The log between two exports: each segment is a moment that can be restored, whatever fails on the way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::common::*;
use duramen::topic::{TopicOptions, Topics};
use duramen::tree::Trees;
use duramen::{Options, Reason, Store};
use duramen_backup::object_store::memory::InMemory;
use duramen_backup::object_store::path::Path;
use duramen_backup::object_store::{ObjectStoreExt, PutPayload};
use duramen_backup::{Backup, BackupError, Compression, Export, ExportOptions, Log, Moment, Policy, Segment, State};

/// Longer than what a test does between two calls.
const SOON: Duration = Duration::from_millis(2);

fn in_memory() -> (Arc<InMemory>, Backup) {
    let objects = Arc::new(InMemory::new());
    let backup = Backup::over(objects.clone(), "memory").unwrap();
    (objects, backup)
}

fn follow<'b>(backup: &'b Backup, store: &Store) -> (Export, Log<'b>) {
    backup.follow(store, &ExportOptions::new(), &mut |_| ()).unwrap()
}

/// Sends all that was committed.
fn ship(log: &mut Log<'_>) -> Vec<Segment> {
    std::iter::from_fn(|| log.ship(SOON).unwrap()).collect()
}

fn segment_path(export: u64, segment: u64) -> Path {
    Path::from(format!("log/{export:020}/{segment:020}"))
}

fn verify(backup: &Backup, moment: Moment) -> Result<State, BackupError> {
    backup.verify(moment, &mut |_| ())
}

/// All that a store keeps: maps with their ids, and counters.
fn stored(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let checkpoints = store.checkpoints();
    checkpoints.create("all", "").unwrap();
    let mut pairs = BTreeMap::new();
    let mut take = |key: &[u8], value: &[u8]| {
        pairs.insert(key.to_vec(), value.to_vec());
        Ok(true)
    };
    checkpoints.each_stored("all", &mut take).unwrap();
    checkpoints.drop("all").unwrap();
    pairs
}

fn imported(backup: &Backup, moment: Moment) -> (State, BTreeMap<Vec<u8>, Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let state = backup.import(moment, &path, &mut |_| ()).unwrap();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.check(&mut |_| ()).unwrap().problems, [""; 0]);
    assert!(store.snapshot().unwrap().commit() >= state.commit);
    (state, stored(&store))
}

/// Commits with a later time than all before.
fn later() {
    std::thread::sleep(Duration::from_millis(2));
}

#[test]
fn each_segment_is_a_moment_that_can_be_restored() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let (_, backup) = in_memory();
        let mut known = Vec::new();
        for _ in 0..3 {
            change(&store, &mut rng);
            let options = ExportOptions::new().compression([Compression::None, Compression::Zstd][rng.usize(..2)]);
            let (export, mut log) = backup.follow(&store, &options, &mut |_| ()).unwrap();
            known.push((Moment::Until(export.created_ms), export.commit, stored(&store)));
            for _ in 0..rng.usize(1..6) {
                later();
                change(&store, &mut rng);
                let all = stored(&store);
                let Some(last) = ship(&mut log).pop() else { continue };
                assert_eq!(last.pairs, all.len() as u64, "seed {seed}");
                known.push((Moment::Until(last.committed_ms), last.commit, all));
            }
            assert_eq!(
                backup
                    .log_sizes()
                    .unwrap()
                    .get(&export.number)
                    .map_or(0, |log| log.segments),
                log.segments()
            );
            later();
        }
        let (_, _, newest) = known.last().unwrap();
        assert_eq!(imported(&backup, Moment::Newest).1, *newest, "seed {seed}");
        for (moment, commit, all) in &known {
            let (state, pairs) = imported(&backup, *moment);
            assert_eq!(state.commit, *commit, "seed {seed}, {moment:?}");
            assert_eq!(pairs, *all, "seed {seed}, {moment:?}");
        }
    }
}

#[test]
fn topics_trees_runs_and_long_values_go_by_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (_, backup) = in_memory();
    let (_, mut log) = follow(&backup, &store);
    let topics = Topics::open(&store).unwrap();
    let topic = topics.ensure("orders", TopicOptions::default()).unwrap();
    for number in 0..100u64 {
        topic.publish(&number.to_be_bytes()).unwrap();
    }
    let tree = Trees::open(&store).unwrap().ensure("services").unwrap();
    tree.put("api/leader", "node-1").unwrap();
    let map = store.map("large").unwrap();
    let long: Vec<u8> = (0..9 << 20).map(|at: u32| (at >> 8) as u8).collect();
    map.put("long", &long).unwrap();
    let sorted = (0..20_000u64).map(|number| (number.to_be_bytes(), number.to_be_bytes()));
    map.put_sorted(sorted).unwrap();
    map.delete_range(&5_000u64.to_be_bytes()[..]..&9_000u64.to_be_bytes()[..])
        .unwrap();
    let segments = ship(&mut log);
    let all = stored(&store);
    let (state, pairs) = imported(&backup, Moment::Newest);
    assert_eq!(state.segments, segments.len() as u64);
    assert!(pairs == all, "{} pairs, and not {}", pairs.len(), all.len());
    // The next export has an equal digest, though it compared two trees.
    let (next, mut log) = follow(&backup, &store);
    let last = segments.last().unwrap();
    assert_eq!((&next.digest, next.pairs), (&last.digest, last.pairs));
    // And the long value goes as well.
    later();
    map.delete("long").unwrap();
    assert_eq!(ship(&mut log).len(), 1);
    assert!(imported(&backup, Moment::Newest).1 == stored(&store));
}

#[test]
fn what_is_committed_beside_is_in_the_log_or_in_the_next_export() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (_, backup) = in_memory();
    let is_over = AtomicBool::new(false);
    let map = store.map("counters").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (map, is_over) = (&map, &is_over);
            scope.spawn(move || {
                for number in 0u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    map.put(
                        [thread, number % 500].map(u64::to_be_bytes).concat(),
                        number.to_be_bytes(),
                    )
                    .unwrap();
                }
            });
        }
        for _ in 0..5 {
            let (export, mut log) = follow(&backup, &store);
            for _ in 0..5 {
                let segment = log.ship(Duration::from_millis(20)).unwrap().unwrap();
                let state = verify(&backup, Moment::Newest).unwrap();
                assert_eq!((state.export.number, state.segments), (export.number, segment.number));
                assert_eq!(state.commit, segment.commit);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let (_, mut log) = follow(&backup, &store);
    assert_eq!(ship(&mut log), []);
    assert!(imported(&backup, Moment::Newest).1 == stored(&store));
}

#[test]
fn a_place_that_misbehaves_at_any_call_costs_only_the_log() {
    for fault in [Fault::Fail, Fault::FailAfterwards, Fault::Die, Fault::Slow] {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let map = store.map("map").unwrap();
        map.put("key", "0").unwrap();
        for calls in 0.. {
            let objects: Arc<InMemory> = Arc::new(InMemory::new());
            let sound = Backup::over(objects.clone(), "memory").unwrap();
            let export = sound.export(&store, &ExportOptions::new(), &mut |_| ()).unwrap();
            let faulty = Faulty::over(objects.clone(), fault, calls);
            let backup = Backup::over(faulty.clone(), "faulty").unwrap();
            let outcome = (|| {
                let (_, mut log) = backup.follow(&store, &ExportOptions::new(), &mut |_| ())?;
                for number in 1..4u64 {
                    map.put("key", number.to_be_bytes()).unwrap();
                    if let Err(error) = log.ship(SOON) {
                        assert!(matches!(log.ship(SOON), Err(BackupError::LogEnded)));
                        return Err(error);
                    }
                }
                Ok(())
            })();
            assert!(outcome.is_ok() || faulty.has_failed(), "{outcome:?}");
            // Whatever is there can be proven.
            verify(&sound, Moment::Export(export.number)).unwrap();
            verify(&sound, Moment::Newest).unwrap();
            map.put("key", "last").unwrap();
            let (_, mut log) = follow(&sound, &store);
            later();
            map.put("key", "after").unwrap();
            assert_eq!(ship(&mut log).len(), 1);
            assert!(
                imported(&sound, Moment::Newest).1 == stored(&store),
                "{fault:?} at {calls}"
            );
            if !faulty.has_failed() {
                assert!(calls > 5);
                break;
            }
        }
    }
}

/// An export and a log of three segments, each with a commit.
fn three_segments() -> (Arc<InMemory>, Backup, Vec<Segment>) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (objects, backup) = in_memory();
    let (_, mut log) = follow(&backup, &store);
    let map = store.map("map").unwrap();
    let mut segments = ship(&mut log);
    while segments.len() < 3 {
        later();
        map.put("key", segments.len().to_be_bytes()).unwrap();
        segments.extend(ship(&mut log));
    }
    assert_eq!(segments.len(), 3);
    (objects, backup, segments)
}

#[test]
fn damage_of_a_segment_is_found() {
    let (objects, backup, segments) = three_segments();
    let path = segment_path(1, 2);
    let sound = run(async { objects.get(&path).await.unwrap().bytes().await.unwrap() }).to_vec();
    let put = |bytes: Vec<u8>| run(objects.put(&path, PutPayload::from(bytes))).map(drop).unwrap();
    let mut damaged = Vec::new();
    for at in 0..sound.len() {
        let mut other = sound.clone();
        other[at] ^= 1 << (at % 8);
        damaged.push(other);
    }
    damaged.extend((0..sound.len()).step_by(7).map(|end| sound[..end].to_vec()));
    damaged.push([&sound[..], b"more"].concat());
    for bytes in damaged {
        // The number of the format is behind the first 8 bytes.
        let is_of_format = bytes.get(8..12) != sound.get(8..12);
        put(bytes);
        let error = verify(&backup, Moment::Newest).unwrap_err();
        let is_told = match error {
            BackupError::NewerFormat { .. } | BackupError::OlderFormat { .. } => is_of_format,
            BackupError::Damaged { .. } => true,
            _ => false,
        };
        assert!(is_told, "{error}");
    }
    // What does not need it is there.
    assert_eq!(verify(&backup, Moment::Export(1)).unwrap().segments, 0);
    run(objects.delete(&path)).unwrap();
    let error = verify(&backup, Moment::Newest).unwrap_err();
    assert!(error.to_string().contains("has no segment 2"), "{error}");
    put(sound);
    let until = Moment::Until(segments[1].committed_ms);
    assert_eq!(verify(&backup, until).unwrap().segments, 2);
    // Without the damaged segment and all later ones the earlier ones can be read.
    for segment in [2, 3] {
        run(objects.delete(&segment_path(1, segment))).unwrap();
    }
    assert_eq!(verify(&backup, Moment::Newest).unwrap().commit, segments[0].commit);
}

#[test]
fn segments_of_another_log_are_refused() {
    let (objects, backup, _) = three_segments();
    let (others, _, _) = three_segments();
    for (from, number) in [(others, 2), (objects.clone(), 3)] {
        let bytes = run(async { from.get(&segment_path(1, number)).await.unwrap().bytes().await.unwrap() });
        run(objects.put(&segment_path(1, 2), PutPayload::from(bytes))).unwrap();
        let error = verify(&backup, Moment::Newest).unwrap_err();
        assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    }
}

#[test]
fn a_second_writer_of_one_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (objects, backup) = in_memory();
    let (export, mut log) = follow(&backup, &store);
    run(objects.put(&segment_path(export.number, 1), PutPayload::from_static(b"other"))).unwrap();
    store.map("map").unwrap().put("key", "value").unwrap();
    let error = log.ship(SOON).unwrap_err();
    assert!(matches!(error, BackupError::TakenMeanwhile { number: 1 }), "{error}");
}

#[test]
fn a_moment_before_everything_is_not_there() {
    let (_, backup, segments) = three_segments();
    assert!(matches!(
        verify(&backup, Moment::Until(1_000)),
        Err(BackupError::NoneUntil { .. })
    ));
    let late = verify(&backup, Moment::Until(u64::MAX)).unwrap();
    assert_eq!(late.commit, segments[2].commit);
}

#[test]
fn logs_go_with_their_exports() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (objects, backup) = in_memory();
    let map = store.map("map").unwrap();
    for number in 0..4u64 {
        map.put("key", number.to_be_bytes()).unwrap();
        let options = ExportOptions::new().full(true);
        let (_, mut log) = backup.follow(&store, &options, &mut |_| ()).unwrap();
        later();
        map.put("key", "log").unwrap();
        assert_eq!(ship(&mut log).len(), 1);
    }
    // That of an export which a prune removed before it was interrupted.
    run(objects.delete(&Path::from(format!("exports/{:020}.json", 1)))).unwrap();
    let pruned = backup.prune(Policy::keep_last(2), &mut |_| ()).unwrap();
    assert_eq!((pruned.segments, &pruned.exports[..]), (2, &[2][..]));
    assert_eq!(backup.log_sizes().unwrap().into_keys().collect::<Vec<_>>(), [3, 4]);
    assert!(imported(&backup, Moment::Newest).1 == stored(&store));
}

#[test]
fn a_log_that_the_store_no_longer_has_ends() {
    let directory = tempfile::tempdir().unwrap();
    let store = Options::new()
        .generation_bytes(1 << 20, 1 << 20)
        .open(directory.path())
        .unwrap();
    let (_, backup) = in_memory();
    let map = store.map("map").unwrap();
    let (_, mut log) = follow(&backup, &store);
    for number in 0..40u64 {
        map.put(number.to_be_bytes(), vec![1; 900_000]).unwrap();
        store.maintain().unwrap();
    }
    let is_not_retained = |error: BackupError| match error {
        BackupError::Store(error) => matches!(error.reason(), Reason::NotRetained { .. }),
        _ => false,
    };
    assert!(is_not_retained(log.ship(SOON).unwrap_err()));
}

#[test]
fn a_restored_store_has_another_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (_, backup) = in_memory();
    let map = store.map("map").unwrap();
    map.put("key", "before").unwrap();
    store.checkpoints().create("before", "").unwrap();
    let (_, mut log) = follow(&backup, &store);
    map.put("key", "after").unwrap();
    assert_eq!(ship(&mut log).len(), 1);
    duramen::restore(&store, "before").unwrap();
    let error = log.ship(SOON).unwrap_err();
    assert!(matches!(error, BackupError::Store(_)), "{error}");
    drop((log, map));
    store.close().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (_, mut log) = follow(&backup, &store);
    assert_eq!(ship(&mut log), []);
    let (_, pairs) = imported(&backup, Moment::Newest);
    assert!(pairs == stored(&store));
    assert!(pairs.into_values().any(|value| value == b"before"));
}

#[test]
fn times_are_those_of_the_commits() {
    let before = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    let (_, _, segments) = three_segments();
    let after = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    assert!(segments.is_sorted_by_key(|segment| segment.committed_ms));
    assert!(segments[0].committed_ms >= before && segments[2].committed_ms <= after);
}
