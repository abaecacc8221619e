//! Keyed state: states against a model while the number of workers changes, checkpoints by id, figures and warnings, errors, and
//! the layout of rows, which is part of the format.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{Place, assert_sound, by_hand, number_from_environment, restless, seed};
use duramen::state::{
    JobStatistics, KEY_GROUPS_DEFAULT, KEY_GROUPS_MAX, KeyGroups, KeyedState, ListState, MapState, StateError,
    StateKind, StateLimits, StateStatistics, StateWarning, ValueState,
};
use duramen::{Error, Kind, Options, Reads, Reason, Store, Transaction};
use fastrand::Rng;

/// Returns the facts of an error of keyed state.
#[track_caller]
fn facts(error: &Error) -> &StateError {
    StateError::of(error).unwrap_or_else(|| panic!("{error} is no error of keyed state"))
}

fn job(store: &Store) -> KeyedState {
    KeyedState::open(store, "job", KEY_GROUPS_DEFAULT).unwrap()
}

// The model.

/// What the three states of a key hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Held {
    value: Option<u64>,
    list: Vec<String>,
    map: BTreeMap<u16, u64>,
}

type Model = BTreeMap<String, Held>;

/// The states of one worker.
struct Worker {
    value: ValueState<String, u64>,
    list: ListState<String, String>,
    map: MapState<String, u16, u64>,
}

impl Worker {
    fn of(state: &KeyedState) -> Worker {
        Worker {
            value: state.value("value").unwrap(),
            list: state.list("list").unwrap(),
            map: state.map("map").unwrap(),
        }
    }

    /// Performs one random operation on a key, in the store and in the model.
    fn change(&self, tx: &mut Transaction, key: &str, held: &mut Held, rng: &mut Rng) -> duramen::Result<()> {
        let (entry, number) = (rng.u16(0..12), rng.u64(..));
        match rng.u32(0..14) {
            0..2 => {
                held.value = Some(number);
                self.value.put(tx, key, &number)
            }
            2 => {
                held.value = None;
                self.value.delete(tx, key)
            }
            3..5 => {
                held.value = held.value.map_or(Some(1), |value| value.checked_add(1));
                self.value
                    .update(tx, key, |value| value.map_or(Some(1), |value| value.checked_add(1)))
            }
            5..8 => {
                held.list.push(number.to_string());
                self.list.append(tx, key, &number.to_string())
            }
            8 => {
                let more: Vec<String> = (0..rng.u64(0..5)).map(|place| format!("{number}/{place}")).collect();
                held.list.extend(more.iter().cloned());
                self.list.append_all(tx, key, &more)
            }
            9 => {
                held.list = vec!["new".to_string(), number.to_string()];
                self.list.replace(tx, key, &held.list)
            }
            10 if entry < 3 => {
                held.list.clear();
                self.list.clear(tx, key)
            }
            11 if entry < 3 => {
                held.map.clear();
                self.map.clear(tx, key)
            }
            12 => {
                held.map.remove(&entry);
                self.map.delete(tx, key, &entry)
            }
            _ => {
                held.map.insert(entry, number);
                self.map.put(tx, key, &entry, &number)
            }
        }
    }

    fn held(&self, reads: &impl Reads, key: &str, rng: &mut Rng) -> Held {
        let held = Held {
            value: self.value.get(reads, key).unwrap(),
            list: self.list.get(reads, key).unwrap(),
            map: (self.map.range(reads, key, ..).unwrap())
                .collect::<Result<_, _>>()
                .unwrap(),
        };
        assert_eq!(self.list.len(reads, key).unwrap(), held.list.len() as u64);
        assert_eq!(self.map.len(reads, key).unwrap(), held.map.len() as u64);
        let reversed = self.list.elements(reads, key).unwrap().rev();
        assert!(reversed.map(Result::unwrap).eq(held.list.iter().rev().cloned()));
        let low = rng.u16(0..12);
        let high = rng.u16(low..13);
        let part = self.map.range(reads, key, low..high).unwrap().map(Result::unwrap);
        assert!(part.eq(held.map.range(low..high).map(|(entry, value)| (*entry, *value))));
        assert_eq!(self.map.get(reads, key, &low).unwrap(), held.map.get(&low).copied());
        held
    }

