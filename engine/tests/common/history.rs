//! The model: the state after every commit, and which of them may be what a store shows after a crash.
//!
//! Invariant: `synced <= written <= newest`, all commit numbers; `written` may survive a kill, `synced` a power cut.
//! A commit that was issued and not answered may be there or not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use duramen_engine::{Snapshot, Store};

use super::Checked;

/// Pairs of one map, and the next number of each prefix that was appended to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    pub pairs: BTreeMap<Vec<u8>, Arc<[u8]>>,
    pub appended: BTreeMap<Vec<u8>, u64>,
}

/// Maps by name.
pub type State = BTreeMap<String, Pairs>;

/// All states since the store was last opened. Clones go on by themselves.
#[derive(Debug)]
pub struct History {
    states: BTreeMap<u64, State>,
    /// The newest commit that was answered.
    pub written: u64,
    /// The newest commit that must survive a power cut.
    pub synced: u64,
    /// Whether the newest state is that of a commit without an answer.
    pending: bool,
    /// Where the newest of this history always is, for others.
    shown: Option<Arc<Mutex<History>>>,
}

impl Clone for History {
    fn clone(&self) -> History {
        History {
            states: self.states.clone(),
            shown: None,
            ..*self
        }
    }
}

impl History {
    /// An empty store.
    pub fn new() -> History {
        History {
            states: BTreeMap::from([(0, State::new())]),
            written: 0,
            synced: 0,
            pending: false,
            shown: None,
        }
    }

    /// A history whose newest state is shown in `place` as soon as it changes.
    pub fn shown_in(self, place: &Arc<Mutex<History>>) -> History {
        let shown = Some(Arc::clone(place));
        History { shown, ..self }
    }

    fn show(&self) {
        if let Some(place) = &self.shown {
            *place.lock().expect("no panic") = self.clone();
        }
    }

    /// The state after the newest answered commit.
    pub fn state(&self) -> &State {
        &self.states[&self.written]
    }

    /// The state after a commit.
    pub fn state_at(&self, commit: u64) -> Option<&State> {
        self.states.get(&commit)
    }

    /// A commit is about to be asked for.
    pub fn issue(&mut self, state: State) {
        assert!(!self.pending, "one commit at a time");
        self.states.insert(self.written + 1, state);
        self.pending = true;
        self.show();
    }

    /// The commit that was issued last was answered.
    pub fn answered(&mut self, synced: bool) {
        assert!(self.pending, "an answer without a commit");
        self.pending = false;
        self.written += 1;
        if synced {
            self.synced = self.written;
        }
        self.show();
    }

    /// The commit that was issued last was refused: nothing of it is there.
    pub fn refused(&mut self) {
        assert!(self.pending, "an answer without a commit");
        self.refused_if_pending();
    }

    /// Notes a refusal after an error that may have another cause.
    pub fn refused_if_pending(&mut self) {
        self.pending = false;
        self.states.remove(&(self.written + 1));
        self.show();
    }

    /// Whether the fate of the newest commit is open.
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// Everything answered so far must survive a power cut.
    pub fn all_synced(&mut self) {
        self.synced = self.written;
        self.show();
    }

    /// The store says that this commit survives a power cut.
    pub fn promised(&mut self, commit: u64) {
        self.synced = self.synced.max(commit);
        self.show();
    }

    /// The power went: what was answered without a sync may be gone.
    pub fn power_cut(&mut self) {
        self.written = self.synced;
    }

    /// Compares a store that was just opened, which makes durable what it shows, and goes on from there.
    pub fn recovered(&mut self, store: &Store) -> Checked {
        let found = self.found(store)?;
        let durable = store.snapshot_durable().map_err(|error| error.to_string())?.commit();
        if durable != found {
            return Err(format!(
                "commit {found} was recovered, and {durable} said to be durable"
            ));
        }
        let state = self.states.remove(&found).expect("it was just compared");
        self.states = BTreeMap::from([(found, state)]);
        (self.written, self.synced, self.pending) = (found, found, false);
        Ok(())
    }

    /// Compares a store that goes on after another process died, whose last commit has been decided by now.
    pub fn survived(&mut self, store: &Store) -> Checked {
        let found = self.found(store)?;
        self.states.retain(|&commit, _| commit <= found);
        (self.written, self.pending) = (found, false);
        Ok(())
    }

    /// The commit that a store shows, which may be the newest commit or a commit without an answer.
    fn found(&self, store: &Store) -> Checked<u64> {
        let snapshot = store.snapshot().map_err(|error| format!("a snapshot: {error}"))?;
        let found = snapshot.commit();
        let newest = *self.states.last_key_value().expect("never empty").0;
        if found < self.written || found > newest {
            let (written, synced) = (self.written, self.synced);
            return Err(format!(
                "the store has commit {found}, not one of {written}..={newest} (synced {synced})"
            ));
        }
        compare(store, &snapshot, &self.states[&found]).map_err(|cause| format!("after commit {found}: {cause}"))?;
        Ok(found)
    }

    /// Compares a snapshot of the running store with the state of its commit.
    pub fn compare_snapshot(&self, store: &Store, snapshot: &Snapshot) -> Checked {
        let commit = snapshot.commit();
        let state = self.state_at(commit).ok_or(format!("there was no commit {commit}"))?;
        compare(store, snapshot, state).map_err(|cause| format!("snapshot of commit {commit}: {cause}"))
    }
}

/// Compares everything that a snapshot shows with a state: names, pairs in order, counts.
pub fn compare(store: &Store, snapshot: &Snapshot, expected: &State) -> Checked {
    let text = |error: duramen_engine::Error| error.to_string();
    let names = store.maps().list().map_err(text)?;
    if !names.iter().eq(expected.keys()) {
        let expected: Vec<_> = expected.keys().collect();
        return Err(format!("maps {names:?} instead of {expected:?}"));
    }
    for (name, pairs) in expected {
        let map = store.maps().get(name).map_err(text)?.ok_or(format!("no map {name}"))?;
        compare_pairs(snapshot, &map, pairs).map_err(|cause| format!("map {name}: {cause}"))?;
    }
    Ok(())
}

/// Compares one map.
pub fn compare_pairs(snapshot: &Snapshot, map: &duramen_engine::Map, expected: &Pairs) -> Checked {
    let text = |error: duramen_engine::Error| error.to_string();
    let mut cursor = snapshot.range(map, ..).map_err(text)?;
    for (key, value) in &expected.pairs {
        let Some((found, bytes)) = cursor.next().map_err(text)? else {
            return Err(format!("ends before key {}", key.escape_ascii()));
        };
        if found != key.as_slice() {
            let (found, key) = (found.escape_ascii(), key.escape_ascii());
            return Err(format!("key {found} instead of {key}"));
        }
        if bytes[..] != value[..] {
            let lengths = (bytes.len(), value.len());
            return Err(format!(
                "another value at key {}, lengths {lengths:?}",
                key.escape_ascii()
            ));
        }
    }
    if let Some((found, _)) = cursor.next().map_err(text)? {
        return Err(format!("key {} should not be there", found.escape_ascii()));
    }
    let (count, length) = (snapshot.count(map, ..).map_err(text)?, expected.pairs.len() as u64);
    if count != length {
        return Err(format!("counts {count} pairs instead of {length}"));
    }
    Ok(())
}
