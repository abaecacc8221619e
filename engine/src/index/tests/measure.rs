//! Not a test of right and wrong: prints times and sizes.

use std::time::Instant;

use super::*;

/// Run it in release with `--ignored --nocapture`.
#[test]
#[ignore = "measures; run it alone, in release"]
fn measure() {
    for count in [400_000, 1_600_000] {
        for (name, keys) in measured_keys(count) {
            measure_one(name, &keys);
        }
    }
}

fn measured_keys(count: usize) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mut random = fastrand::Rng::with_seed(1);
    let sequence = |key: fn(usize) -> Vec<u8>| (0..count).map(key).collect::<Vec<_>>();
    let mut decimal = sequence(|number| format!("\0\0\0\x01key{number:010}").into_bytes());
    let ascending = decimal.clone();
    // As if they had been made in this order: otherwise their places on the heap would be measured, too.
    random.shuffle(&mut decimal);
    let decimal = decimal.iter().map(|key| key.as_slice().to_vec()).collect();
    vec![
        (
            "random 16 bytes",
            arriving_keys(&mut random, Shape::Random, Arrival::Random, count),
        ),
        ("key%010d random", decimal),
        ("key%010d ascending", ascending),
    ]
}

/// Operations timed together.
const PART: usize = 1000;

/// The time of the best fifth, because others use the machine.
fn undisturbed(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 5]
}

fn measure_one(name: &str, keys: &[Vec<u8>]) {
    let mut log = Log::default();
    let append = |key: &Vec<u8>| {
        let position = log.append(key);
        log.0.extend_from_slice(&[0; 150]);
        (hash(key), position)
    };
    let operations: Vec<_> = keys.iter().map(append).collect();
    let mut memory = Memory::new(keys.len() * 100);
    let index = memory.create();
    let empty = index.used_bytes();
    let mut inserts = Vec::new();
    for (part, operations) in keys.chunks(PART).zip(operations.chunks(PART)) {
        let start = Instant::now();
        for (key, (hash, position)) in part.iter().zip(operations) {
            index.insert(&log, key, *hash, u64::from(*position), *position);
        }
        inserts.push(start.elapsed().as_nanos() as f64 / part.len() as f64);
    }
    // At the full size.
    let insert = undisturbed(inserts.split_off(inserts.len() / 4 * 3));
    let bytes = (index.used_bytes() - empty) as f64 / keys.len() as f64;
    let mut random = fastrand::Rng::with_seed(2);
    // One behind the other, so that the times are those of the index and the log alone.
    let picks: Vec<([u8; 24], usize, u64, u32)> = std::iter::repeat_with(|| random.usize(..keys.len()))
        .take(400_000)
        .map(|pick| {
            let mut key = [0; 24];
            key[..keys[pick].len()].copy_from_slice(&keys[pick]);
            (key, keys[pick].len(), operations[pick].0, operations[pick].1)
        })
        .collect();
    let time = |work: &mut dyn FnMut(&[u8], u64, u32)| {
        let part = |picks: &[([u8; 24], usize, u64, u32)]| {
            let start = Instant::now();
            picks
                .iter()
                .for_each(|(key, length, hash, position)| work(&key[..*length], *hash, *position));
            start.elapsed().as_nanos() as f64 / picks.len() as f64
        };
        undisturbed(picks.chunks(PART).map(part).collect())
    };
    let mut sum = 0;
    let read_log = time(&mut |key, _, position| sum += usize::from((&log).key(position) == key));
    let find = time(&mut |key, hash, _| assert!(index.find(&log, key, hash, u64::MAX).is_some()));
    let mut errors = 0;
    let miss =
        time(&mut |_, hash, _| errors += usize::from(index.may_contain(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15))));
    let mut cursor = IndexCursor::new(index, &log);
    let seek = time(&mut |key, _, _| cursor.seek(key));
    let overwrite = time(&mut |key, hash, position| index.insert(&log, key, hash, u64::MAX, position));
    let start = Instant::now();
    let mut scanned = 0;
    cursor.first();
    while cursor.is_valid() {
        scanned += usize::from(cursor.visible(u64::MAX).is_some());
        cursor.next();
    }
    let scan = start.elapsed().as_nanos() as f64 / keys.len() as f64;
    assert_eq!((scanned, sum), (keys.len(), picks.len()));
    println!(
        "{:8} {name:20} insert {insert:4.0} ns, find {find:4.0} (of which reading the key {read_log:3.0}), \
         miss {miss:4.1} ({errors} errors), seek {seek:4.0}, overwrite {overwrite:4.0}, scan {scan:3.0}, bytes {bytes:4.1}",
        keys.len(),
    );
}
