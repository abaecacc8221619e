//! Trees in damaged stores: what `salvage` saves can be relied on and goes on, and the report names what differs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use duramen::topic::{TopicOptions, Topics, TopicsOptions};
use duramen::tree::{Condition, LeaseChange, Node, Projection, Quota, Tree, Trees, TreesOptions, Trigger};
use duramen::{Durability, Maintenance, Options, Store};

use crate::common::toolchains::unless_skipped;
use crate::common::{BINARY, Ended, Scratch};
use crate::copy_files;
use crate::image::{Image, PAGE};

const NODES: u64 = 300;
/// The lease of some nodes.
const LEASE: u64 = 77;
const HOUR: Duration = Duration::from_secs(3600);

fn open(path: &Path) -> (Store, Trees) {
    let options = Options::new()
        .durability(Durability::Written)
        .maintenance(Maintenance::Manual);
    let store = options.open(path).unwrap();
    let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
    (store, trees)
}

fn path(number: u64) -> String {
    format!("services/{}/{number:03}-{}", number % 7, "p".repeat(60))
}

fn payload(number: u64, version: u64) -> String {
    format!("payload {number} of version {version} ").repeat(8)
}

/// Makes a closed store in which each kind of row of a tree takes more than a page.
fn make_store(directory: &Path) {
    let (store, trees) = open(directory);
    store.map("stock").unwrap().put(b"apples", b"12").unwrap();
    let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
    topics.create("changes", TopicOptions::new()).unwrap();
    let tree = trees.ensure("services").unwrap();
    tree.transact::<_, duramen::Error>(|tree| {
        for lease in 1..=200 {
            tree.grant_lease(lease, HOUR)?;
        }
        Ok(())
    })
    .unwrap();
    for number in 0..NODES {
        let path = path(number);
        let lease = match number % 10 {
            0 => LeaseChange::Attach(LEASE),
            _ => LeaseChange::Keep,
        };
        let put = |tree: &mut duramen::tree::TreeWrites<'_>| tree.create_with(&path, payload(number, 1), lease);
        tree.transact::<_, duramen::Error>(put).unwrap();
    }
    for number in (0..NODES).step_by(3) {
        tree.put(path(number), payload(number, 2)).unwrap();
    }
    for number in (1..NODES).step_by(30) {
        tree.delete(path(number)).unwrap();
    }
    let rules = |tree: &mut duramen::tree::TreeWrites<'_>| -> duramen::Result<()> {
        let quota = Quota {
            nodes: 1_000,
            bytes: 1 << 20,
        };
        tree.set_quota("services", quota)?;
        let pattern: duramen::tree::Pattern = "services/3/*".parse()?;
        let map = "third".to_string();
        tree.set_projection("third", &Projection { pattern, map })?;
        let trigger = Trigger {
            pattern: "services/4/*".parse()?,
            kind: None,
            topic: "changes".to_string(),
        };
        tree.set_trigger("fourth", &trigger)?;
        let condition = [(path(2).into_bytes(), Condition::Exists)];
        let conditions: Vec<_> = condition
            .iter()
            .map(|(path, condition)| (&path[..], condition.clone()))
            .collect();
        tree.put_keeping("kept", "while 2 is there", LeaseChange::Keep, &conditions)
    };
    tree.transact(rules).unwrap();
    let other = trees.ensure("other").unwrap();
    (0..20).for_each(|number| drop(other.put(format!("/{number}"), "of another tree").unwrap()));
    drop((tree, other, trees, topics));
    store.close().unwrap();
}

#[derive(Debug, PartialEq)]
struct TreeView {
    revision: u64,
    first: u64,
    nodes: BTreeMap<Vec<u8>, Node>,
    /// What some earlier revisions had.
    earlier: Vec<BTreeMap<Vec<u8>, Node>>,
    leases: Vec<(u64, Duration)>,
    attached: usize,
}

fn nodes(view: &duramen::tree::TreeView) -> BTreeMap<Vec<u8>, Node> {
    let mut nodes = BTreeMap::new();
    let collect = |path: &[u8], node: Node| {
        nodes.insert(path.to_vec(), node);
        Ok(true)
    };
    view.matching(&"**".parse().unwrap(), collect).unwrap();
    nodes
}

fn view(tree: &Tree) -> TreeView {
    let view = tree.view().unwrap();
    let (first, revision) = (view.first_revision().unwrap(), view.revision());
    let revisions = (first..=revision).step_by(97);
    let leases = view.leases().unwrap().into_iter();
    TreeView {
        revision,
        first,
        nodes: nodes(&view),
        earlier: revisions
            .map(|revision| nodes(&view.at_revision(revision).unwrap()))
            .collect(),
        leases: leases.map(|lease| (lease.id, lease.ttl)).collect(),
        attached: view.lease_paths(LEASE, 1_000).map_or(0, |paths| paths.len()),
    }
}

