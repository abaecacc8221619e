//! Checkpoints: roots of the base that are kept (see decision 28).
//!
//! The simple version: making one is a commit, the first one of its generation. The fold of the generations before ends there, and
//! its tree is what the checkpoint shows. Then a register is written that names the root, and a meta page that refers to the
//! register. Dropping one retires the pages that no other kept root, and not the base, leads to.
//!
//! Until a fold comes there, the checkpoint is *pending*. There is at most one: who makes another, or asks for any of them, folds
//! first.
//!
//! Why it is right: each tree is written and published under the maintenance lock, and a checkpoint is entered under it too. So
//! every page of the base that is not younger than the checkpoint which it comes from belongs to that one as well, and no page
//! that is younger does. A fold retires only the latter (`page_sink`). The register and the bitmap of used pages become valid
//! with one meta page: after a crash there is the checkpoint with all its pages, or neither.

use std::sync::atomic::Ordering;

use crate::allocator::{Claim, Retired, Want};
use crate::btree::{self, Root, Visit};
use crate::checksum::checksum_with;
use crate::core::kept_roots::Origin;
use crate::core::{Core, MaintenanceState};
use crate::datafile::register::{Kept, Register, SavedRegister};
use crate::error::{Error, Reason, Result};
use crate::fold::NewTree;
use crate::fold::newest::newest_restore;
use crate::fold::page_sink::FileSink;
use crate::limits::PAGE_BYTES;
use crate::log::NewCheckpoint;
use crate::planted::kill_point;
use crate::region::Version;

impl Core {
    /// Whether a checkpoint was made that no fold has reached yet.
    pub(crate) fn has_pending_checkpoint(&self) -> bool {
        self.control().pending_checkpoint.0.commit().is_some()
    }

    /// Folds up to a pending checkpoint, if there is one. A store that is read only does not know it before others have done that.
    pub(crate) fn keep_pending_checkpoint(&self) -> Result<()> {
        if !self.has_pending_checkpoint() || self.settings.read_only {
            return Ok(());
        }
        self.writable()?;
        let _user = self.enter()?;
        let mut state = self.hold_maintenance()?;
        self.keep_pending_holding(&mut state)
    }

    fn keep_pending_holding(&self, state: &mut MaintenanceState) -> Result<()> {
        let pending = &self.control().pending_checkpoint.0;
        let Some(commit) = pending.commit() else {
            return Ok(());
        };
        self.maintain_frozen(state)?;
        if pending.commit() != Some(commit) {
            return Ok(());
        }
        let cause = "not all of the log could be folded; drop old snapshots and transactions, and try again".into();
        let what = "a checkpoint";
        Err(Reason::NoRoom { what, cause }.into())
    }

    /// Enters the pending checkpoint in the register, if the base is what it shows. Returns whether it did.
    pub(crate) fn keep_what_is_reached(&self, state: &mut MaintenanceState) -> Result<bool> {
        let pending = &self.control().pending_checkpoint.0;
        let version = self.region.version();
        let commit = version.base_commit + 1;
        if pending.commit() != Some(commit) || version.is_begun() {
            return Ok(false);
        }
        // A power cut must not take the commit back, and leave a checkpoint that says it shows another one of this number. Not as a commit
        // waits: where another process is in the way, a fold is what has failed.
        self.wait_synced(commit)?;
        self.make_durable(state)?;
        let (slot, position) = pending.place();
        // SAFETY: the base has not come to this generation, which so stays while the caller has the maintenance lock.
        let generation = unsafe { self.generation_view(slot) }?;
        let new = generation.new_checkpoint(position)?;
        let register = self.register(version.register)?;
        // A process may have died that had entered it.
        if new.id >= register.next_id {
            let kept = Kept {
                version: state.durable.version,
                commit,
                root: state.durable.root,
                ..kept_of(&register, &new)
            };
            self.change_register(state, &register.with(kept), Claim::Promised, Vec::new())?;
        }
        kill_point();
        // First: who comes after a death in between finds the checkpoint in the register, and needs no room.
        self.space.keeps_root();
        kill_point();
        pending.ends();
        Ok(true)
    }

    /// Puts the store back to the checkpoint of a name. `commit` makes the commit that says so, and returns
    /// its number. After that nothing can fail any more: what could not be folded now is folded later.
    pub(crate) fn restore(&self, name: &str, commit: impl FnOnce(&Kept) -> Result<u64>) -> Result<u64> {
        let _user = self.enter()?;
        let mut state = self.hold_maintenance()?;
        // Makes room for the commit, and ends a fold in steps.
        self.maintain_holding(&mut state)?;
        let register = self.register(self.region.version().register)?;
        // Another process may have dropped it since. None can have given its name to another one: the caller has an exclusive transaction.
        let kept = register
            .named(name)
            .ok_or_else(|| Reason::UnknownCheckpoint { name: name.into() })?;
        let commit = commit(kept)?;
        self.wait_durable(commit)?;
        // Those who sleep find that their handles are of the past.
        self.wake_streams();
        self.report_progress();
        self.region.bells().wake();
        // The next fold comes back to what is in the way of this one, and tells of it.
        let folded = self.maintain_holding(&mut state);
        // A checkpoint that was dropped may have stayed for the tree that the base came from.
        let _ = folded.and_then(|()| self.drop_holding(&mut state, |_| Vec::new()));
        Ok(commit)
    }

