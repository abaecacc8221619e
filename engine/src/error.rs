//! What can go wrong, and what the caller should do about it.

use std::fmt;
use std::sync::Arc;

/// The result of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: a coarse [`Kind`] that says what to do, a [`Reason`] with the facts, and a message with both.
///
/// It is one pointer wide, so that results stay small on the read path; clones share the reason.
#[derive(Clone)]
pub struct Error(Arc<Reason>);

/// What the caller should do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The call itself is wrong; the same call fails again.
    FixTheCall,
    /// A call that is repeated unchanged may succeed: others were in the way, or a device failed that may answer next time.
    Retry,
    /// The disk is full; deleting data or adding room helps. Nothing was lost.
    MakeSpace,
    /// Stored bytes are not what was written; restore them from a copy.
    Damaged,
    /// The commit was made and can be seen, but another process keeps it from being known whether it survives power
    /// loss. Call [`crate::Store::sync`] later; the same call again would make the commit a second time.
    Sync,
    /// The store stopped itself after an input/output error, or was put back to a checkpoint; open it again.
    Reopen,
    /// The store, snapshot or transaction has ended.
    Closed,
    /// What the caller held went to another owner, as the lease of a message does: drop the work, it is done elsewhere.
    Lost,
}

/// The facts of an [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A key is longer than [`crate::KEY_BYTES_MAX`].
    #[error("the key is {length} bytes long, the longest is {max}; store a hash of it, or put part of it in the value")]
    KeyTooLong {
        /// Bytes of the key.
        length: usize,
        /// Longest key.
        max: usize,
    },
    /// A value is longer than [`crate::VALUE_BYTES_MAX`].
    #[error("the value is {length} bytes long, the longest is {max}; split it over several keys")]
    ValueTooLong {
        /// Bytes of the value.
        length: u64,
        /// Longest value.
        max: u64,
    },
    /// A stream ended before or after the length that was announced for it.
    #[error("the stream for the value gave {found} bytes, {announced} were announced; pass the true length")]
    ValueLengthMismatch {
        /// Announced bytes.
        announced: u64,
        /// Bytes that came.
        found: u64,
    },
    /// There is no map of this name.
    #[error("there is no map named {name:?}; create it, or look at the list of maps")]
    UnknownMap {
        /// The name asked for.
        name: String,
    },
    /// The map behind a handle was dropped.
    #[error("the map {name:?} was dropped after this handle to it was made; open it again by name")]
    MapDropped {
        /// The name the handle was opened with.
        name: String,
    },
    /// A map of this name exists already.
    #[error("there is already a map named {name:?}; choose another name or drop that map first")]
    MapExists {
        /// The name.
        name: String,
    },
    /// A layer above the engine guards what the map holds, and the write came from elsewhere.
    #[error("the map {name:?} keeps its changes for watchers, so only a server writes it; write it through the server")]
    MapGuarded {
        /// The name.
        name: String,
    },
    /// A name that a map cannot have.
    #[error("{name:?} cannot name a map: a name has 1 to {max} bytes of UTF-8 without control characters")]
    InvalidMapName {
        /// The name.
        name: String,
        /// Longest name in bytes.
        max: usize,
    },
    /// The topic behind a handle was deleted.
    #[error("the topic {name:?} was deleted after this handle to it was made; open it again by name")]
    TopicDeleted {
        /// The name the handle was opened with.
        name: String,
    },
    /// An error of a layer above the engine, so that one type goes through closures that use several layers.
    #[error("{cause}")]
    Above {
        /// What to do about it.
        kind: Kind,
        /// The facts.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no checkpoint of this name.
    #[error("there is no checkpoint {name:?}; `Checkpoints::list` has the names")]
    UnknownCheckpoint {
        /// The name.
        name: String,
    },
    /// There is a checkpoint of this name.
    #[error("there is a checkpoint {name:?} already; take another name, or drop that one first")]
    CheckpointExists {
        /// The name.
        name: String,
    },
    /// A map handle of one store was used with another.
    #[error("{}", foreign(name))]
    ForeignMap {
        /// The name of the map.
        name: String,
    },
    /// An addition to a value that is not a counter.
    #[error("key {key} of map {map:?} holds {length} bytes, not a counter of 8; delete it or choose another key")]
    NotACounter {
        /// The map.
        map: String,
        /// The key, printable.
        key: String,
        /// Bytes of the value found.
        length: u64,
    },
    /// An addition that leaves the range of a counter.
    #[error("adding {delta} to {value} at key {key} of map {map:?} leaves the range of a 64-bit counter")]
    CounterOverflow {
        /// The map.
        map: String,
        /// The key, printable.
        key: String,
        /// The value before.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
    /// A write through a read-only handle.
    #[error("the store was opened read-only; open it without `read_only` to write")]
    ReadOnly,
    /// An option or argument that makes no sense.
    #[error("{0}")]
    InvalidArgument(String),
    /// A transaction holds more of something than it may.
    #[error("the transaction {what}, and {max} is the most; {cure}")]
    TransactionTooLarge {
        /// What it has too much of.
        what: &'static str,
        /// The most it may have.
        max: u64,
        /// What to do instead.
        cure: &'static str,
    },
    /// The directory holds something else.
    #[error("{path} is not a Duramen store: {found}; name an empty directory or an existing store")]
    NotAStore {
        /// The directory.
        path: String,
        /// What was found there.
        found: String,
    },
    /// The store is missing and was not to be created.
    #[error("there is no store at {path}; open it with `create`, or correct the path")]
    NoStore {
        /// The directory.
        path: String,
    },
    /// The store was written by a newer version.
    #[error("the store has format {found}, this library reads up to {supported}; use a newer version of Duramen")]
    NewerFormat {
        /// Format of the store.
        found: u32,
        /// Newest format this library reads.
        supported: u32,
    },
    /// The store was written by an older version, in a format that this one does not read.
    #[error(
        "the store has format {found}, this library reads format {supported}; write it with `duramen dump` of the version \
         that made it, and read that with `duramen load` of this one"
    )]
    OlderFormat {
        /// Format of the store.
        found: u32,
        /// Oldest format this library reads.
        supported: u32,
    },
    /// Another process has the store open.
    #[error("the store at {path} is in use by {}; close it there first", in_words(holder))]
    InUse {
        /// The directory.
        path: String,
        /// Who holds it: process id and name of the one that writes, or in words that others only read.
        holder: String,
    },
    /// Other processes have the store open, and share memory in a file that this process does not see: it runs in
    /// another container, or they have just left.
    #[error(
        "the store at {path} is in use by processes that share memory in {memory}, which is not to be seen here; give all of them the same directory for that (`/dev/shm`, or `Options::region_directory`), or close it there first"
    )]
    MemoryElsewhere {
        /// The directory of the store.
        path: String,
        /// The file that they share.
        memory: String,
    },
    /// Another process has the store open, with a library that keeps other things in memory that they would share.
    #[error(
        "the store at {path} is open in a process with version {found} of Duramen, this one has {ours}; use the same version in all processes, or close it there first"
    )]
    OtherVersion {
        /// The directory.
        path: String,
        /// Version of the library that opened the store first.
        found: String,
        /// Version of this library.
        ours: String,
    },
    /// As many processes as can have the store open.
    #[error("{open} processes have the store open, which is the limit; close it in one of them first")]
    TooManyProcesses {
        /// How many there are.
        open: usize,
    },
    /// A process that is alive does not come to an end with what others wait for: it may have been stopped.
    #[error(
        "{} has been holding up others for {waited:?}; let it go on if it was stopped, or end it, and try again",
        process_in_words(*process, "")
    )]
    Busy {
        /// Its id, as it sees it.
        process: u32,
        /// How long this call waited.
        waited: std::time::Duration,
    },
    /// A commit was made, and a process that was stopped keeps it from being known whether it survives power loss. It
    /// is as durable as a written one.
    #[error(
        "commit {commit} is written, and not known to survive power loss: process {process} has been holding up syncs for {waited:?}; let it go on if it was stopped, or end it, and call `sync` (writing again would write twice)"
    )]
    NotSynced {
        /// The number of the commit.
        commit: u64,
        /// Id of the process, as it sees it.
        process: u32,
        /// How long this call waited.
        waited: std::time::Duration,
    },
    /// A lock, or an exclusive transaction, was not free within [`crate::Options::lock_timeout`].
    #[error(
        "{} has had {what} for longer than the {waited:?} that this call waited; try again, or raise `Options::lock_timeout`",
        process_in_words(*process, name)
    )]
    LockTimeout {
        /// What was waited for.
        what: &'static str,
        /// Id of the process that has it, as this process sees it. It may be this process itself: another thread.
        process: u32,
        /// Name of the process; empty: it is not known.
        name: String,
        /// How long this call waited.
        waited: std::time::Duration,
    },
    /// A commit inside an exclusive transaction that is not made through it: the thread would wait for itself.
    #[error(
        "`{call}`{} would wait for the exclusive transaction of its own thread; use {} inside the closure, or make the call after the transaction",
        on_map(map),
        cure(call)
    )]
    WouldWaitForItself {
        /// The call.
        call: &'static str,
        /// The map or topic; empty: the call has none.
        map: String,
    },
    /// Another transaction changed what this one read or wrote.
    #[error("key {key} of map {map:?} was changed by another transaction since this one began; run it again")]
    Conflict {
        /// The map.
        map: String,
        /// The key, printable.
        key: String,
    },
    /// A write transaction that is too old to be checked.
    #[error(
        "the transaction began at commit {began}, conflicts can be checked only since commit {oldest}; run it again, and commit sooner"
    )]
    TooOld {
        /// The commit that the transaction sees.
        began: u64,
        /// The oldest commit that can still be checked.
        oldest: u64,
    },
    /// A point of the commit stream that is gone.
    #[error("commit {asked} is no longer retained, the oldest is {oldest}; start from there, or read a snapshot")]
    NotRetained {
        /// The commit asked for.
        asked: u64,
        /// The oldest commit that can be asked for.
        oldest: u64,
    },
    /// Too many snapshots are open.
    #[error("{open} snapshots are open, which is the limit; drop some of them")]
    TooManySnapshots {
        /// How many are open.
        open: usize,
    },
    /// The disk is full.
    #[error(
        "the disk is full: {needed} more bytes are needed for {what}; delete data (a reserve is kept for that) or add room, then try again"
    )]
    Full {
        /// Bytes that could not be had.
        needed: u64,
        /// What they were for.
        what: &'static str,
    },
    /// The data would take more than [`crate::Options::quota_bytes`].
    #[error(
        "the data would take {needed} bytes, and the quota is {quota}; delete data (which is always possible), or open the store with a larger `quota_bytes`"
    )]
    QuotaExceeded {
        /// What the data would take with the commit.
        needed: u64,
        /// What it may take.
        quota: u64,
    },
    /// There is no room although the disk may have some: a limit of the process, or of another file system.
    #[error("no room for {what}: {cause}")]
    NoRoom {
        /// What it was for.
        what: &'static str,
        /// Why there is none, and what to do about that.
        cause: String,
    },
    /// Readers hold all log files.
    #[error(
        "all {files} log files are held, the oldest by {holders}; drop old snapshots and transactions, or end them with `end_snapshot` (`stat` lists them), then try again"
    )]
    LogHeld {
        /// How many log files there are.
        files: usize,
        /// Who holds the oldest ones.
        holders: String,
    },
    /// Stored bytes are not what was written.
    #[error("the store is damaged: {0}; restore it from a copy (`duramen check` tells how far the damage goes)")]
    Damaged(String),
    /// The store stopped itself.
    #[error(
        "the store stopped after an error: {cause}; open it again: every commit acknowledged as `Synced` is there, and of those acknowledged as `Written` what the kernel still wrote"
    )]
    Poisoned {
        /// The error that stopped it.
        cause: String,
    },
    /// The store was put back to a checkpoint after this handle was opened.
    #[error(
        "the store was put back to a checkpoint after this handle was opened; close the handle, and open the store again"
    )]
    Restored,
    /// The fate of a commit is not known.
    #[error("it is not known whether commit {commit} survives: {cause}; open the store again and look")]
    Unknown {
        /// The number of the commit.
        commit: u64,
        /// The error that stopped the store.
        cause: String,
    },
    /// The snapshot was ended by another thread or process.
    #[error("the snapshot was ended (by `end_snapshot`); take a new one")]
    SnapshotEnded,
    /// The store was closed.
    #[error("the store is closed; open it again")]
    Closed,
    /// The handle was inherited by a forked process.
    #[error("this handle was opened before `fork`; open the store in this process")]
    Forked,
    /// An input or output error: the call failed, the store goes on. One after which the store cannot go on is
    /// [`Reason::Poisoned`], or [`Reason::Unknown`] when a commit was under way.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done.
        doing: String,
        /// The error of the operating system.
        error: std::io::Error,
        /// Whether it is that of a stream which the caller passed.
        from_caller: bool,
    },
}

