//! LMDB, through heed.
//!
//! `synced` is LMDB's default: two syncs per commit. `written` is MDB_NOSYNC without MDB_WRITEMAP: LMDB writes commits
//! to the file with `pwrite` and never syncs them, so they survive the process. After a power cut, however, the whole
//! store may be lost, not only the newest commits. In this respect it is weaker than the other peers' `written`.

use std::fs::File;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use heed::types::Bytes;
use heed::{CompactionOption, Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, MdbError, PutFlags, RoTxn};

use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Choice, Class, Description, Driver, End, Pair, Pairs, Peer, Reader, Reading, Setting};
use crate::versions::locked_version;

/// Address space for the map. LMDB needs the largest size that the store will ever have; it takes no disk space.
const MAP_BYTES: usize = 64 << 30;
/// Number of reader slots, as in the published settings of `mega`. Some workloads have more threads than the default of
/// 126.
const READERS: u32 = 200;

/// The driver of LMDB.
pub struct Lmdb;

struct Store {
    environment: Env,
    pairs: Database<Bytes, Bytes>,
    /// Whether the environment leaves out syncs, which applies to all later commits.
    is_unsynced: AtomicBool,
}

struct Moment<'a> {
    transaction: &'a RoTxn<'a>,
    pairs: Database<Bytes, Bytes>,
}

/// Returns how many copies a directory has.
fn copies(place: &Path) -> Result<usize> {
    Ok(std::fs::read_dir(place)?.count())
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
            options: vec![
                format!(
                    "map size {} GiB: the default of 1 MiB is too small for any load",
                    MAP_BYTES >> 30
                ),
                format!("{READERS} reader slots: the default of 126 is less than some workloads need"),
                "no cache of its own: the kernel's page cache".to_string(),
                "MDB_NORDAHEAD in mega, as published".to_string(),
            ],
            is_persistent: true,
            is_shared_by_processes: true,
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let environment = environment(directory, setting)?;
        let mut transaction = environment.write_txn()?;
        let pairs = environment.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Box::new(Store {
            environment,
            pairs,
            is_unsynced: AtomicBool::new(setting.class != Class::Synced),
        }))
    }
}

fn environment(directory: &Path, setting: Setting) -> Result<Env> {
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES).max_readers(READERS);
    let mut flags = EnvFlags::empty();
    if setting.class != Class::Synced {
        flags |= EnvFlags::NO_SYNC;
    }
    if !setting.has_read_ahead {
        flags |= EnvFlags::NO_READ_AHEAD;
    }
    // SAFETY: NO_SYNC weakens only what survives a power cut, which is what this class says; NO_READ_AHEAD is advice to the
    // kernel.
    unsafe { options.flags(flags) };
    // SAFETY: the directory is the lab's own: no other program changes or truncates the file under the mapping.
    Ok(unsafe { options.open(directory) }?)
}

impl Store {
    /// Removes the pairs before `to` that `remove` selects, through one cursor.
    fn remove_where(&self, to: Option<&[u8]>, remove: &mut Choice) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        let mut pairs = self.pairs.iter_mut(&mut transaction)?;
        while let Some(next) = pairs.next() {
            let (key, value) = next?;
            if to.is_some_and(|to| key >= to) {
                break;
            }
            if remove(key, value)? {
                // SAFETY: what was borrowed from the cursor is not used any more.
                unsafe { pairs.del_current() }?;
            }
        }
        drop(pairs);
        Ok(transaction.commit()?)
    }
}

