//! A tree on a server.

use std::cmp::Ordering;

use duramen::tree::{Compare, Condition, LeaseChange, Node, Operation};
use duramen_client::{
    Committed, Compare as NumberIs, Error, NodeCondition, NodePut, Nodes, Transaction, Tree, TreeNode,
};

use crate::exit::Outcome;
use crate::place::Server;
use crate::text::Notation;

/// A tree on a server.
pub(super) struct Remote {
    pub(super) server: Server,
    pub(super) tree: Tree,
    pub(super) name: String,
    pub(super) notation: Notation,
}

impl Remote {
    /// Makes a call. A server that has no such tree makes it, as a directory does.
    pub(super) fn wait_or_create<T>(&self, call: impl AsyncFn() -> Result<T, Error>) -> Outcome<T> {
        let client = &self.server.client;
        self.server.wait(async {
            match call().await {
                Err(error) if is_unknown_tree(&error) => {
                    client.create_tree(&self.name).await?;
                    call().await
                }
                done => done,
            }
        })
    }

    /// Calls `visit` with all nodes of a selection, in order, at most `limit`.
    pub(super) fn each(
        &self,
        nodes: Nodes,
        read: duramen_client::ReadNodes,
        mut visit: impl FnMut(&[u8], Node) -> Outcome<()>,
    ) -> Outcome<()> {
        let mut nodes = self.server.wait(self.tree.select(nodes, None, read))?;
        while let Some(node) = self.server.next(nodes.next())? {
            let (path, node) = of_server(node);
            visit(&path, node)?;
        }
        Ok(())
    }

    /// Commits conditions and operations on the tree.
    pub(super) fn commit(
        &self,
        conditions: &[(Vec<u8>, Condition)],
        then: &[Operation],
        otherwise: &[Operation],
    ) -> Outcome<Committed> {
        self.wait_or_create(async || self.transaction(conditions, then, otherwise).commit().await)
    }

    fn transaction(
        &self,
        conditions: &[(Vec<u8>, Condition)],
        then: &[Operation],
        otherwise: &[Operation],
    ) -> Transaction {
        let mut transaction = self.server.client.transaction();
        for (path, condition) in conditions {
            transaction = transaction.if_node(&self.name, path, on_server(condition));
        }
        for operation in then {
            transaction = self.add(transaction, operation);
        }
        transaction = transaction.otherwise();
        for operation in otherwise {
            transaction = self.add(transaction, operation);
        }
        transaction
    }

    fn add(&self, transaction: Transaction, operation: &Operation) -> Transaction {
        let name = &self.name[..];
        match operation {
            Operation::Get { path } => transaction.get_node(name, path),
            Operation::Put { path, payload, lease } => transaction.put_node(name, put(path, payload, *lease)),
            Operation::Delete { path } => transaction.delete_node(name, path),
            Operation::DeleteSubtree { path } => transaction.delete_subtree(name, path),
        }
    }
}

/// Whether the call failed because the server has no such tree.
fn is_unknown_tree(error: &Error) -> bool {
    error.reason == "TREE_NOT_FOUND"
}

/// A payload for a node of a server.
pub(super) fn put(path: &[u8], payload: &[u8], lease: LeaseChange) -> NodePut {
    let put = NodePut::new(path, payload.to_vec());
    match lease {
        LeaseChange::Detach => put,
        LeaseChange::Keep => put.keep_lease(),
        LeaseChange::Attach(lease) => put.lease(lease),
    }
}

/// A node of a server, as a store has it.
pub(super) fn of_server(node: TreeNode) -> (Vec<u8>, Node) {
    let path = node.path.to_vec();
    let node = Node {
        create_revision: node.create_revision,
        revision: node.revision,
        version: node.version,
        lease: node.lease,
        payload: node.payload.to_vec(),
    };
    (path, node)
}

fn on_server(condition: &Condition) -> NodeCondition {
    let number = |compare: &Compare| match *compare {
        Compare::Equal(number) => NumberIs::Equal(number),
        Compare::NotEqual(number) => NumberIs::NotEqual(number),
        Compare::Less(number) => NumberIs::Less(number),
        Compare::Greater(number) => NumberIs::Greater(number),
    };
    match condition {
        Condition::Exists => NodeCondition::exists(),
        Condition::Missing => NodeCondition::missing(),
        Condition::Payload(payload) => NodeCondition::payload(payload.clone()),
        Condition::Version(compare) => NodeCondition::version(number(compare)),
        Condition::Revision(compare) => NodeCondition::revision(number(compare)),
        Condition::CreateRevision(compare) => NodeCondition::create_revision(number(compare)),
        Condition::Lease(compare) => NodeCondition::lease(number(compare)),
        Condition::Children(compare) => NodeCondition::children(number(compare)),
        Condition::PayloadOrder(Ordering::Less, payload) => NodeCondition::payload_less(payload.clone()),
        Condition::PayloadOrder(Ordering::Greater, payload) => NodeCondition::payload_greater(payload.clone()),
        Condition::PayloadOrder(Ordering::Equal, payload) => NodeCondition::payload(payload.clone()),
        Condition::ChildrenVersion(compare) => NodeCondition::children_version(number(compare)),
        Condition::Not(condition) => !on_server(condition),
        Condition::All(all) => NodeCondition::all(all.iter().map(on_server)),
        Condition::Any(all) => NodeCondition::any(all.iter().map(on_server)),
    }
}
