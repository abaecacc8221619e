//! Reads a bbolt file. The file may be damaged or foreign: each number in it is checked before it is used.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{
    BRANCH, BUCKET_BYTES, ELEMENT_BYTES, IS_BUCKET, LEAF, MAGIC, META_BYTES, META_SUMMED_BYTES, PAGE_HEADER_BYTES,
    VERSION, fnv_1a,
};
use crate::etcd::snapshot::EtcdSnapshotError as SnapshotError;

/// Page sizes that bbolt looks for.
const PAGE_BITS: std::ops::RangeInclusive<u32> = 9..=16;
/// The largest page with all that belongs to it: four values of the largest size, which bbolt may store together. The pages
/// above a page, which are small, count too: a file must not take more memory.
const PAGE_BYTES_MAX: u64 = 512 << 20;
/// A tree of pages is not deeper: each level has twice as many pages at least.
const DEPTH_MAX: usize = 64;

/// A bbolt file.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    page_bytes: u64,
    /// Number of pages.
    pages: u64,
    root: u64,
}

/// A bucket of a file.
#[derive(Debug)]
pub(crate) struct Bucket(Root);

/// Where the tree of a bucket begins.
#[derive(Debug)]
enum Root {
    Page(u64),
    /// A small bucket is a page inside of the value that describes it.
    Inline(Vec<u8>),
}

/// What a page has to be, and what was read before it.
struct Walk {
    /// A bit for each page.
    seen: Vec<u64>,
    /// Bytes of the pages from the root to the present one.
    held_bytes: u64,
    last_key: Option<Vec<u8>>,
}

/// The keys that a page may have: from the first one on, and before the second one.
#[derive(Clone, Copy, Default)]
struct Bounds<'a> {
    low: &'a [u8],
    high: Option<&'a [u8]>,
}

/// A page whose header is checked.
struct Page<'a> {
    bytes: &'a [u8],
    is_leaf: bool,
    count: usize,
}

struct Leaf<'a> {
    flags: u32,
    key: &'a [u8],
    value: &'a [u8],
}

fn damaged(message: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged(message.into())
}

impl Reader {
    /// Opens a file of which the first `bytes` are those of bbolt.
    pub(crate) fn open(file: File, bytes: u64) -> Result<Reader, SnapshotError> {
        let metas = metas(&file, bytes)?;
        let newest = metas.into_iter().max_by_key(|meta| meta.transaction);
        let meta = newest.ok_or(SnapshotError::Foreign("it has no valid meta page of bbolt"))?;
        let present = bytes / u64::from(meta.page_bytes);
        if meta.pages > present {
            let message = format!("it ends after {present} pages, and {} belong to it", meta.pages);
            return Err(damaged(message));
        }
        Ok(Reader {
            file,
            page_bytes: u64::from(meta.page_bytes),
            pages: meta.pages,
            root: meta.root,
        })
    }

    /// The buckets of the file, with their names.
    pub(crate) fn buckets(&self) -> Result<Vec<(Vec<u8>, Bucket)>, SnapshotError> {
        let mut buckets = Vec::new();
        self.walk(&Bucket(Root::Page(self.root)), &mut |leaf| {
            if leaf.flags & IS_BUCKET == 0 {
                return Err(SnapshotError::Foreign("it has pairs outside of buckets"));
            }
            let root = number(leaf.value, 0);
            let bucket = match root {
                _ if leaf.value.len() < BUCKET_BYTES => return Err(damaged("a bucket has no root")),
                0 => Root::Inline(leaf.value[BUCKET_BYTES..].to_vec()),
                page => Root::Page(page),
            };
            buckets.push((leaf.key.to_vec(), Bucket(bucket)));
            Ok(())
        })?;
        Ok(buckets)
    }

    /// Calls `visit` with the pairs of a bucket, in order. It checks each page on its way.
    pub(crate) fn each<E: From<SnapshotError>>(
        &self,
        bucket: &Bucket,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.walk(bucket, &mut |leaf| match leaf.flags {
            0 => visit(leaf.key, leaf.value),
            _ => Err(SnapshotError::Foreign("a bucket of it has buckets inside").into()),
        })
    }

