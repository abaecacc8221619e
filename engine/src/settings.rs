//! What a store was opened with, and how long its commits are to last.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How long a commit must last before its call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The commit, and every one before it, survives power loss.
    #[default]
    Synced,
    /// The commit is in the kernel's memory of a file in the store's directory: it survives the death of every
    /// process. A power cut may take the newest such commits, always a suffix, never a mix.
    Written,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Synced => "synced",
            Durability::Written => "written",
        })
    }
}

/// Who folds the log into the base and frees space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maintenance {
    /// A background thread of the store.
    #[default]
    Background,
    /// The caller, by [`Store::maintain`](crate::Store::maintain); and a commit that finds the log full. For tests and
    /// single-threaded hosts.
    Manual,
}

/// The options as the store uses them.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    /// Whether what is damaged is passed over.
    pub(crate) is_salvage: bool,
    pub(crate) durability: Durability,
    pub(crate) memory_bytes: u64,
    /// What the machine has, or the control group may have.
    pub(crate) machine_bytes: u64,
    pub(crate) retain_log_bytes: u64,
    pub(crate) background: bool,
    pub(crate) processors: usize,
    /// Parts that a fold divides the tree into whatever it has to do, and from how many operations on.
    pub(crate) fold_parts: Option<(usize, u64)>,
    /// Operations in the log that closing folds, at most.
    pub(crate) folded_at_close: u64,
    pub(crate) overwrite_freed: bool,
    pub(crate) generation_bytes_min: u64,
    pub(crate) generation_bytes_max: u64,
    pub(crate) log_files_max: usize,
    /// Whether no other process may have the store open too.
    pub(crate) is_exclusive: bool,
    /// How long calls wait for locks and exclusive transactions.
    pub(crate) lock_timeout: Duration,
    /// Where the memory of the region is; `None`: in the store's directory, if its file system writes in place.
    pub(crate) region_directory: Option<PathBuf>,
    /// What the data may take; `None`: whatever the disk has.
    pub(crate) quota_bytes: Option<u64>,
}
