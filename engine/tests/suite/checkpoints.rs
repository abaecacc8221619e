//! Checkpoints against a model: what each shows stays as it was, whatever is written, folded, dropped, killed or cut off
//! afterwards; and every page is accounted for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;

use duramen_engine::{Difference, Error, Kind, Lost, Map, Reason, Result, Snapshot, Store, TransactionOptions, Value};
use duramen_io::SimDisk;

use crate::common::checkpointed::{Content, Open, assert_nothing_is_left, assert_sound, content, options};

/// Changes that a deeper run makes of each seed's history.
const STEPS: u64 = 160;
const SEEDS: u64 = 12;

/// `DURAMEN_SEEDS` asks for more histories than the usual ones.
fn seeds() -> u64 {
    let asked = std::env::var("DURAMEN_SEEDS").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(SEEDS)
}

/// What the store must have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    now: Content,
    kept: BTreeMap<String, Content>,
}

/// A change of the store and of the model.
#[derive(Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Many(Vec<(Vec<u8>, Vec<u8>)>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Fold,
    Create(String),
    Drop(String),
    Restore(String),
}

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    format!("key {:04}", rng.u32(..2_000)).into_bytes()
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = match rng.u8(..24) {
        0 => rng.usize(70_000..200_000),
        1..=3 => rng.usize(1_201..20_000),
        _ => rng.usize(..300),
    };
    vec![rng.u8(..); length]
}

impl Step {
    fn random(rng: &mut fastrand::Rng, number: u64) -> Step {
        let name = |rng: &mut fastrand::Rng| format!("checkpoint {}", rng.u64(number.saturating_sub(60)..=number));
        match rng.u8(..30) {
            0..=9 => Step::Put(key(rng), value(rng)),
            10..=14 => {
                let first = rng.u32(..1_900);
                let count = rng.u32(1..200);
                let pairs =
                    (first..first + count).map(|at| (format!("key {at:04}").into_bytes(), vec![rng.u8(..); 90]));
                Step::Many(pairs.collect())
            }
            15..=17 => Step::Delete(key(rng)),
            18..=19 => {
                let (a, b) = (key(rng), key(rng));
                Step::DeleteRange(a.clone().min(b.clone()), a.max(b))
            }
            20..=22 => Step::Fold,
            23..=25 => Step::Create(format!("checkpoint {number}")),
            26..=27 => Step::Restore(name(rng)),
            _ => Step::Drop(name(rng)),
        }
    }

    fn perform(&self, open: &mut Open, disk: &SimDisk) -> Result<()> {
        if let Step::Restore(name) = self {
            return match open.restore(disk, name) {
                Err(error) if matches!(error.reason(), Reason::UnknownCheckpoint { .. }) => Ok(()),
                restored => restored,
            };
        }
        self.write(&open.store, &open.map)
    }

    /// Performs what needs no opening of the store.
    fn write(&self, store: &Store, map: &Map) -> Result<()> {
        let checkpoints = store.checkpoints();
        match self {
            Step::Put(key, value) => map.put(key, value),
            Step::Many(pairs) => store.transact(|tx| pairs.iter().try_for_each(|(key, value)| tx.put(map, key, value))),
            Step::Delete(key) => map.delete(key),
            Step::DeleteRange(low, high) => map.delete_range(&low[..]..&high[..]).map(drop),
            Step::Fold => store.maintain(),
            Step::Create(name) => checkpoints.create(name, name.to_uppercase()).map(drop),
            Step::Drop(name) => checkpoints.drop(name).map(drop),
            Step::Restore(_) => unreachable!("the store is opened after it"),
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Step::Put(key, value) => drop(model.now.insert(key.clone(), value.clone())),
            Step::Many(pairs) => model.now.extend(pairs.iter().cloned()),
            Step::Delete(key) => drop(model.now.remove(key)),
            Step::DeleteRange(low, high) => model.now.retain(|key, _| !(low <= key && key < high)),
            Step::Fold => {}
            Step::Create(name) => drop(model.kept.insert(name.clone(), model.now.clone())),
            Step::Drop(name) => drop(model.kept.remove(name)),
            Step::Restore(name) => model.now = model.kept.get(name).unwrap_or(&model.now).clone(),
        }
    }
}

