//! The service `Trees` below the client: many watches on a stream, keep-alives, permissions, full stores.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::*;
use duramen_proto::v1::node_selection::Selection;
use duramen_proto::v1::trees_client::TreesClient;
use duramen_proto::v1::watch_nodes_request::Request as Asked;
use duramen_proto::v1::watch_nodes_response::Event;
use duramen_proto::v1::*;
use duramen_server::{NewToken, Running, create_token};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::Streaming;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

async fn trees(server: &Running) -> TreesClient<Channel> {
    let mut trees = TreesClient::new(connect(server).await.channel);
    let request = CreateTreeRequest {
        tree: "tree".into(),
        ..Default::default()
    };
    trees.create_tree(request).await.unwrap();
    trees
}

async fn put(trees: &mut TreesClient<Channel>, path: &str, payload: &str) -> Result<u64, Status> {
    let request = PutNodeRequest {
        tree: "tree".into(),
        put: Some(PutNodeOperation {
            path: path.to_string().into(),
            payload: payload.to_string().into(),
            ..Default::default()
        }),
        options: written(),
        ..Default::default()
    };
    Ok(trees.put_node(request).await?.into_inner().revision)
}

fn reason(status: &Status) -> String {
    status
        .get_details_error_info()
        .map(|info| info.reason)
        .unwrap_or_default()
}

/// A stream of watches.
struct Watching {
    requests: mpsc::Sender<WatchNodesRequest>,
    responses: Streaming<WatchNodesResponse>,
}

impl Watching {
    async fn open(trees: &mut TreesClient<Channel>) -> Watching {
        let (requests, receiver) = mpsc::channel(64);
        let responses = trees
            .watch_nodes(ReceiverStream::new(receiver))
            .await
            .unwrap()
            .into_inner();
        Watching { requests, responses }
    }

    async fn ask(&mut self, request: Asked) {
        let request = WatchNodesRequest {
            request: Some(request),
            ..Default::default()
        };
        self.requests.send(request).await.unwrap();
    }

    async fn begin(&mut self, watch: u64, selection: Option<Selection>) {
        self.ask(Asked::Begin(begin(watch, selection))).await;
    }

    async fn next(&mut self) -> Result<(u64, u64, Event), Status> {
        let response = self.responses.message().await?.expect("the stream goes on");
        Ok((response.watch, response.revision, response.event.expect("an event")))
    }
}

fn begin(watch: u64, selection: Option<Selection>) -> BeginWatch {
    BeginWatch {
        tree: "tree".into(),
        watch,
        nodes: selection.map(|selection| NodeSelection {
            selection: Some(selection),
        }),
        ..Default::default()
    }
}

fn path(number: usize) -> Selection {
    let path = format!("a/{number}");
    Selection::Range(KeyRange {
        end: Some(format!("{path}\0").into()),
        start: path.into(),
    })
}

