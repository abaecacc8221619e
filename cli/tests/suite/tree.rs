//! `duramen tree`: nodes, revisions, transactions, leases and watches from the command line.

use crate::common::{Scratch, Server};
use serde_json::json;

#[test]
fn nodes_are_stored_read_at_revisions_listed_and_removed() {
    let scratch = Scratch::new();
    assert_eq!(scratch.done(&["tree", "put", "shop", "web/port", "80"]).text(), "2\n");
    assert_eq!(scratch.done(&["tree", "put", "shop", "web/port", "443"]).text(), "3\n");
    scratch.done(&["tree", "put", "shop", "web", "up"]);
    assert_eq!(scratch.done(&["tree", "get", "shop", "web/port"]).text(), "443\n");
    assert_eq!(
        scratch
            .done(&["tree", "get", "shop", "web/port", "--revision", "2"])
            .text(),
        "80\n"
    );
    let node = &scratch.done(&["tree", "get", "shop", "web/port", "--json"]).json()[0];
    let expected = json!({
        "path": "web/port", "payload": "443", "version": 2, "create_revision": 2, "revision": 3, "lease": null
    });
    assert_eq!(*node, expected);
    assert_eq!(scratch.run(&["tree", "get", "shop", "web/host"]).code, 1);
    scratch.done(&["tree", "put", "shop", "db/main/host", r"a\x00b"]);
    assert_eq!(scratch.done(&["tree", "ls", "shop"]).text(), "db/\nweb\n");
    assert_eq!(scratch.done(&["tree", "ls", "shop", "db"]).text(), "main/\n");
    assert_eq!(
        scratch
            .done(&["tree", "ls", "shop", "--after", "db", "--limit", "5"])
            .text(),
        "web\n"
    );
    let all = scratch.done(&["tree", "ls", "shop", "--pattern", "**"]);
    assert_eq!(all.text(), "db/main/host\ta\\x00b\nweb\tup\nweb/port\t443\n");
    let hex = scratch.done(&["tree", "get", "shop", "64622f6d61696e2f686f7374", "--hex"]);
    assert_eq!(hex.text(), "610062\n");
    let removed = scratch.done(&["tree", "rm", "shop", "web", "--subtree"]);
    assert_eq!(removed.text(), "removed 2 nodes\n");
    assert_eq!(scratch.run(&["tree", "rm", "shop", "web"]).code, 1);
    let list = scratch.done(&["tree", "list", "shop", "--json"]).json();
    assert_eq!(list[0], json!({"tree": "main", "revision": 6, "first_revision": 1}));
    assert_eq!(
        scratch.done(&["tree", "compact", "shop"]).text(),
        "the first revision is 6\n"
    );
    let gone = scratch.run(&["tree", "get", "shop", "web/port", "--revision", "2"]);
    assert_eq!(gone.code, 2);
    assert!(
        gone.stderr.contains("revision 2 of the tree \"main\" is compacted"),
        "{}",
        gone.stderr
    );
}

#[test]
fn a_put_with_a_condition_stores_or_says_what_is_there() {
    let scratch = Scratch::new();
    scratch.done(&["tree", "put", "shop", "a", "1", "--create"]);
    let there = scratch.run(&["tree", "put", "shop", "a", "2", "--create"]);
    assert_eq!(there.code, 1);
    assert!(there.stderr.contains("\"a\" has version 1"), "{}", there.stderr);
    scratch.done(&["tree", "put", "shop", "a", "2", "--if-version", "1"]);
    assert_eq!(
        scratch
            .run(&["tree", "put", "shop", "a", "3", "--if-version", "1"])
            .code,
        1
    );
    assert_eq!(scratch.done(&["tree", "get", "shop", "a"]).text(), "2\n");
}

