//! Checkpoints over the network: made, listed, compared and dropped; and what a server does when its store is put back to one.

use std::path::Path;

use crate::common::{client, connect, message, put, serve, written};
use duramen::Store;
use duramen_proto::v1::admin_client::AdminClient;
use duramen_proto::v1::*;
use duramen_server::{NewToken, Running, ServeError, create_token};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

fn told(status: &Status) -> (Code, String) {
    (status.code(), status.get_details_error_info().unwrap().reason)
}

fn create(name: &str, metadata: &str) -> CreateCheckpointRequest {
    CreateCheckpointRequest {
        name: name.into(),
        metadata: metadata.to_string().into(),
    }
}

fn get(name: &str) -> GetCheckpointRequest {
    GetCheckpointRequest {
        name: name.into(),
        with_bytes_alone: false,
        with_bytes_shared: false,
    }
}

fn named(name: &str) -> DropCheckpointRequest {
    DropCheckpointRequest { name: name.into() }
}

fn names(checkpoints: &[Checkpoint]) -> Vec<&str> {
    checkpoints.iter().map(|checkpoint| &checkpoint.name[..]).collect()
}

#[test]
fn checkpoints_are_made_listed_described_and_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let mut admin = AdminClient::new(clients.channel.clone());
        clients.create_map("m").await;
        let mut numbers = Vec::new();
        for name in ["one", "two", "three"] {
            clients.maps.put(put("m", "k", name)).await.unwrap();
            let made = admin
                .create_checkpoint(create(name, "note"))
                .await
                .unwrap()
                .into_inner();
            let made = made.checkpoint.unwrap();
            assert_eq!((&made.name[..], &made.metadata[..]), (name, &b"note"[..]));
            assert!(made.commit > 0 && made.created_ms > 0);
            assert_eq!(made.bytes_alone, None);
            let found = admin.get_checkpoint(get(name)).await.unwrap().into_inner();
            let mut found = found.checkpoint.unwrap();
            // Pairs are counted when the log is folded.
            assert!(made.pairs.is_none() && found.pairs.take() > Some(0));
            assert_eq!(found, made);
            numbers.push(made.number);
        }
        assert!(numbers.is_sorted_by(|a, b| a < b));

        let all = admin.list_checkpoints(ListCheckpointsRequest::default()).await.unwrap();
        let all = all.into_inner();
        assert_eq!(names(&all.checkpoints), ["one", "two", "three"]);
        assert!(!all.has_more && all.checkpoints.iter().all(|kept| kept.bytes_alone.is_none()));
        let page = |after, limit| ListCheckpointsRequest {
            with_bytes_alone: true,
            after,
            limit,
        };
        let first = admin.list_checkpoints(page(0, 2)).await.unwrap().into_inner();
        assert_eq!((names(&first.checkpoints), first.has_more), (vec!["one", "two"], true));
        assert!(first.checkpoints[0].bytes_alone > Some(0));
        let last = admin.list_checkpoints(page(numbers[1], 2)).await.unwrap().into_inner();
        assert_eq!((names(&last.checkpoints), last.has_more), (vec!["three"], false));
        let with_bytes = GetCheckpointRequest {
            with_bytes_alone: true,
            with_bytes_shared: true,
            ..get("one")
        };
        let one = admin.get_checkpoint(with_bytes).await.unwrap().into_inner();
        let mut one = one.checkpoint.unwrap();
        assert!(one.bytes_shared.take().is_some());
        assert_eq!(one, first.checkpoints[0]);

        admin.drop_checkpoint(named("two")).await.unwrap();
        let keep = KeepLastCheckpointsRequest { count: 1 };
        assert_eq!(admin.keep_last_checkpoints(keep).await.unwrap().into_inner().dropped, 1);
        let left = admin.list_checkpoints(ListCheckpointsRequest::default()).await.unwrap();
        assert_eq!(names(&left.into_inner().checkpoints), ["three"]);
    });
    server.stop().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    assert_eq!(store.checkpoints().list().unwrap().len(), 1);
}

