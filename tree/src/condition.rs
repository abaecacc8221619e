//! Conditions on nodes.

use duramen_engine::Result;
use duramen_topic::bytes::{Reader, put_bytes, put_number};

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
    fn read(reader: &mut Reader<'_>) -> Result<Compare> {
        let how = reader.byte()?;
        let number = reader.number()?;
        Ok(match how {
            0 => Compare::Equal(number),
            1 => Compare::NotEqual(number),
            2 => Compare::Less(number),
            3 => Compare::Greater(number),
            _ => return Err(reader.damaged("compares in an unknown way")),
        })
    }

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

    /// Appends the bytes of the condition.
    pub(crate) fn push(&self, out: &mut Vec<u8>) {
        let compare = |out: &mut Vec<u8>, tag: u8, compare: &Compare| {
            let (how, number) = match compare {
                Compare::Equal(number) => (0, number),
                Compare::NotEqual(number) => (1, number),
                Compare::Less(number) => (2, number),
                Compare::Greater(number) => (3, number),
            };
            out.extend([tag, how]);
            put_number(out, *number);
        };
        let several = |out: &mut Vec<u8>, tag: u8, all: &[Condition]| {
            out.push(tag);
            put_number(out, all.len() as u64);
            all.iter().for_each(|condition| condition.push(out));
        };
        match self {
            Condition::Exists => out.push(0),
            Condition::Missing => out.push(1),
            Condition::Payload(payload) => {
                out.push(2);
                put_bytes(out, payload);
            }
            Condition::PayloadOrder(order, payload) => {
                out.extend([3, (*order as i8 + 1) as u8]);
                put_bytes(out, payload);
            }
            Condition::Version(number) => compare(out, 4, number),
            Condition::CreateRevision(number) => compare(out, 5, number),
            Condition::Revision(number) => compare(out, 6, number),
            Condition::Lease(number) => compare(out, 7, number),
            Condition::Children(number) => compare(out, 8, number),
            Condition::ChildrenVersion(number) => compare(out, 9, number),
            Condition::Not(condition) => {
                out.push(10);
                condition.push(out);
            }
            Condition::All(all) => several(out, 11, all),
            Condition::Any(all) => several(out, 12, all),
        }
    }

    /// Reads the bytes of a condition.
    pub(crate) fn read(reader: &mut Reader<'_>, depth: usize) -> Result<Condition> {
        let inner = depth
            .checked_sub(1)
            .ok_or_else(|| reader.damaged("has too many conditions inside each other"))?;
        Ok(match reader.byte()? {
            0 => Condition::Exists,
            1 => Condition::Missing,
            2 => Condition::Payload(reader.long()?.to_vec()),
            3 => {
                let order = reader.byte()?.cmp(&1);
                Condition::PayloadOrder(order, reader.long()?.to_vec())
            }
            4 => Condition::Version(Compare::read(reader)?),
            5 => Condition::CreateRevision(Compare::read(reader)?),
            6 => Condition::Revision(Compare::read(reader)?),
            7 => Condition::Lease(Compare::read(reader)?),
            8 => Condition::Children(Compare::read(reader)?),
            9 => Condition::ChildrenVersion(Compare::read(reader)?),
            10 => Condition::Not(Box::new(Condition::read(reader, inner)?)),
            tag @ (11 | 12) => {
                let count = reader.number()?;
                let all = (0..count)
                    .map(|_| Condition::read(reader, inner))
                    .collect::<Result<_>>()?;
                if tag == 11 {
                    Condition::All(all)
                } else {
                    Condition::Any(all)
                }
            }
            _ => return Err(reader.damaged("has an unknown condition")),
        })
    }

    /// Whether the condition holds for a path.
    pub(crate) fn holds<R: Rows>(&self, reading: &Reading<'_, R>, path: &[u8]) -> Result<bool> {
        self.holds_as(reading, path, reading.node(path)?)
    }

    /// Whether the condition would hold for a path with this node.
    pub(crate) fn holds_as<R: Rows>(&self, reading: &Reading<'_, R>, path: &[u8], node: Option<Node>) -> Result<bool> {
        self.check()?;
        let found = Found {
            node,
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
            let mut bytes = Vec::new();
            condition.push(&mut bytes);
            let mut reader = Reader::new(&bytes, "a test");
            assert_eq!(Condition::read(&mut reader, CONDITION_DEPTH_MAX).unwrap(), condition);
            reader.end().unwrap();
            for cut in 0..bytes.len() {
                assert!(Condition::read(&mut Reader::new(&bytes[..cut], "a test"), CONDITION_DEPTH_MAX).is_err());
            }
        }
        let deep = (1..CONDITION_DEPTH_MAX).fold(Condition::Exists, |inner, _| Condition::Not(Box::new(inner)));
        assert!(deep.check().is_ok());
        assert!(Condition::Not(Box::new(deep)).check().is_err());
    }
}
