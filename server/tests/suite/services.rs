//! Every service through a real connection: what it does, and what wrong requests get.

use crate::common::*;
use duramen_proto::v1::admin_client::AdminClient;
use duramen_proto::v1::condition::Test;
use duramen_proto::v1::operation::Change;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::subscribe_request::Start;
use duramen_proto::v1::*;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_types::StatusExt;

#[test]
fn maps_are_created_written_read_and_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let missing = clients.maps.put(put("stock", "apples", "1")).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound);
        assert_eq!(missing.message(), "there is no map \"stock\"; create it with CreateMap");
        assert_eq!(missing.get_details_error_info().unwrap().reason, "MAP_NOT_FOUND");

        let create = CreateMapRequest {
            map: "stock".into(),
            ..Default::default()
        };
        assert!(
            clients
                .maps
                .create_map(create.clone())
                .await
                .unwrap()
                .into_inner()
                .created
        );
        assert!(!clients.maps.create_map(create).await.unwrap().into_inner().created);
        clients.maps.put(put("stock", "apples", "12")).await.unwrap();
        clients.maps.put(put("stock", "pears", "3")).await.unwrap();
        assert_eq!(clients.get("stock", "apples").await.unwrap(), b"12");
        assert_eq!(clients.get("stock", "plums").await, None);
        let batch = BatchGetRequest {
            map: "stock".into(),
            keys: vec!["pears".into(), "plums".into()],
            ..Default::default()
        };
        let values = clients.maps.batch_get(batch).await.unwrap().into_inner().values;
        assert_eq!(values[0].value.as_deref(), Some(&b"3"[..]));
        assert_eq!(values[1].value, None);

        let swap = |expected: Option<&str>, value: Option<&str>| CompareAndSwapRequest {
            map: "stock".into(),
            key: "apples".into(),
            expected: expected.map(|text| text.to_string().into()),
            value: value.map(|text| text.to_string().into()),
            ..Default::default()
        };
        let refused = clients.maps.compare_and_swap(swap(Some("11"), Some("10"))).await;
        assert!(!refused.unwrap().into_inner().swapped);
        let swapped = clients.maps.compare_and_swap(swap(Some("12"), Some("11"))).await;
        assert!(swapped.unwrap().into_inner().swapped);
        assert_eq!(clients.get("stock", "apples").await.unwrap(), b"11");
        let deleted = clients.maps.compare_and_swap(swap(Some("11"), None)).await;
        assert!(deleted.unwrap().into_inner().swapped);
        let created = clients.maps.compare_and_swap(swap(None, Some("1"))).await;
        assert!(created.unwrap().into_inner().swapped);

        let add = |delta| AddRequest {
            map: "stock".into(),
            key: "sold".into(),
            delta,
            ..Default::default()
        };
        assert_eq!(clients.maps.add(add(5)).await.unwrap().into_inner().value, 5);
        assert_eq!(clients.maps.add(add(-7)).await.unwrap().into_inner().value, -2);
        let overflow = clients.maps.add(add(i64::MIN)).await.unwrap_err();
        assert_eq!(overflow.get_details_error_info().unwrap().reason, "COUNTER_OVERFLOW");
        let on_text = AddRequest {
            key: "pears".into(),
            ..add(1)
        };
        let not_a_counter = clients.maps.add(on_text).await.unwrap_err();
        assert_eq!(not_a_counter.get_details_error_info().unwrap().reason, "NOT_A_COUNTER");

        let rename = |map: &str, new_name: &str| RenameMapRequest {
            map: map.into(),
            new_name: new_name.into(),
            ..Default::default()
        };
        clients.create_map("other").await;
        let taken = clients.maps.rename_map(rename("stock", "other")).await.unwrap_err();
        assert_eq!(taken.code(), Code::AlreadyExists);
        clients.maps.rename_map(rename("stock", "store")).await.unwrap();
        assert_eq!(clients.get("store", "pears").await.unwrap(), b"3");
        assert_eq!(
            clients.maps.put(put("stock", "a", "b")).await.unwrap_err().code(),
            Code::NotFound
        );
        let listed = clients.maps.list_maps(ListMapsRequest::default()).await.unwrap();
        assert_eq!(listed.into_inner().maps, ["other", "store"]);
        let drop_map = DropMapRequest {
            map: "store".into(),
            ..Default::default()
        };
        clients.maps.drop_map(drop_map.clone()).await.unwrap();
        assert_eq!(
            clients.maps.drop_map(drop_map).await.unwrap_err().code(),
            Code::NotFound
        );
    });
    server.stop().unwrap();
}

