//! Putting a store back to a checkpoint, with what servers store in it.

use duramen::{Map, Result, Snapshot, Store, Transaction};

use crate::command::{Kept, MAPS, TOKENS};
use crate::etcd::IMPORTS;

/// As [`duramen::restore`], for a store that a server has served too. A server that has the store open refuses all requests from then
/// on: start it again. Tokens stay as they are now: a token that was revoked since the checkpoint stays revoked.
///
/// # Errors
/// As [`duramen::restore`].
pub fn restore(store: &Store, checkpoint: &str) -> Result<u64> {
    let maps = [&MAPS[..], &[IMPORTS]].concat();
    duramen::restore_with(store, checkpoint, &maps, |restored, tx| {
        keep_tokens(store, restored, tx)?;
        Kept::keep_numbers(store, restored, tx)
    })
}

fn keep_tokens(store: &Store, restored: &Snapshot, tx: &mut Transaction) -> Result<()> {
    let Some(tokens) = store.existing_reserved_map(TOKENS)? else {
        return Ok(());
    };
    for (key, _) in all(&tokens, restored)? {
        tx.delete(&tokens, key)?;
    }
    for (key, token) in all(&tokens, &store.snapshot()?)? {
        tx.put(&tokens, key, token)?;
    }
    Ok(())
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn all(map: &Map, snapshot: &Snapshot) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    let mut rows = snapshot.range(map, ..)?;
    while let Some((key, value)) = rows.next()? {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    Ok(pairs)
}
