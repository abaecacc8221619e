//! Transactions of etcd's clients.

use duramen::tree::{LeaseChange, TreeError, TreeWrites};
use duramen::{Reason, Result, Transaction};
use duramen_proto::command::EtcdTransaction;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::etcd::server::request_op::Request;
use duramen_proto::etcd::server::response_op::Response;
use duramen_proto::etcd::server::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};

use super::compare::branches;
use super::errors::EtcdError;
use super::range::{Keys, RESPONSE_BYTES_MAX, RangeWalk, bounds, header_of, to_key_value, too_large_to_answer};
use crate::command::applier::Applier;
use crate::command::stopped::{Ran, Stopped, outcome};
use crate::command::trees::OpenTrees;

impl Applier {
    /// Does a transaction of a client of etcd.
    pub(in crate::command) fn etcd(&self, tx: &mut Transaction, command: &EtcdTransaction) -> Ran {
        let Some(request) = &command.request else {
            return Err(EtcdError::EmptyKey.refusal().into());
        };
        // What is refused is refused before anything is changed: the error is kept beside the result.
        let mut refused = None;
        let response = self.with_tree(tx, &mut OpenTrees::default(), &command.tree, true, |writes| {
            let branches = branches(writes, request)?;
            if let Err(error) = check(writes, request, &mut Course::of(&branches))? {
                refused = Some(error);
                return Ok(TxnResponse::default());
            }
            let mut response = run(writes, request, &mut Course::of(&branches))?;
            response.header = Some(header_of(writes.revision()));
            Ok(response)
        })?;
        match refused {
            Some(error) => Err(Stopped::Refused(error.refusal())),
            None => Ok(outcome(Led::Etcd(response))),
        }
    }
}

/// Whether a transaction changes nothing, whatever it finds.
pub(crate) fn is_read_only(request: &TxnRequest) -> bool {
    let reads = |operation: &RequestOp| match &operation.request {
        Some(Request::RequestRange(_)) => true,
        Some(Request::RequestTxn(inner)) => is_read_only(inner),
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) | None => false,
    };
    request.success.iter().chain(&request.failure).all(reads)
}

/// Whether a transaction changes one key at most, whatever it finds: then it changes nothing when it is refused.
pub(crate) fn changes_one_key(request: &TxnRequest) -> bool {
    let writes = |operation: &RequestOp| match &operation.request {
        Some(Request::RequestRange(_)) | None => 0,
        Some(Request::RequestPut(_)) => 1,
        Some(Request::RequestDeleteRange(delete)) if delete.range_end.is_empty() => 1,
        Some(Request::RequestDeleteRange(_)) => 2,
        Some(Request::RequestTxn(inner)) => {
            if is_read_only(inner) {
                0
            } else {
                2
            }
        }
    };
    let changes = |operations: &[RequestOp]| operations.iter().map(writes).sum::<usize>();
    changes(&request.success) <= 1 && changes(&request.failure) <= 1
}

/// Answers a transaction that changes nothing.
pub(crate) fn read_transaction(keys: &impl Keys, request: &TxnRequest) -> Result<Result<TxnResponse, EtcdError>> {
    let branches = branches(keys, request)?;
    if let Err(error) = check(keys, request, &mut Course::of(&branches))? {
        return Ok(Err(error));
    }
    let mut response = read(keys, request, &mut Course::of(&branches))?;
    response.header = Some(header_of(keys.newest()));
    Ok(Ok(response))
}

/// The way of a transaction through its branches.
struct Course<'a> {
    /// The branches that are left to take.
    branches: std::slice::Iter<'a, bool>,
    /// Bytes of the keys and values that were read.
    read_bytes: usize,
}

impl<'a> Course<'a> {
    fn of(branches: &'a [bool]) -> Course<'a> {
        Course {
            branches: branches.iter(),
            read_bytes: 0,
        }
    }

    /// The operations of the next branch.
    fn take<'r>(&mut self, request: &'r TxnRequest) -> (bool, &'r [RequestOp]) {
        match self.branches.next() {
            Some(true) => (true, &request.success),
            _ => (false, &request.failure),
        }
    }

