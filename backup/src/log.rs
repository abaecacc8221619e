//! The log after an export: what was committed since, in segments.
//!
//! An export takes a checkpoint, which folds what was committed. So a follower exports from time to time, and sends what is committed
//! between two exports as it comes: that needs no checkpoint. A segment has the last value of each key that changed since the segment
//! before. With its export and the segments before, it shows the store as of its last commit.
//!
//! ```text
//! log/EXPORT/NUMBER   a segment; both numbers have twenty digits, and each export counts its segments from 1
//! segment             magic "DURASEGM" | format u32 | length of the head u32 | head: JSON | packs, one after the other
//! ```
//! A segment is one object: so the log of an export goes without reading it. A log that fails ends there. The next export has what
//! it lacks, and begins another log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use duramen::{ChangesFrom, Store, StoredChanges, StoredCommit};
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{BackupError, Result};
use crate::export::{ExportOptions, Progress};
use crate::manifest::{Export, FORMAT, Pack, Parent, check_of};
use crate::pack::{Body, Packer, Record, hash_of, open, record, seal};
use crate::target::{Backup, check_format};

const MAGIC: &[u8; 8] = b"DURASEGM";
const HEADER_BYTES: usize = 16;
/// Bytes of records after which a segment ends, whatever the time is.
const SEGMENT_BYTES: u64 = 16 << 20;
/// The longest segment that is read. It is in memory as a whole.
const OBJECT_BYTES_MAX: u64 = 1 << 30;
/// Bytes of records that a segment may have: a commit is not divided.
const COLLECTED_BYTES_MAX: u64 = OBJECT_BYTES_MAX / 2;
/// Bytes of a record beside its key and value, at most.
const RECORD_BYTES: u64 = 16;
/// How long sending a segment may take. The store keeps meanwhile what is committed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The head of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The format of the segment.
    pub format: u32,
    /// The export that the log goes on from.
    pub export: Parent,
    /// Its number; the log of each export counts from 1.
    pub number: u64,
    /// The newest commit that it shows.
    pub commit: u64,
    /// When that was committed, in milliseconds since 1970.
    pub committed_ms: u64,
    /// Pairs in the store then.
    pub pairs: u64,
    /// A digest of all these pairs.
    pub digest: String,
    /// The id of the next map.
    pub next_map: u32,
    /// What has changed, in the order of keys.
    pub packs: Vec<Pack>,
    /// The BLAKE3 hash of everything else here, as JSON without spaces.
    pub check: String,
}

impl Segment {
    fn expected_check(&self) -> String {
        check_of(&Segment {
            check: String::new(),
            ..self.clone()
        })
    }

    /// Bytes of its packs.
    pub fn bytes(&self) -> u64 {
        self.packs.iter().map(|pack| pack.bytes).sum()
    }
}

/// The segments that a place has of the log of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogSize {
    /// How many there are.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The log of a store after an export, which [`Log::ship`] sends. See [`Backup::follow`].
#[derive(Debug)]
pub struct Log<'b> {
    backup: &'b Backup,
    store: Store,
    options: ExportOptions,
    changes: StoredChanges,
    /// A commit that was read, and belongs to the next segment.
    ahead: Option<StoredCommit>,
    export: Parent,
    /// Segments so far.
    segments: u64,
    bytes: u64,
    /// The store as of the last commit that was read.
    commit: u64,
    pairs: u64,
    digest: Digest,
    /// Something failed: what was read then is in no segment.
    has_ended: bool,
}

/// What has changed since the last segment.
#[derive(Debug, Default)]
struct Collected {
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: u64,
    /// When the newest of them was committed, in microseconds since 1970.
    time: u64,
}

impl Backup {
    /// Exports as [`Backup::export`] does, and begins to follow the store from there.
    ///
    /// # Errors
    /// Those of [`Backup::export`].
    pub fn follow(
        &self,
        store: &Store,
        options: &ExportOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Export, Log<'_>)> {
        // Before the export: what is committed beside it is the first to be sent.
        let mut changes = store.stored_changes(ChangesFrom::Now)?;
        let export = self.export(store, options, progress)?;
        assert!(
            changes.position() <= export.commit,
            "an export shows what was committed when it began"
        );
        changes.skip_to(export.commit)?;
        let log = Log {
            backup: self,
            store: store.clone(),
            options: options.clone(),
            changes,
            ahead: None,
            export: export.as_parent(),
            segments: 0,
            bytes: 0,
            commit: export.commit,
            pairs: export.pairs,
            digest: export.known_digest()?,
            has_ended: false,
        };
        Ok((export, log))
    }

