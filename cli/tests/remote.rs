//! Commands work on a server as on a directory: equal output, and equal exit codes.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{BINARY, Ended, Scratch, Server};

/// The words of a command, and the arguments after its directory.
type Call<'a> = (&'a [&'a str], &'a [&'a str]);

fn call(scratch: &Scratch, place: &[&str], (words, rest): Call<'_>, input: &str) -> Ended {
    scratch.run_with_input(&[words, place, rest].concat(), input.as_bytes())
}

/// Runs a command on a directory and on a server, and requires equal output. Times differ.
fn both(scratch: &Scratch, directory: &str, server: &Server, command: Call<'_>, input: &str) -> Ended {
    let near = call(scratch, &[directory], command, input);
    let far = call(scratch, &["--server", &server.place], command, input);
    let both = format!("{command:?}\n{}\n{}", near.stderr, far.stderr);
    assert_eq!(near.code, far.code, "{both}");
    if command.0[0] == "subscribe" && command.1.contains(&"--json") {
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
    ((&["maps", "create"], &["stock"]), ""),
    ((&["maps", "create"], &["stock"]), ""),
    ((&["maps", "create"], &["empty", "--json"]), ""),
    ((&["maps", "rename"], &["empty", "other", "--json"]), ""),
    ((&["maps", "rename"], &["missing", "other"]), ""),
    ((&["put"], &["apples", "12", "--map", "stock"]), ""),
    ((&["put"], &["pears", "-", "--map", "stock", "--json"]), "3\n"),
    ((&["put"], &["ada", "x\\x00y", "--map", "users", "--json"]), ""),
    ((&["put"], &["-1", "-2", "--map", "stock"]), ""),
    ((&["put"], &["a", "b"]), ""),
    ((&["delete"], &["pears", "--map", "stock"]), ""),
    ((&["delete"], &["pears", "--map", "stock"]), ""),
    ((&["delete"], &["pears", "--map", "stock", "--json"]), ""),
    ((&["delete"], &["pears", "--map", "missing"]), ""),
    ((&["put"], &["order/1", "one", "--map", "stock"]), ""),
    ((&["put"], &["order/2", "two", "--map", "stock"]), ""),
    ((&["delete"], &["--prefix", "order/1", "--map", "stock", "--json"]), ""),
    ((&["delete"], &["--prefix", "order/1", "--map", "stock", "--json"]), ""),
    ((&["maps", "drop"], &["stock"]), ""),
    ((&["maps", "drop"], &["other", "--json"]), ""),
    (
        (&["topics", "create"], &["sales", "--keep-messages", "1000", "--json"]),
        "",
    ),
    ((&["topics", "create"], &["sales", "--keep-messages", "1000"]), ""),
    ((&["topics", "create"], &["sales", "--keep-messages", "1001"]), ""),
    ((&["topics", "create"], &["brief"]), ""),
    ((&["topics", "delete"], &["brief", "--json"]), ""),
    ((&["topics", "delete"], &["missing"]), ""),
    ((&["publish"], &["sales", "1 apple", "2 pears", "--json"]), ""),
    (
        (&["publish"], &["sales", "--lines", "--json", "--key", "k"]),
        "three\nfour\nfive",
    ),
    ((&["publish"], &["sales", "-", "--header", "a=b"]), "six"),
    ((&["publish"], &["sales", "x", "--expires", "60"]), ""),
    ((&["publish"], &["missing", "x"]), ""),
    ((&["publish"], &["made", "x", "--create", "--json"]), ""),
    ((&["publish"], &["sales", "seven", "--create", "--json"]), ""),
    ((&["topics", "delete"], &["sales"]), ""),
    (
        (&["groups", "create"], &["sales", "packers", "--tries", "1", "--json"]),
        "",
    ),
    ((&["groups", "create"], &["sales", "packers", "--tries", "1"]), ""),
    (
        (
            &["groups", "create"],
            &["sales", "late", "--from", "last:2", "--filter-header", "a=*"],
        ),
        "",
    ),
    ((&["groups", "create"], &["missing", "late"]), ""),
    ((&["groups", "pause"], &["sales", "late", "--json"]), ""),
    ((&["groups"], &["sales"]), ""),
    ((&["groups", "resume"], &["sales", "late", "--json"]), ""),
    ((&["groups", "resume"], &["sales", "missing"]), ""),
    ((&["subscribe"], &["sales", "--group", "packers", "--count", "2"]), ""),
    ((&["subscribe"], &["sales", "--group", "packers", "--no-ack"]), ""),
    ((&["subscribe"], &["sales", "--group", "missing"]), ""),
    ((&["subscribe"], &["sales", "--group", "late", "--json"]), ""),
    ((&["groups"], &["sales"]), ""),
    ((&["groups", "reset"], &["sales", "packers", "1", "--json"]), ""),
    ((&["subscribe"], &["sales", "--group", "packers", "--count", "1"]), ""),
    ((&["redrive"], &["sales", "packers", "--json"]), ""),
    ((&["groups", "delete"], &["sales", "late", "--json"]), ""),
    ((&["groups", "delete"], &["sales", "late"]), ""),
];

/// What reads a store.
const READS: &[Call<'static>] = &[
    (&["maps"], &[]),
    (&["maps"], &["--json"]),
    (&["maps"], &["--count"]),
    (&["maps"], &["--count", "--json"]),
    (&["get"], &["apples", "--map", "stock"]),
    (&["get"], &["apples", "--map", "stock", "--json"]),
    (&["get"], &["apples", "--map", "stock", "--raw"]),
    (&["get"], &["616461", "--map", "users", "--hex"]),
    (&["get"], &["-1", "--map", "stock"]),
    (&["get"], &["missing", "--map", "stock"]),
    (&["get"], &["missing", "--map", "stock", "--json"]),
    (&["get"], &["missing", "--map", "stock", "--raw"]),
    (&["get"], &["a", "--map", "missing"]),
    (&["get"], &["a"]),
    (&["scan"], &["--map", "stock"]),
    (&["scan"], &["--map", "stock", "--json", "--reverse"]),
    (&["scan"], &["--map", "stock", "--keys-only", "--limit", "1"]),
    (&["scan"], &["--map", "stock", "--keys-only", "--json"]),
    (&["scan"], &["--map", "stock", "--limit", "0"]),
    (&["scan"], &["--map", "stock", "--prefix", "ap"]),
    (&["scan"], &["--map", "stock", "--from", "b"]),
    (&["scan"], &["--map", "stock", "--to", "b"]),
    (&["scan"], &["--map", "stock", "--from", "a", "--to", "b"]),
    (&["scan"], &["--map", "missing"]),
    (&["topics"], &[]),
    (&["topics"], &["--json"]),
    (&["subscribe"], &["sales"]),
    (&["subscribe"], &["sales", "--json"]),
    (&["subscribe"], &["sales", "--from", "last:2", "--hex"]),
    (&["subscribe"], &["sales", "--from", "2", "--count", "2"]),
    (&["subscribe"], &["sales", "--from", "900"]),
    (&["subscribe"], &["sales", "--from", "7"]),
    (&["subscribe"], &["sales", "--from", "tail"]),
    (&["subscribe"], &["sales", "--from", "time:1"]),
    (&["subscribe"], &["sales", "--from", "time:9999999999"]),
    (&["subscribe"], &["sales", "--count", "0"]),
    (&["subscribe"], &["missing"]),
    (&["groups"], &[]),
    (&["groups"], &["sales"]),
    (&["groups"], &["missing"]),
    (&["groups"], &["sales", "--pending", "packers"]),
    (&["groups"], &["sales", "--pending", "packers", "--json"]),
    (&["groups"], &["sales", "--pending", "missing"]),
    (&["dead-letters"], &["sales"]),
    (&["dead-letters"], &["missing"]),
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
    scratch.done(&["publish", "shop", "sales", "1 apple", "--create"]);
    scratch.done(&[
        "groups", "create", "shop", "sales", "packers", "--tries", "1", "--lease", "0.001",
    ]);
    scratch.done(&["subscribe", "shop", "sales", "--group", "packers", "--no-ack"]);
    // The message has failed the last time once the group looks for more.
    scratch.done(&["subscribe", "shop", "sales", "--group", "packers"]);
    let server = Server::start(&scratch.path("shop"));
    for rest in [&["dead.sales"][..], &["dead.sales", "--json"]] {
        let letters = both(&scratch, "shop", &server, (&["dead-letters"], rest), "");
        assert_eq!(letters.text().lines().count(), 1, "{}", letters.stderr);
    }
    let redriven = call(
        &scratch,
        &["--server", &server.place],
        (&["redrive"], &["sales", "packers", "--json"]),
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
