//! Refusals: what a command gets that changes nothing.

use duramen::topic::TopicError;
use duramen::tree::TreeError;
use duramen::{Error, Kind, Reason};
use duramen_proto::command::Refusal;
use tonic::Code;

/// The refusal of a command that is wrong or comes at the wrong time.
pub fn refused(code: Code, reason: &str, message: impl Into<String>) -> Refusal {
    Refusal {
        code: code as u32,
        reason: reason.into(),
        message: message.into(),
    }
}

/// The refusal that an error of the store means. `None`: the error says nothing about the command; the store failed.
pub(crate) fn refusal_of(error: &Error) -> Option<Refusal> {
    if let Some(topic) = TopicError::of(error) {
        let (code, reason) = match topic {
            TopicError::UnknownTopic { .. } => (Code::NotFound, "TOPIC_NOT_FOUND"),
            TopicError::TopicExists { .. } => (Code::AlreadyExists, "TOPIC_EXISTS"),
            TopicError::InvalidName { .. } => (Code::InvalidArgument, "INVALID_TOPIC_NAME"),
            TopicError::OptionMissing { .. } => (Code::FailedPrecondition, "TOPIC_OPTION_MISSING"),
            TopicError::TopicFull { .. } => (Code::ResourceExhausted, "TOPIC_FULL"),
            TopicError::PublisherHeldBack { .. } => (Code::ResourceExhausted, "PUBLISHER_HELD_BACK"),
            TopicError::MessageTooLarge { .. } => (Code::InvalidArgument, "MESSAGE_TOO_LARGE"),
            TopicError::UnknownGroup { .. } | TopicError::GroupDeleted { .. } => (Code::NotFound, "GROUP_NOT_FOUND"),
            TopicError::GroupExists { .. } => (Code::AlreadyExists, "GROUP_EXISTS"),
            TopicError::OtherKind { .. } => (Code::FailedPrecondition, "NOT_A_GROUP"),
            TopicError::LeaseLost { .. } => (Code::Aborted, "LEASE_LOST"),
            TopicError::AlreadySettled { .. } => (Code::Aborted, "ALREADY_SETTLED"),
            TopicError::NotYetPublished { .. } => (Code::OutOfRange, "NOT_YET_PUBLISHED"),
            _ if error.kind() == Kind::FixTheCall => (Code::InvalidArgument, "INVALID_ARGUMENT"),
            _ => return None,
        };
        return Some(refused(code, reason, error.to_string()));
    }
    if let Some(tree) = TreeError::of(error) {
        let (code, reason) = match tree {
            TreeError::UnknownTree { .. } => (Code::NotFound, "TREE_NOT_FOUND"),
            TreeError::InvalidName { .. } => (Code::InvalidArgument, "INVALID_TREE_NAME"),
            TreeError::InvalidPath { .. } => (Code::InvalidArgument, "INVALID_PATH"),
            TreeError::InvalidPattern { .. } => (Code::InvalidArgument, "INVALID_PATTERN"),
            TreeError::InvalidCondition { .. } => (Code::InvalidArgument, "INVALID_CONDITION"),
            TreeError::PayloadTooLarge { .. } => (Code::InvalidArgument, "PAYLOAD_TOO_LARGE"),
            TreeError::Exists { .. } => (Code::AlreadyExists, "NODE_EXISTS"),
            TreeError::Missing { .. } => (Code::NotFound, "NODE_NOT_FOUND"),
            TreeError::Mismatch { .. } => (Code::FailedPrecondition, "NODE_MISMATCH"),
            TreeError::NotKept { .. } => (Code::FailedPrecondition, "NODE_NOT_KEPT"),
            TreeError::LeaseGone { .. } => (Code::NotFound, "LEASE_NOT_FOUND"),
            TreeError::LeaseExists { .. } => (Code::AlreadyExists, "LEASE_EXISTS"),
            TreeError::InvalidLease { .. } => (Code::InvalidArgument, "INVALID_LEASE"),
            TreeError::Compacted { .. } => (Code::OutOfRange, "COMPACTED"),
            TreeError::FutureRevision { .. } => (Code::OutOfRange, "FUTURE_REVISION"),
            TreeError::QuotaReached { .. } => (Code::ResourceExhausted, "QUOTA_REACHED"),
            TreeError::UnknownRule { .. } => (Code::NotFound, "RULE_NOT_FOUND"),
            TreeError::TriggerTopic { .. } => (Code::FailedPrecondition, "TRIGGER_TOPIC_NOT_FOUND"),
            _ if error.kind() == Kind::FixTheCall => (Code::InvalidArgument, "INVALID_ARGUMENT"),
            _ => return None,
        };
        return Some(refused(code, reason, error.to_string()));
    }
    let (code, reason) = match error.reason() {
        Reason::UnknownMap { .. } | Reason::MapDropped { .. } => (Code::NotFound, "MAP_NOT_FOUND"),
        Reason::MapExists { .. } => (Code::AlreadyExists, "MAP_EXISTS"),
        Reason::MapGuarded { .. } => (Code::FailedPrecondition, "MAP_GUARDED"),
        Reason::TopicDeleted { .. } => (Code::NotFound, "TOPIC_NOT_FOUND"),
        Reason::UnknownCheckpoint { .. } => (Code::NotFound, "CHECKPOINT_NOT_FOUND"),
        Reason::CheckpointExists { .. } => (Code::AlreadyExists, "CHECKPOINT_EXISTS"),
        Reason::NotACounter { .. } => (Code::FailedPrecondition, "NOT_A_COUNTER"),
        Reason::CounterOverflow { .. } => (Code::OutOfRange, "COUNTER_OVERFLOW"),
        // The commands of an entry share its transaction: one alone may fit.
        Reason::TransactionTooLarge { .. } => return None,
        _ if error.kind() == Kind::FixTheCall => (Code::InvalidArgument, "INVALID_ARGUMENT"),
        _ => return None,
    };
    Some(refused(code, reason, error.to_string()))
}
