//! Compare, then, else: a transaction as data, for callers that cannot send a closure.

use duramen_engine::Result;

use crate::condition::Condition;
use crate::node::Node;
use crate::writes::{LeaseChange, TreeWrites};

/// An operation on a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads the node of a path.
    Get {
        /// The path.
        path: Vec<u8>,
    },
    /// Stores a payload.
    Put {
        /// The path.
        path: Vec<u8>,
        /// The payload.
        payload: Vec<u8>,
        /// What happens to the lease of the node.
        lease: LeaseChange,
    },
    /// Deletes a node.
    Delete {
        /// The path.
        path: Vec<u8>,
    },
    /// Deletes a node and all nodes below it.
    DeleteSubtree {
        /// The path.
        path: Vec<u8>,
    },
}

/// What an operation led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The node that was read, or the node before a put or delete.
    Node(Option<Node>),
    /// Number of nodes that were deleted.
    Deleted(u64),
}

/// Conditions, what is done when all of them hold, and what is done otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeCommit {
    conditions: Vec<(Vec<u8>, Condition)>,
    then: Vec<Operation>,
    otherwise: Vec<Operation>,
}

/// What a [`TreeCommit`] led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Whether all conditions held.
    pub held: bool,
    /// One for each operation that was done.
    pub done: Vec<Done>,
    /// The revision of the changes, or the newest one when nothing was changed.
    pub revision: u64,
}

impl TreeCommit {
    /// Without conditions and operations.
    pub fn new() -> TreeCommit {
        TreeCommit::default()
    }

    /// Adds a condition on the node of a path.
    pub fn when(mut self, path: impl AsRef<[u8]>, condition: Condition) -> TreeCommit {
        self.conditions.push((path.as_ref().to_vec(), condition));
        self
    }

    /// Adds an operation that is done when all conditions hold.
    pub fn then(mut self, operation: Operation) -> TreeCommit {
        self.then.push(operation);
        self
    }

    /// Adds an operation that is done when a condition does not hold.
    pub fn otherwise(mut self, operation: Operation) -> TreeCommit {
        self.otherwise.push(operation);
        self
    }

    /// Does what the conditions say.
    pub(crate) fn apply(&self, writes: &mut TreeWrites<'_>) -> Result<Committed> {
        let mut held = true;
        for (path, condition) in &self.conditions {
            held = held && condition.holds(&writes.reading(), path)?;
        }
        let operations = if held { &self.then } else { &self.otherwise };
        let done = operations.iter().map(|operation| operation.apply(writes));
        Ok(Committed {
            held,
            done: done.collect::<Result<_>>()?,
            revision: writes.revision(),
        })
    }
}

impl Operation {
    fn apply(&self, writes: &mut TreeWrites<'_>) -> Result<Done> {
        Ok(match self {
            Operation::Get { path } => Done::Node(writes.get(path)?),
            Operation::Put { path, payload, lease } => Done::Node(writes.put_with(path, payload, *lease)?),
            Operation::Delete { path } => Done::Node(writes.delete(path)?),
            Operation::DeleteSubtree { path } => Done::Deleted(writes.delete_subtree(path)?),
        })
    }
}
