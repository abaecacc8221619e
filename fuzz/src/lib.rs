//! The fuzz targets: functions of bytes that panic when the engine does something it must not do.
//!
//! Bytes come from libFuzzer (`fuzz_targets/`) or from `engine/tests/fuzz_smoke.rs`, which includes this file, so that
//! the everyday tests run the same targets. `samples` gives inputs worth mutating.
//!
//! A target never refuses an input: whatever the bytes are, they mean something.

mod encoding;
mod files;
mod operations;

pub use encoding::encoding;
pub use files::{head, log_in_store};
pub use operations::operations;

use duramen_engine::fuzzing;

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 6] = [
    ("operations", operations),
    ("page", page),
    ("log", log),
    ("log_in_store", log_in_store),
    ("head", head),
    ("encoding", encoding),
];

/// Bytes as a leaf, and behind it a branch.
pub fn page(data: &[u8]) {
    fuzzing::page(data);
}

/// Bytes as a log file: as they are, and with checksums that say all is well.
pub fn log(data: &[u8]) {
    fuzzing::log(data);
    let mut repaired = data.to_vec();
    fuzzing::repair_log(&mut repaired);
    fuzzing::log(&repaired);
}

/// Sound inputs of a target, for mutating.
pub fn samples(target: &str) -> Vec<Vec<u8>> {
    match target {
        "page" => files::sample_pages(),
        "log" => files::sample_logs(),
        "encoding" => encoding::samples(),
        _ => Vec::new(),
    }
}

/// Takes numbers off the front of the input; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// A number of three bytes.
    fn number(&mut self) -> usize {
        (0..3).fold(0, |number, _| number << 8 | self.byte() as usize)
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        front
    }
}
