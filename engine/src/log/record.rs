//! Records of the log, one per commit, and the operations in them.
//!
//! ```text
//! record   header (56 bytes) | body | zeros to a multiple of 8
//! header   0 magic of the store u32 | 4 checksum of this header from byte 8 on u32 | 8 commit u64 | 16 synced u64
//!          24 body length u32 | 28 body checksum u32 | 32 checksum of the previous record's header u32
//!          36 generation u32 | 40 epoch u32 | 44 meta sequence u32 | 48 commit time u64
//! body     operations, one after the other
//! operation 0 kind u8 | 1 flags u8 | 2 user key length u16 | 4 value length u32 | 8 map id u32 big-endian | key |
//! value
//! ```
//!
//! Flags: bit 0, of an operation that refers to pages of the data file: they were not synced before the record was
//! written. All numbers are little-endian but the map id, which is the first part of the full key: `operation[8..12 +
//! key length]` *is* the full key, so that an index entry needs only the operation's position. Each header names the
//! header before it (a chain from the beginning of the store), the generation and the epoch, so that neither a leftover
//! of an earlier use of the file nor a record written before a crash can be taken for its continuation. The magic
//! number and the start of both checksums come from the random id of the store ([`StoreSeeds`]), so that a header
//! inside a user's value, or inside a block of a deleted store, is never taken for a header of this log. The commit
//! time is in microseconds since the Unix epoch and never goes back from one record to the next. `synced` says how far
//! the log was known to be durable when the record was written: a hole at or below it is damage, a hole above it is a
//! tail that a power cut tore off.

use crate::btree::{EXTENT_BYTES, Extent, Root, Stored};
use crate::checksum::{StoreSeeds, checksum_with};
use crate::error::{Error, Result};
use crate::limits::{CHECKPOINT_METADATA_BYTES_MAX, CHECKPOINT_NAME_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};

pub(crate) const RECORD_HEADER_BYTES: usize = 56;
const OPERATION_HEADER_BYTES: usize = 12;
/// The flag of an operation whose pages were not synced before its record was written.
const MAY_BE_TORN: u8 = 1;
/// Bytes of the root that a run, or a restore, holds as its value.
const RUN_BYTES: usize = 20;
/// Bytes of the full key of an operation about a checkpoint.
const CHECKPOINT_KEY_BYTES: usize = 12;
/// Bytes of the value of a checkpoint before its name: the time, and the length of the name.
const CHECKPOINT_HEAD_BYTES: usize = 10;

/// Bytes that a record with a body of this length takes in the log.
pub(crate) fn record_bytes(body: usize) -> u64 {
    (RECORD_HEADER_BYTES + body).next_multiple_of(8) as u64
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) commit: u64,
    pub(crate) synced: u64,
    pub(crate) body_length: u32,
    pub(crate) body_checksum: u32,
    pub(crate) previous: u32,
    pub(crate) generation: u32,
    pub(crate) epoch: u32,
    pub(crate) meta_sequence: u32,
    /// Microseconds since the Unix epoch.
    pub(crate) time: u64,
}

impl RecordHeader {
    /// Writes the header to the first bytes of `out` and returns its checksum, which the next record names.
    pub(crate) fn encode(&self, seeds: &StoreSeeds, out: &mut [u8]) -> u32 {
        let out = &mut out[..RECORD_HEADER_BYTES];
        out[0..4].copy_from_slice(&seeds.record_magic.to_le_bytes());
        out[8..16].copy_from_slice(&self.commit.to_le_bytes());
        out[16..24].copy_from_slice(&self.synced.to_le_bytes());
        out[24..28].copy_from_slice(&self.body_length.to_le_bytes());
        out[28..32].copy_from_slice(&self.body_checksum.to_le_bytes());
        out[32..36].copy_from_slice(&self.previous.to_le_bytes());
        out[36..40].copy_from_slice(&self.generation.to_le_bytes());
        out[40..44].copy_from_slice(&self.epoch.to_le_bytes());
        out[44..48].copy_from_slice(&self.meta_sequence.to_le_bytes());
        out[48..56].copy_from_slice(&self.time.to_le_bytes());
        let sum = checksum_with(seeds.records, &out[8..]);
        out[4..8].copy_from_slice(&sum.to_le_bytes());
        sum
    }

