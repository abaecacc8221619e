//! What the handles of a tree share.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use duramen_engine::{Result, Sequence, Store};
use duramen_topic::{Topics, TopicsOptions};

use crate::read::{Reading, Rows};
use crate::rules::Rules;
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
    /// The rules that were read last, with their hash.
    rules: Mutex<(u64, Arc<Rules>)>,
    topics: OnceLock<Topics>,
}

impl Shared {
    pub(crate) fn new(store: &Store, tables: &Tables, id: u32, name: &str) -> Result<Shared> {
        Ok(Shared {
            store: store.clone(),
            tables: tables.clone(),
            id,
            name: name.to_string(),
            sequence: tables.sequence(id, name)?,
            rules: Mutex::default(),
            topics: OnceLock::new(),
        })
    }

    /// Reads the newest revision.
    pub(crate) fn reading<'r, R: Rows>(&'r self, rows: &'r R) -> Reading<'r, R> {
        self.reading_at(rows, None)
    }

    /// The rules with a hash.
    pub(crate) fn rules<R: Rows>(&self, rows: &R, hash: u64) -> Result<Arc<Rules>> {
        let mut known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != hash {
            let mut rules = Rules::read(rows, &self.tables, self.id)?;
            if !rules.triggers.is_empty() {
                rules.topics = Some(self.topics()?.clone());
            }
            *known = (hash, Arc::new(rules));
        }
        Ok(known.1.clone())
    }

    /// The topics of the store, for triggers.
    pub(crate) fn topics(&self) -> Result<&Topics> {
        if let Some(topics) = self.topics.get() {
            return Ok(topics);
        }
        // What topics do in the background, the program's own handle of them does.
        let topics = Topics::open_with(&self.store, TopicsOptions::new().background(false))?;
        Ok(self.topics.get_or_init(|| topics))
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