impl Reader for Moment<'_> {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.pairs.get(self.transaction, key)?)
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        // LMDB refuses the empty key that denotes the beginning.
        let lower = if from.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Included(from)
        };
        let range = (lower, Bound::Unbounded);
        let mut left = limit;
        for next in self.pairs.range(self.transaction, &range)? {
            if left == 0 {
                break;
            }
            let (key, value) = next?;
            pair(key, value)?;
            left -= 1;
        }
        Ok(())
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        for next in self.pairs.rev_iter(self.transaction)?.take(limit) {
            let (key, value) = next?;
            pair(key, value)?;
        }
        Ok(())
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        self.pairs.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        for (key, value) in pairs {
            self.pairs.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        self.pairs.delete(&mut transaction, key)?;
        Ok(transaction.commit()?)
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        for key in keys.iter() {
            self.pairs.delete(&mut transaction, key)?;
        }
        Ok(transaction.commit()?)
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        let transaction = self.environment.read_txn()?;
        reading(&Moment {
            transaction: &transaction,
            pairs: self.pairs,
        })
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.is_unsynced.swap(true, Ordering::Relaxed) {
            // SAFETY: as in `environment`.
            unsafe { self.environment.set_flags(EnvFlags::NO_SYNC, FlagSetMode::Enable) }?;
        }
        self.put(key, value)
    }

    fn put_sorted(&self, pairs: &mut Pairs) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        for (key, value) in pairs {
            match self
                .pairs
                .put_with_flags(&mut transaction, PutFlags::APPEND, key, value)
            {
                // The pairs are in order, but the store has later keys.
                Err(heed::Error::Mdb(MdbError::KeyExist)) => self.pairs.put(&mut transaction, key, value)?,
                put => put?,
            }
        }
        Ok(transaction.commit()?)
    }

    fn len(&self) -> Result<u64> {
        let transaction = self.environment.read_txn()?;
        Ok(self.pairs.len(&transaction)?)
    }

    fn delete_range(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        let range = (Bound::Included(from), Bound::Excluded(to));
        self.pairs.delete_range(&mut transaction, &range)?;
        Ok(transaction.commit()?)
    }

    fn pop_many(&self, end: End, count: u64, popped: &mut Pair) -> Result<()> {
        let mut transaction = self.environment.write_txn()?;
        for turn in 0..count {
            let is_first = end == End::First || end == End::ByTurns && turn % 2 == 0;
            let found = match is_first {
                true => self.pairs.first(&transaction)?,
                false => self.pairs.last(&transaction)?,
            };
            let (key, value) = found.context("there are as many pairs")?;
            popped(key, value)?;
            let key = key.to_vec();
            self.pairs.delete(&mut transaction, &key)?;
        }
        Ok(transaction.commit()?)
    }

    fn retain(&self, keep: &mut Choice) -> Result<()> {
        self.remove_where(None, &mut |key, value| keep(key, value).map(|is_kept| !is_kept))
    }

    fn extract(&self, to: &[u8], choose: &mut Choice, taken: &mut Pair) -> Result<()> {
        self.remove_where(Some(to), &mut |key, value| {
            let is_chosen = choose(key, value)?;
            if is_chosen {
                taken(key, value)?;
            }
            Ok(is_chosen)
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.environment.force_sync()?)
    }

    fn back_up(&self, place: &Path) -> Result<u64> {
        std::fs::create_dir_all(place)?;
        let file = place.join(format!("{}.mdb", copies(place)?));
        let copy = self.environment.copy_to_path(file, CompactionOption::Disabled)?;
        copy.sync_all()?;
        File::open(place)?.sync_all()?;
        Ok(copy.metadata()?.len())
    }

    fn bring_back(&self, place: &Path, directory: &Path) -> Result<()> {
        std::fs::create_dir(directory)?;
        let newest = copies(place)?.checked_sub(1).context("there is no copy")?;
        let file = directory.join("data.mdb");
        std::fs::copy(place.join(format!("{newest}.mdb")), &file)?;
        File::open(file)?.sync_all()?;
        Ok(File::open(directory)?.sync_all()?)
    }

    fn checkpoint(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir(directory)?;
        let file = directory.join("data.mdb");
        let copy = self.environment.copy_to_path(file, CompactionOption::Disabled)?;
        Ok(copy.sync_all()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.environment.prepare_for_closing().wait();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::CACHE_BYTES;
    use crate::scratch::Scratch;

    #[test]
    fn kernel_is_told_not_to_read_ahead_only_where_that_is_asked_for() -> Result<()> {
        for has_read_ahead in [true, false] {
            let scratch = Scratch::new(&std::env::temp_dir())?;
            let setting = Setting {
                class: Class::Written,
                cache_bytes: CACHE_BYTES,
                has_read_ahead,
            };
            let environment = environment(scratch.path(), setting)?;
            let flags = environment.get_flags()?;
            let has = |flag: EnvFlags| flags & flag.bits() != 0;
            assert_eq!(has(EnvFlags::NO_READ_AHEAD), !has_read_ahead, "{flags:#x}");
            assert!(has(EnvFlags::NO_SYNC), "{flags:#x}");
        }
        Ok(())
    }
}
