//! Metrics of the process, from `/proc/self`.

use std::fs;

use super::families::{OPEN_FILES, RESIDENT};
use super::text::Text;

pub(super) fn write(text: &mut Text) {
    // Where /proc is not mounted, the series are missing.
    let mut resident = text.family(RESIDENT);
    if let Some(bytes) = resident_bytes() {
        resident.sample(&[], bytes);
    }
    let mut open_files = text.family(OPEN_FILES);
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One of them is that of the directory.
        open_files.sample(&[], files.count() - 1);
    }
}

fn resident_bytes() -> Option<usize> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let resident: usize = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(resident * rustix::param::page_size())
}
