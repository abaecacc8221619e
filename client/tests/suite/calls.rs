//! Every call through a real connection, and what wrong calls get.

use crate::common::*;
use duramen_client::{
    Acknowledge, Client, ErrorKind, Keys, Message, OperationResult, Range, Start, TopicOptions, WriteOptions,
};

fn key(text: &str) -> WriteOptions {
    WriteOptions::new()
        .acknowledge(Acknowledge::Written)
        .idempotency_key(text)
}

#[test]
fn maps_are_created_written_read_and_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server).with(WriteOptions::new().acknowledge(Acknowledge::Written));
        let stock = client.map("stock");
        let missing = stock.put("apples", "1").await.unwrap_err();
        assert_eq!(missing.kind, ErrorKind::NotFound);
        assert_eq!(missing.reason, "MAP_NOT_FOUND");
        assert_eq!(missing.message, "there is no map \"stock\"; create it with CreateMap");
        assert!(client.create_map("stock").await.unwrap());
        assert!(!client.create_map("stock").await.unwrap());

        stock.put("apples", "12").await.unwrap();
        stock.put(b"pears", vec![b'3']).await.unwrap();
        assert_eq!(stock.get("apples").await.unwrap().unwrap(), "12");
        assert_eq!(stock.get("plums").await.unwrap(), None);
        let values = stock.batch_get(["pears", "plums"]).await.unwrap();
        assert_eq!(values, [Some("3".into()), None]);

        assert!(
            !stock
                .compare_and_swap("apples", Some(b"11"), Some(b"10"))
                .await
                .unwrap()
        );
        assert!(
            stock
                .compare_and_swap("apples", Some(b"12"), Some(b"11"))
                .await
                .unwrap()
        );
        assert_eq!(stock.get("apples").await.unwrap().unwrap(), "11");
        assert!(stock.compare_and_swap("apples", Some(b"11"), None).await.unwrap());
        assert!(stock.compare_and_swap("apples", None, Some(b"1")).await.unwrap());

        assert_eq!(stock.add("sold", 5).await.unwrap(), 5);
        assert_eq!(stock.add("sold", -7).await.unwrap(), -2);
        assert_eq!(stock.add("pears", 1).await.unwrap_err().reason, "NOT_A_COUNTER");
        for _ in 0..2 {
            assert_eq!(stock.with(key("one")).add("sold", 1).await.unwrap(), -1);
        }
        let reused = stock.with(key("one")).add("sold", 2).await.unwrap_err();
        assert_eq!(reused.reason, "KEY_REUSED");

        stock.delete("pears").await.unwrap();
        assert_eq!(stock.get("pears").await.unwrap(), None);
        client.create_map("other").await.unwrap();
        let taken = client.rename_map("stock", "other").await.unwrap_err();
        assert_eq!(taken.kind, ErrorKind::AlreadyExists);
        client.rename_map("stock", "store").await.unwrap();
        assert_eq!(client.list_maps().await.unwrap(), ["other", "store"]);
        client.drop_map("store").await.unwrap();
        assert_eq!(client.drop_map("store").await.unwrap_err().kind, ErrorKind::NotFound);
        let in_memory = WriteOptions::new().acknowledge(Acknowledge::Memory);
        let refused = client.map("other").with(in_memory).put("a", "b").await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    });
    server.stop().unwrap();
}

