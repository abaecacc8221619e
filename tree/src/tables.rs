//! The maps of a store that belong to trees. Users can neither see nor name them.
//!
//! ```text
//! trees      00 name                          -> id of a tree, 4 bytes
//!            01                               -> id of the next tree, 4 bytes
//!            02 id                            -> how far a tree has come (see `state`)
//!            03 id                            -> empty; missing: changes were removed and the state does not say so
//!            04 id                            -> revision and sub of the first change that may still have a row
//! nodes      id path                          -> a node (see `node`)
//! changes    id revision sub                  -> a change, with the node before it (see `change`)
//! versions   id path' revision                -> sub of the change that replaced or deleted the node of the path
//! implied    id parent' name                  -> empty; a child without a node, which has nodes below it
//! parents    id parent'                       -> number of children, and version of the list of children
//! rules      id 00 name                       -> a trigger (see `rules`)
//!            id 01 name                       -> a projection
//!            id 02 path                       -> a quota, and what counts for it
//!            id 03 path                       -> conditions while which the node of the path is kept (see `keep`)
//!            id 04 path' keeper               -> empty; the node of the path `keeper` has a condition on this path
//! leases     id 00 lease                      -> a lease (see `lease`)
//!            id 01 deadline lease             -> empty
//!            id 02 lease path                 -> empty
//!            id 03                            -> the clock of the leases
//! ```
//! Ids have 4 bytes, revisions, leases and deadlines 8, subs 4, all big-endian. A path with a prime ends with two bytes 0, and a
//! byte 0 in it is followed by 255: so rows of a path stand together, in the order of paths. Such a `parent'` begins with 01; the
//! parent of the paths at the top is 00.
//!
//! The creation of a node has no row in `versions`: nothing was there before.

use duramen_engine::{Map, Result, Sequence, Store};

use crate::error::TreeError;

/// Tags of the rows of `trees`.
pub(crate) const NAME: u8 = 0;
pub(crate) const NEXT_ID: [u8; 1] = [1];
pub(crate) const STATE: u8 = 2;
const MARK: u8 = 3;
const REMOVED: u8 = 4;

/// Tags of the rows of `rules`.
pub(crate) const TRIGGER: u8 = 0;
pub(crate) const PROJECTION: u8 = 1;
pub(crate) const QUOTA: u8 = 2;
const KEPT: u8 = 3;
const WATCHED: u8 = 4;
/// Rules that each change asks for.
pub(crate) const RULE_TAGS: [u8; 3] = [TRIGGER, PROJECTION, QUOTA];

/// Tags of the rows of `leases`.
const LEASE: u8 = 0;
const DEADLINE: u8 = 1;
const ATTACHED: u8 = 2;
const CLOCK: u8 = 3;

/// Handles of the maps.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) trees: Map,
    pub(crate) nodes: Map,
    pub(crate) changes: Map,
    pub(crate) versions: Map,
    pub(crate) implied: Map,
    pub(crate) parents: Map,
    pub(crate) leases: Map,
    pub(crate) rules: Map,
}

/// The names of the maps, in the order in which they are made.
pub(crate) const NAMES: [&str; 8] = [
    "tree.trees",
    "tree.nodes",
    "tree.changes",
    "tree.versions",
    "tree.implied",
    "tree.parents",
    "tree.leases",
    "tree.rules",
];

impl Tables {
    /// Opens the maps. Creates missing maps if the store is writable.
    pub(crate) fn open(store: &Store) -> Result<Tables> {
        Tables::of(|place| match store.is_read_only() {
            false => store.reserved_map(NAMES[place]),
            true => Ok(store.existing_reserved_map(NAMES[place])?.ok_or(TreeError::NoTrees)?),
        })
    }

    /// Handles of maps that are given by their places in [`NAMES`].
    pub(crate) fn of(map: impl Fn(usize) -> Result<Map>) -> Result<Tables> {
        Ok(Tables {
            trees: map(0)?,
            nodes: map(1)?,
            changes: map(2)?,
            versions: map(3)?,
            implied: map(4)?,
            parents: map(5)?,
            leases: map(6)?,
            rules: map(7)?,
        })
    }

