//! Operations written to files, for programs of other languages that run them in their own process.
//!
//! The lab makes keys, values and order from the seed, so a driver does not need to port its generators. There are two
//! files. One has the pairs, side by side in one width. The other has the operations, one word each: a word names a
//! pair by its number and says what to do with it. `docs/lab/drivers.md` draws both. A read expects the value of its
//! pair.
//!
//! The files are in memory (`memfd`). Writing them leaves no dirty pages for the disk that is measured right
//! afterwards, and nothing stays behind when a process is killed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};

/// Number of pairs that one load can name: two bits of a word hold the operation.
const PAIRS_MAX: usize = 1 << 30;
/// Maximum size of a file that every language can map at once.
const FILE_BYTES_MAX: usize = i32::MAX as usize;

/// What to do with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// Stores the pair.
    Put = 0,
    /// Reads the key, and must find the value.
    Get = 1,
    /// Deletes the key.
    Delete = 2,
    /// Reads the key, and must find nothing.
    GetAbsent = 3,
}

impl Operation {
    /// Encodes this operation on the pair at `place` as a word.
    pub fn with(self, place: u32) -> u32 {
        assert!((place as usize) < PAIRS_MAX, "a place fits beside the operation");
        (self as u32) << 30 | place
    }

    /// Decodes a word.
    pub fn of(word: u32) -> (Operation, usize) {
        let operation = match word >> 30 {
            0 => Operation::Put,
            1 => Operation::Get,
            2 => Operation::Delete,
            _ => Operation::GetAbsent,
        };
        (operation, (word & (PAIRS_MAX as u32 - 1)) as usize)
    }
}

/// A file in memory, which other processes of the same user open through `/proc`.
pub struct MemoryFile(File);

impl MemoryFile {
    /// Creates an empty file.
    pub fn new() -> Result<MemoryFile> {
        // SAFETY: the name is a string with its zero; the call touches nothing else of ours.
        let descriptor = unsafe { libc::memfd_create(c"lab".as_ptr(), libc::MFD_CLOEXEC) };
        ensure!(
            descriptor >= 0,
            "making a file in memory: {}",
            std::io::Error::last_os_error()
        );
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(MemoryFile(unsafe { File::from_raw_fd(descriptor) }))
    }

    /// Returns the path for other processes. It is valid while this process holds the file.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Returns the content of the file.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.0.metadata()?.len() as usize];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// A load in the process of being written.
pub struct LoadWriter {
    pairs: BufWriter<File>,
    operations: BufWriter<File>,
    load: Load,
}

/// A finished load.
pub struct Load {
    pairs: MemoryFile,
    operations: MemoryFile,
    /// Bytes of every key.
    pub key_bytes: usize,
    /// Bytes of every value; 0 when no operation has one.
    pub value_bytes: usize,
    pair_count: usize,
    operation_count: usize,
    /// Number of threads that run the load, each a contiguous share of the operations.
    pub workers: usize,
    /// Number of operations in one commit; reads stand alone.
    pub commit: usize,
}

impl LoadWriter {
    /// Creates an empty load.
    pub fn new(key_bytes: usize, value_bytes: usize) -> Result<LoadWriter> {
        assert!(key_bytes > 0, "a key has bytes");
        let load = Load {
            pairs: MemoryFile::new()?,
            operations: MemoryFile::new()?,
            key_bytes,
            value_bytes,
            pair_count: 0,
            operation_count: 0,
            workers: 1,
            commit: 1,
        };
        let writer = |file: &MemoryFile| file.0.try_clone().map(BufWriter::new);
        Ok(LoadWriter {
            pairs: writer(&load.pairs)?,
            operations: writer(&load.operations)?,
            load,
        })
    }

    /// Appends a pair, and returns its position.
    pub fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<u32> {
        let load = &mut self.load;
        ensure!(
            key.len() == load.key_bytes && value.len() == load.value_bytes,
            "pairs of one load are of one width"
        );
        let place = load.pair_count;
        load.pair_count += 1;
        ensure!(
            place < PAIRS_MAX && load.pair_count * (load.key_bytes + load.value_bytes) <= FILE_BYTES_MAX,
            "a load of more than {PAIRS_MAX} pairs or {FILE_BYTES_MAX} bytes cannot be handed to a driver: choose a \
             smaller --scale"
        );
        self.pairs.write_all(key)?;
        self.pairs.write_all(value)?;
        Ok(place as u32)
    }