#[test]
fn ranges_come_as_streams_and_as_pages() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        client.create_map("m").await.unwrap();
        let mut fill = client.transaction();
        for n in 0..2_500 {
            fill = fill.put("m", format!("{n:04}"), n.to_string());
        }
        assert!(fill.commit().await.unwrap().succeeded);
        let map = client.map("m");
        assert_eq!(map.count(Keys::all()).await.unwrap(), 2_500);
        assert_eq!(map.count(Keys::prefix("00")).await.unwrap(), 100);
        assert_eq!(map.count(Keys::starting_at("2400")).await.unwrap(), 100);
        assert_eq!(map.count(Keys::prefix([255, 255])).await.unwrap(), 0);

        let mut pairs = map.range(Keys::all()).await.unwrap();
        for n in 0..2_500 {
            let pair = pairs.next().await.unwrap().unwrap();
            assert_eq!((pair.key, pair.value), (format!("{n:04}").into(), n.to_string().into()));
        }
        assert!(pairs.next().await.is_none());
        let part = Range::new(Keys::between("0100", "0200")).reverse().limit(3).keys_only();
        let mut pairs = map.range(part).await.unwrap();
        for name in ["0199", "0198", "0197"] {
            let pair = pairs.next().await.unwrap().unwrap();
            assert_eq!((&pair.key[..], pair.value.len()), (name.as_bytes(), 0));
        }
        assert!(pairs.next().await.is_none());

        let listing = Range::new(Keys::all()).limit(1_000);
        let (mut next, mut pages, mut keys) = (None, 0, Vec::new());
        loop {
            let page = map.page(listing.clone(), next.as_ref()).await.unwrap();
            pages += 1;
            keys.extend(page.pairs.into_iter().map(|pair| pair.key));
            map.put("2400a", "not in this listing").await.unwrap();
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!((pages, keys.len()), (3, 2_500));
        map.delete_range(Keys::starting_at("0001")).await.unwrap();
        assert_eq!(map.count(Keys::all()).await.unwrap(), 1);
        let missing = client.map("none").range(Keys::all()).await.err().unwrap();
        assert_eq!(missing.reason, "MAP_NOT_FOUND");
    });
    server.stop().unwrap();
}

#[test]
fn topics_are_published_to_subscribed_and_administered() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let socket = socket.to_str().unwrap();
    let server = serve_on(directory.path(), "127.0.0.1:0", &[("unix_socket", socket)]);
    run(async {
        let client = Client::connect(&format!("unix:{socket}")).unwrap();
        assert!(client.create_topic("t", TopicOptions::default()).await.unwrap());
        assert!(!client.create_topic("t", TopicOptions::default()).await.unwrap());
        let topic = client.topic("t");
        let mut live = topic.subscribe(Start::Next).await.unwrap();
        assert_eq!(topic.publish("0").await.unwrap(), Some(0));
        assert_eq!(topic.publish_batch(["1", "2"]).await.unwrap(), Some(1));
        let message = Message::new("3").key("k").header("h", "v");
        assert_eq!(topic.publish(message).await.unwrap(), Some(3));
        let in_memory = topic.with(WriteOptions::new().acknowledge(Acknowledge::Memory));
        assert_eq!(in_memory.publish("4").await.unwrap(), None);
        for n in 0..5 {
            let received = live.next().await.unwrap().unwrap();
            assert_eq!((received.offset, received.payload), (n, n.to_string().into()));
            assert_eq!(received.key.is_some(), n == 3);
            assert_eq!(received.headers.is_empty(), n != 3);
        }
        for (start, first) in [
            (Start::Earliest, 0),
            (Start::Offset(2), 2),
            (Start::Last(2), 3),
            (Start::Last(9), 0),
            (Start::Time(std::time::UNIX_EPOCH), 0),
        ] {
            let mut replay = topic.subscribe(start).await.unwrap();
            assert_eq!(replay.next().await.unwrap().unwrap().offset, first);
        }
        let options = TopicOptions {
            keep_messages: 2,
            ..TopicOptions::default()
        };
        topic.configure(options).await.unwrap();
        let described = topic.describe().await.unwrap();
        // What was not set has its default.
        let options = TopicOptions {
            remember_publishers_for_ms: Some(7 * 24 * 60 * 60 * 1_000),
            ..options
        };
        assert_eq!((described.next_offset, described.topic_options), (5, Some(options)));
        let other = client.create_topic("t", TopicOptions::default()).await.unwrap_err();
        assert_eq!(other.kind, ErrorKind::AlreadyExists);
        assert_eq!(client.list_topics().await.unwrap(), ["t"]);
        topic.delete().await.unwrap();
        let ended = live.next().await.unwrap().unwrap_err();
        assert_eq!(ended.reason, "TOPIC_NOT_FOUND");
        assert!(live.next().await.is_none());
        assert_eq!(topic.publish("5").await.unwrap_err().reason, "TOPIC_NOT_FOUND");
    });
    server.stop().unwrap();
}

