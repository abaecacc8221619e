//! Turns: a thread that commits again and again lets others run before the kernel makes it.
//!
//! Most of the time of a commit is spent under the commit lock. Where a program has more busy threads than processors,
//! the kernel stops each of them every few milliseconds, and one that commits most likely inside the lock: whoever wants
//! to commit then sleeps until that thread runs again, and all together they get little more of the processors than one
//! thread (the convoy of Blasgen, Gray, Mitoma and Price, "The convoy phenomenon", 1979). So where threads have waited for
//! each other lately, each ends its turn by itself, outside of the lock, before its time is up. If a processor is idle,
//! that costs one call of the kernel per turn. Where nobody waits, nothing happens.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// A turn: less than what kernels let a thread run at a time.
const TURN: Duration = Duration::from_millis(1);
/// A thread that did not end its turn for so long was not running: its turn is a new one.
const GONE: Duration = Duration::from_millis(3);
/// The clock is asked after commits that cost so much.
const CHECKED_COST: u64 = 16;
/// So many bytes of log cost as much as a commit.
const BYTES_PER_COST: u64 = 512;
/// For so many turns a thread remembers that somebody waited for it.
const REMEMBERED_TURNS: u32 = 1000;

thread_local! {
    static TURN_OF_THIS_THREAD: RefCell<Turn> = const { RefCell::new(Turn { began: None, cost: 0, remembered: 0 }) };
}

/// A thread's commits since it last let others run.
#[derive(Debug, Default)]
struct Turn {
    began: Option<Instant>,
    /// Of the commits since the clock was asked.
    cost: u64,
    /// Turns until it is forgotten that somebody waited.
    remembered: u32,
}

/// Notes a commit of `bytes` of log, for which somebody waited or not. To be called outside of the commit lock.
pub(crate) fn committed(bytes: u64, is_awaited: bool) {
    // A thread that is ending has no turns.
    let _ = TURN_OF_THIS_THREAD.try_with(|turn| {
        let mut turn = turn.borrow_mut();
        if turn.ends_with(bytes, is_awaited, Instant::now) {
            std::thread::yield_now();
            turn.began = Some(Instant::now());
        }
    });
}

impl Turn {
    /// Whether others are to run after this commit.
    fn ends_with(&mut self, bytes: u64, is_awaited: bool, now: impl Fn() -> Instant) -> bool {
        if is_awaited {
            self.remembered = REMEMBERED_TURNS;
        }
        if self.remembered == 0 {
            return false;
        }
        self.cost += 1 + bytes / BYTES_PER_COST;
        if self.cost < CHECKED_COST {
            return false;
        }
        self.cost = 0;
        let now = now();
        let ran = now - *self.began.get_or_insert(now);
        if ran < TURN {
            return false;
        }
        self.began = Some(now);
        self.remembered -= 1;
        ran < GONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of turns among commits of 100 bytes that come every ten microseconds.
    fn ends(turn: &mut Turn, commits: u32, is_awaited: impl Fn(u32) -> bool) -> usize {
        let start = Instant::now();
        let now = |number| start + Duration::from_micros(10) * number;
        (0..commits)
            .filter(|&number| turn.ends_with(100, is_awaited(number), || now(number)))
            .count()
    }

    #[test]
    fn turns_end_every_millisecond_but_only_where_somebody_waited() {
        assert_eq!(ends(&mut Turn::default(), 100_000, |_| false), 0);
        let all = ends(&mut Turn::default(), 100_000, |number| number % 1000 == 0);
        assert!((850..=1000).contains(&all), "{all}");
    }

    #[test]
    fn waiting_is_forgotten_after_a_while() {
        let all = ends(&mut Turn::default(), 1_000_000, |number| number == 0);
        assert_eq!(all, REMEMBERED_TURNS as usize);
    }

    #[test]
    fn long_commits_end_a_turn_sooner_and_a_pause_begins_a_new_one() {
        let mut turn = Turn::default();
        let start = Instant::now();
        let after = |micros| move || start + Duration::from_micros(micros);
        assert!(!turn.ends_with(100_000, true, after(0)));
        assert!(!turn.ends_with(100_000, false, after(900)));
        assert!(turn.ends_with(100_000, false, after(1_800)));
        assert!(!turn.ends_with(100_000, false, after(20_000)), "it was not running");
        assert!(!turn.ends_with(100_000, false, after(20_900)));
        assert!(turn.ends_with(100_000, false, after(21_100)));
    }
}
