//! Duramen: one embedded engine for state that must last.
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
//! stock.put(b"apples", b"12")?;                        // returns when the pair survives power loss
//!
//! let before = store.snapshot()?;                      // one moment, for ever
//! store.transact(|tx| {
//!     let apples = tx.get(&stock, b"apples")?.map(|value| value.to_vec());
//!     assert_eq!(apples.as_deref(), Some(&b"12"[..]));
//!     tx.put(&stock, b"apples", b"11")?;
//!     tx.put(&stock, b"sold", b"1")
//! })?;
//! assert_eq!(before.get(&stock, b"apples")?.unwrap(), b"12");
//! assert_eq!(stock.get(b"apples")?.unwrap(), b"11");
//! # Ok::<(), duramen::Error>(())
//! ```

pub use duramen_engine::*;
