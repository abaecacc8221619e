//! The service `Trees`.

mod watching;

use duramen::tree::{Selection, Tree, TreeView};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::tree_command::Change as OfTree;
use duramen_proto::command::{GrantTreeLease, TreeChanged, TreeCommand};
use duramen_proto::v1::node_selection::Selection as Selected;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::remove_tree_rule_request::Rule as Removed;
use duramen_proto::v1::tree_operation::Operation as TreeOperated;
use duramen_proto::v1::tree_rule::Rule;
use duramen_proto::v1::trees_server::Trees;
use duramen_proto::v1::*;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use xxhash_rust::xxh3::xxh3_64;

use super::{answer_in_order, send};
use crate::command::{comparable, to_lease, to_node, to_pattern};
use crate::error::{failed, invalid, of_refusal, reason_of, status};
use crate::security::{Access, Credentials, Resource};
use crate::state::{State, check_space, led, unexpected};

/// Nodes of a response of a stream.
const BATCH_NODES: usize = 1_000;
/// The longest payload of a response, which must fit into a message.
const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// The most paths of a lease in one response.
const LEASE_PATHS_MAX: u64 = 10_000;

pub(crate) struct TreesService(pub(crate) State);

impl TreesService {
    /// Refuses a request that may not be made, or names a space that is not there.
    fn check<T>(&self, request: &Request<T>, access: Access, tree: &str, space: &str) -> Result<(), Status> {
        self.0.authorize(request, access, Resource::Tree(tree))?;
        check_space(space)
    }

    /// Makes a change that is no operation of a transaction.
    async fn change(&self, tree: String, change: OfTree, options: Option<WriteOptions>) -> Result<TreeChanged, Status> {
        match self.0.write(of_tree(tree, change), options).await? {
            Led::Tree(changed) => Ok(changed),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a change of the list of trees. Returns whether it changed something.
    async fn change_list(&self, tree: String, change: OfTree, options: Option<WriteOptions>) -> Result<bool, Status> {
        match self.0.write(of_tree(tree, change), options).await? {
            Led::Changed(changed) => Ok(changed),
            other => Err(unexpected(&other)),
        }
    }

    /// Applies one operation as a transaction of its own. Returns its result, and the revision of the tree.
    async fn operate(
        &self,
        tree: String,
        operation: TreeOperated,
        options: Option<WriteOptions>,
    ) -> Result<(TreeResult, u64), Status> {
        let operation = Operated::Tree(TreeOperation {
            tree,
            operation: Some(operation),
        });
        let change = Change::Commit(CommitRequest {
            then: vec![Operation {
                change: Some(operation),
            }],
            ..CommitRequest::default()
        });
        let mut response = match self.0.write(change, options).await? {
            Led::Committed(response) => response,
            other => return Err(unexpected(&other)),
        };
        match (
            response.results.pop().and_then(|result| result.result),
            response.revisions.pop(),
        ) {
            (Some(Given::Tree(result)), Some(revision)) => Ok((result, revision.revision)),
            _ => Err(unexpected(&Led::Committed(response))),
        }
    }
}

fn of_tree(tree: String, change: OfTree) -> Change {
    let change = Some(change);
    Change::Tree(TreeCommand { tree, change })
}

/// The tree at a revision; 0: the newest one.
fn view_of(state: &State, tree: &str, revision: u64) -> Result<TreeView, Status> {
    let view = state.tree(tree)?.view().map_err(|error| failed(&error))?;
    match revision {
        0 => Ok(view),
        revision => view.at_revision(revision).map_err(|error| failed(&error)),
    }
}

/// The nodes that a request selects.
fn selection(nodes: Option<NodeSelection>) -> Result<Selection, Status> {
    Ok(match nodes.and_then(|nodes| nodes.selection) {
        None => Selection::all(),
        Some(Selected::Pattern(text)) => Selection::pattern(to_pattern(&text).map_err(|refusal| of_refusal(&refusal))?),
        Some(Selected::Subtree(path)) => Selection::subtree(comparable(&path)),
        Some(Selected::Range(range)) => {
            Selection::range(comparable(&range.start), range.end.as_deref().map(comparable))
        }
    })
}

/// A node for a response.
fn shown(path: Vec<u8>, mut node: duramen::tree::Node, without_payload: bool) -> Result<TreeNode, Status> {
    if without_payload {
        node.payload.clear();
    }
    if node.payload.len() > PAYLOAD_BYTES_MAX {
        let message = format!(
            "the payload of {:?} has {} bytes, and a response holds at most {PAYLOAD_BYTES_MAX}; read it without \
             payloads here, or with a program that opens the store",
            String::from_utf8_lossy(&path),
            node.payload.len()
        );
        return Err(status(Code::OutOfRange, "VALUE_TOO_LONG", message));
    }
    Ok(to_node(path.into(), node))
}

#[tonic::async_trait]
impl Trees for TreesService {
    async fn create_tree(&self, request: Request<CreateTreeRequest>) -> Result<Response<CreateTreeResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Admin, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let created = self
            .change_list(request.tree, OfTree::Create(true), request.options)
            .await?;
        Ok(Response::new(CreateTreeResponse { created }))
    }

    async fn delete_tree(&self, request: Request<DeleteTreeRequest>) -> Result<Response<DeleteTreeResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Admin, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        self.change_list(request.tree, OfTree::Delete(true), request.options)
            .await?;
        Ok(Response::new(DeleteTreeResponse {}))
    }

