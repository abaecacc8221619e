//! What calls on trees take: selections of nodes, conditions and puts.

use duramen_proto::v1::node_selection::Selection;
use duramen_proto::v1::node_test::Test;
use duramen_proto::v1::number_test::Test as NumberIs;
use duramen_proto::v1::put_node_operation::Lease;
use duramen_proto::v1::{
    KeepWhile, NodeSelection, NodeTest, NodeTests, NumberTest, PathCondition, PutMode, PutNodeOperation,
};
use prost::bytes::Bytes;

use crate::options::{Keys, copied};

/// Which nodes of a tree a call is about.
#[derive(Clone, Debug, Default)]
pub struct Nodes(pub(crate) Option<NodeSelection>);

impl Nodes {
    fn of(selection: Selection) -> Nodes {
        let selection = Some(selection);
        Nodes(Some(NodeSelection { selection }))
    }

    /// All nodes.
    pub fn all() -> Nodes {
        Nodes::default()
    }

    /// The node of one path.
    pub fn path(path: impl AsRef<[u8]>) -> Nodes {
        let path = path.as_ref();
        Nodes::range(Keys::between(path, [path, &[0]].concat()))
    }

    /// A node and all nodes below it.
    pub fn subtree(path: impl AsRef<[u8]>) -> Nodes {
        Nodes::of(Selection::Subtree(copied(path)))
    }

    /// The nodes whose paths are in a range of bytes.
    pub fn range(paths: Keys) -> Nodes {
        Nodes::of(Selection::Range(paths.0))
    }

    /// The nodes whose paths have a pattern: `*` stands for one name, `**` for any number of names, `a*` for names that
    /// begin with a, `{a|b}` for names that match a regular expression.
    pub fn pattern(pattern: impl Into<String>) -> Nodes {
        Nodes::of(Selection::Pattern(pattern.into()))
    }
}

/// How a number must compare with a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// It is that number.
    Equal(u64),
    /// It is another number.
    NotEqual(u64),
    /// It is smaller.
    Less(u64),
    /// It is greater.
    Greater(u64),
}

impl From<Compare> for NumberTest {
    fn from(compare: Compare) -> NumberTest {
        let test = match compare {
            Compare::Equal(number) => NumberIs::Equal(number),
            Compare::NotEqual(number) => NumberIs::NotEqual(number),
            Compare::Less(number) => NumberIs::Less(number),
            Compare::Greater(number) => NumberIs::Greater(number),
        };
        NumberTest { test: Some(test) }
    }
}

/// A condition on the node of a path. A path without a node has version, revisions and lease 0.
#[derive(Clone, Debug)]
pub struct NodeCondition(pub(crate) NodeTest);

impl NodeCondition {
    fn of(test: Test) -> NodeCondition {
        let test = Some(test);
        NodeCondition(NodeTest { test })
    }

    /// There is a node.
    pub fn exists() -> NodeCondition {
        NodeCondition::of(Test::Exists(true))
    }

    /// There is no node.
    pub fn missing() -> NodeCondition {
        NodeCondition::of(Test::Exists(false))
    }

    /// There is a node with this payload.
    pub fn payload(payload: impl Into<Bytes>) -> NodeCondition {
        NodeCondition::of(Test::Payload(payload.into()))
    }

    /// There is a node with a payload that is smaller in byte order.
    pub fn payload_less(payload: impl Into<Bytes>) -> NodeCondition {
        NodeCondition::of(Test::PayloadLess(payload.into()))
    }

    /// There is a node with a payload that is greater in byte order.
    pub fn payload_greater(payload: impl Into<Bytes>) -> NodeCondition {
        NodeCondition::of(Test::PayloadGreater(payload.into()))
    }

    /// How often the node was stored.
    pub fn version(compare: Compare) -> NodeCondition {
        NodeCondition::of(Test::Version(compare.into()))
    }

    /// The revision that created the node.
    pub fn create_revision(compare: Compare) -> NodeCondition {
        NodeCondition::of(Test::CreateRevision(compare.into()))
    }

    /// The revision that changed the node last.
    pub fn revision(compare: Compare) -> NodeCondition {
        NodeCondition::of(Test::Revision(compare.into()))
    }

    /// The lease of the node.
    pub fn lease(compare: Compare) -> NodeCondition {
        NodeCondition::of(Test::Lease(compare.into()))
    }

    /// The number of children, implied ones among them.
    pub fn children(compare: Compare) -> NodeCondition {
        NodeCondition::of(Test::Children(compare.into()))
    }

    /// The version of the list of children.
    pub fn children_version(compare: Compare) -> NodeCondition {
        NodeCondition::of(Test::ChildrenVersion(compare.into()))
    }

    /// All of the conditions hold.
    pub fn all(conditions: impl IntoIterator<Item = NodeCondition>) -> NodeCondition {
        NodeCondition::of(Test::All(tests(conditions)))
    }

    /// One of the conditions holds.
    pub fn any(conditions: impl IntoIterator<Item = NodeCondition>) -> NodeCondition {
        NodeCondition::of(Test::Any(tests(conditions)))
    }
}

/// The condition does not hold.
impl std::ops::Not for NodeCondition {
    type Output = NodeCondition;

    fn not(self) -> NodeCondition {
        NodeCondition::of(Test::Not(Box::new(self.0)))
    }
}

fn tests(conditions: impl IntoIterator<Item = NodeCondition>) -> NodeTests {
    let tests = conditions.into_iter().map(|condition| condition.0).collect();
    NodeTests { tests }
}

/// A payload that is stored in a node. Without more said, it replaces any payload, and the node has no lease afterwards.
#[derive(Clone, Debug)]
pub struct NodePut(pub(crate) PutNodeOperation);

impl NodePut {
    /// A payload for the node of a path.
    pub fn new(path: impl AsRef<[u8]>, payload: impl Into<Bytes>) -> NodePut {
        NodePut(PutNodeOperation {
            path: copied(path),
            payload: payload.into(),
            ..PutNodeOperation::default()
        })
    }

    /// The node must be missing; otherwise the reason of the error is `NODE_EXISTS`.
    pub fn create(mut self) -> NodePut {
        self.0.set_mode(PutMode::Create);
        self
    }

    /// There must be a node, which keeps its lease; otherwise the reason of the error is `NODE_NOT_FOUND`.
    pub fn update(mut self) -> NodePut {
        self.0.set_mode(PutMode::Update);
        self
    }

    /// The node must have this payload, and keeps its lease; otherwise the reason of the error is `NODE_MISMATCH`.
    pub fn expect(mut self, payload: impl Into<Bytes>) -> NodePut {
        self.0.expected = Some(payload.into());
        self
    }

    /// The node has this lease afterwards: it is deleted when the lease ends.
    pub fn lease(mut self, lease: u64) -> NodePut {
        self.0.lease = Some(Lease::Attach(lease));
        self
    }

    /// The node keeps the lease that it has.
    pub fn keep_lease(mut self) -> NodePut {
        self.0.lease = Some(Lease::KeepLease(true));
        self
    }

    /// The node is kept while this condition on another path of the tree holds, and all others that this call was made with.
    /// Once one does not hold, it is deleted with everything below it.
    pub fn keep_while(mut self, path: impl AsRef<[u8]>, condition: NodeCondition) -> NodePut {
        let conditions = &mut self.0.keep_while.get_or_insert_with(KeepWhile::default).conditions;
        conditions.push(PathCondition {
            path: copied(path),
            test: Some(condition.0),
        });
        self
    }
}