/// What a store has.
fn found(store: &Store, map: &Map) -> Model {
    let checkpoints = store.checkpoints();
    let kept = checkpoints.list().expect("a list").into_iter().map(|checkpoint| {
        assert_eq!(checkpoint.metadata, checkpoint.name.to_uppercase().as_bytes());
        let opened = checkpoints.open(&checkpoint.name).expect("it is on the list");
        assert_eq!(opened.commit(), checkpoint.commit);
        (checkpoint.name, content(&opened, map))
    });
    Model {
        kept: kept.collect(),
        now: content(&store.snapshot().expect("a snapshot"), map),
    }
}

/// A key, and its value before and afterwards.
type Changed = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

/// The pairs of the map that differ between two checkpoints.
fn difference(store: &Store, from: &str, to: &str) -> Vec<Changed> {
    let mut all = Vec::new();
    let collect = |pair: Difference<'_>| {
        assert_eq!(pair.map, "map");
        let value = |value: Option<Value<'_>>| value.map(|value| value.to_vec());
        all.push((pair.key.to_vec(), value(pair.old), value(pair.new)));
        Ok(true)
    };
    store.checkpoints().diff(from, to, collect).expect("both are there");
    all
}

/// Compares two checkpoints in both directions, and one with itself.
fn assert_differs_as(store: &Store, model: &Model, rng: &mut fastrand::Rng) {
    let names: Vec<&String> = model.kept.keys().collect();
    if names.is_empty() {
        return;
    }
    let (from, to) = (names[rng.usize(..names.len())], names[rng.usize(..names.len())]);
    let (old, new) = (&model.kept[from], &model.kept[to]);
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let pairs = keys
        .into_iter()
        .map(|key| (key.clone(), old.get(key).cloned(), new.get(key).cloned()));
    let expected: Vec<_> = pairs.filter(|(_, old, new)| old != new).collect();
    assert!(difference(store, from, to) == expected, "from {from} to {to}");
}

#[test]
fn checkpoints_stay_as_they_were_in_a_random_history() {
    for seed in 0..seeds() {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let mut open = Open::on(&disk).expect("a store");
        let mut model = Model::default();
        // Snapshots of checkpoints that may be dropped meanwhile.
        let mut opened: Vec<(Snapshot, Map, Content)> = Vec::new();
        for number in 0..STEPS {
            let step = Step::random(&mut rng, number);
            step.perform(&mut open, &disk)
                .unwrap_or_else(|error| panic!("seed {seed}, {step:?}: {error}"));
            step.apply(&mut model);
            let Open { store, map } = &open;
            if rng.u8(..12) == 0
                && let Some((name, kept)) = model.kept.iter().next_back()
            {
                let snapshot = store.checkpoints().open(name).expect("it is there");
                opened.push((snapshot, map.clone(), kept.clone()));
            }
            if rng.u8(..8) == 0 && !opened.is_empty() {
                let (snapshot, map, kept) = opened.swap_remove(rng.usize(..opened.len()));
                assert!(content(&snapshot, &map) == kept, "seed {seed}, step {number}");
            }
            if number % 20 == 19 {
                assert!(found(store, map) == model, "seed {seed}, step {number}");
                assert_differs_as(store, &model, &mut rng);
                assert_sound(store, seed);
            }
        }
        for (snapshot, map, kept) in opened {
            assert!(content(&snapshot, &map) == kept, "seed {seed}");
        }
        assert_nothing_is_left(&open.store, &open.map, seed);
    }
}

#[test]
fn checkpoints_survive_kills_and_power_cuts_at_any_call() {
    for seed in 0..seeds() {
        let mut rng = fastrand::Rng::with_seed(1_000 + seed);
        let mut disk = SimDisk::new(seed);
        let mut model = Model::default();
        let mut number = 0;
        for _ in 0..10 {
            let mut open = Open::on(&disk).expect("a store");
            assert_sound(&open.store, seed);
            disk.stop_after(rng.u64(1..400));
            let failed = loop {
                number += 1;
                let step = Step::random(&mut rng, number);
                match step.perform(&mut open, &disk) {
                    Ok(()) => step.apply(&mut model),
                    Err(_) => break step,
                }
                if number % 200 == 0 {
                    break Step::Fold;
                }
            };
            drop(open);
            disk = match rng.bool() {
                true => disk.power_cut(rng.u64(..)),
                false => disk.kill(),
            };
            let store = options().open_on(disk.platform()).expect("a store");
            let map = store.map("map").expect("a map");
            let found = found(&store, &map);
            let mut after = model.clone();
            failed.apply(&mut after);
            // What was not acknowledged may be there or not.
            assert!(found == model || found == after, "seed {seed}, {failed:?}");
            model = found;
            assert_sound(&store, seed);
        }
        let store = options().open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        assert!(found(&store, &map) == model, "seed {seed}");
        assert_nothing_is_left(&store, &map, seed);
    }
}

