use crate::{Result, Snapshot, Store, Transaction, topic, tree};

/// Puts a store back to a checkpoint, maps, topics and trees together. It is one commit, whose number is returned, and which
/// survives power loss then. The checkpoint and all others stay.
///
/// The store begins another life with it: each handle that was opened before is refused with [`crate::Reason::Restored`], in this
/// process and in all others. Close it, and open the store again. Snapshots that are open go on to show what they showed.
///
/// No number comes a second time. Offsets of topics, revisions of trees, and the numbers that appends get go on above the
/// highest that was assigned. So a subscription at an offset from before goes on with what comes next, and a watch of a tree
/// from an earlier revision fails as compacted. Where the topic, tree or map was deleted since the checkpoint, they go on
/// 2³² further, and at each later restore of the store by 2³² more.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let directory = directory.path();
/// let store = duramen::Store::open(directory)?;
/// store.map("stock")?.put("apples", "12")?;
/// store.checkpoints().create("monday", "")?;
/// store.map("stock")?.put("apples", "3")?;
///
/// duramen::restore(&store, "monday")?;
/// store.close()?;
/// let store = duramen::Store::open(directory)?;
/// assert_eq!(store.map("stock")?.get("apples")?.unwrap(), "12");
/// # Ok::<(), duramen::Error>(())
/// ```
///
/// # Errors
/// [`crate::Reason::UnknownCheckpoint`]; [`crate::Reason::InvalidArgument`] for a store that has data of a server, which
/// `duramen checkpoint restore` puts back; those of a fold and of a commit.
pub fn restore(store: &Store, checkpoint: &str) -> Result<u64> {
    restore_with(store, checkpoint, &[], |_, _| Ok(()))
}

/// As [`restore`], for a layer above that has reserved maps: `layers` names them, and `keep` writes what must not run back there.
///
/// # Errors
/// As [`restore`].
#[doc(hidden)]
pub fn restore_with(
    store: &Store,
    checkpoint: &str,
    layers: &[&str],
    keep: impl FnOnce(&Snapshot, &mut Transaction) -> Result<()>,
) -> Result<u64> {
    let layers = [&topic::MAPS, &tree::MAPS, layers].concat();
    store.restore_checkpoint(checkpoint, &layers, |restored, tx| {
        topic::keep_ids(store, restored, tx)?;
        tree::keep_revisions(store, restored, tx)?;
        keep(restored, tx)
    })
}