#[test]
fn pages_of_a_listing_are_of_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        let puts = (0..250).map(|n| Operation {
            change: Some(Change::Put(PutOperation {
                map: "m".into(),
                key: format!("{n:03}").into(),
                value: "v".into(),
            })),
        });
        let commit = CommitRequest {
            then: puts.collect(),
            options: written(),
            ..Default::default()
        };
        clients.transactions.commit(commit).await.unwrap();
        for reverse in [false, true] {
            let mut request = RangeRequest {
                map: "m".into(),
                range: Some(KeyRange {
                    start: "010".into(),
                    end: Some("240".into()),
                }),
                reverse,
                page_size: 100,
                ..Default::default()
            };
            let mut keys = Vec::new();
            let mut pages = 0;
            loop {
                let page = clients.maps.range(request.clone()).await.unwrap().into_inner();
                keys.extend(
                    page.pairs
                        .iter()
                        .map(|pair| String::from_utf8(pair.key.to_vec()).unwrap()),
                );
                pages += 1;
                // What is written between two pages is not seen.
                let key = if reverse { "010a" } else { "239a" };
                clients.maps.put(put("m", key, "new")).await.unwrap();
                if page.next_page_token.is_empty() {
                    break;
                }
                request.page_token = page.next_page_token;
            }
            let mut expected: Vec<_> = (10..240).map(|n| format!("{n:03}")).collect();
            if reverse {
                expected.push("239a".into());
                expected.reverse();
            }
            expected.sort_unstable();
            if reverse {
                expected.reverse();
            }
            assert_eq!((pages, keys), (3, expected));
        }
        let stale = RangeRequest {
            map: "m".into(),
            page_token: vec![7; 9].into(),
            ..Default::default()
        };
        let ended = clients.maps.range(stale).await.unwrap_err();
        assert_eq!(ended.get_details_error_info().unwrap().reason, "LISTING_ENDED");
        let stream = StreamRangeRequest {
            map: "m".into(),
            limit: 120,
            keys_only: true,
            ..Default::default()
        };
        let mut stream = clients.maps.stream_range(stream).await.unwrap().into_inner();
        let mut streamed = Vec::new();
        while let Some(batch) = stream.next().await {
            streamed.extend(batch.unwrap().pairs);
        }
        assert_eq!(streamed.len(), 120);
        assert!(streamed.iter().all(|pair| pair.value.is_empty()));
        let count = CountRequest {
            map: "m".into(),
            ..Default::default()
        };
        assert_eq!(clients.maps.count(count).await.unwrap().into_inner().count, 252);
        let delete = DeleteRangeRequest {
            map: "m".into(),
            range: Some(KeyRange {
                start: "1".into(),
                end: None,
            }),
            ..Default::default()
        };
        clients.maps.delete_range(delete).await.unwrap();
        assert_eq!(clients.get("m", "100").await, None);
        assert!(clients.get("m", "099").await.is_some());
    });
    server.stop().unwrap();
}