/// Folds come to a checkpoint after the call that makes it: the log has it until then.
#[test]
fn a_checkpoint_that_no_fold_has_reached_is_found_in_the_log() {
    let disk = SimDisk::new(1);
    let open = Open::on(&disk).expect("a store");
    // Few, because a commit folds where the log is full.
    let fill = |with: u8| (0..5u32).for_each(|at| open.map.put(at.to_be_bytes(), [with; 200]).expect("a put"));
    fill(1);
    let shown = content(&open.store.snapshot().expect("a snapshot"), &open.map);
    let made = open.store.checkpoints().create("one", "ONE").expect("room");
    fill(2);
    for disk in [disk.kill(), disk.power_cut(7)] {
        let reader = options().read_only(true).open_on(disk.platform()).expect("a store");
        assert_eq!(
            reader.checkpoints().list().expect("a list"),
            [],
            "no fold has come there"
        );
        drop(reader);
        let Open { store, map } = Open::on(&disk).expect("a store");
        let kept = store.checkpoints().get("one").expect("a look").expect("it is there");
        assert_eq!((kept.number, kept.commit), (made.number, made.commit));
        assert!(content(&store.checkpoints().open("one").expect("it is there"), &map) == shown);
        assert_sound(&store, 1);
        assert_nothing_is_left(&store, &map, 1);
    }
}

/// A fold must find room for the register, whatever commits came in between.
#[test]
fn a_checkpoint_that_no_fold_has_reached_is_kept_on_a_disk_that_is_full_since() {
    for seed in 0..10 {
        let disk = SimDisk::new(seed);
        let Open { store, map } = Open::on(&disk).expect("a store");
        let key = |number: u32| number.to_be_bytes();
        (0..3_000).for_each(|number| map.put(key(number), [1; 150]).expect("a put"));
        if seed % 2 == 0 {
            store.maintain().expect("a fold");
        }
        let shown = content(&store.snapshot().expect("a snapshot"), &map);
        let metadata = "x".repeat(4_096);
        store.checkpoints().create("one", &metadata).expect("room");
        let spare = seed * 40_000;
        disk.set_capacity(Some(disk.allocated_bytes() + spare));
        // What makes folds write most: one pair of each leaf.
        let written = (0..3_000)
            .step_by(7)
            .take_while(|&number| map.put(key(number), [2; 150]).is_ok());
        let written = written.count();
        let longer = (10_000..)
            .take_while(|&number| map.put(key(number), [3; 1_000]).is_ok())
            .count();
        let Open { store, map } = match seed % 3 {
            0 => Open { store, map },
            _ => Open::on(&disk.kill()).expect("room"),
        };
        let one = store.checkpoints().open("one").unwrap_or_else(|error| {
            panic!("seed {seed}, {written} and {longer} written: {error}");
        });
        assert!(content(&one, &map) == shown, "seed {seed}");
        assert_eq!(
            store.checkpoints().list().expect("a list")[0].metadata,
            metadata.as_bytes()
        );
        drop(one);
        assert_sound(&store, seed);
        assert!(
            store.checkpoints().drop("one").expect("room was left for it"),
            "seed {seed}"
        );
    }
}

#[test]
fn another_process_sees_checkpoints_and_can_drop_them() {
    let disk = SimDisk::new(1);
    let (one, other) = (
        options().open_on(disk.platform()).expect("a store"),
        options().open_on(disk.platform()).expect("a store"),
    );
    let map = one.map("map").expect("a map");
    let theirs = other.map("map").expect("a map");
    map.put("key", "first").expect("a put");
    one.checkpoints().create("first", "").expect("room");
    theirs.put("key", "second").expect("a put");
    other.maintain().expect("a fold");
    let opened = other.checkpoints().open("first").expect("the other process made it");
    assert_eq!(
        opened.get(&theirs, "key").expect("a get").as_deref(),
        Some(&b"first"[..])
    );
    assert!(one.checkpoints().drop("first").expect("a drop"));
    assert_eq!(other.checkpoints().list().expect("a list"), []);
    assert!(matches!(
        other.checkpoints().open("first").expect_err("it is gone").reason(),
        Reason::UnknownCheckpoint { .. }
    ));
    (0..200u32).for_each(|number| theirs.put(number.to_be_bytes(), [7; 900]).expect("a put"));
    other.maintain().expect("a fold");
    assert_eq!(
        opened.get(&theirs, "key").expect("a get").as_deref(),
        Some(&b"first"[..])
    );
    drop(opened);
    other.maintain().expect("a fold");
    assert_sound(&one, 1);
}