#[test]
fn a_stream_has_many_watches_and_each_sees_what_it_is_for() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut trees = trees(&server).await;
        let mut watching = Watching::open(&mut trees).await;
        for number in 0..1_000 {
            watching.begin(number as u64 + 1, Some(path(number))).await;
            assert_eq!(
                watching.next().await.unwrap(),
                (number as u64 + 1, 1, Event::Begun(true))
            );
        }
        watching.begin(2_000, Some(Selection::Subtree("a".into()))).await;
        watching.next().await.unwrap();
        let mut expected = BTreeMap::new();
        for number in (0..1_000).step_by(7) {
            let revision = put(&mut trees, &format!("a/{number}"), "x").await.unwrap();
            expected.insert(number as u64 + 1, revision);
        }
        let mut of_all = Vec::new();
        let mut seen = BTreeMap::new();
        while of_all.len() < expected.len() || seen.len() < expected.len() {
            let (watch, revision, event) = watching.next().await.unwrap();
            match event {
                Event::Events(events) if watch == 2_000 => {
                    of_all.extend(events.events.iter().map(|event| event.revision));
                }
                Event::Events(events) => {
                    assert_eq!(events.events.len(), 1);
                    assert!(events.events[0].revision <= revision);
                    assert_eq!(seen.insert(watch, events.events[0].revision), None);
                }
                Event::Progress(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, expected);
        assert_eq!(of_all, expected.values().copied().collect::<Vec<_>>());

        let request = ListWatchesRequest {
            tree: "tree".into(),
            ..Default::default()
        };
        let listed = trees.list_watches(request.clone()).await.unwrap().into_inner().watches;
        assert_eq!(listed.len(), 1_001);
        let one = listed.iter().find(|watch| watch.watch == 2_000).unwrap();
        assert_eq!((&one.nodes[..], one.lag), ("a and below", 0));
        assert!(one.since_ms > 0 && listed.iter().any(|watch| watch.nodes == "a/7"));
        watching.ask(Asked::End(2_000)).await;
        let (watch, _, event) = watching.next().await.unwrap();
        assert_eq!((watch, event), (2_000, Event::Ended(WatchEnded::default())));
        watching.ask(Asked::AskProgress(true)).await;
        assert_eq!(
            watching.next().await.unwrap(),
            (0, of_all[of_all.len() - 1], Event::Progress(true))
        );
        drop(watching);
        // The server learns that the client has gone.
        while !trees
            .list_watches(request.clone())
            .await
            .unwrap()
            .into_inner()
            .watches
            .is_empty()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    server.stop().unwrap();
}

#[test]
fn what_is_wrong_with_a_watch_ends_it_alone_and_what_confuses_watches_ends_the_stream() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut trees = trees(&server).await;
        for number in 0..4 {
            put(&mut trees, &format!("a/{number}"), "").await.unwrap();
        }
        let request = CompactTreeRequest {
            tree: "tree".into(),
            revision: 4,
            ..Default::default()
        };
        trees.compact_tree(request).await.unwrap();
        let mut watching = Watching::open(&mut trees).await;
        let from = |revision| BeginWatch {
            from_revision: revision,
            ..begin(5, None)
        };
        for (wrong, cause) in [
            (begin(5, Some(Selection::Pattern("a/{".into()))), "INVALID_PATTERN"),
            (from(3), "COMPACTED"),
            (from(7), "FUTURE_REVISION"),
            (
                BeginWatch {
                    without_puts: true,
                    without_deletes: true,
                    ..begin(5, None)
                },
                "INVALID_ARGUMENT",
            ),
            (
                BeginWatch {
                    tree: "missing".into(),
                    ..begin(5, None)
                },
                "TREE_NOT_FOUND",
            ),
        ] {
            // The first watch of a stream names its tree.
            if cause == "TREE_NOT_FOUND" {
                watching = Watching::open(&mut trees).await;
            }
            watching.ask(Asked::Begin(wrong)).await;
            match watching.next().await.unwrap() {
                (5, _, Event::Ended(ended)) => assert_eq!(ended.reason, cause),
                other => panic!("{other:?}"),
            }
        }
        watching.begin(5, None).await;
        assert_eq!(watching.next().await.unwrap(), (5, 5, Event::Begun(true)));
        for confusing in [
            Asked::Begin(begin(5, None)),
            Asked::Begin(begin(0, None)),
            Asked::Begin(BeginWatch {
                tree: "other".into(),
                ..begin(6, None)
            }),
        ] {
            let mut watching = Watching::open(&mut trees).await;
            watching.begin(5, None).await;
            watching.next().await.unwrap();
            watching.ask(confusing).await;
            assert_eq!(watching.next().await.unwrap_err().code(), Code::InvalidArgument);
        }
        let end = Asked::End(99);
        watching.ask(end).await;
        put(&mut trees, "a/1", "").await.unwrap();
        assert!(matches!(watching.next().await.unwrap(), (5, 6, Event::Events(_))));
    });
    server.stop().unwrap();
}

