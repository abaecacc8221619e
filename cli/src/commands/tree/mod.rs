//! `duramen tree`: reads, changes and watches trees.

mod commit;
mod lease;
mod nodes;
mod remote;
mod rule;
mod transfer;
mod watching;

use clap::{Args, Subcommand};
use duramen::Store;
use duramen::tree::{Node, Tree as TreeOfStore, TreeError, Trees, TreesOptions};
use serde_json::{Value, json};

use self::remote::Remote;
use crate::exit::{Exit, Failure, Outcome};
use crate::opening::NotationArguments;
use crate::output::Output;
use crate::place::{Place, PlaceArguments, Server};
use crate::text::Notation;

const EXAMPLES: &str = r"Examples:
  Store a node, read it, list what is below a path:
    $ duramen tree put shop web/port 443
    $ duramen tree get shop web/port
    $ duramen tree ls shop web
  The names of the trees of the store:
    $ duramen tree list shop
  A tree of a server:
    $ duramen tree get --server unix:duramen.sock web/port

A tree has paths with payloads, revisions and leases; see docs/guide/trees.md.";

const LIST_EXAMPLES: &str = r"Examples:
  A line for each tree, with its revision:
    $ duramen tree list shop
    $ duramen tree list shop --json";

const COMPACT_EXAMPLES: &str = r"Examples:
  Forget what the tree was before revision 3; by default, before the newest revision:
    $ duramen tree compact shop --revision 3
    $ duramen tree compact shop";

/// Read, change and watch trees: paths with revisions
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Tree {
    #[command(subcommand)]
    action: Action,
}

/// Which tree of which store.
#[derive(Args, Debug)]
struct TreeArguments {
    #[command(flatten)]
    place: PlaceArguments,

    /// The tree
    #[arg(long, value_name = "NAME", default_value = "main")]
    tree: String,

    #[command(flatten)]
    notation: NotationArguments,
}

#[derive(Subcommand, Debug)]
enum Action {
    Get(nodes::Get),
    Put(nodes::Put),
    Ls(nodes::Ls),
    Rm(nodes::Rm),
    Watch(watching::Watch),
    Watches(watching::Watches),
    Txn(commit::Txn),
    Lease(lease::Lease),
    Rule(rule::Rule),
    Export(transfer::Export),
    Import(transfer::Import),
    /// Forget the changes before a revision
    #[command(after_help = COMPACT_EXAMPLES)]
    Compact {
        #[command(flatten)]
        place: TreeArguments,
        /// The first revision that can be read afterwards (default: the newest)
        #[arg(long, value_name = "REVISION")]
        revision: Option<u64>,
    },
    /// List the trees
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        place: PlaceArguments,
    },
}

impl Tree {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.action {
            Action::Get(get) => get.run(output),
            Action::Put(put) => put.run(output),
            Action::Ls(ls) => ls.run(output),
            Action::Rm(rm) => rm.run(output),
            Action::Watch(watch) => watch.run(output),
            Action::Watches(watches) => watches.run(output),
            Action::Txn(txn) => txn.run(output),
            Action::Lease(lease) => lease.run(output),
            Action::Rule(rule) => rule.run(output),
            Action::Export(export) => export.run(output),
            Action::Import(import) => import.run(output),
            Action::Compact { place, revision } => compact(&place.existing_to_write()?, revision, output),
            Action::List { place } => match place.open_to_read()? {
                Place::Directory(store) => list(&store, output),
                Place::Server(server) => list_of_server(&server, output),
            },
        }
    }
}

/// A tree of a directory, or of a server.
enum Opened {
    Local(Local),
    Remote(Remote),
}

/// A tree, and the store that it is in.
struct Local {
    tree: TreeOfStore,
    /// Open as long as the tree is used.
    _trees: Trees,
    notation: Notation,
}

impl TreeArguments {
    /// Opens an existing tree for reading.
    fn existing(&self) -> Outcome<Opened> {
        self.of(self.place.open_to_read()?, Local::existing)
    }

    /// Opens an existing tree.
    fn existing_to_write(&self) -> Outcome<Opened> {
        self.of(self.place.open_to_write()?, Local::existing)
    }

