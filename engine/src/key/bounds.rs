//! Ranges of keys, in every form in which a program has them.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::key::encoding::KeyRange;

/// A range of keys: `..`, `"a".."b"`, `key..=other`, a pair of [`Bound`]s, or a [`KeyRange`], of anything that is bytes
/// (`&str`, `String`, `Vec<u8>`, `[u8; N]`, [`crate::Value`]).
///
/// It is a trait of its own, beside [`RangeBounds`], so that `..` needs no type: it is the range of everything.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// let map = store.map("fruit")?;
/// for name in ["apple", "cherry", "plum"] {
///     map.put(name, b"")?;
/// }
/// let snapshot = store.snapshot()?;
/// assert_eq!(snapshot.count(&map, ..)?, 3);
/// assert_eq!(snapshot.count(&map, "b"..)?, 2);
/// assert_eq!(snapshot.count(&map, b"apple"..=b"berry")?, 1);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
pub trait KeyBounds {
    /// Where the range begins.
    fn low(&self) -> Bound<&[u8]>;
    /// Where it ends.
    fn high(&self) -> Bound<&[u8]>;
}

impl KeyBounds for RangeFull {
    fn low(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn high(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

macro_rules! key_bounds {
    ($($range:ty),+) => {$(
        impl<K: AsRef<[u8]>> KeyBounds for $range {
            fn low(&self) -> Bound<&[u8]> {
                self.start_bound().map(AsRef::as_ref)
            }

            fn high(&self) -> Bound<&[u8]> {
                self.end_bound().map(AsRef::as_ref)
            }
        }
    )+};
}
key_bounds! {
    Range<K>, RangeFrom<K>, RangeInclusive<K>, RangeTo<K>, RangeToInclusive<K>, (Bound<K>, Bound<K>)
}

impl KeyBounds for KeyRange {
    fn low(&self) -> Bound<&[u8]> {
        self.start_bound()
    }

    fn high(&self) -> Bound<&[u8]> {
        self.end_bound()
    }
}

impl<R: KeyBounds + ?Sized> KeyBounds for &R {
    fn low(&self) -> Bound<&[u8]> {
        (**self).low()
    }

    fn high(&self) -> Bound<&[u8]> {
        (**self).high()
    }
}

impl RangeBounds<[u8]> for KeyRange {
    fn start_bound(&self) -> Bound<&[u8]> {
        Bound::Included(self.prefix())
    }

    fn end_bound(&self) -> Bound<&[u8]> {
        self.end().map_or(Bound::Unbounded, Bound::Excluded)
    }
}