#[test]
fn a_publisher_gives_each_message_its_offset() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        client.create_topic("t", TopicOptions::default()).await.unwrap();
        let publisher = client.topic("t").publisher().await.unwrap();
        // The first response alone cannot tell the offsets of several messages.
        assert_eq!(publisher.send("0").await.unwrap().await.unwrap(), Some(0));
        let mut tickets = Vec::new();
        for n in 1..20_000_u64 {
            tickets.push(publisher.send(n.to_string()).await.unwrap());
        }
        publisher.flush().await.unwrap();
        for (ticket, n) in tickets.into_iter().zip(1..) {
            assert_eq!(ticket.await.unwrap(), Some(n));
        }
        assert_eq!(client.topic("t").describe().await.unwrap().next_offset, 20_000);

        let nowhere = client.topic("none").publisher().await.unwrap();
        let refused = nowhere.send("a").await.unwrap().await.unwrap_err();
        assert_eq!(refused.reason, "TOPIC_NOT_FOUND");
        let ended = nowhere.send("b").await.err().unwrap();
        assert_eq!(
            (ended.kind, &ended.reason[..]),
            (ErrorKind::Unavailable, "PUBLISHER_ENDED")
        );
    });
    server.stop().unwrap();
}

#[test]
fn a_transaction_changes_maps_and_topics_in_one_commit_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        client.create_map("m").await.unwrap();
        client.create_topic("t", TopicOptions::default()).await.unwrap();
        let order = || {
            let order = client.transaction().if_missing("m", "order");
            let order = order.put("m", "order", "2 apples").publish("t", "order");
            order.otherwise().add("m", "refused", 1)
        };
        let done = order().commit().await.unwrap();
        assert!(done.succeeded);
        assert_eq!(
            done.results,
            [OperationResult::Applied, OperationResult::FirstOffset(0)]
        );
        let done = order().with(key("again")).commit().await.unwrap();
        assert!(!done.succeeded);
        assert_eq!(done.results, [OperationResult::Sum(1)]);
        assert_eq!(order().with(key("again")).commit().await.unwrap(), done);
        let delete = client.transaction().if_value("m", "order", "2 apples");
        let delete = delete.if_exists("m", "refused").delete("m", "order");
        assert!(
            delete
                .delete_range("m", Keys::prefix("x"))
                .commit()
                .await
                .unwrap()
                .succeeded
        );
        assert_eq!(client.map("m").get("order").await.unwrap(), None);
        let wrong = client.transaction().put("m", "a", "b").publish("none", "c");
        assert_eq!(wrong.commit().await.unwrap_err().reason, "TOPIC_NOT_FOUND");
        assert_eq!(client.map("m").get("a").await.unwrap(), None);
    });
    server.stop().unwrap();
}

#[test]
fn a_store_is_described_checked_compacted_and_copied() {
    let directory = tempfile::tempdir().unwrap();
    let copies = directory.path().join("copies").display().to_string();
    let server = serve_on(directory.path(), "127.0.0.1:0", &[("copy_dir", &copies)]);
    run(async {
        let client = client(&server);
        client.create_map("m").await.unwrap();
        client.map("m").put("k", "v").await.unwrap();
        let statistics = client.statistics().await.unwrap();
        let map = &statistics.maps[0];
        assert_eq!((&map.map[..], map.pairs), ("m", 1));
        assert!(client.compact().await.unwrap().bytes_after > 0);
        assert!(client.check().await.unwrap().problems.is_empty());
        // With those that the store keeps for itself.
        assert!(client.copy("one").await.unwrap().pairs > 1);
        assert_eq!(client.copy("one").await.unwrap_err().kind, ErrorKind::AlreadyExists);
    });
    server.stop().unwrap();
}

