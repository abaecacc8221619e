//! Sorts revisions with their keys outside of memory: a tree is in the order of its paths, and a snapshot file in that of
//! revisions.
//!
//! Some mebibytes of them at a time are sorted and written to an unnamed file. Reading merges these runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of keys and revisions that are sorted at a time.
const RUN_BYTES: usize = 8 << 20;
/// What a revision in memory takes beside its key.
const ENTRY_BYTES: usize = 48;
const BUFFER_BYTES: usize = 16 << 10;

/// Revisions and keys that are being collected.
pub(super) struct Sorter {
    run_bytes: usize,
    entries: Vec<(u64, Vec<u8>)>,
    bytes: usize,
    file: BufWriter<File>,
    written: u64,
    /// The ends of the runs.
    runs: Vec<u64>,
}

/// Revisions and keys in order.
pub(super) struct Sorted {
    runs: Vec<BufReader<Part>>,
    /// The next entry of each run.
    heads: BinaryHeap<Reverse<(u64, Vec<u8>, usize)>>,
}

/// A part of a file.
struct Part {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Sorter {
    /// Sorts with an unnamed file in a directory.
    pub(super) fn new(directory: &Path) -> io::Result<Sorter> {
        Sorter::with_runs(directory, RUN_BYTES)
    }

    fn with_runs(directory: &Path, run_bytes: usize) -> io::Result<Sorter> {
        Ok(Sorter {
            run_bytes,
            entries: Vec::new(),
            bytes: 0,
            file: BufWriter::new(tempfile::tempfile_in(directory)?),
            written: 0,
            runs: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, revision: u64, key: Vec<u8>) -> io::Result<()> {
        self.bytes += key.len() + ENTRY_BYTES;
        self.entries.push((revision, key));
        match self.bytes >= self.run_bytes {
            true => self.end_run(),
            false => Ok(()),
        }
    }

    fn end_run(&mut self) -> io::Result<()> {
        self.entries.sort_unstable();
        for (revision, key) in self.entries.drain(..) {
            let length = u32::try_from(key.len()).map_err(io::Error::other)?;
            self.file.write_all(&revision.to_le_bytes())?;
            self.file.write_all(&length.to_le_bytes())?;
            self.file.write_all(&key)?;
            self.written += 12 + u64::from(length);
        }
        self.bytes = 0;
        self.runs.push(self.written);
        Ok(())
    }

    /// Ends the collection, and returns what was collected in order.
    pub(super) fn sorted(mut self) -> io::Result<Sorted> {
        self.end_run()?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let file = Arc::new(file);
        let (mut runs, mut at) = (Vec::new(), 0);
        for end in self.runs {
            let part = Part {
                file: file.clone(),
                at,
                end,
            };
            runs.push(BufReader::with_capacity(BUFFER_BYTES, part));
            at = end;
        }
        let mut sorted = Sorted {
            runs,
            heads: BinaryHeap::new(),
        };
        for run in 0..sorted.runs.len() {
            sorted.fetch(run)?;
        }
        Ok(sorted)
    }
}

impl Sorted {
    /// The next revision with its key.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let Some(Reverse((revision, key, run))) = self.heads.pop() else {
            return Ok(None);
        };
        self.fetch(run)?;
        Ok(Some((revision, key)))
    }

    /// Reads the next entry of a run, if there is one.
    fn fetch(&mut self, run: usize) -> io::Result<()> {
        let reader = &mut self.runs[run];
        if reader.buffer().is_empty() && reader.get_ref().at == reader.get_ref().end {
            return Ok(());
        }
        let (mut revision, mut length) = ([0; 8], [0; 4]);
        reader.read_exact(&mut revision)?;
        reader.read_exact(&mut length)?;
        let mut key = vec![0; u32::from_le_bytes(length) as usize];
        reader.read_exact(&mut key)?;
        self.heads.push(Reverse((u64::from_le_bytes(revision), key, run)));
        Ok(())
    }
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let read = self.file.read_at(&mut buffer[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sorted_in_runs_is_in_order() {
        let directory = tempfile::tempdir().unwrap();
        for (count, run_bytes) in [(0, 1), (1, 1), (1_000, 1), (1_000, 2_000), (1_000, RUN_BYTES)] {
            let mut sorter = Sorter::with_runs(directory.path(), run_bytes).unwrap();
            let mut expected: Vec<(u64, Vec<u8>)> = (0..count)
                .map(|number: u64| (number * 7_919 % 100, number.to_string().into_bytes()))
                .collect();
            for (revision, key) in &expected {
                sorter.add(*revision, key.clone()).unwrap();
            }
            expected.sort();
            let mut sorted = sorter.sorted().unwrap();
            let found: Vec<_> = std::iter::from_fn(|| sorted.next().unwrap()).collect();
            assert_eq!(found, expected);
        }
    }
}
