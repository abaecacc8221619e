//! The ordered, transactional, memory-mapped store that everything in Duramen stands on.
//!
//! Programs use it through the `duramen` crate, which has the overview. Inside, the layers are declared bottom first,
//! and each imports only from those declared before it; `duramen/tests/suite/layers.rs` checks that. `ARCHITECTURE.md` at the root of
//! the repository tells the life of a write, a read and a crash, and in which order to read the code.
//!
//! `unsafe` is used for three things: memory that is mapped from files (`datafile`, `log`, `region`, `allocator`), the
//! index in shared memory (`index`), and keys on the stack (`key`). Above them it is needed where a generation or a view
//! is taken: there a comment names the pin or the lock that keeps it.

// Bottom first; the blank lines keep this order.
#[doc(hidden)]
pub mod planted;

mod limits;

mod map_name;

mod error;

mod checksum;

mod progress;

mod settings;

mod key;

mod btree;

mod index;

mod log;

mod datafile;

mod region;

mod allocator;

mod read;

mod core;

mod sync;

mod generations;

mod fold;

mod commit;

mod recovery;

mod api;

mod admin;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use admin::check::CheckReport;
pub use admin::copy::Compaction;
pub use admin::salvage::{Lost, Salvage};
pub use admin::statistics::{
    Counts, GenerationStatistics, MapStatistics, MemoryStatistics, ProcessStatistics, SnapshotStatistics, Statistics,
};
#[doc(hidden)]
pub use admin::transfer::{StoredChanges, StoredPairs};
pub use api::batch::Batch;
#[doc(hidden)]
pub use api::brake::{BRAKES_MAX, Brake, BrakeStatistics, HeldBack};
pub use api::changes::{Change, Changes, ChangesFrom, CommitChanges};
#[doc(hidden)]
pub use api::changes::{StoredChange, StoredCommit};
pub use api::checkpoints::{Checkpoint, Checkpoints, Difference};
pub use api::closing::CloseFuture;
pub use api::future::CommitFuture;
pub use api::map::{Map, Maps};
pub use api::options::Options;
pub use api::pairs::Pairs;
#[doc(hidden)]
pub use api::sequence::{Item, STAMP_BYTES, Sequence, SequenceState, Stamp, Ticket};
pub use api::snapshot::{Cursor, Snapshot, ValueReader};
pub use api::store::Store;
pub use api::transaction::{ExtractIf, Rollback, Savepoint, Transaction, TransactionOptions};
pub use commit::Commit;
#[doc(hidden)]
pub use core::bell::{Bell, Listener};
pub use core::watch::BackgroundError;
#[doc(hidden)]
pub use duramen_io::prefetch;
pub use error::{Error, Kind, Reason, Result};
pub use key::bounds::KeyBounds;
pub use key::encoding;
pub use limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use progress::Progress;
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub use read::scan::keys_passed_by_walks;
pub use read::value::Value;
pub use settings::{Durability, Maintenance};
