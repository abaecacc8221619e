//! Random changes to a tree, compared with a map per revision: nodes, ranges, children, conditions and watches, at the newest and
//! at earlier revisions, with folds, compactions and restarts in between.
//!
//! `DURAMEN_SEED=n` runs a seed again.

use std::collections::BTreeMap;
use std::time::Duration;

use duramen_engine::{Durability, Maintenance, Options, Store};
use duramen_io::SimDisk;
use duramen_tree::{
    ChangeKind, Compare, Condition, Event, Node, Pattern, Projection, Quota, Tree, TreeError, TreeView, TreeWatch,
    Trees, TreesOptions, WatchOptions,
};

type Nodes = BTreeMap<Vec<u8>, Node>;

/// What a tree should be.
#[derive(Default)]
struct Model {
    /// The nodes at each revision from `first` on.
    states: Vec<Nodes>,
    first: u64,
    /// All changes, oldest first.
    events: Vec<Event>,
}

impl Model {
    fn new() -> Model {
        Model {
            states: vec![Nodes::new()],
            first: 1,
            events: Vec::new(),
        }
    }

    fn revision(&self) -> u64 {
        self.first + self.states.len() as u64 - 1
    }

    fn at(&self, revision: u64) -> &Nodes {
        &self.states[(revision - self.first) as usize]
    }

    fn now(&self) -> &Nodes {
        self.states.last().unwrap()
    }

    /// Applies what a transaction makes of the nodes. A transaction that changes nothing has no revision.
    fn commit(&mut self, change: impl FnOnce(&mut Nodes, u64) -> bool) {
        let (mut nodes, revision) = (self.now().clone(), self.revision() + 1);
        if !change(&mut nodes, revision) {
            assert_eq!(&nodes, self.now());
            return;
        }
        let paths: std::collections::BTreeSet<_> = nodes.keys().chain(self.now().keys()).cloned().collect();
        for path in paths {
            let (old, node) = (self.now().get(&path), nodes.get(&path));
            if old != node {
                self.events.push(Event {
                    revision,
                    kind: if node.is_some() {
                        ChangeKind::Put
                    } else {
                        ChangeKind::Delete
                    },
                    path,
                    node: node.cloned(),
                    old: old.cloned(),
                });
            }
        }
        self.states.push(nodes);
    }

    fn compact(&mut self, revision: u64) {
        if revision > self.first {
            self.states.drain(..(revision - self.first) as usize);
            self.first = revision;
            self.events.retain(|event| event.revision >= revision);
        }
    }
}

fn put(nodes: &mut Nodes, path: &[u8], payload: &[u8], revision: u64) -> bool {
    let node = nodes.entry(path.to_vec()).or_insert_with(|| Node {
        create_revision: revision,
        ..Node::default()
    });
    node.revision = revision;
    node.version += 1;
    node.payload = payload.to_vec();
    true
}

