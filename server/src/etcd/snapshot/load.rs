//! Reads a snapshot file of etcd.
//!
//! Opening a file checks all of it: its SHA-256, where it has one, the pages of bbolt, and the rows of etcd. Memory grows with the
//! keys that are alive, not with values and history.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use duramen_proto::etcd::kv::KeyValue;
use prost::Message;
use sha2::{Digest, Sha256};

use super::bolt::{Bucket, Reader};
use super::rows::{AUTH, AUTH_ENABLED, KEY, LEASE, LeaseRow, Revision};

/// etcd tells by the length of a file whether a SHA-256 follows its pages.
const SECTOR_BYTES: u64 = 512;
const SHA_BYTES: u64 = 32;
const BUFFER_BYTES: usize = 256 << 10;

/// Why a file cannot be read as a snapshot of etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdSnapshotError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    /// It is something else.
    #[error("it is not a snapshot of etcd: {0}")]
    Foreign(&'static str),
    /// It is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

/// A lease of a snapshot. Times are seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtcdLease {
    /// Its id.
    pub id: i64,
    /// How long it lasts after it was granted or kept alive.
    pub ttl: i64,
}

/// A snapshot file of etcd, or a copy of the file `member/snap/db`, whose content was checked.
#[derive(Debug)]
pub struct EtcdSnapshot {
    reader: Reader,
    keys: Bucket,
    /// The newest revision of each key that is alive.
    newest: HashMap<Vec<u8>, Revision>,
    leases: Vec<EtcdLease>,
    revision: u64,
    has_sha: bool,
    has_auth: bool,
}

fn damaged(message: impl Into<String>) -> EtcdSnapshotError {
    EtcdSnapshotError::Damaged(message.into())
}

impl EtcdSnapshot {
    /// Opens a file and checks all of it.
    ///
    /// # Errors
    /// [`EtcdSnapshotError`].
    pub fn open(path: impl AsRef<Path>) -> Result<EtcdSnapshot, EtcdSnapshotError> {
        let file = File::open(path).map_err(EtcdSnapshotError::Read)?;
        let metadata = file.metadata().map_err(EtcdSnapshotError::Read)?;
        if !metadata.is_file() {
            return Err(EtcdSnapshotError::Foreign("it is no regular file"));
        }
        let (bytes, has_sha) = match metadata.len() {
            0 => return Err(EtcdSnapshotError::Foreign("it is empty")),
            length if length % SECTOR_BYTES == SHA_BYTES => (length - SHA_BYTES, true),
            length => (length, false),
        };
        let checked = if has_sha { check_sha(&file, bytes) } else { Ok(()) };
        // A file without meta pages is something else, whatever its last bytes are.
        let reader = Reader::open(file, bytes)?;
        checked?;
        if bytes % SECTOR_BYTES != 0 {
            return Err(damaged("its length is not that of whole pages; it may be cut off"));
        }
        EtcdSnapshot::check(reader, has_sha)
    }

    fn check(reader: Reader, has_sha: bool) -> Result<EtcdSnapshot, EtcdSnapshotError> {
        let mut buckets: HashMap<_, _> = reader.buckets()?.into_iter().collect();
        let keys = buckets.remove(KEY);
        let keys = keys.ok_or(EtcdSnapshotError::Foreign("it has no bucket `key`"))?;
        let (leases, auth) = (buckets.remove(LEASE), buckets.remove(AUTH));
        // The other buckets are not used, but their damage is damage of the file.
        for bucket in buckets.values() {
            reader.each(bucket, |_, _| Ok::<_, EtcdSnapshotError>(()))?;
        }
        let mut snapshot = EtcdSnapshot {
            reader,
            keys,
            newest: HashMap::new(),
            leases: Vec::new(),
            revision: 1,
            has_sha,
            has_auth: false,
        };
        if let Some(auth) = auth {
            snapshot.reader.each(&auth, |key, value| {
                snapshot.has_auth |= key == AUTH_ENABLED && value == [1];
                Ok::<_, EtcdSnapshotError>(())
            })?;
        }
        if let Some(leases) = leases {
            snapshot.reader.each(&leases, |key, value| {
                snapshot.leases.push(lease_of(key, value)?);
                Ok::<_, EtcdSnapshotError>(())
            })?;
        }
        let (newest, revision) = (&mut snapshot.newest, &mut snapshot.revision);
        snapshot.reader.each(&snapshot.keys, |key, value| {
            let (at, is_deletion) = revision_of(key)?;
            *revision = at.main.max(*revision);
            let Some(pair) = pair_of(value)? else { return Ok(()) };
            if is_deletion {
                newest.remove(&pair.key[..]);
                return Ok(());
            }
            if u64::try_from(pair.mod_revision) != Ok(at.main) {
                return Err(damaged(format!("a row of revision {} names another revision", at.main)));
            }
            newest.insert(pair.key.to_vec(), at);
            Ok(())
        })?;
        Ok(snapshot)
    }

