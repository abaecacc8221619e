//! What commands do to trees.

use std::cmp::Ordering;
use std::time::Duration;

use duramen::Transaction;
use duramen::tree::{
    ChangeKind, Compare, Condition, Lease, LeaseChange, Node, Pattern, PausedWrites, Projection, Quota, Tree,
    TreeError, TreeWrites, Trigger,
};
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::tree_command::Change;
use duramen_proto::command::{Refusal, TreeChanged, TreeCommand};
use duramen_proto::v1::node_test::Test;
use duramen_proto::v1::number_test::Test as NumberIs;
use duramen_proto::v1::put_node_operation::Lease as PutLease;
use duramen_proto::v1::tree_operation::Operation;
use duramen_proto::v1::tree_rule::Rule;
use duramen_proto::v1::{self, NodeTest, NumberTest, PutMode, PutNodeOperation, TreeNode, TreeOperation, TreeResult};
use prost::bytes::Bytes;
use tonic::Code;

use super::applier::Applier;
use super::stopped::{Ran, Stopped, outcome};
use crate::refusal::{refusal_of, refused};

/// The trees that a transaction has come to, with what it has done to each.
#[derive(Default)]
pub(super) struct OpenTrees(Vec<OpenTree>);

struct OpenTree {
    tree: Tree,
    paused: Option<PausedWrites>,
    revision: u64,
    /// Whether an operation names it, and not a condition alone.
    is_operated: bool,
}

impl OpenTrees {
    /// The revisions of the trees that operations name.
    pub(super) fn revisions(&self) -> Vec<v1::TreeRevision> {
        let operated = self.0.iter().filter(|open| open.is_operated);
        let revision = operated.map(|open| v1::TreeRevision {
            tree: open.tree.name().into(),
            revision: open.revision,
        });
        revision.collect()
    }
}

/// Whether an operation changes nothing when it is refused.
pub(super) fn is_whole(operation: &TreeOperation) -> bool {
    match &operation.operation {
        Some(Operation::Put(put)) => put.keep_while.is_none(),
        Some(Operation::Get(_) | Operation::Delete(_)) | None => true,
        Some(_) => false,
    }
}

/// Whether a command changes nothing when it is refused.
pub(super) fn is_whole_command(command: &TreeCommand) -> bool {
    !matches!(
        command.change,
        Some(Change::Purge(_) | Change::RevokeLease(_) | Change::SetRule(_) | Change::Tend(_))
    )
}

/// Whether a command makes or ends a tree.
pub(super) fn is_of_the_tree_itself(command: &TreeCommand) -> bool {
    matches!(command.change, Some(Change::Create(_) | Change::Delete(_)))
}

impl Applier {
    fn tree(&self, name: &str) -> Result<Tree, Stopped> {
        // What makes and ends trees ends its entry, so what is committed is what the transaction sees.
        let tree = self.trees.get(name)?;
        tree.ok_or_else(|| tree_not_found(name).into())
    }

