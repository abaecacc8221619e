//! What the handles of a tree share.

use duramen_engine::{Result, Sequence, Store};

use crate::read::{Reading, Rows};
use crate::tables::Tables;

/// A tree of an open store.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) tables: Tables,
    pub(crate) id: u32,
    pub(crate) name: String,
    /// Rung by each change.
    pub(crate) sequence: Sequence,
}

impl Shared {
    pub(crate) fn new(store: &Store, tables: &Tables, id: u32, name: &str) -> Result<Shared> {
        Ok(Shared {
            store: store.clone(),
            tables: tables.clone(),
            id,
            name: name.to_string(),
            sequence: tables.sequence(id, name)?,
        })
    }

    /// Reads the newest revision.
    pub(crate) fn reading<'r, R: Rows>(&'r self, rows: &'r R) -> Reading<'r, R> {
        self.reading_at(rows, None)
    }

    /// Reads a revision; `None`: the newest one.
    pub(crate) fn reading_at<'r, R: Rows>(&'r self, rows: &'r R, revision: Option<u64>) -> Reading<'r, R> {
        Reading {
            rows,
            tables: &self.tables,
            id: self.id,
            revision,
        }
    }
}
