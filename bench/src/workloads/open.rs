//! Opening a store that is already large: after an orderly close, and after its writer was killed.
//!
//! The writer is a second process of the lab. It reports every acknowledged put through a pipe; after a number of them
//! the run kills it with SIGKILL in the middle of its work, opens the store, and looks for everything that was
//! acknowledged. For the classes `synced` and `written` a missing pair fails the run: this is the proof that a peer has
//! the class it claims (for `synced` only the part of it that a killed process can show: nobody cuts the power).

use std::io::{BufReader, ErrorKind, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Context, Recorder, Workload, load_in_batches};
use crate::data::{Generator, Key, value_of, verify};
use crate::measure::{Done, Work};
use crate::peer::{Class, Driver, Peer};

/// Pairs at scale 1.
const PAIRS: usize = 10_000_000;
/// The writer is killed after one put for so many pairs in the store ..
const PAIRS_PER_PUT: usize = 10;
/// .. or after this time.
const WRITING_MAX: Duration = Duration::from_secs(10);
/// Loaded pairs that are looked at after the crash.
const SAMPLE: usize = 100_000;

pub const WORKLOAD: Workload = Workload {
    name: "open",
    about: "a store of 10M pairs: open, one read and one write after a close, and after kill -9 of a writing process",
    classes: &[Class::Written, Class::Synced],
    needs_persistence: true,
    run,
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let keys = Generator::new(context.seed, "load").present_keys(context.scaled(PAIRS));
    let sample = Generator::new(context.seed, "sample").sample(&keys, SAMPLE.min(keys.len()));
    let fresh = Generator::new(context.seed, "fresh").present_keys(2);
    let peer = context.open()?;
    recorder.phase("load in batches of 1,000", Work::Writes, || {
        load_in_batches(&*peer, &keys)?;
        Ok(Done::untimed(keys.len()))
    })?;
    recorder.phase("close", Work::Writes, || peer.close().map(|()| Done::untimed(1)))?;

    open_and_use(context, recorder, "after a close", &keys[0], &fresh[0])?.close()?;

    let acknowledged = kill_a_writer(context, keys.len().div_ceil(PAIRS_PER_PUT))?;
    let peer = open_and_use(context, recorder, "after kill -9", &keys[keys.len() / 2], &fresh[1])?;
    peer.get_many(&sample, &mut verify)
        .context("after kill -9, a pair that was closed in an orderly way")?;
    peer.get_many(&fresh, &mut verify).context("after kill -9")?;
    let lost = count_lost(context, &*peer, &acknowledged)?;
    recorder.note(format!(
        "killed after {} acknowledged puts, {lost} of them lost",
        acknowledged.len()
    ));
    peer.close()
}

fn open_and_use(
    context: &Context,
    recorder: &mut Recorder,
    when: &str,
    stored: &Key,
    fresh: &Key,
) -> Result<Box<dyn Peer>> {
    let mut opened = None;
    recorder.phase(&format!("open {when}"), Work::Reads, || {
        opened = Some(context.open()?);
        Ok(Done::untimed(1))
    })?;
    let peer = opened.context("a phase that succeeded has opened the store")?;
    recorder.phase(&format!("first read {when}"), Work::Reads, || {
        peer.get_many(&[*stored], &mut verify)?;
        Ok(Done::untimed(1))
    })?;
    let value = value_of(fresh);
    recorder.phase(&format!("first write {when}"), Work::Writes, || {
        peer.put(fresh, &value)?;
        Ok(Done::untimed(1))
    })?;
    Ok(peer)
}

/// How many of the acknowledged puts are gone. Only a peer that promises nothing may lose any.
fn count_lost(context: &Context, peer: &dyn Peer, acknowledged: &[Key]) -> Result<usize> {
    let mut lost = 0;
    peer.get_many(acknowledged, &mut |key, found| match found {
        None if context.class == Class::None => {
            lost += 1;
            Ok(())
        }
        found => verify(key, found),
    })
    .with_context(|| format!("after kill -9, which class {} survives", context.class))?;
    Ok(lost)
}

/// The keys of the writer: four times what is waited for, so that it is killed while it writes.
fn writer_keys(seed: u64, puts: usize) -> Vec<Key> {
    Generator::new(seed, "writer").present_keys(puts * 4)
}

/// Starts a writer, kills it after `puts` acknowledgements, and returns the keys that were acknowledged.
fn kill_a_writer(context: &Context, puts: usize) -> Result<Vec<Key>> {
    let mut writer = start_writer(context, puts)?;
    let pipe = writer.stdout.take().context("the writer's output is a pipe")?;
    let acknowledged = count_until(&mut writer, BufReader::new(pipe), puts);
    // On an error too: nothing may go on writing into a directory that is about to be removed.
    let _ = writer.kill();
    let status = writer.wait()?;
    let acknowledged = acknowledged?;
    ensure!(
        !status.success() && acknowledged > 0,
        "the writer ended by itself ({status}) before it could be killed"
    );
    let mut keys = writer_keys(context.seed, puts);
    keys.truncate(acknowledged);
    Ok(keys)
}

fn start_writer(context: &Context, puts: usize) -> Result<Child> {
    Command::new("/proc/self/exe")
        .args([
            "writer",
            "--peer",
            &context.driver.describe().name,
            "--durability",
            &context.class.to_string(),
        ])
        .args([
            "--seed",
            &context.seed.to_string(),
            "--puts",
            &puts.to_string(),
            "--directory",
        ])
        .arg(context.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the writing process")
}

/// Counts acknowledgements, kills the writer when there are enough, and counts what was still in the pipe.
fn count_until(writer: &mut Child, mut pipe: impl Read, puts: usize) -> Result<usize> {
    let started = Instant::now();
    let mut acknowledged = 0;
    let mut is_killed = false;
    let mut one = [0];
    loop {
        match pipe.read_exact(&mut one) {
            Ok(()) => acknowledged += 1,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(acknowledged),
            Err(error) => bail!("reading the writer's acknowledgements: {error}"),
        }
        if !is_killed && (acknowledged >= puts || started.elapsed() > WRITING_MAX) {
            writer.kill()?;
            is_killed = true;
        }
    }
}

/// The writing process: puts its keys one by one and writes one byte to `acknowledgements` after each.
pub fn write_until_killed(context: &Context, puts: usize, mut acknowledgements: impl Write) -> Result<()> {
    let keys = writer_keys(context.seed, puts);
    let driver: &dyn Driver = context.driver;
    let peer = driver.open(context.directory, context.class)?;
    for key in &keys {
        peer.put(key, &value_of(key))?;
        acknowledgements.write_all(&[1])?;
        acknowledgements.flush()?;
    }
    bail!("the writer was to be killed, but wrote all its {} pairs", keys.len())
}
