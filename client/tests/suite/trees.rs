//! Trees over the network.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::*;
use duramen_client::{
    Client, Compare, Error, ErrorKind, Keys, NodeCondition, NodePut, NodeWatch, Nodes, OperationResult, ReadNodes,
    Rule, SelectedNodes, Start, TopicOptions, Tree, TreeNode, TreeProjection, TreeTrigger, WatchNodes, WriteOptions,
};

async fn tree(client: &Client) -> Tree {
    assert!(client.create_tree("config").await.unwrap());
    client.tree("config")
}

async fn put(tree: &Tree, path: &str, payload: &str) -> u64 {
    let stored = tree.put(NodePut::new(path, payload.to_string())).await.unwrap();
    stored.revision
}

fn path(node: &TreeNode) -> String {
    String::from_utf8(node.path.to_vec()).unwrap()
}

async fn paths(mut nodes: SelectedNodes) -> Vec<String> {
    let mut paths = Vec::new();
    while let Some(node) = nodes.next().await {
        paths.push(path(&node.unwrap()));
    }
    paths
}

/// Revision, path, and payload of the next change; a deletion has none.
async fn change(watch: &mut NodeWatch) -> (u64, String, Option<String>) {
    let event = watch.next().await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        event.revision,
        text(&event.path),
        event.node.map(|node| text(&node.payload)),
    )
}

fn reason<T>(result: Result<T, Error>) -> String {
    result.err().expect("it is refused").reason
}

#[test]
fn nodes_are_stored_read_listed_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        assert!(!client.create_tree("config").await.unwrap());
        assert_eq!(client.list_trees().await.unwrap(), ["config"]);
        assert_eq!(tree.revision().await.unwrap(), 1);
        for (revision, path) in (2..).zip(["web/port", "web/host", "db/host", "db/host/name"]) {
            assert_eq!(put(&tree, path, path).await, revision);
        }
        let stored = tree.put(NodePut::new("web/port", "443")).await.unwrap();
        let before = stored.before.unwrap();
        assert_eq!(
            (stored.revision, &before.payload[..], before.version),
            (6, &b"web/port"[..], 1)
        );
        let node = tree.get("web/port").await.unwrap().unwrap();
        assert_eq!(
            (node.create_revision, node.revision, node.version, node.lease),
            (2, 6, 2, 0)
        );
        assert_eq!(tree.get_at("web/port", 5).await.unwrap(), Some(before));
        assert_eq!(tree.get("web").await.unwrap(), None);

        for (nodes, count) in [
            (Nodes::all(), 4),
            (Nodes::subtree("db/host"), 2),
            (Nodes::pattern("*/host"), 2),
            (Nodes::path("db/host"), 1),
            (Nodes::range(Keys::starting_at("db/host/")), 3),
        ] {
            assert_eq!(tree.count(nodes.clone(), 0).await.unwrap(), count, "{nodes:?}");
            let all = paths(tree.select(nodes.clone(), None, ReadNodes::new()).await.unwrap()).await;
            assert_eq!(all.len() as u64, count);
            let first = tree
                .select(nodes.clone(), None, ReadNodes::new().limit(1))
                .await
                .unwrap();
            assert_eq!(paths(first).await, all[..1]);
            let rest = tree
                .select(nodes, Some(all[0].as_bytes()), ReadNodes::new())
                .await
                .unwrap();
            assert_eq!(paths(rest).await, all[1..]);
        }
        assert_eq!(tree.count(Nodes::all(), 3).await.unwrap(), 2);
        let mut bare = tree
            .select(Nodes::all(), None, ReadNodes::new().without_payloads())
            .await
            .unwrap();
        assert!(bare.next().await.unwrap().unwrap().payload.is_empty());

        let mut top = tree.children(None, None, ReadNodes::new()).await.unwrap();
        assert_eq!((top.count(), top.version()), (2, 2));
        let first = top.next().await.unwrap().unwrap();
        assert_eq!((&first.name[..], first.node), (&b"db"[..], None));
        let mut web = tree
            .children(Some(b"web"), Some(b"host"), ReadNodes::new())
            .await
            .unwrap();
        let port = web.next().await.unwrap().unwrap();
        assert_eq!(port.node.unwrap().payload, "443");
        assert!(web.next().await.is_none());
        assert_eq!(web.count(), 2);

        assert!(tree.delete("web/port").await.unwrap() && !tree.delete("web/port").await.unwrap());
        assert_eq!(tree.delete_subtree("db").await.unwrap(), 2);
        assert_eq!(
            paths(tree.select(Nodes::all(), None, ReadNodes::new()).await.unwrap()).await,
            ["web/host"]
        );
        assert_eq!(tree.count(Nodes::all(), 6).await.unwrap(), 4);
        tree.compact(7).await.unwrap();
        assert_eq!(reason(tree.get_at("web/port", 6).await), "COMPACTED");
        assert_eq!(reason(tree.get_at("web/port", 9).await), "FUTURE_REVISION");
        assert_eq!(tree.purge("web").await.unwrap(), 1);
        assert_eq!(tree.count(Nodes::all(), 0).await.unwrap(), 0);

        client.delete_tree("config").await.unwrap();
        assert_eq!(reason(tree.get("a").await), "TREE_NOT_FOUND");
        assert_eq!(reason(client.delete_tree("config").await), "TREE_NOT_FOUND");
        assert_eq!(reason(tree.put(NodePut::new("a", "")).await), "TREE_NOT_FOUND");
        // Another tree of this name has nothing of the first one.
        assert!(client.create_tree("config").await.unwrap());
        assert_eq!(put(&tree, "a", "").await, 2);
    });
    server.stop().unwrap();
}

