//! What a process remembers about the options of a topic: see [`crate::admission`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::record::TopicOptions;

/// The options are known.
pub(crate) const IS_KNOWN: u32 = 1;
/// The topic may refuse messages.
pub(crate) const REFUSES: u32 = 2;
/// The topic accepts messages that expire.
pub(crate) const TAKES_EXPIRY: u32 = 4;
/// The topic keeps the newest message of each key.
pub(crate) const KEEPS_LATEST: u32 = 8;

/// What a process remembers about the options of a topic. Orderings are relaxed: a publisher that sees old values uses
/// old options, as if it had published a little earlier.
#[derive(Debug, Default)]
pub(crate) struct KnownOptions {
    pub(crate) flags: AtomicU32,
    /// The count of changes in all processes before the options were read.
    pub(crate) rings: AtomicU64,
}

impl KnownOptions {
    /// Records options that were read after the count of changes was `rings`.
    pub(crate) fn note(&self, options: &TopicOptions, rings: u64) {
        self.rings.store(rings, Ordering::Relaxed);
        self.flags.store(IS_KNOWN | flags_of(options), Ordering::Relaxed);
    }

    /// Makes the next publisher read the options: this process changed them.
    pub(crate) fn forget(&self) {
        self.flags.store(0, Ordering::Relaxed);
    }
}

pub(crate) fn flags_of(options: &TopicOptions) -> u32 {
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    flag(options.refuses(), REFUSES)
        | flag(options.message_expiry, TAKES_EXPIRY)
        | flag(options.latest_per_key, KEEPS_LATEST)
}
