//! Every example in the help of every command runs, and exits as it says.

use crate::common::{EtcdServer, Scratch};

/// All commands that have help; hidden commands have none.
const COMMANDS: &[&[&str]] = &[
    &[],
    &["get"],
    &["put"],
    &["delete"],
    &["scan"],
    &["watch"],
    &["maps"],
    &["maps", "create"],
    &["maps", "rename"],
    &["maps", "drop"],
    &["topics"],
    &["topics", "create"],
    &["topics", "configure"],
    &["topics", "create-on-use"],
    &["topics", "delete"],
    &["tree"],
    &["tree", "get"],
    &["tree", "put"],
    &["tree", "ls"],
    &["tree", "rm"],
    &["tree", "watch"],
    &["tree", "watches"],
    &["tree", "txn"],
    &["tree", "lease"],
    &["tree", "lease", "grant"],
    &["tree", "lease", "keep"],
    &["tree", "lease", "revoke"],
    &["tree", "lease", "list"],
    &["tree", "rule"],
    &["tree", "rule", "trigger"],
    &["tree", "rule", "projection"],
    &["tree", "rule", "quota"],
    &["tree", "rule", "list"],
    &["tree", "rule", "rebuild"],
    &["tree", "rule", "remove"],
    &["tree", "export"],
    &["tree", "import"],
    &["tree", "compact"],
    &["tree", "list"],
    &["groups"],
    &["groups", "create"],
    &["groups", "configure"],
    &["groups", "pause"],
    &["groups", "resume"],
    &["groups", "reset"],
    &["groups", "delete"],
    &["publish"],
    &["subscribe"],
    &["dead-letters"],
    &["redrive"],
    &["stat"],
    &["check"],
    &["salvage"],
    &["export"],
    &["import"],
    &["verify"],
    &["exports"],
    &["prune"],
    &["backup"],
    &["checkpoint"],
    &["checkpoint", "create"],
    &["checkpoint", "list"],
    &["checkpoint", "show"],
    &["checkpoint", "diff"],
    &["checkpoint", "restore"],
    &["checkpoint", "drop"],
    &["copy"],
    &["dump"],
    &["load"],
    &["compact"],
    &["serve"],
    &["etcd"],
    &["etcd", "import"],
    &["config"],
    &["config", "check"],
    &["health"],
    &["cert"],
    &["cert", "ca"],
    &["cert", "server"],
    &["cert", "client"],
    &["token"],
    &["token", "create"],
    &["token", "list"],
    &["token", "revoke"],
    &["torture"],
    &["tour"],
];

const PREPARATION: &str = r"
set -e
duramen put shop apples 12 --map stock
duramen put shop plums 30 --map stock
duramen put shop 'user\x00\x07' 'Ada' --map users
printf '\211PNG\r\n' > logo.png
duramen put shop logo --map files --value-file logo.png
for month in 2024-11 2024-12 2025-01 2025-02 2025-03; do duramen put shop order/$month-17 plums --map orders; done
duramen maps create shop empty
duramen publish shop sales '1 apple' --create
duramen publish shop sales '2 pears' --key order-7
duramen groups create shop sales packers --tries 1 --dead-letters sales.dead
duramen tree put shop web/port 80
duramen tree put shop web/host example.com
duramen tree put shop old/host example.org
duramen checkpoint create shop old
duramen export shop backups
duramen dump shop > shop.dump
gzip < shop.dump > shop.dump.gz
";

fn help(scratch: &Scratch, command: &[&str]) -> String {
    scratch.done(&[command, &["--help"]].concat()).text().to_string()
}