    /// Calls `visit` with the keys that are alive, in the order of the revisions that changed them last.
    ///
    /// # Errors
    /// [`EtcdSnapshotError`] when the file changed since it was opened, and those of `visit`.
    pub fn each<E: From<EtcdSnapshotError>>(&self, mut visit: impl FnMut(KeyValue) -> Result<(), E>) -> Result<(), E> {
        let mut found = 0;
        self.reader.each(&self.keys, |key, value| {
            let (at, is_deletion) = revision_of(key)?;
            match pair_of(value)? {
                Some(pair) if !is_deletion && self.newest.get(&pair.key[..]) == Some(&at) => {
                    found += 1;
                    visit(pair)
                }
                _ => Ok(()),
            }
        })?;
        match found == self.newest.len() {
            true => Ok(()),
            false => Err(damaged("it has changed since it was opened").into()),
        }
    }

    /// The leases, in the order of their ids.
    pub fn leases(&self) -> &[EtcdLease] {
        &self.leases
    }

    /// Number of the keys that are alive.
    pub fn keys(&self) -> u64 {
        self.newest.len() as u64
    }

    /// The newest revision that a row has.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether the file ends with a SHA-256 of its bytes. It is a right one then.
    pub fn has_sha(&self) -> bool {
        self.has_sha
    }

    /// Whether its etcd had users and roles in force.
    pub fn has_auth(&self) -> bool {
        self.has_auth
    }
}

/// Compares the bytes of a file with the SHA-256 that follows them.
fn check_sha(mut file: &File, bytes: u64) -> Result<(), EtcdSnapshotError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut left = bytes;
    while left > 0 {
        let wanted = left.min(BUFFER_BYTES as u64) as usize;
        file.read_exact(&mut buffer[..wanted])?;
        hash.update(&buffer[..wanted]);
        left -= wanted as u64;
    }
    let mut expected = [0; SHA_BYTES as usize];
    file.read_exact_at(&mut expected, bytes)?;
    match hash.finalize()[..] == expected {
        true => Ok(()),
        false => Err(damaged("its SHA-256 is not that of its content")),
    }
}

fn revision_of(key: &[u8]) -> Result<(Revision, bool), EtcdSnapshotError> {
    Revision::decode(key).ok_or_else(|| damaged("a row of the bucket `key` has no revision"))
}

/// The pair of a row. `etcdutl snapshot restore --bump-revision` leaves rows without one.
fn pair_of(value: &[u8]) -> Result<Option<KeyValue>, EtcdSnapshotError> {
    let pair = KeyValue::decode(value).map_err(|_| damaged("a row of the bucket `key` is no pair"))?;
    Ok(Some(pair).filter(|pair| !pair.key.is_empty()))
}

fn lease_of(key: &[u8], value: &[u8]) -> Result<EtcdLease, EtcdSnapshotError> {
    let row = LeaseRow::decode(value).ok().filter(|row| key == row.id.to_be_bytes());
    let row = row.ok_or_else(|| damaged("a row of the bucket `lease` is no lease"))?;
    Ok(EtcdLease {
        id: row.id,
        ttl: row.ttl,
    })
}
