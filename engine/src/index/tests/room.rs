//! What `has_room` promises, and how much memory entries take.

use super::*;

#[test]
fn an_index_that_has_room_takes_what_it_promised() {
    let mut random = random();
    for round in 0..scaled(600, 6) {
        let bytes = 4096 + random.usize(..2000) * [8, 64, 256][round % 3];
        let (shape, arrival) = (
            SHAPES[random.usize(..SHAPES.len())],
            ARRIVALS[random.usize(..ARRIVALS.len())],
        );
        let mut tester = Tester::new(bytes);
        let mut keys = arriving_keys(&mut random, shape, arrival, scaled(4000, 200)).into_iter();
        let largest_batch = [1, 10, 1000][random.usize(..3)];
        let mut batch = largest_batch;
        while batch > 0 {
            if !tester.index.has_room(batch) {
                batch /= 2;
                continue;
            }
            for key in keys.by_ref().take(batch) {
                if random.u8(..) < 20 {
                    tester.index.add_range_delete(tester.commit, 1);
                } else {
                    tester.insert(&key);
                }
                tester.commit += 1;
            }
            if keys.len() == 0 {
                break;
            }
        }
        assert!(keys.len() == 0 || tester.memory.bytes() - tester.index.used_bytes() < 24_000);
        tester.check_scans();
    }
}

#[test]
fn hostile_arrivals_stay_within_the_worst_case() {
    // Just behind and just before full leaves, where uneven divisions leave the emptiest leaves.
    let patterns: [fn(u32) -> u32; 4] = [
        |round| {
            if round % 34 < 32 {
                round / 34 * 1000 + round % 34
            } else {
                round / 34 * 1000 + 500 - round % 34
            }
        },
        |round| {
            if round < 3200 {
                round / 32 * 100_000 + round % 32
            } else {
                round % 100 * 100_000 + 90_000 - round / 100
            }
        },
        |round| u32::MAX - (round / 34 * 1000 + if round % 34 < 32 { round % 34 } else { 500 - round % 34 }),
        |round| (round % 64) * 1_000_000 + round / 64,
    ];
    for pattern in patterns {
        for count in [scaled(1000, 100), scaled(20_000, 300)] {
            let mut tester = Tester::new(Index::bytes_for_entries(count));
            assert!(tester.index.has_room(count));
            for round in 0..count as u32 {
                tester.insert(&pattern(round).to_be_bytes());
            }
            tester.check_scans();
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "measures an index of many entries")]
fn memory_per_entry_stays_within_its_budget() {
    let mut random = random();
    let count = 100_000;
    for (arrival, bytes_max) in [
        (Arrival::Random, 64),
        (Arrival::Ascending, 32),
        (Arrival::Descending, 38),
    ] {
        let mut tester = Tester::new(1 << 24);
        let empty = tester.index.used_bytes();
        for key in arriving_keys(&mut random, Shape::Random, arrival, count) {
            tester.insert(&key);
        }
        let bytes = (tester.index.used_bytes() - empty) / count;
        assert!(bytes <= bytes_max, "{arrival:?}: {bytes} bytes per entry");
    }
}
