//! Reads and writes of one tree.

use std::time::Duration;

use duramen_proto::v1::remove_tree_rule_request::Rule as Removed;
use duramen_proto::v1::tree_rule::Rule;
use duramen_proto::v1::{
    Child, CompactTreeRequest, CountNodesRequest, DeleteNodeRequest, DescribeTreeRequest, DescribeTreeResponse,
    GetLeaseRequest, GetNodeRequest, GrantLeaseRequest, KeepLeaseAliveRequest, ListChildrenRequest,
    ListChildrenResponse, ListLeasesRequest, ListTreeRulesRequest, ListWatchesRequest, PurgeNodesRequest,
    PutNodeRequest, PutNodeResponse, RemoveTreeRuleRequest, RevokeLeaseRequest, SelectNodesRequest,
    SelectNodesResponse, SetTreeRuleRequest, TreeLease, TreeNode, TreeProjection, TreeQuota, TreeRule, TreeTrigger,
    WatchInfo,
};
use prost::bytes::Bytes;
use tonic::{Request, Streaming};

use crate::client::{Client, send, trees};
use crate::error::{Error, ErrorKind, Failure, Result};
use crate::node_watch::{NodeWatch, WatchNodes};
use crate::nodes::{NodePut, Nodes};
use crate::options::{WriteOptions, copied};

/// A handle of a tree; see [`Client::tree`]. Every method is one call, and its errors are those of [`crate::Error`]; the reason
/// is `TREE_NOT_FOUND` when there is no such tree.
#[derive(Clone)]
pub struct Tree {
    client: Client,
    name: String,
}

/// What a read of a tree shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadNodes {
    revision: u64,
    limit: u64,
    without_payloads: bool,
}

impl ReadNodes {
    /// All nodes of the newest revision.
    pub fn new() -> ReadNodes {
        ReadNodes::default()
    }

    /// As the tree was at this revision.
    pub fn revision(mut self, revision: u64) -> ReadNodes {
        self.revision = revision;
        self
    }

    /// At most so many; 0: no limit.
    pub fn limit(mut self, limit: u64) -> ReadNodes {
        self.limit = limit;
        self
    }

    /// Without payloads, which are then empty.
    pub fn without_payloads(mut self) -> ReadNodes {
        self.without_payloads = true;
        self
    }
}

impl Tree {
    pub(crate) fn new(client: Client, name: String) -> Tree {
        Tree { client, name }
    }

    /// A handle whose writes have these options.
    pub fn with(&self, options: WriteOptions) -> Tree {
        Tree::new(self.client.with(options), self.name.clone())
    }

