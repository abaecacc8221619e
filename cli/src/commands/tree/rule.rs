//! Setting, listing and removing what each change of a tree does beside itself.

use clap::{Args, Subcommand};
use duramen::tree::{ChangeKind, Pattern, Projection, Quota, QuotaUse, TreeError, Trigger};
use duramen_client::{Rule as RuleOnServer, TreeProjection, TreeTrigger};
use serde_json::json;

use super::remote::Remote;
use super::{Opened, TreeArguments};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::text::{Notation, counted};

const EXAMPLES: &str = r"Examples:
  Publish each change below web to a topic; keep all ports in a map; allow 1,000 nodes below web:
    $ duramen tree rule trigger shop announce --pattern 'web/**' --topic sales
    $ duramen tree rule projection shop ports --pattern '*/port' --map ports
    $ duramen tree rule quota shop web --nodes 1000
  All rules:
    $ duramen tree rule list shop

A rule takes effect in the commit of each change; see docs/guide/trees.md.";

const TRIGGER_EXAMPLES: &str = r"Examples:
  A message for each change; only for deletions:
    $ duramen tree rule trigger shop announce --pattern 'web/**' --topic sales
    $ duramen tree rule trigger shop gone --pattern 'web/*' --topic sales --only delete

The path is the key of the message, and the payload of the node its payload. A trigger of this name is
replaced. The topic must exist.";

const PROJECTION_EXAMPLES: &str = r"Examples:
  The ports of all services, as pairs of a map:
    $ duramen tree rule projection shop ports --pattern '*/port' --map ports
    $ duramen tree rule projection shop ports --pattern '*/port' --map ports --json

The map must be empty or missing. The command fills it with the nodes that there are. Its keys are paths.
A projection of this name is replaced.";

const QUOTA_EXAMPLES: &str = r"Examples:
  At most 1,000 nodes; at most a mebibyte of paths and payloads:
    $ duramen tree rule quota shop web --nodes 1000
    $ duramen tree rule quota shop web --bytes 1048576

What is there counts, and stays when it is more. A quota of this path is replaced.";

const LIST_EXAMPLES: &str = r"Examples:
  A line for each rule; a quota has its path, its nodes of so many, and its bytes of so many:
    $ duramen tree rule list shop
    $ duramen tree rule list shop --json";

const REBUILD_EXAMPLES: &str = r"Examples:
  What a program wrote to the map of a projection is gone afterwards:
    $ duramen tree rule projection shop ports --pattern '*/port' --map ports
    $ duramen tree rule rebuild shop ports";

const REMOVE_EXAMPLES: &str = r"Examples:
  A trigger or a projection by its name, a quota by its path:
    $ duramen tree rule trigger shop announce --pattern 'web/**' --topic sales
    $ duramen tree rule remove shop trigger announce
    $ duramen tree rule quota shop web --nodes 1000
    $ duramen tree rule remove shop quota web

The map of a projection stays as it is.";

/// Set, list and remove rules: triggers, projections and quotas
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Rule {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Let changes publish messages
    #[command(after_help = TRIGGER_EXAMPLES)]
    Trigger {
        #[command(flatten)]
        place: TreeArguments,
        /// The name of the trigger
        name: String,
        /// Changes of paths with this pattern
        #[arg(long, value_name = "PATTERN")]
        pattern: Pattern,
        /// The topic
        #[arg(long, value_name = "TOPIC")]
        topic: String,
        /// Only changes of this kind
        #[arg(long, value_name = "KIND")]
        only: Option<Kind>,
    },
    /// Let a map follow nodes
    #[command(after_help = PROJECTION_EXAMPLES)]
    Projection {
        #[command(flatten)]
        place: TreeArguments,
        /// The name of the projection
        name: String,
        /// Nodes with this pattern
        #[arg(long, value_name = "PATTERN")]
        pattern: Pattern,
        /// The map
        #[arg(long, value_name = "MAP")]
        map: String,
    },
    /// Limit what there is at a path and below it
    #[command(after_help = QUOTA_EXAMPLES)]
    #[group(id = "limits", args = ["nodes", "bytes"], required = true, multiple = true)]
    Quota {
        #[command(flatten)]
        place: TreeArguments,
        /// The path
        path: String,
        /// Most nodes (default: any number)
        #[arg(long, value_name = "COUNT")]
        nodes: Option<u64>,
        /// Most bytes of all paths and payloads (default: any number)
        #[arg(long, value_name = "BYTES")]
        bytes: Option<u64>,
    },
    /// List the rules
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        place: TreeArguments,
    },
    /// Fill the map of a projection again
    #[command(after_help = REBUILD_EXAMPLES)]
    Rebuild {
        #[command(flatten)]
        place: TreeArguments,
        /// The name of the projection
        name: String,
    },
    /// Remove a rule
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        #[command(flatten)]
        place: TreeArguments,
        /// What it is
        kind: RuleKind,
        /// The name of the trigger or projection, or the path of the quota
        name: String,
    },
}

