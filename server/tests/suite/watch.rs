//! Maps that keep their changes, and the stream of them.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use crate::common::*;
use duramen::topic::TopicsOptions;
use duramen::{Durability, Reason, Store};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Command, CreateMap, Entry};
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::watch_client::WatchClient;
use duramen_proto::v1::watch_request::Start;
use duramen_proto::v1::*;
use duramen_server::{Applier, ENTRY_VERSION, Running};
use prost::bytes::Bytes;
use tonic::codec::Streaming;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A key with its old and its new value.
type Seen = (String, Option<String>, Option<String>);

struct Scene {
    clients: Clients,
    watch: WatchClient<tonic::transport::Channel>,
}

async fn scene(server: &Running) -> Scene {
    let clients = connect(server).await;
    let watch = WatchClient::new(clients.channel.clone()).max_decoding_message_size(20 << 20);
    Scene { clients, watch }
}

impl Scene {
    async fn create(&mut self, map: &str, age_ms: u64, bytes: u64) {
        let request = CreateMapRequest {
            map: map.into(),
            keep_changes: Some(KeepChanges { age_ms, bytes }),
            ..Default::default()
        };
        assert!(
            self.clients
                .maps
                .create_map(request)
                .await
                .unwrap()
                .into_inner()
                .created
        );
    }

    async fn put(&mut self, map: &str, key: &str, value: &str) {
        let request = PutRequest {
            options: written(),
            ..put(map, key, value)
        };
        self.clients.maps.put(request).await.unwrap();
    }

    async fn delete(&mut self, map: &str, key: &str) {
        let request = DeleteRequest {
            map: map.into(),
            key: key.to_string().into(),
            options: written(),
            ..Default::default()
        };
        self.clients.maps.delete(request).await.unwrap();
    }

    async fn watch(&mut self, map: &str, start: Option<Start>) -> Watched {
        self.watch_with(WatchRequest {
            map: map.into(),
            start,
            ..Default::default()
        })
        .await
    }

    async fn watch_with(&mut self, request: WatchRequest) -> Watched {
        let responses = self.watch.watch(request).await.unwrap().into_inner();
        let (pairs, changes, position) = Default::default();
        Watched {
            responses,
            pairs,
            changes,
            position,
        }
    }

    /// How a watch is refused.
    async fn refused(&mut self, map: &str, start: Option<Start>) -> Status {
        let request = WatchRequest {
            map: map.into(),
            start,
            ..Default::default()
        };
        self.watch.watch(request).await.map(drop).unwrap_err()
    }
}

/// A watch, with all that it has shown.
struct Watched {
    responses: Streaming<WatchResponse>,
    pairs: Vec<Pair>,
    changes: Vec<MapChange>,
    position: u64,
}

impl Watched {
    async fn next(&mut self) -> Result<WatchResponse, Status> {
        let response = self.responses.message().await?.expect("the watch goes on");
        self.pairs.extend(response.pairs.clone());
        self.changes.extend(response.changes.clone());
        assert!(response.position >= self.position);
        self.position = response.position;
        Ok(response)
    }

    /// Waits for a number of changes in all.
    async fn seen(&mut self, changes: usize) -> Vec<Seen> {
        while self.changes.len() < changes {
            self.next().await.unwrap();
        }
        self.changes.iter().map(seen).collect()
    }

    async fn end(mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn seen(change: &MapChange) -> Seen {
    let value = |value: &Option<Bytes>| value.as_ref().map(text);
    (text(&change.key), value(&change.old_value), value(&change.new_value))
}

fn change(key: &str, old: Option<&str>, new: Option<&str>) -> Seen {
    (key.into(), old.map(String::from), new.map(String::from))
}

fn reason(status: &Status) -> String {
    status.get_details_error_info().unwrap().reason
}

#[test]
fn every_write_is_a_change_with_its_old_and_new_value() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 0).await;
        let mut watch = scene.watch("m", None).await;
        assert_eq!(watch.next().await.unwrap().position, 0);