#[test]
fn keep_alives_are_answered_in_order_and_a_lease_that_is_gone_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut trees = trees(&server).await;
        for lease in 1..=200 {
            let request = GrantLeaseRequest {
                tree: "tree".into(),
                ttl_ms: 60_000,
                lease,
                options: written(),
                ..Default::default()
            };
            trees.grant_lease(request).await.unwrap();
        }
        let (requests, receiver) = mpsc::channel(500);
        let mut responses = trees
            .keep_leases_alive(ReceiverStream::new(receiver))
            .await
            .unwrap()
            .into_inner();
        for lease in 1..=250 {
            let request = KeepLeaseAliveRequest {
                tree: "tree".into(),
                lease,
                ..Default::default()
            };
            requests.send(request).await.unwrap();
        }
        for lease in 1..=250 {
            let kept = responses.message().await.unwrap().unwrap().lease.unwrap();
            assert_eq!((kept.lease, kept.remaining_ms > 0), (lease, lease <= 200));
        }
        let wrong = KeepLeaseAliveRequest {
            tree: "missing".into(),
            lease: 1,
            ..Default::default()
        };
        requests.send(wrong).await.unwrap();
        let refused = responses.message().await.unwrap_err();
        assert_eq!(reason(&refused), "TREE_NOT_FOUND");
    });
    server.stop().unwrap();
}