    /// Appends an operation on an existing pair.
    pub fn operation(&mut self, operation: Operation, place: u32) -> Result<()> {
        assert!((place as usize) < self.load.pair_count, "the pair is there");
        self.load.operation_count += 1;
        Ok(self.operations.write_all(&operation.with(place).to_le_bytes())?)
    }

    /// Finishes the load, for this number of threads and of operations in one commit.
    pub fn finish(mut self, workers: usize, commit: usize) -> Result<Load> {
        assert!(workers > 0 && commit > 0, "a load has workers and commits");
        self.pairs.flush()?;
        self.operations.flush()?;
        Ok(Load {
            workers,
            commit,
            ..self.load
        })
    }
}

impl Load {
    /// Creates a load with one operation on each of these pairs, in their order. All pairs have the width of the first.
    pub fn of<'a>(
        operation: Operation,
        pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        workers: usize,
        commit: usize,
    ) -> Result<Load> {
        let mut pairs = pairs.peekable();
        let (key_bytes, value_bytes) = pairs.peek().map_or((1, 0), |(key, value)| (key.len(), value.len()));
        let mut writer = LoadWriter::new(key_bytes, value_bytes)?;
        for (key, value) in pairs {
            let place = writer.pair(key, value)?;
            writer.operation(operation, place)?;
        }
        writer.finish(workers, commit)
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operation_count
    }

    /// Returns the path of the pairs.
    pub fn pairs_path(&self) -> String {
        self.pairs.path()
    }

    /// Returns the path of the operations.
    pub fn operations_path(&self) -> String {
        self.operations.path()
    }

    /// Returns the number of operations of a worker. Divides as [`crate::data::KeySlice::share`] does.
    pub fn share(&self, worker: usize) -> u64 {
        let each = self.operation_count.div_ceil(self.workers);
        let from = (worker * each).min(self.operation_count);
        (each.min(self.operation_count - from)) as u64
    }

    /// Returns the operation at a position of the list, with the key and the value of its pair.
    pub fn at(&self, number: usize) -> Result<(Operation, Vec<u8>, Vec<u8>)> {
        ensure!(number < self.operation_count, "there is no operation {number}");
        let mut word = [0; 4];
        self.operations.0.read_exact_at(&mut word, number as u64 * 4)?;
        let (operation, place) = Operation::of(u32::from_le_bytes(word));
        let width = self.key_bytes + self.value_bytes;
        let mut key = vec![0; width];
        self.pairs.0.read_exact_at(&mut key, (place * width) as u64)?;
        let value = key.split_off(self.key_bytes);
        Ok((operation, key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Generator;

    #[test]
    fn operations_name_their_pairs_and_come_back_as_they_were_written() -> Result<()> {
        let mut writer = LoadWriter::new(3, 2)?;
        let first = writer.pair(b"one", b"11")?;
        let second = writer.pair(b"two", b"22")?;
        writer.operation(Operation::Put, second)?;
        writer.operation(Operation::GetAbsent, first)?;
        let load = writer.finish(1, 1)?;
        assert_eq!(load.at(0)?, (Operation::Put, b"two".to_vec(), b"22".to_vec()));
        assert_eq!(load.at(1)?, (Operation::GetAbsent, b"one".to_vec(), b"11".to_vec()));
        assert!(load.at(2).is_err());
        assert_eq!(std::fs::read(load.pairs_path())?, b"one11two22");
        assert_eq!(std::fs::read(load.operations_path())?, [1, 0, 0, 0, 0, 0, 0, 0xc0]);
        Ok(())
    }

    #[test]
    fn pairs_of_another_width_are_refused() -> Result<()> {
        let mut writer = LoadWriter::new(3, 2)?;
        assert!(writer.pair(b"four", b"44").is_err());
        Ok(())
    }

    #[test]
    fn workers_of_a_driver_have_the_same_shares_as_those_of_the_lab() -> Result<()> {
        for (count, workers) in [(10, 3), (16, 16), (5, 16), (100, 1)] {
            let keys = Generator::new(1, "shares").keys(count, 8);
            let pairs = keys.iter().map(|key| (key, &[][..]));
            let load = Load::of(Operation::Delete, pairs, workers, 1)?;
            for worker in 0..workers {
                let share = keys.all().share(worker, workers).len();
                assert_eq!(load.share(worker), share as u64, "{count} over {workers}");
            }
        }
        Ok(())
    }
}
