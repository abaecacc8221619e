//! The point read.
//!
//! What it costs is lines of memory that are not in a cache: of each branch the header and some heads (branches are
//! few, most of this is cached), of the leaf the header, tags and slots (neighbours, asked for together before the
//! first of them is used) and one record.

use crate::checksum::key_tag;
use crate::error::Result;
use crate::limits::{BRANCH_BYTES, PAGE_BYTES};

use super::branch::Branch;
use super::leaf::Leaf;
use super::{Location, PageSource, Root};

/// A pair that was found.
pub(crate) struct Found<P> {
    /// The leaf that holds it.
    pub page: P,
    /// Where its value is.
    pub value: Location,
}

/// Finds the pair of `full_key`, whose `key_hash` is `hash`.
#[inline]
pub(crate) fn find<S: PageSource>(source: S, root: Root, full_key: &[u8], hash: u64) -> Result<Option<Found<S::Page>>> {
    let Some(number) = leaf_of(source, root, full_key)? else {
        return Ok(None);
    };
    source.prefetch(number);
    let page = source.page(number, PAGE_BYTES)?;
    let leaf = Leaf::open(&page, number)?;
    match leaf.find(full_key, key_tag(hash)) {
        Some(index) => {
            let value = leaf.location(index);
            Ok(Some(Found { page, value }))
        }
        None => Ok(None),
    }
}

/// The leaf that would hold `full_key`, which is not looked at. `None`: the tree is empty.
#[inline]
pub(crate) fn leaf_of<S: PageSource>(source: S, root: Root, full_key: &[u8]) -> Result<Option<u32>> {
    if root.height == 0 {
        return Ok(None);
    }
    let mut number = root.page;
    for level in (1..root.height).rev() {
        let page = source.page(number, BRANCH_BYTES)?;
        let branch = Branch::open(&page, number, level)?;
        number = branch.page(branch.route(full_key));
    }
    Ok(Some(number))
}