    /// Drops the checkpoints that `which` chooses by their ids. Returns how many these are.
    pub(crate) fn drop_checkpoints(&self, which: impl FnOnce(&Register) -> Vec<u64>) -> Result<u64> {
        self.writable()?;
        let _user = self.enter()?;
        let mut state = self.hold_maintenance()?;
        self.keep_pending_holding(&mut state)?;
        self.finish_begun(&mut state)?;
        self.fold_restores(&mut state)?;
        self.drop_holding(&mut state, which)
    }

    /// Drops checkpoints, and those that were dropped before and had to stay. The caller has folded what was begun.
    fn drop_holding(&self, state: &mut MaintenanceState, which: impl FnOnce(&Register) -> Vec<u64>) -> Result<u64> {
        let mut register = Register::clone(&*self.register(self.region.version().register)?);
        let (dropped, mut retired) = (which(&register), Vec::new());
        for &id in &dropped {
            register.forget_name(id);
        }
        if dropped.is_empty() && register.needless().is_none() {
            return Ok(0);
        }
        // A page that several of them share goes with the last.
        while let Some(kept) = register.needless().cloned() {
            self.alone(&register, &kept, &mut |visit| {
                retired.push(retired_by(&visit));
                Ok(())
            })?;
            register = register.without(kept.id);
        }
        // As a deletion does, it may take what is kept in reserve: a full store needs it.
        self.change_register(state, &register, Claim::Promised, retired)?;
        self.reclaim(state)?;
        // What a fold could not do before, it may do now.
        self.folded_in_vain.store(u64::MAX, Ordering::Relaxed);
        Ok(dropped.len() as u64)
    }

    /// Pages that only a checkpoint holds.
    pub(crate) fn pages_of_checkpoint_alone(&self, name: &str) -> Result<Option<u64>> {
        self.keep_pending_checkpoint()?;
        let _user = self.enter()?;
        let _state = self.hold_maintenance()?;
        let register = self.register(self.region.version().register)?;
        let Some(kept) = register.named(name) else {
            return Ok(None);
        };
        let mut count = 0;
        self.alone(&register, kept, &mut |visit| {
            count += visit.pages().len() as u64;
            Ok(())
        })?;
        Ok(Some(count))
    }

    /// Visits what only a checkpoint holds. The caller has the maintenance lock.
    fn alone(&self, register: &Register, kept: &Kept, visit: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
        let relatives = register
            .all
            .iter()
            .filter(|other| other.parent == kept.id || other.id == kept.parent);
        let mut others: Vec<_> = relatives.map(|other| other.root).collect();
        if register.origin == kept.id {
            others.push(self.region.version().root);
        }
        btree::walk_alone(self.source(), kept.root, &others, self.hash_seed, &mut |found| {
            self.beat();
            visit(found)
        })
    }

    /// Writes another register, publishes it, retires what only the one before held, and makes that durable.
    fn change_register(
        &self,
        state: &mut MaintenanceState,
        register: &Register,
        claim: Claim,
        mut retired: Vec<Retired>,
    ) -> Result<()> {
        let image = register.encode();
        let want = Want::Piece((image.len() / PAGE_BYTES) as u32);
        let place = self.space.take(claim, want, &self.pages)?;
        let saved = match self.write_register(&image, place) {
            Ok(saved) => saved,
            Err(error) => {
                self.space.give_back_run(claim, want, place.0, place.1, &self.pages)?;
                return Err(error);
            }
        };
        retired.extend(self.old_register());
        let birth = self.region.version().number + 1;
        let tree = NewTree {
            birth,
            retired: &retired,
            adopted: &[],
        };
        self.publish_tree(state, tree, |next| next.register = saved)?;
        self.learn_origin()?;
        kill_point();
        self.renew_durable(state)
    }
}

impl Core {
    /// Writes a register to pages that were taken for it.
    fn write_register(&self, image: &[u8], (page, pages): (u32, u32)) -> Result<SavedRegister> {
        let written = self.data.write_at(image, u64::from(page) * PAGE_BYTES as u64);
        written.map_err(|error| Error::io("writing the register of checkpoints", error))?;
        kill_point();
        Ok(SavedRegister {
            page,
            pages,
            checksum: checksum_with(self.seeds.pages, image),
        })
    }

    /// The pages of the published register, if there are any. A reader that opens a checkpoint has pinned a version, and reads
    /// the register of that version.
    fn old_register(&self) -> Option<Retired> {
        let old = self.region.version().register;
        (old.pages > 0).then_some(Retired {
            page: old.page,
            pages: old.pages,
            birth: 0,
            death: u64::MAX,
            is_logged: false,
        })
    }

