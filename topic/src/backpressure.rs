//! Holding publishers back for a slow subscriber, in whatever process each of them is; and listing what holds them
//! back.
//!
//! A publisher waits before its commit, outside all locks, and at most for the time that the subscriber allows. While
//! no subscriber holds publishers back, they pay a load of a word that hardly ever changes. The state is in the store's
//! shared memory: see [`duramen_engine::Brake`].

use std::collections::HashSet;
use std::time::Duration;

use duramen_engine::{BrakeStatistics, HeldBack, Result};

use crate::error::{TopicError, is_deleted};
use crate::handle::{Topic, Topics};
use crate::record::Retention;

/// A subscriber counts as idle when it asks for no messages for this many times its timeout.
const IDLE_TIMEOUTS: u32 = 10;

/// A subscriber or group that can hold back the publishers of a topic: see [`Topic::holders`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A subscription with [`crate::SlowPolicy::HoldBack`].
    Subscription {
        /// PID of its process, as that process sees it: in another container the process has another PID.
        process: u32,
        /// Messages that it has not read.
        lag: u64,
        /// Publishers wait while its lag is at least this.
        max: u64,
        /// Maximum time that each publisher waits.
        timeout: Duration,
        /// Time since it last asked for messages.
        idle: Duration,
        /// Whether its process is suspended, as far as can be seen. It reads nothing until it resumes.
        is_suspended: bool,
    },
    /// The group or durable subscription with the largest lag, of a topic that keeps messages for its groups
    /// ([`crate::Retention::ProtectGroups`]).
    Group {
        /// Name of the group.
        name: String,
        /// Whether the group is paused. It acknowledges nothing new until it is resumed.
        is_paused: bool,
        /// The first message that it has not acknowledged.
        acknowledged: u64,
        /// Messages that members hold, or that wait for redelivery; 0 for a durable subscription.
        pending: u64,
        /// Bytes that the topic keeps.
        kept_bytes: u64,
        /// Average bytes of a message that the topic keeps.
        mean_bytes: u64,
        /// Maximum bytes that the topic keeps. Publishers are refused when a message does not fit.
        max_bytes: u64,
    },
}

impl Holder {
    /// Whether publishers now wait for it, or are refused. For a group: whether another message of the mean size does
    /// not fit.
    pub fn holds_now(&self) -> bool {
        match self {
            Holder::Subscription { lag, max, .. } => lag >= max,
            Holder::Group {
                kept_bytes,
                mean_bytes,
                max_bytes,
                ..
            } => kept_bytes + (*mean_bytes).max(1) > *max_bytes,
        }
    }

    /// Why this cannot end by itself, and what ends it; `None`: it may end by itself.
    pub fn stuck(&self) -> Option<String> {
        match self {
            Holder::Subscription { is_suspended: true, .. } => {
                Some("its process is suspended; let it go on, or kill it".into())
            }
            Holder::Subscription { idle, timeout, .. } if self.holds_now() && is_idle(*idle, *timeout) => {
                Some(format!(
                    "it asked for no messages for {} s; end it if it is forgotten, or give it another policy",
                    idle.as_secs()
                ))
            }
            Holder::Group { is_paused: true, .. } => Some("it is paused; resume it, or delete it".into()),
            Holder::Group { pending: 0, .. } if self.holds_now() => {
                Some("no member works on its messages; start one, or delete it".into())
            }
            Holder::Subscription { .. } | Holder::Group { .. } => None,
        }
    }
}

fn is_idle(idle: Duration, timeout: Duration) -> bool {
    idle > (timeout * IDLE_TIMEOUTS).max(Duration::from_secs(1))
}

impl Topic {
    /// Publishers call this before they commit.
    #[inline]
    pub(crate) fn wait_for_brakes(&self) -> Result<()> {
        let waited = self
            .home()
            .store
            .wait_for_brakes(self.shared().id.into(), || self.next())?;
        waited.map_err(|held| self.held_back(&held).into())
    }

    #[cold]
    fn held_back(&self, held: &HeldBack) -> TopicError {
        TopicError::PublisherHeldBack {
            topic: self.name().into(),
            process: held.by.map_or(0, |by| by.process),
            lag: held.lag,
            waited_millis: held.waited.as_millis() as u64,
            cure: self.cure(held),
        }
    }

    fn cure(&self, held: &HeldBack) -> String {
        let usual = "publish again, or give it another policy";
        let Some(by) = &held.by else { return usual.into() };
        if self.home().brake_threads.is_this_thread(by) {
            let cause = "the thread that publishes read it last, and cannot read while it waits";
            return format!("{cause}; read first, publish from another thread, or give it another policy");
        }
        subscription(by, held.lag).stuck().unwrap_or_else(|| usual.into())
    }

    /// Lists what can hold back the publishers of this topic, in all processes: subscriptions with
    /// [`crate::SlowPolicy::HoldBack`], and, if the topic keeps messages for its groups, the group with the largest
    /// lag. [`Holder::holds_now`] tells whether it does; [`Holder::stuck`] whether that cannot end by itself.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`], and those of [`duramen_engine::Store::snapshot`].
    pub fn holders(&self) -> Result<Vec<Holder>> {
        let (next, store) = (self.next()?, &self.home().store);
        let own = store.brakes()?.into_iter();
        let own = own.filter(|by| by.sequence == u64::from(self.shared().id));
        let mut holders: Vec<Holder> = own
            .map(|by| subscription(&by, next.saturating_sub(by.position)))
            .collect();
        let described = self.describe()?;
        if let Retention::ProtectGroups { max_bytes } = described.options.retention {
            let slowest = self.groups()?.into_iter().min_by_key(|group| group.acknowledged);
            holders.extend(slowest.map(|group| Holder::Group {
                name: group.name,
                is_paused: group.is_paused,
                acknowledged: group.acknowledged,
                pending: group.pending,
                kept_bytes: described.bytes,
                mean_bytes: described.bytes / described.messages().max(1),
                max_bytes,
            }));
        }
        Ok(holders)
    }
}

impl Topics {
    /// Lists what can hold back publishers, with the names of topics, and sorted by them: see [`Topic::holders`]. The
    /// cost depends on the number of topics, and on the groups of topics that keep messages for their groups.
    ///
    /// # Errors
    /// Those of [`duramen_engine::Store::snapshot`].
    pub fn holders(&self) -> Result<Vec<(String, Holder)>> {
        let home = self.home();
        let braked: HashSet<u64> = home.store.brakes()?.iter().map(|by| by.sequence).collect();
        let mut found = Vec::new();
        for (name, record) in home.records("")? {
            let record = record?;
            let protects = matches!(record.options.retention, Retention::ProtectGroups { .. });
            if !protects && !braked.contains(&u64::from(record.id)) {
                continue;
            }
            match home.topic(record.id, &name)?.holders() {
                Ok(holders) => found.extend(holders.into_iter().map(|holder| (name.clone(), holder))),
                // The topic was deleted meanwhile.
                Err(error) if is_deleted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

fn subscription(by: &BrakeStatistics, lag: u64) -> Holder {
    Holder::Subscription {
        process: by.process,
        lag,
        max: by.max,
        timeout: by.timeout,
        idle: by.idle,
        is_suspended: by.is_suspended,
    }
}
