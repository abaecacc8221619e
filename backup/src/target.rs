//! The place of a backup: a folder of an object store, or a directory.

use std::cmp::Ordering;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::runtime::Runtime;
use url::Url;

use crate::error::{BackupError, Result};
use crate::manifest::{Export, FORMAT, Identity, export_number, export_path};
use crate::rate::Rate;

/// Threads for transfers.
const THREADS: usize = 2;
/// How many manifests are read at a time.
const MANIFESTS_AT_A_TIME: usize = 16;
const IDENTITY: &str = "backup.json";
/// How long a pack may take on a slow line. The default of `object_store` is half a minute.
const TIMEOUT: &str = "10m";

/// A place with a backup, or for one.
///
/// Calls block. They must not be made in a thread of an asynchronous runtime.
#[derive(Debug)]
pub struct Backup {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) place: String,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    pub(crate) rate: Arc<Rate>,
    pub(crate) parallel: usize,
}

impl Backup {
    /// A directory, which is made when it is missing, or a URL: `file:`, `s3:`, `gs:`, `az:` and others of the crate
    /// `object_store`. Access keys and endpoints come from the environment, such as `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT` and
    /// `AWS_ALLOW_HTTP`.
    ///
    /// # Errors
    /// [`BackupError::Place`], [`BackupError::Io`].
    pub fn open(place: &str) -> Result<Backup> {
        // Others, such as TOKEN or TIMEOUT, are of other programs; and what is no text is of no setting.
        let ours = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?.to_ascii_lowercase();
            let is_ours = ["aws_", "azure_", "google_", "allow_http"]
                .iter()
                .any(|ours| name.starts_with(ours));
            Some((name, value.into_string().ok()?)).filter(|_| is_ours)
        });
        Backup::open_with(place, ours)
    }

    /// Whether a place lies in a directory, such as that of the store that is exported: then it would be lost with it.
    pub fn is_in(place: &str, directory: &std::path::Path) -> bool {
        directory_of(place).is_some_and(|path| duramen_io::is_within(&path, directory))
    }

    /// As [`Backup::open`], for a place that has a backup: a directory that is missing is not made.
    ///
    /// # Errors
    /// As [`Backup::open`], and [`BackupError::NoExports`].
    pub fn open_existing(place: &str) -> Result<Backup> {
        if directory_of(place).is_some_and(|directory| !directory.exists()) {
            return Err(BackupError::NoExports { place: place.into() });
        }
        Backup::open(place)
    }

    /// As [`Backup::open`], with settings instead of the environment; their names are those of the environment.
    ///
    /// # Errors
    /// As [`Backup::open`].
    pub fn open_with<N: Into<String>, V: Into<String>>(
        place: &str,
        settings: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Backup> {
        let wrong = |cause: String| BackupError::Place {
            place: place.into(),
            cause,
        };
        let url = match Url::parse(place) {
            Ok(url) if url.scheme() != "file" => url,
            Ok(url) => {
                let path = url.to_file_path().map_err(|()| wrong("it has no path".into()))?;
                return Backup::in_directory(&path);
            }
            Err(_) if place.contains("://") => return Err(wrong("it is no URL".into())),
            Err(_) => return Backup::in_directory(std::path::Path::new(place)),
        };
        // TLS needs a provider of cryptography. If the program chose another one, that stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings = settings
            .into_iter()
            .map(|(name, value)| (name.into().to_ascii_lowercase(), value.into()));
        // What comes later counts.
        let patient = std::iter::once(("timeout".to_string(), TIMEOUT.to_string()));
        let parsed = object_store::parse_url_opts(&url, patient.chain(settings));
        let (objects, folder) = parsed.map_err(|error| wrong(error.to_string()))?;
        Backup::over(Arc::new(PrefixStore::new(objects, folder)), place)
    }

    fn in_directory(path: &std::path::Path) -> Result<Backup> {
        let shown = path.display().to_string();
        create_all(path).map_err(BackupError::io(format!("creating {shown}")))?;
        let objects = LocalFileSystem::new_with_prefix(path).map_err(|error| BackupError::Place {
            place: shown.clone(),
            cause: error.to_string(),
        })?;
        Backup::over(Arc::new(objects.with_fsync(true)), &shown)
    }

    /// A place in an object store that the program made. `place` is what messages call it.
    ///
    /// # Errors
    /// [`BackupError::Io`] when the system has no thread left.
    pub fn over(objects: Arc<dyn ObjectStore>, place: &str) -> Result<Backup> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("duramen-backup")
            .enable_all()
            .build()
            .map_err(BackupError::io("starting threads"))?;
        Ok(Backup {
            objects,
            place: place.into(),
            runtime: Some(runtime),
            rate: Arc::default(),
            parallel: 4,
        })
    }

    /// Transfers at most so many bytes in a second, both ways together; 0: as many as possible.
    pub fn bytes_per_second(mut self, bytes: u64) -> Backup {
        self.rate = Arc::new(Rate::of(bytes));
        self
    }

    /// How many packs are under way at a time. Each takes about 32 MiB of memory, and an import takes as much for each export of the
    /// chain. Default: 4.
    pub fn parallel(mut self, packs: usize) -> Backup {
        self.parallel = packs.max(1);
        self
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it goes only when the backup is dropped")
    }

    /// The object store, and in it the folder of the backup.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        self.objects.clone()
    }

    /// What messages call the place.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// All exports, oldest first.
    ///
    /// # Errors
    /// [`BackupError::NotABackup`], [`BackupError::Object`], [`BackupError::Damaged`], [`BackupError::NewerFormat`].
    pub fn list(&self) -> Result<Vec<Export>> {
        self.runtime().block_on(async {
            self.identity().await?;
            self.exports().await
        })
    }

    /// Which backup this is; `None`: the place is empty.
    pub(crate) async fn identity(&self) -> Result<Option<Identity>> {
        let path = Path::from(IDENTITY);
        let bytes = match self.read(&path).await {
            Ok(bytes) => bytes,
            Err(object_store::Error::NotFound { .. }) => {
                let mut objects = self.objects.list(None);
                return match objects.next().await {
                    None => Ok(None),
                    // A missing folder of a file system.
                    Some(Err(object_store::Error::NotFound { .. })) => Ok(None),
                    Some(found) => {
                        let found = found.map_err(BackupError::object(format!("listing {}", self.place)))?;
                        Err(BackupError::NotABackup {
                            place: self.place.clone(),
                            found: format!("there is {:?} and no {IDENTITY}", found.location.as_ref()),
                        })
                    }
                };
            }
            Err(error) => return Err(self.failed("reading", &path)(error)),
        };
        let identity: Identity = serde_json::from_slice(&bytes).map_err(|error| BackupError::NotABackup {
            place: self.place.clone(),
            found: format!("{IDENTITY} is not what this crate writes ({error})"),
        })?;
        check_format(IDENTITY, identity.format)?;
        Ok(Some(identity))
    }

    /// As [`Backup::identity`], and makes an empty place a backup.
    pub(crate) async fn claim(&self) -> Result<Identity> {
        if let Some(identity) = self.identity().await? {
            return Ok(identity);
        }
        let identity = Identity {
            format: FORMAT,
            id: random_id(),
        };
        let text = serde_json::to_vec_pretty(&identity).expect("an identity is plain data");
        match self.create(&Path::from(IDENTITY), text).await? {
            true => Ok(identity),
            false => self
                .identity()
                .await?
                .ok_or_else(|| BackupError::damaged("backup.json vanished")),
        }
    }

    /// Creates an object. `false`: there is one already.
    pub(crate) async fn create(&self, path: &Path, bytes: impl Into<PutPayload>) -> Result<bool> {
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        match self.objects.put_opts(path, bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
            Err(object_store::Error::NotImplemented { .. }) => Err(BackupError::NoConditionalPut {
                place: self.place.clone(),
            }),
            Err(error) => Err(self.failed("creating", path)(error)),
        }
    }

    pub(crate) async fn read(&self, path: &Path) -> object_store::Result<Vec<u8>> {
        let got = self.objects.get(path).await?;
        Ok(got.bytes().await?.into())
    }

    /// All exports, oldest first.
    pub(crate) async fn exports(&self) -> Result<Vec<Export>> {
        let numbers = stream::iter(self.numbers().await?);
        let manifests = numbers.map(|number| self.manifest(number));
        manifests.buffered(MANIFESTS_AT_A_TIME).try_collect().await
    }

    /// The numbers of all exports, ascending.
    pub(crate) async fn numbers(&self) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        let mut objects = self.objects.list(Some(&Path::from("exports")));
        while let Some(object) = objects.next().await {
            match object {
                Ok(object) => numbers.extend(export_number(&object.location)),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    return Err(BackupError::object(format!("listing the exports at {}", self.place))(
                        error,
                    ));
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// An export.
    pub(crate) async fn manifest(&self, number: u64) -> Result<Export> {
        let path = export_path(number);
        let bytes = self.read(&path).await.map_err(|error| match error {
            object_store::Error::NotFound { .. } => BackupError::UnknownExport {
                number,
                place: self.place.clone(),
            },
            error => self.failed("reading", &path)(error),
        })?;
        /// What every format has.
        #[derive(serde::Deserialize)]
        struct AnyFormat {
            format: u32,
        }
        let wrong = |error: serde_json::Error| BackupError::damaged(format!("{path} cannot be read ({error})"));
        check_format(
            path.as_ref(),
            serde_json::from_slice::<AnyFormat>(&bytes).map_err(wrong)?.format,
        )?;
        let export: Export = serde_json::from_slice(&bytes).map_err(wrong)?;
        if export.number != number {
            return Err(BackupError::damaged(format!("{path} is export {}", export.number)));
        }
        if export.check != export.expected_check() || export.full > number {
            return Err(BackupError::damaged(format!(
                "{path} has other values than it was written with"
            )));
        }
        Ok(export)
    }

    pub(crate) fn failed(&self, doing: &str, path: &Path) -> impl FnOnce(object_store::Error) -> BackupError {
        BackupError::object(format!("{doing} {path} at {}", self.place))
    }
}

/// The directory that a place is; `None`: it is in an object store.
fn directory_of(place: &str) -> Option<std::path::PathBuf> {
    match Url::parse(place) {
        Ok(url) if url.scheme() == "file" => url.to_file_path().ok(),
        Ok(_) => None,
        Err(_) => Some(std::path::PathBuf::from(place)),
    }
}

/// Creates a directory and those above it that are missing, so that their names survive power loss.
fn create_all(path: &std::path::Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    match path.parent() {
        Some(parent) if parent != std::path::Path::new("") => create_all(parent)?,
        _ => {}
    }
    duramen_io::create_directory(path)
}

impl Drop for Backup {
    /// Waits for nothing, so that it can be called in a runtime too.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Refuses what another version wrote.
pub(crate) fn check_format(what: &str, found: u32) -> Result<()> {
    let (what, supported) = (what.to_string(), FORMAT);
    match found.cmp(&FORMAT) {
        Ordering::Less => Err(BackupError::OlderFormat { what, found, supported }),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(BackupError::NewerFormat { what, found, supported }),
    }
}

/// A number that no other one is equal to.
pub(crate) fn random_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    format!("{:032x}", u128::from_be_bytes(bytes))
}
