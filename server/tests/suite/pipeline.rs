//! From queued commands to commits, without a network: what shares a commit, what a refusal leaves, a full queue, a full
//! store, a device that fails.
//!
//! `DURAMEN_SEED=n` runs the failures of a seed again.

use std::collections::BTreeSet;
use std::future::Future;

use duramen::topic::{Start, Topics, TopicsOptions};
use duramen::{Durability, Options, Store};
use duramen_io::{FailKind, FailSpan, SimDisk};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::*;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::*;
use duramen_server::{Answer, Applier, ENTRY_VERSION, Level, Limits, Pipeline};
use tonic::Code;
use tonic_types::StatusExt;

/// Everything runs on one thread, so commands that are queued one after the other are taken together.
fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(body)
}

fn pipeline(store: &Store) -> Pipeline {
    pipeline_of(store, Limits::default())
}

fn pipeline_of(store: &Store, limits: Limits) -> Pipeline {
    let topics = TopicsOptions::new().background(false);
    Pipeline::new(Applier::new(store, topics).unwrap(), limits)
}

fn command(change: Change) -> Command {
    Command {
        idempotency_key: Vec::new().into(),
        change: Some(change),
    }
}

fn commit(changes: Vec<Operated>) -> Command {
    let operations = changes.into_iter().map(|change| Operation { change: Some(change) });
    command(Change::Commit(CommitRequest {
        then: operations.collect(),
        ..Default::default()
    }))
}

fn put(key: impl Into<String>, bytes: usize) -> Operated {
    put_in("m", key, bytes)
}

fn put_in(map: &str, key: impl Into<String>, bytes: usize) -> Operated {
    Operated::Put(PutOperation {
        map: map.into(),
        key: key.into().into(),
        value: vec![7; bytes].into(),
    })
}

fn publish(topic: &str, messages: usize) -> Operated {
    let message = duramen_proto::v1::Message {
        payload: "text".into(),
        ..Default::default()
    };
    Operated::Publish(PublishOperation {
        topic: topic.into(),
        messages: vec![message; messages],
    })
}

fn prepared(pipeline: &Pipeline) -> impl Future<Output = ()> {
    let commands = [
        Change::CreateMap(CreateMap {
            map: "m".into(),
            ..Default::default()
        }),
        Change::CreateMap(CreateMap {
            map: "watched".into(),
            keep_changes: Some(KeepChanges {
                bytes: 1 << 30,
                ..Default::default()
            }),
        }),
        Change::CreateTopic(CreateTopic {
            topic: "t".into(),
            ..Default::default()
        }),
    ];
    let pipeline = pipeline.clone();
    async move {
        for change in commands {
            pipeline.submit(command(change), Level::Synced).await.unwrap();
        }
    }
}

async fn answered(answer: Answer) -> Led {
    answer.await.unwrap().unwrap().outcome.unwrap()
}

fn offset(led: &Led) -> Option<u64> {
    let Led::Committed(response) = led else { return None };
    response.results.iter().find_map(|result| match result.result {
        Some(Given::FirstOffset(offset)) => Some(offset),
        _ => None,
    })
}

#[test]
fn offsets_are_right_beside_commands_that_are_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let pipeline = pipeline(&store);
    run(async {
        prepared(&pipeline).await;
        let (_, before) = pipeline.counts();
        let refused = || commit(vec![publish("t", 2), publish("missing", 1)]);
        let commands = [
            commit(vec![publish("t", 1)]),
            refused(),
            commit(vec![publish("t", 3)]),
            refused(),
            commit(vec![publish("t", 1)]),
        ];
        let answers = commands.map(|command| pipeline.enqueue(command, Level::Written).unwrap());
        let mut offsets = Vec::new();
        for answer in answers {
            offsets.push(offset(&answered(answer).await));
        }
        assert_eq!(offsets, [Some(0), None, Some(1), None, Some(4)]);
        assert_eq!(pipeline.counts().1, before + 1, "all of them are in one commit");
    });
    let topic = Topics::open(&store).unwrap().topic("t").unwrap();
    assert_eq!(topic.read(Start::Beginning, 10).unwrap().len(), 5);
}

#[test]
fn a_full_queue_refuses_and_takes_commands_again_once_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let pipeline = pipeline_of(&store, Limits { queued_bytes: 10_000 });
    run(async {
        prepared(&pipeline).await;
        for _ in 0..3 {
            let first = pipeline.enqueue(commit(vec![put("a", 9_000)]), Level::Written).unwrap();
            let refused = pipeline
                .enqueue(commit(vec![put("b", 9_000)]), Level::Written)
                .unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted);
            assert_eq!(refused.get_details_error_info().unwrap().reason, "OVERLOADED");
            assert!(refused.get_details_retry_info().unwrap().retry_delay.is_some());
            answered(first).await;
        }
        // A command that is larger than the queue is taken when it is alone.
        answered(
            pipeline
                .enqueue(commit(vec![put("c", 20_000)]), Level::Written)
                .unwrap(),
        )
        .await;
    });
}

