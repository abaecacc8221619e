//! The point read.
//!
//! What it costs is lines of memory that are not in a cache: of each branch the header and some heads (branches are
//! few, most of this is cached), of the leaf the header, tags and slots (neighbours, asked for together before the
//! first of them is used) and one record. Which one the tags say, and asking for it then would be the second wait; so
//! the lines are asked for at once in which it lies if the leaf's keys are spread evenly between the separators beside it,
//! as random ones and sequences are. (Interpolation search, Peterson 1957; here a wrong guess costs nothing but the asking.)

use std::ops::{Deref, Range};

use crate::checksum::key_tag;
use crate::error::Result;
use crate::limits::{BRANCH_BYTES, PAGE_BYTES};

use super::branch::{self, Branch};
use super::leaf::{self, Leaf};
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
    let Some((number, lines, above)) = descend(source, root, full_key)? else {
        return Ok(None);
    };
    source.prefetch(number);
    source.prefetch_lines(number, lines);
    let page = source.page(number, PAGE_BYTES, || checksum_below(&above, root))?;
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
    Ok(descend(source, root, full_key)?.map(|(number, ..)| number))
}

/// A branch, and a child of it.
pub(super) type Above<P> = Option<(P, usize)>;

/// The checksum that a branch keeps for its child, or that of the root where there is no branch.
#[cold]
pub(super) fn checksum_below<P: Deref<Target = [u8]>>(above: &Above<P>, root: Root) -> u32 {
    match above {
        Some((page, child)) => branch::checksum_of_child(page, *child),
        None => root.checksum,
    }
}

/// That leaf, the lines of it in which the record is likely to lie, and the branch above it.
#[inline(always)]
#[expect(
    clippy::type_complexity,
    reason = "a name for three things that two callers take apart says less"
)]
pub(super) fn descend<S: PageSource>(
    source: S,
    root: Root,
    full_key: &[u8],
) -> Result<Option<(u32, Range<usize>, Above<S::Page>)>> {
    if root.height == 0 {
        return Ok(None);
    }
    let (mut number, mut lines, mut above) = (root.page, 0..0, None);
    for level in (1..root.height).rev() {
        let page = source.page(number, BRANCH_BYTES, || checksum_below(&above, root))?;
        let branch = Branch::open(&page, number, level)?;
        let child = branch.route(full_key);
        number = branch.page(child);
        if level == 1 {
            lines = leaf::likely_lines(branch.pairs_of(child), branch.share_before(child, full_key));
        }
        above = Some((page, child));
    }
    Ok(Some((number, lines, above)))
}
