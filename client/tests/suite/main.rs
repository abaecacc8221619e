//! The tests of this crate share one process, and so one program that is linked once.

mod calls;
mod common;
mod failures;
mod groups;
mod tls;
mod token;
mod trees;
mod watch;
