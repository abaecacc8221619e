//! Reading a state: the packs of an export, of those that it goes on from, and of its log, as one sequence of pairs.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::digest::Digest;
use crate::error::{BackupError, Result};
use crate::export::Progress;
use crate::log::ReadLog;
use crate::manifest::{Export, Pack, pack_path};
use crate::pack::{Record, hash_of, open, record};
use crate::rate::Rate;
use crate::target::Backup;

/// Which state of a store a backup is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// The newest one: that of the newest export and its log.
    #[default]
    Newest,
    /// That of an export, by its number, without its log.
    Export(u64),
    /// What had been committed by this time, in milliseconds since 1970. Where the log has it, that is as exact as its segments:
    /// see [`crate::Log::ship`]. Otherwise it is the state of the newest export until then.
    Until(u64),
}

/// A state that a backup has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct State {
    /// The export that it begins with.
    pub export: Export,
    /// Segments of its log that come on top.
    pub segments: u64,
    /// The newest commit that it shows.
    pub commit: u64,
    /// When that was committed, or the checkpoint of the export made, in milliseconds since 1970.
    pub committed_ms: u64,
    /// Pairs in the store then, those included that topics and trees consist of.
    pub pairs: u64,
    digest: String,
    pub(crate) next_map: u32,
}

impl State {
    fn of(export: Export, log: &ReadLog) -> State {
        let last = log.last.as_ref();
        State {
            segments: last.map_or(0, |last| last.number),
            commit: last.map_or(export.commit, |last| last.commit),
            committed_ms: last.map_or(export.created_ms, |last| last.committed_ms),
            pairs: last.map_or(export.pairs, |last| last.pairs),
            digest: last.map_or(&export.digest, |last| &last.digest).clone(),
            next_map: last.map_or(export.next_map, |last| last.next_map),
            export,
        }
    }

    fn name(&self) -> String {
        let number = self.export.number;
        match self.segments {
            0 => format!("export {number}"),
            segments => format!("export {number} with segment {segments} of its log"),
        }
    }
}

/// What a state is made of.
pub(crate) struct Chain {
    /// The export with those that it goes on from, the full one first.
    exports: Vec<Export>,
    log: ReadLog,
    pub(crate) state: State,
}

impl Backup {
    /// What the state of a moment is made of.
    pub(crate) async fn chain(&self, moment: Moment) -> Result<Chain> {
        let nothing = || BackupError::NoExports {
            place: self.place.clone(),
        };
        self.identity().await?.ok_or_else(nothing)?;
        let newest = match moment {
            Moment::Export(number) => self.manifest(number).await?,
            Moment::Newest => {
                let number = *self.numbers().await?.last().ok_or_else(nothing)?;
                self.manifest(number).await?
            }
            Moment::Until(until_ms) => {
                let exports = self.exports().await?.into_iter();
                let late = || BackupError::NoneUntil {
                    place: self.place.clone(),
                };
                let found = exports.rev().find(|export| export.created_ms <= until_ms);
                found.ok_or_else(late)?
            }
        };
        let log = match moment {
            Moment::Export(_) => ReadLog::default(),
            Moment::Newest => self.log(&newest, u64::MAX).await?,
            Moment::Until(until_ms) => self.log(&newest, until_ms).await?,
        };
        let state = State::of(newest.clone(), &log);
        let exports = self.chain_of(newest).await?;
        Ok(Chain { exports, log, state })
    }

    /// An export with those that it goes on from, the full one first.
    async fn chain_of(&self, export: Export) -> Result<Vec<Export>> {
        let mut chain = VecDeque::from([export]);
        while let Some(parent) = chain[0].parent.clone() {
            let number = chain[0].number;
            let missing = || BackupError::MissingLink {
                number,
                parent: parent.number,
            };
            if parent.number >= number {
                return Err(missing());
            }
            let export = match self.manifest(parent.number).await {
                Err(BackupError::UnknownExport { .. }) => return Err(missing()),
                export => export?,
            };
            if export.id != parent.id {
                return Err(missing());
            }
            chain.push_front(export);
        }
        Ok(chain.into())
    }
}