#[test]
fn a_transaction_changes_maps_and_publishes_in_one_commit_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("orders").await;
        clients.create_topic("placed").await;
        let operation = |change| Operation { change: Some(change) };
        let store = |key: &str| {
            operation(Change::Put(PutOperation {
                map: "orders".into(),
                key: key.to_string().into(),
                value: "2 apples".into(),
            }))
        };
        let publish = |topic: &str, text: &str| {
            operation(Change::Publish(PublishOperation {
                topic: topic.into(),
                messages: vec![message(text), message(text)],
            }))
        };
        let add = operation(Change::Add(AddOperation {
            map: "orders".into(),
            key: "count".into(),
            delta: 1,
        }));
        let commit = |then, otherwise| CommitRequest {
            conditions: vec![Condition {
                map: "orders".into(),
                key: "7".into(),
                test: Some(Test::Exists(false)),
            }],
            then,
            otherwise,
            options: written(),
            ..Default::default()
        };
        let then = vec![
            store("7"),
            publish("placed", "7"),
            add.clone(),
            publish("placed", "again"),
        ];
        let done = clients
            .transactions
            .commit(commit(then.clone(), vec![]))
            .await
            .unwrap()
            .into_inner();
        let results: Vec<_> = done.results.into_iter().map(|result| result.result.unwrap()).collect();
        assert!(done.succeeded);
        assert_eq!(
            results,
            [
                Given::Applied(Applied {}),
                Given::FirstOffset(0),
                Given::Sum(1),
                Given::FirstOffset(2)
            ]
        );
        // Now the condition does not hold.
        let done = clients
            .transactions
            .commit(commit(then, vec![add]))
            .await
            .unwrap()
            .into_inner();
        assert!(!done.succeeded);
        assert_eq!(done.results[0].result, Some(Given::Sum(2)));
        // A wrong operation at the end takes the others back.
        let wrong = CommitRequest {
            then: vec![store("8"), publish("placed", "8"), publish("missing", "8")],
            options: written(),
            ..Default::default()
        };
        let refused = clients.transactions.commit(wrong).await.unwrap_err();
        assert_eq!(refused.get_details_error_info().unwrap().reason, "TOPIC_NOT_FOUND");
        assert_eq!(clients.get("orders", "8").await, None);
        let publish = PublishRequest {
            topic: "placed".into(),
            message: Some(message("next")),
            ..Default::default()
        };
        assert_eq!(
            clients.topics.publish(publish).await.unwrap().into_inner().offset,
            Some(4)
        );
    });
    server.stop().unwrap();
}

#[test]
fn a_repeated_key_changes_nothing_and_gets_the_first_answer_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let add = |delta| AddRequest {
        map: "m".into(),
        key: "n".into(),
        delta,
        options: with_key("add-1"),
        ..Default::default()
    };
    let publish = || PublishRequest {
        topic: "t".into(),
        message: Some(message("once")),
        options: with_key("publish-1"),
        ..Default::default()
    };
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        clients.create_topic("t").await;
        for _ in 0..3 {
            assert_eq!(clients.maps.add(add(5)).await.unwrap().into_inner().value, 5);
            assert_eq!(
                clients.topics.publish(publish()).await.unwrap().into_inner().offset,
                Some(0)
            );
        }
        let other = clients.maps.add(add(6)).await.unwrap_err();
        assert_eq!(other.get_details_error_info().unwrap().reason, "KEY_REUSED");
        // A refusal is an answer too.
        let mut missing = put("missing", "a", "b");
        missing.options = with_key("put-1");
        assert_eq!(
            clients.maps.put(missing.clone()).await.unwrap_err().code(),
            Code::NotFound
        );
        clients.create_map("missing").await;
        assert_eq!(clients.maps.put(missing).await.unwrap_err().code(), Code::NotFound);
    });
    server.stop().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        assert_eq!(clients.maps.add(add(5)).await.unwrap().into_inner().value, 5);
        assert_eq!(
            clients.topics.publish(publish()).await.unwrap().into_inner().offset,
            Some(0)
        );
        let describe = DescribeTopicRequest {
            topic: "t".into(),
            ..Default::default()
        };
        let described = clients.topics.describe_topic(describe).await.unwrap().into_inner();
        assert_eq!(described.next_offset, 1);
    });
    server.stop().unwrap();
}