    /// All that the worker owns, by walking its rows.
    fn all(&self, reads: &impl Reads) -> Model {
        let mut model = Model::new();
        for pair in self.value.iter(reads).unwrap() {
            let (key, value) = pair.unwrap();
            assert_eq!(model.entry(key).or_default().value.replace(value), None);
        }
        for pair in self.list.iter(reads).unwrap() {
            let (key, element) = pair.unwrap();
            model.entry(key).or_default().list.push(element);
        }
        for triple in self.map.iter(reads).unwrap() {
            let (key, entry, value) = triple.unwrap();
            assert_eq!(model.entry(key).or_default().map.insert(entry, value), None);
        }
        model
    }
}

/// Compares all that workers own together with the model.
fn compare(state: &KeyedState, workers: u16, reads: &impl Reads, model: &Model) {
    let mut found = Model::new();
    for index in 0..workers {
        let worker = state.worker(index, workers).unwrap();
        for (key, held) in Worker::of(&worker).all(reads) {
            let group = state.key_groups().of_key(key.as_str());
            assert!(worker.own_key_groups().contains(&group));
            assert_eq!(found.insert(key, held), None, "two workers own a key");
        }
    }
    let present = model.iter().filter(|(_, held)| **held != Held::default());
    assert!(found.iter().eq(present), "{found:#?}\nexpected {model:#?}");
}

#[test]
fn states_hold_what_was_put_whatever_the_number_of_workers() {
    let mut rng = Rng::with_seed(seed());
    for round in 0..number_from_environment("DURAMEN_STATE_ROUNDS", 4) {
        let place = Place::new();
        let key_groups = [1, 8, 13, 128, KEY_GROUPS_MAX][rng.usize(0..5)];
        let mut model = Model::new();
        let mut checkpoints = BTreeMap::new();
        for step in 0..12 {
            let options = if rng.bool() { restless() } else { by_hand() };
            let store = options.open(place.path()).unwrap();
            let state = KeyedState::open(&store, "job", key_groups).unwrap();
            let workers = rng.u16(1..=8.min(key_groups));
            let states: Vec<Worker> = (0..workers)
                .map(|index| Worker::of(&state.worker(index, workers).unwrap()))
                .collect();
            for _ in 0..60 {
                let before = model.clone();
                let mut transaction = store.begin(Default::default()).unwrap();
                for _ in 0..rng.u32(1..6) {
                    let key = format!("user {}", rng.u32(0..40));
                    let group = state.key_groups().of_key(key.as_str());
                    let owner = state.key_groups().worker_of(group, workers).unwrap();
                    let held = model.entry(key.clone()).or_default();
                    states[owner as usize]
                        .change(&mut transaction, &key, held, &mut rng)
                        .unwrap();
                    assert_eq!(states[owner as usize].held(&transaction, &key, &mut rng), *held);
                }
                if rng.u32(0..5) == 0 {
                    transaction.rollback();
                    model = before;
                } else {
                    transaction.commit().unwrap();
                }
            }
            compare(&state, workers, &store.snapshot().unwrap(), &model);
            if rng.bool() {
                state.checkpoint(step, format!("step {step}")).unwrap();
                checkpoints.insert(step, model.clone());
            }
            if !checkpoints.is_empty() && rng.u32(0..3) == 0 {
                let kept: Vec<(&u64, &Model)> = checkpoints.iter().collect();
                let (id, then) = kept[rng.usize(0..kept.len())];
                model = then.clone();
                println!("round {round}, step {step}: back to checkpoint {id}");
                state.restore(*id).unwrap();
            } else {
                assert_sound(&store);
            }
        }
        let store = Store::open(place.path()).unwrap();
        let state = KeyedState::open(&store, "job", key_groups).unwrap();
        compare(&state, 1, &store.snapshot().unwrap(), &model);
        for (id, then) in &checkpoints {
            let view = state.at(*id).unwrap();
            let worker = Worker {
                value: view.value("value").unwrap(),
                list: view.list("list").unwrap(),
                map: view.map("map").unwrap(),
            };
            let found = worker.all(view.snapshot());
            assert!(
                found
                    .iter()
                    .eq(then.iter().filter(|(_, held)| **held != Held::default()))
            );
        }
    }
}