    async fn list_trees(&self, request: Request<ListTreesRequest>) -> Result<Response<ListTreesResponse>, Status> {
        let caller = self.0.caller(&request)?;
        check_space(&request.get_ref().space)?;
        let mut trees = self.0.trees.list().map_err(|error| failed(&error))?;
        trees.retain(|tree| caller.sees(Resource::Tree(tree)));
        Ok(Response::new(ListTreesResponse { trees }))
    }

    async fn describe_tree(
        &self,
        request: Request<DescribeTreeRequest>,
    ) -> Result<Response<DescribeTreeResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let view = view_of(&self.0, &asked.tree, 0)?;
        Ok(Response::new(DescribeTreeResponse {
            revision: view.revision(),
            first_revision: view.first_revision().map_err(|error| failed(&error))?,
        }))
    }

    async fn get_node(&self, request: Request<GetNodeRequest>) -> Result<Response<GetNodeResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let view = view_of(&self.0, &request.tree, request.revision)?;
        let node = view.get(&request.path).map_err(|error| failed(&error))?;
        let path = request.path.to_vec();
        Ok(Response::new(GetNodeResponse {
            node: node.map(|node| shown(path, node, false)).transpose()?,
            revision: view.revision(),
        }))
    }

    type SelectNodesStream = ReceiverStream<Result<SelectNodesResponse, Status>>;

    async fn select_nodes(
        &self,
        request: Request<SelectNodesRequest>,
    ) -> Result<Response<Self::SelectNodesStream>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let selection = selection(request.nodes)?;
        let view = view_of(&self.0, &request.tree, request.revision)?;
        let mut left = limit(request.limit);
        let mut after = (!request.after.is_empty()).then(|| request.after.to_vec());
        // A slow reader holds two batches, and its snapshot.
        let (sender, receiver) = mpsc::channel(3);
        let responses = async move |sender: &mpsc::Sender<_>| {
            let mut is_first = true;
            loop {
                let page = view.page(&selection, after.as_deref(), left.min(BATCH_NODES));
                let page = page.map_err(|error| failed(&error))?;
                left -= page.content.len();
                let nodes = page.content.into_iter();
                let nodes = nodes.map(|(path, node)| shown(path, node, request.without_payloads));
                let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
                // Also where there are no nodes, the client learns the revision.
                if !nodes.is_empty() || is_first {
                    is_first = false;
                    let revision = view.revision();
                    if sender.send(Ok(SelectNodesResponse { nodes, revision })).await.is_err() {
                        return Ok(());
                    }
                }
                match page.next {
                    Some(next) if left > 0 => after = Some(next),
                    _ => return Ok(()),
                }
                tokio::task::yield_now().await;
            }
        };
        send(&self.0, sender.clone(), ending(sender, responses));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn count_nodes(&self, request: Request<CountNodesRequest>) -> Result<Response<CountNodesResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let selection = selection(request.nodes)?;
        let view = view_of(&self.0, &request.tree, request.revision)?;
        let (mut count, mut after) = (0, None);
        loop {
            let page = view.count_page(&selection, after.as_deref());
            let page = page.map_err(|error| failed(&error))?;
            count += page.content;
            after = page.next;
            if after.is_none() {
                break;
            }
            // The other clients of this thread have their turns.
            tokio::task::yield_now().await;
        }
        let revision = view.revision();
        Ok(Response::new(CountNodesResponse { count, revision }))
    }

    type ListChildrenStream = ReceiverStream<Result<ListChildrenResponse, Status>>;

    async fn list_children(
        &self,
        request: Request<ListChildrenRequest>,
    ) -> Result<Response<Self::ListChildrenStream>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let view = view_of(&self.0, &request.tree, request.revision)?;
        let mut left = limit(request.limit);
        let mut after = request.after.map(|after| after.to_vec());
        let (sender, receiver) = mpsc::channel(3);
        let responses = async move |sender: &mpsc::Sender<_>| {
            let counted = match &request.path {
                Some(path) => view.child_count(path),
                None => view.top_count(),
            };
            let counted = counted.map_err(|error| failed(&error))?;
            let mut first = Some((counted.count, counted.version));
            loop {
                let most = left.min(BATCH_NODES);
                let page = view.children_page(request.path.as_deref(), after.as_deref(), most);
                let page = page.map_err(|error| failed(&error))?;
                left -= page.content.len();
                let is_last = page.next.is_none() || left == 0;
                after = page.next;
                let children = page.content;
                let children = children.into_iter().map(|child| {
                    let node = child.node.map(|node| shown(child.path, node, request.without_payloads));
                    let node = node.transpose()?;
                    Ok(Child {
                        name: child.name.into(),
                        node,
                    })
                });
                let (count, version) = first.take().unwrap_or_default();
                let response = ListChildrenResponse {
                    children: children.collect::<Result<_, Status>>()?,
                    revision: view.revision(),
                    count,
                    version,
                };
                if sender.send(Ok(response)).await.is_err() || is_last {
                    return Ok(());
                }
                tokio::task::yield_now().await;
            }
        };
        send(&self.0, sender.clone(), ending(sender, responses));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn put_node(&self, request: Request<PutNodeRequest>) -> Result<Response<PutNodeResponse>, Status> {
        self.0.caller(&request)?.may_change(&request.get_ref().tree)?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let put = TreeOperated::Put(request.put.unwrap_or_default());
        let (result, revision) = self.operate(request.tree, put, request.options).await?;
        let before = result.node;
        Ok(Response::new(PutNodeResponse { revision, before }))
    }

    async fn delete_node(&self, request: Request<DeleteNodeRequest>) -> Result<Response<DeleteNodeResponse>, Status> {
        self.0.caller(&request)?.may_change(&request.get_ref().tree)?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let delete = DeleteNodeOperation { path: request.path };
        let operation = match request.with_subtree {
            true => TreeOperated::DeleteSubtree(delete),
            false => TreeOperated::Delete(delete),
        };
        let (result, revision) = self.operate(request.tree, operation, request.options).await?;
        Ok(Response::new(DeleteNodeResponse {
            revision,
            deleted: result.count,
            before: result.node,
        }))
    }

    async fn purge_nodes(&self, request: Request<PurgeNodesRequest>) -> Result<Response<PurgeNodesResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Admin, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let purge = OfTree::Purge(request.path);
        let (tree, options) = (request.tree, request.options);
        let purged = match self.change(tree.clone(), purge.clone(), options.clone()).await {
            Err(status) if reason_of(&status) == NO_SPACE => {
                // Earlier revisions end with a purge, so their rows can go first.
                let newest = view_of(&self.0, &tree, 0)?.revision();
                self.make_room(&tree, newest).await?;
                self.change(tree, purge, options).await?
            }
            purged => purged?,
        };
        let deleted = purged.nodes;
        Ok(Response::new(PurgeNodesResponse { deleted }))
    }

    async fn compact_tree(
        &self,
        request: Request<CompactTreeRequest>,
    ) -> Result<Response<CompactTreeResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Admin, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let compact = OfTree::Compact(request.revision);
        let (tree, options) = (request.tree, request.options);
        match self.change(tree.clone(), compact.clone(), options.clone()).await {
            Err(status) if reason_of(&status) == NO_SPACE => {
                self.make_room(&tree, request.revision).await?;
                self.change(tree, compact, options).await?;
            }
            compacted => drop(compacted?),
        }
        Ok(Response::new(CompactTreeResponse {}))
    }

    async fn grant_lease(&self, request: Request<GrantLeaseRequest>) -> Result<Response<GrantLeaseResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Write, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let key = request.options.as_ref().map(|options| &options.idempotency_key[..]);
        let drawn = match key.unwrap_or_default() {
            [] => self.0.store.random_number(),
            // A repeated request must be an equal command.
            key => xxh3_64(&[request.tree.as_bytes(), &[0], key].concat()),
        };
        let lease = match request.lease {
            // Ids fit into the signed numbers that etcd's clients use.
            0 => (drawn >> 1).max(1),
            lease => lease,
        };
        let ttl_ms = request.ttl_ms;
        let grant = OfTree::GrantLease(GrantTreeLease { lease, ttl_ms });
        let lease = self.change(request.tree, grant, request.options).await?.lease;
        Ok(Response::new(GrantLeaseResponse { lease }))
    }

    type KeepLeasesAliveStream = ReceiverStream<Result<KeepLeaseAliveResponse, Status>>;

    async fn keep_leases_alive(
        &self,
        request: Request<Streaming<KeepLeaseAliveRequest>>,
    ) -> Result<Response<Self::KeepLeasesAliveStream>, Status> {
        let credentials = Credentials::of(&request);
        self.0.guard.caller(&credentials)?;
        let state = self.0.clone();
        let queue = move |request| keep_alive(&state, &credentials, request);
        let answers = answer_in_order(&self.0, request.into_inner(), queue, kept_alive);
        Ok(Response::new(answers))
    }

    async fn revoke_lease(
        &self,
        request: Request<RevokeLeaseRequest>,
    ) -> Result<Response<RevokeLeaseResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Write, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let revoke = OfTree::RevokeLease(request.lease);
        let deleted = self.change(request.tree, revoke, request.options).await?.nodes;
        Ok(Response::new(RevokeLeaseResponse { deleted }))
    }

    async fn get_lease(&self, request: Request<GetLeaseRequest>) -> Result<Response<GetLeaseResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let view = view_of(&self.0, &request.tree, 0)?;
        let lease = view.lease(request.lease).map_err(|error| failed(&error))?;
        let most = request.paths.min(LEASE_PATHS_MAX) as usize;
        let paths = view.lease_paths(request.lease, most).map_err(|error| failed(&error))?;
        Ok(Response::new(GetLeaseResponse {
            lease: Some(to_lease(lease)),
            paths: paths.into_iter().map(Into::into).collect(),
        }))
    }

    async fn list_leases(&self, request: Request<ListLeasesRequest>) -> Result<Response<ListLeasesResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let view = view_of(&self.0, &asked.tree, 0)?;
        let leases = view.leases().map_err(|error| failed(&error))?;
        let leases = leases.into_iter().map(to_lease).collect();
        Ok(Response::new(ListLeasesResponse { leases }))
    }

    type WatchNodesStream = ReceiverStream<Result<WatchNodesResponse, Status>>;

    async fn watch_nodes(
        &self,
        request: Request<Streaming<WatchNodesRequest>>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        let credentials = Credentials::of(&request);
        let caller = self.0.guard.caller(&credentials)?;
        let requests = request.into_inner();
        let receiver = watching::begin(&self.0, credentials, caller.name(), requests);
        Ok(Response::new(receiver))
    }

    async fn list_watches(
        &self,
        request: Request<ListWatchesRequest>,
    ) -> Result<Response<ListWatchesResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Admin, &asked.tree, &asked.space)?;
        let newest = view_of(&self.0, &asked.tree, 0)?.revision();
        let watches = self.0.watchers.list(&asked.tree, newest);
        Ok(Response::new(ListWatchesResponse { watches }))
    }

    async fn set_tree_rule(
        &self,
        request: Request<SetTreeRuleRequest>,
    ) -> Result<Response<SetTreeRuleResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Admin, &asked.tree, &asked.space)?;
        // A rule writes elsewhere, for all who may change the tree.
        let caller = self.0.caller(&request)?;
        match asked.rule.as_ref().and_then(|rule| rule.rule.as_ref()) {
            Some(Rule::Trigger(trigger)) => caller.may(Access::Write, Resource::Topic(&trigger.topic))?,
            Some(Rule::Projection(projection)) => caller.may(Access::Admin, Resource::Map(&projection.map))?,
            Some(Rule::Quota(_)) | None => {}
        }
        let request = request.into_inner();
        let set = OfTree::SetRule(request.rule.unwrap_or_default());
        self.change(request.tree, set, request.options).await?;
        Ok(Response::new(SetTreeRuleResponse {}))
    }

    async fn remove_tree_rule(
        &self,
        request: Request<RemoveTreeRuleRequest>,
    ) -> Result<Response<RemoveTreeRuleResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Admin, &asked.tree, &asked.space)?;
        let request = request.into_inner();
        let remove = match request.rule {
            Some(Removed::Trigger(name)) => OfTree::RemoveTrigger(name),
            Some(Removed::Projection(name)) => OfTree::RemoveProjection(name),
            Some(Removed::Quota(path)) => OfTree::RemoveQuota(path),
            None => return Err(invalid("there is no rule; name a trigger, a projection or a quota")),
        };
        self.change(request.tree, remove, request.options).await?;
        Ok(Response::new(RemoveTreeRuleResponse {}))
    }

    async fn list_tree_rules(
        &self,
        request: Request<ListTreeRulesRequest>,
    ) -> Result<Response<ListTreeRulesResponse>, Status> {
        let asked = request.get_ref();
        self.check(&request, Access::Read, &asked.tree, &asked.space)?;
        let view = view_of(&self.0, &asked.tree, 0)?;
        let rules = rules(&view).map_err(|error| failed(&error))?;
        let rules = rules.into_iter().map(|rule| TreeRule { rule: Some(rule) }).collect();
        Ok(Response::new(ListTreeRulesResponse { rules }))
    }
}

