//! Ids of messages of topics during salvage, and the index that the background builds again.
//!
//! Rows of ids are copied unchanged. An id whose row is lost can be published again within the window. All other rows
//! of the index follow from messages, and the new store builds them again.

use duramen_engine::Result;

use super::Saving;
use crate::ids::Known;
use crate::index::{ID, ID_TIME, timed};

impl Saving<'_> {
    /// Copies the ids of the messages of all topics.
    pub(super) fn ids(&mut self) -> Result<()> {
        let (source, target) = (self.source.tables.index.clone(), self.home.tables.index.clone());
        let mut is_understood = true;
        let writer = &mut self.writer;
        let is_whole = self.source.rows(&source, b"", &mut |key, row| {
            let is_right = match key.get(4) {
                Some(&ID) => Known::decode(row).is_ok(),
                Some(&ID_TIME) => timed(key).is_ok() && row.is_empty(),
                _ => return Ok(()),
            };
            is_understood &= is_right;
            match is_right {
                true => writer.put(&target, key, row),
                false => Ok(()),
            }
        })?;
        if !is_whole || !is_understood {
            self.lose("ids of messages, if there were more than are left: they can be published again".into());
        }
        Ok(())
    }
}