/// The pairs of an export, in order. It is read in a thread that may block.
pub(crate) struct Pairs {
    /// Of the full export first: of several changes of a key the last one counts.
    all: Vec<Changes>,
    /// Which of them has the pair at hand.
    at: usize,
    /// Those that stand on the key of the pair at hand.
    behind: Vec<usize>,
    /// The value at hand, if it was put together from parts.
    long: Vec<u8>,
    digest: Digest,
    progress: mpsc::UnboundedSender<Progress>,
    now: Progress,
    found: u64,
    expected: State,
}

/// How often progress is told of, in pairs.
const TOLD_PAIRS: u64 = 1 << 14;

impl Pairs {
    /// Begins to fetch the packs of a chain.
    pub(crate) fn of(backup: &Backup, chain: Chain, progress: mpsc::UnboundedSender<Progress>) -> Pairs {
        let ahead = (backup.parallel / chain.exports.len()).max(1);
        let exports = chain.exports.iter();
        let mut all: Vec<_> = exports
            .map(|export| Changes::of_export(backup, export, ahead))
            .collect();
        let expected = chain.state;
        if chain.log.last.is_some() {
            all.push(Changes::of_log(backup, chain.log, expected.export.number));
        }
        Pairs {
            at: 0,
            behind: (0..all.len()).collect(),
            all,
            long: Vec::new(),
            digest: Digest::default(),
            progress,
            now: Progress {
                pairs: expected.pairs,
                ..Progress::default()
            },
            found: 0,
            expected,
        }
    }

    /// Goes to the next pair. `false`: there are no more, and they were all that was exported.
    pub(crate) fn next(&mut self) -> Result<bool> {
        loop {
            if !self.next_change()? {
                return self.check_all().map(|()| false);
            }
            if !self.all[self.at].is_put() {
                continue;
            }
            if matches!(self.all[self.at].current, Current::LongPut { .. }) {
                self.long.clear();
                self.all[self.at].pass_parts(Some(&mut self.long))?;
            }
            let (key, value) = self.all[self.at].pair(&self.long);
            self.digest.add(key, value);
            self.found += 1;
            if self.found.is_multiple_of(TOLD_PAIRS) {
                self.tell();
            }
            return Ok(true);
        }
    }

    /// Goes to the next key; `false`: there are no more.
    fn next_change(&mut self) -> Result<bool> {
        if let [only] = &mut self.all[..] {
            only.advance()?;
            return Ok(only.key().is_some());
        }
        let mut behind = std::mem::take(&mut self.behind);
        for at in behind.drain(..) {
            self.all[at].advance()?;
        }
        self.behind = behind;
        let Some(least) = self.all.iter().filter_map(Changes::key).min() else {
            return Ok(false);
        };
        let has_it = |(at, changes): (usize, &Changes)| (changes.key() == Some(least)).then_some(at);
        self.behind.extend(self.all.iter().enumerate().filter_map(has_it));
        self.at = *self.behind.last().expect("the least key is that of some");
        Ok(true)
    }

    /// The pair at hand.
    pub(crate) fn pair(&self) -> (&[u8], &[u8]) {
        self.all[self.at].pair(&self.long)
    }

    fn tell(&mut self) {
        self.now.records = self.found;
        self.now.bytes = self.all.iter().map(|changes| changes.bytes).sum();
        // When the caller is gone there is no one to tell.
        let _ = self.progress.send(self.now);
    }

    fn check_all(&mut self) -> Result<()> {
        self.tell();
        let State { pairs, digest, .. } = &self.expected;
        if self.found != *pairs || self.digest.to_text() != *digest {
            return Err(BackupError::damaged(format!(
                "{} comes to {} pairs with the digest {}, and not to {pairs} with {digest}",
                self.expected.name(),
                self.found,
                self.digest.to_text()
            )));
        }
        Ok(())
    }
}

/// A pack that was fetched and checked.
struct Fetched {
    name: String,
    bytes: u64,
    body: Bytes,
}

/// The changes of one export or log, in order.
struct Changes {
    /// What messages call it.
    of: String,
    packs: mpsc::Receiver<Result<Fetched>>,
    /// Bytes of the packs so far.
    bytes: u64,
    name: String,
    body: Bytes,
    /// Where the next record begins.
    next: usize,
    current: Current,
    /// The first part of a long value, as long as its body is at hand.
    first_part: Range<usize>,
    /// Bytes of its parts that come then and were not read yet.
    left: u64,
}

