//! Duramen, through its public interface, with its default options.

use std::ops::Bound;
use std::path::Path;

use anyhow::{Context, Result};
use duramen::{Batch, Durability, Map, Options, Snapshot, Store, TransactionOptions};
use duramen_backup::{Backup, Compression, ExportOptions};

use crate::answer::Found;
use crate::broker::Broker;
use crate::brokers;
use crate::data::KeySlice;
use crate::peer::{Choice, Class, Description, Driver, End, Pair, Pairs, Peer, Reader, Reading, Setting, decide};
use crate::tree::Tree;
use crate::trees;
use crate::versions::locked_version;

/// Number of pairs beyond which a commit uses a transaction. A transaction may be larger than memory; a batch is one
/// record of the log.
const BATCH_PAIRS_MAX: usize = 200_000;

/// The driver of Duramen.
pub struct Duramen;

struct Opened {
    store: Store,
    pairs: Map,
    /// A handle whose commits are not synced.
    unsynced: Map,
}

struct Moment<'a> {
    snapshot: Snapshot,
    pairs: &'a Map,
}

impl Driver for Duramen {
    fn describe(&self) -> Description {
        Description {
            name: "duramen".to_string(),
            version: locked_version("duramen"),
            classes: vec![
                (Class::Synced, "Durability::Synced, as it comes".to_string()),
                (Class::Written, "Durability::Written".to_string()),
            ],
            is_persistent: true,
            is_broker: true,
            is_tree: true,
            is_shared_by_processes: true,
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let durability = if setting.class == Class::Synced {
            Durability::Synced
        } else {
            Durability::Written
        };
        let store = Options::new().durability(durability).open(directory)?;
        let pairs = store.map("pairs")?;
        let unsynced = pairs.with_durability(Durability::Written);
        Ok(Box::new(Opened { store, pairs, unsynced }))
    }

    fn open_broker(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Broker>> {
        brokers::duramen::open(directory, setting)
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        trees::duramen::open(directory, setting)
    }
}

fn backup(place: &Path) -> Result<Backup> {
    let place = place.to_str().context("the path of the copies is not UTF-8")?;
    Ok(Backup::open(place)?)
}

impl Reader for Moment<'_> {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        found(self.snapshot.get(self.pairs, key)?.as_deref())
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut cursor = self.snapshot.range(self.pairs, range)?;
        let mut left = limit;
        while left > 0
            && let Some((key, value)) = cursor.next()?
        {
            pair(key, &value)?;
            left -= 1;
        }
        Ok(())
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        let mut cursor = self.snapshot.range(self.pairs, ..)?;
        cursor.seek_end();
        let mut left = limit;
        while left > 0
            && let Some((key, value)) = cursor.prev()?
        {
            pair(key, &value)?;
            left -= 1;
        }
        Ok(())
    }
}

impl Peer for Opened {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.pairs.put(key, value)?)
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        if pairs.size_hint().0 > BATCH_PAIRS_MAX {
            let mut transaction = self.store.begin(TransactionOptions::new())?;
            for (key, value) in pairs {
                transaction.put(&self.pairs, key, value)?;
            }
            transaction.commit()?;
            return Ok(());
        }
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(&self.pairs, key, value)?;
        }
        self.store.write(batch)?;
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.pairs.delete(key)?)
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        if keys.len() > BATCH_PAIRS_MAX {
            let mut transaction = self.store.begin(TransactionOptions::new())?;
            keys.iter().try_for_each(|key| transaction.delete(&self.pairs, key))?;
            transaction.commit()?;
            return Ok(());
        }
        let mut batch = Batch::new();
        for key in keys.iter() {
            batch.delete(&self.pairs, key)?;
        }
        self.store.write(batch)?;
        Ok(())
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        reading(&Moment {
            snapshot: self.store.snapshot()?,
            pairs: &self.pairs,
        })
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.unsynced.put(key, value)?)
    }

    fn put_sorted(&self, pairs: &mut Pairs) -> Result<()> {
        self.pairs.put_sorted(pairs)?;
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.pairs.count()?)
    }

    fn delete_range(&self, from: &[u8], to: &[u8]) -> Result<()> {
        Ok(self.pairs.delete_range(from..to)?)
    }

    fn pop_many(&self, end: End, count: u64, popped: &mut Pair) -> Result<()> {
        let mut transaction = self.store.begin(TransactionOptions::new())?;
        for turn in 0..count {
            let is_first = end == End::First || end == End::ByTurns && turn % 2 == 0;
            let pair = match is_first {
                true => transaction.pop_first(&self.pairs)?,
                false => transaction.pop_last(&self.pairs)?,
            };
            let (key, value) = pair.context("there are as many pairs")?;
            popped(&key, &value)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn retain(&self, keep: &mut Choice) -> Result<()> {
        let mut chosen = Ok(());
        self.pairs.retain(|key, value| decide(&mut chosen, keep(key, value)))?;
        chosen
    }

    fn extract(&self, to: &[u8], choose: &mut Choice, taken: &mut Pair) -> Result<()> {
        let mut chosen = Ok(());
        let mut transaction = self.store.begin(TransactionOptions::new())?;
        let extracted =
            transaction.extract_if(&self.pairs, ..to, |key, value| decide(&mut chosen, choose(key, value)))?;
        for pair in extracted {
            let (key, value) = pair?;
            taken(&key, &value)?;
        }
        transaction.commit()?;
        chosen
    }

    fn sync(&self) -> Result<()> {
        Ok(self.store.sync()?)
    }

    fn compact(&self) -> Result<()> {
        self.store.compact(&mut |_| {})?;
        Ok(())
    }

    fn checkpoint(&self, directory: &Path) -> Result<()> {
        Ok(self.store.copy(directory, &mut |_| {})?)
    }

    fn back_up(&self, place: &Path) -> Result<u64> {
        let options = ExportOptions::new().compression(Compression::None);
        let export = backup(place)?.export(&self.store, &options, &mut |_| ())?;
        Ok(export.bytes())
    }

    fn forget_copies(&self) -> Result<()> {
        let checkpoints = self.store.checkpoints();
        for checkpoint in checkpoints.list()? {
            // The prefix of those of backups.
            if checkpoint.name.starts_with("backup ") {
                checkpoints.drop(&checkpoint.name)?;
            }
        }
        Ok(())
    }

    fn bring_back(&self, place: &Path, directory: &Path) -> Result<()> {
        backup(place)?.import(duramen_backup::Moment::Newest, directory, &mut |_| ())?;
        Ok(())
    }

    fn keep(&self, name: &str) -> Result<()> {
        self.store.checkpoints().create(name, "")?;
        Ok(())
    }

    fn go_back(self: Box<Self>, name: &str) -> Result<()> {
        duramen::restore(&self.store, name)?;
        self.close()
    }

    fn drop_kept(&self, name: &str) -> Result<()> {
        anyhow::ensure!(
            self.store.checkpoints().drop(name)?,
            "the checkpoint {name} is not there"
        );
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Opened { store, pairs, unsynced } = *self;
        drop((pairs, unsynced));
        Ok(store.close()?)
    }
}