impl Error {
    /// The process, and for how long, if a call gave up waiting for it: then nothing happened.
    pub(crate) fn waited_for(&self) -> Option<(u32, std::time::Duration)> {
        match *self.reason() {
            Reason::Busy { process, waited } | Reason::LockTimeout { process, waited, .. } => Some((process, waited)),
            _ => None,
        }
    }

    /// What to do about it.
    pub fn kind(&self) -> Kind {
        match self.reason() {
            Reason::Conflict { .. }
            | Reason::TooOld { .. }
            | Reason::InUse { .. }
            | Reason::MemoryElsewhere { .. }
            | Reason::TooManyProcesses { .. }
            | Reason::Busy { .. }
            | Reason::LockTimeout { .. }
            | Reason::TooManySnapshots { .. } => Kind::Retry,
            Reason::Full { .. } | Reason::QuotaExceeded { .. } | Reason::NoRoom { .. } | Reason::LogHeld { .. } => {
                Kind::MakeSpace
            }
            Reason::Damaged(_) => Kind::Damaged,
            Reason::NotSynced { .. } => Kind::Sync,
            Reason::Poisoned { .. } | Reason::Restored | Reason::Unknown { .. } | Reason::Forked => Kind::Reopen,
            Reason::SnapshotEnded | Reason::Closed => Kind::Closed,
            Reason::Above { kind, .. } => *kind,
            Reason::Io { from_caller: true, .. } => Kind::FixTheCall,
            Reason::Io { error, .. } => kind_of_io(error.kind()),
            _ => Kind::FixTheCall,
        }
    }