/// The change at hand; ranges are of the body.
#[derive(Clone, Debug)]
enum Current {
    None,
    Put {
        key: Range<usize>,
        value: Range<usize>,
    },
    /// Its parts may come from several packs. They are put together only where they are asked for: of all the long values of a
    /// key in a chain only the last one counts.
    LongPut {
        key: Vec<u8>,
    },
    Delete {
        key: Range<usize>,
    },
    /// Its body is gone: only its key is at hand.
    Passed {
        key: Vec<u8>,
    },
}

impl Changes {
    fn of_export(backup: &Backup, export: &Export, ahead: usize) -> Changes {
        let (sender, packs) = mpsc::channel(1);
        let source = Source {
            objects: backup.objects.clone(),
            rate: backup.rate.clone(),
            place: backup.place.clone(),
        };
        backup
            .runtime()
            .spawn(source.fetch_all(export.packs.clone(), ahead, sender));
        Changes::new(packs, format!("export {}", export.number))
    }

    fn of_log(backup: &Backup, log: ReadLog, export: u64) -> Changes {
        let (sender, packs) = mpsc::channel(1);
        backup.runtime().spawn_blocking(move || {
            let mut bytes = log.bytes;
            log.pack(|body| {
                let fetched = Fetched {
                    name: "made of segments".into(),
                    bytes: std::mem::take(&mut bytes),
                    body,
                };
                sender.blocking_send(Ok(fetched)).is_ok()
            });
        });
        Changes::new(packs, format!("the log of export {export}"))
    }

    fn new(packs: mpsc::Receiver<Result<Fetched>>, of: String) -> Changes {
        Changes {
            of,
            packs,
            bytes: 0,
            name: String::new(),
            body: Bytes::new(),
            next: 0,
            current: Current::None,
            first_part: 0..0,
            left: 0,
        }
    }

    fn key(&self) -> Option<&[u8]> {
        self.key_of(&self.current)
    }

    fn key_of<'a>(&'a self, change: &'a Current) -> Option<&'a [u8]> {
        match change {
            Current::None => None,
            Current::Put { key, .. } | Current::Delete { key } => Some(&self.body[key.clone()]),
            Current::LongPut { key } | Current::Passed { key } => Some(key),
        }
    }

    fn is_put(&self) -> bool {
        matches!(self.current, Current::Put { .. } | Current::LongPut { .. })
    }

