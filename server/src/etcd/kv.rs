//! `KV`: reading and changing keys.

use duramen::tree::PATH_BYTES_MAX;
use duramen_proto::command::tree_command::Change as OfTree;
use duramen_proto::etcd::server::kv_server::Kv;
use duramen_proto::etcd::server::range_request::SortTarget;
use duramen_proto::etcd::server::request_op::Request as Operation;
use duramen_proto::etcd::server::response_op::Response as Done;
use duramen_proto::etcd::server::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, RequestOp, TxnRequest, TxnResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::EtcdDoor;
use crate::command::{
    EtcdError, RESPONSE_BYTES_MAX, RangeWalk, check_delete, check_put, check_range, check_transaction, has_filters,
    is_in_key_order, is_read_only, of_etcd, read_transaction, too_large_to_answer,
};
use crate::error::{failed, reason_of, status};
use crate::security::Access;
use crate::services::send;

impl EtcdDoor {
    /// Reads a range.
    pub(super) async fn read(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        let view = self.view()?;
        let mut walk = RangeWalk::new(request);
        while !walk.step(&view).map_err(|error| of_etcd(failed(&error)))? {
            if walk.bytes() > RESPONSE_BYTES_MAX {
                return Err(status(
                    Code::ResourceExhausted,
                    "RESPONSE_TOO_LARGE",
                    too_large_to_answer(),
                ));
            }
            // The other clients of this thread have their turns.
            tokio::task::yield_now().await;
        }
        let mut response = walk.response(request, view.revision());
        response.header = self.completed(response.header);
        Ok(response)
    }

    /// Does one operation as a transaction of its own.
    pub(super) async fn operate(&self, operation: Operation) -> Result<Done, Status> {
        let request = TxnRequest {
            success: vec![RequestOp {
                request: Some(operation),
            }],
            ..TxnRequest::default()
        };
        let response = self.commit(request).await?;
        let done = response.responses.into_iter().next().and_then(|one| one.response);
        done.ok_or_else(|| status(Code::Internal, "INTERNAL", "a transaction has no response; report this"))
    }

    /// Does a transaction that is known to make sense.
    pub(super) async fn transact(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let mut response = match is_read_only(&request) {
            true => {
                let read = read_transaction(&self.view()?, &request).map_err(|error| of_etcd(failed(&error)))?;
                read?
            }
            false => self.commit(request).await?,
        };
        response.header = self.completed(response.header);
        Ok(response)
    }
}

/// Refuses a key that is too long for the path of a node.
fn check_key(key: &[u8]) -> Result<(), Status> {
    let zeros = key.iter().filter(|byte| **byte == 0).count();
    if key.len() + zeros <= PATH_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "a key has {} bytes, and this server takes at most {PATH_BYTES_MAX}, of which a byte 0 counts twice; take a shorter one",
        key.len()
    );
    Err(status(Code::InvalidArgument, "INVALID_PATH", message))
}

fn check_keys(request: &TxnRequest) -> Result<(), Status> {
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Operation::RequestPut(put)) => check_key(&put.key)?,
            Some(Operation::RequestTxn(inner)) => check_keys(inner)?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether a transaction may take room.
fn puts(request: &TxnRequest) -> bool {
    let operations = request.success.iter().chain(&request.failure);
    let mut requests = operations.filter_map(|operation| operation.request.as_ref());
    requests.any(|request| match request {
        Operation::RequestPut(_) => true,
        Operation::RequestTxn(inner) => puts(inner),
        _ => false,
    })
}

