//! Commands work on a server as on a directory: equal output, and equal exit codes.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{BINARY, Ended, Scratch, Server};
use duramen_client::Client;

/// The exit code of a command, its words, and the arguments after its directory.
type Call<'a> = (i32, &'a [&'a str], &'a [&'a str]);

fn call(scratch: &Scratch, place: &[&str], (_, words, rest): Call<'_>, input: &str) -> Ended {
    scratch.run_with_input(&[words, place, rest].concat(), input.as_bytes())
}

/// Runs a command on a directory and on a server, and requires equal output. Times differ.
fn both(scratch: &Scratch, directory: &str, server: &Server, command: Call<'_>, input: &str) -> Ended {
    let near = call(scratch, &[directory], command, input);
    let far = call(scratch, &["--server", &server.place], command, input);
    let both = format!("{command:?}\n{}\n{}", near.stderr, far.stderr);
    assert_eq!((near.code, far.code), (command.0, command.0), "{both}");
    if command.1[0] == "subscribe" && command.2.contains(&"--json") {
        let without_time = |ended: &Ended| {
            let mut messages = ended.json();
            messages.iter_mut().for_each(|message| message["time"] = 0.into());
            messages
        };
        assert_eq!(without_time(&near), without_time(&far), "{both}");
    } else {
        assert_eq!(near.text(), far.text(), "{both}");
    }
    far
}

/// What changes a store, with its input. Some calls are refused.
const CHANGES: &[(Call<'static>, &str)] = &[
    ((0, &["maps", "create"], &["stock"]), ""),
    ((2, &["maps", "create"], &["stock"]), ""),
    ((0, &["maps", "create"], &["empty", "--json"]), ""),
    ((0, &["maps", "rename"], &["empty", "other", "--json"]), ""),
    ((2, &["maps", "rename"], &["missing", "other"]), ""),
    ((0, &["put"], &["apples", "12", "--map", "stock"]), ""),
    ((0, &["put"], &["pears", "-", "--map", "stock", "--json"]), "3\n"),
    ((0, &["put"], &["ada", "x\\x00y", "--map", "users", "--json"]), ""),
    ((0, &["put"], &["-1", "-2", "--map", "stock"]), ""),
    ((2, &["put"], &["a", "b"]), ""),
    ((0, &["delete"], &["pears", "--map", "stock"]), ""),
    ((1, &["delete"], &["pears", "--map", "stock"]), ""),
    ((1, &["delete"], &["pears", "--map", "stock", "--json"]), ""),
    ((2, &["delete"], &["pears", "--map", "missing"]), ""),
    ((0, &["put"], &["order/1", "one", "--map", "stock"]), ""),
    ((0, &["put"], &["order/2", "two", "--map", "stock"]), ""),
    (
        (0, &["delete"], &["--prefix", "order/1", "--map", "stock", "--json"]),
        "",
    ),
    (
        (1, &["delete"], &["--prefix", "order/1", "--map", "stock", "--json"]),
        "",
    ),
    ((2, &["maps", "drop"], &["stock"]), ""),
    ((0, &["maps", "drop"], &["other", "--json"]), ""),
    (
        (
            0,
            &["topics", "create"],
            &["sales", "--keep-messages", "1000", "--json"],
        ),
        "",
    ),
    ((2, &["topics", "create"], &["sales", "--keep-messages", "1000"]), ""),
    ((2, &["topics", "create"], &["sales", "--keep-messages", "1001"]), ""),
    ((0, &["topics", "create"], &["brief"]), ""),
    ((0, &["topics", "delete"], &["brief", "--json"]), ""),
    ((2, &["topics", "delete"], &["missing"]), ""),
    ((0, &["publish"], &["sales", "1 apple", "2 pears", "--json"]), ""),
    (
        (0, &["publish"], &["sales", "--lines", "--json", "--key", "k"]),
        "three\nfour\nfive",
    ),
    ((0, &["publish"], &["sales", "-", "--header", "a=b"]), "six"),
    ((2, &["publish"], &["sales", "x", "--expires", "60"]), ""),
    ((2, &["publish"], &["missing", "x"]), ""),
    ((0, &["publish"], &["made", "x", "--create", "--json"]), ""),
    ((0, &["publish"], &["sales", "seven", "--create", "--json"]), ""),
    ((2, &["topics", "delete"], &["sales"]), ""),
    (
        (
            0,
            &["groups", "create"],
            &["sales", "packers", "--tries", "1", "--json"],
        ),
        "",
    ),
    ((2, &["groups", "create"], &["sales", "packers", "--tries", "1"]), ""),
    (
        (
            0,
            &["groups", "create"],
            &["sales", "late", "--from", "last:2", "--filter-header", "a=*"],
        ),
        "",
    ),
    ((2, &["groups", "create"], &["missing", "late"]), ""),
    ((0, &["groups", "pause"], &["sales", "late", "--json"]), ""),
    ((0, &["groups"], &["sales"]), ""),
    ((0, &["groups", "resume"], &["sales", "late", "--json"]), ""),
    ((2, &["groups", "resume"], &["sales", "missing"]), ""),
    (
        (0, &["subscribe"], &["sales", "--group", "packers", "--count", "2"]),
        "",
    ),
    ((0, &["subscribe"], &["sales", "--group", "packers", "--no-ack"]), ""),
    ((2, &["subscribe"], &["sales", "--group", "missing"]), ""),
    ((0, &["subscribe"], &["sales", "--group", "late", "--json"]), ""),
    ((0, &["groups"], &["sales"]), ""),
    ((0, &["groups", "reset"], &["sales", "packers", "1", "--json"]), ""),
    (
        (0, &["subscribe"], &["sales", "--group", "packers", "--count", "1"]),
        "",
    ),
    ((0, &["redrive"], &["sales", "packers", "--json"]), ""),
    ((0, &["groups", "delete"], &["sales", "late", "--json"]), ""),
    ((2, &["groups", "delete"], &["sales", "late"]), ""),
    ((0, &["tree", "put"], &["web/port", "80"]), ""),
    ((0, &["tree", "put"], &["web/port", "443", "--json"]), ""),
    ((1, &["tree", "put"], &["web/port", "1", "--create"]), ""),
    ((1, &["tree", "put"], &["web/host", "x", "--if-version", "1"]), ""),
    ((0, &["tree", "put"], &["web/host", "x", "--if-version", "0"]), ""),
    ((2, &["tree", "put"], &["", "x"]), ""),
    ((3, &["tree", "put"], &["a", "x", "--lease", "9"]), ""),
    ((0, &["tree", "put"], &["0061", "00ff", "--hex", "--tree", "bytes"]), ""),
    (
        (0, &["tree", "txn"], &["--json"]),
        r#"{"if": [{"path": "web", "children": {"equal": 2}, "exists": false}],
            "then": [{"put": "web/port", "payload": "80"}, {"get": "web/port"}, {"delete": "none"}, {"delete_subtree": "none"}],
            "else": [{"delete_subtree": "web"}]}"#,
    ),
    (
        (1, &["tree", "txn"], &[]),
        r#"{"if": [{"path": "web/port", "payload": "443"}], "then": [{"delete": "web/port"}]}"#,
    ),
    ((2, &["tree", "txn"], &[]), r#"{"if": [{"path": "a", "like": "b"}]}"#),
    (
        (0, &["tree", "import"], &["--json"]),
        "{\"path\": \"db/1\", \"payload\": \"one\"}\n{\"path\": \"db/2/name\", \"payload\": \"two\"}\n",
    ),
    ((0, &["tree", "rm"], &["db/1", "--json"]), ""),
    ((1, &["tree", "rm"], &["db/1"]), ""),
    ((0, &["tree", "put"], &["db/1", "again"]), ""),
    ((0, &["tree", "compact"], &["--revision", "4"]), ""),
    ((0, &["tree", "compact"], &["--json", "--revision", "3"]), ""),
    ((2, &["tree", "compact"], &["--revision", "900"]), ""),
    ((0, &["tree", "put"], &["old/1", "x"]), ""),
    ((0, &["tree", "rm"], &["--pattern", "old/*"]), ""),
    ((0, &["tree", "put"], &["gone/1/2", "x", "--tree", "other"]), ""),
    ((0, &["tree", "rm"], &["gone", "--purge", "--tree", "other"]), ""),
    ((2, &["tree", "rm"], &["a", "--tree", "missing"]), ""),
    (
        (
            0,
            &["tree", "rule", "trigger"],
            &["say", "--pattern", "rule/**", "--topic", "sales", "--json"],
        ),
        "",
    ),
    (
        (
            0,
            &["tree", "rule", "trigger"],
            &["gone", "--pattern", "rule/*", "--topic", "sales", "--only", "delete"],
        ),
        "",
    ),
    (
        (
            2,
            &["tree", "rule", "trigger"],
            &["lost", "--pattern", "rule/*", "--topic", "missing"],
        ),
        "",
    ),
    (
        (
            0,
            &["tree", "rule", "projection"],
            &["flat", "--pattern", "rule/*", "--map", "rules"],
        ),
        "",
    ),
    (
        (
            2,
            &["tree", "rule", "projection"],
            &["taken", "--pattern", "rule/*", "--map", "stock"],
        ),
        "",
    ),
    (
        (
            0,
            &["tree", "rule", "projection"],
            &["with\ttab", "--pattern", "tabs/*", "--map", "tabs"],
        ),
        "",
    ),
    ((0, &["tree", "rule", "quota"], &["rule", "--nodes", "2"]), ""),
    ((0, &["tree", "put"], &["rule/1", "x"]), ""),
    ((0, &["tree", "put"], &["rule/2", "y"]), ""),
    ((4, &["tree", "put"], &["rule/3", "z"]), ""),
    ((0, &["tree", "rm"], &["rule/1"]), ""),
    ((0, &["tree", "rule", "rebuild"], &["flat"]), ""),
    ((2, &["tree", "rule", "rebuild"], &["missing"]), ""),
    (
        (0, &["tree", "rule", "quota"], &["rule/2", "--bytes", "900", "--json"]),
        "",
    ),
    ((0, &["tree", "rule", "remove"], &["quota", "rule/2"]), ""),
    ((0, &["tree", "rule", "remove"], &["trigger", "gone", "--json"]), ""),
    ((2, &["tree", "rule", "remove"], &["projection", "missing"]), ""),
];

/// What reads a store.
const READS: &[Call<'static>] = &[
    (0, &["tree", "rule", "list"], &[]),
    (0, &["tree", "rule", "list"], &["--json"]),
    (2, &["tree", "rule", "list"], &["--tree", "missing"]),
    (0, &["maps"], &[]),
    (0, &["maps"], &["--json"]),
    (0, &["maps"], &["--count"]),
    (0, &["maps"], &["--count", "--json"]),
    (0, &["get"], &["apples", "--map", "stock"]),
    (0, &["get"], &["apples", "--map", "stock", "--json"]),
    (0, &["get"], &["apples", "--map", "stock", "--raw"]),
    (0, &["get"], &["616461", "--map", "users", "--hex"]),
    (0, &["get"], &["-1", "--map", "stock"]),
    (1, &["get"], &["missing", "--map", "stock"]),
    (1, &["get"], &["missing", "--map", "stock", "--json"]),
    (1, &["get"], &["missing", "--map", "stock", "--raw"]),
    (2, &["get"], &["a", "--map", "missing"]),
    (2, &["get"], &["a"]),
    (0, &["scan"], &["--map", "stock"]),
    (0, &["scan"], &["--map", "stock", "--json", "--reverse"]),
    (0, &["scan"], &["--map", "stock", "--keys-only", "--limit", "1"]),
    (0, &["scan"], &["--map", "stock", "--keys-only", "--json"]),
    (0, &["scan"], &["--map", "stock", "--limit", "0"]),
    (0, &["scan"], &["--map", "stock", "--prefix", "ap"]),
    (0, &["scan"], &["--map", "stock", "--from", "b"]),
    (0, &["scan"], &["--map", "stock", "--to", "b"]),
    (0, &["scan"], &["--map", "stock", "--from", "a", "--to", "b"]),
    (2, &["scan"], &["--map", "missing"]),
    (0, &["topics"], &[]),
    (0, &["topics"], &["--json"]),
    (0, &["subscribe"], &["sales"]),
    (0, &["subscribe"], &["sales", "--json"]),
    (0, &["subscribe"], &["sales", "--from", "last:2", "--hex"]),
    (0, &["subscribe"], &["sales", "--from", "2", "--count", "2"]),
    (2, &["subscribe"], &["sales", "--from", "900"]),
    (0, &["subscribe"], &["sales", "--from", "7"]),
    (0, &["subscribe"], &["sales", "--from", "tail"]),
    (0, &["subscribe"], &["sales", "--from", "time:1"]),
    (0, &["subscribe"], &["sales", "--from", "time:9999999999"]),
    (0, &["subscribe"], &["sales", "--count", "0"]),
    (2, &["subscribe"], &["missing"]),
    (0, &["groups"], &[]),
    (0, &["groups"], &["sales"]),
    (2, &["groups"], &["missing"]),
    (0, &["groups"], &["sales", "--pending", "packers"]),
    (0, &["groups"], &["sales", "--pending", "packers", "--json"]),
    (2, &["groups"], &["sales", "--pending", "missing"]),
    (0, &["dead-letters"], &["sales"]),
    (2, &["dead-letters"], &["missing"]),
    (0, &["tree", "list"], &[]),
    (0, &["tree", "list"], &["--json"]),
    (0, &["tree", "get"], &["web/port"]),
    (0, &["tree", "get"], &["web/port", "--json"]),
    (0, &["tree", "get"], &["0061", "--hex", "--tree", "bytes"]),
    (0, &["tree", "get"], &["web/port", "--revision", "4"]),
    (2, &["tree", "get"], &["web/port", "--revision", "3"]),
    (1, &["tree", "get"], &["web"]),
    (2, &["tree", "get"], &["web", "--tree", "missing"]),
    (0, &["tree", "ls"], &[]),
    (0, &["tree", "ls"], &["--json"]),
    (0, &["tree", "ls"], &["db", "--limit", "1"]),
    (0, &["tree", "ls"], &["db", "--limit", "0"]),
    (0, &["tree", "ls"], &["db", "--after", "1", "--json"]),
    (0, &["tree", "ls"], &["--pattern", "**"]),
    (
        0,
        &["tree", "ls"],
        &["--pattern", "*/{port|1}", "--json", "--revision", "5"],
    ),
    (0, &["tree", "export"], &[]),
    (0, &["tree", "export"], &["--pattern", "web/*"]),
    (0, &["tree", "watch"], &["--from", "4", "--count", "5"]),
    (0, &["tree", "watch"], &["web", "--from", "4", "--count", "2", "--json"]),
    (2, &["tree", "watch"], &["--from", "2", "--count", "1"]),
];

#[test]
fn commands_do_on_a_server_what_they_do_on_a_directory() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("far"));
    for (command, input) in CHANGES {
        both(&scratch, "near", &server, *command, input);
    }
    for command in READS {
        both(&scratch, "near", &server, *command, "");
        // The store of the server is open in two processes then.
        both(&scratch, "far", &server, *command, "");
    }
}

#[test]
fn dead_letters_come_from_a_server_too() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("shop"));
    let at = ["--server", &server.place];
    scratch.done(&["publish", at[0], at[1], "sales", "1 apple", "--create"]);
    scratch.done(&["groups", "create", at[0], at[1], "sales", "packers"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let group = Client::connect(&server.place).unwrap().topic("sales").group("packers");
        let mut member = group.join("worker").await.unwrap();
        let deliveries = member.receive().await.unwrap().unwrap();
        deliveries.give_up(0, "broken box").await.unwrap();
    });
    for rest in [&["dead.sales"][..], &["dead.sales", "--json"]] {
        let letters = both(&scratch, "shop", &server, (0, &["dead-letters"], rest), "");
        assert!(letters.text().contains("broken box"), "{}", letters.text());
    }
    let redriven = call(
        &scratch,
        &["--server", &server.place],
        (0, &["redrive"], &["sales", "packers", "--json"]),
        "",
    );
    assert_eq!(redriven.json()[0]["delivered"], 1, "{}", redriven.stderr);
}

