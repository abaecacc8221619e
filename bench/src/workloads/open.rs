//! Opening a store that is already large: after a clean close, and after its writer was killed.
//!
//! The writer is a second process of the lab. It reports every acknowledged put through a pipe. After a number of puts
//! the run kills it with SIGKILL in the middle of its work, opens the store, and looks for everything that was
//! acknowledged. For the classes `synced` and `written` a missing pair fails the run: this proves that a peer has the
//! class it claims. For `synced` it proves only the part that a killed process can show, because the test does not cut
//! the power.

use std::cell::Cell;
use std::io::Write;

use anyhow::{Context as _, Result, bail};

use super::killing::{Writing, kill_after};
use super::loads::{load_measured, read_back};
use super::{Context, Recorder, Workload, variant};
use crate::data::{Checker, Generator, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::{Class, Peer};

/// The writer is killed after one put for this many pairs in the store.
const PAIRS_PER_PUT: usize = 10;

pub const WORKLOAD: Workload = Workload {
    name: "open",
    about: "a store of 10M pairs: open, one read and one write after a close, and after kill -9 of a writing process",
    variants: &[variant("", 10_000_000)],
    classes: &[Class::Written, Class::Synced],
    needs_persistence: true,
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = Generator::new(context.seed, "load").keys(count, 16);
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
    let fresh = Generator::new(context.seed, "fresh").keys(2, 16);
    let peer = context.open()?;
    let mut loaded = None;
    recorder.phase("load in batches of 1,000", Work::Writes, || {
        let done = load_measured(context, &*peer, keys.all(), &values, 1000)?;
        loaded = Some(done.operations as usize);
        Ok(done)
    })?;
    if recorder.is_stopped() {
        read_back(&*peer, keys.all().part(0, loaded.unwrap_or(0)), present)?;
        recorder.note("the load was stopped, so nothing was opened and no process was killed".to_string());
        return peer.close();
    }
    if loaded.is_none() {
        // A peer without commits of several operations skips that row, but the next rows need the pairs.
        keys.iter().try_for_each(|key| peer.put(key, values.of(key, 0)))?;
    }
    recorder.phase("close", Work::Writes, || peer.close().map(|()| Done::untimed(1)))?;

    let run = Run {
        context,
        checker,
        values: &values,
    };
    run.open_and_use(recorder, "after a close", keys.at(0), fresh.at(0))?
        .close()?;

    let acknowledged = kill_a_writer(context, count.div_ceil(PAIRS_PER_PUT))?;
    let peer = run.open_and_use(recorder, "after kill -9", keys.at(count / 2), fresh.at(1))?;
    read_back(&*peer, keys.all(), present).context("after kill -9, a pair that was closed in an orderly way")?;
    read_back(&*peer, fresh.all(), present).context("after kill -9")?;
    let lost = run.count_lost(&*peer, &acknowledged)?;
    recorder.note(format!(
        "killed after {} acknowledged puts, {lost} of them lost",
        acknowledged.len()
    ));
    peer.close()
}

struct Run<'a> {
    context: &'a Context<'a>,
    checker: Checker<'a>,
    values: &'a Values,
}

impl Run<'_> {
    fn open_and_use(&self, recorder: &mut Recorder, when: &str, stored: &[u8], fresh: &[u8]) -> Result<Box<dyn Peer>> {
        let mut opened = None;
        recorder.phase(&format!("open {when}"), Work::Reads, || {
            opened = Some(self.context.open()?);
            Ok(Done::untimed(1))
        })?;
        let peer = opened.context("a phase that succeeded has opened the store")?;
        recorder.phase(&format!("first read {when}"), Work::Reads, || {
            peer.get(stored, &mut |found| self.checker.present(stored, 0, found))?;
            Ok(Done::untimed(1))
        })?;
        recorder.phase(&format!("first write {when}"), Work::Writes, || {
            peer.put(fresh, self.values.of(fresh, 0))?;
            Ok(Done::untimed(1))
        })?;
        Ok(peer)
    }

    /// Returns the number of acknowledged puts that are gone. Only a peer that promises nothing may lose any.
    fn count_lost(&self, peer: &dyn Peer, acknowledged: &Keys) -> Result<usize> {
        let lost = Cell::new(0);
        let class = self.context.class;
        read_back(peer, acknowledged.all(), |key, found| match found {
            None if class == Class::None => {
                lost.set(lost.get() + 1);
                Ok(())
            }
            found => self.checker.present(key, 0, found),
        })
        .with_context(|| format!("after kill -9, which class {class} survives"))?;
        Ok(lost.get())
    }
}

/// Returns the keys of the writer: four times as many as awaited, so that it is killed while it writes.
fn writer_keys(seed: u64, puts: usize) -> Keys {
    Generator::new(seed, "writer").keys(puts * 4, 16)
}

/// Kills a writer after `puts` acknowledgements, and returns the acknowledged keys.
fn kill_a_writer(context: &Context, puts: usize) -> Result<Keys> {
    let writing = Writing::planned(puts);
    let acknowledged = kill_after(context, WORKLOAD.name, writing)?;
    let keys = writer_keys(context.seed, writing.planned);
    Ok(Keys::collect(16, keys.iter().take(acknowledged)))
}

/// Runs the writing process: puts its keys one by one, and writes one byte to `acknowledgements` after each.
pub fn write_until_killed(context: &Context, puts: usize, mut acknowledgements: impl Write) -> Result<()> {
    let keys = writer_keys(context.seed, puts);
    let values = Values::new(context.seed, Length::Fixed(100));
    let peer = context.open()?;
    for key in keys.iter() {
        peer.put(key, values.of(key, 0))?;
        acknowledgements.write_all(&[1])?;
        acknowledgements.flush()?;
    }
    bail!("the writer was to be killed, but wrote all its {} pairs", keys.len())
}
