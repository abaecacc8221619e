//! Taking the first pair of a store again and again, as work queues, timers and expiry indexes do: everything before it was
//! deleted a moment ago, and a store that looks at all of that gets slower with each.

use anyhow::{Result, ensure};

use super::loads::load_row;
use super::{Context, Recorder, Resources, Variant, Workload, only};
use crate::crew::alone;
use crate::data::{Checker, Keys, Length, Values, key_text};
use crate::measure::Work;
use crate::peer::{Class, Peer};

/// Pairs that are pushed and popped at scale 1.
const TURNS: usize = 200_000;

pub const QUEUE: Workload = Workload {
    name: "queue",
    about: "a backlog of pairs of 8 and 100 bytes; 200,000 times one pushed at the back and the first popped, each in a commit \
        of its own, by one thread",
    variants: &[
        Variant {
            label: "1k",
            records: 1_000,
        },
        Variant {
            label: "1M",
            records: 1_000_000,
        },
    ],
    classes: &[Class::Written, Class::None],
    needs_persistence: false,
    has_drivers: false,
    has_open_loop: false,
    resources: Resources::USUAL,
    run: run_queue,
};

pub const DRAIN: Workload = Workload {
    name: "drain",
    about: "200,000 pairs of 8 and 100 bytes, loaded 1,000 a commit; the first popped until none is left, each in a commit of its own",
    variants: only(200_000),
    classes: &[Class::Written, Class::None],
    needs_persistence: false,
    has_drivers: false,
    has_open_loop: false,
    resources: Resources::USUAL,
    run: run_drain,
};

/// Keys in order.
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
            pop(context, &*peer, keys.at(turn as usize), checker)
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
    let mut done = 0;
    recorder.phase("pop the first", Work::Writes, || {
        let shift = context.pace.whole_shift(1);
        let worked = shift.work(keys.len() as u64, |at| {
            pop(context, &*peer, keys.at(at as usize), checker)
        })?;
        done = worked.operations as usize;
        Ok(alone(worked))
    })?;
    for key in keys.all().part(0, done).iter() {
        peer.get(key, &mut |found| checker.absent(key, found))?;
    }
    peer.close()
}

/// Takes the first pair, which is that of `expected`.
fn pop(context: &Context, peer: &dyn Peer, expected: &[u8], checker: Checker) -> Result<()> {
    let mut is_first = context.is_exempt();
    peer.read(&mut |reader| {
        reader.scan(&[], 1, &mut |key, value| {
            ensure!(
                key == expected,
                "key {} was the first where key {} is",
                key_text(key),
                key_text(expected)
            );
            is_first = true;
            checker.present(key, 0, Some(value))
        })
    })?;
    ensure!(is_first, "no key was the first where key {} is", key_text(expected));
    peer.delete(expected)
}
