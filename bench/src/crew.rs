//! The loop that every timed operation runs in, on one thread or many.
//!
//! Closed loop: the next operation begins when the last one ended, and the worker reads the clock once per operation.
//! Open loop (`--rate`): operations are due at fixed times, whatever the store does. An operation delayed by a stall is
//! charged from its due time, so a stall counts for every operation that would have waited (Tene, "coordinated
//! omission"). A shift ends when its operations are done, when its time is over, or at the limit of the cell. Only the
//! limit makes the measurement incomplete; it is then shown as "stopped at n of N".

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::measure::{Done, Latencies, Timeline, nanos, now_nanos, thread_cpu_nanos};

/// How long and how fast a run may work.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time at which the cell must stop, on the monotonic clock.
    pub limit: u64,
    /// Maximum seconds of one measured part, if the user asked for one.
    pub seconds: Option<f64>,
    /// Operations per second over all workers, when the loop is open.
    pub rate: Option<f64>,
}

impl Pace {
    /// Whether the limit of the cell has passed.
    pub fn is_over(&self) -> bool {
        now_nanos() >= self.limit
    }

    /// Returns a shift of one worker among `workers` that does all its work, because later work builds on it. Only the
    /// limit of the cell ends it early.
    pub fn whole_shift(&self, workers: usize) -> Shift {
        let whole = Pace { seconds: None, ..*self };
        whole.shift(workers, None)
    }

    /// Returns a shift of one worker among `workers`. It ends after the seconds that the user asked for, or else after
    /// `seconds` if given.
    pub fn shift(&self, workers: usize, seconds: Option<f64>) -> Shift {
        let start = now_nanos();
        let seconds = self.seconds.or(seconds);
        let end = seconds.map_or(u64::MAX, |seconds| {
            start.saturating_add(nanos(Duration::from_secs_f64(seconds)))
        });
        Shift {
            start,
            end,
            limit: self.limit,
            interval: self.rate.map(|rate| workers as f64 * 1e9 / rate),
        }
    }
}

/// The working time of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Shift {
    start: u64,
    end: u64,
    limit: u64,
    interval: Option<f64>,
}

/// The work of one worker.
#[derive(Default)]
pub struct Worked {
    /// Operations done.
    pub operations: u64,
    /// Number of planned operations, if the limit of the cell stopped the worker first; [`u64::MAX`] when the plan was
    /// to work for a time.
    pub stopped_at_of: Option<u64>,
    /// Processor time.
    pub cpu_nanos: u64,
    /// Elapsed time.
    pub nanos: u64,
    /// Times of the operations.
    pub latencies: Latencies,
    /// Number of operations over time.
    pub timeline: Timeline,
}

impl Shift {
    /// Whether the shift is over.
    pub fn is_over(&self) -> bool {
        now_nanos() >= self.end.min(self.limit)
    }

    /// Returns the remaining time.
    pub fn nanos_left(&self) -> u64 {
        self.end.min(self.limit).saturating_sub(now_nanos())
    }

    /// Whether the limit of the cell ended the shift.
    pub fn is_at_limit(&self) -> bool {
        now_nanos() >= self.limit
    }

    /// Returns this shift without an end, for work done after the clock.
    pub fn without_end(self) -> Shift {
        Shift {
            end: u64::MAX,
            limit: u64::MAX,
            ..self
        }
    }

    /// Does `step(0)`, `step(1)`, .. until `planned` steps are done or time is over.
    #[inline]
    pub fn work(&self, planned: u64, mut step: impl FnMut(u64) -> Result<()>) -> Result<Worked> {
        self.work_while(planned, &AtomicBool::new(true), |at| step(at).map(|()| 1))
    }

    /// Works like [`Shift::work`] while `goes_on` is true. Each step returns its number of operations.
    pub fn work_while(
        &self,
        planned: u64,
        goes_on: &AtomicBool,
        mut step: impl FnMut(u64) -> Result<u64>,
    ) -> Result<Worked> {
        let cpu_before = thread_cpu_nanos();
        let mut worked = Worked {
            timeline: Timeline::starting(self.start),
            ..Worked::default()
        };
        let stop = self.end.min(self.limit);
        let (mut last, mut steps, mut largest) = (now_nanos(), 0, 1);
        for number in 0..planned {
            let begun = match self.interval {
                None => last,
                Some(interval) => wait_until(self.start + (number as f64 * interval) as u64, stop),
            };
            if begun.max(last) >= stop || !goes_on.load(Ordering::Relaxed) {
                worked.charge_waiting(begun, last, stop, self.interval);
                break;
            }
            let operations = step(number)?;
            steps += 1;
            largest = operations.max(largest);
            last = now_nanos();
            worked.latencies.record(last.saturating_sub(begun));
            worked.timeline.count(last, operations);
            worked.operations += operations;
        }
        if last >= self.limit && steps < planned {
            worked.stopped_at_of = Some(planned.saturating_mul(largest));
        }
        worked.nanos = now_nanos() - self.start;
        worked.cpu_nanos = thread_cpu_nanos() - cpu_before;
        Ok(worked)
    }
}

