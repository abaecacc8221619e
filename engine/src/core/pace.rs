//! Pacing: when commits come faster than folds move them into the base, each commit is slowed down in proportion, so
//! that the log does not run full and stop everybody for as long as a fold takes.
//!
//! The simple version would let commits run until no generation is free, and then wait for the fold. This one foresees
//! that: from how far the fold has come, and from what earlier ones took, it estimates the time until the generations
//! that are being folded are free again, syncs included; from what is left of the log, how many bytes may come in that
//! time. The quotient is the price of a byte, in time. Commits that come more slowly than that do not pause; the others
//! do (a token bucket), all in proportion to their bytes. With no fold going on a commit pays one load.
//!
//! The price aims at half of the log (`LogRoom::planned`): then the next fold has as much to do as this one, and the
//! rate does not change from fold to fold. A fifth of what is left is for a fold that takes longer than was foreseen.
//! The price is set again every few milliseconds while the fold goes on, and when a generation is full. It lies in the
//! shared region: whichever process folds, the commits of all pay. Commits that came more slowly than they might have
//! may make up for that, up to a quarter of the room.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::region::{PaceWords, Region};

/// Shorter pauses are left to the commits that follow: a sleep wakes up late by a good part of this.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// What a commit pauses at most for bytes of others, and how many others of its own size it waits for beyond that: a
/// put must not pause for a batch, but batches of several threads must wait for each other.
const PAUSE_FOR_OTHERS_MAX: Duration = Duration::from_millis(4);
const OTHERS_MAX: u64 = 16;
/// The most for which a single commit pays, and which all together can be behind: an estimate may be wrong.
const DEBT_MAX: Duration = Duration::from_secs(1);
/// Time that was not used, and may be made up for, at least: pauses end late.
const CREDIT_MIN: Duration = Duration::from_millis(2);
/// While a fold goes on and commits come more slowly than they may, so much of the log can be filled at once: one part
/// in this many.
const BURST_PARTS: u32 = 4;
/// With less room than this, no byte gets dearer.
const ROOM_BYTES_MIN: u64 = 64 << 10;
/// Of so many parts of a merge one is enough to tell what the others take.
const TRUSTED_PARTS: f64 = 10.0;
/// Folds of less say nothing about what a byte costs.
const MEASURED_BYTES_MIN: u64 = 256 << 10;
/// In so many parts it is noted how full a generation gets.
const FILL_PARTS: u64 = 16;

/// Bytes that the log still takes while a fold goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRoom {
    /// Until half of the log is filled with what this fold does not take.
    pub(crate) planned: u64,
    /// Until commits must wait for the fold.
    pub(crate) left: u64,
}

/// See the module. All orderings are relaxed: the numbers only steer speed.
#[derive(Debug)]
pub(crate) struct Pace {
    region: Arc<Region>,
    fold: Mutex<Fold>,
}

/// The fold that goes on, and what earlier ones took.
#[derive(Debug, Default)]
struct Fold {
    stage: Stage,
    /// Number of the newest generation that it takes.
    newest: u32,
    /// Bytes of log that it takes.
    bytes: u64,
    /// What earlier folds took until the new tree was written, and the KiB of log that they had; the last one counts as
    /// much as all before it. Zero: there were none.
    merge_nanos: u64,
    merge_kib: u64,
    /// What comes after that: making the tree durable and freeing the generations.
    finish_time: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// No fold goes on.
    #[default]
    Idle,
    /// The log is synced first.
    Begun,
    /// Since then, and the share that is done, from 0 to 1.
    Merging(Duration, f64),
    /// The tree is written since then.
    Finishing(Duration),
}

impl Fold {
    /// What its merge takes at the speed of earlier folds, if there were any.
    fn expected(&self) -> Option<Duration> {
        let nanos = (self.bytes / 1024 * self.merge_nanos).checked_div(self.merge_kib)?;
        Some(Duration::from_nanos(nanos))
    }