    /// How long the log of each export is, oldest first; exports without one are not in it.
    ///
    /// # Errors
    /// [`BackupError::Object`].
    pub fn log_sizes(&self) -> Result<BTreeMap<u64, LogSize>> {
        self.runtime().block_on(async {
            let mut sizes = BTreeMap::<u64, LogSize>::new();
            for (export, _, object) in self.segments(None).await? {
                let size = sizes.entry(export).or_default();
                size.segments += 1;
                size.bytes += object.size;
            }
            Ok(sizes)
        })
    }

    /// The segments of an export, or of all: the number of the export, their own, and the object; ascending.
    pub(crate) async fn segments(&self, export: Option<u64>) -> Result<Vec<(u64, u64, ObjectMeta)>> {
        let folder = match export {
            Some(export) => Path::from(format!("log/{export:020}")),
            None => Path::from("log"),
        };
        let mut segments = Vec::new();
        let mut objects = self.objects.list(Some(&folder));
        while let Some(object) = objects.next().await {
            match object {
                Ok(object) => {
                    segments.extend(segment_number(&object.location).map(|(export, number)| (export, number, object)))
                }
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    return Err(BackupError::object(format!("listing the log at {}", self.place))(error));
                }
            }
        }
        segments.sort_unstable_by_key(|(export, number, _)| (*export, *number));
        Ok(segments)
    }

    /// The log of an export, up to this moment.
    pub(crate) async fn log(&self, export: &Export, until_ms: u64) -> Result<ReadLog> {
        let segments = self.segments(Some(export.number)).await?;
        let mut read = stream::iter(&segments)
            .map(|(_, number, object)| async move { (*number, self.segment(export, *number, object).await) })
            .buffered(self.parallel);
        let mut log = ReadLog::default();
        let mut expected = 1;
        while let Some((number, segment)) = read.next().await {
            if number != expected {
                return Err(BackupError::damaged(format!(
                    "the log of export {} has no segment {expected}, and has segment {number}",
                    export.number
                )));
            }
            let segment = segment?;
            if segment.head.committed_ms > until_ms {
                break;
            }
            log.take(segment)?;
            expected += 1;
        }
        Ok(log)
    }

    /// Reads a segment and checks it.
    async fn segment(&self, export: &Export, number: u64, object: &ObjectMeta) -> Result<Fetched> {
        let path = &object.location;
        let damaged = |what: &str| BackupError::damaged(format!("{path} {what}"));
        if object.size > OBJECT_BYTES_MAX {
            return Err(damaged("is longer than any segment"));
        }
        self.rate.wait(object.size).await;
        let got = match self.objects.get(path).await {
            Ok(got) if got.meta.size != object.size => return Err(damaged("has another length than it had")),
            Ok(got) => got.bytes().await,
            Err(error) => Err(error),
        };
        let bytes = got.map_err(self.failed("reading", path))?;
        let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        let (true, Some(format), Some(length)) = (bytes.starts_with(MAGIC), word(8), word(12)) else {
            return Err(damaged("is no segment"));
        };
        let format = u32::from_le_bytes(format);
        check_format(path.as_ref(), format)?;
        let end = HEADER_BYTES + u32::from_le_bytes(length) as usize;
        let head = bytes.get(HEADER_BYTES..end).ok_or_else(|| damaged("is too short"))?;
        let segment: Segment =
            serde_json::from_slice(head).map_err(|error| damaged(&format!("cannot be read ({error})")))?;
        let is_as_written = segment.check == segment.expected_check() && segment.format == format;
        if !is_as_written || segment.number != number {
            return Err(damaged("has other values than it was written with"));
        }
        if segment.export != export.as_parent() {
            return Err(damaged(&format!("is of another export than export {}", export.number)));
        }
        // What a pack decompresses to could be any length, and is in memory.
        let body_bytes = segment
            .packs
            .iter()
            .try_fold(0u64, |sum, pack| sum.checked_add(pack.body_bytes));
        if body_bytes.is_none_or(|bytes| bytes > OBJECT_BYTES_MAX) {
            return Err(damaged("is longer than any segment"));
        }
        let mut bodies = Vec::new();
        let mut at = end;
        for pack in &segment.packs {
            let next = usize::try_from(pack.bytes)
                .ok()
                .and_then(|length| at.checked_add(length));
            let next = next
                .filter(|&next| next <= bytes.len())
                .ok_or_else(|| damaged("is too short"))?;
            let object = bytes.slice(at..next);
            if hash_of(&object) != pack.blake3 {
                return Err(damaged("has other bytes than it was written with"));
            }
            let body = open(&object, &pack.blake3)?;
            if body.len() as u64 != pack.body_bytes {
                return Err(damaged("has a pack of a wrong length"));
            }
            bodies.push(body);
            at = next;
        }
        if at != bytes.len() {
            return Err(damaged("is too long"));
        }
        Ok(Fetched {
            path: path.clone(),
            bytes: object.size,
            head: segment,
            bodies,
        })
    }
}