/// Counts of children must be those of what is listed, at every level.
fn assert_children_are_counted(tree: &Tree) {
    let view = tree.view().unwrap();
    let mut parents = vec![None];
    let mut seen = 0;
    while let Some(parent) = parents.pop() {
        let (children, counted) = match &parent {
            None => (view.top(None, 10_000).unwrap(), view.top_count().unwrap()),
            Some(path) => (
                view.children(path, None, 10_000).unwrap(),
                view.child_count(path).unwrap(),
            ),
        };
        assert_eq!(children.len() as u64, counted.count, "{parent:?}");
        seen += children.iter().filter(|child| child.node.is_some()).count();
        parents.extend(children.into_iter().map(|child| Some(child.path)));
    }
    assert_eq!(seen, nodes(&view).len());
}

fn views(directory: &Path) -> BTreeMap<String, TreeView> {
    let (store, trees) = open(directory);
    let names = trees.list().unwrap().into_iter();
    let views = names
        .map(|name| {
            let tree = trees.get(&name).unwrap().unwrap();
            assert_children_are_counted(&tree);
            (name, view(&tree))
        })
        .collect();
    drop(trees);
    store.close().unwrap();
    views
}

fn lost(ended: &Ended) -> Vec<String> {
    let report = &ended.json()[0];
    let lost = report["lost"].as_array().unwrap().iter();
    let lost: Vec<String> = lost.map(|line| line.as_str().unwrap().to_string()).collect();
    assert_eq!(ended.code, if lost.is_empty() { 0 } else { 5 }, "{}", ended.stderr);
    lost
}

/// The tree changes, and its rules are followed.
fn assert_goes_on(directory: &Path, lost: &[String]) {
    let (store, trees) = open(directory);
    let tree = trees.get("services").unwrap().unwrap();
    let before = tree.revision().unwrap();
    let is_told = |what: &str| lost.iter().any(|line| line.contains(what));
    let node = |group: u64| format!("services/{group}/new");
    (0..7).for_each(|group| tree.create(node(group), "new").unwrap());
    assert_eq!(tree.revision().unwrap(), before + 7);
    let rules = "triggers, projections and quotas, if";
    let projected = store.map("third").unwrap().get(node(3)).unwrap();
    assert!(projected.is_some() || is_told(rules) || is_told("third"), "{lost:#?}");
    let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
    let changes = topics.get("changes").unwrap();
    let published = changes.map_or(0, |topic| topic.describe().unwrap().next);
    assert!(published > 0 || is_told(rules) || is_told("fourth"), "{lost:#?}");
    let view = tree.view().unwrap();
    let quotas = view.quotas().unwrap();
    let below = nodes(&view).keys().filter(|path| path.starts_with(b"services")).count();
    match quotas.first() {
        Some(quota) => assert_eq!(quota.nodes, below as u64),
        None => assert!(is_told(rules), "{lost:#?}"),
    }
    let kept = view.exists("kept").unwrap();
    tree.delete(path(2)).unwrap();
    let is_free = is_told("such nodes stay") || is_told("nodes, if there were more");
    assert!(!kept || !tree.exists("kept").unwrap() || is_free, "{lost:#?}");
    let deleted = tree.transact(|tree| tree.revoke_lease(LEASE));
    assert!(deleted.is_ok() || is_told("leases, if"), "{lost:#?}");
    let deleted = tree.delete_subtree("services").unwrap();
    assert_eq!(tree.child_count("services").unwrap().count, 0);
    assert!(deleted >= 7);
    drop((tree, trees, topics));
    store.close().unwrap();
}

#[test]
fn trees_of_a_sound_store_are_saved_whole_and_go_on() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let ended = scratch.run(&["salvage", "store", "rest", "--json"]);
    assert_eq!(lost(&ended), [""; 0]);
    let whole = views(&scratch.path("store"));
    let report = &ended.json()[0];
    let nodes: usize = whole.values().map(|tree| tree.nodes.len()).sum();
    assert_eq!((&report["trees"], &report["nodes"]), (&2.into(), &nodes.into()));
    assert!(whole == views(&scratch.path("rest")));
    assert!(whole["services"].first < 10 && whole["services"].attached > 10);
    assert_goes_on(&scratch.path("rest"), &[]);
    // A new tree has an id of its own.
    let (_store, trees) = open(&scratch.path("rest"));
    assert_eq!(trees.ensure("new").unwrap().revision().unwrap(), 1);
}

#[test]
fn a_killed_salvage_leaves_no_store_that_looks_whole() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = views(&scratch.path("store"));
    let salvage = ["salvage", "store", "rest", "--json"];
    let mut killed = 0;
    for moment in 0.. {
        let mut process = scratch.command(BINARY);
        let mut process = process.args(salvage).stdout(Stdio::null()).spawn().unwrap();
        // Each one lives a little longer, until one is whole.
        std::thread::sleep(Duration::from_millis(10 * moment));
        process.kill().unwrap();
        if process.wait().unwrap().success() {
            break;
        }
        if scratch.path("rest").exists() {
            // It was killed after it had given the store its name.
            break;
        }
        if scratch.path("rest.unfinished").exists() {
            killed += 1;
            let refused = scratch.run(&salvage);
            assert_eq!(refused.code, 2, "{}", refused.stderr);
            assert!(refused.stderr.contains("was killed"), "{}", refused.stderr);
            assert!(!scratch.path("rest").exists());
            std::fs::remove_dir_all(scratch.path("rest.unfinished")).unwrap();
        }
    }
    assert!(killed > 0, "no salvage was killed on its way");
    assert!(!scratch.path("rest.unfinished").exists());
    assert!(whole == views(&scratch.path("rest")));
}

