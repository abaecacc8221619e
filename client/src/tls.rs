//! The PEM files with which a client connects to a server over TLS.

use std::fs;
use std::path::{Path, PathBuf};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, ErrorKind, Result};

/// The PEM files of a client; see [`crate::Builder::tls`]. `connect` reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    authority: PathBuf,
    identity: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    /// The client trusts servers with a certificate of this authority.
    pub fn new(authority: impl Into<PathBuf>) -> TlsOptions {
        TlsOptions {
            authority: authority.into(),
            identity: None,
        }
    }

    /// The client presents a certificate, whose private key is in the file `key`.
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> TlsOptions {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// An endpoint whose connections are encrypted.
    pub(crate) fn apply(&self, endpoint: Endpoint) -> Result<Endpoint> {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&self.authority)?));
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        endpoint.tls_config(tls).map_err(|error| {
            bad_tls(format!(
                "the PEM files of the client cannot be used: {error}; correct them"
            ))
        })
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| bad_tls(format!("cannot read {}: {error}; correct TlsOptions", file.display())))
}

pub(crate) fn bad_tls(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, "BAD_TLS", message)
}
