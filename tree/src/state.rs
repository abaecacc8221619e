//! How far a tree has come.

use duramen_engine::Result;
use duramen_topic::bytes::{Reader, put_number};

use crate::error::TreeError;

/// The revision of a tree that has not changed yet. The first change has the next one, as in etcd.
pub(crate) const FIRST_REVISION: u64 = 1;

/// More revisions than a tree can have.
const REVISION_MAX: u64 = u64::MAX >> 1;

/// How far a tree has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The newest revision.
    pub(crate) revision: u64,
    /// The first revision that can be read.
    pub(crate) first: u64,
    /// A hash of triggers, projections and quotas; 0: there are none.
    pub(crate) rules: u64,
    /// Nodes that are kept while conditions hold.
    pub(crate) kept: u64,
}

impl State {
    pub(crate) const NEW: State = State {
        revision: FIRST_REVISION,
        first: FIRST_REVISION,
        rules: 0,
        kept: 0,
    };

    /// Refuses a revision that cannot be read.
    pub(crate) fn check_revision(self, tree: &str, revision: u64) -> Result<()> {
        let State {
            revision: newest,
            first,
            ..
        } = self;
        let tree = tree.to_string();
        if revision > newest {
            return Err(TreeError::FutureRevision { tree, revision, newest }.into());
        }
        if revision < first {
            return Err(TreeError::Compacted { tree, revision, first }.into());
        }
        Ok(())
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut row = Vec::new();
        for number in [self.revision, self.first, self.rules, self.kept] {
            put_number(&mut row, number);
        }
        row
    }

    pub(crate) fn decode(row: &[u8]) -> Result<State> {
        let mut reader = Reader::new(row, "the state of a tree");
        let state = State {
            revision: reader.number()?,
            first: reader.number()?,
            rules: reader.number()?,
            kept: reader.number()?,
        };
        // A revision too large to grow is none that a tree has come to.
        if state.revision > REVISION_MAX || !(FIRST_REVISION..=state.revision).contains(&state.first) {
            return Err(reader.damaged("has a wrong revision"));
        }
        reader.end()?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_and_damage_is_an_error() {
        assert_eq!(State::decode(&State::NEW.encode()).unwrap(), State::NEW);
        for (revision, first) in [(u64::MAX, 1), (1, 0), (1, 2)] {
            let state = State {
                revision,
                first,
                ..State::NEW
            };
            assert!(State::decode(&state.encode()).is_err(), "{state:?}");
        }
    }
}