#[test]
fn many_nodes_come_in_order_and_from_one_moment() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        for first in (0..6_000).step_by(2_000) {
            let mut transaction = client.transaction();
            for number in first..first + 2_000 {
                let payload = "x".repeat(200);
                transaction = transaction.put_node("config", NodePut::new(format!("a/{number:05}"), payload));
            }
            let committed = transaction.commit().await.unwrap();
            assert_eq!(committed.results.len(), 2_000);
            assert_eq!(committed.revisions, [("config".to_string(), 2 + first / 2_000)]);
        }
        let mut nodes = tree
            .select(Nodes::pattern("a/*"), None, ReadNodes::new())
            .await
            .unwrap();
        let mut children = tree
            .children(Some(b"a"), None, ReadNodes::new().revision(3))
            .await
            .unwrap();
        assert_eq!(children.count(), 4_000);
        for number in 0..6_000 {
            if number == 10 {
                assert_eq!(tree.delete_subtree("a").await.unwrap(), 6_000);
            }
            let node = nodes.next().await.unwrap().unwrap();
            assert_eq!(path(&node), format!("a/{number:05}"));
        }
        assert!(nodes.next().await.is_none());
        let mut counted = 0;
        while let Some(child) = children.next().await {
            child.unwrap();
            counted += 1;
        }
        assert_eq!((counted, tree.count(Nodes::all(), 0).await.unwrap()), (4_000, 0));
    });
    server.stop().unwrap();
}

#[test]
fn puts_say_what_must_be_there_and_errors_say_what_is() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        let lease = tree.grant_lease(Duration::from_secs(60), Some(7)).await.unwrap();
        assert_eq!((lease.lease, lease.ttl_ms), (7, 60_000));
        assert_eq!(
            reason(tree.put(NodePut::new("a", "1").update()).await),
            "NODE_NOT_FOUND"
        );
        assert_eq!(
            reason(tree.put(NodePut::new("a", "1").expect("0")).await),
            "NODE_NOT_FOUND"
        );
        tree.put(NodePut::new("a", "1").create().lease(7)).await.unwrap();
        assert_eq!(reason(tree.put(NodePut::new("a", "1").create()).await), "NODE_EXISTS");
        assert_eq!(
            reason(tree.put(NodePut::new("a", "2").expect("0")).await),
            "NODE_MISMATCH"
        );
        tree.put(NodePut::new("a", "2").expect("1")).await.unwrap();
        tree.put(NodePut::new("a", "3").update()).await.unwrap();
        tree.put(NodePut::new("a", "4").keep_lease()).await.unwrap();
        assert_eq!(tree.get("a").await.unwrap().unwrap().lease, 7);
        put(&tree, "a", "5").await;
        let node = tree.get("a").await.unwrap().unwrap();
        assert_eq!((node.version, node.lease), (5, 0));

        let both = NodePut::new("a", "6").expect("5").create();
        for (put, refused) in [
            (NodePut::new("", ""), "INVALID_PATH"),
            (NodePut::new(vec![b'a'; 1_001], ""), "INVALID_PATH"),
            (NodePut::new("a", "").lease(8), "LEASE_NOT_FOUND"),
            (NodePut::new("a", "").lease(0), "INVALID_ARGUMENT"),
            (both, "INVALID_ARGUMENT"),
            (
                NodePut::new("b", "").keep_while("c", NodeCondition::exists()),
                "NODE_NOT_KEPT",
            ),
        ] {
            assert_eq!(reason(tree.put(put).await), refused);
        }
        assert_eq!(tree.revision().await.unwrap(), 6, "what is refused changes nothing");
        let mistake = tree.count(Nodes::pattern("a/{b"), 0).await.err().unwrap();
        assert_eq!(
            (mistake.kind, &mistake.reason[..]),
            (ErrorKind::InvalidArgument, "INVALID_PATTERN")
        );
        assert!(mistake.message.contains("at byte 2"), "{mistake}");
        let deep = (0..40).fold(NodeCondition::exists(), |inner, _| !inner);
        let refused = client.transaction().if_node("config", "a", deep).commit().await;
        assert_eq!(reason(refused), "INVALID_CONDITION");

        // A node is kept while another one is there.
        put(&tree, "owner", "").await;
        tree.put(NodePut::new("kept", "").keep_while("owner", NodeCondition::exists()))
            .await
            .unwrap();
        put(&tree, "kept/below", "").await;
        tree.delete("owner").await.unwrap();
        assert_eq!(tree.count(Nodes::subtree("kept"), 0).await.unwrap(), 0);
    });
    server.stop().unwrap();
}

