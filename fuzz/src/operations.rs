//! Operations against a `BTreeMap`, through folds, snapshots, reopening, killed processes and power cuts.
//!
//! The model keeps every state since the last one that is known to be synced. A killed process loses nothing; a power
//! cut leaves one of those states. Where a call was cut off in the middle, what it was about to do may be there.

use std::collections::BTreeMap;

use duramen_engine::{Batch, Durability, Maintenance, Map, Options, Snapshot, Store};
use duramen_io::SimDisk;

use super::Input;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const MAP: &str = "model";
/// Operations of one input at most, so that one input takes milliseconds.
const STEPS_MAX: usize = 200;
const HELD_MAX: usize = 4;

/// Runs the bytes as operations.
pub fn operations(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(input.byte() as u64);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.finish();
}

/// One write and what it does to the model.
enum Write {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

impl Write {
    fn read(input: &mut Input<'_>) -> Write {
        match input.byte() % 8 {
            0..5 => Write::Put(key(input), value(input)),
            5 | 6 => Write::Delete(key(input)),
            _ => {
                let (one, other) = (key(input), key(input));
                Write::DeleteRange(one.clone().min(other.clone()), one.max(other))
            }
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Write::Put(key, value) => drop(model.insert(key.clone(), value.clone())),
            Write::Delete(key) => drop(model.remove(key)),
            Write::DeleteRange(low, high) => model.retain(|key, _| !(low <= key && key < high)),
        }
    }

    fn add_to(&self, batch: &mut Batch, map: &Map) {
        let added = match self {
            Write::Put(key, value) => batch.put(map, key, value),
            Write::Delete(key) => batch.delete(map, key),
            Write::DeleteRange(low, high) => batch.delete_range(map, low.as_slice()..high.as_slice()),
        };
        added.expect("keys and values are not too long");
    }
}

fn key(input: &mut Input<'_>) -> Vec<u8> {
    let number = input.byte();
    match number % 8 {
        0 => vec![number; 1 + number as usize % 5],
        1 => [&[b'l'; 1023][..], &[number]].concat(),
        2 => format!("a prefix that several keys share/{number:03}").into_bytes(),
        3 if number < 8 => Vec::new(),
        _ => vec![b'k', number],
    }
}

fn value(input: &mut Input<'_>) -> Vec<u8> {
    let byte = input.byte();
    let length = match byte % 16 {
        0 => 65_537 + byte as usize,
        1 => 64 << 10,
        2..4 => 1195 + byte as usize % 16,
        4 => 0,
        _ => byte as usize,
    };
    vec![byte; length]
}

fn options() -> Options {
    Options::new()
        .maintenance(Maintenance::Manual)
        .overwrite_freed(true)
        .generation_bytes(128 << 10, 256 << 10)
        .durability(Durability::Written)
}

struct World {
    disk: SimDisk,
    store: Store,
    map: Map,
    /// What the store may hold after a power cut: from the last synced state to the newest one.
    states: Vec<Model>,
    held: Vec<(Snapshot, Model)>,
}

impl World {
    fn new(seed: u64) -> World {
        World::open(SimDisk::new(seed), vec![Model::new()])
    }

    fn open(disk: SimDisk, states: Vec<Model>) -> World {
        let store = options().open_on(disk.platform()).expect("the disk does not fail");
        let map = store.map(MAP).expect("the disk does not fail");
        World {
            disk,
            store,
            map,
            states,
            held: Vec::new(),
        }
    }

    fn now(&self) -> &Model {
        self.states.last().expect("there is always a newest state")
    }

    fn committed(&mut self, next: Model, durability: Durability) {
        self.states.push(next);
        if durability == Durability::Synced {
            self.synced();
        }
    }

    fn synced(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 24 {
            0..6 => self.single(input),
            6..9 => self.batch(input),
            9..12 => self.transaction(input),
            12..14 => self.store.maintain().expect("the disk does not fail"),
            14 | 15 => self.hold(),
            16 | 17 => self.look_back(input),
            18 => {
                self.store.sync().expect("the disk does not fail");
                self.synced();
            }
            19 => self.read(input),
            20 => self.reopen(),
            21 => self.lose(input, false),
            22 => self.lose(input, true),
            _ => self.die(input),
        }
    }