    /// Refuses an answer that is too large, before it takes more memory.
    fn has_read(&mut self, bytes: usize) -> Result<()> {
        self.read_bytes += bytes;
        if self.read_bytes <= RESPONSE_BYTES_MAX {
            return Ok(());
        }
        Err(Reason::InvalidArgument(too_large_to_answer()).into())
    }
}

/// Finds what is wrong with the branches that are taken, before anything is changed.
fn check(keys: &impl Keys, request: &TxnRequest, course: &mut Course<'_>) -> Result<Result<(), EtcdError>> {
    let (_, operations) = course.take(request);
    for operation in operations {
        let checked = match &operation.request {
            Some(Request::RequestRange(range)) => check_revision(keys, range)?,
            Some(Request::RequestPut(put)) => check_put(keys, put)?,
            Some(Request::RequestTxn(inner)) => check(keys, inner, course)?,
            Some(Request::RequestDeleteRange(_)) | None => Ok(()),
        };
        if checked.is_err() {
            return Ok(checked);
        }
    }
    Ok(Ok(()))
}

fn check_revision(keys: &impl Keys, range: &RangeRequest) -> Result<Result<(), EtcdError>> {
    let Ok(revision @ 1..) = u64::try_from(range.revision) else {
        return Ok(match range.revision {
            0 => Ok(()),
            _ => Err(EtcdError::Compacted),
        });
    };
    Ok(match revision {
        _ if revision > keys.newest() => Err(EtcdError::FutureRevision),
        _ if revision < keys.first()? => Err(EtcdError::Compacted),
        _ => Ok(()),
    })
}

fn check_put(keys: &impl Keys, put: &PutRequest) -> Result<Result<(), EtcdError>> {
    if put.lease != 0 {
        match keys.lease(put.lease as u64) {
            Ok(lease) if lease.remaining.is_zero() => return Ok(Err(EtcdError::LeaseNotFound)),
            Ok(_) => {}
            Err(error) => {
                return match TreeError::of(&error) {
                    Some(TreeError::LeaseGone { .. }) => Ok(Err(EtcdError::LeaseNotFound)),
                    _ => Err(error),
                };
            }
        }
    }
    if (put.ignore_value || put.ignore_lease) && keys.node(None, &put.key)?.is_none() {
        return Ok(Err(EtcdError::KeyNotFound));
    }
    Ok(Ok(()))
}

