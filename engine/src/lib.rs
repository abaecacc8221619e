//! The ordered, transactional, memory-mapped store that everything in Duramen stands on.
//!
//! Programs use it through the `duramen` crate, which has the overview. Inside, the modules are declared bottom first,
//! and each uses only those above it, but for `core`, which holds the parts together. `ARCHITECTURE.md` at the root of
//! the repository tells the life of a write, a read and a crash, and in which order to read the code.
//!
//! `unsafe` is used for three things: memory that is mapped from files (`pages`, `log`, `region`), the index in shared
//! memory (`index`), and keys on the stack (`full_key`).

mod background;
mod base;
mod batch;
mod bitmap;
mod catalog;
mod changes;
mod check;
mod checksum;
mod commit;
mod conflict;
mod copy;
mod core;
mod draft;
pub mod encoding;
mod error;
mod fold;
mod full_key;
mod future;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod generations;
mod index;
mod limits;
mod log;
mod long_value;
mod map;
mod meta;
mod newest;
mod options;
mod pace;
mod page_sink;
mod pages;
#[doc(hidden)]
pub mod planted;
mod progress;
mod promises;
mod recovery;
mod region;
mod salvage;
mod scan;
mod shared_array;
mod snapshot;
mod space;
mod statistics;
mod store;
mod transaction;
mod value;
mod view;
mod write_set;

pub use batch::Batch;
pub use changes::{Change, Changes, ChangesFrom, CommitChanges};
pub use check::CheckReport;
pub use commit::{Commit, Durability};
pub use copy::Compaction;
pub use error::{Error, Kind, Reason, Result};
pub use future::CommitFuture;
pub use limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use map::{Map, Maps};
pub use options::{Maintenance, Options};
pub use pages::ReadMode;
pub use progress::Progress;
pub use salvage::{Lost, Salvage};
pub use snapshot::{Cursor, Snapshot, ValueReader};
pub use statistics::{Counts, GenerationStatistics, MapStatistics, MemoryStatistics, SnapshotStatistics, Statistics};
pub use store::Store;
pub use transaction::{Savepoint, Transaction, TransactionOptions};
pub use value::Value;
