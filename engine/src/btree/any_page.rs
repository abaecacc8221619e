//! A source that gives the same pages whatever is asked for, and a sink that keeps nothing: what it takes to read and merge
//! pages of any content. For tests and fuzz targets.

use crate::error::Result;
use crate::limits::PAGE_BYTES;

use super::{Extent, Link, PageSink, PageSource, seal_page, verify_page};

/// Number and birth of the pages that are written, and of those that are read; any will do.
pub(crate) const PAGE: u32 = 1;

/// Gives the same leaf and the same branch for every number.
#[derive(Clone, Copy)]
pub(crate) struct Anything<'a> {
    pub leaf: &'a [u8],
    pub branch: &'a [u8],
}

impl<'a> PageSource for Anything<'a> {
    type Page = &'a [u8];

    fn page(self, _: u32, bytes: usize, _: impl FnOnce() -> u32) -> Result<&'a [u8]> {
        Ok(if bytes == PAGE_BYTES { self.leaf } else { self.branch })
    }
}

/// Takes every page and checks that it is one.
pub(crate) struct Nowhere;

impl PageSink for Nowhere {
    fn write(&mut self, page: &mut [u8]) -> Result<Link> {
        let link = seal_page(page, PAGE, PAGE as u64, 0);
        verify_page(link, page, 0).expect("a merge writes sound pages, whatever it reads");
        Ok(link)
    }

    fn write_value(&mut self, bytes: &[u8]) -> Result<Extent> {
        Ok(Extent {
            page: PAGE,
            checksum: 0,
            length: bytes.len() as u64,
            birth: PAGE as u64,
        })
    }

    fn retire(&mut self, _: u32, _: u32, _: u64) {}

    fn retire_extent(&mut self, extent: Extent) {
        extent.pages();
    }
}