    /// The change at hand; `long` is its value if that has parts.
    fn pair<'a>(&'a self, long: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        match &self.current {
            Current::Put { key, value } => (&self.body[key.clone()], &self.body[value.clone()]),
            Current::LongPut { key } => (key, long),
            Current::None | Current::Delete { .. } | Current::Passed { .. } => unreachable!("only a put has a value"),
        }
    }

    fn damaged(&self, what: &str) -> BackupError {
        BackupError::damaged(format!("pack {} of {} {what}", self.name, self.of))
    }

    /// Makes sure that a record begins at `next`. `false`: there are no more.
    fn has_more(&mut self) -> Result<bool> {
        while self.next == self.body.len() {
            let Some(fetched) = self.packs.blocking_recv() else {
                return Ok(false);
            };
            let Fetched { name, bytes, body } = fetched?;
            if let Some(key) = self.key()
                && !matches!(self.current, Current::LongPut { .. })
            {
                self.current = Current::Passed { key: key.to_vec() };
            }
            self.bytes += bytes;
            (self.name, self.body, self.next) = (name, body, 0);
        }
        Ok(true)
    }

    fn advance(&mut self) -> Result<()> {
        self.pass_parts(None)?;
        if !self.has_more()? {
            self.current = Current::None;
            return Ok(());
        }
        let start = self.next;
        let (record, bytes) =
            record(&self.body[start..]).ok_or_else(|| self.damaged("has bytes that are no record"))?;
        let place = |part: &[u8]| {
            let at = part.as_ptr() as usize - self.body.as_ptr() as usize;
            at..at + part.len()
        };
        let current = match record {
            Record::Put { key, value } => Current::Put {
                key: place(key),
                value: place(value),
            },
            Record::Delete { key } => Current::Delete { key: place(key) },
            Record::LongPut { key, length, part } => {
                let left = length.checked_sub(part.len() as u64);
                (self.first_part, self.left) = (place(part), left.ok_or_else(|| self.too_long())?);
                Current::LongPut { key: key.to_vec() }
            }
            Record::Part { .. } => return Err(self.damaged("has a part of no value")),
        };
        self.next = start + bytes;
        let before = std::mem::replace(&mut self.current, current);
        let is_ascending = match (self.key_of(&before), self.key()) {
            (Some(before), Some(key)) => before < key,
            _ => true,
        };
        match is_ascending {
            true => Ok(()),
            false => Err(self.damaged("has keys that are not in order")),
        }
    }

    fn too_long(&self) -> BackupError {
        self.damaged("has a value that is too long")
    }

    /// Goes to the end of a long value, and takes it if it is wanted.
    fn pass_parts(&mut self, mut value: Option<&mut Vec<u8>>) -> Result<()> {
        if let Some(value) = &mut value {
            value.extend_from_slice(&self.body[self.first_part.clone()]);
        }
        while self.left > 0 {
            if !self.has_more()? {
                return Err(self.damaged("has only a part of a value"));
            }
            let parsed = record(&self.body[self.next..]);
            let Some((Record::Part { part }, bytes)) = parsed else {
                return Err(self.damaged("has only a part of a value"));
            };
            let left = self.left.checked_sub(part.len() as u64);
            if let Some(value) = &mut value {
                value.extend_from_slice(part);
            }
            self.next += bytes;
            self.left = left.ok_or_else(|| self.too_long())?;
        }
        Ok(())
    }
}

/// Where packs come from.
#[derive(Clone)]
struct Source {
    objects: Arc<dyn ObjectStore>,
    rate: Arc<Rate>,
    place: String,
}

impl Source {
    /// Fetches packs, some at a time, and hands them out in order.
    async fn fetch_all(self, packs: Vec<Pack>, ahead: usize, sender: mpsc::Sender<Result<Fetched>>) {
        let mut waiting = packs.into_iter();
        let mut under_way: VecDeque<JoinHandle<Result<Fetched>>> = VecDeque::new();
        loop {
            // What is fetched waits in memory: not before there is room for it.
            let Ok(room) = sender.reserve().await else { return };
            while under_way.len() < ahead
                && let Some(pack) = waiting.next()
            {
                under_way.push_back(tokio::spawn(self.clone().fetch(pack)));
            }
            let Some(next) = under_way.pop_front() else { return };
            let fetched = next.await.expect("fetching does not panic");
            let is_last = fetched.is_err();
            room.send(fetched);
            if is_last {
                return;
            }
        }
    }

    /// Fetches a pack and checks it.
    async fn fetch(self, pack: Pack) -> Result<Fetched> {
        self.rate.wait(pack.bytes).await;
        let path = pack_path(&pack.blake3);
        let other = || BackupError::damaged(format!("pack {} has other bytes than it was written with", pack.blake3));
        let got = match self.objects.get(&path).await {
            // Its length could be any, and more than memory has.
            Ok(got) if got.meta.size != pack.bytes => return Err(other()),
            Ok(got) => got.bytes().await,
            Err(error) => Err(error),
        };
        let object = got.map_err(|error| match error {
            object_store::Error::NotFound { .. } => BackupError::damaged(format!("pack {} is missing", pack.blake3)),
            error => BackupError::object(format!("reading a pack from {}", self.place))(error),
        })?;
        let opened = tokio::task::spawn_blocking(move || {
            if object.len() as u64 != pack.bytes || hash_of(&object) != pack.blake3 {
                let what = format!("pack {} has other bytes than it was written with", pack.blake3);
                return Err(BackupError::damaged(what));
            }
            let body = open(&object, &pack.blake3)?;
            if body.len() as u64 != pack.body_bytes {
                return Err(BackupError::damaged(format!("pack {} has a wrong length", pack.blake3)));
            }
            Ok(Fetched {
                name: pack.blake3,
                bytes: pack.bytes,
                body,
            })
        });
        opened.await.expect("checking a pack does not panic")
    }
}
