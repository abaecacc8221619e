//! Durable publish/subscribe in the same transactions as the maps of a Duramen store.
//!
//! Programs use it through the `duramen` crate. A topic is a sequence of messages in the engine's one ordered map, and
//! the state of groups is pairs in it too. So one commit covers maps, messages and acknowledgements, one recovery
//! restores all of them, and this crate has no separate files. `docs/internals/topics.md` explains how it works.
//!
//! Modules are declared bottom first, and each imports only from those above it; `duramen/tests/suite/layers.rs` checks that.

mod limits;

mod error;
mod lock;

#[doc(hidden)]
pub mod bytes;
mod time;

mod message;
mod name;
mod record;
mod tables;

mod index;
mod messages;

mod batches;
mod listening;
mod presence;
mod timer;

mod background_thread;
mod brake_threads;
mod known_options;

mod home;

mod handle;

mod read;
mod registry;

mod description;
mod follower;
mod subscription;
mod watched;

mod dispatch;
mod group;

mod pattern_subscription;

mod ids;
mod publisher_rows;
mod sparse;

mod retention;

mod admission;
mod backpressure;

mod publish;

mod delayed;
mod publish_by_id;
mod publisher;

mod topic_writes;

mod retention_worker;

mod topics;

mod salvage;

mod restoring;

pub use backpressure::Holder;
pub use batches::{BatchStream, Batches};
pub use delayed::{Scheduled, ScheduledMessages};
pub use description::TopicDescription;
pub use dispatch::{Dispatcher, DispatcherOptions, DispatcherReport, Stuck, SubscriberId};
pub use error::{LeaseEnd, TopicError};
pub use follower::{SlowPolicy, SubscribeOptions};
pub use group::{
    DeadLetter, DeadLetters, Deliveries, Delivery, DeliveryStream, Durable, DurablePattern, DurablePosition, Filter,
    Group, GroupDescription, GroupOptions, KeepAlive, Member, PatternGroup, PatternGroupDescription, PatternMember,
    Pending, Redriven,
};
#[doc(hidden)]
pub use group::{GroupWatch, LeaseId, LeaseRequest, Leasing, RemoteLease, Verdict};
pub use handle::{Topic, Topics};
pub use limits::{
    FILTER_BYTES_MAX, FILTER_HEADERS_MAX, HEADER_BYTES_MAX, HEADERS_MAX, LATEST_KEY_BYTES_MAX, MESSAGE_ID_BYTES_MAX,
    MESSAGE_KEY_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, PUBLISHER_BYTES_MAX, READ_BYTES, READ_MESSAGES,
};
#[doc(hidden)]
pub use listening::Listening;
pub use message::{Headers, Message};
pub use messages::{Messages, Received};
pub use name::Pattern;
pub use pattern_subscription::PatternSubscription;
pub use publish::{Outcome, Published, Ticket};
pub use publisher::Publisher;
pub use read::Start;
pub use record::{Retention, TopicOptions};
pub use restoring::{MAPS, keep_ids};
pub use salvage::{SavedTopics, salvage};
pub use subscription::Subscription;
pub use topic_writes::{TopicBatch, TopicWrites};
pub use topics::TopicsOptions;
