//! A stream of commits keeps something outside the store up to date: a cache, a search index, another system.
//!
//!     cargo run --release -p duramen --example change_stream

use std::collections::BTreeMap;
use std::time::Duration;

use duramen::{ChangesFrom, Result, Store, TypedMap};

/// Counts words by their length, using only the changes of a map.
pub fn main() -> Result<()> {
    let store = Store::temporary()?;
    let words = TypedMap::<u32, String>::new(store.map("words")?);
    let mut changes = store.changes(ChangesFrom::Now)?;
    changes.only(&[words.map()])?;

    for (number, word) in ["one", "two", "three", "four", "five"].into_iter().enumerate() {
        words.put(&(number as u32), &word.to_string())?;
    }
    words.put(&0, &"eleven".to_string())?;
    words.delete(&4)?;

    let mut by_length = BTreeMap::<usize, i64>::new();
    while let Some(commit) = changes.next(Duration::ZERO)? {
        for change in &commit.changes {
            let change = words.decode_change(change)?.expect("the stream has this map only");
            if let Some(old) = change.old {
                *by_length.entry(old.len()).or_default() -= 1;
            }
            if let Some(new) = change.new {
                *by_length.entry(new.len()).or_default() += 1;
            }
        }
    }
    by_length.retain(|_, count| *count != 0);
    println!("words by length: {by_length:?}");
    assert_eq!(by_length, BTreeMap::from([(3, 1), (4, 1), (5, 1), (6, 1)]));
    Ok(())
}
