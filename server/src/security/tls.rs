//! Reads PEM files and makes the settings of TLS from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// The PEM files of a server's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, followed by intermediate certificates.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// Certificates of the authorities whose clients may connect. `None`: clients need no certificate.
    pub client_authority: Option<PathBuf>,
}

/// Why the files of TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or it is not what it should be.
    #[error("{file} cannot be used: {cause}; it must be a PEM file with {wanted}")]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        cause: pem::Error,
        /// What belongs into the file.
        wanted: &'static str,
    },
    /// A file holds nothing of the wanted kind.
    #[error("{file} has no certificate; it must be a PEM file with {wanted}")]
    Empty {
        /// The file.
        file: PathBuf,
        /// What belongs into the file.
        wanted: &'static str,
    },
    /// The files do not fit together, or a certificate is malformed.
    #[error(
        "the certificate {certificate} with the key {key} cannot be used: {cause}; make a pair with `duramen cert`"
    )]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of its key.
        key: PathBuf,
        /// What is wrong.
        cause: rustls::Error,
    },
    /// The authorities of clients.
    #[error("the client authority {file} cannot be used: {cause}; name the certificate of an authority")]
    Authority {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

impl TlsFiles {
    /// All files, in a fixed order.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_authority.as_ref()];
        files.into_iter().flatten().map(PathBuf::as_path)
    }

    /// Reads the files, and makes the settings of new connections.
    pub(super) fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let certificates = certificates(&self.certificate, "the certificate of the server")?;
        let key = private_key(&self.key)?;
        let failed = |cause| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            cause,
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(authorities(file)?.into(), provider);
                let verifier = verifier.build().map_err(|error| authority_error(file, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(certificates, key).map_err(failed)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn authorities(file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, "the certificate of an authority")? {
        roots.add(certificate).map_err(|error| authority_error(file, &error))?;
    }
    Ok(roots)
}

fn authority_error(file: &Path, cause: &dyn std::error::Error) -> TlsError {
    TlsError::Authority {
        file: file.into(),
        cause: cause.to_string(),
    }
}

fn certificates(file: &Path, wanted: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |cause| file_error(file, cause, wanted);
    let found = CertificateDer::pem_file_iter(file).map_err(failed)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    match found.is_empty() {
        false => Ok(found),
        true => Err(TlsError::Empty {
            file: file.into(),
            wanted,
        }),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(file).map_err(|cause| file_error(file, cause, "the private key of the server"))
}

fn file_error(file: &Path, cause: pem::Error, wanted: &'static str) -> TlsError {
    TlsError::File {
        file: file.into(),
        cause,
        wanted,
    }
}
