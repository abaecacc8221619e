//! Servers that stop, connections that break, and answers that get lost.

use std::time::Duration;

use crate::common::*;
use duramen_client::{Acknowledge, Client, ErrorKind, Start, TopicOptions, WriteOptions};

/// Long enough for a restart on a busy machine.
const PATIENT: Duration = Duration::from_secs(120);

#[test]
fn a_subscription_resumes_after_restarts_and_gets_every_message_once() {
    const MESSAGES: u64 = 600;
    let directory = tempfile::tempdir().unwrap();
    let mut server = serve(directory.path());
    let address = server.listening().tcp.unwrap();
    let client = move || {
        Client::builder()
            .deadline(PATIENT)
            .connect(&format!("http://{address}"))
    };
    run(async {
        let client = client().unwrap();
        client.create_topic("t", TopicOptions::default()).await.unwrap();
    });
    let (progress, reached) = std::sync::mpsc::channel();
    let (subscribed, ready) = std::sync::mpsc::channel();
    let subscriber = std::thread::spawn(move || {
        run(async {
            let mut messages = client().unwrap().topic("t").subscribe(Start::Next).await.unwrap();
            subscribed.send(()).unwrap();
            for n in 0..MESSAGES {
                let message = messages.next().await.unwrap().unwrap();
                assert_eq!((message.offset, message.payload), (n, n.to_string().into()));
            }
            assert_eq!(messages.skipped(), 0);
        });
    });
    ready.recv().unwrap();
    let publisher = std::thread::spawn(move || {
        run(async {
            let written = WriteOptions::new().acknowledge(Acknowledge::Written);
            let topic = client().unwrap().topic("t").with(written);
            for n in 0..MESSAGES {
                // A repeated publication that took effect twice would get a higher offset.
                assert_eq!(topic.publish(n.to_string()).await.unwrap(), Some(n));
                progress.send(n).unwrap();
            }
        });
    });
    for restart in [100, 300, 500] {
        while reached.recv().unwrap() < restart {}
        server.stop().unwrap();
        server = serve_on(directory.path(), &address.to_string(), &[]);
    }
    publisher.join().unwrap();
    subscriber.join().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_write_whose_answer_was_lost_takes_effect_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    run(async {
        let direct = client(&server);
        direct.create_map("m").await.unwrap();
        let proxied = Client::builder().connections(1).deadline(PATIENT);
        let proxied = proxied.connect(&format!("http://{}", proxy.address)).unwrap();
        proxied.list_maps().await.unwrap();
        proxy.lose_answers();
        let add = tokio::spawn(async move { proxied.map("m").add("n", 5).await });
        while direct.map("m").get("n").await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!add.is_finished());
        proxy.cut();
        assert_eq!(add.await.unwrap().unwrap(), 5);
        assert_eq!(direct.map("m").add("n", 0).await.unwrap(), 5);
    });
    server.stop().unwrap();
}

#[test]
fn a_write_at_the_level_of_memory_is_not_sent_twice() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    run(async {
        let direct = client(&server);
        direct.create_topic("t", TopicOptions::default()).await.unwrap();
        let mut messages = direct.topic("t").subscribe(Start::Earliest).await.unwrap();
        let proxied = Client::builder().connections(1).deadline(PATIENT);
        let proxied = proxied.connect(&format!("http://{}", proxy.address)).unwrap();
        proxied.list_maps().await.unwrap();
        proxy.lose_answers();
        let in_memory = WriteOptions::new().acknowledge(Acknowledge::Memory);
        let topic = proxied.topic("t").with(in_memory);
        let publish = tokio::spawn(async move { topic.publish("once").await });
        messages.next().await.unwrap().unwrap();
        proxy.cut();
        let error = publish.await.unwrap().unwrap_err();
        assert_eq!(
            (error.kind, &error.reason[..]),
            (ErrorKind::UnknownOutcome, "CONNECTION_LOST")
        );
        assert_eq!(direct.topic("t").publish("next").await.unwrap(), Some(1));
    });
    server.stop().unwrap();
}

#[test]
fn a_publisher_whose_connection_breaks_tells_each_unacknowledged_message() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    run(async {
        let direct = client(&server);
        direct.create_topic("t", TopicOptions::default()).await.unwrap();
        let mut messages = direct.topic("t").subscribe(Start::Earliest).await.unwrap();
        let proxied = Client::connect(&format!("http://{}", proxy.address)).unwrap();
        let publisher = proxied.topic("t").publisher().await.unwrap();
        let acknowledged = publisher.send("0").await.unwrap();
        assert_eq!(acknowledged.await.unwrap(), Some(0));
        publisher.flush().await.unwrap();
        proxy.lose_answers();
        let tickets = [publisher.send("1").await.unwrap(), publisher.send("2").await.unwrap()];
        for n in 0..3 {
            assert_eq!(messages.next().await.unwrap().unwrap().offset, n);
        }
        proxy.cut();
        for ticket in tickets {
            let error = ticket.await.unwrap_err();
            assert_eq!(
                (error.kind, &error.reason[..]),
                (ErrorKind::UnknownOutcome, "PUBLISHER_ENDED")
            );
        }
        assert_eq!(publisher.flush().await.unwrap_err().kind, ErrorKind::UnknownOutcome);
        assert_eq!(publisher.send("3").await.err().unwrap().kind, ErrorKind::Unavailable);
        let another = proxied.topic("t").publisher().await.unwrap();
        assert_eq!(another.send("3").await.unwrap().await.unwrap(), Some(3));
    });
    server.stop().unwrap();
}

#[test]
fn calls_end_at_their_deadline_when_no_server_listens() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", unused.local_addr().unwrap());
    drop(unused);
    run(async {
        let client = Client::builder().deadline(Duration::from_millis(300));
        let client = client.connect(&address).unwrap();
        let read = client.map("m").get("a").await.unwrap_err();
        assert_eq!((read.kind, &read.reason[..]), (ErrorKind::DeadlineExceeded, "DEADLINE"));
        let subscribed = client.topic("t").subscribe(Start::Earliest).await.err().unwrap();
        assert_eq!(subscribed.kind, ErrorKind::DeadlineExceeded);
        let publisher = client.topic("t").publisher().await.err().unwrap();
        assert_eq!(publisher.kind, ErrorKind::DeadlineExceeded);
        assert!(
            Client::connect("no address")
                .err()
                .is_some_and(|error| error.reason == "BAD_ADDRESS")
        );
    });
}

#[test]
fn a_write_whose_answer_never_comes_has_an_unknown_outcome() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    proxy.lose_answers();
    run(async {
        let client = Client::builder().deadline(Duration::from_millis(300));
        let client = client.connect(&format!("http://{}", proxy.address)).unwrap();
        let error = client.create_map("m").await.unwrap_err();
        assert_eq!((error.kind, &error.reason[..]), (ErrorKind::UnknownOutcome, "DEADLINE"));
    });
    server.stop().unwrap();
}
