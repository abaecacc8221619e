//! Random work on a store and on its model: every kind of commit, syncs, maintenance, snapshots held over it.
//!
//! Two sources of random numbers: `shape` decides what is done and how long values are, `content` what is in them. So
//! the same shape can be run again after a crash, and its records fall on the places of the lost ones.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use duramen_engine::{Batch, Durability, Map, Snapshot, Store, TransactionOptions};
use fastrand::Rng;

use super::history::{History, Pairs, State, compare_pairs};
use super::{Checked, forged};

const NAMES: [&str; 4] = ["accounts", "b", "c", "a map with a longer name"];
/// Two counters whose sum stays zero, whatever is lost; no range delete reaches them.
const LEFT: (&str, &[u8]) = ("accounts", b"~left");
const RIGHT: (&str, &[u8]) = ("b", b"~right");

/// Why work ended early.
#[derive(Debug)]
pub enum Ended {
    /// The store returned an error.
    Stopped(duramen_engine::Error),
    /// The store gave a wrong answer.
    Wrong(String),
}

impl From<duramen_engine::Error> for Ended {
    fn from(error: duramen_engine::Error) -> Ended {
        Ended::Stopped(error)
    }
}

type Step = Result<(), Ended>;

/// A map to work on.
struct Target {
    name: String,
    map: Map,
    is_synced: bool,
}

/// A run of random work.
pub struct Workload {
    shape: Rng,
    content: Rng,
    /// Which of several processes does it.
    who: Rng,
    /// Snapshots that are held, with what they must show.
    held: Vec<(Snapshot, Map, Pairs)>,
}

impl Workload {
    pub fn new(shape: u64, content: u64) -> Workload {
        Workload {
            shape: Rng::with_seed(shape),
            content: Rng::with_seed(content),
            who: Rng::with_seed(!shape),
            held: Vec::new(),
        }
    }

    /// Does up to `steps` things.
    pub fn run(&mut self, store: &Store, history: &mut History, steps: u32) -> Step {
        self.run_among(std::slice::from_ref(store), history, steps)
    }

    /// Runs steps in several processes that share the store, each step in any of them.
    pub fn run_among(&mut self, stores: &[Store], history: &mut History, steps: u32) -> Step {
        for _ in 0..steps {
            let who = self.who.usize(..stores.len());
            self.step(&stores[who], history)?;
        }
        for store in stores {
            let now = store.snapshot()?.commit();
            if now != history.written {
                return Err(wrong(format!("commit {now} instead of {}", history.written)));
            }
        }
        let who = self.who.usize(..stores.len());
        self.look(&stores[who])
    }

    fn step(&mut self, store: &Store, history: &mut History) -> Step {
        let state = history.state().clone();
        let Some(target) = self.any_map(store, &state)? else {
            return self.create(store, history, state);
        };
        match self.shape.u32(..100) {
            0..32 => self.put(&target, history, state),
            32..39 => self.delete(&target, history, state),
            39..43 => self.delete_range(&target, history, state),
            43..53 => self.batch(store, &target, history, state),
            53..63 => self.transaction(store, &target, history, state),
            63..68 => self.append(&target, history, state),
            68..72 => self.add(&target, history, state),
            72..75 => self.create(store, history, state),
            75..77 => self.rename(store, &target.name, history, state),
            77..79 => self.drop(store, &target.name, history, state),
            79..84 => {
                store.sync()?;
                history.all_synced();
                Ok(())
            }
            84..90 => {
                store.maintain()?;
                self.look(store)
            }
            90..94 => self.hold(store, &target, &state),
            94..98 => look_durable(store, history),
            _ => self.look(store),
        }
    }

    fn any_map(&mut self, store: &Store, state: &State) -> Result<Option<Target>, Ended> {
        if state.is_empty() {
            return Ok(None);
        }
        let name = state
            .keys()
            .nth(self.shape.usize(..state.len()))
            .expect("in range")
            .clone();
        let map = store
            .maps()
            .get(&name)?
            .ok_or_else(|| wrong(format!("no map {name}")))?;
        let durability = self.durability();
        Ok(Some(Target {
            name,
            map: map.with_durability(durability),
            is_synced: durability == Durability::Synced,
        }))
    }

