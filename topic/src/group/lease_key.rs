//! The names of the leases that members hold.

/// Which lease of a member covers a message: the key of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeaseKey {
    /// It belongs to consecutive messages that were delivered together for the first time.
    Run { first: u64, end: u64, token: u64 },
    /// It is in a list.
    List { token: u64 },
}

impl LeaseKey {
    pub(crate) fn token(self) -> u64 {
        match self {
            LeaseKey::Run { token, .. } | LeaseKey::List { token } => token,
        }
    }

    /// Whether this is a single message that was delivered alone, for the first time.
    pub(crate) fn is_lone(self) -> bool {
        matches!(self, LeaseKey::Run { first, end, .. } if end == first + 1)
    }
}
