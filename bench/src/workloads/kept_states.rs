//! Checkpoints in the store: what making one takes beside puts, what puts lose by it, and what a thousand that are kept cost reads
//! and puts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::loads::{RandomPuts, load_row};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{Pace, alone, in_turn};
use crate::data::{Generator, Length, Values};
use crate::measure::{Done, Work};

pub const WORKLOAD: Workload = Workload {
    name: "kept-states",
    about: "pairs of 16 and 100 bytes; 100,000 random puts a second, in windows that alternate: with a checkpoint made every second and \
        without; then 1,000 checkpoints with 100 puts before each, and reads and puts beside them",
    variants: &[variant("1M", 1_000_000), variant("10M", 10_000_000)],
    needs_persistence: true,
    run,
    ..Workload::USUAL
};

/// Puts a second, windows of each kind, and seconds of a window at scale 1, and the least.
const RATE: f64 = 100_000.0;
const WINDOWS: usize = 5;
const SECONDS: (f64, f64) = (4.0, 0.05);
/// Time from one checkpoint to the next in a window.
const BETWEEN: Duration = Duration::from_secs(1);
/// Checkpoints that are kept at scale 1, and puts before each.
const KEPT: usize = 1_000;
const PUTS_BEFORE: u64 = 100;

/// The puts of all rows, and the rows.
struct Load<'a>(RandomPuts<'a>);

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = Generator::new(context.seed, "load").keys(count, 16);
    let values = Values::new(context.seed, Length::Fixed(100));
    let peer = context.open()?;
    if !load_row(context, recorder, &*peer, &keys, &values)? {
        return peer.close();
    }
    let mut load = Load(RandomPuts::new(context, &*peer, &keys, &values));
    let rows = [
        ("puts", Work::Writes),
        ("puts beside checkpoints", Work::Writes),
        ("make a checkpoint", Work::Writes),
    ];
    recorder.phases(&rows, || load.windows())?;
    recorder.phase("reads", Work::Reads, || load.reads())?;
    recorder.phase("puts, one by one", Work::Writes, || load.puts())?;
    recorder.phase("1,000 checkpoints", Work::Writes, || load.keep())?;
    recorder.phase("reads, 1,000 checkpoints kept", Work::Reads, || load.reads_beside())?;
    recorder.phase("puts, 1,000 checkpoints kept", Work::Writes, || load.puts_beside())?;
    recorder.phase("drop a checkpoint", Work::Writes, || load.drop_all())?;
    load.0.read_back()?;
    peer.close()
}

impl Load<'_> {
    fn seconds(&self) -> f64 {
        self.0.context.scaled_seconds(SECONDS.0, SECONDS.1)
    }

    fn kept(&self) -> usize {
        self.0.context.scaled(KEPT)
    }

    fn windows(&mut self) -> Result<Vec<Done>> {
        let (peer, seconds, limit) = (self.0.peer, self.seconds(), self.0.context.pace.limit);
        let pace = Pace {
            rate: Some(RATE),
            seconds: None,
            limit,
        };
        let making = Pace {
            rate: Some(1.0 / BETWEEN.as_secs_f64()),
            ..pace
        };
        // Whether there are any is known before the clock starts.
        peer.keep("first")?;
        peer.drop_kept("first")?;
        let (mut quiet, mut beside, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for window in 0..WINDOWS {
            quiet.push(pace.shift(1, Some(seconds)).work(u64::MAX, |_| self.0.put())?);
            let is_on = AtomicBool::new(true);
            let worked = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let mut names = Vec::new();
                    let worked = making.shift(1, None).work_while(u64::MAX, &is_on, |number| {
                        names.push(format!("{window}-{number}"));
                        peer.keep(&names[number as usize]).map(|()| 1)
                    })?;
                    names.iter().try_for_each(|name| peer.drop_kept(name))?;
                    anyhow::Ok(worked)
                });
                let worked = pace.shift(1, Some(seconds)).work(u64::MAX, |_| self.0.put());
                is_on.store(false, Ordering::Relaxed);
                made.push(thread.join().map_err(|_| anyhow!("the other thread panicked"))??);
                worked
            })?;
            beside.push(worked);
        }
        Ok([quiet, beside, made].into_iter().map(in_turn).collect())
    }

    fn reads(&mut self) -> Result<Done> {
        let checker = self.0.context.checker(self.0.values);
        let shift = self.0.context.pace.shift(1, Some(self.seconds()));
        let worked = shift.work(u64::MAX, |_| {
            let record = self.0.picks.below(self.0.keys.len());
            let key = self.0.keys.at(record);
            self.0
                .peer
                .get(key, &mut |found| checker.present(key, self.0.versions[record], found))
        })?;
        Ok(alone(worked))
    }

    fn puts(&mut self) -> Result<Done> {
        let shift = self.0.context.pace.shift(1, Some(self.seconds()));
        Ok(alone(shift.work(u64::MAX, |_| self.0.put())?))
    }

    fn keep(&mut self) -> Result<Done> {
        let kept = self.kept();
        let mut worked = Vec::new();
        for number in 0..kept as u64 {
            (0..PUTS_BEFORE).try_for_each(|_| self.0.put())?;
            worked.push(
                self.0
                    .context
                    .pace
                    .shift(1, None)
                    .work(1, |_| self.0.peer.keep(&number.to_string()))?,
            );
        }
        Ok(in_turn(worked))
    }

    fn reads_beside(&mut self) -> Result<Done> {
        self.0.peer.keep("last")?;
        self.reads()
    }

    fn puts_beside(&mut self) -> Result<Done> {
        self.0.peer.drop_kept("last")?;
        self.puts()
    }

    fn drop_all(&mut self) -> Result<Done> {
        let kept = self.kept() as u64;
        let shift = self.0.context.pace.whole_shift(1);
        Ok(alone(
            shift.work(kept, |number| self.0.peer.drop_kept(&number.to_string()))?,
        ))
    }
}