#[test]
fn topics_are_published_to_and_subscribed_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_topic("t").await;
        let subscribe = |start| SubscribeRequest {
            topic: "t".into(),
            start,
            ..Default::default()
        };
        let mut live = clients.topics.subscribe(subscribe(None)).await.unwrap().into_inner();
        let request = PublishBatchRequest {
            topic: "t".into(),
            messages: (0..10).map(|n| message(&n.to_string())).collect(),
            options: written(),
            ..Default::default()
        };
        let first = clients
            .topics
            .publish_batch(request)
            .await
            .unwrap()
            .into_inner()
            .first_offset;
        assert_eq!(first, Some(0));
        let keyed = Message {
            payload: "10".into(),
            key: "k".into(),
            headers: vec![Header {
                name: "h".into(),
                value: "v".into(),
            }],
            ..Default::default()
        };
        let request = PublishRequest {
            topic: "t".into(),
            message: Some(keyed),
            options: acknowledged(Acknowledge::Synced),
            ..Default::default()
        };
        assert_eq!(
            clients.topics.publish(request).await.unwrap().into_inner().offset,
            Some(10)
        );
        // A stream of requests; acknowledgements come together.
        let requests = (11..500).map(|n| PublishStreamRequest {
            topic: "t".into(),
            messages: vec![message(&n.to_string())],
            acknowledge: Acknowledge::Written as i32,
            ..Default::default()
        });
        let responses = clients
            .topics
            .publish_stream(tokio_stream::iter(requests))
            .await
            .unwrap();
        let mut responses = responses.into_inner();
        let mut last = PublishStreamResponse::default();
        while let Some(response) = responses.next().await {
            let response = response.unwrap();
            assert!(response.acknowledged > last.acknowledged);
            last = response;
        }
        assert_eq!((last.acknowledged, last.last_offset), (489, Some(499)));
        // Nothing was published at once, but all arrives.
        let request = PublishRequest {
            topic: "t".into(),
            message: Some(message("500")),
            options: acknowledged(Acknowledge::Memory),
            ..Default::default()
        };
        assert_eq!(clients.topics.publish(request).await.unwrap().into_inner().offset, None);

        let mut expected = 0;
        while expected <= 500 {
            for message in live.next().await.unwrap().unwrap().messages {
                assert_eq!(message.offset, expected);
                assert_eq!(message.payload, expected.to_string());
                assert_eq!(message.key, if expected == 10 { "k" } else { "" });
                assert_eq!(message.headers.len(), usize::from(expected == 10));
                expected += 1;
            }
        }
        for (start, first) in [
            (Start::Earliest(true), 0),
            (Start::Offset(77), 77),
            (Start::Last(3), 498),
            (Start::TimeMs(0), 0),
        ] {
            let mut replay = clients
                .topics
                .subscribe(subscribe(Some(start)))
                .await
                .unwrap()
                .into_inner();
            assert_eq!(replay.next().await.unwrap().unwrap().messages[0].offset, first);
        }
        // Deleting the topic ends the subscription.
        let delete = DeleteTopicRequest {
            topic: "t".into(),
            ..Default::default()
        };
        clients.topics.delete_topic(delete).await.unwrap();
        let ended = live.next().await.unwrap().unwrap_err();
        assert_eq!(ended.get_details_error_info().unwrap().reason, "TOPIC_NOT_FOUND");
    });
    server.stop().unwrap();
}

