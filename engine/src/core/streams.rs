//! What a process knows of its streams of commits: which there are, how far each has come, and what it keeps from being
//! reused.

use std::sync::{Mutex, MutexGuard, Weak};

use crate::region::{Pin, Version};

/// The streams that this process has of a store.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) followers: Mutex<Vec<Weak<Mutex<Follower>>>>,
}

impl Streams {
    pub(crate) fn list(&self) -> MutexGuard<'_, Vec<Weak<Mutex<Follower>>>> {
        self.followers.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// What a stream shares with the folding thread.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) state: State,
    /// The last commit that was delivered or skipped.
    pub(crate) position: u64,
}

#[derive(Debug)]
pub(crate) enum State {
    Following(Hold),
    /// Generations that it had yet to read are gone.
    Lost,
    /// The stream was ended by its number, from outside.
    Ended,
}

/// A pinned version, whose following generations are kept.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) pin: Pin,
    pub(crate) version: Version,
    /// The newest commit when it was pinned: the generations of the version go at least that far.
    pub(crate) commit: u64,
}
