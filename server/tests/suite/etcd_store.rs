//! Transactions of etcd's clients on a store in trouble: a device that fails, a power cut, a kill, a full store.
//!
//! `DURAMEN_SEED=n` runs the failures of a seed again.

use std::collections::BTreeSet;

use duramen::topic::TopicsOptions;
use duramen::tree::{Trees, TreesOptions};
use duramen::{Durability, Options, Store};
use duramen_io::{FailKind, FailSpan, SimDisk};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::tree_command::Change as OfTree;
use duramen_proto::command::{Command, EtcdTransaction, TreeCommand};
use duramen_proto::etcd::server::request_op::Request;
use duramen_proto::etcd::server::{PutRequest, RequestOp, TxnRequest};
use duramen_server::{Applier, Level, Limits, Pipeline};
use tonic::Code;
use tonic_types::StatusExt;

fn pipeline(store: &Store) -> Pipeline {
    let applier = Applier::new(store, TopicsOptions::new().background(false)).unwrap();
    Pipeline::new(applier, Limits::default())
}

fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(body)
}

fn of_tree(change: OfTree) -> Command {
    let (tree, change) = ("etcd".into(), Some(change));
    Command {
        change: Some(Change::Tree(TreeCommand { tree, change })),
        ..Command::default()
    }
}

/// A transaction that puts keys.
fn puts<const N: usize>(keys: [String; N], bytes: usize) -> Command {
    let put = |key: String| RequestOp {
        request: Some(Request::RequestPut(PutRequest {
            key: key.into(),
            value: vec![b'v'; bytes].into(),
            ..PutRequest::default()
        })),
    };
    let request = TxnRequest {
        success: keys.into_iter().map(put).collect(),
        ..TxnRequest::default()
    };
    let transaction = EtcdTransaction {
        tree: "etcd".into(),
        request: Some(request),
    };
    Command {
        change: Some(Change::Etcd(transaction)),
        ..Command::default()
    }
}

#[test]
fn an_acknowledged_transaction_is_whole_whichever_call_of_the_device_fails() {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = given.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let mut failures = 0;
    for seed in first..first + if given.is_some() { 1 } else { 60 } {
        println!("DURAMEN_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let options = || Options::new().durability(Durability::Written);
        let store = options().open_on(disk.platform()).unwrap();
        let pipeline = pipeline(&store);
        let (mut synced, mut written) = (BTreeSet::new(), BTreeSet::new());
        run(async {
            let created = pipeline.submit(of_tree(OfTree::Create(true)), Level::Synced).await;
            created.unwrap();
            let kind = if rng.bool() { FailKind::Io } else { FailKind::NoSpace };
            let span = if rng.bool() { FailSpan::Once } else { FailSpan::Forever };
            disk.fail(rng.u64(1..25), kind, span);
            for n in 0..40_u64 {
                let level = if rng.bool() { Level::Synced } else { Level::Written };
                let bytes = if rng.u8(..) < 40 { 70_000 } else { rng.usize(0..300) };
                let command = puts([format!("{n:02}/a"), format!("{n:02}/b")], bytes);
                match pipeline.submit(command, level).await {
                    Ok(outcome) => {
                        assert!(matches!(outcome.unwrap().outcome, Some(Led::Etcd(_))));
                        written.insert(n);
                        if level == Level::Synced {
                            // A sync covers all commits before it.
                            synced.clone_from(&written);
                        }
                    }
                    Err(status) => {
                        failures += 1;
                        assert_ne!(status.code(), Code::InvalidArgument, "seed {seed}: {status}");
                    }
                }
            }
        });
        let cut = disk.power_cut(seed);
        let killed = disk.kill();
        drop((pipeline, store));
        for (disk, acknowledged) in [(cut, &synced), (killed, &written)] {
            let store = options().open_on(disk.platform()).unwrap();
            let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
            let view = trees.get("etcd").unwrap().unwrap().view().unwrap();
            let mut whole = BTreeSet::new();
            for n in 0..40 {
                let [one, other] = ["a", "b"].map(|part| view.get(format!("{n:02}/{part}")).unwrap());
                let revisions = one
                    .map(|node| node.revision)
                    .zip(other.as_ref().map(|node| node.revision));
                match revisions {
                    Some((one, other)) => {
                        assert_eq!(one, other, "seed {seed}: a transaction has one revision");
                        whole.insert(n);
                    }
                    None => assert_eq!(
                        view.count_range(format!("{n:02}"), Some(format!("{n:02}0").as_bytes()))
                            .unwrap(),
                        0
                    ),
                }
            }
            assert!(
                whole.is_superset(acknowledged),
                "seed {seed}: {acknowledged:?} in {whole:?}"
            );
            assert_eq!(
                view.revision(),
                1 + whole.len() as u64,
                "seed {seed}: each transaction has a revision"
            );
        }
    }
    assert!(given.is_some() || failures > 0, "no call failed");
}

#[test]
fn a_full_store_refuses_transactions_until_a_compaction_has_made_room() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().quota_bytes(4 << 20).durability(Durability::Written);
    let store = options.open(directory.path()).unwrap();
    let pipeline = pipeline(&store);
    run(async {
        let submit = |command| pipeline.submit(command, Level::Written);
        submit(of_tree(OfTree::Create(true))).await.unwrap();
        let mut revision = 1;
        let refused = loop {
            // The old values fill the store.
            match submit(puts(["key".into(), "other".into()], 30_000)).await {
                Ok(_) => revision += 1,
                Err(status) => break status,
            }
            assert!(revision < 1_000, "the quota was never reached");
        };
        assert_eq!(refused.get_details_error_info().unwrap().reason, "NO_SPACE");
        // What the door does for a client that compacts.
        let compact = || submit(of_tree(OfTree::Compact(revision)));
        if compact().await.is_err() {
            loop {
                let led = submit(of_tree(OfTree::CompactWithoutRoom(revision))).await.unwrap();
                let Some(Led::Tree(changed)) = led.unwrap().outcome else {
                    panic!("a compaction has another outcome")
                };
                if !changed.has_more {
                    break;
                }
            }
            compact().await.unwrap();
        }
        store.maintain().unwrap();
        submit(puts(["key".into(), "new".into()], 100)).await.unwrap();
    });
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let view = trees.get("etcd").unwrap().unwrap().view().unwrap();
    assert_eq!(view.count_range("", None).unwrap(), 3);
    assert_eq!(view.get("key").unwrap().unwrap().payload.len(), 100);
}
