//! Values in parts, and copies of the store.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::common::*;
use duramen::Store;
use duramen_proto::v1::admin_client::AdminClient;
use duramen_proto::v1::*;
use prost::bytes::Bytes;
use tonic::{Code, Status};
use tonic_types::StatusExt;

fn reason(status: &Status) -> String {
    status.get_details_error_info().unwrap().reason
}

fn value(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 31 % 251) as u8).collect()
}

/// The requests that store a value in parts of a length.
fn parts(map: &str, key: &str, announced: usize, value: &[u8], part: usize) -> Vec<PutStreamRequest> {
    let start = PutStreamStart {
        map: map.into(),
        key: key.to_string().into(),
        length: announced as u64,
        options: written(),
        ..Default::default()
    };
    let mut requests = vec![PutStreamRequest {
        start: Some(start),
        ..Default::default()
    }];
    requests.extend(value.chunks(part).map(|part| PutStreamRequest {
        start: None,
        part: Bytes::copy_from_slice(part),
    }));
    requests
}

async fn read(clients: &mut Clients, map: &str, key: &str) -> Option<Vec<u8>> {
    let request = GetStreamRequest {
        map: map.into(),
        key: key.to_string().into(),
        ..Default::default()
    };
    let mut responses = clients.maps.get_stream(request).await.unwrap().into_inner();
    let first = responses.message().await.unwrap()?;
    let (length, mut value) = (first.length.unwrap(), first.part.to_vec());
    while let Some(response) = responses.message().await.unwrap() {
        assert_eq!(response.length, None);
        value.extend_from_slice(&response.part);
    }
    assert_eq!(value.len() as u64, length);
    Some(value)
}

#[test]
fn values_of_any_length_come_and_go_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        for (length, part) in [
            (0, 1),
            (1, 1),
            (262_144, 100_000),
            (262_145, 262_145),
            (30 << 20, 1 << 20),
        ] {
            let value = value(length);
            let requests = tokio_stream::iter(parts("m", "key", length, &value, part));
            clients.maps.put_stream(requests).await.unwrap();
            assert!(read(&mut clients, "m", "key").await.unwrap() == value, "{length}");
        }
        assert_eq!(read(&mut clients, "m", "missing").await, None);
        let get = GetRequest {
            map: "m".into(),
            key: "key".into(),
            ..Default::default()
        };
        let refused = clients.maps.get(get).await.unwrap_err();
        assert_eq!(
            (refused.code(), &reason(&refused)[..]),
            (Code::OutOfRange, "VALUE_TOO_LONG")
        );
        assert!(refused.message().contains("GetStream"));
    });
    server.stop().unwrap();
}

#[test]
fn a_value_whose_parts_are_wrong_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        let value = value(1_000);
        let without_start = vec![PutStreamRequest {
            start: None,
            part: "part".into(),
        }];
        for (requests, code, says) in [
            (
                parts("m", "key", 1_001, &value, 100),
                Code::InvalidArgument,
                "ended after 1000 of 1001",
            ),
            (
                parts("m", "key", 999, &value, 100),
                Code::InvalidArgument,
                "more than the 999",
            ),
            (
                parts("m", "key", (64 << 20) + 1, &value, 100),
                Code::InvalidArgument,
                "at most 67108864",
            ),
            (parts("missing", "key", 1_000, &value, 100), Code::NotFound, "CreateMap"),
            (without_start, Code::InvalidArgument, "`start`"),
            (Vec::new(), Code::InvalidArgument, "`start`"),
        ] {
            let refused = clients.maps.put_stream(tokio_stream::iter(requests)).await.unwrap_err();
            assert_eq!(refused.code(), code, "{refused}");
            assert!(refused.message().contains(says), "{refused}");
        }
        // A client that goes away in the middle.
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let stored = clients
            .maps
            .put_stream(tokio_stream::wrappers::ReceiverStream::new(receiver));
        let sent = async {
            let mut requests = parts("m", "key", 1_000, &value, 100).into_iter();
            for request in requests.by_ref().take(5) {
                sender.send(request).await.unwrap();
            }
        };
        tokio::select! {
            stored = stored => panic!("{stored:?}"),
            () = sent => {}
        }
        assert_eq!(read(&mut clients, "m", "key").await, None);
    });
    server.stop().unwrap();
}

