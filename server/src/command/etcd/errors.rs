//! The errors of etcd, with its codes and texts: its clients compare the texts.

use duramen_proto::command::Refusal;
use tonic::{Code, Status};

use crate::error::{of_refusal, reason_of};
use crate::refusal::refused;

/// An error of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EtcdError {
    EmptyKey,
    KeyNotFound,
    ValueProvided,
    LeaseProvided,
    TooManyOperations,
    DuplicateKey,
    InvalidSort,
    Compacted,
    FutureRevision,
    NoSpace,
    LeaseNotFound,
    LeaseExists,
    TtlTooLarge,
    RequestTooLarge,
    TooManyRequests,
    AuthNotEnabled,
    AuthFailed,
    PermissionDenied,
    NoInflightDowngrade,
    BadLeaderTransferee,
    Stopped,
}

impl EtcdError {
    /// Code, stable reason and text.
    fn parts(self) -> (Code, &'static str, &'static str) {
        match self {
            EtcdError::EmptyKey => (Code::InvalidArgument, "EMPTY_KEY", "etcdserver: key is not provided"),
            EtcdError::KeyNotFound => (Code::InvalidArgument, "KEY_NOT_FOUND", "etcdserver: key not found"),
            EtcdError::ValueProvided => (Code::InvalidArgument, "VALUE_PROVIDED", "etcdserver: value is provided"),
            EtcdError::LeaseProvided => (Code::InvalidArgument, "LEASE_PROVIDED", "etcdserver: lease is provided"),
            EtcdError::TooManyOperations => (
                Code::InvalidArgument,
                "TOO_MANY_OPERATIONS",
                "etcdserver: too many operations in txn request",
            ),
            EtcdError::DuplicateKey => (
                Code::InvalidArgument,
                "DUPLICATE_KEY",
                "etcdserver: duplicate key given in txn request",
            ),
            EtcdError::InvalidSort => (Code::InvalidArgument, "INVALID_SORT", "etcdserver: invalid sort option"),
            EtcdError::Compacted => (
                Code::OutOfRange,
                "COMPACTED",
                "etcdserver: mvcc: required revision has been compacted",
            ),
            EtcdError::FutureRevision => (
                Code::OutOfRange,
                "FUTURE_REVISION",
                "etcdserver: mvcc: required revision is a future revision",
            ),
            EtcdError::NoSpace => (
                Code::ResourceExhausted,
                "NO_SPACE",
                "etcdserver: mvcc: database space exceeded",
            ),
            EtcdError::LeaseNotFound => (
                Code::NotFound,
                "LEASE_NOT_FOUND",
                "etcdserver: requested lease not found",
            ),
            EtcdError::LeaseExists => (
                Code::FailedPrecondition,
                "LEASE_EXISTS",
                "etcdserver: lease already exists",
            ),
            EtcdError::TtlTooLarge => (Code::OutOfRange, "TTL_TOO_LARGE", "etcdserver: too large lease TTL"),
            EtcdError::RequestTooLarge => (
                Code::InvalidArgument,
                "REQUEST_TOO_LARGE",
                "etcdserver: request is too large",
            ),
            EtcdError::TooManyRequests => (Code::ResourceExhausted, "OVERLOADED", "etcdserver: too many requests"),
            EtcdError::AuthNotEnabled => (
                Code::FailedPrecondition,
                "AUTH_NOT_ENABLED",
                "etcdserver: authentication is not enabled",
            ),
            EtcdError::AuthFailed => (
                Code::InvalidArgument,
                "AUTH_FAILED",
                "etcdserver: authentication failed, invalid user ID or password",
            ),
            EtcdError::PermissionDenied => (
                Code::PermissionDenied,
                "PERMISSION_DENIED",
                "etcdserver: permission denied",
            ),
            EtcdError::NoInflightDowngrade => (
                Code::FailedPrecondition,
                "NO_INFLIGHT_DOWNGRADE",
                "etcdserver: no inflight downgrade job",
            ),
            EtcdError::BadLeaderTransferee => (
                Code::FailedPrecondition,
                "BAD_LEADER_TRANSFEREE",
                "etcdserver: bad leader transferee",
            ),
            EtcdError::Stopped => (Code::Unavailable, "STOPPING", "etcdserver: server stopped"),
        }
    }

    /// The refusal of a command.
    pub(crate) fn refusal(self) -> Refusal {
        let (code, reason, text) = self.parts();
        refused(code, reason, text)
    }
}

impl From<EtcdError> for Status {
    fn from(error: EtcdError) -> Status {
        of_refusal(&error.refusal())
    }
}

/// A status of the server as etcd gives it. What etcd does not know stays as it is.
pub(crate) fn of_etcd(status: Status) -> Status {
    let error = match &reason_of(&status)[..] {
        "COMPACTED" => EtcdError::Compacted,
        "FUTURE_REVISION" => EtcdError::FutureRevision,
        "LEASE_NOT_FOUND" => EtcdError::LeaseNotFound,
        "LEASE_EXISTS" => EtcdError::LeaseExists,
        "NO_SPACE" | "QUOTA_REACHED" => EtcdError::NoSpace,
        "OVERLOADED" => EtcdError::TooManyRequests,
        "PERMISSION_DENIED" => EtcdError::PermissionDenied,
        "STOPPING" => EtcdError::Stopped,
        _ => return status,
    };
    error.into()
}
