//! Errors of calls: a kind that says what to do, the server's stable reason, and a message with cause and cure.

use std::fmt;
use std::time::Duration;

use tonic::{Code, ConnectError, Status};
use tonic_types::StatusExt;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure an [`Error`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The map, topic or other object does not exist.
    NotFound,
    /// An object of this name exists.
    AlreadyExists,
    /// The request is wrong. It fails again when it is repeated.
    InvalidArgument,
    /// The state of the store does not allow the request.
    FailedPrecondition,
    /// The server has no room for the request.
    Overloaded,
    /// The client does not reach the server, or the server does not take requests now.
    Unavailable,
    /// The deadline passed before the server answered. A write did not take effect.
    DeadlineExceeded,
    /// The caller may not do this.
    PermissionDenied,
    /// The server does not know the caller.
    Unauthenticated,
    /// The store is damaged.
    DataLoss,
    /// The server or the client has a defect.
    Internal,
    /// A write may have taken effect, or may take effect yet. The server's answer did not arrive.
    UnknownOutcome,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// A stable name for programs, such as `MAP_NOT_FOUND`. Names of the client itself: `NOT_CONNECTED`,
    /// `CONNECTION_LOST`, `DEADLINE`, `PUBLISHER_ENDED`, `BAD_ADDRESS`, `BAD_TLS`,
    /// `BAD_TOKEN`, `BAD_RESPONSE`.
    pub reason: String,
    /// Cause and cure, for people.
    pub message: String,
    /// How long the server asks the client to wait before it repeats the request.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.reason)
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn new(kind: ErrorKind, reason: &str, message: impl Into<String>) -> Error {
        Error {
            kind,
            reason: reason.into(),
            message: message.into(),
            retry_after: None,
        }
    }

    /// The error of an answer in a stream that goes on.
    pub(crate) fn of_answer(code: u32, reason: String, message: String) -> Error {
        Error {
            reason,
            ..Error::new(kind_of(Code::from_i32(code as i32)), "", message)
        }
    }

    pub(crate) fn connection_lost(message: &str) -> Error {
        Error::new(ErrorKind::Unavailable, "CONNECTION_LOST", message)
    }

    /// The error of a response that lacks a field.
    pub(crate) fn bad_response() -> Error {
        let message = "the server's response lacks its result; use a client and a server of one version";
        Error::new(ErrorKind::Internal, "BAD_RESPONSE", message)
    }

    /// Whether a repeated request may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self.kind {
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded => true,
            ErrorKind::Overloaded => self.retry_after.is_some(),
            _ => false,
        }
    }
}

/// A failed attempt of a call.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the server may have received the request.
    pub(crate) was_sent: bool,
    /// Whether a write may have taken effect.
    pub(crate) is_unknown: bool,
}

impl Failure {
    /// What a status means. A status of the server's services carries a reason; other ones come from the transport.
    pub(crate) fn of(status: &Status) -> Failure {
        let info = status.get_details_error_info();
        let mut error = Error {
            kind: kind_of(status.code()),
            reason: info
                .as_ref()
                .map_or_else(|| status.code().to_string(), |info| info.reason.clone()),
            message: status.message().into(),
            retry_after: status.get_details_retry_info().and_then(|retry| retry.retry_delay),
        };
        if is_connect_error(status) {
            (error.kind, error.reason) = (ErrorKind::Unavailable, "NOT_CONNECTED".into());
            error.message = format!("the client cannot connect: {}", chain(status));
        } else if info.is_none() && is_broken_connection(status) {
            (error.kind, error.reason) = (ErrorKind::Unavailable, "CONNECTION_LOST".into());
            error.message = format!("the connection broke: {}", chain(status));
        }
        // A server that stops has done nothing for the request.
        let stops = matches!(&error.reason[..], "STOPPING" | "STORE_RESTORED");
        let was_sent = !is_connect_error(status) && !stops;
        let is_unknown = was_sent && matches!(error.kind, ErrorKind::Unavailable | ErrorKind::UnknownOutcome);
        Failure {
            error,
            was_sent,
            is_unknown,
        }
    }
}

fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::InvalidArgument,
        Code::FailedPrecondition | Code::Aborted => ErrorKind::FailedPrecondition,
        Code::ResourceExhausted => ErrorKind::Overloaded,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Code::PermissionDenied => ErrorKind::PermissionDenied,
        Code::Unauthenticated => ErrorKind::Unauthenticated,
        Code::DataLoss => ErrorKind::DataLoss,
        Code::Unknown | Code::Cancelled => ErrorKind::UnknownOutcome,
        Code::Ok | Code::Internal | Code::Unimplemented => ErrorKind::Internal,
    }
}

fn sources(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(status), |error| error.source())
}

fn is_connect_error(status: &Status) -> bool {
    sources(status).any(|error| error.is::<ConnectError>())
}

/// The transport attaches its own error as the source. A deadline that the server notices first arrives as CANCELLED.
fn is_broken_connection(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
        || matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
        )
}

/// The messages of a status and its sources, without repetitions.
fn chain(status: &Status) -> String {
    let mut text = status.message().to_string();
    for error in sources(status) {
        let message = error.to_string();
        // A status as a source repeats itself with its metadata.
        if !error.is::<Status>() && !text.contains(&message) {
            text = if text.is_empty() {
                message
            } else {
                format!("{text}: {message}")
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    fn failure(code: Code, reason: &str, retry_after: Option<Duration>) -> Failure {
        let mut details = ErrorDetails::with_error_info(reason, "duramen", HashMap::<String, String>::new());
        if retry_after.is_some() {
            details.set_retry_info(retry_after);
        }
        Failure::of(&Status::with_error_details(code, "text", details))
    }

    #[test]
    fn a_full_queue_is_transient_and_a_full_disk_is_not() {
        let pause = Some(Duration::from_millis(20));
        let queue = failure(Code::ResourceExhausted, "OVERLOADED", pause);
        assert_eq!(
            (queue.error.kind, queue.error.retry_after),
            (ErrorKind::Overloaded, pause)
        );
        assert!(queue.error.is_transient() && !queue.is_unknown);
        let disk = failure(Code::ResourceExhausted, "NO_SPACE", None);
        assert!(!disk.error.is_transient() && !disk.is_unknown);
    }

    #[test]
    fn a_server_that_stops_leaves_the_outcome_open_and_a_refusal_does_not() {
        let unanswered = failure(Code::Unavailable, "UNANSWERED", None);
        assert!(unanswered.error.is_transient() && unanswered.is_unknown && unanswered.was_sent);
        let refused = failure(Code::Unavailable, "STOPPING", None);
        assert!(refused.error.is_transient() && !refused.is_unknown && !refused.was_sent);
        let synced = failure(Code::Unknown, "NOT_SYNCED", None);
        assert_eq!(synced.error.kind, ErrorKind::UnknownOutcome);
        assert!(!synced.error.is_transient() && synced.is_unknown);
        let refused = failure(Code::NotFound, "MAP_NOT_FOUND", None);
        assert!(!refused.error.is_transient() && !refused.is_unknown);
    }

    #[test]
    fn a_status_without_a_reason_comes_from_the_transport() {
        for code in [Code::Unavailable, Code::Unknown, Code::Cancelled] {
            let broken = Failure::of(&Status::new(code, "reset"));
            assert_eq!(broken.error.reason, "CONNECTION_LOST");
            assert!(broken.error.is_transient() && broken.is_unknown);
        }
    }
}
