//! Writes a bbolt file from its first page to its last one.
//!
//! A bucket gets its keys in order. Its tree grows from the leaves: a page that is full is written, and its first key goes to the
//! page above. So the writer holds one page of each level, and the pages of the meta data are filled in at the end.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::{
    BRANCH, ELEMENT_BYTES, FREE_LIST, IS_BUCKET, LEAF, MAGIC, META, META_BYTES, META_SUMMED_BYTES, PAGE_HEADER_BYTES,
    VERSION, fnv_1a,
};

/// The page size of etcd on most machines. A file keeps its page size wherever it is opened.
const PAGE_BYTES: usize = 4_096;
const FREE_LIST_PAGE: u64 = 2;
const BUFFER_BYTES: usize = 256 << 10;
/// A branch page of bbolt has two children at least: its code relies on it.
const CHILDREN_MIN: usize = 2;

/// A bbolt file that is being written.
pub(crate) struct Writer {
    pages: Pages,
    /// Names and root pages of the buckets.
    buckets: Vec<(Vec<u8>, u64)>,
}

/// A bucket that is being written.
pub(crate) struct BucketWriter<'w> {
    writer: &'w mut Writer,
    name: Vec<u8>,
    tree: Tree,
}

/// Pages that are written one after the other.
struct Pages {
    file: BufWriter<File>,
    /// The number of the next page.
    next: u64,
}

/// The tree of a bucket: a page of each level, the leaves first.
#[derive(Default)]
struct Tree {
    levels: Vec<Level>,
    last_key: Vec<u8>,
}

#[derive(Default)]
struct Level {
    elements: Vec<Element>,
    bytes: usize,
}

struct Element {
    flags: u32,
    key: Vec<u8>,
    content: Content,
}

enum Content {
    Value(Vec<u8>),
    Page(u64),
}

impl Writer {
    /// Begins a file.
    pub(crate) fn new(file: File) -> io::Result<Writer> {
        let mut pages = Pages {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            next: FREE_LIST_PAGE,
        };
        pages.file.write_all(&[0; 2 * PAGE_BYTES])?;
        pages.write(FREE_LIST, &[])?;
        let buckets = Vec::new();
        Ok(Writer { pages, buckets })
    }

    /// Begins a bucket.
    pub(crate) fn bucket(&mut self, name: &[u8]) -> BucketWriter<'_> {
        BucketWriter {
            name: name.to_vec(),
            tree: Tree::default(),
            writer: self,
        }
    }

    /// Writes the list of buckets and the meta data. Returns the file.
    pub(crate) fn finish(mut self) -> io::Result<File> {
        self.buckets.sort();
        let mut tree = Tree::default();
        for (name, root) in &self.buckets {
            let value = [root.to_le_bytes(), [0; 8]].concat();
            tree.put(&mut self.pages, IS_BUCKET, name, value)?;
        }
        let root = tree.finish(&mut self.pages)?;
        let end = self.pages.next;
        let mut file = self.pages.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        for transaction in 0..2 {
            file.write_all(&meta_page(transaction, root, end))?;
        }
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }
}

impl BucketWriter<'_> {
    /// Adds a pair. Its key is greater than those before it, and not empty.
    pub(crate) fn put(&mut self, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        self.tree.put(&mut self.writer.pages, 0, key, value)
    }

    /// Ends the bucket.
    pub(crate) fn finish(self) -> io::Result<()> {
        let root = self.tree.finish(&mut self.writer.pages)?;
        self.writer.buckets.push((self.name, root));
        Ok(())
    }
}

impl Tree {
    fn put(&mut self, pages: &mut Pages, flags: u32, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        assert!(key > &self.last_key[..], "the keys of a bucket ascend");
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let element = Element {
            flags,
            key: key.to_vec(),
            content: Content::Value(value),
        };
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        let leaf = &mut self.levels[0];
        if !leaf.elements.is_empty() && leaf.bytes + element.bytes() > PAGE_BYTES {
            let full = leaf.take(leaf.elements.len());
            self.write(pages, 0, &full)?;
        }
        self.levels[0].push(element);
        Ok(())
    }

    /// Writes a page of a level, and adds it to the level above.
    fn write(&mut self, pages: &mut Pages, level: usize, elements: &[Element]) -> io::Result<()> {
        let page = pages.write(if level == 0 { LEAF } else { BRANCH }, elements)?;
        let above = level + 1;
        if self.levels.len() == above {
            self.levels.push(Level::default());
        }
        self.levels[above].push(Element {
            flags: 0,
            key: elements[0].key.clone(),
            content: Content::Page(page),
        });
        // The page that is written and the page that begins have two children each.
        let branch = &mut self.levels[above];
        if branch.bytes > PAGE_BYTES && branch.elements.len() >= 2 * CHILDREN_MIN {
            let full = branch.take(branch.elements.len() - CHILDREN_MIN);
            self.write(pages, above, &full)?;
        }
        Ok(())
    }

