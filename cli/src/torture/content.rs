//! The content of the store under torture. The seed, the slot of the writer and the transaction number determine all of
//! it, so any process that reads the store can verify it.

use duramen::{Kind, Map, Store};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Number of transactions kept for each writer. Each transaction removes the one `KEPT` transactions before it.
pub const KEPT: u64 = 500;
/// Number of accounts between which money moves, and the initial balance of each.
pub const ACCOUNTS: u32 = 64;
pub const BALANCE: i64 = 1_000;
/// Lists that transactions append to.
pub const LISTS: u8 = 24;
/// Each writer has `LONG_VALUES` long values. One transaction in `LONG_EVERY` replaces one of them.
pub const LONG_EVERY: u64 = 16;
pub const LONG_VALUES: u64 = 4;
const LONG_BYTES: std::ops::Range<u64> = 66_000..300_000;
/// Records of each writer that its transactions replace in turn, spread over the whole key range. There are enough of
/// them for the store to divide folds into steps. Some transactions write so many at once that the records reach the
/// data file before the commit.
pub const RECORDS: [Records; 2] = [
    Records {
        family: 0,
        every: 1,
        together: 8,
        groups: 6_000,
    },
    Records {
        family: 1,
        every: 200,
        together: 400,
        groups: 25,
    },
];
/// Memory limit of a transaction that writes many records at once.
pub const MEMORY_BYTES: usize = 16 << 10;

/// The maps of the store.
pub struct Maps {
    /// Key: writer and transaction number. Value: bytes derived from both.
    pub ledger: Map,
    /// Key: writer. Value: number of transactions it has committed.
    pub counts: Map,
    /// Key: account. Value: its balance.
    pub accounts: Map,
    /// The lists that transactions append to; see `lists`.
    pub lists: Map,
    /// Key: writer and index of the long value. Value: a transaction number, and bytes derived from it.
    pub long: Map,
    /// The records that transactions replace; see [`RECORDS`].
    pub records: Map,
}

impl Maps {
    /// Opens the maps and creates those that are missing. Retries for as long as another process blocks it.
    pub fn open(store: &Store) -> duramen::Result<Maps> {
        let map = |name| {
            loop {
                match store.map(name) {
                    Err(error) if matches!(error.kind(), Kind::Retry | Kind::Sync) => {}
                    map => return map,
                }
            }
        };
        Ok(Maps {
            ledger: map("ledger")?,
            counts: map("counts")?,
            accounts: map("accounts")?,
            lists: map("lists")?,
            long: map("long")?,
            records: map("records")?,
        })
    }
}

/// Returns the key of a transaction in the ledger.
pub fn ledger_key(slot: u32, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&slot.to_be_bytes());
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the value that a transaction writes to the ledger.
pub fn ledger_value(slot: u32, number: u64) -> Vec<u8> {
    let length = hash(slot, number, 0) % 400;
    bytes(slot, number, length)
}

/// Returns the long value that a transaction writes, or `None` if it writes none.
pub fn long_value(slot: u32, number: u64) -> Option<Vec<u8>> {
    number.is_multiple_of(LONG_EVERY).then(|| {
        let length = LONG_BYTES.start + hash(slot, number, 1) % (LONG_BYTES.end - LONG_BYTES.start);
        let mut value = number.to_be_bytes().to_vec();
        value.extend(bytes(slot, number, length));
        value
    })
}

/// Returns the key of the long value that a transaction writes.
pub fn long_key(slot: u32, number: u64) -> [u8; 12] {
    ledger_key(slot, number / LONG_EVERY % LONG_VALUES)
}

/// Returns the newest transaction that wrote to `place`, when one transaction in `every` writes to one of `places` in
/// turn.
pub fn last_writer(newest: u64, place: u64, every: u64, places: u64) -> Option<u64> {
    // The greatest transaction number, at most `newest`, that writes to this place.
    let number = newest
        .checked_sub(place * every)
        .map(|above| place * every + above / (every * places) * (every * places));
    number.filter(|number| *number > 0)
}

/// A family of records, divided into groups. One transaction writes all records of a group.
pub struct Records {
    family: u8,
    /// One transaction in `every` writes a group.
    every: u64,
    /// Number of records in a group.
    together: u64,
    pub groups: u64,
}

impl Records {
    /// Returns the interval: one transaction in this many writes a group.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// Returns the group that a transaction writes, or `None` if it writes none.
    pub fn group_of(&self, number: u64) -> Option<u64> {
        number
            .is_multiple_of(self.every)
            .then_some(number / self.every % self.groups)
    }

    /// Whether a group exceeds the memory limit of a transaction.
    pub fn are_many(&self) -> bool {
        self.together > 100
    }

    /// Returns the transaction that last wrote a group.
    pub fn last_writer(&self, newest: u64, group: u64) -> Option<u64> {
        last_writer(newest, group, self.every, self.groups)
    }

    /// Returns the keys of a group.
    pub fn keys(&self, slot: u32, group: u64) -> impl Iterator<Item = [u8; 21]> {
        let family = self.family;
        (group * self.together..(group + 1) * self.together).map(move |record| {
            let mut key = [family; 21];
            key[..8].copy_from_slice(&hash(slot, record, 3 + u64::from(family)).to_be_bytes());
            key[8..12].copy_from_slice(&slot.to_be_bytes());
            key[12..20].copy_from_slice(&record.to_be_bytes());
            key
        })
    }

    /// Returns the value that a transaction writes under `key`.
    pub fn value(&self, key: &[u8], slot: u32, number: u64) -> Vec<u8> {
        let mut value = number.to_be_bytes().to_vec();
        value.extend_from_slice(key);
        value.extend(bytes(slot, number, hash(slot, number, 1) % 150));
        value
    }
}

fn hash(slot: u32, number: u64, use_: u64) -> u64 {
    xxh3_64_with_seed(&ledger_key(slot, number), use_)
}

fn bytes(slot: u32, number: u64, length: u64) -> Vec<u8> {
    let mut state = hash(slot, number, 2);
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while bytes.len() < length as usize {
        bytes.extend_from_slice(&state.to_le_bytes());
        state = xxh3_64(&state.to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

/// Decodes a stored number.
pub fn number_of(bytes: &[u8]) -> Result<i64, String> {
    let bytes = bytes
        .try_into()
        .map_err(|_| format!("{} bytes in place of a number", bytes.len()))?;
    Ok(i64::from_be_bytes(bytes))
}