#[test]
fn values_that_arrive_in_parts_share_a_room_and_leave_that_of_other_writes() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_with(directory.path(), &[("queue_bytes", "1000000")]);
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        let value = value(900_000);
        // One is on its way and takes its room; the other one is refused until that has ended.
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let mut others = clients.maps.clone();
        let first = tokio::spawn(async move {
            others
                .put_stream(tokio_stream::wrappers::ReceiverStream::new(receiver))
                .await
        });
        let mut requests = parts("m", "first", value.len(), &value, 100_000).into_iter();
        for request in requests.by_ref().take(3) {
            sender.send(request).await.unwrap();
        }
        let second = || tokio_stream::iter(parts("m", "second", 900_000, &value, 100_000));
        let refused = loop {
            match clients.maps.put_stream(second()).await {
                Err(refused) => break refused,
                // The first one has not arrived yet.
                Ok(_) => continue,
            }
        };
        assert_eq!(
            (refused.code(), &reason(&refused)[..]),
            (Code::ResourceExhausted, "OVERLOADED")
        );
        let other = PutRequest {
            value: vec![7; 300_000].into(),
            options: written(),
            ..put("m", "other", "")
        };
        clients.maps.put(other).await.unwrap();
        for request in requests {
            sender.send(request).await.unwrap();
        }
        drop(sender);
        first.await.unwrap().unwrap();
        clients.maps.put_stream(second()).await.unwrap();
        assert!(read(&mut clients, "m", "first").await.unwrap() == value);
    });
    server.stop().unwrap();
}

#[test]
fn a_value_that_arrives_in_parts_is_stored_while_others_write() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_with(directory.path(), &[("queue_bytes", "1000000")]);
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        let writers: Vec<_> = (0..50)
            .map(|writer| {
                let mut maps = clients.maps.clone();
                tokio::spawn(async move {
                    loop {
                        maps.put(put("m", &format!("writer {writer}"), "value")).await.unwrap();
                    }
                })
            })
            .collect();
        let value = value(1_000_000);
        for _ in 0..10 {
            let requests = tokio_stream::iter(parts("m", "key", value.len(), &value, 100_000));
            clients.maps.put_stream(requests).await.unwrap();
        }
        for writer in writers {
            writer.abort();
            // A writer that was refused has panicked.
            assert!(writer.await.unwrap_err().is_cancelled());
        }
    });
    server.stop().unwrap();
}

#[test]
fn a_copy_is_a_store_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let copies = directory.path().join("copies");
    std::fs::create_dir(&copies).unwrap();
    std::fs::set_permissions(&copies, Permissions::from_mode(0o755)).unwrap();
    let server = serve_with(directory.path(), &[("copy_dir", copies.to_str().unwrap())]);
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        for key in ["a", "b"] {
            clients.maps.put(put("m", key, key)).await.unwrap();
        }
        let mut admin = AdminClient::new(clients.channel.clone());
        let copy = |name: &str| CopyRequest { name: name.into() };
        let copied = admin.copy(copy("2026-11-27.1")).await.unwrap().into_inner();
        assert_eq!(copied.directory, copies.join("2026-11-27.1").display().to_string());
        let permissions = std::fs::metadata(&copied.directory).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o700);
        clients.maps.put(put("m", "c", "c")).await.unwrap();
        let again = admin.copy(copy("2026-11-27.1")).await.unwrap_err();
        assert_eq!(
            (again.code(), &reason(&again)[..]),
            (Code::AlreadyExists, "COPY_EXISTS")
        );
        // Two at a time: each finds the name free when it begins.
        let mut other = admin.clone();
        let both = tokio::join!(admin.copy(copy("twice")), other.copy(copy("twice")));
        let ((Ok(_), Err(late)) | (Err(late), Ok(_))) = both else {
            panic!("{both:?}");
        };
        assert_eq!(reason(&late), "COPY_EXISTS", "{late}");
        std::fs::remove_dir_all(copies.join("twice")).unwrap();
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "../a",
            "a b",
            "\u{e4}",
            &"a".repeat(101),
        ] {
            let refused = admin.copy(copy(name)).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{name:?}: {refused}");
        }
        let names: Vec<_> = std::fs::read_dir(&copies)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["2026-11-27.1"]);
    });
    server.stop().unwrap();
    let copy = Store::open(copies.join("2026-11-27.1")).unwrap();
    assert_eq!(copy.map("m").unwrap().count().unwrap(), 2);
    assert!(copy.check(&mut |_| {}).unwrap().problems.is_empty());
    copy.close().unwrap();

    let server = serve(directory.path());
    client(async {
        let clients = connect(&server).await;
        let mut admin = AdminClient::new(clients.channel.clone());
        let refused = admin.copy(CopyRequest { name: "a".into() }).await.unwrap_err();
        assert_eq!(
            (refused.code(), &reason(&refused)[..]),
            (Code::FailedPrecondition, "NO_COPY_DIRECTORY")
        );
    });
    server.stop().unwrap();
}
