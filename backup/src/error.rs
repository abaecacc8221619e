//! What can go wrong with a backup.

/// The result of the calls of this crate.
pub type Result<T, E = BackupError> = std::result::Result<T, E>;

/// What can go wrong with a backup. The store and the exports that were there before stay as they are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The place of the backup cannot be understood or reached as given.
    #[error("{place:?} is no place for a backup: {cause}; name a directory, or a URL such as s3://bucket/folder")]
    Place {
        /// What was given.
        place: String,
        /// Why not.
        cause: String,
    },
    /// The object store failed.
    #[error("{doing}: {error}")]
    Object {
        /// What was being done.
        doing: String,
        /// What the object store said.
        error: object_store::Error,
    },
    /// The place holds something else.
    #[error("{place} holds no backup of Duramen: {found}; name an empty place, or that of a backup")]
    NotABackup {
        /// The place.
        place: String,
        /// What was found there.
        found: String,
    },
    /// A newer version wrote the backup.
    #[error("{what} has format {found}, and this version reads format {supported}; use a newer version of Duramen")]
    NewerFormat {
        /// What has that format.
        what: String,
        /// Its format.
        found: u32,
        /// The format that this version reads.
        supported: u32,
    },
    /// A version before the first release wrote the backup.
    #[error(
        "{what} has format {found}, and this version reads format {supported}; import it with the version that wrote it, and export to an empty place"
    )]
    OlderFormat {
        /// What has that format.
        what: String,
        /// Its format.
        found: u32,
        /// The format that this version reads.
        supported: u32,
    },
    /// There is no export at all.
    #[error("there is no export at {place}; make one first, or correct the place")]
    NoExports {
        /// The place.
        place: String,
    },
    /// There is no export that is old enough.
    #[error("the oldest export at {place} was made later; `list` has the times")]
    NoneUntil {
        /// The place.
        place: String,
    },
    /// There is no export of this number.
    #[error("there is no export {number} at {place}; `list` has the numbers")]
    UnknownExport {
        /// The number.
        number: u64,
        /// The place.
        place: String,
    },
    /// An export needs another export, which is not there.
    #[error(
        "export {number} needs export {parent}, which is missing or was replaced; restore an older export, and make a full one"
    )]
    MissingLink {
        /// The export.
        number: u64,
        /// What it needs.
        parent: u64,
    },
    /// Bytes of the backup are not what was written.
    #[error("the backup is damaged: {what}; restore another export, and make a full one")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// Another exporter was faster.
    #[error("another exporter wrote export {number} meanwhile; run one exporter for each place, and try again")]
    TakenMeanwhile {
        /// The number.
        number: u64,
    },
    /// A commit is too long to be sent by itself.
    #[error("commit {commit} has {bytes} bytes, more than the log may have between two exports; export again")]
    LongCommit {
        /// Its number.
        commit: u64,
        /// Bytes of keys and values.
        bytes: u64,
    },
    /// The log of a store ended with an error.
    #[error("the log ended with the error before; export again, and follow the store from there")]
    LogEnded,
    /// The object store cannot create an object only if it is missing.
    #[error(
        "the object store at {place} cannot create an object only where there is none, so two exporters could overwrite each other's exports; use a store that can"
    )]
    NoConditionalPut {
        /// The place.
        place: String,
    },
    /// The directory for a store is in use.
    #[error(
        "{directory} is not empty, and the store needs a directory of its own; name a directory that is missing or empty"
    )]
    Occupied {
        /// The directory.
        directory: String,
    },
    /// Another import makes this store.
    #[error("another import makes {directory}; wait for its end, or name another directory")]
    ImportRuns {
        /// The directory.
        directory: String,
    },
    /// A file or a directory could not be made.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The store refused something.
    #[error(transparent)]
    Store(#[from] duramen::Error),
}

impl BackupError {
    pub(crate) fn damaged(what: impl Into<String>) -> BackupError {
        BackupError::Damaged { what: what.into() }
    }

    pub(crate) fn object(doing: impl Into<String>) -> impl FnOnce(object_store::Error) -> BackupError {
        |error| BackupError::Object {
            doing: doing.into(),
            error,
        }
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> BackupError {
        |error| BackupError::Io {
            doing: doing.into(),
            error,
        }
    }
}