impl Log<'_> {
    /// Sends what is committed from now on for this long, or less when that is much; a segment does not go across a multiple of
    /// that time. What a commit changed is sent with the next call at the latest. When this returns a segment, that is durable as
    /// the place keeps what it has. `None`: nothing was committed that changes anything.
    ///
    /// # Errors
    /// After any error the log has ended, and the next export begins another one. [`BackupError::Store`] with
    /// [`duramen::Reason::NotRetained`]: the log fell too far behind, or a checkpoint was restored. [`BackupError::LongCommit`],
    /// [`BackupError::Object`], [`BackupError::TakenMeanwhile`], [`BackupError::LogEnded`].
    pub fn ship(&mut self, every: Duration) -> Result<Option<Segment>> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Err(BackupError::LogEnded);
        }
        let collected = self.collect(every)?;
        let segment = match collected.changes.is_empty() {
            true => None,
            false => Some(self.send(collected)?),
        };
        self.has_ended = false;
        Ok(segment)
    }

    /// Bytes of the segments so far, before compression. An import has them in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Segments so far.
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// The newest commit that was sent, or that changed nothing.
    pub fn commit(&self) -> u64 {
        self.commit
    }

    fn collect(&mut self, every: Duration) -> Result<Collected> {
        let end = Instant::now() + every;
        let span = (every.as_micros() as u64).max(1);
        let mut collected = Collected::default();
        while collected.bytes < SEGMENT_BYTES {
            let left = end.saturating_duration_since(Instant::now());
            let commit = match self.ahead.take() {
                Some(commit) => commit,
                None => match self.changes.next(left)? {
                    Some(commit) => commit,
                    None => break,
                },
            };
            if !collected.changes.is_empty() && commit.time / span != collected.time / span {
                self.ahead = Some(commit);
                break;
            }
            self.take(commit, &mut collected)?;
            if left.is_zero() {
                break;
            }
        }
        Ok(collected)
    }

    fn take(&mut self, commit: StoredCommit, collected: &mut Collected) -> Result<()> {
        self.commit = commit.number;
        collected.time = commit.time;
        for (key, change) in commit.pairs {
            if let Some(old) = &change.old {
                self.digest.remove(&key, old);
                self.pairs -= 1;
            }
            if let Some(new) = &change.new {
                self.digest.add(&key, new);
                self.pairs += 1;
            }
            let length = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, |value| value.len() as u64);
            let key_bytes = key.len() as u64 + RECORD_BYTES;
            collected.bytes += key_bytes + length(&change.new);
            if let Some(before) = collected.changes.insert(key, change.new) {
                collected.bytes -= key_bytes + length(&before);
            }
        }
        if collected.bytes > COLLECTED_BYTES_MAX {
            let (commit, bytes) = (self.commit, collected.bytes);
            return Err(BackupError::LongCommit { commit, bytes });
        }
        Ok(())
    }

    fn send(&mut self, collected: Collected) -> Result<Segment> {
        let mut bodies = Vec::new();
        let mut packer = Packer::new(|body: Body| {
            bodies.push(body);
            true
        });
        for (key, new) in &collected.changes {
            match new {
                Some(new) => packer.put(key, new),
                None => packer.delete(key),
            };
        }
        packer.finish();
        drop(collected.changes);
        let mut objects = Vec::new();
        let mut packs = Vec::new();
        for body in bodies {
            let (body_bytes, records) = (body.records_bytes().len() as u64, body.records);
            let object = seal(body, self.options.compression)?;
            packs.push(Pack {
                blake3: hash_of(&object),
                bytes: object.len() as u64,
                body_bytes,
                records,
            });
            objects.push(object);
        }
        let mut segment = Segment {
            format: FORMAT,
            export: self.export.clone(),
            number: self.segments + 1,
            commit: self.commit,
            committed_ms: collected.time / 1_000,
            pairs: self.pairs,
            digest: self.digest.to_text(),
            next_map: self.store.next_map(),
            packs,
            check: String::new(),
        };
        segment.check = segment.expected_check();
        let head = serde_json::to_vec(&segment).expect("a segment is plain data");
        let lengths = [FORMAT.to_le_bytes(), (head.len() as u32).to_le_bytes()].concat();
        let object = [&MAGIC[..], &lengths, &head, &objects.concat()].concat();
        let (bytes, object) = (object.len() as u64, Bytes::from(object));
        self.backup.runtime().block_on(async {
            self.backup.rate.wait(bytes).await;
            let sent = tokio::time::timeout(PATIENCE, self.backup.create_segment(&segment, object)).await;
            sent.unwrap_or_else(|_| {
                let error = std::io::Error::other(format!("it took longer than {} s", PATIENCE.as_secs()));
                Err(BackupError::io(format!("sending the log to {}", self.backup.place))(
                    error,
                ))
            })
        })?;
        self.segments += 1;
        self.bytes += segment.packs.iter().map(|pack| pack.body_bytes).sum::<u64>();
        Ok(segment)
    }
}