#[test]
fn wrong_requests_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let clients = connect(&server).await;
        let mut admin = AdminClient::new(clients.channel.clone());
        admin.create_checkpoint(create("one", "")).await.unwrap();
        let again = admin.create_checkpoint(create("one", "")).await.unwrap_err();
        assert_eq!(told(&again), (Code::AlreadyExists, "CHECKPOINT_EXISTS".into()));
        let unknown = (Code::NotFound, "CHECKPOINT_NOT_FOUND".to_string());
        assert_eq!(told(&admin.get_checkpoint(get("two")).await.unwrap_err()), unknown);
        assert_eq!(told(&admin.drop_checkpoint(named("two")).await.unwrap_err()), unknown);
        let diff = DiffCheckpointsRequest {
            from: "one".into(),
            to: "two".into(),
            keys_only: false,
        };
        let mut differences = admin.diff_checkpoints(diff).await.unwrap().into_inner();
        assert_eq!(told(&differences.message().await.unwrap_err()), unknown);

        let invalid = (Code::InvalidArgument, "INVALID_ARGUMENT".to_string());
        for (name, says) in [(String::new(), "1 to 255 bytes"), ("n".repeat(256), "and not 256")] {
            let refused = admin.create_checkpoint(create(&name, "")).await.unwrap_err();
            assert_eq!(told(&refused), invalid);
            assert!(refused.message().contains(says), "{refused}");
        }
        let refused = admin.create_checkpoint(create("large", &"m".repeat(4_097))).await;
        let refused = refused.unwrap_err();
        assert_eq!(told(&refused), invalid);
        assert!(refused.message().contains("at most 4096 bytes"), "{refused}");
        admin
            .create_checkpoint(create(&"n".repeat(255), &"m".repeat(4_096)))
            .await
            .unwrap();
    });
    server.stop().unwrap();
}

/// More pairs than a response has, of which one is too long for a message.
#[test]
fn what_differs_between_checkpoints_comes_as_a_stream() {
    const PAIRS: usize = 2_500;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path).unwrap();
    let map = store.map("m").unwrap();
    map.put("gone", "1").unwrap();
    store.checkpoints().create("one", "").unwrap();
    map.delete("gone").unwrap();
    for n in 0..PAIRS {
        map.put(format!("k{n:05}"), "v").unwrap();
    }
    store.checkpoints().create("two", "").unwrap();
    map.put("a long one", vec![7; (16 << 20) + 1]).unwrap();
    store.checkpoints().create("three", "").unwrap();
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let clients = connect(&server).await;
        let mut admin = AdminClient::new(clients.channel.clone());
        let mut diff = async |from: &str, to: &str, keys_only| {
            let request = DiffCheckpointsRequest {
                from: from.into(),
                to: to.into(),
                keys_only,
            };
            let mut responses = admin.diff_checkpoints(request).await.unwrap().into_inner();
            let mut all = Vec::new();
            while let Some(response) = responses.message().await? {
                all.extend(response.differences);
            }
            Ok::<_, Status>(all)
        };
        let all = diff("one", "two", false).await.unwrap();
        assert_eq!(all.len(), PAIRS + 1);
        assert_eq!((&all[0].map[..], &all[0].key[..]), ("m", &b"gone"[..]));
        assert_eq!((all[0].old.as_deref(), all[0].new.as_deref()), (Some(&b"1"[..]), None));
        assert_eq!((all[1].old.as_deref(), all[1].new.as_deref()), (None, Some(&b"v"[..])));
        assert!(all.is_sorted_by(|a, b| a.key < b.key));
        assert_eq!(diff("one", "one", false).await.unwrap(), []);
        let refused = diff("two", "three", false).await.unwrap_err();
        assert_eq!(told(&refused), (Code::OutOfRange, "VALUE_TOO_LONG".into()));
        let keys = diff("two", "three", true).await.unwrap();
        assert_eq!(
            (&keys[0].key[..], keys[0].new.as_deref()),
            (&b"a long one"[..], Some(&b""[..]))
        );
        // A client that goes away holds nothing up.
        let request = DiffCheckpointsRequest {
            from: "one".into(),
            to: "two".into(),
            keys_only: false,
        };
        let mut left = admin.diff_checkpoints(request).await.unwrap().into_inner();
        assert!(left.message().await.unwrap().is_some());
    });
    server.stop().unwrap();
}

