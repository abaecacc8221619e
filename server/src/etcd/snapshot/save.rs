//! Writes a view of a tree to a file that etcd can restore.
//!
//! The file has each key once, as a row of the revision that changed it last. Older revisions count as compacted. Memory does not
//! grow with the tree: its revisions and keys are sorted in a file, and the nodes are read in that order.

use std::fs::File;
use std::io;
use std::path::Path;

use duramen::tree::{Lease, Selection, TreeView};
use prost::Message;

use super::bolt::Writer;
use super::order::Sorter;
use super::rows::{
    self, CONF_STATE, CONSISTENT_INDEX, FINISHED_COMPACTION, KEY, LEASE, LeaseRow, META, META_TERM, Revision,
    SCHEDULED_COMPACTION, STORAGE_VERSION,
};
use crate::command::to_key_value;
use crate::etcd::{ETCD_VERSION, TERM};

/// Nodes that are read at once.
const PAGE_NODES: usize = 1_000;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub(super) enum SaveError {
    #[error(transparent)]
    Store(#[from] duramen::Error),
    #[error("the snapshot file cannot be written: {0}")]
    File(#[from] io::Error),
    #[error("the client has gone")]
    Gone,
}

/// Whose snapshot it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) member_id: u64,
    /// Commits of the store.
    pub(super) commit: u64,
}

/// Writes an unnamed file in a directory. `is_gone` tells whether it is still wanted.
pub(super) fn save(
    view: &TreeView,
    origin: Origin,
    directory: &Path,
    is_gone: &dyn Fn() -> bool,
) -> Result<File, SaveError> {
    let mut writer = Writer::new(tempfile::tempfile_in(directory)?)?;
    write_keys(&mut writer, view, directory, is_gone)?;
    write_leases(&mut writer, view.leases()?)?;
    let meta = meta_of(view.revision(), origin);
    let mut bucket = writer.bucket(META);
    for (key, value) in meta {
        bucket.put(key, value)?;
    }
    bucket.finish()?;
    for name in rows::EMPTY {
        writer.bucket(name).finish()?;
    }
    Ok(writer.finish()?)
}

fn write_keys(
    writer: &mut Writer,
    view: &TreeView,
    directory: &Path,
    is_gone: &dyn Fn() -> bool,
) -> Result<(), SaveError> {
    let mut sorter = Sorter::new(directory)?;
    let (all, mut after) = (Selection::all(), None);
    loop {
        let page = view.page(&all, after.as_deref(), PAGE_NODES)?;
        for (path, node) in page.content {
            sorter.add(node.revision, path)?;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        if is_gone() {
            return Err(SaveError::Gone);
        }
    }
    let mut sorted = sorter.sorted()?;
    let mut bucket = writer.bucket(KEY);
    let mut at = Revision { main: 0, sub: 0 };
    while let Some((main, path)) = sorted.next()? {
        if is_gone() {
            return Err(SaveError::Gone);
        }
        let sub = if main == at.main { at.sub + 1 } else { 0 };
        at = Revision { main, sub };
        let node = view.get(&path)?;
        let node = node.ok_or_else(|| io::Error::other("a view of a tree has changed"))?;
        bucket.put(&at.encode(), to_key_value(path.into(), node).encode_to_vec())?;
    }
    Ok(bucket.finish()?)
}

fn write_leases(writer: &mut Writer, leases: Vec<Lease>) -> io::Result<()> {
    let mut bucket = writer.bucket(LEASE);
    for lease in leases {
        // The time that is left is rounded up: 0 would mean the whole time.
        let remaining = lease.remaining.as_millis().div_ceil(1_000).max(1);
        let row = LeaseRow {
            id: lease.id as i64,
            ttl: i64::try_from(lease.ttl.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX),
            remaining: i64::try_from(remaining).unwrap_or(i64::MAX),
        };
        bucket.put(&lease.id.to_be_bytes(), row.encode_to_vec())?;
    }
    bucket.finish()
}

/// The pairs of the bucket `meta`, in order.
fn meta_of(revision: u64, origin: Origin) -> [(&'static [u8], Vec<u8>); 6] {
    let compacted = Revision { main: revision, sub: 0 };
    let voters = format!("{{\"voters\":[{}],\"auto_leave\":false}}", origin.member_id);
    [
        (CONF_STATE, voters.into_bytes()),
        (CONSISTENT_INDEX, origin.commit.max(1).to_be_bytes().to_vec()),
        (FINISHED_COMPACTION, compacted.encode().to_vec()),
        (SCHEDULED_COMPACTION, compacted.encode().to_vec()),
        (STORAGE_VERSION, ETCD_VERSION.into()),
        (META_TERM, TERM.to_be_bytes().to_vec()),
    ]
}