#[test]
fn wrong_requests_get_an_error_that_helps() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("m").await;
        clients.create_topic("t").await;
        let mut unknown_level = put("m", "a", "b");
        unknown_level.options = Some(WriteOptions {
            acknowledge: 9,
            ..Default::default()
        });
        let error = clients.maps.put(unknown_level).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("unknown value 9"), "{error}");
        let mut in_memory = put("m", "a", "b");
        in_memory.options = acknowledged(Acknowledge::Memory);
        let error = clients.maps.put(in_memory).await.unwrap_err();
        assert!(error.message().contains("only publishing"), "{error}");
        let error = clients.maps.put(put("m", &"k".repeat(5_000), "b")).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("the key is 5000 bytes long"), "{error}");
        let mut elsewhere = put("m", "a", "b");
        elsewhere.space = "other".into();
        let error = clients.maps.put(elsewhere).await.unwrap_err();
        assert_eq!(error.get_details_error_info().unwrap().reason, "SPACE_NOT_FOUND");
        let nothing = PublishBatchRequest {
            topic: "t".into(),
            ..Default::default()
        };
        let error = clients.topics.publish_batch(nothing).await.unwrap_err();
        assert!(error.message().contains("send at least one"), "{error}");
        let subscribe = SubscribeRequest {
            topic: "missing".into(),
            ..Default::default()
        };
        let error = clients.topics.subscribe(subscribe).await.unwrap_err();
        assert_eq!(error.get_details_error_info().unwrap().reason, "TOPIC_NOT_FOUND");
        let requests = tokio_stream::iter([PublishStreamRequest {
            topic: "missing".into(),
            messages: vec![message("a")],
            ..Default::default()
        }]);
        let mut responses = clients.topics.publish_stream(requests).await.unwrap().into_inner();
        let error = responses.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        let exists = CreateTopicRequest {
            topic: "t".into(),
            topic_options: Some(TopicOptions {
                keep_messages: 5,
                ..Default::default()
            }),
            if_missing: true,
            ..Default::default()
        };
        let error = clients.topics.create_topic(exists).await.unwrap_err();
        assert_eq!(error.code(), Code::AlreadyExists);
        // The server goes on.
        clients.maps.put(put("m", "a", "b")).await.unwrap();
        let mut admin = AdminClient::new(clients.channel.clone());
        let statistics = admin.statistics(StatisticsRequest {}).await.unwrap().into_inner();
        assert_eq!(statistics.maps[0].map, "m");
        assert!(statistics.commands >= 3 && statistics.commits >= 3);
        let checked = admin.check(CheckRequest {}).await.unwrap().into_inner();
        assert_eq!(checked.problems, Vec::<String>::new());
        admin.compact(CompactRequest {}).await.unwrap();
    });
    server.stop().unwrap();
}

#[test]
fn a_server_that_stops_ends_streams_with_a_reason_and_refuses_calls() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let (subscribed, stopped) = std::sync::mpsc::channel();
    let address = server.listening().tcp.unwrap();
    let subscriber = std::thread::spawn(move || {
        client(async {
            let channel = tonic::transport::Channel::from_shared(format!("http://{address}")).unwrap();
            let mut topics = topics_client::TopicsClient::new(channel.connect().await.unwrap());
            let create = CreateTopicRequest {
                topic: "t".into(),
                ..Default::default()
            };
            topics.create_topic(create).await.unwrap();
            let subscribe = SubscribeRequest {
                topic: "t".into(),
                ..Default::default()
            };
            let mut stream = topics.subscribe(subscribe).await.unwrap().into_inner();
            subscribed.send(()).unwrap();
            let ended = stream.next().await.unwrap().unwrap_err();
            assert_eq!(ended.code(), Code::Unavailable);
            assert!(ended.message().contains("the server stops"), "{ended}");
            assert!(ended.get_details_retry_info().is_some());
        });
    });
    stopped.recv().unwrap();
    server.stop().unwrap();
    subscriber.join().unwrap();
    // The store is whole and free for the next one.
    serve(directory.path()).stop().unwrap();
}

