//! The ordered, transactional, memory-mapped store that everything in Duramen stands on.
//!
//! Programs use it through the `duramen` crate, which has the overview. Inside, the modules are declared bottom first,
//! and each uses only those above it, but for `core`, which holds the parts together. `ARCHITECTURE.md` at the root of
//! the repository tells the life of a write, a read and a crash, and in which order to read the code.
//!
//! `unsafe` is used for three things: memory that is mapped from files (`pages`, `log`, `region`), the index in shared
//! memory (`index`), and keys on the stack (`full_key`).

mod error;
mod limits;
mod checksum;
pub mod encoding;
mod full_key;
mod base;
mod index;
mod meta;
mod pages;
mod value;
mod log;
mod region;
mod space;
mod view;
mod write_set;
mod scan;
mod catalog;
mod core;
mod generations;
mod commit;
mod fold;
mod recovery;
mod background;
mod options;
mod future;
mod snapshot;
mod transaction;
mod batch;
mod map;
mod store;
mod statistics;
mod check;
mod copy;

pub use batch::Batch;
pub use check::{CheckReport, Progress};
pub use commit::{Commit, Durability};
pub use copy::Compaction;
pub use error::{Error, Kind, Reason, Result};
pub use future::CommitFuture;
pub use limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use map::{Map, Maps};
pub use options::{Maintenance, Options};
pub use pages::ReadMode;
pub use snapshot::{Cursor, Snapshot, ValueReader};
pub use statistics::{
    Counts, GenerationStatistics, MapStatistics, MemoryStatistics, SnapshotStatistics, Statistics,
};
pub use store::Store;
pub use transaction::{Savepoint, Transaction, TransactionOptions};
pub use value::Value;
