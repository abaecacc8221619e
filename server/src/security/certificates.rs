//! The settings of TLS for new connections, and their renewal when a file changes.
//!
//! A connection keeps the settings with which it began. A file is known by its modification time, its length and its
//! inode. They are taken before the files are read, so a change during the reading is noticed in the next round.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;

use super::tls::{TlsError, TlsFiles};

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Gives new connections their settings. Clones share them.
#[derive(Clone)]
pub(crate) struct Certificates {
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

/// Looks at the files, and replaces the settings.
pub(crate) struct Renewal {
    files: TlsFiles,
    seen: Vec<Option<Stamp>>,
    certificates: Certificates,
}

/// What changes when a file is written or replaced: modification time with nanoseconds, length, inode.
type Stamp = (i64, i64, u64, u64);

impl Certificates {
    /// Reads the files for the first time.
    pub(crate) fn load(files: &TlsFiles) -> Result<(Certificates, Renewal), TlsError> {
        let seen = stamps(files);
        let certificates = Certificates {
            current: Arc::new(RwLock::new(files.load()?)),
        };
        let renewal = Renewal {
            files: files.clone(),
            seen,
            certificates: certificates.clone(),
        };
        Ok((certificates, renewal))
    }

    /// The settings of a connection that begins now.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Renewal {
    /// Follows the files. This future does not end.
    pub(crate) async fn follow(mut self) {
        loop {
            tokio::time::sleep(EVERY).await;
            match self.renew() {
                Ok(false) => {}
                Ok(true) => tracing::info!("new connections use the changed certificate files"),
                Err(error) => tracing::warn!(%error, "new connections use the old certificate; correct the files"),
            }
        }
    }

    /// Reads the files when they changed since the last look. Returns whether new connections have other settings. A
    /// broken file is an error once, and again when a file changes.
    fn renew(&mut self) -> Result<bool, TlsError> {
        let stamps = stamps(&self.files);
        if stamps == self.seen {
            return Ok(false);
        }
        self.seen = stamps;
        let config = self.files.load()?;
        let current = &self.certificates.current;
        *current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(true)
    }
}

fn stamps(files: &TlsFiles) -> Vec<Option<Stamp>> {
    let stamp = |file| {
        let about = fs::metadata(file).ok()?;
        Some((about.mtime(), about.mtime_nsec(), about.len(), about.ino()))
    };
    files.paths().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn write_pair(directory: &Path) -> TlsFiles {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let files = TlsFiles {
            certificate: directory.join("server.pem"),
            key: directory.join("server.key"),
            client_authority: None,
        };
        fs::write(&files.certificate, pair.cert.pem()).unwrap();
        fs::write(&files.key, pair.signing_key.serialize_pem()).unwrap();
        files
    }

    #[test]
    fn a_broken_file_keeps_the_settings_and_is_an_error_once() {
        let directory = tempfile::tempdir().unwrap();
        let files = write_pair(directory.path());
        let (certificates, mut renewal) = Certificates::load(&files).unwrap();
        let first = certificates.current();
        assert!(!renewal.renew().unwrap());

        fs::write(&files.key, "no key").unwrap();
        let error = renewal.renew().unwrap_err().to_string();
        assert!(error.contains("server.key cannot be used"), "{error}");
        assert!(!renewal.renew().unwrap(), "the error comes once");
        assert!(Arc::ptr_eq(&first, &certificates.current()));

        write_pair(directory.path());
        assert!(renewal.renew().unwrap());
        assert!(!Arc::ptr_eq(&first, &certificates.current()));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = TlsFiles {
            key: write_pair(other.path()).key,
            ..write_pair(one.path())
        };
        let error = Certificates::load(&files).err().unwrap().to_string();
        assert!(error.contains("make a pair with `duramen cert`"), "{error}");
    }
}