    /// What each change of a tree rings.
    pub(crate) fn sequence(&self, id: u32, name: &str) -> Result<Sequence> {
        Sequence::new(&self.changes, &self.changes, &id.to_be_bytes(), name)
    }

    /// The maps with rows of single trees.
    pub(crate) fn of_trees(&self) -> [&Map; 7] {
        [
            &self.nodes,
            &self.changes,
            &self.versions,
            &self.implied,
            &self.parents,
            &self.leases,
            &self.rules,
        ]
    }
}

/// Key of the name of a tree.
pub(crate) fn name_key(name: &str) -> Vec<u8> {
    [&[NAME], name.as_bytes()].concat()
}

/// Key of the state of a tree.
pub(crate) fn state_key(id: u32) -> [u8; 5] {
    let [a, b, c, d] = id.to_be_bytes();
    [STATE, a, b, c, d]
}

/// Key of the mark that the state of a tree tells which changes there are.
pub(crate) fn mark_key(id: u32) -> [u8; 5] {
    let [_, a, b, c, d] = state_key(id);
    [MARK, a, b, c, d]
}

/// Key of the first change that may still have a row.
pub(crate) fn removed_key(id: u32) -> [u8; 5] {
    let [_, a, b, c, d] = state_key(id);
    [REMOVED, a, b, c, d]
}

/// The tree of the key of a state, or of a row beside it, and the tag.
pub(crate) fn tree_of_state(key: &[u8]) -> Option<(u32, u8)> {
    let (tag, id) = key.split_first()?;
    let id = u32::from_be_bytes(id.try_into().ok()?);
    matches!(*tag, STATE | MARK | REMOVED).then_some((id, *tag))
}

/// Key of a node.
pub(crate) fn node_key(id: u32, path: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes(), path].concat()
}

/// Key of a change.
pub(crate) fn change_key(id: u32, revision: u64, sub: u32) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&id.to_be_bytes());
    key[4..12].copy_from_slice(&revision.to_be_bytes());
    key[12..].copy_from_slice(&sub.to_be_bytes());
    key
}

/// Revision and sub of the key of a change.
pub(crate) fn change_of(key: &[u8]) -> Result<(u64, u32)> {
    let parts = key.get(4..12).zip(key.get(12..16));
    let numbers = parts.and_then(|(revision, sub)| {
        let revision = u64::from_be_bytes(revision.try_into().ok()?);
        Some((revision, u32::from_be_bytes(sub.try_into().ok()?)))
    });
    numbers.ok_or_else(|| duramen_engine::Error::damaged("a change of a tree has a wrong key"))
}

/// Appends a path so that rows which go on after it stand together.
fn push_ended(key: &mut Vec<u8>, path: &[u8]) {
    for (number, part) in path.split(|byte| *byte == 0).enumerate() {
        if number > 0 {
            key.extend([0, 255]);
        }
        key.extend_from_slice(part);
    }
    key.extend([0, 0]);
}

/// The beginning of a key of a tree, with room for a path.
fn begun(id: u32, path: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(path.len() + 24);
    key.extend(id.to_be_bytes());
    key
}

/// Prefix of the keys of the versions of a path.
pub(crate) fn versions_prefix(id: u32, path: &[u8]) -> Vec<u8> {
    let mut key = begun(id, path);
    push_ended(&mut key, path);
    key
}

/// Key of a version of a path.
pub(crate) fn version_key(id: u32, path: &[u8], revision: u64) -> Vec<u8> {
    let mut key = versions_prefix(id, path);
    key.extend(revision.to_be_bytes());
    key
}

/// Path and revision of the key of a version.
pub(crate) fn version_of(key: &[u8]) -> Result<(Vec<u8>, u64)> {
    let parsed = key.get(4..).and_then(|rest| {
        let (ended, revision) = rest.split_last_chunk()?;
        let mut path = Vec::with_capacity(ended.len());
        let mut bytes = ended.strip_suffix(&[0, 0])?.iter();
        while let Some(&byte) = bytes.next() {
            path.push(byte);
            if byte == 0 && bytes.next() != Some(&255) {
                return None;
            }
        }
        Some((path, u64::from_be_bytes(*revision)))
    });
    parsed.ok_or_else(|| duramen_engine::Error::damaged("a version of a node has a wrong key"))
}

