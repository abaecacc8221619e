//! LMDB, through heed.
//!
//! `synced` is LMDB as it comes: two syncs per commit. `written` is MDB_NOSYNC without MDB_WRITEMAP: commits go to the
//! file with `pwrite` and are never synced, so they survive the process; after a power cut, however, not only the
//! newest commits but the whole store may be lost. It is weaker than the other peers' `written` in that.

use std::path::Path;

use anyhow::Result;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::locked_version;
use crate::data::{Key, Value};
use crate::peer::{Class, Description, Driver, Found, Pair, Peer};

/// Address space for the map. LMDB wants the largest size that the store will ever have; it takes no disk space.
const MAP_BYTES: usize = 64 << 30;

/// The driver of LMDB.
pub struct Lmdb;

struct Store {
    environment: Env,
    pairs: Database<Bytes, Bytes>,
}

impl Driver for Lmdb {
    fn describe(&self) -> Description {
        let lmdb = heed::lmdb_version();
        Description {
            name: "lmdb".to_string(),
            version: format!(
                "LMDB {}.{}.{} through {}",
                lmdb.major,
                lmdb.minor,
                lmdb.patch,
                locked_version("heed")
            ),
            classes: vec![
                (Class::Synced, "as it comes".to_string()),
                (
                    Class::Written,
                    "MDB_NOSYNC; a power cut may lose the whole store".to_string(),
                ),
            ],
            options: vec![format!(
                "map size {} GiB: the default of 1 MiB is too small for any load",
                MAP_BYTES >> 30
            )],
            is_persistent: true,
        }
    }

    fn open(&self, directory: &Path, class: Class) -> Result<Box<dyn Peer>> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        if class != Class::Synced {
            // SAFETY: NO_SYNC weakens only what survives a power cut, which is what this class says.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: the directory is the lab's own: nobody else changes or truncates the file under the mapping.
        let environment = unsafe { options.open(directory) }?;
        let mut transaction = environment.write_txn()?;
        let pairs = environment.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Box::new(Store { environment, pairs }))
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        self.pairs.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    fn put_batch(&self, keys: &[Key], values: &[Value]) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        for (key, value) in keys.iter().zip(values) {
            self.pairs.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn get_many(&self, keys: &[Key], found: &mut Found) -> Result<()> {
        let transaction = self.environment.read_txn()?;
        keys.iter()
            .try_for_each(|key| found(key, self.pairs.get(&transaction, key)?))
    }

    fn scan(&self, pair: &mut Pair) -> Result<()> {
        let transaction = self.environment.read_txn()?;
        self.pairs.iter(&transaction)?.try_for_each(|next| {
            let (key, value) = next?;
            pair(key, value)
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.environment.force_sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.environment.prepare_for_closing().wait();
        Ok(())
    }
}