    /// Time until the generations that it takes are free.
    fn left(&self, now: Duration) -> Duration {
        match self.stage {
            Stage::Idle => Duration::ZERO,
            Stage::Begun => self.expected().unwrap_or_default() + self.finish_time,
            Stage::Merging(began, done) => {
                // Of the whole merge: what earlier folds took, and, once some of it is done, what this one takes.
                // Others may have kept the processors from one, and not from the other.
                let own = now.saturating_sub(began).div_f64(done.max(0.01));
                let trust = (done * TRUSTED_PARTS).min(1.0);
                let all = match self.expected() {
                    Some(expected) => own.mul_f64(trust) + expected.mul_f64(1.0 - trust),
                    None => own,
                };
                all.mul_f64(1.0 - done) + self.finish_time
            }
            Stage::Finishing(since) => {
                let elapsed = now.saturating_sub(since);
                // A fold that takes longer than expected is expected to take half as long again.
                self.finish_time.saturating_sub(elapsed).max(elapsed / 2)
            }
        }
    }
}

impl Pace {
    /// That of a store, which all who share the store keep to. The fold that goes on is one of this process, or of
    /// another.
    pub(crate) fn new(region: Arc<Region>) -> Pace {
        Pace {
            region,
            fold: Mutex::default(),
        }
    }

    #[inline]
    fn words(&self) -> &PaceWords {
        &self.region.control().pace.0
    }

    fn fold(&self) -> std::sync::MutexGuard<'_, Fold> {
        self.fold.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A fold of so many bytes of log begins, from the generation of number `oldest` up to that of number `newest`.
    pub(crate) fn begins(&self, oldest: u32, newest: u32, bytes: u64, now: Duration) {
        self.words().oldest.store(u64::from(oldest), Ordering::Relaxed);
        // What came before it was free, so nothing of that time is left to be used.
        self.words().next.fetch_max(nanos(now), Ordering::Relaxed);
        let mut fold = self.fold();
        (fold.newest, fold.bytes) = (newest, bytes);
        fold.stage = Stage::Begun;
    }

    /// The log is synced, and the new tree is begun.
    pub(crate) fn merges(&self, now: Duration) {
        self.fold().stage = Stage::Merging(now, 0.0);
    }

    /// Number of the newest generation that the fold takes which goes on.
    pub(crate) fn newest_folding(&self) -> Option<u32> {
        let fold = self.fold();
        (!matches!(fold.stage, Stage::Idle)).then_some(fold.newest)
    }

    /// Number of the oldest one, whichever process folds.
    pub(crate) fn oldest_folding(&self) -> Option<u32> {
        self.is_on().then(|| self.words().oldest.load(Ordering::Relaxed) as u32)
    }

    /// `done` of `all` operations of the fold are in the new tree.
    pub(crate) fn merged(&self, done: u64, all: u64) {
        if let Stage::Merging(_, share) = &mut self.fold().stage {
            *share = (done as f64 / all.max(1) as f64).min(1.0);
        }
    }

    /// The new tree is written.
    pub(crate) fn finishes(&self, now: Duration) {
        let mut fold = self.fold();
        if let Stage::Merging(began, _) = fold.stage
            && fold.bytes >= MEASURED_BYTES_MIN
        {
            let took = now.saturating_sub(began);
            fold.merge_nanos = fold.merge_nanos / 2 + nanos(took);
            fold.merge_kib = fold.merge_kib / 2 + fold.bytes / 1024;
        }
        fold.stage = Stage::Finishing(now);
    }

    /// The fold is over, or has failed: commits pay nothing.
    pub(crate) fn ends(&self, now: Duration) {
        let mut fold = self.fold();
        if let Stage::Finishing(since) = fold.stage
            && fold.bytes >= MEASURED_BYTES_MIN
        {
            let took = now.saturating_sub(since);
            let is_first = fold.finish_time.is_zero();
            fold.finish_time = if is_first { took } else { (fold.finish_time + took) / 2 };
        }
        fold.stage = Stage::Idle;
        self.costs_nothing();
    }

    /// No process folds: the last one is done, or dead.
    pub(crate) fn costs_nothing(&self) {
        self.words().price.store(0, Ordering::Relaxed);
    }

