//! A tree that threads of several processes change at once, one of which is killed.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use duramen_engine::{Durability, Options, Store};
use duramen_tree::{ChangeKind, Tree, Trees, WatchOptions};

const DIRECTORY: &str = "DURAMEN_TREE_DIRECTORY";
const NUMBER: &str = "DURAMEN_TREE_NUMBER";
const THREADS: usize = 4;
const EACH: usize = 100;

fn open(directory: &Path) -> (Store, Tree) {
    let store = Options::new().durability(Durability::Written).open(directory).unwrap();
    let tree = Trees::open(&store).unwrap().ensure("tree").unwrap();
    (store, tree)
}

fn start(directory: &Path, number: usize) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["child_that_inserts", "--exact", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "it is a process of the tests below"]
fn child_that_inserts() {
    let directory = env::var_os(DIRECTORY).unwrap();
    let number = env::var(NUMBER).unwrap();
    let (_store, tree) = open(Path::new(&directory));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tree, number) = (&tree, &number);
            scope.spawn(move || {
                for insert in 0..EACH {
                    let name = format!("{number}-{thread}-{insert:03}");
                    // No other writer makes it fail.
                    tree.create(format!("table/{name}"), &name).unwrap();
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "\ninserted {name}").unwrap();
                }
            });
        }
    });
}

/// Reads what a process has inserted; after `most` inserts it is killed.
fn inserted(mut process: Child, most: usize) -> Vec<String> {
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut names = Vec::new();
    for line in lines {
        if let Some(name) = line.unwrap().strip_prefix("inserted ") {
            names.push(name.to_string());
        }
        if names.len() == most {
            process.kill().unwrap();
        }
    }
    let ended = process.wait().unwrap();
    assert!(ended.success() || names.len() >= most, "{ended}");
    names
}

#[test]
fn threads_of_several_processes_insert_without_a_conflict_and_a_kill_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, tree) = open(directory.path());
    let mut watch = tree.watch(WatchOptions::subtree("table")).unwrap();
    let processes: Vec<_> = (0..4).map(|number| start(directory.path(), number)).collect();
    let names: BTreeSet<String> = std::thread::scope(|scope| {
        let reading = processes.into_iter().enumerate().map(|(number, process)| {
            let most = if number == 0 { THREADS * EACH / 3 } else { usize::MAX };
            scope.spawn(move || inserted(process, most))
        });
        let reading: Vec<_> = reading.collect();
        reading.into_iter().flat_map(|names| names.join().unwrap()).collect()
    });
    assert!(names.len() >= 3 * THREADS * EACH + THREADS * EACH / 3);
    let view = tree.view().unwrap();
    let children = view.children("table", None, usize::MAX).unwrap();
    let found: BTreeSet<_> = children
        .iter()
        .map(|child| String::from_utf8(child.name.clone()).unwrap())
        .collect();
    assert!(found.is_superset(&names), "acknowledged inserts are there");
    // The killed process may have made some that it could not tell of.
    assert!(found.len() - names.len() <= THREADS);
    let counted = view.child_count("table").unwrap();
    assert_eq!(
        (counted.count, counted.version),
        (found.len() as u64, found.len() as u64)
    );
    assert_eq!(view.revision(), 1 + found.len() as u64, "revisions have no gap");
    let mut revision = 1;
    let mut seen = BTreeSet::new();
    while let Some(events) = watch.next(Duration::from_millis(10)).unwrap() {
        for event in events {
            revision += 1;
            assert_eq!(
                (event.revision, event.kind, event.old),
                (revision, ChangeKind::Put, None)
            );
            assert!(event.path.ends_with(&event.node.unwrap().payload));
            seen.insert(String::from_utf8(event.path["table/".len()..].to_vec()).unwrap());
        }
    }
    assert_eq!(seen, found);
}

#[test]
fn a_watch_wakes_for_what_another_process_changes() {
    let directory = tempfile::tempdir().unwrap();
    let (_store, tree) = open(directory.path());
    let mut watch = tree.watch(WatchOptions::all()).unwrap();
    let process = start(directory.path(), 7);
    let first = watch.next(Duration::from_secs(60)).unwrap().expect("an event");
    assert_eq!(first[0].revision, 2);
    inserted(process, usize::MAX);
}