// Key groups and rows: part of the format.

#[test]
fn rows_of_a_key_lie_where_the_format_says() {
    let store = Store::temporary().unwrap();
    let job = job(&store);
    let counts = job.value::<String, u64>("counts").unwrap();
    let visits = job.list::<String, u8>("visits").unwrap();
    let pages = job.map::<String, u16, u8>("pages").unwrap();
    store
        .transact(|tx| {
            counts.put(tx, "ada", &1)?;
            visits.append_all(tx, "ada", &[8, 9])?;
            pages.put(tx, "ada", &258, &7)
        })
        .unwrap();
    let snapshot = store.snapshot().unwrap();
    let rows = |map: &str| {
        let map = store.maps().get(map).unwrap().expect("a map");
        crate::common::forwards(&mut snapshot.range(&map, ..).unwrap())
    };
    // Key group 106, the text with its end; then the place or the key in the map.
    let ada = b"\x00\x6Aada\x00\x00".to_vec();
    let row = |rest: &[u8], value: &[u8]| ([&ada[..], rest].concat(), value.to_vec());
    assert_eq!(rows("state/job/counts"), [row(b"", &[0, 0, 0, 0, 0, 0, 0, 1])]);
    assert_eq!(
        rows("state/job/visits"),
        [row(&[0; 8], &[8]), row(&[0, 0, 0, 0, 0, 0, 0, 1], &[9])]
    );
    assert_eq!(rows("state/job/pages"), [row(&[1, 2], &[7])]);
    let definition = |key: &str, value: &[u8]| (key.as_bytes().to_vec(), value.to_vec());
    assert_eq!(
        rows("state/job"),
        [
            definition("/", &[1, 0, 128]),
            definition("counts", b"\x01\x01(String, u64)"),
            definition("pages", b"\x01\x03(String, u16, u8)"),
            definition("visits", b"\x01\x02(String, u8)"),
        ]
    );
    job.checkpoint(42, "").unwrap();
    let names: Vec<String> = (store.checkpoints().list().unwrap().into_iter())
        .map(|checkpoint| checkpoint.name)
        .collect();
    assert_eq!(names, ["job/00000000000000000042"]);
}

#[test]
fn key_groups_of_keys_never_change() {
    let groups = |count| KeyGroups::new(count).unwrap();
    let found = ["", "ada", "bob", "cleo"].map(|key| groups(128).of_key::<String>(key));
    assert_eq!(found, [45, 106, 117, 27]);
    assert_eq!(groups(KEY_GROUPS_MAX).of_key::<u64>(&7), 14_002);
    assert_eq!(groups(1).of_key::<u64>(&7), 0);
}

#[test]
fn workers_share_key_groups_as_flink_computes_it() {
    let groups = KeyGroups::new(128).unwrap();
    let ranges: Vec<_> = (0..3).map(|index| groups.of_worker(index, 3).unwrap()).collect();
    assert_eq!(ranges, [0..43, 43..86, 86..128]);
    for count in [1, 2, 7, 128, 1_000, KEY_GROUPS_MAX] {
        let groups = KeyGroups::new(count).unwrap();
        for workers in [1, 2, 3, 5, 8, 127, 128, KEY_GROUPS_MAX] {
            if workers > count {
                let refused = groups.of_worker(0, workers).unwrap_err();
                assert!(matches!(facts(&refused), StateError::InvalidWorker { .. }));
                assert!(groups.worker_of(0, workers).is_err());
                continue;
            }
            let mut next = 0;
            for index in 0..workers {
                let range = groups.of_worker(index, workers).unwrap();
                assert_eq!(range.start, next, "no gap, no overlap");
                let share = count / workers;
                assert!((share..=share + 1).contains(&(range.end - range.start)));
                for group in [range.start, range.end - 1] {
                    assert_eq!(groups.worker_of(group, workers).unwrap(), index);
                }
                next = range.end;
            }
            assert_eq!(next, count);
        }
    }
}