#[test]
fn a_command_whose_caller_has_gone_is_not_applied_unless_it_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let pipeline = pipeline(&store);
    run(async {
        prepared(&pipeline).await;
        drop(pipeline.enqueue(commit(vec![put("gone", 1)]), Level::Written).unwrap());
        drop(pipeline.enqueue(commit(vec![publish("t", 1)]), Level::Memory).unwrap());
        pipeline
            .submit(commit(vec![put("here", 1)]), Level::Written)
            .await
            .unwrap();
    });
    let map = store.map("m").unwrap();
    assert!(map.get("gone").unwrap().is_none());
    assert!(map.get("here").unwrap().is_some());
    let topic = Topics::open(&store).unwrap().topic("t").unwrap();
    assert_eq!(topic.describe().unwrap().next, 1);
}

#[test]
fn a_pipeline_that_closes_answers_what_is_queued_and_refuses_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let pipeline = pipeline(&store);
    run(async {
        prepared(&pipeline).await;
        let levels = [Level::Written, Level::Synced, Level::Synced];
        let answers = levels.map(|level| pipeline.enqueue(commit(vec![publish("t", 1)]), level).unwrap());
        pipeline.close().await;
        for (mut answer, expected) in answers.into_iter().zip(0..) {
            // `close` has waited for them.
            let led = answer.try_recv().unwrap().unwrap().outcome.unwrap();
            assert_eq!(offset(&led), Some(expected));
        }
        let refused = pipeline.submit(commit(vec![publish("t", 1)]), Level::Written).await;
        assert_eq!(
            refused.unwrap_err().get_details_error_info().unwrap().reason,
            "STOPPING"
        );
    });
}

#[test]
fn a_full_store_refuses_what_needs_room_and_deletes_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().quota_bytes(4 << 20).durability(Durability::Written);
    let store = options.open(directory.path()).unwrap();
    let pipeline = pipeline(&store);
    run(async {
        prepared(&pipeline).await;
        let mut stored = BTreeSet::new();
        let refused = loop {
            let key = format!("{:05}", stored.len());
            match pipeline
                .submit(commit(vec![put(key.clone(), 60_000)]), Level::Written)
                .await
            {
                Ok(_) => assert!(stored.insert(key)),
                Err(status) => break status,
            }
            assert!(stored.len() < 1_000, "the quota was never reached");
        };
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert_eq!(refused.get_details_error_info().unwrap().reason, "NO_SPACE");
        // In one entry with a put that finds no room, a delete is done nevertheless.
        let delete = Operated::Delete(DeleteOperation {
            map: "m".into(),
            key: stored.pop_first().unwrap().into(),
        });
        let large = pipeline
            .enqueue(commit(vec![put("large", 8 << 20)]), Level::Written)
            .unwrap();
        let deleted = pipeline.enqueue(commit(vec![delete]), Level::Written).unwrap();
        assert_eq!(large.await.unwrap().unwrap_err().code(), Code::ResourceExhausted);
        assert!(matches!(answered(deleted).await, Led::Committed(_)));
        let map = store.map("m").unwrap();
        let mut keys = BTreeSet::new();
        for pair in store.snapshot().unwrap().range(&map, ..).unwrap().iter() {
            keys.insert(String::from_utf8(pair.unwrap().0.to_vec()).unwrap());
        }
        assert_eq!(keys, stored);
    });
}

