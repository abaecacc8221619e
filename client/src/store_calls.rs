//! The calls of a client on maps, topics and trees as a whole, and on the store.

use duramen_proto::v1::{
    CheckRequest, CheckResponse, Checkpoint, CompactRequest, CompactResponse, ConfigureMapRequest, CopyRequest,
    CopyResponse, CreateCheckpointRequest, CreateMapRequest, CreateTopicRequest, CreateTreeRequest, DeleteTreeRequest,
    DiffCheckpointsRequest, DropCheckpointRequest, DropMapRequest, ExportRequest, GetCheckpointRequest, KeepChanges,
    KeepLastCheckpointsRequest, ListCheckpointsRequest, ListMapsRequest, ListTopicsRequest, ListTreesRequest,
    RenameMapRequest, RestoreCheckpointRequest, StatisticsRequest, StatisticsResponse, TopicOptions,
};
use prost::bytes::Bytes;

use crate::client::{Client, send};
use crate::differences::Differences;
use crate::error::{Error, Result};
use crate::exporting::Exporting;
use crate::map::Map;
use crate::topic::Topic;
use crate::transaction::Transaction;
use crate::tree::Tree;

impl Client {
    /// A handle of a map. This makes no call.
    pub fn map(&self, name: impl Into<String>) -> Map {
        Map::new(self.clone(), name.into())
    }

    /// A handle of a topic. This makes no call.
    pub fn topic(&self, name: impl Into<String>) -> Topic {
        Topic::new(self.clone(), name.into())
    }

