//! Putting a store back to a checkpoint, with what servers store in it.

use duramen::{Result, Store};

use crate::command::{Kept, MAPS};

/// As [`duramen::restore`], for a store that a server has served too. A server that has the store open refuses all requests from then
/// on: start it again.
///
/// # Errors
/// As [`duramen::restore`].
pub fn restore(store: &Store, checkpoint: &str) -> Result<u64> {
    duramen::restore_with(store, checkpoint, &MAPS, |restored, tx| {
        Kept::keep_numbers(store, restored, tx)
    })
}
