//! The size of the files: the maximum while random pairs are put one by one, and the size once it no longer changes.
//! Then both again for deleting everything. Nothing is compacted or closed in between.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::loads::{delete_each, put_each, read_back, read_back_shares, shares};
use super::{Context, Recorder, Workload, tally_scan, variant};
use crate::data::{Generator, Length, Values};
use crate::measure::{Done, Work, now_nanos};
use crate::scratch::allocated_bytes;
use crate::text::bytes_text;

/// Interval between two checks of the files.
const LOOK: Duration = Duration::from_millis(50);
/// Time without a change of the files after which a store has settled, and maximum time to wait for that, at scale 1.
const QUIET_SECONDS: f64 = 10.0;
const SETTLING_SECONDS_MAX: f64 = 60.0;
/// The minimum at any scale.
const QUIET_SECONDS_MIN: f64 = 0.2;
/// The form with long values.
const LONG: &str = "1kB";

pub const WORKLOAD: Workload = Workload {
    name: "sizes",
    about: "pairs of 16 and 100, or 20 and 1,000, bytes put one by one in random order, and deleted one by one; how large the \
        files are at most meanwhile, and once nothing changes any more",
    variants: &[variant("100B", 1_000_000), variant(LONG, 1_000_000)],
    needs_persistence: true,
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let (key_bytes, value_bytes) = if context.variant.label == LONG {
        (20, 1_000)
    } else {
        (16, 100)
    };
    let keys = Generator::new(context.seed, "load").keys(context.records(), key_bytes);
    let values = Values::new(context.seed, Length::Fixed(value_bytes));
    let checker = context.checker(&values);
    let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
    let absent = |key: &[u8], found: Option<&[u8]>| checker.absent(key, found);
    let peer = context.open()?;

    let files = Files {
        directory: context.directory,
        data: (keys.len() * (key_bytes + value_bytes)) as u64,
        most: AtomicU64::new(0),
    };

    let mut counts = Vec::new();
    recorder.phase("random single puts", Work::Writes, || {
        let (done, put) = files.watched(|| put_each(context, &*peer, keys.all(), &values, 1))?;
        counts = put;
        Ok(done)
    })?;
    if counts != [keys.len() as u64] {
        read_back_shares(&*peer, keys.all(), &counts, present)?;
        return peer.close();
    }
    recorder.phase("settling, loaded", Work::Writes, || files.settle(context))?;
    recorder.note(files.note("puts and settling"));
    read_back(&*peer, keys.all(), present)?;

    recorder.phase("single deletes of everything", Work::Writes, || {
        let (done, deleted) = files.watched(|| delete_each(context, &*peer, keys.all(), 1))?;
        counts = deleted;
        Ok(done)
    })?;
    recorder.phase("settling, emptied", Work::Writes, || files.settle(context))?;
    recorder.note(files.note("deletes and settling"));
    read_back_shares(&*peer, keys.all(), &counts, absent)?;
    let mut left = shares(keys.all(), &counts).into_iter().map(|(_, left)| left);
    left.try_for_each(|left| read_back(&*peer, left, present))
        .context("what was not deleted yet")?;
    if counts == [keys.len() as u64] && !context.is_exempt {
        let left = tally_scan(&*peer)?.pairs();
        ensure!(left == 0, "{left} pairs are left after every key was deleted");
    }
    peer.close()
}

/// The files of the store.
struct Files<'a> {
    directory: &'a Path,
    /// Bytes of all keys and values.
    data: u64,
    /// Maximum size of the files since it was last noted.
    most: AtomicU64,
}

impl Files<'_> {
    fn look(&self) -> Result<u64> {
        let bytes = allocated_bytes(self.directory)?;
        self.most.fetch_max(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Does `work`, and checks the files now and then.
    fn watched<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let goes_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while goes_on.load(Ordering::Relaxed) {
                    self.look()?;
                    std::thread::sleep(LOOK);
                }
                self.look()
            });
            let done = work();
            goes_on.store(false, Ordering::Relaxed);
            watch.join().expect("the watching thread does not panic")?;
            done
        })
    }

    /// Waits until the files no longer change. The measured time ends with the last change.
    fn settle(&self, context: &Context) -> Result<Done> {
        let quiet = context.scaled_seconds(QUIET_SECONDS, QUIET_SECONDS_MIN);
        let longest = context.scaled_seconds(SETTLING_SECONDS_MAX, 2.0 * QUIET_SECONDS_MIN);
        let shift = context.pace.shift(1, Some(longest));
        let began = now_nanos();
        let (mut last, mut changed) = (self.look()?, began);
        while shift.nanos_left() > 0 && ((now_nanos() - changed) as f64) < quiet * 1e9 {
            std::thread::sleep(LOOK);
            let bytes = self.look()?;
            if bytes != last {
                (last, changed) = (bytes, now_nanos());
            }
        }
        Ok(Done {
            wall_nanos: Some((changed - began).max(1)),
            ..Done::untimed(1)
        })
    }

    /// Describes the maximum size since the last note.
    fn note(&self, during: &str) -> String {
        let most = self.most.swap(0, Ordering::Relaxed);
        let times = most as f64 / self.data as f64;
        format!(
            "the files took at most {} during {during}, {times:.2} times the keys and values",
            bytes_text(most as f64)
        )
    }
}
