//! Compare, then, else: a transaction from JSON.

use std::io::{self, Read};

use clap::Args;
use duramen::tree::{Compare, Condition, Done, LeaseChange, Operation, TreeCommit};
use serde_json::{Map, Value, json};

use super::{Opened, TreeArguments, object};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;

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
        let opened = self.place.existing_or_new()?;
        let commit = parse(&opened, value)?;
        let committed = opened.tree.commit(&commit)?;
        let done: Vec<Value> = committed.done.iter().map(|done| shown(&opened, done)).collect();
        match output.is_json {
            true => output.json(&json!({"held": committed.held, "revision": committed.revision, "done": done}))?,
            false => {
                let outcome = if committed.held { "then" } else { "else" };
                output.line(format_args!("{outcome}\t{}", committed.revision))?;
                done.iter().try_for_each(|done| output.line(done))?;
            }
        }
        Ok(if committed.held { Exit::Done } else { Exit::NotFound })
    }
}

fn shown(opened: &Opened, done: &Done) -> Value {
    match done {
        Done::Node(None) => json!({"found": false}),
        Done::Node(Some(node)) => {
            let mut object = object(opened.notation, b"", node);
            if let Some(object) = object.as_object_mut() {
                object.remove("path");
            }
            object
        }
        Done::Deleted(count) => json!({"removed": count}),
    }
}

fn parse(opened: &Opened, value: &Map<String, Value>) -> Outcome<TreeCommit> {
    let mut commit = TreeCommit::new();
    for (name, list) in value {
        let list = list
            .as_array()
            .ok_or_else(|| wrong(format_args!("`{name}` is no list")))?;
        for item in list {
            let item = item
                .as_object()
                .ok_or_else(|| wrong(format_args!("`{name}` has what is no object")))?;
            commit = match &name[..] {
                "if" => {
                    let (path, condition) = condition(opened, item)?;
                    commit.when(path, condition)
                }
                "then" => commit.then(operation(opened, item)?),
                "else" => commit.otherwise(operation(opened, item)?),
                other => return Err(wrong(format_args!("there is no {other:?}; use if, then and else"))),
            };
        }
    }
    Ok(commit)
}

fn text(opened: &Opened, item: &Map<String, Value>, name: &str) -> Outcome<Option<Vec<u8>>> {
    let Some(value) = item.get(name) else { return Ok(None) };
    let text = value
        .as_str()
        .ok_or_else(|| wrong(format_args!("`{name}` is no text")))?;
    opened.notation.parse(name, text).map(Some)
}

fn condition(opened: &Opened, item: &Map<String, Value>) -> Outcome<(Vec<u8>, Condition)> {
    let path = text(opened, item, "path")?.ok_or_else(|| wrong("a condition has no `path`"))?;
    let mut all = Vec::new();
    for (name, value) in item {
        all.push(match &name[..] {
            "path" => continue,
            "exists" => match value.as_bool() {
                Some(true) => Condition::Exists,
                Some(false) => Condition::Missing,
                None => return Err(wrong("`exists` is true or false")),
            },
            "payload" => Condition::Payload(text(opened, item, name)?.unwrap_or_default()),
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

fn operation(opened: &Opened, item: &Map<String, Value>) -> Outcome<Operation> {
    let path = |name| text(opened, item, name);
    if let Some(path) = path("put")? {
        let payload = text(opened, item, "payload")?.ok_or_else(|| wrong("a put has no `payload`"))?;
        let lease = item.get("lease").and_then(Value::as_u64);
        let lease = lease.map_or(LeaseChange::Keep, LeaseChange::Attach);
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
