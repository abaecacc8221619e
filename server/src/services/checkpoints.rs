//! The calls of the service `Admin` on checkpoints.
//!
//! They go to the store and not through the pipeline: a checkpoint keeps commits, and is no commit itself (see decision 24). Making
//! and dropping one folds what is in the log, so all of this runs on threads for work that blocks.

use std::time::UNIX_EPOCH;

use duramen::{Difference, Store};
use duramen_proto::v1::*;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::error::{failed, status};

/// Checkpoints of a page when the request names no number, and the most. Names and metadata of a page fit into a message.
const PAGE_CHECKPOINTS: usize = 1_000;
/// Differences of a response, and the bytes of them after which it ends.
const BATCH_PAIRS: usize = 1_000;
const BATCH_BYTES: usize = 1 << 20;
/// The most bytes of a difference, which must fit into a message.
const DIFFERENCE_BYTES_MAX: usize = 16 << 20;

pub(super) fn create(store: &Store, request: &CreateCheckpointRequest) -> duramen::Result<CreateCheckpointResponse> {
    let made = store.checkpoints().create(&request.name, &request.metadata)?;
    Ok(CreateCheckpointResponse {
        checkpoint: Some(described(made)),
    })
}

pub(super) fn list(store: &Store, request: &ListCheckpointsRequest) -> duramen::Result<ListCheckpointsResponse> {
    let most = match request.limit as usize {
        0 => PAGE_CHECKPOINTS,
        limit => limit.min(PAGE_CHECKPOINTS),
    };
    let mut all = store.checkpoints().list()?;
    all.retain(|checkpoint| checkpoint.number > request.after);
    let has_more = all.len() > most;
    all.truncate(most);
    let mut checkpoints: Vec<_> = all.into_iter().map(described).collect();
    if request.with_bytes_alone {
        for checkpoint in &mut checkpoints {
            // Another call may have dropped it meanwhile: then it holds nothing.
            checkpoint.bytes_alone = Some(store.checkpoints().bytes_alone(&checkpoint.name)?.unwrap_or(0));
        }
    }
    Ok(ListCheckpointsResponse { checkpoints, has_more })
}

pub(super) fn get(store: &Store, request: &GetCheckpointRequest) -> duramen::Result<GetCheckpointResponse> {
    let unknown = || unknown(&request.name);
    let checkpoint = store.checkpoints().get(&request.name)?.ok_or_else(unknown)?;
    let mut checkpoint = described(checkpoint);
    if request.with_bytes_alone {
        let alone = store.checkpoints().bytes_alone(&request.name)?;
        checkpoint.bytes_alone = Some(alone.ok_or_else(unknown)?);
    }
    if request.with_bytes_shared {
        let shared = store.checkpoints().bytes_shared(&request.name)?;
        checkpoint.bytes_shared = Some(shared.ok_or_else(unknown)?);
    }
    Ok(GetCheckpointResponse {
        checkpoint: Some(checkpoint),
    })
}

pub(super) fn drop_named(store: &Store, request: &DropCheckpointRequest) -> duramen::Result<DropCheckpointResponse> {
    match store.checkpoints().drop(&request.name)? {
        true => Ok(DropCheckpointResponse {}),
        false => Err(unknown(&request.name)),
    }
}

pub(super) fn keep_last(
    store: &Store,
    request: &KeepLastCheckpointsRequest,
) -> duramen::Result<KeepLastCheckpointsResponse> {
    let count = usize::try_from(request.count).unwrap_or(usize::MAX);
    let dropped = store.checkpoints().keep_last(count)?;
    Ok(KeepLastCheckpointsResponse { dropped })
}

/// Sends what differs until it has sent all of it, or the receiver has gone.
pub(super) fn diff(
    store: &Store,
    request: &DiffCheckpointsRequest,
    responses: &mpsc::Sender<DiffCheckpointsResponse>,
) -> Result<(), Status> {
    let mut batch = Batch::default();
    let mut refused = None;
    let done = store.checkpoints().diff(&request.from, &request.to, |pair| {
        let bytes = size(&pair, request.keys_only);
        if bytes > DIFFERENCE_BYTES_MAX {
            refused = Some(too_long(&pair, bytes));
            return Ok(false);
        }
        batch.add(&pair, request.keys_only, bytes);
        Ok(!batch.is_full() || batch.send(responses))
    });
    done.map_err(|error| failed(&error))?;
    batch.send(responses);
    refused.map_or(Ok(()), Err)
}

/// Differences that wait for the others of their response.
#[derive(Default)]
struct Batch {
    differences: Vec<CheckpointDifference>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, pair: &Difference<'_>, keys_only: bool, bytes: usize) {
        let value = |value: &[u8]| match keys_only {
            true => Bytes::new(),
            false => Bytes::copy_from_slice(value),
        };
        self.differences.push(CheckpointDifference {
            map: pair.map.into(),
            key: Bytes::copy_from_slice(pair.key),
            old: pair.old.as_deref().map(value),
            new: pair.new.as_deref().map(value),
        });
        self.bytes += bytes;
    }

    fn is_full(&self) -> bool {
        self.differences.len() >= BATCH_PAIRS || self.bytes >= BATCH_BYTES
    }

    /// Sends what there is. Returns whether the receiver is still there.
    fn send(&mut self, responses: &mpsc::Sender<DiffCheckpointsResponse>) -> bool {
        let differences = std::mem::take(self).differences;
        differences.is_empty() || responses.blocking_send(DiffCheckpointsResponse { differences }).is_ok()
    }
}

fn size(pair: &Difference<'_>, keys_only: bool) -> usize {
    let values = [&pair.old, &pair.new].into_iter().flatten();
    let values: usize = match keys_only {
        true => 0,
        false => values.map(|value| value.len()).sum(),
    };
    pair.map.len() + pair.key.len() + values
}

fn too_long(pair: &Difference<'_>, bytes: usize) -> Status {
    let message = format!(
        "a pair of map {:?} has {bytes} bytes before and afterwards, and a response holds at most {DIFFERENCE_BYTES_MAX}; ask for \
         the keys only, or run `duramen checkpoint diff` on the directory of the store",
        pair.map
    );
    status(Code::OutOfRange, "VALUE_TOO_LONG", message)
}

pub(super) fn unknown(name: &str) -> duramen::Error {
    duramen::Reason::UnknownCheckpoint { name: name.into() }.into()
}

fn described(checkpoint: duramen::Checkpoint) -> Checkpoint {
    let created = checkpoint.created.duration_since(UNIX_EPOCH).unwrap_or_default();
    Checkpoint {
        number: checkpoint.number,
        name: checkpoint.name,
        metadata: checkpoint.metadata.into(),
        commit: checkpoint.commit,
        created_ms: created.as_millis() as u64,
        pairs: checkpoint.pairs,
        bytes_alone: None,
        bytes_shared: None,
    }
}

/// Puts the store back to a checkpoint. The server notices, and ends.
pub(super) fn restore(store: &Store, request: &RestoreCheckpointRequest) -> duramen::Result<RestoreCheckpointResponse> {
    if store.checkpoints().get(&request.name)?.is_none() {
        return Err(unknown(&request.name));
    }
    let commit = crate::restore(store, &request.name)?;
    Ok(RestoreCheckpointResponse { commit })
}
