//! The interface that the lab requires of a store. Each store has one adapter in `peers/`, and only the adapter knows
//! the store's interface.
//!
//! The interface is as narrow as the workloads need, and equal for every peer: bytes in, bytes out. The reader's
//! callback sees borrowed bytes, so no peer has to copy. Every call goes through one virtual call; the `null` peer
//! shows the cost of that and of the verification. A peer returns [`Unsupported`] for what it cannot do, which is shown
//! as `n/a`.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::answer::{Found, Unsupported};
use crate::broker::Broker;
use crate::data::{KeySlice, Keys};
use crate::load::Load;
use crate::measure::{Latencies, Timeline};
use crate::tree::Tree;

/// What an acknowledged write survives. Results of different classes are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Power loss: a sync ends before the write is acknowledged.
    Synced,
    /// The death of the process, by `kill -9` too: the bytes are in the kernel's pages of a file.
    Written,
    /// Nothing is promised.
    None,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Synced => "synced",
            Class::Written => "written",
            Class::None => "none",
        })
    }
}

/// The facts about a peer that readers of results need, and those that the lab needs to run it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Description {
    /// The name on the command line.
    pub name: String,
    /// Version of the store and of the library that reaches it.
    pub version: String,
    /// The classes the peer can run in, each with an explanation.
    pub classes: Vec<(Class, String)>,
    /// Every option that is not the default, with the reason.
    pub options: Vec<String>,
    /// Whether the peer's data survives a close and open.
    pub is_persistent: bool,
    /// Whether several processes may have one store open and write to it.
    #[serde(default)]
    pub is_shared_by_processes: bool,
    /// Whether the peer stores nothing, so that none of its answers is checked.
    #[serde(default)]
    pub is_exempt: bool,
    /// Whether the peer runs in a program of another language, which runs whole phases by itself.
    #[serde(default)]
    pub is_outside: bool,
    /// Whether the peer opens as a broker.
    #[serde(default)]
    pub is_broker: bool,
    /// Whether the peer opens as a tree.
    #[serde(default)]
    pub is_tree: bool,
    /// Whether the peer opens only as a broker or as a tree.
    #[serde(default)]
    pub is_no_store: bool,
    /// The reason why several operations cannot share a commit, if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub single: Option<String>,
    /// The reason why the peer cannot run here, if it cannot. Only its name is known then.
    #[serde(default)]
    pub unavailable: Option<String>,
}

impl Description {
    /// Returns the options that are not the default, on one line.
    pub fn options_text(&self) -> String {
        match self.options.as_slice() {
            [] if self.unavailable.is_some() => "not known here".to_string(),
            [] => "defaults".to_string(),
            options => options.join("; "),
        }
    }

    /// Whether the peer can run in `class`.
    pub fn has(&self, class: Class) -> bool {
        self.classes.iter().any(|(own, _)| *own == class)
    }
}

/// Cache size of the stores that have a cache of their own, unless the workload sets another size. Stores that read
/// through a mapping use the kernel's page cache, which this does not bound.
pub const CACHE_BYTES: u64 = 1 << 30;

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// One of the classes that the driver describes.
    pub class: Class,
    /// Size of the store's own cache, if it has one.
    pub cache_bytes: u64,
    /// Whether the kernel reads ahead, which is its default. Applies to a store that reads through a mapping and offers
    /// the choice.
    pub has_read_ahead: bool,
}

/// A peer that can be opened.
pub trait Driver: Sync {
    /// Describes the peer.
    fn describe(&self) -> Description;
    /// Returns the name. The rest of the description of a driver in another language requires building and starting it.
    fn name(&self) -> String {
        self.describe().name
    }
    /// Returns the process that does the work, if it is not this one.
    fn process(&self) -> Option<u32> {
        None
    }
    /// Opens the store in `directory`, which exists. Creates the store when it is missing.
    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>>;
    /// Opens the peer as a broker.
    fn open_broker(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Broker>> {
        bail!(Unsupported("is no broker"))
    }
    /// Opens the peer as a tree.
    fn open_tree(&self, _directory: &Path, _setting: Setting) -> Result<Tree> {
        bail!(Unsupported("is no tree"))
    }
}

/// A snapshot of a store.
pub trait Reader {
    /// Reads one key.
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()>;
    /// Reads at most `limit` pairs in key order, from the first key that is not below `from`.
    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()>;
    /// Reads at most `limit` pairs in falling key order, from the last one on.
    fn scan_back(&self, _limit: u64, _pair: &mut Pair) -> Result<()> {
        bail!(Unsupported("does not scan backwards"))
    }
}

/// The end of the key range from which pairs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Always the first pair.
    First,
    /// Always the last pair.
    Last,
    /// The first and the last pair in turn.
    ByTurns,
}

