//! What a process remembers of a group, so that handing out a message does not begin with a search.
//!
//! The rows in the store are the truth. An outlook only says where to look, and before which time there is nothing to look
//! for; every transaction checks what it changes. It is right about other processes too, because of three facts:
//!
//! - a row in `due` that comes earlier than the others rings the group's bell in all processes;
//! - a run that another process hands out now ends no earlier than one lease from now, and the outlook is renewed before;
//! - only reset and redrive open messages below the floor, and they change the cursor's epoch.

use super::room::Looked;

/// See the module. Times are those of the shared clock, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Outlook {
    /// When it was renewed last. `None`: the next use renews it.
    pub(super) renewed: Option<u64>,
    /// Nothing is due before this.
    pub(super) due: u64,
    /// No run ends before this, unless it was extended.
    pub(super) runs: u64,
    /// There is no row in `due` before this; rows that were committed late may be.
    pub(super) due_from: u64,
    /// When `due` was searched from its beginning.
    pub(super) searched: u64,
    /// There is no run before this message, in this epoch.
    pub(super) runs_from: u64,
    /// No message before this one is open, and no run begins before it, in this epoch.
    pub(super) floor: u64,
    /// The floor by the look of a transaction that is under way; 0: it did not look.
    pub(super) looked_floor: u64,
    pub(super) epoch: u64,
    /// At least so many counted messages were closed in this epoch, unless the group is ordered.
    pub(super) closed: Option<i64>,
    /// How many messages were open at the last look, in this epoch.
    pub(super) looked: Option<Looked>,
    /// Whether that look was in the transaction that is being made.
    pub(super) has_looked: bool,
    /// How many processes had left the store when their leases were taken back last.
    pub(super) departed: Option<u64>,
    /// Whether the last messages that were handed out had waited: then it is the turn of new ones.
    pub(super) prefers_fresh: bool,
}

impl Outlook {
    /// Before this time nothing is due, as far as is known.
    pub(super) fn next_event(&self) -> u64 {
        self.due.min(self.runs)
    }

    /// A transaction begins that may look at the rows. Called for each attempt of it.
    pub(super) fn begin_attempt(&mut self) {
        self.looked_floor = 0;
    }

    /// The floor that the transaction may rely on.
    pub(super) fn floor_in_attempt(&self) -> u64 {
        self.floor.max(self.looked_floor)
    }

    /// The transaction is committed.
    pub(super) fn committed(&mut self) {
        self.floor = self.floor_in_attempt();
        self.looked_floor = 0;
    }

    /// Something is due at this time.
    pub(super) fn note_due(&mut self, time: u64) {
        self.due = self.due.min(time);
        self.due_from = self.due_from.min(time);
    }

    /// A run was handed out that ends at this time.
    pub(super) fn note_run(&mut self, deadline: u64) {
        self.runs = self.runs.min(deadline);
    }

    /// The rows may say something else than was thought.
    pub(super) fn doubt(&mut self) {
        self.renewed = None;
    }

    /// A message was acknowledged while its process had the turn, in a transaction that did not look at the rows.
    pub(super) fn note_closed(&mut self) {
        if let Some(looked) = self.looked.as_mut().filter(|_| !self.has_looked) {
            looked.closed += 1;
        }
    }

    /// Takes over what the cursor says of the epoch. What is known of another one does not count.
    pub(super) fn enter_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            (self.epoch, self.runs_from, self.floor) = (epoch, 0, 0);
            (self.closed, self.looked, self.runs, self.looked_floor) = (None, None, 0, 0);
        }
    }
}