fn is_within(path: &[u8], top: &[u8]) -> bool {
    path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Names of the children of a path.
fn children(nodes: &Nodes, parent: Option<&[u8]>) -> Vec<Vec<u8>> {
    let rest = |path: &Vec<u8>| match parent {
        Some(parent) => path.strip_prefix(parent)?.strip_prefix(b"/").map(<[u8]>::to_vec),
        None => Some(path.clone()),
    };
    let mut names: Vec<Vec<u8>> = nodes
        .keys()
        .filter_map(rest)
        .map(|rest| rest.split(|byte| *byte == b'/').next().unwrap().to_vec())
        .collect();
    names.sort();
    names.dedup();
    names
}

struct Run {
    rng: fastrand::Rng,
    disk: SimDisk,
    store: Option<Store>,
    trees: Option<Trees>,
    tree: Option<Tree>,
    model: Model,
    watch: Option<TreeWatch>,
    /// What the watch has returned is compared with the events from here on.
    watched: u64,
}

const PATTERNS: [&str; 7] = ["a/**", "**", "*", "*/b*", "a/{[bc]}", "**/c", "/*"];

impl Run {
    fn new(seed: u64) -> Run {
        let mut run = Run {
            rng: fastrand::Rng::with_seed(seed),
            disk: SimDisk::new(seed),
            store: None,
            trees: None,
            tree: None,
            model: Model::new(),
            watch: None,
            watched: 2,
        };
        run.open();
        let projection = Projection {
            pattern: "**/b/**".parse().unwrap(),
            map: "projected".into(),
        };
        let quota = Quota {
            nodes: u64::MAX,
            bytes: u64::MAX,
        };
        run.tree()
            .transact(|tree| {
                tree.set_projection("projected", &projection)?;
                tree.set_quota("a", quota)
            })
            .unwrap();
        run
    }

    /// Projection and quota are those of the newest nodes.
    fn check_rules(&self) {
        let view = self.tree().view().unwrap();
        let (_, projection) = view.projections().unwrap().remove(0);
        let nodes = self.model.now();
        let expected: BTreeMap<_, _> = nodes
            .iter()
            .filter(|(path, _)| projection.pattern.matches(path))
            .map(|(path, node)| (path.clone(), node.payload.clone()))
            .collect();
        let store = self.store.as_ref().unwrap();
        let (map, snapshot) = (store.map("projected").unwrap(), store.snapshot().unwrap());
        let pairs: BTreeMap<_, _> = snapshot
            .range(&map, ..)
            .unwrap()
            .iter()
            .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert!(pairs == expected);
        let used = view.quotas().unwrap().remove(0);
        let counted = nodes.iter().filter(|(path, _)| is_within(path, b"a"));
        let bytes: usize = counted
            .clone()
            .map(|(path, node)| path.len() + node.payload.len())
            .sum();
        assert_eq!((used.nodes, used.bytes), (counted.count() as u64, bytes as u64));
    }

    fn open(&mut self) {
        let options = Options::new()
            .maintenance(Maintenance::Manual)
            .durability(Durability::Synced);
        let store = options.open_on(self.disk.platform()).unwrap();
        let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
        self.tree = Some(trees.ensure("tree").unwrap());
        (self.store, self.trees) = (Some(store), Some(trees));
        self.watch();
    }

    fn watch(&mut self) {
        self.watched = self.rng.u64(self.model.first..=self.model.revision() + 1);
        let options = WatchOptions::all().from_revision(self.watched);
        self.watch = Some(self.tree().watch(options).unwrap());
    }

    fn tree(&self) -> Tree {
        self.tree.clone().unwrap()
    }

    fn restart(&mut self) {
        (self.watch, self.tree, self.trees, self.store) = (None, None, None, None);
        self.disk = match self.rng.bool() {
            true => self.disk.kill(),
            false => self.disk.power_cut(self.rng.u64(..)),
        };
        self.open();
    }

    fn path(&mut self) -> Vec<u8> {
        let names = [&b"a"[..], b"b", b"c", b"", b"bb", b"a-b", b"\0", b"\xFF"];
        let depth = self.rng.usize(1..4);
        let parts: Vec<&[u8]> = (0..depth)
            .map(|_| {
                let choice = if self.rng.u8(..) < 200 { 3 } else { names.len() };
                names[self.rng.usize(..choice)]
            })
            .collect();
        let path = parts.join(&b'/');
        if path.is_empty() { b"a".to_vec() } else { path }
    }

    fn payload(&mut self) -> Vec<u8> {
        // Beyond 64 KiB payloads have pages of their own.
        let length = match self.rng.u8(..) {
            0 => 70_000,
            1..20 => 2_000,
            _ => self.rng.usize(0..8),
        };
        vec![self.rng.u8(..); length]
    }

    /// One change by one call.
    fn change(&mut self) {
        let (tree, path, payload) = (self.tree(), self.path(), self.payload());
        let before = self.model.now().get(&path).cloned();
        match self.rng.u8(0..20) {
            0..6 => {
                assert_eq!(tree.put(&path, &payload).unwrap(), before);
                self.model
                    .commit(|nodes, revision| put(nodes, &path, &payload, revision));
            }
            6..8 => match tree.create(&path, &payload) {
                Ok(()) => {
                    assert_eq!(before, None);
                    self.model
                        .commit(|nodes, revision| put(nodes, &path, &payload, revision));
                }
                Err(error) => {
                    let version = before.unwrap().version;
                    assert!(
                        matches!(TreeError::of(&error), Some(TreeError::Exists { version: found, .. }) if *found == version)
                    );
                }
            },
            8 => match tree.update(&path, &payload) {
                Ok(old) => {
                    assert_eq!(Some(old), before);
                    self.model
                        .commit(|nodes, revision| put(nodes, &path, &payload, revision));
                }
                Err(error) => {
                    assert!(matches!(TreeError::of(&error), Some(TreeError::Missing { .. })) && before.is_none());
                }
            },
            9 => {
                let expected = before.as_ref().map_or_else(Vec::new, |before| before.payload.clone());
                match tree.compare_and_swap(&path, &expected, &payload) {
                    Ok(()) => self
                        .model
                        .commit(|nodes, revision| put(nodes, &path, &payload, revision)),
                    Err(_) => assert!(before.is_none()),
                }
            }
            10..14 => {
                assert_eq!(tree.delete(&path).unwrap(), before);
                self.model.commit(|nodes, _| nodes.remove(&path).is_some());
            }
            14..16 => {
                let gone = self.model.now().keys().filter(|found| is_within(found, &path)).count();
                assert_eq!(tree.delete_subtree(&path).unwrap(), gone as u64);
                self.model.commit(|nodes, _| {
                    nodes.retain(|found, _| !is_within(found, &path));
                    gone > 0
                });
            }
            16 => {
                let pattern: Pattern = PATTERNS[self.rng.usize(..PATTERNS.len())].parse().unwrap();
                let matching = self.model.now().keys().filter(|path| pattern.matches(path)).count() as u64;
                if self.rng.bool() {
                    assert_eq!(tree.put_many(&pattern, &payload).unwrap(), matching);
                    self.model.commit(|nodes, revision| {
                        let paths: Vec<_> = nodes.keys().filter(|path| pattern.matches(path)).cloned().collect();
                        paths.iter().all(|path| put(nodes, path, &payload, revision)) && matching > 0
                    });
                } else {
                    assert_eq!(tree.delete_many(&pattern).unwrap(), matching);
                    self.model.commit(|nodes, _| {
                        nodes.retain(|path, _| !pattern.matches(path));
                        matching > 0
                    });
                }
            }
            17 => {
                let version = self.rng.u64(0..3);
                let condition = Condition::Version(Compare::Equal(version));
                let holds = before.as_ref().map_or(0, |node| node.version) == version;
                assert_eq!(tree.put_if(&path, &condition, &payload).unwrap(), holds);
                if holds {
                    self.model
                        .commit(|nodes, revision| put(nodes, &path, &payload, revision));
                }
            }
            _ => self.transaction(),
        }
    }

    /// Several changes with one revision, or none when they are rolled back.
    fn transaction(&mut self) {
        let tree = self.tree();
        let fails = self.rng.u8(..) < 40;
        let steps: Vec<_> = (0..self.rng.usize(1..7))
            .map(|_| (self.rng.u8(0..4), self.path(), self.payload()))
            .collect();
        let done = tree.transact(|tree| {
            for (kind, path, payload) in &steps {
                match kind {
                    0 | 1 => drop(tree.put(path, payload)?),
                    2 => drop(tree.delete(path)?),
                    _ => drop(tree.delete_subtree(path)?),
                }
            }
            match fails {
                true => Err(duramen_engine::Error::damaged("not really")),
                false => Ok(tree.revision()),
            }
        });
        assert_eq!(done.is_err(), fails);
        if fails {
            return;
        }
        self.model.commit(|nodes, revision| {
            let mut is_any = false;
            for (kind, path, payload) in &steps {
                is_any |= match kind {
                    0 | 1 => put(nodes, path, payload, revision),
                    2 => nodes.remove(path).is_some(),
                    _ => {
                        let before = nodes.len();
                        nodes.retain(|found, _| !is_within(found, path));
                        nodes.len() < before
                    }
                };
            }
            is_any
        });
        assert_eq!(done.unwrap(), self.model.revision());
    }

    fn check(&mut self) {
        let view = self.tree().view().unwrap();
        assert_eq!(view.revision(), self.model.revision());
        assert_eq!(view.first_revision().unwrap(), self.model.first);
        let revision = self.rng.u64(self.model.first..=self.model.revision());
        self.check_view(&view, self.model.revision());
        self.check_rules();
        self.check_view(&view.at_revision(revision).unwrap(), revision);
        assert!(view.at_revision(self.model.revision() + 1).is_err());
        if self.model.first > 1 {
            let error = view.at_revision(self.model.first - 1).unwrap_err();
            assert!(
                matches!(TreeError::of(&error), Some(TreeError::Compacted { first, .. }) if *first == self.model.first)
            );
        }
    }

    fn check_view(&mut self, view: &TreeView, revision: u64) {
        let (path, low) = (self.path(), self.path());
        let high = self.rng.bool().then(|| self.path());
        let pattern: Pattern = PATTERNS[self.rng.usize(..PATTERNS.len())].parse().unwrap();
        let nodes = self.model.at(revision);
        assert_eq!(view.get(&path).unwrap().as_ref(), nodes.get(&path));
        assert_eq!(view.exists(&path).unwrap(), nodes.contains_key(&path));
        let mut found = Nodes::new();
        view.range(b"", None, |path, node| {
            assert!(found.last_key_value().is_none_or(|(last, _)| &last[..] < path));
            found.insert(path.to_vec(), node);
            Ok(true)
        })
        .unwrap();
        assert_eq!(&found, nodes, "revision {revision}");
        let within = nodes
            .keys()
            .filter(|path| **path >= low && high.as_ref().is_none_or(|high| *path < high));
        let expected = within.count() as u64;
        assert_eq!(view.count_range(&low, high.as_deref()).unwrap(), expected);
        let matching = nodes.keys().filter(|path| pattern.matches(path)).count();
        assert_eq!(view.count(&pattern).unwrap(), matching as u64);
        assert_eq!(view.get_many(&pattern, 3).unwrap().len(), matching.min(3));
        for parent in [None, Some(&path[..]), Some(&b"a"[..])] {
            let expected = children(nodes, parent);
            let listed = match parent {
                Some(parent) => view.children(parent, None, usize::MAX),
                None => view.top(None, usize::MAX),
            };
            let listed = listed.unwrap();
            let names: Vec<_> = listed.iter().map(|child| child.name.clone()).collect();
            assert_eq!(names, expected, "{parent:?} at {revision}");
            assert!(listed.iter().all(|child| child.node.as_ref() == nodes.get(&child.path)));
            if let Some(parent) = parent {
                assert_eq!(view.child_count(parent).unwrap().count, expected.len() as u64);
                let after = expected.get(expected.len() / 2).cloned();
                let rest = view.children(parent, after.as_deref(), 2).unwrap();
                let rest: Vec<_> = rest.into_iter().map(|child| child.name).collect();
                let later = expected
                    .iter()
                    .filter(|name| after.as_ref().is_none_or(|after| *name > after));
                assert_eq!(rest, later.take(2).cloned().collect::<Vec<_>>());
            }
        }
    }

    /// The rows of compacted revisions are gone.
    fn check_rows(&self) {
        let store = self.store.as_ref().unwrap();
        let count = |name: &str| {
            let map = store.reserved_map(name).unwrap();
            store.snapshot().unwrap().count(&map, ..).unwrap() as usize
        };
        let events = &self.model.events;
        assert_eq!(count("tree.changes"), events.len());
        assert_eq!(
            count("tree.versions"),
            events.iter().filter(|event| event.old.is_some()).count()
        );
    }

    /// The watch has returned all events, and no other.
    fn check_watch(&mut self) {
        let mut watch = self.watch.take().unwrap();
        let mut seen = Vec::new();
        while let Some(events) = watch.next(Duration::ZERO).unwrap() {
            seen.extend(events);
        }
        assert!(seen.is_sorted_by_key(|event| event.revision));
        seen.sort_by(|one, other| (one.revision, &one.path).cmp(&(other.revision, &other.path)));
        let expected: Vec<_> = self
            .model
            .events
            .iter()
            .filter(|event| event.revision >= self.watched)
            .collect();
        assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "from {}", self.watched);
        assert_eq!(watch.resume_from(), self.model.revision() + 1);
        self.watch();
    }

    fn step(&mut self) {
        match self.rng.u8(..) {
            0..4 => self.restart(),
            4..10 => drop(self.store.as_ref().unwrap().maintain()),
            10..16 => {
                // The watch must not be behind.
                self.check_watch();
                let revision = self.rng.u64(1..=self.model.revision());
                let tree = self.tree();
                if self.rng.bool() {
                    tree.compact(revision).unwrap();
                } else {
                    tree.transact(|tree| tree.compact(revision)).unwrap();
                }
                self.model.compact(revision);
                self.trees.as_ref().unwrap().work().unwrap();
                self.check_rows();
                self.watch();
            }
            16..40 => self.check_watch(),
            _ => self.change(),
        }
        if self.rng.u8(..) < 60 {
            self.check();
        }
    }
}

#[test]
fn a_tree_is_what_its_changes_make_of_it() {
    let given = std::env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = given.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    for seed in first..first + if given.is_some() { 1 } else { 40 } {
        println!("DURAMEN_SEED={seed}");
        let mut run = Run::new(seed);
        for _ in 0..250 {
            run.step();
        }
        run.check();
        run.check_watch();
    }
}