    fn single(&mut self, input: &mut Input<'_>) {
        let (write, durability) = (Write::read(input), durability(input));
        let map = self.map.with_durability(durability);
        let done = match &write {
            Write::Put(key, value) => map.put(key, value),
            Write::Delete(key) => map.delete(key),
            Write::DeleteRange(low, high) => map.delete_range(low.as_slice()..high.as_slice()),
        };
        done.expect("the disk does not fail");
        let mut next = self.now().clone();
        write.apply(&mut next);
        // An empty range makes no commit.
        let is_commit = !matches!(&write, Write::DeleteRange(low, high) if low == high);
        self.committed(next, if is_commit { durability } else { Durability::Written });
    }

    /// A batch, the state it leads to, and how durable it is.
    fn draft(&self, input: &mut Input<'_>) -> (Batch, Model, Durability) {
        let mut batch = Batch::new();
        let mut next = self.now().clone();
        // Range deletes of a batch come before its other writes, in whatever order they were called.
        let mut writes: Vec<Write> = (0..1 + input.byte() % 8).map(|_| Write::read(input)).collect();
        writes.sort_by_key(|write| !matches!(write, Write::DeleteRange(..)));
        for write in &writes {
            write.add_to(&mut batch, &self.map);
            write.apply(&mut next);
        }
        let durability = durability(input);
        batch.durability(durability);
        (batch, next, durability)
    }

    fn batch(&mut self, input: &mut Input<'_>) {
        let (batch, next, durability) = self.draft(input);
        let is_empty = batch.is_empty();
        self.store.write(batch).expect("the disk does not fail");
        self.committed(next, if is_empty { Durability::Written } else { durability });
    }

    fn transaction(&mut self, input: &mut Input<'_>) {
        let mut transaction = self.store.begin(Default::default()).expect("the disk does not fail");
        let mut next = self.now().clone();
        let mut savepoint = None;
        for _ in 0..input.byte() % 16 {
            match input.byte() % 8 {
                0 => savepoint = Some((transaction.savepoint().expect("there are few"), next.clone())),
                1 => {
                    if let Some((savepoint, before)) = &savepoint {
                        transaction.rollback_to(savepoint).expect("it is still there");
                        next = before.clone();
                    }
                }
                2 => {
                    let count = transaction.count(&self.map, ..).expect("nothing is damaged");
                    assert_eq!(count, next.len() as u64);
                }
                _ => {
                    let write = Write::read(input);
                    let done = match &write {
                        Write::Put(key, value) => transaction.put(&self.map, key, value),
                        Write::Delete(key) => transaction.delete(&self.map, key),
                        Write::DeleteRange(low, high) => {
                            transaction.delete_range(&self.map, low.as_slice()..high.as_slice())
                        }
                    };
                    done.expect("the disk does not fail");
                    write.apply(&mut next);
                }
            }
        }
        if !input.byte().is_multiple_of(4) {
            transaction.commit().expect("nobody else writes");
            self.committed(next, Durability::Written);
        }
    }

    fn hold(&mut self) {
        if self.held.len() < HELD_MAX {
            let snapshot = self.store.snapshot().expect("there are few");
            self.held.push((snapshot, self.now().clone()));
        }
    }

    fn look_back(&mut self, input: &mut Input<'_>) {
        if !self.held.is_empty() {
            let (snapshot, model) = self.held.swap_remove(input.byte() as usize % self.held.len());
            assert_holds(&snapshot, &self.map, &model);
        }
        let durable = self.store.snapshot_durable().expect("there are few");
        let content = content(&durable, &self.map);
        assert!(
            self.states.contains(&content),
            "what is said to be durable was never there"
        );
    }

    fn read(&self, input: &mut Input<'_>) {
        let snapshot = self.store.snapshot().expect("there are few");
        for _ in 0..4 {
            let (one, other) = (key(input), key(input));
            let value = snapshot.get(&self.map, &one).expect("nothing is damaged");
            assert_eq!(value.as_deref(), self.now().get(&one).map(Vec::as_slice));
            let (low, high) = (one.clone().min(other.clone()), one.max(other));
            let count = snapshot
                .count(&self.map, low.as_slice()..high.as_slice())
                .expect("nothing is damaged");
            assert_eq!(count, self.now().range(low.clone()..high).count() as u64);
            let mut cursor = snapshot.range(&self.map, ..).expect("nothing is damaged");
            cursor.seek(&low).expect("nothing is damaged");
            let before = cursor.prev().expect("nothing is damaged").map(|(key, _)| key.to_vec());
            assert_eq!(before.as_ref(), self.now().range(..low).next_back().map(|(key, _)| key));
        }
    }

