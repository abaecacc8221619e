//! What the fuzz targets in `fuzz/` need from inside the engine: bodies for pages and logs, and the repair of
//! checksums, without which nearly every changed byte would be refused before the code under test sees it.
//!
//! Compiled with the feature `fuzzing` only. Nothing here is part of the interface.

use crate::btree::any_page::{Anything, Nowhere, PAGE};
use crate::btree::{
    self, ChangeStream, Cursor, Link, MergeOptions, Root, Stored, count_below, find, seal_page, verify_page,
};
use crate::checksum::{StoreSeeds, checksum, checksum_with, key_hash};
use crate::datafile::meta::META_PAGES;
use crate::error::Result;
use crate::key::full_key::FullRange;
use crate::limits::{BRANCH_BYTES, FORMAT, KEY_BYTES_MAX, PAGE_BYTES};
use crate::log::{
    LOG_START, OperationKind, Operations, RECORD_HEADER_BYTES, SegmentHeader, body_checksum, first_record,
    record_bytes, scan,
};

/// Steps of a walk after which a target has seen enough.
const STEPS_MAX: usize = 1000;
const HASH_SEED: u64 = 7;
/// Where the fields are that the repairs fill in; the files are drawn in `meta`, `log::segment` and `btree::page`.
const CHECKSUM_AT: usize = 12;
const CHECKED_FROM: usize = 16;
const STORE_ID: std::ops::Range<usize> = 16..32;
const LEVEL_AT: usize = 17;
const SEGMENT_HEADER_BYTES: usize = 72;
const PREVIOUS_AT: usize = 56;
const UNIT_AT: usize = 64;
const BODY_LENGTH_AT: usize = 24;
const BODY_CHECKSUM_AT: usize = 28;
const RECORD_PREVIOUS_AT: usize = 32;

/// Reads a leaf, and a branch above it when there are bytes for one, in every way that pages are read and merged, if
/// verification lets them pass. Checksums and page numbers are repaired first.
pub fn page(data: &[u8]) {
    let (leaf, branch) = data.split_at(data.len().min(PAGE_BYTES));
    let (leaf, link) = sealed(leaf, PAGE_BYTES);
    if verify_page(link, &leaf, 0).is_err() {
        return;
    }
    let alone = Anything {
        leaf: &leaf,
        branch: &[],
    };
    read_everything(
        alone,
        Root {
            page: PAGE,
            height: 1,
            pairs: 1,
            checksum: 0,
        },
    );
    let (branch, link) = sealed(branch, BRANCH_BYTES);
    if verify_page(link, &branch, 0).is_ok() {
        let height = branch[LEVEL_AT].saturating_add(1);
        let both = Anything {
            leaf: &leaf,
            branch: &branch,
        };
        read_everything(
            both,
            Root {
                page: PAGE,
                height,
                pairs: 1,
                checksum: 0,
            },
        );
    }
}

fn sealed(bytes: &[u8], length: usize) -> (Vec<u8>, Link) {
    let mut page = bytes[..bytes.len().min(length)].to_vec();
    page.resize(length, 0);
    let link = seal_page(&mut page, PAGE, PAGE as u64, 0);
    (page, link)
}

/// Puts of these keys, which ascend.
struct Puts<'a>(&'a [Vec<u8>]);

impl ChangeStream for Puts<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.0.first().map(Vec::as_slice)
    }

    fn change(&self) -> Stored<'_> {
        Stored::Inline(b"value")
    }

    fn advance(&mut self) -> Result<()> {
        self.0 = &self.0[1..];
        Ok(())
    }
}

/// Does with these pages all that can be done with pages. Any result will do; a panic will not.
fn read_everything(source: Anything<'_>, root: Root) {
    let mut keys = walk_forward(source, root);
    walk_back(source, root);
    keys.truncate(20);
    keys.extend([Vec::new(), vec![0xFF; KEY_BYTES_MAX], b"key".to_vec()]);
    keys.sort();
    keys.dedup();
    for key in &keys {
        let mut cursor = Cursor::new(source, root);
        let _ = cursor.seek(key);
        let _ = cursor.seek_before(key);
        let _ = count_below(source, root, key);
        let _ = find(source, root, key, 0);
    }
    let _ = btree::walk(source, root, &mut |_| Ok(()));
    let _ = btree::check_tree(source, root, HASH_SEED, &mut Vec::new(), &mut |_| Ok(()));
    for keep_deletes in [false, true] {
        let options = MergeOptions {
            keep_deletes,
            hash_seed: HASH_SEED,
        };
        let cuts = [FullRange {
            low: keys[0].clone(),
            high: keys[keys.len() / 2].clone(),
        }];
        let cuts = if cuts[0].low < cuts[0].high { &cuts[..] } else { &[] };
        let _ = btree::merge(source, root, &mut Puts(&keys), cuts, options, &mut Nowhere);
        let _ = btree::merge(source, root, &mut Puts(&[]), &[], options, &mut Nowhere);
    }
}

