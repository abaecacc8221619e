//! The ordered, transactional, memory-mapped store that everything in Duramen stands on.
//!
//! Programs use it through the `duramen` crate, which has the overview. Inside, the layers of modules are declared bottom
//! first, and each uses only those above it, but for `core`, which holds the parts together. `ARCHITECTURE.md` at the root of
//! the repository tells the life of a write, a read and a crash, and in which order to read the code.
//!
//! `unsafe` is used for three things: memory that is mapped from files (`pages`, `log`, `region`), the index in shared
//! memory (`index`), and keys on the stack (`full_key`).

mod checksum;
mod error;
mod limits;
#[doc(hidden)]
pub mod planted;

pub mod encoding;
mod full_key;

mod base;

mod index;

mod log;

mod bitmap;
mod brake;
mod meta;
mod pages;
mod promises;

mod processes;
mod undo;

mod region;
mod shared_array;

mod space;

mod above;
mod scan;
mod value;
mod view;

mod bell;
mod catalog;
mod core;
mod progress;

mod beside;
mod commit;
mod conflict;
mod deleted;
mod draft;
mod generations;
mod pace;

mod background;
mod fold;
mod fold_parts;
mod long_value;
mod newest;
mod page_sink;
mod recovery;
mod repair;
mod syncing;
mod unsynced;
mod watch;

mod burial;
mod scout;
mod shrink;

mod batch;
mod bounds;
mod changes;
mod closing;
mod future;
mod map;
mod options;
mod pairs;
mod presence;
mod ringing;
mod sequence;
mod snapshot;
mod store;
mod transaction;
mod write_set;

mod check;
mod copy;
mod salvage;
mod statistics;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use batch::Batch;
#[doc(hidden)]
pub use bell::{Bell, Listener};
pub use bounds::KeyBounds;
#[doc(hidden)]
pub use brake::{BRAKES_MAX, Brake, BrakeStatistics, HeldBack};
pub use changes::{Change, Changes, ChangesFrom, CommitChanges};
pub use check::CheckReport;
pub use closing::CloseFuture;
pub use commit::{Commit, Durability};
pub use copy::Compaction;
#[doc(hidden)]
pub use duramen_io::prefetch;
pub use error::{Error, Kind, Reason, Result};
pub use future::CommitFuture;
pub use limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use map::{Map, Maps};
pub use options::{Maintenance, Options};
pub use pairs::Pairs;
pub use progress::Progress;
pub use salvage::{Lost, Salvage};
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub use scan::keys_passed_by_walks;
#[doc(hidden)]
pub use sequence::{Item, STAMP_BYTES, Sequence, SequenceState, Stamp, Ticket};
pub use snapshot::{Cursor, Snapshot, ValueReader};
pub use statistics::{
    Counts, GenerationStatistics, MapStatistics, MemoryStatistics, ProcessStatistics, SnapshotStatistics, Statistics,
};
pub use store::Store;
pub use transaction::{ExtractIf, Rollback, Savepoint, Transaction, TransactionOptions};
pub use value::Value;
pub use watch::BackgroundError;