/// The work of a program in another language.
pub struct Ran {
    /// Elapsed time, by the program's own clock.
    pub nanos: u64,
    /// Operations and processor time of each of the program's threads.
    pub workers: Vec<(u64, u64)>,
    /// The times of all operations, or of all commits when a commit has several operations.
    pub latencies: Latencies,
    /// Number of operations over time.
    pub timeline: Timeline,
}

/// A store in a program of another language. One call for each operation would measure the pipe between the lab and the
/// program, so the program gets whole loads. It checks what it reads, and reports wrong values.
pub trait Outside {
    /// Runs a load until it is done or `nanos` have passed.
    fn run(&self, load: &Load, nanos: u64) -> Result<Ran>;
    /// Reads every key after the clock, and passes what was found to the lab, which checks it itself.
    fn fetch(&self, keys: KeySlice, found: &mut Fetched) -> Result<()>;
}

/// Number of pairs that one scan reads when it has no upper end.
const DELETED_AT_ONCE: u64 = 1_000;

/// Receives a key and what a driver of another language found for it.
pub type Fetched<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<()> + 'a;
/// Receives one pair of a scan.
pub type Pair<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;
/// The pairs of one commit.
pub type Pairs<'a> = dyn Iterator<Item = (&'a [u8], &'a [u8])> + 'a;
/// Decides about one pair of a scan.
pub type Choice<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool> + 'a;
/// The reads of one snapshot.
pub type Reading<'a> = dyn FnMut(&dyn Reader) -> Result<()> + 'a;

