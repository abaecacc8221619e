//! The watches of trees that clients have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duramen::tree::TreeWatches;
use duramen_proto::v1::WatchInfo;

/// The streams of watches of a server.
#[derive(Default)]
pub(crate) struct Watchers {
    streams: Mutex<HashMap<u64, Arc<Stream>>>,
}

/// What a stream watches.
pub(crate) struct Stream {
    pub(crate) tree: String,
    principal: String,
    watches: Mutex<Watches>,
}

/// The watches of a stream.
pub(crate) struct Watches {
    pub(crate) set: TreeWatches,
    /// When each began, in milliseconds since 1970.
    pub(crate) since: HashMap<u64, u64>,
}

impl Stream {
    /// A stream that watches nothing yet.
    pub(crate) fn new(tree: &str, principal: &str, set: TreeWatches) -> Stream {
        let since = HashMap::new();
        Stream {
            tree: tree.into(),
            principal: principal.into(),
            watches: Mutex::new(Watches { set, since }),
        }
    }

    pub(crate) fn watches(&self) -> MutexGuard<'_, Watches> {
        locked(&self.watches)
    }
}

impl Watchers {
    /// Adds a stream under its number.
    pub(crate) fn add(&self, number: u64, stream: Arc<Stream>) {
        locked(&self.streams).insert(number, stream);
    }

    /// Forgets a stream.
    pub(crate) fn remove(&self, number: u64) {
        locked(&self.streams).remove(&number);
    }

    /// The watches of a tree whose newest revision is this one.
    pub(crate) fn list(&self, tree: &str, newest: u64) -> Vec<WatchInfo> {
        let mut watches = Vec::new();
        let streams = locked(&self.streams);
        for (number, stream) in streams.iter().filter(|(_, stream)| stream.tree == tree) {
            let of_stream = locked(&stream.watches);
            for (watch, since_ms) in &of_stream.since {
                let next = of_stream.set.resume_from(*watch).unwrap_or(0);
                let revision = next.saturating_sub(1);
                watches.push(WatchInfo {
                    stream: *number,
                    watch: *watch,
                    principal: stream.principal.clone(),
                    nodes: of_stream
                        .set
                        .selection(*watch)
                        .map(ToString::to_string)
                        .unwrap_or_default(),
                    since_ms: *since_ms,
                    revision,
                    lag: newest.saturating_sub(revision),
                });
            }
        }
        watches.sort_unstable_by_key(|info| (info.since_ms, info.stream, info.watch));
        watches
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