#[test]
fn a_refused_message_is_the_last_of_its_publishing_stream() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        for round in 0..20 {
            let topic = format!("t{round}");
            clients.create_topic(&topic).await;
            // The topic does not take messages that expire. Where the requests are joined differs from round to round.
            let requests = (0..100).map(move |n| PublishStreamRequest {
                topic: format!("t{round}"),
                messages: vec![Message {
                    expires_after_ms: u64::from(n == 50),
                    ..message(&n.to_string())
                }],
                acknowledge: Acknowledge::Written as i32,
                ..Default::default()
            });
            let mut responses = clients
                .topics
                .publish_stream(tokio_stream::iter(requests))
                .await
                .unwrap()
                .into_inner();
            let mut acknowledged = 0;
            let refused = loop {
                match responses.next().await.unwrap() {
                    Ok(response) => acknowledged = response.acknowledged,
                    Err(status) => break status,
                }
            };
            assert_eq!(refused.get_details_error_info().unwrap().reason, "TOPIC_OPTION_MISSING");
            let describe = DescribeTopicRequest {
                topic,
                ..Default::default()
            };
            let described = clients.topics.describe_topic(describe).await.unwrap().into_inner();
            assert_eq!(described.next_offset, acknowledged);
            assert!(acknowledged <= 50);
        }
    });
    server.stop().unwrap();
}

#[test]
fn a_server_that_stops_under_load_keeps_what_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        connect(&server).await.create_map("m").await;
    });
    let address = server.listening().tcp.unwrap();
    let acknowledged = std::sync::atomic::AtomicU64::new(0);
    let keys = std::thread::scope(|scope| {
        let load = |thread: usize| {
            let acknowledged = &acknowledged;
            move || {
                client(async {
                    let channel = tonic::transport::Channel::from_shared(format!("http://{address}")).unwrap();
                    let mut maps = maps_client::MapsClient::new(channel.connect().await.unwrap());
                    let mut keys = Vec::new();
                    loop {
                        let key = format!("{thread}-{:06}", keys.len());
                        let mut request = put("m", &key, "value");
                        request.options = if keys.len() % 2 == 0 { written() } else { None };
                        match maps.put(request).await {
                            Ok(_) => keys.push(key),
                            Err(status) => {
                                // Nothing but the end of the server stops the load.
                                let is_end =
                                    status.code() == Code::Unavailable || status.get_details_error_info().is_none();
                                assert!(is_end, "{status}");
                                return keys;
                            }
                        }
                        acknowledged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                })
            }
        };
        let loads: Vec<_> = (0..4).map(|thread| scope.spawn(load(thread))).collect();
        while acknowledged.load(std::sync::atomic::Ordering::Relaxed) < 300 {
            std::thread::yield_now();
        }
        server.stop().unwrap();
        loads
            .into_iter()
            .flat_map(|load| load.join().unwrap())
            .collect::<Vec<_>>()
    });
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        for key in &keys {
            assert!(clients.get("m", key).await.is_some(), "{key} was acknowledged");
        }
    });
    server.stop().unwrap();
}