#[test]
fn principals_do_with_trees_what_their_permissions_say() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async { drop(trees(&server).await) });
    server.stop().unwrap();
    let mut tokens = BTreeMap::new();
    let store = duramen::Options::new().open(directory.path().join("store")).unwrap();
    for permissions in [
        "read:tree:tree",
        "write:tree:tree",
        "admin:tree:t*",
        "admin:map:*",
        "admin:*",
    ] {
        let new = NewToken {
            principal: permissions.into(),
            permissions: vec![permissions.parse().unwrap()],
            is_for_certificates: false,
            valid_for: None,
            calls: 0,
            bytes_per_second: 0,
        };
        tokens.insert(permissions, create_token(&store, &new).unwrap().text.unwrap());
    }
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let channel = connect(&server).await.channel;
        let calls = [
            "get",
            "put",
            "lease",
            "compact",
            "watches",
            "watch",
            "trigger",
            "projection",
            "commit",
        ];
        let mut allowed = BTreeMap::new();
        for (permissions, token) in &tokens {
            let token: tonic::metadata::MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
            let mut trees = TreesClient::with_interceptor(channel.clone(), |mut request: Request<()>| {
                request.metadata_mut().insert("authorization", token.clone());
                Ok(request)
            });
            let mut may = BTreeSet::new();
            let tree = || "tree".to_string();
            for call in calls {
                let done = match call {
                    "get" => {
                        let request = GetNodeRequest {
                            tree: tree(),
                            path: "a".into(),
                            ..Default::default()
                        };
                        trees.get_node(request).await.map(drop)
                    }
                    "put" => {
                        let put = PutNodeOperation {
                            path: "a".into(),
                            ..Default::default()
                        };
                        let request = PutNodeRequest {
                            tree: tree(),
                            put: Some(put),
                            ..Default::default()
                        };
                        trees.put_node(request).await.map(drop)
                    }
                    "lease" => {
                        let request = GrantLeaseRequest {
                            tree: tree(),
                            ttl_ms: 1_000,
                            ..Default::default()
                        };
                        trees.grant_lease(request).await.map(drop)
                    }
                    "compact" => {
                        let request = CompactTreeRequest {
                            tree: tree(),
                            revision: 1,
                            ..Default::default()
                        };
                        trees.compact_tree(request).await.map(drop)
                    }
                    "watches" => {
                        let request = ListWatchesRequest {
                            tree: tree(),
                            ..Default::default()
                        };
                        trees.list_watches(request).await.map(drop)
                    }
                    "watch" => {
                        let request = WatchNodesRequest {
                            request: Some(Asked::Begin(begin(1, None))),
                            ..Default::default()
                        };
                        let mut responses = trees
                            .watch_nodes(tokio_stream::once(request))
                            .await
                            .unwrap()
                            .into_inner();
                        responses.message().await.map(drop)
                    }
                    "trigger" | "projection" => {
                        let rule = match call {
                            "trigger" => tree_rule::Rule::Trigger(TreeTrigger {
                                topic: "missing".into(),
                                name: "n".into(),
                                ..Default::default()
                            }),
                            _ => tree_rule::Rule::Projection(TreeProjection {
                                name: "n".into(),
                                pattern: "a".into(),
                                map: "of_tree".into(),
                            }),
                        };
                        let request = SetTreeRuleRequest {
                            tree: tree(),
                            rule: Some(TreeRule { rule: Some(rule) }),
                            ..Default::default()
                        };
                        trees.set_tree_rule(request).await.map(drop)
                    }
                    _ => {
                        let mut transactions = transactions_client::TransactionsClient::with_interceptor(
                            channel.clone(),
                            |mut request: Request<()>| {
                                request.metadata_mut().insert("authorization", token.clone());
                                Ok(request)
                            },
                        );
                        let condition = NodeCondition {
                            tree: tree(),
                            path: "a".into(),
                            test: Some(NodeTest {
                                test: Some(node_test::Test::Exists(true)),
                            }),
                        };
                        let request = CommitRequest {
                            node_conditions: vec![condition],
                            ..Default::default()
                        };
                        transactions.commit(request).await.map(drop)
                    }
                };
                let is_refused = matches!(&done, Err(status) if status.code() == Code::PermissionDenied);
                if !is_refused {
                    may.insert(call);
                }
            }
            allowed.insert(*permissions, may);
        }
        let of = |permissions: &str| allowed[permissions].iter().copied().collect::<Vec<_>>();
        assert_eq!(of("admin:*").len(), calls.len());
        assert_eq!(of("read:tree:tree"), ["commit", "get", "watch"]);
        assert_eq!(
            of("write:tree:tree"),
            ["lease"],
            "a put tells the node before, so it reads too"
        );
        assert_eq!(
            of("admin:tree:t*"),
            ["commit", "compact", "get", "lease", "put", "watch", "watches"]
        );
        assert_eq!(of("admin:map:*"), [""; 0]);
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_ends_at_a_change_that_is_too_large_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut trees = trees(&server).await.max_decoding_message_size(64 << 20);
        let large = "x".repeat(9 << 20);
        // Old and new payload of revision 5 do not fit into a response together.
        for (path, payload) in [
            ("large", &large[..]),
            ("a", ""),
            ("b", ""),
            ("large", &large),
            ("c", ""),
        ] {
            put(&mut trees, path, payload).await.unwrap();
        }
        let mut watching = Watching::open(&mut trees).await;
        let from = |revision| BeginWatch {
            from_revision: revision,
            ..begin(1, None)
        };
        watching.ask(Asked::Begin(from(3))).await;
        assert!(matches!(watching.next().await.unwrap(), (1, _, Event::Begun(_))));
        let (_, revision, event) = watching.next().await.unwrap();
        let Event::Events(events) = event else {
            panic!("{event:?}")
        };
        let seen: Vec<_> = events.events.iter().map(|event| event.revision).collect();
        assert_eq!((revision, &seen[..]), (4, &[3, 4][..]));
        let (_, revision, event) = watching.next().await.unwrap();
        assert!(
            matches!(event, Event::Ended(_)) && revision == 4,
            "{revision}: {event:?}"
        );
        watching.ask(Asked::Begin(from(6))).await;
        watching.next().await.unwrap();
        let (_, revision, _) = watching.next().await.unwrap();
        assert_eq!(revision, 6);
    });
    server.stop().unwrap();
}

#[test]
fn children_with_large_payloads_come_in_several_responses() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut trees = trees(&server).await;
        // All of them together are more than a response holds.
        let payload = "x".repeat(1 << 20);
        for number in 0..30 {
            put(&mut trees, &format!("a/{number:02}"), &payload).await.unwrap();
        }
        let request = ListChildrenRequest {
            tree: "tree".into(),
            path: Some("a".into()),
            ..Default::default()
        };
        let mut responses = trees.list_children(request).await.unwrap().into_inner();
        let mut names = Vec::new();
        while let Some(response) = responses.message().await.unwrap() {
            names.extend(response.children.into_iter().map(|child| child.name));
        }
        let expected: Vec<_> = (0..30).map(|number| format!("{number:02}")).collect();
        assert_eq!(names, expected);
    });
    server.stop().unwrap();
}