/// An open store. Many threads may make any call at once.
pub trait Peer: Send + Sync {
    /// Stores one pair in its own commit. The class defines what the acknowledgement means.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Stores pairs in one commit.
    fn put_many(&self, pairs: &mut Pairs) -> Result<()>;
    /// Deletes one key in its own commit.
    fn delete(&self, key: &[u8]) -> Result<()>;
    /// Deletes keys in one commit.
    fn delete_many(&self, keys: KeySlice) -> Result<()>;
    /// Reads in one snapshot.
    fn read(&self, reading: &mut Reading) -> Result<()>;
    /// Stores one pair in its own commit without a sync, whatever the class is.
    fn put_unsynced(&self, _key: &[u8], _value: &[u8]) -> Result<()> {
        bail!(Unsupported("cannot leave out the sync of one commit"))
    }
    /// Stores pairs, which arrive in key order, in one commit.
    fn put_sorted(&self, pairs: &mut Pairs) -> Result<()> {
        self.put_many(pairs)
    }
    /// Returns the exact number of pairs, in the cheapest way that the store offers.
    fn len(&self) -> Result<u64> {
        let mut pairs = 0;
        self.read(&mut |reader| {
            reader.scan(&[], u64::MAX, &mut |_, _| {
                pairs += 1;
                Ok(())
            })
        })?;
        Ok(pairs)
    }
    /// Deletes the keys from `from` to before `to` in one commit. The default implementation reads the keys and deletes
    /// them one by one.
    fn delete_range(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut doomed = Keys::with_width(from.len());
        self.read(&mut |reader| {
            let mut is_beyond = false;
            // A scan has no upper end, so the keys are read in parts.
            let mut start = from.to_vec();
            while !is_beyond {
                let before = doomed.len();
                reader.scan(&start, DELETED_AT_ONCE, &mut |key, _| {
                    is_beyond |= key >= to;
                    if !is_beyond {
                        doomed.push(key);
                    }
                    Ok(())
                })?;
                is_beyond |= doomed.len() == before;
                start = [doomed.all().last().unwrap_or(from), &[0]].concat();
            }
            Ok(())
        })?;
        self.delete_many(doomed.all())
    }
    /// Takes `count` pairs from an end in one commit, and passes them on in that order. The store must have at least
    /// `count` pairs. The default implementation reads them from the ends of a snapshot, and deletes them in a batch.
    fn pop_many(&self, end: End, count: u64, popped: &mut Pair) -> Result<()> {
        let from_front = match end {
            End::First => count,
            End::Last => 0,
            End::ByTurns => count.div_ceil(2),
        };
        let (mut front, mut back) = (Vec::new(), Vec::new());
        self.read(&mut |reader| {
            reader.scan(&[], from_front, &mut |key, value| {
                front.push((key.to_vec(), value.to_vec()));
                Ok(())
            })?;
            if from_front == count {
                return Ok(());
            }
            reader.scan_back(count - from_front, &mut |key, value| {
                back.push((key.to_vec(), value.to_vec()));
                Ok(())
            })
        })?;
        let found = (front.len() + back.len()) as u64;
        ensure!(found == count, "{found} pairs were there where {count} are to be taken");
        let width = front.first().or(back.first()).map_or(1, |(key, _)| key.len());
        let mut doomed = Keys::with_width(width);
        let mut back = back.into_iter();
        for (key, value) in front {
            popped(&key, &value)?;
            doomed.push(&key);
            if let Some((key, value)) = back.next() {
                popped(&key, &value)?;
                doomed.push(&key);
            }
        }
        for (key, value) in back {
            popped(&key, &value)?;
            doomed.push(&key);
        }
        self.delete_many(doomed.all())
    }
    /// Removes the pairs that `keep` rejects, in one commit.
    fn retain(&self, keep: &mut Choice) -> Result<()> {
        let mut doomed: Option<Keys> = None;
        self.read(&mut |reader| {
            reader.scan(&[], u64::MAX, &mut |key, value| {
                if !keep(key, value)? {
                    doomed.get_or_insert_with(|| Keys::with_width(key.len())).push(key);
                }
                Ok(())
            })
        })?;
        doomed.map_or(Ok(()), |doomed| self.delete_many(doomed.all()))
    }
    /// Takes the pairs before `to` that `choose` selects, in one commit, and passes them on.
    fn extract(&self, to: &[u8], choose: &mut Choice, taken: &mut Pair) -> Result<()> {
        let mut doomed: Option<Keys> = None;
        let mut start = Vec::new();
        let mut is_beyond = false;
        self.read(&mut |reader| {
            while !is_beyond {
                let mut seen = 0;
                let from = std::mem::take(&mut start);
                reader.scan(&from, DELETED_AT_ONCE, &mut |key, value| {
                    is_beyond |= key >= to;
                    if is_beyond {
                        return Ok(());
                    }
                    seen += 1;
                    if choose(key, value)? {
                        taken(key, value)?;
                        doomed.get_or_insert_with(|| Keys::with_width(key.len())).push(key);
                    }
                    start.clear();
                    start.extend_from_slice(key);
                    start.push(0);
                    Ok(())
                })?;
                is_beyond |= seen == 0;
            }
            Ok(())
        })?;
        doomed.map_or(Ok(()), |doomed| self.delete_many(doomed.all()))
    }
    /// Reads one key on its own, in the cheapest way that the store offers.
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        self.read(&mut |reader| reader.get(key, found))
    }
    /// Returns when everything acknowledged so far survives power loss.
    fn sync(&self) -> Result<()>;
    /// Makes the files as small as the store can.
    fn compact(&self) -> Result<()> {
        bail!(Unsupported("cannot be compacted"))
    }
    /// Keeps the present state in `directory`, which does not exist yet, as a store that can be opened there.
    fn checkpoint(&self, _directory: &Path) -> Result<()> {
        bail!(Unsupported("has no checkpoints"))
    }
    /// Adds a copy of the present state to those in `place`, durably: all of it, or what changed since the newest copy there. Returns
    /// the bytes that it takes.
    fn back_up(&self, _place: &Path) -> Result<u64> {
        bail!(Unsupported("makes no copies while it is open"))
    }
    /// Drops what the store itself keeps so that later copies have only what changed.
    fn forget_copies(&self) -> Result<()> {
        Ok(())
    }
    /// Makes a store in `directory`, which does not exist yet, of the newest copy in `place`, durably.
    fn bring_back(&self, _place: &Path, _directory: &Path) -> Result<()> {
        bail!(Unsupported("makes no copies while it is open"))
    }
    /// Keeps the present state in the store itself, under a name.
    fn keep(&self, _name: &str) -> Result<()> {
        bail!(Unsupported("keeps no states in the store"))
    }
    /// Makes a state that is kept the present, durably, and closes the store.
    fn go_back(self: Box<Self>, _name: &str) -> Result<()> {
        bail!(Unsupported("keeps no states in the store"))
    }
    /// Drops a state that is kept.
    fn drop_kept(&self, _name: &str) -> Result<()> {
        bail!(Unsupported("keeps no states in the store"))
    }
    /// Returns the interface for whole loads, when the store is in another process.
    fn outside(&self) -> Option<&dyn Outside> {
        None
    }
    /// Closes the store cleanly and releases its files.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Returns the decision about a pair, for a store whose callbacks cannot fail. `chosen` keeps the first error.
pub fn decide(chosen: &mut Result<()>, decision: Result<bool>) -> bool {
    decision.unwrap_or_else(|error| {
        if chosen.is_ok() {
            *chosen = Err(error);
        }
        false
    })
}
