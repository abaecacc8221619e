//! Compare, then, else: a transaction from JSON.

use std::io::{self, Read};

use clap::Args;
use duramen::tree::{Compare, Condition, Done, LeaseChange, Operation, TreeCommit};
use duramen_client::OperationResult;
use serde_json::{Map, Value, json};

use super::remote::of_server;
use super::{Opened, TreeArguments, object};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::text::Notation;

const EXAMPLES: &str = r#"Examples:
  Several changes with one revision:
    $ echo '{"then": [{"put": "a", "payload": "1"}, {"delete": "b"}]}' | duramen tree txn shop
  Change a node only while it has the version that was read, and read it otherwise:
    $ echo '{"if": [{"path": "web/port", "version": {"equal": 1}}],' > swap.json
    $ echo '"then": [{"put": "web/port", "payload": "444"}],' >> swap.json
    $ echo '"else": [{"get": "web/port"}]}' >> swap.json
    $ duramen tree txn shop --json < swap.json

A condition has a path, and one of: exists (true, false), payload (text); or version, revision,
create_revision, lease or children, with equal, not_equal, less or greater and a number. An operation
is put (with payload, and perhaps lease), delete, delete_subtree or get, with the path.
Exit code 1 when a condition does not hold."#;

/// Commit conditions and changes, which come as JSON on standard input
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Txn {
    #[command(flatten)]
    place: TreeArguments,
}

fn wrong(what: impl std::fmt::Display) -> Failure {
    Failure::wrong_call(format!("the transaction on standard input: {what}"))
}

impl Txn {
    pub fn run(self, output: &mut Output) -> Outcome {
        let mut text = String::new();
        let read = io::stdin().lock().read_to_string(&mut text);
        read.map_err(|error| Failure::of_io("reading standard input", &error))?;
        let value: Value = serde_json::from_str(&text).map_err(wrong)?;
        let value = value.as_object().ok_or_else(|| wrong("it is no object"))?;
        let notation = self.place.notation.notation();
        let parsed = Parsed::new(notation, value)?;
        let (held, revision, done) = match self.place.existing_or_new()? {
            Opened::Local(local) => {
                let committed = local.tree.commit(&parsed.commit())?;
                (committed.held, committed.revision, committed.done)
            }
            Opened::Remote(remote) => {
                let committed = remote.commit(&parsed.conditions, &parsed.then, &parsed.otherwise)?;
                let revision = committed.revisions.first().map(|(_, revision)| *revision);
                let revision = match revision {
                    Some(revision) => revision,
                    // No operation was applied.
                    None => remote.server.wait(remote.tree.revision())?,
                };
                let operations = if committed.succeeded {
                    &parsed.then
                } else {
                    &parsed.otherwise
                };
                let done = operations.iter().zip(committed.results).map(done_by_server);
                (committed.succeeded, revision, done.collect())
            }
        };
        let done: Vec<Value> = done.iter().map(|done| shown(notation, done)).collect();
        match output.is_json {
            true => output.json(&json!({"held": held, "revision": revision, "done": done}))?,
            false => {
                let outcome = if held { "then" } else { "else" };
                output.line(format_args!("{outcome}\t{revision}"))?;
                done.iter().try_for_each(|done| output.line(done))?;
            }
        }
        Ok(if held { Exit::Done } else { Exit::NotFound })
    }
}

/// What a server has done, as a store says it.
fn done_by_server((operation, result): (&Operation, OperationResult)) -> Done {
    match (operation, result) {
        (Operation::DeleteSubtree { .. }, OperationResult::Tree { count, .. }) => Done::Deleted(count),
        (_, OperationResult::Tree { node, .. }) => Done::Node(node.map(|node| of_server(node).1)),
        _ => Done::Node(None),
    }
}

fn shown(notation: Notation, done: &Done) -> Value {
    match done {
        Done::Node(None) => json!({"found": false}),
        Done::Node(Some(node)) => {
            let mut object = object(notation, b"", node);
            if let Some(object) = object.as_object_mut() {
                object.remove("path");
            }
            object
        }
        Done::Deleted(count) => json!({"removed": count}),
    }
}

/// The conditions and operations of the input.
#[derive(Default)]
struct Parsed {
    conditions: Vec<(Vec<u8>, Condition)>,
    then: Vec<Operation>,
    otherwise: Vec<Operation>,
}

