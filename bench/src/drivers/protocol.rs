//! The line protocol between the lab and a driver, as defined in `docs/lab/drivers.md`. A request is words separated by
//! tabs, an answer is one JSON object on a line, and bulk data goes through files. This file has both ends: the lab's,
//! and that of the lab's own driver (`serve.rs`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::load::Load;
use crate::measure::TimelineCounts;
use crate::peer::Class;

/// The version of the protocol. It grows when a request or an answer changes its meaning.
pub const VERSION: u32 = 1;

/// The length that means "nothing was found".
const ABSENT: u32 = u32::MAX;

/// A request of the lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Describe yourself.
    Hello,
    /// Open the store in a directory; create it when it is missing.
    Open {
        directory: PathBuf,
        class: Class,
        cache_bytes: u64,
    },
    /// Run a load.
    Run(RunRequest),
    /// Read these keys, and write what was found to a file.
    Fetch {
        keys: String,
        key_bytes: usize,
        out: String,
    },
    /// Write pairs in key order to a file, from a key on.
    List { from: Vec<u8>, limit: u64, out: String },
    /// Return when everything so far survives power loss.
    Sync,
    /// Make the files small.
    Compact,
    /// Keep the present state as a separate store.
    Checkpoint { directory: PathBuf },
    /// Close the store.
    Close,
}

/// A load, by the names of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRequest {
    /// The pairs.
    pub pairs: String,
    /// Bytes of every key.
    pub key_bytes: usize,
    /// Bytes of every value.
    pub value_bytes: usize,
    /// The operations.
    pub operations: String,
    /// Number of threads.
    pub workers: usize,
    /// Operations in one commit.
    pub commit: usize,
    /// Time after which the load stops.
    pub nanos: u64,
}

impl RunRequest {
    /// Creates the request for a load that may take `nanos`.
    pub fn of(load: &Load, nanos: u64) -> RunRequest {
        RunRequest {
            pairs: load.pairs_path(),
            key_bytes: load.key_bytes,
            value_bytes: load.value_bytes,
            operations: load.operations_path(),
            workers: load.workers,
            commit: load.commit,
            // Limits the number to the largest one of languages without unsigned integers.
            nanos: nanos.min(i64::MAX as u64),
        }
    }
}

impl Request {
    /// Returns the line, without its end.
    pub fn line(&self) -> Result<String> {
        let words: Vec<String> = match self {
            Request::Hello => vec!["hello".to_string()],
            Request::Open {
                directory,
                class,
                cache_bytes,
            } => vec![
                "open".to_string(),
                path_word(directory)?,
                class.to_string(),
                cache_bytes.to_string(),
            ],
            Request::Run(run) => vec![
                "run".to_string(),
                run.pairs.clone(),
                run.key_bytes.to_string(),
                run.value_bytes.to_string(),
                run.operations.clone(),
                run.workers.to_string(),
                run.commit.to_string(),
                run.nanos.to_string(),
            ],
            Request::Fetch { keys, key_bytes, out } => {
                vec!["fetch".to_string(), keys.clone(), key_bytes.to_string(), out.clone()]
            }
            Request::List { from, limit, out } => {
                // Limits the number to the largest one of languages without unsigned integers.
                let limit = (*limit).min(i64::MAX as u64);
                vec!["list".to_string(), hex(from), limit.to_string(), out.clone()]
            }
            Request::Sync => vec!["sync".to_string()],
            Request::Compact => vec!["compact".to_string()],
            Request::Checkpoint { directory } => vec!["checkpoint".to_string(), path_word(directory)?],
            Request::Close => vec!["close".to_string()],
        };
        Ok(words.join("\t"))
    }

    /// Parses a line.
    pub fn parse(line: &str) -> Result<Request> {
        let words: Vec<&str> = line.split('\t').collect();
        Ok(match words.as_slice() {
            ["hello"] => Request::Hello,
            ["open", directory, class, cache_bytes] => Request::Open {
                directory: PathBuf::from(directory),
                class: serde_json::from_value((*class).into())?,
                cache_bytes: cache_bytes.parse()?,
            },
            ["run", pairs, key_bytes, value_bytes, operations, workers, commit, nanos] => Request::Run(RunRequest {
                pairs: pairs.to_string(),
                key_bytes: key_bytes.parse()?,
                value_bytes: value_bytes.parse()?,
                operations: operations.to_string(),
                workers: workers.parse()?,
                commit: commit.parse()?,
                nanos: nanos.parse()?,
            }),
            ["fetch", keys, key_bytes, out] => Request::Fetch {
                keys: keys.to_string(),
                key_bytes: key_bytes.parse()?,
                out: out.to_string(),
            },
            ["list", from, limit, out] => Request::List {
                from: unhex(from)?,
                limit: limit.parse()?,
                out: out.to_string(),
            },
            ["sync"] => Request::Sync,
            ["compact"] => Request::Compact,
            ["checkpoint", directory] => Request::Checkpoint {
                directory: PathBuf::from(directory),
            },
            ["close"] => Request::Close,
            _ => bail!("not a request: {line:?}"),
        })
    }
}