#[test]
fn a_process_that_dies_in_the_middle_leaves_the_others_a_checkpoint_or_none() {
    let (mut calls, mut died_with) = (0, [0; 3]);
    loop {
        calls += 1;
        let disk = SimDisk::new(calls);
        let store = options().open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        let fill = |with: u8| (0..80u32).for_each(|at| map.put(at.to_be_bytes(), [with; 200]).expect("a put"));
        fill(1);
        store.checkpoints().create("old", "OLD").expect("room");
        let old = content(&store.snapshot().expect("a snapshot"), &map);
        fill(2);
        store.maintain().expect("a fold");
        let now = content(&store.snapshot().expect("a snapshot"), &map);
        let (sender, ended) = channel();
        let dies = sender.clone();
        let platform = disk.platform_of_one_who_dies(calls, move || dies.send(true).expect("a test waits"));
        std::thread::spawn(move || {
            let mortal = options().open_on(platform).expect("the store is there");
            mortal.checkpoints().create("new", "NEW").expect("room");
            mortal.checkpoints().drop("old").expect("a drop");
            sender.send(false).expect("a test waits");
        });
        if !ended.recv().expect("it dies or comes to its end") {
            break;
        }
        let found = found(&store, &map);
        assert!(found.now == now, "{calls} calls");
        for (name, kept) in &found.kept {
            assert!(
                *kept == if name == "old" { old.clone() } else { now.clone() },
                "{calls} calls"
            );
        }
        died_with[found.kept.len()] += 1;
        // What it published, and left before the meta page, is made durable by others although no pair has changed since.
        store.maintain().expect("a fold");
        let killed = disk.kill();
        let again = options().open_on(killed.platform()).expect("a store");
        let map_again = again.map("map").expect("a map");
        assert!(self::found(&again, &map_again) == found, "{calls} calls");
        assert_sound(&again, calls);
        fill(3);
        store.maintain().expect("a fold");
        assert_sound(&store, calls);
        store.checkpoints().create("later", "LATER").expect("room");
        let disk = disk.kill();
        let store = options().open_on(disk.platform()).expect("a store");
        let map = store.map("map").expect("a map");
        assert!(store.checkpoints().get("later").expect("a look").is_some());
        assert_nothing_is_left(&store, &map, calls);
    }
    // It died before the new one was made, between the two, and after the old one was dropped or before the first.
    assert!(died_with[1] > 10 && died_with[2] > 0, "{died_with:?}");
}

#[test]
fn long_values_of_transactions_that_span_a_checkpoint_are_kept_and_freed_as_they_must() {
    let store = options().open_on(SimDisk::new(4).platform()).expect("a store");
    let map = store.map("map").expect("a map");
    let checkpoints = store.checkpoints();
    // The value is written before the first checkpoint is made, and comes into the store after it.
    let mut tx = store.begin(TransactionOptions::default()).expect("a transaction");
    tx.put(&map, "key", vec![1; 200_000]).expect("room");
    checkpoints.create("before", "BEFORE").expect("room");
    tx.commit().expect("no conflict");
    checkpoints.create("with", "WITH").expect("room");
    map.put("key", "short").expect("a put");
    store.maintain().expect("a fold");
    assert_sound(&store, 4);
    let opened = checkpoints.open("with").expect("it is there");
    assert_eq!(
        opened.get(&map, "key").expect("a get").map(|value| value.len()),
        Some(200_000)
    );
    let alone = checkpoints.bytes_alone("with").expect("a walk").expect("it is there");
    assert!(alone > 200_000, "{alone}");
    drop(opened);
    assert!(checkpoints.drop("with").expect("a drop"));
    assert_sound(&store, 4);
    // Without a checkpoint that has it, such a value is free once it is replaced.
    let mut tx = store.begin(TransactionOptions::default()).expect("a transaction");
    tx.put(&map, "key", vec![2; 200_000]).expect("room");
    checkpoints.create("another", "ANOTHER").expect("room");
    tx.commit().expect("no conflict");
    store.maintain().expect("a fold");
    map.delete("key").expect("a deletion");
    store.maintain().expect("a fold");
    assert_sound(&store, 4);
    assert_nothing_is_left(&store, &map, 4);
}

