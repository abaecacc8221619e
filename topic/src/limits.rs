//! Every limit of topics, each with its reason.

/// Longest name of a topic or group in bytes. Names of groups stand behind the topic's id in one key.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest key of a message in bytes. Keys and headers go into the record of the commit, which holds 64 KiB of one value.
pub const MESSAGE_KEY_BYTES_MAX: usize = 8 << 10;
/// Names and values of all headers of a message together, in bytes.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
/// Headers of a message.
pub const HEADERS_MAX: usize = 256;
/// Longest name of a publisher in bytes. It stands in each of its messages.
pub const PUBLISHER_BYTES_MAX: usize = 128;
/// Bytes of all conditions of a filter together. The record of a group holds them, and each hand-out reads that record.
pub const FILTER_BYTES_MAX: usize = 4 << 10;
/// Conditions on headers in one filter.
pub const FILTER_HEADERS_MAX: usize = 16;
/// Messages of an ordered group that are set aside because an earlier message of their key is open. Each takes two rows.
pub(crate) const PARKED_MAX: u64 = 100_000;
/// Longest id of a message in bytes. Ids stand in keys of the index, behind a topic's number and a time.
pub const MESSAGE_ID_BYTES_MAX: usize = 256;
/// Longest message kept as one value; the payload of a longer one lies in pages of its own.
pub(crate) const WHOLE_BYTES_MAX: usize = 60 << 10;
/// Longest payload, in bytes: that of the longest value of the store, 1 GiB.
pub const PAYLOAD_BYTES_MAX: u64 = duramen_engine::VALUE_BYTES_MAX;

/// Messages that one read returns unless it is asked for fewer: reading more at once is no faster.
pub const READ_MESSAGES: usize = 4096;
/// Bytes after which a read ends. A message that is longer comes alone. This bounds what a subscriber holds.
pub const READ_BYTES: usize = 1 << 20;

/// Messages that trimming removes one by one, as their keys are known. More go as a range, whose cost does not depend on
/// how many they are, but which every read looks at until it is folded.
pub(crate) const TRIMMED_SINGLY_MAX: u64 = 512;
/// Groups whose rows one transaction deletes, each as a range, when their topic is deleted. The engine allows 4,096 ranges,
/// and every read looks at them until they are folded.
pub(crate) const GROUPS_DELETED_AT_ONCE: usize = 1_000;

/// Delayed messages that are published in one transaction.
pub(crate) const MOVED_TOGETHER_MAX: usize = 256;
/// Bytes of delayed messages after which a transaction publishes them. A message that is longer comes alone.
pub(crate) const MOVED_BYTES: usize = 1 << 20;
/// Messages that the index of a topic takes in, or that are removed from its middle, in one commit.
pub(crate) const INDEXED_TOGETHER_MAX: usize = 256;
/// Longest key in bytes of a message in a topic that keeps the newest of each key. It stands in a key of the index.
pub const LATEST_KEY_BYTES_MAX: usize = 1000;
/// Ids of messages that are forgotten in one commit.
pub(crate) const FORGOTTEN_TOGETHER_MAX: usize = 1000;

const _: () = assert!(MESSAGE_KEY_BYTES_MAX + HEADER_BYTES_MAX + HEADERS_MAX * 16 + 512 < WHOLE_BYTES_MAX);
