//! Several changes of maps, topics and trees in one commit.

use std::sync::Arc;

use duramen_proto::v1::condition::Test;
use duramen_proto::v1::operation::Change;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::settlement::Verdict;
use duramen_proto::v1::tree_operation::Operation as TreeChange;
use duramen_proto::v1::{
    self, AddOperation, CommitRequest, Condition, DeleteMatchingOperation, DeleteNodeOperation, DeleteOperation,
    DeleteRangeOperation, GetNodeOperation, Operation, PublishOperation, PutMatchingOperation, PutOperation, TreeNode,
    TreeOperation,
};
use prost::bytes::Bytes;

use crate::client::{Client, send};
use crate::error::{Error, Result};
use crate::member::{Deliveries, Held};
use crate::nodes::{NodeCondition, NodePut};
use crate::options::{Keys, Message, WriteOptions, copied};

/// A transaction in preparation; see [`Client::transaction`].
///
/// The server checks the conditions. If all hold, it applies the operations, otherwise those after
/// [`Transaction::otherwise`]. It applies all of them in one commit, or none.
#[must_use = "a transaction changes nothing before its commit"]
pub struct Transaction {
    client: Client,
    request: CommitRequest,
    is_otherwise: bool,
    /// Leases whose messages it settles: the server must not release them before the commit.
    held: Vec<Arc<Held>>,
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Committed {
    /// Whether all conditions held.
    pub succeeded: bool,
    /// A result for each operation that the server applied, in their order. Empty at `Acknowledge::Memory`.
    pub results: Vec<OperationResult>,
    /// The revisions of the trees that the applied operations name.
    pub revisions: Vec<(String, u64)>,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OperationResult {
    /// The server applied it.
    Applied,
    /// The sum of an addition.
    Sum(i64),
    /// The offset of the first message that it published.
    FirstOffset(u64),
    /// What an operation on a tree led to.
    Tree {
        /// The node that it read, or the node before.
        node: Option<TreeNode>,
        /// Number of nodes that it changed.
        count: u64,
    },
}

impl Transaction {
    pub(crate) fn new(client: Client) -> Transaction {
        Transaction {
            client,
            request: CommitRequest::default(),
            is_otherwise: false,
            held: Vec::new(),
        }
    }

    /// Condition: the value of `key` equals `value`.
    pub fn if_value(self, map: &str, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Transaction {
        self.condition(map, key, Test::ValueIs(value.into()))
    }

    /// Condition: the map has `key`.
    pub fn if_exists(self, map: &str, key: impl AsRef<[u8]>) -> Transaction {
        self.condition(map, key, Test::Exists(true))
    }

    /// Condition: the map does not have `key`.
    pub fn if_missing(self, map: &str, key: impl AsRef<[u8]>) -> Transaction {
        self.condition(map, key, Test::Exists(false))
    }

    /// Stores a pair.
    pub fn put(self, map: &str, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Transaction {
        let (map, key, value) = (map.into(), copied(key), value.into());
        self.operation(Change::Put(PutOperation { map, key, value }))
    }

    /// Deletes a key.
    pub fn delete(self, map: &str, key: impl AsRef<[u8]>) -> Transaction {
        let (map, key) = (map.into(), copied(key));
        self.operation(Change::Delete(DeleteOperation { map, key }))
    }

    /// Deletes a range of keys.
    pub fn delete_range(self, map: &str, keys: Keys) -> Transaction {
        let (map, range) = (map.into(), Some(keys.0));
        self.operation(Change::DeleteRange(DeleteRangeOperation { map, range }))
    }

    /// Adds to a counter.
    pub fn add(self, map: &str, key: impl AsRef<[u8]>, delta: i64) -> Transaction {
        let (map, key) = (map.into(), copied(key));
        self.operation(Change::Add(AddOperation { map, key, delta }))
    }

    /// Publishes a message.
    pub fn publish(self, topic: &str, message: impl Into<Message>) -> Transaction {
        let (topic, messages) = (topic.into(), vec![message.into().0]);
        self.operation(Change::Publish(PublishOperation { topic, messages }))
    }

    /// Condition: `condition` holds for the node of a path of a tree.
    pub fn if_node(mut self, tree: &str, path: impl AsRef<[u8]>, condition: NodeCondition) -> Transaction {
        self.request.node_conditions.push(v1::NodeCondition {
            tree: tree.into(),
            path: copied(path),
            test: Some(condition.0),
        });
        self
    }

    /// Reads a node of a tree, as the operations before left it.
    pub fn get_node(self, tree: &str, path: impl AsRef<[u8]>) -> Transaction {
        let path = copied(path);
        self.on_tree(tree, TreeChange::Get(GetNodeOperation { path }))
    }

    /// Stores a payload in a node of a tree.
    pub fn put_node(self, tree: &str, put: NodePut) -> Transaction {
        self.on_tree(tree, TreeChange::Put(put.0))
    }

    /// Deletes a node of a tree, and nothing below it.
    pub fn delete_node(self, tree: &str, path: impl AsRef<[u8]>) -> Transaction {
        let path = copied(path);
        self.on_tree(tree, TreeChange::Delete(DeleteNodeOperation { path }))
    }

    /// Deletes a node of a tree and all nodes below it.
    pub fn delete_subtree(self, tree: &str, path: impl AsRef<[u8]>) -> Transaction {
        let path = copied(path);
        self.on_tree(tree, TreeChange::DeleteSubtree(DeleteNodeOperation { path }))
    }

    /// Stores a payload in all nodes whose paths have a pattern; they keep their leases.
    pub fn put_nodes(self, tree: &str, pattern: &str, payload: impl Into<Bytes>) -> Transaction {
        let (pattern, payload) = (pattern.into(), payload.into());
        self.on_tree(tree, TreeChange::PutMatching(PutMatchingOperation { pattern, payload }))
    }

    /// Deletes the nodes whose paths have a pattern.
    pub fn delete_nodes(self, tree: &str, pattern: &str) -> Transaction {
        let pattern = pattern.into();
        self.on_tree(tree, TreeChange::DeleteMatching(DeleteMatchingOperation { pattern }))
    }

    fn on_tree(self, tree: &str, operation: TreeChange) -> Transaction {
        let (tree, operation) = (tree.into(), Some(operation));
        self.operation(Change::Tree(TreeOperation { tree, operation }))
    }

    /// Acknowledges messages that a group delivered; none named: all that the member still has. Their effects and their
    /// acknowledgement are then one commit.
    pub fn acknowledge(mut self, deliveries: &Deliveries, offsets: &[u64]) -> Transaction {
        self.held.push(deliveries.held());
        let settlement = deliveries.settlement(offsets.to_vec(), Verdict::Acknowledge(true));
        self.operation(Change::Settle(settlement))
    }

    /// The operations from here on are those for the case that a condition does not hold.
    pub fn otherwise(mut self) -> Transaction {
        self.is_otherwise = true;
        self
    }

    /// Gives the transaction its write options.
    pub fn with(mut self, options: WriteOptions) -> Transaction {
        self.client = self.client.with(options);
        self
    }

    /// Sends the transaction, and returns when the server has committed it.
    ///
    /// # Errors
    /// Those of its operations, and `UnknownOutcome` when the answer did not arrive.
    pub async fn commit(mut self) -> Result<Committed> {
        self.request.options = Some(self.client.options().of_call());
        let response = self.client.write(self.request, send!(transactions.commit)).await?;
        let results = response.results.into_iter().map(|result| match result.result {
            Some(Given::Applied(_)) => Ok(OperationResult::Applied),
            Some(Given::Sum(sum)) => Ok(OperationResult::Sum(sum)),
            Some(Given::FirstOffset(offset)) => Ok(OperationResult::FirstOffset(offset)),
            Some(Given::Tree(result)) => Ok(OperationResult::Tree {
                node: result.node,
                count: result.count,
            }),
            None => Err(Error::bad_response()),
        });
        Ok(Committed {
            succeeded: response.succeeded,
            results: results.collect::<Result<_>>()?,
            revisions: response
                .revisions
                .into_iter()
                .map(|one| (one.tree, one.revision))
                .collect(),
        })
    }

    fn condition(mut self, map: &str, key: impl AsRef<[u8]>, test: Test) -> Transaction {
        self.request.conditions.push(Condition {
            map: map.into(),
            key: copied(key),
            test: Some(test),
        });
        self
    }

    fn operation(mut self, change: Change) -> Transaction {
        let operations = match self.is_otherwise {
            true => &mut self.request.otherwise,
            false => &mut self.request.then,
        };
        operations.push(Operation { change: Some(change) });
        self
    }
}
