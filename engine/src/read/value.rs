//! Values as readers get them, and entries: what a key holds somewhere, before it is known whether it is visible.

use std::array::TryFromSliceError;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::btree::{Extent, PageSource, Stored};
use crate::datafile::pages::{MappedPages, VerifiedPages};
use crate::error::Result;

/// A value; it derefs to `&[u8]`.
///
/// [`crate::Snapshot::get`] and cursors give values that borrow the memory-mapped bytes, without a copy, and stay valid as
/// long as their snapshot or transaction. [`crate::Map::get`] and [`Transaction::get`](crate::Transaction::get) give a
/// `Value<'static>`, which owns its bytes; clones of that share them. [`Value::into_owned`] makes the one from the other.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// # let map = store.map("map")?;
/// # map.put("key", "value")?;
/// let kept = {
///     let snapshot = store.snapshot()?;
///     snapshot.get(&map, "key")?.unwrap().into_owned()     // a copy that outlives the snapshot
/// };
/// assert_eq!(kept, "value");
/// let bytes: Vec<u8> = kept.clone().into();
/// # assert_eq!(bytes, b"value");
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone)]
pub struct Value<'a>(Bytes<'a>);

#[derive(Clone)]
enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Owned(Arc<[u8]>),
}

impl<'a> Value<'a> {
    pub(crate) fn borrowed(bytes: &'a [u8]) -> Value<'a> {
        Value(Bytes::Borrowed(bytes))
    }

    pub(crate) fn owned(bytes: impl Into<Arc<[u8]>>) -> Value<'a> {
        Value(Bytes::Owned(bytes.into()))
    }

    /// The value with bytes of its own: a copy, unless it owns them already.
    pub fn into_owned(self) -> Value<'static> {
        match self.0 {
            Bytes::Borrowed(bytes) => Value::owned(bytes),
            Bytes::Owned(bytes) => Value::owned(bytes),
        }
    }

    /// The bytes for as long as the snapshot lives, when they are borrowed from the mapping and not a copy.
    pub fn as_borrowed(&self) -> Option<&'a [u8]> {
        match self.0 {
            Bytes::Borrowed(bytes) => Some(bytes),
            Bytes::Owned(_) => None,
        }
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Value<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Value<'_> {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl From<Value<'_>> for Vec<u8> {
    fn from(value: Value<'_>) -> Vec<u8> {
        value.to_vec()
    }
}

impl<const N: usize> TryFrom<Value<'_>> for [u8; N] {
    type Error = TryFromSliceError;

    fn try_from(value: Value<'_>) -> std::result::Result<[u8; N], TryFromSliceError> {
        value[..].try_into()
    }
}

impl Default for Value<'_> {
    /// No bytes.
    fn default() -> Self {
        Value::borrowed(&[])
    }
}

impl Eq for Value<'_> {}

impl Hash for Value<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::error::printable(self))
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value<'_> {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

/// What one place holds at a key.
#[derive(Clone, Debug)]
pub(crate) enum Entry<'a> {
    Deleted,
    Inline(Value<'a>),
    Extent(Extent),
}

impl<'a> Entry<'a> {
    #[inline]
    pub(crate) fn stored(stored: Stored<'a>) -> Entry<'a> {
        match stored {
            Stored::Inline(bytes) => Entry::Inline(Value::borrowed(bytes)),
            Stored::Extent(extent) => Entry::Extent(extent),
            Stored::Deleted => Entry::Deleted,
        }
    }

    /// The value, fetched from its own pages where it has them.
    #[inline]
    pub(crate) fn resolve<S: Source<'a>>(self, source: S) -> Result<Option<Value<'a>>> {
        match self {
            Entry::Deleted => Ok(None),
            Entry::Inline(value) => Ok(Some(value)),
            Entry::Extent(extent) => source.extent(extent).map(Some),
        }
    }
}

/// Pages from which values can be taken: without a copy when they are mapped, with one when they are read.
pub(crate) trait Source<'a>: PageSource {
    /// The value at `range` of a page.
    fn value(page: &Self::Page, range: Range<usize>) -> Value<'a>;
    /// A value in pages of its own.
    fn extent(self, extent: Extent) -> Result<Value<'a>>;
}

impl<'a> Source<'a> for MappedPages<'a> {
    #[inline]
    fn value(page: &&'a [u8], range: Range<usize>) -> Value<'a> {
        Value::borrowed(&page[range])
    }

    fn extent(self, extent: Extent) -> Result<Value<'a>> {
        MappedPages::extent(self, extent).map(Value::borrowed)
    }
}

impl<'a> Source<'a> for VerifiedPages<'a> {
    fn value(page: &Arc<[u8]>, range: Range<usize>) -> Value<'a> {
        Value::owned(&page[range])
    }

    fn extent(self, extent: Extent) -> Result<Value<'a>> {
        VerifiedPages::extent(self, extent).map(Value::owned)
    }
}
