//! First chapter: opening a store, and the ways to write.

use std::path::Path;

use duramen::{Batch, Durability, Store};

use super::source;
use super::stage::Stage;
use crate::exit::Outcome;

const SOURCE: &str = include_str!("writing.rs");

/// Number of events that are written and read one by one.
pub const EVENTS: usize = 20_000;

/// The keys of the events, in order.
pub fn event_keys() -> Vec<String> {
    (0..EVENTS).map(|number| format!("event/{number:06}")).collect()
}

pub fn write(stage: &mut Stage<'_>, directory: &Path) -> Outcome<Store> {
    let about = "A store is a directory; a map keeps keys and values, in the order of the keys. A put returns when \
                 the pair survives power loss, or, if you say so, when it survives the death of the process.";
    stage.chapter("Write", about)?;
    shown! { stage;
        let store = Store::open(directory)?;
    }
    shown! { stage;
        let stock = store.map("stock")?;
    }
    shown! { stage;
        stock.put(b"apples", b"12")?;
    }
    quickly(stage, &store)?;
    together(stage, &store)?;
    Ok(store)
}

fn quickly(stage: &mut Stage<'_>, store: &Store) -> Outcome<()> {
    let keys = event_keys();
    shown! { stage;
        let events = store.map("events")?.with_durability(Durability::Written);
    }
    shown! { stage, keys.len();
        for key in &keys {
            events.put(key.as_bytes(), b"seen")?;
        }
    }
    shown! { stage;
        store.sync()?;
    }
    Ok(())
}

fn together(stage: &mut Stage<'_>, store: &Store) -> Outcome<()> {
    let stock = store.map("stock")?;
    let (journal, totals) = (store.map("journal")?, store.map("totals")?);
    shown! { stage;
        let mut batch = Batch::new(); // all of it, or nothing
        batch.put(&stock, b"plums", b"30")?;
        batch.append(&journal, b"delivery/", b"30 plums")?;
        batch.add(&totals, b"deliveries", 1)?;
        let commit = store.write(batch)?;
    }
    let (number, assigned) = (commit.number(), commit.assigned());
    stage.result(format!(
        "commit {number}; the journal's new key ends with number {}",
        assigned[0]
    ))
}
