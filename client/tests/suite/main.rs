//! The tests of this crate that share one process, and so one program that is linked once. A test that needs a process of its
//! own, because it kills, counts or starts itself, has a file beside this directory.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod failures;
mod groups;
mod tls;
mod token;
mod trees;
mod watch;
