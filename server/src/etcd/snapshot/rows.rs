//! What etcd stores in which bucket of its bbolt file. The formats are those of etcd 3.7, directories `server/storage/schema`,
//! `server/storage/mvcc` and `server/lease/leasepb`.
//!
//! ```text
//! key      revision, `_`, number within the revision; `t` when it is a deletion    a KeyValue
//! lease    id                                                                      a lease
//! meta     consistent_index, term, confState, finishedCompactRev, scheduledCompactRev, storageVersion
//! auth     authEnabled                                                             a byte 1
//! ```
//! Numbers in keys are big-endian.

use prost::Message;

pub(super) const KEY: &[u8] = b"key";
pub(super) const LEASE: &[u8] = b"lease";
pub(super) const META: &[u8] = b"meta";
pub(super) const AUTH: &[u8] = b"auth";
/// Buckets that etcd expects, which are empty here. The member and the version of a cluster are those of the cluster that a
/// snapshot is restored to.
pub(super) const EMPTY: [&[u8]; 7] = [
    b"alarm",
    AUTH,
    b"authRoles",
    b"authUsers",
    b"cluster",
    b"members",
    b"members_removed",
];

pub(super) const AUTH_ENABLED: &[u8] = b"authEnabled";
pub(super) const CONSISTENT_INDEX: &[u8] = b"consistent_index";
pub(super) const CONF_STATE: &[u8] = b"confState";
pub(super) const FINISHED_COMPACTION: &[u8] = b"finishedCompactRev";
pub(super) const SCHEDULED_COMPACTION: &[u8] = b"scheduledCompactRev";
pub(super) const STORAGE_VERSION: &[u8] = b"storageVersion";
pub(super) const META_TERM: &[u8] = b"term";

const REVISION_BYTES: usize = 17;

/// A lease as etcd stores it; `leasepb.Lease`. Times are seconds.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRow {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
    #[prost(int64, tag = "2")]
    pub(super) ttl: i64,
    /// 0: the whole time.
    #[prost(int64, tag = "3")]
    pub(super) remaining: i64,
}

/// A revision, and the number of a change in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Revision {
    pub(super) main: u64,
    pub(super) sub: u64,
}

impl Revision {
    pub(super) fn encode(self) -> [u8; REVISION_BYTES] {
        let mut key = [b'_'; REVISION_BYTES];
        key[..8].copy_from_slice(&self.main.to_be_bytes());
        key[9..].copy_from_slice(&self.sub.to_be_bytes());
        key
    }

    /// The revision of a key, and whether the key is that of a deletion.
    pub(super) fn decode(key: &[u8]) -> Option<(Revision, bool)> {
        let (revision, mark) = key.split_at_checked(REVISION_BYTES)?;
        let (main, rest) = revision.split_first_chunk()?;
        let sub = rest.strip_prefix(b"_")?.first_chunk()?;
        let revision = Revision {
            main: u64::from_be_bytes(*main),
            sub: u64::from_be_bytes(*sub),
        };
        let is_number = |number: u64| i64::try_from(number).is_ok();
        let is_valid = is_number(revision.main) && is_number(revision.sub);
        match mark {
            _ if !is_valid => None,
            [] => Some((revision, false)),
            b"t" => Some((revision, true)),
            _ => None,
        }
    }
}