    /// A generation was full when its log of `capacity` bytes held `bytes`.
    pub(crate) fn filled(&self, bytes: u64, capacity: u64) {
        let parts = (bytes * FILL_PARTS).checked_div(capacity).unwrap_or(FILL_PARTS);
        self.words().fill.store(parts.clamp(1, FILL_PARTS), Ordering::Relaxed);
    }

    /// Bytes that a generation of this capacity is going to hold, as far as the last one tells.
    pub(crate) fn usable(&self, capacity: u64) -> u64 {
        match self.words().fill.load(Ordering::Relaxed) {
            // None was full yet.
            0 => capacity / FILL_PARTS * FILL_PARTS,
            parts => capacity / FILL_PARTS * parts,
        }
    }

    /// Sets the price to what the log has left. To be called now and then while the fold goes on.
    pub(crate) fn set_price(&self, now: Duration, room: LogRoom) {
        let fold = self.fold();
        if matches!(fold.stage, Stage::Idle) {
            // It ended since the room was looked at.
            return;
        }
        // Beyond what was planned, half of what is left: commits get slower and slower, but do not meet a wall.
        let room = room.planned.min(room.left / 5 * 4).max(room.left / 2);
        let left = fold.left(now);
        // At least something: this tells too that a fold goes on.
        let price = (nanos(left) / (room.max(ROOM_BYTES_MIN) / 1024)).max(1);
        let credit = match fold.stage {
            // The price will hardly be set again before the fold ends.
            Stage::Finishing(_) => CREDIT_MIN,
            _ => CREDIT_MIN.max(left / BURST_PARTS),
        };
        self.words().credit.store(nanos(credit), Ordering::Relaxed);
        self.words().price.store(price, Ordering::Relaxed);
    }

    /// Whether bytes cost anything: a fold goes on.
    pub(crate) fn is_on(&self) -> bool {
        self.words().price.load(Ordering::Relaxed) > 0
    }

