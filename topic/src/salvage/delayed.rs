//! Delayed messages of topics during salvage. A row that can be decoded is copied unchanged. Due messages are published
//! in the new store, at their due times or when the store is first used.

use duramen_engine::Result;

use super::Saving;
use crate::delayed::Delayed;

impl Saving<'_> {
    /// Copies the delayed messages of all topics.
    pub(super) fn delayed(&mut self) -> Result<()> {
        let (source, target) = (self.source.tables.delayed.clone(), self.home.tables.delayed.clone());
        let (mut lost, mut highest) = (0, 0);
        let writer = &mut self.writer;
        let is_whole = self
            .source
            .rows(&source, b"", &mut |key, row| match Delayed::check(key, row) {
                Ok(topic) => {
                    highest = highest.max(topic);
                    writer.put(&target, key, row)
                }
                Err(_) => {
                    lost += 1;
                    Ok(())
                }
            })?;
        self.has_id(highest);
        if lost > 0 {
            self.lose(format!("{lost} delayed messages"));
        }
        if !is_whole {
            self.lose("delayed messages, if there were more than are left".into());
        }
        Ok(())
    }
}
