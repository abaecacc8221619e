//! Which call of a simulated disk fails, and how.
//!
//! Only calls that change something, or make it durable, are counted. Reads and maps are free, so the N-th call is the
//! same whatever a program reads in between.

use std::io;

/// The failure of a call that was told to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailKind {
    /// The disk is full. Only calls that need new blocks, extend a file with `set_len` or create a file can fail this
    /// way. Other calls pass, and the first call that can fail does. Overwriting existing blocks of a file never fails
    /// this way.
    NoSpace,
    /// The device reports an error.
    Io,
}

/// Duration of a [`SimDisk::fail`](super::SimDisk::fail).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailSpan {
    /// One call fails.
    Once,
    /// The call and all later calls fail, until [`SimDisk::stop_failing`](super::SimDisk::stop_failing).
    Forever,
}

/// The outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It succeeds.
    Whole,
    /// The process dies in the call: a part may happen, and the caller gets an error.
    Stopping,
    /// It fails.
    Failing(FailKind),
}

impl Fate {
    /// The error that the caller gets.
    pub(super) fn error(self) -> io::Error {
        match self {
            Fate::Whole => unreachable!("a call that succeeds has no error"),
            Fate::Stopping => stopped(),
            Fate::Failing(FailKind::NoSpace) => no_space(),
            Fate::Failing(FailKind::Io) => io::Error::from_raw_os_error(libc::EIO),
        }
    }
}

/// The error of every call after the end of a stopped disk.
pub(super) fn stopped() -> io::Error {
    io::Error::other("stopped")
}

/// The error of a full disk.
pub(super) fn no_space() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

/// Counts calls and decides their fate.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Calls so far.
    pub(super) calls: u64,
    /// Number of calls that still succeed before the disk stops.
    pub(super) stop_after: Option<u64>,
    /// Calls until the failing call, its kind of failure, and how long the failure lasts.
    pub(super) failure: Option<(u64, FailKind, FailSpan)>,
    /// Number of calls that the calling process survives from now on.
    pub(super) caller_lives: Option<u64>,
    is_stopped: bool,
}

impl Plan {
    /// Returns an error once the disk has stopped.
    pub(super) fn check_running(&self) -> io::Result<()> {
        if self.is_stopped { Err(stopped()) } else { Ok(()) }
    }

    /// Counts a call. `needs_space`: a full disk would fail it.
    pub(super) fn next(&mut self, needs_space: bool) -> io::Result<Fate> {
        self.check_running()?;
        self.calls += 1;
        if let Some(left) = &mut self.stop_after {
            if *left == 0 {
                self.is_stopped = true;
                return Ok(Fate::Stopping);
            }
            *left -= 1;
        }
        if let Some(left) = self.caller_lives {
            self.caller_lives = left.checked_sub(1);
            if left == 0 {
                return Ok(Fate::Stopping);
            }
        }
        Ok(self.next_failure(needs_space))
    }

    fn next_failure(&mut self, needs_space: bool) -> Fate {
        let Some((left, kind, span)) = &mut self.failure else {
            return Fate::Whole;
        };
        *left = left.saturating_sub(1);
        if *left > 0 || (*kind == FailKind::NoSpace && !needs_space) {
            return Fate::Whole;
        }
        let fate = Fate::Failing(*kind);
        if *span == FailSpan::Once {
            self.failure = None;
        }
        fate
    }
}