    /// Does something with a tree; what a transaction does to it has one revision.
    pub(super) fn with_tree<T>(
        &self,
        tx: &mut Transaction,
        open: &mut OpenTrees,
        name: &str,
        is_operated: bool,
        act: impl FnOnce(&mut TreeWrites<'_>) -> duramen::Result<T>,
    ) -> Result<T, Stopped> {
        let known = open.0.iter().position(|open| open.tree.name() == name);
        let at = match known {
            Some(at) => at,
            None => {
                open.0.push(OpenTree {
                    tree: self.tree(name)?,
                    paused: None,
                    revision: 0,
                    is_operated,
                });
                open.0.len() - 1
            }
        };
        let open = &mut open.0[at];
        let mut writes = match open.paused.take() {
            Some(paused) => open.tree.resume(tx, paused)?,
            None => open.tree.writes(tx)?,
        };
        let done = act(&mut writes).map_err(of_a_change)?;
        open.revision = writes.revision();
        open.is_operated |= is_operated;
        open.paused = Some(writes.pause());
        Ok(done)
    }

    /// Whether a condition of a transaction holds.
    pub(super) fn node_holds(
        &self,
        tx: &mut Transaction,
        open: &mut OpenTrees,
        condition: &v1::NodeCondition,
    ) -> Result<bool, Stopped> {
        let test = to_condition(condition.test.as_ref())?;
        self.with_tree(tx, open, &condition.tree, false, |writes| {
            writes.holds(&condition.path, &test)
        })
    }

    /// Does an operation of a transaction.
    pub(super) fn operate_tree(
        &self,
        tx: &mut Transaction,
        open: &mut OpenTrees,
        operation: &TreeOperation,
    ) -> Result<TreeResult, Stopped> {
        let Some(done) = &operation.operation else {
            return Err(invalid("an operation on a tree has no operation").into());
        };
        let tree = &operation.tree;
        let count = |count| TreeResult { node: None, count };
        let node = |path: &Bytes, node: Option<Node>| TreeResult {
            count: 0,
            node: node.map(|node| to_node(path.clone(), node)),
        };
        match done {
            Operation::Get(get) => {
                let found = self.with_tree(tx, open, tree, true, |writes| writes.get(&get.path))?;
                Ok(node(&get.path, found))
            }
            Operation::Put(put) => {
                let prepared = Put::of(put)?;
                let before = self.with_tree(tx, open, tree, true, |writes| prepared.apply(writes))?;
                let count = 1;
                Ok(TreeResult {
                    count,
                    ..node(&put.path, before)
                })
            }
            Operation::Delete(delete) => {
                let before = self.with_tree(tx, open, tree, true, |writes| writes.delete(&delete.path))?;
                let count = u64::from(before.is_some());
                Ok(TreeResult {
                    count,
                    ..node(&delete.path, before)
                })
            }
            Operation::DeleteSubtree(delete) => {
                let deleted = self.with_tree(tx, open, tree, true, |writes| writes.delete_subtree(&delete.path))?;
                Ok(count(deleted))
            }
            Operation::PutMatching(put) => {
                let pattern = to_pattern(&put.pattern)?;
                let stored = self.with_tree(tx, open, tree, true, |writes| writes.put_many(&pattern, &put.payload))?;
                Ok(count(stored))
            }
            Operation::DeleteMatching(delete) => {
                let pattern = to_pattern(&delete.pattern)?;
                let deleted = self.with_tree(tx, open, tree, true, |writes| writes.delete_many(&pattern))?;
                Ok(count(deleted))
            }
            Operation::DeleteRange(range) => {
                let deleted = self.with_tree(tx, open, tree, true, |writes| {
                    writes.delete_range(&range.start, range.end.as_deref())
                })?;
                Ok(count(deleted))
            }
        }
    }

    pub(super) fn change_tree(&self, tx: &mut Transaction, command: &TreeCommand) -> Ran {
        let Some(change) = &command.change else {
            return Err(invalid("a command for a tree has no change").into());
        };
        let name = &command.tree[..];
        match change {
            Change::Create(_) => return Ok(outcome(Led::Changed(self.trees.create_in(tx, name)?))),
            Change::Delete(_) => {
                return match self.trees.delete_in(tx, name)? {
                    true => Ok(outcome(Led::Changed(true))),
                    false => Err(tree_not_found(name).into()),
                };
            }
            _ => {}
        }
        let rule = match change {
            Change::SetRule(rule) => Some(SetRule::of(rule)?),
            _ => None,
        };
        let changed = self.with_tree(tx, &mut OpenTrees::default(), name, true, |writes| {
            Ok(match change {
                Change::Create(_) | Change::Delete(_) => TreeChanged::default(),
                Change::Compact(revision) => {
                    writes.compact(*revision)?;
                    TreeChanged::default()
                }
                Change::CompactWithoutRoom(revision) => has_more(writes.remove_without_room(*revision)?),
                Change::Purge(path) => nodes(writes.purge(path)?),
                Change::Tend(true) => has_more(writes.tend()?),
                Change::Tend(false) => has_more(writes.remove_compacted()?),
                Change::GrantLease(grant) => {
                    lease(writes.grant_lease(grant.lease, Duration::from_millis(grant.ttl_ms))?)
                }
                Change::KeepLeaseAlive(id) => lease(writes.keep_lease_alive(*id)?),
                Change::RevokeLease(id) => nodes(writes.revoke_lease(*id)?),
                Change::SetRule(_) => {
                    rule.as_ref().map_or(Ok(()), |rule| rule.set(writes))?;
                    TreeChanged::default()
                }
                Change::RemoveTrigger(name) => {
                    writes.remove_trigger(name)?;
                    TreeChanged::default()
                }
                Change::RemoveProjection(name) => {
                    writes.remove_projection(name)?;
                    TreeChanged::default()
                }
                Change::RemoveQuota(path) => {
                    writes.remove_quota(path)?;
                    TreeChanged::default()
                }
            })
        })?;
        Ok(outcome(Led::Tree(changed)))
    }
}

fn nodes(nodes: u64) -> TreeChanged {
    TreeChanged {
        nodes,
        ..TreeChanged::default()
    }
}

fn has_more(has_more: bool) -> TreeChanged {
    TreeChanged {
        has_more,
        ..TreeChanged::default()
    }
}

fn lease(lease: Lease) -> TreeChanged {
    TreeChanged {
        lease: Some(to_lease(lease)),
        ..TreeChanged::default()
    }
}

/// What an error of a change means, which may have written something before it failed.
fn of_a_change(error: duramen::Error) -> Stopped {
    let is_untouched = TreeError::of(&error).is_some_and(TreeError::is_of_an_untouched_tree);
    match Stopped::from(error.clone()) {
        Stopped::Refused(refusal) if !is_untouched => Stopped::RefusedLate(refusal, error),
        stopped => stopped,
    }
}

/// A put that is known to make sense.
struct Put<'a> {
    put: &'a PutNodeOperation,
    lease: LeaseChange,
    mode: PutMode,
    keep_while: Option<Vec<(&'a [u8], Condition)>>,
}

impl<'a> Put<'a> {
    fn of(put: &'a PutNodeOperation) -> Result<Put<'a>, Refusal> {
        let mode = PutMode::try_from(put.mode);
        let mode = mode.map_err(|_| invalid(format!("a put has the unknown mode {}", put.mode)))?;
        if put.expected.is_some() && mode != PutMode::Unspecified {
            return Err(invalid(
                "a put has an expected payload and a mode; leave one of them out",
            ));
        }
        let keeps = mode == PutMode::Update || put.expected.is_some();
        let lease = match put.lease {
            Some(PutLease::Attach(0)) => return Err(invalid("a put attaches the lease 0; leave the lease out")),
            Some(PutLease::Attach(lease)) => LeaseChange::Attach(lease),
            Some(PutLease::KeepLease(true)) => LeaseChange::Keep,
            Some(PutLease::KeepLease(false)) => LeaseChange::Detach,
            None if keeps => LeaseChange::Keep,
            None => LeaseChange::Detach,
        };
        let keep_while = put.keep_while.as_ref().map(|keep| {
            let conditions = keep.conditions.iter();
            let conditions = conditions.map(|one| Ok((&one.path[..], to_condition(one.test.as_ref())?)));
            conditions.collect::<Result<Vec<_>, Refusal>>()
        });
        Ok(Put {
            put,
            lease,
            mode,
            keep_while: keep_while.transpose()?,
        })
    }

    /// Stores the payload. Returns the node before.
    fn apply(&self, writes: &mut TreeWrites<'_>) -> duramen::Result<Option<Node>> {
        let (path, payload) = (&self.put.path, &self.put.payload);
        let is_plain = self.mode == PutMode::Unspecified && self.put.expected.is_none();
        if is_plain && self.keep_while.is_none() {
            return writes.put_with(path, payload, self.lease);
        }
        let before = writes.get(path)?;
        // Where the node is not as it must be, the call that asks for it says so.
        match (self.mode, &self.put.expected, &before) {
            (PutMode::Create, _, Some(_)) => writes.create(path, payload)?,
            (PutMode::Update, _, None) => drop(writes.update(path, payload)?),
            (_, Some(expected), before) if before.as_ref().is_none_or(|node| node.payload != expected[..]) => {
                writes.compare_and_swap(path, expected, payload)?;
            }
            _ => {}
        }
        match &self.keep_while {
            Some(conditions) => writes.put_keeping(path, payload, self.lease, conditions)?,
            None => drop(writes.put_with(path, payload, self.lease)?),
        }
        Ok(before)
    }
}

/// A rule that is known to make sense.
enum SetRule<'a> {
    Trigger(&'a str, Trigger),
    Projection(&'a str, Projection),
    Quota(&'a [u8], Quota),
}

impl<'a> SetRule<'a> {
    fn of(rule: &'a v1::TreeRule) -> Result<SetRule<'a>, Stopped> {
        match &rule.rule {
            None => Err(invalid("there is no rule; set a trigger, a projection or a quota").into()),
            Some(Rule::Trigger(trigger)) => {
                let kind = to_kind(trigger.without_puts, trigger.without_deletes)?;
                let pattern = to_pattern(&trigger.pattern)?;
                let topic = trigger.topic.clone();
                Ok(SetRule::Trigger(&trigger.name, Trigger { pattern, kind, topic }))
            }
            Some(Rule::Projection(projection)) => {
                let pattern = to_pattern(&projection.pattern)?;
                let map = projection.map.clone();
                Ok(SetRule::Projection(&projection.name, Projection { pattern, map }))
            }
            Some(Rule::Quota(quota)) => {
                let (nodes, bytes) = (quota.max_nodes, quota.max_bytes);
                Ok(SetRule::Quota(&quota.path, Quota { nodes, bytes }))
            }
        }
    }

    fn set(&self, writes: &mut TreeWrites<'_>) -> duramen::Result<()> {
        match self {
            SetRule::Trigger(name, trigger) => writes.set_trigger(name, trigger),
            SetRule::Projection(name, projection) => writes.set_projection(name, projection),
            SetRule::Quota(path, quota) => writes.set_quota(path, *quota),
        }
    }
}

/// The kind of changes that is left; `None`: both.
pub(crate) fn to_kind(without_puts: bool, without_deletes: bool) -> Result<Option<ChangeKind>, Refusal> {
    match (without_puts, without_deletes) {
        (false, false) => Ok(None),
        (false, true) => Ok(Some(ChangeKind::Put)),
        (true, false) => Ok(Some(ChangeKind::Delete)),
        (true, true) => Err(invalid(
            "it leaves out puts and deletes, which is all; leave out one of them",
        )),
    }
}

pub(crate) fn to_pattern(text: &str) -> Result<Pattern, Refusal> {
    text.parse().map_err(|error: duramen::Error| {
        let refused_for = |error: &duramen::Error| refused(Code::InvalidArgument, "INVALID_PATTERN", error.to_string());
        refusal_of(&error).unwrap_or_else(|| refused_for(&error))
    })
}

/// A condition as the tree has it. What is nested too deeply is refused before this recursion: by the decoder of the request.
fn to_condition(test: Option<&NodeTest>) -> Result<Condition, Refusal> {
    let Some(test) = test.and_then(|test| test.test.as_ref()) else {
        return Err(invalid(
            "a condition on a node has no test; set exists, payload or another one",
        ));
    };
    Ok(match test {
        Test::Exists(true) => Condition::Exists,
        Test::Exists(false) => Condition::Missing,
        Test::Payload(payload) => Condition::Payload(payload.to_vec()),
        Test::PayloadLess(payload) => Condition::PayloadOrder(Ordering::Less, payload.to_vec()),
        Test::PayloadGreater(payload) => Condition::PayloadOrder(Ordering::Greater, payload.to_vec()),
        Test::Version(number) => Condition::Version(to_compare(number)?),
        Test::CreateRevision(number) => Condition::CreateRevision(to_compare(number)?),
        Test::Revision(number) => Condition::Revision(to_compare(number)?),
        Test::Lease(number) => Condition::Lease(to_compare(number)?),
        Test::Children(number) => Condition::Children(to_compare(number)?),
        Test::ChildrenVersion(number) => Condition::ChildrenVersion(to_compare(number)?),
        Test::Not(test) => Condition::Not(Box::new(to_condition(Some(test))?)),
        Test::All(tests) => Condition::All(to_conditions(tests)?),
        Test::Any(tests) => Condition::Any(to_conditions(tests)?),
    })
}

fn to_conditions(tests: &v1::NodeTests) -> Result<Vec<Condition>, Refusal> {
    tests.tests.iter().map(|test| to_condition(Some(test))).collect()
}

fn to_compare(number: &NumberTest) -> Result<Compare, Refusal> {
    match number.test {
        Some(NumberIs::Equal(number)) => Ok(Compare::Equal(number)),
        Some(NumberIs::NotEqual(number)) => Ok(Compare::NotEqual(number)),
        Some(NumberIs::Less(number)) => Ok(Compare::Less(number)),
        Some(NumberIs::Greater(number)) => Ok(Compare::Greater(number)),
        None => Err(invalid(
            "a test of a number has no number; set equal, less or another one",
        )),
    }
}

/// A node as clients get it.
pub(crate) fn to_node(path: Bytes, node: Node) -> TreeNode {
    TreeNode {
        path,
        payload: node.payload.into(),
        create_revision: node.create_revision,
        revision: node.revision,
        version: node.version,
        lease: node.lease,
    }
}

/// A lease as clients get it.
pub(crate) fn to_lease(lease: Lease) -> v1::TreeLease {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    v1::TreeLease {
        lease: lease.id,
        ttl_ms: millis(lease.ttl),
        remaining_ms: millis(lease.remaining),
    }
}

pub(crate) fn tree_not_found(name: &str) -> Refusal {
    let message = format!("there is no tree {name:?}; create it with CreateTree");
    refused(Code::NotFound, "TREE_NOT_FOUND", message)
}

fn invalid(message: impl Into<String>) -> Refusal {
    refused(Code::InvalidArgument, "INVALID_ARGUMENT", message)
}