        scene.put("m", "a", "1").await;
        scene.put("m", "a", "2").await;
        scene.delete("m", "a").await;
        scene.delete("m", "a").await;
        for key in ["b", "c", "d"] {
            scene.put("m", key, key).await;
        }
        let delete = DeleteRangeRequest {
            map: "m".into(),
            range: Some(KeyRange {
                start: "b".into(),
                end: Some("d".into()),
            }),
            options: written(),
            ..Default::default()
        };
        scene.clients.maps.delete_range(delete).await.unwrap();
        let add = AddRequest {
            map: "m".into(),
            key: "n".into(),
            delta: 65,
            options: written(),
            ..Default::default()
        };
        scene.clients.maps.add(add).await.unwrap();
        let swap = |expected: Option<&'static str>| CompareAndSwapRequest {
            map: "m".into(),
            key: "d".into(),
            expected: expected.map(Bytes::from),
            value: Some("e".into()),
            options: written(),
            ..Default::default()
        };
        scene.clients.maps.compare_and_swap(swap(None)).await.unwrap();
        scene.clients.maps.compare_and_swap(swap(Some("d"))).await.unwrap();

        // Two changes of one commit, and a commit that is refused as a whole.
        let operation = |map: &str, key: &str| Operation {
            change: Some(Operated::Put(PutOperation {
                map: map.into(),
                key: key.to_string().into(),
                value: "t".into(),
            })),
        };
        let commit = |other: &str| CommitRequest {
            then: vec![operation("m", "x"), operation("m", "x"), operation(other, "y")],
            options: written(),
            ..Default::default()
        };
        scene.clients.transactions.commit(commit("missing")).await.unwrap_err();
        scene.clients.transactions.commit(commit("m")).await.unwrap();

        let counted = "\0\0\0\0\0\0\0A";
        let expected = [
            change("a", None, Some("1")),
            change("a", Some("1"), Some("2")),
            change("a", Some("2"), None),
            change("b", None, Some("b")),
            change("c", None, Some("c")),
            change("d", None, Some("d")),
            change("b", Some("b"), None),
            change("c", Some("c"), None),
            change("n", None, Some(counted)),
            change("d", Some("d"), Some("e")),
            change("x", None, Some("t")),
            change("x", Some("t"), Some("t")),
            change("y", None, Some("t")),
        ];
        assert_eq!(watch.seen(expected.len()).await, expected);
        let numbers: Vec<_> = watch.changes.iter().map(|change| change.number).collect();
        assert_eq!(numbers, (1..=expected.len() as u64).collect::<Vec<_>>());
        assert!(watch.changes.iter().all(|change| change.time_ms > 1_700_000_000_000));

        // Each position shows what comes after it, and nothing else.
        for after in 0..=expected.len() {
            let mut watch = scene.watch("m", Some(Start::After(after as u64))).await;
            assert_eq!(watch.seen(expected.len() - after).await, expected[after..]);
        }
        let mut watch = scene.watch("m", Some(Start::Earliest(true))).await;
        assert_eq!(watch.seen(expected.len()).await, expected);
        let mut without = scene
            .watch_with(WatchRequest {
                map: "m".into(),
                start: Some(Start::After(1)),
                without_old_values: true,
                ..Default::default()
            })
            .await;
        assert_eq!(without.seen(1).await[0], change("a", None, Some("2")));
    });
    server.stop().unwrap();
}

/// The rows of maps lie side by side.
#[test]
fn maps_keep_their_changes_apart() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        let maps = ["a", "b", "c"];
        for map in maps {
            scene.create(map, 0, 0).await;
        }
        let mut watches = Vec::new();
        for map in maps {
            watches.push(scene.watch(map, None).await);
        }
        for round in ["1", "2"] {
            for map in maps {
                scene.put(map, map, round).await;
            }
        }
        for (map, watch) in maps.into_iter().zip(&mut watches) {
            let expected = [change(map, None, Some("1")), change(map, Some("1"), Some("2"))];
            assert_eq!(watch.seen(2).await, expected);
            let mut again = scene.watch(map, Some(Start::Earliest(true))).await;
            assert_eq!(again.seen(2).await, expected);
            assert_eq!(again.position, 2);
        }
        let drop = DropMapRequest {
            map: "b".into(),
            ..Default::default()
        };
        scene.clients.maps.drop_map(drop).await.unwrap();
        for map in ["a", "c"] {
            scene.put(map, map, "3").await;
            let mut watch = scene.watch(map, Some(Start::After(2))).await;
            assert_eq!(watch.seen(1).await, [change(map, Some("2"), Some("3"))]);
        }
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_of_the_current_pairs_and_their_changes_shows_each_state() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 0).await;
        let mut writer = self::scene(&server).await;
        let keys = 2_500;
        for key in 0..keys {
            writer.put("m", &format!("{key:05}"), "0").await;
        }
        let mut watch = scene.watch("m", Some(Start::Current(true))).await;
        let writes = async {
            for round in 0..500 {
                let key = format!("{:05}", round * 7 % keys);
                match round % 3 {
                    0 => writer.delete("m", &key).await,
                    _ => writer.put("m", &key, &round.to_string()).await,
                }
            }
            writer.put("m", "end", "").await;
        };
        let mut held = BTreeMap::new();
        let watches = async {
            while !watch.next().await.unwrap().current_complete {}
            for pair in watch.pairs.drain(..) {
                held.insert(text(&pair.key), text(&pair.value));
            }
            let mut applied = 0;
            while !held.contains_key("end") {
                watch.next().await.unwrap();
                for change in &watch.changes[applied..] {
                    let (key, old, new) = seen(change);
                    assert_eq!(held.get(&key), old.as_ref(), "{key}");
                    match new {
                        Some(new) => held.insert(key, new),
                        None => held.remove(&key),
                    };
                }
                applied = watch.changes.len();
            }
        };
        tokio::join!(writes, watches);
        let request = RangeRequest {
            map: "m".into(),
            page_size: 10_000,
            ..Default::default()
        };
        let pairs = scene.clients.maps.range(request).await.unwrap().into_inner().pairs;
        let now: BTreeMap<_, _> = pairs.iter().map(|pair| (text(&pair.key), text(&pair.value))).collect();
        assert_eq!(held, now);
    });
    server.stop().unwrap();
}

