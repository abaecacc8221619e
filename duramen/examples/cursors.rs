//! Cursors on a map: ranges, prefixes, both directions, and one snapshot while other threads write.
//!
//!     cargo run --release -p duramen --example cursors

use duramen::{Result, Store};

/// Prints the newest and the oldest log lines of a host.
pub fn main() -> Result<()> {
    let store = Store::temporary()?;
    let lines = store.map("lines")?;
    let key = |host: &str, second: u64| [host.as_bytes(), b"/", &second.to_be_bytes()].concat();
    for second in 0..100 {
        lines.put(key("alpha", second), format!("alpha says {second}"))?;
        lines.put(key("beta", second), format!("beta says {second}"))?;
    }
    let snapshot = store.snapshot()?;

    for pair in snapshot.prefix(&lines, "beta/")?.rev().take(3) {
        let (_, line) = pair?;
        println!("{}", String::from_utf8_lossy(&line));
    }
    let in_range = snapshot.range(&lines, key("alpha", 10)..key("alpha", 20))?.iter();
    assert_eq!(in_range.count(), 10);
    assert_eq!(snapshot.count(&lines, ..key("alpha", 50))?, 50);

    // The snapshot does not change, whatever is written.
    lines.clear()?;
    let mut cursor = snapshot.range(&lines, ..)?;
    cursor.seek(key("alpha", 99))?;
    assert_eq!(cursor.next()?.expect("the last line of alpha").1, "alpha says 99");
    assert_eq!(cursor.next()?.expect("the first line of beta").1, "beta says 0");
    assert_eq!(cursor.prev()?.expect("it again").1, "beta says 0");
    assert!(lines.is_empty()?);
    Ok(())
}
