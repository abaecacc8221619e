//! Values as readers get them, and entries: what a key holds somewhere, before it is known whether it is visible.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::base::{Extent, PageSource, Stored};
use crate::error::Result;
use crate::pages::{MappedPages, VerifiedPages};

/// A value read in a snapshot or transaction; it derefs to `&[u8]`.
///
/// In the ordinary read mode it borrows the memory-mapped bytes, without a copy, and stays valid as long as the
/// snapshot or transaction it was read in.
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
