//! Durable publish/subscribe in the same transactions as the maps of a Duramen store.
//!
//! Programs use it through the `duramen` crate. A topic is a sequence of messages in the engine's one ordered map, and
//! the state of groups is pairs in it too. So one commit covers maps, messages and acknowledgements, one recovery
//! restores all of them, and this crate has no separate files. `docs/internals/topics.md` explains how it works.
//!
//! Modules are declared bottom first, and each uses those above it. The exceptions are `topic` and `topics`, which hold
//! the parts together; the modules that work on them use them too.

mod limits;

mod error;

mod bytes;
mod time;

mod message;
mod name;
mod record;
mod tables;

mod index;

mod messages;
mod read;

mod alarm;
mod listening;
mod presence;

mod admission;
mod brake;
mod delayed;
mod ids;
mod publisher;
mod sparse;

mod retention;

mod batches;
mod follower;
mod subscription;
mod watched;

mod dispatch;
mod group;
mod many;

mod keeper;
mod registry;
mod rubbish;
mod topic;
mod topics;

mod salvage;

pub use batches::{BatchStream, Batches};
pub use brake::Holder;
pub use delayed::{Scheduled, ScheduledMessages};
pub use dispatch::{Dispatcher, DispatcherOptions, DispatcherReport, Stuck, SubscriberId};
pub use error::{LeaseEnd, TopicError};
pub use follower::{SlowPolicy, SubscribeOptions};
pub use group::{
    DeadLetter, DeadLetters, Deliveries, Delivery, DeliveryStream, Durable, DurablePattern, DurablePosition, Filter,
    Group, GroupDescription, GroupOptions, KeepAlive, Member, PatternGroup, PatternGroupDescription, PatternMember,
    Pending, Redriven,
};
pub use limits::{
    FILTER_BYTES_MAX, FILTER_HEADERS_MAX, HEADER_BYTES_MAX, HEADERS_MAX, LATEST_KEY_BYTES_MAX, MESSAGE_ID_BYTES_MAX,
    MESSAGE_KEY_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, PUBLISHER_BYTES_MAX, READ_BYTES, READ_MESSAGES,
};
pub use many::PatternSubscription;
pub use message::{Headers, Message};
pub use messages::{Messages, Received};
pub use name::Pattern;
pub use publisher::{Outcome, Publisher};
pub use read::Start;
pub use record::{Retention, TopicOptions};
pub use salvage::{SavedTopics, salvage};
pub use subscription::Subscription;
pub use topic::{Published, Ticket, Topic, TopicBatch, TopicDescription, TopicWrites};
pub use topics::{Topics, TopicsOptions};