#[test]
fn space_of_a_checkpoint_is_what_has_changed_since_and_comes_back() {
    let disk = SimDisk::new(2);
    let store = options().open_on(disk.platform()).expect("a store");
    let map = store.map("map").expect("a map");
    let put = |range: std::ops::Range<u32>, with: u8| {
        range.for_each(|number| map.put(number.to_be_bytes(), [with; 200]).expect("a put"));
        store.maintain().expect("a fold");
    };
    put(0..2_000, 1);
    let checkpoints = store.checkpoints();
    let first = checkpoints.create("first", "").expect("room");
    assert_eq!(first.number, 1);
    assert_eq!(checkpoints.bytes_alone("first").expect("a walk"), Some(0));
    let whole = checkpoints.bytes_shared("first").expect("a walk").expect("it is there");
    assert!((400 << 10..800 << 10).contains(&whole), "{whole}");
    put(0..500, 2);
    let alone = checkpoints.bytes_alone("first").expect("a walk").expect("it is there");
    assert!((100 << 10..200 << 10).contains(&alone), "{alone}");
    let shared = checkpoints.bytes_shared("first").expect("a walk");
    assert_eq!(shared, Some(whole - alone));
    let second = checkpoints.create("second", "offset 7").expect("room");
    assert_eq!((second.number, &second.metadata[..]), (2, &b"offset 7"[..]));
    assert_eq!(checkpoints.bytes_alone("second").expect("a walk"), Some(0));
    // What both hold is held alone by none, and by the second one when the first is gone.
    put(1_000..1_500, 3);
    assert_eq!(checkpoints.bytes_alone("first").expect("a walk"), Some(alone));
    let of_second = checkpoints.bytes_alone("second").expect("a walk").expect("it is there");
    assert!(checkpoints.drop("first").expect("a drop"));
    assert!(!checkpoints.drop("first").expect("a drop"));
    let then = checkpoints.bytes_alone("second").expect("a walk").expect("it is there");
    assert!(then > of_second + (100 << 10), "{of_second} {then}");
    assert_eq!(checkpoints.bytes_alone("first").expect("a walk"), None);
    assert_eq!(checkpoints.bytes_shared("first").expect("a walk"), None);
    assert_sound(&store, 2);
    // A name can be used again, a number is not.
    assert_eq!(checkpoints.create("first", "").expect("room").number, 3);
    assert_eq!(checkpoints.keep_last(1).expect("drops"), 1);
    assert_nothing_is_left(&store, &map, 2);
}

/// Trees of three levels, and of other heights, share pages of each level.
#[test]
fn trees_of_different_heights_are_told_apart() {
    const PAIRS: u32 = 45_000;
    let disk = SimDisk::new(6);
    let store = options()
        .generation_bytes(1 << 20, 8 << 20)
        .open_on(disk.platform())
        .expect("a store");
    let map = store.map("map").expect("a map");
    let (mut rng, mut model) = (fastrand::Rng::with_seed(6), Model::default());
    let perform = |step: Step, model: &mut Model| {
        step.write(&store, &map)
            .unwrap_or_else(|error| panic!("{step:?}: {error}"));
        step.apply(model);
    };
    let pair = |at: u32, with: u8| (format!("key {at:06}").into_bytes(), vec![with; 100]);
    let key = |at: u32| format!("key {at:06}").into_bytes();
    perform(Step::Many((0..PAIRS).map(|at| pair(at, 0)).collect()), &mut model);
    perform(Step::Create("all".into()), &mut model);
    perform(
        Step::Many((0..200).map(|_| pair(rng.u32(..PAIRS), 1)).collect()),
        &mut model,
    );
    perform(Step::Create("scattered".into()), &mut model);
    perform(Step::DeleteRange(key(300), key(PAIRS - 300)), &mut model);
    perform(Step::Create("few".into()), &mut model);
    perform(
        Step::Many((0..PAIRS / 2).map(|at| pair(at * 2, 2)).collect()),
        &mut model,
    );
    perform(Step::Create("grown".into()), &mut model);
    perform(Step::DeleteRange(Vec::new(), key(PAIRS)), &mut model);
    perform(Step::Create("none".into()), &mut model);
    assert!(found(&store, &map) == model);
    for _ in 0..60 {
        assert_differs_as(&store, &model, &mut rng);
    }
    let alone = |name: &str| {
        store
            .checkpoints()
            .bytes_alone(name)
            .expect("a walk")
            .expect("it is there")
    };
    // Of two hundred pairs that were changed, each took a leaf and the branches above, and not more.
    assert!(
        (100 << 12..2_000 << 12).contains(&alone("scattered")),
        "{}",
        alone("scattered")
    );
    for name in ["scattered", "all", "grown", "none", "few"] {
        perform(Step::Drop(name.into()), &mut model);
        assert_sound(&store, 6);
        assert!(found(&store, &map) == model, "without {name}");
    }
    assert_nothing_is_left(&store, &map, 6);
}

