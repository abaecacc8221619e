//! The cost of operations after the worst histories, each compared with the operation on a store without that history.
//!
//!     cargo run --release -p duramen --example worst_histories [PAIRS]
//!
//! `docs/internals/costs.md` has the table. Times are medians, except the row "first look", which is a single call.

use std::time::{Duration, Instant};

use duramen::{Batch, Durability, Maintenance, Map, Options, Result, Snapshot, Store};

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Returns a store with folded pairs.
fn filled(pairs: u64) -> Result<(Store, Map)> {
    let options = Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual);
    let store = options.temporary()?;
    let map = store.map("map")?;
    fill(&store, &map, pairs)?;
    store.maintain()?;
    Ok((store, map))
}

fn fill(store: &Store, map: &Map, pairs: u64) -> Result<()> {
    for from in (0..pairs).step_by(1000) {
        let mut batch = Batch::new();
        for number in from..(from + 1000).min(pairs) {
            batch.put(map, key(number), [7; 100])?;
        }
        store.write(batch)?;
    }
    Ok(())
}

fn median(runs: usize, mut run: impl FnMut(usize) -> Result<()>) -> Result<Duration> {
    let mut times = Vec::with_capacity(runs);
    for number in 0..runs {
        let begun = Instant::now();
        run(number)?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[runs / 2])
}

/// Returns the operations of the table, each with its median.
fn costs(store: &Store, map: &Map, pairs: u64) -> Result<Vec<(&'static str, Duration)>> {
    let begun = Instant::now();
    map.first()?;
    let mut costs = vec![("first look", begun.elapsed())];
    let somewhere = |number: usize| key(number as u64 * 7_919_993 % pairs);
    let mut add = |name, cost: Result<Duration>| cost.map(|cost| costs.push((name, cost)));
    let snapshot = store.snapshot()?;
    add("snapshot", median(1001, |_| store.snapshot().map(drop)))?;
    add("get", median(10_001, |number| map.get(somewhere(number)).map(drop)))?;
    add("first pair", median(1001, |_| map.first().map(drop)))?;
    add("last pair", median(1001, |_| map.last().map(drop)))?;
    add(
        "ten pairs from a place",
        median(1001, |number| ten(&snapshot, map, somewhere(number))),
    )?;
    add(
        "put of a new pair",
        median(1001, |number| {
            map.put([&key(pairs / 2)[..], &key(number as u64)].concat(), [7; 100])
        }),
    )?;
    add("overwrite", median(1001, |_| map.put(key(pairs / 2), [7; 100])))?;
    add(
        "delete",
        median(1001, |number| {
            map.delete([&key(pairs / 2)[..], &key(number as u64)].concat())
        }),
    )?;
    add(
        "range delete",
        median(1001, |number| map.delete_range(somewhere(number)..somewhere(number))),
    )?;
    add("append", median(1001, |_| map.append("append", [7; 100]).map(drop)))?;
    add("add", median(1001, |_| map.add("counter", 1).map(drop)))?;
    add(
        "update",
        median(1001, |_| map.update("updated", |_| Some(vec![7; 100])).map(drop)),
    )?;
    add("pop of the first pair", median(1001, |_| map.pop_first().map(drop)))?;
    add("pop of the last pair", median(1001, |_| map.pop_last().map(drop)))?;
    add(
        "transaction of ten puts",
        median(301, |number| {
            store.transact(|tx| (0..10).try_for_each(|put| tx.put(map, key(number as u64 * 10 + put), [7; 100])))
        }),
    )?;
    add("count of all", median(5, |_| map.count().map(drop)))?;
    add("opening a map", median(1001, |_| store.map("map").map(drop)))?;
    Ok(costs)
}

fn ten(snapshot: &Snapshot, map: &Map, from: [u8; 8]) -> Result<()> {
    for pair in snapshot.range(map, from..)?.into_iter().take(10) {
        pair?;
    }
    Ok(())
}

/// Creates the past of a store, and returns the snapshots that must stay alive.
type History = fn(&Store, &Map, u64) -> Result<Vec<Snapshot>>;

const HISTORIES: &[(&str, History)] = &[
    ("nothing is folded", |store, map, pairs| {
        fill(store, map, pairs / 10)?;
        Ok(Vec::new())
    }),
    ("the first half deleted one by one", |_, map, pairs| {
        (0..pairs / 2).try_for_each(|number| map.delete(key(number)))?;
        Ok(Vec::new())
    }),
    ("every second pair deleted", |_, map, pairs| {
        (0..pairs / 2).try_for_each(|number| map.delete(key(number * 2)))?;
        Ok(Vec::new())
    }),
    ("a tenth of the pairs deleted by ranges of nine", |_, map, pairs| {
        (0..pairs / 100).try_for_each(|range| map.delete_range(key(range * 90)..key(range * 90 + 9)))?;
        Ok(Vec::new())
    }),
    ("one pair overwritten again and again", |_, map, pairs| {
        (0..pairs / 10).try_for_each(|_| map.put(key(pairs / 2), [8; 100]))?;
        Ok(Vec::new())
    }),
    (
        "a thousand snapshots are open, with commits between",
        |store, map, pairs| {
            let open = |number| {
                map.put(key(pairs + number), [7; 100])?;
                store.snapshot()
            };
            (0..1000).map(open).collect()
        },
    ),
    ("a thousand maps made and dropped", |store, _, _| {
        for number in 0..1000 {
            store.map(&format!("map {number}"))?.put("key", "value")?;
            store.maps().drop(&format!("map {number}"))?;
        }
        Ok(Vec::new())
    }),
    ("the first half popped by one transaction", |store, map, pairs| {
        store.transact(|tx| (0..pairs / 2).try_for_each(|_| tx.pop_first(map).map(drop)))?;
        Ok(Vec::new())
    }),
];

/// Prints the table, as Markdown.
pub fn main() -> Result<()> {
    let pairs = std::env::args().nth(1).and_then(|pairs| pairs.parse().ok());
    let pairs = pairs.unwrap_or(1_000_000);
    let (store, map) = filled(pairs)?;
    let fresh = costs(&store, &map, pairs)?;
    let mut table: Vec<String> = fresh
        .iter()
        .map(|(name, cost)| format!("| {name} | {cost:.1?} |"))
        .collect();
    let mut head = "| operation | without it |".to_string();
    for (name, history) in HISTORIES {
        eprintln!("{name}");
        let (store, map) = filled(pairs)?;
        let kept = history(&store, &map, pairs)?;
        head += &format!(" {name} |");
        for ((row, (_, cost)), (_, base)) in table.iter_mut().zip(costs(&store, &map, pairs)?).zip(&fresh) {
            *row += &format!(" {:.1} |", cost.as_secs_f64() / base.as_secs_f64());
        }
        drop(kept);
    }
    println!("{head}\n|{}", "---|".repeat(HISTORIES.len() + 2));
    table.iter().for_each(|row| println!("{row}"));
    Ok(())
}
