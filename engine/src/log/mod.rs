//! The write-ahead log: every commit is one record in the log file of the active generation. The files are mapped
//! read-only, so the log is also where recent values live until they are folded into the base.

mod costs;
mod record;
mod segment;

pub(crate) use costs::{FoldCosts, fold_costs};
pub(crate) use record::{
    Body, NewCheckpoint, Operation, OperationKind, Operations, RECORD_HEADER_BYTES, RecordHeader, body_checksum,
    checkpoint_key, checkpoint_of_key, decode_root, encode_root, extent_of, record_bytes,
};
pub(crate) use segment::{
    LOG_START, LogView, OpenFile, Scan, SegmentHeader, Segments, changed, file_name, first_record, headers_from, scan,
};