/// The kind of changes that a trigger is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Put,
    Delete,
}

/// A kind of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RuleKind {
    Trigger,
    Projection,
    Quota,
}

impl RuleKind {
    fn name(self) -> &'static str {
        match self {
            RuleKind::Trigger => "trigger",
            RuleKind::Projection => "projection",
            RuleKind::Quota => "quota",
        }
    }
}

/// The rules of a tree.
#[derive(Default)]
struct Rules {
    triggers: Vec<(String, Trigger)>,
    projections: Vec<(String, Projection)>,
    quotas: Vec<QuotaUse>,
}

impl Rule {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.action {
            Action::Trigger {
                place,
                name,
                pattern,
                topic,
                only,
            } => {
                let kind = only.map(|only| match only {
                    Kind::Put => ChangeKind::Put,
                    Kind::Delete => ChangeKind::Delete,
                });
                let trigger = Trigger { pattern, kind, topic };
                set_trigger(&place.existing_or_new()?, &name, &trigger)?;
                said("trigger", &name, output)
            }
            Action::Projection {
                place,
                name,
                pattern,
                map,
            } => {
                set_projection(&place.existing_or_new()?, &name, &Projection { pattern, map })?;
                said("projection", &name, output)
            }
            Action::Quota {
                place,
                path,
                nodes,
                bytes,
            } => {
                let quota = Quota {
                    nodes: nodes.unwrap_or(u64::MAX),
                    bytes: bytes.unwrap_or(u64::MAX),
                };
                set_quota(&place.existing_or_new()?, &place.path(&path)?, quota)?;
                said("quota", &path, output)
            }
            Action::List { place } => list(&place.existing()?, place.notation.notation(), output),
            Action::Rebuild { place, name } => {
                let pairs = rebuild(&place.existing_to_write()?, &name)?;
                match output.is_json {
                    true => output.json(&json!({"projection": name, "pairs": pairs}))?,
                    false => output.line(counted(pairs, "pair"))?,
                }
                Ok(Exit::Done)
            }
            Action::Remove { place, kind, name } => {
                remove(&place, kind, &name)?;
                let kind = kind.name();
                match output.is_json {
                    true => output.json(&json!({"removed": {kind: name}}))?,
                    false => output.line(format_args!("removed the {kind} {name}"))?,
                }
                Ok(Exit::Done)
            }
        }
    }
}

fn said(kind: &str, name: &str, output: &mut Output) -> Outcome {
    match output.is_json {
        true => output.json(&json!({"set": {kind: name}}))?,
        false => output.line(format_args!("set the {kind} {name}"))?,
    }
    Ok(Exit::Done)
}

fn set_trigger(opened: &Opened, name: &str, trigger: &Trigger) -> Outcome<()> {
    match opened {
        Opened::Local(local) => Ok(local.tree.transact(|tree| tree.set_trigger(name, trigger))?),
        Opened::Remote(remote) => {
            let trigger = TreeTrigger {
                name: name.into(),
                pattern: trigger.pattern.to_string(),
                without_puts: trigger.kind == Some(ChangeKind::Delete),
                without_deletes: trigger.kind == Some(ChangeKind::Put),
                topic: trigger.topic.clone(),
            };
            remote.wait_or_create(async || remote.tree.set_trigger(trigger.clone()).await)
        }
    }
}

fn set_projection(opened: &Opened, name: &str, projection: &Projection) -> Outcome<()> {
    match opened {
        Opened::Local(local) => Ok(local.tree.transact(|tree| tree.set_projection(name, projection))?),
        Opened::Remote(remote) => {
            let projection = TreeProjection {
                name: name.into(),
                pattern: projection.pattern.to_string(),
                map: projection.map.clone(),
            };
            remote.wait_or_create(async || remote.tree.set_projection(projection.clone()).await)
        }
    }
}

fn set_quota(opened: &Opened, path: &[u8], quota: Quota) -> Outcome<()> {
    match opened {
        Opened::Local(local) => Ok(local.tree.transact(|tree| tree.set_quota(path, quota))?),
        Opened::Remote(remote) => {
            remote.wait_or_create(async || remote.tree.set_quota(path, quota.nodes, quota.bytes).await)
        }
    }
}

/// Fills the map of a projection again. Returns the number of its pairs.
fn rebuild(opened: &Opened, name: &str) -> Outcome<u64> {
    match opened {
        Opened::Local(local) => Ok(local.tree.transact(|tree| tree.rebuild_projection(name))?),
        Opened::Remote(Remote { server, .. }) => {
            let mut projections = rules(opened)?.projections.into_iter();
            let known = projections.find(|(known, _)| known == name);
            let (_, projection) = known.ok_or_else(|| {
                duramen::Error::from(TreeError::UnknownRule {
                    kind: "projection",
                    name: name.into(),
                })
            })?;
            // Setting it fills the map.
            set_projection(opened, name, &projection)?;
            let map = server.client.map(&projection.map);
            server.wait(map.count(duramen_client::Keys::all()))
        }
    }
}