    /// Whether another transaction changed what this one read or wrote: running it again helps.
    pub fn is_conflict(&self) -> bool {
        matches!(self.reason(), Reason::Conflict { .. } | Reason::TooOld { .. })
    }

    /// The facts.
    pub fn reason(&self) -> &Reason {
        &self.0
    }

    /// Whether the commit was made, or may have been, although the call failed: the same call again could make it a second
    /// time.
    pub fn is_of_a_made_commit(&self) -> bool {
        matches!(self.reason(), Reason::Unknown { .. } | Reason::NotSynced { .. })
    }

    /// What happened, without advice.
    pub(crate) fn fact(&self) -> String {
        match self.reason() {
            Reason::Damaged(what) => what.clone(),
            _ => self.to_string(),
        }
    }

    /// Stored bytes that a layer above cannot make sense of.
    #[doc(hidden)]
    pub fn damaged(what: impl Into<String>) -> Error {
        Reason::Damaged(what.into()).into()
    }

    pub(crate) fn io(doing: impl Into<String>, error: std::io::Error) -> Error {
        Reason::Io {
            doing: doing.into(),
            error,
            from_caller: false,
        }
        .into()
    }

    /// An error of the stream that a value was to be read from.
    pub(crate) fn of_stream(error: std::io::Error) -> Error {
        Reason::Io {
            doing: "reading a value from its stream".into(),
            error,
            from_caller: true,
        }
        .into()
    }
}

