//! `duramen cert`: makes a certificate authority, and certificates of it for servers and clients.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, value_parser};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;

const EXAMPLES: &str = r"Examples:
  An authority, and a certificate for a server that clients reach as localhost:
    $ duramen cert ca --out ca && duramen cert server --ca ca --out server --name localhost
  A certificate for a client, where the server has --tls-client-ca:
    $ duramen cert ca --out clients && duramen cert client --ca clients --out shop --name shop

Keep ca.key where no server runs. Its owner can make certificates that servers and clients trust.";

const CA_EXAMPLES: &str = r"Examples:
  Write authority/ca.pem, which servers and clients get, and authority/ca.key, which stays secret:
    $ duramen cert ca --out authority
    $ duramen cert ca --out short-lived --days 30 --json";

const SERVER_EXAMPLES: &str = r"Examples:
  Name all hosts and addresses that clients use for the server:
    $ duramen cert server --ca authority --out server --name db.example.com --name 10.0.0.7
    $ duramen cert server --ca authority --out local --name localhost --days 30 --json";

const CLIENT_EXAMPLES: &str = r"Examples:
  The name says which program or person the client is:
    $ duramen cert client --ca authority --out shop --name shop
    $ duramen cert client --ca authority --out ada --name ada --days 30 --json";

/// Make certificates for TLS
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Cert {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand, Debug)]
enum Kind {
    /// Make a certificate authority
    #[command(after_help = CA_EXAMPLES)]
    Ca {
        #[command(flatten)]
        target: Target,
        /// Days until the certificate expires
        #[arg(long, value_name = "DAYS", default_value_t = 3_650, value_parser = value_parser!(u32).range(1..=DAYS_MAX))]
        days: u32,
    },
    /// Make a certificate for a server
    #[command(after_help = SERVER_EXAMPLES)]
    Server {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        issue: Issue,
        /// A host name or an address that clients use for the server; may be repeated
        #[arg(long = "name", value_name = "HOST", required = true)]
        names: Vec<String>,
    },
    /// Make a certificate for a client
    #[command(after_help = CLIENT_EXAMPLES)]
    Client {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        issue: Issue,
        /// The name of the client
        #[arg(long, value_name = "PRINCIPAL")]
        name: String,
    },
}

const DAYS_MAX: i64 = 36_500;

#[derive(Args, Debug)]
struct Target {
    /// Directory for the new files; made when it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct Issue {
    /// Directory of the authority, as `duramen cert ca` made it
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Days until the certificate expires
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = value_parser!(u32).range(1..=DAYS_MAX))]
    days: u32,
}

impl Cert {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.kind {
            Kind::Ca { target, days } => {
                let mut params = named("Duramen certificate authority", days);
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
                params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
                let key = new_key()?;
                let certificate = params.self_signed(&key).map_err(failed)?;
                target.write("ca", &certificate.pem(), &key, output)
            }
            Kind::Server { target, issue, names } => {
                let alternatives = CertificateParams::new(names.clone()).map_err(|error| {
                    Failure::wrong_call(format!("{} cannot be in a certificate: {error}", names.join(", ")))
                        .hint("write a host name in ASCII, such as db.example.com, or an address, such as 10.0.0.7")
                })?;
                let mut params = named(&names[0], issue.days);
                params.subject_alt_names = alternatives.subject_alt_names;
                let (certificate, key) = issue.sign(params, ExtendedKeyUsagePurpose::ServerAuth)?;
                target.write("server", &certificate, &key, output)
            }
            Kind::Client { target, issue, name } => {
                if name.is_empty() {
                    return Err(Failure::wrong_call("the client has no name; set --name to one"));
                }
                let params = named(&name, issue.days);
                let (certificate, key) = issue.sign(params, ExtendedKeyUsagePurpose::ClientAuth)?;
                target.write("client", &certificate, &key, output)
            }
        }
    }
}

/// A certificate of a name. It is valid since an hour ago, for clocks that are late.
fn named(name: &str, days: u32) -> CertificateParams {
    const HOUR: Duration = Duration::from_secs(3_600);
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (now - HOUR).into();
    params.not_after = (now + days * 24 * HOUR).into();
    params
}

fn new_key() -> Outcome<KeyPair> {
    KeyPair::generate().map_err(failed)
}

fn failed(error: rcgen::Error) -> Failure {
    Failure::wrong_call(format!("the certificate cannot be made: {error}"))
}

impl Issue {
    /// Makes a key, and a certificate for it.
    fn sign(&self, mut params: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> Outcome<(String, KeyPair)> {
        let authority = self.authority()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        let key = new_key()?;
        let certificate = params.signed_by(&key, &authority).map_err(failed)?;
        Ok((certificate.pem(), key))
    }

    fn authority(&self) -> Outcome<Issuer<'static, KeyPair>> {
        let (certificate, key) = (self.ca.join("ca.pem"), self.ca.join("ca.key"));
        let pair = KeyPair::from_pem(&read(&key)?).map_err(|error| unusable(&key, &error))?;
        Issuer::from_ca_cert_pem(&read(&certificate)?, pair).map_err(|error| unusable(&certificate, &error))
    }
}

fn read(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).map_err(|error| {
        Failure::of_io(&format!("reading {}", file.display()), &error)
            .hint("--ca names the directory that `duramen cert ca --out DIR` made")
    })
}

fn unusable(file: &Path, error: &rcgen::Error) -> Failure {
    Failure::wrong_call(format!("{} cannot be used: {error}", file.display()))
        .hint("--ca names the directory that `duramen cert ca --out DIR` made")
}

impl Target {
    /// Writes a certificate and its key, and prints the names of the files. It overwrites no file.
    fn write(&self, kind: &str, certificate: &str, key: &KeyPair, output: &mut Output) -> Outcome {
        let doing = |file: &Path| format!("writing {}", file.display());
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.out);
        made.map_err(|error| Failure::of_io(&doing(&self.out), &error))?;
        let certificate_file = self.out.join(format!("{kind}.pem"));
        let key_file = self.out.join(format!("{kind}.key"));
        if certificate_file.exists() {
            return Err(exists(&certificate_file));
        }
        let files = [
            (&key_file, 0o600, key.serialize_pem()),
            (&certificate_file, 0o644, certificate.to_string()),
        ];
        for (file, mode, text) in files {
            let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(file);
            let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()));
            written.map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => exists(file),
                _ => Failure::of_io(&doing(file), &error),
            })?;
        }
        if output.is_json {
            let (certificate, key) = (certificate_file.display().to_string(), key_file.display().to_string());
            output.json(&json!({"certificate": certificate, "key": key}))?;
        } else {
            output.line(certificate_file.display())?;
            output.line(key_file.display())?;
        }
        Ok(Exit::Done)
    }
}

fn exists(file: &Path) -> Failure {
    Failure::wrong_call(format!("{} exists, and is not overwritten", file.display()))
        .hint("name another directory with --out, or move the file away")
}
