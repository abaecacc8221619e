//! The state of a job: opening it, and declaring its states.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use duramen_engine::encoding::DecodeKey;
use duramen_engine::{Map, Result, Store, Transaction};

use super::definition::{Definition, JOB_KEY, check_name, job_map, job_row, parse_job, state_map};
use super::error::StateError;
use super::key_groups::KeyGroups;
use super::kind::StateKind;
use super::list::ListState;
use super::map::MapState;
use super::rows::Rows;
use super::value::ValueState;
use crate::codec::ValueCodec;

/// The state of a job, as far as this worker owns it. Clones are handles of the same state.
///
/// [The module](super) has an example, and tells where the rows are.
#[derive(Clone)]
pub struct KeyedState {
    pub(super) store: Store,
    pub(super) job: Arc<str>,
    pub(super) definitions: Map,
    groups: KeyGroups,
    own: Range<u16>,
}

impl fmt::Debug for KeyedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedState")
            .field("job", &self.job)
            .field("key_groups", &self.groups.count())
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

impl KeyedState {
    /// Opens the state of a job, with all key groups. Makes it when it is missing.
    ///
    /// `max_key_groups` is fixed when the job is made, and is the maximum number of workers:
    /// [`KEY_GROUPS_DEFAULT`](super::KEY_GROUPS_DEFAULT), unless there may be more. Call this outside of transactions.
    ///
    /// # Errors
    /// [`StateError::OtherKeyGroups`], [`StateError::InvalidKeyGroups`], [`StateError::InvalidName`], [`StateError::MapInUse`]; those
    /// of a commit when the job is made.
    pub fn open(store: &Store, job: &str, max_key_groups: u16) -> Result<KeyedState> {
        check_name("job", job)?;
        let groups = KeyGroups::new(max_key_groups)?;
        let definitions = match job_in(store, job)? {
            Some((map, found)) => refuse_other_groups(job, found, max_key_groups).map(|()| map)?,
            None => store.transact(|tx| make_job(tx, job, max_key_groups))?,
        };
        Ok(KeyedState {
            store: store.clone(),
            job: job.into(),
            definitions,
            groups,
            own: 0..max_key_groups,
        })
    }