/// The map of a call in a sentence, where there is one.
pub(crate) fn on_map(map: &str) -> String {
    match map.is_empty() {
        true => String::new(),
        false => format!(" on {map:?}"),
    }
}

/// What to call inside the closure of a transaction instead.
pub(crate) fn cure(call: &str) -> &'static str {
    match call {
        "map.put" | "map.put_stream" => "`tx.put`",
        "map.delete" => "`tx.delete`",
        "map.delete_range" => "`tx.delete_range`",
        "map.clear" => "`tx.clear`",
        "map.create" => "`tx.create`",
        "map.compare_and_swap" => "`tx.compare_and_swap`",
        "map.update" => "`tx.update`",
        "map.take" => "`tx.take`",
        "map.pop_first" => "`tx.pop_first`",
        "map.pop_last" => "`tx.pop_last`",
        "map.retain" => "`tx.retain`",
        "map.extract_if" => "`tx.extract_if`",
        "map.put_sorted" => "`tx.put_sorted`",
        "map.add" => "`tx.add`",
        "map.append" => "`tx.append`",
        "store.map" | "maps.create" => "`tx.map`",
        "maps.rename" => "`tx.rename_map`",
        "maps.drop" => "`tx.drop_map`",
        "topic.publish" => "`tx.publish`",
        "delivery.acknowledge" => "`tx.acknowledge`",
        "deliveries.acknowledge" => "`tx.acknowledge_all`",
        _ => "the methods of `tx`",
    }
}