    /// Reads a node. `None`: the path has none.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn get(&self, path: impl AsRef<[u8]>) -> Result<Option<TreeNode>> {
        self.get_at(path, 0).await
    }

    /// Reads a node as it was at a revision; 0: the newest one.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` with the reason `COMPACTED` or `FUTURE_REVISION`.
    pub async fn get_at(&self, path: impl AsRef<[u8]>, revision: u64) -> Result<Option<TreeNode>> {
        let request = GetNodeRequest {
            tree: self.name.clone(),
            path: copied(path),
            revision,
            ..GetNodeRequest::default()
        };
        Ok(self.client.read(request, send!(trees.get_node)).await?.node)
    }

    /// The newest revision.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn revision(&self) -> Result<u64> {
        Ok(self.describe().await?.revision)
    }

    /// Which revisions can be read.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn describe(&self) -> Result<DescribeTreeResponse> {
        let request = DescribeTreeRequest {
            tree: self.name.clone(),
            ..DescribeTreeRequest::default()
        };
        self.client.read(request, send!(trees.describe_tree)).await
    }

    /// Reads nodes in the order of their paths, those after the path `after`, all of one revision. When the connection breaks,
    /// the stream ends with an error.
    ///
    /// # Errors
    /// As [`Tree::get_at`].
    pub async fn select(&self, nodes: Nodes, after: Option<&[u8]>, read: ReadNodes) -> Result<SelectedNodes> {
        let request = SelectNodesRequest {
            tree: self.name.clone(),
            nodes: nodes.0,
            after: after.map(Bytes::copy_from_slice).unwrap_or_default(),
            limit: read.limit,
            revision: read.revision,
            without_payloads: read.without_payloads,
            ..SelectNodesRequest::default()
        };
        let responses = self.client.open(request, send!(trees.select_nodes)).await?;
        Ok(SelectedNodes {
            responses: Some(responses),
            ready: Vec::new().into_iter(),
        })
    }

    /// Counts nodes.
    ///
    /// # Errors
    /// As [`Tree::get_at`].
    pub async fn count(&self, nodes: Nodes, revision: u64) -> Result<u64> {
        let request = CountNodesRequest {
            tree: self.name.clone(),
            nodes: nodes.0,
            revision,
            ..CountNodesRequest::default()
        };
        Ok(self.client.read(request, send!(trees.count_nodes)).await?.count)
    }

    /// Reads the children of a path in the order of their names, those after the name `after`, all of one revision. `None` is the
    /// top of the tree. When the connection breaks, the stream ends with an error.
    ///
    /// # Errors
    /// As [`Tree::get_at`].
    pub async fn children(&self, path: Option<&[u8]>, after: Option<&[u8]>, read: ReadNodes) -> Result<Children> {
        let request = ListChildrenRequest {
            tree: self.name.clone(),
            path: path.map(Bytes::copy_from_slice),
            after: after.map(Bytes::copy_from_slice),
            limit: read.limit,
            revision: read.revision,
            without_payloads: read.without_payloads,
            ..ListChildrenRequest::default()
        };
        let mut responses = self.client.open(request, send!(trees.list_children)).await?;
        // The first response has their number.
        let first = responses.message().await.map_err(|status| Failure::of(&status).error)?;
        let first = first.ok_or_else(Error::bad_response)?;
        Ok(Children {
            count: first.count,
            version: first.version,
            responses: Some(responses),
            ready: first.children.into_iter(),
        })
    }

    /// Stores a payload. Returns the revision and the node before. It takes the permissions to read and to write.
    ///
    /// # Errors
    /// `NotFound`, and what [`NodePut`] says.
    pub async fn put(&self, put: NodePut) -> Result<PutNodeResponse> {
        let request = PutNodeRequest {
            tree: self.name.clone(),
            put: Some(put.0),
            options: Some(self.client.options().of_call()),
            ..PutNodeRequest::default()
        };
        self.client.write(request, send!(trees.put_node)).await
    }

    /// Deletes a node, and nothing below it. Returns whether there was one.
    ///
    /// # Errors
    /// `NotFound` when there is no such tree.
    pub async fn delete(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.delete_with(path, false).await? > 0)
    }

    /// Deletes a node and all nodes below it. Returns how many.
    ///
    /// # Errors
    /// As [`Tree::delete`].
    pub async fn delete_subtree(&self, path: impl AsRef<[u8]>) -> Result<u64> {
        self.delete_with(path, true).await
    }

    async fn delete_with(&self, path: impl AsRef<[u8]>, with_subtree: bool) -> Result<u64> {
        let request = DeleteNodeRequest {
            tree: self.name.clone(),
            path: copied(path),
            with_subtree,
            options: Some(self.client.options().of_call()),
            ..DeleteNodeRequest::default()
        };
        Ok(self.client.write(request, send!(trees.delete_node)).await?.deleted)
    }

    /// Deletes a node with everything below it and all earlier revisions of the tree. It makes room in a full store. Returns how
    /// many nodes it deleted.
    ///
    /// # Errors
    /// As [`Tree::delete`].
    pub async fn purge(&self, path: impl AsRef<[u8]>) -> Result<u64> {
        let request = PurgeNodesRequest {
            tree: self.name.clone(),
            path: copied(path),
            options: Some(self.client.options().of_call()),
            ..PurgeNodesRequest::default()
        };
        Ok(self.client.write(request, send!(trees.purge_nodes)).await?.deleted)
    }

    /// Forgets the changes before a revision.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` with the reason `FUTURE_REVISION`.
    pub async fn compact(&self, revision: u64) -> Result<()> {
        let request = CompactTreeRequest {
            tree: self.name.clone(),
            revision,
            options: Some(self.client.options().of_call()),
            ..CompactTreeRequest::default()
        };
        self.client.write(request, send!(trees.compact_tree)).await.map(drop)
    }

    /// Grants a lease with an id of the server's choice, or this one.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` with the reason `INVALID_LEASE`; `AlreadyExists`.
    pub async fn grant_lease(&self, ttl: Duration, id: Option<u64>) -> Result<TreeLease> {
        let request = GrantLeaseRequest {
            tree: self.name.clone(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            lease: id.unwrap_or(0),
            options: Some(self.client.options().of_call()),
            ..GrantLeaseRequest::default()
        };
        let granted = self.client.write(request, send!(trees.grant_lease)).await?;
        granted.lease.ok_or_else(Error::bad_response)
    }

    /// Lets a lease last its whole time from now on.
    ///
    /// # Errors
    /// `NotFound` when the lease is gone, or there is no such tree.
    pub async fn keep_lease_alive(&self, lease: u64) -> Result<TreeLease> {
        let request = KeepLeaseAliveRequest {
            tree: self.name.clone(),
            lease,
            options: Some(self.client.options().of_call()),
            ..KeepLeaseAliveRequest::default()
        };
        let once = async |channel, request: Request<KeepLeaseAliveRequest>| {
            let request = request.map(tokio_stream::once);
            let mut responses = trees(channel).keep_leases_alive(request).await?;
            let response = responses.get_mut().message().await?;
            Ok(tonic::Response::new(response.unwrap_or_default()))
        };
        let kept = self.client.write(request, once).await?;
        let kept = kept.lease.ok_or_else(Error::bad_response)?;
        match kept.remaining_ms {
            0 => {
                let message = format!("there is no lease {lease}: it has expired, was revoked, or was never granted");
                Err(Error::new(ErrorKind::NotFound, "LEASE_NOT_FOUND", message))
            }
            _ => Ok(kept),
        }
    }

    /// Ends a lease and deletes its nodes. Returns how many.
    ///
    /// # Errors
    /// `NotFound` when the lease is gone, or there is no such tree.
    pub async fn revoke_lease(&self, lease: u64) -> Result<u64> {
        let request = RevokeLeaseRequest {
            tree: self.name.clone(),
            lease,
            options: Some(self.client.options().of_call()),
            ..RevokeLeaseRequest::default()
        };
        Ok(self.client.write(request, send!(trees.revoke_lease)).await?.deleted)
    }

    /// Reads a lease, with at most so many paths of its nodes.
    ///
    /// # Errors
    /// `NotFound` when the lease is gone, or there is no such tree.
    pub async fn lease(&self, lease: u64, paths: u64) -> Result<(TreeLease, Vec<Bytes>)> {
        let request = GetLeaseRequest {
            tree: self.name.clone(),
            lease,
            paths,
            ..GetLeaseRequest::default()
        };
        let read = self.client.read(request, send!(trees.get_lease)).await?;
        Ok((read.lease.ok_or_else(Error::bad_response)?, read.paths))
    }

    /// Lists the leases in the order of their ids.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn leases(&self) -> Result<Vec<TreeLease>> {
        let request = ListLeasesRequest {
            tree: self.name.clone(),
            ..ListLeasesRequest::default()
        };
        Ok(self.client.read(request, send!(trees.list_leases)).await?.leases)
    }

    /// Watches changes. After a break of the connection the watch goes on behind the last change: it misses none, and shows none
    /// twice.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` with the reason `COMPACTED`, `FUTURE_REVISION` or `INVALID_PATTERN`.
    pub async fn watch(&self, watch: WatchNodes) -> Result<NodeWatch> {
        NodeWatch::open(self.client.clone(), self.name.clone(), watch).await
    }

    /// Lists the watches of the tree on the server, with principal and lag. It takes the permission to administer the tree.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`.
    pub async fn watches(&self) -> Result<Vec<WatchInfo>> {
        let request = ListWatchesRequest {
            tree: self.name.clone(),
            ..ListWatchesRequest::default()
        };
        Ok(self.client.read(request, send!(trees.list_watches)).await?.watches)
    }

    /// Lets changes publish messages from now on.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` with the reason `TRIGGER_TOPIC_NOT_FOUND`.
    pub async fn set_trigger(&self, trigger: TreeTrigger) -> Result<()> {
        self.set(Rule::Trigger(trigger)).await
    }

    /// Lets a map follow nodes from now on, and fills it with those that there are.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` when the map has pairs.
    pub async fn set_projection(&self, projection: TreeProjection) -> Result<()> {
        self.set(Rule::Projection(projection)).await
    }

    /// Limits the nodes of a path and below it.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` with the reason `INVALID_PATH`.
    pub async fn set_quota(&self, path: impl AsRef<[u8]>, max_nodes: u64, max_bytes: u64) -> Result<()> {
        let quota = TreeQuota {
            path: copied(path),
            max_nodes,
            max_bytes,
            ..TreeQuota::default()
        };
        self.set(Rule::Quota(quota)).await
    }

    async fn set(&self, rule: Rule) -> Result<()> {
        let request = SetTreeRuleRequest {
            tree: self.name.clone(),
            rule: Some(TreeRule { rule: Some(rule) }),
            options: Some(self.client.options().of_call()),
            ..SetTreeRuleRequest::default()
        };
        self.client.write(request, send!(trees.set_tree_rule)).await.map(drop)
    }

    /// Removes a trigger.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name.
    pub async fn remove_trigger(&self, name: &str) -> Result<()> {
        self.remove(Removed::Trigger(name.into())).await
    }

    /// Removes a projection; its map stays as it is.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name.
    pub async fn remove_projection(&self, name: &str) -> Result<()> {
        self.remove(Removed::Projection(name.into())).await
    }

    /// Removes the quota of a path.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn remove_quota(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.remove(Removed::Quota(copied(path))).await
    }

    async fn remove(&self, rule: Removed) -> Result<()> {
        let request = RemoveTreeRuleRequest {
            tree: self.name.clone(),
            rule: Some(rule),
            options: Some(self.client.options().of_call()),
            ..RemoveTreeRuleRequest::default()
        };
        self.client
            .write(request, send!(trees.remove_tree_rule))
            .await
            .map(drop)
    }

    /// Lists triggers, projections and quotas.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn rules(&self) -> Result<Vec<TreeRule>> {
        let request = ListTreeRulesRequest {
            tree: self.name.clone(),
            ..ListTreeRulesRequest::default()
        };
        Ok(self.client.read(request, send!(trees.list_tree_rules)).await?.rules)
    }
}

