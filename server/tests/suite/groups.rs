//! Groups over the network: fetching and settling, and sessions whose leases outlive connections and servers.

use std::time::Duration;

use crate::common::*;
use duramen::topic::TopicsOptions;
use duramen::{Durability, Options};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{self, Command, Entry};
use duramen_proto::v1::session_request::Say;
use duramen_proto::v1::session_response::Say as Said;
use duramen_proto::v1::settlement::Verdict;
use duramen_proto::v1::*;
use duramen_server::{Applier, ENTRY_VERSION, SESSION_BYTES};
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

fn create_group(options: GroupOptions) -> CreateGroupRequest {
    CreateGroupRequest {
        topic: "orders".into(),
        group: "packers".into(),
        start: Some(Position {
            at: Some(position::At::Earliest(true)),
        }),
        group_options: Some(options),
        options: written(),
        ..Default::default()
    }
}

async fn prepare(clients: &mut Clients, options: GroupOptions, messages: usize) {
    clients.create_topic("orders").await;
    clients.topics.create_group(create_group(options)).await.unwrap();
    publish(clients, messages).await;
}

async fn publish(clients: &mut Clients, messages: usize) {
    if messages == 0 {
        return;
    }
    let message = |number: usize| Message {
        payload: format!("order {number}").into(),
        ..Default::default()
    };
    let request = PublishBatchRequest {
        topic: "orders".into(),
        messages: (0..messages).map(message).collect(),
        options: written(),
        ..Default::default()
    };
    clients.topics.publish_batch(request).await.unwrap();
}

fn fetch(messages: u32, wait_ms: u64) -> FetchRequest {
    FetchRequest {
        topic: "orders".into(),
        group: "packers".into(),
        member: "worker".into(),
        messages,
        wait_ms,
        ..Default::default()
    }
}

fn settlement(lease: &[u8], offsets: &[u64], verdict: Option<Verdict>) -> Settlement {
    Settlement {
        topic: "orders".into(),
        group: "packers".into(),
        lease: lease.to_vec().into(),
        offsets: offsets.to_vec(),
        verdict,
        ..Default::default()
    }
}

fn settle(lease: &[u8], offsets: &[u64], verdict: Option<Verdict>) -> SettleRequest {
    SettleRequest {
        settlements: vec![settlement(lease, offsets, verdict)],
        ..Default::default()
    }
}

fn offsets(messages: &[Delivered]) -> Vec<u64> {
    messages
        .iter()
        .map(|delivered| delivered.message.as_ref().unwrap().offset)
        .collect()
}

fn reason(status: &Status) -> String {
    status
        .get_details_error_info()
        .map(|info| info.reason)
        .unwrap_or_default()
}

async fn described(clients: &mut Clients) -> GroupDescription {
    let request = ListGroupsRequest {
        topic: "orders".into(),
        ..Default::default()
    };
    let mut groups = clients.topics.list_groups(request).await.unwrap().into_inner().groups;
    groups.remove(0)
}

