//! The lab's end of a peer in a program of another language. The program describes itself. To the workloads it looks
//! like every other peer, but it takes whole loads (`Outside`).
//!
//! One process serves one cell: it starts when the cell opens its first store. Stores that a cell opens one after
//! another share the process, so that a program compiled at run time is not measured cold in each row. The program's
//! own warm-up (`warm_up`) runs on another store.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::protocol::{Count, Hello, Request, RunAnswer, RunRequest, Wrong, next_found, unhex};
use super::session::{PATIENCE, Session};
use crate::answer::{Found, Unsupported};
use crate::data::{Generator, KeySlice, Keys, Length, Values, wrong_read};
use crate::load::{Load, MemoryFile, Operation};
use crate::measure::{Latencies, Timeline};
use crate::peer::{
    CACHE_BYTES, Class, Description, Driver, Fetched, Outside, Pair, Pairs, Peer, Ran, Reader, Reading, Setting,
};
use crate::scratch::Scratch;

/// Maximum number of keys read, or pairs listed, by one request outside measured phases. It bounds the exchanged files.
/// It is small in tests of the lab, so that they need several requests.
const AT_ONCE: usize = if cfg!(debug_assertions) { 500 } else { 500_000 };

/// Maximum number of operations of each kind with which a program warms up. A debug build of the lab measures nothing
/// that counts.
const WARM_UP_MAX: u64 = if cfg!(debug_assertions) { 1_000 } else { 1_000_000 };
/// Maximum time that a program warms up with single operations of one kind.
const WARM_UP_NANOS_EACH: u64 = 1_000_000_000;

/// A number of operations larger than any load: all of them are in one commit.
const COMMIT_MAX: usize = i32::MAX as usize;

/// Starts a program, or says why it cannot.
pub type Start = Box<dyn Fn() -> Result<Command> + Send + Sync>;

/// A driver of another language.
pub struct Foreign {
    name: String,
    start: Start,
    description: OnceLock<Description>,
    shared: Arc<Shared>,
}

/// What a driver and its open stores share.
#[derive(Default)]
struct Shared {
    /// Processes without an open store.
    idle: Mutex<Vec<Session>>,
    /// PID of the process used last, or 0.
    process: AtomicU32,
}

impl Foreign {
    /// Creates a driver of this name. It builds and starts nothing yet.
    pub fn new(name: &str, start: Start) -> Foreign {
        Foreign {
            name: name.to_string(),
            start,
            description: OnceLock::new(),
            shared: Arc::default(),
        }
    }

    fn session(&self) -> Result<(Session, Hello)> {
        Session::start(&self.name, (self.start)()?, PATIENCE)
    }

    fn described(&self) -> Result<Description> {
        let (_, hello) = self.session()?;
        ensure!(
            hello.name == self.name,
            "the driver {} calls itself {}",
            self.name,
            hello.name
        );
        Ok(Description {
            name: hello.name,
            version: hello.version,
            classes: hello.classes,
            options: hello.options,
            is_persistent: hello.persistent,
            is_outside: true,
            single: hello.single,
            ..Description::default()
        })
    }

    /// Returns a process to open a store in: an idle process, or a new process that was examined and is warm.
    fn ready(&self, directory: &Path, setting: Setting) -> Result<Session> {
        let idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let (session, hello) = self.session()?;
        let beside = Scratch::new(directory.parent().unwrap_or(directory))?;
        // Waiting for the disk warms nothing up.
        let is_written = hello.classes.iter().any(|(class, _)| *class == Class::Written);
        let setting = Setting {
            class: if is_written { Class::Written } else { setting.class },
            cache_bytes: CACHE_BYTES >> 4,
            ..setting
        };
        let remote = self.open_in(session, beside.path(), setting)?;
        remote.examine()?;
        let count = hello.warm_up.min(WARM_UP_MAX) as usize;
        if count > 0 {
            remote.warm_up(count).context("warming up")?;
        }
        remote.closed()
    }