/// Some of the keys found, each of which was also looked up.
fn walk_forward(source: Anything<'_>, root: Root) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut cursor = Cursor::new(source, root);
    let mut moved = cursor.first();
    for _ in 0..STEPS_MAX {
        if moved.is_err() || !cursor.is_valid() {
            break;
        }
        let (page, location) = cursor.value();
        let _ = location.stored(page);
        let key = cursor.key().to_vec();
        let found = find(source, root, &key, key_hash(HASH_SEED, &key));
        let _ = found.map(|found| found.map(|found| found.value.stored(found.page)));
        keys.push(key);
        moved = cursor.next();
    }
    keys
}

fn walk_back(source: Anything<'_>, root: Root) {
    let mut cursor = Cursor::new(source, root);
    let mut moved = cursor.last();
    for _ in 0..STEPS_MAX {
        if moved.is_err() || !cursor.is_valid() {
            break;
        }
        moved = cursor.prev();
    }
}

/// Scans bytes as a log file of whatever store it says it belongs to, and decodes what the scan lets pass.
pub fn log(data: &[u8]) {
    let Some(store) = data.get(STORE_ID) else { return };
    let store = u128::from_le_bytes(store.try_into().expect("sixteen bytes"));
    let Some(header) = SegmentHeader::decode(data, store) else {
        return;
    };
    let mut expected = header.first_commit;
    let scanned = scan(data, &header, &StoreSeeds::of(store), |start, record, body| {
        assert_eq!(record.commit, expected, "commits follow each other");
        assert_eq!(&data[start as usize..start as usize + body.len()], body);
        expected += 1;
        decode_body(body);
        Ok(())
    });
    let scanned = scanned.expect("only a visitor makes a scan fail");
    assert_eq!(scanned.last_commit + 1, expected);
    assert!(scanned.synced_claim >= header.synced && scanned.tail >= first_record(header.unit.into()));
}

fn decode_body(body: &[u8]) {
    let mut end = 0;
    for operation in Operations::of(body) {
        let Ok((position, operation)) = operation else { return };
        assert_eq!(position, end, "operations stand one behind the other");
        end = position + 8 + operation.full_key.len() + operation.value.len();
        match operation.kind {
            OperationKind::Put | OperationKind::Delete => drop(operation.stored()),
            OperationKind::PutExtent => match operation.stored() {
                Stored::Extent(extent) => drop(extent.pages()),
                other => panic!("a reference to a value is stored as {other:?}"),
            },
            OperationKind::DeleteRange => {}
            OperationKind::Run | OperationKind::Restore => drop(crate::log::decode_root(operation.value)),
            OperationKind::Checkpoint => drop(crate::log::NewCheckpoint::decode(operation.full_key, operation.value)),
        }
    }
    assert_eq!(end, body.len());
}

/// Gives the header of a log file, and the records that follow each other in it, checksums that say all is well.
pub fn repair_log(bytes: &mut [u8]) {
    if bytes.len() < LOG_START as usize {
        return;
    }
    repair(&mut bytes[..SEGMENT_HEADER_BYTES]);
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut previous = word(bytes, PREVIOUS_AT);
    let seeds = StoreSeeds::of(u128::from_le_bytes(bytes[STORE_ID].try_into().expect("sixteen bytes")));
    let unit = (word(bytes, UNIT_AT) as usize).clamp(512, 64 << 10);
    let mut position = first_record(unit as u64) as usize;
    while position + RECORD_HEADER_BYTES <= bytes.len() {
        let length = word(bytes, position + BODY_LENGTH_AT) as usize;
        let Some(body) = bytes[position + RECORD_HEADER_BYTES..].get(..length) else {
            return;
        };
        let sum = body_checksum(body, &seeds);
        let record = &mut bytes[position..position + RECORD_HEADER_BYTES];
        // The last record, and a gap before the next unit, are followed by zeros.
        if record.iter().all(|&byte| byte == 0) {
            position = (position + 1).next_multiple_of(unit);
            continue;
        }
        record[BODY_CHECKSUM_AT..BODY_CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        record[RECORD_PREVIOUS_AT..RECORD_PREVIOUS_AT + 4].copy_from_slice(&previous.to_le_bytes());
        record[..4].copy_from_slice(&seeds.record_magic.to_le_bytes());
        previous = checksum_with(seeds.records, &record[8..]);
        record[4..8].copy_from_slice(&previous.to_le_bytes());
        position += record_bytes(length) as usize;
    }
}

/// Gives the meta pages at the beginning of a data file checksums that say all is well.
pub fn repair_meta(data: &mut [u8]) {
    for page in data.chunks_exact_mut(PAGE_BYTES).take(META_PAGES as usize) {
        let sum = checksum_with(FORMAT - 1, &page[CHECKED_FROM..]);
        page[CHECKSUM_AT..CHECKED_FROM].copy_from_slice(&sum.to_le_bytes());
    }
}

fn repair(bytes: &mut [u8]) {
    let sum = checksum(&bytes[CHECKED_FROM..]);
    bytes[CHECKSUM_AT..CHECKED_FROM].copy_from_slice(&sum.to_le_bytes());
}