    /// Writes what is left. Returns the root page.
    fn finish(mut self, pages: &mut Pages) -> io::Result<u64> {
        let mut level = 0;
        loop {
            let left = match self.levels.get_mut(level) {
                Some(left) => left.take(left.elements.len()),
                None => Vec::new(),
            };
            if level + 1 >= self.levels.len() {
                return pages.write(if level == 0 { LEAF } else { BRANCH }, &left);
            }
            self.write(pages, level, &left)?;
            level += 1;
        }
    }
}

impl Level {
    fn push(&mut self, element: Element) {
        self.bytes = self.bytes.max(PAGE_HEADER_BYTES) + element.bytes();
        self.elements.push(element);
    }

    /// Takes the first elements.
    fn take(&mut self, count: usize) -> Vec<Element> {
        let left = self.elements.split_off(count);
        self.bytes = PAGE_HEADER_BYTES + left.iter().map(Element::bytes).sum::<usize>();
        std::mem::replace(&mut self.elements, left)
    }
}

impl Element {
    fn bytes(&self) -> usize {
        ELEMENT_BYTES + self.key.len() + self.value().len()
    }

    fn value(&self) -> &[u8] {
        match &self.content {
            Content::Value(value) => value,
            Content::Page(_) => &[],
        }
    }

    fn write_head(&self, file: &mut impl Write, position: usize) -> io::Result<()> {
        let (position, key_bytes) = (number(position)?, number(self.key.len())?);
        match &self.content {
            Content::Value(value) => {
                let numbers = [self.flags, position, key_bytes, number(value.len())?];
                numbers
                    .iter()
                    .try_for_each(|number| file.write_all(&number.to_le_bytes()))
            }
            Content::Page(page) => {
                file.write_all(&position.to_le_bytes())?;
                file.write_all(&key_bytes.to_le_bytes())?;
                file.write_all(&page.to_le_bytes())
            }
        }
    }
}

impl Pages {
    /// Writes a page, which takes as many places as its elements need. Returns its number.
    fn write(&mut self, flags: u16, elements: &[Element]) -> io::Result<u64> {
        let bytes = PAGE_HEADER_BYTES + elements.iter().map(Element::bytes).sum::<usize>();
        let places = bytes.div_ceil(PAGE_BYTES);
        let page = self.next;
        let count = u16::try_from(elements.len()).map_err(io::Error::other)?;
        self.file
            .write_all(&page_header(page, flags, count, number(places - 1)?))?;
        let mut data = PAGE_HEADER_BYTES + elements.len() * ELEMENT_BYTES;
        for (index, element) in elements.iter().enumerate() {
            let from = PAGE_HEADER_BYTES + index * ELEMENT_BYTES;
            element.write_head(&mut self.file, data - from)?;
            data += element.key.len() + element.value().len();
        }
        for element in elements {
            self.file.write_all(&element.key)?;
            self.file.write_all(element.value())?;
        }
        self.file.write_all(&[0; PAGE_BYTES][..places * PAGE_BYTES - bytes])?;
        self.next += places as u64;
        Ok(page)
    }
}

fn number(number: usize) -> io::Result<u32> {
    u32::try_from(number).map_err(io::Error::other)
}

fn page_header(page: u64, flags: u16, count: u16, overflow: u32) -> [u8; PAGE_HEADER_BYTES] {
    let mut header = [0; PAGE_HEADER_BYTES];
    header[..8].copy_from_slice(&page.to_le_bytes());
    header[8..10].copy_from_slice(&flags.to_le_bytes());
    header[10..12].copy_from_slice(&count.to_le_bytes());
    header[12..].copy_from_slice(&overflow.to_le_bytes());
    header
}

fn meta_page(transaction: u64, root: u64, end: u64) -> [u8; PAGE_BYTES] {
    let mut meta = Vec::with_capacity(META_BYTES);
    for number in [MAGIC, VERSION, PAGE_BYTES as u32, 0] {
        meta.extend_from_slice(&number.to_le_bytes());
    }
    // The second number is the sequence of the root bucket, which has none.
    for number in [root, 0, FREE_LIST_PAGE, end, transaction] {
        meta.extend_from_slice(&number.to_le_bytes());
    }
    debug_assert_eq!(meta.len(), META_SUMMED_BYTES);
    meta.extend_from_slice(&fnv_1a(&meta).to_le_bytes());
    let mut page = [0; PAGE_BYTES];
    page[..PAGE_HEADER_BYTES].copy_from_slice(&page_header(transaction, META, 0, 0));
    page[PAGE_HEADER_BYTES..][..META_BYTES].copy_from_slice(&meta);
    page
}
