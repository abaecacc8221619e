//! A peer that stores nothing: what it costs is the harness itself.
//!
//! It answers a read by making the value from the key, as the verification does once more; so the harness alone costs a
//! little over half of what this peer shows for reads. It cannot scan, because it does not know what was stored.

use std::hint::black_box;
use std::path::Path;

use anyhow::{Result, bail};

use crate::data::{Key, Value, is_present, value_of};
use crate::peer::{Class, Description, Driver, Found, Pair, Peer, Unsupported};

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
            options: Vec::new(),
            is_persistent: false,
        }
    }

    fn open(&self, _directory: &Path, _class: Class) -> Result<Box<dyn Peer>> {
        Ok(Box::new(Null))
    }
}

impl Peer for Null {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        black_box((key, value));
        Ok(())
    }

    fn put_batch(&self, keys: &[Key], values: &[Value]) -> Result<()> {
        black_box((keys, values));
        Ok(())
    }

    fn get_many(&self, keys: &[Key], found: &mut Found) -> Result<()> {
        keys.iter().try_for_each(|key| match is_present(key) {
            true => found(key, Some(&black_box(value_of(key)))),
            false => found(key, None),
        })
    }

    fn scan(&self, _pair: &mut Pair) -> Result<()> {
        bail!(Unsupported("stores nothing that could be scanned"))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
