//! The examples in other languages run against a server, when their toolchain is there.
//! `common/toolchains.rs` says when they are skipped.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::Server;
use common::toolchains::{Go, python, run, unless_skipped};

/// A server on a fresh store.
fn server(directory: &tempfile::TempDir) -> (Server, String) {
    let store = directory.path().join("store");
    let server = Server::start_with(&store, &["--log", "off", "--listen", "127.0.0.1:0"]);
    let address = server.place.trim_start_matches("http://").to_string();
    (server, address)
}

fn examples(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(language)
}

fn proto_files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/duramen/v1");
    let mut files: Vec<_> = directory
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "proto"));
    files.sort();
    files
}

fn assert_all_shown(text: &str) {
    for expected in [
        "published: offsets",
        "packed: every message before offset 4 is acknowledged",
        "sold: 1 apple, 11 left, announced at offset 0",
        "till: opened at revision ",
        "refused: MAP_NOT_FOUND: ",
        "refused: KEY_REUSED: ",
        "all as expected",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
}

#[test]
fn the_python_example_runs() {
    let Some((python, _lock)) = unless_skipped(
        "the example in Python",
        python(&examples("python").join("requirements.txt")),
    ) else {
        return;
    };
    let generated = tempfile::tempdir().unwrap();
    let out = |name: &str| format!("--{name}={}", generated.path().display());
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    run(Command::new(&python)
        .args(["-m", "grpc_tools.protoc", "-I"])
        .arg(proto)
        .args([out("python_out"), out("pyi_out"), out("grpc_python_out")])
        .args(proto_files()));
    let directory = tempfile::tempdir().unwrap();
    let (_server, address) = server(&directory);
    let text = run(Command::new(&python)
        .arg("-B")
        .arg(examples("python").join("shop.py"))
        .arg(&address)
        .env("PYTHONPATH", generated.path()));
    assert_all_shown(&text);
}

#[test]
fn the_go_example_runs() {
    let Some(toolchain) = unless_skipped("the example in Go", Go::new(&examples("go"))) else {
        return;
    };
    run(&mut toolchain.command(&["vet", "./..."]));
    let program = tempfile::tempdir().unwrap();
    let program = program.path().join("shop");
    run(toolchain.command(&["build", "-o"]).arg(&program).arg("."));
    let directory = tempfile::tempdir().unwrap();
    let (_server, address) = server(&directory);
    assert_all_shown(&run(Command::new(&program).arg(&address)));
}

#[test]
fn the_go_example_has_the_code_of_the_proto_files() {
    let what = "whether the generated Go code is that of the .proto files";
    let Some((python, _python_lock)) = unless_skipped(what, python(&examples("python").join("requirements.txt")))
    else {
        return;
    };
    let Some(toolchain) = unless_skipped(what, Go::new(&examples("go"))) else {
        return;
    };
    let generated = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    toolchain.set_up(&mut command);
    command
        .arg("generate.sh")
        .arg(generated.path())
        .env("PROTOC", format!("{} -m grpc_tools.protoc", python.display()));
    run(&mut command);
    // The first lines of a file name the version of protoc, which makes no difference.
    let code = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let is_version = |line: &&str| line.starts_with("//") && line.contains("protoc ");
        text.lines()
            .filter(|line| !is_version(line))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let names = |directory: &Path| {
        let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    let kept = examples("go").join("duramenv1");
    assert_eq!(names(&kept), names(generated.path()), "run examples/go/generate.sh");
    for name in names(&kept) {
        let is_alike = code(kept.join(&name)) == code(generated.path().join(&name));
        assert!(is_alike, "{}: run examples/go/generate.sh", name.display());
    }
}
