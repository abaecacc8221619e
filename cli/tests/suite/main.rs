//! The tests of this crate that share one process, and so one program that is linked once. A test that needs a process of its
//! own, because it kills, counts or starts itself, has a file beside this directory.

#[path = "../common/mod.rs"]
mod common;

mod cert;
mod commands;
mod dump_load;
mod etcd_import;
mod follow;
mod help_examples;
mod reference;
mod remote;
mod serve;
mod serve_log;
mod token;
mod topics;
mod tour;
mod tree;