#[test]
fn repeated_requests_grant_one_lease_and_keep_none_alive_that_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut trees = trees(&server).await;
        let options = |key: &str| {
            Some(WriteOptions {
                idempotency_key: key.to_string().into(),
                ..Default::default()
            })
        };
        let mut ids = BTreeSet::new();
        for _ in 0..2 {
            let request = GrantLeaseRequest {
                tree: "tree".into(),
                ttl_ms: 1_000,
                options: options("grant"),
                ..Default::default()
            };
            ids.insert(
                trees
                    .grant_lease(request)
                    .await
                    .unwrap()
                    .into_inner()
                    .lease
                    .unwrap()
                    .lease,
            );
        }
        let id = ids.pop_first().unwrap();
        assert!(ids.is_empty(), "a second lease has the id {ids:?}");
        let keep = async |trees: &mut TreesClient<Channel>| {
            let request = KeepLeaseAliveRequest {
                tree: "tree".into(),
                lease: id,
                options: options("keep"),
                ..Default::default()
            };
            let kept = trees.keep_leases_alive(tokio_stream::once(request)).await.unwrap();
            kept.into_inner()
                .message()
                .await
                .unwrap()
                .unwrap()
                .lease
                .unwrap()
                .remaining_ms
        };
        assert!(keep(&mut trees).await > 0);
        let request = GetLeaseRequest {
            tree: "tree".into(),
            lease: id,
            ..Default::default()
        };
        while trees.get_lease(request.clone()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(keep(&mut trees).await, 0);
    });
    server.stop().unwrap();
}

/// A stream that ends without an error has shown everything.
#[test]
fn a_listing_that_a_stop_cuts_off_ends_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let nodes = 60;
    client(async {
        let mut trees = trees(&server).await;
        let payload = "x".repeat(1 << 20);
        for number in 0..nodes {
            put(&mut trees, &format!("a/{number:02}"), &payload).await.unwrap();
        }
        let request = SelectNodesRequest {
            tree: "tree".into(),
            ..Default::default()
        };
        let mut responses = trees.select_nodes(request).await.unwrap().into_inner();
        let mut seen = responses.message().await.unwrap().unwrap().nodes.len();
        // The client reads nothing for a while, so the server has as much ready as it may have when it is stopped.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let stopping = tokio::task::spawn_blocking(|| server.stop());
        tokio::time::sleep(Duration::from_millis(300)).await;
        // The error is that of the server, or that of a connection which the system has reset.
        while let Ok(response) = responses.message().await {
            let Some(response) = response else {
                assert_eq!(seen, nodes, "the stream looks complete");
                break;
            };
            seen += response.nodes.len();
        }
        drop((responses, trees));
        stopping.await.unwrap().unwrap();
    });
}

#[test]
fn what_a_level_cannot_promise_is_refused_also_beside_conditions_of_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        trees(&server).await;
        clients.create_topic("topic").await;
        let publish = operation::Change::Publish(PublishOperation {
            topic: "topic".into(),
            messages: vec![Message::default()],
        });
        let request = CommitRequest {
            then: vec![Operation { change: Some(publish) }],
            options: acknowledged(Acknowledge::Memory),
            ..Default::default()
        };
        clients.transactions.commit(request.clone()).await.unwrap();
        let condition = NodeCondition {
            tree: "tree".into(),
            path: "a".into(),
            test: Some(NodeTest {
                test: Some(node_test::Test::Exists(true)),
            }),
        };
        for request in [
            CommitRequest {
                node_conditions: vec![condition],
                ..request.clone()
            },
            CommitRequest {
                otherwise: request.then.clone(),
                ..request
            },
        ] {
            let refused = clients.transactions.commit(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        }
    });
    server.stop().unwrap();
}
