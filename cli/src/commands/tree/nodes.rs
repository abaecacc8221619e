//! Getting, storing, listing and removing nodes.

use clap::Args;
use duramen::tree::{Child, Compare, Condition, LeaseChange, Node, Operation, Pattern, TreeView};
use duramen_client::{Nodes, OperationResult, ReadNodes};
use serde_json::json;

use super::remote::{Remote, of_server};
use super::{Local, Opened, TreeArguments, object};
use crate::exit::{Exit, Outcome};
use crate::output::{Output, say};
use crate::text::{Notation, counted};

const GET_EXAMPLES: &str = r"Examples:
  The payload of a node; as it was at a revision; with its revisions, version and lease:
    $ duramen tree get shop web/port
    $ duramen tree get shop web/port --revision 2
    $ duramen tree get shop web/port --json

Exit code 1 when there is no node.";

const PUT_EXAMPLES: &str = r"Examples:
  Store a node; the store and the tree are made when they are missing:
    $ duramen tree put shop web/port 8443
  Only when there is no node yet; only when the node has the version that was read:
    $ duramen tree put shop web/name example --create
    $ duramen tree put shop web/port 443 --if-version 2

Exit code 1 when the condition does not hold. The command prints the revision of the change.";

const LS_EXAMPLES: &str = r"Examples:
  The children of a path, and of the top; those without a node end in /:
    $ duramen tree ls shop web
    $ duramen tree ls shop
  Nodes by a pattern, with their payloads: * is a name, ** any number of names, {a|b} a regular
  expression:
    $ duramen tree ls shop --pattern 'web/**'
    $ duramen tree ls shop --pattern '*/{port|host}' --json
  A page of children:
    $ duramen tree ls shop web --after host --limit 100";

const RM_EXAMPLES: &str = r"Examples:
  A node; a node and everything below it; all nodes with a pattern:
    $ duramen tree rm shop web/host
    $ duramen tree rm shop web --subtree
    $ duramen tree rm shop --pattern 'old/**'

Exit code 1 when nothing was there. The command prints how many nodes it removed.";

/// Print the payload of a node
#[derive(Args, Debug)]
#[command(after_help = GET_EXAMPLES)]
pub struct Get {
    #[command(flatten)]
    place: TreeArguments,
    /// The path
    path: String,
    /// As it was at this revision
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
}

/// Store a node
#[derive(Args, Debug)]
#[command(after_help = PUT_EXAMPLES)]
pub struct Put {
    #[command(flatten)]
    place: TreeArguments,
    /// The path
    path: String,
    /// The payload
    #[arg(allow_negative_numbers = true)]
    payload: String,
    /// Only when there is no node
    #[arg(long, conflicts_with = "if_version")]
    create: bool,
    /// Only when the node was stored so often; 0: there is none
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Delete the node when this lease ends; without this option a lease stays
    #[arg(long, value_name = "ID")]
    lease: Option<u64>,
}

/// List the children of a path, or the nodes with a pattern
#[derive(Args, Debug)]
#[command(after_help = LS_EXAMPLES)]
pub struct Ls {
    #[command(flatten)]
    place: TreeArguments,
    /// The path (default: the top)
    path: Option<String>,
    /// The nodes with this pattern, with their payloads
    #[arg(long, value_name = "PATTERN", conflicts_with = "path")]
    pattern: Option<Pattern>,
    /// Only children after this name
    #[arg(long, value_name = "NAME", conflicts_with = "pattern")]
    after: Option<String>,
    /// At most so many lines
    #[arg(long, value_name = "COUNT", default_value_t = usize::MAX, hide_default_value = true)]
    limit: usize,
    /// As it was at this revision
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
}

/// Remove nodes
#[derive(Args, Debug)]
#[command(after_help = RM_EXAMPLES)]
pub struct Rm {
    #[command(flatten)]
    place: TreeArguments,
    /// The path
    #[arg(required_unless_present = "pattern")]
    path: Option<String>,
    /// Everything below it too
    #[arg(long, requires = "path")]
    subtree: bool,
    /// All nodes with this pattern
    #[arg(long, value_name = "PATTERN", conflicts_with = "path")]
    pattern: Option<Pattern>,
    /// Everything below it too, and all earlier revisions: this makes room in a full store
    #[arg(long, requires = "path", conflicts_with = "subtree")]
    purge: bool,
}

