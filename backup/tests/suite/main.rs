//! The tests of this crate share one process, and so one program that is linked once.

mod backups;
mod common;
mod edges;
mod log;
mod s3;