impl Backup {
    async fn create_segment(&self, segment: &Segment, object: Bytes) -> Result<()> {
        let path = segment_path(segment.export.number, segment.number);
        if self.create(&path, object.clone()).await? {
            return Ok(());
        }
        // An answer may have got lost.
        let stored = self.read(&path).await.map_err(self.failed("reading", &path))?;
        match stored == object {
            true => Ok(()),
            false => Err(BackupError::TakenMeanwhile {
                number: segment.export.number,
            }),
        }
    }
}

/// A segment that was fetched and checked.
struct Fetched {
    path: Path,
    bytes: u64,
    head: Segment,
    bodies: Vec<Bytes>,
}

/// Segments that were read: of several changes of a key the last one.
#[derive(Debug, Default)]
pub(crate) struct ReadLog {
    changes: BTreeMap<Bytes, Option<Bytes>>,
    /// A long value whose parts are not all there yet, and how many bytes are missing.
    long: Option<(Bytes, Vec<u8>, u64)>,
    /// Bytes of their objects.
    pub(crate) bytes: u64,
    /// The newest of them.
    pub(crate) last: Option<Segment>,
}

impl ReadLog {
    fn take(&mut self, segment: Fetched) -> Result<()> {
        let damaged = |what: &str| BackupError::damaged(format!("{} has {what}", segment.path));
        for body in &segment.bodies {
            self.take_body(body)
                .ok_or_else(|| damaged("bytes that are no record"))?;
        }
        if self.long.is_some() {
            return Err(damaged("only a part of a value"));
        }
        self.bytes += segment.bytes;
        self.last = Some(segment.head);
        Ok(())
    }

    /// Takes the records of a body. `None`: it has bytes that are none.
    fn take_body(&mut self, body: &Bytes) -> Option<()> {
        let mut at = 0;
        while at < body.len() {
            let (record, bytes) = record(&body[at..])?;
            at += bytes;
            match (record, self.long.take()) {
                (Record::Put { key, value }, None) => {
                    self.changes.insert(body.slice_ref(key), Some(body.slice_ref(value)));
                }
                (Record::Delete { key }, None) => {
                    self.changes.insert(body.slice_ref(key), None);
                }
                (Record::LongPut { key, length, part }, None) => {
                    let left = length.checked_sub(part.len() as u64)?;
                    self.go_on(body.slice_ref(key), part.to_vec(), left);
                }
                (Record::Part { part }, Some((key, mut value, left))) => {
                    let left = left.checked_sub(part.len() as u64)?;
                    value.extend_from_slice(part);
                    self.go_on(key, value, left);
                }
                _ => return None,
            }
        }
        Some(())
    }

    fn go_on(&mut self, key: Bytes, value: Vec<u8>, left: u64) {
        match left {
            0 => drop(self.changes.insert(key, Some(value.into()))),
            _ => self.long = Some((key, value, left)),
        }
    }

    /// Packs the changes, in order, and hands the bodies out until one is not wanted.
    pub(crate) fn pack(self, mut hand_out: impl FnMut(Bytes) -> bool) {
        let mut packer = Packer::new(|body: Body| hand_out(body.into_records()));
        for (key, new) in self.changes {
            let is_wanted = match new {
                Some(new) => packer.put(&key, &new),
                None => packer.delete(&key),
            };
            if !is_wanted {
                return;
            }
        }
        packer.finish();
    }
}

fn segment_path(export: u64, number: u64) -> Path {
    Path::from(format!("log/{export:020}/{number:020}"))
}

/// The numbers of the export and of the segment that stands there.
fn segment_number(path: &Path) -> Option<(u64, u64)> {
    let number = |digits: &str| {
        let is_number = digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let parts = path.parts().collect::<Vec<_>>();
    let [.., export, segment] = &parts[..] else { return None };
    Some((number(export.as_ref())?, number(segment.as_ref())?))
}
