//! The commands for topics and groups on real stores.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::Scratch;
use duramen::Store;
use duramen::topic::{SlowPolicy, Start, SubscribeOptions, Topics};
use serde_json::{Value, json};

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
fn arguments_files_and_standard_input_are_messages() {
    let scratch = shop();
    let json = scratch
        .done(&["publish", "shop", "sales", "--json", "4 quinces", "-5", "\\x2d"])
        .json();
    let offsets: Vec<_> = json.iter().map(|published| &published["offset"]).collect();
    assert_eq!(offsets, [3, 4, 5]);
    let ended = scratch.shell("printf 'two\nlines' | duramen publish shop sales before - after");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let files = "printf a > a; printf b > b; duramen publish shop sales --file a --file b";
    assert_eq!(scratch.shell(files).code, 0);
    assert_eq!(
        scratch.done(&["subscribe", "shop", "sales", "--from", "3"]).text(),
        "3\t4 quinces\n4\t-5\n5\t-\n6\tbefore\n7\ttwo\\nlines\n8\tafter\n9\ta\n10\tb\n"
    );
    for wrong in [
        &["-", "-"][..],
        &["x", "--file", "a"],
        &["x", "--lines"],
        &["--file", "none"],
    ] {
        let ended = scratch.run(&[&["publish", "shop", "sales"], wrong].concat());
        assert_eq!(ended.code, 2, "{wrong:?}: {}", ended.stderr);
    }
    assert_eq!(scratch.done(&["subscribe", "shop", "sales", "--from", "11"]).text(), "");
}

#[test]
fn a_pattern_stands_for_all_topics_that_match() {
    let scratch = shop();
    scratch.done(&["publish", "shop", "sales.eu", "12 apples", "--create"]);
    scratch.done(&["publish", "shop", "returns", "1 plum", "--create"]);
    let printed = |arguments: &[&str]| scratch.done(&[&["subscribe", "shop"], arguments].concat());
    assert_eq!(printed(&["sales.>"]).text(), "sales.eu\t0\t12 apples\n");
    let all = printed(&["*", "--from", "last:1"]);
    let mut lines: Vec<&str> = all.text().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["returns\t0\t1 plum", "sales\t2\t3 plums"]);
    assert_eq!(printed(&["*.us"]).text(), "");
    assert_eq!(printed(&[">", "--json", "--count", "2"]).json().len(), 2);
    for wrong in [&["sales.>.x"][..], &["sales*"], &["sales.>", "--group", "packers"]] {
        let ended = scratch.run(&[&["subscribe", "shop"], wrong].concat());
        assert_eq!(ended.code, 2, "{wrong:?}: {}", ended.stderr);
    }
}