fn remove(place: &TreeArguments, kind: RuleKind, name: &str) -> Outcome<()> {
    let path = match kind {
        RuleKind::Quota => place.path(name)?,
        RuleKind::Trigger | RuleKind::Projection => Vec::new(),
    };
    match place.existing_to_write()? {
        Opened::Local(local) => Ok(local.tree.transact(|tree| match kind {
            RuleKind::Trigger => tree.remove_trigger(name),
            RuleKind::Projection => tree.remove_projection(name),
            RuleKind::Quota => tree.remove_quota(&path),
        })?),
        Opened::Remote(Remote { server, tree, .. }) => server.wait(async {
            match kind {
                RuleKind::Trigger => tree.remove_trigger(name).await,
                RuleKind::Projection => tree.remove_projection(name).await,
                RuleKind::Quota => tree.remove_quota(&path).await,
            }
        }),
    }
}

fn rules(opened: &Opened) -> Outcome<Rules> {
    match opened {
        Opened::Local(local) => {
            let view = local.tree.view()?;
            Ok(Rules {
                triggers: view.triggers()?,
                projections: view.projections()?,
                quotas: view.quotas()?,
            })
        }
        Opened::Remote(Remote { server, tree, .. }) => {
            let mut rules = Rules::default();
            for rule in server.wait(tree.rules())? {
                match rule.rule {
                    Some(RuleOnServer::Trigger(trigger)) => {
                        let kind = match (trigger.without_puts, trigger.without_deletes) {
                            (true, _) => Some(ChangeKind::Delete),
                            (false, true) => Some(ChangeKind::Put),
                            (false, false) => None,
                        };
                        let (pattern, topic) = (trigger.pattern.parse()?, trigger.topic);
                        rules.triggers.push((trigger.name, Trigger { pattern, kind, topic }));
                    }
                    Some(RuleOnServer::Projection(projection)) => {
                        let (pattern, map) = (projection.pattern.parse()?, projection.map);
                        rules.projections.push((projection.name, Projection { pattern, map }));
                    }
                    Some(RuleOnServer::Quota(quota)) => rules.quotas.push(QuotaUse {
                        path: quota.path.to_vec(),
                        quota: Quota {
                            nodes: quota.max_nodes,
                            bytes: quota.max_bytes,
                        },
                        nodes: quota.nodes,
                        bytes: quota.bytes,
                    }),
                    // Of a newer server.
                    None => {
                        return Err(Failure::wrong_call(
                            "the server has a rule of a kind that this command does not know",
                        ));
                    }
                }
            }
            Ok(rules)
        }
    }
}

/// Text in which no character parts columns or lines.
fn escaped(text: &str) -> String {
    Notation::Escapes.show(text.as_bytes())
}

fn list(opened: &Opened, notation: Notation, output: &mut Output) -> Outcome {
    let rules = rules(opened)?;
    for (name, Trigger { pattern, kind, topic }) in &rules.triggers {
        let only = kind.map(|kind| match kind {
            ChangeKind::Put => "put",
            ChangeKind::Delete => "delete",
        });
        let pattern = pattern.to_string();
        match output.is_json {
            true => output.json(&json!({"trigger": name, "pattern": pattern, "topic": topic, "only": only}))?,
            false => output.line(format_args!(
                "trigger\t{}\t{}\t{topic}\t{}",
                escaped(name),
                escaped(&pattern),
                only.unwrap_or("all")
            ))?,
        }
    }
    for (name, Projection { pattern, map }) in &rules.projections {
        let pattern = pattern.to_string();
        match output.is_json {
            true => output.json(&json!({"projection": name, "pattern": pattern, "map": map}))?,
            false => {
                let [name, pattern, map] = [name, &pattern, map].map(|text| escaped(text));
                output.line(format_args!("projection\t{name}\t{pattern}\t{map}"))?;
            }
        }
    }
    for used in &rules.quotas {
        let path = notation.show(&used.path);
        let [nodes, bytes] = [used.quota.nodes, used.quota.bytes].map(|most| (most < u64::MAX).then_some(most));
        if output.is_json {
            let quota = json!({
                "quota": path, "nodes": used.nodes, "max_nodes": nodes, "bytes": used.bytes, "max_bytes": bytes
            });
            output.json(&quota)?;
        } else {
            let shown = |most: Option<u64>| most.map_or("any".to_string(), |most| most.to_string());
            let (nodes, bytes) = (shown(nodes), shown(bytes));
            output.line(format_args!(
                "quota\t{path}\t{}/{nodes}\t{}/{bytes}",
                used.nodes, used.bytes
            ))?;
        }
    }
    Ok(Exit::Done)
}