    /// The pause of a commit of `bytes`.
    pub(crate) fn pause(&self, bytes: u64, now: impl Fn() -> Duration) -> Option<Duration> {
        let words = self.words();
        let price = words.price.load(Ordering::Relaxed);
        if price == 0 {
            return None;
        }
        let (now, most) = (nanos(now()), nanos(DEBT_MAX));
        let share = (bytes.saturating_mul(price) / 1024).min(most);
        let credit = words.credit.load(Ordering::Relaxed);
        let mut from = now;
        let _ = words.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            from = next.clamp(now.saturating_sub(credit), now + most);
            Some(from + share)
        });
        let for_others = nanos(PAUSE_FOR_OTHERS_MAX) + share * OTHERS_MAX;
        let due = from.min(now + for_others) + share;
        let pause = Duration::from_nanos(due.saturating_sub(now));
        (pause >= PAUSE_MIN).then_some(pause)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pace() -> Pace {
        Pace::new(Arc::new(Region::private().expect("memory")))
    }

    fn second(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn room(mebibytes: u64) -> LogRoom {
        LogRoom {
            planned: mebibytes * MIB,
            left: mebibytes * MIB * 5 / 4,
        }
    }

    /// A pace that has seen a fold of 64 MiB take two seconds, and one for the syncs.
    fn measured() -> Pace {
        let pace = pace();
        pace.begins(1, 1, 64 * MIB, second(0.0));
        pace.merges(second(0.0));
        pace.set_price(second(0.0), room(128));
        pace.finishes(second(2.0));
        pace.set_price(second(2.0), room(128));
        pace.ends(second(3.0));
        pace
    }

    /// How long so many MiB of commits of 4 KiB take, when nothing else slows them down, and all time before was used.
    fn time_for(pace: &Pace, mebibytes: u64, begin: Duration) -> Duration {
        pace.words().next.store(nanos(begin), Ordering::Relaxed);
        let mut now = begin;
        for _ in 0..mebibytes * 256 {
            now += pace.pause(4096, || now).unwrap_or_default();
        }
        now - begin
    }

    fn is_about(time: Duration, seconds: f64) -> bool {
        (time.as_secs_f64() - seconds).abs() < seconds / 50.0 + 0.01
    }

    #[test]
    fn price_that_is_set_after_the_fold_has_ended_does_not_stay() {
        let pace = pace();
        pace.begins(1, 1, 64 * MIB, second(4.0));
        pace.set_price(second(4.0), room(128));
        assert!(pace.is_on());
        pace.ends(second(5.0));
        pace.set_price(second(5.0), room(128));
        assert!(!pace.is_on());
    }

    #[test]
    fn commits_pay_only_while_a_fold_goes_on() {
        let pace = measured();
        assert_eq!(time_for(&pace, 16, second(4.0)), Duration::ZERO);
        pace.begins(1, 1, 64 * MIB, second(4.0));
        pace.merges(second(4.0));
        pace.set_price(second(4.0), room(128));
        assert!(time_for(&pace, 16, second(4.0)) > Duration::ZERO);
        pace.ends(second(5.0));
        assert_eq!(time_for(&pace, 16, second(5.0)), Duration::ZERO);
    }

    #[test]
    fn commits_of_a_process_that_does_not_fold_pay_like_those_of_the_one_that_does() {
        let folding = measured();
        let other = Pace::new(folding.region.clone());
        assert_eq!(time_for(&other, 16, second(4.0)), Duration::ZERO);
        folding.begins(1, 1, 64 * MIB, second(4.0));
        folding.merges(second(4.0));
        folding.set_price(second(4.0), room(128));
        let price = time_for(&folding, 16, second(4.0));
        assert!(price > Duration::ZERO && other.is_on());
        assert_eq!(time_for(&other, 16, second(4.0)), price);
        // The folding process is dead.
        other.costs_nothing();
        assert_eq!(time_for(&other, 16, second(5.0)), Duration::ZERO);
    }

    #[test]
    fn the_planned_room_is_full_when_the_fold_is_expected_to_end() {
        let pace = measured();
        pace.begins(1, 1, 128 * MIB, second(4.0));
        pace.merges(second(4.0));
        pace.set_price(second(4.0), room(128));
        // Twice the bytes: four seconds, and one for the syncs.
        assert!(is_about(time_for(&pace, 128, second(4.0)), 5.0));
    }

    #[test]
    fn what_this_fold_takes_counts_more_the_further_it_has_come() {
        let time_when = |done, now| {
            let pace = measured();
            pace.begins(1, 1, 64 * MIB, second(4.0));
            pace.merges(second(4.0));
            pace.merged(done, 1000);
            pace.set_price(second(now), room(128));
            time_for(&pace, 128, second(now))
        };
        // Expected are two seconds, and one for the syncs. A twentieth is done after 0.3 s, as if it took six.
        assert!(is_about(time_when(50, 4.3), 4.0 * 0.95 + 1.0));
        assert!(is_about(time_when(100, 4.6), 6.0 * 0.9 + 1.0));
        assert!(is_about(time_when(500, 8.0), 4.0 + 1.0));
        assert!(is_about(time_when(1000, 12.0), 1.0));
    }

    #[test]
    fn syncs_that_take_too_long_make_bytes_dearer() {
        let pace = measured();
        pace.begins(1, 1, 64 * MIB, second(4.0));
        pace.merges(second(4.0));
        pace.set_price(second(4.0), room(128));
        pace.finishes(second(6.0));
        pace.set_price(second(6.0), room(128));
        assert!(is_about(time_for(&pace, 128, second(6.0)), 1.0));
        pace.set_price(second(16.0), room(128));
        assert!(is_about(time_for(&pace, 128, second(16.0)), 5.0));
    }

    #[test]
    fn the_less_room_the_dearer_but_never_without_limit() {
        let pace = measured();
        pace.begins(1, 1, 64 * MIB, second(4.0));
        pace.merges(second(4.0));
        pace.set_price(second(4.0), room(8));
        assert!(is_about(time_for(&pace, 8, second(4.0)), 3.0));
        pace.set_price(second(4.0), room(0));
        // Three seconds for the 64 KiB that there always are.
        pace.words().next.store(nanos(second(9.0)), Ordering::Relaxed);
        let part = pace.pause(4096, || second(9.0)).expect("a pause");
        assert!(is_about(part, 3.0 * 4096.0 / 65536.0));
        pace.words().next.store(nanos(second(19.0)), Ordering::Relaxed);
        assert_eq!(pace.pause(64 * MIB, || second(19.0)), Some(DEBT_MAX));
    }

    #[test]
    fn a_burst_gets_the_time_since_the_fold_began_but_not_all_of_the_log() {
        let burst_at = |now| {
            let pace = measured();
            pace.begins(1, 1, 256 * MIB, second(4.0));
            pace.merges(second(4.0));
            // Nine seconds for all of it.
            pace.set_price(second(4.0), room(90));
            let mut burst = 0;
            while pace.pause(4096, || second(now)).is_none() {
                burst += 4096;
            }
            burst as f64 / MIB as f64
        };
        assert!(burst_at(4.0) < 0.1);
        assert!((burst_at(5.0) - 10.0).abs() < 0.1);
        assert!((burst_at(8.0) - 90.0 / 4.0).abs() < 0.1);
    }

    #[test]
    fn a_put_does_not_pause_long_for_a_batch() {
        let pace = measured();
        pace.begins(1, 1, 64 * MIB, second(4.0));
        pace.merges(second(4.0));
        pace.set_price(second(4.0), room(8));
        let of_others = pace.pause(MIB, || second(4.0)).expect("a pause");
        assert!(of_others > second(0.3));
        let own = pace.pause(100, || second(4.0)).expect("a pause");
        assert!(own < second(0.005));
    }

    #[test]
    fn batches_of_several_threads_pause_for_each_other() {
        let pace = measured();
        pace.begins(1, 1, 64 * MIB, second(4.0));
        pace.merges(second(4.0));
        pace.set_price(second(4.0), room(128));
        // Eight threads, each with a MiB at a time: 128 rounds of 8 MiB would be eight times too fast.
        let mut ends = [second(4.0); 8];
        for round in 0..128 {
            let thread = round % 8;
            let now = ends[thread];
            ends[thread] = now + pace.pause(MIB, || now).unwrap_or_default();
        }
        assert!(is_about(*ends.iter().max().expect("eight") - second(4.0), 3.0));
    }

    #[test]
    fn small_folds_say_nothing_about_the_cost_of_a_byte() {
        let pace = measured();
        for _ in 0..20 {
            pace.begins(1, 1, 4096, second(4.0));
            pace.merges(second(4.0));
            pace.finishes(second(4.1));
            pace.ends(second(4.1));
        }
        pace.begins(1, 1, 64 * MIB, second(5.0));
        pace.merges(second(5.0));
        pace.set_price(second(5.0), room(128));
        assert!(is_about(time_for(&pace, 128, second(5.0)), 3.0));
    }

    #[test]
    fn the_first_fold_is_judged_by_its_own_progress() {
        let pace = pace();
        pace.begins(1, 1, 64 * MIB, second(1.0));
        pace.merges(second(1.0));
        pace.merged(100, 1000);
        pace.set_price(second(2.0), room(128));
        assert!(is_about(time_for(&pace, 128, second(2.0)), 9.0));
    }

    #[test]
    fn generations_count_as_full_as_the_last_one_got() {
        let pace = pace();
        assert_eq!(pace.usable(64 * MIB), 64 * MIB);
        pace.filled(24 * MIB, 64 * MIB);
        assert_eq!(pace.usable(64 * MIB), 24 * MIB);
        pace.filled(0, 0);
        assert_eq!(pace.usable(64 * MIB), 64 * MIB);
    }

    #[test]
    fn pauses_that_end_late_are_made_up_for() {
        let pace = measured();
        pace.begins(1, 1, 64 * MIB, second(4.0));
        pace.merges(second(4.0));
        pace.set_price(second(4.0), room(128));
        let mut now = second(4.0);
        for _ in 0..128 * 256 {
            if let Some(pause) = pace.pause(4096, || now) {
                now += pause + Duration::from_micros(500);
            }
        }
        assert!(is_about(now - second(4.0), 3.0));
    }
}
