//! The kinds of keyed state.

use std::fmt;

/// What a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StateKind {
    /// A [`super::ValueState`].
    Value,
    /// A [`super::ListState`].
    List,
    /// A [`super::MapState`].
    Map,
}

impl StateKind {
    pub(super) const ALL: [StateKind; 3] = [StateKind::Value, StateKind::List, StateKind::Map];

    /// The number that stands for it in a row.
    pub(super) fn code(self) -> u8 {
        match self {
            StateKind::Value => 1,
            StateKind::List => 2,
            StateKind::Map => 3,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<StateKind> {
        StateKind::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StateKind::Value => "value",
            StateKind::List => "list",
            StateKind::Map => "map",
        })
    }
}