#[test]
fn checkpoints_need_the_permission_of_the_service() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let token = |permission: &str| {
        let new = NewToken {
            principal: permission.into(),
            permissions: vec![permission.parse().unwrap()],
            is_for_certificates: false,
            valid_for: None,
            calls: 0,
            bytes_per_second: 0,
        };
        create_token(&store, &new).unwrap().text.unwrap()
    };
    let tokens = ["admin:*", "admin:map:*", "read:*", "write:*"].map(token);
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let clients = connect(&server).await;
        let mut admin = AdminClient::new(clients.channel.clone());
        for (number, token) in tokens.iter().enumerate() {
            fn with<T>(token: &str, request: T) -> Request<T> {
                let mut request = Request::new(request);
                let value = format!("Bearer {token}").parse().unwrap();
                request.metadata_mut().insert("authorization", value);
                request
            }
            let list = ListCheckpointsRequest::default();
            let keep = KeepLastCheckpointsRequest { count: 1 };
            let diff = DiffCheckpointsRequest {
                from: "one".into(),
                to: "one".into(),
                keys_only: true,
            };
            let calls = [
                admin.create_checkpoint(with(token, create("one", ""))).await.err(),
                admin.list_checkpoints(with(token, list)).await.err(),
                admin.get_checkpoint(with(token, get("one"))).await.err(),
                admin.diff_checkpoints(with(token, diff)).await.err(),
                admin.keep_last_checkpoints(with(token, keep)).await.err(),
                admin.drop_checkpoint(with(token, named("one"))).await.err(),
            ];
            for refused in calls {
                let code = refused.map_or(Code::Ok, |refused| refused.code());
                let expected = if number == 0 { Code::Ok } else { Code::PermissionDenied };
                assert_eq!(code, expected, "{number}");
            }
        }
    });
    server.stop().unwrap();
}

/// Puts the store of a server back, as `duramen checkpoint restore` does in another process.
fn put_back(directory: &Path, checkpoint: &str) {
    let store = Store::open(directory.join("store")).unwrap();
    duramen_server::restore(&store, checkpoint).unwrap();
    store.close().unwrap();
}

async fn health(server: &Running) -> ServingStatus {
    let channel = connect(server).await.channel;
    let request = HealthCheckRequest { service: String::new() };
    let told = HealthClient::new(channel).check(request).await.unwrap().into_inner();
    told.status()
}

#[test]
fn a_server_whose_store_was_put_back_refuses_all_calls_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let mut admin = AdminClient::new(clients.channel.clone());
        clients.create_map("m").await;
        clients.create_topic("t").await;
        clients.maps.put(put("m", "k", "1")).await.unwrap();
        admin.create_checkpoint(create("one", "")).await.unwrap();
        clients.maps.put(put("m", "k", "2")).await.unwrap();
        assert_eq!(health(&server).await, ServingStatus::Serving);
        put_back(directory.path(), "one");

        let publish = PublishRequest {
            topic: "t".into(),
            message: Some(message("x")),
            options: written(),
            ..Default::default()
        };
        let read = GetRequest {
            map: "m".into(),
            key: "k".into(),
            ..Default::default()
        };
        let refused = [
            clients.maps.put(put("m", "k", "3")).await.unwrap_err(),
            clients.maps.get(read).await.unwrap_err(),
            clients.topics.publish(publish).await.unwrap_err(),
            admin.check(CheckRequest {}).await.unwrap_err(),
            admin.create_checkpoint(create("two", "")).await.unwrap_err(),
        ];
        for refused in refused {
            assert_eq!(
                told(&refused),
                (Code::Unavailable, "STORE_RESTORED".into()),
                "{refused}"
            );
            assert!(refused.message().contains("start it again"), "{refused}");
            assert!(refused.get_details_retry_info().is_some());
        }
        server.restored().await;
        assert_eq!(health(&server).await, ServingStatus::NotServing);
    });
    let ended = server.stop().unwrap_err();
    assert!(matches!(ended, ServeError::Restored { .. }), "{ended}");
    assert!(ended.to_string().contains("start it again"), "{ended}");

    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        assert_eq!(clients.get("m", "k").await.as_deref(), Some(&b"1"[..]));
        clients.maps.put(put("m", "k", "4")).await.unwrap();
    });
    server.stop().unwrap();
}