    /// Reads a header and its checksum; `None` when these bytes are not an intact header that this store wrote.
    pub(crate) fn decode(bytes: &[u8], seeds: &StoreSeeds) -> Option<(RecordHeader, u32)> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if word(0) != seeds.record_magic || word(4) != checksum_with(seeds.records, &bytes[8..]) {
            return None;
        }
        let header = RecordHeader {
            commit: long(8),
            synced: long(16),
            body_length: word(24),
            body_checksum: word(28),
            previous: word(32),
            generation: word(36),
            epoch: word(40),
            meta_sequence: word(44),
            time: long(48),
        };
        Some((header, word(4)))
    }
}

/// The checksum of a body, as its header holds it.
pub(crate) fn body_checksum(body: &[u8], seeds: &StoreSeeds) -> u32 {
    checksum_with(seeds.records, body)
}

/// What an operation does.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// Stores the value.
    Put = 1,
    /// Removes the key.
    Delete = 2,
    /// Stores a value that is in the data file; the value is the encoded extent.
    PutExtent = 3,
    /// Removes all keys from the full key up to the full key in the value, without that one.
    DeleteRange = 4,
    /// Applies a sorted run of changes that is in the data file; the value is the encoded root.
    Run = 5,
    /// Puts the tree of a checkpoint in the place of everything before; the key ends with its id, the value is the encoded root.
    Restore = 6,
    /// Keeps the state before it as a checkpoint, see [`NewCheckpoint`]. It is alone in the first record of its generation, so that a fold
    /// of all generations before leads to just that state.
    Checkpoint = 7,
}

impl OperationKind {
    /// Whether it is not about one key.
    pub(crate) fn is_note(self) -> bool {
        matches!(
            self,
            OperationKind::DeleteRange | OperationKind::Run | OperationKind::Restore | OperationKind::Checkpoint
        )
    }
}

/// One operation in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation<'a> {
    pub(crate) kind: OperationKind,
    pub(crate) full_key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Whether a power cut may have kept the record and taken what it refers to.
    pub(crate) may_be_torn: bool,
}

impl<'a> Operation<'a> {
    /// Decodes the operation at the beginning of `bytes` and says how many bytes it takes.
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Operation<'a>, usize)> {
        let cut = || Error::damaged("an operation in the log is longer than its record");
        let head = bytes.get(..OPERATION_HEADER_BYTES).ok_or_else(cut)?;
        let kind = match head[0] {
            1 => OperationKind::Put,
            2 => OperationKind::Delete,
            3 => OperationKind::PutExtent,
            4 => OperationKind::DeleteRange,
            5 => OperationKind::Run,
            6 => OperationKind::Restore,
            7 => OperationKind::Checkpoint,
            other => {
                return Err(Error::damaged(format!(
                    "the log holds an operation of unknown kind {other}"
                )));
            }
        };
        let key_length = u16::from_le_bytes([head[2], head[3]]) as usize;
        let value_length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if key_length > KEY_BYTES_MAX + 1 {
            return Err(Error::damaged(format!("the log holds a key of {key_length} bytes")));
        }
        let key_end = OPERATION_HEADER_BYTES + key_length;
        let full_key = bytes.get(8..key_end).ok_or_else(cut)?;
        let value = bytes.get(key_end..key_end + value_length).ok_or_else(cut)?;
        match kind {
            OperationKind::PutExtent => check_extent(value)?,
            OperationKind::Run | OperationKind::Restore if value.len() != RUN_BYTES => {
                return Err(Error::damaged("the log holds a run of the wrong length"));
            }
            OperationKind::Restore if full_key.len() != CHECKPOINT_KEY_BYTES => {
                return Err(Error::damaged("the log holds a restore of no checkpoint"));
            }
            OperationKind::Checkpoint => drop(NewCheckpoint::decode(full_key, value)?),
            _ => {}
        }
        let operation = Operation {
            kind,
            full_key,
            value,
            may_be_torn: head[1] & MAY_BE_TORN != 0,
        };
        Ok((operation, key_end + value_length))
    }

    /// What the operation leaves at its key. Only for puts and deletes.
    pub(crate) fn stored(&self) -> Stored<'a> {
        match self.kind {
            OperationKind::Put => Stored::Inline(self.value),
            OperationKind::PutExtent => {
                Stored::Extent(Extent::decode(self.value.try_into().expect("checked on decode")))
            }
            OperationKind::Delete => Stored::Deleted,
            OperationKind::DeleteRange | OperationKind::Run | OperationKind::Restore | OperationKind::Checkpoint => {
                panic!("{:?} is not a change of one key", self.kind)
            }
        }
    }
}