#[test]
fn one_commit_has_trees_maps_and_topics_with_conditions_on_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        assert!(client.create_tree("other").await.unwrap());
        client.create_map("m").await.unwrap();
        client.create_topic("t", TopicOptions::default()).await.unwrap();
        put(&tree, "a/b", "old").await;
        let committed = client
            .transaction()
            .if_node("config", "a/b", NodeCondition::payload("old"))
            .if_node(
                "config",
                "a",
                NodeCondition::all([
                    NodeCondition::missing(),
                    NodeCondition::children(Compare::Equal(1)),
                    NodeCondition::children_version(Compare::Greater(0)),
                    !NodeCondition::any([NodeCondition::version(Compare::NotEqual(0))]),
                ]),
            )
            .put_node("config", NodePut::new("a/b", "new"))
            .put("m", "k", "v")
            .put_node("other", NodePut::new("x", ""))
            .publish("t", "changed")
            .get_node("config", "a/b")
            .put_nodes("config", "a/*", "newest")
            .delete_node("config", "none")
            .commit()
            .await
            .unwrap();
        assert!(committed.succeeded);
        let revisions = [("config".to_string(), 3), ("other".to_string(), 2)];
        assert_eq!(committed.revisions, revisions);
        let payload = |result: &OperationResult| match result {
            OperationResult::Tree { node, .. } => node.as_ref().map(|node| node.payload.to_vec()),
            other => panic!("{other:?}"),
        };
        assert_eq!(payload(&committed.results[0]).as_deref(), Some(&b"old"[..]));
        assert_eq!(committed.results[3], OperationResult::FirstOffset(0));
        assert_eq!(payload(&committed.results[4]).as_deref(), Some(&b"new"[..]));
        assert_eq!(committed.results[5], OperationResult::Tree { node: None, count: 1 });
        assert_eq!(committed.results[6], OperationResult::Tree { node: None, count: 0 });
        let node = tree.get("a/b").await.unwrap().unwrap();
        assert_eq!((&node.payload[..], node.revision, node.version), (&b"newest"[..], 3, 3));

        // An operation that is refused takes the whole commit back.
        let refused = client
            .transaction()
            .put("m", "k", "lost")
            .delete_subtree("config", "a")
            .put_node("config", NodePut::new("a/b", "").update())
            .commit()
            .await;
        assert_eq!(reason(refused), "NODE_NOT_FOUND");
        assert_eq!(client.map("m").get("k").await.unwrap().as_deref(), Some(&b"v"[..]));
        assert_eq!(tree.revision().await.unwrap(), 3);
        let otherwise = client
            .transaction()
            .if_node("config", "a/b", NodeCondition::revision(Compare::Less(3)))
            .delete_nodes("config", "**")
            .otherwise()
            .get_node("config", "a/b")
            .commit()
            .await
            .unwrap();
        assert!(!otherwise.succeeded);
        assert_eq!(payload(&otherwise.results[0]).as_deref(), Some(&b"newest"[..]));
        // A repeated request gets the first answer, and changes nothing.
        let once = tree.with(WriteOptions::new().idempotency_key("once"));
        assert_eq!(put(&once, "again", "1").await, 4);
        assert_eq!(put(&once, "again", "1").await, 4);
        assert_eq!(
            reason(client.transaction().get_node("missing", "a").commit().await),
            "TREE_NOT_FOUND"
        );
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_shows_each_change_once_and_goes_on_after_breaks() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    let proxy = Proxy::before(server.listening().tcp.unwrap());
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        put(&tree, "a/x", "1").await;
        let behind = Client::connect(&format!("http://{}", proxy.address))
            .unwrap()
            .tree("config");
        let mut watch = behind.watch(WatchNodes::new(Nodes::subtree("a"))).await.unwrap();
        assert_eq!(watch.revision(), 2);
        // One revision with more changes than a batch has, and a break in the middle of it.
        let mut transaction = client.transaction();
        for number in 0..3_500 {
            transaction = transaction.put_node("config", NodePut::new(format!("a/{number:05}"), "x".repeat(500)));
        }
        transaction.commit().await.unwrap();
        put(&tree, "b", "not watched").await;
        tree.delete("a/x").await.unwrap();
        for number in 0..3_500 {
            if number % 700 == 1 {
                proxy.cut();
            }
            let (revision, path, payload) = change(&mut watch).await;
            assert_eq!((revision, path), (3, format!("a/{number:05}")));
            assert_eq!(payload.map(|payload| payload.len()), Some(500));
        }
        assert_eq!(change(&mut watch).await, (5, "a/x".into(), None));
        assert_eq!(watch.revision(), 5);

        let from = WatchNodes::new(Nodes::path("a/x")).from_revision(2);
        let mut earlier = tree.watch(from.clone()).await.unwrap();
        assert_eq!(change(&mut earlier).await, (2, "a/x".into(), Some("1".into())));
        let mut deletes = tree.watch(from.clone().only_deletes()).await.unwrap();
        let deleted = deletes.next().await.unwrap().unwrap();
        assert_eq!(deleted.before.unwrap().payload, "1");
        let mut bare = tree
            .watch(from.clone().without_old_nodes().only_deletes())
            .await
            .unwrap();
        assert!(bare.next().await.unwrap().unwrap().before.is_none());

        tree.compact(5).await.unwrap();
        assert_eq!(reason(tree.watch(from).await), "COMPACTED");
        let future = WatchNodes::new(Nodes::all()).from_revision(100);
        assert_eq!(reason(tree.watch(future).await), "FUTURE_REVISION");
        let mistake = WatchNodes::new(Nodes::pattern("{"));
        assert_eq!(reason(tree.watch(mistake).await), "INVALID_PATTERN");
        // A tree that is deleted ends its watches.
        client.delete_tree("config").await.unwrap();
        assert_eq!(reason(watch.next().await.unwrap()), "TREE_NOT_FOUND");
        assert!(watch.next().await.is_none());
    });
    server.stop().unwrap();
}

