//! Members of groups: what they get, what settling does, and members whose connections and servers end.

use std::time::Duration;

use crate::common::*;
use duramen_client::{
    Acknowledge, Client, Deliveries, ErrorKind, GroupOptions, Member, MemberOptions, Start, TopicOptions, WriteOptions,
};

/// Long enough for a restart on a busy machine.
const PATIENT: Duration = Duration::from_secs(120);
/// A lease that ends after each test.
const LONG: Duration = Duration::from_secs(600);

async fn prepare(client: &Client, options: GroupOptions, messages: u64) {
    client.create_topic("orders", TopicOptions::default()).await.unwrap();
    let orders = client.topic("orders");
    assert!(orders.group("packers").create(Start::Earliest, options).await.unwrap());
    if messages > 0 {
        let batch = (0..messages).map(|n| n.to_string());
        orders.publish_batch(batch).await.unwrap();
    }
}

async fn join(client: &Client) -> Member {
    client.topic("orders").group("packers").join("worker").await.unwrap()
}

#[test]
fn a_member_settles_what_it_receives() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        prepare(&client, GroupOptions::new().back_off(&[Duration::ZERO]), 3).await;
        let group = client.topic("orders").group("packers");
        let mut member = join(&client).await;
        let deliveries = member.receive().await.unwrap().unwrap();
        let offsets: Vec<_> = deliveries
            .messages()
            .iter()
            .map(|delivery| delivery.message.offset)
            .collect();
        assert_eq!(offsets, [0, 1, 2]);
        assert_eq!(deliveries.messages()[0].message.payload, "0");
        deliveries.acknowledge_one(0).await.unwrap();
        deliveries.retry(1, None, "not now").await.unwrap();
        let again = member.receive().await.unwrap().unwrap();
        assert_eq!((again.messages()[0].message.offset, again.messages()[0].tries), (1, 2));
        again.give_up(1, "never").await.unwrap();
        deliveries.extend(Duration::from_secs(600)).await.unwrap();
        deliveries.acknowledge().await.unwrap();
        let twice = deliveries.acknowledge_one(0).await.unwrap_err();
        assert_eq!(
            (twice.kind, &twice.reason[..]),
            (ErrorKind::FailedPrecondition, "ALREADY_SETTLED")
        );
        let described = group.describe().await.unwrap();
        assert_eq!((described.acknowledged, described.pending, described.lag), (3, 0, 0));
        assert_eq!(group.redrive(0).await.unwrap().delivered, 1);
        let back = member.receive().await.unwrap().unwrap();
        assert_eq!(back.messages()[0].message.offset, 1);
        back.release().await.unwrap();
        let back = member.receive().await.unwrap().unwrap();
        assert_eq!(back.messages()[0].tries, 1);
        group.delete().await.unwrap();
        let ended = member.receive().await.unwrap().err().unwrap();
        assert_eq!(
            (ended.kind, &ended.reason[..]),
            (ErrorKind::NotFound, "GROUP_NOT_FOUND")
        );
        assert!(member.receive().await.is_none());
        let missing = group.join("worker").await.err().unwrap();
        assert_eq!(missing.kind, ErrorKind::NotFound);
    });
    server.stop().unwrap();
}

#[test]
fn a_member_that_is_dropped_gives_its_messages_back_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        prepare(&client, GroupOptions::new(), 5).await;
        let group = client.topic("orders").group("packers");
        // The server sends one message at a time, and two ahead of the program.
        let options = MemberOptions::new().batch(1).ahead(2);
        let mut first = group.join_with("first", options).await.unwrap();
        let held = first.receive().await.unwrap().unwrap();
        drop(first);
        // A delivery keeps the session open.
        held.acknowledge().await.unwrap();
        drop(held);
        let mut second = join(&client).await;
        let mut received = Vec::new();
        while received.len() < 4 {
            let deliveries = second.receive().await.unwrap().unwrap();
            for delivery in deliveries.messages() {
                assert_eq!(delivery.tries, 1, "what was given back does not count");
                received.push(delivery.message.offset);
            }
            deliveries.acknowledge().await.unwrap();
        }
        received.sort_unstable();
        assert_eq!(received, [1, 2, 3, 4]);
    });
    server.stop().unwrap();
}

