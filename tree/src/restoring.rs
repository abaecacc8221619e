//! What a store keeps of its trees when it is put back to a checkpoint.

use duramen_engine::{Result, Snapshot, Store, Transaction};

use crate::state::State;
use crate::tables::{NAME, NAMES, NEXT_ID, mark_key, state_key};
use crate::trees::id_of;

/// The reserved maps of trees.
#[doc(hidden)]
pub const MAPS: [&str; 8] = NAMES;

/// Lets revisions go on above all that were issued, and watches from earlier ones fail as compacted. The snapshot shows the
/// checkpoint, the transaction what there was before the restore.
///
/// # Errors
/// Those of reading and writing.
#[doc(hidden)]
pub fn keep_revisions(store: &Store, restored: &Snapshot, tx: &mut Transaction) -> Result<()> {
    let Some(trees) = store.existing_reserved_map(NAMES[0])? else {
        return Ok(());
    };
    if let Some(next) = tx.get(&trees, NEXT_ID)? {
        tx.put(&trees, NEXT_ID, &*next)?;
    }
    let mut ids = Vec::new();
    let mut rows = restored.prefix(&trees, [NAME])?;
    while let Some((_, row)) = rows.next()? {
        ids.push(id_of(&row)?);
    }
    for id in ids {
        let Some(before) = restored.get(&trees, state_key(id))? else {
            continue;
        };
        let before = State::decode(&before)?;
        let newest = match tx.get_ref(&trees, state_key(id))? {
            Some(now) => State::decode(&now)?.revision.max(before.revision),
            // It was deleted since.
            None => before.revision.saturating_add(tx.leap()?),
        };
        // A watch that has seen all asks for the next revision. It has missed the restore, so that one cannot be read.
        let revision = newest + 2;
        let state = State {
            revision,
            first: revision,
            ..before
        };
        tx.put(&trees, state_key(id), state.encode())?;
        tx.put(&trees, mark_key(id), b"")?;
    }
    Ok(())
}
