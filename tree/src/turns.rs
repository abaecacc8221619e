//! Combining: one thread does the changes of several in one transaction. (Flat combining: Hendler, Incze, Shavit and Tzafrir,
//! 2010.)
//!
//! The simple version: each call is a transaction of its own, which waits until no other one writes. Then many threads make many
//! small commits, one after the other, and each of them sleeps and is woken in between. So a thread that finds another one at work
//! queues its change and waits. The thread at work does what is queued together with its own, each change with a revision of its
//! own, in one commit.
//!
//! Waking a sleeping thread is a call of the system, and the thread at work has the next changes to do. So it wakes one of those that it
//! has answered, and that one wakes the others.
//!
//! A call returns after the commit with its change. A change that is refused leaves nothing behind, and the others are done. When
//! the transaction itself fails, each thread does its change alone: so none gets the error of another one. Where the commit may have
//! been made, all get its error instead: none is done twice.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// Most changes of one transaction: it bounds how long the first of them waits.
const TOGETHER_MAX: usize = 256;
/// Transactions that a thread does for others before another thread goes on.
const ROUNDS_MAX: usize = 4;
/// Looks for an answer before a thread sleeps: waking it costs more than most changes.
const LOOKS: u32 = 3;

/// The line of the threads of a process that make changes `C` and get answers `A`.
pub(crate) struct Turns<C, A> {
    line: Mutex<Line<C, A>>,
}

struct Line<C, A> {
    /// Whether a thread is at work.
    is_led: bool,
    waiting: VecDeque<Arc<Queued<C, A>>>,
}

struct Queued<C, A> {
    progress: Mutex<Progress<C, A>>,
    thread: Thread,
    /// Threads that have their answers too, and that this one wakes.
    to_wake: Mutex<Vec<Thread>>,
}

enum Progress<C, A> {
    Waits(C),
    /// Another thread has it.
    Taken,
    /// The thread itself goes on with the line.
    Leads(C),
    Done(Outcome<C, A>),
}

/// The answer to a change, or the change, which its thread does alone then.
pub(crate) type Outcome<C, A> = Result<A, C>;

/// Who waits for the answer to a change.
type Asking<C, A> = Option<Arc<Queued<C, A>>>;

impl<C, A> Default for Turns<C, A> {
    fn default() -> Turns<C, A> {
        let line = Line {
            is_led: false,
            waiting: VecDeque::new(),
        };
        Turns { line: Mutex::new(line) }
    }
}

impl<C, A> fmt::Debug for Turns<C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = locked(&self.line).waiting.len();
        f.debug_struct("Turns").field("waiting", &waiting).finish()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C, A> Turns<C, A> {
    /// Does a change in its turn: `together` does several in one transaction, and returns an outcome for each, or nothing when each
    /// must be done alone.
    pub(crate) fn take(&self, change: C, together: &dyn Fn(&mut [C]) -> Option<Vec<A>>) -> Outcome<C, A> {
        let mut line = locked(&self.line);
        if !line.is_led {
            line.is_led = true;
            drop(line);
            return self.lead(change, together);
        }
        let queued = Arc::new(Queued {
            progress: Mutex::new(Progress::Waits(change)),
            thread: thread::current(),
            to_wake: Mutex::default(),
        });
        line.waiting.push_back(queued.clone());
        drop(line);
        let mut looks = 0;
        loop {
            match queued.told() {
                Some(Progress::Done(outcome)) => {
                    let answered = mem::take(&mut *locked(&queued.to_wake));
                    answered.iter().for_each(Thread::unpark);
                    return outcome;
                }
                Some(Progress::Leads(change)) => return self.lead(change, together),
                _ if looks < LOOKS => {
                    looks += 1;
                    thread::yield_now();
                }
                _ => thread::park(),
            }
        }
    }

    /// Does a change of this thread with those of others, and some of those that are queued meanwhile.
    fn lead(&self, change: C, together: &dyn Fn(&mut [C]) -> Option<Vec<A>>) -> Outcome<C, A> {
        let _leading = Leading(self);
        let mut round = Round {
            changes: vec![change],
            asking: vec![None],
        };
        let mut own = None;
        for _ in 0..ROUNDS_MAX {
            self.take_waiting(&mut round);
            if round.changes.is_empty() {
                break;
            }
            let answers = together(&mut round.changes).unwrap_or_default();
            own = round.end(answers).or(own);
        }
        own.expect("the first round has the change of the thread itself")
    }

    /// Takes queued changes, as many as there is room for.
    fn take_waiting(&self, round: &mut Round<C, A>) {
        let mut line = locked(&self.line);
        while round.changes.len() < TOGETHER_MAX
            && let Some(queued) = line.waiting.pop_front()
        {
            let progress = mem::replace(&mut *locked(&queued.progress), Progress::Taken);
            let Progress::Waits(change) = progress else {
                unreachable!("a change waits until it is taken");
            };
            round.changes.push(change);
            round.asking.push(Some(queued));
        }
    }
}