    fn durability(&mut self) -> Durability {
        if self.shape.u8(..10) < 3 {
            Durability::Synced
        } else {
            Durability::Written
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.shape.u32(..40);
        match number % 8 {
            0 => [
                &b"long"[..],
                &vec![b'k'; 40 * number as usize / 2],
                &number.to_be_bytes(),
            ]
            .concat(),
            1 => vec![number as u8],
            _ => format!("key {number:03}").into_bytes(),
        }
    }

    fn range(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (one, other) = (self.key(), self.key());
        if one <= other { (one, other) } else { (other, one) }
    }

    fn value(&mut self) -> Arc<[u8]> {
        let length = match self.shape.u32(..100) {
            0..4 => 0,
            4..55 => self.shape.usize(1..200),
            55..60 => 88,
            60..96 => self.shape.usize(1000..6000),
            _ => self.shape.usize((64 << 10) + 1..80 << 10),
        };
        let mut value = vec![0; length];
        self.content.fill(&mut value);
        // Now and then what looks like a log.
        let forged = match self.content.u8(..32) {
            0 => &forged::log_of_another_store()[4096..],
            1 => forged::headers_of_any_generation(),
            _ => &[],
        };
        // Records begin at multiples of eight bytes; where values begin depends on their keys.
        let start = self.content.usize(..8).min(value.len());
        let taken = forged.len().min(value.len() - start);
        value[start..start + taken].copy_from_slice(&forged[..taken]);
        value.into()
    }

    fn put(&mut self, target: &Target, history: &mut History, mut state: State) -> Step {
        let (key, value) = (self.key(), self.value());
        pairs(&mut state, &target.name).insert(key.clone(), value.clone());
        history.issue(state);
        if self.shape.u8(..8) == 0 {
            target.map.put_stream(&key, value.len() as u64, &mut &value[..])?;
        } else {
            target.map.put(&key, &value)?;
        }
        history.answered(target.is_synced);
        Ok(())
    }

    fn delete(&mut self, target: &Target, history: &mut History, mut state: State) -> Step {
        let key = self.key();
        pairs(&mut state, &target.name).remove(&key);
        history.issue(state);
        target.map.delete(&key)?;
        history.answered(target.is_synced);
        Ok(())
    }

    fn delete_range(&mut self, target: &Target, history: &mut History, mut state: State) -> Step {
        let (low, mut high) = self.range();
        high.push(0);
        remove_range(pairs(&mut state, &target.name), &low, &high);
        history.issue(state);
        target.map.delete_range(low.as_slice()..high.as_slice())?;
        history.answered(target.is_synced);
        Ok(())
    }

    fn batch(&mut self, store: &Store, target: &Target, history: &mut History, mut state: State) -> Step {
        let mut batch = Batch::new();
        let durability = self.durability();
        batch.durability(durability);
        for _ in 0..self.shape.usize(1..6) {
            match self.shape.u32(..6) {
                0 => {
                    let key = self.key();
                    batch.delete(&target.map, &key)?;
                    pairs(&mut state, &target.name).remove(&key);
                }
                1 => {
                    let (low, high) = self.range();
                    batch.delete_range(&target.map, low.as_slice()..high.as_slice())?;
                    remove_range(pairs(&mut state, &target.name), &low, &high);
                }
                _ => {
                    let (key, value) = (self.key(), self.value());
                    batch.put(&target.map, &key, &value)?;
                    pairs(&mut state, &target.name).insert(key, value);
                }
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        history.issue(state);
        let commit = store.write(batch)?;
        if commit.number() != history.written + 1 {
            // A batch that deletes an empty range alone commits nothing.
            history.refused();
            return Ok(());
        }
        history.answered(durability == Durability::Synced);
        Ok(())
    }

    /// Moves an amount between two counters in two maps, and writes something beside it.
    fn transaction(&mut self, store: &Store, target: &Target, history: &mut History, mut state: State) -> Step {
        let durability = self.durability();
        let mut options = TransactionOptions::new().durability(durability);
        if self.shape.u8(..3) == 0 {
            // Larger than its memory: most of its writes go to the data file before it commits.
            options = options.memory_bytes(self.shape.usize(..4000));
        }
        let mut tx = store.begin(options)?;
        let amount = self.shape.i64(-1000..1000);
        for ((in_map, counter), delta) in [(LEFT, -amount), (RIGHT, amount)] {
            let map = tx.map(in_map)?;
            tx.add(&map, counter, delta)?;
            add(state.entry(in_map.into()).or_default(), counter, delta);
        }
        for _ in 0..self.shape.usize(..4) {
            let (key, value) = (self.key(), self.value());
            if self.shape.bool() {
                tx.put(&target.map, &key, &value)?;
                pairs(&mut state, &target.name).insert(key, value);
            } else {
                let savepoint = tx.savepoint()?;
                tx.delete(&target.map, &key)?;
                if self.shape.bool() {
                    tx.rollback_to(&savepoint)?;
                } else {
                    pairs(&mut state, &target.name).remove(&key);
                }
            }
        }
        if self.shape.u8(..4) == 0 {
            let count = self.shape.usize(..20);
            let sorted: BTreeMap<_, _> = (0..count).map(|_| (self.key(), self.value())).collect();
            tx.put_sorted(&target.map, &sorted)?;
            pairs(&mut state, &target.name).extend(sorted);
        }
        history.issue(state);
        let commit = tx.commit()?;
        if commit.number() != history.written + 1 {
            return Err(wrong(format!("the transaction is commit {}", commit.number())));
        }
        history.answered(durability == Durability::Synced);
        Ok(())
    }

    fn append(&mut self, target: &Target, history: &mut History, mut state: State) -> Step {
        let prefix: &[u8] = if self.shape.bool() { b"topic/" } else { b"" };
        let value = self.value();
        let pairs = state.get_mut(&target.name).expect("the map was just found");
        let number = pairs.appended.entry(prefix.to_vec()).or_default();
        let expected = *number;
        *number += 1;
        pairs
            .pairs
            .insert([prefix, &expected.to_be_bytes()].concat(), value.clone());
        history.issue(state);
        let number = target.map.append(prefix, &value)?;
        if number != expected {
            return Err(wrong(format!("an append got number {number} instead of {expected}")));
        }
        history.answered(target.is_synced);
        Ok(())
    }

    fn add(&mut self, target: &Target, history: &mut History, mut state: State) -> Step {
        let delta = self.shape.i64(-1000..1000);
        let expected = add(
            state.get_mut(&target.name).expect("the map was just found"),
            b"sum",
            delta,
        );
        history.issue(state);
        let sum = target.map.add(b"sum", delta)?;
        if sum != expected {
            return Err(wrong(format!("an addition gave {sum} instead of {expected}")));
        }
        history.answered(target.is_synced);
        Ok(())
    }

    fn create(&mut self, store: &Store, history: &mut History, mut state: State) -> Step {
        let name = NAMES[self.shape.usize(..NAMES.len())];
        if state.contains_key(name) {
            store.map(name)?;
            return Ok(());
        }
        state.insert(name.into(), Pairs::default());
        history.issue(state);
        store.map(name)?;
        history.answered(false);
        Ok(())
    }

    fn rename(&mut self, store: &Store, name: &str, history: &mut History, mut state: State) -> Step {
        let to = NAMES[self.shape.usize(..NAMES.len())];
        // The maps of the two counters keep their names.
        if state.contains_key(to) || [name, to].iter().any(|name| [LEFT.0, RIGHT.0].contains(name)) {
            return Ok(());
        }
        let pairs = state.remove(name).expect("the map was just found");
        state.insert(to.into(), pairs);
        history.issue(state);
        store.maps().rename(name, to)?;
        history.answered(false);
        Ok(())
    }

    fn drop(&mut self, store: &Store, name: &str, history: &mut History, mut state: State) -> Step {
        if [LEFT.0, RIGHT.0].contains(&name) {
            return Ok(());
        }
        state.remove(name);
        history.issue(state);
        store.maps().drop(name)?;
        history.answered(false);
        Ok(())
    }

    fn hold(&mut self, store: &Store, target: &Target, state: &State) -> Step {
        if self.held.len() < 3 {
            self.held
                .push((store.snapshot()?, target.map.clone(), state[&target.name].clone()));
        } else {
            let index = self.shape.usize(..self.held.len());
            self.held.swap_remove(index);
        }
        Ok(())
    }

    /// Held snapshots show what they showed, and nothing is leaked or used twice.
    fn look(&mut self, store: &Store) -> Step {
        for (snapshot, map, pairs) in &self.held {
            // The map may have been dropped since; the snapshot's handle then refuses it.
            if store.maps().get(map.name())?.is_some() {
                match compare_pairs(snapshot, map, pairs) {
                    Err(cause) if cause.contains("was dropped") => {}
                    found => found.map_err(|cause| wrong(format!("a held snapshot: {cause}")))?,
                }
            }
        }
        Ok(())
    }
}

/// What is said to be durable is something that was committed, and must now survive.
fn look_durable(store: &Store, history: &mut History) -> Step {
    let snapshot = store.snapshot_durable()?;
    let commit = snapshot.commit();
    if commit < history.synced || commit > history.written {
        let (synced, written) = (history.synced, history.written);
        return Err(wrong(format!(
            "commit {commit} is said to be durable, not one of {synced}..={written}"
        )));
    }
    let state = history.state_at(commit).expect("it is between two that are known");
    // These maps are never renamed or dropped, so that their handles fit the older snapshot.
    for name in [LEFT.0, RIGHT.0] {
        if let Some(map) = store.maps().get(name)? {
            let pairs = state.get(name).cloned().unwrap_or_default();
            compare_pairs(&snapshot, &map, &pairs)
                .map_err(|cause| wrong(format!("the durable snapshot of commit {commit}, map {name}: {cause}")))?;
        }
    }
    history.promised(commit);
    Ok(())
}

/// The store has no problems that its own check finds, and the counters add up.
pub fn check_sound(store: &Store) -> Checked {
    let report = store
        .check(&mut |_| ())
        .map_err(|error| format!("the check: {error}"))?;
    if !report.problems.is_empty() {
        return Err(format!("the check found {:?}", report.problems));
    }
    let counter = |(name, key): (&str, &[u8])| -> Result<i64, duramen_engine::Error> {
        let Some(map) = store.maps().get(name)? else {
            return Ok(0);
        };
        Ok(map
            .get(key)?
            .map_or(0, |bytes| i64::from_be_bytes(bytes.try_into().expect("eight bytes"))))
    };
    let sum = counter(LEFT)
        .and_then(|left| Ok(left + counter(RIGHT)?))
        .map_err(|error| error.to_string())?;
    if sum != 0 {
        Err(format!("the counters add up to {sum}"))
    } else {
        Ok(())
    }
}

fn wrong(message: String) -> Ended {
    Ended::Wrong(message)
}

fn pairs<'a>(state: &'a mut State, name: &str) -> &'a mut std::collections::BTreeMap<Vec<u8>, Arc<[u8]>> {
    &mut state.get_mut(name).expect("the map was just found").pairs
}

fn remove_range(pairs: &mut std::collections::BTreeMap<Vec<u8>, Arc<[u8]>>, low: &[u8], high: &[u8]) {
    let range = (Bound::Included(low), Bound::Excluded(high));
    let keys: Vec<Vec<u8>> = pairs.range::<[u8], _>(range).map(|(key, _)| key.clone()).collect();
    keys.iter().for_each(|key| {
        pairs.remove(key);
    });
}

fn add(pairs: &mut Pairs, key: &[u8], delta: i64) -> i64 {
    let before = pairs.pairs.get(key).map_or(0, |bytes| {
        i64::from_be_bytes(bytes[..].try_into().expect("eight bytes"))
    });
    pairs
        .pairs
        .insert(key.to_vec(), Arc::from((before + delta).to_be_bytes().as_slice()));
    before + delta
}
