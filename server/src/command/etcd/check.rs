//! What is wrong with a request whatever the tree holds.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound::{Included, Unbounded};

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

/// Ranges of keys that do not touch each other: what is deleted, by the first key. A range without an end goes to the last key.
///
/// A request of the largest size has a hundred thousand deletions, so looking a key up must not look at all of them.
#[derive(Default)]
struct Ranges(BTreeMap<Vec<u8>, Option<Vec<u8>>>);

impl Ranges {
    fn add(&mut self, (mut low, mut high): Bounds) {
        if high.as_ref().is_some_and(|high| *high <= low) {
            return;
        }
        // Those that it touches become part of it. They do not touch each other, so they are the last ones that begin before its end.
        loop {
            let before = match &high {
                Some(high) => self.0.range::<[u8], _>((Unbounded, Included(&high[..]))),
                None => self.0.range::<[u8], _>(..),
            };
            let Some((other, end)) = before.into_iter().next_back() else {
                break;
            };
            if end.as_ref().is_some_and(|end| *end < low) {
                break;
            }
            let other = other.clone();
            let Some(end) = self.0.remove(&other) else { break };
            high = match (high, end) {
                (Some(one), Some(other)) => Some(one.max(other)),
                _ => None,
            };
            low = low.min(other);
        }
        self.0.insert(low, high);
    }

    fn extend(&mut self, others: Ranges) {
        others.0.into_iter().for_each(|range| self.add(range));
    }

    fn has(&self, key: &[u8]) -> bool {
        let before = self.0.range::<[u8], _>((Unbounded, Included(key))).next_back();
        before.is_some_and(|(_, high)| high.as_ref().is_none_or(|high| key < &high[..]))
    }
}

/// What some operations put and delete.
#[derive(Default)]
struct Touched<'a> {
    puts: HashSet<&'a [u8]>,
    deletions: Ranges,
}

impl Touched<'_> {
    fn deletes(&self, key: &[u8]) -> bool {
        self.deletions.has(key)
    }
}

/// Refuses operations that change a key twice. The two branches of a transaction in it exclude each other.
fn check_overlaps(operations: &[RequestOp]) -> Result<Touched<'_>, EtcdError> {
    let requests = || operations.iter().filter_map(|operation| operation.request.as_ref());
    let mut touched = Touched::default();
    for request in requests() {
        if let Request::RequestDeleteRange(delete) = request {
            touched.deletions.add(bounds(&delete.key, &delete.range_end));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn deletion(low: &str, high: &str) -> RequestOp {
        let delete = DeleteRangeRequest {
            key: low.to_string().into(),
            range_end: high.to_string().into(),
            ..DeleteRangeRequest::default()
        };
        RequestOp {
            request: Some(Request::RequestDeleteRange(delete)),
        }
    }

    fn put(key: &str) -> RequestOp {
        let put = PutRequest {
            key: key.to_string().into(),
            ..PutRequest::default()
        };
        RequestOp {
            request: Some(Request::RequestPut(put)),
        }
    }

    #[test]
    fn merged_ranges_have_the_keys_of_all_of_them() {
        let names: Vec<String> = ('a'..='h').map(String::from).collect();
        let mut number = 1_u32;
        let mut random = |most: usize| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (number >> 16) as usize % most
        };
        for _ in 0..2_000 {
            let (mut all, mut merged) = (Vec::new(), Ranges::default());
            for _ in 0..random(6) {
                let low = &names[random(8)];
                let end = match random(8) {
                    0 => "\0",
                    1 => "",
                    _ => &names[random(8)],
                };
                let range = bounds(low.as_bytes(), end.as_bytes());
                merged.add(range.clone());
                all.push(range);
            }
            for key in names
                .iter()
                .flat_map(|name| [name.clone(), format!("{name}\0"), format!("{name}b")])
            {
                let key = key.as_bytes();
                let is_in = |(low, high): &Bounds| key >= &low[..] && high.as_ref().is_none_or(|high| key < &high[..]);
                assert_eq!(merged.has(key), all.iter().any(is_in), "{all:?} {key:?}");
            }
        }
    }

    #[test]
    fn many_puts_beside_many_deletions_are_checked() {
        let deletions = (0..60_000).map(|number| deletion(&format!("d{number}"), ""));
        let puts = (0..60_000).map(|number| put(&format!("p{number}")));
        let mut operations: Vec<RequestOp> = deletions.chain(puts).collect();
        assert!(check_overlaps(&operations).is_ok());
        operations.push(put("d59999"));
        assert_eq!(check_overlaps(&operations).err(), Some(EtcdError::DuplicateKey));
    }
}