#[tonic::async_trait]
impl Kv for EtcdDoor {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        let request = request.into_inner();
        check_range(&request)?;
        Ok(Response::new(self.read(&request).await?))
    }

    type RangeStreamStream = ReceiverStream<Result<RangeStreamResponse, Status>>;

    async fn range_stream(&self, request: Request<RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.authorize(&request, Access::Read)?;
        let request = request.into_inner();
        check_range(&request)?;
        if !is_in_key_order(&request) {
            return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
        }
        if has_filters(&request) {
            return Err(Status::unimplemented("RangeStream does not support revision filters"));
        }
        // A slow reader holds two parts, and its snapshot.
        let (sender, receiver) = mpsc::channel(3);
        if request.sort_target() != SortTarget::Key {
            // What is sorted is known as a whole first.
            let whole = RangeStreamResponse {
                range_response: Some(self.read(&request).await?),
            };
            let _ = sender.send(Ok(whole)).await;
            return Ok(Response::new(ReceiverStream::new(receiver)));
        }
        let view = self.view()?;
        let (door, parts) = (self.clone(), sender.clone());
        let sends = async move {
            let sent: Result<(), Status> = async {
                let mut walk = RangeWalk::new(&request);
                let mut left = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
                let mut more = false;
                loop {
                    let is_done = walk.step(&view).map_err(|error| of_etcd(failed(&error)))?;
                    let mut kvs = walk.take_found();
                    if let Some(left) = &mut left {
                        more |= kvs.len() > *left;
                        kvs.truncate(*left);
                        *left -= kvs.len();
                    }
                    if request.keys_only {
                        kvs.iter_mut().for_each(|pair| pair.value.clear());
                    }
                    if kvs.is_empty() && !is_done {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    let mut part = RangeResponse {
                        kvs,
                        ..RangeResponse::default()
                    };
                    if is_done {
                        part.header = Some(door.header(view.revision()));
                        (part.more, part.count) = (more, walk.count());
                    }
                    let part = RangeStreamResponse {
                        range_response: Some(part),
                    };
                    if parts.send(Ok(part)).await.is_err() || is_done {
                        return Ok(());
                    }
                }
            }
            .await;
            if let Err(status) = sent {
                let _ = parts.send(Err(status)).await;
            }
        };
        send(self.state(), sender, sends);
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.authorize(&request, Access::Write)?;
        if request.get_ref().prev_kv {
            self.authorize(&request, Access::Read)?;
        }
        let request = request.into_inner();
        check_put(&request)?;
        self.check_size(&request)?;
        check_key(&request.key)?;
        self.check_quota()?;
        match self.operate(Operation::RequestPut(request)).await? {
            Done::ResponsePut(mut response) => {
                response.header = self.completed(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.authorize(&request, Access::Write)?;
        if request.get_ref().prev_kv {
            self.authorize(&request, Access::Read)?;
        }
        let request = request.into_inner();
        check_delete(&request)?;
        self.check_size(&request)?;
        match self.operate(Operation::RequestDeleteRange(request)).await? {
            Done::ResponseDeleteRange(mut response) => {
                response.header = self.completed(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        if !is_read_only(request.get_ref()) {
            self.authorize(&request, Access::Write)?;
        }
        let request = request.into_inner();
        self.check_size(&request)?;
        check_transaction(&request, self.config().operations_max)?;
        check_keys(&request)?;
        if puts(&request) {
            self.check_quota()?;
        }
        Ok(Response::new(self.transact(request).await?))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        let request = request.into_inner();
        let view = self.view()?;
        let first = view.first_revision().map_err(|error| of_etcd(failed(&error)))?;
        let revision = match u64::try_from(request.revision) {
            Ok(revision) if revision > first => revision,
            // A tree begins at revision 1, and does not record that a client compacted to there or to 0.
            Ok(revision) if first == 1 => revision,
            _ => return Err(EtcdError::Compacted.into()),
        };
        match self.change(OfTree::Compact(revision)).await {
            Err(status) if reason_of(&status) == "NO_SPACE" => {
                // A full store takes deletions.
                while self.change(OfTree::CompactWithoutRoom(revision)).await?.has_more {}
                self.change(OfTree::Compact(revision)).await?;
            }
            compacted => drop(compacted?),
        }
        if request.physical {
            self.remove_compacted().await?;
        }
        let header = Some(self.newest_header()?);
        Ok(Response::new(CompactionResponse { header }))
    }
}

fn unexpected(done: &Done) -> Status {
    let message = format!("an operation had the response {done:?}, which belongs to another one; report this");
    status(Code::Internal, "INTERNAL", message)
}