// Checkpoints.

#[test]
fn ids_of_checkpoints_grow_and_refusals_name_the_newest() {
    let store = Store::temporary().unwrap();
    let job = job(&store);
    assert_eq!(job.latest().unwrap(), None);
    let made = job.checkpoint(7, "offset 70").unwrap();
    assert_eq!((made.id, &made.metadata[..]), (7, &b"offset 70"[..]));
    for asked in [0, 6, 7] {
        let refused = job.checkpoint(asked, "").unwrap_err();
        let StateError::CheckpointNotNewer { newest, .. } = facts(&refused) else {
            panic!("{refused}")
        };
        assert_eq!(*newest, 7);
        assert_eq!(refused.kind(), Kind::FixTheCall);
    }
    job.checkpoint(u64::MAX, "").unwrap();
    let ids: Vec<u64> = job.checkpoints().unwrap().iter().map(|made| made.id).collect();
    assert_eq!(ids, [7, u64::MAX]);
    assert_eq!(job.latest().unwrap().unwrap().id, u64::MAX);
}

#[test]
fn retention_drops_checkpoints_of_its_job_only() {
    let store = Store::temporary().unwrap();
    let job = job(&store);
    let other = KeyedState::open(&store, "job 2", 4).unwrap();
    let foreign = [
        "job",
        "job/",
        "job/1",
        "job/x0000000000000000001",
        "backup/00000000000000000001",
    ];
    for name in foreign {
        store.checkpoints().create(name, "").unwrap();
    }
    for id in 1..=5 {
        job.checkpoint(id, "").unwrap();
        other.checkpoint(id, "").unwrap();
    }
    assert_eq!(job.retain(9).unwrap(), 0);
    assert_eq!(job.retain(2).unwrap(), 3);
    assert_eq!(job.retain(2).unwrap(), 0);
    let ids = |state: &KeyedState| -> Vec<u64> {
        let all = state.checkpoints().unwrap();
        all.iter().map(|checkpoint| checkpoint.id).collect()
    };
    assert_eq!(ids(&job), [4, 5]);
    assert_eq!(ids(&other), [1, 2, 3, 4, 5]);
    assert_eq!(job.retain(0).unwrap(), 2);
    assert_eq!(ids(&job), [0; 0]);
    let kept = store.checkpoints().list().unwrap();
    assert!(foreign.iter().all(|name| kept.iter().any(|kept| kept.name == *name)));
    assert_eq!(kept.len(), foreign.len() + 5);
    assert_sound(&store);
}

#[test]
fn view_of_a_checkpoint_shows_the_states_of_then() {
    let store = Store::temporary().unwrap();
    let job = job(&store);
    let counts = job.value::<String, u64>("counts").unwrap();
    store.transact(|tx| counts.put(tx, "ada", &1)).unwrap();
    job.checkpoint(1, "").unwrap();
    store.transact(|tx| counts.put(tx, "ada", &2)).unwrap();
    job.list::<String, u64>("later").unwrap();
    job.drop_state("counts").unwrap();
    job.value::<String, u64>("counts").unwrap();

    let view = job.at(1).unwrap();
    let then = view.value::<String, u64>("counts").unwrap();
    assert_eq!(then.get(view.snapshot(), "ada").unwrap(), Some(1));
    assert_eq!(then.iter(view.snapshot()).unwrap().count(), 1);
    let unknown = view.list::<String, u64>("later").unwrap_err();
    assert!(matches!(facts(&unknown), StateError::UnknownState { name, .. } if name == "later"));
    let other = view.list::<String, u64>("counts").unwrap_err();
    assert!(matches!(facts(&other), StateError::OtherKind { .. }));
    // The present is another state of this name.
    let counts = job.value::<String, u64>("counts").unwrap();
    assert_eq!(counts.get(&store.snapshot().unwrap(), "ada").unwrap(), None);

    let refused = job.at(2).unwrap_err();
    assert!(matches!(facts(&refused), StateError::UnknownCheckpoint { id: 2, .. }));
    // A job that was made later is not in the checkpoint, even if a checkpoint has its name.
    let late = KeyedState::open(&store, "late", 4).unwrap();
    store.checkpoints().create("early/00000000000000000001", "").unwrap();
    let early = KeyedState::open(&store, "early", 4).unwrap();
    assert!(matches!(
        facts(&early.at(1).unwrap_err()),
        StateError::UnknownCheckpoint { .. }
    ));
    assert!(late.at(1).is_err());
}

