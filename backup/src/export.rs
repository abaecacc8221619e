//! Exports: a checkpoint of the store becomes packs and a manifest.
//!
//! The checkpoint of the newest export stays in the store. So the next export has only the pairs that differ, found in time that
//! grows with the difference. Commits go on meanwhile: an export reads a state that is kept.
//!
//! The manifest is written last. An export that was interrupted leaves its checkpoint and some packs. The next one goes on with
//! that checkpoint, makes the same packs again, and sends only those that are missing.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duramen::{Checkpoint, Store};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::digest::Digest;
use crate::error::{BackupError, Result};
use crate::manifest::{Export, FORMAT, Pack, export_path, pack_path};
use crate::pack::{Body, Compression, Packer, hash_of, seal};
use crate::rate::Rate;
use crate::target::{Backup, random_id};

/// Each export whose number of exports since the full one is a multiple of this goes on from the multiple before, and so on for
/// its powers: so a chain is short.
const LEVEL: u64 = 16;
const FULL_EVERY: u32 = 256;
/// Bodies that wait for their transfer.
const WAITING: usize = 1;
/// A pack that is there already is sent again when it is this old: `prune` may be about to delete it.
const FRESH: Duration = Duration::from_secs(60 * 60);

/// How to export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    full: bool,
    full_every: u32,
    pub(crate) compression: Compression,
    metadata: String,
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions {
            full: false,
            full_every: FULL_EVERY,
            compression: Compression::Zstd,
            metadata: String::new(),
        }
    }
}

impl ExportOptions {
    /// Incremental where that is possible, compressed.
    pub fn new() -> ExportOptions {
        ExportOptions::default()
    }

    /// Exports all pairs, whatever there is already.
    pub fn full(mut self, is_full: bool) -> ExportOptions {
        self.full = is_full;
        self
    }

    /// After so many exports the next one is full. Default: 256. An import reads at most 15 exports for each power of 16 in that.
    pub fn full_every(mut self, exports: u32) -> ExportOptions {
        self.full_every = exports.max(1);
        self
    }

    /// How packs are compressed. Default: zstd.
    pub fn compression(mut self, compression: Compression) -> ExportOptions {
        self.compression = compression;
        self
    }

    /// Text to store with the export.
    pub fn metadata(mut self, metadata: impl Into<String>) -> ExportOptions {
        self.metadata = metadata.into();
        self
    }
}

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Changes of keys so far.
    pub records: u64,
    /// Pairs in the store; an incremental export has fewer changes.
    pub pairs: u64,
    /// Bytes that were sent or received.
    pub bytes: u64,
    /// Packs that were there already.
    pub skipped: u64,
}

/// What a checkpoint of an export says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    export: u64,
    id: String,
}

fn pairs_in(checkpoint: &Checkpoint) -> u64 {
    checkpoint.pairs.expect("what the store lists is folded")
}

/// The checkpoints of a store that belong to a backup.
struct Checkpoints<'s> {
    store: &'s Store,
    prefix: String,
    kept: Vec<(Checkpoint, Kept)>,
}

impl<'s> Checkpoints<'s> {
    fn of(store: &'s Store, backup: &str) -> Result<Checkpoints<'s>> {
        let prefix = format!("backup {} ", backup.chars().take(16).collect::<String>());
        let all = store.checkpoints().list()?.into_iter();
        let kept = all
            .filter(|checkpoint| checkpoint.name.starts_with(&prefix))
            .filter_map(|checkpoint| {
                let kept = serde_json::from_slice(&checkpoint.metadata).ok()?;
                Some((checkpoint, kept))
            });
        Ok(Checkpoints {
            store,
            kept: kept.collect(),
            prefix,
        })
    }

    fn find(&self, export: u64, id: Option<&str>) -> Option<&(Checkpoint, Kept)> {
        let is_it = |(_, kept): &&(Checkpoint, Kept)| kept.export == export && id.is_none_or(|id| kept.id == id);
        self.kept.iter().find(is_it)
    }

    fn create(&self, export: u64) -> Result<(Checkpoint, Kept)> {
        let kept = Kept {
            export,
            id: random_id(),
        };
        let name = format!("{}{export} {}", self.prefix, &kept.id[..8]);
        let metadata = serde_json::to_vec(&kept).expect("it is plain data");
        let checkpoints = self.store.checkpoints();
        checkpoints.create(&name, metadata)?;
        // With the number of its pairs, which is known when it is folded.
        let made = checkpoints.get(&name)?;
        let gone = || duramen::Reason::UnknownCheckpoint { name: name.clone() };
        Ok((made.ok_or_else(|| duramen::Error::from(gone()))?, kept))
    }

    /// Drops those that no later export goes on from.
    fn keep_needed(&self, number: u64, full: u64) -> Result<()> {
        let is_needed = |kept: &Kept| needed(number - full).any(|since| kept.export == full + since);
        for (checkpoint, _) in self.kept.iter().filter(|(_, kept)| !is_needed(kept)) {
            self.store.checkpoints().drop(&checkpoint.name)?;
        }
        Ok(())
    }
}

/// How many exports after the full one the export stands that the export `since` goes on from.
fn parent_of(since: u64) -> u64 {
    let mut step = 1;
    while since.is_multiple_of(step * LEVEL) {
        step *= LEVEL;
    }
    since - step
}

/// How many exports after the full one those stand that the exports after `since` go on from.
fn needed(since: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1), |step| Some(step * LEVEL))
        .map(move |step| since / step * step)
        .scan(false, |is_over, at| {
            let is_last = std::mem::replace(is_over, at == 0);
            (!is_last).then_some(at)
        })
}

