//! The threads of a store: one folds, makes durable and reclaims; one syncs for commit futures. Both only speed
//! things up: without them commits fold and sync for themselves.

use std::sync::atomic::Ordering;
use std::time::Duration;

use duramen_io::wait;

use crate::allocator::Slack;
use crate::core::{Core, MaintenanceGuard};
use crate::error::{Error, Kind, Reason, Result, unless_full};
use crate::limits::PAGE_BYTES;

/// How long the background thread sleeps when nothing is asked of it.
const TICK: Duration = Duration::from_millis(100);
/// Ticks without a commit after which what is in the log is folded, so that a quiet store has a short log.
const QUIET_TICKS: u32 = 10;
/// Ticks without a commit after which a large log is folded. Many of its pairs share a page then; reading what is not
/// folded costs a second search; and programs that load a store often read it at once. Less waits longer, because
/// folding it would write a page for each.
const SOON_TICKS: u32 = 2;
const SOON_BYTES_MIN: u64 = 1 << 20;
const SOON_SHARE_OF_BASE: u64 = 16;
/// Ticks without a commit after which the data file is made shorter: not while readers wait for a load to end.
const LONG_QUIET_TICKS: u32 = 40;
/// A store that is written to now and then gets its room back, and needs it again: not more often than this.
const SHRINKING_INTERVAL: Duration = Duration::from_secs(60);
/// Or at any time, when no more than one page in so many is used.
const NEARLY_EMPTY_PARTS: u64 = 16;
/// Pause after a full disk.
const PAUSE: Duration = Duration::from_millis(200);

/// Folds whenever a generation is frozen, and when the store has been quiet for a while.
pub(crate) fn fold_loop(core: &Core) {
    let (mut quiet, mut asked) = (0, 0);
    // When the file was last shrunk.
    let mut shrunk: Option<Duration> = None;
    let mut seen = core.control().visible.0.load(Ordering::Relaxed);
    loop {
        if wait_for_work(core, &mut asked) {
            return;
        }
        let visible = core.control().visible.0.load(Ordering::Relaxed);
        quiet = if visible == seen { quiet + 1 } else { 0 };
        seen = visible;
        let round = || {
            core.bury_the_dead();
            core.sync_many_values()?;
            let Some(mut state) = hold_to_fold(core)? else {
                return Ok(());
            };
            // A process that died may have folded and not made it durable.
            let busy =
                core.region.version().generations.len() > 1 || core.is_base_ahead() || core.has_pending_checkpoint();
            if busy {
                // The fold needs no new log file, and frees one.
                unless_full(core.keep_growing_spare())?;
                core.maintain_frozen(&mut state)?;
            } else if is_time_to_tidy(quiet) {
                drop(state);
                core.maintain()?;
                state = core.hold_maintenance()?;
                if quiet >= LONG_QUIET_TICKS {
                    let now = core.platform.clock.monotonic();
                    let is_due = shrunk.is_none_or(|last| now.saturating_sub(last) >= SHRINKING_INTERVAL)
                        || is_nearly_empty(core)?;
                    if is_due {
                        shrunk = core.shrink(&mut state)?.then_some(now).or(shrunk);
                    }
                    core.give_space_back(&mut state, Slack::Least)?;
                }
                unless_full(core.leave_large_generations(&mut state))?;
            } else if quiet >= SOON_TICKS && has_much_to_fold(core) {
                drop(state);
                core.maintain()?;
            } else {
                core.reclaim(&mut state)?;
            }
            // A commit that needs one says what is missing.
            unless_full(core.keep_spare()).map(drop)
        };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(round)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => give_up_or_pause(core, error),
            Err(_) => core.poison(&Error::damaged("the folding thread met an impossible state")),
        }
    }
}

/// The right to fold. `None`: another process has it, and folds what there is.
fn hold_to_fold(core: &Core) -> Result<Option<MaintenanceGuard<'_>>> {
    if core.is_shared() {
        core.try_hold_maintenance()
    } else {
        core.hold_maintenance().map(Some)
    }
}

/// After a while of quiet, and again after twice, four times ... as long: a snapshot that was dropped since may have
/// held what can be given back now.
fn is_time_to_tidy(quiet_ticks: u32) -> bool {
    quiet_ticks.is_multiple_of(QUIET_TICKS) && (quiet_ticks / QUIET_TICKS).is_power_of_two()
}

/// Whether so little of the data file is used that rewriting it costs next to nothing.
fn is_nearly_empty(core: &Core) -> Result<bool> {
    let file_bytes = core.space.figures()?.file_pages * PAGE_BYTES as u64;
    Ok(core.space.used_bytes() < file_bytes / NEARLY_EMPTY_PARTS)
}

fn has_much_to_fold(core: &Core) -> bool {
    let share = core.space.used_bytes() / SOON_SHARE_OF_BASE;
    let figures = core.space.figures();
    figures.is_ok_and(|figures| figures.pending_bytes >= share.max(SOON_BYTES_MIN))
}

/// A full disk may get room again, a process that was stopped may go on, and damage keeps only writers out; with any
/// other error nothing is certain any more.
fn give_up_or_pause(core: &Core, error: Error) {
    if !matches!(error.kind(), Kind::Closed) {
        core.note_background_error("folding the log", &error);
    }
    match (error.kind(), error.reason()) {
        (Kind::MakeSpace, _)
        | (_, Reason::TooManySnapshots { .. } | Reason::Busy { .. } | Reason::LockTimeout { .. }) => {
            core.fold_failed.store(true, Ordering::Relaxed);
            // Who cannot be waited for here is not in the way of the next round.
            let _ = core.region.cut_memory();
            core.report_progress();
            std::thread::sleep(PAUSE);
        }
        (_, Reason::Damaged(what)) => core.stop_writing(what),
        (Kind::Closed | Kind::Reopen, _) => {}
        _ => core.poison(&error),
    }
}

/// Sleeps until there is something to fold, or for a tick; `seen` is what the word was when that was last looked for.
/// Returns whether to stop.
fn wait_for_work(core: &Core, seen: &mut u32) -> bool {
    let word = &core.control().work.0;
    wait(word, *seen, Some(TICK));
    *seen = word.load(Ordering::Acquire);
    core.work.0.lock().unwrap_or_else(|e| e.into_inner()).stop
}

/// Syncs whenever a commit future waits, and wakes those whose commits are durable.
pub(crate) fn sync_loop(core: &Core) {
    loop {
        let guard = core.work.0.lock().unwrap_or_else(|e| e.into_inner());
        let idle = |work: &mut crate::core::Work| !work.sync && !work.stop;
        let mut work = core.work.1.wait_while(guard, idle).unwrap_or_else(|e| e.into_inner());
        work.sync = false;
        let stop = work.stop;
        drop(work);
        core.sync_for_futures();
        if stop {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use duramen_io::SimDisk;

    use super::*;
    use crate::{Maintenance, Options};

    #[test]
    fn an_error_that_no_caller_hears_of_is_noted() {
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(SimDisk::new(1).platform()).expect("a store");
        let (needed, what) = (7, "a test");
        give_up_or_pause(store.core(), Reason::Full { needed, what }.into());
        let noted = store.stat().expect("figures").background_error.expect("an error");
        assert_eq!((noted.during, noted.kind), ("folding the log", Kind::MakeSpace));
        // The store goes on.
        store.map("map").expect("a map").put("key", "value").expect("a put");
    }
}