#[test]
fn restore_puts_the_whole_store_back_and_ids_go_on() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let state = job(&store);
    let counts = state.value::<String, u64>("counts").unwrap();
    let other = store.map("other").unwrap();
    for id in 1..=3 {
        store
            .transact(|tx| {
                counts.put(tx, "ada", &id)?;
                tx.put(&other, "key", id.to_string())
            })
            .unwrap();
        state.checkpoint(id, "").unwrap();
    }
    let unknown = state.restore(9).unwrap_err();
    assert!(matches!(facts(&unknown), StateError::UnknownCheckpoint { id: 9, .. }));
    state.restore(1).unwrap();
    let refused = state.latest().and_then(|_| state.states().map(|_| ())).unwrap_err();
    assert!(matches!(refused.reason(), Reason::Restored), "{refused}");
    drop((state, counts, other));
    store.close().unwrap();

    let store = Store::open(place.path()).unwrap();
    let state = job(&store);
    let counts = state.value::<String, u64>("counts").unwrap();
    assert_eq!(counts.get(&store.snapshot().unwrap(), "ada").unwrap(), Some(1));
    assert_eq!(store.map("other").unwrap().get("key").unwrap().unwrap(), "1");
    assert_eq!(state.latest().unwrap().unwrap().id, 3);
    assert!(state.checkpoint(2, "").is_err());
    state.checkpoint(4, "").unwrap();
    assert_sound(&store);
}

// Errors.

#[test]
fn job_opens_with_the_key_groups_that_it_was_made_with() {
    let store = Store::temporary().unwrap();
    for asked in [0, KEY_GROUPS_MAX + 1, u16::MAX] {
        let refused = KeyedState::open(&store, "job", asked).unwrap_err();
        assert!(matches!(facts(&refused), StateError::InvalidKeyGroups { .. }));
    }
    KeyedState::open(&store, "job", 8).unwrap();
    KeyedState::open(&store, "job", 8).unwrap();
    let refused = KeyedState::open(&store, "job", 9).unwrap_err();
    assert!(matches!(
        facts(&refused),
        StateError::OtherKeyGroups { found: 8, asked: 9, .. }
    ));
    assert!(refused.to_string().contains("open it with 8"), "{refused}");
    for (index, workers) in [(0, 0), (1, 1), (0, 9), (8, 8)] {
        let state = KeyedState::open(&store, "job", 8).unwrap();
        let refused = state.worker(index, workers).unwrap_err();
        assert!(matches!(facts(&refused), StateError::InvalidWorker { .. }));
    }
}

#[test]
fn names_that_would_collide_are_refused() {
    let store = Store::temporary().unwrap();
    let long = "x".repeat(101);
    let state = job(&store);
    for name in ["", "a/b", "/", "a\nb", &long] {
        let refused = KeyedState::open(&store, name, 8).unwrap_err();
        assert!(matches!(facts(&refused), StateError::InvalidName { of: "job", .. }));
        let refused = state.value::<u8, u8>(name).unwrap_err();
        assert!(matches!(facts(&refused), StateError::InvalidName { of: "state", .. }));
    }
    let longest = "y".repeat(100);
    let state = KeyedState::open(&store, &longest, 8).unwrap();
    state.value::<u8, u8>(&longest).unwrap();
    state.checkpoint(1, "").unwrap();
    // A map of the program is not taken over.
    store.map("state/taken").unwrap().put("key", "value").unwrap();
    store.map("state/job/taken").unwrap().put("key", "value").unwrap();
    let refused = KeyedState::open(&store, "taken", 8).unwrap_err();
    assert!(matches!(facts(&refused), StateError::MapInUse { .. }));
    let refused = job(&store).value::<u8, u8>("taken").unwrap_err();
    assert!(matches!(facts(&refused), StateError::MapInUse { .. }));
    assert_eq!(job(&store).states().unwrap(), []);
}