/// What an export goes on from.
struct Base {
    export: Export,
    /// The name of its checkpoint.
    checkpoint: String,
}

/// What was read, and what was sent.
struct Sent {
    packs: Vec<Pack>,
    digest: Digest,
}

impl Backup {
    /// Exports the present state of a store. It is incremental when the store still has the checkpoint of the newest export. When
    /// this returns, the export is complete, and durable as the place keeps what it has: a directory is synced.
    ///
    /// # Errors
    /// [`BackupError::TakenMeanwhile`], [`BackupError::NotABackup`], [`BackupError::NoConditionalPut`], [`BackupError::Object`],
    /// [`BackupError::Store`]. Call it again: it ends the export that was interrupted, and makes another one of what has changed since.
    pub fn export(&self, store: &Store, options: &ExportOptions, progress: &mut dyn FnMut(Progress)) -> Result<Export> {
        let commit = store.snapshot()?.commit();
        self.runtime().block_on(async {
            let export = self.export_async(store, options, progress).await?;
            if export.commit >= commit {
                return Ok(export);
            }
            // It had been interrupted, and has the state of then.
            self.export_async(store, options, progress).await
        })
    }

    async fn export_async(
        &self,
        store: &Store,
        options: &ExportOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Export> {
        let identity = self.claim().await?;
        let newest_number = self.numbers().await?.last().copied();
        let newest = match newest_number {
            Some(number) => match self.manifest(number).await {
                // Nothing that this one could go on from.
                Err(BackupError::Damaged { .. }) => None,
                newest => Some(newest?),
            },
            None => None,
        };
        let number = newest_number
            .unwrap_or_default()
            .checked_add(1)
            .ok_or_else(|| BackupError::damaged("there is an export with the greatest number"))?;
        let checkpoints = Checkpoints::of(store, &identity.id)?;
        let base = match &newest {
            Some(newest) if !options.full => self.base(newest, options, &checkpoints).await?,
            _ => None,
        };
        let (checkpoint, kept) = match checkpoints.find(number, None) {
            Some((checkpoint, kept)) => (checkpoint.clone(), kept.clone()),
            None => checkpoints.create(number)?,
        };
        let from = base.as_ref().map(|base| base.checkpoint.as_str());
        let digest = match &base {
            Some(base) => base.export.known_digest()?,
            None => Digest::default(),
        };
        let sent = self
            .send_packs(store, (from, &checkpoint), digest, options.compression, progress)
            .await?;
        let mut export = Export {
            format: FORMAT,
            number,
            id: kept.id,
            store: format!("{:032x}", store.id()),
            commit: checkpoint.commit,
            created_ms: checkpoint
                .created
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_millis() as u64,
            metadata: options.metadata.clone(),
            full: base.as_ref().map_or(number, |base| base.export.full),
            parent: base.as_ref().map(|base| base.export.as_parent()),
            pairs: pairs_in(&checkpoint),
            digest: sent.digest.to_text(),
            next_map: store.next_map(),
            packs: sent.packs,
            check: String::new(),
        };
        export.check = export.expected_check();
        let text = serde_json::to_vec_pretty(&export).expect("an export is plain data");
        if !self.create(&export_path(number), text).await? {
            let stored = self.manifest(number).await?;
            if stored.id != export.id {
                return Err(BackupError::TakenMeanwhile { number });
            }
            // An answer got lost, or another export of this checkpoint was faster: what is stored counts.
            export = stored;
        }
        checkpoints.keep_needed(number, export.full)?;
        Ok(export)
    }

    /// What the export after the newest one goes on from; `None`: it must be full.
    async fn base(
        &self,
        newest: &Export,
        options: &ExportOptions,
        checkpoints: &Checkpoints<'_>,
    ) -> Result<Option<Base>> {
        let since = newest.number + 1 - newest.full;
        // The newest export must be of this store: a copy of its files has the checkpoints too, and may have gone another way.
        if since >= u64::from(options.full_every) || checkpoints.find(newest.number, Some(&newest.id)).is_none() {
            return Ok(None);
        }
        let number = newest.full + parent_of(since);
        let export = match self.manifest(number).await {
            Err(BackupError::UnknownExport { .. } | BackupError::Damaged { .. }) => return Ok(None),
            export => export?,
        };
        let known = checkpoints.find(number, Some(&export.id));
        Ok(known.map(|(checkpoint, _)| Base {
            export,
            checkpoint: checkpoint.name.clone(),
        }))
    }

    /// Reads the store in a thread of its own, and sends what that makes of it.
    async fn send_packs(
        &self,
        store: &Store,
        (from, to): (Option<&str>, &Checkpoint),
        digest: Digest,
        compression: Compression,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Sent> {
        let (bodies, waiting) = mpsc::channel::<Body>(WAITING);
        let (store, from, name) = (store.clone(), from.map(str::to_string), to.name.clone());
        let reader = tokio::task::spawn_blocking(move || read(&store, from.as_deref(), &name, digest, bodies));
        let sent = self.send_bodies(waiting, pairs_in(to), compression, progress).await;
        // It ends when no one waits for bodies. After that the store can be closed.
        let digest = reader.await.expect("reading does not panic");
        Ok(Sent {
            packs: sent?,
            digest: digest?,
        })
    }

    async fn send_bodies(
        &self,
        mut waiting: mpsc::Receiver<Body>,
        pairs: u64,
        compression: Compression,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Pack>> {
        let mut now = Progress {
            pairs,
            ..Progress::default()
        };
        let mut packs: Vec<Option<Pack>> = Vec::new();
        let mut under_way: JoinSet<Result<(usize, (Pack, bool))>> = JoinSet::new();
        let mut is_read = false;
        while !(is_read && under_way.is_empty()) {
            tokio::select! {
                body = waiting.recv(), if !is_read && under_way.len() < self.parallel => match body {
                    Some(body) => {
                        let place = packs.len();
                        packs.push(None);
                        let sender = self.sender();
                        under_way.spawn(async move { Ok((place, sender.send(body, compression).await?)) });
                    }
                    None => is_read = true,
                },
                Some(sent) = under_way.join_next() => {
                    let (place, (pack, is_new)) = sent.expect("a transfer does not panic")?;
                    now.records += pack.records;
                    now.bytes += if is_new { pack.bytes } else { 0 };
                    now.skipped += u64::from(!is_new);
                    packs[place] = Some(pack);
                    progress(now);
                }
            }
        }
        Ok(packs.into_iter().flatten().collect())
    }

    fn sender(&self) -> Sender {
        Sender {
            objects: self.objects.clone(),
            rate: self.rate.clone(),
            place: self.place.clone(),
        }
    }
}

/// What sending a pack takes.
struct Sender {
    objects: Arc<dyn ObjectStore>,
    rate: Arc<Rate>,
    place: String,
}

impl Sender {
    /// Sends a body, unless it is there. Returns whether it was not.
    async fn send(self, body: Body, compression: Compression) -> Result<(Pack, bool)> {
        let sealed = tokio::task::spawn_blocking(move || {
            let (body_bytes, records) = (body.records_bytes().len() as u64, body.records);
            let object = seal(body, compression)?;
            let pack = Pack {
                blake3: hash_of(&object),
                bytes: object.len() as u64,
                body_bytes,
                records,
            };
            Ok::<_, BackupError>((pack, object))
        });
        let (pack, object) = sealed.await.expect("sealing does not panic")?;
        let path = pack_path(&pack.blake3);
        let is_there = match self.objects.head(&path).await {
            Ok(found) => {
                let age = SystemTime::now().duration_since(found.last_modified.into());
                found.size == pack.bytes && age.is_ok_and(|age| age < FRESH)
            }
            // When the place cannot be reached, sending says so.
            Err(_) => false,
        };
        if !is_there {
            self.rate.wait(pack.bytes).await;
            let sent = self.objects.put(&path, PutPayload::from(object)).await;
            sent.map_err(BackupError::object(format!("sending a pack to {}", self.place)))?;
        }
        Ok((pack, !is_there))
    }
}

/// Makes bodies of all pairs of a checkpoint, or of those that differ from an earlier one. Returns the digest of all pairs.
fn read(store: &Store, from: Option<&str>, to: &str, mut digest: Digest, bodies: mpsc::Sender<Body>) -> Result<Digest> {
    let mut packer = Packer::new(|body| bodies.blocking_send(body).is_ok());
    let checkpoints = store.checkpoints();
    match from {
        None => checkpoints.each_stored(to, |key, value| {
            digest.add(key, value);
            Ok(packer.put(key, value))
        })?,
        Some(from) => checkpoints.each_stored_difference((from, to), |key, old, new| {
            if let Some(old) = old {
                digest.remove(key, &old);
            }
            Ok(match new {
                Some(new) => {
                    digest.add(key, &new);
                    packer.put(key, &new)
                }
                None => packer.delete(key),
            })
        })?,
    }
    packer.finish();
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn chains_are_short_and_a_store_keeps_few_checkpoints() {
        let mut kept = BTreeSet::from([0]);
        for since in 1..10_000 {
            assert!(kept.contains(&parent_of(since)), "{since}");
            kept.insert(since);
            let needed: BTreeSet<u64> = needed(since).collect();
            kept.retain(|at| needed.contains(at));
            assert!(kept.len() <= 5, "{since}: {kept:?}");
            let chain = std::iter::successors(Some(since), |&at| (at > 0).then(|| parent_of(at)));
            assert!(chain.count() <= 4 * 15 + 1);
        }
        assert_eq!([1, 15, 16, 17, 32, 256, 4096].map(parent_of), [0, 14, 0, 16, 16, 0, 0]);
    }
}
