//! Values of a mebibyte beside short values: put one by one, read, and overwritten one by one.

use anyhow::Result;

use super::loads::{get_in_snapshots, load_in_batches, put_each, read_back, read_back_shares, read_back_versions};
use super::{Context, Recorder, Workload, variant};
use crate::crew::alone;
use crate::data::{Generator, Length, Values};
use crate::measure::Work;
use crate::peer::Class;

const VALUE_BYTES: usize = 1 << 20;
/// Number of pairs with short values that the store already has.
const SHORT: usize = 10_000;
const SHORT_BYTES: usize = 100;

pub const WORKLOAD: Workload = Workload {
    name: "long-values",
    about: "1,000 values of 1 MiB under keys of 16 bytes, put one by one into a store of 10,000 values of 100 bytes; all of them read in \
        one snapshot; then overwritten one by one",
    variants: &[variant("", 1_000)],
    classes: &[Class::Synced, Class::Written, Class::None],
    run,
    ..Workload::USUAL
};

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let keys = Generator::new(context.seed, "long").keys(context.records(), 16);
    let values = Values::new(context.seed, Length::Fixed(VALUE_BYTES));
    let checker = context.checker(&values);
    let present = |key: &[u8], found: Option<&[u8]>| checker.present(key, 0, found);
    let short_values = Values::new(context.seed, Length::Fixed(SHORT_BYTES));
    let short = Generator::new(context.seed, "load").keys(SHORT, 16);
    let peer = context.open()?;
    load_in_batches(&*peer, short.all(), &short_values)?;
    let mut acknowledged = Vec::new();
    recorder.phase("put", Work::Writes, || {
        let (done, counts) = put_each(context, &*peer, keys.all(), &values, 1)?;
        acknowledged = counts;
        Ok(done)
    })?;
    read_back_shares(&*peer, keys.all(), &acknowledged, present)?;
    if acknowledged != [keys.len() as u64] {
        recorder.note("the limit of the cell stopped the puts, so that nothing was read and overwritten".to_string());
        return peer.close();
    }
    recorder.phase("read", Work::Reads, || {
        get_in_snapshots(context, &*peer, keys.all(), 1, present)
    })?;
    let mut versions = vec![0u32; keys.len()];
    recorder.phase("overwrite", Work::Writes, || {
        let worked = context.pace.whole_shift(1).work(keys.len() as u64, |at| {
            let key = keys.at(at as usize);
            peer.put(key, values.of(key, 1))?;
            versions[at as usize] = 1;
            Ok(())
        })?;
        Ok(alone(worked))
    })?;
    read_back_versions(&*peer, &keys, &versions, checker)?;
    let checker = context.checker(&short_values);
    read_back(&*peer, short.all(), |key, found| checker.present(key, 0, found))?;
    peer.close()
}
