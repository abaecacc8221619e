//! The commands for topics and groups on real stores.

mod common;

use common::Scratch;

fn shop() -> Scratch {
    let scratch = Scratch::new();
    for message in ["1 apple", "2 pears", "3 plums"] {
        scratch.done(&["publish", "shop", "sales", message, "--create"]);
    }
    scratch
}

#[test]
fn what_was_published_is_printed_from_where_one_asks() {
    let scratch = shop();
    let printed = |arguments: &[&str]| {
        let ended = scratch.done(&[&["subscribe", "shop", "sales"], arguments].concat());
        ended.text().to_string()
    };
    assert_eq!(printed(&[]), "0\t1 apple\n1\t2 pears\n2\t3 plums\n");
    assert_eq!(printed(&["--from", "last:1"]), "2\t3 plums\n");
    assert_eq!(printed(&["--from", "1", "--count", "1"]), "1\t2 pears\n");
    assert_eq!(printed(&["--from", "tail"]), "");
    assert_eq!(printed(&["--from", "time:0", "--count", "1"]), "0\t1 apple\n");
    assert_eq!(scratch.run(&["subscribe", "shop", "sales", "--from", "9"]).code, 2);
    assert_eq!(scratch.run(&["subscribe", "shop", "sales", "--from", "never"]).code, 2);
    let unknown = scratch.run(&["subscribe", "shop", "other"]);
    assert!(
        unknown.code == 2 && unknown.stderr.contains("no topic named \"other\""),
        "{}",
        unknown.stderr
    );
}

#[test]
fn keys_headers_and_lines_arrive() {
    let scratch = shop();
    scratch.done(&[
        "publish", "shop", "sales", "x", "--key", "k\\x00", "--header", "a=1", "--header", "b=c=d",
    ]);
    let ended = scratch.shell("printf 'one\\ntwo\\nthree' | duramen publish shop sales --lines --rate 10000");
    assert!(
        ended.code == 0 && ended.stderr.contains("published 3 messages"),
        "{}",
        ended.stderr
    );
    let json = scratch
        .done(&["subscribe", "shop", "sales", "--from", "3", "--json"])
        .json();
    assert_eq!(json.len(), 4);
    assert_eq!(json[0]["key"], "k\\x00");
    assert_eq!(json[0]["headers"], serde_json::json!([["a", "1"], ["b", "c=d"]]));
    assert_eq!((&json[3]["payload"], &json[3]["offset"]), (&"three".into(), &6.into()));
    assert_eq!(scratch.run(&["publish", "shop", "sales"]).code, 2);
    assert_eq!(scratch.run(&["publish", "shop", "missing", "x"]).code, 2);
}

#[test]
fn topics_are_listed_configured_copied_and_deleted() {
    let scratch = shop();
    scratch.done(&["maps", "create", "shop", "stock"]);
    scratch.done(&["topics", "create", "shop", "returns"]);
    assert_eq!(scratch.done(&["topics", "shop"]).text(), "returns\nsales\n");
    assert_eq!(scratch.done(&["maps", "shop"]).text(), "stock\n");
    scratch.done(&["topics", "configure", "shop", "sales", "--keep-messages", "1"]);
    let json = scratch.done(&["topics", "shop", "--describe", "--json"]).json();
    assert_eq!(
        (&json[1]["first"], &json[1]["next"], &json[1]["messages"]),
        (&2.into(), &3.into(), &1.into())
    );
    scratch.done(&["copy", "shop", "copied"]);
    assert_eq!(scratch.done(&["subscribe", "copied", "sales"]).text(), "2\t3 plums\n");
    let dumped = scratch.done(&["dump", "shop"]);
    assert!(dumped.stderr.contains("topics are not in a dump"), "{}", dumped.stderr);
    let trimmed = scratch.run(&["subscribe", "shop", "sales", "--from", "0"]);
    assert!(
        trimmed.code == 2 && trimmed.stderr.contains("offset 2"),
        "{}",
        trimmed.stderr
    );
    assert_eq!(scratch.run(&["topics", "delete", "shop", "sales"]).code, 2);
    scratch.done(&["topics", "delete", "shop", "sales", "--force"]);
    assert_eq!(scratch.done(&["topics", "shop"]).text(), "returns\n");
    assert_eq!(scratch.done(&["check", "shop"]).code, 0);
    assert_eq!(scratch.run(&["topics", "create", "shop", "a b"]).code, 2);
}

#[test]
fn a_group_takes_gives_up_and_takes_again() {
    let scratch = shop();
    let group = [
        "groups",
        "create",
        "shop",
        "sales",
        "packers",
        "--tries",
        "1",
        "--dead-letters",
        "sales.dead",
    ];
    scratch.done(&[&group[..], &["--lease", "1"]].concat());
    let taken = |arguments: &[&str]| {
        let take = ["subscribe", "shop", "sales", "--group", "packers"];
        scratch.done(&[&take, arguments].concat()).text().to_string()
    };
    assert_eq!(taken(&["--count", "1"]), "0\t1 apple\n");
    assert_eq!(taken(&["--count", "1", "--no-ack"]), "1\t2 pears\n");
    assert_eq!(
        scratch.done(&["groups", "shop", "sales"]).text(),
        "packers\tgroup\t1\t1\t1\n"
    );
    let pending = scratch.done(&["groups", "shop", "sales", "--pending", "packers"]);
    assert_eq!(pending.text(), "1\t1\tduramen subscribe\t\n");
    scratch.done(&["groups", "pause", "shop", "sales", "packers"]);
    assert_eq!(taken(&[]), "");
    scratch.done(&["groups", "resume", "shop", "sales", "packers"]);
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    assert_eq!(taken(&[]), "2\t3 plums\n");
    let letters = scratch.done(&["dead-letters", "shop", "sales.dead", "--json"]).json();
    assert_eq!(
        (&letters[0]["offset"], &letters[0]["payload"]),
        (&1.into(), &"2 pears".into())
    );
    let redriven = scratch.done(&["redrive", "shop", "sales", "packers", "--json"]).json();
    assert_eq!(redriven[0]["delivered"], 1);
    assert_eq!(taken(&[]), "1\t2 pears\n");
    scratch.done(&["groups", "reset", "shop", "sales", "packers", "last:1"]);
    assert_eq!(taken(&[]), "2\t3 plums\n");
    scratch.done(&["groups", "delete", "shop", "sales", "packers"]);
    assert_eq!(scratch.done(&["groups", "shop", "sales"]).text(), "");
    assert_eq!(scratch.run(&["groups", "pause", "shop", "sales", "packers"]).code, 2);
}

#[test]
fn topics_are_named_as_lost_when_a_store_is_salvaged() {
    let scratch = shop();
    scratch.done(&["put", "shop", "apples", "3", "--map", "stock"]);
    let ended = scratch.run(&["salvage", "shop", "rest", "--json"]);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    let report = &ended.json()[0];
    assert_eq!(
        report["lost"],
        serde_json::json!(["topic \"sales\" with its messages and groups"])
    );
    assert_eq!(report["pairs"], 1);
}
