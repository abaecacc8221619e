//! Files that the writer makes and the reader reads, whole and damaged.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use super::{Reader, Writer};
use crate::etcd::snapshot::EtcdSnapshotError as SnapshotError;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn written(buckets: &[(&str, Pairs)]) -> File {
    let mut writer = Writer::new(tempfile::tempfile().unwrap()).unwrap();
    for (name, pairs) in buckets {
        let mut bucket = writer.bucket(name.as_bytes());
        for (key, value) in pairs {
            bucket.put(key, value.clone()).unwrap();
        }
        bucket.finish().unwrap();
    }
    writer.finish().unwrap()
}

fn read(file: File) -> Result<Vec<(String, Pairs)>, SnapshotError> {
    let bytes = file.metadata()?.len();
    let reader = Reader::open(file, bytes)?;
    let mut found = Vec::new();
    for (name, bucket) in reader.buckets()? {
        let mut pairs = Vec::new();
        reader.each(&bucket, |key, value| {
            pairs.push((key.to_vec(), value.to_vec()));
            Ok::<_, SnapshotError>(())
        })?;
        found.push((String::from_utf8_lossy(&name).into_owned(), pairs));
    }
    Ok(found)
}

fn numbered(count: u32, value_bytes: usize) -> Pairs {
    let pair = |number: u32| (number.to_be_bytes().to_vec(), vec![number as u8; value_bytes]);
    (0..count).map(pair).collect()
}

#[test]
fn a_reader_finds_what_the_writer_wrote() {
    let long_keys = |count: u32, bytes: usize| -> Pairs {
        let pair = |number| (format!("{number:0bytes$}").into_bytes(), Vec::new());
        (0..count).map(pair).collect()
    };
    let cases = [
        numbered(0, 0),
        numbered(1, 0),
        numbered(1, 1 << 20),
        numbered(2, 4_096),
        numbered(10, 1 << 20),
        numbered(100_000, 20),
        // Branch pages of a few children each: eight levels and more.
        long_keys(2_000, 1_000),
        // Branch pages that are larger than a page.
        long_keys(300, 5_000),
    ];
    for pairs in cases {
        let buckets = [("one", pairs), ("other", numbered(3, 3))];
        let expected = buckets.clone().map(|(name, pairs)| (name.to_string(), pairs));
        assert_eq!(
            read(written(&buckets)).unwrap(),
            expected,
            "{} pairs",
            expected[0].1.len()
        );
    }
    for count in 0..600 {
        let buckets = [("one", numbered(count, count as usize))];
        assert_eq!(read(written(&buckets)).unwrap()[0].1, buckets[0].1);
    }
}

#[test]
fn a_reader_takes_the_meta_page_that_is_valid() {
    let file = written(&[("one", numbered(10, 10))]);
    file.write_all_at(&[0; 4_096], 0).unwrap();
    assert_eq!(read(file).unwrap()[0].1.len(), 10);
}

/// A file of one bucket, whose root is the first of `pages` pages that refer to the next one each. All say that they reach to the
/// end of the file.
fn nested(pages: u64, end: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    let page_bytes = 4_096;
    let write = |page: u64, bytes: &[u8]| file.write_all_at(bytes, page * page_bytes).unwrap();
    let header = |page: u64, flags: u16, places: u64| {
        let mut header = page.to_le_bytes().to_vec();
        header.extend(flags.to_le_bytes());
        header.extend(1_u16.to_le_bytes());
        header.extend((places as u32 - 1).to_le_bytes());
        header
    };
    for number in 0..2 {
        let mut meta = Vec::new();
        for field in [super::MAGIC, super::VERSION, page_bytes as u32, 0] {
            meta.extend(field.to_le_bytes());
        }
        for field in [2, 0, 2, end, number] {
            meta.extend(field.to_le_bytes());
        }
        meta.extend(super::fnv_1a(&meta).to_le_bytes());
        write(number, &[header(number, super::META, 1), meta].concat());
    }
    for page in 2..2 + pages {
        let mut branch = header(page, super::BRANCH, end - page);
        for field in [16_u32, 1] {
            branch.extend(field.to_le_bytes());
        }
        branch.extend((page + 1).to_le_bytes());
        branch.push(b'k');
        write(page, &branch);
    }
    file.set_len(end * page_bytes).unwrap();
    file
}

#[test]
fn pages_that_lie_in_each_other_are_refused() {
    let refused = read(nested(3, 10)).unwrap_err();
    assert!(refused.to_string().contains("it refers to page 3 twice"), "{refused}");
    // The file has holes, and is a small one on the disk.
    let refused = read(nested(60, 140_000)).unwrap_err();
    assert!(refused.to_string().contains("too large"), "{refused}");
}

#[test]
fn damage_never_makes_the_reader_panic() {
    let seed = std::env::var("DURAMEN_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("DURAMEN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut whole = Vec::new();
    let buckets = [("key", numbered(2_000, 30)), ("large", numbered(3, 10_000))];
    written(&buckets).read_to_end(&mut whole).unwrap();
    let mut failures = 0;
    for _ in 0..5_000 {
        let mut damaged = whole.clone();
        for _ in 0..random.usize(1..4) {
            // Most of the structure is in the headers of pages and at the front of their elements.
            let page = random.usize(0..damaged.len() / 4_096) * 4_096;
            let within = [16, 80, 4_096][random.usize(0..3)];
            let at = page + random.usize(0..within);
            match random.u8(0..3) {
                0 => damaged[at] ^= 1 << random.u8(0..8),
                1 => damaged[at] = random.u8(..),
                _ => {
                    let end = (at + random.usize(1..9)).min(damaged.len());
                    damaged[at..end].fill_with(|| random.u8(..));
                }
            }
        }
        if random.u8(0..4) == 0 {
            damaged.truncate(random.usize(0..damaged.len()));
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&damaged).unwrap();
        failures += u32::from(read(file).is_err());
    }
    assert!(failures > 500, "{failures}");
}