/// Refuses a stored extent that cannot be one, so that nothing later computes with an impossible length.
fn check_extent(value: &[u8]) -> Result<()> {
    let stored: Option<&[u8; EXTENT_BYTES]> = value.try_into().ok();
    let length = stored.map_or(0, |stored| Extent::decode(stored).length);
    if (1..=VALUE_BYTES_MAX).contains(&length) {
        return Ok(());
    }
    Err(Error::damaged("the log holds a reference to a value that cannot exist"))
}

/// The operations of a body, with their positions in it.
pub(crate) struct Operations<'a> {
    body: &'a [u8],
    position: usize,
}

impl<'a> Operations<'a> {
    pub(crate) fn of(body: &'a [u8]) -> Operations<'a> {
        Operations { body, position: 0 }
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<(usize, Operation<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.position == self.body.len() {
            return None;
        }
        let position = self.position;
        match Operation::decode(&self.body[position..]) {
            Ok((operation, length)) => {
                self.position += length;
                Some(Ok((position, operation)))
            }
            Err(error) => {
                self.position = self.body.len();
                Some(Err(error))
            }
        }
    }
}

/// A record being put together: room for the header, then the body.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    /// Whether pages that operations refer to are not synced before the record is written.
    pub(crate) values_may_tear: bool,
}

impl Body {
    pub(crate) fn new() -> Body {
        Body {
            bytes: vec![0; RECORD_HEADER_BYTES],
            values_may_tear: false,
        }
    }

    /// Empties the body for another record, keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(RECORD_HEADER_BYTES);
        self.values_may_tear = false;
    }

    /// Bytes of memory that it has.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Bytes of the body.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - RECORD_HEADER_BYTES
    }

    /// Appends an operation; `full_key` is map id and key. Returns its position in the body.
    pub(crate) fn push(&mut self, kind: OperationKind, full_key: &[u8], value: &[u8]) -> usize {
        self.push_joined(kind, [full_key], value)
    }

    /// Appends an operation whose full key comes in several parts.
    #[inline]
    pub(crate) fn push_joined<const N: usize>(&mut self, kind: OperationKind, key: [&[u8]; N], value: &[u8]) -> usize {
        let position = self.len();
        let full_key_length = key.iter().map(|part| part.len()).sum::<usize>();
        let key_length = full_key_length as u64 - 4;
        let refers = matches!(kind, OperationKind::PutExtent | OperationKind::Run);
        let flags = if refers && self.values_may_tear { MAY_BE_TORN } else { 0 };
        let header = kind as u64 | u64::from(flags) << 8 | key_length << 16 | (value.len() as u64) << 32;
        self.bytes
            .reserve(OPERATION_HEADER_BYTES + full_key_length + value.len() + 8);
        self.bytes.extend_from_slice(&header.to_le_bytes());
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.extend_from_slice(value);
        position
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_BYTES..]
    }

    /// The body, to fill in what is known only under the commit lock.
    pub(crate) fn body_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[RECORD_HEADER_BYTES..]
    }

    /// The whole record with its header in place, padded; also the header's checksum.
    pub(crate) fn seal(&mut self, header: &RecordHeader, seeds: &StoreSeeds) -> (&[u8], u32) {
        let sum = header.encode(seeds, &mut self.bytes);
        let padded = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(padded, 0);
        (&self.bytes, sum)
    }

    /// Makes the body `length` bytes long again, as it was before it was sealed and padded.
    pub(crate) fn unseal(&mut self, length: usize) {
        self.bytes.truncate(RECORD_HEADER_BYTES + length);
    }
}