    /// The state restricted to the key groups that a worker owns: worker `index`, counted from 0, of so many. Another number of
    /// workers needs no rewriting: each opens its range. Workers may be threads or processes.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = duramen::Store::open(directory.path())?;
    /// use duramen::state::{KeyedState, StateError};
    ///
    /// let job = KeyedState::open(&store, "clicks", 128)?;
    /// let owner = job.key_groups().worker_of(job.key_groups().of_key::<String>("ada"), 2)?;
    /// let other = job.worker(1 - owner, 2)?.value::<String, u64>("counts")?;
    /// let refused = other.get(&store.snapshot()?, "ada").unwrap_err();
    /// assert!(matches!(StateError::of(&refused), Some(StateError::OtherWorker { .. })));
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`StateError::InvalidWorker`].
    pub fn worker(&self, index: u16, workers: u16) -> Result<KeyedState> {
        let own = self.groups.of_worker(index, workers)?;
        Ok(KeyedState { own, ..self.clone() })
    }

    /// The name of the job.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The key groups of the job.
    pub fn key_groups(&self) -> KeyGroups {
        self.groups
    }

    /// The key groups that this handle may use.
    pub fn own_key_groups(&self) -> Range<u16> {
        self.own.clone()
    }

    /// A state with one value for each key. Declares it when it is missing; call this outside of transactions.
    ///
    /// # Errors
    /// [`StateError::OtherKind`], [`StateError::OtherTypes`], [`StateError::InvalidName`], [`StateError::MapInUse`]; those of a commit
    /// when the state is declared.
    pub fn value<K: DecodeKey, V: ValueCodec>(&self, name: &str) -> Result<ValueState<K, V>> {
        let asked = Definition::of::<(K, V)>(StateKind::Value);
        Ok(ValueState::new(self.declare(name, &asked)?))
    }

    /// A state with a list for each key; see [`KeyedState::value`].
    ///
    /// # Errors
    /// As [`KeyedState::value`].
    pub fn list<K: DecodeKey, V: ValueCodec>(&self, name: &str) -> Result<ListState<K, V>> {
        let asked = Definition::of::<(K, V)>(StateKind::List);
        Ok(ListState::new(self.declare(name, &asked)?))
    }

    /// A state with an ordered map for each key, whose keys are `M`; see [`KeyedState::value`].
    ///
    /// # Errors
    /// As [`KeyedState::value`].
    pub fn map<K: DecodeKey, M: DecodeKey, V: ValueCodec>(&self, name: &str) -> Result<MapState<K, M, V>> {
        let asked = Definition::of::<(K, M, V)>(StateKind::Map);
        Ok(MapState::new(self.declare(name, &asked)?))
    }

    /// The names of the states that were declared, and their kinds.
    ///
    /// # Errors
    /// Those of reading; [`StateError::InvalidDefinition`].
    pub fn states(&self) -> Result<Vec<(String, StateKind)>> {
        let snapshot = self.store.snapshot()?;
        let mut states = Vec::new();
        for pair in snapshot.range(&self.definitions, ..)? {
            let (name, row) = pair?;
            let name = String::from_utf8_lossy(&name).into_owned();
            if name != JOB_KEY {
                let kind = Definition::parse(&self.job, &name, &row)?.kind;
                states.push((name, kind));
            }
        }
        Ok(states)
    }

    /// Forgets the types that a state was declared with: the next program that opens it decides. For types that were renamed, and
    /// whose stored form is as before. Nothing is rewritten.
    ///
    /// # Errors
    /// [`StateError::UnknownState`]; those of a commit.
    pub fn retype(&self, name: &str) -> Result<()> {
        self.store.transact(|tx| {
            let mut definition = self.declared(tx, name)?.ok_or_else(|| self.unknown(name))?;
            definition.types.clear();
            tx.put(&self.definitions, name, definition.row())
        })
    }

    /// Drops a state with all its rows, of all workers. Checkpoints keep what they have.
    ///
    /// # Errors
    /// [`StateError::UnknownState`]; those of a commit.
    pub fn drop_state(&self, name: &str) -> Result<()> {
        self.store.transact(|tx| {
            self.declared(tx, name)?.ok_or_else(|| self.unknown(name))?;
            tx.delete(&self.definitions, name)?;
            tx.drop_map(&state_map(&self.job, name))
        })
    }

    pub(super) fn unknown(&self, name: &str) -> StateError {
        StateError::UnknownState {
            job: self.job.to_string(),
            name: name.to_string(),
        }
    }

    /// The rows in a map that the handle may use.
    pub(super) fn rows(&self, map: Map, name: &str) -> Rows {
        Rows {
            map,
            job: Arc::clone(&self.job),
            state: name.into(),
            groups: self.groups,
            own: self.own.clone(),
        }
    }

    fn declared(&self, tx: &Transaction, name: &str) -> Result<Option<Definition>> {
        let row = tx.get(&self.definitions, name)?;
        row.map(|row| Definition::parse(&self.job, name, &row)).transpose()
    }

    fn declare(&self, name: &str, asked: &Definition) -> Result<Rows> {
        check_name("state", name)?;
        let map_name = state_map(&self.job, name);
        // A state that exists is opened without a commit, so that stores which are only read can be asked.
        if let Some(row) = self.definitions.get(name)? {
            let found = Definition::parse(&self.job, name, &row)?;
            found.admit(&self.job, name, asked)?;
            if !found.types.is_empty()
                && let Some(map) = self.store.maps().get(&map_name)?
            {
                return Ok(self.rows(map, name));
            }
        }
        let map = self.store.transact(|tx| {
            let found = self.declared(tx, name)?;
            let map = tx.map(&map_name)?;
            match found {
                Some(found) => found.admit(&self.job, name, asked)?,
                None if tx.is_empty(&map)? => {}
                None => return Err(in_use(&map_name)),
            }
            tx.put(&self.definitions, name, asked.row())?;
            Ok::<Map, duramen_engine::Error>(map)
        })?;
        Ok(self.rows(map, name))
    }
}

/// The map of a job's definitions and its number of key groups, if the job was made.
fn job_in(store: &Store, job: &str) -> Result<Option<(Map, u16)>> {
    let Some(map) = store.maps().get(&job_map(job))? else {
        return Ok(None);
    };
    let row = map.get(JOB_KEY)?;
    let found = row.map(|row| parse_job(job, &row)).transpose()?;
    Ok(found.map(|found| (map, found)))
}

fn make_job(tx: &mut Transaction, job: &str, key_groups: u16) -> Result<Map> {
    let map = tx.map(&job_map(job))?;
    match tx.get(&map, JOB_KEY)? {
        // Another process was faster.
        Some(row) => refuse_other_groups(job, parse_job(job, &row)?, key_groups)?,
        None if tx.is_empty(&map)? => tx.put(&map, JOB_KEY, job_row(key_groups))?,
        None => return Err(in_use(map.name())),
    }
    Ok(map)
}

fn refuse_other_groups(job: &str, found: u16, asked: u16) -> Result<()> {
    if found == asked {
        return Ok(());
    }
    let job = job.to_string();
    Err(StateError::OtherKeyGroups { job, found, asked }.into())
}

fn in_use(map: &str) -> duramen_engine::Error {
    StateError::MapInUse { map: map.to_string() }.into()
}
