//! Which call of a simulated disk goes wrong, and how.
//!
//! Only calls that change something (or make it durable) are counted: reads and maps are free, so that the N-th call
//! means the same whatever a program looks at in between.

use std::io;

/// How a call that was told to fail fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailKind {
    /// The disk is full. Only calls that need new blocks, make a file longer with `set_len` or create one can fail so;
    /// other calls pass, and the first one that can fail does. Overwriting blocks that a file has never fails so.
    NoSpace,
    /// The device reports an error.
    Io,
}

/// How long a [`SimDisk::fail`](super::SimDisk::fail) lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailSpan {
    /// One call fails.
    Once,
    /// That call and all later ones, until [`SimDisk::stop_failing`](super::SimDisk::stop_failing).
    Forever,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It succeeds.
    Whole,
    /// The process dies in it: some part may happen, the caller gets an error.
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
    /// How many more calls succeed before the disk stops.
    pub(super) stop_after: Option<u64>,
    /// Calls until the failing one, how, and for how long.
    pub(super) failure: Option<(u64, FailKind, FailSpan)>,
    /// How many more calls the process that calls just now has to live.
    pub(super) caller_lives: Option<u64>,
    is_stopped: bool,
}

impl Plan {
    /// An error once the disk has stopped.
    pub(super) fn check_running(&self) -> io::Result<()> {
        if self.is_stopped { Err(stopped()) } else { Ok(()) }
    }

    /// Counts a call; `needs_space` tells whether a full disk would stop it.
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
