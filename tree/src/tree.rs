//! A tree, as programs hold it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duramen_engine::{Durability, Error, Kind, Result, Transaction, TransactionOptions};

use crate::commit::{Committed, TreeCommit};
use crate::condition::Condition;
use crate::error::TreeError;
use crate::lease::{Lease, LeaseClock, first_deadline};
use crate::node::{Children, Node};
use crate::pattern::Pattern;
use crate::shared::Shared;
use crate::turns::Turns;
use crate::view::{Child, TreeView};
use crate::watch::TreeWatch;
use crate::watches::{TreeWatches, WatchOptions};
use crate::worker::Worker;
use crate::writes::{PausedWrites, TreeWrites};

/// Pause between two commits that remove rows: so many times as long as the commit took, and at most so long.
const PAUSE_FACTOR: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// Commits that remove rows before the background thread looks after the leases again: about a quarter of a second.
const REMOVALS_AT_ONCE: usize = 50;

/// A tree of paths with payloads. Handles are cheap to clone, and may be used from any thread.
///
/// Every change has a *revision*: a number of the tree that grows by one with each transaction which changes it. Each node knows
/// the revisions that created it and changed it last, and how often it was stored. Nodes as they were, and the changes themselves,
/// are kept until they are compacted.
///
/// Writers take turns, also those of other processes: no write conflicts with another one. It fails only where another transaction
/// takes longer than [`duramen_engine::Options::lock_timeout`].
#[derive(Clone, Debug)]
pub struct Tree {
    shared: Arc<Shared>,
    turns: Arc<Turns<Change, Result<Answer>>>,
    /// Set in handles that the program has. The last of them ends the background thread before it releases the store.
    worker: Option<Arc<Worker>>,
}