fn run(writes: &mut TreeWrites<'_>, request: &TxnRequest, course: &mut Course<'_>) -> Result<TxnResponse> {
    let (succeeded, operations) = course.take(request);
    let mut responses = Vec::with_capacity(operations.len());
    for operation in operations {
        let response = match &operation.request {
            Some(Request::RequestRange(request)) => Some(Response::ResponseRange(range(writes, request, course)?)),
            Some(Request::RequestPut(request)) => Some(Response::ResponsePut(put(writes, request)?)),
            Some(Request::RequestDeleteRange(request)) => {
                Some(Response::ResponseDeleteRange(delete_range(writes, request)?))
            }
            Some(Request::RequestTxn(inner)) => Some(Response::ResponseTxn(run(writes, inner, course)?)),
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse {
        // As in etcd, a transaction in another one has a header that says nothing.
        header: Some(ResponseHeader::default()),
        succeeded,
        responses,
    })
}

fn read(keys: &impl Keys, request: &TxnRequest, course: &mut Course<'_>) -> Result<TxnResponse> {
    let (succeeded, operations) = course.take(request);
    let mut responses = Vec::with_capacity(operations.len());
    for operation in operations {
        let response = match &operation.request {
            Some(Request::RequestRange(request)) => Some(Response::ResponseRange(range(keys, request, course)?)),
            Some(Request::RequestTxn(inner)) => Some(Response::ResponseTxn(read(keys, inner, course)?)),
            _ => None,
        };
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse {
        header: Some(ResponseHeader::default()),
        succeeded,
        responses,
    })
}

fn range(keys: &impl Keys, request: &RangeRequest, course: &mut Course<'_>) -> Result<RangeResponse> {
    let mut walk = RangeWalk::new(request);
    let mut bytes = 0;
    loop {
        let is_done = walk.step(keys)?;
        course.has_read(walk.bytes() - bytes)?;
        bytes = walk.bytes();
        if is_done {
            break;
        }
    }
    Ok(walk.response(request, keys.newest()))
}

fn put(writes: &mut TreeWrites<'_>, request: &PutRequest) -> Result<PutResponse> {
    let lease = match request.lease {
        _ if request.ignore_lease => LeaseChange::Keep,
        0 => LeaseChange::Detach,
        lease => LeaseChange::Attach(lease as u64),
    };
    let before = match request.ignore_value {
        true => {
            let payload = writes.get(&request.key)?.map(|node| node.payload).unwrap_or_default();
            writes.put_with(&request.key, payload, lease)?
        }
        false => writes.put_with(&request.key, &request.value, lease)?,
    };
    let before = before.filter(|_| request.prev_kv);
    Ok(PutResponse {
        header: Some(header_of(writes.revision())),
        prev_kv: before.map(|node| to_key_value(request.key.clone(), node)),
    })
}

fn delete_range(writes: &mut TreeWrites<'_>, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse> {
    let mut prev_kvs = Vec::new();
    let deleted = if request.range_end.is_empty() {
        let before = writes.delete(bounds(&request.key, &[]).0)?;
        let deleted = i64::from(before.is_some());
        let before = before.filter(|_| request.prev_kv);
        prev_kvs.extend(before.map(|node| to_key_value(request.key.clone(), node)));
        deleted
    } else {
        let (low, high) = bounds(&request.key, &request.range_end);
        if high.as_ref().is_some_and(|high| *high <= low) {
            0
        } else {
            if request.prev_kv {
                writes.range(None, &low, high.as_deref(), |path, node| {
                    prev_kvs.push(to_key_value(path.to_vec().into(), node));
                    Ok(true)
                })?;
            }
            writes.delete_range(&low, high.as_deref())? as i64
        }
    };
    Ok(DeleteRangeResponse {
        header: Some(header_of(writes.revision())),
        deleted,
        prev_kvs,
    })
}

#[cfg(test)]
mod tests {
    use duramen::tree::{Lease, Node, Nodes, Page};

    use super::super::range::Bounds;
    use super::*;

    /// Every key has a value of 64 MiB, of zeros that take no memory before they are read.
    struct Large;

    const BYTES: usize = 64 << 20;

    impl Keys for Large {
        fn newest(&self) -> u64 {
            1
        }

        fn first(&self) -> Result<u64> {
            Ok(1)
        }

        fn lease(&self, _: u64) -> Result<Lease> {
            unreachable!("no put")
        }

        fn node(&self, _: Option<u64>, _: &[u8]) -> Result<Option<Node>> {
            Ok(Some(Node {
                create_revision: 1,
                revision: 1,
                version: 1,
                lease: 0,
                payload: vec![0; BYTES],
            }))
        }

        fn page(&self, _: Option<u64>, _: &Bounds, _: usize) -> Result<Page<Nodes>> {
            unreachable!("single keys")
        }

        fn count(&self, _: Option<u64>, _: &Bounds) -> Result<Page<u64>> {
            unreachable!("single keys")
        }
    }

    fn read(ranges: usize) -> TxnRequest {
        let range = RangeRequest {
            key: "k".into(),
            ..RangeRequest::default()
        };
        let operation = RequestOp {
            request: Some(Request::RequestRange(range)),
        };
        TxnRequest {
            success: vec![operation; ranges],
            ..TxnRequest::default()
        }
    }

    #[test]
    fn all_that_a_transaction_reads_has_a_bound_together() {
        let fit = RESPONSE_BYTES_MAX / (BYTES + 1);
        assert!(read_transaction(&Large, &read(fit)).is_ok());
        let nested = TxnRequest {
            success: vec![RequestOp {
                request: Some(Request::RequestTxn(read(fit))),
            }],
            ..TxnRequest::default()
        };
        assert!(read_transaction(&Large, &nested).is_ok());
        let refused = read_transaction(&Large, &read(fit + 1)).unwrap_err();
        assert!(refused.to_string().contains("read in parts"), "{refused}");
        let mut nested = nested;
        nested.success.extend(read(1).success);
        assert!(read_transaction(&Large, &nested).is_err());
    }
}