#[test]
fn a_salvage_onto_a_full_disk_leaves_nothing() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = views(&scratch.path("store"));
    std::fs::create_dir(scratch.path("small")).unwrap();
    // The file system in memory is gone with the shell that has it.
    let script =
        "mount -t tmpfs -o size=1m none small && { duramen salvage store small/rest; echo exit $?; ls -A small; }";
    let namespaces: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let ran = namespaces.iter().find_map(|namespace| {
        let output = scratch
            .command("unshare")
            .args(*namespace)
            .args(["sh", "-c", script])
            .output();
        output.ok().filter(|output| !output.stdout.is_empty())
    });
    let may_mount = ran.ok_or_else(|| "no file system can be mounted here".to_string());
    let Some(output) = unless_skipped("a salvage onto a full disk", may_mount) else {
        assert!(std::env::var_os("DURAMEN_TOOLS_REQUIRED").is_none());
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "exit 4\n", "{said}");
    assert!(said.contains("full") || said.contains("space"), "{said}");
    scratch.done(&["salvage", "store", "rest"]);
    assert!(whole == views(&scratch.path("rest")));
}

/// Asserts what must hold for a salvaged tree, whatever was lost.
fn assert_is_left(name: &str, whole: &TreeView, rest: &TreeView, lost: &[String]) {
    let said = |what: &str| {
        let of_tree = format!("tree {name:?}: ");
        lost.iter()
            .any(|line| line.starts_with(&of_tree) && line.contains(what))
    };
    if !said("") {
        assert!(whole == rest, "{name:?} is not as it was, without a word: {lost:#?}");
        return;
    }
    assert!(rest.revision > whole.revision, "a revision would be used again");
    assert_eq!(rest.first, rest.revision);
    for (path, node) in &whole.nodes {
        match rest.nodes.get(path) {
            Some(found) if found == node => {}
            Some(found) => {
                let without_lease = Node {
                    lease: 0,
                    ..node.clone()
                };
                let path = String::from_utf8_lossy(path);
                assert!(*found == without_lease && said(&format!("the lease of the node {path:?}")));
            }
            None => assert!(
                said("nodes, if there were more"),
                "{path:?} is missing without a word: {lost:#?}"
            ),
        }
    }
    assert!(rest.nodes.keys().all(|path| whole.nodes.contains_key(path)));
    assert!(rest.leases == whole.leases || said("leases, if"), "{lost:#?}");
    let with_lease = rest.nodes.values().filter(|node| node.lease == LEASE).count();
    assert_eq!(rest.attached, with_lease);
}

#[test]
fn whichever_page_rots_trees_go_on_and_what_is_not_as_it_was_is_named() {
    let scratch = Scratch::new();
    make_store(&scratch.path("store"));
    let whole = views(&scratch.path("store"));
    let image = Image::read(&scratch.path("store"));
    let (mut nodes_lost, mut remade, mut leases_lost) = (0, 0, 0);
    // All leaves, and the root.
    let pages = (64..(image.data.len() / PAGE) as u32).filter(|page| image.is_used(*page) && image.is_leaf(*page));
    for page in pages.chain([image.root()]) {
        copy_files(&scratch.path("store"), &scratch.path("damaged"));
        let mut image = Image::read(&scratch.path("damaged"));
        image.flip(page as usize * PAGE + 1000);
        image.write(&scratch.path("damaged"));
        let ended = scratch.run(&["salvage", "damaged", "rest", "--json"]);
        let lost = lost(&ended);
        let rest = views(&scratch.path("rest"));
        let names: Vec<_> = rest.keys().collect();
        for (name, before) in &whole {
            match rest.get(name) {
                Some(after) => assert_is_left(name, before, after, &lost),
                None => {
                    let is_told =
                        |line: &String| line.starts_with("trees, if") || line.starts_with("names of trees, if");
                    assert!(
                        lost.iter().any(is_told),
                        "page {page}: {name:?} of {names:?}: {lost:#?}"
                    );
                }
            }
        }
        if rest.contains_key("services") {
            assert_goes_on(&scratch.path("rest"), &lost);
        }
        let is_told = |what: &str| usize::from(lost.iter().any(|line| line.contains(what)));
        nodes_lost += is_told("nodes, if there were more");
        remade += is_told("its revisions before");
        leases_lost += is_told("leases, if there were more");
        std::fs::remove_dir_all(scratch.path("rest")).unwrap();
        std::fs::remove_dir_all(scratch.path("damaged")).unwrap();
    }
    assert!(
        nodes_lost > 10 && remade > nodes_lost && leases_lost > 0,
        "{nodes_lost} {remade} {leases_lost}"
    );
}
