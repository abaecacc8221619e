//! Encrypted connections, with and without a certificate of the client.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{run, serve_on};
use duramen_client::{Client, ErrorKind, TlsOptions};

struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// A certificate that is its own authority.
fn self_signed(directory: &Path, name: &str) -> Files {
    let made = rcgen::generate_simple_self_signed(vec![name.into(), "127.0.0.1".into()]).unwrap();
    let files = Files {
        certificate: directory.join(format!("{name}.pem")),
        key: directory.join(format!("{name}.key")),
    };
    fs::write(&files.certificate, made.cert.pem()).unwrap();
    fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    files
}

#[test]
fn a_client_with_a_certificate_reaches_a_server_that_asks_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let (server, shop) = (
        self_signed(directory.path(), "localhost"),
        self_signed(directory.path(), "shop"),
    );
    let settings = [
        ("tls_cert", server.certificate.to_str().unwrap()),
        ("tls_key", server.key.to_str().unwrap()),
        ("tls_client_ca", shop.certificate.to_str().unwrap()),
    ];
    let running = serve_on(directory.path(), "127.0.0.1:0", &settings);
    let address = format!("https://{}", running.listening().tcp.unwrap());
    run(async {
        let tls = TlsOptions::new(&server.certificate).identity(&shop.certificate, &shop.key);
        let client = Client::builder().tls(tls).connect(&address).unwrap();
        assert!(client.create_map("stock").await.unwrap());
    });
    running.stop().unwrap();
}

#[test]
fn an_address_and_files_that_do_not_fit_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let files = self_signed(directory.path(), "localhost");
    let mistake = |address: &str, tls: Option<TlsOptions>| {
        let builder = tls.into_iter().fold(Client::builder(), |builder, tls| builder.tls(tls));
        let error = builder.connect(address).err().unwrap();
        assert_eq!(
            (error.kind, error.reason.as_str()),
            (ErrorKind::InvalidArgument, "BAD_TLS")
        );
        error.message
    };
    run(async {
        let tls = TlsOptions::new(&files.certificate);
        assert!(mistake("https://localhost:1", None).contains("Builder::tls"));
        assert!(mistake("http://localhost:1", Some(tls)).contains("is not encrypted"));
        let missing = TlsOptions::new(directory.path().join("missing.pem"));
        assert!(mistake("https://localhost:1", Some(missing)).contains("cannot read"));
    });
}
