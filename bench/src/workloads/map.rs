//! mmcmap's published load: a concurrent map of random letters, value equal to key. It writes all, reads and compares
//! all, closes, reopens and reads all, and deletes all. Every operation is its own commit, on many threads.
//!
//! The published test stopped at the acknowledgement of a delete. Here the lab reads every key back as absent. The
//! result includes the size of the files after the delete and after compaction.

use anyhow::{Context as _, Result, ensure};

use super::loads::{delete_each, get_each, put_each, read_back, read_back_shares, shares};
use super::{Context, Recorder, Variant, Workload, tally_scan, variant};
use crate::answer::Unsupported;
use crate::data::{Generator, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::Peer;

/// Number of threads in every phase. The published test starts a goroutine for each operation.
pub const THREADS: usize = 16;
/// Number of letters in a key.
pub const LETTERS: usize = 32;

pub const WORKLOAD: Workload = Workload {
    name: "map",
    about: "mmcmap's load: 100k to 16M keys of 32 letters, value = key, from 16 threads: write all, read all, reopen and \
        read all, delete all, each its own commit",
    variants: VARIANTS,
    has_drivers: true,
    has_open_loop: true,
    run,
    ..Workload::USUAL
};

/// The published sizes.
pub const VARIANTS: &[Variant] = &[
    variant("100k", 100_000),
    variant("1M", 1_000_000),
    variant("2M", 2_000_000),
    variant("4M", 4_000_000),
    variant("16M", 16_000_000),
];

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let keys = Generator::new(context.seed, "letters").letters(context.records(), LETTERS);
    let values = Values::new(context.seed, Length::Key);
    let checker = context.checker(&values);
    let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
    let absent = |key: &[u8], found: Option<&[u8]>| checker.absent(key, found);
    let peer = context.open()?;

    let mut written = Vec::new();
    recorder.phase("write", Work::Writes, || {
        let (done, counts) = put_each(context, &*peer, keys.all(), &values, THREADS)?;
        written = counts;
        Ok(done)
    })?;
    if written.iter().sum::<u64>() < keys.len() as u64 {
        read_back_shares(&*peer, keys.all(), &written, present)?;
        recorder.note("not all keys were written, so the other phases were left out".to_string());
        return peer.close();
    }
    recorder.phase("read", Work::Reads, || {
        get_each(context, &*peer, keys.all(), &values, THREADS)
    })?;
    let peer = reopen(context, recorder, peer)?;
    recorder.phase("read after reopening", Work::Reads, || {
        ensure!(context.driver.describe().is_persistent, Unsupported(NOT_KEPT));
        get_each(context, &*peer, keys.all(), &values, THREADS)
    })?;
    // The published phases can be cut short; what was written is checked in full.
    read_back(&*peer, keys.all(), present)?;

    let mut deleted = Vec::new();
    recorder.phase("delete", Work::Writes, || {
        let (done, counts) = delete_each(context, &*peer, keys.all(), THREADS)?;
        deleted = counts;
        Ok(done)
    })?;
    read_back_shares(&*peer, keys.all(), &deleted, absent)?;
    let mut left = shares(keys.all(), &deleted).into_iter().map(|(_, left)| left);
    left.try_for_each(|left| read_back(&*peer, left, present))
        .context("what was not deleted yet")?;
    if deleted.iter().sum::<u64>() == keys.len() as u64 && !context.is_exempt {
        match tally_scan(&*peer) {
            Err(error) if error.is::<Unsupported>() => {
                recorder.note("whether anything is left was not listed".to_string())
            }
            tally => {
                let left = tally?.pairs();
                ensure!(left == 0, "{left} pairs are left after every key was deleted");
            }
        }
    }
    recorder.phase("compact", Work::Writes, || peer.compact().map(|()| Done::untimed(1)))?;
    peer.close()
}

const NOT_KEPT: &str = "keeps nothing on disk";

/// Closes and reopens the store, unless its data would be lost.
fn reopen(context: &Context, recorder: &mut Recorder, peer: Box<dyn Peer>) -> Result<Box<dyn Peer>> {
    let mut held = Some(peer);
    recorder.phase("close and reopen", Work::Writes, || {
        ensure!(context.driver.describe().is_persistent, Unsupported(NOT_KEPT));
        held.take().context("the store is open")?.close()?;
        held = Some(context.open()?);
        Ok(Done::untimed(1))
    })?;
    held.context("the store is open again")
}