#[test]
fn leases_end_by_themselves_and_their_remaining_time_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        let short = tree.grant_lease(Duration::from_millis(1_500), None).await.unwrap();
        let long = tree.grant_lease(Duration::from_secs(600), Some(2)).await.unwrap();
        assert_eq!(
            reason(tree.grant_lease(Duration::from_secs(1), Some(2)).await),
            "LEASE_EXISTS"
        );
        assert_eq!(reason(tree.grant_lease(Duration::ZERO, None).await), "INVALID_LEASE");
        for (lease, path) in [(short.lease, "short"), (long.lease, "long"), (long.lease, "long/too")] {
            tree.put(NodePut::new(path, "").lease(lease)).await.unwrap();
        }
        let (_, attached) = tree.lease(2, 10).await.unwrap();
        assert_eq!(attached, ["long", "long/too"]);
        assert_eq!(tree.leases().await.unwrap().len(), 2);
        let mut watch = tree.watch(WatchNodes::new(Nodes::all())).await.unwrap();
        let begun = Instant::now();
        // It is kept alive longer than it lasts, and then no more.
        while begun.elapsed() < Duration::from_millis(2_500) {
            let kept = tree.keep_lease_alive(short.lease).await.unwrap();
            assert!(kept.remaining_ms > 0 && kept.ttl_ms == 1_500);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(change(&mut watch).await, (5, "short".into(), None));
        assert_eq!(reason(tree.keep_lease_alive(short.lease).await), "LEASE_NOT_FOUND");
        assert_eq!(reason(tree.lease(short.lease, 0).await), "LEASE_NOT_FOUND");
    });
    server.stop().unwrap();
    let server = serve(directory.path());
    run(async {
        let tree = client(&server).tree("config");
        let (lease, paths) = tree.lease(2, 1).await.unwrap();
        assert!(lease.remaining_ms > 500_000, "{lease:?}");
        assert_eq!(paths, ["long"]);
        assert_eq!(tree.revoke_lease(2).await.unwrap(), 2);
        assert_eq!(reason(tree.revoke_lease(2).await), "LEASE_NOT_FOUND");
    });
    server.stop().unwrap();
}

