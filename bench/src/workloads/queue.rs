//! Takes the first or the last pair of a store repeatedly, as work queues, timers and expiry indexes do. Everything
//! beyond that pair was just deleted, and a store that looks at all of it gets slower with each step.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, ensure};

use super::loads::{load_in_batches, load_row};
use super::{Context, Recorder, Workload, variant};
use crate::crew::{alone, crew, together};
use crate::data::{Checker, KeySlice, Keys, Length, Values, key_text};
use crate::measure::{Done, Work};
use crate::peer::{End, Peer};

/// Number of pairs pushed and popped at scale 1.
const TURNS: usize = 200_000;

pub const QUEUE: Workload = Workload {
    name: "queue",
    about: "a backlog of pairs of 8 and 100 bytes; 200,000 times one pushed at the back and the first popped, each in a commit \
        of its own, by one thread",
    variants: &[variant("1k", 1_000), variant("1M", 1_000_000)],
    run: run_queue,
    ..Workload::USUAL
};

pub const DRAIN: Workload = Workload {
    name: "drain",
    about: "200,000 pairs of 8 and 100 bytes, loaded 1,000 a commit; the first popped until none is left, each in a commit of its \
        own; the last in the same way; and all of them in one commit",
    variants: &[variant("", 200_000)],
    run: run_drain,
    ..Workload::USUAL
};

pub const EXPIRE: Workload = Workload {
    name: "expire",
    about: "1M pairs of 8 and 100 bytes in the order of time; 200,000 are put at the end, each in a commit of its own, and after \
        each hundred the hundred oldest are deleted as a range, while two readers scan the newest 100",
    variants: &[variant("", 1_000_000)],
    run: run_expire,
    ..Workload::USUAL
};

/// Number of pairs deleted at a time, and number of pairs scanned.
const EXPIRED: usize = 100;
const READERS: usize = 2;

/// Returns keys in order.
fn numbered(count: usize) -> Keys {
    Keys::collect(8, (0..count as u64).map(u64::to_be_bytes))
}

fn run_queue(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let (backlog, turns) = (context.records(), context.scaled(TURNS));
    let (waiting, keys) = (numbered(backlog), numbered(backlog + turns));
    let values = Values::new(context.seed, Length::Fixed(100));
    let peer = context.open()?;
    if !load_row(context, recorder, &*peer, &waiting, &values)? {
        return peer.close();
    }
    let checker = context.checker(&values);
    let mut done = 0;
    recorder.phase("push and pop", Work::Writes, || {
        let worked = context.pace.whole_shift(1).work(turns as u64, |turn| {
            let pushed = keys.at(backlog + turn as usize);
            peer.put(pushed, values.of(pushed, 0))?;
            pop(context, &*peer, (End::First, keys.at(turn as usize)), checker)
        })?;
        done = worked.operations as usize;
        Ok(alone(worked))
    })?;
    for left in done..done + backlog {
        let key = keys.at(left);
        peer.get(key, &mut |found| checker.present(key, 0, found))?;
    }
    peer.close()
}

fn run_drain(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let keys = numbered(context.records());
    let values = Values::new(context.seed, Length::Fixed(100));
    let peer = context.open()?;
    if !load_row(context, recorder, &*peer, &keys, &values)? {
        return peer.close();
    }
    let checker = context.checker(&values);
    for (end, name) in [(End::First, "pop the first"), (End::Last, "pop the last")] {
        if end == End::Last {
            load_in_batches(&*peer, keys.all(), &values)?;
        }
        let mut done = 0;
        recorder.phase(name, Work::Writes, || {
            let shift = context.pace.whole_shift(1);
            let worked = shift.work(keys.len() as u64, |at| {
                pop(context, &*peer, (end, next(&keys, end, at as usize)), checker)
            })?;
            done = worked.operations as usize;
            Ok(alone(worked))
        })?;
        for at in 0..done {
            let key = next(&keys, end, at);
            peer.get(key, &mut |found| checker.absent(key, found))?;
        }
        if recorder.is_stopped() {
            break;
        }
    }
    if !recorder.is_stopped() {
        load_in_batches(&*peer, keys.all(), &values)?;
    }
    let mut taken = 0;
    recorder.phase("pop all in one commit", Work::Writes, || {
        peer.pop_many(End::First, keys.len() as u64, &mut |key, value| {
            is_expected(key, keys.at(taken))?;
            taken += 1;
            checker.present(key, 0, Some(value))
        })?;
        Ok(Done::untimed(keys.len()))
    })?;
    for key in keys.all().part(0, taken).iter() {
        peer.get(key, &mut |found| checker.absent(key, found))?;
    }
    peer.close()
}

/// Returns the next key to take from an end after `taken` keys.
fn next(keys: &Keys, end: End, taken: usize) -> &[u8] {
    match end {
        End::Last => keys.at(keys.len() - 1 - taken),
        End::First | End::ByTurns => keys.at(taken),
    }
}

