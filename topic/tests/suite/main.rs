//! The tests of this crate that share one process, and so one program that is linked once. A test that needs a process of its
//! own, because it kills, counts or starts itself, has a file beside this directory.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod delayed;
mod dispatch;
mod durable_patterns;
mod extremes;
mod group_options;
mod group_tasks;
mod groups;
mod ids;
mod model;
mod pattern_groups;
mod redrive;
mod sparse;
mod subscriptions;
mod topics;
