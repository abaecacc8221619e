//! What a process remembers of a group, so that delivering a message does not begin with a search.
//!
//! The rows in the store are authoritative. Hints only say where to search, and before which time a search is
//! useless. Every transaction checks what it changes. Hints are also right about other processes, for three
//! reasons:
//!
//! - a row in `due` that comes earlier than the others rings the group's bell in all processes;
//! - a run that another process delivers now ends no earlier than one lease from now, and the hints are renewed
//!   before;
//! - only reset and redrive open messages below the floor, and they change the cursor's epoch.

use std::time::Instant;

/// What a process remembers of a group. Times are those of the shared clock, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Time of the last renewal. `None`: the next use renews it.
    pub(super) renewed: Option<u64>,
    /// Nothing is due before this.
    pub(super) due: u64,
    /// No run ends before this, unless it was extended.
    pub(super) runs: u64,
    /// No row in `due` is before this time, except rows that were committed late.
    pub(super) due_from: u64,
    /// Time of the last search of `due` from its beginning.
    pub(super) searched: u64,
    /// No run begins before this message, in this epoch.
    pub(super) runs_from: u64,
    /// No message before this one is open, and no run begins before it, in this epoch.
    pub(super) floor: u64,
    /// The floor found by the transaction in progress; 0: it did not search.
    pub(super) looked_floor: u64,
    pub(super) epoch: u64,
    /// Minimum number of counted messages that were closed in this epoch, unless the group is ordered.
    pub(super) closed: Option<i64>,
    /// Number of messages that were open at the last look, in this epoch.
    pub(super) looked: Option<OpenBound>,
    /// Whether that look was in the transaction in progress.
    pub(super) has_looked: bool,
    /// Number of processes that had left the store when their leases were last taken back.
    pub(super) departed: Option<u64>,
    /// Whether the last delivered messages had waited: then new messages are next.
    pub(super) prefers_fresh: bool,
}

impl Hints {
    /// Nothing is due before this time, as far as is known.
    pub(super) fn next_event(&self) -> u64 {
        self.due.min(self.runs)
    }

    /// Begins an attempt of a transaction that may search the rows.
    pub(super) fn begin_attempt(&mut self) {
        self.looked_floor = 0;
    }

    /// The floor that the transaction may rely on.
    pub(super) fn floor_in_attempt(&self) -> u64 {
        self.floor.max(self.looked_floor)
    }

    /// Records that the transaction is committed.
    pub(super) fn committed(&mut self) {
        self.floor = self.floor_in_attempt();
        self.looked_floor = 0;
    }

    /// Records that something is due at this time.
    pub(super) fn note_due(&mut self, time: u64) {
        self.due = self.due.min(time);
        self.due_from = self.due_from.min(time);
    }

    /// Records a delivered run that ends at this time.
    pub(super) fn note_run(&mut self, deadline: u64) {
        self.runs = self.runs.min(deadline);
    }

    /// Records that the rows may differ from what the hints say.
    pub(super) fn doubt(&mut self) {
        self.renewed = None;
    }

    /// Records that a message was acknowledged during the turn of its process, in a transaction that did not look at
    /// the rows.
    pub(super) fn note_closed(&mut self) {
        if let Some(looked) = self.looked.as_mut().filter(|_| !self.has_looked) {
            looked.closed += 1;
        }
    }

    /// Adopts the epoch of the cursor. What is known of another epoch does not count.
    pub(super) fn enter_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            (self.epoch, self.runs_from, self.floor) = (epoch, 0, 0);
            (self.closed, self.looked, self.runs, self.looked_floor) = (None, None, 0, 0);
        }
    }
}

/// Maximum number of messages that were open at a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenBound {
    pub(super) open: u64,
    /// Number of messages opened between the creation of the group and the look.
    pub(super) opened: u64,
    /// Number of messages that this process has seen closed since.
    pub(super) closed: u64,
    /// Before this time another look would cost too much: the last look took long, and found the group nearly full.
    pub(super) again: Option<Instant>,
}

impl OpenBound {
    /// Maximum number of open messages when `opened` messages have been opened since the group was created.
    pub(super) fn bound(&self, opened: u64) -> u64 {
        (self.open + (opened - self.opened)).saturating_sub(self.closed)
    }

    pub(super) fn is_too_soon(&self) -> bool {
        self.again.is_some_and(|again| Instant::now() < again)
    }
}
