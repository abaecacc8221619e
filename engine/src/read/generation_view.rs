//! One generation of the log with its index: what its commits changed.

use crate::btree::{Root, Stored};
use crate::checksum::key_hash;
use crate::error::Result;
use crate::index::{Index, Keys};
use crate::key::full_key::FullRange;
use crate::log::{LogView, NewCheckpoint, Operation, OperationKind, changed, checkpoint_of_key, decode_root};

/// One generation as readers see it, for as long as a pin or a lock keeps it.
#[derive(Clone, Copy)]
pub(crate) struct GenerationView<'p> {
    pub(crate) log: LogView<'p>,
    pub(crate) index: Index,
}

/// A sorted tree of changes that a commit brought.
pub(crate) struct Run {
    pub(crate) commit: u64,
    pub(crate) root: Root,
    /// The checkpoint that the tree belongs to, where the commit restored that.
    pub(crate) checkpoint: Option<u64>,
}

impl std::fmt::Debug for GenerationView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GenerationView")
            .field("entries", &self.index.entries())
            .finish_non_exhaustive()
    }
}

impl<'p> Keys<'p> for LogView<'p> {
    #[inline]
    fn key(self, position: u32) -> &'p [u8] {
        // SAFETY: the index hands out only positions that a commit put into it after writing the record.
        unsafe { self.full_key(position) }
    }

    #[inline]
    fn prefetch(self, position: u32) {
        self.prefetch_operation(position);
    }
}

impl<'p> GenerationView<'p> {
    /// The generation, for a holder of the pin itself, which no lifetime can name.
    ///
    /// # Safety
    /// What is returned, and what it leads to, is used only while the generation stays alive or held.
    pub(crate) unsafe fn unbound(self) -> GenerationView<'static> {
        GenerationView {
            // SAFETY: passed on.
            log: unsafe { self.log.unbound() },
            index: self.index,
        }
    }

    /// What the operation at `position` stored.
    #[inline]
    pub(crate) fn stored(self, position: u32) -> Result<Stored<'p>> {
        // SAFETY: positions come from this generation's index, see `Keys`.
        unsafe { self.log.stored(position) }
    }

    /// The operation at `position`, likewise.
    fn operation(self, position: u32) -> Result<Operation<'p>> {
        // SAFETY: positions come from this generation's index, see `Keys`.
        unsafe { self.log.operation(position) }
    }

    /// Range deletes of commits after `since` and up to `limit`, newest first, with their commits.
    pub(crate) fn range_deletes(
        self,
        since: u64,
        limit: u64,
    ) -> impl Iterator<Item = Result<(u64, FullRange)>> + use<'p> {
        let visible = self.index.range_deletes().skip_while(move |note| note.commit > limit);
        let newer = visible.take_while(move |note| note.commit > since);
        newer.map(move |note| match self.operation(note.position)? {
            operation if operation.kind == OperationKind::DeleteRange => {
                Ok((note.commit, FullRange::between(operation.full_key, operation.value)))
            }
            _ => Err(changed(note.position)),
        })
    }

    /// Runs, likewise. The tree of a checkpoint that was restored is one too.
    pub(crate) fn runs(self, since: u64, limit: u64) -> impl Iterator<Item = Result<Run>> + use<'p> {
        let visible = self.index.runs().skip_while(move |note| note.commit > limit);
        let newer = visible.take_while(move |note| note.commit > since);
        newer.map(move |note| {
            let operation = self.operation(note.position)?;
            let checkpoint = match operation.kind {
                OperationKind::Run => None,
                OperationKind::Restore => Some(checkpoint_of_key(operation.full_key)),
                _ => return Err(changed(note.position)),
            };
            Ok(Run {
                commit: note.commit,
                root: decode_root(operation.value),
                checkpoint,
            })
        })
    }

    /// The newest restore: its commit, and the id of the checkpoint.
    pub(crate) fn restore(self) -> Result<Option<(u64, u64)>> {
        for run in self.runs(0, u64::MAX) {
            let run = run?;
            if let Some(checkpoint) = run.checkpoint {
                return Ok(Some((run.commit, checkpoint)));
            }
        }
        Ok(None)
    }

    /// The checkpoint that the operation at `position` makes. It is one of this generation.
    pub(crate) fn new_checkpoint(self, position: u32) -> Result<NewCheckpoint<'p>> {
        match self.operation(position)? {
            operation if operation.kind == OperationKind::Checkpoint => {
                NewCheckpoint::decode(operation.full_key, operation.value)
            }
            _ => Err(changed(position)),
        }
    }
}

impl GenerationView<'_> {
    /// Enters an operation into the index that is in the log at `position`. Conditions as for [`Index::insert`].
    pub(crate) fn enter(self, operation: Operation<'_>, hash_seed: u64, commit: u64, position: u32) {
        match operation.kind {
            OperationKind::DeleteRange => self.index.add_range_delete(commit, position),
            OperationKind::Run | OperationKind::Restore => self.index.add_run(commit, position),
            // It changes no pair.
            OperationKind::Checkpoint => {}
            OperationKind::Put | OperationKind::PutExtent | OperationKind::Delete => {
                let hash = key_hash(hash_seed, operation.full_key);
                self.index.insert(self.log, operation.full_key, hash, commit, position);
            }
        }
    }
}
