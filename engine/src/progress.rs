//! Progress of long calls that keep folds out: the work is done in a thread of its own, and the caller's closure runs
//! in the caller's, where it may take as long as it likes, and may commit. A commit that needs a fold waits for the
//! work to end then; if the work waited for the closure too, neither would ever go on.
//!
//! Only the newest progress is kept: a closure that is slow misses some.

use std::sync::{Condvar, Mutex};

/// How far a long call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Work done so far, in pages or pairs.
    pub done: u64,
    /// Work in all, as far as it is known.
    pub total: u64,
}

/// Where the worker leaves its progress.
#[derive(Default)]
struct Latest {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    progress: Option<Progress>,
    is_over: bool,
}

impl Latest {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(|e| e.into_inner()));
        self.changed.notify_one();
    }

    /// Waits for progress that was not reported yet. `None`: there will be no more.
    fn next(&self) -> Option<Progress> {
        let guard = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let is_waiting = |state: &mut State| state.progress.is_none() && !state.is_over;
        let guard = self.changed.wait_while(guard, is_waiting);
        guard.unwrap_or_else(|e| e.into_inner()).progress.take()
    }
}

/// Says that the work is over, also when it panics.
struct Ending<'a>(&'a Latest);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.is_over = true);
    }
}

/// Does work that reports its progress, and calls `progress` with it in this thread.
pub(crate) fn with_progress<T: Send>(
    progress: &mut dyn FnMut(Progress),
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> T + Send,
) -> T {
    let latest = Latest::default();
    let work = Mutex::new(Some(work));
    let take = || {
        let work = work.lock().unwrap_or_else(|e| e.into_inner()).take();
        work.expect("work is done once")
    };
    let done = std::thread::scope(|scope| {
        let run = || {
            let _ending = Ending(&latest);
            take()(&mut |now| latest.change(|state| state.progress = Some(now)))
        };
        let thread = std::thread::Builder::new().name("duramen-work".into());
        let worker = thread.spawn_scoped(scope, run).ok()?;
        while let Some(now) = latest.next() {
            progress(now);
        }
        Some(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    // Where there are no threads to be had, the work is done here, and waits for the closure.
    done.unwrap_or_else(|| take()(progress))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_progress_is_seen_and_the_result_returned() {
        let mut seen = Vec::new();
        let result = with_progress(&mut |now| seen.push(now.done), |report| {
            (1..=1000).for_each(|done| report(Progress { done, total: 1000 }));
            7
        });
        assert_eq!((result, seen.last()), (7, Some(&1000)));
        assert!(seen.is_sorted());
    }

    #[test]
    fn work_goes_on_while_the_closure_waits_for_it_to_be_over() {
        let over = (Mutex::new(false), Condvar::new());
        let wait = || {
            let guard = over.0.lock().unwrap();
            drop(over.1.wait_while(guard, |over| !*over).unwrap());
        };
        with_progress(&mut |_| wait(), |report| {
            report(Progress { done: 1, total: 2 });
            *over.0.lock().unwrap() = true;
            over.1.notify_all();
        });
    }

    #[test]
    #[should_panic(expected = "the work panics")]
    fn panic_of_the_work_is_the_callers() {
        with_progress(&mut |_| (), |_| panic!("the work panics"));
    }
}
