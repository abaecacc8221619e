//! The errors of topics. All errors are the store's [`Error`], so a closure that writes to maps and topics has one
//! error type. The facts of a topic error are in a [`TopicError`] inside.

use duramen_engine::{Error, Kind, Reason};

/// The facts of a topic error; see [`TopicError::of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// No topic has this name.
    #[error("there is no topic named {name:?}; create it, or let the store create topics when they are first used")]
    UnknownTopic {
        /// The requested name.
        name: String,
    },
    /// A topic of this name exists already.
    #[error(
        "there is already a topic named {name:?}{}; call `Topics::ensure` to apply options to it, or choose another name",
        listed(differences)
    )]
    TopicExists {
        /// The requested name.
        name: String,
        /// Each option that differs from the requested options, such as `keep_messages is 5, asked for 500`.
        differences: Vec<String>,
    },
    /// A name that no topic or group can have.
    #[error(
        "{name:?} cannot be a name: {cause} at byte {at}; names are parts joined by dots, without spaces, `*` or `>`"
    )]
    InvalidName {
        /// The name.
        name: String,
        /// Byte position of the mistake.
        at: usize,
        /// Description of the mistake.
        cause: &'static str,
    },
    /// An invalid pattern.
    #[error(
        "{pattern:?} is not a pattern: {cause} at byte {at}; `*` stands for one whole part, `>` for all parts from there on"
    )]
    InvalidPattern {
        /// The pattern.
        pattern: String,
        /// Byte position of the mistake.
        at: usize,
        /// Description of the mistake.
        cause: &'static str,
    },
    /// Messages that retention deleted, or that were lost through damage (see `duramen salvage`).
    #[error(
        "message {asked} of topic {topic:?} is no longer kept, the first that is has offset {first}; go on from there"
    )]
    Trimmed {
        /// The topic.
        topic: String,
        /// The requested offset.
        asked: u64,
        /// The offset of the first message that is kept, or will be.
        first: u64,
    },
    /// An offset that no message has yet.
    #[error("topic {topic:?} has no message {asked} yet, the next one gets offset {next}; start there, or at the tail")]
    NotYetPublished {
        /// The topic.
        topic: String,
        /// The requested offset.
        asked: u64,
        /// The offset of the next message.
        next: u64,
    },
    /// A part of a message that the topic accepts only with an option.
    #[error(
        "the message has {what}, and topic {topic:?} does not have the option {option}; set it, or publish without"
    )]
    OptionMissing {
        /// The topic.
        topic: String,
        /// The part of the message.
        what: &'static str,
        /// The option, as in [`crate::TopicOptions`].
        option: &'static str,
    },
    /// A message that this call cannot publish.
    #[error("the call cannot publish the message: {cause}")]
    InvalidMessage {
        /// What is wrong, and what to do instead.
        cause: &'static str,
    },
    /// A part of the message is too large.
    #[error("the message has {found} {what}, and {max} is the most; {cure}")]
    MessageTooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The maximum.
        max: u64,
        /// What to do instead.
        cure: &'static str,
    },
    /// A slow subscriber that holds back publishers did not catch up in time.
    #[error(
        "a subscriber of {topic:?} in process {process} lies {lag} messages behind, and the publisher waited for it {waited_millis} ms; {cure}"
    )]
    PublisherHeldBack {
        /// The topic.
        topic: String,
        /// PID of the subscriber's process, as that process sees it; 0: the subscriber has just ended.
        process: u32,
        /// Lag of the subscriber in messages.
        lag: u64,
        /// Time that the publisher waited, in milliseconds.
        waited_millis: u64,
        /// What ends the wait, and why it cannot end by itself, if it cannot.
        cure: String,
    },
    /// The topic has reached its limit, and deletes nothing to make room (see [`crate::TopicOptions::discard_new`] and
    /// [`crate::Retention::ProtectGroups`]).
    #[error("topic {topic:?} is full: it keeps {kept} {what}, and its option {option} allows {max}; {cure}")]
    TopicFull {
        /// The topic.
        topic: String,
        /// The option whose limit is reached.
        option: &'static str,
        /// The unit that the option counts.
        what: &'static str,
        /// How much the topic keeps, in that unit.
        kept: u64,
        /// The limit.
        max: u64,
        /// The group or durable subscription with the largest lag, if deleting messages waits for it.
        held_by: Option<String>,
        /// How to make room.
        cure: String,
    },
    /// The maximum number of subscribers hold publishers back already.
    #[error(
        "{max} subscriptions to topics of this store hold publishers back, which is the limit of all processes; end one, or take another policy"
    )]
    TooManyHoldBack {
        /// The maximum.
        max: usize,
    },
    /// The lag of a subscriber is larger than its policy allows.
    #[error(
        "the subscriber of {topic:?} lies {lag} messages behind, and its policy disconnects it after {max}; subscribe again"
    )]
    TooSlow {
        /// The topic.
        topic: String,
        /// Lag of the subscriber in messages.
        lag: u64,
        /// Maximum lag.
        max: u64,
    },
    /// No group or durable subscription has this name.
    #[error("topic {topic:?} has no group or subscription named {name:?}; create it, or look at the list of groups")]
    UnknownGroup {
        /// The topic.
        topic: String,
        /// The requested name.
        name: String,
    },
    /// No group over a pattern has this name.
    #[error(
        "no group over a pattern is named {name:?}; create it with `Topics::ensure_group`, or list those that exist"
    )]
    UnknownPatternGroup {
        /// The requested name.
        name: String,
    },
    /// The name belongs to the other kind of subscriber.
    #[error("{name:?} of {topic:?} is a {found}, not a {asked}; choose another name")]
    OtherKind {
        /// The topic, or the pattern.
        topic: String,
        /// The name.
        name: String,
        /// The kind that has the name.
        found: &'static str,
        /// The requested kind.
        asked: &'static str,
    },
    /// The name belongs to a durable subscription or group over another pattern.
    #[error(
        "the durable subscription or group {name:?} has the pattern {found:?}, not {asked:?}; choose another name, or delete it first"
    )]
    OtherPattern {
        /// The name.
        name: String,
        /// Pattern of the existing subscription or group.
        found: String,
        /// The requested pattern.
        asked: String,
    },
    /// A group of this name exists already.
    #[error(
        "{topic:?} has a {kind} named {name:?} already{difference}; choose another name, or change it with `ensure_group`"
    )]
    GroupExists {
        /// The topic, or the pattern.
        topic: String,
        /// The name.
        name: String,
        /// The kind that has the name.
        kind: &'static str,
        /// Differences from the requested options. Empty: none.
        difference: String,
    },
    /// A group that was deleted while it was used.
    #[error("the group or durable subscription {name:?} of {topic:?} was deleted; open it again")]
    GroupDeleted {
        /// The topic, or the pattern.
        topic: String,
        /// The name.
        name: String,
    },
    /// The system has no thread left.
    #[error("the system has no thread to spare for a dispatcher; end others, or raise the limit")]
    NoThread,
    /// The message is no longer leased to this member.
    #[error("message {offset} is no longer leased to this member: {cause}; drop the work on it")]
    LeaseLost {
        /// Offset of the message.
        offset: u64,
        /// Reason for the loss.
        cause: LeaseEnd,
    },
    /// The message was acknowledged or given up before, by this member or, after its lease had ended, by another
    /// member.
    #[error(
        "message {offset} was settled before, by this member or, after its lease had ended, by another; drop the work on it"
    )]
    AlreadySettled {
        /// Offset of the message.
        offset: u64,
    },
    /// An acknowledgement of a message that the subscription has not received.
    #[error("offset {offset} cannot be acknowledged, the topic ends before {next}; acknowledge what was received")]
    NotReceived {
        /// The offset.
        offset: u64,
        /// The end of the topic.
        next: u64,
    },
    /// Options that contradict each other, or that cannot be satisfied.
    #[error("options of a topic or group make no sense: {cause}")]
    InvalidOptions {
        /// What is wrong, and what to do instead.
        cause: String,
    },
}