    fn open_in(&self, mut session: Session, directory: &Path, setting: Setting) -> Result<Remote> {
        self.shared.process.store(session.process(), Ordering::Relaxed);
        let _: Value = session.ask(
            &Request::Open {
                directory: directory.to_path_buf(),
                class: setting.class,
                cache_bytes: setting.cache_bytes,
            },
            Duration::ZERO,
        )?;
        Ok(Remote {
            session: Mutex::new(session),
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Driver for Foreign {
    fn describe(&self) -> Description {
        let describe = || {
            self.described().unwrap_or_else(|reason| Description {
                name: self.name.clone(),
                version: format!("n/a: {reason:#}"),
                is_outside: true,
                unavailable: Some(format!("{reason:#}")),
                ..Description::default()
            })
        };
        self.description.get_or_init(describe).clone()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn process(&self) -> Option<u32> {
        match self.shared.process.load(Ordering::Relaxed) {
            0 => None,
            process => Some(process),
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let session = self.ready(directory, setting)?;
        Ok(Box::new(self.open_in(session, directory, setting)?))
    }
}

/// A store that is open in the process of a driver.
struct Remote {
    session: Mutex<Session>,
    shared: Arc<Shared>,
}

impl Remote {
    fn ask<T: DeserializeOwned>(&self, request: &Request, time: Duration) -> Result<T> {
        self.session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ask(request, time)
    }

    fn done(&self, request: &Request) -> Result<()> {
        self.ask::<Value>(request, Duration::ZERO).map(drop)
    }

    /// Closes the store and returns its process.
    fn closed(self) -> Result<Session> {
        self.done(&Request::Close)?;
        Ok(self.session.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies one operation to all pairs, in one commit.
    fn together<'a>(&self, operation: Operation, pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<()> {
        self.done_whole(&Load::of(operation, pairs, 1, COMMIT_MAX)?)
    }

    /// Applies an operation to one pair, with the store's call for single pairs.
    fn alone(&self, operation: Operation, key: &[u8], value: &[u8]) -> Result<()> {
        self.done_whole(&Load::of(operation, std::iter::once((key, value)), 1, 1)?)
    }

    fn done_whole(&self, load: &Load) -> Result<()> {
        if load.len() == 0 {
            return Ok(());
        }
        self.run(load, u64::MAX).map(drop)
    }

    /// Asks for values that do not exist. A driver that does not notice them here would never notice a wrong value.
    fn examine(&self) -> Result<()> {
        let (key, other, value): (&[u8], &[u8], &[u8]) = (b"key 1", b"key 2", b"a value");
        self.alone(Operation::Put, key, value)?;
        self.alone(Operation::Get, key, value)?;
        self.alone(Operation::GetAbsent, other, value)?;
        match self.alone(Operation::Delete, key, value) {
            // The rows of deletes are skipped; the other rows run.
            Err(error) if error.is::<Unsupported>() => {}
            deleted => {
                deleted?;
                self.alone(Operation::GetAbsent, key, value)?;
                self.alone(Operation::Put, key, value)?;
            }
        }
        let wrong = [
            (Operation::Get, key, &b"another"[..], "a wrong value"),
            (Operation::Get, key, &b"a valu"[..], "a value of another length"),
            (Operation::Get, other, value, "a pair that is not there"),
            (Operation::GetAbsent, key, value, "a key that should not be there"),
        ];
        for (operation, key, value, what) in wrong {
            let load = Load::of(operation, [(key, value)].into_iter(), 1, 1)?;
            let noticed = self.answer(&load, u64::MAX)?.wrong;
            let noticed = noticed
                .with_context(|| format!("a driver did not notice {what}: it does not compare what it reads"))?;
            wrong_value(&load, &noticed)?;
        }
        Ok(())
    }

    fn answer(&self, load: &Load, nanos: u64) -> Result<RunAnswer> {
        let request = Request::Run(RunRequest::of(load, nanos));
        // A load without an end of its own gets the usual patience.
        let time = if nanos == u64::MAX { 0 } else { nanos };
        self.ask(&request, Duration::from_nanos(time))
    }

    /// Runs operations of every kind, as the workloads use them. Puts in batches come first, as the basis of the
    /// others.
    fn warm_up(&self, count: usize) -> Result<()> {
        let keys = Generator::new(0, "warm-up").keys(count, 16);
        let values = Values::new(0, Length::Fixed(100));
        let load = |operation, commit| {
            let pairs = keys.iter().map(|key| (key, values.of(key, 0)));
            Load::of(operation, pairs, 1, commit)
        };
        self.run(&load(Operation::Put, 100)?, u64::MAX)?;
        for operation in [Operation::Put, Operation::Get, Operation::Delete] {
            self.run(&load(operation, 1)?, WARM_UP_NANOS_EACH)?;
        }
        Ok(())
    }
}

/// Checks a driver's answer. Returns what it did, or the error that fails the run.
fn believed(load: &Load, nanos: u64, answer: RunAnswer) -> Result<Ran> {
    if let Some(wrong) = answer.wrong {
        return Err(wrong_value(load, &wrong)?);
    }
    ensure!(
        answer.workers.len() == load.workers,
        "a driver worked with {} threads and was asked for {}",
        answer.workers.len(),
        load.workers
    );
    let mut commits = 0;
    for (worker, (operations, _)) in answer.workers.iter().enumerate() {
        let share = load.share(worker);
        ensure!(
            *operations == share || (*operations < share && answer.nanos >= nanos),
            "a driver did {operations} of {share} operations and was not out of time"
        );
        commits += operations.div_ceil(load.commit as u64);
    }
    let timed: u64 = answer.latencies.iter().map(|(_, count)| count).sum();
    ensure!(
        timed == commits,
        "a driver did {commits} commits or reads, and timed {timed}"
    );
    Ok(Ran {
        nanos: answer.nanos,
        workers: answer.workers,
        latencies: Latencies::from_counts(&answer.latencies),
        timeline: Timeline::from_counts(&answer.timeline),
    })
}

/// Returns the error of a wrong value, as a peer in this process would report it.
fn wrong_value(load: &Load, wrong: &Wrong) -> Result<anyhow::Error> {
    let (operation, key, value) = load.at(wrong.operation)?;
    let found = wrong.found.as_deref().map(unhex).transpose()?;
    let expected = match operation {
        Operation::Get => Some(value.as_slice()),
        Operation::GetAbsent => None,
        Operation::Put | Operation::Delete => bail!(
            "a driver found a wrong value in operation {}, which reads nothing",
            wrong.operation
        ),
    };
    match wrong_read(&key, found.as_deref(), expected) {
        Err(error) => Ok(error),
        Ok(()) => bail!("a driver calls a value wrong that is right"),
    }
}

impl Outside for Remote {
    fn run(&self, load: &Load, nanos: u64) -> Result<Ran> {
        let answer = self.answer(load, nanos)?;
        believed(load, nanos, answer)
    }

    fn fetch(&self, keys: KeySlice, found: &mut Fetched) -> Result<()> {
        for part in keys.chunks(AT_ONCE) {
            let load = Load::of(Operation::Get, part.iter().map(|key| (key, &[][..])), 1, 1)?;
            let out = MemoryFile::new()?;
            let request = Request::Fetch {
                keys: load.pairs_path(),
                key_bytes: load.key_bytes,
                out: out.path(),
            };
            self.done(&request)?;
            let bytes = out.bytes()?;
            let mut rest = bytes.as_slice();
            part.iter().try_for_each(|key| found(key, next_found(&mut rest)?))?;
            ensure!(rest.is_empty(), "a driver found more than it was asked for");
        }
        Ok(())
    }
}

impl Reader for Remote {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        let keys = Keys::collect(key.len(), std::iter::once(key));
        self.fetch(keys.all(), &mut |_, value| found(value))
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        let (mut from, mut left) = (from.to_vec(), limit);
        while left > 0 {
            let asked = left.min(AT_ONCE as u64);
            let out = MemoryFile::new()?;
            let listed: Count = self.ask(
                &Request::List {
                    from: from.clone(),
                    limit: asked,
                    out: out.path(),
                },
                Duration::ZERO,
            )?;
            ensure!(listed.count <= asked, "a driver listed more than it was asked for");
            let bytes = out.bytes()?;
            let mut rest = bytes.as_slice();
            for _ in 0..listed.count {
                let key = next_found(&mut rest)?.context("a pair has a key")?;
                let value = next_found(&mut rest)?.context("a pair has a value")?;
                pair(key, value)?;
                from.clear();
                from.extend_from_slice(key);
            }
            // The first key after the last one listed.
            from.push(0);
            left = if listed.count < asked { 0 } else { left - asked };
        }
        Ok(())
    }
}

impl Peer for Remote {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.alone(Operation::Put, key, value)
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        self.together(Operation::Put, pairs)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.alone(Operation::Delete, key, &[])
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        self.together(Operation::Delete, keys.iter().map(|key| (key, &[][..])))
    }

    /// This is not one snapshot, but no writer runs while the lab inspects what a driver holds.
    fn read(&self, reading: &mut Reading) -> Result<()> {
        reading(self)
    }

    fn sync(&self) -> Result<()> {
        self.done(&Request::Sync)
    }

    fn compact(&self) -> Result<()> {
        self.done(&Request::Compact)
    }

    fn checkpoint(&self, directory: &Path) -> Result<()> {
        self.done(&Request::Checkpoint {
            directory: directory.to_path_buf(),
        })
    }

    fn outside(&self) -> Option<&dyn Outside> {
        Some(self)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let session = self.closed()?;
        shared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Result<Load> {
        let pairs = [(&b"a"[..], &b"1"[..]), (&b"b"[..], &b"2"[..])];
        Load::of(Operation::Get, pairs.into_iter(), 1, 1)
    }

    fn answer(operations: u64, nanos: u64, timed: u64) -> RunAnswer {
        serde_json::from_value(serde_json::json!({
            "nanos": nanos, "workers": [[operations, 5]], "latencies": [[100, timed]], "timeline": [operations],
        }))
        .expect("an answer")
    }

    #[test]
    fn driver_is_believed_only_when_its_numbers_agree() -> Result<()> {
        let load = load()?;
        let ran = believed(&load, 1000, answer(2, 500, 2))?;
        assert_eq!((ran.nanos, ran.workers.as_slice()), (500, &[(2, 5)][..]));
        let stopped = believed(&load, 1000, answer(1, 1000, 1))?;
        assert_eq!(stopped.workers, [(1, 5)]);
        let error = |answer| believed(&load, 1000, answer).err().expect("refused").to_string();
        assert!(error(answer(1, 500, 1)).contains("was not out of time"));
        assert!(error(answer(3, 500, 3)).contains("3 of 2"));
        assert!(error(answer(2, 500, 1)).contains("timed 1"));
        let crowd = RunAnswer {
            workers: vec![(1, 0), (1, 0)],
            ..answer(2, 500, 2)
        };
        assert!(error(crowd).contains("2 threads"));
        Ok(())
    }

    #[test]
    fn wrong_value_is_told_as_one_of_a_peer_in_this_process() -> Result<()> {
        let load = load()?;
        let error = |wrong| {
            let answer = RunAnswer {
                wrong: Some(wrong),
                ..answer(1, 1, 1)
            };
            believed(&load, 1000, answer).err().expect("wrong").to_string()
        };
        let lost = error(Wrong {
            operation: 0,
            found: None,
        });
        assert!(
            lost.contains("\"a\" was stored and acknowledged, but is not there"),
            "{lost}"
        );
        let stale = error(Wrong {
            operation: 1,
            found: Some("31".to_string()),
        });
        assert!(stale.contains("\"b\" holds 31, expected 32"), "{stale}");
        let invented = error(Wrong {
            operation: 1,
            found: Some("32".to_string()),
        });
        assert!(invented.contains("a value wrong that is right"), "{invented}");
        Ok(())
    }
}
