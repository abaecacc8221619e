//! Snapshot files of trees: whole, damaged, and with what etcd writes and Duramen does not.

use std::fs;
use std::path::Path;
use std::time::Duration;

use duramen::Store;
use duramen::tree::{LeaseChange, Tree, Trees, TreesOptions};
use duramen_proto::etcd::kv::KeyValue;
use prost::Message;
use sha2::{Digest, Sha256};

use super::bolt::Writer;
use super::rows::{EMPTY, KEY, META, Revision};
use super::save::{Origin, save};
use super::{EtcdLease, EtcdSnapshot, EtcdSnapshotError};

const ORIGIN: Origin = Origin {
    member_id: 7,
    commit: 9,
};

fn with_tree(test: impl FnOnce(&Tree)) {
    let store = Store::temporary().unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    test(&trees.ensure("etcd").unwrap());
}

fn fill(tree: &Tree, keys: u64) {
    tree.transact(|writes| {
        writes.grant_lease(5, Duration::from_secs(60))?;
        for key in 0..keys {
            let lease = if key % 3 == 0 {
                LeaseChange::Attach(5)
            } else {
                LeaseChange::Detach
            };
            writes.put_with(format!("key/{key}"), vec![key as u8; (key % 100) as usize], lease)?;
        }
        Ok::<_, duramen::Error>(())
    })
    .unwrap();
    for key in (0..keys).step_by(10) {
        tree.put(format!("key/{key}"), "again").unwrap();
    }
    tree.delete("key/1").unwrap();
}

/// The bytes of a snapshot of a tree, without their SHA-256.
fn bytes_of(tree: &Tree, directory: &Path) -> Vec<u8> {
    let file = save(&tree.view().unwrap(), ORIGIN, directory, &|| false).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut &file, &mut bytes).unwrap();
    bytes
}

fn with_sha(bytes: &[u8]) -> Vec<u8> {
    [bytes, &Sha256::digest(bytes)[..]].concat()
}

fn pairs(snapshot: &EtcdSnapshot) -> Result<Vec<KeyValue>, EtcdSnapshotError> {
    let mut pairs = Vec::new();
    snapshot.each(|pair| {
        pairs.push(pair);
        Ok::<_, EtcdSnapshotError>(())
    })?;
    Ok(pairs)
}

#[test]
fn a_snapshot_has_what_its_tree_has() {
    let directory = tempfile::tempdir().unwrap();
    for keys in [0, 1, 5_000] {
        with_tree(|tree| {
            fill(tree, keys);
            let path = directory.path().join("snapshot");
            fs::write(&path, with_sha(&bytes_of(tree, directory.path()))).unwrap();
            let snapshot = EtcdSnapshot::open(&path).unwrap();
            assert!(snapshot.has_sha() && !snapshot.has_auth());
            assert_eq!(snapshot.leases(), [EtcdLease { id: 5, ttl: 60 }]);
            let pairs = pairs(&snapshot).unwrap();
            assert!(pairs.is_sorted_by_key(|pair| pair.mod_revision));
            assert_eq!(pairs.len() as u64, snapshot.keys());
            let view = tree.view().unwrap();
            assert_eq!(view.count_range([], None).unwrap(), snapshot.keys());
            for pair in pairs {
                let node = view.get(&pair.key).unwrap().unwrap();
                let numbers = [pair.create_revision, pair.mod_revision, pair.version, pair.lease];
                let expected = [node.create_revision, node.revision, node.version, node.lease];
                assert_eq!(numbers.map(i64::unsigned_abs), expected);
                assert_eq!(pair.value, node.payload);
            }
        });
    }
}

#[test]
fn history_deletions_and_rows_without_pairs_are_read_as_etcd_does() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(tempfile::tempfile().unwrap()).unwrap();
    let mut bucket = writer.bucket(KEY);
    let mut put = |main, sub, key: &str, is_deletion: bool| {
        let row = KeyValue {
            key: key.as_bytes().to_vec().into(),
            mod_revision: if is_deletion { 0 } else { main as i64 },
            ..KeyValue::default()
        };
        let revision = Revision { main, sub }.encode();
        let mark: &[u8] = if is_deletion { b"t" } else { b"" };
        bucket
            .put(&[&revision[..], mark].concat(), row.encode_to_vec())
            .unwrap();
    };
    put(2, 0, "a", false);
    put(2, 1, "b", false);
    put(3, 0, "a", true);
    put(4, 0, "c", false);
    put(5, 0, "a", false);
    put(6, 0, "c", true);
    // What `etcdutl snapshot restore --bump-revision` adds.
    bucket.put(&Revision { main: 90, sub: 0 }.encode(), Vec::new()).unwrap();
    bucket.finish().unwrap();
    let path = directory.path().join("db");
    fs::write(&path, {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut writer.finish().unwrap(), &mut bytes).unwrap();
        bytes
    })
    .unwrap();
    let snapshot = EtcdSnapshot::open(&path).unwrap();
    let found: Vec<_> = pairs(&snapshot).unwrap().into_iter().map(|pair| pair.key).collect();
    assert_eq!(found, ["b", "a"]);
    assert_eq!((snapshot.revision(), snapshot.has_sha()), (90, false));
}

#[test]
fn damage_is_an_error_and_never_a_panic() {
    let seed = std::env::var("DURAMEN_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("DURAMEN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("snapshot");
    with_tree(|tree| {
        fill(tree, 500);
        let whole = bytes_of(tree, directory.path());
        for round in 0..1_000 {
            let has_sha = round % 4 == 0;
            let mut bytes = if has_sha { with_sha(&whole) } else { whole.clone() };
            for _ in 0..random.usize(1..4) {
                let at = random.usize(0..bytes.len());
                bytes[at] = bytes[at].wrapping_add(random.u8(1..));
            }
            match random.u8(0..5) {
                0 => bytes.truncate(random.usize(0..bytes.len())),
                1 => bytes.truncate(random.usize(0..bytes.len()) / 4_096 * 4_096),
                _ => {}
            }
            fs::write(&path, &bytes).unwrap();
            let read = EtcdSnapshot::open(&path).and_then(|snapshot| pairs(&snapshot));
            assert!(!has_sha || read.is_err(), "round {round}");
        }
        for foreign in [&b""[..], b"x", &[0; 4_096], &[255; 8_192]] {
            fs::write(&path, foreign).unwrap();
            assert!(matches!(EtcdSnapshot::open(&path), Err(EtcdSnapshotError::Foreign(_))));
        }
    });
}

#[test]
fn the_buckets_are_those_of_etcd() {
    let directory = tempfile::tempdir().unwrap();
    with_tree(|tree| {
        let file = save(&tree.view().unwrap(), ORIGIN, directory.path(), &|| false).unwrap();
        let bytes = file.metadata().unwrap().len();
        let reader = super::bolt::Reader::open(file, bytes).unwrap();
        let names: Vec<_> = reader.buckets().unwrap().into_iter().map(|(name, _)| name).collect();
        let mut expected = [&EMPTY[..], &[KEY, META, b"lease"]].concat();
        expected.sort_unstable();
        assert_eq!(names, expected);
    });
}