#[test]
fn a_group_over_a_pattern_is_created_read_listed_changed_and_deleted() {
    let scratch = shop();
    let group = ["shop", "sales.*", "shippers"];
    let groups = |command: &str, more: &[&str]| scratch.done(&[&["groups", command], &group[..], more].concat());
    groups("create", &["--tries", "3"]);
    let refused = scratch.run(&[&["groups", "create"], &group[..]].concat());
    assert!(
        refused.code == 2 && refused.stderr.contains("its tries is Some(3)"),
        "{}",
        refused.stderr
    );
    scratch.done(&["publish", "shop", "sales.eu", "12 apples", "--create"]);
    scratch.done(&["publish", "shop", "sales.us", "1 plum", "--create"]);
    let taken = |more: &[&str]| {
        let call = ["subscribe", "shop", "sales.*", "--group", "shippers"];
        let ended = scratch.done(&[&call[..], more].concat());
        let mut lines: Vec<String> = ended.text().lines().map(String::from).collect();
        lines.sort_unstable();
        lines
    };
    groups("pause", &[]);
    assert!(taken(&[]).is_empty());
    let listed = scratch.done(&["groups", "shop"]).text().to_string();
    assert!(
        listed.ends_with("sales.*\tshippers\tpaused-pattern-group\t-\t0\t2\t0\n"),
        "{listed}"
    );
    groups("resume", &[]);
    assert_eq!(taken(&[]), ["sales.eu\t0\t12 apples", "sales.us\t0\t1 plum"]);
    groups("reset", &["beginning"]);
    groups("configure", &["--in-flight", "5"]);
    let json = scratch.done(&["groups", "shop", "--json"]).json();
    let found = json.iter().find(|line| line["pattern"] == "sales.*").unwrap();
    assert_eq!((&found["lag"], &found["pending"]), (&json!(2), &json!(0)));
    let settings = &found["settings"];
    assert_eq!(
        (&settings["tries"], &settings["in_flight"], &settings["dead_letters"]),
        (&json!(3), &json!(5), &json!("dead.shippers"))
    );
    assert_eq!(taken(&["--count", "1"]).len(), 1);
    assert_eq!(taken(&[]).len(), 1);
    scratch.done(&["redrive", "shop", "sales.*", "shippers"]);
    groups("delete", &[]);
    for command in ["pause", "delete"] {
        let ended = scratch.run(&[&["groups", command], &group[..]].concat());
        assert!(
            ended.code == 2 && ended.stderr.contains("has the pattern"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn topics_and_stat_show_who_holds_publishers_back() {
    let scratch = shop();
    scratch.done(&["topics", "create", "shop", "bills", "--protect-groups", "1000000"]);
    scratch.done(&["groups", "create", "shop", "bills", "printers"]);
    scratch.done(&["groups", "pause", "shop", "bills", "printers"]);
    let store = Store::open(scratch.path("shop")).unwrap();
    let sales = Topics::open(&store).unwrap().topic("sales").unwrap();
    let policy = SlowPolicy::HoldBack {
        max: 2,
        timeout: Duration::from_millis(10),
    };
    let options = SubscribeOptions::new().slow(policy);
    let _forgotten = sales.subscribe_with(Start::Beginning, options).unwrap();
    let refused = scratch.run(&["publish", "shop", "sales", "4 figs"]);
    let process = std::process::id();
    assert!(
        refused
            .stderr
            .contains(&format!("in process {process} lies 3 messages behind")),
        "{}",
        refused.stderr
    );
    let held = format!("a subscription of process {process}, 3 of 2 messages behind, 10 ms");
    let described = scratch.done(&["topics", "shop", "--describe"]).text().to_string();
    let line = |topic: &str| described.lines().find(|line| line.starts_with(topic)).unwrap();
    assert!(line("sales\t").contains(&held), "{described}");
    assert!(line("bills\t").ends_with("\t-"), "{described}");
    let stat = scratch.done(&["stat", "shop"]).text().to_string();
    assert!(stat.contains(&format!("publishers of sales: {held}")), "{stat}");
    let paused = "publishers of bills: group printers from message 0 on, 0 of 1000000 bytes: it is paused";
    assert!(stat.contains(paused), "{stat}");
    let json = scratch.done(&["stat", "shop", "--json"]).json();
    let of = |topic: &str| {
        let holders = json[0]["holders"].as_array().unwrap();
        holders.iter().find(|holder| holder["topic"] == topic).unwrap().clone()
    };
    assert_eq!(
        (&of("sales")["holds_now"], &of("sales")["lag"]),
        (&json!(true), &json!(3))
    );
    assert_eq!(
        (&of("bills")["holds_now"], &of("bills")["paused"]),
        (&json!(false), &json!(true))
    );
}

#[test]
fn a_durable_subscription_goes_on_where_the_last_call_ended() {
    let scratch = shop();
    let printed = |arguments: &[&str]| {
        let ended = scratch.done(&[&["subscribe", "shop"], arguments].concat());
        ended.text().to_string()
    };
    assert_eq!(
        printed(&["sales", "--durable", "archive", "--from", "1", "--count", "1"]),
        "1\t2 pears\n"
    );
    assert_eq!(printed(&["sales", "--durable", "archive", "--no-ack"]), "2\t3 plums\n");
    assert_eq!(printed(&["sales", "--durable", "archive"]), "2\t3 plums\n");
    assert_eq!(printed(&["sales", "--durable", "archive", "--from", "beginning"]), "");
    scratch.done(&["groups", "reset", "shop", "sales", "archive", "last:1"]);
    assert_eq!(printed(&["sales", "--durable", "archive"]), "2\t3 plums\n");

    scratch.done(&["publish", "shop", "sales.eu", "12 apples", "--create"]);
    let all = ["sales.*", "--durable", "totals"];
    assert_eq!(printed(&all), "sales.eu\t0\t12 apples\n");
    scratch.done(&["publish", "shop", "sales.us", "1 plum", "--create"]);
    scratch.done(&["publish", "shop", "sales.us", "2 plums"]);
    assert_eq!(
        scratch.done(&["groups", "shop"]).text(),
        "sales\tarchive\tdurable\t3\t0\t0\t0\nsales.eu\ttotals\tdurable\t1\t0\t0\t0\nsales.us\ttotals\tdurable\t0\t0\t2\t0\nsales.*\ttotals\tpattern\t-\t-\t2\t-\n"
    );
    assert_eq!(
        scratch.done(&["groups", "shop", "--json"]).json()[..1],
        [json!({"durable": "totals", "pattern": "sales.*", "lag": 2, "topics": [
            {"topic": "sales.eu", "next": 1, "lag": 0}, {"topic": "sales.us", "next": 0, "lag": 2}]})]
    );
    assert_eq!(
        printed(&[&all[..], &["--count", "1"]].concat()),
        "sales.us\t0\t1 plum\n"
    );
    assert_eq!(printed(&all), "sales.us\t1\t2 plums\n");
    scratch.done(&["groups", "reset", "shop", "sales.*", "totals", "last:1"]);
    assert_eq!(printed(&all), "sales.eu\t0\t12 apples\nsales.us\t1\t2 plums\n");
    // Retention deleted a message; the command skips it and reports that.
    scratch.done(&["topics", "configure", "shop", "sales.us", "--keep-messages", "1"]);
    scratch.done(&["groups", "reset", "shop", "sales.*", "totals", "beginning"]);
    {
        let store = Store::open(scratch.path("shop")).unwrap();
        let us = Topics::open(&store).unwrap().topic("sales.us").unwrap();
        us.trim().unwrap();
        us.durable("totals", Start::Beginning)
            .unwrap()
            .reset(Start::Offset(0))
            .unwrap();
    }
    let ended = scratch.done(&[&["subscribe", "shop"], &all[..]].concat());
    assert_eq!(ended.text(), "sales.eu\t0\t12 apples\nsales.us\t1\t2 plums\n");
    assert!(
        ended.stderr.contains("messages 0 to 0 of topic \"sales.us\""),
        "{}",
        ended.stderr
    );
    assert_eq!(printed(&all), "");
    scratch.done(&["groups", "delete", "shop", "sales.*", "totals"]);
    let left = "sales\tarchive\tdurable\t3\t0\t0\t0\n";
    assert_eq!(scratch.done(&["groups", "shop"]).text(), left);
    assert_eq!(scratch.done(&["groups", "shop", "sales.eu"]).text(), "");
    for wrong in [
        &["groups", "delete", "shop", "sales.*", "totals"][..],
        &["subscribe", "shop", "sales", "--no-ack"],
        &["subscribe", "shop", "sales.*", "--durable", "totals", "--no-ack"],
        &["subscribe", "shop", "sales", "--durable", "totals", "--no-ack"],
        &["groups", "reset", "shop", "sales", "nobody", "tail"],
        &["subscribe", "shop", "sales", "--durable", "a", "--group", "b"],
        &["groups"],
    ] {
        let ended = scratch.run(wrong);
        assert_eq!(ended.code, 2, "{wrong:?}: {}", ended.stderr);
    }
}

/// A command that runs until killed. It ends with its test.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a following command, publishes for it from other processes, and requires that it prints `expected`.
fn follows(scratch: &Scratch, arguments: &[&str], expected: &str) {
    let mut command = scratch.command(crate::common::BINARY);
    command
        .args([&["subscribe", "shop"], arguments, &["--follow"]].concat())
        .stdout(Stdio::piped());
    let mut follower = Follower(command.spawn().expect("the binary runs"));
    for message in ["one", "two", "three"] {
        std::thread::sleep(Duration::from_millis(300));
        scratch.done(&["publish", "shop", "sales", message]);
    }
    let mut printed = String::new();
    let mut stdout = follower.0.stdout.take().expect("it is piped");
    stdout.read_to_string(&mut printed).expect("text");
    assert_eq!(printed, expected, "{arguments:?}");
    assert!(follower.0.wait().expect("it ends").success(), "{arguments:?}");
}

#[test]
fn who_follows_sees_what_others_publish_meanwhile_and_keeps_nobody_out() {
    let scratch = shop();
    follows(
        &scratch,
        &["sales", "--from", "last:1", "--count", "3"],
        "2\t3 plums\n3\tone\n4\ttwo\n",
    );
    follows(
        &scratch,
        &["sales", "--from", "tail", "--count", "3"],
        "6\tone\n7\ttwo\n8\tthree\n",
    );
    follows(
        &scratch,
        &["*", "--from", "tail", "--count", "2"],
        "sales\t9\tone\nsales\t10\ttwo\n",
    );
    scratch.done(&["groups", "create", "shop", "sales", "packers"]);
    scratch.done(&["groups", "reset", "shop", "sales", "packers", "last:1"]);
    let taken = ["sales", "--group", "packers", "--count", "3"];
    follows(&scratch, &taken, "11\tthree\n12\tone\n13\ttwo\n");
    assert_eq!(scratch.done(&["check", "shop"]).code, 0);
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
fn what_is_not_named_stays_as_it_is_configured() {
    let scratch = shop();
    let settings = || {
        let described = scratch.done(&["topics", "shop", "--describe"]).text().to_string();
        let columns: Vec<&str> = described.trim_end().split('\t').collect();
        assert_eq!(columns.len(), 6, "{described}");
        columns[4].to_string()
    };
    assert_eq!(settings(), "keeps everything");
    let configure = |arguments: &[&str]| {
        scratch.done(&[&["topics", "configure", "shop", "sales"], arguments].concat());
    };
    configure(&["--keep-for", "1.5", "--keep-bytes", "1000000"]);
    configure(&["--drop-acknowledged", "--remember-publishers-for", "none"]);
    configure(&["--keep-for", "none", "--keep-messages", "500"]);
    let expected = "--keep-bytes 1000000 --keep-messages 500 --drop-acknowledged --remember-publishers-for none";
    assert_eq!(settings(), expected);
    configure(&["--drop-acknowledged=false"]);
    let json = scratch.done(&["topics", "shop", "--describe", "--json"]).json();
    assert_eq!(json[0]["keep_for_seconds"], Value::Null);
    assert_eq!(json[0]["keep_bytes"], 1_000_000);
    assert_eq!(json[0]["keep_messages"], 500);
    assert_eq!(json[0]["drop_acknowledged"], false);

    let group = ["shop", "sales", "packers"];
    let with = |command: &str, arguments: &[&str]| {
        scratch.done(&[&["groups", command], &group[..], arguments].concat());
    };
    with(
        "create",
        &["--from", "2", "--back-off", "0.5,3", "--dead-letters", "sales.dead"],
    );
    with("configure", &["--tries", "4", "--in-flight", "7"]);
    with("configure", &["--lease", "0.25"]);
    let printed = scratch.done(&["groups", "shop", "sales", "--describe"]);
    let expected = "sales\tpackers\tgroup\t2\t0\t1\t0\t--lease 0.25 --tries 4 --in-flight 7 --back-off 0.5,3 --dead-letters sales.dead\n";
    assert_eq!(printed.text(), expected);
    with("configure", &["--no-dead-letters", "--tries", "none"]);
    with("pause", &[]);
    let json = scratch.done(&["groups", "shop", "sales", "--json"]).json();
    assert_eq!(json[0]["paused"], true);
    assert_eq!(
        json[0]["settings"],
        json!({"lease_seconds": 0.25, "tries": null, "in_flight": 7, "back_off_seconds": [0.5, 3], "dead_letters": null,
            "order_by_key": false, "synced": false, "filter_key": null, "filter_headers": []})
    );
    for wrong in [
        &["--tries", "many"][..],
        &["--lease", "-1"],
        &["--in-flight", "0"],
        &["--back-off", "1,x"],
    ] {
        let ended = scratch.run(&[&["groups", "configure"], &group[..], wrong].concat());
        assert_eq!(ended.code, 2, "{wrong:?}: {}", ended.stderr);
    }
}

#[test]
fn publishing_makes_topics_where_the_store_says_so() {
    let scratch = shop();
    let refused = scratch.run(&["publish", "shop", "refunds", "one"]);
    assert!(
        refused.code == 2 && refused.stderr.contains("--create"),
        "{}",
        refused.stderr
    );
    assert_eq!(scratch.done(&["topics", "create-on-use", "shop"]).text(), "off\n");
    scratch.done(&["topics", "create-on-use", "shop", "on"]);
    scratch.done(&["publish", "shop", "refunds", "one"]);
    assert_eq!(scratch.done(&["subscribe", "shop", "refunds"]).text(), "0\tone\n");
    assert_eq!(
        scratch.done(&["topics", "create-on-use", "shop", "--json"]).json()[0]["create_on_use"],
        true
    );
    scratch.done(&["topics", "create-on-use", "shop", "off"]);
    assert_eq!(scratch.run(&["publish", "shop", "typo", "one"]).code, 2);
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
    scratch.done(&[&group[..], &["--lease", "3600"]].concat());
    let taken = |arguments: &[&str]| {
        let take = ["subscribe", "shop", "sales", "--group", "packers"];
        scratch.done(&[&take, arguments].concat()).text().to_string()
    };
    assert_eq!(taken(&["--count", "1"]), "0\t1 apple\n");
    assert_eq!(taken(&["--count", "1", "--no-ack"]), "1\t2 pears\n");
    assert_eq!(
        scratch.done(&["groups", "shop", "sales"]).text(),
        "sales\tpackers\tgroup\t1\t1\t1\t0\n"
    );
    // The command gave the message back when it ended, so that attempt does not count.
    let pending = scratch.done(&["groups", "shop", "sales", "--pending", "packers"]);
    assert_eq!(pending.text(), "1\t0\t-\t\n");
    scratch.done(&["groups", "pause", "shop", "sales", "packers"]);
    assert_eq!(taken(&[]), "");
    scratch.done(&["groups", "resume", "shop", "sales", "packers"]);
    // A killed command has used up the only attempt of the messages it held.
    let mut command = scratch.command(crate::common::BINARY);
    command
        .args([
            "subscribe",
            "shop",
            "sales",
            "--group",
            "packers",
            "--no-ack",
            "--follow",
        ])
        .stdout(Stdio::piped());
    let mut killed = Follower(command.spawn().expect("the binary runs"));
    // The command holds the messages it printed. A command started before that could open the store first, read-only,
    // and keep this one out.
    let printed = BufReader::new(killed.0.stdout.take().expect("its output"));
    let printed: Result<Vec<String>, _> = printed.lines().take(2).collect();
    assert_eq!(printed.expect("text").len(), 2, "the command takes both messages");
    let pending = scratch.done(&["groups", "shop", "sales", "--pending", "packers"]);
    assert_eq!(pending.text().matches("duramen subscribe").count(), 2);
    drop(killed);
    assert_eq!(taken(&[]), "");
    let letters = scratch.done(&["dead-letters", "shop", "sales.dead", "--json"]).json();
    let mut buried: Vec<_> = letters.iter().map(|letter| letter["payload"].to_string()).collect();
    buried.sort();
    assert_eq!(buried, ["\"2 pears\"", "\"3 plums\""]);
    let redriven = scratch.done(&["redrive", "shop", "sales", "packers", "--json"]).json();
    assert_eq!(redriven[0]["delivered"], 2);
    assert_eq!(taken(&[]), "1\t2 pears\n2\t3 plums\n");
    scratch.done(&["groups", "reset", "shop", "sales", "packers", "last:1"]);
    assert_eq!(taken(&[]), "2\t3 plums\n");
    scratch.done(&["groups", "delete", "shop", "sales", "packers"]);
    assert_eq!(scratch.done(&["groups", "shop", "sales"]).text(), "");
    assert_eq!(scratch.run(&["groups", "pause", "shop", "sales", "packers"]).code, 2);
}

#[test]
fn what_holds_topics_is_not_listed_among_maps() {
    let scratch = shop();
    assert_eq!(
        scratch.done(&["stat", "shop", "--json"]).json()[0]["maps"],
        serde_json::json!([])
    );
    assert!(scratch.done(&["stat", "shop"]).text().starts_with("0 maps\n"));
}

#[test]
fn topics_are_there_in_a_store_that_was_salvaged() {
    let scratch = shop();
    scratch.done(&["put", "shop", "apples", "3", "--map", "stock"]);
    scratch.done(&["groups", "create", "shop", "sales", "till"]);
    let ended = scratch.done(&["salvage", "shop", "rest", "--json"]);
    let report = &ended.json()[0];
    assert_eq!(report["lost"], serde_json::json!([]));
    let copied = ["maps", "pairs", "topics", "messages", "groups"].map(|what| report[what].as_u64().unwrap());
    assert_eq!(copied, [1, 1, 2, 3, 1], "one of the topics is for dead letters");
    scratch.done(&["publish", "rest", "sales", "4 cherries"]);
    let printed = scratch.done(&["subscribe", "rest", "sales"]);
    assert_eq!(printed.text(), "0\t1 apple\n1\t2 pears\n2\t3 plums\n3\t4 cherries\n");
    let ended = scratch.done(&["salvage", "shop", "rest-2"]);
    let copied = "copied 1 map with 1 pair and 2 topics with 3 messages and 1 group to rest-2";
    assert!(ended.stderr.contains(copied), "{}", ended.stderr);
}

#[test]
fn a_delayed_message_is_published_when_it_is_due() {
    let scratch = shop();
    let scheduled = scratch.done(&["publish", "shop", "sales", "later", "--delay", "3600", "--json"]);
    let number = scheduled.json()[0]["scheduled"].as_str().unwrap().to_string();
    assert!(number.parse::<duramen::topic::Scheduled>().is_ok(), "{number}");
    let printed = scratch.done(&["publish", "shop", "sales", "a", "b", "--delay", "0"]);
    assert_eq!(printed.text().lines().count(), 2);
    let store = Store::open(scratch.path("shop")).unwrap();
    let topics = Topics::open(&store).unwrap();
    topics.publish_due().unwrap();
    let sales = topics.topic("sales").unwrap();
    assert_eq!(sales.scheduled().unwrap().count, 1);
    assert_eq!(sales.describe().unwrap().next, 5);
    assert!(sales.cancel(&number.parse().unwrap()).unwrap());
    drop((sales, topics, store));
    assert_eq!(
        scratch.run(&["publish", "shop", "sales", "x", "--delay", "soon"]).code,
        2
    );
}

#[test]
fn messages_have_ids_and_expire_where_the_topic_takes_that() {
    let scratch = shop();
    let id = ["publish", "shop", "sales", "4 quinces", "--id", "order-4", "--json"];
    let refused = scratch.run(&id);
    assert!(
        refused.code == 2 && refused.stderr.contains("deduplicate_for"),
        "{}",
        refused.stderr
    );
    let expires = ["publish", "shop", "sales", "5 figs", "--expires", "0"];
    let refused = scratch.run(&expires);
    assert!(
        refused.code == 2 && refused.stderr.contains("message_expiry"),
        "{}",
        refused.stderr
    );
    scratch.done(&[
        "topics",
        "configure",
        "shop",
        "sales",
        "--deduplicate-for",
        "60",
        "--message-expiry",
        "--latest-per-key",
    ]);
    let described = scratch.done(&["topics", "shop", "--describe", "--json"]).json();
    assert_eq!(described[0]["deduplicate_for_seconds"], 60);
    assert_eq!(
        (&described[0]["message_expiry"], &described[0]["latest_per_key"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(scratch.done(&id).json()[0], json!({"topic": "sales", "offset": 3}));
    assert_eq!(
        scratch.done(&id).json()[0],
        json!({"topic": "sales", "offset": 3, "duplicate": true})
    );
    scratch.done(&expires);
    let printed = scratch.done(&["subscribe", "shop", "sales", "--from", "3"]);
    assert_eq!(printed.text(), "3\t4 quinces\n");
    assert_eq!(
        scratch.run(&["publish", "shop", "sales", "a", "b", "--id", "1"]).code,
        2
    );
    // Creating it again names what differs, and changes nothing.
    let again = scratch.run(&["topics", "create", "shop", "sales"]);
    assert!(
        again.code == 2 && again.stderr.contains("deduplicate_for is 60s, asked for none"),
        "{}",
        again.stderr
    );
}

#[test]
fn a_full_topic_refuses_messages_and_says_why() {
    let scratch = shop();
    scratch.done(&[
        "topics",
        "create",
        "shop",
        "jobs",
        "--keep-messages",
        "1",
        "--discard-new",
        "--drop-acknowledged",
    ]);
    scratch.done(&["groups", "create", "shop", "jobs", "workers"]);
    scratch.done(&["publish", "shop", "jobs", "1"]);
    let refused = scratch.run(&["publish", "shop", "jobs", "2"]);
    assert!(
        refused.code != 0 && refused.stderr.contains("group \"workers\""),
        "{}",
        refused.stderr
    );
    scratch.done(&[
        "topics",
        "configure",
        "shop",
        "jobs",
        "--discard-new=false",
        "--protect-groups",
        "1000",
    ]);
    let described = scratch.done(&["topics", "shop", "--describe", "--json"]).json();
    let jobs = described
        .iter()
        .find(|topic| topic["topic"] == "jobs")
        .expect("the topic");
    assert_eq!(
        (&jobs["protect_groups"], &jobs["discard_new"]),
        (&json!(1000), &json!(false))
    );
    scratch.done(&["publish", "shop", "jobs", "2"]);
}