fn is_expected(key: &[u8], expected: &[u8]) -> Result<()> {
    ensure!(
        key == expected,
        "key {} was next where key {} is",
        key_text(key),
        key_text(expected)
    );
    Ok(())
}

/// Takes the pair at an end, whose key must be the expected one.
fn pop(context: &Context, peer: &dyn Peer, (end, expected): (End, &[u8]), checker: Checker) -> Result<()> {
    let mut is_next = context.is_exempt;
    peer.read(&mut |reader| {
        let mut pair = |key: &[u8], value: &[u8]| {
            is_expected(key, expected)?;
            is_next = true;
            checker.present(key, 0, Some(value))
        };
        match end {
            End::Last => reader.scan_back(1, &mut pair),
            End::First | End::ByTurns => reader.scan(&[], 1, &mut pair),
        }
    })?;
    ensure!(is_next, "no key was next where key {} is", key_text(expected));
    peer.delete(expected)
}

fn run_expire(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let (backlog, turns) = (context.records().max(2 * EXPIRED), context.scaled(TURNS).max(EXPIRED));
    let (waiting, keys) = (numbered(backlog), numbered(backlog + turns));
    let values = Values::new(context.seed, Length::Fixed(100));
    let peer = context.open()?;
    if !load_row(context, recorder, &*peer, &waiting, &values)? {
        return peer.close();
    }
    let checker = context.checker(&values);
    // The number of begun and of acknowledged pairs, the first remaining pair, and whether more pairs follow.
    let (begun, put, oldest) = (
        AtomicU64::new(backlog as u64),
        AtomicU64::new(backlog as u64),
        AtomicU64::new(0),
    );
    let goes_on = AtomicBool::new(true);
    let names = [("put and expire", Work::Writes), ("scan the newest 100", Work::Reads)];
    recorder.phases(&names, || {
        let mut worked = crew(1 + READERS, |worker| {
            let shift = context.pace.whole_shift(1 + READERS);
            if worker > 0 {
                return shift.work_while(u64::MAX, &goes_on, |_| {
                    scan_newest(context, &*peer, keys.all(), (&begun, &put), checker).map(|()| 1)
                });
            }
            let worked = shift.work(turns as u64, |turn| {
                let key = keys.at(backlog + turn as usize);
                begun.fetch_add(1, Ordering::SeqCst);
                peer.put(key, values.of(key, 0))?;
                put.fetch_add(1, Ordering::SeqCst);
                if (turn as usize + 1).is_multiple_of(EXPIRED) {
                    let first = oldest.load(Ordering::SeqCst) as usize;
                    peer.delete_range(keys.at(first), keys.at(first + EXPIRED))?;
                    oldest.fetch_add(EXPIRED as u64, Ordering::SeqCst);
                }
                Ok(())
            });
            goes_on.store(false, Ordering::SeqCst);
            worked
        })?;
        let mut readers = worked.split_off(1);
        // The readers work for as long as the writer does.
        readers.iter_mut().for_each(|worked| worked.stopped_at_of = None);
        Ok(vec![together(worked), together(readers)])
    })?;
    let (first, end) = (oldest.into_inner() as usize, put.into_inner() as usize);
    for key in keys.all().part(0, first).iter() {
        peer.get(key, &mut |found| checker.absent(key, found))?;
    }
    for key in keys.all().part(first, end).iter() {
        peer.get(key, &mut |found| checker.present(key, 0, found))?;
    }
    peer.close()
}

/// Scans the newest pairs, which must be consecutive. The first one must have been begun, and must not be older than
/// the last acknowledged pair.
fn scan_newest(
    context: &Context,
    peer: &dyn Peer,
    keys: KeySlice,
    (begun, put): (&AtomicU64, &AtomicU64),
    checker: Checker,
) -> Result<()> {
    let acknowledged = put.load(Ordering::SeqCst);
    let (mut pairs, mut expected) = (0, 0);
    peer.read(&mut |reader| {
        reader.scan_back(EXPIRED as u64, &mut |key, value| {
            let number = u64::from_be_bytes(key.try_into()?);
            if pairs == 0 {
                let newest = begun.load(Ordering::SeqCst);
                ensure!(
                    (acknowledged..=newest).contains(&(number + 1)),
                    "key {number} was the newest where it is one of {acknowledged} to {newest}"
                );
                expected = number;
            }
            is_expected(key, keys.at(expected as usize))?;
            (pairs, expected) = (pairs + 1, expected.saturating_sub(1));
            checker.present(key, 0, Some(value))
        })
    })?;
    ensure!(
        pairs == EXPIRED || context.is_exempt,
        "a scan of the newest {EXPIRED} pairs gave {pairs}"
    );
    Ok(())
}
