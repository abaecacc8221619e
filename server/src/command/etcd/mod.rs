//! Requests of etcd's clients on a tree: what they read, and what they change.
//!
//! The tree has etcd's data model, so a request is read and done here as etcd does it, with etcd's errors. Everything that can be
//! wrong with a transaction is found before it changes anything.

mod check;
mod compare;
mod errors;
mod range;
mod transaction;

pub(crate) use check::{check_delete, check_put, check_range, check_transaction};
pub(crate) use errors::{EtcdError, of_etcd};
pub(crate) use range::{
    RESPONSE_BYTES_MAX, RangeWalk, bounds, comparable, has_filters, is_in_key_order, signed, to_key_value,
    too_large_to_answer,
};
pub(crate) use transaction::{changes_one_key, is_read_only, read_transaction};