    fn walk<E: From<SnapshotError>>(
        &self,
        bucket: &Bucket,
        visit: &mut dyn FnMut(Leaf<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut walk = Walk {
            seen: vec![0; usize::try_from(self.pages / 64 + 1).unwrap_or(0)],
            held_bytes: 0,
            last_key: None,
        };
        match &bucket.0 {
            Root::Page(page) => self.walk_page(*page, 0, Bounds::default(), &mut walk, visit),
            Root::Inline(bytes) => {
                let page = Page::new(bytes, "a small bucket")?;
                if !page.is_leaf {
                    return Err(damaged("a small bucket has more than one page").into());
                }
                walk.leaf(&page, Bounds::default(), visit)
            }
        }
    }

    fn walk_page<E: From<SnapshotError>>(
        &self,
        number: u64,
        depth: usize,
        bounds: Bounds<'_>,
        walk: &mut Walk,
        visit: &mut dyn FnMut(Leaf<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if depth == DEPTH_MAX {
            return Err(damaged("its pages are nested too deeply").into());
        }
        let bytes = self.page(number, walk)?;
        let page = Page::new(&bytes, &format!("page {number}"))?;
        if page.is_leaf {
            walk.leaf(&page, bounds, visit)?;
            walk.held_bytes -= bytes.len() as u64;
            return Ok(());
        }
        if page.count == 0 {
            return Err(damaged(format!("page {number} has no children")).into());
        }
        let mut next = page.branch(0)?;
        for index in 0..page.count {
            let (low, child) = next;
            let mut high = bounds.high;
            if index + 1 < page.count {
                next = page.branch(index + 1)?;
                if next.0 <= low || high.is_some_and(|high| next.0 >= high) {
                    return Err(damaged(format!("the keys of page {number} are not in order")).into());
                }
                high = Some(next.0);
            }
            self.walk_page(child, depth + 1, Bounds { low, high }, walk, visit)?;
        }
        walk.held_bytes -= bytes.len() as u64;
        Ok(())
    }

    /// The bytes of a page and of those that belong to it.
    fn page(&self, number: u64, walk: &mut Walk) -> Result<Vec<u8>, SnapshotError> {
        if number < 2 || number >= self.pages {
            return Err(damaged(format!("it refers to a page {number} that it does not have")));
        }
        let from = number * self.page_bytes;
        let mut header = [0; PAGE_HEADER_BYTES];
        self.file.read_exact_at(&mut header, from)?;
        let places = u64::from(self::number_4(&header, 12)) + 1;
        if self::number(&header, 0) != number || places > self.pages - number {
            return Err(damaged(format!("page {number} has a wrong header")));
        }
        let bytes = places * self.page_bytes;
        if walk.held_bytes + bytes > PAGE_BYTES_MAX {
            return Err(damaged(format!("page {number} and those above it are too large")));
        }
        walk.see(number, places)?;
        walk.held_bytes += bytes;
        let mut page = vec![0; bytes as usize];
        self.file.read_exact_at(&mut page, from)?;
        Ok(page)
    }
}

impl Walk {
    /// Refuses pages that were read before.
    fn see(&mut self, number: u64, places: u64) -> Result<(), SnapshotError> {
        for page in number..number + places {
            let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
            if self.seen[word] & bit != 0 {
                return Err(damaged(format!("it refers to page {page} twice")));
            }
            self.seen[word] |= bit;
        }
        Ok(())
    }

    fn leaf<E: From<SnapshotError>>(
        &mut self,
        page: &Page<'_>,
        bounds: Bounds<'_>,
        visit: &mut dyn FnMut(Leaf<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for index in 0..page.count {
            let leaf = page.leaf(index)?;
            let is_after = self.last_key.as_deref().is_none_or(|last| leaf.key > last);
            let is_within = leaf.key >= bounds.low && bounds.high.is_none_or(|high| leaf.key < high);
            if !is_after || !is_within || leaf.key.is_empty() {
                return Err(damaged("its keys are not in order").into());
            }
            let last = self.last_key.get_or_insert_default();
            last.clear();
            last.extend_from_slice(leaf.key);
            visit(leaf)?;
        }
        Ok(())
    }
}

impl<'a> Page<'a> {
    fn new(bytes: &'a [u8], name: &str) -> Result<Page<'a>, SnapshotError> {
        let flags = bytes.get(8..10).map(|flags| u16::from_le_bytes([flags[0], flags[1]]));
        let count = bytes.get(10..12).map(|count| u16::from_le_bytes([count[0], count[1]]));
        let page = Page {
            bytes,
            is_leaf: flags == Some(LEAF),
            count: usize::from(count.unwrap_or(0)),
        };
        let is_known = page.is_leaf || flags == Some(BRANCH);
        match is_known && PAGE_HEADER_BYTES + page.count * ELEMENT_BYTES <= bytes.len() {
            true => Ok(page),
            false => Err(damaged(format!("{name} is no page of keys"))),
        }
    }

    fn leaf(&self, index: usize) -> Result<Leaf<'a>, SnapshotError> {
        let at = PAGE_HEADER_BYTES + index * ELEMENT_BYTES;
        let of = |offset| number_4(self.bytes, at + offset) as usize;
        let (position, key_bytes, value_bytes) = (of(4), of(8), of(12));
        let key_at = at + position;
        Ok(Leaf {
            flags: number_4(self.bytes, at),
            key: self.part(key_at, key_bytes)?,
            value: self.part(key_at + key_bytes, value_bytes)?,
        })
    }

    fn branch(&self, index: usize) -> Result<(&'a [u8], u64), SnapshotError> {
        let at = PAGE_HEADER_BYTES + index * ELEMENT_BYTES;
        let of = |offset| number_4(self.bytes, at + offset) as usize;
        let key = self.part(at + of(0), of(4))?;
        Ok((key, number(self.bytes, at + 8)))
    }

    fn part(&self, from: usize, length: usize) -> Result<&'a [u8], SnapshotError> {
        let part = self.bytes.get(from..).and_then(|rest| rest.get(..length));
        part.ok_or_else(|| damaged("a key or value of it ends beyond its page"))
    }
}

struct Meta {
    page_bytes: u32,
    root: u64,
    pages: u64,
    transaction: u64,
}

/// The valid meta pages of a file. The second one is looked for at each page size.
fn metas(file: &File, bytes: u64) -> Result<Vec<Meta>, SnapshotError> {
    let mut metas = Vec::new();
    let second = PAGE_BITS.map(|bits| 1_u64 << bits);
    for from in [0].into_iter().chain(second) {
        if from + ((PAGE_HEADER_BYTES + META_BYTES) as u64) > bytes {
            break;
        }
        let mut meta = [0; META_BYTES];
        file.read_exact_at(&mut meta, from + PAGE_HEADER_BYTES as u64)?;
        let page_bytes = number_4(&meta, 8);
        let is_valid = number_4(&meta, 0) == MAGIC
            && number_4(&meta, 4) == VERSION
            && PAGE_BITS.contains(&page_bytes.trailing_zeros())
            && page_bytes.is_power_of_two()
            && (from == 0 || from == u64::from(page_bytes))
            && number(&meta, META_SUMMED_BYTES) == fnv_1a(&meta[..META_SUMMED_BYTES]);
        if is_valid {
            metas.push(Meta {
                page_bytes,
                root: number(&meta, 16),
                pages: number(&meta, 40),
                transaction: number(&meta, 48),
            });
        }
    }
    Ok(metas)
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> SnapshotError {
        SnapshotError::Read(error)
    }
}

/// A number of eight bytes; 0 where there are fewer.
fn number(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    part.map_or(0, |part| u64::from_le_bytes(*part))
}

/// A number of four bytes; 0 where there are fewer.
fn number_4(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    part.map_or(0, |part| u32::from_le_bytes(*part))
}
