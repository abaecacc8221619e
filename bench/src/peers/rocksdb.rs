//! RocksDB, behind the feature `rocksdb` because its library takes 20 to 30 minutes to build.
//!
//! `written` is RocksDB's default: a write is in the write-ahead log, which is passed to the kernel but not synced.
//! `synced` sets `sync` in the write options. The bloom filter of 10 bits a key is the usual setting for random reads,
//! and the published tables of its competitors use it too.

use std::path::Path;

use anyhow::Result;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IteratorMode, Options, Snapshot, WriteBatch,
    WriteOptions,
};

use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Pair, Pairs, Peer, Reader, Reading, Setting};
use crate::versions::locked_version;

/// The driver of RocksDB.
pub struct Rocksdb;

struct Store {
    database: DB,
    class: Class,
}

impl Driver for Rocksdb {
    fn describe(&self) -> Description {
        Description {
            name: "rocksdb".to_string(),
            version: format!(
                "{} ({})",
                locked_version("rust-rocksdb"),
                locked_version("rust-librocksdb-sys")
            ),
            classes: vec![
                (Class::Synced, "WriteOptions::sync".to_string()),
                (Class::Written, "as it comes".to_string()),
            ],
            options: vec![
                "bloom filter of 10 bits a key".to_string(),
                "block cache as for every store that has a cache".to_string(),
                "LZ4, which fjall has by default too".to_string(),
                "background threads: one for each processor".to_string(),
            ],
            is_persistent: true,
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(setting.cache_bytes.try_into()?));
        table.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::Lz4);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        options.increase_parallelism(processors.try_into()?);
        let database = DB::open(&options, directory)?;
        Ok(Box::new(Store {
            database,
            class: setting.class,
        }))
    }
}

impl Store {
    fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.set_sync(self.class == Class::Synced);
        options
    }
}

impl Reader for Snapshot<'_> {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.get_pinned(key)?.as_deref())
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        let mut left = limit;
        for next in self.iterator(IteratorMode::From(from, Direction::Forward)) {
            if left == 0 {
                break;
            }
            let (key, value) = next?;
            pair(&key, &value)?;
            left -= 1;
        }
        Ok(())
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        for next in self.iterator(IteratorMode::End).take(limit) {
            let (key, value) = next?;
            pair(&key, &value)?;
        }
        Ok(())
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.database.put_opt(key, value, &self.write_options())?)
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in pairs {
            batch.put(key, value);
        }
        Ok(self.database.write_opt(&batch, &self.write_options())?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.database.delete_opt(key, &self.write_options())?)
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        let mut batch = WriteBatch::default();
        for key in keys.iter() {
            batch.delete(key);
        }
        Ok(self.database.write_opt(&batch, &self.write_options())?)
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        reading(&self.database.snapshot())
    }

    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.database.get_pinned(key)?.as_deref())
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.database.put(key, value)?)
    }

    fn delete_range(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete_range(from, to);
        Ok(self.database.write_opt(&batch, &self.write_options())?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.flush_wal(true)?)
    }

    fn compact(&self) -> Result<()> {
        self.database.flush()?;
        self.database.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    fn checkpoint(&self, directory: &Path) -> Result<()> {
        Ok(Checkpoint::new(&self.database)?.create_checkpoint(directory)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.database.flush_wal(true)?;
        Ok(())
    }
}