/// A process that others wait for, in a sentence.
fn process_in_words(process: u32, name: &str) -> String {
    match name {
        _ if process == duramen_io::process_id() => format!("another thread of this process ({process})"),
        "" => format!("process {process}"),
        name => format!("process {process} ({name})"),
    }
}

/// The holder of a store in a sentence.
fn in_words(holder: &str) -> String {
    if holder.starts_with(|first: char| first.is_ascii_digit()) {
        let word = if holder.contains(", ") { "processes" } else { "process" };
        format!("{word} {holder}")
    } else {
        holder.to_string()
    }
}

/// A path that is missing or forbidden stays so until a person acts; a device or a system that is short of something
/// may answer the next time.
fn kind_of_io(error: std::io::ErrorKind) -> Kind {
    use std::io::ErrorKind;
    match error {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Kind::MakeSpace,
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::AlreadyExists
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidFilename
        | ErrorKind::Unsupported => Kind::FixTheCall,
        _ => Kind::Retry,
    }
}

impl From<Reason> for Error {
    fn from(reason: Reason) -> Error {
        Error(Arc::new(reason))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // This is what a program prints whose `main` returns it. The text has the facts; of the reason its name will
        // do.
        let reason = format!("{:?}", self.0);
        let name = reason.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        write!(f, "{self} ({:?}, {name})", self.kind())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.reason() {
            Reason::Io { error, .. } => Some(error),
            Reason::Above { cause, .. } => cause.source(),
            _ => None,
        }
    }
}

/// Bytes as people read them: text where it is text, `\xNN` where not; cut after 64 bytes.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 64;
    let shown = &bytes[..bytes.len().min(SHOWN_MAX)];
    let rest = bytes.len() - shown.len();
    let tail = if rest > 0 {
        format!("... ({rest} bytes more)")
    } else {
        String::new()
    };
    format!("\"{}\"{tail}", shown.escape_ascii())
}
/// What only makes later work faster may fail for want of room: that is `None`.
pub(crate) fn unless_full<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(error) if error.kind() == Kind::MakeSpace => Ok(None),
        done => done.map(Some),
    }
}

/// What it is that belongs to another store: layers above the engine have maps whose names no user knows.
fn foreign(map: &str) -> String {
    if crate::map_name::is_reserved(map) {
        return "the handle of a topic or group belongs to another store; open it in this store".to_string();
    }
    format!("the handle of map {map:?} belongs to another store; open the map in this store")
}