#[test]
fn maps_that_were_made_renamed_and_dropped_are_named_in_a_difference() {
    let store = options().open_on(SimDisk::new(5).platform()).expect("a store");
    for name in ["dropped", "renamed", "same"] {
        store.map(name).expect("a map").put("key", name).expect("a put");
    }
    let checkpoints = store.checkpoints();
    checkpoints.create("first", "").expect("room");
    store.maps().drop("dropped").expect("it is there");
    store.maps().rename("renamed", "other").expect("it is there");
    store.map("other").expect("a map").put("key", "changed").expect("a put");
    store.map("made").expect("a map").put("key", "made").expect("a put");
    store
        .reserved_map("of a layer")
        .expect("a map")
        .put("key", "hidden")
        .expect("a put");
    checkpoints.create("second", "").expect("room");
    let first = checkpoints.open("first").expect("it is there");
    let names = |snapshot: &Snapshot| -> Vec<String> {
        let maps = snapshot.maps().expect("a list").into_iter();
        maps.map(|map| map.name().to_string()).collect()
    };
    assert_eq!(names(&first), ["dropped", "renamed", "same"]);
    assert_eq!(names(&store.snapshot().expect("a snapshot")), ["made", "other", "same"]);
    let dropped = first.map("dropped").expect("a look").expect("it was there");
    assert_eq!(
        first.get(&dropped, "key").expect("a get").as_deref(),
        Some(&b"dropped"[..])
    );
    assert!(matches!(
        dropped.put("key", "value").expect_err("it is gone").reason(),
        Reason::MapDropped { .. }
    ));
    assert!(first.map("made").expect("a look").is_none());
    assert!(first.map("other").expect("a look").is_none());
    let mut seen = Vec::new();
    let see = |pair: Difference<'_>| {
        seen.push(format!(
            "{} {:?} {:?}",
            pair.map,
            pair.old.is_some(),
            pair.new.is_some()
        ));
        Ok(true)
    };
    checkpoints.diff("first", "second", see).expect("both are there");
    assert_eq!(seen, ["dropped true false", "other true true", "made false true"]);
    // A visitor ends it, and a checkpoint that is missing is an error.
    let mut count = 0;
    let stop = |_: Difference<'_>| {
        count += 1;
        Ok(false)
    };
    checkpoints.diff("first", "second", stop).expect("both are there");
    assert_eq!(count, 1);
    assert!(checkpoints.diff("first", "third", |_| Ok(true)).is_err());
}

