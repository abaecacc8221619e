//! Full keys: the id of the map, big-endian, and the user's key behind it. All maps live in one ordered tree.

use std::mem::MaybeUninit;
use std::ops::{Bound, Deref};

use crate::error::{Error, Reason, Result};
use crate::key::bounds::KeyBounds;
use crate::limits::{FULL_KEY_BYTES_MAX, KEY_BYTES_MAX, MAP_ID_BYTES};

/// The map that holds the names of all maps.
pub(crate) const CATALOG: u32 = 0;
/// The map that holds the next number of every `append` prefix.
pub(crate) const COUNTERS: u32 = 1;
/// Id of the first map of a user.
pub(crate) const FIRST_USER_MAP: u32 = 2;
/// Set in the id of a guarded map: only transactions that ask for it write there.
pub(crate) const GUARDED: u32 = 1 << 31;

/// A full key on the stack, so that reads allocate nothing.
pub(crate) struct FullKey {
    length: usize,
    bytes: MaybeUninit<[u8; FULL_KEY_BYTES_MAX]>,
}

impl FullKey {
    /// Joins a map id and a key, whose length is checked here and nowhere else.
    #[inline]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "one check of the length holds for all copies"
    )]
    pub(crate) fn new(map: u32, key: &[u8]) -> Result<FullKey> {
        check_key(key)?;
        // Made in place: a struct expression with uninitialised bytes is compiled to a copy of all of them.
        let mut full = MaybeUninit::<FullKey>::uninit();
        let place = full.as_mut_ptr();
        // SAFETY: `length` is written, `bytes` may stay uninitialised. All copies stay inside `bytes` (the length of the
        // key was checked), and the key is not part of it.
        Ok(unsafe {
            (&raw mut (*place).length).write(MAP_ID_BYTES + key.len());
            let target = (&raw mut (*place).bytes).cast::<u8>();
            target.cast::<[u8; MAP_ID_BYTES]>().write(map.to_be_bytes());
            copy_short(key, target.add(MAP_ID_BYTES));
            full.assume_init()
        })
    }
}

/// Room for a full key where it is used: one that is returned is copied, all of its kilobyte.
pub(crate) struct KeyRoom([MaybeUninit<u8>; FULL_KEY_BYTES_MAX]);

impl KeyRoom {
    #[inline(always)]
    pub(crate) fn new() -> KeyRoom {
        KeyRoom([const { MaybeUninit::uninit() }; FULL_KEY_BYTES_MAX])
    }

    /// Joins a map id and a key.
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "one check of the length holds for all copies"
    )]
    pub(crate) fn join(&mut self, map: u32, key: &[u8]) -> Result<&[u8]> {
        check_key(key)?;
        let length = MAP_ID_BYTES + key.len();
        let target = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: all copies stay inside the room, because the length of the key was checked, and the key is not part of
        // it; they write the first `length` bytes.
        Ok(unsafe {
            target.cast::<[u8; MAP_ID_BYTES]>().write(map.to_be_bytes());
            copy_short(key, target.add(MAP_ID_BYTES));
            std::slice::from_raw_parts(target, length)
        })
    }
}

impl Deref for FullKey {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the first `length` bytes were written by `new`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast::<u8>(), self.length) }
    }
}

/// Copies a key. Most have 8 to 16 bytes: for these two copies of eight bytes that may overlap, instead of a call.
///
/// # Safety
/// `key.len()` bytes from `target` on are writable and not part of `key`.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "both copies of eight bytes have one reason"
)]
unsafe fn copy_short(key: &[u8], target: *mut u8) {
    // SAFETY: every copy is as long as the key, or eight bytes at the front and eight at the end of one that has them.
    unsafe {
        match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
            (Some(first), Some(last)) if key.len() <= 16 => {
                target.cast::<[u8; 8]>().write_unaligned(*first);
                target.add(key.len() - 8).cast::<[u8; 8]>().write_unaligned(*last);
            }
            _ => std::ptr::copy_nonoverlapping(key.as_ptr(), target, key.len()),
        }
    }
}

#[cold]
fn too_long(length: usize) -> Error {
    let max = KEY_BYTES_MAX;
    Reason::KeyTooLong { length, max }.into()
}