/// Returns a path as it appears in a line. It is absolute, because a driver may run in any directory.
fn path_word(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path)?;
    let text = absolute.to_str().context("a driver gets only paths that are text")?;
    ensure!(
        !text.contains(['\t', '\n', '\r']),
        "{text:?} cannot stand in a line of the protocol"
    );
    Ok(text.to_string())
}

/// A driver's description of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol that the driver speaks.
    pub protocol: u32,
    /// Name of the driver.
    pub name: String,
    /// Versions of the store and of its runtime.
    pub version: String,
    /// The classes the driver can run in, each with an explanation.
    pub classes: Vec<(Class, String)>,
    /// Every option that is not the default, with the reason.
    pub options: Vec<String>,
    /// Whether the driver's data survives a close and open.
    pub persistent: bool,
    /// Operations of each kind that the driver wants to run on another store before any measurement. Programs compiled
    /// at run time are then measured in compiled form.
    #[serde(default)]
    pub warm_up: u64,
    /// The reason why several operations cannot share a commit, if they cannot.
    #[serde(default)]
    pub single: Option<String>,
}

/// A driver's answer after a load.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunAnswer {
    /// Elapsed time.
    pub nanos: u64,
    /// Operations and processor time of each thread.
    pub workers: Vec<(u64, u64)>,
    /// Times in nanoseconds, each with the number of operations that took that long.
    pub latencies: Vec<(u64, u64)>,
    /// Number of operations that ended in each step of 50 ms.
    pub timeline: TimelineCounts,
    /// The first wrong value, at which the driver stopped.
    #[serde(default)]
    pub wrong: Option<Wrong>,
}

/// A wrong value.
#[derive(Debug, Serialize, Deserialize)]
pub struct Wrong {
    /// Position of the operation in the list.
    pub operation: usize,
    /// The value found, in hexadecimal.
    pub found: Option<String>,
}

/// An answer that is a number of pairs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Count {
    /// The number.
    pub count: u64,
}

/// Formats bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses bytes in hexadecimal.
pub fn unhex(text: &str) -> Result<Vec<u8>> {
    ensure!(
        text.len().is_multiple_of(2) && text.is_ascii(),
        "{text:?} is not hexadecimal"
    );
    (0..text.len() / 2)
        .map(|at| {
            u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).with_context(|| format!("{text:?} is not hexadecimal"))
        })
        .collect()
}

/// Appends the length and the bytes of a found value. A missing value has a special length.
pub fn push_found(out: &mut Vec<u8>, found: Option<&[u8]>) {
    let length = found.map_or(ABSENT, |bytes| bytes.len() as u32);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(found.unwrap_or_default());
}

/// Reads the next length and bytes.
pub fn next_found<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>> {
    let (length, after) = rest
        .split_first_chunk::<4>()
        .context("a driver wrote less than it says it found")?;
    let length = u32::from_le_bytes(*length);
    if length == ABSENT {
        *rest = after;
        return Ok(None);
    }
    ensure!(
        after.len() >= length as usize,
        "a driver wrote less than it says it found"
    );
    let (found, after) = after.split_at(length as usize);
    *rest = after;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_read_as_it_was_written() -> Result<()> {
        let requests = [
            Request::Hello,
            Request::Open {
                directory: PathBuf::from("/a place/with spaces"),
                class: Class::Written,
                cache_bytes: 1 << 30,
            },
            Request::Run(RunRequest {
                pairs: "/pairs".to_string(),
                key_bytes: 4,
                value_bytes: 100,
                operations: "/operations".to_string(),
                workers: 16,
                commit: 1000,
                nanos: 5_000_000_000,
            }),
            Request::Fetch {
                keys: "/keys".to_string(),
                key_bytes: 4,
                out: "/out".to_string(),
            },
            Request::List {
                from: vec![0, 171],
                limit: 10,
                out: "/out".to_string(),
            },
            Request::Sync,
            Request::Compact,
            Request::Checkpoint {
                directory: PathBuf::from("/kept"),
            },
            Request::Close,
        ];
        for request in requests {
            let line = request.line()?;
            assert!(!line.contains('\n'), "{line:?}");
            assert_eq!(Request::parse(&line)?, request);
        }
        Ok(())
    }

    #[test]
    fn lines_that_are_no_request_and_paths_that_are_no_word_are_refused() {
        for line in [
            "",
            "hello world",
            "open\t/d\twritten",
            "list\tabc\t1\t/out",
            "fetch\t/k\tfour\t/o",
        ] {
            assert!(Request::parse(line).is_err(), "{line:?}");
        }
        let odd = Request::Checkpoint {
            directory: PathBuf::from("/a\tb"),
        };
        assert!(odd.line().is_err());
    }

    #[test]
    fn what_was_found_is_read_as_it_was_written_and_a_cut_is_noticed() -> Result<()> {
        let mut bytes = Vec::new();
        push_found(&mut bytes, Some(b"value"));
        push_found(&mut bytes, None);
        push_found(&mut bytes, Some(b""));
        let mut rest = bytes.as_slice();
        assert_eq!(next_found(&mut rest)?, Some(&b"value"[..]));
        assert_eq!(next_found(&mut rest)?, None);
        assert_eq!(next_found(&mut rest)?, Some(&b""[..]));
        assert!(next_found(&mut rest).is_err());
        assert!(next_found(&mut &bytes[..6]).is_err());
        Ok(())
    }
}
