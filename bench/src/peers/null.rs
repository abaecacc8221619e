//! A peer that stores nothing. Its cost is that of the harness itself. Its answers are not checked; the checks run on
//! the expected values instead, so its time contains all the work of the harness.

use std::hint::black_box;
use std::path::Path;

use anyhow::{Result, bail};

use crate::answer::{Found, Unsupported};
use crate::broker::Broker;
use crate::brokers;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Pair, Pairs, Peer, Reader, Reading, Setting};
use crate::tree::Tree;
use crate::trees;

/// The driver of the peer that does nothing.
pub struct Null;

impl Driver for Null {
    fn describe(&self) -> Description {
        let nothing = "nothing is stored; shown in every class as the floor".to_string();
        Description {
            name: "null".to_string(),
            version: "the lab's own".to_string(),
            classes: [Class::Synced, Class::Written, Class::None]
                .map(|class| (class, nothing.clone()))
                .to_vec(),
            is_exempt: true,
            is_broker: true,
            is_tree: true,
            ..Description::default()
        }
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        Ok(Box::new(Null))
    }

    fn open_broker(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Broker>> {
        Ok(Box::new(brokers::null::Null::default()))
    }

    fn open_tree(&self, _directory: &Path, _setting: Setting) -> Result<Tree> {
        Ok(trees::pairs::open(Box::new(Null), true))
    }
}

impl Reader for Null {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        black_box(key);
        found(None)
    }

    fn scan(&self, _from: &[u8], _limit: u64, _pair: &mut Pair) -> Result<()> {
        bail!(Unsupported("stores nothing that could be scanned"))
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        self.scan(&[], limit, pair)
    }
}

impl Peer for Null {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        black_box((key, value));
        Ok(())
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        pairs.for_each(|pair| {
            black_box(pair);
        });
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        black_box(key);
        Ok(())
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        black_box(keys);
        Ok(())
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        reading(self)
    }

    fn put_unsynced(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(key, value)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
