//! The tests of this crate that share one process, and so one program that is linked once. A test that needs a process of its
//! own, because it kills, counts, forks or starts itself, has a file beside this directory.

#[path = "../common/mod.rs"]
mod common;

mod changes;
mod checkpoints;
mod closing;
mod compaction;
mod damage;
mod deleted;
mod every_byte;
mod faults;
mod forged;
mod format;
mod full_disk;
mod guarded;
mod limits;
mod model;
mod panics;
mod planted;
mod processes;
mod quota;
mod read_write;
mod recovery;
mod refused_writes;
mod region_elsewhere;
mod regressions;
mod restores;
mod schedules;
mod sequences;
mod sorted;
mod trace;
mod transactions;
mod versions;
mod waits;
mod walks;
mod warm;
