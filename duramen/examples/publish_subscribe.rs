//! Topics: a subscription that continues where it stopped, and reading from any offset.
//!
//!     cargo run --release -p duramen --example publish_subscribe

use std::time::Duration;

use duramen::topic::{Start, TopicOptions, Topics};
use duramen::{Durability, Options, Result, Store};

fn open(directory: &std::path::Path) -> Result<Store> {
    Options::new().durability(Durability::Written).open(directory)
}

/// A durable subscriber receives what was published while it was away.
pub fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    for run in 0..3u32 {
        let store = open(directory.path())?;
        let topics = Topics::open(&store)?;
        let prices = topics.ensure("prices", TopicOptions::new())?;
        let texts: Vec<String> = (0..10).map(|number| format!("run {run}, price {number}")).collect();
        prices.publish_all(&texts)?;

        let reader = prices.durable("mirror", Start::Beginning)?;
        let mut subscription = reader.subscribe()?;
        let mut taken = 0;
        while let Some(messages) = subscription.next_batch(Duration::ZERO)? {
            taken += messages.len();
            reader.acknowledge_through(messages.offsets().end - 1)?;
        }
        println!("run {run}: {taken} messages");
        assert_eq!(taken, 10);
        let all = prices.read(Start::Offset(5), 1_000)?;
        assert_eq!(all.len() as u32, 10 * run + 5);
    }
    Ok(())
}