#[test]
fn a_position_that_is_gone_or_was_never_reached_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 1_000).await;
        let mut from_the_beginning = scene.watch("m", None).await;
        from_the_beginning.next().await.unwrap();
        for round in 0..100 {
            scene.put("m", "key", &format!("{round:050}")).await;
        }
        let gone = scene.refused("m", Some(Start::After(0))).await;
        assert_eq!(
            (gone.code(), &reason(&gone)[..]),
            (Code::OutOfRange, "CHANGES_GONE"),
            "{gone}"
        );
        let future = scene.refused("m", Some(Start::After(101))).await;
        assert_eq!(
            (future.code(), &reason(&future)[..]),
            (Code::OutOfRange, "CHANGES_NOT_MADE"),
            "{future}"
        );
        let largest = scene.refused("m", Some(Start::After(u64::MAX))).await;
        assert_eq!(reason(&largest), "CHANGES_NOT_MADE", "{largest}");

        let mut kept = scene.watch("m", Some(Start::Earliest(true))).await;
        kept.next().await.unwrap();
        kept.next().await.unwrap();
        let numbers: Vec<_> = kept.changes.iter().map(|change| change.number).collect();
        assert!((2..20).contains(&numbers.len()), "{numbers:?}");
        assert_eq!(numbers.last(), Some(&100));

        // Larger limits keep what comes from now on.
        let larger = ConfigureMapRequest {
            map: "m".into(),
            keep_changes: Some(KeepChanges {
                age_ms: 0,
                bytes: 1 << 20,
            }),
            ..Default::default()
        };
        scene.clients.maps.configure_map(larger).await.unwrap();
        for round in 0..50 {
            scene.put("m", "key", &format!("{round:050}")).await;
        }
        let mut kept = scene.watch("m", Some(Start::Earliest(true))).await;
        assert!(kept.seen(numbers.len() + 50).await.len() == numbers.len() + 50);
    });
    server.stop().unwrap();
}