#[test]
fn checkpoints_are_kept_compared_and_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        client.create_map("m").await.unwrap();
        client.map("m").put("k", "1").await.unwrap();
        let made = client.create_checkpoint("one", "offset 7").await.unwrap();
        assert_eq!((made.number, &made.metadata[..]), (1, &b"offset 7"[..]));
        let again = client.create_checkpoint("one", "").await.unwrap_err();
        assert_eq!(
            (again.kind, &again.reason[..]),
            (ErrorKind::AlreadyExists, "CHECKPOINT_EXISTS")
        );
        client.map("m").put("k", "2").await.unwrap();
        client.create_checkpoint("two", "").await.unwrap();
        let found = client.checkpoint("one").await.unwrap();
        assert!(found.bytes_alone > Some(0) && found.bytes_shared.is_none());
        let with_shared = client.checkpoint_with_shared_bytes("one").await.unwrap();
        assert!(with_shared.bytes_shared.is_some());
        let listed = client.checkpoints().await.unwrap();
        assert_eq!((listed.len(), &listed[0], &listed[1].name[..]), (2, &found, "two"));

        let mut differences = client.diff_checkpoints("one", "two", false).await.unwrap();
        let pair = differences.next().await.unwrap().unwrap();
        assert_eq!((&pair.map[..], &pair.key[..]), ("m", &b"k"[..]));
        assert_eq!(
            (pair.old.as_deref(), pair.new.as_deref()),
            (Some(&b"1"[..]), Some(&b"2"[..]))
        );
        assert!(differences.next().await.is_none());
        let mut unknown = client.diff_checkpoints("one", "never", true).await.unwrap();
        let refused = unknown.next().await.unwrap().unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NotFound);
        assert!(unknown.next().await.is_none());

        assert_eq!(client.keep_last_checkpoints(1).await.unwrap(), 1);
        client.drop_checkpoint("two").await.unwrap();
        let gone = client.drop_checkpoint("two").await.unwrap_err();
        assert_eq!(gone.reason, "CHECKPOINT_NOT_FOUND");
        assert_eq!(client.checkpoint("two").await.unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(client.checkpoints().await.unwrap(), []);
    });
    server.stop().unwrap();
}

/// Until the server ends, a call repeats itself: then it comes to the next server.
#[test]
fn a_call_outlasts_a_restore_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let port = server.listening().tcp.unwrap().port();
    run(async {
        let client = client(&server);
        client.create_map("m").await.unwrap();
        client.map("m").put("k", "1").await.unwrap();
        client.create_checkpoint("one", "").await.unwrap();
        client.map("m").put("k", "2").await.unwrap();
        let store = duramen::Store::open(directory.path().join("store")).unwrap();
        duramen_server::restore(&store, "one").unwrap();
        store.close().unwrap();
        let path = directory.path().to_path_buf();
        let restarted = tokio::task::spawn_blocking(move || {
            assert!(matches!(
                server.stop(),
                Err(duramen_server::ServeError::Restored { .. })
            ));
            serve_on(&path, &format!("127.0.0.1:{port}"), &[])
        });
        let (read, restarted) = tokio::join!(async { client.map("m").get("k").await }, restarted);
        assert_eq!(read.unwrap().as_deref(), Some(&b"1"[..]));
        let created = client.create_checkpoint("two", "").await.unwrap();
        assert_eq!(created.name, "two");
        tokio::task::spawn_blocking(move || restarted.unwrap().stop().unwrap())
            .await
            .unwrap();
    });
}

#[test]
fn long_values_come_and_go_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        client.create_map("m").await.unwrap();
        let map = client.map("m");
        for length in [0_usize, 1, 256 << 10, (25 << 20) + 1] {
            let value: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            map.put_stream("key", value.clone()).await.unwrap();
            let mut parts = map.get_stream("key").await.unwrap().unwrap();
            assert_eq!(parts.length(), length as u64);
            let mut read = Vec::new();
            while let Some(part) = parts.next().await {
                read.extend_from_slice(&part.unwrap());
            }
            assert!(read == value, "{length}");
        }
        assert!(map.get_stream("missing").await.unwrap().is_none());
        assert_eq!(map.get("key").await.unwrap_err().reason, "VALUE_TOO_LONG");
        let refused = map.put_stream("key", vec![0; (64 << 20) + 1]).await.unwrap_err();
        assert_eq!(refused.reason, "VALUE_TOO_LONG");
    });
    server.stop().unwrap();
}
