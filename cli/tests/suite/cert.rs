//! `duramen cert`: the files it makes, and a server and a client that use them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::Scratch;

#[test]
fn keys_are_secret_and_no_file_is_overwritten() {
    let scratch = Scratch::new();
    let made = scratch.done(&["cert", "ca", "--out", "ca"]);
    assert_eq!(made.text(), "ca/ca.pem\nca/ca.key\n");
    let key = scratch.path("ca/ca.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&key).unwrap();
    let again = scratch.run(&["cert", "ca", "--out", "ca"]);
    assert_eq!(again.code, 2);
    assert!(
        again.stderr.contains("ca/ca.pem exists, and is not overwritten"),
        "{}",
        again.stderr
    );
    fs::remove_file(scratch.path("ca/ca.pem")).unwrap();
    let again = scratch.run(&["cert", "ca", "--out", "ca"]);
    assert_eq!(again.code, 2);
    assert!(
        again.stderr.contains("ca/ca.key exists, and is not overwritten"),
        "{}",
        again.stderr
    );
    assert_eq!(fs::read(&key).unwrap(), before);
}

#[test]
fn wrong_names_and_authorities_are_told() {
    let scratch = Scratch::new();
    let missing = scratch.run(&["cert", "server", "--ca", "ca", "--out", "s", "--name", "localhost"]);
    assert_eq!(missing.code, 2);
    assert!(missing.stderr.contains("reading ca/ca.key"), "{}", missing.stderr);
    scratch.done(&["cert", "ca", "--out", "ca"]);
    let wrong = scratch.run(&["cert", "server", "--ca", "ca", "--out", "s", "--name", "bücher.example"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("write a host name in ASCII"), "{}", wrong.stderr);
    assert!(!scratch.path("s").exists());
}

#[test]
fn a_server_and_a_client_use_the_files() {
    let scratch = Scratch::new();
    let ended = scratch.shell(
        "set -e
        duramen cert ca --out ca
        duramen cert server --ca ca --out server --name 127.0.0.1
        duramen cert client --ca ca --out shop --name shop
        duramen serve --json --listen 127.0.0.1:0 --tls-cert server/server.pem --tls-key server/server.key \
            --tls-client-ca ca/ca.pem > out & server=$!
        trap 'kill $server' EXIT
        until grep -q listening out; do sleep 0.05; done
        export DURAMEN_SERVER=$(sed 's/.*\"listening\":\"\\([^\"]*\\)\".*/\\1/' out)
        duramen health --ca ca/ca.pem --cert shop/client.pem --key shop/client.key
        ! duramen health --wait 0 --ca ca/ca.pem
        ! duramen health --wait 0",
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("name its file with --ca"), "{}", ended.stderr);
}
