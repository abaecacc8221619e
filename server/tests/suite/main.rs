//! The tests of this crate that share one process, and so one program that is linked once. A test that needs a process of its
//! own, because it counts panics or threads or starts itself again, has a file beside this directory.

#[path = "../common/mod.rs"]
mod common;

mod checkpoints;
mod etcd;
mod etcd_store;
mod groups;
mod metrics;
mod packaging;
mod parts;
mod pipeline;
mod security;
mod services;
mod tls;
mod trees;
mod watch;
