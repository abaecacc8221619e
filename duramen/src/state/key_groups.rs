//! Key groups: which group a key has, and which groups a worker owns. Both follow Apache Flink, but for the hash.

use std::ops::Range;

use duramen_engine::Result;
use duramen_engine::encoding;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::error::StateError;
use crate::codec::KeyFor;

/// Number of key groups for jobs that need no other: enough for 128 workers.
pub const KEY_GROUPS_DEFAULT: u16 = 128;

/// Maximum number of key groups of a job, as in Flink.
pub const KEY_GROUPS_MAX: u16 = 1 << 15;

/// Seed of the hash of keys, `keygroup` in ASCII. It is part of the format and never changes.
const SEED: u64 = 0x6B65_7967_726F_7570;

/// The key groups of a job: the units in which keys move between workers.
///
/// ```
/// use duramen::state::KeyGroups;
///
/// let groups = KeyGroups::new(128)?;
/// let group = groups.of_key::<String>("ada");
/// let worker = groups.worker_of(group, 3)?;
/// assert!(groups.of_worker(worker, 3)?.contains(&group));
/// # Ok::<(), duramen::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyGroups(u16);

impl KeyGroups {
    /// Key groups of a job that has so many.
    ///
    /// # Errors
    /// [`StateError::InvalidKeyGroups`].
    pub fn new(count: u16) -> Result<KeyGroups> {
        match count {
            1..=KEY_GROUPS_MAX => Ok(KeyGroups(count)),
            _ => Err(StateError::InvalidKeyGroups {
                asked: count,
                max: KEY_GROUPS_MAX,
            }
            .into()),
        }
    }

    /// Their number.
    pub fn count(self) -> u16 {
        self.0
    }

    /// The key group of a key.
    pub fn of_key<K>(self, key: &(impl KeyFor<K> + ?Sized)) -> u16 {
        self.of_encoded(&encoding::encode(key))
    }

    pub(super) fn of_encoded(self, key: &[u8]) -> u16 {
        // The remainder is below a `u16`.
        (xxh3_64_with_seed(key, SEED) % u64::from(self.0)) as u16
    }

    /// The key groups that a worker owns. The workers count from 0. Each owns as many as any other, or one more.
    ///
    /// # Errors
    /// [`StateError::InvalidWorker`].
    pub fn of_worker(self, index: u16, workers: u16) -> Result<Range<u16>> {
        if index >= workers {
            return Err(self.no_worker(index, workers));
        }
        self.admit(index, workers)?;
        let (index, workers, count) = (u32::from(index), u32::from(workers), u32::from(self.0));
        let start = (index * count).div_ceil(workers);
        let end = ((index + 1) * count - 1) / workers + 1;
        // Both are at most `count`, which is a `u16`.
        Ok(start as u16..end as u16)
    }

    /// The worker that owns a key group.
    ///
    /// # Errors
    /// [`StateError::InvalidWorker`] for a number of workers that the job cannot have.
    ///
    /// # Panics
    /// If there is no such key group.
    pub fn worker_of(self, key_group: u16, workers: u16) -> Result<u16> {
        assert!(key_group < self.0, "key group {key_group} of {}", self.0);
        self.admit(0, workers)?;
        let worker = u32::from(key_group) * u32::from(workers) / u32::from(self.0);
        Ok(worker as u16)
    }

    fn admit(self, index: u16, workers: u16) -> Result<()> {
        match workers {
            1.. if workers <= self.0 => Ok(()),
            _ => Err(self.no_worker(index, workers)),
        }
    }

    fn no_worker(self, index: u16, workers: u16) -> duramen_engine::Error {
        let key_groups = self.0;
        StateError::InvalidWorker {
            index,
            workers,
            key_groups,
        }
        .into()
    }
}
