//! Single puts that survive power loss, from 1, 8 and 32 threads: what one sync costs, and whether committers share it.
//!
//! Every step runs for a time or until its keys are used up, whichever comes first, on a store that holds some pairs
//! already. After each step every acknowledged key is read back.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

use super::{Context, Recorder, Workload, load_in_batches};
use crate::data::{Generator, Key, value_of, verify};
use crate::measure::{Done, Lap, Latencies, Work, nanos, now_nanos, thread_cpu_nanos};
use crate::peer::{Class, Peer};

const THREADS: [usize; 3] = [1, 8, 32];
/// Pairs in the store before the first step, at scale 1.
const LOADED: usize = 100_000;
/// Keys for a step at scale 1: more than any disk can sync in its time.
const KEYS: usize = 1_000_000;
/// Time of a step at scale 1.
const STEP: Duration = Duration::from_secs(5);
/// Below this a step would be a handful of syncs.
const STEP_MIN: Duration = Duration::from_millis(200);

pub const WORKLOAD: Workload = Workload {
    name: "synced-puts",
    about: "single puts, each synced before it is acknowledged, from 1, 8 and 32 threads for 5 seconds each",
    classes: &[Class::Synced],
    needs_persistence: false,
    run,
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let peer = context.open()?;
    load_in_batches(
        &*peer,
        &Generator::new(context.seed, "load").present_keys(context.scaled(LOADED)),
    )?;
    let time = STEP.mul_f64(context.scale).max(STEP_MIN);
    for threads in THREADS {
        let name = format!("{threads} {}", if threads == 1 { "thread" } else { "threads" });
        let share = context.scaled(KEYS).div_ceil(threads);
        let keys = Generator::new(context.seed, &name).present_keys(share * threads);
        let shares: Vec<&[Key]> = keys.chunks(share).collect();
        let mut acknowledged = Vec::new();
        recorder.phase(&name, Work::Writes, || {
            let (done, counts) = put_from_all(&*peer, &shares, time)?;
            acknowledged = counts;
            Ok(done)
        })?;
        for (share, count) in shares.iter().zip(acknowledged) {
            peer.get_many(&share[..count], &mut verify)
                .with_context(|| format!("after {name}"))?;
        }
    }
    peer.close()
}

/// What one thread did.
struct Worked {
    acknowledged: usize,
    cpu_nanos: u64,
    latencies: Latencies,
}

/// Puts every share from a thread of its own, all starting together; says how many of each were acknowledged.
fn put_from_all(peer: &dyn Peer, shares: &[&[Key]], time: Duration) -> Result<(Done, Vec<usize>)> {
    let start = Barrier::new(shares.len());
    let worked: Vec<Worked> = std::thread::scope(|scope| {
        let spawn = |share| {
            let start = &start;
            scope.spawn(move || put_for(peer, share, start, time))
        };
        let threads: Vec<_> = shares.iter().copied().map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Worked>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a writing thread panicked")))
        };
        threads.into_iter().map(join).collect::<Result<_>>()
    })?;
    let mut latencies = Latencies::new();
    worked.iter().for_each(|worked| latencies.merge(&worked.latencies));
    let counts: Vec<usize> = worked.iter().map(|worked| worked.acknowledged).collect();
    let done = Done {
        operations: counts.iter().sum::<usize>() as u64,
        workers_cpu_nanos: worked.iter().map(|worked| worked.cpu_nanos).sum(),
        latencies: Some(latencies),
    };
    Ok((done, counts))
}

fn put_for(peer: &dyn Peer, keys: &[Key], start: &Barrier, time: Duration) -> Result<Worked> {
    start.wait();
    let cpu_before = thread_cpu_nanos();
    let deadline = now_nanos() + nanos(time);
    let mut lap = Lap::start();
    let mut acknowledged = 0;
    for key in keys {
        peer.put(key, &value_of(key))?;
        acknowledged += 1;
        if lap.next() >= deadline {
            break;
        }
    }
    Ok(Worked {
        acknowledged,
        cpu_nanos: thread_cpu_nanos() - cpu_before,
        latencies: lap.finish(),
    })
}