#[test]
fn a_full_disk_refuses_a_checkpoint_and_lets_old_ones_be_dropped() {
    for seed in 0..10 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let mut open = Open::on(&disk).expect("a store");
        let mut model = Model::default();
        disk.set_capacity(Some(disk.allocated_bytes() + rng.u64(1..3) * (1 << 20)));
        let mut refused = 0;
        for number in 0..400 {
            let step = match Step::random(&mut rng, number) {
                Step::Drop(_) => Step::Fold,
                step => step,
            };
            match step.perform(&mut open, &disk) {
                Ok(()) => step.apply(&mut model),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::MakeSpace, "seed {seed}, {step:?}: {error}");
                    refused += 1;
                    if let Step::Create(name) = &step
                        && open.store.checkpoints().get(name).expect("a look").is_some()
                    {
                        // It was published, and the meta page for it found no room.
                        step.apply(&mut model);
                    }
                }
            }
        }
        let Open { store, map } = &open;
        let kept = model.kept.len();
        assert!(refused > 10 && kept > 2, "seed {seed}: {refused}, {kept}");
        assert!(found(store, map) == model, "seed {seed}");
        assert_sound(store, seed);
        for name in model.kept.clone().into_keys() {
            let dropped = store.checkpoints().drop(&name);
            assert!(dropped.unwrap_or_else(|error| panic!("seed {seed}, {name}: {error}")));
            model.kept.remove(&name);
        }
        assert!(found(store, map) == model, "seed {seed}");
        map.put("key", vec![1; 10_000]).expect("there is room again");
        assert_nothing_is_left(store, map, seed);
    }
}

/// What deletions replace does not come free: it belongs to the checkpoint. They leave room to drop it.
#[test]
fn deletions_that_find_no_room_leave_enough_to_drop_the_checkpoint() {
    let disk = SimDisk::new(8);
    let store = options().open_on(disk.platform()).expect("a store");
    let map = store.map("map").expect("a map");
    let key = |number: u32| number.to_be_bytes();
    let put = |number: u32| map.put(key(number), [7; 150]);
    (0..30_000).for_each(|number| put(number).expect("there is room"));
    // A register of many pages.
    for number in 0..100 {
        let name = format!("also {number}");
        store
            .checkpoints()
            .create(&name, name.to_uppercase().repeat(300))
            .expect("there is room");
    }
    store.checkpoints().create("all", "ALL").expect("there is room");
    disk.set_capacity(Some(disk.allocated_bytes()));
    let mut last = 30_000;
    while put(last).is_ok() {
        last += 1;
    }
    assert_eq!(put(last).expect_err("it is full").kind(), Kind::MakeSpace);
    let mut refused = 0;
    // One of each leaf, so that a fold rewrites many.
    for number in (0..last).step_by(20) {
        let deleted = map
            .delete(key(number))
            .and_then(|()| if number % 400 == 0 { store.maintain() } else { Ok(()) });
        if let Err(error) = deleted {
            assert_eq!(error.kind(), Kind::MakeSpace, "{error}");
            refused += 1;
        }
    }
    assert!(refused > 0, "the disk is too large for this test");
    assert_sound(&store, 8);
    let all = store.checkpoints().open("all").expect("it is there");
    assert_eq!(content(&all, &map).len(), 30_000);
    drop(all);
    assert!(store.checkpoints().drop("all").expect("room was left for it"));
    assert_eq!(store.checkpoints().keep_last(0).expect("room was left for it"), 100);
    // Now what deletions replace comes free.
    (0..last).for_each(|number| map.delete(key(number)).expect("there is the reserve"));
    map.put("key", [7; 1_000]).expect("there is room again");
    assert_nothing_is_left(&store, &map, 8);
}

#[test]
fn a_register_that_rots_is_damage_and_the_present_can_be_saved() {
    let disk = SimDisk::new(7);
    let store = options().open_on(disk.platform()).expect("a store");
    store.map("map").expect("a map").put("key", "value").expect("a put");
    let name = "a name that is nowhere else";
    store.checkpoints().create(name, "").expect("room");
    store.close().expect("a sync");
    let data = disk.read_raw("data");
    let place = data.windows(name.len()).position(|bytes| bytes == name.as_bytes());
    disk.write_raw("data", place.expect("it is there") as u64, b"A");
    let error = options().open_on(disk.platform()).expect_err("it rots");
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(error.to_string().contains("register of checkpoints"), "{error}");
    let saved = options()
        .salvage(true)
        .open_on(disk.platform())
        .expect("it can be read");
    let map = saved.maps().get("map").expect("a look").expect("it is there");
    assert_eq!(map.get("key").expect("a get").as_deref(), Some(&b"value"[..]));
    let lost = Lost::new();
    saved
        .snapshot()
        .expect("a snapshot")
        .salvage_maps(&lost)
        .expect("a list");
    assert!(lost.list().iter().any(|line| line.contains("register of checkpoints")));
}