/// What a shell runs for an example: a server runs until its own advice was followed, and a client finds a server.
fn whole(command: &[&str], example: &str) -> String {
    const ADVICE: &str = "until grep -q ^try: out; do sleep 0.05; done; $(sed -n 's/^try: //p' out) || exit 1";
    const END: &str = "kill -TERM $server; wait $server";
    match command {
        _ if example.contains("--server unix:duramen.sock") && command != ["health"] => format!(
            "duramen serve --data-dir shop --listen '' --unix-socket duramen.sock > out & server=$!; {ADVICE}
            {example} || exit 1; {END}"
        ),
        ["etcd"] => {
            let place = "export ETCD_LISTEN_CLIENT_URLS=http://127.0.0.1:0";
            format!("{place}; {example} > out & server=$!; {ADVICE}; {END}")
        }
        ["serve"] => format!("export DURAMEN_LISTEN=127.0.0.1:0; {example} > out & server=$!; {ADVICE}; {END}"),
        ["health"] => format!(
            "duramen serve --listen '' --unix-socket duramen.sock > out & server=$!; {ADVICE}
            export DURAMEN_SERVER=unix:duramen.sock; {example} || exit 1; {END}"
        ),
        ["cert", "server" | "client"] => format!("test -d authority || duramen cert ca --out authority; {example}"),
        ["watch"] => format!(
            "(while sleep 0.05; do duramen put shop apples $RANDOM --map stock; done) & trap \"kill $!\" EXIT
            {example}"
        ),
        ["etcd", "import"] => {
            let example = example.replace(
                "http://127.0.0.1:2379",
                "$(sed -n 's/.* on \\(.*\\): ready.*/\\1/p' out)",
            );
            format!(
                "duramen etcd --listen-client-urls http://127.0.0.1:0 --data-dir from > out & server=$!
                until grep -q ready out; do sleep 0.05; done; {example} || exit 1; {END}"
            )
        }
        ["token", ..] => format!(
            "test -d duramen-data || duramen maps create duramen-data orders
            duramen token create reader --allow 'read:*' > token; {example}"
        ),
        _ => example.to_string(),
    }
}

fn examples(help: &str) -> Vec<&str> {
    help.lines()
        .filter_map(|line| line.trim_start().strip_prefix("$ "))
        .collect()
}

#[test]
fn every_example_in_the_help_succeeds() {
    let prepared = Scratch::new();
    let preparation = prepared.shell(PREPARATION);
    assert_eq!(preparation.code, 0, "{}", preparation.stderr);
    let etcd = EtcdServer::start(&prepared.path("etcd"));
    std::fs::write(prepared.path("snapshot.db"), etcd.snapshot()).unwrap();
    drop(etcd);
    for command in COMMANDS {
        // Examples change what they find, so each command gets a copy.
        let scratch = Scratch::new();
        let copied = scratch.shell(&format!("cp -r {}/. .", prepared.path("").display()));
        assert_eq!(copied.code, 0, "{}", copied.stderr);
        for example in examples(&help(&scratch, command)) {
            // What an earlier example said must not be taken for what this one says.
            let ended = scratch.shell(&format!("rm -f out\n{}", whole(command, example)));
            assert_eq!(ended.code, 0, "{example}\n{}", ended.stderr);
        }
    }
}

#[test]
fn every_command_has_examples() {
    let scratch = Scratch::new();
    for command in &COMMANDS[1..] {
        let count = examples(&help(&scratch, command)).len();
        assert!(count >= 2, "{command:?} has {count} examples");
    }
}

#[test]
fn every_visible_command_is_tested_here() {
    let scratch = Scratch::new();
    for group in [
        &[][..],
        &["maps"],
        &["topics"],
        &["tree"],
        &["tree", "lease"],
        &["groups"],
        &["checkpoint"],
        &["etcd"],
        &["config"],
        &["cert"],
        &["token"],
    ] {
        let help = help(&scratch, group);
        let listed = help
            .lines()
            .skip_while(|line| *line != "Commands:")
            .skip(1)
            .take_while(|line| !line.is_empty());
        for name in listed
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
        {
            let command = [group, &[name]].concat();
            assert!(COMMANDS.contains(&command.as_slice()), "{command:?} is not in the list");
        }
    }
}

#[test]
fn help_fits_into_a_hundred_columns() {
    let scratch = Scratch::new();
    for command in COMMANDS {
        for line in help(&scratch, command).lines() {
            assert!(line.chars().count() <= 100, "{command:?}: {line}");
        }
    }
}
