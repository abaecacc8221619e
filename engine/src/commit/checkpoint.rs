//! The commit that makes a checkpoint. A fold enters it in the register when it comes there (see `fold::checkpoints`).

use crate::commit::draft::Draft;
use crate::core::Core;
use crate::error::{Reason, Result, unless_full};
use crate::fold::checkpoints::pages_with;
use crate::fold::room::FOLDS_AWAITED;
use crate::limits::{CHECKPOINT_METADATA_BYTES_MAX, CHECKPOINT_NAME_BYTES_MAX, CHECKPOINTS_MAX};
use crate::log::{NewCheckpoint, OperationKind, checkpoint_key};
use crate::region::Patience;

/// A checkpoint that was just made.
pub(crate) struct NewlyMade {
    pub(crate) id: u64,
    /// When it was made, in microseconds since 1970.
    pub(crate) time: u64,
    /// The commit that makes it.
    pub(crate) commit: u64,
}

impl Core {
    /// Refuses a name, or metadata, that no checkpoint can have.
    pub(crate) fn check_new_checkpoint(&self, name: &str, metadata: &[u8]) -> Result<()> {
        let (most, length) = (CHECKPOINT_NAME_BYTES_MAX, name.len());
        if !(1..=most).contains(&length) {
            let cause = format!("a checkpoint has a name of 1 to {most} bytes, and not {length}");
            return Err(Reason::InvalidArgument(cause).into());
        }
        let (most, length) = (CHECKPOINT_METADATA_BYTES_MAX, metadata.len());
        if length > most {
            let cause = format!(
                "the metadata of a checkpoint has at most {most} bytes, and not {length}; store it in a map, which the checkpoint has too"
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        self.writable()
    }

    /// Does, and waits for, what the commit would need with all writers shut out. What is in the way, the commit tells.
    pub(crate) fn get_ready_for_checkpoint(&self) -> Result<()> {
        self.keep_pending_checkpoint()?;
        let mut patience = Patience::default();
        for _ in 0..FOLDS_AWAITED {
            let seen = self.progress_seen();
            if self.can_rotate() {
                break;
            }
            self.wait_for_fold(seen, 0, &mut patience)?;
        }
        match self.folds_in_background() {
            true => self.keep_growing_spare_if_possible().map(drop),
            false => unless_full(self.keep_spare()).map(drop),
        }
    }

    /// Commits that the present state is kept. The caller has checked name and metadata, has an exclusive transaction, whose token this
    /// is, and waits until the commit is durable. `None`: another checkpoint is pending, and must be kept first.
    pub(crate) fn commit_checkpoint(&self, name: &str, metadata: &[u8], token: u32) -> Result<Option<NewlyMade>> {
        if self.has_pending_checkpoint() {
            return Ok(None);
        }
        let register = self.register_now()?;
        if register.named(name).is_some() {
            return Err(Reason::CheckpointExists { name: name.into() }.into());
        }
        if register.all.len() >= CHECKPOINTS_MAX {
            let cause = format!("a store has at most {CHECKPOINTS_MAX} checkpoints; drop some first");
            return Err(Reason::InvalidArgument(cause).into());
        }
        let new = NewCheckpoint {
            id: register.next_id,
            time: self.platform.clock.wall().as_micros() as u64,
            name,
            metadata,
        };
        let pages = pages_with(&register, &new);
        let was_in_one = self.space.begin_to_keep_root(pages, &self.pages)?;
        let mut draft = Draft::new();
        draft.push_note(OperationKind::Checkpoint, &checkpoint_key(new.id), &new.encode());
        let appended = self.append(&mut draft, None, token);
        let commit = appended.inspect_err(|_| self.space.gives_up_root(was_in_one))?;
        self.ask_for_fold();
        Ok(Some(NewlyMade {
            id: new.id,
            time: new.time,
            commit,
        }))
    }
}
