//! Verifying a state that a backup has, and making a store of it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use duramen::{Kind, Reason, Store, StoredPairs};
use tokio::sync::mpsc;

use crate::chain::{Moment, Pairs, State};
use crate::error::{BackupError, Result};
use crate::export::Progress;
use crate::target::Backup;

impl Backup {
    /// Reads an export, all that it goes on from and its log up to a moment, and proves that they are what was exported: each pack by
    /// its BLAKE3 hash, the order and the number of the pairs, and a digest of all of them.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], [`BackupError::MissingLink`], [`BackupError::UnknownExport`], [`BackupError::NoneUntil`],
    /// [`BackupError::NoExports`], [`BackupError::NewerFormat`], [`BackupError::Object`].
    pub fn verify(&self, moment: Moment, progress: &mut dyn FnMut(Progress)) -> Result<State> {
        self.work_on(moment, progress, |mut pairs, _| {
            while pairs.next()? {}
            Ok(())
        })
    }

    /// Makes a store of the state of a moment, in a directory that is missing or empty. It verifies what it reads as
    /// [`Backup::verify`] does. The store appears there as a whole or not at all: it is made beside it first, in a directory with
    /// `.importing` behind its name, which has a lock meanwhile. It is durable when this returns.
    ///
    /// The store has an id of its own, and no checkpoints. Its commits go on after `State::commit`. Offsets of topics and
    /// revisions of trees go on from those that it shows.
    ///
    /// # Errors
    /// As [`Backup::verify`]; [`BackupError::Occupied`], [`BackupError::ImportRuns`], [`BackupError::Io`], [`BackupError::Store`].
    pub fn import(
        &self,
        moment: Moment,
        directory: impl AsRef<Path>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<State> {
        let directory = place_for(directory.as_ref())?;
        let unfinished = unfinished(&directory);
        let _lock = claim(&unfinished, &directory)?;
        let (path, target) = (unfinished.clone(), directory);
        let imported = self.work_on(moment, progress, move |pairs, state| {
            let mut pairs = Source { pairs, failed: None };
            let built = Store::build(&path, state.commit, state.next_map, &mut pairs);
            if let Some(failed) = pairs.failed {
                return Err(failed);
            }
            built?;
            take_place(&path, &target)
        });
        if imported.is_err() {
            // The cause is what the caller must learn. The next import removes what is left.
            let _ = remove(&unfinished);
        }
        imported
    }

    /// Reads the state of a moment in a thread of its own, and calls `progress` in this one.
    fn work_on(
        &self,
        moment: Moment,
        progress: &mut dyn FnMut(Progress),
        work: impl FnOnce(Pairs, &State) -> Result<()> + Send + 'static,
    ) -> Result<State> {
        self.runtime().block_on(async {
            let chain = self.chain(moment).await?;
            let (sender, mut told) = mpsc::unbounded_channel();
            let state = chain.state.clone();
            let pairs = Pairs::of(self, chain, sender);
            let of_work = state.clone();
            let worker = tokio::task::spawn_blocking(move || work(pairs, &of_work));
            // The sender ends with the work.
            while let Some(now) = told.recv().await {
                progress(now);
            }
            worker.await.expect("reading a backup does not panic")?;
            Ok(state)
        })
    }
}

/// The directory that a store can be renamed to, without links and dots in its name. What would fail at the end fails here.
fn place_for(directory: &Path) -> Result<PathBuf> {
    let doing = || format!("looking at {}", directory.display());
    let Ok(found) = std::fs::metadata(directory) else {
        if directory.is_symlink() {
            return Err(occupied(directory));
        }
        // Without a slash at its end.
        return Ok(directory.components().collect());
    };
    if !found.is_dir() || duramen_io::is_occupied(directory) {
        return Err(occupied(directory));
    }
    let real = directory.canonicalize().map_err(BackupError::io(doing()))?;
    if is_mount_point(&real).map_err(BackupError::io(doing()))? {
        let cause = "a file system is mounted there, and no store can be renamed to that: name a directory below it";
        return Err(BackupError::io(doing())(std::io::Error::other(cause)));
    }
    Ok(real)
}

fn occupied(directory: &Path) -> BackupError {
    BackupError::Occupied {
        directory: directory.display().to_string(),
    }
}

fn is_mount_point(directory: &Path) -> io::Result<bool> {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    match directory.parent() {
        Some(parent) => Ok(device(parent)? != device(directory)?),
        None => Ok(true),
    }
}

/// The directory in which an import works.
fn unfinished(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".importing");
    PathBuf::from(name)
}

/// Makes the directory in which an import works, empty, and with a lock: another import must not remove what this one makes.
fn claim(unfinished: &Path, directory: &Path) -> Result<File> {
    let doing = || format!("making {}", unfinished.display());
    loop {
        duramen_io::create_directory(unfinished).map_err(BackupError::io(doing()))?;
        let lock = match File::open(unfinished) {
            // Another import has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(BackupError::io(doing()))?,
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let directory = directory.display().to_string();
                return Err(BackupError::ImportRuns { directory });
            }
            Err(TryLockError::Error(error)) => return Err(BackupError::io(doing())(error)),
        }
        // Before the lock was there, another import may have given the directory its name, or removed it.
        if is_still(&lock, unfinished).map_err(BackupError::io(doing()))? {
            // What an import has left that was interrupted.
            empty(unfinished).map_err(BackupError::io(doing()))?;
            return Ok(lock);
        }
    }
}

/// Whether a path leads to an open directory.
fn is_still(open: &File, path: &Path) -> io::Result<bool> {
    let open = open.metadata()?;
    match std::fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn empty(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(BackupError::io(format!("removing {}", directory.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Gives a store its name, so that it survives power loss.
fn take_place(from: &Path, to: &Path) -> Result<()> {
    let doing = || format!("renaming {} to {}", from.display(), to.display());
    // An empty directory may be there.
    std::fs::rename(from, to).map_err(BackupError::io(doing()))?;
    let parent = match to.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let synced = std::fs::File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(BackupError::io(format!("syncing {}", parent.display())))
}

/// The pairs of an export, for the engine. The cause of an error stays here: the engine has its own errors.
struct Source {
    pairs: Pairs,
    failed: Option<BackupError>,
}

impl StoredPairs for Source {
    fn advance(&mut self) -> duramen::Result<bool> {
        self.pairs.next().map_err(|error| {
            let cause = error.to_string().into();
            self.failed = Some(error);
            let kind = Kind::Damaged;
            duramen::Error::from(Reason::Above { kind, cause })
        })
    }

    fn pair(&self) -> (&[u8], &[u8]) {
        self.pairs.pair()
    }
}
