//! What is wrong with a request whatever the tree holds.

use std::collections::HashSet;

use duramen_proto::etcd::server::range_request::{SortOrder, SortTarget};
use duramen_proto::etcd::server::request_op::Request;
use duramen_proto::etcd::server::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};

use super::errors::EtcdError;
use super::range::{Bounds, bounds};

type Checked = Result<(), EtcdError>;

/// Transactions in transactions: evaluating them takes stack.
const DEPTH_MAX: usize = 32;

pub(crate) fn check_range(request: &RangeRequest) -> Checked {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    let is_known = SortOrder::try_from(request.sort_order).is_ok() && SortTarget::try_from(request.sort_target).is_ok();
    is_known.then_some(()).ok_or(EtcdError::InvalidSort)
}

pub(crate) fn check_put(request: &PutRequest) -> Checked {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(EtcdError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(EtcdError::LeaseProvided);
    }
    Ok(())
}

pub(crate) fn check_delete(request: &DeleteRangeRequest) -> Checked {
    match request.key.is_empty() {
        true => Err(EtcdError::EmptyKey),
        false => Ok(()),
    }
}

/// Checks a transaction of at most so many operations. One in it may have as many as are left of them.
pub(crate) fn check_transaction(request: &TxnRequest, operations_max: usize) -> Checked {
    check_operations(request, operations_max, DEPTH_MAX)?;
    check_overlaps(&request.success)?;
    check_overlaps(&request.failure)?;
    Ok(())
}

fn check_operations(request: &TxnRequest, operations_max: usize, depth: usize) -> Checked {
    let operations = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    if operations > operations_max || depth == 0 {
        return Err(EtcdError::TooManyOperations);
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EtcdError::EmptyKey);
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Request::RequestRange(range)) => check_range(range)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            Some(Request::RequestDeleteRange(delete)) => check_delete(delete)?,
            Some(Request::RequestTxn(inner)) => check_operations(inner, operations_max - operations, depth - 1)?,
            None => return Err(EtcdError::KeyNotFound),
        }
    }
    Ok(())
}

/// What some operations put and delete.
#[derive(Default)]
struct Touched<'a> {
    puts: HashSet<&'a [u8]>,
    deletions: Vec<Bounds>,
}

impl Touched<'_> {
    fn deletes(&self, key: &[u8]) -> bool {
        let is_in = |(low, high): &Bounds| key >= &low[..] && high.as_ref().is_none_or(|high| key < &high[..]);
        self.deletions.iter().any(is_in)
    }
}

/// Refuses operations that change a key twice. The two branches of a transaction in it exclude each other.
fn check_overlaps(operations: &[RequestOp]) -> Result<Touched<'_>, EtcdError> {
    let requests = || operations.iter().filter_map(|operation| operation.request.as_ref());
    let mut touched = Touched::default();
    for request in requests() {
        if let Request::RequestDeleteRange(delete) = request {
            touched.deletions.push(bounds(&delete.key, &delete.range_end));
        }
    }
    for request in requests() {
        let Request::RequestTxn(inner) = request else { continue };
        let then = check_overlaps(&inner.success)?;
        let otherwise = check_overlaps(&inner.failure)?;
        for key in &then.puts {
            if touched.deletes(key) || !touched.puts.insert(key) {
                return Err(EtcdError::DuplicateKey);
            }
        }
        for key in &otherwise.puts {
            let is_new = touched.puts.insert(key);
            if touched.deletes(key) || !(is_new || then.puts.contains(key)) {
                return Err(EtcdError::DuplicateKey);
            }
        }
        touched.deletions.extend(then.deletions);
        touched.deletions.extend(otherwise.deletions);
    }
    for request in requests() {
        if let Request::RequestPut(put) = request
            && (touched.deletes(&put.key) || !touched.puts.insert(&put.key))
        {
            return Err(EtcdError::DuplicateKey);
        }
    }
    Ok(touched)
}