/// Changes that are done together, and who waits for each.
struct Round<C, A> {
    changes: Vec<C>,
    asking: Vec<Asking<C, A>>,
}

impl<C, A> Round<C, A> {
    /// Tells all threads what became of their changes; without an answer they get the change back. Returns the outcome of the
    /// change of the thread itself.
    fn end(&mut self, answers: Vec<A>) -> Option<Outcome<C, A>> {
        let mut answers = answers.into_iter();
        let (mut own, mut first, mut others) = (None, None, Vec::new());
        for (change, asking) in self.changes.drain(..).zip(self.asking.drain(..)) {
            let outcome = answers.next().ok_or(change);
            match asking {
                Some(queued) if first.is_none() => first = Some((queued, outcome)),
                Some(queued) => {
                    *locked(&queued.progress) = Progress::Done(outcome);
                    others.push(queued.thread.clone());
                }
                None => own = Some(outcome),
            }
        }
        if let Some((first, outcome)) = first {
            *locked(&first.to_wake) = others;
            first.tell(Progress::Done(outcome));
        }
        own
    }
}

impl<C, A> Drop for Round<C, A> {
    fn drop(&mut self) {
        // After a panic no thread may wait for what does not come.
        self.end(Vec::new());
    }
}

impl<C, A> Queued<C, A> {
    /// What another thread has told this one; `None`: nothing yet.
    fn told(&self) -> Option<Progress<C, A>> {
        let mut progress = locked(&self.progress);
        match *progress {
            Progress::Waits(_) | Progress::Taken => None,
            Progress::Leads(_) | Progress::Done(_) => Some(mem::replace(&mut *progress, Progress::Taken)),
        }
    }

    fn tell(&self, told: Progress<C, A>) {
        *locked(&self.progress) = told;
        self.thread.unpark();
    }
}

/// Lets the next thread go on when it is dropped, also after a panic.
struct Leading<'t, C, A>(&'t Turns<C, A>);

impl<C, A> Drop for Leading<'_, C, A> {
    fn drop(&mut self) {
        let mut line = locked(&self.0.line);
        let Some(next) = line.waiting.pop_front() else {
            line.is_led = false;
            return;
        };
        drop(line);
        let progress = mem::replace(&mut *locked(&next.progress), Progress::Taken);
        if let Progress::Waits(change) = progress {
            next.tell(Progress::Leads(change));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn every_change_is_done_once_and_gets_its_own_answer() {
        let turns = Turns::<u64, u64>::default();
        let (sum, busy, together_most) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let together = |changes: &mut [u64]| {
            assert!(!busy.swap(true, Ordering::SeqCst), "two threads are at work");
            together_most.fetch_max(changes.len() as u64, Ordering::Relaxed);
            thread::yield_now();
            let has_bad = changes.iter().any(|change| change % 1_000 == 7);
            let answers = (!has_bad || changes.len() == 1).then(|| {
                sum.fetch_add(changes.iter().sum(), Ordering::Relaxed);
                changes.iter().map(|change| change * 2).collect()
            });
            busy.store(false, Ordering::SeqCst);
            answers
        };
        thread::scope(|scope| {
            for thread in 0..16 {
                let (turns, together) = (&turns, &together);
                scope.spawn(move || {
                    for number in 0..500 {
                        let change = thread * 1_000 + number;
                        match turns.take(change, together) {
                            Ok(answer) => assert_eq!(answer, change * 2),
                            // It was beside a bad one, or is one: now it is alone.
                            Err(change) => while turns.take(change, together).is_err() {},
                        }
                    }
                });
            }
        });
        let all = (0..16).flat_map(|thread| (0..500).map(move |number| thread * 1_000 + number));
        assert_eq!(sum.load(Ordering::Relaxed), all.sum::<u64>());
        assert!(!locked(&turns.line).is_led);
        println!("at most {together_most:?} together");
    }

    #[test]
    fn a_panic_of_the_thread_at_work_leaves_no_other_thread_waiting() {
        let turns = Turns::<u64, u64>::default();
        let answered = |changes: &mut [u64]| Some(changes.to_vec());
        let is_led = AtomicBool::new(false);
        thread::scope(|scope| {
            let (turns, is_led) = (&turns, &is_led);
            let leader = scope.spawn(move || {
                let rounds = AtomicU64::new(0);
                let together = |changes: &mut [u64]| {
                    is_led.store(true, Ordering::SeqCst);
                    if rounds.fetch_add(1, Ordering::SeqCst) > 0 {
                        panic!("a test");
                    }
                    while locked(&turns.line).waiting.len() < 2 {
                        thread::yield_now();
                    }
                    Some(changes.to_vec())
                };
                turns.take(1, &together)
            });
            while !is_led.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let others = [2, 3].map(|change| scope.spawn(move || turns.take(change, &answered)));
            assert!(leader.join().is_err());
            for (other, change) in others.into_iter().zip([2, 3]) {
                assert_eq!(other.join().unwrap(), Err(change));
            }
        });
        assert_eq!(turns.take(4, &answered), Ok(4));
    }
}
