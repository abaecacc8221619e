//! Errors of system calls.

use std::io;

use rustix::io::Errno;

/// The error for a failed system call: its kind, the call, the file, and the kernel's message.
pub(crate) fn failed(error: Errno, call: &str, name: impl std::fmt::Display) -> io::Error {
    let error = io::Error::from(error);
    let kind = match error.kind() {
        io::ErrorKind::QuotaExceeded => io::ErrorKind::StorageFull,
        io::ErrorKind::FileTooLarge => {
            return io::Error::new(io::ErrorKind::StorageFull, SizeLimit(format!("{call} {name}: {error}")));
        }
        kind => kind,
    };
    io::Error::new(kind, format!("{call} {name}: {error}"))
}

/// A file that may not grow although the disk has room.
#[derive(Debug)]
pub(crate) struct SizeLimit(pub(crate) String);

impl std::fmt::Display for SizeLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SizeLimit {}

/// Whether an error that counts as a full disk is about the size of one file: a limit of the process or of the file
/// system.
pub fn is_size_limit(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<SizeLimit>())
}