#[test]
fn what_is_acknowledged_survives_whichever_call_of_the_device_fails() {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = given.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let (mut failures, mut unknown) = (0, 0);
    for seed in first..first + if given.is_some() { 1 } else { 60 } {
        println!("DURAMEN_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimDisk::new(seed);
        let options = || Options::new().durability(Durability::Written);
        let store = options().open_on(disk.platform()).unwrap();
        let pipeline = pipeline(&store);
        let (mut synced, mut written) = (BTreeSet::new(), BTreeSet::new());
        run(async {
            prepared(&pipeline).await;
            let kind = if rng.bool() { FailKind::Io } else { FailKind::NoSpace };
            let span = if rng.bool() { FailSpan::Once } else { FailSpan::Forever };
            disk.fail(rng.u64(1..25), kind, span);
            for n in 0..40_u64 {
                let level = if rng.bool() { Level::Synced } else { Level::Written };
                // Values beyond 64 KiB go to the data file.
                let bytes = if rng.u8(..) < 40 { 70_000 } else { rng.usize(0..300) };
                let key = format!("{n:02}");
                let mut command = commit(vec![put(&key, bytes), put_in("watched", &key, bytes), publish("t", 1)]);
                command.idempotency_key = n.to_be_bytes().to_vec().into();
                match pipeline.submit(command, level).await {
                    Ok(outcome) => {
                        assert!(matches!(outcome.unwrap().outcome, Some(Led::Committed(_))));
                        written.insert(n);
                        if level == Level::Synced {
                            // A sync covers all commits before it.
                            synced.clone_from(&written);
                        }
                    }
                    Err(status) => {
                        failures += 1;
                        assert_ne!(status.code(), Code::InvalidArgument, "seed {seed}: {status}");
                        unknown += u32::from(status.code() == Code::Unknown);
                    }
                }
            }
        });
        let cut = disk.power_cut(seed);
        let killed = disk.kill();
        drop((pipeline, store));
        for (disk, acknowledged) in [(cut, &synced), (killed, &written)] {
            let store = options().open_on(disk.platform()).unwrap();
            let keys_of = |map: &str| -> BTreeSet<u64> {
                let map = store.maps().get(map).unwrap().unwrap();
                let snapshot = store.snapshot().unwrap();
                let keys = snapshot.range(&map, ..).unwrap().iter();
                keys.map(|pair| String::from_utf8(pair.unwrap().0.to_vec()).unwrap().parse().unwrap())
                    .collect()
            };
            let keys = keys_of("m");
            assert!(
                keys.is_superset(acknowledged),
                "seed {seed}: {acknowledged:?} in {keys:?}"
            );
            // Each put has its message, and its key answers the same again.
            let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
            let next = topics.topic("t").unwrap().describe().unwrap().next;
            assert_eq!(next, keys.len() as u64, "seed {seed}");
            let rows = |map: &str| {
                let rows = store.reserved_map(map).unwrap();
                store.snapshot().unwrap().count(&rows, ..).unwrap()
            };
            assert_eq!(rows("server.idempotency"), 2 * keys.len() as u64, "seed {seed}");
            // A put is in the map of the changes too: beside its limits and the count of such maps.
            assert_eq!(keys_of("watched"), keys, "seed {seed}");
            assert_eq!(rows("server.changes"), 2 + keys.len() as u64, "seed {seed}");
        }
    }
    if given.is_none() {
        assert!(failures > 0, "no call failed");
        println!("{failures} failures, {unknown} of them with an unknown outcome");
    }
}

#[test]
fn a_key_that_is_used_again_after_its_time_is_remembered_anew() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut applier = Applier::new(&store, TopicsOptions::new().background(false)).unwrap();
    let mut apply = |minute: u64, keys: Vec<String>| {
        let commands = keys.into_iter().map(|key| Command {
            idempotency_key: key.into(),
            ..commit(vec![Operated::Add(AddOperation {
                map: "m".into(),
                key: "n".into(),
                delta: 1,
            })])
        });
        let entry = Entry {
            version: ENTRY_VERSION,
            time_us: minute * 60_000_000,
            clock_us: 1_700_000_000_000_000,
            commands: commands.collect(),
        };
        applier.apply(&entry, Durability::Written).unwrap();
        store.map("m").unwrap().get("n").unwrap().map(|sum| sum[7])
    };
    store.map("m").unwrap();
    // So many keys of one moment that the next entry cannot forget all of them.
    for part in 0..3 {
        apply(100, (0..800).map(|n| format!("{part}-{n}")).collect());
    }
    let sum = apply(100, vec!["z".into()]);
    assert_eq!(apply(105, vec!["z".into()]), sum, "it was applied five minutes ago");
    let again = apply(111, vec!["z".into()]);
    assert_ne!(again, sum, "eleven minutes are more than ten");
    // Forgetting the first use does not forget the second.
    for minute in 112..116 {
        assert_eq!(apply(minute, vec!["z".into()]), again, "minute {minute}");
    }
}

#[test]
fn a_trigger_whose_topic_is_full_fails_its_own_command_and_no_other() {
    use duramen::topic::TopicOptions;
    use duramen::tree::{Trees, TreesOptions, Trigger};
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let topics = Topics::open(&store).unwrap();
    let full = TopicOptions::new().keep_messages(1).discard_new(true);
    topics.create("full", full).unwrap().publish("first").unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    let tree = trees.ensure("tree").unwrap();
    let trigger = Trigger {
        pattern: "**".parse().unwrap(),
        kind: None,
        topic: "full".into(),
    };
    tree.transact(|tree| tree.set_trigger("all", &trigger)).unwrap();
    let pipeline = pipeline(&store);
    run(async {
        prepared(&pipeline).await;
        let put_node = Operated::Tree(TreeOperation {
            tree: "tree".into(),
            operation: Some(tree_operation::Operation::Put(PutNodeOperation {
                path: "a".into(),
                ..Default::default()
            })),
        });
        let commands = [
            commit(vec![put("1", 1)]),
            commit(vec![put_node]),
            commit(vec![put("2", 1)]),
        ];
        let answers = commands.map(|command| pipeline.enqueue(command, Level::Written).unwrap());
        let mut refused = Vec::new();
        for answer in answers {
            let led = answer.await.unwrap().map(|outcome| outcome.outcome.unwrap());
            refused.push(!matches!(led, Ok(Led::Committed(_))));
        }
        assert_eq!(refused, [false, true, false]);
    });
    assert!(!tree.exists("a").unwrap());
    assert!(store.map("m").unwrap().contains_key("2").unwrap());
}