    /// Opens a tree, and makes the store and the tree when they are missing.
    fn existing_or_new(&self) -> Outcome<Opened> {
        self.of(self.place.open_or_create()?, Local::existing_or_new)
    }

    fn of(&self, place: Place, local: impl FnOnce(&Store, &str, Notation) -> Outcome<Local>) -> Outcome<Opened> {
        let notation = self.notation.notation();
        match place {
            Place::Directory(store) => local(&store, &self.tree, notation).map(Opened::Local),
            Place::Server(server) => Ok(Opened::Remote(Remote {
                tree: server.client.tree(&self.tree),
                name: self.tree.clone(),
                notation,
                server,
            })),
        }
    }

    fn path(&self, text: &str) -> Outcome<Vec<u8>> {
        self.notation.notation().parse("path", text)
    }
}

impl Local {
    fn existing(store: &Store, name: &str, notation: Notation) -> Outcome<Local> {
        let unknown = || {
            let message = format!("there is no tree named {name:?}");
            Failure::wrong_call(message).hint("`duramen tree list DIR` shows the trees; `duramen tree put` makes one")
        };
        let trees = trees(store)?.ok_or_else(unknown)?;
        let tree = trees.get(name)?.ok_or_else(unknown)?;
        Ok(Local {
            tree,
            _trees: trees,
            notation,
        })
    }

    fn existing_or_new(store: &Store, name: &str, notation: Notation) -> Outcome<Local> {
        let trees = Trees::open_with(store, TreesOptions::new().background(false))?;
        let tree = trees.ensure(name)?;
        Ok(Local {
            tree,
            _trees: trees,
            notation,
        })
    }
}

/// The trees of a store; `None`: it never had any.
pub fn trees(store: &Store) -> Outcome<Option<Trees>> {
    match Trees::open_with(store, TreesOptions::new().background(false)) {
        Err(error) if matches!(TreeError::of(&error), Some(TreeError::NoTrees)) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// A node as JSON.
fn object(notation: Notation, path: &[u8], node: &Node) -> Value {
    json!({
        "path": notation.show(path),
        "payload": notation.show(&node.payload),
        "version": node.version,
        "create_revision": node.create_revision,
        "revision": node.revision,
        "lease": (node.lease > 0).then_some(node.lease),
    })
}

fn compact(opened: &Opened, revision: Option<u64>, output: &mut Output) -> Outcome {
    let first = match opened {
        Opened::Local(local) => {
            let revision = revision.map_or_else(|| local.tree.revision(), Ok)?;
            local.tree.compact(revision)?;
            local.tree.view()?.first_revision()?
        }
        Opened::Remote(Remote { server, tree, .. }) => {
            let revision = revision.map_or_else(|| server.wait(tree.revision()), Ok)?;
            server.wait(tree.compact(revision))?;
            server.wait(tree.describe())?.first_revision
        }
    };
    match output.is_json {
        true => output.json(&json!({"first_revision": first}))?,
        false => output.line(format_args!("the first revision is {first}"))?,
    }
    Ok(Exit::Done)
}

fn list_of_server(server: &Server, output: &mut Output) -> Outcome {
    for name in server.wait(server.client.list_trees())? {
        let described = server.wait(server.client.tree(&name).describe())?;
        print_tree(&name, described.revision, described.first_revision, output)?;
    }
    Ok(Exit::Done)
}

fn print_tree(name: &str, revision: u64, first: u64, output: &mut Output) -> Outcome<()> {
    match output.is_json {
        true => output.json(&json!({"tree": name, "revision": revision, "first_revision": first})),
        false => output.line(format_args!("{name}\t{revision}")),
    }
}

fn list(store: &Store, output: &mut Output) -> Outcome {
    let Some(trees) = trees(store)? else {
        return Ok(Exit::Done);
    };
    for name in trees.list()? {
        let Some(tree) = trees.get(&name)? else { continue };
        let view = tree.view()?;
        print_tree(&name, view.revision(), view.first_revision()?, output)?;
    }
    Ok(Exit::Done)
}
