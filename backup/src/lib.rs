//! Backups of Duramen stores, in directories and object stores.
//!
//! An *export* is the state of a store at one moment: maps, topics and trees. A full export has all pairs; an incremental one has the
//! pairs that differ from the export before. The store goes on being used while it is exported: an export reads a checkpoint.
//! [`Backup::follow`] sends what is committed between two exports as well.
//! [`Backup::import`] makes a store of an export, [`Backup::verify`] proves that it could, and [`Backup::prune`] removes old ones.
//!
//! ```
//! # let directory = tempfile::tempdir().unwrap();
//! use duramen_backup::{Backup, ExportOptions, Moment};
//!
//! let store = duramen::Store::open(directory.path().join("shop")).unwrap();
//! store.map("stock").unwrap().put("apples", "12").unwrap();
//!
//! let backup = Backup::open(directory.path().join("backup").to_str().unwrap())?;
//! let export = backup.export(&store, &ExportOptions::new(), &mut |_| ())?;
//! assert!(export.is_full());
//! backup.verify(Moment::Newest, &mut |_| ())?;
//!
//! backup.import(Moment::Newest, directory.path().join("copy"), &mut |_| ())?;
//! let copy = duramen::Store::open(directory.path().join("copy")).unwrap();
//! assert_eq!(copy.map("stock").unwrap().get("apples").unwrap().unwrap(), "12");
//! # Ok::<(), duramen_backup::BackupError>(())
//! ```
//!
//! Modules are declared bottom first, and each imports only from those above it.

mod digest;
mod error;
mod rate;

mod pack;

mod manifest;

mod target;

mod export;

mod log;

mod chain;
mod import;
mod prune;

pub use chain::{Moment, State};
pub use error::{BackupError, Result};
pub use export::{ExportOptions, Progress};
pub use log::{Log, LogSize, Segment};
pub use manifest::{Export, Pack, Parent};
/// The object stores that [`Backup::over`] takes.
pub use object_store;
pub use pack::Compression;
pub use prune::{Policy, Pruned};
pub use target::Backup;

/// The programs of the guide, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/backups.md")]
mod guide {}