    /// Closes the store and opens it again.
    fn reopen(&mut self) {
        self.held.clear();
        let last = self.now().clone();
        let disk = self.disk.clone();
        let next = |world: &mut World| {
            let other = World::open(SimDisk::new(0), vec![Model::new()]);
            let World { store, map, .. } = std::mem::replace(world, other);
            drop(map);
            store.close().expect("the disk does not fail");
        };
        next(self);
        *self = World::open(disk, vec![last]);
        self.assert_sound();
    }

    /// The process is killed, or the power is cut, and the store is opened by the next one.
    fn lose(&mut self, input: &mut Input<'_>, power: bool) {
        let allowed = if power {
            self.states.clone()
        } else {
            vec![self.now().clone()]
        };
        let seed = input.byte() as u64;
        let disk = if power {
            self.disk.power_cut(seed)
        } else {
            self.disk.kill()
        };
        self.go_on(disk, &allowed);
    }

    /// Goes on with another disk, on which the store must hold one of these states.
    fn go_on(&mut self, disk: SimDisk, allowed: &[Model]) {
        self.held.clear();
        // The old store has nobody to close it for.
        self.disk.stop_after(0);
        let mut world = World::open(disk, Vec::new());
        let snapshot = world.store.snapshot().expect("there are few");
        let content = content(&snapshot, &world.map);
        drop(snapshot);
        assert!(
            allowed.contains(&content),
            "the store holds what was never there, or not what must be there"
        );
        world.states.push(content);
        *self = world;
        self.assert_sound();
    }

    /// The process, or the machine, dies in the middle of a call.
    fn die(&mut self, input: &mut Input<'_>) {
        let power = input.byte().is_multiple_of(2);
        self.disk.stop_after(input.byte() as u64 % 12);
        if input.byte().is_multiple_of(3) {
            let _ = self.store.maintain();
        }
        let (batch, next, durability) = self.draft(input);
        let mut allowed = self.states.clone();
        match self.store.write(batch) {
            Ok(_) if durability == Durability::Synced => allowed = vec![next],
            Ok(_) if !power => allowed = vec![next],
            Ok(_) => allowed.push(next),
            Err(_) => {
                if !power {
                    allowed.drain(..allowed.len() - 1);
                }
                allowed.push(next);
            }
        }
        let seed = input.byte() as u64;
        let disk = if power {
            self.disk.power_cut(seed)
        } else {
            self.disk.kill()
        };
        self.go_on(disk, &allowed);
    }

    fn assert_sound(&self) {
        let report = self.store.check(&mut |_| ()).expect("nothing is damaged");
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }

    fn finish(self) {
        for (snapshot, model) in &self.held {
            assert_holds(snapshot, &self.map, model);
        }
        assert_holds(&self.store.snapshot().expect("there are few"), &self.map, self.now());
        self.assert_sound();
    }
}

fn durability(input: &mut Input<'_>) -> Durability {
    if input.byte().is_multiple_of(4) {
        Durability::Synced
    } else {
        Durability::Written
    }
}

fn content(snapshot: &Snapshot, map: &Map) -> Model {
    let mut content = Model::new();
    let mut cursor = snapshot.range(map, ..).expect("nothing is damaged");
    while let Some((key, value)) = cursor.next().expect("nothing is damaged") {
        let after = content.last_key_value().is_none_or(|(last, _)| last.as_slice() < key);
        assert!(after, "keys ascend");
        content.insert(key.to_vec(), value.to_vec());
    }
    content
}

fn assert_holds(snapshot: &Snapshot, map: &Map, model: &Model) {
    assert!(content(snapshot, map) == *model, "a snapshot differs from the model");
    let mut cursor = snapshot.range(map, ..).expect("nothing is damaged");
    cursor.seek_end();
    for (key, value) in model.iter().rev() {
        let (found, bytes) = cursor.prev().expect("nothing is damaged").expect("as many as forwards");
        assert!(found == key.as_slice() && *bytes == **value);
    }
}
