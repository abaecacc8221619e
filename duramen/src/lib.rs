//! Duramen: an embedded, ordered, transactional, memory-mapped store.
//!
//! A [`Store`] is a directory with named, ordered [`Map`]s of keys and values. Everything is transactional: several
//! writes to several maps become visible, and durable, together or not at all.
//!
//! ```
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("store");
//! use duramen::Store;
//!
//! let store = Store::open(path)?;                      // made when it is missing
//! let stock = store.map("stock")?;
//! stock.put("apples", "12")?;                          // returns when the pair survives power loss
//!
//! let before = store.snapshot()?;                      // one moment, which stays
//! store.transact(|tx| {
//!     let apples = tx.get(&stock, "apples")?;
//!     assert_eq!(apples.unwrap(), "12");
//!     tx.put(&stock, "apples", "11")?;
//!     tx.put(&stock, "sold", "1")
//! })?;
//! assert_eq!(before.get(&stock, "apples")?.unwrap(), "12");
//! assert_eq!(stock.get("apples")?.unwrap(), "11");
//! # Ok::<(), duramen::Error>(())
//! ```
//!
//! # Where to begin
//!
//! | to | see |
//! |---|---|
//! | open a store, in one process or several | [`Store::open`], [`Options`] |
//! | read and write single keys, each write a commit | [`Map`] |
//! | write several things at once without reading | [`Batch`], [`Store::write`] |
//! | read and write as one | [`Store::transact`], [`Transaction`], [`TransactionOptions`] |
//! | read one moment; walk in order; stream a long value | [`Snapshot`], [`Cursor`], [`Pairs`], [`ValueReader`] |
//! | choose what a commit survives | [`Durability`], [`Store::sync`], [`Store::snapshot_durable`] |
//! | commit without waiting for the disk | [`Store::write_async`], [`CommitFuture`] |
//! | publish and subscribe in the same transactions | [`topic::Topics`], [`topic::TopicWrites`], [`topic::Group`] |
//! | keep paths with revisions, watches and leases | [`tree::Trees`], [`tree::Tree`], [`tree::TreeWatch`] |
//! | keep keyed state of a stream job, with checkpoints | [`state::KeyedState`] |
//! | follow every commit | [`Store::changes`], [`Changes`] |
//! | keep integers, text and tuples in order | [`TypedMap`], [`encoding`] |
//! | look after a store | [`Store::check`], [`Store::copy`], [`Store::compact`], [`Store::stat`] |
//! | decide what to do about an error | [`Error::kind`], [`Kind`], [`Reason`] |
//!
//! The guide is in `docs/guide`, exact limits and formats in `docs/reference`, and how it works in `ARCHITECTURE.md`,
//! all in the repository.
//!
//! # What holds everywhere
//!
//! - Every type is `Send` and `Sync` where its borrow allows; handles are cheap clones of one store, which closes when
//!   the last of them is dropped.
//! - Several processes open the same store with the same call, and all of them read and write; any may be killed at any
//!   moment. One that is stopped in the middle of a commit makes writers wait, then gives them [`Reason::Busy`] with
//!   its number; handles that a child inherited through `fork` answer [`Reason::Forked`]; another version of the
//!   library is refused with [`Reason::OtherVersion`]. [`Options::exclusive`] is for those who want a store alone.
//! - A commit is visible to everybody as soon as it is written, and lasts as its [`Durability`] says once its call
//!   returns.

mod codec;
#[cfg(feature = "json")]
mod json;
mod restoring;
mod typed;

pub mod state;

/// Durable publish/subscribe in the same transactions as maps: topics, subscriptions, groups.
///
/// [`Topics`](topic::Topics) has the beginning; the guide is `docs/guide/topics.md`.
pub mod topic {
    pub use duramen_topic::*;
}

/// Trees of paths with revisions, conditions, watches and leases, in the same transactions as maps and topics.
///
/// [`Trees`](tree::Trees) has the beginning; the guide is `docs/guide/trees.md`.
pub mod tree {
    pub use duramen_tree::*;
}

pub use codec::{CodecError, Counter, KeyFor, LeadingParts, ValueCodec};
pub use duramen_engine::*;
#[cfg(feature = "json")]
pub use json::Json;
pub use restoring::{restore, restore_with};
pub use typed::{Reads, TypedChange, TypedCursor, TypedMap, TypedReads, TypedWrites, Writes};

/// The programs of the README and the guide, compiled and run as tests.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/guide/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../../docs/guide/transactions.md")]
    mod transactions {}
    #[doc = include_str!("../../docs/guide/durability.md")]
    mod durability {}
    #[doc = include_str!("../../docs/guide/cursors.md")]
    mod cursors {}
    #[doc = include_str!("../../docs/guide/large-values.md")]
    mod large_values {}
    #[doc = include_str!("../../docs/guide/space-and-snapshots.md")]
    mod space_and_snapshots {}
    #[doc = include_str!("../../docs/guide/accidents.md")]
    mod accidents {}
    #[doc = include_str!("../../docs/guide/async-commits.md")]
    mod async_commits {}
    #[doc = include_str!("../../docs/guide/operations.md")]
    mod operations {}
    #[doc = include_str!("../../docs/guide/processes.md")]
    mod processes {}
    #[doc = include_str!("../../docs/guide/topics.md")]
    mod topics {}
    #[doc = include_str!("../../docs/guide/groups.md")]
    mod groups {}
    #[doc = include_str!("../../docs/guide/checkpoints.md")]
    mod checkpoints {}
    #[doc = include_str!("../../docs/guide/state.md")]
    mod state {}
    #[doc = include_str!("../../docs/guide/trees.md")]
    mod trees {}
    #[doc = include_str!("../../docs/guide/cookbook.md")]
    mod cookbook {}
    #[doc = include_str!("../../docs/guide/coming-from.md")]
    mod coming_from {}
    #[doc = include_str!("../../docs/reference/errors.md")]
    mod errors {}
}
