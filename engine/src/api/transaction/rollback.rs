//! How a closure takes its transaction back.

use std::fmt;

use crate::error::Error;

/// An error for closures of [`crate::Store::transact`] that roll back with a value of their own.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// # let stock = store.map("stock")?;
/// # stock.put("apples", "3")?;
/// use duramen_engine::Rollback;
///
/// // What would be left, without taking anything.
/// let would_be_left = store.transact(|tx| {
///     tx.delete(&stock, "apples")?;
///     Err::<(), _>(Rollback::With(tx.count(&stock, ..)?))
/// });
/// assert!(matches!(would_be_left, Err(Rollback::With(0))));
/// assert_eq!(stock.get("apples")?.unwrap(), "3");
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Debug)]
pub enum Rollback<T> {
    /// The closure asked for it; nothing was written.
    With(T),
    /// The store refused something.
    Error(Error),
}

impl<T> From<Error> for Rollback<T> {
    fn from(error: Error) -> Rollback<T> {
        Rollback::Error(error)
    }
}

impl<T: fmt::Display> fmt::Display for Rollback<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rollback::With(value) => write!(f, "the transaction was rolled back: {value}"),
            Rollback::Error(error) => error.fmt(f),
        }
    }
}

impl<T: fmt::Debug + fmt::Display> std::error::Error for Rollback<T> {}
