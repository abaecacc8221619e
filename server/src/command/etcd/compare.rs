//! The comparisons of a transaction.

use std::cmp::Ordering;

use duramen::Result;
use duramen_proto::etcd::kv::KeyValue;
use duramen_proto::etcd::server::Compare;
use duramen_proto::etcd::server::compare::{CompareResult, CompareTarget, TargetUnion};
use duramen_proto::etcd::server::{RangeRequest, TxnRequest, request_op::Request};

use super::range::{Keys, RangeWalk};

/// Which branch each transaction takes: the outer one first, and those in its branch in their order. All comparisons are made before
/// anything is changed.
pub(super) fn branches(keys: &impl Keys, request: &TxnRequest) -> Result<Vec<bool>> {
    let mut branches = Vec::new();
    add_branches(keys, request, &mut branches)?;
    Ok(branches)
}

fn add_branches(keys: &impl Keys, request: &TxnRequest, branches: &mut Vec<bool>) -> Result<()> {
    let mut holds = true;
    for compare in &request.compare {
        holds = holds && hold_all(keys, compare)?;
    }
    branches.push(holds);
    let operations = if holds { &request.success } else { &request.failure };
    for operation in operations {
        if let Some(Request::RequestTxn(inner)) = &operation.request {
            add_branches(keys, inner, branches)?;
        }
    }
    Ok(())
}

/// Whether a comparison holds for all pairs of its range.
fn hold_all(keys: &impl Keys, compare: &Compare) -> Result<bool> {
    let mut walk = RangeWalk::new(&RangeRequest {
        key: compare.key.clone(),
        range_end: compare.range_end.clone(),
        ..RangeRequest::default()
    });
    let mut is_empty = true;
    loop {
        let is_done = walk.step(keys)?;
        let found = walk.take_found();
        is_empty &= found.is_empty();
        if !found.iter().all(|pair| holds(compare, pair)) {
            return Ok(false);
        }
        if is_done {
            break;
        }
    }
    // A missing key has all numbers 0, and no value at all.
    Ok(!is_empty || compare.target() != CompareTarget::Value && holds(compare, &KeyValue::default()))
}

fn holds(compare: &Compare, pair: &KeyValue) -> bool {
    let number = |found: i64, wanted: Option<i64>| found.cmp(&wanted.unwrap_or(0));
    let union = compare.target_union.as_ref();
    let ordering = match compare.target() {
        CompareTarget::Value => match union {
            Some(TargetUnion::Value(value)) => pair.value.cmp(value),
            _ => pair.value[..].cmp(&[]),
        },
        CompareTarget::Version => number(
            pair.version,
            match union {
                Some(TargetUnion::Version(version)) => Some(*version),
                _ => None,
            },
        ),
        CompareTarget::Create => number(
            pair.create_revision,
            match union {
                Some(TargetUnion::CreateRevision(revision)) => Some(*revision),
                _ => None,
            },
        ),
        CompareTarget::Mod => number(
            pair.mod_revision,
            match union {
                Some(TargetUnion::ModRevision(revision)) => Some(*revision),
                _ => None,
            },
        ),
        CompareTarget::Lease => number(
            pair.lease,
            match union {
                Some(TargetUnion::Lease(lease)) => Some(*lease),
                _ => None,
            },
        ),
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering == Ordering::Equal,
        Ok(CompareResult::Greater) => ordering == Ordering::Greater,
        Ok(CompareResult::Less) => ordering == Ordering::Less,
        Ok(CompareResult::NotEqual) => ordering != Ordering::Equal,
        // As in etcd, a result that it does not know always holds.
        Err(_) => true,
    }
}