/// The reason of a write for which the store has no room.
const NO_SPACE: &str = "NO_SPACE";

impl TreesService {
    /// Removes changes before a revision by deletions alone, which a full store takes.
    async fn make_room(&self, tree: &str, revision: u64) -> Result<(), Status> {
        let remove = OfTree::CompactWithoutRoom(revision);
        while self.change(tree.into(), remove.clone(), None).await?.has_more {}
        Ok(())
    }
}

/// What the client of a stream with a limit may still get.
fn limit(asked: u64) -> usize {
    match asked {
        0 => usize::MAX,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    }
}

/// Sends responses, and then the error that ended them.
async fn ending<T>(
    sender: mpsc::Sender<Result<T, Status>>,
    responses: impl AsyncFnOnce(&mpsc::Sender<Result<T, Status>>) -> Result<(), Status>,
) {
    if let Err(status) = responses(&sender).await {
        let _ = sender.send(Err(status)).await;
    }
}

/// A keep-alive whose command is queued.
struct Keeping {
    lease: u64,
    answer: crate::pipeline::Answer,
}

fn keep_alive(state: &State, credentials: &Credentials, request: KeepLeaseAliveRequest) -> Result<Keeping, Status> {
    let caller = state.guard.caller(credentials)?;
    caller.may(Access::Write, Resource::Tree(&request.tree))?;
    check_space(&request.space)?;
    let lease = request.lease;
    let change = of_tree(request.tree, OfTree::KeepLeaseAlive(lease));
    // A repeated one must extend the lease as well, or say that it has ended meanwhile.
    let options = request.options.map(|options| WriteOptions {
        idempotency_key: Default::default(),
        ..options
    });
    let answer = state.enqueue(change, options)?;
    Ok(Keeping { lease, answer })
}