#[test]
fn fetched_messages_are_settled_one_by_one_and_together() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, GroupOptions::default(), 6).await;
        let first = clients.topics.fetch(fetch(4, 0)).await.unwrap().into_inner();
        assert_eq!(offsets(&first.messages), [0, 1, 2, 3]);
        let second = clients.topics.fetch(fetch(100, 0)).await.unwrap().into_inner();
        assert_eq!(offsets(&second.messages), [4, 5]);
        assert!(
            clients
                .topics
                .fetch(fetch(100, 0))
                .await
                .unwrap()
                .into_inner()
                .lease
                .is_empty()
        );

        clients.topics.settle(settle(&first.lease, &[1], None)).await.unwrap();
        let again = clients
            .topics
            .settle(settle(&first.lease, &[1], None))
            .await
            .unwrap_err();
        assert_eq!(
            (again.code(), reason(&again)),
            (Code::Aborted, "ALREADY_SETTLED".into())
        );
        // A settlement that is refused takes the others of its request with it.
        let mut both = settle(&first.lease, &[0], None);
        both.settlements.push(settlement(&first.lease, &[1], None));
        clients.topics.settle(both).await.unwrap_err();
        assert_eq!(described(&mut clients).await.acknowledged, 0);
        clients.topics.settle(settle(&first.lease, &[], None)).await.unwrap();
        let group = described(&mut clients).await;
        assert_eq!((group.acknowledged, group.pending, group.next_offset), (4, 2, 6));

        let release = Some(Verdict::Release(true));
        clients
            .topics
            .settle(settle(&second.lease, &[4], release))
            .await
            .unwrap();
        let released = clients.topics.fetch(fetch(100, 0)).await.unwrap().into_inner();
        assert_eq!(offsets(&released.messages), [4]);
        assert_eq!(released.messages[0].tries, 1, "a release does not count");
        let retry = Verdict::Retry(Retry {
            delay_ms: Some(0),
            reason: "no box".into(),
        });
        clients
            .topics
            .settle(settle(&released.lease, &[], Some(retry)))
            .await
            .unwrap();
        let retried = clients.topics.fetch(fetch(100, 5_000)).await.unwrap().into_inner();
        assert_eq!(retried.messages[0].tries, 2);
        let give_up = Verdict::GiveUp(GiveUp {
            reason: "no address".into(),
        });
        clients
            .topics
            .settle(settle(&retried.lease, &[4], Some(give_up)))
            .await
            .unwrap();
        clients.topics.settle(settle(&second.lease, &[5], None)).await.unwrap();
        assert_eq!(described(&mut clients).await.pending, 0);
        let redrive = RedriveRequest {
            topic: "orders".into(),
            group: "packers".into(),
            options: written(),
            ..Default::default()
        };
        let redriven = clients.topics.redrive(redrive).await.unwrap().into_inner();
        assert_eq!((redriven.delivered, redriven.gone), (1, 0));
        let back = clients.topics.fetch(fetch(100, 5_000)).await.unwrap().into_inner();
        assert_eq!((offsets(&back.messages), back.messages[0].tries), (vec![4], 1));
        let pending = ListPendingRequest {
            topic: "orders".into(),
            group: "packers".into(),
            ..Default::default()
        };
        let pending = clients.topics.list_pending(pending).await.unwrap().into_inner();
        assert_eq!(pending.messages[0].member, "worker");

        let wrong = clients.topics.settle(settle(b"no lease", &[], None)).await.unwrap_err();
        assert_eq!(reason(&wrong), "INVALID_LEASE");
        let nothing = clients.topics.settle(SettleRequest::default()).await.unwrap_err();
        assert_eq!(nothing.code(), Code::InvalidArgument);
        let unknown = FetchRequest {
            group: "strangers".into(),
            ..fetch(1, 0)
        };
        let unknown = clients.topics.fetch(unknown).await.unwrap_err();
        assert_eq!(
            (unknown.code(), reason(&unknown)),
            (Code::NotFound, "GROUP_NOT_FOUND".into())
        );
    });
    server.stop().unwrap();
}

#[test]
fn a_lease_settles_no_message_that_it_does_not_cover() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, GroupOptions::default(), 4).await;
        let first = clients.topics.fetch(fetch(2, 0)).await.unwrap().into_inner();
        for verdict in [None, Some(Verdict::Release(true))] {
            // Message 3 was not delivered yet, and message 9 not published.
            for offset in [2, 3, 9] {
                let wrong = clients
                    .topics
                    .settle(settle(&first.lease, &[offset], verdict.clone()))
                    .await;
                let wrong = wrong.unwrap_err();
                assert_eq!(
                    (wrong.code(), reason(&wrong)),
                    (Code::InvalidArgument, "INVALID_ARGUMENT".into())
                );
            }
        }
        // A lease of one message whose bytes say that it has more.
        let rest = clients.topics.fetch(fetch(1, 0)).await.unwrap().into_inner();
        assert_eq!(offsets(&rest.messages), [2]);
        let mut longer = rest.lease.to_vec();
        // The deadline has 8 bytes. The kind, the first message and the end follow, a byte each.
        assert_eq!(longer[8..11], [1, 2, 3]);
        longer[10] = 4;
        let wrong = clients.topics.settle(settle(&longer, &[3], None)).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument);
        clients.topics.settle(settle(&longer, &[2], None)).await.unwrap();
        clients.topics.settle(settle(&first.lease, &[], None)).await.unwrap();
        let last = clients.topics.fetch(fetch(10, 0)).await.unwrap().into_inner();
        assert_eq!(offsets(&last.messages), [3], "nothing was passed over");
        clients.topics.settle(settle(&last.lease, &[], None)).await.unwrap();
        let group = described(&mut clients).await;
        assert_eq!((group.acknowledged, group.pending), (4, 0));
    });
    server.stop().unwrap();
}

