//! `duramen etcd import` takes what `duramen etcd` serves, from a snapshot file and from its URL.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use crate::common::{EtcdServer, Scratch};
use duramen::tree::{Node, Trees};
use duramen::{Options, Store};
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::lease_client::LeaseClient;
use duramen_proto::etcd::server::request_op::Request;
use duramen_proto::etcd::server::{DeleteRangeRequest, LeaseGrantRequest, PutRequest, RequestOp, TxnRequest};

const TRANSACTIONS: u32 = 30;
const PUTS: u32 = 100;
const LEASES: i64 = 20;

fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> PutRequest {
    PutRequest {
        key: key.into().into(),
        value: value.into().into(),
        lease,
        ..PutRequest::default()
    }
}

/// Keys of many sizes and revisions, with leases, histories and deletions.
fn fill(server: &EtcdServer) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let mut leases = LeaseClient::connect(server.url.clone()).await.unwrap();
        for id in 1..=LEASES {
            let ttl = 1_000 * id;
            leases.lease_grant(LeaseGrantRequest { ttl, id }).await.unwrap();
        }
        let mut keys = KvClient::connect(server.url.clone()).await.unwrap();
        for transaction in 0..TRANSACTIONS {
            let puts = (0..PUTS).map(|number| {
                let key = format!("{:03}/{transaction}", number * 37 % PUTS);
                let lease = i64::from(number) % (LEASES + 1);
                RequestOp {
                    request: Some(Request::RequestPut(put(
                        key,
                        vec![number as u8; number as usize],
                        lease,
                    ))),
                }
            });
            let request = TxnRequest {
                success: puts.collect(),
                ..TxnRequest::default()
            };
            keys.txn(request).await.unwrap();
            keys.put(put("hot", transaction.to_string(), 0)).await.unwrap();
        }
        for mebibyte in 0..3 {
            let key = format!("large/{mebibyte}");
            keys.put(put(key, vec![mebibyte; 1 << 20], 0)).await.unwrap();
        }
        keys.put(put(vec![0, 255, 0], b"".to_vec(), 3)).await.unwrap();
        let request = DeleteRangeRequest {
            key: b"050/".to_vec().into(),
            range_end: b"0500".to_vec().into(),
            ..DeleteRangeRequest::default()
        };
        keys.delete_range(request).await.unwrap();
    });
}

type NodesByPath = BTreeMap<Vec<u8>, Node>;

/// The nodes of a tree, and its leases with their seconds.
fn content(directory: &Path, tree: &str) -> (NodesByPath, Vec<(u64, u64)>) {
    let store: Store = Options::new().create(false).open(directory).unwrap();
    let trees = Trees::open(&store).unwrap();
    let view = trees.get(tree).unwrap().expect("the tree").view().unwrap();
    let mut nodes = BTreeMap::new();
    view.range([], None, |path, node| {
        nodes.insert(path.to_vec(), node);
        Ok(true)
    })
    .unwrap();
    let leases = view
        .leases()
        .unwrap()
        .into_iter()
        .map(|lease| (lease.id, lease.ttl.as_secs()));
    (nodes, leases.collect())
}

#[test]
fn an_import_has_keys_values_leases_and_the_order_of_revisions() {
    let scratch = Scratch::new();
    let server = EtcdServer::start(&scratch.path("source"));
    fill(&server);
    fs::write(scratch.path("snapshot.db"), server.snapshot()).unwrap();
    let of_file = scratch.done(&["etcd", "import", "snapshot.db", "of-file", "--json"]);
    let of_url = scratch.done(&["etcd", "import", &server.url, "of-url", "--tree", "other", "--json"]);
    drop(server);
    let (source, leases) = content(&scratch.path("source"), "etcd");
    assert_eq!(source.len() as u32, TRANSACTIONS * (PUTS - 1) + 5);
    assert_eq!(leases.len() as i64, LEASES);
    for (told, directory, tree) in [(of_file, "of-file", "etcd"), (of_url, "of-url", "other")] {
        let told = &told.json()[0];
        assert_eq!((&told["keys"], &told["leases"]), (&source.len().into(), &LEASES.into()));
        let (imported, imported_leases) = content(&scratch.path(directory), tree);
        assert_eq!(imported_leases, leases);
        assert!(imported.keys().eq(source.keys()));
        let mut revisions = Vec::new();
        for (path, node) in &source {
            let found = &imported[path];
            assert_eq!((&found.payload, found.lease), (&node.payload, node.lease));
            assert_eq!((found.version, found.create_revision), (1, found.revision));
            revisions.push((node.revision, found.revision));
        }
        revisions.sort_unstable();
        assert!(
            revisions
                .windows(2)
                .all(|pair| pair[0].0 == pair[1].0 || pair[0].1 < pair[1].1)
        );
    }
}

#[test]
fn an_import_refuses_damage_and_trees_that_exist() {
    let scratch = Scratch::new();
    let server = EtcdServer::start(&scratch.path("source"));
    fill(&server);
    let snapshot = server.snapshot();
    drop(server);
    let mut damaged = snapshot.clone();
    damaged[snapshot.len() / 2] ^= 1;
    let refused: [(&[u8], i32, &str); 4] = [
        (&damaged, 5, "SHA-256"),
        (&snapshot[..snapshot.len() / 8_192 * 4_096], 5, "ends after"),
        (b"hello", 2, "not a snapshot"),
        (b"", 2, "empty"),
    ];
    for (bytes, code, words) in refused {
        fs::write(scratch.path("file"), bytes).unwrap();
        let ended = scratch.run(&["etcd", "import", "file", "store"]);
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert!(!scratch.path("store").exists(), "nothing was made");
    }
    // A copy of the data file of etcd has no SHA-256.
    fs::write(scratch.path("file"), &snapshot[..snapshot.len() - 32]).unwrap();
    let done = scratch.done(&["etcd", "import", "file", "store"]);
    assert!(done.text().contains("revisions begin again"), "{}", done.text());
    let again = scratch.run(&["etcd", "import", "file", "store"]);
    assert_eq!(again.code, 2, "{}", again.stderr);
    assert!(again.stderr.contains("already"), "{}", again.stderr);
    let nowhere = scratch.run(&["etcd", "import", "http://127.0.0.1:1", "store"]);
    assert_eq!(nowhere.code, 3, "{}", nowhere.stderr);
}

