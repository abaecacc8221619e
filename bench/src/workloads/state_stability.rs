//! GeaFlow's published stability load: many small flushes, checkpoints, growth, a mix of reads and writes, memory, and
//! large values. The published test only ran this load; this workload also reads it back.

use anyhow::{Context as _, Result};

use super::loads::read_back;
use super::state::copy_directory;
use super::{Context, Recorder, Workload, variant};
use crate::crew::alone;
use crate::data::{Generator, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::{Pairs, Peer};

pub const WORKLOAD: Workload = Workload {
    name: "state-stability",
    about: "GeaFlow's stability load: 1,000 x 100 puts with a flush each, 20 checkpoints and recoveries, growth over 10 x \
        1,000 records, 100 x (50 gets + 10 puts + flush), memory, values of 1, 10 and 100 kB",
    variants: &[variant("", 1_000)],
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    flushes(context, recorder)?;
    checkpoints(context, recorder)?;
    growth(context, recorder)?;
    mix(context, recorder)?;
    memory(context, recorder)?;
    for kilobytes in [1, 10, 100] {
        large_values(context, recorder, kilobytes)?;
    }
    Ok(())
}

fn numbers(range: std::ops::Range<usize>) -> Keys {
    Keys::collect(4, range.map(|number| (number as u32).to_be_bytes()))
}

fn open(context: &Context, row: &str) -> Result<Box<dyn Peer>> {
    context.open_in(&context.directory.join(row))
}

/// Runs steps of several operations each; the latency is that of a step.
fn steps(context: &Context, count: usize, mut step: impl FnMut(u64) -> Result<u64>) -> Result<(Done, usize)> {
    let mut done_steps = 0;
    let shift = context.pace.whole_shift(1);
    let worked = shift.work_while(count as u64, &true.into(), |number| {
        let operations = step(number)?;
        done_steps += 1;
        Ok(operations)
    })?;
    Ok((alone(worked), done_steps))
}

fn flush_of(peer: &dyn Peer, keys: &Keys, values: &Values, from: usize, to: usize) -> Result<u64> {
    let part = keys.all().part(from, to);
    peer.put_many(&mut part.iter().map(|key| (key, values.of(key, 0))) as &mut Pairs)?;
    Ok(part.len() as u64)
}

fn flushes(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = numbers(0..count * 100);
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let peer = open(context, "flushes")?;
    let mut flushed = 0;
    recorder.phase("1,000 x (100 puts + flush)", Work::Writes, || {
        let (done, steps) = steps(context, count, |step| {
            let at = step as usize * 100;
            flush_of(&*peer, &keys, &values, at, at + 100)
        })?;
        flushed = steps * 100;
        Ok(done)
    })?;
    read_back(&*peer, keys.all().part(0, flushed), |key, found| {
        checker.present(key, 0, found)
    })?;
    peer.close()
}

/// Runs rounds that each keep a checkpoint, drop the store, and recover it from the checkpoint with all its data.
fn checkpoints(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let rounds = context.scaled(20).min(20);
    let keys = numbers(0..rounds * 100);
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let live = context.directory.join("checkpoints");
    recorder.phase("20 x (100 puts, checkpoint, drop, recover)", Work::Writes, || {
        let (done, _) = steps(context, rounds, |round| {
            let at = round as usize * 100;
            let kept = context.directory.join(format!("kept-{round}"));
            let peer = context.open_in(&live)?;
            flush_of(&*peer, &keys, &values, at, at + 100)?;
            peer.checkpoint(&kept)?;
            peer.close()?;
            std::fs::remove_dir_all(&live)?;
            copy_directory(&kept, &live)?;
            let peer = context.open_in(&live)?;
            read_back(&*peer, keys.all().part(0, at + 100), |key, found| {
                checker.present(key, 0, found)
            })?;
            peer.close()?;
            Ok(1)
        })?;
        Ok(done)
    })
}

fn growth(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let each = context.records();
    let keys = numbers(0..each * 10);
    let values = Values::new(context.seed, Length::Fixed(200));
    let checker = context.checker(&values);
    let peer = open(context, "growth")?;
    let mut sizes = Vec::new();
    recorder.phase("growth over 10 x 1,000 records", Work::Writes, || {
        let (done, _) = steps(context, 10, |step| {
            let at = step as usize * each;
            let flushed = flush_of(&*peer, &keys, &values, at, at + each)?;
            sizes.push(crate::scratch::allocated_bytes(&context.directory.join("growth"))?);
            Ok(flushed)
        })?;
        Ok(done)
    })?;
    let written = sizes.len() * each;
    recorder.note(format!("bytes of its files after each 1,000 records: {sizes:?}"));
    read_back(&*peer, keys.all().part(0, written), |key, found| {
        checker.present(key, 0, found)
    })?;
    peer.close()
}

fn mix(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let records = 1_000;
    let rounds = context.scaled(100).min(100);
    let keys = numbers(0..records + rounds * 10);
    let values = Values::new(context.seed, Length::Fixed(100));
    let checker = context.checker(&values);
    let picks = Generator::new(context.seed, "mix").picks(rounds * 50, records);
    let peer = open(context, "mix")?;
    flush_of(&*peer, &keys, &values, 0, records)?;
    let mut written = records;
    recorder.phase("100 x (50 gets + 10 puts + flush)", Work::Writes, || {
        let (done, _) = steps(context, rounds, |round| {
            for pick in &picks[round as usize * 50..][..50] {
                let key = keys.at(*pick as usize);
                peer.get(key, &mut |found| checker.present(key, 0, found))?;
            }
            flush_of(&*peer, &keys, &values, written, written + 10)?;
            written += 10;
            Ok(60)
        })?;
        Ok(done)
    })?;
    read_back(&*peer, keys.all().part(0, written), |key, found| {
        checker.present(key, 0, found)
    })?;
    peer.close()
}

/// Runs 50 rounds of 200 puts of 500 bytes and 200 gets, with a checkpoint every 10 rounds.
fn memory(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let rounds = context.scaled(50).min(50);
    let keys = numbers(0..rounds * 200);
    let values = Values::new(context.seed, Length::Fixed(500));
    let checker = context.checker(&values);
    let peer = open(context, "memory")?;
    let mut written = 0;
    recorder.phase("50 x (200 puts of 500 B + 200 gets), checkpoints", Work::Writes, || {
        let (done, _) = steps(context, rounds, |round| {
            let at = round as usize * 200;
            flush_of(&*peer, &keys, &values, at, at + 200)?;
            written = at + 200;
            for key in keys.all().part(at, at + 200).iter() {
                peer.get(key, &mut |found| checker.present(key, 0, found))?;
            }
            if round % 10 == 0 {
                peer.checkpoint(&context.directory.join(format!("memory-{round}")))?;
            }
            Ok(400)
        })?;
        Ok(done)
    })?;
    // For a peer without checkpoints, which shows `n/a`, this covers the first round.
    read_back(&*peer, keys.all().part(0, written), |key, found| {
        checker.present(key, 0, found)
    })?;
    peer.close()
}

fn large_values(context: &Context, recorder: &mut Recorder, kilobytes: usize) -> Result<()> {
    let keys = numbers(0..10);
    let values = Values::new(context.seed, Length::Fixed(kilobytes * 1000));
    let checker = context.checker(&values);
    let peer = open(context, &format!("values-{kilobytes}"))?;
    let mut written = 0;
    recorder.phase(&format!("10 puts of {kilobytes} kB + flush"), Work::Writes, || {
        written = flush_of(&*peer, &keys, &values, 0, 10)? as usize;
        Ok(Done::untimed(written))
    })?;
    read_back(&*peer, keys.all().part(0, written), |key, found| {
        checker.present(key, 0, found)
    })
    .with_context(|| format!("values of {kilobytes} kB"))?;
    peer.close()
}
