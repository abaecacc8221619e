//! The check of a page at its first touch.

use crate::checksum::checksum_with;
use crate::error::{Error, Result};
use crate::limits::{BRANCH_BYTES, FULL_KEY_BYTES_MAX, PAGE_BYTES};
use crate::planted::{PlantedBug, is_planted};

use super::Link;
use super::branch::Branch;
use super::leaf::Leaf;
use super::page::{
    BRANCH, HEADER_BYTES, LEAF, PREFIX_LENGTH_AT, count, heap_end, heap_top, kind, number as page_number, u16_at,
    u32_at,
};

/// Checks a page at its first touch: checksum, that it is the version that `link` refers to, its own number, and that every
/// offset and length in it stays inside it. After this no accessor can panic. It does not look at the order of keys, which
/// cannot make anything panic, and which the checksum vouches for.
pub(crate) fn verify_page(link: Link, page: &[u8], seed: u32) -> Result<()> {
    let number = link.page;
    let wrong = |what: String| Err(Error::damaged(format!("page {number} of the data file: {what}")));
    if page.len() != PAGE_BYTES && page.len() != BRANCH_BYTES {
        return wrong(format!(
            "a page has {PAGE_BYTES} or {BRANCH_BYTES} bytes, not {}",
            page.len()
        ));
    }
    let (found, expected) = (checksum_with(seed, &page[4..]), u32_at(page, 0));
    if found != expected {
        return wrong(format!("checksum {found:#010x}, expected {expected:#010x}"));
    }
    if page_number(page) != number {
        return wrong(format!("it says it is page {}", page_number(page)));
    }
    if found != link.checksum && !is_planted(PlantedBug::ChildChecksumNotCompared) {
        let expected = link.checksum;
        return wrong(format!(
            "it is another version than what refers to it says: checksum {found:#010x}, expected {expected:#010x}"
        ));
    }
    match verify_structure(page) {
        Ok(()) => Ok(()),
        Err(what) => wrong(what.to_owned()),
    }
}

fn verify_structure(page: &[u8]) -> Result<(), &'static str> {
    let prefix_length = u16_at(page, PREFIX_LENGTH_AT) as usize;
    if prefix_length > FULL_KEY_BYTES_MAX {
        return Err("its prefix is longer than a key");
    }
    if count(page) == 0 {
        return Err("it is empty");
    }
    if heap_top(page) < HEADER_BYTES || heap_top(page) > heap_end(page) {
        return Err("its heap begins outside the page");
    }
    match (kind(page), page.len()) {
        (LEAF, PAGE_BYTES) => Leaf::verify(page),
        (BRANCH, BRANCH_BYTES) => Branch::verify(page),
        (LEAF | BRANCH, _) => Err("it is of the other kind than what refers to it says"),
        _ => Err("it is neither a leaf nor a branch"),
    }
}
