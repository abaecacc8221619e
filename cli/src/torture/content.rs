//! What the store of a torture holds. Everything follows from the seed, the place of the writer and the number of its
//! transaction, so that whoever reads it can tell whether it is right.

use duramen::{Kind, Map, Store};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Transactions of each writer that are kept; each transaction removes the one so far back.
pub const KEPT: u64 = 500;
/// Accounts between which money is moved, and what each begins with.
pub const ACCOUNTS: u32 = 64;
pub const BALANCE: i64 = 1_000;
/// Lists that transactions append to.
pub const LISTS: u8 = 24;
/// One transaction in so many replaces a long value, of which each writer has so many.
pub const LONG_EVERY: u64 = 16;
pub const LONG_VALUES: u64 = 4;
const LONG_BYTES: std::ops::Range<u64> = 66_000..300_000;
/// Records of each writer that its transactions replace in turn, all over the keys: so many that folds of the store are divided
/// into steps, and at times so many at once that they go to the data file before the commit.
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
/// What a transaction that writes many at once has in memory.
pub const MEMORY_BYTES: usize = 16 << 10;

/// The maps.
pub struct Maps {
    /// Writer and number of a transaction: bytes that follow from both.
    pub ledger: Map,
    /// Writer: how many transactions it has committed.
    pub counts: Map,
    /// Account: its balance.
    pub accounts: Map,
    /// See `lists`.
    pub lists: Map,
    /// Writer and which: the number of a transaction, and bytes that follow from it.
    pub long: Map,
    /// See [`RECORDS`].
    pub records: Map,
}

impl Maps {
    /// Opens them, making those that are missing, however often somebody is in the way.
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

/// Key of a transaction in the ledger.
pub fn ledger_key(slot: u32, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&slot.to_be_bytes());
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

/// What a transaction writes to the ledger.
pub fn ledger_value(slot: u32, number: u64) -> Vec<u8> {
    let length = hash(slot, number, 0) % 400;
    bytes(slot, number, length)
}

/// The long value that a transaction writes, if it is one that does.
pub fn long_value(slot: u32, number: u64) -> Option<Vec<u8>> {
    number.is_multiple_of(LONG_EVERY).then(|| {
        let length = LONG_BYTES.start + hash(slot, number, 1) % (LONG_BYTES.end - LONG_BYTES.start);
        let mut value = number.to_be_bytes().to_vec();
        value.extend(bytes(slot, number, length));
        value
    })
}

/// Under which key.
pub fn long_key(slot: u32, number: u64) -> [u8; 12] {
    ledger_key(slot, number / LONG_EVERY % LONG_VALUES)
}

/// The newest transaction that wrote to a place, when one in `every` writes to one of `places` in turn.
pub fn last_writer(newest: u64, place: u64, every: u64, places: u64) -> Option<u64> {
    // The greatest number up to the newest that comes to this place.
    let number = newest
        .checked_sub(place * every)
        .map(|above| place * every + above / (every * places) * (every * places));
    number.filter(|number| *number > 0)
}

/// Records that are written in the same way, in groups: all of one by one transaction.
pub struct Records {
    family: u8,
    /// One transaction in so many writes a group.
    every: u64,
    /// Records of a group.
    together: u64,
    pub groups: u64,
}

impl Records {
    /// One transaction in so many writes a group.
    pub fn every(&self) -> u64 {
        self.every
    }

    /// The group that a transaction writes, if it does.
    pub fn group_of(&self, number: u64) -> Option<u64> {
        number
            .is_multiple_of(self.every)
            .then_some(number / self.every % self.groups)
    }

    /// Whether a group is more than a transaction is to have in memory.
    pub fn are_many(&self) -> bool {
        self.together > 100
    }

    /// The transaction that wrote a group last.
    pub fn last_writer(&self, newest: u64, group: u64) -> Option<u64> {
        last_writer(newest, group, self.every, self.groups)
    }

    /// Keys of a group.
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

    /// What a transaction writes under one of them.
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

/// A number as it is stored.
pub fn number_of(bytes: &[u8]) -> Result<i64, String> {
    let bytes = bytes
        .try_into()
        .map_err(|_| format!("{} bytes in place of a number", bytes.len()))?;
    Ok(i64::from_be_bytes(bytes))
}