impl Local {
    fn view(&self, revision: Option<u64>) -> Outcome<TreeView> {
        let view = self.tree.view()?;
        match revision {
            Some(revision) => Ok(view.at_revision(revision)?),
            None => Ok(view),
        }
    }
}

impl Opened {
    fn notation(&self) -> Notation {
        match self {
            Opened::Local(local) => local.notation,
            Opened::Remote(remote) => remote.notation,
        }
    }
}

impl Get {
    pub fn run(self, output: &mut Output) -> Outcome {
        let opened = self.place.existing()?;
        let path = self.place.path(&self.path)?;
        let node = match &opened {
            Opened::Local(local) => local.view(self.revision)?.get(&path)?,
            Opened::Remote(Remote { server, tree, .. }) => {
                let read = server.wait(tree.get_at(&path, self.revision.unwrap_or(0)))?;
                read.map(|node| of_server(node).1)
            }
        };
        let Some(node) = node else {
            say(format_args!("duramen: there is no node {:?}", self.path));
            return Ok(Exit::NotFound);
        };
        match output.is_json {
            true => output.json(&object(opened.notation(), &path, &node))?,
            false => output.line(opened.notation().show(&node.payload))?,
        }
        Ok(Exit::Done)
    }
}

impl Put {
    pub fn run(self, output: &mut Output) -> Outcome {
        let path = self.place.path(&self.path)?;
        let opened = self.place.existing_or_new()?;
        let payload = opened.notation().parse("payload", &self.payload)?;
        let expected = if self.create { Some(0) } else { self.if_version };
        let lease = self.lease.map_or(LeaseChange::Keep, LeaseChange::Attach);
        let put = match &opened {
            Opened::Local(local) => local.tree.transact(|tree| {
                let version = tree.get(&path)?.map_or(0, |node| node.version);
                if expected.is_some_and(|expected| expected != version) {
                    return Ok::<_, duramen::Error>(Err(version));
                }
                tree.put_with(&path, &payload, lease)?;
                Ok(Ok(tree.revision()))
            })?,
            Opened::Remote(remote) => {
                let condition = expected.map(|expected| (path.clone(), Condition::Version(Compare::Equal(expected))));
                let put = Operation::Put {
                    path: path.clone(),
                    payload,
                    lease,
                };
                let get = Operation::Get { path };
                let conditions: Vec<_> = condition.into_iter().collect();
                put_remote(remote, &conditions, put, get)?
            }
        };
        match put {
            Ok(revision) => {
                match output.is_json {
                    true => output.json(&json!({"path": self.path, "revision": revision}))?,
                    false => output.line(revision)?,
                }
                Ok(Exit::Done)
            }
            Err(version) => {
                say(format_args!("duramen: the node {:?} has version {version}", self.path));
                Ok(Exit::NotFound)
            }
        }
    }
}

/// Stores a node on a server under a condition. Returns the revision, or the version of the node.
fn put_remote(
    remote: &Remote,
    conditions: &[(Vec<u8>, Condition)],
    put: Operation,
    get: Operation,
) -> Outcome<Result<u64, u64>> {
    let (put, get) = ([put], [get]);
    let committed = remote.commit(conditions, &put, &get)?;
    if committed.succeeded {
        return Ok(Ok(committed.revisions.first().map_or(0, |(_, revision)| *revision)));
    }
    let version = match committed.results.first() {
        Some(OperationResult::Tree { node: Some(node), .. }) => node.version,
        _ => 0,
    };
    Ok(Err(version))
}

impl Ls {
    pub fn run(self, output: &mut Output) -> Outcome {
        let opened = self.place.existing()?;
        match &self.pattern {
            Some(pattern) => self.matching(&opened, pattern, output),
            None => self.children(&opened, output),
        }
    }

    /// What is asked of a server; `None`: nothing.
    fn read(&self) -> Option<ReadNodes> {
        let read = ReadNodes::new().revision(self.revision.unwrap_or(0));
        // 0 is no limit there.
        match self.limit {
            0 => None,
            limit => Some(read.limit(limit as u64)),
        }
    }