#[test]
fn transactions_come_as_json_and_mistakes_in_them_change_nothing() {
    let scratch = Scratch::new();
    let commit = r#"{"if": [{"path": "a", "exists": false}], "then": [{"put": "a", "payload": "1"}, {"put": "b/c", "payload": "2"}], "else": [{"get": "a"}]}"#;
    let line = format!("echo '{commit}' | duramen tree txn shop --json");
    let first = scratch.shell(&line);
    assert_eq!(
        (first.code, first.json()[0]["held"].as_bool()),
        (0, Some(true)),
        "{}",
        first.stderr
    );
    let second = scratch.shell(&line);
    assert_eq!(second.code, 1);
    assert_eq!(second.json()[0]["done"][0]["payload"], "1");
    for (wrong, says) in [
        ("[]", "it is no object"),
        (r#"{"when": [{}]}"#, "use if, then and else"),
        (r#"{"if": [{"path": "a", "colour": 1}]}"#, "there is no condition"),
        (r#"{"if": [{"path": "a", "version": {"like": 1}}]}"#, "compares nothing"),
        (r#"{"then": [{"put": "x"}]}"#, "a put has no `payload`"),
        (
            r#"{"then": [{"put": "x", "payload": "1"}, {"put": "", "payload": "1"}]}"#,
            "it is empty",
        ),
        (
            r#"{"then": [{"put": "x", "payload": "1", "lease": 77}]}"#,
            "there is no lease 77",
        ),
        (
            r#"{"then": [{"put": "x", "payload": "1", "lease": "77"}]}"#,
            "is no number from 0 on",
        ),
        ("{", "EOF"),
    ] {
        let ended = scratch.shell(&format!("echo '{wrong}' | duramen tree txn shop"));
        assert!(ended.code == 2 || ended.code == 3, "{wrong}: {}", ended.code);
        assert!(ended.stderr.contains(says), "{wrong}: {}", ended.stderr);
    }
    assert_eq!(scratch.run(&["tree", "get", "shop", "x"]).code, 1);
}

#[test]
fn leases_end_their_nodes_and_exports_are_imported() {
    let scratch = Scratch::new();
    let granted = scratch.done(&["tree", "lease", "grant", "shop", "30"]);
    let id = granted.text().trim();
    scratch.done(&["tree", "put", "shop", "web/1", "up", "--lease", id]);
    let listed = &scratch.done(&["tree", "lease", "list", "shop", "--json"]).json()[0];
    assert_eq!(
        (listed["seconds"].as_f64(), listed["nodes"].as_u64()),
        (Some(30.0), Some(1))
    );
    scratch.done(&["tree", "lease", "keep", "shop", id]);
    scratch.done(&["tree", "put", "shop", "web/2", r"\xff\n"]);
    let moved = scratch.shell("duramen tree export shop > nodes && duramen tree import shop --tree other < nodes");
    assert_eq!((moved.code, moved.text()), (0, "stored 2 nodes\n"), "{}", moved.stderr);
    let both = ["main", "other"].map(|tree| {
        scratch
            .done(&["tree", "ls", "shop", "--tree", tree, "--pattern", "**"])
            .text()
            .to_string()
    });
    assert_eq!(both[0], both[1]);
    let wrong = scratch.shell("echo '{\"path\": 1}' | duramen tree import shop");
    assert_eq!(wrong.code, 2);
    assert!(
        wrong.stderr.contains("line 1: it has no text `path`"),
        "{}",
        wrong.stderr
    );
    assert_eq!(
        scratch.done(&["tree", "lease", "revoke", "shop", id]).text(),
        "removed 1 node\n"
    );
    assert_eq!(scratch.run(&["tree", "lease", "revoke", "shop", id]).code, 3);
    let events = scratch
        .done(&["tree", "watch", "shop", "web", "--from", "2", "--count", "3", "--json"])
        .json();
    assert_eq!(
        (&events[2]["change"], &events[2]["old"]["payload"]),
        (&json!("delete"), &json!("up"))
    );
}

#[test]
fn a_store_without_the_tree_says_so() {
    let scratch = Scratch::new();
    scratch.done(&["put", "shop", "key", "value", "--map", "m"]);
    assert_eq!(scratch.done(&["tree", "list", "shop"]).text(), "");
    for arguments in [&["tree", "get", "shop", "a"][..], &["tree", "rm", "shop", "a"]] {
        let ended = scratch.run(arguments);
        assert_eq!(ended.code, 2);
        assert!(
            ended.stderr.contains("there is no tree named \"main\""),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn stat_shows_topics_trees_and_checkpoints_near_and_far() {
    let scratch = Scratch::new();
    for path in ["web/port", "web/host", "mail"] {
        scratch.done(&["tree", "put", "shop", path, "x", "--tree", "config"]);
    }
    scratch.done(&["topics", "create", "shop", "orders"]);
    scratch.done(&["checkpoint", "create", "shop", "monday"]);
    let server = Server::start(&scratch.path("shop"));
    for place in [&["shop"][..], &["--server", &server.place]] {
        let text = scratch.done(&[&["stat"][..], place].concat()).text().to_string();
        let begins = "0 maps\n1 topic\n1 tree\n  config         3 nodes, revision 4\n1 checkpoint\n";
        assert!(text.starts_with(begins), "{text}");
        let object = &scratch.done(&[&["stat"][..], place, &["--json"]].concat()).json()[0];
        let tree = serde_json::json!([{"tree": "config", "nodes": 3, "revision": 4}]);
        assert_eq!(
            (&object["trees"], &object["topics"], &object["checkpoints"]),
            (&tree, &1.into(), &1.into())
        );
    }
}

/// All lines together are more than a request of a server may have.
#[test]
fn large_nodes_are_imported_into_a_server_in_several_commits() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("shop"));
    let payload = "x".repeat(1 << 20);
    let lines: String = (0..30)
        .map(|number| format!("{}\n", json!({"path": format!("a/{number}"), "payload": payload})))
        .collect();
    let import = ["tree", "import", "--server", &server.place];
    let imported = scratch.run_with_input(&import, lines.as_bytes());
    assert_eq!(
        (imported.code, imported.text()),
        (0, "stored 30 nodes\n"),
        "{}",
        imported.stderr
    );
    let exported = scratch.done(&["tree", "export", "--server", &server.place]);
    assert_eq!(exported.json().len(), 30);
}

/// Ends with the test, also when that fails.
struct Watching(std::process::Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_lists_the_watches_that_a_directory_has_no_list_of() {
    let scratch = Scratch::new();
    scratch.done(&["tree", "put", "shop", "web/port", "80"]);
    assert_eq!(scratch.run(&["tree", "watches", "shop"]).code, 2);
    let server = Server::start(&scratch.path("shop"));
    let place = ["--server", &server.place];
    let mut command = scratch.command("duramen");
    command.args(["tree", "watch"]).args(place).args(["web", "--from", "2"]);
    let _watching = Watching(command.stdout(std::process::Stdio::null()).spawn().unwrap());
    let listed = loop {
        let listed = scratch
            .done(&[&["tree", "watches", "--json"], &place[..]].concat())
            .json();
        if listed.first().is_some_and(|watch| watch["lag"] == 0) {
            break listed;
        }
    };
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0]["revision"], &listed[0]["principal"]),
        (&json!(2), &json!(null))
    );
    let line = scratch.done(&[&["tree", "watches"], &place[..]].concat());
    let parts: Vec<_> = line.text().trim_end().split('\t').collect();
    assert_eq!(parts.len(), 6, "{parts:?}");
    assert!(parts[2].ends_with("ago") && parts[3].contains("web"), "{parts:?}");
    assert_eq!(parts[4..], ["2", "0"]);
}

#[test]
fn rules_are_listed_with_a_line_each_whatever_their_names_are() {
    let scratch = Scratch::new();
    scratch.done(&["publish", "shop", "sales", "first", "--create"]);
    let of_trigger = ["--pattern", "web/**", "--topic", "sales", "--only", "put"];
    scratch.done(&[&["tree", "rule", "trigger", "shop", "a\tb\nc"], &of_trigger[..]].concat());
    scratch.done(&[
        "tree",
        "rule",
        "projection",
        "shop",
        "ports",
        "--pattern",
        "*/port",
        "--map",
        "ports",
    ]);
    scratch.done(&["tree", "rule", "quota", "shop", "web", "--nodes", "1"]);
    scratch.done(&["tree", "put", "shop", "web/port", "80"]);
    let refused = scratch.run(&["tree", "put", "shop", "web/host", "example"]);
    assert_eq!(refused.code, 4);
    assert!(
        refused.stderr.contains("is reached: 1 node; delete"),
        "{}",
        refused.stderr
    );
    let listed = scratch.done(&["tree", "rule", "list", "shop"]);
    let expected =
        "trigger\ta\\tb\\nc\tweb/**\tsales\tput\nprojection\tports\t*/port\tports\nquota\tweb\t1/1\t10/any\n";
    assert_eq!(listed.text(), expected);
    assert_eq!(
        scratch.done(&["get", "shop", "web/port", "--map", "ports"]).text(),
        "80\n"
    );
    scratch.done(&["put", "shop", "web/port", "wrong", "--map", "ports"]);
    assert_eq!(
        scratch.done(&["tree", "rule", "rebuild", "shop", "ports"]).text(),
        "1 pair\n"
    );
    assert_eq!(
        scratch.done(&["get", "shop", "web/port", "--map", "ports"]).text(),
        "80\n"
    );
    let messages = scratch
        .done(&["subscribe", "shop", "sales", "--count", "2", "--json"])
        .json();
    assert_eq!(
        (&messages[1]["key"], &messages[1]["payload"]),
        (&json!("web/port"), &json!("80"))
    );
    for rule in [["trigger", "a\tb\nc"], ["projection", "ports"], ["quota", "web"]] {
        scratch.done(&[&["tree", "rule", "remove", "shop"], &rule[..]].concat());
    }
    assert_eq!(scratch.done(&["tree", "rule", "list", "shop"]).text(), "");
}
