//! The workloads of trees, one file each.

pub mod compaction;
pub mod etcd_bench;
mod etcd_watch;
pub mod large;
pub mod ramp;
pub mod watches;

use anyhow::Result;

use super::Context;
use crate::tree::Tree;

/// The names of all these workloads.
pub const NAMES: &[&str] = &[
    ramp::WORKLOAD.name,
    large::LARGE.name,
    large::CHILDREN.name,
    large::SUBTREE.name,
    watches::WORKLOAD.name,
    compaction::WORKLOAD.name,
    etcd_bench::WORKLOAD.name,
];

impl Context<'_> {
    /// Opens the tree in the directory of the run.
    fn open_tree(&self) -> Result<Tree> {
        self.driver.open_tree(self.directory, self.setting())
    }
}