impl Parsed {
    fn new(notation: Notation, value: &Map<String, Value>) -> Outcome<Parsed> {
        let mut parsed = Parsed::default();
        for (name, list) in value {
            let list = list
                .as_array()
                .ok_or_else(|| wrong(format_args!("`{name}` is no list")))?;
            for item in list {
                let item = item
                    .as_object()
                    .ok_or_else(|| wrong(format_args!("`{name}` has what is no object")))?;
                match &name[..] {
                    "if" => parsed.conditions.push(condition(notation, item)?),
                    "then" => parsed.then.push(operation(notation, item)?),
                    "else" => parsed.otherwise.push(operation(notation, item)?),
                    other => return Err(wrong(format_args!("there is no {other:?}; use if, then and else"))),
                }
            }
        }
        Ok(parsed)
    }

    fn commit(&self) -> TreeCommit {
        let mut commit = TreeCommit::new();
        for (path, condition) in &self.conditions {
            commit = commit.when(path, condition.clone());
        }
        for operation in &self.then {
            commit = commit.then(operation.clone());
        }
        for operation in &self.otherwise {
            commit = commit.otherwise(operation.clone());
        }
        commit
    }
}

fn text(notation: Notation, item: &Map<String, Value>, name: &str) -> Outcome<Option<Vec<u8>>> {
    let Some(value) = item.get(name) else { return Ok(None) };
    let text = value
        .as_str()
        .ok_or_else(|| wrong(format_args!("`{name}` is no text")))?;
    notation.parse(name, text).map(Some)
}

fn condition(notation: Notation, item: &Map<String, Value>) -> Outcome<(Vec<u8>, Condition)> {
    let path = text(notation, item, "path")?.ok_or_else(|| wrong("a condition has no `path`"))?;
    let mut all = Vec::new();
    for (name, value) in item {
        all.push(match &name[..] {
            "path" => continue,
            "exists" => match value.as_bool() {
                Some(true) => Condition::Exists,
                Some(false) => Condition::Missing,
                None => return Err(wrong("`exists` is true or false")),
            },
            "payload" => Condition::Payload(text(notation, item, name)?.unwrap_or_default()),
            "version" => Condition::Version(compare(value)?),
            "revision" => Condition::Revision(compare(value)?),
            "create_revision" => Condition::CreateRevision(compare(value)?),
            "lease" => Condition::Lease(compare(value)?),
            "children" => Condition::Children(compare(value)?),
            other => {
                return Err(wrong(format_args!(
                    "there is no condition {other:?}; --help lists them"
                )));
            }
        });
    }
    Ok((path, Condition::All(all)))
}

fn compare(value: &Value) -> Outcome<Compare> {
    let pairs = value.as_object().filter(|object| object.len() == 1);
    let pair = pairs.and_then(|object| object.iter().next());
    let parsed = pair.and_then(|(how, number)| {
        let number = number.as_u64()?;
        Some(match &how[..] {
            "equal" => Compare::Equal(number),
            "not_equal" => Compare::NotEqual(number),
            "less" => Compare::Less(number),
            "greater" => Compare::Greater(number),
            _ => return None,
        })
    });
    parsed.ok_or_else(|| {
        wrong(format_args!(
            "{value} compares nothing; write for example {{\"equal\": 3}}"
        ))
    })
}

fn operation(notation: Notation, item: &Map<String, Value>) -> Outcome<Operation> {
    let path = |name| text(notation, item, name);
    if let Some(path) = path("put")? {
        let payload = text(notation, item, "payload")?.ok_or_else(|| wrong("a put has no `payload`"))?;
        let lease = match item.get("lease") {
            None | Some(Value::Null) => LeaseChange::Keep,
            Some(lease) => match lease.as_u64() {
                Some(lease) => LeaseChange::Attach(lease),
                None => return Err(wrong(format_args!("the lease {lease} is no number from 0 on"))),
            },
        };
        return Ok(Operation::Put { path, payload, lease });
    }
    if let Some(path) = path("delete")? {
        return Ok(Operation::Delete { path });
    }
    if let Some(path) = path("delete_subtree")? {
        return Ok(Operation::DeleteSubtree { path });
    }
    match path("get")? {
        Some(path) => Ok(Operation::Get { path }),
        None => Err(wrong("an operation is none of put, delete, delete_subtree and get")),
    }
}
