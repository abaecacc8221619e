//! Writing rows to the new store, in batches.

use duramen_engine::{Batch, Map, Result, Store};

/// Largest batch: more at once is no faster.
const BATCH_ROWS_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Values of this length are written alone, because a batch would hold a copy.
const LONE_VALUE_BYTES: usize = 1 << 20;

/// Writes rows to the new store. Rows are in the store after a flush.
pub(super) struct Writer {
    store: Store,
    batch: Batch,
    batch_bytes: usize,
}

impl Writer {
    pub(super) fn new(store: &Store) -> Writer {
        Writer {
            store: store.clone(),
            batch: Batch::new(),
            batch_bytes: 0,
        }
    }

    pub(super) fn put(&mut self, map: &Map, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() >= LONE_VALUE_BYTES {
            return map.put(key, value);
        }
        self.batch.put(map, key, value)?;
        self.batch_bytes += key.len() + value.len();
        match self.batch.len() >= BATCH_ROWS_MAX || self.batch_bytes >= BATCH_BYTES_MAX {
            true => self.flush(),
            false => Ok(()),
        }
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        self.store.write(std::mem::take(&mut self.batch)).map(|_| ())
    }
}
