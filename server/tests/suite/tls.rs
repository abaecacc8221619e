//! TLS and mutual TLS: which clients get in, what a bad handshake costs the others, and new files without a restart.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::common::authority::{Authority, Issued, write};
use crate::common::*;
use duramen_proto::v1::ListMapsRequest;
use duramen_proto::v1::maps_client::MapsClient;
use duramen_server::{Config, Running, start};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

fn serve_tls(directory: &Path, server: &Issued, settings: &[(&str, &str)]) -> Running {
    let certificate = write(directory, "server.pem", &server.certificate);
    let key = write(directory, "server.key", &server.key);
    let mut all = vec![
        ("tls_cert", certificate.to_str().unwrap()),
        ("tls_key", key.to_str().unwrap()),
    ];
    all.extend(settings);
    serve_with(directory, &all)
}

async fn connect_tls(server: &Running, authority: &Authority, identity: Option<&Issued>) -> Option<Channel> {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    if let Some(issued) = identity {
        tls = tls.identity(Identity::from_pem(&issued.certificate, &issued.key));
    }
    let address = format!("https://{}", server.listening().tcp.unwrap());
    let endpoint = Endpoint::from_shared(address).unwrap().tls_config(tls).unwrap();
    let channel = endpoint.connect().await.ok()?;
    // In TLS 1.3 the client is done before the server has looked at its certificate.
    lists(&channel).await.then_some(channel)
}

async fn lists(channel: &Channel) -> bool {
    let mut maps = MapsClient::new(channel.clone());
    maps.list_maps(ListMapsRequest::default()).await.is_ok()
}

/// Connects until it succeeds: the test fails by its runner's time limit otherwise.
async fn connect_at_last(server: &Running, authority: &Authority) -> Channel {
    loop {
        if let Some(channel) = connect_tls(server, authority, None).await {
            return channel;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn only_encrypted_clients_that_trust_the_authority_get_in() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("one");
    let server = serve_tls(directory.path(), &authority.server(), &[]);
    client(async {
        assert!(connect_tls(&server, &authority, None).await.is_some());
        assert!(connect_tls(&server, &Authority::new("other"), None).await.is_none());
        let plain = format!("http://{}", server.listening().tcp.unwrap());
        let plain = Endpoint::from_shared(plain).unwrap().connect_lazy();
        assert!(!lists(&plain).await);
    });
    server.stop().unwrap();
}

#[test]
fn with_a_client_authority_a_client_needs_a_certificate_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let file = write(directory.path(), "clients.pem", &clients.pem());
    let settings = [("tls_client_ca", file.to_str().unwrap())];
    let server = serve_tls(directory.path(), &servers.server(), &settings);
    client(async {
        assert!(connect_tls(&server, &servers, None).await.is_none());
        let stranger = servers.client("shop");
        assert!(connect_tls(&server, &servers, Some(&stranger)).await.is_none());
        let shop = clients.client("shop");
        assert!(connect_tls(&server, &servers, Some(&shop)).await.is_some());
    });
    server.stop().unwrap();
}

#[test]
fn new_connections_get_the_replaced_certificate_and_old_ones_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let server = serve_tls(directory.path(), &old.server(), &[]);
    client(async {
        let before = connect_tls(&server, &old, None).await.unwrap();
        let issued = new.server();
        write(directory.path(), "server.pem", &issued.certificate);
        write(directory.path(), "server.key", &issued.key);
        let after = connect_at_last(&server, &new).await;
        assert!(connect_tls(&server, &old, None).await.is_none());
        assert!(lists(&before).await && lists(&after).await);
    });
    server.stop().unwrap();
}

#[test]
fn unfinished_and_broken_handshakes_hold_up_no_other_client() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("one");
    let server = serve_tls(directory.path(), &authority.server(), &[]);
    let address = server.listening().tcp.unwrap();
    let _silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut broken = TcpStream::connect(address).unwrap();
    broken.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // The server closes this connection, perhaps with an alert before or a reset.
    let _ = broken.read_to_end(&mut Vec::new());
    client(async {
        assert!(connect_tls(&server, &authority, None).await.is_some());
    });
    server.stop().unwrap();
}

#[test]
fn an_unfinished_handshake_gives_its_place_to_others_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("one");
    let server = serve_tls(directory.path(), &authority.server(), &[("max_connections", "1")]);
    let _silent = TcpStream::connect(server.listening().tcp.unwrap()).unwrap();
    client(connect_at_last(&server, &authority));
    server.stop().unwrap();
}

#[test]
fn a_server_does_not_start_with_files_that_it_cannot_use() {
    let directory = tempfile::tempdir().unwrap();
    let issued = Authority::new("one").server();
    let certificate = write(directory.path(), "server.pem", &issued.certificate);
    let flags = [
        ("data_dir", directory.path().join("store").display().to_string()),
        ("listen", "127.0.0.1:0".to_string()),
        ("tls_cert", certificate.display().to_string()),
        ("tls_key", directory.path().join("missing.key").display().to_string()),
    ];
    let error = start(&Config::collect(&flags, None).unwrap())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("missing.key cannot be used"), "{error}");
    assert!(!directory.path().join("store").exists());
}