async fn kept_alive(keeping: Keeping) -> Result<KeepLeaseAliveResponse, Status> {
    let Keeping { lease, answer } = keeping;
    let outcome = answer.await.unwrap_or_else(|_| Err(crate::error::unanswered()))?;
    match led(outcome) {
        Ok(Led::Tree(TreeChanged { lease, .. })) => Ok(KeepLeaseAliveResponse { lease }),
        Ok(other) => Err(unexpected(&other)),
        Err(status) if reason_of(&status) == "LEASE_NOT_FOUND" => {
            let gone = TreeLease {
                lease,
                ttl_ms: 0,
                remaining_ms: 0,
            };
            Ok(KeepLeaseAliveResponse { lease: Some(gone) })
        }
        Err(status) => Err(status),
    }
}

fn rules(view: &TreeView) -> duramen::Result<Vec<Rule>> {
    use duramen::tree::ChangeKind;
    let triggers = view.triggers()?.into_iter().map(|(name, trigger)| {
        Rule::Trigger(TreeTrigger {
            name,
            pattern: trigger.pattern.to_string(),
            without_puts: trigger.kind == Some(ChangeKind::Delete),
            without_deletes: trigger.kind == Some(ChangeKind::Put),
            topic: trigger.topic,
        })
    });
    let projections = view.projections()?.into_iter().map(|(name, projection)| {
        Rule::Projection(TreeProjection {
            name,
            pattern: projection.pattern.to_string(),
            map: projection.map,
        })
    });
    let quotas = view.quotas()?.into_iter().map(|used| {
        Rule::Quota(TreeQuota {
            path: used.path.into(),
            max_nodes: used.quota.nodes,
            max_bytes: used.quota.bytes,
            nodes: used.nodes,
            bytes: used.bytes,
        })
    });
    Ok(triggers.chain(projections).chain(quotas).collect())
}

