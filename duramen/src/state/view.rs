//! The states of a job at a checkpoint.

use std::fmt;

use duramen_engine::encoding::DecodeKey;
use duramen_engine::{Map, Result, Snapshot};

use super::definition::{Definition, state_map};
use super::keyed_state::KeyedState;
use super::kind::StateKind;
use super::list::ListState;
use super::map::MapState;
use super::rows::Rows;
use super::value::ValueState;
use crate::codec::ValueCodec;

/// The states of a job as they were at a checkpoint; see [`KeyedState::at`]. It is a reader: what it shows stays until it is
/// dropped, in the space of the store too.
///
/// Its states are read with [`StateView::snapshot`]. A state that was declared later is unknown here.
pub struct StateView {
    state: KeyedState,
    snapshot: Snapshot,
    definitions: Map,
}

impl fmt::Debug for StateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateView")
            .field("state", &self.state)
            .field("commit", &self.snapshot.commit())
            .finish_non_exhaustive()
    }
}

impl StateView {
    /// `None`: the snapshot has no job of this name.
    pub(super) fn new(state: &KeyedState, snapshot: Snapshot) -> Result<Option<StateView>> {
        let definitions = snapshot.map(state.definitions.name())?;
        Ok(definitions.map(|definitions| StateView {
            state: state.clone(),
            snapshot,
            definitions,
        }))
    }

    /// The snapshot of the checkpoint.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// A state with one value for each key.
    ///
    /// # Errors
    /// [`super::StateError::UnknownState`], [`super::StateError::OtherKind`], [`super::StateError::OtherTypes`]; those of reading.
    pub fn value<K: DecodeKey, V: ValueCodec>(&self, name: &str) -> Result<ValueState<K, V>> {
        let asked = Definition::of::<(K, V)>(StateKind::Value);
        Ok(ValueState::new(self.declared(name, &asked)?))
    }

    /// A state with a list for each key.
    ///
    /// # Errors
    /// As [`StateView::value`].
    pub fn list<K: DecodeKey, V: ValueCodec>(&self, name: &str) -> Result<ListState<K, V>> {
        let asked = Definition::of::<(K, V)>(StateKind::List);
        Ok(ListState::new(self.declared(name, &asked)?))
    }

    /// A state with a map for each key.
    ///
    /// # Errors
    /// As [`StateView::value`].
    pub fn map<K: DecodeKey, M: DecodeKey, V: ValueCodec>(&self, name: &str) -> Result<MapState<K, M, V>> {
        let asked = Definition::of::<(K, M, V)>(StateKind::Map);
        Ok(MapState::new(self.declared(name, &asked)?))
    }

    fn declared(&self, name: &str, asked: &Definition) -> Result<Rows> {
        let job = self.state.job();
        let row = self.snapshot.get(&self.definitions, name)?;
        let row = row.ok_or_else(|| self.state.unknown(name))?;
        Definition::parse(job, name, &row)?.admit(job, name, asked)?;
        self.rows(name)?.ok_or_else(|| self.state.unknown(name).into())
    }

    /// The rows of a state, if the snapshot has it.
    pub(super) fn rows(&self, name: &str) -> Result<Option<Rows>> {
        let map = self.snapshot.map(&state_map(self.state.job(), name))?;
        Ok(map.map(|map| self.state.rows(map, name)))
    }
}
