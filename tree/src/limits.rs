//! Every limit of trees, with its reason.

/// Longest path in bytes. A path is part of the key of each row about it, beside a revision and some marks; a byte 0 in it
/// counts twice there.
pub const PATH_BYTES_MAX: usize = 1_000;
/// Longest name of a tree in bytes.
pub const TREE_NAME_BYTES_MAX: usize = 255;
/// Longest payload: old and new payload of a change must fit into memory at once, for each watch that reads it.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// Most names of a pattern, from the first star or regular expression on: matching a path takes time in proportion to its names
/// times these.
pub const PATTERN_NAMES_MAX: usize = 64;
/// Longest text of a pattern in bytes: a watch keeps it in memory.
pub const PATTERN_BYTES_MAX: usize = 16 << 10;
/// Memory that a regular expression may take once it is compiled.
pub(crate) const REGEX_BYTES_MAX: usize = 256 << 10;
/// Most nested conditions, because evaluating them takes stack.
pub const CONDITION_DEPTH_MAX: usize = 32;
/// Most events of a batch, and most bytes of their rows: a watch holds a batch in memory.
pub(crate) const BATCH_EVENTS: usize = 1_000;
pub(crate) const BATCH_BYTES: usize = 1 << 20;
/// Bytes of one change that watches of a set get together. Those that are left read it by themselves, one after the other: a large node
/// that thousands of them want must not be in memory a thousand times.
pub(crate) const SHARED_BYTES: usize = 16 << 20;
/// Changes that one commit of a compaction forgets: other commits wait while the store takes it.
pub(crate) const COMPACTED_AT_ONCE: usize = 200;
/// Changes or nodes that a watch or a page examines before it looks whether it should stop.
pub(crate) const EXAMINED_MAX: usize = 10_000;