/// Key of what a parent has, and prefix of the keys of its implied children; `None`: of the paths at the top.
pub(crate) fn parent_key(id: u32, parent: Option<&[u8]>) -> Vec<u8> {
    let mut key = begun(id, parent.unwrap_or_default());
    match parent {
        Some(parent) => {
            key.push(1);
            push_ended(&mut key, parent);
        }
        None => key.push(0),
    }
    key
}

/// Keys of all parents below a path, and of their implied children.
pub(crate) fn parents_below(id: u32, path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let bound = |end: u8| {
        let mut key = parent_key(id, Some(path));
        key.truncate(key.len() - 2);
        key.push(end);
        key
    };
    (bound(crate::path::SEPARATOR), bound(crate::path::SEPARATOR + 1))
}

/// Key of an implied child.
pub(crate) fn implied_key(id: u32, parent: Option<&[u8]>, name: &[u8]) -> Vec<u8> {
    let mut key = parent_key(id, parent);
    key.extend_from_slice(name);
    key
}

/// Prefix of the keys of the rules of a kind.
pub(crate) fn rule_prefix(id: u32, tag: u8) -> Vec<u8> {
    tagged(id, tag)
}

/// Key of a rule with a name or a path.
pub(crate) fn rule_key(id: u32, tag: u8, name: &[u8]) -> Vec<u8> {
    let mut key = tagged(id, tag);
    key.extend_from_slice(name);
    key
}

/// Prefix of the keys of the conditions while which nodes are kept.
pub(crate) fn kept_prefix(id: u32) -> Vec<u8> {
    tagged(id, KEPT)
}

/// Key of the conditions while which a node is kept.
pub(crate) fn kept_key(id: u32, path: &[u8]) -> Vec<u8> {
    rule_key(id, KEPT, path)
}

/// Prefix of the keys of the nodes with a condition on a path.
pub(crate) fn keepers_prefix(id: u32, path: &[u8]) -> Vec<u8> {
    let mut key = tagged(id, WATCHED);
    push_ended(&mut key, path);
    key
}

/// Keys of all nodes with conditions on paths below a path.
pub(crate) fn keepers_below(id: u32, path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let bound = |end: u8| {
        let mut key = keepers_prefix(id, path);
        key.truncate(key.len() - 2);
        key.push(end);
        key
    };
    (bound(crate::path::SEPARATOR), bound(crate::path::SEPARATOR + 1))
}

/// The node of the key of a node with a condition on a path.
pub(crate) fn keeper_of(key: &[u8]) -> Result<Vec<u8>> {
    let mut rest = key.get(5..).unwrap_or_default();
    // The path before it ends with two bytes 0; another byte 0 is followed by 255.
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        match rest.get(zero + 1) {
            Some(0) => return Ok(rest[zero + 2..].to_vec()),
            Some(255) => rest = &rest[zero + 2..],
            _ => break,
        }
    }
    Err(duramen_engine::Error::damaged("a condition of a node has a wrong key"))
}

/// Key of a node with a condition on a path.
pub(crate) fn keeper_key(id: u32, path: &[u8], keeper: &[u8]) -> Vec<u8> {
    let mut key = keepers_prefix(id, path);
    key.extend_from_slice(keeper);
    key
}

fn tagged(id: u32, tag: u8) -> Vec<u8> {
    let mut key = id.to_be_bytes().to_vec();
    key.push(tag);
    key
}

/// Key of the clock of the leases of a tree.
pub(crate) fn clock_key(id: u32) -> Vec<u8> {
    tagged(id, CLOCK)
}

/// Prefix of the keys of all leases of a tree.
pub(crate) fn leases_prefix(id: u32) -> Vec<u8> {
    tagged(id, LEASE)
}

/// Key of a lease.
pub(crate) fn lease_key(id: u32, lease: u64) -> Vec<u8> {
    let mut key = tagged(id, LEASE);
    key.extend(lease.to_be_bytes());
    key
}