#[test]
fn state_opens_only_as_it_was_declared() {
    let store = Store::temporary().unwrap();
    let state = job(&store);
    let counts = state.value::<String, u64>("counts").unwrap();
    store.transact(|tx| counts.put(tx, "ada", &1)).unwrap();
    let kinds = [
        state.list::<String, u64>("counts").unwrap_err(),
        state.map::<String, u64, u64>("counts").unwrap_err(),
    ];
    for refused in kinds {
        assert!(matches!(
            facts(&refused),
            StateError::OtherKind {
                found: StateKind::Value,
                ..
            }
        ));
        assert!(refused.to_string().contains("is a value, not a"), "{refused}");
    }
    let refused = state.value::<String, i64>("counts").unwrap_err();
    let StateError::OtherTypes { found, asked, .. } = facts(&refused) else {
        panic!("{refused}")
    };
    assert_eq!((&found[..], &asked[..]), ("(String, u64)", "(String, i64)"));
    assert!(state.value::<u64, u64>("counts").is_err());

    // With its types forgotten, it has the next ones.
    state.retype("counts").unwrap();
    assert!(state.list::<String, i64>("counts").is_err());
    let signed = state.value::<String, i64>("counts").unwrap();
    assert_eq!(
        signed.get(&store.snapshot().unwrap(), "ada").unwrap(),
        Some(i64::MIN + 1)
    );
    assert!(state.value::<String, u64>("counts").is_err());
    for refused in [state.retype("none").unwrap_err(), state.drop_state("none").unwrap_err()] {
        assert!(matches!(facts(&refused), StateError::UnknownState { .. }));
    }
    assert_eq!(state.states().unwrap(), [("counts".to_string(), StateKind::Value)]);
    state.drop_state("counts").unwrap();
    assert_eq!(state.states().unwrap(), []);
    assert!(store.maps().get("state/job/counts").unwrap().is_none());
}

#[test]
fn key_of_another_worker_is_refused_by_every_call() {
    let store = Store::temporary().unwrap();
    let state = job(&store);
    let group = state.key_groups().of_key::<String>("ada");
    let owner = state.key_groups().worker_of(group, 2).unwrap();
    let other = Worker::of(&state.worker(1 - owner, 2).unwrap());
    let snapshot = store.snapshot().unwrap();
    let mut tx = store.begin(Default::default()).unwrap();
    let refusals = [
        other.value.get(&snapshot, "ada").unwrap_err(),
        other.value.put(&mut tx, "ada", &1).unwrap_err(),
        other.value.delete(&mut tx, "ada").unwrap_err(),
        other.list.get(&snapshot, "ada").unwrap_err(),
        other.list.len(&snapshot, "ada").unwrap_err(),
        other.list.append(&mut tx, "ada", &String::new()).unwrap_err(),
        other.list.clear(&mut tx, "ada").unwrap_err(),
        other.map.get(&snapshot, "ada", &1).unwrap_err(),
        other.map.range(&snapshot, "ada", ..).map(|_| ()).unwrap_err(),
        other.map.put(&mut tx, "ada", &1, &1).unwrap_err(),
        other.map.clear(&mut tx, "ada").unwrap_err(),
    ];
    for refused in refusals {
        let StateError::OtherWorker { key_group, .. } = facts(&refused) else {
            panic!("{refused}")
        };
        assert_eq!(*key_group, group);
        assert_eq!(refused.kind(), Kind::FixTheCall);
    }
}

