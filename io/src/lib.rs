//! The only code of Duramen that touches the operating system.
//!
//! All other crates see a store directory as a [`Storage`] with [`File`]s and [`Mapping`]s, a [`Clock`] and a source of
//! [`Random`] numbers. There are two implementations: `real` (Linux) and `sim` (a disk in memory that can lose power,
//! fill up and fail any call, for tests).

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("Duramen runs on 64-bit little-endian Linux (x86-64 and aarch64); this target is not supported yet");

mod fork;
mod machine;
mod memory;
mod name;
mod wait;

mod mapping;

mod interface;

mod failure;
mod file_system;
mod real;
mod shared_file;
mod sim;
mod stores;

pub use failure::is_size_limit;
pub use file_system::{copies_on_write, writes_in_place};
pub use fork::forks;
pub use interface::*;
pub use machine::{
    Hindrance, hindrance_of, is_network_filesystem, kill_this_process, match_bytes, memory_limit_bytes, prefetch,
    process_id, process_is_alive, process_name, stop_this_process,
};
pub use mapping::Mapping;
pub use real::{
    create_directory, exists, is_directory, is_occupied, is_within, memory_file, real_platform, real_platform_read_only,
};
pub use shared_file::{create_shared_file, open_shared_file, remove_if_unused, remove_shared_file};
pub use sim::{FailKind, FailSpan, SimDisk};
pub use wait::{LOOK_INTERVAL, Owner, WordLock, WordLockGuard, wait, wake};
