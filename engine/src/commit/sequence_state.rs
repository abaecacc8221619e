//! What is stored of a sequence beside its messages, and where those who append find it. How sequences work is told in
//! `api/sequence`.

use std::sync::Arc;

use crate::core::bell::Bell;
use crate::error::{Error, Result};
use crate::index::KeptFingers;

/// Bytes at the front of a head that the commit fills in.
pub const STAMP_BYTES: usize = 16;

/// Bytes of a counter.
pub(crate) const STATE_BYTES: usize = 24;

/// What an append got from the commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Its place in the sequence, counting from 0.
    pub number: u64,
    /// Milliseconds since 1970 in UTC; never less than that of an append before it.
    pub time: u64,
}

/// How far a sequence has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceState {
    /// Number of the next append.
    pub next: u64,
    /// Time of the newest append; 0 before the first.
    pub time: u64,
    /// Bytes of all appends so far.
    pub bytes: u64,
}

impl SequenceState {
    pub(crate) fn encode(self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        bytes[..8].copy_from_slice(&self.next.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.time.to_be_bytes());
        bytes[16..].copy_from_slice(&self.bytes.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SequenceState> {
        let words = bytes.as_chunks::<8>();
        let ([next, time, bytes], []) = words else {
            return Err(Error::damaged("the counter of a topic has the wrong length"));
        };
        Ok(SequenceState {
            next: u64::from_be_bytes(*next),
            time: u64::from_be_bytes(*time),
            bytes: u64::from_be_bytes(*bytes),
        })
    }

    /// What the next append gets.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            number: self.next,
            time: self.time,
        }
    }

    /// The time and the bytes as they stand at the front of the head.
    pub(crate) fn stamp_bytes(&self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&self.time.to_be_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_be_bytes());
        bytes
    }

    pub(crate) fn advance(&mut self, bytes: u64) {
        self.next += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Where a sequence is, for those who append to it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) prefix: Arc<[u8]>,
    /// Full key of the counter.
    pub(crate) counter: Box<[u8]>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) fingers: KeptFingers,
}