/// Does what trees need in the background, as long as the server runs: leases end, and rows of compacted revisions go.
pub(crate) async fn tend(state: &State) {
    loop {
        tokio::time::sleep(TENDING).await;
        let mut has_more = true;
        while has_more {
            has_more = false;
            // In turns, because leases of one tree do not wait for the rows of another. What fails is tried again at the next look.
            for name in state.trees.list().unwrap_or_default() {
                let tree = state.trees.get(&name).ok().flatten();
                if tree.as_ref().is_some_and(needs_tending) {
                    let tended = match tend_once(state, &name, true).await {
                        // A lease that cannot end, because a trigger of its nodes has lost its topic, holds up no rows.
                        Err(_) => tend_once(state, &name, false).await,
                        tended => tended,
                    };
                    has_more |= tended.unwrap_or(false);
                }
            }
        }
    }
}

/// How often the server looks whether leases have expired.
const TENDING: std::time::Duration = std::time::Duration::from_millis(500);

fn needs_tending(tree: &Tree) -> bool {
    tree.needs_tending().unwrap_or(false)
}

/// Does some of what a tree needs, with its leases or without. Returns whether there is more.
async fn tend_once(state: &State, tree: &str, with_leases: bool) -> Result<bool, Status> {
    match state
        .write_unasked(of_tree(tree.into(), OfTree::Tend(with_leases)))
        .await?
    {
        Led::Tree(changed) => Ok(changed.has_more),
        other => Err(unexpected(&other)),
    }
}