#[test]
fn reader_of_a_store_that_is_only_read_opens_what_exists() {
    let place = Place::new();
    let store = Store::open(place.path()).unwrap();
    let counts = job(&store).value::<String, u64>("counts").unwrap();
    store.transact(|tx| counts.put(tx, "ada", &1)).unwrap();
    let reader = Options::new().read_only(true).open(place.path()).unwrap();
    let state = job(&reader);
    let counts = state.value::<String, u64>("counts").unwrap();
    assert_eq!(counts.get(&reader.snapshot().unwrap(), "ada").unwrap(), Some(1));
    let refused = state.value::<String, u64>("more").unwrap_err();
    assert!(matches!(refused.reason(), Reason::ReadOnly), "{refused}");
    let refused = KeyedState::open(&reader, "other", 8).unwrap_err();
    assert!(matches!(refused.reason(), Reason::ReadOnly), "{refused}");
}

#[test]
fn two_transactions_that_append_to_one_list_conflict() {
    let store = Store::temporary().unwrap();
    let visits = job(&store).list::<String, u64>("visits").unwrap();
    let mut first = store.begin(Default::default()).unwrap();
    let mut second = store.begin(Default::default()).unwrap();
    visits.append(&mut first, "ada", &1).unwrap();
    visits.append(&mut second, "ada", &2).unwrap();
    first.commit().unwrap();
    assert!(second.commit().unwrap_err().is_conflict());
    assert_eq!(visits.get(&store.snapshot().unwrap(), "ada").unwrap(), [1]);
}

// Figures.

#[track_caller]
fn figures<'s>(statistics: &'s JobStatistics, state: &str) -> &'s StateStatistics {
    let found = statistics.states.iter().find(|found| found.name == state);
    found.expect("the state")
}

#[test]
fn statistics_count_rows_and_bytes_of_each_state_and_their_growth() {
    let store = Store::temporary().unwrap();
    let state = job(&store);
    let counts = state.value::<u32, u64>("counts").unwrap();
    let visits = state.list::<u32, [u8; 10]>("visits").unwrap();
    store
        .transact(|tx| {
            (0..100).try_for_each(|key| counts.put(tx, &key, &0))?;
            (0..10).try_for_each(|_| visits.append(tx, &1, &[7; 10]))
        })
        .unwrap();
    let statistics = state.statistics().unwrap();
    // The key group, the key, and the value; in the list a place too.
    let found = figures(&statistics, "counts");
    assert_eq!(
        (found.kind, found.rows, found.bytes),
        (StateKind::Value, 100, 100 * (2 + 4 + 8))
    );
    assert_eq!((found.rows_grown, found.bytes_grown), (None, None));
    let found = figures(&statistics, "visits");
    assert_eq!(
        (found.kind, found.rows, found.bytes),
        (StateKind::List, 10, 10 * (2 + 4 + 8 + 10))
    );
    assert!(statistics.checkpoints.is_empty() && statistics.oldest_reader.is_none());
    assert_eq!(statistics.grown_since, None);

    state.checkpoint(5, "").unwrap();
    let later = state.map::<u32, u8, u8>("later").unwrap();
    store
        .transact(|tx| {
            (0..40).try_for_each(|key| counts.delete(tx, &key))?;
            (0..5).try_for_each(|_| visits.append(tx, &2, &[7; 10]))?;
            later.put(tx, &1, &1, &1)
        })
        .unwrap();
    let statistics = state.statistics().unwrap();
    let grown = |name: &str| {
        let found = figures(&statistics, name);
        (found.rows_grown, found.bytes_grown)
    };
    assert_eq!(grown("counts"), (Some(-40), Some(-40 * 14)));
    assert_eq!(grown("visits"), (Some(5), Some(5 * 24)));
    assert_eq!(grown("later"), (Some(1), Some(2 + 4 + 1 + 1)));
    assert_eq!((statistics.grown_since, statistics.checkpoints.len()), (Some(5), 1));
    assert_eq!(statistics.checkpoints[0].id, 5);

    // A worker has the figures of its part.
    let part = |index| figures(&state.worker(index, 3).unwrap().statistics().unwrap(), "counts").rows;
    assert_eq!((0..3).map(part).sum::<u64>(), 60);
}