#[test]
fn changes_are_removed_when_they_are_too_old() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let mut applier = Applier::new(&store, TopicsOptions::new().background(false)).unwrap();
    let mut apply = |second: u64, change: Change| {
        let entry = Entry {
            version: ENTRY_VERSION,
            time_us: (1_700_000_000 + second) * 1_000_000,
            clock_us: 0,
            commands: vec![Command {
                change: Some(change),
                ..Default::default()
            }],
        };
        applier.apply(&entry, Durability::Written).unwrap().outcomes
    };
    let create = Change::CreateMap(CreateMap {
        map: "m".into(),
        keep_changes: Some(KeepChanges {
            age_ms: 10_000,
            bytes: 0,
        }),
    });
    assert!(matches!(apply(0, create)[0].outcome, Some(Led::Changed(true))));
    let write = |key: String| {
        let put = PutOperation {
            map: "m".into(),
            key: key.into(),
            value: "value".into(),
        };
        Change::Commit(CommitRequest {
            then: vec![Operation {
                change: Some(Operated::Put(put)),
            }],
            ..Default::default()
        })
    };
    for second in 0..30 {
        apply(second, write(second.to_string()));
    }
    drop(applier);
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        let mut watch = scene.watch("m", Some(Start::Earliest(true))).await;
        let changes = watch.seen(11).await;
        assert_eq!(changes[0].0, "19");
        assert_eq!(changes.len(), 11);
        let time = UNIX_EPOCH + Duration::from_millis(watch.changes[0].time_ms);
        assert_eq!(time, UNIX_EPOCH + Duration::from_secs(1_700_000_019));
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_follows_a_new_name_and_ends_when_the_map_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 0).await;
        let mut watch = scene.watch("m", None).await;
        watch.next().await.unwrap();
        let rename = RenameMapRequest {
            map: "m".into(),
            new_name: "n".into(),
            ..Default::default()
        };
        scene.clients.maps.rename_map(rename).await.unwrap();
        scene.put("n", "a", "1").await;
        assert_eq!(watch.seen(1).await, [change("a", None, Some("1"))]);
        let drop = DropMapRequest {
            map: "n".into(),
            ..Default::default()
        };
        scene.clients.maps.drop_map(drop).await.unwrap();
        let ended = watch.end().await;
        assert_eq!(
            (ended.code(), &reason(&ended)[..]),
            (Code::NotFound, "MAP_NOT_FOUND"),
            "{ended}"
        );

        // Another map of the name has changes of its own, and positions of the first one mean nothing there.
        scene.create("n", 0, 0).await;
        for value in ["2", "3", "4"] {
            scene.put("n", "b", value).await;
        }
        for after in [0, 1] {
            let gone = scene.refused("n", Some(Start::After(after))).await;
            assert_eq!(reason(&gone), "CHANGES_GONE", "{after}: {gone}");
        }
        let mut watch = scene.watch("n", Some(Start::Earliest(true))).await;
        assert_eq!(watch.seen(3).await[0], change("b", None, Some("2")));

        scene.clients.create_map("plain").await;
        let none = scene.refused("plain", None).await;
        assert_eq!(
            (none.code(), &reason(&none)[..]),
            (Code::FailedPrecondition, "KEEPS_NO_CHANGES")
        );
        let missing = scene.refused("missing", None).await;
        assert_eq!(
            (missing.code(), &reason(&missing)[..]),
            (Code::NotFound, "MAP_NOT_FOUND")
        );
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_of_a_range_sees_that_range_and_learns_its_position() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 0).await;
        let mut watch = scene
            .watch_with(WatchRequest {
                map: "m".into(),
                range: Some(KeyRange {
                    start: "b".into(),
                    end: Some("c".into()),
                }),
                ..Default::default()
            })
            .await;
        watch.next().await.unwrap();
        for key in ["a", "b", "c", "bb", "ba"] {
            scene.put("m", key, "1").await;
        }
        let keys: Vec<_> = watch.seen(3).await.into_iter().map(|(key, ..)| key).collect();
        assert_eq!(keys, ["b", "bb", "ba"]);
        // Changes outside of the range move the position.
        let operation = |n: usize| Operation {
            change: Some(Operated::Put(PutOperation {
                map: "m".into(),
                key: format!("x{n}").into(),
                value: "1".into(),
            })),
        };
        let commit = CommitRequest {
            then: (0..1_500).map(operation).collect(),
            options: written(),
            ..Default::default()
        };
        scene.clients.transactions.commit(commit).await.unwrap();
        while watch.position < 1_500 {
            watch.next().await.unwrap();
        }
        assert_eq!(watch.changes.len(), 3);
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_of_a_range_comes_back_when_the_other_changes_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 1_000).await;
        let request = |start| WatchRequest {
            map: "m".into(),
            range: Some(KeyRange {
                start: "b".into(),
                end: None,
            }),
            start,
            ..Default::default()
        };
        let mut watch = scene.watch_with(request(None)).await;
        watch.next().await.unwrap();
        for _ in 0..100 {
            scene.put("m", "a", &"1".repeat(50)).await;
        }
        while watch.position < 100 {
            watch.next().await.unwrap();
        }
        let mut watch = scene.watch_with(request(Some(Start::After(watch.position)))).await;
        scene.put("m", "b", "1").await;
        assert_eq!(watch.seen(1).await, [change("b", None, Some("1"))]);
    });
    server.stop().unwrap();
}

