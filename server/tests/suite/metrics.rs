//! The metrics of a server, as Prometheus reads them.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::scrape::{Metrics, request, scrape};
use crate::common::*;
use duramen::topic::GroupOptions;
use duramen_proto::v1::*;
use duramen_server::{FAMILIES, Running};

fn serve_metrics(directory: &std::path::Path) -> Running {
    serve_with(directory, &[("metrics_listen", "127.0.0.1:0")])
}

#[test]
fn every_family_is_exported_with_its_kind_and_its_labels() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_metrics(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("a \"map\"\\").await;
        clients.create_topic("orders").await;
    });
    let metrics = scrape(&server);
    for family in FAMILIES {
        assert_eq!(metrics.families[family.name], family.kind.name());
        let name = match family.kind.name() {
            "histogram" => format!("{}_count", family.name),
            _ => family.name.to_string(),
        };
        for (found, labels) in metrics.samples.keys() {
            if *found == name {
                let mut expected = family.labels.to_vec();
                expected.sort_unstable();
                assert_eq!(labels.keys().collect::<Vec<_>>(), expected, "{name}");
            }
        }
        // There is no group yet.
        let is_there = metrics.samples.keys().any(|(found, _)| *found == name);
        assert_eq!(is_there, !name.starts_with("duramen_group_"), "{name}");
    }
    assert_eq!(metrics.families.len(), FAMILIES.len());
    assert_eq!(metrics.value("duramen_map_pairs", &[("map", "a \"map\"\\")]), 0.0);
}

/// The count of calls of a method with a code.
fn calls(metrics: &Metrics, service: &str, method: &str, code: &str) -> Option<f64> {
    let labels = [("service", service), ("method", method), ("code", code)];
    metrics.find("duramen_calls_total", &labels)
}

#[test]
fn calls_are_counted_by_method_and_code_and_have_a_latency() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_metrics(directory.path());
    let maps = |metrics: &Metrics, method: &str, code: &str| calls(metrics, "duramen.v1.Maps", method, code);
    assert_eq!(maps(&scrape(&server), "Put", "OK"), Some(0.0));
    client(async {
        let mut clients = connect(&server).await;
        clients.maps.put(put("stock", "apples", "1")).await.unwrap_err();
        clients.create_map("stock").await;
        for _ in 0..3 {
            clients.maps.put(put("stock", "apples", "1")).await.unwrap();
        }
        assert!(clients.get("stock", "apples").await.is_some());
    });
    let metrics = scrape(&server);
    assert_eq!(maps(&metrics, "Put", "OK"), Some(3.0));
    assert_eq!(maps(&metrics, "Put", "NOT_FOUND"), Some(1.0));
    assert_eq!(maps(&metrics, "Put", "INTERNAL"), None);
    assert_eq!(maps(&metrics, "Get", "OK"), Some(1.0));
    let of_put = [("service", "duramen.v1.Maps"), ("method", "Put")];
    assert_eq!(metrics.value("duramen_call_duration_seconds_count", &of_put), 4.0);
    assert!(metrics.value("duramen_call_duration_seconds_sum", &of_put) > 0.0);
    // The refused put was a command too: it was looked at in a commit.
    assert!(metrics.value("duramen_commands_total", &[]) >= 4.0);
    let commits = metrics.value("duramen_commits_total", &[]);
    assert_eq!(metrics.value("duramen_commit_duration_seconds_count", &[]), commits);
    assert!(metrics.value("duramen_sync_wait_seconds_count", &[]) >= 4.0);
    assert_eq!(metrics.value("duramen_map_pairs", &[("map", "stock")]), 1.0);
    assert_eq!(metrics.value("duramen_store_healthy", &[]), 1.0);
    assert!(metrics.value("duramen_process_resident_memory_bytes", &[]) > 1e6);
    assert!(metrics.value("duramen_process_open_files", &[]) > 3.0);
}

