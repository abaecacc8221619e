//! Errors as clients get them: a status code of gRPC, a message with cause and cure, and details for programs in the
//! standard form of `google.rpc` (`ErrorInfo` with a stable reason, `RetryInfo` where a retry makes sense).

use std::collections::HashMap;
use std::time::Duration;

use duramen::{Error, Kind, Reason};
use duramen_proto::command::Refusal;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::refusal::refusal_of;

/// Who says so, in `ErrorInfo`.
const DOMAIN: &str = "duramen";

/// A status with a stable reason.
pub fn status(code: Code, reason: &str, message: impl Into<String>) -> Status {
    let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::<String, String>::new());
    Status::with_error_details(code, message, details)
}

/// As [`status`], with the time after which the request may be repeated.
pub fn with_retry(code: Code, reason: &str, message: impl Into<String>, after: Duration) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::<String, String>::new());
    details.set_retry_info(Some(after));
    Status::with_error_details(code, message, details)
}

/// The stable reason of a status; empty: it has none.
pub fn reason_of(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.map_or_else(String::new, |info| info.reason)
}

/// The request itself is wrong.
pub fn invalid(message: impl Into<String>) -> Status {
    status(Code::InvalidArgument, "INVALID_ARGUMENT", message)
}

/// The server stops. It did nothing for the request.
pub fn stopping() -> Status {
    let message = "the server stops; connect again, and repeat the request";
    with_retry(Code::Unavailable, "STOPPING", message, Duration::from_millis(200))
}

/// Another process put the store back to a checkpoint, so the server ends. It did nothing for the request.
fn restored() -> Status {
    let message = "the store was put back to a checkpoint, so this server ends; start it again, and repeat the request";
    with_retry(Code::Unavailable, "STORE_RESTORED", message, Duration::from_millis(200))
}

/// Whether the store was put back to a checkpoint since the server opened it.
pub fn is_of_a_restore(error: &Error) -> bool {
    matches!(error.reason(), Reason::Restored)
}

/// The server stopped before it knew the outcome of a request.
pub fn unanswered() -> Status {
    let message = "the server stopped before it could answer; what was requested may have happened";
    with_retry(Code::Unavailable, "UNANSWERED", message, Duration::from_millis(200))
}

/// Too much is queued.
pub fn overloaded() -> Status {
    with_retry(
        Code::ResourceExhausted,
        "OVERLOADED",
        "the server has more writes in its queue than it may hold; wait and repeat the request",
        Duration::from_millis(20),
    )
}

/// The status of a command that was refused.
pub fn of_refusal(refusal: &Refusal) -> Status {
    status(
        Code::from_i32(refusal.code as i32),
        &refusal.reason,
        refusal.message.clone(),
    )
}

/// The write is committed, and it is not known whether it survives a power cut.
pub fn not_synced(error: &Error) -> Status {
    status(Code::Unknown, "NOT_SYNCED", error.to_string())
}

/// The status of an error of the store.
pub fn failed(error: &Error) -> Status {
    if error.is_of_a_made_commit() {
        return status(Code::Unknown, "OUTCOME_UNKNOWN", error.to_string());
    }
    if let Some(refusal) = refusal_of(error) {
        return of_refusal(&refusal);
    }
    let message = error.to_string();
    match error.kind() {
        Kind::FixTheCall => invalid(message),
        Kind::Retry => with_retry(Code::Unavailable, "BUSY", message, Duration::from_millis(100)),
        Kind::MakeSpace => status(Code::ResourceExhausted, "NO_SPACE", message),
        Kind::Damaged => status(Code::DataLoss, "DAMAGED", message),
        Kind::Reopen if is_of_a_restore(error) => restored(),
        Kind::Reopen => status(Code::Internal, "STORE_STOPPED", message),
        Kind::Closed => match error.reason() {
            Reason::SnapshotEnded => status(Code::Aborted, "SNAPSHOT_ENDED", message),
            _ => stopping(),
        },
        Kind::Lost => status(Code::Aborted, "LOST", message),
        _ => status(Code::Internal, "INTERNAL", message),
    }
}
