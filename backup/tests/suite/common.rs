//! An object store that misbehaves at its n-th call, and stores to back up.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use duramen::Store;
use duramen_backup::object_store::memory::InMemory;
use duramen_backup::object_store::path::Path;
use duramen_backup::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use futures_core::stream::BoxStream;

/// What a call does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fails, and does nothing.
    Fail,
    /// Does its work, and says that it failed: an answer that got lost.
    FailAfterwards,
    /// Takes its time.
    Slow,
    /// Stores only the first half, and says that all is well.
    Truncate,
    /// Stores nothing, and says that all is well; or gets bytes that are not what was stored.
    Lie,
    /// Fails, and so do all calls that follow: the process cannot reach the place any more.
    Die,
    /// Waits until the test lets it go on.
    Wait,
}

/// An object store in memory, or over another one, with faults.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    fault: Fault,
    /// Calls until the fault; negative: it has been.
    left: AtomicI64,
    may_go_on: AtomicBool,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

impl Faulty {
    pub fn over(inner: Arc<dyn ObjectStore>, fault: Fault, calls: i64) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            fault,
            left: AtomicI64::new(calls),
            may_go_on: AtomicBool::new(false),
        })
    }

    /// Calls until the fault.
    pub fn left(&self) -> i64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Ends [`Fault::Wait`].
    pub fn go_on(&self) {
        self.may_go_on.store(true, Ordering::Relaxed);
    }

    /// Whether the fault has been.
    pub fn has_failed(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }

    async fn next(&self) -> Option<Fault> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        match left {
            0 if self.fault == Fault::Slow => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                None
            }
            0 if self.fault == Fault::Wait => {
                while !self.may_go_on.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                None
            }
            0 => Some(self.fault),
            ..0 if self.fault == Fault::Die => Some(Fault::Die),
            _ => None,
        }
    }
}

fn failed() -> Error {
    Error::Generic {
        store: "faulty",
        source: "the network is down".into(),
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let lied = PutResult {
            e_tag: None,
            version: None,
            extensions: Default::default(),
        };
        match self.next().await {
            Some(Fault::Fail | Fault::Die) => Err(failed()),
            Some(Fault::FailAfterwards) => {
                self.inner.put_opts(path, payload, options).await?;
                Err(failed())
            }
            Some(Fault::Truncate) => {
                let bytes: Vec<u8> = payload.iter().flat_map(|part| part.iter().copied()).collect();
                let half = PutPayload::from(bytes[..bytes.len() / 2].to_vec());
                self.inner.put_opts(path, half, options).await
            }
            Some(Fault::Lie) => Ok(lied),
            _ => self.inner.put_opts(path, payload, options).await,
        }
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        match self.next().await {
            Some(Fault::Fail | Fault::FailAfterwards | Fault::Die) => Err(failed()),
            // The bytes of another object, or a part of them.
            Some(Fault::Truncate | Fault::Lie) if !options.head => {
                let found = self.inner.get_opts(path, GetOptions::default()).await?;
                let bytes = found.bytes().await?;
                let other = InMemory::new();
                let half = PutPayload::from(bytes[..bytes.len() / 2].to_vec());
                other.put_opts(path, half, PutOptions::default()).await?;
                other.get_opts(path, options).await
            }
            _ => self.inner.get_opts(path, options).await,
        }
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Calls an object store and waits.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// What a store has: its maps with their pairs.
pub type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

pub fn content(store: &Store) -> Content {
    let snapshot = store.snapshot().unwrap();
    let mut content = Content::new();
    for name in store.maps().list().unwrap() {
        let map = store.map(&name).unwrap();
        let mut pairs = snapshot.range(&map, ..).unwrap();
        let of_map = content.entry(name).or_default();
        while let Some((key, value)) = pairs.next().unwrap() {
            of_map.insert(key.to_vec(), value.to_vec());
        }
    }
    content
}

/// Changes a store at random.
pub fn change(store: &Store, rng: &mut fastrand::Rng) {
    for _ in 0..rng.usize(1..40) {
        let map = store.map(["stock", "orders", "logo"][rng.usize(..3)]).unwrap();
        let key = format!("key {:03}", rng.u32(..300));
        match rng.u8(..12) {
            0..=5 => map.put(&key, vec![rng.u8(..); rng.usize(..400)]).unwrap(),
            6 => map.put(&key, vec![rng.u8(..); rng.usize(60_000..90_000)]).unwrap(),
            7..=8 => map.delete(&key).unwrap(),
            9 => map
                .delete_range(key.as_bytes()..&b"key 2"[..])
                .map(drop)
                .unwrap_or_default(),
            10 => drop(map.append("log", "entry").unwrap()),
            _ if rng.u8(..6) == 0 => drop(store.maps().drop("logo")),
            _ => store.maintain().unwrap(),
        }
    }
}