#[test]
fn an_import_from_a_server_with_tls_and_users_needs_both() {
    let scratch = Scratch::new();
    fill(&EtcdServer::start(&scratch.path("source")));
    scratch.done(&["cert", "ca", "--out", "ca"]);
    scratch.done(&["cert", "server", "--ca", "ca", "--out", "tls", "--name", "127.0.0.1"]);
    let create = [
        "token",
        "create",
        "ada",
        "--allow",
        "read:tree:etcd",
        "--data-dir",
        "source",
    ];
    let token = scratch.done(&create).text().trim().to_string();
    let file = |name: &str| scratch.path(name).to_str().unwrap().to_string();
    let server = EtcdServer::start_with(
        &scratch.path("source"),
        &[
            "--listen-client-urls=https://127.0.0.1:0",
            &format!("--cert-file={}", file("tls/server.pem")),
            &format!("--key-file={}", file("tls/server.key")),
        ],
    );
    let (authority, user) = (file("ca/ca.pem"), format!("ada:{token}"));
    let import = ["etcd", "import", &server.url, "store"];
    let refused: [(&[&str], &str); 4] = [
        (&["--user", &user], "--cacert"),
        (&["--cacert", &authority], "name a user with --user"),
        (
            &["--cacert", &authority, "--user", "ada:wrong"],
            "authentication failed",
        ),
        (&["--cacert", &authority, "--user", "ada"], "NAME:PASSWORD"),
    ];
    for (arguments, words) in refused {
        let ended = scratch.run(&[&import, arguments].concat());
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
    let done = scratch.done(&[&import[..], &["--cacert", &authority, "--user", &user]].concat());
    assert!(done.text().contains("compared"), "{}", done.text());
}

#[test]
fn what_a_killed_import_has_left_is_not_served_and_the_next_import_begins_again() {
    /// A kill may come before the first write, or after the last one.
    const ROUNDS_MAX: u32 = 100;
    let scratch = Scratch::new();
    let server = EtcdServer::start(&scratch.path("source"));
    fill(&server);
    fs::write(scratch.path("snapshot.db"), server.snapshot()).unwrap();
    drop(server);
    let begun = Instant::now();
    scratch.done(&["etcd", "import", "snapshot.db", "whole"]);
    let taken = begun.elapsed();
    let (whole, _) = content(&scratch.path("whole"), "etcd");
    let mut rng = fastrand::Rng::with_seed(crate::common::seed());
    let mut parts = 0;
    for round in 0..ROUNDS_MAX {
        let store = format!("store-{round}");
        let directory = scratch.path(&store);
        let import = ["etcd", "import", "snapshot.db", &store];
        let mut process = scratch.command(crate::common::BINARY);
        let mut process = process.args(import).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(taken.mul_f64(rng.f64()));
        process.kill().unwrap();
        process.wait().unwrap();
        let served = EtcdServer::try_start_with(&directory, &["--listen-client-urls=http://127.0.0.1:0"]);
        if let Err(ended) = &served {
            assert_eq!(ended.code, 2, "{}", ended.stderr);
            assert!(ended.stderr.contains("an import has not finished"), "{}", ended.stderr);
            scratch.done(&import);
            parts += 1;
        }
        let was_served = served.is_ok();
        drop(served);
        let (nodes, _) = content(&directory, "etcd");
        let is_whole = nodes.len() == whole.len();
        assert!(is_whole || was_served && nodes.is_empty(), "{} nodes", nodes.len());
        if parts == 3 {
            return;
        }
    }
    panic!("of {ROUNDS_MAX} kills, {parts} met an import");
}

#[test]
fn a_store_with_imports_can_be_put_back_to_a_checkpoint() {
    let scratch = Scratch::new();
    let server = EtcdServer::start(&scratch.path("source"));
    fill(&server);
    fs::write(scratch.path("snapshot.db"), server.snapshot()).unwrap();
    drop(server);
    let import = |tree| scratch.done(&["etcd", "import", "snapshot.db", "store", "--tree", tree]);
    import("etcd");
    let imported = content(&scratch.path("store"), "etcd");
    scratch.done(&["checkpoint", "create", "store", "imported"]);
    import("other");
    scratch.done(&["checkpoint", "restore", "store", "imported"]);
    assert_eq!(content(&scratch.path("store"), "etcd"), imported);
    // The tree that was imported since then is gone, and its mark with it.
    import("other");
    drop(EtcdServer::start(&scratch.path("store")));
}

#[test]
fn wrong_calls_are_refused() {
    let scratch = Scratch::new();
    let calls: [&[&str]; 3] = [
        &["etcd", "import", "https://127.0.0.1:1", "store"],
        &["etcd", "import", "ftp://127.0.0.1:1", "store"],
        &["etcd", "--name", "m1", "import", "file", "store"],
    ];
    for call in calls {
        let ended = scratch.run(call);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
    }
}