#[test]
fn what_a_map_with_changes_cannot_take_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 0).await;
        let long = |bytes: usize| PutRequest {
            value: vec![7; bytes].into(),
            options: written(),
            ..put("m", "long", "")
        };
        let refused = scene.clients.maps.put(long((8 << 20) + 1)).await.unwrap_err();
        assert_eq!(
            (refused.code(), &reason(&refused)[..]),
            (Code::InvalidArgument, "VALUE_TOO_LONG")
        );
        // The longest old and new value fit into one message.
        scene.clients.maps.put(long(8 << 20)).await.unwrap();
        scene.clients.maps.put(long(8 << 20)).await.unwrap();
        let mut watch = scene.watch("m", Some(Start::After(1))).await;
        while watch.changes.is_empty() {
            watch.next().await.unwrap();
        }
        assert_eq!(watch.changes[0].old_value.as_ref().unwrap().len(), 8 << 20);

        let operation = |n: usize| Operation {
            change: Some(Operated::Put(PutOperation {
                map: "m".into(),
                key: format!("{n:05}").into(),
                value: "1".into(),
            })),
        };
        for numbers in [0..10_000, 10_000..10_001] {
            let commit = CommitRequest {
                then: numbers.map(operation).collect(),
                options: written(),
                ..Default::default()
            };
            scene.clients.transactions.commit(commit).await.unwrap();
        }
        let delete = |end: Option<&'static str>| DeleteRangeRequest {
            map: "m".into(),
            range: Some(KeyRange {
                start: "0".into(),
                end: end.map(Bytes::from),
            }),
            options: written(),
            ..Default::default()
        };
        let refused = scene.clients.maps.delete_range(delete(Some("9"))).await.unwrap_err();
        assert_eq!(
            (refused.code(), &reason(&refused)[..]),
            (Code::FailedPrecondition, "RANGE_TOO_LARGE")
        );
        scene.clients.maps.delete_range(delete(Some("09999"))).await.unwrap();
        let not_a_counter = AddRequest {
            map: "m".into(),
            key: "09999".into(),
            delta: 1,
            ..Default::default()
        };
        let refused = scene.clients.maps.add(not_a_counter).await.unwrap_err();
        assert_eq!(reason(&refused), "NOT_A_COUNTER");

        // A map that exists must keep its changes alike.
        let mut create = async |map: &str, keep_changes| {
            let request = CreateMapRequest {
                map: map.into(),
                keep_changes,
                ..Default::default()
            };
            let created = scene.clients.maps.create_map(request).await;
            created.map(|created| created.into_inner().created)
        };
        let limits = |bytes| Some(KeepChanges { age_ms: 0, bytes });
        assert!(!create("m", limits(0)).await.unwrap());
        assert!(!create("m", None).await.unwrap());
        assert_eq!(reason(&create("m", limits(1)).await.unwrap_err()), "MAP_EXISTS");
        assert!(create("plain", None).await.unwrap());
        assert_eq!(reason(&create("plain", limits(0)).await.unwrap_err()), "MAP_EXISTS");
    });
    server.stop().unwrap();
}

#[test]
fn programs_that_open_the_store_read_the_map_and_do_not_write_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut scene = scene(&server).await;
        scene.create("m", 0, 0).await;
        scene.put("m", "a", "1").await;
    });
    let store = Store::open(directory.path().join("store")).unwrap();
    let map = store.map("m").unwrap();
    assert_eq!(&map.get("a").unwrap().unwrap()[..], b"1");
    let refused = map.put("a", "2").unwrap_err();
    assert!(matches!(refused.reason(), Reason::MapGuarded { .. }), "{refused}");
    assert!(refused.to_string().contains("through the server"), "{refused}");
    store.close().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_watch_goes_on_after_the_server_was_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let mut position = 0;
    for round in 0..4 {
        let server = serve(directory.path());
        position = client(async {
            let mut scene = scene(&server).await;
            if round == 0 {
                scene.create("m", 0, 0).await;
            }
            for n in 0..10 {
                scene.put("m", "key", &format!("{round}.{n}")).await;
            }
            let mut watch = scene.watch("m", Some(Start::After(position))).await;
            // The last five changes of each round are left for the next.
            let first = if round == 0 { 0 } else { 5 };
            watch.seen(first + 5).await;
            let numbers: Vec<_> = watch.changes[..first + 5].iter().map(|change| change.number).collect();
            assert_eq!(
                numbers,
                (position + 1..=position + first as u64 + 5).collect::<Vec<_>>()
            );
            *numbers.last().unwrap()
        });
        server.stop().unwrap();
    }
}