#[test]
fn bytes_of_large_states_are_estimated_from_some_rows() {
    let store = Store::temporary().unwrap();
    let state = job(&store);
    let texts = state.value::<u32, String>("texts").unwrap();
    let mut rng = Rng::with_seed(seed());
    let lengths: Vec<usize> = (0..30_000).map(|_| rng.usize(0..60)).collect();
    store
        .transact(|tx| {
            (lengths.iter().zip(0u32..)).try_for_each(|(length, key)| texts.put(tx, &key, &"x".repeat(*length)))
        })
        .unwrap();
    let exact: usize = lengths.iter().map(|length| length + 2 + 4).sum();
    let statistics = state.statistics().unwrap();
    let found = figures(&statistics, "texts");
    assert_eq!(found.rows, 30_000);
    let error = found.bytes.abs_diff(exact as u64);
    assert!(error < exact as u64 / 20, "{} for {exact}", found.bytes);

    // One key that has all rows.
    let list = state.list::<u32, u64>("list").unwrap();
    let elements: Vec<u64> = (0..20_000).collect();
    store.transact(|tx| list.append_all(tx, &1, &elements)).unwrap();
    let statistics = state.statistics().unwrap();
    let found = figures(&statistics, "list");
    assert_eq!((found.rows, found.bytes), (20_000, 20_000 * (2 + 4 + 8 + 8)));
}

#[test]
fn figures_above_limits_are_warned_of_with_cause_and_cure() {
    let store = Store::temporary().unwrap();
    let state = job(&store);
    let texts = state.value::<u32, String>("texts").unwrap();
    let fill = |letter: &str| {
        store
            .transact(|tx| (0..500).try_for_each(|key| texts.put(tx, &key, &letter.repeat(200))))
            .unwrap();
    };
    fill("a");
    state.checkpoint(1, "").unwrap();
    fill("b");
    state.checkpoint(2, "").unwrap();
    store
        .transact(|tx| (500..900).try_for_each(|key| texts.put(tx, &key, &"c".repeat(200))))
        .unwrap();
    let snapshot = store.snapshot().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let statistics = state.statistics().unwrap();
    assert_eq!(statistics.warnings(&StateLimits::new()), []);
    let at_limits = StateLimits::new()
        .bytes(900 * 206)
        .growth_bytes(400 * 206)
        .checkpoints(2)
        .checkpoint_bytes(
            statistics.checkpoints[0]
                .bytes_alone
                .max(statistics.checkpoints[1].bytes_alone),
        );
    assert_eq!(statistics.warnings(&at_limits), []);

    assert!(statistics.checkpoints[0].bytes_alone > 100_000, "{statistics:?}");
    let reader = statistics.oldest_reader.expect("the snapshot");
    assert_eq!(
        (reader.id, reader.purpose, reader.process),
        (snapshot.id(), "snapshot", std::process::id())
    );
    let limits = StateLimits::new()
        .bytes(900 * 206 - 1)
        .growth_bytes(400 * 206 - 1)
        .checkpoints(1)
        .checkpoint_bytes(100_000)
        .reader_age(Duration::ZERO);
    let warnings = statistics.warnings(&limits);
    let texts: Vec<String> = warnings.iter().map(StateWarning::to_string).collect();
    assert!(
        matches!(
            &warnings[..],
            [
                StateWarning::Large { bytes: 185_400, .. },
                StateWarning::Grows {
                    bytes: 82_400,
                    since: 2,
                    ..
                },
                StateWarning::ManyCheckpoints {
                    kept: 2,
                    limit: 1,
                    oldest: 1,
                    ..
                },
                StateWarning::LargeCheckpoint { id: 1, .. },
                StateWarning::OldReader { .. },
            ]
        ),
        "{texts:#?}"
    );
    assert_eq!(
        texts[0],
        "state \"texts\" has 185400 bytes, more than 185399; delete keys that are done, or give the job more space"
    );
    let cures = [
        "delete keys",
        "checkpoints more often",
        "`KeyedState::retain`",
        "retain fewer",
        "`Store::end_snapshot`",
    ];
    assert!(
        texts.iter().zip(cures).all(|(text, cure)| text.contains(cure)),
        "{texts:#?}"
    );
    drop(snapshot);
    assert!(state.statistics().unwrap().oldest_reader.is_none());
}
