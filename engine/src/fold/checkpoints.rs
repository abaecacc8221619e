//! Checkpoints: roots of the base that are kept (see decision 28).
//!
//! The simple version: making one folds everything, writes a register that names the durable root, and a meta page that refers
//! to the register. Dropping one retires the pages that no other kept root, and not the base, leads to.
//!
//! Why it is right: each tree is written and published under the maintenance lock, and a checkpoint is made under it too. So
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
use crate::limits::{CHECKPOINT_METADATA_BYTES_MAX, CHECKPOINT_NAME_BYTES_MAX, CHECKPOINTS_MAX, PAGE_BYTES};
use crate::planted::kill_point;
use crate::region::Version;

impl Core {
    /// Keeps the present state under a name.
    pub(crate) fn create_checkpoint(&self, name: &str, metadata: &[u8]) -> Result<Kept> {
        check_name(name)?;
        if metadata.len() > CHECKPOINT_METADATA_BYTES_MAX {
            let cause = format!(
                "the metadata of a checkpoint has at most {CHECKPOINT_METADATA_BYTES_MAX} bytes, and not {}; store it in a map, which \
                 the checkpoint has too",
                metadata.len()
            );
            return Err(Reason::InvalidArgument(cause).into());
        }
        self.writable()?;
        let _user = self.enter()?;
        let mut state = self.hold_maintenance()?;
        let register = self.register(self.region.version().register)?;
        if register.named(name).is_some() {
            return Err(Reason::CheckpointExists { name: name.into() }.into());
        }
        if register.all.len() >= CHECKPOINTS_MAX {
            let cause = format!("a store has at most {CHECKPOINTS_MAX} checkpoints; drop some first");
            return Err(Reason::InvalidArgument(cause).into());
        }
        // Relaxed: what the caller has committed is visible to it.
        let visible = self.control().visible.0.load(Ordering::Relaxed);
        self.maintain_holding(&mut state)?;
        // What is folded is durable now, and nothing else is folded while the lock is held.
        let durable = state.durable;
        if durable.base_commit < visible || self.is_begun() {
            let cause = "not all of the log could be folded; drop old snapshots and transactions, and try again".into();
            let what = "a checkpoint";
            return Err(Reason::NoRoom { what, cause }.into());
        }
        // Again: what was folded may have restored a checkpoint, from which the base comes then.
        let register = self.register(self.region.version().register)?;
        let kept = Kept {
            id: register.next_id,
            parent: register.origin,
            version: durable.version,
            commit: durable.base_commit,
            time: self.platform.clock.wall().as_micros() as u64,
            root: durable.root,
            name: name.into(),
            metadata: metadata.to_vec(),
        };
        let mut next = Register::clone(&register);
        next.next_id += 1;
        next.origin = kept.id;
        next.all.push(kept.clone());
        let pages = (next.encode().len() / PAGE_BYTES) as u32;
        self.space.begin_to_keep_roots(pages, &self.pages)?;
        self.change_register(&mut state, &next, Claim::Beyond, Vec::new())?;
        Ok(kept)
    }

    /// Puts the store back to the checkpoint of a name that shows commit `shown`. `commit` makes the commit that says so, and returns
    /// its number. After that nothing can fail any more: what could not be folded now is folded later.
    pub(crate) fn restore(&self, name: &str, shown: u64, commit: impl FnOnce(&Kept) -> Result<u64>) -> Result<u64> {
        let _user = self.enter()?;
        let mut state = self.hold_maintenance()?;
        // Makes room for the commit, and ends a fold in steps.
        self.maintain_holding(&mut state)?;
        let register = self.register(self.region.version().register)?;
        // Another process may have dropped it since, and given its name to another one.
        let kept = register
            .named(name)
            .filter(|kept| kept.commit == shown)
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

fn check_name(name: &str) -> Result<()> {
    if (1..=CHECKPOINT_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let cause = format!(
        "a checkpoint has a name of 1 to {CHECKPOINT_NAME_BYTES_MAX} bytes, and not {}",
        name.len()
    );
    Err(Reason::InvalidArgument(cause).into())
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
