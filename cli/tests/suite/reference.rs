//! The reference matches the command: `docs/reference/cli.md` contains the command's own help, and the sample in
//! `docs/reference/dump-format.md` loads. `DURAMEN_UPDATE=1` rewrites the help.

use std::fs;
use std::path::PathBuf;

use crate::common::Scratch;

const BEGIN: &str = "<!-- The help of every command, written by cli/tests/suite/reference.rs -->\n";

const COMMANDS: &[&str] = &[
    "get",
    "put",
    "delete",
    "scan",
    "watch",
    "maps",
    "maps create",
    "maps rename",
    "maps drop",
    "topics",
    "topics create",
    "topics configure",
    "topics create-on-use",
    "topics delete",
    "tree",
    "tree get",
    "tree put",
    "tree ls",
    "tree rm",
    "tree watch",
    "tree watches",
    "tree txn",
    "tree lease",
    "tree lease grant",
    "tree lease keep",
    "tree lease revoke",
    "tree lease list",
    "tree rule",
    "tree rule trigger",
    "tree rule projection",
    "tree rule quota",
    "tree rule list",
    "tree rule rebuild",
    "tree rule remove",
    "tree export",
    "tree import",
    "tree compact",
    "tree list",
    "groups",
    "groups create",
    "groups configure",
    "groups pause",
    "groups resume",
    "groups reset",
    "groups delete",
    "publish",
    "subscribe",
    "dead-letters",
    "redrive",
    "stat",
    "check",
    "salvage",
    "export",
    "import",
    "verify",
    "exports",
    "prune",
    "backup",
    "checkpoint",
    "checkpoint create",
    "checkpoint list",
    "checkpoint show",
    "checkpoint diff",
    "checkpoint restore",
    "checkpoint drop",
    "copy",
    "dump",
    "load",
    "compact",
    "serve",
    "etcd",
    "etcd import",
    "config",
    "config check",
    "health",
    "cert",
    "cert ca",
    "cert server",
    "cert client",
    "token",
    "token create",
    "token list",
    "token revoke",
    "torture",
    "tour",
];

fn reference(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/reference")
        .join(name)
}

fn section(scratch: &Scratch, command: &str) -> String {
    let arguments: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
    let help = scratch.done(&arguments);
    let help: Vec<&str> = help.text().lines().map(str::trim_end).collect();
    let title = ["duramen", command].join(" ");
    format!(
        "\n## {}\n\n```text\n{}\n```\n",
        title.trim_end(),
        help.join("\n").trim_end()
    )
}

#[test]
fn the_reference_has_the_help_of_every_command() {
    let scratch = Scratch::new();
    let path = reference("cli.md");
    let page = fs::read_to_string(&path).expect("the reference is there");
    let (introduction, written) = page.split_once(BEGIN).expect("the mark is in the page");
    let sections: String = [""]
        .iter()
        .chain(COMMANDS)
        .map(|command| section(&scratch, command))
        .collect();
    if std::env::var_os("DURAMEN_UPDATE").is_some() {
        fs::write(&path, [introduction, BEGIN, &sections].concat()).expect("the reference can be written");
        return;
    }
    assert!(
        written == sections,
        "docs/reference/cli.md is not the help; DURAMEN_UPDATE=1 writes it again"
    );
}

#[test]
fn the_session_at_the_top_of_the_reference_goes_as_written() {
    let scratch = Scratch::new();
    let page = fs::read_to_string(reference("cli.md")).expect("the reference is there");
    let session = page
        .split("```text\n")
        .nth(1)
        .and_then(|block| block.split("```").next())
        .expect("a session");
    let commands: Vec<&str> = session.split("$ ").skip(1).collect();
    assert!(commands.len() >= 4);
    for command in commands {
        let (line, expected) = command.split_once('\n').expect("a command ends its line");
        let ended = scratch.shell(line);
        assert_eq!((ended.code, ended.text()), (0, expected), "{line}: {}", ended.stderr);
    }
}

/// Returns the content of the blocks that are fenced as `text` and begin with `#duramen-dump`.
fn samples(page: &str) -> Vec<String> {
    let blocks = page
        .split("```text\n")
        .skip(1)
        .filter_map(|block| block.split("```").next());
    blocks
        .filter(|block| block.starts_with("#duramen-dump"))
        .map(str::to_string)
        .collect()
}

#[test]
fn the_samples_of_the_dump_format_load_and_are_what_dump_writes() {
    let page = fs::read_to_string(reference("dump-format.md")).expect("the reference is there");
    let samples = samples(&page);
    let [whole, by_hand] = samples.as_slice() else {
        panic!("two samples")
    };
    for sample in [whole, by_hand] {
        let scratch = Scratch::new();
        let loaded = scratch.run_with_input(&["load", "s"], sample.as_bytes());
        assert_eq!(loaded.code, 0, "{}", loaded.stderr);
        let dumped = scratch.done(&["dump", "s"]);
        if sample == whole {
            assert_eq!(dumped.text(), sample);
        }
    }
}
