//! Metrics of the store.

use duramen::{Statistics, Store};

use super::capped::{Capped, OTHER};
use super::families::*;
use super::text::Text;

pub(super) fn write(text: &mut Text, store: &Store) {
    // A store that has stopped or is damaged gives no figures.
    let figures = store.stat().ok();
    text.value(HEALTHY, u8::from(figures.is_some()));
    for (family, value) in VALUES {
        let mut samples = text.family(*family);
        if let Some(figures) = &figures {
            samples.sample(&[], value(figures));
        }
    }
    let mut maps = Capped::default();
    for map in figures.iter().flat_map(|figures| &figures.maps) {
        maps.push(&map.name, map.name.as_str(), map.pairs, |rest, pairs| rest + pairs);
    }
    let mut samples = text.family(MAP_PAIRS);
    for (map, pairs) in maps.with_rest(OTHER) {
        samples.sample(&[map], pairs);
    }
}

type Value = fn(&Statistics) -> u64;

const VALUES: &[(Family, Value)] = &[
    (NEWEST_COMMIT, |figures| figures.commit),
    (SYNCED_COMMIT, |figures| figures.synced_commit),
    (UNFOLDED, |figures| figures.unfolded_operations),
    (UNFOLDED_BYTES, |figures| figures.unfolded_bytes),
    (LOG_BYTES, |figures| figures.log_bytes),
    (DATA_BYTES, |figures| figures.data_bytes),
    (FREE_BYTES, |figures| figures.free_pages * figures.page_bytes),
    (RETIRED_BYTES, |figures| figures.retired_pages * figures.page_bytes),
    (INDEX_BYTES, |figures| figures.memory.index_bytes),
    (READERS, |figures| figures.snapshots.len() as u64),
    (OLDEST_READER, oldest_reader_seconds),
    (PROCESSES, |figures| figures.processes.len() as u64),
    (FOLDS, |figures| figures.counts.folds),
    (SYNCS, |figures| figures.counts.syncs),
    (BACKGROUND_ERRORS, |figures| {
        figures.background_error.as_ref().map_or(0, |error| error.count)
    }),
];

fn oldest_reader_seconds(figures: &Statistics) -> u64 {
    let ages = figures.snapshots.iter().map(|snapshot| snapshot.age.as_secs());
    ages.max().unwrap_or(0)
}
