//! Every limit of topics, each with its reason.

/// Longest name of a topic or group in bytes. A group's name follows the topic's id in one key.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest key of a message in bytes. Keys and headers go into the record of the commit, which holds 64 KiB of one
/// value.
pub const MESSAGE_KEY_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of the names and values of all headers of a message together.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
/// Maximum headers of a message.
pub const HEADERS_MAX: usize = 256;
/// Longest name of a publisher in bytes. Each of its messages contains it.
pub const PUBLISHER_BYTES_MAX: usize = 128;
/// Maximum bytes of all conditions of a filter together. The record of a group holds them, and each delivery reads that
/// record.
pub const FILTER_BYTES_MAX: usize = 4 << 10;
/// Maximum conditions on headers in one filter.
pub const FILTER_HEADERS_MAX: usize = 16;
/// Maximum messages of an ordered group that are set aside because an earlier message of their key is open. Each takes
/// two rows.
pub(crate) const PARKED_MAX: u64 = 100_000;
/// Longest id of a message in bytes. Ids are in keys of the index, after a topic's number and a time.
pub const MESSAGE_ID_BYTES_MAX: usize = 256;
/// Longest message that is stored as one value. The payload of a longer message has separate pages.
pub(crate) const WHOLE_BYTES_MAX: usize = 60 << 10;
/// Longest payload, in bytes: that of the longest value of the store, 1 GiB.
pub const PAYLOAD_BYTES_MAX: u64 = duramen_engine::VALUE_BYTES_MAX;

/// Messages that one read returns unless the caller asks for fewer: reading more at once is no faster.
pub const READ_MESSAGES: usize = 4096;
/// Bytes after which a read ends. A longer message comes alone. This bounds what a subscriber holds.
pub const READ_BYTES: usize = 1 << 20;

/// Messages that trimming deletes one by one, by their known keys. More messages are deleted as a range. The cost of a
/// range does not depend on the number of messages, but every read examines the range until it is folded.
pub(crate) const TRIMMED_SINGLY_MAX: u64 = 512;
/// Groups whose rows one transaction deletes, each as a range, when their topic is deleted. The engine allows 4,096
/// ranges, and every read examines them until they are folded.
pub(crate) const GROUPS_DELETED_AT_ONCE: usize = 1_000;

/// Delayed messages that are published in one transaction.
pub(crate) const MOVED_TOGETHER_MAX: usize = 256;
/// Bytes of delayed messages after which a transaction publishes them. A longer message comes alone.
pub(crate) const MOVED_BYTES: usize = 1 << 20;
/// Messages that one commit adds to the index of a topic, or deletes from between others.
pub(crate) const INDEXED_TOGETHER_MAX: usize = 256;
/// Longest key in bytes of a message in a topic that keeps the newest of each key. It is part of a key of the index.
pub const LATEST_KEY_BYTES_MAX: usize = 1000;
/// Ids of messages that one commit deletes.
pub(crate) const FORGOTTEN_TOGETHER_MAX: usize = 1000;

const _: () = assert!(MESSAGE_KEY_BYTES_MAX + HEADER_BYTES_MAX + HEADERS_MAX * 16 + 512 < WHOLE_BYTES_MAX);