/// Refuses keys that are too long.
#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    check_key_bytes(key.len())
}

/// Refuses keys of so many bytes if they are too long.
#[inline]
pub(crate) fn check_key_bytes(length: usize) -> Result<()> {
    if length > KEY_BYTES_MAX {
        return Err(too_long(length));
    }
    Ok(())
}

/// Refuses a prefix that leaves no room in a key for the number of an append.
pub(crate) fn check_prefix(prefix: &[u8]) -> Result<()> {
    let (length, max) = (prefix.len(), KEY_BYTES_MAX - 8);
    if length > max {
        return Err(Reason::KeyTooLong { length, max }.into());
    }
    Ok(())
}

/// Map id and user key of a full key.
pub(crate) fn split(full_key: &[u8]) -> (u32, &[u8]) {
    let (map, key) = full_key.split_at(MAP_ID_BYTES);
    (u32::from_be_bytes(map.try_into().expect("four bytes")), key)
}

/// A half-open range of full keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FullRange {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Vec<u8>,
}

impl FullRange {
    /// The keys from `low` on, to before `high`.
    pub(crate) fn between(low: &[u8], high: &[u8]) -> FullRange {
        FullRange {
            low: low.to_vec(),
            high: high.to_vec(),
        }
    }

    /// All keys of a map.
    pub(crate) fn map(map: u32) -> FullRange {
        FullRange {
            low: map.to_be_bytes().to_vec(),
            high: after_map(map),
        }
    }

    /// A map and all maps with higher numbers.
    pub(crate) fn from_map(map: u32) -> FullRange {
        FullRange {
            low: map.to_be_bytes().to_vec(),
            high: vec![0xFF; MAP_ID_BYTES + 1],
        }
    }

    /// The part of a map that `bounds` describe. Bounds longer than any key are refused like keys.
    pub(crate) fn of(map: u32, bounds: impl KeyBounds) -> Result<FullRange> {
        FullRange::from_to(map, bounds.low(), bounds.high())
    }

    fn from_to(map: u32, low: Bound<&[u8]>, high: Bound<&[u8]>) -> Result<FullRange> {
        let low = match low {
            Bound::Unbounded => map.to_be_bytes().to_vec(),
            Bound::Included(key) => FullKey::new(map, key)?.to_vec(),
            Bound::Excluded(key) => successor(&FullKey::new(map, key)?),
        };
        let high = match high {
            Bound::Unbounded => after_map(map),
            Bound::Included(key) => successor(&FullKey::new(map, key)?),
            Bound::Excluded(key) => FullKey::new(map, key)?.to_vec(),
        };
        Ok(FullRange { low, high })
    }

    /// The keys of a map that begin with `prefix`.
    pub(crate) fn prefix(map: u32, prefix: &[u8]) -> Result<FullRange> {
        let low = FullKey::new(map, prefix)?.to_vec();
        let mut high = low.clone();
        // The map id in front is never all 0xFF, because ids count up from zero.
        while high.last() == Some(&0xFF) {
            high.pop();
        }
        *high.last_mut().expect("map ids do not reach u32::MAX") += 1;
        Ok(FullRange { low, high })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.low >= self.high
    }

    pub(crate) fn contains(&self, full_key: &[u8]) -> bool {
        self.low.as_slice() <= full_key && full_key < self.high.as_slice()
    }
}

fn after_map(map: u32) -> Vec<u8> {
    (map + 1).to_be_bytes().to_vec()
}

/// The smallest key greater than `key`.
pub(crate) fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri runs this test over the copies above, whose kind depends on the length.
    #[test]
    fn keys_of_every_length_are_joined_to_their_map() {
        let bytes: Vec<u8> = (0..KEY_BYTES_MAX).map(|place| place as u8).collect();
        for length in (0..40).chain([KEY_BYTES_MAX]) {
            let key = &bytes[..length];
            let expected = [&7u32.to_be_bytes()[..], key].concat();
            assert_eq!(*FullKey::new(7, key).expect("not too long"), *expected);
            assert_eq!(KeyRoom::new().join(7, key).expect("not too long"), expected);
            assert_eq!(split(&expected), (7, key));
        }
        assert!(FullKey::new(7, &vec![0; KEY_BYTES_MAX + 1]).is_err());
    }
}