#[test]
fn what_cannot_be_made_is_refused() {
    let store = options().open_on(SimDisk::new(3).platform()).expect("a store");
    let checkpoints = store.checkpoints();
    checkpoints.create("one", "").expect("room");
    let refused = |name: &str, metadata: &[u8]| checkpoints.create(name, metadata).expect_err("it cannot be made");
    assert!(matches!(refused("one", b"").reason(), Reason::CheckpointExists { .. }));
    for (name, metadata) in [("", &b""[..]), (&"n".repeat(256), b""), ("two", &[0; 4_097])] {
        assert!(matches!(refused(name, metadata).reason(), Reason::InvalidArgument(_)));
    }
    assert_eq!(checkpoints.list().expect("a list").len(), 1);
    assert!(checkpoints.open("two").is_err());
    assert_eq!(checkpoints.get("two").expect("a look"), None);
}

/// A process puts the store back while others have it open, and dies at its n-th call of the system.
#[test]
fn a_checkpoint_of_a_transaction_shows_its_commit_and_none_after_it() {
    let disk = SimDisk::new(1);
    let open = Open::on(&disk).expect("a store");
    let checkpoints = open.store.checkpoints();
    let count = |snapshot: &Snapshot, key: &str| {
        let value = snapshot.get(&open.map, key).expect("a get");
        value.map_or(0, |value| i64::from_be_bytes(value[..].try_into().expect("a counter")))
    };
    let (seen, made) = checkpoints
        .create_with("one", "", |tx| {
            tx.add(&open.map, "count", 1)?;
            Ok(tx.snapshot_commit())
        })
        .expect("room");
    open.map.add("count", 1).expect("an addition");
    let kept = checkpoints.open(&made.name).expect("it was made");
    // The commit of the transaction, and that of the checkpoint.
    assert_eq!((count(&kept, "count"), kept.commit()), (1, seen + 2));
    let taken = checkpoints.create_with("one", "", |_| -> Result<()> { panic!("it is refused before") });
    assert!(matches!(
        taken.expect_err("it is there").reason(),
        Reason::CheckpointExists { .. }
    ));
    let failed = checkpoints.create_with("failed", "", |tx| {
        tx.put(&open.map, "count", "never")?;
        Err::<(), _>(Error::from(Reason::ReadOnly))
    });
    assert!(failed.is_err() && checkpoints.get("failed").expect("a look").is_none());
    open.map.add("count", 1).expect("others write again");
    assert_sound(&open.store, 1);
}

/// What works on files, or opens the store again, finds a checkpoint that no fold has reached.
#[test]
fn a_checkpoint_that_no_fold_has_reached_outlives_compaction_checks_closing_and_other_processes() {
    for (way, seed) in (0..4u64).flat_map(|way| (0..6).map(move |seed| (way, seed))) {
        let disk = SimDisk::new(seed);
        let Open { mut store, mut map } = Open::on(&disk).expect("a store");
        let fill = |map: &Map, step: usize, with: u8| {
            let put = |at: u32| map.put(at.to_be_bytes(), [with; 150]).expect("a put");
            (0..2_000u32).step_by(step).for_each(put);
        };
        fill(&map, 1, 1);
        if seed % 2 == 0 {
            store.maintain().expect("a fold");
        }
        let shown = content(&store.snapshot().expect("a snapshot"), &map);
        store.checkpoints().create("one", "ONE").expect("room");
        if seed % 3 > 0 {
            fill(&map, 3, 2);
        }
        match way {
            0 => drop(store.compact(&mut |_| ()).expect("room")),
            1 => assert_sound(&store, seed),
            2 => {
                drop(map);
                store.close().expect("an end");
                Open { store, map } = Open::on(&disk).expect("a store");
            }
            _ => {
                let other = Open::on(&disk).expect("a store").store;
                assert!(other.checkpoints().create("one", "").is_err(), "the name is taken");
                other.checkpoints().create("two", "TWO").expect("room");
                other.compact(&mut |_| ()).expect("room");
                assert!(other.checkpoints().drop("two").expect("it is there"));
            }
        }
        let again = Open::on(&disk.kill()).expect("a store");
        for (store, map) in [(&store, &map), (&again.store, &again.map)] {
            let one = store.checkpoints().open("one").expect("it is there");
            assert!(content(&one, map) == shown, "way {way}, seed {seed}");
            drop(one);
            assert_sound(store, seed);
        }
        assert_nothing_is_left(&again.store, &again.map, seed);
    }
}
