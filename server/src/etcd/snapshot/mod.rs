//! Snapshot files of etcd: `etcdutl snapshot restore` takes those of a Duramen server, and `duramen etcd import` takes those of
//! etcd.
//!
//! ```text
//! bolt     the file format of bbolt: pages, buckets, pairs
//! rows     what etcd stores in which bucket
//! order    sorts revisions and keys outside of memory
//! save     a view of a tree into a file
//! stream   a file as the messages of `Maintenance.Snapshot`
//! load     a file into its leases and living keys
//! ```

mod bolt;
mod load;
mod order;
mod rows;
mod save;
mod stream;

pub use load::{EtcdLease, EtcdSnapshot, EtcdSnapshotError};

#[cfg(test)]
mod tests;