#[test]
fn an_acknowledgement_and_its_effect_are_one_commit() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("packed").await;
        prepare(&mut clients, GroupOptions::default(), 1).await;
        let fetched = clients.topics.fetch(fetch(1, 0)).await.unwrap().into_inner();
        let pack = || {
            let put = operation::Change::Put(PutOperation {
                map: "packed".into(),
                key: "0".into(),
                value: "box".into(),
            });
            let settle = operation::Change::Settle(settlement(&fetched.lease, &[0], None));
            CommitRequest {
                then: vec![Operation { change: Some(put) }, Operation { change: Some(settle) }],
                options: written(),
                ..Default::default()
            }
        };
        clients.transactions.commit(pack()).await.unwrap();
        assert_eq!(clients.get("packed", "0").await.unwrap(), b"box");
        assert_eq!(described(&mut clients).await.pending, 0);
        let delete = DeleteRequest {
            map: "packed".into(),
            key: "0".into(),
            options: written(),
            ..Default::default()
        };
        clients.maps.delete(delete).await.unwrap();
        let twice = clients.transactions.commit(pack()).await.unwrap_err();
        assert_eq!(reason(&twice), "ALREADY_SETTLED");
        assert_eq!(clients.get("packed", "0").await, None, "the put is not made without it");
    });
    server.stop().unwrap();
}

#[test]
fn a_fetch_waits_for_messages_and_for_room() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let options = GroupOptions {
            in_flight: 1,
            ..Default::default()
        };
        prepare(&mut clients, options, 0).await;
        let mut other = connect(&server).await;
        let waiting = tokio::spawn(async move { other.topics.fetch(fetch(10, 60_000)).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        publish(&mut clients, 2).await;
        let first = waiting.await.unwrap().unwrap().into_inner();
        assert_eq!(offsets(&first.messages), [0]);
        let mut other = connect(&server).await;
        let waiting = tokio::spawn(async move { other.topics.fetch(fetch(10, 60_000)).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!waiting.is_finished(), "one message may be in flight");
        clients.topics.settle(settle(&first.lease, &[], None)).await.unwrap();
        let second = waiting.await.unwrap().unwrap().into_inner();
        assert_eq!(offsets(&second.messages), [1]);
    });
    server.stop().unwrap();
}

#[test]
fn a_lease_ends_unless_it_is_extended() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let options = GroupOptions {
            lease_ms: 300,
            back_off_ms: vec![0],
            ..Default::default()
        };
        prepare(&mut clients, options, 2).await;
        let lost = clients.topics.fetch(fetch(1, 0)).await.unwrap().into_inner();
        let kept = clients.topics.fetch(fetch(1, 0)).await.unwrap().into_inner();
        let extend = ExtendRequest {
            topic: "orders".into(),
            group: "packers".into(),
            lease: kept.lease.clone(),
            by_ms: 600_000,
            ..Default::default()
        };
        let extended = clients.topics.extend(extend).await.unwrap().into_inner();
        assert!(extended.deadline_ms > kept.deadline_ms + 500_000);
        let again = clients.topics.fetch(fetch(10, 30_000)).await.unwrap().into_inner();
        assert_eq!((offsets(&again.messages), again.messages[0].tries), (vec![0], 2));
        let late = clients
            .topics
            .settle(settle(&lost.lease, &[0], None))
            .await
            .unwrap_err();
        assert_eq!(reason(&late), "LEASE_LOST");
        clients.topics.settle(settle(&kept.lease, &[], None)).await.unwrap();
    });
    server.stop().unwrap();
}

