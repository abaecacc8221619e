//! Packs: pieces of an export, each an object of its own.
//!
//! ```text
//! pack      magic "DURAPACK" | format u32 | compression u32 (0 none, 1 zstd) | body, perhaps compressed
//! body      records, ascending by key
//! put       1 | key length u16 | value length u32 | key | value
//! delete    2 | key length u16 | key
//! long put  3 | key length u16 | value length u64 | length of the first part u32 | key | first part
//! part      4 | length u32 | next part of the value before
//! ```
//! Numbers are little-endian. Keys are full keys of the store. A value that is longer than [`PART_BYTES`] is cut into parts, which may
//! go on in the next packs. A pack has about [`PACK_BYTES`], so memory is bounded whatever a store holds.

use bytes::Bytes;

use crate::error::{BackupError, Result};

/// The format that this version writes.
pub(crate) const PACK_FORMAT: u32 = 1;
/// Bytes of the body after which a pack ends.
pub(crate) const PACK_BYTES: usize = 16 << 20;
/// The longest part of a value.
pub(crate) const PART_BYTES: usize = 4 << 20;

const MAGIC: &[u8; 8] = b"DURAPACK";
const HEADER_BYTES: usize = 16;
const LEVEL: i32 = 3;
/// No body is longer: a pack ends with the record that makes it long enough.
const BODY_BYTES_MAX: usize = PACK_BYTES + PART_BYTES + (64 << 10);

const PUT: u8 = 1;
const DELETE: u8 = 2;
const LONG_PUT: u8 = 3;
const PART: u8 = 4;

/// How packs are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// With zstd.
    Zstd,
}

/// A record of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
    LongPut { key: &'a [u8], length: u64, part: &'a [u8] },
    Part { part: &'a [u8] },
}

/// The body of a pack, before it is sealed.
#[derive(Debug)]
pub(crate) struct Body {
    /// Room for the header, then the records: a pack that is not compressed is sealed without copying them.
    bytes: Vec<u8>,
    /// Keys that begin in it.
    pub(crate) records: u64,
}

impl Default for Body {
    fn default() -> Body {
        Body {
            bytes: vec![0; HEADER_BYTES],
            records: 0,
        }
    }
}

impl Body {
    pub(crate) fn records_bytes(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }

    pub(crate) fn into_records(self) -> Bytes {
        Bytes::from(self.bytes).slice(HEADER_BYTES..)
    }
}

/// Writes records, and hands out bodies that are long enough.
pub(crate) struct Packer<F> {
    body: Body,
    full: F,
}