/// A client that reads the options of a topic or a group and configures with them changes nothing else.
#[test]
fn every_option_of_topics_and_groups_goes_through_the_network() {
    use duramen::topic::{Filter, GroupOptions, Retention, TopicOptions, Topics};
    use std::time::Duration;

    let directory = tempfile::tempdir().unwrap();
    let store = duramen::Store::open(directory.path().join("store")).unwrap();
    let topics = Topics::open(&store).unwrap();
    let odd = TopicOptions::new()
        .keep_for(Duration::from_secs(77))
        .keep_bytes(1_000_001)
        .keep_messages(1_234)
        .drop_acknowledged(true)
        .remember_publishers_for(None)
        .retention(Retention::ProtectGroups { max_bytes: 99_999 })
        .deduplicate_for(Duration::from_secs(5))
        .message_expiry(true)
        .latest_per_key(true);
    let bounded = TopicOptions::new()
        .keep_messages(10)
        .discard_new(true)
        .remember_publishers_for(Some(Duration::from_secs(3)));
    let all = [("usual", TopicOptions::new()), ("odd", odd), ("bounded", bounded)];
    for (name, options) in &all {
        topics.create(name, options.clone()).unwrap();
    }
    let group_options = GroupOptions::new()
        .lease(Duration::from_secs(7))
        .tries(3)
        .in_flight(17)
        .back_off(&[Duration::from_secs(2)])
        .discard_dead_letters()
        .durability(duramen::Durability::Synced)
        .filter(Filter::new().key("a*"));
    let usual = topics.topic("usual").unwrap();
    usual
        .create_group("odd", duramen::topic::Start::Beginning, group_options)
        .unwrap();
    let before = format!("{:?}", usual.existing_group("odd").unwrap().describe().unwrap().options);
    drop((usual, topics));
    store.close().unwrap();

    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        for (topic, _) in &all {
            let describe = DescribeTopicRequest {
                topic: topic.to_string(),
                ..Default::default()
            };
            let described = clients.topics.describe_topic(describe).await.unwrap().into_inner();
            let configure = ConfigureTopicRequest {
                topic: topic.to_string(),
                topic_options: described.topic_options,
                ..Default::default()
            };
            clients.topics.configure_topic(configure).await.unwrap();
        }
        let list = ListGroupsRequest {
            topic: "usual".into(),
            ..Default::default()
        };
        let listed = clients.topics.list_groups(list).await.unwrap().into_inner();
        let configure = ConfigureGroupRequest {
            topic: "usual".into(),
            group: "odd".into(),
            group_options: listed.groups[0].group_options.clone(),
            ..Default::default()
        };
        clients.topics.configure_group(configure).await.unwrap();
    });
    server.stop().unwrap();

    let store = duramen::Store::open(directory.path().join("store")).unwrap();
    let topics = Topics::open(&store).unwrap();
    for (name, options) in &all {
        let now = topics.topic(name).unwrap().describe().unwrap().options;
        assert_eq!(format!("{now:?}"), format!("{options:?}"), "{name}");
    }
    let usual = topics.topic("usual").unwrap();
    let now = usual.existing_group("odd").unwrap().describe().unwrap().options;
    assert_eq!(format!("{now:?}"), before);
}

/// More requests in flight than the queue holds: those that are refused change nothing, and soon there is room again.
#[test]
fn load_beyond_the_queue_is_refused_with_a_hint_and_leaves_no_trace() {
    const BYTES: usize = 40_000;
    let directory = tempfile::tempdir().unwrap();
    let server = serve_with(directory.path(), &[("queue_bytes", "100000")]);
    client(async {
        connect(&server).await.create_map("m").await;
        let mut requests = tokio::task::JoinSet::new();
        for connection in 0..2 {
            let maps = connect(&server).await.maps;
            for number in 0..200 {
                let (mut maps, key) = (maps.clone(), format!("{connection}-{number:03}"));
                requests.spawn(async move {
                    let mut request = put("m", &key, &"v".repeat(BYTES));
                    request.options = if number % 2 == 0 { written() } else { None };
                    (key, maps.put(request).await)
                });
            }
        }
        let (mut stored, mut refused) = (Vec::new(), Vec::new());
        while let Some(answered) = requests.join_next().await {
            match answered.unwrap() {
                (key, Ok(_)) => stored.push(key),
                (key, Err(status)) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    assert_eq!(status.get_details_error_info().unwrap().reason, "OVERLOADED");
                    assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
                    refused.push(key);
                }
            }
        }
        println!("{} stored, {} refused", stored.len(), refused.len());
        assert!(!stored.is_empty() && !refused.is_empty());
        let mut clients = connect(&server).await;
        for key in &stored {
            assert!(clients.get("m", key).await.is_some(), "{key} was acknowledged");
        }
        for key in &refused {
            assert!(clients.get("m", key).await.is_none(), "{key} was refused");
            clients.maps.put(put("m", key, "later")).await.unwrap();
        }
    });
    server.stop().unwrap();
}
