//! What can go wrong with topics. All errors are the store's [`Error`], so that one type goes through a closure that
//! writes to maps and topics; the facts of those that are about topics are in a [`TopicError`] inside.

use duramen_engine::{Error, Kind, Reason};

/// The facts of an error that is about topics; see [`TopicError::of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// There is no topic of this name.
    #[error("there is no topic named {name:?}; create it, or let the store create topics when they are first used")]
    UnknownTopic {
        /// The name asked for.
        name: String,
    },
    /// A topic of this name exists already.
    #[error(
        "there is already a topic named {name:?}{}; call `Topics::ensure` to apply options to it, or choose another name",
        listed(differences)
    )]
    TopicExists {
        /// The name asked for.
        name: String,
        /// Each option that differs from what was asked for: `keep_messages is 5, asked for 500`.
        differences: Vec<String>,
    },
    /// A name that no topic or group can have.
    #[error(
        "{name:?} cannot be a name: {cause} at byte {at}; names are parts joined by dots, without spaces, `*` or `>`"
    )]
    InvalidName {
        /// The name.
        name: String,
        /// Where the mistake is.
        at: usize,
        /// What is wrong there.
        cause: &'static str,
    },
    /// A pattern that makes no sense.
    #[error(
        "{pattern:?} is not a pattern: {cause} at byte {at}; `*` stands for one whole part, `>` for all parts from there on"
    )]
    InvalidPattern {
        /// The pattern.
        pattern: String,
        /// Where the mistake is.
        at: usize,
        /// What is wrong there.
        cause: &'static str,
    },
    /// Messages that retention removed, or that were lost in an accident (see `duramen salvage`).
    #[error(
        "message {asked} of topic {topic:?} is no longer kept, the first that is has offset {first}; go on from there"
    )]
    Trimmed {
        /// The topic.
        topic: String,
        /// The offset asked for.
        asked: u64,
        /// The offset of the first message that is kept, or will be.
        first: u64,
    },
    /// An offset that no message has yet.
    #[error("topic {topic:?} has no message {asked} yet, the next one gets offset {next}; start there, or at the tail")]
    NotYetPublished {
        /// The topic.
        topic: String,
        /// The offset asked for.
        asked: u64,
        /// The offset of the next message.
        next: u64,
    },
    /// A part of a message that the topic takes only with an option.
    #[error(
        "the message has {what}, and topic {topic:?} does not have the option {option}; set it, or publish without"
    )]
    OptionMissing {
        /// The topic.
        topic: String,
        /// The part.
        what: &'static str,
        /// The option, as in [`crate::TopicOptions`].
        option: &'static str,
    },
    /// A message that this call cannot publish.
    #[error("the call cannot publish the message: {cause}")]
    InvalidMessage {
        /// What is wrong, and what would do.
        cause: &'static str,
    },
    /// Something of a message is too long.
    #[error("the message has {found} {what}, and {max} is the most; {cure}")]
    MessageTooLarge {
        /// What it has too much of.
        what: &'static str,
        /// How much.
        found: u64,
        /// The most.
        max: u64,
        /// What to do instead.
        cure: &'static str,
    },
    /// A slow subscriber that wants the publisher to wait did not catch up in time.
    #[error(
        "a subscriber of {topic:?} in process {process} lies {lag} messages behind, and the publisher waited for it {waited_millis} ms; {cure}"
    )]
    PublisherHeldBack {
        /// The topic.
        topic: String,
        /// The process of the subscriber, as that sees itself; 0: the subscriber has just ended.
        process: u32,
        /// How far the subscriber lies behind.
        lag: u64,
        /// How long the publisher waited.
        waited_millis: u64,
        /// What ends the wait, and why it cannot end by itself, if it cannot.
        cure: String,
    },
    /// The topic keeps as much as it may, and deletes nothing to make room (see [`crate::TopicOptions::discard_new`] and
    /// [`crate::Retention::ProtectGroups`]).
    #[error("topic {topic:?} is full: it keeps {kept} {what}, and its option {option} allows {max}; {cure}")]
    TopicFull {
        /// The topic.
        topic: String,
        /// The option that has no room left.
        option: &'static str,
        /// What it counts.
        what: &'static str,
        /// How much of it the topic keeps.
        kept: u64,
        /// How much it may keep.
        max: u64,
        /// The group or durable subscription that is the furthest behind, where deleting messages waits for it.
        held_by: Option<String>,
        /// What makes room.
        cure: String,
    },
    /// As many subscribers hold publishers back as can.
    #[error(
        "{max} subscriptions to topics of this store hold publishers back, which is the limit of all processes; end one, or take another policy"
    )]
    TooManyHoldBack {
        /// How many there can be.
        max: usize,
    },
    /// A subscriber lies further behind than its policy allows.
    #[error(
        "the subscriber of {topic:?} lies {lag} messages behind, and its policy disconnects it after {max}; subscribe again"
    )]
    TooSlow {
        /// The topic.
        topic: String,
        /// How far it lies behind.
        lag: u64,
        /// How far it may.
        max: u64,
    },
    /// There is no group or durable subscription of this name.
    #[error("topic {topic:?} has no group or subscription named {name:?}; create it, or look at the list of groups")]
    UnknownGroup {
        /// The topic.
        topic: String,
        /// The name asked for.
        name: String,
    },
    /// There is no group over a pattern of this name.
    #[error(
        "no group over a pattern is named {name:?}; create it with `Topics::ensure_group`, or list those that exist"
    )]
    UnknownPatternGroup {
        /// The name asked for.
        name: String,
    },
    /// The name belongs to the other kind of subscriber.
    #[error("{name:?} of {topic:?} is a {found}, not a {asked}; choose another name")]
    OtherKind {
        /// The topic, or the pattern.
        topic: String,
        /// The name.
        name: String,
        /// What has the name.
        found: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// The name belongs to a durable subscription or group over another pattern.
    #[error(
        "the durable subscription or group {name:?} has the pattern {found:?}, not {asked:?}; choose another name, or delete it first"
    )]
    OtherPattern {
        /// The name.
        name: String,
        /// Its pattern.
        found: String,
        /// What was asked for.
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
        /// What has the name.
        kind: &'static str,
        /// In what it differs from what was asked for; empty: in nothing.
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
    /// The system has no thread to spare.
    #[error("the system has no thread to spare for a dispatcher; end others, or raise the limit")]
    NoThread,
    /// The message is no longer leased to this member.
    #[error("message {offset} is no longer leased to this member: {cause}; drop the work on it")]
    LeaseLost {
        /// The message.
        offset: u64,
        /// Why.
        cause: LeaseEnd,
    },
    /// The message was acknowledged, or given up, before: by this member, or by another after the lease had ended.
    #[error(
        "message {offset} was settled before, by this member or, after its lease had ended, by another; drop the work on it"
    )]
    AlreadySettled {
        /// The message.
        offset: u64,
    },
    /// An acknowledgement of what the subscription has never seen.
    #[error("offset {offset} cannot be acknowledged, the topic ends before {next}; acknowledge what was received")]
    NotReceived {
        /// The offset.
        offset: u64,
        /// The end of the topic.
        next: u64,
    },
    /// Options that contradict themselves, or ask for what cannot be.
    #[error("options of a topic or group make no sense: {cause}")]
    InvalidOptions {
        /// What is wrong, and what would do.
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
    /// The lease ended, or this member failed the message or gave it back, and the message waits to be delivered again.
    #[error("its lease ended, or it was failed or given back before, and it waits to be delivered again")]
    Waits,
    /// The group is ordered by key, and an earlier message of the key failed or was brought back: that one is delivered first.
    #[error("an earlier message of its key failed or was brought back, and is delivered first")]
    EarlierFailed,
    /// The group was reset to another place.
    #[error("the group was reset to another place")]
    Reset,
}

impl TopicError {
    /// The facts, when an error is about topics.
    pub fn of(error: &Error) -> Option<&TopicError> {
        match error.reason() {
            Reason::Above { cause, .. } => cause.downcast_ref(),
            _ => None,
        }
    }

    /// Where a reader goes on that asked for a message which is not kept.
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

/// The differences between the options of a topic and those asked for, as the end of a clause.
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