#[test]
fn groups_are_created_configured_paused_reset_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let options = GroupOptions {
            tries: Some(3),
            back_off_ms: vec![5, 10],
            dead_letters: Some(group_options::DeadLetters::DeadLetterTopic("lost".into())),
            order_by_key: true,
            filter: Some(Filter {
                key: "a*".into(),
                headers: vec![HeaderFilter {
                    name: "region".into(),
                    value: "eu".into(),
                }],
            }),
            lease_ms: 9_000,
            in_flight: 7,
            synced: true,
        };
        prepare(&mut clients, options.clone(), 0).await;
        assert_eq!(described(&mut clients).await.group_options, Some(options.clone()));
        let again = CreateGroupRequest {
            if_missing: true,
            ..create_group(options.clone())
        };
        assert!(!clients.topics.create_group(again).await.unwrap().into_inner().created);
        let other = clients
            .topics
            .create_group(create_group(GroupOptions::default()))
            .await
            .unwrap_err();
        assert_eq!(other.code(), Code::AlreadyExists);
        assert!(other.message().contains("tries is"), "{}", other.message());

        let configure = ConfigureGroupRequest {
            topic: "orders".into(),
            group: "packers".into(),
            group_options: Some(GroupOptions::default()),
            options: written(),
            ..Default::default()
        };
        clients.topics.configure_group(configure).await.unwrap();
        publish(&mut clients, 3).await;
        let pause = |paused| PauseGroupRequest {
            topic: "orders".into(),
            group: "packers".into(),
            paused,
            options: written(),
            ..Default::default()
        };
        clients.topics.pause_group(pause(true)).await.unwrap();
        assert!(
            clients
                .topics
                .fetch(fetch(10, 50))
                .await
                .unwrap()
                .into_inner()
                .lease
                .is_empty()
        );
        assert!(described(&mut clients).await.paused);
        clients.topics.pause_group(pause(false)).await.unwrap();
        let fetched = clients.topics.fetch(fetch(10, 0)).await.unwrap().into_inner();
        assert_eq!(fetched.messages.len(), 3);
        let reset = ResetGroupRequest {
            topic: "orders".into(),
            group: "packers".into(),
            start: Some(Position {
                at: Some(position::At::Offset(1)),
            }),
            options: written(),
            ..Default::default()
        };
        clients.topics.reset_group(reset).await.unwrap();
        let late = clients
            .topics
            .settle(settle(&fetched.lease, &[], None))
            .await
            .unwrap_err();
        assert_eq!(late.code(), Code::Aborted);
        assert_eq!(
            offsets(&clients.topics.fetch(fetch(10, 0)).await.unwrap().into_inner().messages),
            [1, 2]
        );
        let delete = DeleteGroupRequest {
            topic: "orders".into(),
            group: "packers".into(),
            options: written(),
            ..Default::default()
        };
        clients.topics.delete_group(delete.clone()).await.unwrap();
        let gone = clients.topics.delete_group(delete).await.unwrap_err();
        assert_eq!(reason(&gone), "GROUP_NOT_FOUND");
        // A group of this name begins again, and what the server remembers of the old one does no harm.
        clients
            .topics
            .create_group(create_group(GroupOptions::default()))
            .await
            .unwrap();
        let fetched = clients.topics.fetch(fetch(10, 0)).await.unwrap().into_inner();
        assert_eq!(offsets(&fetched.messages), [0, 1, 2]);
    });
    server.stop().unwrap();
}

/// A stream of a session.
struct Session {
    requests: mpsc::UnboundedSender<SessionRequest>,
    responses: Streaming<SessionResponse>,
    opened: SessionOpened,
}

impl Session {
    async fn open(clients: &mut Clients, session: &[u8], timeout_ms: u64) -> Session {
        let (requests, receiver) = mpsc::unbounded_channel();
        let open = Say::Open(OpenSession {
            session: session.to_vec().into(),
            timeout_ms,
            ..Default::default()
        });
        requests.send(SessionRequest { say: Some(open) }).unwrap();
        let responses = clients.topics.session(UnboundedReceiverStream::new(receiver)).await;
        let mut responses = responses.unwrap().into_inner();
        let Some(Said::Opened(opened)) = responses.message().await.unwrap().unwrap().say else {
            panic!("the first response opens the session");
        };
        Session {
            requests,
            responses,
            opened,
        }
    }

    fn say(&self, say: Say) {
        self.requests.send(SessionRequest { say: Some(say) }).unwrap();
    }

    fn begin(&self, subscription: u32, group: &str, credit: u64) {
        self.say(Say::Begin(BeginSubscription {
            subscription,
            topic: "orders".into(),
            group: group.into(),
            start: Some(Position {
                at: Some(position::At::Earliest(true)),
            }),
            member: "worker".into(),
            credit,
            ..Default::default()
        }));
    }

    /// Begins a subscription of one message at a time.
    fn begin_as(&self, subscription: u32, member: &str, credit: u64, held: Option<&[&Bytes]>) {
        self.say(Say::Begin(BeginSubscription {
            subscription,
            topic: "orders".into(),
            group: "packers".into(),
            member: member.into(),
            messages: 1,
            credit,
            held: held.map(|leases| HeldLeases {
                leases: leases.iter().copied().cloned().collect(),
            }),
            ..Default::default()
        }));
    }

