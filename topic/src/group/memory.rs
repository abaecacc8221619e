//! What a process remembers of a group, so that handing out a message does not begin with a search.
//!
//! The rows in the store are the truth: whoever acts on this memory checks it in the transaction that changes them. What a
//! transaction of the program settled is not known here before the next sweep; so a message may be thought open that is
//! settled, never the other way round.
//!
//! Deadlines are kept on the clock that never goes back. A row that is seen for the first time is given at most as long as
//! it was given when it was written, so that a clock that was set back keeps no message away for longer.

use std::collections::BTreeMap;
use std::time::Duration;

use super::deliveries::Claim;
use super::state::{Lease, Single};

/// Messages that were handed out together.
#[derive(Clone, Debug)]
pub(crate) struct OpenRun {
    pub(crate) token: u64,
    /// Messages of it that are open, as far as is known.
    pub(crate) left: u64,
    /// Whether they were counted by reading the rows: then one that was settled just before is perhaps counted out again.
    pub(crate) is_counted: bool,
    pub(crate) deadline: Duration,
    /// The deadline as it is written.
    pub(crate) written: u64,
}

/// A message that failed at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenSingle {
    Waits {
        due: Duration,
        written: u64,
    },
    Again {
        token: u64,
        deadline: Duration,
        written: u64,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) runs: BTreeMap<u64, OpenRun>,
    pub(crate) singles: BTreeMap<u64, OpenSingle>,
    /// Rows that say nothing any more, about.
    pub(crate) garbage: u64,
    /// When the rows were last read.
    pub(crate) swept: Duration,
    /// Whether a row was not what it was thought to be.
    pub(crate) is_doubtful: bool,
    /// Whether a member waits because there was no room.
    pub(crate) is_full: bool,
}

/// What is due now.
#[derive(Debug, Default)]
pub(crate) struct Expired {
    pub(crate) runs: Vec<ExpiredLease>,
    pub(crate) singles: Vec<ExpiredLease>,
}

/// A lease that ran out, as far as is known here: a member in another process may have extended it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpiredLease {
    /// Its message, or the first one.
    pub(crate) offset: u64,
    pub(crate) token: u64,
    /// Its deadline as it was written.
    pub(crate) written: u64,
}

impl ExpiredLease {
    /// Whether this is still the lease that ran out.
    pub(crate) fn is(&self, lease: &Lease) -> bool {
        lease.token == self.token && lease.deadline == self.written
    }
}

impl Memory {
    /// Messages that are open, as far as is known.
    pub(crate) fn in_flight(&self) -> u64 {
        self.runs.values().map(|run| run.left).sum::<u64>() + self.singles.len() as u64
    }

    /// Leases that have run out.
    pub(crate) fn expired(&self, now: Duration) -> Expired {
        let runs = self.runs.iter().filter(|(_, run)| run.deadline <= now);
        let singles = self.singles.iter().filter_map(|(offset, single)| match single {
            OpenSingle::Again {
                token,
                deadline,
                written,
            } if *deadline <= now => Some(ExpiredLease {
                offset: *offset,
                token: *token,
                written: *written,
            }),
            _ => None,
        });
        let runs = runs.map(|(first, run)| ExpiredLease {
            offset: *first,
            token: run.token,
            written: run.written,
        });
        Expired {
            runs: runs.collect(),
            singles: singles.collect(),
        }
    }

    /// Messages that have waited long enough, at most so many.
    pub(crate) fn due(&self, now: Duration, most: usize) -> Vec<u64> {
        let is_due = |single: &OpenSingle| matches!(single, OpenSingle::Waits { due, .. } if *due <= now);
        let due = self.singles.iter().filter(|(_, single)| is_due(single));
        due.map(|(offset, _)| *offset).take(most).collect()
    }

    /// When something will be due.
    pub(crate) fn next_event(&self) -> Option<Duration> {
        let runs = self.runs.values().map(|run| run.deadline);
        let singles = self.singles.values().map(|single| match single {
            OpenSingle::Waits { due, .. } => *due,
            OpenSingle::Again { deadline, .. } => *deadline,
        });
        runs.chain(singles).min()
    }

    /// A message that a member had was settled, or waits, by a row of its own or by none.
    pub(crate) fn settled(&mut self, claim: Claim, offset: u64) {
        match claim {
            Claim::Run { first, token, .. } if claim.is_lone() => self.run_over(first, token),
            Claim::Run { first, token, .. } => self.left_run(first, token),
            Claim::Again { token } => self.single_over(offset, token),
        }
    }