impl<F: FnMut(Body) -> bool> Packer<F> {
    /// `full` takes a body; `false`: no more are wanted.
    pub(crate) fn new(full: F) -> Packer<F> {
        Packer {
            body: Body::default(),
            full,
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let key_length = (key.len() as u16).to_le_bytes();
        self.body.records += 1;
        if value.len() <= PART_BYTES {
            self.push(&[&[PUT], &key_length, &(value.len() as u32).to_le_bytes(), key, value]);
            return self.hand_out(PACK_BYTES);
        }
        let mut parts = value.chunks(PART_BYTES);
        let first = parts.next().unwrap_or_default();
        self.push(&[
            &[LONG_PUT],
            &key_length,
            &(value.len() as u64).to_le_bytes(),
            &(first.len() as u32).to_le_bytes(),
            key,
            first,
        ]);
        for part in parts {
            if !self.hand_out(PACK_BYTES) {
                return false;
            }
            self.push(&[&[PART], &(part.len() as u32).to_le_bytes(), part]);
        }
        self.hand_out(PACK_BYTES)
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        self.body.records += 1;
        self.push(&[&[DELETE], &(key.len() as u16).to_le_bytes(), key]);
        self.hand_out(PACK_BYTES)
    }

    /// Hands the last body out.
    pub(crate) fn finish(mut self) -> bool {
        self.hand_out(1)
    }

    fn push(&mut self, parts: &[&[u8]]) {
        let bytes = &mut self.body.bytes;
        if bytes.len() == HEADER_BYTES {
            bytes.reserve(PACK_BYTES + (1 << 20));
        }
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
    }

    fn hand_out(&mut self, least: usize) -> bool {
        self.body.records_bytes().len() < least || (self.full)(std::mem::take(&mut self.body))
    }
}

/// A body as an object.
pub(crate) fn seal(body: Body, compression: Compression) -> Result<Vec<u8>> {
    let (number, mut object) = match compression {
        Compression::None => (0u32, body.bytes),
        Compression::Zstd => {
            let compressed =
                zstd::bulk::compress(body.records_bytes(), LEVEL).map_err(BackupError::io("compressing a pack"))?;
            (1, [&[0; HEADER_BYTES][..], &compressed].concat())
        }
    };
    let header = [&MAGIC[..], &PACK_FORMAT.to_le_bytes(), &number.to_le_bytes()].concat();
    object[..HEADER_BYTES].copy_from_slice(&header);
    Ok(object)
}

/// The BLAKE3 hash of an object, in hexadecimal digits.
pub(crate) fn hash_of(object: &[u8]) -> String {
    blake3::hash(object).to_hex().to_string()
}

/// The body of an object, which is a part of it if it is not compressed.
pub(crate) fn open(object: &Bytes, name: &str) -> Result<Bytes> {
    let damaged = |what: &str| BackupError::damaged(format!("pack {name} {what}"));
    let word = |at: usize| {
        object
            .get(at..at + 4)
            .and_then(|word| word.try_into().ok())
            .map(u32::from_le_bytes)
    };
    let (Some(format), Some(compression)) = (word(8), word(12)) else {
        return Err(damaged("is too short"));
    };
    if !object.starts_with(MAGIC) {
        return Err(damaged("is no pack"));
    }
    if format > PACK_FORMAT {
        return Err(BackupError::NewerFormat {
            what: format!("pack {name}"),
            found: format,
            supported: PACK_FORMAT,
        });
    }
    let body = object.slice(HEADER_BYTES..);
    match compression {
        0 => Ok(body),
        1 => zstd::bulk::decompress(&body, BODY_BYTES_MAX)
            .map(Bytes::from)
            .map_err(|_| damaged("cannot be decompressed")),
        _ => Err(damaged("has an unknown compression")),
    }
}

/// The record at the front of a body, and its bytes. `None`: these are no bytes of a record.
pub(crate) fn record(body: &[u8]) -> Option<(Record<'_>, usize)> {
    fn array<const N: usize>(body: &[u8], at: usize) -> Option<[u8; N]> {
        body.get(at..at + N)?.try_into().ok()
    }
    let short = |at: usize| array(body, at).map(|bytes| usize::from(u16::from_le_bytes(bytes)));
    let word = |at: usize| array(body, at).map(|bytes| u32::from_le_bytes(bytes) as usize);
    let slice = |at: usize, length: usize| body.get(at..at.checked_add(length)?);
    match *body.first()? {
        PUT => {
            let (key, value) = (short(1)?, word(3)?);
            let record = Record::Put {
                key: slice(7, key)?,
                value: slice(7 + key, value)?,
            };
            Some((record, 7 + key + value))
        }
        DELETE => {
            let key = short(1)?;
            Some((Record::Delete { key: slice(3, key)? }, 3 + key))
        }
        LONG_PUT => {
            let (key, length, part) = (short(1)?, u64::from_le_bytes(array(body, 3)?), word(11)?);
            let record = Record::LongPut {
                key: slice(15, key)?,
                length,
                part: slice(15 + key, part)?,
            };
            Some((record, 15 + key + part))
        }
        PART => {
            let part = word(1)?;
            Some((Record::Part { part: slice(5, part)? }, 5 + part))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(mut body: &[u8]) -> Vec<Record<'_>> {
        let mut records = Vec::new();
        while let Some((record, bytes)) = record(body) {
            records.push(record);
            body = &body[bytes..];
        }
        assert!(body.is_empty());
        records
    }

    #[test]
    fn records_come_back_and_long_values_are_cut() {
        let mut bodies = Vec::new();
        let long = vec![7; 5 * PART_BYTES + 1];
        let mut packer = Packer::new(|body| {
            bodies.push(body);
            true
        });
        assert!(packer.put(b"a", b"1") && packer.delete(b"b") && packer.put(b"c", &long) && packer.put(b"d", b""));
        assert!(packer.finish());
        assert_eq!(bodies.len(), 2);
        let [first, last] = &bodies[..] else { unreachable!() };
        assert_eq!((first.records, last.records), (3, 1));
        let whole = records(first.records_bytes());
        assert_eq!(
            whole[..2],
            [Record::Put { key: b"a", value: b"1" }, Record::Delete { key: b"b" }]
        );
        assert!(matches!(whole[2], Record::LongPut { key: b"c", .. }));
        assert_eq!(whole[1], Record::Delete { key: b"b" });
        let all = whole
            .iter()
            .chain(&records(last.records_bytes()))
            .copied()
            .collect::<Vec<_>>();
        let parts: usize = all
            .iter()
            .map(|record| match record {
                Record::LongPut { part, length, .. } => {
                    assert_eq!(*length, long.len() as u64);
                    part.len()
                }
                Record::Part { part } => part.len(),
                _ => 0,
            })
            .sum();
        assert_eq!(parts, long.len());
        assert_eq!(all.last(), Some(&Record::Put { key: b"d", value: b"" }));
        for cut in [1, 3, 8] {
            assert!(record(&first.records_bytes()[..cut]).is_none());
        }
        assert!(record(&[9, 0, 0, 0, 0, 0, 0, 0]).is_none());
    }

    #[test]
    fn objects_come_back_and_others_are_told_apart() {
        for compression in [Compression::None, Compression::Zstd] {
            let body = Body {
                bytes: [&[9; HEADER_BYTES][..], b"a body"].concat(),
                ..Body::default()
            };
            let object = seal(body, compression).unwrap();
            assert_eq!(open(&object.clone().into(), "p").unwrap(), "a body");
            for (at, with) in [(0, b'X'), (12, 9), (8, 200)] {
                let mut other = object.clone();
                other[at] = with;
                assert!(open(&other.into(), "p").is_err(), "{at}");
            }
            assert!(open(&Bytes::copy_from_slice(&object[..10]), "p").is_err());
        }
        assert_eq!(
            hash_of(b"abc"),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
    }
}
