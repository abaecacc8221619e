//! Printing changes of a tree as they are made.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use duramen::tree::{ChangeKind, Event, Pattern, WatchOptions};
use duramen_client::{Nodes, WatchNodes};
use serde_json::json;

use super::remote::{Remote, of_server};
use super::{Local, Opened, TreeArguments, object};
use crate::exit::{Exit, Outcome};
use crate::output::Output;
use crate::text::Notation;

const EXAMPLES: &str = r"Examples:
  All changes from revision 2 on, two of them:
    $ duramen tree watch shop --from 2 --count 2
  Of a path and everything below it; of a pattern, with the nodes before and after:
    $ duramen tree watch shop web --from 2 --count 1
    $ duramen tree watch shop --pattern '*/port' --from 2 --count 1 --json

A line has the revision, `put` or `delete`, the path, and the new payload. Without --from the command
prints the changes that are made from now on.";

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
