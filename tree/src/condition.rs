//! Conditions on nodes.

use duramen_engine::Result;

use crate::error::TreeError;
use crate::limits::CONDITION_DEPTH_MAX;
use crate::node::{Children, Node};
use crate::read::{Reading, Rows};

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

impl Compare {
    fn holds(self, number: u64) -> bool {
        match self {
            Compare::Equal(other) => number == other,
            Compare::NotEqual(other) => number != other,
            Compare::Less(other) => number < other,
            Compare::Greater(other) => number > other,
        }
    }
}

/// A condition on the node of a path. A path without a node has version, revisions and lease 0, and an empty payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is a node.
    Exists,
    /// There is no node.
    Missing,
    /// There is a node with this payload.
    Payload(Vec<u8>),
    /// There is a node whose payload compares with these bytes in this way: smaller, greater.
    PayloadOrder(std::cmp::Ordering, Vec<u8>),
    /// How often the node was stored.
    Version(Compare),
    /// The revision that created the node.
    CreateRevision(Compare),
    /// The revision that changed the node last.
    Revision(Compare),
    /// The lease of the node.
    Lease(Compare),
    /// The number of children, implied ones among them.
    Children(Compare),
    /// The version of the list of children.
    ChildrenVersion(Compare),
    /// The condition does not hold.
    Not(Box<Condition>),
    /// All hold; with none in the list: always.
    All(Vec<Condition>),
    /// At least one holds; with none in the list: never.
    Any(Vec<Condition>),
}

impl Condition {
    /// Refuses conditions that are nested too deeply.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_at_most(CONDITION_DEPTH_MAX) {
            return Ok(());
        }
        let cause =
            format!("it has more than {CONDITION_DEPTH_MAX} conditions inside each other; put them side by side");
        Err(TreeError::InvalidCondition { cause }.into())
    }

    fn is_at_most(&self, depth: usize) -> bool {
        let Some(inner) = depth.checked_sub(1) else {
            return false;
        };
        match self {
            Condition::Not(condition) => condition.is_at_most(inner),
            Condition::All(all) | Condition::Any(all) => all.iter().all(|condition| condition.is_at_most(inner)),
            _ => true,
        }
    }

    /// Whether the condition holds for a path.
    pub(crate) fn holds<R: Rows>(&self, reading: &Reading<'_, R>, path: &[u8]) -> Result<bool> {
        self.check()?;
        let found = Found {
            node: reading.node(path)?,
            children: match self.asks_for_children() {
                true => reading.children(Some(path))?,
                false => Children::default(),
            },
        };
        Ok(self.holds_for(&found))
    }

    fn asks_for_children(&self) -> bool {
        match self {
            Condition::Children(_) | Condition::ChildrenVersion(_) => true,
            Condition::Not(condition) => condition.asks_for_children(),
            Condition::All(all) | Condition::Any(all) => all.iter().any(Condition::asks_for_children),
            _ => false,
        }
    }

    fn holds_for(&self, found: &Found) -> bool {
        let node = found.node.as_ref();
        let number = |of: fn(&Node) -> u64| node.map_or(0, of);
        match self {
            Condition::Exists => node.is_some(),
            Condition::Missing => node.is_none(),
            Condition::Payload(payload) => node.is_some_and(|node| node.payload == *payload),
            Condition::PayloadOrder(order, payload) => node.is_some_and(|node| node.payload.cmp(payload) == *order),
            Condition::Version(compare) => compare.holds(number(|node| node.version)),
            Condition::CreateRevision(compare) => compare.holds(number(|node| node.create_revision)),
            Condition::Revision(compare) => compare.holds(number(|node| node.revision)),
            Condition::Lease(compare) => compare.holds(number(|node| node.lease)),
            Condition::Children(compare) => compare.holds(found.children.count),
            Condition::ChildrenVersion(compare) => compare.holds(found.children.version),
            Condition::Not(condition) => !condition.holds_for(found),
            Condition::All(all) => all.iter().all(|condition| condition.holds_for(found)),
            Condition::Any(all) => all.iter().any(|condition| condition.holds_for(found)),
        }
    }
}

struct Found {
    node: Option<Node>,
    children: Children,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_combine() {
        let found = Found {
            node: Some(Node {
                version: 3,
                payload: b"b".to_vec(),
                ..Node::default()
            }),
            children: Children { count: 2, version: 5 },
        };
        let three = Condition::Version(Compare::Equal(3));
        for (condition, holds) in [
            (Condition::Exists, true),
            (Condition::Missing, false),
            (Condition::Payload(b"b".to_vec()), true),
            (Condition::PayloadOrder(std::cmp::Ordering::Less, b"c".to_vec()), true),
            (
                Condition::PayloadOrder(std::cmp::Ordering::Greater, b"c".to_vec()),
                false,
            ),
            (Condition::Version(Compare::Greater(3)), false),
            (Condition::Version(Compare::NotEqual(3)), false),
            (Condition::Children(Compare::Less(3)), true),
            (Condition::ChildrenVersion(Compare::Equal(5)), true),
            (Condition::All(Vec::new()), true),
            (Condition::Any(Vec::new()), false),
            (Condition::Any(vec![Condition::Missing, three.clone()]), true),
            (Condition::All(vec![Condition::Missing, three.clone()]), false),
            (Condition::Not(Box::new(Condition::Not(Box::new(three)))), true),
        ] {
            assert_eq!(condition.holds_for(&found), holds, "{condition:?}");
        }
        let deep = (1..CONDITION_DEPTH_MAX).fold(Condition::Exists, |inner, _| Condition::Not(Box::new(inner)));
        assert!(deep.check().is_ok());
        assert!(Condition::Not(Box::new(deep)).check().is_err());
    }
}