#[test]
fn a_store_is_looked_after_through_its_server() {
    let scratch = Scratch::new();
    scratch.done(&["put", "shop", "apples", "12", "--map", "stock"]);
    let server = Server::start(&scratch.path("shop"));
    let at = ["--server", &server.place];
    for command in ["stat", "check", "compact"] {
        let near = scratch.done(&[command, "shop", "--json"]).json();
        let far = scratch.done(&[&[command], &at[..], &["--json"]].concat()).json();
        let far = far[0].as_object().unwrap();
        assert!(!far.is_empty());
        if command == "compact" {
            assert!(far["bytes_after"].as_u64().unwrap() > 0);
            continue;
        }
        // A server tells less.
        for (name, value) in far {
            assert_eq!(&near[0][name], value, "{command}: {name}");
        }
    }
    assert!(scratch.done(&["stat", at[0], at[1]]).text().starts_with("1 map\n"));
    assert!(scratch.done(&["check", at[0], at[1]]).text().starts_with("sound: read"));
}

#[test]
fn a_server_exports_its_store_to_the_place_of_its_setting() {
    let scratch = Scratch::new();
    scratch.done(&["put", "shop", "apples", "12", "--map", "stock"]);
    let backups = scratch.path("backups");
    let server = Server::start_with(&scratch.path("shop"), &["--backup-place", backups.to_str().unwrap()]);
    let export = |code: i32, rest: &[&str]| {
        let ended = scratch.run(&[&["export", "--server", &server.place], rest].concat());
        assert_eq!(ended.code, code, "{rest:?}: {}", ended.stderr);
        ended
    };
    let first = export(0, &["--metadata", "before the sale", "--json"]);
    assert_eq!(first.json()[0]["number"], 1);
    assert!(first.json()[0]["after"].is_null());
    scratch.done(&["put", "shop", "pears", "3", "--map", "stock"]);
    assert!(export(0, &[]).stderr.contains("after 1"));
    assert!(export(0, &["--full"]).stderr.contains("full"));
    assert!(export(2, &["elsewhere"]).stderr.contains("cannot be used with"));
    assert!(export(2, &["--uncompressed"]).stderr.contains("--full and --metadata"));
    drop(server);
    scratch.done(&["verify", "backups"]);
    // Near and far, an export looks alike.
    let mut listed = scratch.done(&["exports", "backups", "--json"]).json().remove(0);
    let log = ["segments", "log_bytes"].map(|figure| listed.as_object_mut().unwrap().remove(figure).unwrap());
    assert_eq!(log, [0, 0]);
    assert_eq!(listed, first.json()[0]);
    scratch.done(&["import", "backups", "copy"]);
    assert_eq!(scratch.done(&["get", "copy", "pears"]).text(), "3\n");

    for (place, words) in [("", "--backup-place"), ("shop/inside", "is in the store")] {
        let place = match place {
            "" => String::new(),
            place => scratch.path(place).display().to_string(),
        };
        let server = Server::start_with(&scratch.path("shop"), &["--backup-place", &place]);
        let refused = scratch.run(&["export", "--server", &server.place]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
}

#[test]
fn checkpoints_are_kept_and_dropped_through_a_server() {
    let scratch = Scratch::new();
    scratch.done(&["put", "shop", "apples", "12", "--map", "stock"]);
    let mut server = Server::start(&scratch.path("shop"));
    let place = server.place.clone();
    let far = |(code, action, rest): (i32, &str, &[&str])| {
        let ended = scratch.run(&[&["checkpoint", action, "--server", &place], rest].concat());
        assert_eq!(ended.code, code, "{action} {rest:?}: {}", ended.stderr);
        ended
    };
    let near = |(action, rest): (&str, &[&str])| scratch.run(&[&["checkpoint", action, "shop"], rest].concat());
    let made = far((0, "create", &["monday", "--metadata", "offset 7", "--json"]));
    assert_eq!(made.json()[0]["metadata"], "offset 7");
    assert!(made.json()[0].get("bytes_alone").is_none());
    scratch.done(&["put", "shop", "apples", "3", "--map", "stock"]);
    far((0, "create", &["tuesday"]));
    let again = far((2, "create", &["monday"]));
    assert!(again.stderr.contains("drop that one first"), "{}", again.stderr);

    // Equal output, and equal exit codes.
    for (code, action, rest) in [
        (0, "list", &[][..]),
        (0, "list", &["--json"]),
        (0, "show", &["monday", "--json"]),
        (1, "show", &["never"]),
        (0, "diff", &["monday", "tuesday"]),
        (0, "diff", &["monday", "tuesday", "--json"]),
        (0, "diff", &["monday", "tuesday", "--keys-only"]),
        (0, "diff", &["monday", "tuesday", "--keys-only", "--json"]),
        (2, "diff", &["monday", "never"]),
        (1, "drop", &["never"]),
    ] {
        let (there, here) = (far((code, action, rest)), near((action, rest)));
        assert_eq!(here.code, code, "{action} {rest:?}: {}", here.stderr);
        // Ages in the table differ when a second passes in between.
        if rest.is_empty() {
            assert_eq!(there.text().lines().count(), here.text().lines().count());
        } else {
            assert_eq!(there.text(), here.text(), "{action} {rest:?}");
        }
    }

    far((1, "restore", &["never"]));
    assert_eq!(scratch.done(&["get", "shop", "apples"]).text(), "3\n");
    // The server ends by itself, whether it or another process restores its store.
    far((0, "restore", &["tuesday", "--json"]));
    assert_eq!(server.process.wait().unwrap().code(), Some(6));
    let mut server = Server::start(&scratch.path("shop"));
    scratch.done(&["checkpoint", "restore", "shop", "monday"]);
    assert_eq!(server.process.wait().unwrap().code(), Some(6));

    let server = Server::start(&scratch.path("shop"));
    let at = |rest: &[&str]| scratch.done(&[rest, &["--server", &server.place]].concat());
    assert_eq!(at(&["get", "apples"]).text(), "12\n");
    let dropped = at(&["checkpoint", "drop", "--keep-last", "1", "--json"]);
    assert_eq!(dropped.json()[0]["dropped"], 1);
    at(&["checkpoint", "drop", "tuesday"]);
    assert_eq!(at(&["checkpoint", "list"]).text(), "");
}

#[test]
fn a_subscriber_goes_on_when_the_server_comes_back() {
    let scratch = Scratch::new();
    let socket = scratch.path("socket").display().to_string();
    let start = || Server::start_with(&scratch.path("shop"), &["--listen", "", "--unix-socket", &socket]);
    let server = start();
    // A path is a place, also without `unix:`.
    let at = ["--server", &socket];
    scratch.done(&["publish", at[0], at[1], "sales", "one", "--create"]);
    let mut subscriber = scratch
        .command(BINARY)
        .args(["subscribe", at[0], at[1], "sales", "--follow", "--count", "2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "0\tone");
    server.kill();
    let _server = start();
    scratch.done(&["publish", at[0], at[1], "sales", "two"]);
    assert_eq!(lines.next().unwrap().unwrap(), "1\ttwo");
    assert!(subscriber.wait().unwrap().success());
}

#[test]
fn errors_name_the_cause_and_the_cure() {
    let scratch = Scratch::new();
    scratch.done(&["maps", "create", "shop", "stock"]);
    let created = scratch.done(&["token", "create", "ada", "--data-dir", "shop", "--allow", "read:*"]);
    let token = created.text().lines().next().unwrap().to_string();
    std::fs::write(scratch.path("token"), format!("{token}\n")).unwrap();
    let server = Server::start(&scratch.path("shop"));
    let at = |rest: &[&str]| scratch.run(&[&["maps", "--server", &server.place], rest].concat());

    for given in [&[][..], &["--token", "dur_wrong"]] {
        let refused = at(given);
        assert_eq!(refused.code, 2);
        assert!(
            refused.stderr.contains("hint: give a valid token"),
            "{}",
            refused.stderr
        );
    }
    for given in [["--token", &token], ["--token-file", "token"]] {
        assert_eq!(at(&given).code, 0);
    }
    let refused = scratch.run(&[
        "put",
        "--server",
        &server.place,
        "k",
        "v",
        "--map",
        "m",
        "--token",
        &token,
    ]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("hint: use a token with this permission"),
        "{}",
        refused.stderr
    );
    let unknown = scratch.run(&["get", "--server", &server.place, "k", "--map", "m", "--token", &token]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("lists the maps"), "{}", unknown.stderr);

    // What needs the files, or what a server does not know.
    for command in [
        &["copy", "copied"][..],
        &["topics", "--describe"],
        &["topics", "configure", "sales"],
        &["topics", "create", "sales", "--discard-new"],
        &["subscribe", "sales", "--durable", "me"],
        &["subscribe", "sales.*"],
        &["publish", "sales", "x", "--id", "1"],
        &["get", "shop", "k", "more"],
    ] {
        let refused = scratch.run(&[command, &["--server", &server.place, "--token", &token]].concat());
        assert_eq!(refused.code, 2, "{command:?}: {}", refused.stderr);
    }

    let place = server.place.clone();
    server.kill();
    let absent = scratch.run(&["maps", "--server", &place]);
    assert_eq!(absent.code, 3);
    assert!(absent.stderr.contains("cannot connect"), "{}", absent.stderr);
    assert!(absent.stderr.contains("hint: `duramen health"), "{}", absent.stderr);
}

/// A map that keeps its changes is watched from its beginning, and from a change on.
#[test]
fn a_map_of_a_server_is_watched() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("shop"));
    let place = ["--server", &server.place];
    let done = |words: &[&str], rest: &[&str]| {
        let ended = scratch.run_with_input(&[words, &place[..], rest].concat(), b"");
        assert_eq!(ended.code, 0, "{words:?} {rest:?}: {}", ended.stderr);
        ended
    };
    done(
        &["maps", "create"],
        &["prices", "--keep-changes", "none", "--keep-change-bytes", "100000"],
    );
    done(&["put"], &["apples", "30", "--map", "prices"]);
    done(&["put"], &["apples", "31", "--map", "prices"]);
    done(&["put"], &["other", "1", "--map", "prices"]);
    done(&["delete"], &["apples", "--map", "prices"]);
    let watch = |rest: &[&str]| done(&["watch"], &[&["--map", "prices"], rest].concat());
    let all = watch(&["--start", "earliest", "--count", "4"]);
    assert_eq!(
        all.text(),
        "1\tput\tapples\t30\n2\tput\tapples\t31\n3\tput\tother\t1\n4\tdelete\tapples\t\n"
    );
    let last = watch(&["--start", "3", "--count", "1", "--json"]);
    assert_eq!(
        last.json()[0],
        serde_json::json!({"number": 4, "key": "apples", "old": "31", "new": null})
    );
    let pairs = watch(&["--start", "current", "--count", "1", "--prefix", "o"]);
    assert_eq!(pairs.text(), "\tpair\tother\t1\n");
    let refused = |words: &[&str], rest: &[&str], says: &str| {
        let ended = scratch.run_with_input(&[words, &place[..], rest].concat(), b"");
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    };
    done(&["maps", "create"], &["plain"]);
    refused(&["watch"], &["--map", "plain"], "keeps no changes");
    refused(&["watch"], &["--map", "prices", "--start", "9"], "has the number 4");
    refused(&["maps", "create"], &["prices", "--keep-changes", "7"], "ConfigureMap");
    let in_directory = scratch.run_with_input(&["watch", "shop", "--map", "plain", "--start", "current"], b"");
    assert_eq!(in_directory.code, 2);
    assert!(in_directory.stderr.contains("--server"), "{}", in_directory.stderr);
}

/// A value that is longer than a message of the server.
#[test]
fn long_values_go_to_a_server_and_come_back() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch.path("shop"));
    let value: Vec<u8> = (0..21 << 20).map(|n: usize| (n % 251) as u8).collect();
    let place = ["--server", &server.place];
    let stored = scratch.run_with_input(
        &[&["put"], &place[..], &["film", "-", "--map", "films"]].concat(),
        &value,
    );
    assert_eq!(stored.code, 0, "{}", stored.stderr);
    let read = scratch.run_with_input(
        &[&["get"], &place[..], &["film", "--map", "films", "--raw"]].concat(),
        b"",
    );
    assert_eq!(read.code, 0, "{}", read.stderr);
    assert!(read.stdout == value);
}