/// Nodes in the order of their paths; see [`Tree::select`].
pub struct SelectedNodes {
    responses: Option<Streaming<SelectNodesResponse>>,
    ready: std::vec::IntoIter<TreeNode>,
}

impl SelectedNodes {
    /// The next node. `None`: that were all, or the stream ended with the error before.
    pub async fn next(&mut self) -> Option<Result<TreeNode>> {
        loop {
            if let Some(node) = self.ready.next() {
                return Some(Ok(node));
            }
            match more(&mut self.responses).await? {
                Ok(response) => self.ready = response.nodes.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Children in the order of their names; see [`Tree::children`].
pub struct Children {
    count: u64,
    version: u64,
    responses: Option<Streaming<ListChildrenResponse>>,
    ready: std::vec::IntoIter<Child>,
}

impl Children {
    /// Number of all children, also of those that the call leaves out.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The version of the list of children, which grows with each child that is added or removed. 0 at an earlier revision.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The next child. `None`: that were all, or the stream ended with the error before.
    pub async fn next(&mut self) -> Option<Result<Child>> {
        loop {
            if let Some(child) = self.ready.next() {
                return Some(Ok(child));
            }
            match more(&mut self.responses).await? {
                Ok(response) => self.ready = response.children.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The next response of a stream, which is gone after its end.
async fn more<T>(responses: &mut Option<Streaming<T>>) -> Option<Result<T>> {
    match responses.as_mut()?.message().await {
        Ok(Some(response)) => Some(Ok(response)),
        Ok(None) => {
            *responses = None;
            None
        }
        Err(status) => {
            *responses = None;
            Some(Err(Failure::of(&status).error))
        }
    }
}