    /// Begins a transaction. The client sends it as one request when it commits.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.clone())
    }

    /// Creates a map. Returns whether this call created it.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn create_map(&self, name: &str) -> Result<bool> {
        let request = CreateMapRequest {
            map: name.into(),
            options: Some(self.options().of_call()),
            ..CreateMapRequest::default()
        };
        Ok(self.write(request, send!(maps.create_map)).await?.created)
    }

    /// Creates a map that keeps its changes, for [`Map::watch`]. Returns `false` when a map of this name with equal
    /// limits exists. Programs that open the store themselves cannot write such a map.
    ///
    /// # Errors
    /// `AlreadyExists` when a map of this name has other limits, or keeps no changes.
    pub async fn create_watched_map(&self, name: &str, limits: KeepChanges) -> Result<bool> {
        let request = CreateMapRequest {
            map: name.into(),
            keep_changes: Some(limits),
            options: Some(self.options().of_call()),
            ..CreateMapRequest::default()
        };
        Ok(self.write(request, send!(maps.create_map)).await?.created)
    }

    /// Replaces what a map keeps of its changes. The next write to the map removes the changes beyond the new limits.
    ///
    /// # Errors
    /// `NotFound`, or `FailedPrecondition` when the map keeps no changes.
    pub async fn configure_watched_map(&self, name: &str, limits: KeepChanges) -> Result<()> {
        let request = ConfigureMapRequest {
            map: name.into(),
            keep_changes: Some(limits),
            options: Some(self.options().of_call()),
            ..ConfigureMapRequest::default()
        };
        self.write(request, send!(maps.configure_map)).await.map(drop)
    }

    /// The names of all maps, sorted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_maps(&self) -> Result<Vec<String>> {
        let request = ListMapsRequest::default();
        Ok(self.read(request, send!(maps.list_maps)).await?.maps)
    }

    /// Gives a map another name.
    ///
    /// # Errors
    /// `NotFound`, or `AlreadyExists` when a map has the new name.
    pub async fn rename_map(&self, name: &str, new_name: &str) -> Result<()> {
        let request = RenameMapRequest {
            map: name.into(),
            new_name: new_name.into(),
            options: Some(self.options().of_call()),
            ..RenameMapRequest::default()
        };
        self.write(request, send!(maps.rename_map)).await.map(drop)
    }

    /// Drops a map and its pairs.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn drop_map(&self, name: &str) -> Result<()> {
        let request = DropMapRequest {
            map: name.into(),
            options: Some(self.options().of_call()),
            ..DropMapRequest::default()
        };
        self.write(request, send!(maps.drop_map)).await.map(drop)
    }

    /// A handle of a tree. It makes no call.
    pub fn tree(&self, name: impl Into<String>) -> Tree {
        Tree::new(self.clone(), name.into())
    }

    /// Creates a tree. Returns `false` when it exists already.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is empty or longer than 255 bytes.
    pub async fn create_tree(&self, name: &str) -> Result<bool> {
        let request = CreateTreeRequest {
            tree: name.into(),
            options: Some(self.options().of_call()),
            ..CreateTreeRequest::default()
        };
        Ok(self.write(request, send!(trees.create_tree)).await?.created)
    }

    /// Deletes a tree with its nodes, revisions and leases.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete_tree(&self, name: &str) -> Result<()> {
        let request = DeleteTreeRequest {
            tree: name.into(),
            options: Some(self.options().of_call()),
            ..DeleteTreeRequest::default()
        };
        self.write(request, send!(trees.delete_tree)).await.map(drop)
    }

    /// Lists the trees in the order of their names.
    ///
    /// # Errors
    /// Those of [`crate::Error`].
    pub async fn list_trees(&self) -> Result<Vec<String>> {
        let request = ListTreesRequest::default();
        Ok(self.read(request, send!(trees.list_trees)).await?.trees)
    }

    /// Creates a topic. Returns `false` when a topic of this name with equal options exists.
    ///
    /// # Errors
    /// `AlreadyExists` when a topic of this name has other options.
    pub async fn create_topic(&self, name: &str, options: TopicOptions) -> Result<bool> {
        let request = CreateTopicRequest {
            topic: name.into(),
            topic_options: Some(options),
            if_missing: true,
            options: Some(self.options().of_call()),
            ..CreateTopicRequest::default()
        };
        Ok(self.write(request, send!(topics.create_topic)).await?.created)
    }

    /// The names of all topics, sorted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_topics(&self) -> Result<Vec<String>> {
        let request = ListTopicsRequest::default();
        Ok(self.read(request, send!(topics.list_topics)).await?.topics)
    }

    /// Says what the server is and what its store holds.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn statistics(&self) -> Result<StatisticsResponse> {
        self.read(StatisticsRequest::default(), send!(admin.statistics)).await
    }

    /// Reads the whole store and reports damage. The deadline must suffice for all of it; see [`Builder::deadline`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn check(&self) -> Result<CheckResponse> {
        self.read(CheckRequest::default(), send!(admin.check)).await
    }

    /// Makes the files of the store as small as their contents allow. The deadline must suffice for all of it; see
    /// [`Builder::deadline`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn compact(&self) -> Result<CompactResponse> {
        // The contents stay as they are, so a repeated call does no harm.
        self.read(CompactRequest::default(), send!(admin.compact)).await
    }

    /// Makes a consistent copy of the store, in the directory that the server's setting `copy_dir` names. The deadline must
    /// suffice for all of it; see [`Builder::deadline`]. The call is not repeated once the client has sent it.
    ///
    /// # Errors
    /// `AlreadyExists` when a copy has the name; `FailedPrecondition` when the server makes no copies; `UnknownOutcome` when
    /// the answer did not arrive: then the copy may come into being.
    pub async fn copy(&self, name: &str) -> Result<CopyResponse> {
        let request = CopyRequest { name: name.into() };
        self.write_once(request, send!(admin.copy)).await
    }

    /// Keeps the present state of the store under a name of at most 255 bytes, with at most 4 KiB of metadata. The checkpoint, and
    /// every commit that was acknowledged before the call, survive a power cut when the call returns. The call is not repeated
    /// once the client has sent it.
    ///
    /// # Errors
    /// `AlreadyExists` when a checkpoint has the name; `UnknownOutcome` when the answer did not arrive: [`Client::checkpoint`]
    /// tells whether the checkpoint was made.
    pub async fn create_checkpoint(&self, name: &str, metadata: impl Into<Bytes>) -> Result<Checkpoint> {
        let request = CreateCheckpointRequest {
            name: name.into(),
            metadata: metadata.into(),
        };
        let created = self.write_once(request, send!(admin.create_checkpoint));
        created.await?.checkpoint.ok_or_else(Error::bad_response)
    }

    /// The checkpoints, in the order in which they were made, with the bytes that only each of them holds.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        let mut checkpoints: Vec<Checkpoint> = Vec::new();
        loop {
            let request = ListCheckpointsRequest {
                with_bytes_alone: true,
                after: checkpoints.last().map_or(0, |last| last.number),
                limit: 0,
            };
            let page = self.read(request, send!(admin.list_checkpoints)).await?;
            // An empty page that promises more would repeat itself.
            let has_more = page.has_more && !page.checkpoints.is_empty();
            checkpoints.extend(page.checkpoints);
            if !has_more {
                return Ok(checkpoints);
            }
        }
    }

    /// A checkpoint, with the bytes that only it holds.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn checkpoint(&self, name: &str) -> Result<Checkpoint> {
        self.described_checkpoint(name, false).await
    }

    /// A checkpoint, with the bytes that only it holds, and those that it shares. The server reads the whole tree of the checkpoint.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn checkpoint_with_shared_bytes(&self, name: &str) -> Result<Checkpoint> {
        self.described_checkpoint(name, true).await
    }

    async fn described_checkpoint(&self, name: &str, with_bytes_shared: bool) -> Result<Checkpoint> {
        let request = GetCheckpointRequest {
            name: name.into(),
            with_bytes_alone: true,
            with_bytes_shared,
        };
        let found = self.read(request, send!(admin.get_checkpoint)).await?;
        found.checkpoint.ok_or_else(Error::bad_response)
    }

    /// Drops a checkpoint. The call is not repeated once the client has sent it: a checkpoint that was made meanwhile may have the
    /// name.
    ///
    /// # Errors
    /// `NotFound`; `UnknownOutcome` when the answer did not arrive.
    pub async fn drop_checkpoint(&self, name: &str) -> Result<()> {
        let request = DropCheckpointRequest { name: name.into() };
        let dropped = self.write_once(request, send!(admin.drop_checkpoint));
        dropped.await.map(drop)
    }

    /// Drops all checkpoints but the newest `count`, at once. Returns how many it dropped. The call is not repeated once the client
    /// has sent it.
    ///
    /// # Errors
    /// `UnknownOutcome` when the answer did not arrive.
    pub async fn keep_last_checkpoints(&self, count: u64) -> Result<u64> {
        let request = KeepLastCheckpointsRequest { count };
        let kept = self.write_once(request, send!(admin.keep_last_checkpoints));
        Ok(kept.await?.dropped)
    }

    /// Compares two checkpoints: the pairs of maps that differ, in the order of maps and keys. With `keys_only`, the values are empty.
    ///
    /// # Errors
    /// [`Error`]; the stream ends with `NotFound` when there is no such checkpoint.
    pub async fn diff_checkpoints(&self, from: &str, to: &str, keys_only: bool) -> Result<Differences> {
        let request = DiffCheckpointsRequest {
            from: from.into(),
            to: to.into(),
            keys_only,
        };
        let responses = self.open(request, send!(admin.diff_checkpoints)).await?;
        Ok(Differences::new(responses))
    }

    /// Puts the store back to a checkpoint, and returns the number of the commit that does it. The server ends then. The call is not
    /// repeated once the client has sent it.
    ///
    /// # Errors
    /// `NotFound` when there is no such checkpoint; `UnknownOutcome` when the answer did not arrive: then the store may be put back.
    pub async fn restore_checkpoint(&self, name: &str) -> Result<u64> {
        let request = RestoreCheckpointRequest { name: name.into() };
        let restored = self.write_once(request, send!(admin.restore_checkpoint));
        Ok(restored.await?.commit)
    }

    /// Exports the store to the place that the server's setting `backup_place` names: all pairs the first time or with `full`, and
    /// then what differs.
    ///
    /// # Errors
    /// [`Error`]; the stream ends with `FailedPrecondition` when the server makes no exports, or makes one already.
    pub async fn export(&self, full: bool, metadata: &str) -> Result<Exporting> {
        let request = ExportRequest {
            full,
            metadata: metadata.into(),
        };
        let responses = self.open(request, send!(admin.export)).await?;
        Ok(Exporting::new(responses))
    }
}
