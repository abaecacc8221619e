//! Getting, storing, listing and removing nodes.

use clap::Args;
use duramen::tree::{LeaseChange, Node, Pattern, TreeView};
use serde_json::json;

use super::{Opened, TreeArguments, object};
use crate::exit::{Exit, Outcome};
use crate::output::{Output, say};
use crate::text::counted;

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

impl Opened {
    fn view(&self, revision: Option<u64>) -> Outcome<TreeView> {
        let view = self.tree.view()?;
        match revision {
            Some(revision) => Ok(view.at_revision(revision)?),
            None => Ok(view),
        }
    }
}

impl Get {
    pub fn run(self, output: &mut Output) -> Outcome {
        let opened = self.place.existing()?;
        let path = self.place.path(&self.path)?;
        let Some(node) = opened.view(self.revision)?.get(&path)? else {
            say(format_args!("duramen: there is no node {:?}", self.path));
            return Ok(Exit::NotFound);
        };
        match output.is_json {
            true => output.json(&object(opened.notation, &path, &node))?,
            false => output.line(opened.notation.show(&node.payload))?,
        }
        Ok(Exit::Done)
    }
}

impl Put {
    pub fn run(self, output: &mut Output) -> Outcome {
        let path = self.place.path(&self.path)?;
        let opened = self.place.existing_or_new()?;
        let payload = opened.notation.parse("payload", &self.payload)?;
        let expected = if self.create { Some(0) } else { self.if_version };
        let lease = self.lease.map_or(LeaseChange::Keep, LeaseChange::Attach);
        let put = opened.tree.transact(|tree| {
            let version = tree.get(&path)?.map_or(0, |node| node.version);
            if expected.is_some_and(|expected| expected != version) {
                return Ok::<_, duramen::Error>(Err(version));
            }
            tree.put_with(&path, &payload, lease)?;
            Ok(Ok(tree.revision()))
        })?;
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

impl Ls {
    pub fn run(self, output: &mut Output) -> Outcome {
        let opened = self.place.existing()?;
        let view = opened.view(self.revision)?;
        match &self.pattern {
            Some(pattern) => self.matching(&opened, &view, pattern, output),
            None => self.children(&opened, &view, output),
        }
    }

    fn matching(&self, opened: &Opened, view: &TreeView, pattern: &Pattern, output: &mut Output) -> Outcome {
        let (mut left, mut failed) = (self.limit, None);
        view.matching(pattern, |path, node| {
            if left == 0 {
                return Ok(false);
            }
            left -= 1;
            let printed = print_node(opened, path, &node, output);
            failed = printed.err();
            Ok(failed.is_none())
        })?;
        failed.map_or(Ok(Exit::Done), Err)
    }

    fn children(&self, opened: &Opened, view: &TreeView, output: &mut Output) -> Outcome {
        let after = self.after.as_ref().map(|name| opened.notation.parse("name", name));
        let after = after.transpose()?;
        let children = match &self.path {
            Some(path) => view.children(self.place.path(path)?, after.as_deref(), self.limit)?,
            None => view.top(after.as_deref(), self.limit)?,
        };
        for child in children {
            let name = opened.notation.show(&child.name);
            match (output.is_json, &child.node) {
                (true, Some(node)) => output.json(&object(opened.notation, &child.path, node))?,
                (true, None) => output.json(&json!({"path": opened.notation.show(&child.path), "implied": true}))?,
                (false, Some(_)) => output.line(name)?,
                (false, None) => output.line(format_args!("{name}/"))?,
            }
        }
        Ok(Exit::Done)
    }
}

fn print_node(opened: &Opened, path: &[u8], node: &Node, output: &mut Output) -> Outcome<()> {
    match output.is_json {
        true => output.json(&object(opened.notation, path, node)),
        false => {
            let (path, payload) = (opened.notation.show(path), opened.notation.show(&node.payload));
            output.line(format_args!("{path}\t{payload}"))
        }
    }
}

impl Rm {
    pub fn run(self, output: &mut Output) -> Outcome {
        let opened = self.place.existing_to_write()?;
        let tree = &opened.tree;
        let removed = match (&self.pattern, &self.path) {
            (Some(pattern), _) => tree.delete_many(pattern)?,
            (None, Some(path)) if self.purge => tree.purge(self.place.path(path)?)?,
            (None, Some(path)) if self.subtree => tree.delete_subtree(self.place.path(path)?)?,
            (None, path) => {
                let path = self.place.path(path.as_deref().unwrap_or_default())?;
                u64::from(tree.delete(path)?.is_some())
            }
        };
        match output.is_json {
            true => output.json(&json!({"removed": removed}))?,
            false => output.line(format_args!("removed {}", counted(removed, "node")))?,
        }
        Ok(if removed > 0 { Exit::Done } else { Exit::NotFound })
    }
}