#[test]
fn every_message_takes_effect_once_while_connections_and_servers_end() {
    const MESSAGES: u64 = 400;
    const MEMBERS: usize = 3;
    let directory = tempfile::tempdir().unwrap();
    let mut server = serve(directory.path());
    let address = server.listening().tcp.unwrap();
    let proxy = Proxy::before(address);
    let proxied = proxy.address;
    let connect = move |address: std::net::SocketAddr| {
        let client = Client::builder().deadline(PATIENT);
        let client = client.connect(&format!("http://{address}")).unwrap();
        client.with(WriteOptions::new().acknowledge(Acknowledge::Written))
    };
    run(async {
        let client = connect(address);
        client.create_map("packed").await.unwrap();
        // Leases are long: what comes back does so because a session says so, not because time has passed.
        prepare(&client, GroupOptions::new().lease(LONG), MESSAGES).await;
    });
    let (progress, reached) = std::sync::mpsc::channel();
    let members: Vec<_> = (0..MEMBERS)
        .map(|number| {
            let progress = progress.clone();
            // One of them is behind the proxy, which cuts its connections.
            let address = if number == 0 { proxied } else { address };
            std::thread::spawn(move || {
                run(async {
                    let client = connect(address);
                    let group = client.topic("orders").group("packers");
                    let options = MemberOptions::new().batch(5).ahead(10).timeout(Duration::from_secs(60));
                    let mut member = group.join_with(format!("worker {number}"), options).await.unwrap();
                    loop {
                        let received = tokio::time::timeout(Duration::from_millis(500), member.receive()).await;
                        let Ok(received) = received else {
                            if group.describe().await.unwrap().acknowledged == MESSAGES {
                                return;
                            }
                            continue;
                        };
                        let deliveries = received.unwrap().unwrap();
                        for delivery in deliveries.messages() {
                            let offset = delivery.message.offset;
                            let packed = client
                                .transaction()
                                .add("packed", format!("{offset:03}"), 1)
                                .acknowledge(&deliveries, &[offset])
                                .commit();
                            packed.await.unwrap();
                            progress.send(()).unwrap();
                        }
                    }
                });
            })
        })
        .collect();
    let mut done = 0;
    for (at, is_cut) in [(50, true), (120, false), (200, true), (260, false)] {
        while done < at {
            reached.recv().unwrap();
            done += 1;
        }
        match is_cut {
            true => proxy.cut(),
            false => {
                server.stop().unwrap();
                server = serve_on(directory.path(), &address.to_string(), &[]);
            }
        }
    }
    for member in members {
        member.join().unwrap();
    }
    run(async {
        let client = connect(address);
        for offset in 0..MESSAGES {
            let packed = client.map("packed").get(format!("{offset:03}")).await.unwrap();
            assert_eq!(packed.as_deref(), Some(&1_i64.to_be_bytes()[..]), "message {offset}");
        }
    });
    server.stop().unwrap();
}

