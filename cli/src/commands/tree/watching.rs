//! Printing changes of a tree as they are made.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use duramen::tree::{ChangeKind, Event, Pattern, WatchOptions};
use duramen_client::{Nodes, WatchNodes};
use serde_json::json;

use super::remote::{Remote, of_server};
use super::{Local, Opened, TreeArguments, object};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::text::{Notation, ago};

const EXAMPLES: &str = r"Examples:
  All changes from revision 2 on, two of them:
    $ duramen tree watch shop --from 2 --count 2
  Of a path and everything below it; of a pattern, with the nodes before and after:
    $ duramen tree watch shop web --from 2 --count 1
    $ duramen tree watch shop --pattern '*/port' --from 2 --count 1 --json

A line has the revision, `put` or `delete`, the path, and the new payload. Without --from the command
prints the changes that are made from now on.";

const WATCHES_EXAMPLES: &str = r"Examples:
  The watches of a tree, with what each has not sent yet:
    $ duramen tree watches --server unix:duramen.sock
    $ duramen tree watches --server unix:duramen.sock --json

A line has the stream and its watch, who began it and when, what it watches, the revision up to which it has
sent all changes, and the number of revisions after that. Programs that open a directory keep no such list.";

/// How long one call waits for changes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Print the changes of a tree
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Watch {
    #[command(flatten)]
    place: TreeArguments,
    /// A path, with everything below it (default: the whole tree)
    path: Option<String>,
    /// Paths with this pattern
    #[arg(long, value_name = "PATTERN", conflicts_with = "path")]
    pattern: Option<Pattern>,
    /// Begin with the changes of this revision
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    /// End after so many lines
    #[arg(long, value_name = "COUNT", default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
}

/// List the watches of a tree on a server
#[derive(Args, Debug)]
#[command(after_help = WATCHES_EXAMPLES)]
pub struct Watches {
    #[command(flatten)]
    place: TreeArguments,
}

impl Watches {
    pub fn run(self, output: &mut Output) -> Outcome {
        let Opened::Remote(Remote { server, tree, .. }) = self.place.existing()? else {
            let failure = Failure::wrong_call("only a server keeps a list of its watches");
            return Err(failure.hint("name it with --server"));
        };
        for watch in server.wait(tree.watches())? {
            if output.is_json {
                output.json(&json!({
                    "stream": watch.stream,
                    "watch": watch.watch,
                    "principal": (!watch.principal.is_empty()).then_some(watch.principal),
                    "nodes": watch.nodes,
                    "since_ms": watch.since_ms,
                    "revision": watch.revision,
                    "lag": watch.lag,
                }))?;
                continue;
            }
            let since = ago(UNIX_EPOCH + Duration::from_millis(watch.since_ms));
            // What clients sent must not end the line.
            let [principal, nodes] = [watch.principal, watch.nodes].map(|text| Notation::Escapes.show(text.as_bytes()));
            output.line(format_args!(
                "{}/{}\t{principal}\t{since}\t{nodes}\t{}\t{}",
                watch.stream, watch.watch, watch.revision, watch.lag
            ))?;
        }
        Ok(Exit::Done)
    }
}

impl Watch {
    pub fn run(self, output: &mut Output) -> Outcome {
        // A process that opens a store to read keeps writers out: nothing would ever change.
        match self.place.existing_to_write()? {
            Opened::Local(local) => self.local(&local, output),
            Opened::Remote(remote) => self.remote(&remote, output),
        }
    }

    fn local(&self, local: &Local, output: &mut Output) -> Outcome {
        let options = match (&self.pattern, &self.path) {
            (Some(pattern), _) => WatchOptions::pattern(pattern.clone()),
            (None, Some(path)) => WatchOptions::subtree(self.place.path(path)?),
            (None, None) => WatchOptions::all(),
        };
        let options = match self.from {
            Some(revision) => options.from_revision(revision),
            None => options,
        };
        let mut watch = local.tree.watch(options)?;
        let mut left = self.count;
        while left > 0 {
            for event in watch.next(PATIENCE)?.unwrap_or_default() {
                if left == 0 {
                    break;
                }
                left -= 1;
                print(local.notation, &event, output)?;
            }
            output.flush()?;
        }
        Ok(Exit::Done)
    }

    fn remote(&self, remote: &Remote, output: &mut Output) -> Outcome {
        let nodes = match (&self.pattern, &self.path) {
            (Some(pattern), _) => Nodes::pattern(pattern.to_string()),
            (None, Some(path)) => Nodes::subtree(self.place.path(path)?),
            (None, None) => Nodes::all(),
        };
        let watch = WatchNodes::new(nodes).from_revision(self.from.unwrap_or(0));
        let server = &remote.server;
        let mut watch = server.wait(remote.tree.watch(watch))?;
        for _ in 0..self.count {
            let Some(event) = server.next(watch.next())? else { break };
            let node = event.node.map(|node| of_server(node).1);
            let event = Event {
                revision: event.revision,
                kind: if node.is_some() {
                    ChangeKind::Put
                } else {
                    ChangeKind::Delete
                },
                path: event.path.to_vec(),
                node,
                old: event.before.map(|node| of_server(node).1),
            };
            print(remote.notation, &event, output)?;
            output.flush()?;
        }
        Ok(Exit::Done)
    }
}

fn print(notation: Notation, event: &Event, output: &mut Output) -> Outcome<()> {
    let kind = match event.kind {
        ChangeKind::Put => "put",
        ChangeKind::Delete => "delete",
    };
    let path = notation.show(&event.path);
    if output.is_json {
        let node = |node: &Option<_>| node.as_ref().map(|node| object(notation, &event.path, node));
        return output.json(&json!({
            "revision": event.revision,
            "change": kind,
            "path": path,
            "node": node(&event.node),
            "old": node(&event.old),
        }));
    }
    let payload = event.node.as_ref().map(|node| notation.show(&node.payload));
    output.line(format_args!(
        "{}\t{kind}\t{path}\t{}",
        event.revision,
        payload.unwrap_or_default()
    ))
}