/// A change by a single call, which can be done again when its transaction fails.
type Change = Box<dyn FnMut(&mut TreeWrites<'_>) -> Result<Answer> + Send>;

/// What such a change returns.
#[derive(Debug)]
enum Answer {
    Node(Option<Node>),
    Holds(bool),
}

impl Answer {
    fn node(self) -> Option<Node> {
        match self {
            Answer::Node(node) => node,
            Answer::Holds(_) => None,
        }
    }

    fn holds(self) -> bool {
        matches!(self, Answer::Holds(true))
    }
}

impl Tree {
    pub(crate) fn new(shared: Arc<Shared>) -> Tree {
        Tree {
            shared,
            turns: Arc::default(),
            worker: None,
        }
    }

    /// A handle that keeps the background thread running.
    pub(crate) fn with_worker(mut self, worker: &Option<Arc<Worker>>) -> Tree {
        self.worker.clone_from(worker);
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The tree as it is now. Reads that belong together use one view.
    ///
    /// # Errors
    /// [`crate::TreeError::UnknownTree`] when the tree was deleted; those of a snapshot.
    pub fn view(&self) -> Result<TreeView> {
        TreeView::new(&self.shared)
    }

    /// The tree as it was at a revision.
    ///
    /// # Errors
    /// [`crate::TreeError::Compacted`], [`crate::TreeError::FutureRevision`], and those of [`Tree::view`].
    pub fn view_at(&self, revision: u64) -> Result<TreeView> {
        self.view()?.at_revision(revision)
    }

    /// The newest revision.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn revision(&self) -> Result<u64> {
        Ok(self.view()?.revision())
    }

    /// The node of a path.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn get(&self, path: impl AsRef<[u8]>) -> Result<Option<Node>> {
        self.view()?.get(path)
    }

    /// Whether a path has a node.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        self.view()?.exists(path)
    }

    /// What a path has below it.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn child_count(&self, path: impl AsRef<[u8]>) -> Result<Children> {
        self.view()?.child_count(path)
    }

    /// Children of a path in the order of their names, from the one after `after` on, at most `limit`.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn children(&self, path: impl AsRef<[u8]>, after: Option<&[u8]>, limit: usize) -> Result<Vec<Child>> {
        self.view()?.children(path, after, limit)
    }

    /// Nodes whose paths have a pattern, at most `limit`.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn get_many(&self, pattern: &Pattern, limit: usize) -> Result<Vec<(Vec<u8>, Node)>> {
        self.view()?.get_many(pattern, limit)
    }

    /// Number of nodes whose paths have a pattern.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn count(&self, pattern: &Pattern) -> Result<u64> {
        self.view()?.count(pattern)
    }

    /// Runs a closure that changes the tree. All its changes have one revision and are committed together, or none is when it
    /// returns an error. It runs once, while no other transaction writes.
    ///
    /// # Errors
    /// What the closure returns, and those of [`duramen_engine::Store::transact`].
    pub fn transact<T, E: From<duramen_engine::Error>>(
        &self,
        body: impl FnOnce(&mut TreeWrites<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut body = Some(body);
        let options = TransactionOptions::new().exclusive();
        self.shared.store.transact_with(options, |tx| {
            let body = body.take().expect("an exclusive transaction runs once");
            let mut writes = TreeWrites::begin(&self.shared, tx)?;
            let done = body(&mut writes)?;
            // A closure may have ignored that a node could not be ended.
            writes.end_unkept()?;
            Ok(done)
        })
    }

    /// Changes the tree in a transaction of the store, together with maps, topics and other trees. The transaction conflicts with
    /// every other that changes the tree meanwhile, unless it is exclusive; [`duramen_engine::Store::transact`] then runs its
    /// closure again.
    ///
    /// # Errors
    /// [`crate::TreeError::UnknownTree`] when the tree was deleted.
    pub fn writes<'t>(&'t self, tx: &'t mut Transaction) -> Result<TreeWrites<'t>> {
        TreeWrites::begin(&self.shared, tx)
    }

    /// Goes on with writes that were paused in this transaction.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::InvalidArgument`] when the transaction has changed the tree meanwhile, or is another one.
    pub fn resume<'t>(&'t self, tx: &'t mut Transaction, paused: PausedWrites) -> Result<TreeWrites<'t>> {
        TreeWrites::resume(&self.shared, tx, paused)
    }

    /// Does a change of a single call, together with those of other threads.
    fn change(&self, change: impl FnMut(&mut TreeWrites<'_>) -> Result<Answer> + Send + 'static) -> Result<Answer> {
        // The thread at work would wait for the transaction of this one.
        self.shared
            .store
            .refuse_beside("a change of a tree", &self.shared.name)?;
        let together = |changes: &mut [Change]| {
            let done = self.together(changes);
            done.map_or_else(|failed| answers_of(failed, changes.len()), Some)
        };
        match self.turns.take(Box::new(change), &together) {
            Ok(answer) => answer,
            Err(change) => {
                let answers = self.together(&mut [change])?;
                answers.into_iter().next().expect("an answer for each change")
            }
        }
    }

    /// Does changes in one transaction, each with a revision of its own.
    fn together(&self, changes: &mut [Change]) -> Result<Vec<Result<Answer>>> {
        let options = TransactionOptions::new().exclusive();
        let mut answers = Vec::with_capacity(changes.len());
        self.shared.store.transact_with(options, |tx| {
            let mut writes = TreeWrites::begin_several(&self.shared, tx)?;
            let before = writes.revision();
            for change in changes.iter_mut() {
                match change(&mut writes) {
                    Err(error) if !TreeError::of(&error).is_some_and(TreeError::is_of_an_untouched_tree) => {
                        return Err(error);
                    }
                    answer => answers.push(answer),
                }
                writes.end_revision();
            }
            match writes.revision() == before {
                true => Ok::<_, Error>(()),
                false => writes.end_several(),
            }
        })?;
        Ok(answers)
    }

    /// Stores a payload, whether there is a node or not. Returns the node before.
    ///
    /// # Errors
    /// As [`TreeWrites::put`].
    pub fn put(&self, path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Result<Option<Node>> {
        let (path, payload) = owned(path, payload);
        Ok(self
            .change(move |tree| tree.put(&path, &payload).map(Answer::Node))?
            .node())
    }

    /// Stores a payload in all nodes whose paths have a pattern; they keep their leases. Returns how many there are.
    ///
    /// # Errors
    /// As [`TreeWrites::put_many`].
    pub fn put_many(&self, pattern: &Pattern, payload: impl AsRef<[u8]>) -> Result<u64> {
        self.transact(|tree| tree.put_many(pattern, payload.as_ref()))
    }

    /// Creates a node.
    ///
    /// # Errors
    /// As [`TreeWrites::create`].
    pub fn create(&self, path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Result<()> {
        let (path, payload) = owned(path, payload);
        self.change(move |tree| tree.create(&path, &payload).map(|()| Answer::Holds(true)))
            .map(drop)
    }

    /// Replaces the payload of a node, which keeps its lease. Returns the node before.
    ///
    /// # Errors
    /// As [`TreeWrites::update`].
    pub fn update(&self, path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Result<Node> {
        let (path, payload) = owned(path, payload);
        let updated = self.change(move |tree| tree.update(&path, &payload).map(Some).map(Answer::Node))?;
        Ok(updated.node().expect("an update returns the node before"))
    }

    /// Replaces the payload of a node that holds another one.
    ///
    /// # Errors
    /// As [`TreeWrites::compare_and_swap`].
    pub fn compare_and_swap(
        &self,
        path: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
    ) -> Result<()> {
        let ((path, payload), expected) = (owned(path, payload), expected.as_ref().to_vec());
        let swap = move |tree: &mut TreeWrites<'_>| tree.compare_and_swap(&path, &expected, &payload);
        self.change(move |tree| swap(tree).map(|()| Answer::Holds(true)))
            .map(drop)
    }

    /// Stores a payload if a condition on the node holds. Returns whether it did.
    ///
    /// # Errors
    /// [`crate::TreeError::InvalidCondition`], and those of [`TreeWrites::put`].
    pub fn put_if(&self, path: impl AsRef<[u8]>, condition: &Condition, payload: impl AsRef<[u8]>) -> Result<bool> {
        let ((path, payload), condition) = (owned(path, payload), condition.clone());
        let change = move |tree: &mut TreeWrites<'_>| {
            let holds = tree.holds(&path, &condition)?;
            if holds {
                tree.put(&path, &payload)?;
            }
            Ok(Answer::Holds(holds))
        };
        Ok(self.change(change)?.holds())
    }

    /// Empties the payload of a node, and keeps the node. Returns whether there is one.
    ///
    /// # Errors
    /// As [`TreeWrites::clear_payload`].
    pub fn clear_payload(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        let path = path.as_ref().to_vec();
        Ok(self
            .change(move |tree| tree.clear_payload(&path).map(Answer::Holds))?
            .holds())
    }

    /// Deletes the node of a path, and nothing below it. Returns the node.
    ///
    /// # Errors
    /// As [`TreeWrites::delete`].
    pub fn delete(&self, path: impl AsRef<[u8]>) -> Result<Option<Node>> {
        let path = path.as_ref().to_vec();
        Ok(self.change(move |tree| tree.delete(&path).map(Answer::Node))?.node())
    }

    /// Deletes the node of a path and all nodes below it. Returns how many.
    ///
    /// # Errors
    /// As [`TreeWrites::delete_subtree`].
    pub fn delete_subtree(&self, path: impl AsRef<[u8]>) -> Result<u64> {
        self.transact(|tree| tree.delete_subtree(path))
    }

    /// Deletes the nodes whose paths have a pattern. Returns how many.
    ///
    /// # Errors
    /// As [`TreeWrites::delete_many`].
    pub fn delete_many(&self, pattern: &Pattern) -> Result<u64> {
        self.transact(|tree| tree.delete_many(pattern))
    }

    /// Compares, and does what the outcome says.
    ///
    /// # Errors
    /// [`crate::TreeError::InvalidCondition`], and those of the operations; nothing is changed then.
    pub fn commit(&self, commit: &TreeCommit) -> Result<Committed> {
        self.transact(|tree| commit.apply(tree))
    }

    /// Watches changes.
    ///
    /// # Errors
    /// [`crate::TreeError::Compacted`], [`crate::TreeError::FutureRevision`], and those of [`Tree::view`].
    pub fn watch(&self, options: WatchOptions) -> Result<TreeWatch> {
        TreeWatch::begin(&self.shared, options)
    }

    /// Begins a set of watches that read the changes together: many of them cost little more than one.
    ///
    /// # Errors
    /// Those of [`Tree::view`].
    pub fn watches(&self) -> Result<TreeWatches> {
        TreeWatches::begin(&self.shared)
    }

    /// Grants a lease with an id of the tree's choice.
    ///
    /// # Errors
    /// As [`TreeWrites::grant_lease`].
    pub fn grant_lease(&self, ttl: Duration) -> Result<Lease> {
        // Ids fit into the signed numbers that etcd's clients use.
        let id = (self.shared.store.random_number() >> 1).max(1);
        self.transact(|tree| tree.grant_lease(id, ttl))
    }

    /// Lets a lease last its whole time from now on.
    ///
    /// # Errors
    /// [`crate::TreeError::LeaseGone`].
    pub fn keep_lease_alive(&self, id: u64) -> Result<Lease> {
        self.transact(|tree| tree.keep_lease_alive(id))
    }

    /// Ends a lease and deletes its nodes. Returns how many.
    ///
    /// # Errors
    /// [`crate::TreeError::LeaseGone`].
    pub fn revoke_lease(&self, id: u64) -> Result<u64> {
        self.transact(|tree| tree.revoke_lease(id))
    }

    /// Forgets the changes before a revision, and the nodes that only earlier revisions have. Returns when their space can be used
    /// again; other writers go on meanwhile. This is also how a tree makes room in a full store.
    ///
    /// # Errors
    /// [`crate::TreeError::FutureRevision`].
    pub fn compact(&self, revision: u64) -> Result<()> {
        let compact = || -> Result<()> {
            self.transact(|tree| tree.compact(revision))?;
            while self.remove_compacted()? {}
            Ok(())
        };
        match compact() {
            Err(error) if error.kind() == Kind::MakeSpace => {
                while self.transact(|tree| tree.remove_without_room(revision))? {}
                compact()
            }
            compacted => compacted,
        }
    }

    /// Deletes the node of a path and all nodes below it, and keeps none of it for earlier revisions: they cannot be read any more.
    /// A usual deletion keeps what it deletes until it is compacted, so a full store may refuse it; this one makes room. Returns
    /// how many nodes it deleted.
    ///
    /// # Errors
    /// As [`TreeWrites::purge`].
    pub fn purge(&self, path: impl AsRef<[u8]>) -> Result<u64> {
        let path = path.as_ref();
        match self.transact(|tree| tree.purge(path)) {
            Err(error) if error.kind() == Kind::MakeSpace => {
                let revision = self.revision()?;
                while self.transact(|tree| tree.remove_without_room(revision))? {}
                self.transact(|tree| tree.purge(path))
            }
            purged => purged,
        }
    }

    /// Whether [`TreeWrites::tend`] would do something.
    ///
    /// # Errors
    /// As [`Tree::view`].
    pub fn needs_tending(&self) -> Result<bool> {
        Ok(self.has_lease_work()? || self.view()?.has_compacted_rows()?)
    }

    /// What the background thread does for the tree, or some of it when there is much. Returns whether there is more.
    pub(crate) fn work(&self) -> Result<bool> {
        let expired = self.expire();
        let has_more = self.view()?.has_compacted_rows()? && self.remove_compacted()?;
        expired.map(|()| has_more)
    }

    fn expire(&self) -> Result<()> {
        if self.has_lease_work()? {
            while self.transact(|tree| tree.expire_leases())?.1 {}
        }
        Ok(())
    }

    /// Removes the rows of compacted revisions. No other change writes them, so this needs no turn among the writers. A power cut may
    /// bring rows back, which are removed again: so no commit waits for the device. It pauses most of the time: writers need the
    /// processors, and so does the fold that follows. Calls that change one node each make fewer revisions in that time than it
    /// removes. After some commits it returns whether there is more, because leases of all trees wait meanwhile.
    fn remove_compacted(&self) -> Result<bool> {
        let shared = &self.shared;
        let options = TransactionOptions::new().durability(Durability::Written);
        let remove = |tx: &mut Transaction| TreeWrites::begin(shared, tx)?.remove_compacted();
        for _ in 0..REMOVALS_AT_ONCE {
            let begun = Instant::now();
            if !shared.store.transact_with(options, remove)? {
                return Ok(false);
            }
            std::thread::sleep((begun.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX));
        }
        Ok(true)
    }

    /// Whether a lease has expired, or the clock of the leases must be stored.
    fn has_lease_work(&self) -> Result<bool> {
        let store = &self.shared.store;
        let (snapshot, leases) = (store.snapshot()?, &self.shared.tables.leases);
        let Some((deadline, _)) = first_deadline(&snapshot, leases, self.shared.id, None)? else {
            return Ok(false);
        };
        let shared = store.shared_clock();
        let clock = LeaseClock::read(&snapshot, leases, self.shared.id)?;
        Ok(clock.is_none_or(|clock| clock.is_due(shared) || clock.at(shared).millis() >= deadline))
    }
}

/// The answers to changes whose transaction has failed; `None`: each is done again, alone. A change that was alone, or may have been
/// made, must not be.
fn answers_of(failed: Error, changes: usize) -> Option<Vec<Result<Answer>>> {
    let is_over = changes == 1 || failed.is_of_a_made_commit();
    is_over.then(|| (0..changes).map(|_| Err(failed.clone())).collect())
}

fn owned(path: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> (Vec<u8>, Vec<u8>) {
    (path.as_ref().to_vec(), payload.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use duramen_engine::Reason;

    use super::*;

    #[test]
    fn a_change_that_may_have_been_made_is_not_made_again() {
        let not_synced = Error::from(Reason::NotSynced {
            commit: 1,
            process: 1,
            waited: Duration::ZERO,
        });
        for changes in [1, 3] {
            let answers = answers_of(not_synced.clone(), changes).unwrap();
            assert_eq!(answers.len(), changes);
            assert!(
                answers
                    .into_iter()
                    .all(|answer| answer.unwrap_err().is_of_a_made_commit())
            );
        }
        assert!(answers_of(Reason::Closed.into(), 1).is_some());
        assert!(answers_of(Reason::Closed.into(), 2).is_none());
    }
}