/// Waits until the server has leased so many messages.
async fn leased(client: &Client, messages: usize) {
    let group = client.topic("orders").group("packers");
    while group.pending(0).await.unwrap().len() < messages {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The next delivery, of one message.
async fn next(member: &mut Member) -> Deliveries {
    let received = tokio::time::timeout(PATIENT, member.receive()).await;
    let received = received.expect("the message comes again long before its lease ends");
    let deliveries = received.unwrap().unwrap();
    assert_eq!(deliveries.messages().len(), 1);
    deliveries
}

fn offset_and_tries(deliveries: &Deliveries) -> (u64, u32) {
    let delivery = &deliveries.messages()[0];
    (delivery.message.offset, delivery.tries)
}

#[test]
fn a_delivery_that_is_lost_with_its_connection_comes_again_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    run(async {
        let client = client(&server);
        prepare(&client, GroupOptions::new().lease(LONG), 3).await;
        let behind = Client::connect(&format!("http://{}", proxy.address)).unwrap();
        let options = MemberOptions::new().batch(1).ahead(2).timeout(LONG);
        let group = behind.topic("orders").group("packers");
        let mut member = group.join_with("worker", options).await.unwrap();
        // The program has message 0, and the other two wait for it.
        let first = next(&mut member).await;
        leased(&client, 3).await;
        let second = next(&mut member).await;
        let third = next(&mut member).await;
        second.acknowledge().await.unwrap();
        drop(second);
        // The proxy drops what the server sends, so message 3 is lost.
        proxy.lose_answers();
        client.topic("orders").publish("3").await.unwrap();
        leased(&client, 3).await;
        proxy.cut();
        let again = next(&mut member).await;
        assert_eq!(offset_and_tries(&again), (3, 1), "the lost attempt does not count");
        // The member keeps what the program has.
        for held in [&first, &third, &again] {
            held.acknowledge().await.unwrap();
        }
        let described = group.describe().await.unwrap();
        assert_eq!((described.acknowledged, described.pending), (4, 0));
    });
    server.stop().unwrap();
}

#[test]
fn a_session_whose_opening_is_lost_has_no_messages() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    run(async {
        let client = client(&server);
        prepare(&client, GroupOptions::new().lease(LONG), 1).await;
        let behind = Client::builder().deadline(PATIENT);
        let behind = behind.connect(&format!("http://{}", proxy.address)).unwrap();
        let group = behind.topic("orders").group("packers");
        // The field `timeout_ms` with this number tells the request that opens the session.
        proxy.lose_answers_from(&[0x10, 0xc0, 0xc4, 0x07]);
        let options = MemberOptions::new().timeout(Duration::from_millis(123_456));
        let join = group.join_with("worker", options);
        let cut = async {
            while !proxy.is_losing() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // Enough for the server to open the session.
            tokio::time::sleep(Duration::from_millis(300)).await;
            proxy.cut();
        };
        let (member, ()) = tokio::join!(join, cut);
        // The member has another session, and the first one holds no message back.
        let mut member = member.unwrap();
        assert_eq!(offset_and_tries(&next(&mut member).await), (0, 1));
    });
    server.stop().unwrap();
}

#[test]
fn a_transaction_keeps_the_lease_of_deliveries_that_are_dropped_before_its_commit() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    run(async {
        let client = client(&server);
        client.create_map("packed").await.unwrap();
        prepare(&client, GroupOptions::new().lease(LONG), 2).await;
        let behind = Client::connect(&format!("http://{}", proxy.address)).unwrap();
        let options = MemberOptions::new().batch(1).ahead(2).timeout(LONG);
        let group = behind.topic("orders").group("packers");
        let mut member = group.join_with("worker", options).await.unwrap();
        let kept = next(&mut member).await;
        let dropped = next(&mut member).await;
        let packing = client.transaction().put("packed", "0", "box").acknowledge(&kept, &[0]);
        drop((kept, dropped));
        proxy.cut();
        // The member has connected again when the other message comes.
        let again = next(&mut member).await;
        assert_eq!(offset_and_tries(&again), (1, 1));
        packing.commit().await.unwrap();
        assert_eq!(group.describe().await.unwrap().acknowledged, 1);
    });
    server.stop().unwrap();
}

#[test]
fn a_fetch_leases_messages_without_a_session() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        prepare(&client, GroupOptions::new(), 3).await;
        let group = client.topic("orders").group("packers");
        let some = group.fetch("worker", 2, Duration::ZERO).await.unwrap().unwrap();
        let offsets = some.messages().iter().map(|delivery| delivery.message.offset);
        assert!(offsets.eq([0, 1]));
        let pending = group.pending(0).await.unwrap();
        assert_eq!(pending.len(), 2);
        assert_eq!((&pending[0].member[..], pending[0].tries), ("worker", 1));
        some.acknowledge().await.unwrap();
        let rest = group.fetch("worker", 0, Duration::ZERO).await.unwrap().unwrap();
        assert!(group.fetch("worker", 0, Duration::ZERO).await.unwrap().is_none());
        rest.release().await.unwrap();
        let again = group.fetch("worker", 0, Duration::ZERO).await.unwrap().unwrap();
        assert_eq!((again.messages()[0].message.offset, again.messages()[0].tries), (2, 1));
        let described = client.topic("orders").groups().await.unwrap();
        assert_eq!((&described[0].group[..], described[0].pending), ("packers", 1));
    });
    server.stop().unwrap();
}