    /// The checkpoint that the newest restore among generations puts in the place of the base.
    pub(crate) fn restored_by(&self, generations: &[u16]) -> Result<Option<Kept>> {
        // SAFETY: the caller has the maintenance lock, and generations of the published version go only under that lock.
        let views = generations.iter().map(|&slot| unsafe { self.generation_view(slot) });
        let Some((commit, id)) = newest_restore(&views.collect::<Result<Vec<_>>>()?)? else {
            return Ok(None);
        };
        let register = self.register(self.region.version().register)?;
        let gone = || Error::damaged(format!("commit {commit} restores checkpoint {id}, which is not there"));
        register.get(id).cloned().map(Some).ok_or_else(gone)
    }

    /// Folds restores that were committed and not folded, for example because the process died in between.
    fn fold_restores(&self, state: &mut MaintenanceState) -> Result<()> {
        if self.restored_by(&self.region.version().generations)?.is_some() {
            self.maintain_holding(state)?;
        }
        match self.restored_by(&self.region.version().generations)? {
            None => Ok(()),
            Some(kept) => {
                let cause = format!(
                    "the restore of {:?} could not be folded; drop old snapshots and transactions, and try again",
                    kept.name
                );
                let what = "dropping a checkpoint";
                Err(Reason::NoRoom { what, cause }.into())
            }
        }
    }

    /// Merges what came after a restore into the tree of the checkpoint. Of the base it retires what no checkpoint has. Returns
    /// the root and the register, in which the base comes from that checkpoint.
    pub(crate) fn fold_over_checkpoint(
        &self,
        version: &Version,
        frozen: &[u16],
        restored: &Kept,
        report: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Root, FileSink<'_>, SavedRegister)> {
        assert!(
            !version.is_begun(),
            "a restore waits until a fold in steps has come to its end"
        );
        let (source, root) = (self.source(), restored.root);
        let origin = Origin {
            version: restored.version,
            root,
        };
        let sink = FileSink::new(self, version.number + 1, Claim::Promised).over(origin);
        let folded = self.fold_range(root, frozen, (&[], None), sink, report, |changes, cuts, sink| {
            btree::merge(source, root, changes, cuts, self.fold_options(), sink)
        })?;
        let mut sink = self.retire_folded(folded.values, folded.runs, folded.sink)?;
        match self.leave_base(version.root, restored, &mut sink) {
            Ok(saved) => Ok((folded.merged, sink, saved)),
            Err(error) => {
                sink.abandon();
                Err(error)
            }
        }
    }

    /// Retires what only the base has, and writes the register of a base that comes from another checkpoint.
    fn leave_base(&self, base: Root, restored: &Kept, sink: &mut FileSink<'_>) -> Result<SavedRegister> {
        // What the base shares with any checkpoint, it shares with its origin.
        let others: Vec<_> = self.origin().map(|origin| origin.root).into_iter().collect();
        btree::walk_alone(self.source(), base, &others, self.hash_seed, &mut |visit| {
            self.beat();
            sink.retired.push(retired_by(&visit));
            Ok(())
        })?;
        let mut register = Register::clone(&*self.register(self.region.version().register)?);
        register.origin = restored.id;
        let image = register.encode();
        let place = sink.take(Want::Piece((image.len() / PAGE_BYTES) as u32))?;
        let saved = self.write_register(&image, place)?;
        sink.retired.extend(self.old_register());
        Ok(saved)
    }
}

/// A new checkpoint as it will be in the register, but for its tree.
fn kept_of(register: &Register, new: &NewCheckpoint<'_>) -> Kept {
    Kept {
        id: new.id,
        parent: register.origin,
        version: 0,
        commit: 0,
        time: new.time,
        root: Root::default(),
        name: new.name.into(),
        metadata: new.metadata.to_vec(),
    }
}

/// Pages of the register with a new checkpoint.
pub(crate) fn pages_with(register: &Register, new: &NewCheckpoint<'_>) -> u32 {
    (register.with(kept_of(register, new)).encode().len() / PAGE_BYTES) as u32
}

/// What a walk came to, to be retired.
fn retired_by(visit: &Visit) -> Retired {
    let pages = visit.pages();
    Retired {
        page: pages.start,
        pages: pages.end - pages.start,
        birth: visit.birth(),
        death: u64::MAX,
        is_logged: matches!(visit, Visit::Extent(_)),
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use crate::{Maintenance, Options};

    /// A step would count on the pages that the one before it replaced, and those belong to the checkpoint.
    #[test]
    fn folds_are_not_done_step_by_step_while_a_checkpoint_keeps_what_they_replace() {
        let options = || Options::new().maintenance(Maintenance::Manual);
        let disk = SimDisk::new(1);
        let store = options().open_on(disk.platform()).expect("a store");
        let in_one = |store: &crate::Store| store.core().space.folds_in_one();
        assert!(!in_one(&store));
        store.checkpoints().create("one", "").expect("room");
        assert!(in_one(&store));
        let store = options().open_on(disk.kill().platform()).expect("a store");
        assert!(in_one(&store), "the next opening finds the checkpoint");
    }
}
