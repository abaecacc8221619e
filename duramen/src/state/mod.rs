//! Keyed state of stream jobs: values, lists and maps by key, with checkpoints that have ids.
//!
//! A job opens its state with [`KeyedState::open`] and declares states by name. The model is that of Apache Flink. A key belongs to a
//! *key group*, and each worker of the job owns a range of key groups. Their number is fixed when the job is made. All reads and writes happen in the transaction of the caller. So the state, the position in the source and the
//! messages that the job emits commit together.
//!
//! ```
//! use duramen::Store;
//! use duramen::state::{KEY_GROUPS_DEFAULT, KeyedState};
//!
//! # let directory = tempfile::tempdir().unwrap();
//! let store = Store::open(directory.path())?;
//! let job = KeyedState::open(&store, "clicks", KEY_GROUPS_DEFAULT)?;
//! let counts = job.value::<String, u64>("counts")?;
//! let position = job.value::<String, u64>("position")?;
//!
//! store.transact(|tx| {
//!     counts.update(tx, "ada", |count| Some(count.unwrap_or(0) + 1))?;
//!     position.put(tx, "clicks", &1)
//! })?;
//! job.checkpoint(1, "")?;
//!
//! let view = job.at(1)?;
//! let counts = view.value::<String, u64>("counts")?;
//! assert_eq!(counts.get(view.snapshot(), "ada")?, Some(1));
//! # Ok::<(), duramen::Error>(())
//! ```
//!
//! # Where the rows are
//!
//! Each state has a map of the store, named `state/JOB/NAME`, and the definitions are in the map `state/JOB`. A map of its own
//! gives each state its own count of rows, and dropping a state drops a map. These maps are ordinary ones: restoring, comparing,
//! dumping and the statistics of the store work with them.
//!
//! | row of | key | value |
//! |---|---|---|
//! | a value | key group, key | the value |
//! | a list | key group, key, place in the list | the element |
//! | a map | key group, key, key in the map | the value |
//!
//! The key group and the place are big-endian, of 2 and 8 bytes. Keys have the [`encoding`](crate::encoding) of the crate. So the
//! rows of a range of key groups are one range of the map, and another number of workers needs no rewriting. The key group of a
//! key is the XXH3 hash (64 bits) of its encoding with the seed `0x6B65_7967_726F_7570`, modulo the number of key groups. All of
//! this is part of the format of the files.

// Bottom first; the blank lines keep this order.
mod kind;

mod error;

mod key_groups;

mod definition;

mod rows;

mod list;
mod map;
mod value;

mod keyed_state;

mod view;

mod checkpoints;

mod statistics;

mod warnings;

pub use checkpoints::StateCheckpoint;
pub use error::StateError;
pub use key_groups::{KEY_GROUPS_DEFAULT, KEY_GROUPS_MAX, KeyGroups};
pub use keyed_state::KeyedState;
pub use kind::StateKind;
pub use list::ListState;
pub use map::MapState;
pub use statistics::{CheckpointSpace, JobStatistics, StateReader, StateStatistics};
pub use value::ValueState;
pub use view::StateView;
pub use warnings::{StateLimits, StateWarning};
