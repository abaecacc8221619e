//! Writing the nodes of a tree as lines of JSON, and storing such lines.

use std::io::{self, BufRead};

use clap::Args;
use duramen::tree::{LeaseChange, Operation, Pattern};
use duramen_client::{Nodes, ReadNodes};
use serde_json::{Value, json};

use super::{Opened, TreeArguments, object};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::text::counted;

const EXPORT_EXAMPLES: &str = r"Examples:
  All nodes, a line of JSON each; those of a pattern, as they were at revision 3:
    $ duramen tree export shop > nodes.json
    $ duramen tree export shop --pattern 'web/**' --revision 3";

const IMPORT_EXAMPLES: &str = r#"Examples:
  Store the nodes of such lines. A node that is there already is replaced:
    $ duramen tree export shop > nodes.json && duramen tree import shop --tree other < nodes.json
    $ echo '{"path": "web/port", "payload": "80"}' | duramen tree import shop

A thousand lines, or four mebibytes of them, are one commit. Versions, revisions and leases begin again."#;

/// Most lines of one commit, and bytes of lines after which it ends: a server takes a request of 20 MiB.
const TOGETHER: usize = 1_000;
const BYTES_TOGETHER: usize = 4 << 20;

/// Print all nodes as lines of JSON
#[derive(Args, Debug)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct Export {
    #[command(flatten)]
    place: TreeArguments,
    /// Only nodes with this pattern
    #[arg(long, value_name = "PATTERN", default_value = "**")]
    pattern: Pattern,
    /// As they were at this revision
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
}

/// Store nodes from lines of JSON on standard input
#[derive(Args, Debug)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct Import {
    #[command(flatten)]
    place: TreeArguments,
}

impl Export {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.place.existing()? {
            Opened::Local(local) => {
                let view = local.tree.view()?;
                let view = match self.revision {
                    Some(revision) => view.at_revision(revision)?,
                    None => view,
                };
                let mut failed = None;
                view.matching(&self.pattern, |path, node| {
                    failed = output.json(&object(local.notation, path, &node)).err();
                    Ok(failed.is_none())
                })?;
                failed.map_or(Ok(Exit::Done), Err)
            }
            Opened::Remote(remote) => {
                let nodes = Nodes::pattern(self.pattern.to_string());
                let read = ReadNodes::new().revision(self.revision.unwrap_or(0));
                remote.each(nodes, read, |path, node| {
                    output.json(&object(remote.notation, path, &node))
                })?;
                Ok(Exit::Done)
            }
        }
    }
}

impl Import {
    pub fn run(self, output: &mut Output) -> Outcome {
        let opened = self.place.existing_or_new()?;
        let mut lines = io::stdin().lock().lines();
        let (mut number, mut stored) = (0, 0);
        loop {
            let (mut nodes, mut bytes) = (Vec::new(), 0);
            while nodes.len() < TOGETHER
                && bytes < BYTES_TOGETHER
                && let Some(line) = lines.next()
            {
                number += 1;
                let line = line.map_err(|error| Failure::of_io("reading standard input", &error))?;
                bytes += line.len();
                if !line.trim().is_empty() {
                    nodes.push(self.node(number, &line)?);
                }
            }
            if nodes.is_empty() {
                break;
            }
            stored += nodes.len() as u64;
            match &opened {
                Opened::Local(local) => local.tree.transact(|tree| {
                    for (path, payload) in &nodes {
                        tree.put_with(path, payload, LeaseChange::Keep)?;
                    }
                    Ok::<_, duramen::Error>(())
                })?,
                Opened::Remote(remote) => {
                    let lease = LeaseChange::Keep;
                    let puts = nodes
                        .into_iter()
                        .map(|(path, payload)| Operation::Put { path, payload, lease });
                    remote.commit(&[], &puts.collect::<Vec<_>>(), &[])?;
                }
            }
        }
        match output.is_json {
            true => output.json(&json!({"stored": stored}))?,
            false => output.line(format_args!("stored {}", counted(stored, "node")))?,
        }
        Ok(Exit::Done)
    }

    /// Path and payload of a line.
    fn node(&self, number: usize, line: &str) -> Outcome<(Vec<u8>, Vec<u8>)> {
        let wrong = |what: &str| {
            Failure::wrong_call(format!(
                "line {number}: {what}; earlier commits of a thousand lines, or four mebibytes of them, are stored"
            ))
        };
        let object: Value = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        let path = text("path").ok_or_else(|| wrong("it has no text `path`"))?;
        let payload = text("payload").ok_or_else(|| wrong("it has no text `payload`"))?;
        let notation = self.place.notation.notation();
        Ok((self.place.path(path)?, notation.parse("payload", payload)?))
    }
}