/// Prefix of the keys of the deadlines of a tree.
pub(crate) fn deadlines_prefix(id: u32) -> Vec<u8> {
    tagged(id, DEADLINE)
}

/// Key of the deadline of a lease.
pub(crate) fn deadline_key(id: u32, deadline_ms: u64, lease: u64) -> Vec<u8> {
    let mut key = deadlines_prefix(id);
    key.extend(deadline_ms.to_be_bytes());
    key.extend(lease.to_be_bytes());
    key
}

/// Deadline and lease of the key of a deadline.
pub(crate) fn deadline_of(key: &[u8]) -> Result<(u64, u64)> {
    let number = |at: usize| {
        key.get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_be_bytes)
    };
    number(5)
        .zip(number(13))
        .filter(|_| key.len() == 21)
        .ok_or_else(|| duramen_engine::Error::damaged("a deadline of a lease has a wrong key"))
}

/// Prefix of the keys of the paths that are attached to a lease.
pub(crate) fn attached_prefix(id: u32, lease: u64) -> Vec<u8> {
    let mut key = tagged(id, ATTACHED);
    key.extend(lease.to_be_bytes());
    key
}

/// Key of a path that is attached to a lease.
pub(crate) fn attached_key(id: u32, lease: u64, path: &[u8]) -> Vec<u8> {
    let mut key = attached_prefix(id, lease);
    key.extend_from_slice(path);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_the_order_of_paths_and_come_back() {
        let mut paths: Vec<Vec<u8>> = [
            &b"a"[..],
            b"a\0",
            b"a\0b",
            b"a/b",
            b"",
            b"/",
            b"a\xFF",
            b"a\0\xFF",
            b"\0",
        ]
        .map(<[u8]>::to_vec)
        .to_vec();
        paths.sort();
        let keys: Vec<_> = paths.iter().map(|path| version_key(7, path, 9)).collect();
        assert!(keys.is_sorted());
        for (path, key) in paths.iter().zip(&keys) {
            assert_eq!(version_of(key).unwrap(), (path.clone(), 9));
            // The versions of a path stand together.
            assert!(key.starts_with(&versions_prefix(7, path)));
            let others = keys.iter().filter(|key| key.starts_with(&versions_prefix(7, path)));
            assert_eq!(others.count(), 1);
        }
        assert!(version_of(b"").is_err());
        assert_eq!(change_of(&change_key(1, 2, 3)).unwrap(), (2, 3));
        assert!(change_of(&[0; 15]).is_err());
        assert_eq!(deadline_of(&deadline_key(1, 2, 3)).unwrap(), (2, 3));
        for path in &paths {
            let key = keeper_key(7, path, b"\0\0x");
            assert_eq!(keeper_of(&key).unwrap(), b"\0\0x");
            let (low, high) = keepers_below(7, path);
            let below = keeper_key(7, &[path, &b"/b"[..]].concat(), b"x");
            assert!(low <= below && below < high && !(low <= key && key < high));
            // The implied children of a parent stand together.
            let prefixes: Vec<_> = paths
                .iter()
                .map(|path| parent_key(7, Some(path)))
                .chain([parent_key(7, None)])
                .collect();
            for parent in [None, Some(&path[..])] {
                let child = implied_key(7, parent, b"\0\0x");
                assert!(child.starts_with(&parent_key(7, parent)));
                assert_eq!(prefixes.iter().filter(|prefix| child.starts_with(prefix)).count(), 1);
            }
        }
        assert!(keeper_of(b"").is_err());
    }

    #[test]
    fn parents_below_a_path_are_those_with_a_name_more() {
        let (low, high) = parents_below(1, b"a");
        for (parent, is_below) in [
            (&b"a"[..], false),
            (b"a/", true),
            (b"a/b", true),
            (b"a/b/c", true),
            (b"a-b", false),
            (b"a0", false),
            (b"ab", false),
            (b"a\0", false),
        ] {
            let key = parent_key(1, Some(parent));
            assert_eq!(low <= key && key < high, is_below, "{parent:?}");
            let child = implied_key(1, Some(parent), b"x");
            assert_eq!(low <= child && child < high, is_below, "{parent:?}");
        }
    }
}