    /// A message of a run was settled, or waits, by a row of its own.
    pub(crate) fn left_run(&mut self, first: u64, token: u64) {
        self.garbage += 1;
        let Some(run) = self.runs.get_mut(&first).filter(|run| run.token == token) else {
            return;
        };
        run.left = run.left.saturating_sub(1);
        // Nothing of it can run out any more; what is left of its rows, the next sweep removes. Every turn looks at all runs.
        if run.left == 0 && !run.is_counted {
            self.runs.remove(&first);
        }
    }

    /// A claim of all messages of a run is over.
    pub(crate) fn run_over(&mut self, first: u64, token: u64) {
        self.garbage += 1;
        if self.runs.get(&first).is_some_and(|run| run.token == token) {
            self.runs.remove(&first);
        }
    }

    /// A claim of a single message is over.
    pub(crate) fn single_over(&mut self, offset: u64, mine: u64) {
        self.garbage += 1;
        if matches!(self.singles.get(&offset), Some(OpenSingle::Again { token, .. }) if *token == mine) {
            self.singles.remove(&offset);
        }
    }

    /// Keeps what is known of deadlines that are still the same: they were seen before now.
    pub(crate) fn keep_deadlines(&mut self, before: &Memory) {
        for (first, run) in &mut self.runs {
            let known = before.runs.get(first);
            if let Some(known) = known.filter(|known| (known.token, known.written) == (run.token, run.written)) {
                run.deadline = run.deadline.min(known.deadline);
            }
        }
        for (offset, single) in &mut self.singles {
            match (single, before.singles.get(offset)) {
                (
                    OpenSingle::Waits { due, written },
                    Some(OpenSingle::Waits {
                        due: known,
                        written: before,
                    }),
                ) if written == before => {
                    *due = (*due).min(*known);
                }
                (
                    OpenSingle::Again {
                        token,
                        deadline,
                        written,
                    },
                    Some(OpenSingle::Again {
                        token: mine,
                        deadline: known,
                        written: before,
                    }),
                ) if (&*token, &*written) == (mine, before) => *deadline = (*deadline).min(*known),
                _ => {}
            }
        }
    }
}

/// When a deadline that was written as time of day is over, on the clock that never goes back.
pub(crate) fn from_wall(deadline: u64, length: u64, wall: u64, now: Duration) -> Duration {
    now + Duration::from_millis(deadline.saturating_sub(wall).min(length))
}

impl OpenSingle {
    /// A row seen at these times. `None`: it is settled.
    pub(crate) fn of(single: &Single, wall: u64, now: Duration) -> Option<OpenSingle> {
        match single {
            Single::Settled { .. } => None,
            Single::Waits { due, delay, .. } => Some(OpenSingle::Waits {
                due: from_wall(*due, *delay, wall, now),
                written: *due,
            }),
            Single::Again { lease, .. } => Some(OpenSingle::Again {
                token: lease.token,
                deadline: lease_over(lease, wall, now),
                written: lease.deadline,
            }),
        }
    }
}

/// When a lease seen at these times is over.
pub(crate) fn lease_over(lease: &Lease, wall: u64, now: Duration) -> Duration {
    from_wall(lease.deadline, lease.length, wall, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_keeps_nothing_away_for_longer() {
        let now = Duration::from_secs(50);
        let at = |wall| from_wall(1_000_000, 30_000, wall, now) - now;
        assert_eq!(at(990_000), Duration::from_secs(10));
        assert_eq!(at(2_000_000), Duration::ZERO);
        assert_eq!(at(5), Duration::from_secs(30));
    }

    #[test]
    fn a_run_of_which_all_is_settled_is_not_looked_at_any_more_unless_it_was_counted() {
        let run = |is_counted| OpenRun {
            token: 1,
            left: 2,
            is_counted,
            deadline: Duration::ZERO,
            written: 0,
        };
        let mut memory = Memory {
            runs: BTreeMap::from([(0, run(false)), (2, run(true))]),
            ..Memory::default()
        };
        memory.left_run(0, 9);
        memory.left_run(0, 1);
        assert_eq!(memory.in_flight(), 3);
        [0, 2, 2].into_iter().for_each(|first| memory.left_run(first, 1));
        // Of the second one, a message may have been settled before it was counted, and be open in truth.
        assert_eq!(memory.runs.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!(memory.in_flight(), 0);
    }
}