impl Worked {
    /// Charges operations that were due before the end and never began: they have waited at least until now.
    fn charge_waiting(&mut self, first_due: u64, now: u64, stop: u64, interval: Option<f64>) {
        let Some(interval) = interval else { return };
        let mut due = first_due as f64;
        while due < now.min(stop) as f64 {
            self.latencies.record(now - due as u64);
            due += interval;
        }
    }
}

/// Waits until an operation is due, and returns its due time. Sleeps while that is far away, then spins: a late wake-up
/// would be charged to the store.
fn wait_until(due: u64, stop: u64) -> u64 {
    const SPIN_NANOS: u64 = 200_000;
    loop {
        let now = now_nanos();
        if now >= due || now >= stop {
            return due;
        }
        if due - now > SPIN_NANOS {
            std::thread::sleep(Duration::from_nanos(due.min(stop) - now - SPIN_NANOS));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Starts `workers` threads together, and returns the work of each.
pub fn crew(workers: usize, work: impl Fn(usize) -> Result<Worked> + Sync) -> Result<Vec<Worked>> {
    let start = Barrier::new(workers);
    std::thread::scope(|scope| {
        let spawn = |worker| {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(worker)
            })
        };
        let threads: Vec<_> = (0..workers).map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Worked>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked")))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Returns the work of the thread that measures. Its processor time is already counted elsewhere.
pub fn alone(worked: Worked) -> Done {
    together(vec![Worked { cpu_nanos: 0, ..worked }])
}

/// Combines the work of a crew.
pub fn together(crew: Vec<Worked>) -> Done {
    let mut done = Done::default();
    let (mut latencies, mut timeline) = (Latencies::default(), Timeline::default());
    let planned = crew.iter().fold(0u64, |planned, worked| {
        planned.saturating_add(worked.stopped_at_of.unwrap_or(worked.operations))
    });
    for worked in &crew {
        done.operations += worked.operations;
        done.workers_cpu_nanos += worked.cpu_nanos;
        latencies.merge(&worked.latencies);
        timeline.merge(&worked.timeline);
    }
    done.stopped_at_of = crew
        .iter()
        .any(|worked| worked.stopped_at_of.is_some())
        .then_some(planned);
    done.latencies = Some(latencies);
    done.timeline = Some(timeline);
    done
}

/// Puts work together that was done in one part after the other.
pub fn in_turn(parts: Vec<Worked>) -> Done {
    let nanos = parts.iter().map(|worked| worked.nanos).sum();
    Done {
        wall_nanos: Some(nanos),
        // The parts did not begin together.
        timeline: None,
        ..together(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> Pace {
        Pace {
            limit: u64::MAX,
            seconds: None,
            rate: None,
        }
    }

    #[test]
    fn closed_loop_does_all_operations_and_times_each() -> Result<()> {
        let worked = pace().shift(1, None).work(1000, |_| Ok(()))?;
        assert_eq!((worked.operations, worked.latencies.count()), (1000, 1000));
        assert_eq!(worked.stopped_at_of, None);
        Ok(())
    }

    #[test]
    fn limit_of_the_cell_shows_how_much_was_left_and_seconds_do_not() -> Result<()> {
        let slow = |_| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        let soon = now_nanos() + 30_000_000;
        let limited = Pace { limit: soon, ..pace() };
        let worked = limited.shift(1, None).work(1_000_000, slow)?;
        assert!(worked.operations > 0 && worked.operations < 1000);
        assert_eq!(worked.stopped_at_of, Some(1_000_000));
        let timed = Pace {
            seconds: Some(0.03),
            ..pace()
        };
        let worked = timed.shift(1, None).work(1_000_000, slow)?;
        assert!(worked.operations > 0 && worked.stopped_at_of.is_none());
        Ok(())
    }

    #[test]
    fn limit_of_the_cell_counts_steps_and_not_the_operations_in_them() -> Result<()> {
        let limited = Pace {
            limit: now_nanos() + 30_000_000,
            ..pace()
        };
        let step = |_| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(1_000)
        };
        let worked = limited.shift(1, None).work_while(500, &true.into(), step)?;
        assert!(worked.operations > 500 && worked.operations < 500_000);
        assert_eq!(worked.stopped_at_of, Some(500_000));
        Ok(())
    }

    #[test]
    fn open_loop_charges_a_stall_to_everybody_who_would_have_waited() -> Result<()> {
        // One stall of 50 ms makes one operation slow in a closed loop, and fifty at 1,000 a second.
        let stall = |at| {
            if at == 10 {
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        };
        let closed = pace().shift(1, None).work(100, stall)?;
        let open = Pace {
            rate: Some(1000.0),
            ..pace()
        };
        let open = open.shift(1, None).work(100, stall)?;
        let slow = |worked: &Worked| worked.latencies.count_above(10_000_000);
        assert_eq!(slow(&closed), 1);
        assert!(slow(&open) >= 35, "{}", slow(&open));
        Ok(())
    }

    #[test]
    fn crew_adds_up_what_its_workers_did() -> Result<()> {
        let pace = pace();
        let done = together(crew(4, |_| pace.shift(4, None).work(250, |_| Ok(())))?);
        assert_eq!(done.operations, 1000);
        assert_eq!(done.latencies.expect("of each").count(), 1000);
        assert_eq!(done.timeline.expect("of each").total(), 1000);
        assert!(crew(2, |_| Err(anyhow!("lost"))).is_err());
        Ok(())
    }
}