    /// The lease of the next messages, with the subscription, the offset and the tries of the only message.
    async fn one(&mut self) -> (Bytes, (u32, u64, u32)) {
        let messages = self.messages().await;
        assert_eq!(messages.messages.len(), 1);
        let tries = messages.messages[0].tries;
        let offset = offsets(&messages.messages)[0];
        (messages.lease, (messages.subscription, offset, tries))
    }

    async fn next(&mut self) -> Said {
        self.responses.message().await.unwrap().unwrap().say.unwrap()
    }

    async fn messages(&mut self) -> SessionMessages {
        match self.next().await {
            Said::Messages(messages) => messages,
            other => panic!("{other:?}"),
        }
    }

    /// Settles, and returns the reason of a refusal; empty: it was done.
    async fn settle(&mut self, lease: &[u8], offsets: &[u64]) -> String {
        self.say(Say::Settle(SettleInSession {
            request: 7,
            settlements: vec![settlement(lease, offsets, None)],
            ..Default::default()
        }));
        match self.next().await {
            Said::Answer(answer) if answer.request == 7 => answer.reason,
            other => panic!("{other:?}"),
        }
    }

    /// Whether nothing comes for a while.
    async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(150), self.next())
            .await
            .is_err()
    }
}

#[test]
fn a_session_delivers_as_much_as_its_credit_allows() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, GroupOptions::default(), 10).await;
        let mut session = Session::open(&mut clients, b"", 0).await;
        assert!(!session.opened.resumed);
        session.begin(1, "packers", 3);
        let messages = session.messages().await;
        assert_eq!((messages.subscription, offsets(&messages.messages)), (1, vec![0, 1, 2]));
        assert!(session.is_quiet().await, "there is no credit");
        assert_eq!(session.settle(&messages.lease, &[1]).await, "");
        assert_eq!(session.settle(&messages.lease, &[1]).await, "ALREADY_SETTLED");
        assert_eq!(session.settle(&messages.lease, &[]).await, "");
        session.say(Say::Credit(Credit {
            subscription: 1,
            messages: 5,
        }));
        assert_eq!(offsets(&session.messages().await.messages), [3, 4, 5, 6, 7]);
        // A subscription without a group gets all messages of the topic, each once.
        session.begin(2, "", 4);
        let all = session.messages().await;
        assert_eq!((all.subscription, offsets(&all.messages)), (2, vec![0, 1, 2, 3]));
        assert!(all.lease.is_empty() && session.is_quiet().await);
        session.say(Say::Credit(Credit {
            subscription: 2,
            messages: 100,
        }));
        assert_eq!(offsets(&session.messages().await.messages), [4, 5, 6, 7, 8, 9]);
        publish(&mut clients, 1).await;
        assert_eq!(offsets(&session.messages().await.messages), [10]);
        session.say(Say::End(EndSubscription { subscription: 2 }));
        session.begin(3, "unknown", 1);
        let Said::Ended(ended) = session.next().await else {
            panic!()
        };
        assert_eq!((ended.subscription, &ended.reason[..]), (3, "GROUP_NOT_FOUND"));
        session.begin(1, "packers", 1);
        let twice = session.responses.message().await.unwrap_err();
        assert_eq!(twice.code(), Code::InvalidArgument);
    });
    server.stop().unwrap();
}