/// A run's root as stored in its log operation.
pub(crate) fn encode_root(root: Root) -> [u8; 20] {
    let mut out = [0u8; 20];
    out[0..4].copy_from_slice(&root.page.to_le_bytes());
    out[4] = root.height;
    out[8..16].copy_from_slice(&root.pairs.to_le_bytes());
    out[16..20].copy_from_slice(&root.checksum.to_le_bytes());
    out
}

/// The full key of an operation about a checkpoint. No pair has it.
pub(crate) fn checkpoint_key(checkpoint: u64) -> [u8; CHECKPOINT_KEY_BYTES] {
    let mut key = [0; CHECKPOINT_KEY_BYTES];
    key[4..].copy_from_slice(&checkpoint.to_be_bytes());
    key
}

/// The checkpoint of the full key of an operation about one.
pub(crate) fn checkpoint_of_key(full_key: &[u8]) -> u64 {
    u64::from_be_bytes(full_key[4..].try_into().expect("checked on decode"))
}

/// A checkpoint as the log says that it was made.
///
/// ```text
/// value   time u64, microseconds since 1970 | name length u16 | name | metadata
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewCheckpoint<'a> {
    pub(crate) id: u64,
    pub(crate) time: u64,
    pub(crate) name: &'a str,
    pub(crate) metadata: &'a [u8],
}

impl<'a> NewCheckpoint<'a> {
    /// The value of its operation.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = self.time.to_le_bytes().to_vec();
        value.extend((self.name.len() as u16).to_le_bytes());
        value.extend(self.name.as_bytes());
        value.extend(self.metadata);
        value
    }

    pub(crate) fn decode(full_key: &[u8], value: &'a [u8]) -> Result<NewCheckpoint<'a>> {
        let damaged = || Error::damaged("the log holds a checkpoint that cannot be read");
        if full_key.len() != CHECKPOINT_KEY_BYTES {
            return Err(damaged());
        }
        let (head, texts) = value.split_at_checked(CHECKPOINT_HEAD_BYTES).ok_or_else(damaged)?;
        let name_length = u16::from_le_bytes([head[8], head[9]]) as usize;
        let (name, metadata) = texts.split_at_checked(name_length).ok_or_else(damaged)?;
        if name.is_empty() || name.len() > CHECKPOINT_NAME_BYTES_MAX || metadata.len() > CHECKPOINT_METADATA_BYTES_MAX {
            return Err(damaged());
        }
        Ok(NewCheckpoint {
            id: checkpoint_of_key(full_key),
            time: u64::from_le_bytes(head[..8].try_into().expect("eight bytes")),
            name: std::str::from_utf8(name).map_err(|_| damaged())?,
            metadata,
        })
    }
}

/// The extent that an operation stores in place of a value.
pub(crate) fn extent_of(value: &[u8]) -> Extent {
    Extent::decode(value.try_into().expect("checked on decode"))
}

pub(crate) fn decode_root(bytes: &[u8]) -> Root {
    Root {
        page: u32::from_le_bytes(bytes[0..4].try_into().expect("a run operation has twenty bytes")),
        height: bytes[4],
        pairs: u64::from_le_bytes(bytes[8..16].try_into().expect("a run operation has twenty bytes")),
        checksum: u32::from_le_bytes(bytes[16..20].try_into().expect("a run operation has twenty bytes")),
    }
}