#[test]
fn a_stream_is_counted_when_it_ends_and_its_latency_when_it_begins() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_metrics(directory.path());
    let of_subscribe = [("service", "duramen.v1.Topics"), ("method", "Subscribe")];
    let ended = |metrics: &Metrics, code: &str| calls(metrics, "duramen.v1.Topics", "Subscribe", code);
    client(async {
        let mut clients = connect(&server).await;
        clients.create_topic("orders").await;
        let subscribe = SubscribeRequest {
            topic: "orders".into(),
            ..Default::default()
        };
        let mut stream = clients.topics.subscribe(subscribe).await.unwrap().into_inner();
        for number in 0..3 {
            let publish = PublishRequest {
                topic: "orders".into(),
                message: Some(message(&number.to_string())),
                ..Default::default()
            };
            clients.topics.publish(publish).await.unwrap();
            let response = stream.message().await.unwrap().unwrap();
            assert_eq!(response.messages[0].offset, number);
        }
        let metrics = scrape(&server);
        assert_eq!(metrics.value("duramen_call_duration_seconds_count", &of_subscribe), 1.0);
        assert_eq!((ended(&metrics, "OK"), ended(&metrics, "CANCELLED")), (Some(0.0), None));
        assert_eq!(metrics.value("duramen_subscriptions", &[]), 1.0);
        assert_eq!(metrics.value("duramen_connections", &[]), 1.0);
        let of_orders = [("topic", "orders")];
        assert_eq!(metrics.value("duramen_topic_next_offset", &of_orders), 3.0);
        assert_eq!(metrics.value("duramen_topic_first_offset", &of_orders), 0.0);
        assert!(metrics.value("duramen_topic_bytes", &of_orders) > 0.0);
        drop(stream);
        while ended(&scrape(&server), "CANCELLED") != Some(1.0) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn groups_have_their_lag() {
    let directory = tempfile::tempdir().unwrap();
    let store = duramen::Store::open(directory.path().join("store")).unwrap();
    let topics = duramen::topic::Topics::open(&store).unwrap();
    let orders = topics.create("orders", duramen::topic::TopicOptions::new()).unwrap();
    orders
        .create_group("mail", duramen::topic::Start::Beginning, GroupOptions::new())
        .unwrap();
    for _ in 0..4 {
        orders.publish("an order").unwrap();
    }
    let server = serve_metrics(directory.path());
    let metrics = scrape(&server);
    let of_mail = [("topic", "orders"), ("group", "mail")];
    assert_eq!(metrics.value("duramen_group_lag", &of_mail), 4.0);
    assert_eq!(metrics.value("duramen_group_pending", &of_mail), 0.0);
    assert_eq!(metrics.value("duramen_group_skipped_total", &of_mail), 0.0);
}

#[test]
fn open_snapshots_are_readers() {
    let directory = tempfile::tempdir().unwrap();
    let store = duramen::Store::open(directory.path().join("store")).unwrap();
    let server = serve_metrics(directory.path());
    let readers = || scrape(&server).value("duramen_readers", &[]);
    let snapshots: Vec<_> = (0..3).map(|_| store.snapshot().unwrap()).collect();
    assert!(readers() >= 3.0);
    drop(snapshots);
    // Work in the background has a snapshot now and then.
    while readers() != 0.0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn refused_calls_and_connections_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [
        ("metrics_listen", "127.0.0.1:0"),
        ("max_connections", "1"),
        ("queue_bytes", "1"),
        ("threads", "1"),
    ];
    let server = serve_with(directory.path(), &settings);
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("stock").await;
        // One is queued as the only one; others come to a queue that is full.
        let mut refused = 0.0;
        while refused == 0.0 {
            let puts = (0..20).map(|number| {
                let mut maps = clients.maps.clone();
                tokio::spawn(async move { maps.put(put("stock", &number.to_string(), "1")).await })
            });
            for put in puts.collect::<Vec<_>>() {
                refused += f64::from(u8::from(put.await.unwrap().is_err()));
            }
        }
        let metrics = scrape(&server);
        assert_eq!(metrics.value("duramen_overloaded_calls_total", &[]), refused);
        let exhausted = calls(&metrics, "duramen.v1.Maps", "Put", "RESOURCE_EXHAUSTED");
        assert_eq!(exhausted, Some(refused));
        let mut second = TcpStream::connect(server.listening().tcp.unwrap()).unwrap();
        assert_eq!(second.read(&mut [0]).unwrap(), 0, "it is closed");
        let metrics = scrape(&server);
        assert_eq!(metrics.value("duramen_connections_refused_total", &[]), 1.0);
        assert_eq!(metrics.value("duramen_connections", &[]), 1.0);
        assert_eq!(metrics.value("duramen_connection_limit", &[]), 1.0);
    });
}

#[test]
fn metrics_and_probes_are_answered_and_large_requests_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_metrics(directory.path());
    let head = |sent: &str| {
        let response = request(&server, sent);
        response.split_once("\r\n\r\n").unwrap().0.to_lowercase()
    };
    let got = head("GET /metrics HTTP/1.1\r\n\r\n");
    assert!(
        got.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{got}"
    );
    assert!(head("GET / HTTP/1.1\r\n\r\n").starts_with("http/1.1 404"));
    let posted = head("POST /metrics HTTP/1.1\r\ncontent-length: 0\r\n\r\n");
    assert!(
        posted.starts_with("http/1.1 405") && posted.contains("allow: get"),
        "{posted}"
    );
    for (path, body) in [
        ("/livez", "ok\n"),
        ("/readyz", "ok\n"),
        ("/health?serializable=true", r#"{"health":"true","reason":""}"#),
    ] {
        let response = request(&server, &format!("GET {path} HTTP/1.1\r\n\r\n"));
        let is_found = response.starts_with("HTTP/1.1 200") && response.ends_with(&format!("\r\n\r\n{body}"));
        assert!(is_found, "{response}");
        assert!(head(&format!("PUT {path} HTTP/1.1\r\n\r\n")).starts_with("http/1.1 405"));
    }
    let many = "x: y\r\n".repeat(65);
    let refused = head(&format!("GET /metrics HTTP/1.1\r\n{many}\r\n"));
    assert!(refused.starts_with("http/1.1 431"), "{refused}");
}

#[test]
fn connections_for_metrics_have_a_limit_and_idle_ones_end() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve_metrics(directory.path());
    let address = server.listening().metrics.unwrap();
    let mut waiting: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut more = TcpStream::connect(address).unwrap();
    assert_eq!(more.read(&mut [0]).unwrap(), 0, "it is closed");
    // Those that were there first are served.
    let first = &mut waiting[0];
    first.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut response = String::new();
    first.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    // A connection that sends nothing gives its place to others.
    assert_eq!(waiting[1].read(&mut [0]).unwrap(), 0, "it is closed");
}

#[test]
fn a_port_that_is_taken_is_named_with_a_cure() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let flags = [
        ("data_dir", directory.path().join("store").display().to_string()),
        ("listen", "127.0.0.1:0".to_string()),
        ("metrics_listen", taken.local_addr().unwrap().to_string()),
    ];
    let config = duramen_server::Config::collect(&flags, None).unwrap();
    let error = duramen_server::start(&config).err().unwrap().to_string();
    assert!(error.contains("--metrics-listen"), "{error}");
}
