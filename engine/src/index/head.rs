//! Heads: a few bytes of every key kept in the nodes, so that a search reads full keys (in the log, a cache miss each)
//! only where heads are equal.
//!
//! A head is the eight bytes of the key that follow the first `skip`, big-endian, so that integers compare as keys do.
//! The bytes skipped are those that the keys of the node share; otherwise a long common prefix would make all heads
//! equal. That a key shares them is known in two ways:
//! - the first `sure` bytes: both fences of the node (the separators left and right of it) share them, hence every key
//!   that a descent brings to the node does;
//! - the bytes `sure..skip`: the keys that were in the node when it was built share them (a node at the edge has only
//!   one fence, the root none). Any other key is found out by comparing it with one of those keys and gets the least
//!   or the greatest head.
//!
//! Invariant, all that searches rely on: `a <= b` implies `head(a) <= head(b)`. Equal heads say nothing.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::Keys;
use super::arena::NONE;

/// How the heads of one node are taken from keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) skip: u16,
    pub(super) sure: u16,
    /// Position of a key whose first `skip` bytes are those that are skipped; unused when `skip <= sure`.
    pub(super) prefix: u32,
}

/// The keys between which all keys of a node lie: `lower <= key < upper`; `NONE` where there is no fence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fences {
    pub(super) lower: u32,
    pub(super) upper: u32,
}

impl Fences {
    pub(super) fn new(lower: u32, upper: u32) -> Fences {
        Fences { lower, upper }
    }
}

impl Frame {
    pub(super) const WHOLE: Frame = Frame {
        skip: 0,
        sure: 0,
        prefix: NONE,
    };

    /// The frame for a node between `fences` whose heads are `head_bytes` long; `least` and `greatest` are two keys
    /// that show what the node's keys look like.
    pub(super) fn between<'a, K: Keys<'a>>(
        keys: K,
        fences: Fences,
        (least, greatest): (u32, u32),
        head_bytes: usize,
    ) -> Frame {
        let sure = match fences {
            Fences { lower: NONE, .. } | Fences { upper: NONE, .. } => 0,
            Fences { lower, upper } => shared_bytes(keys.key(lower), keys.key(upper)),
        };
        let seen = if least == NONE || greatest == NONE || least == greatest {
            0
        } else {
            shared_bytes(keys.key(least), keys.key(greatest))
        };
        // Only when the sure bytes leave heads that are all equal is it worth a comparison with a key in the log.
        let skip = if seen >= sure + head_bytes { seen } else { sure };
        Frame {
            skip: skip as u16,
            sure: sure as u16,
            prefix: greatest,
        }
    }

    /// The frame for a node that takes over heads made by this frame while `wanted` would suit it best: this one's skip
    /// with what is sure now, unless heads would gain `gain_min` bytes or more. Taking them again costs a read in the
    /// log for every key.
    pub(super) fn kept_for(self, wanted: Frame, gain_min: usize) -> Option<Frame> {
        let gain = wanted.skip.saturating_sub(self.skip) as usize;
        let is_kept = self.is_sure() && wanted.is_sure() && gain < gain_min;
        is_kept.then_some(Frame {
            skip: self.skip,
            ..wanted
        })
    }

    /// Whether every key of the node is known to share what is skipped.
    pub(super) fn is_sure(self) -> bool {
        self.skip <= self.sure
    }

    #[inline]
    pub(super) fn head<'a, K: Keys<'a>>(self, keys: K, key: &[u8]) -> u64 {
        let skip = self.skip as usize;
        if !self.is_sure() {
            // Shorter than it was when the log shows other bytes there than were written: then nothing equals it.
            let prefix = keys.key(self.prefix);
            let prefix = &prefix[..skip.min(prefix.len())];
            match key[..key.len().min(skip)].cmp(prefix) {
                Ordering::Less => return 0,
                Ordering::Greater => return u64::MAX,
                Ordering::Equal => {}
            }
        }
        head_after(key, skip)
    }
}

/// The eight bytes behind the first `skip`, padded with zeros.
#[inline]
fn head_after(key: &[u8], skip: usize) -> u64 {
    let Some(rest) = key.get(skip..) else { return 0 };
    if let Some(bytes) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*bytes);
    }
    match key.last_chunk::<8>() {
        // The rest is the end of the last eight bytes of the key.
        Some(bytes) if !rest.is_empty() => u64::from_be_bytes(*bytes) << (8 * (8 - rest.len())),
        Some(_) => 0,
        None => rest
            .iter()
            .zip((0..8).rev())
            .map(|(byte, place)| u64::from(*byte) << (8 * place))
            .sum(),
    }
}

fn shared_bytes(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// A frame in a node. Written before the node is published, never changed.
#[repr(C)]
pub(super) struct StoredFrame {
    skip_and_sure: AtomicU32,
    prefix: AtomicU32,
}

impl StoredFrame {
    pub(super) fn set(&self, frame: Frame) {
        self.skip_and_sure
            .store(u32::from(frame.skip) << 16 | u32::from(frame.sure), Relaxed);
        self.prefix.store(frame.prefix, Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> Frame {
        let word = self.skip_and_sure.load(Relaxed);
        Frame {
            skip: (word >> 16) as u16,
            sure: word as u16,
            prefix: self.prefix.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct List<'a>(&'a [Vec<u8>]);

    impl<'a> Keys<'a> for List<'a> {
        fn key(self, position: u32) -> &'a [u8] {
            &self.0[position as usize]
        }
    }

    #[test]
    fn heads_order_as_keys_do_wherever_the_frame_was_taken() {
        let mut random = fastrand::Rng::with_seed(3);
        for round in 0..if cfg!(miri) { 12 } else { 2000 } {
            let prefix = vec![[0, b'x', 0xFF][round % 3]; random.usize(..30)];
            let mut key = || {
                let mut key = prefix[..random.usize(..=prefix.len())].to_vec();
                key.extend((0..random.usize(..12)).map(|_| [0, 1, b'x', 0xFF][random.usize(..4)]));
                key
            };
            let mut keys: Vec<_> = (0..40).map(|_| key()).collect();
            keys.sort();
            let list = List(&keys);
            let (lower, upper) = [(NONE, 39), (0, NONE), (NONE, NONE), (0, 39)][round % 4];
            let frame = Frame::between(list, Fences::new(lower, upper), (13, 26), 4);
            let heads: Vec<_> = keys[..39].iter().map(|key| frame.head(list, key)).collect();
            assert!(heads.is_sorted(), "{frame:?} of {keys:?}");
        }
    }

    #[test]
    fn a_head_is_the_bytes_behind_those_that_are_shared() {
        let keys = [b"0123456789abcdef".to_vec(), b"0123456789zz".to_vec()];
        let sure = Frame::between(List(&keys), Fences::new(0, 1), (0, 0), 8);
        assert_eq!(
            sure,
            Frame {
                skip: 10,
                sure: 10,
                prefix: 0
            }
        );
        assert_eq!(sure.head(List(&keys), &keys[0]), u64::from_be_bytes(*b"abcdef\0\0"));
        let seen = Frame::between(List(&keys), Fences::new(NONE, 1), (0, 1), 8);
        assert_eq!(
            seen,
            Frame {
                skip: 10,
                sure: 0,
                prefix: 1
            }
        );
        assert_eq!(
            seen.head(List(&keys), b"0123456789x"),
            u64::from_be_bytes(*b"x\0\0\0\0\0\0\0")
        );
        assert_eq!(seen.head(List(&keys), b"0123"), 0);
        assert_eq!(seen.head(List(&keys), b"02"), u64::MAX);
    }
}