#[test]
fn leases_of_a_session_survive_its_connection_and_end_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, GroupOptions::default(), 4).await;
        let mut session = Session::open(&mut clients, b"", 60_000).await;
        session.begin(1, "packers", 2);
        let messages = session.messages().await;
        let name = session.opened.session.clone();
        drop(session);
        // The connection is gone, and the session comes back on another one.
        let mut clients = connect(&server).await;
        let mut session = Session::open(&mut clients, &name, 1_000).await;
        assert!(session.opened.resumed);
        assert_eq!(session.settle(&messages.lease, &[0]).await, "");
        // A second stream takes the session over.
        let mut second = Session::open(&mut clients, &name, 1_000).await;
        let over = session.responses.message().await.unwrap_err();
        assert_eq!(reason(&over), "SESSION_TAKEN_OVER");
        // Closing returns what is left at once, and the attempt does not count.
        second.say(Say::Close(CloseSession {}));
        assert!(second.responses.message().await.unwrap().is_none());
        let back = clients.topics.fetch(fetch(10, 30_000)).await.unwrap().into_inner();
        let tries: Vec<_> = back.messages.iter().map(|delivered| delivered.tries).collect();
        // New messages and returned ones come by turns.
        let rest = clients.topics.fetch(fetch(10, 30_000)).await.unwrap().into_inner();
        let mut all = offsets(&back.messages);
        all.extend(offsets(&rest.messages));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
        assert!(tries.iter().all(|tries| *tries == 1));

        // A session whose client does not come back ends when its time is over, and this attempt counts.
        publish(&mut clients, 1).await;
        let mut session = Session::open(&mut clients, b"", 1_000).await;
        session.begin(1, "packers", 10);
        assert_eq!(offsets(&session.messages().await.messages), [4]);
        let ended = session.opened.session.clone();
        drop(session);
        let back = clients.topics.fetch(fetch(10, 30_000)).await.unwrap().into_inner();
        assert_eq!((offsets(&back.messages), back.messages[0].tries), (vec![4], 2));
        let new = Session::open(&mut clients, &ended, 1_000).await;
        assert!(!new.opened.resumed && new.opened.session != ended);
    });
    server.stop().unwrap();
}

#[test]
fn leases_of_a_session_survive_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let (name, lease) = client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, GroupOptions::default(), 3).await;
        let mut session = Session::open(&mut clients, b"", 60_000).await;
        session.begin(1, "packers", 2);
        let messages = session.messages().await;
        (session.opened.session.clone(), messages.lease)
    });
    server.stop().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let mut session = Session::open(&mut clients, &name, 1_000).await;
        assert!(session.opened.resumed);
        assert_eq!(
            described(&mut clients).await.pending,
            2,
            "the end of the server ended no lease"
        );
        assert_eq!(session.settle(&lease, &[0]).await, "");
        drop(session);
        // The second message comes back when the session is over, and not before.
        let new = clients.topics.fetch(fetch(10, 0)).await.unwrap().into_inner();
        assert_eq!(offsets(&new.messages), [2]);
        let back = clients.topics.fetch(fetch(10, 30_000)).await.unwrap().into_inner();
        assert_eq!((offsets(&back.messages), back.messages[0].tries), (vec![1], 2));
    });
    server.stop().unwrap();
}

/// Options with leases that end after each test.
fn long_leases() -> GroupOptions {
    GroupOptions {
        lease_ms: 600_000,
        ..Default::default()
    }
}

#[test]
fn a_resumed_session_releases_the_leases_that_its_client_does_not_hold() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let (name, held, lost, of_other) = client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, long_leases(), 4).await;
        let mut session = Session::open(&mut clients, b"", 600_000).await;
        session.begin_as(1, "ada", 2, None);
        let (held, _) = session.one().await;
        let (lost, _) = session.one().await;
        session.begin_as(2, "bob", 1, None);
        let (of_other, about) = session.one().await;
        assert_eq!(about, (2, 2, 1));
        let name = session.opened.session.clone();
        // A fetch belongs to the session, and to no stream.
        let fetched = FetchRequest {
            member: "ada".into(),
            session: name.clone(),
            ..fetch(1, 0)
        };
        let fetched = clients.topics.fetch(fetched).await.unwrap().into_inner();
        assert_eq!(offsets(&fetched.messages), [3]);
        (name, held, lost, of_other)
    });
    // The leases are in the store, so the release works for those of an earlier server.
    server.stop().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let mut session = Session::open(&mut clients, &name, 600_000).await;
        assert!(session.opened.resumed);
        // A client that does not list its leases keeps them all.
        session.begin_as(1, "ada", 10, None);
        assert!(session.is_quiet().await);
        drop(session);
        let mut session = Session::open(&mut clients, &name, 600_000).await;
        session.begin_as(1, "ada", 10, Some(&[&held]));
        let (again, about) = session.one().await;
        assert_eq!(about, (1, 1, 1), "the lost attempt does not count");
        // The other member's lease stays, and what this stream delivered stays with a second list.
        session.begin_as(2, "ada", 10, Some(&[]));
        session.begin_as(3, "bob", 10, Some(&[&of_other]));
        assert!(session.is_quiet().await);
        assert_eq!(session.settle(&lost, &[1]).await, "LEASE_LOST");
        for lease in [&held, &again, &of_other] {
            assert_eq!(session.settle(lease, &[]).await, "");
        }
        let group = described(&mut clients).await;
        assert_eq!((group.acknowledged, group.pending), (3, 1));
    });
    server.stop().unwrap();
}

