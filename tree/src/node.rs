//! Nodes, and the changes that made and ended them, as rows.
//!
//! ```text
//! node      create revision, revision, version, lease, payload
//! change    kind, path, and for a node that was there before: a byte 1 and that node; otherwise a byte 0
//! parent    number of children, version of the list of children
//! ```
//! Numbers have seven bits a byte. The row of a change has the node *before* it. The node after it is in the next change of its
//! path, or is the current node: so each payload is written once more only when it is replaced.

use duramen_engine::Result;
use duramen_topic::bytes::{Reader, put_bytes, put_number};

/// A node of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Revision in which the node was created.
    pub create_revision: u64,
    /// Revision in which it was last changed.
    pub revision: u64,
    /// How often it was stored since it was created; 1 after its creation.
    pub version: u64,
    /// The lease with whose end it is deleted; 0: none.
    pub lease: u64,
    /// What it holds.
    pub payload: Vec<u8>,
}

impl Node {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(self.payload.len() + 24);
        self.push(&mut row);
        row
    }

    fn push(&self, row: &mut Vec<u8>) {
        for number in [self.create_revision, self.revision, self.version, self.lease] {
            put_number(row, number);
        }
        row.extend_from_slice(&self.payload);
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Node> {
        Ok(Head::decode(row)?.with_payload())
    }
}

/// A row of a node whose payload was not copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) create_revision: u64,
    pub(crate) revision: u64,
    pub(crate) version: u64,
    pub(crate) lease: u64,
    pub(crate) payload: &'a [u8],
}

impl<'a> Head<'a> {
    pub(crate) fn of(node: &'a Node) -> Head<'a> {
        Head {
            create_revision: node.create_revision,
            revision: node.revision,
            version: node.version,
            lease: node.lease,
            payload: &node.payload,
        }
    }

    pub(crate) fn decode(row: &'a [u8]) -> Result<Head<'a>> {
        let mut reader = Reader::new(row, "a node of a tree");
        Ok(Head {
            create_revision: reader.number()?,
            revision: reader.number()?,
            version: reader.number()?,
            lease: reader.number()?,
            payload: reader.rest(),
        })
    }

    pub(crate) fn with_payload(self) -> Node {
        Node {
            create_revision: self.create_revision,
            revision: self.revision,
            version: self.version,
            lease: self.lease,
            payload: self.payload.to_vec(),
        }
    }
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It stored a node.
    Put,
    /// It deleted a node.
    Delete,
}

/// The row of a change.
pub(crate) struct ChangeRow<'a> {
    pub(crate) kind: ChangeKind,
    pub(crate) path: &'a [u8],
    /// The row of the node before it.
    pub(crate) old: Option<&'a [u8]>,
}

impl<'a> ChangeRow<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(self.path.len() + self.old.map_or(0, <[u8]>::len) + 6);
        row.push(match self.kind {
            ChangeKind::Put => 1,
            ChangeKind::Delete => 2,
        });
        put_bytes(&mut row, self.path);
        row.push(u8::from(self.old.is_some()));
        row.extend_from_slice(self.old.unwrap_or_default());
        row
    }

    pub(crate) fn decode(row: &'a [u8]) -> Result<ChangeRow<'a>> {
        let mut reader = Reader::new(row, "a change of a tree");
        let kind = match reader.byte()? {
            1 => ChangeKind::Put,
            2 => ChangeKind::Delete,
            _ => return Err(reader.damaged("is of an unknown kind")),
        };
        let path = reader.long()?;
        let has_old = reader.byte()? == 1;
        Ok(ChangeRow {
            kind,
            path,
            old: has_old.then(|| reader.rest()),
        })
    }
}

/// What a path has below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// Number of children, implied ones among them.
    pub count: u64,
    /// Grows with each child that is added or removed.
    pub version: u64,
}

impl Children {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut row = Vec::new();
        put_number(&mut row, self.count);
        put_number(&mut row, self.version);
        row
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Children> {
        let mut reader = Reader::new(row, "the children of a node");
        let children = Children {
            count: reader.number()?,
            version: reader.number()?,
        };
        reader.end()?;
        Ok(children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_damage_is_an_error() {
        let node = Node {
            create_revision: 300,
            revision: u64::MAX,
            version: 1,
            lease: 0,
            payload: b"text".to_vec(),
        };
        let row = node.encode();
        assert_eq!(Node::decode(&row).unwrap(), node);
        for old in [None, Some(&row[..])] {
            let change = ChangeRow {
                kind: ChangeKind::Delete,
                path: b"a/b",
                old,
            };
            let row = change.encode();
            let read = ChangeRow::decode(&row).unwrap();
            assert_eq!((read.kind, read.path, read.old), (ChangeKind::Delete, &b"a/b"[..], old));
        }
        assert!(Node::decode(&[0x80]).is_err());
        assert!(ChangeRow::decode(&[9]).is_err());
        assert!(Children::decode(&[1, 2, 3]).is_err());
    }
}
