//! Second chapter: reading one key, many keys, ranges, and counting.

use duramen::Store;

use super::source;
use super::stage::Stage;
use super::writing::event_keys;
use crate::exit::Outcome;
use crate::text::{Notation, grouped};

const SOURCE: &str = include_str!("reading.rs");

pub fn read(stage: &mut Stage<'_>, store: &Store) -> Outcome<()> {
    let about = "Reads never wait for writers. A snapshot shows one moment, and its values are not copied: they are \
                 borrowed from the mapped file.";
    stage.chapter("Read", about)?;
    let stock = store.map("stock")?;
    shown! { stage;
        let apples = stock.get(b"apples")?;
    }
    stage.result(apples.map_or("nothing".into(), |value| {
        format!("{:?}", Notation::Escapes.show(&value))
    }))?;
    shown! { stage;
        let snapshot = store.snapshot()?;
    }
    points(stage, store, &snapshot)?;
    ranges(stage, store, &snapshot)
}

fn points(stage: &mut Stage<'_>, store: &Store, snapshot: &duramen::Snapshot) -> Outcome<()> {
    let events = store.map("events")?;
    let mut keys = event_keys();
    fastrand::shuffle(&mut keys);
    let mut found = 0;
    shown! { stage, keys.len();
        for key in &keys { // in random order
            found += snapshot.get(&events, key.as_bytes())?.is_some() as usize;
        }
    }
    stage.result(format!(
        "found {} of {}",
        grouped(found as u64),
        grouped(keys.len() as u64)
    ))
}

fn ranges(stage: &mut Stage<'_>, store: &Store, snapshot: &duramen::Snapshot) -> Outcome<()> {
    let events = store.map("events")?;
    let (mut pairs, mut bytes) = (0, 0);
    shown! { stage, pairs;
        let mut cursor = snapshot.range(&events, ..)?;
        while let Some((key, value)) = cursor.next()? {
            pairs += 1;
            bytes += key.len() + value.len();
        }
    }
    stage.result(format!("{} pairs, {} bytes", grouped(pairs), grouped(bytes as u64)))?;
    shown! { stage;
        let mut cursor = snapshot.prefix(&events, b"event/0123")?;
        cursor.seek_end();
        let last = cursor.prev()?.map(|(key, _)| key.to_vec());
    }
    stage.result(format!(
        "the last key of that prefix is {:?}",
        Notation::Escapes.show(&last.unwrap_or_default())
    ))?;
    shown! { stage;
        let count = snapshot.count(&events, &b"event/005000"[..]..)?;
    }
    stage.result(format!("{} keys from there on", grouped(count)))
}