#[test]
fn wrong_lists_of_held_leases_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, long_leases(), 1).await;
        let mut session = Session::open(&mut clients, b"", 600_000).await;
        session.begin_as(1, "ada", 1, None);
        let (lease, _) = session.one().await;
        let name = session.opened.session.clone();
        let mut session = Session::open(&mut clients, &name, 600_000).await;
        let wrong = Bytes::from_static(b"no lease");
        let too_many = vec![&lease; 10_001];
        for (held, expected) in [(vec![&wrong], "INVALID_LEASE"), (too_many, "INVALID_ARGUMENT")] {
            session.begin_as(1, "ada", 1, Some(&held));
            let Said::Ended(ended) = session.next().await else {
                panic!("the subscription is refused");
            };
            assert_eq!(
                (ended.code, &ended.reason[..]),
                (Code::InvalidArgument as u32, expected)
            );
        }
        session.begin_as(1, "ada", 1, Some(&vec![&lease; 10_000]));
        assert_eq!(
            session.settle(&lease, &[]).await,
            "",
            "the refused lists released nothing"
        );
    });
    server.stop().unwrap();
}

#[test]
fn a_stream_that_another_stream_replaced_gets_no_lease() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, long_leases(), 2).await;
    });
    server.stop().unwrap();
    let store = Options::new().open(directory.path().join("store")).unwrap();
    let mut applier = Applier::new(&store, TopicsOptions::new().background(false)).unwrap();
    let mut apply = |change: Change| {
        let entry = Entry {
            version: ENTRY_VERSION,
            time_us: 1_700_000_000_000_000,
            clock_us: applier.clock_us(),
            commands: vec![Command {
                change: Some(change),
                ..Default::default()
            }],
        };
        let applied = applier.apply(&entry, Durability::Written).unwrap();
        applied.outcomes[0].outcome.clone().unwrap()
    };
    let open = |stream: u64| {
        Change::OpenSession(command::OpenSession {
            session: vec![7; SESSION_BYTES].into(),
            timeout_ms: 600_000,
            stream,
            ..Default::default()
        })
    };
    let lease = |stream: u64, token: u64| {
        Change::Lease(command::Lease {
            topic: "orders".into(),
            group: "packers".into(),
            messages: 1,
            token,
            session: vec![7; SESSION_BYTES].into(),
            stream,
            ..Default::default()
        })
    };
    apply(open(1));
    assert!(matches!(apply(lease(1, 1)), Led::Leased(leased) if leased.offsets == [0]));
    apply(open(2));
    let Led::Refused(refused) = apply(lease(1, 2)) else {
        panic!("the lease would be lost");
    };
    assert_eq!(refused.reason, "SESSION_TAKEN_OVER");
    assert!(matches!(apply(lease(2, 3)), Led::Leased(leased) if leased.offsets == [1]));
}

#[test]
fn wrong_requests_of_a_session_get_reasons() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        prepare(&mut clients, GroupOptions::default(), 1).await;
        let first = |say: Option<Say>| tokio_stream::iter(vec![SessionRequest { say }]);
        for (say, expected) in [
            (None, "must open it"),
            (Some(Say::Close(CloseSession {})), "must open it"),
            (
                Some(Say::Open(OpenSession {
                    session: "short".into(),
                    ..Default::default()
                })),
                "a session has 16 bytes",
            ),
            (
                Some(Say::Open(OpenSession {
                    timeout_ms: 5,
                    ..Default::default()
                })),
                "must be 1,000 to 600,000",
            ),
        ] {
            let mut responses = clients.topics.session(first(say)).await.unwrap().into_inner();
            let refused = responses.message().await.unwrap_err();
            assert!(refused.message().contains(expected), "{}", refused.message());
        }
        let unknown = FetchRequest {
            session: vec![1; 16].into(),
            ..fetch(1, 0)
        };
        let unknown = clients.topics.fetch(unknown).await.unwrap_err();
        assert_eq!(reason(&unknown), "SESSION_ENDED");
        // The refused command made no lease.
        assert_eq!(described(&mut clients).await.pending, 0);
    });
    server.stop().unwrap();
}