/// Why a message is no longer leased to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// The lease ended, and another member has the message now.
    #[error("its lease ended, and another member has it now")]
    TakenOver,
    /// The lease ended, or this member failed or released the message. It waits for redelivery.
    #[error("its lease ended, or it was failed or given back before, and it waits to be delivered again")]
    Waits,
    /// The group is ordered by key. An earlier message of the key failed or was brought back, and is delivered first.
    #[error("an earlier message of its key failed or was brought back, and is delivered first")]
    EarlierFailed,
    /// The group was reset to another position.
    #[error("the group was reset to another place")]
    Reset,
}

impl TopicError {
    /// The facts of an error, if it is a topic error.
    pub fn of(error: &Error) -> Option<&TopicError> {
        match error.reason() {
            Reason::Above { cause, .. } => cause.downcast_ref(),
            _ => None,
        }
    }

    /// The offset where a reader continues after it asked for a message that is not kept.
    pub(crate) fn trimmed_to(error: &Error) -> Option<u64> {
        match TopicError::of(error) {
            Some(TopicError::Trimmed { first, .. }) => Some(*first),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            TopicError::PublisherHeldBack { .. }
            | TopicError::TopicFull { .. }
            | TopicError::TooManyHoldBack { .. }
            | TopicError::NoThread => Kind::Retry,
            TopicError::TooSlow { .. } | TopicError::GroupDeleted { .. } => Kind::Closed,
            TopicError::LeaseLost { .. } | TopicError::AlreadySettled { .. } => Kind::Lost,
            _ => Kind::FixTheCall,
        }
    }
}

/// The differences between the options of a topic and the requested options, as the end of a clause.
fn listed(differences: &[String]) -> String {
    match differences {
        [] => String::new(),
        differences => format!(", with other options: {}", differences.join("; ")),
    }
}

/// Whether an error says that a topic was deleted.
pub(crate) fn is_deleted(error: &Error) -> bool {
    matches!(error.reason(), Reason::TopicDeleted { .. })
}

impl From<TopicError> for Error {
    fn from(error: TopicError) -> Error {
        Reason::Above {
            kind: error.kind(),
            cause: Box::new(error),
        }
        .into()
    }
}