#[test]
fn rules_publish_fill_maps_and_set_limits() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        let trigger = TreeTrigger {
            name: "tell".into(),
            pattern: "a/*".into(),
            topic: "t".into(),
            ..TreeTrigger::default()
        };
        assert_eq!(
            reason(tree.set_trigger(trigger.clone()).await),
            "TRIGGER_TOPIC_NOT_FOUND"
        );
        client.create_topic("t", TopicOptions::default()).await.unwrap();
        tree.set_trigger(trigger.clone()).await.unwrap();
        put(&tree, "a/1", "one").await;
        let projection = TreeProjection {
            name: "map".into(),
            pattern: "a/**".into(),
            map: "of_tree".into(),
        };
        tree.set_projection(projection.clone()).await.unwrap();
        tree.set_quota("a", 2, 1_000).await.unwrap();
        put(&tree, "a/2", "two").await;
        assert_eq!(reason(tree.put(NodePut::new("a/3", "")).await), "QUOTA_REACHED");
        let mut messages = client.topic("t").subscribe(Start::Earliest).await.unwrap();
        for expected in ["one", "two"] {
            assert_eq!(messages.next().await.unwrap().unwrap().payload, expected);
        }
        let map = client.map("of_tree");
        assert_eq!(map.get("a/1").await.unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(map.get("a/2").await.unwrap().as_deref(), Some(&b"two"[..]));
        let rules = tree.rules().await.unwrap();
        let rules: Vec<_> = rules.into_iter().filter_map(|rule| rule.rule).collect();
        assert_eq!(rules[..2], [Rule::Trigger(trigger), Rule::Projection(projection)]);
        match &rules[2] {
            Rule::Quota(quota) => assert_eq!((quota.max_nodes, quota.nodes, quota.bytes), (2, 2, 12)),
            other => panic!("{other:?}"),
        }
        tree.remove_trigger("tell").await.unwrap();
        tree.remove_projection("map").await.unwrap();
        tree.remove_quota("a").await.unwrap();
        assert_eq!(reason(tree.remove_quota("a").await), "RULE_NOT_FOUND");
        put(&tree, "a/3", "").await;
        assert_eq!(map.get("a/3").await.unwrap(), None);
        // A topic that is gone stops the changes that a trigger is for, and no others in their commit.
        let trigger = TreeTrigger {
            name: "tell".into(),
            pattern: "a/*".into(),
            topic: "t".into(),
            ..TreeTrigger::default()
        };
        tree.set_trigger(trigger).await.unwrap();
        let watched = client.create_watched_map("kept", Default::default()).await;
        assert!(watched.unwrap());
        let projection = TreeProjection {
            name: "guarded".into(),
            pattern: "**".into(),
            map: "kept".into(),
        };
        assert_eq!(reason(tree.set_projection(projection).await), "INVALID_ARGUMENT");
    });
    server.stop().unwrap();
}

#[test]
fn watches_go_on_when_the_server_comes_back_and_miss_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let server = serve(&path);
    let address = server.listening().tcp.unwrap().to_string();
    run(async {
        let client = client(&server);
        let tree = tree(&client).await;
        let mut watch = tree.watch(WatchNodes::new(Nodes::all())).await.unwrap();
        let mut server = server;
        let mut expected = BTreeMap::new();
        for round in 0..3 {
            for number in 0..20 {
                let (path, payload) = (format!("a/{number}"), format!("{round}"));
                put(&tree, &path, &payload).await;
                expected.insert(path, payload);
            }
            // It stops while the watch has seen a part.
            for number in 0..10 {
                assert_eq!(change(&mut watch).await.1, format!("a/{number}"));
            }
            let (path, address) = (path.clone(), address.clone());
            let restart = tokio::task::spawn_blocking(move || {
                server.stop().unwrap();
                serve_on(&path, &address, &[])
            });
            server = restart.await.unwrap();
            for number in 10..20 {
                assert_eq!(change(&mut watch).await.1, format!("a/{number}"));
            }
        }
        for (path, payload) in expected {
            assert_eq!(tree.get(&path).await.unwrap().unwrap().payload, payload);
        }
        drop((watch, tree, client));
        tokio::task::spawn_blocking(move || server.stop().unwrap())
            .await
            .unwrap();
    });
}