    fn matching(&self, opened: &Opened, pattern: &Pattern, output: &mut Output) -> Outcome {
        let notation = opened.notation();
        match opened {
            Opened::Local(local) => {
                let (mut left, mut failed) = (self.limit, None);
                local.view(self.revision)?.matching(pattern, |path, node| {
                    if left == 0 {
                        return Ok(false);
                    }
                    left -= 1;
                    failed = print_node(notation, path, &node, output).err();
                    Ok(failed.is_none())
                })?;
                failed.map_or(Ok(Exit::Done), Err)
            }
            Opened::Remote(remote) => {
                if let Some(read) = self.read() {
                    let nodes = Nodes::pattern(pattern.to_string());
                    remote.each(nodes, read, |path, node| print_node(notation, path, &node, output))?;
                }
                Ok(Exit::Done)
            }
        }
    }

    fn children(&self, opened: &Opened, output: &mut Output) -> Outcome {
        let notation = opened.notation();
        let after = self.after.as_ref().map(|name| notation.parse("name", name));
        let after = after.transpose()?;
        let path = self.path.as_ref().map(|path| self.place.path(path)).transpose()?;
        match opened {
            Opened::Local(local) => {
                let view = local.view(self.revision)?;
                let children = match &path {
                    Some(path) => view.children(path, after.as_deref(), self.limit)?,
                    None => view.top(after.as_deref(), self.limit)?,
                };
                for child in children {
                    print_child(notation, &child, output)?;
                }
            }
            Opened::Remote(Remote { server, tree, .. }) => {
                let Some(read) = self.read() else { return Ok(Exit::Done) };
                let mut children = server.wait(tree.children(path.as_deref(), after.as_deref(), read))?;
                while let Some(child) = server.next(children.next())? {
                    let name = child.name.to_vec();
                    let child = Child {
                        path: match &path {
                            Some(path) => [path, &b"/"[..], &name].concat(),
                            None => name.clone(),
                        },
                        name,
                        node: child.node.map(|node| of_server(node).1),
                    };
                    print_child(notation, &child, output)?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

fn print_child(notation: Notation, child: &Child, output: &mut Output) -> Outcome<()> {
    let name = notation.show(&child.name);
    match (output.is_json, &child.node) {
        (true, Some(node)) => output.json(&object(notation, &child.path, node)),
        (true, None) => output.json(&json!({"path": notation.show(&child.path), "implied": true})),
        (false, Some(_)) => output.line(name),
        (false, None) => output.line(format_args!("{name}/")),
    }
}

fn print_node(notation: Notation, path: &[u8], node: &Node, output: &mut Output) -> Outcome<()> {
    match output.is_json {
        true => output.json(&object(notation, path, node)),
        false => {
            let (path, payload) = (notation.show(path), notation.show(&node.payload));
            output.line(format_args!("{path}\t{payload}"))
        }
    }
}

impl Rm {
    pub fn run(self, output: &mut Output) -> Outcome {
        let opened = self.place.existing_to_write()?;
        let path = self.path.as_ref().map(|path| self.place.path(path)).transpose()?;
        let path = path.unwrap_or_default();
        let removed = match (&opened, &self.pattern) {
            (Opened::Local(Local { tree, .. }), Some(pattern)) => tree.delete_many(pattern)?,
            (Opened::Local(Local { tree, .. }), None) if self.purge => tree.purge(path)?,
            (Opened::Local(Local { tree, .. }), None) if self.subtree => tree.delete_subtree(path)?,
            (Opened::Local(Local { tree, .. }), None) => u64::from(tree.delete(path)?.is_some()),
            (Opened::Remote(remote), Some(pattern)) => {
                let transaction = remote.server.client.transaction();
                let transaction = transaction.delete_nodes(&remote.name, &pattern.to_string());
                match remote.server.wait(transaction.commit())?.results.first() {
                    Some(OperationResult::Tree { count, .. }) => *count,
                    _ => 0,
                }
            }
            (Opened::Remote(Remote { server, tree, .. }), None) if self.purge => server.wait(tree.purge(path))?,
            (Opened::Remote(Remote { server, tree, .. }), None) if self.subtree => {
                server.wait(tree.delete_subtree(path))?
            }
            (Opened::Remote(Remote { server, tree, .. }), None) => u64::from(server.wait(tree.delete(path))?),
        };
        match output.is_json {
            true => output.json(&json!({"removed": removed}))?,
            false => output.line(format_args!("removed {}", counted(removed, "node")))?,
        }
        Ok(if removed > 0 { Exit::Done } else { Exit::NotFound })
    }
}
