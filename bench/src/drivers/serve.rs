//! The lab's own driver: any peer of the lab behind the line protocol. It is the example for drivers of other languages
//! and shows the cost of the protocol. With a planted fault it tests the lab's end.

use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::protocol::{Count, Hello, Request, RunAnswer, RunRequest, VERSION, Wrong, hex, push_found};
use crate::answer::Unsupported;
use crate::crew::{Pace, Worked, crew};
use crate::data::Keys;
use crate::load::Operation;
use crate::measure::{Latencies, Timeline, nanos, now_nanos};
use crate::peer::{Driver, Pairs, Peer, Setting};

/// What a driver does wrong beyond what its peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// Ends in the middle of the second load.
    Dies,
    /// Prints something else than an answer to the second load.
    Rubbish,
    /// Does not look at what it reads.
    Blind,
    /// Does not look at what it reads when it has much to do.
    Careless,
    /// Leaves out every 100th put and says that it was done.
    Skips,
}

/// A driver that serves requests.
pub struct Server<'a> {
    driver: &'a dyn Driver,
    name: String,
    fault: Option<Fault>,
    open: Option<Box<dyn Peer>>,
    runs: usize,
}

impl<'a> Server<'a> {
    /// Creates a server for this peer under a name.
    pub fn new(driver: &'a dyn Driver, name: &str, fault: Option<Fault>) -> Server<'a> {
        Server {
            driver,
            name: name.to_string(),
            fault,
            open: None,
            runs: 0,
        }
    }

    /// Answers requests until the input ends.
    pub fn serve(&mut self, requests: impl BufRead, mut answers: impl Write) -> Result<()> {
        for line in requests.lines() {
            let answer = match self.answer(&line?) {
                Ok(answer) => answer,
                Err(error) => match error.downcast_ref::<Unsupported>() {
                    Some(reason) => json!({"unsupported": reason.0}),
                    None => json!({"error": format!("{error:#}")}),
                },
            };
            writeln!(answers, "{answer}")?;
            answers.flush()?;
        }
        Ok(())
    }

    fn answer(&mut self, line: &str) -> Result<Value> {
        match Request::parse(line)? {
            Request::Hello => return Ok(serde_json::to_value(self.hello())?),
            Request::Open {
                directory,
                class,
                cache_bytes,
            } => {
                ensure!(self.open.is_none(), "a store is open already");
                let setting = Setting {
                    class,
                    cache_bytes,
                    has_read_ahead: true,
                };
                self.open = Some(self.driver.open(&directory, setting)?);
            }
            Request::Run(request) => return Ok(serde_json::to_value(self.run(&request)?)?),
            Request::Fetch { keys, key_bytes, out } => self.fetch(&keys, key_bytes, &out)?,
            Request::List { from, limit, out } => return Ok(serde_json::to_value(self.list(&from, limit, &out)?)?),
            Request::Sync => self.peer()?.sync()?,
            Request::Compact => self.peer()?.compact()?,
            Request::Checkpoint { directory } => self.peer()?.checkpoint(&directory)?,
            Request::Close => self.open.take().context("no store is open")?.close()?,
        }
        Ok(json!({}))
    }

    fn hello(&self) -> Hello {
        let description = self.driver.describe();
        Hello {
            protocol: VERSION,
            name: self.name.clone(),
            version: description.version,
            classes: description.classes,
            options: description.options,
            persistent: description.is_persistent,
            warm_up: 0,
            single: description.single,
        }
    }

    fn peer(&self) -> Result<&dyn Peer> {
        self.open.as_deref().context("no store is open")
    }

    fn run(&mut self, request: &RunRequest) -> Result<RunAnswer> {
        let fault = self.fault;
        let peer = self.open.as_deref().context("no store is open")?;
        let work = Work::read(peer, request, fault)?;
        self.runs += usize::from(work.is_large());
        if work.is_large() && self.runs == 2 {
            match fault {
                Some(Fault::Dies) => std::process::exit(3),
                Some(Fault::Rubbish) => println!("one, two, three"),
                _ => {}
            }
        }
        work.run()
    }

    fn fetch(&self, keys: &str, key_bytes: usize, out: &str) -> Result<()> {
        let keys = keys_of(&fs::read(keys)?, key_bytes)?;
        let mut found = Vec::new();
        for key in keys.iter() {
            self.peer()?.get(key, &mut |value| {
                push_found(&mut found, value);
                Ok(())
            })?;
        }
        write_out(out, &found)
    }

    fn list(&self, from: &[u8], limit: u64, out: &str) -> Result<Count> {
        let (mut listed, mut count) = (Vec::new(), 0);
        self.peer()?.read(&mut |reader| {
            reader.scan(from, limit, &mut |key, value| {
                push_found(&mut listed, Some(key));
                push_found(&mut listed, Some(value));
                count += 1;
                Ok(())
            })
        })?;
        write_out(out, &listed)?;
        Ok(Count { count })
    }
}

/// Writes to an existing file, which belongs to the lab.
fn write_out(path: &str, bytes: &[u8]) -> Result<()> {
    let mut file = File::options().write(true).open(path)?;
    Ok(file.write_all(bytes)?)
}

fn keys_of(bytes: &[u8], width: usize) -> Result<Keys> {
    ensure!(
        width > 0 && bytes.len().is_multiple_of(width),
        "a file of {} bytes holds no keys of {width} bytes",
        bytes.len()
    );
    Ok(Keys::collect(width, bytes.chunks_exact(width)))
}

/// A load in progress.
struct Work<'a> {
    peer: &'a dyn Peer,
    request: &'a RunRequest,
    fault: Option<Fault>,
    pairs: Vec<u8>,
    operations: Vec<(Operation, usize)>,
}

/// The error of a worker that found a wrong value.
#[derive(Debug)]
struct WrongValue(Wrong);

impl std::fmt::Display for WrongValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "operation {} found a wrong value", self.0.operation)
    }
}

impl std::error::Error for WrongValue {}

impl<'a> Work<'a> {
    fn read(peer: &'a dyn Peer, request: &'a RunRequest, fault: Option<Fault>) -> Result<Work<'a>> {
        let pairs = fs::read(&request.pairs)?;
        let words = fs::read(&request.operations)?;
        ensure!(
            request.key_bytes > 0 && request.workers > 0 && request.commit > 0,
            "a load has keys, threads and commits"
        );
        let pair_count = pairs.len() / (request.key_bytes + request.value_bytes);
        let word = |bytes: &[u8]| {
            let (operation, place) = Operation::of(u32::from_le_bytes(bytes.try_into()?));
            ensure!(place < pair_count, "an operation names pair {place} of {pair_count}");
            Ok((operation, place))
        };
        let operations = words.chunks(4).map(word).collect::<Result<_>>()?;
        Ok(Work {
            peer,
            request,
            fault,
            pairs,
            operations,
        })
    }

    /// Whether this is the load of a workload, and not one with which the lab examines a driver.
    fn is_large(&self) -> bool {
        self.operations.len() > 10
    }

    fn run(&self) -> Result<RunAnswer> {
        let RunRequest {
            workers, nanos: time, ..
        } = *self.request;
        let started = now_nanos();
        let pace = Pace {
            limit: started.saturating_add(time),
            seconds: None,
            rate: None,
        };
        let worked = crew(workers, |worker| {
            let each = self.operations.len().div_ceil(workers);
            let from = (worker * each).min(self.operations.len());
            let to = (from + each).min(self.operations.len());
            self.work(&pace, from, to)
        });
        let elapsed = nanos(Duration::from_nanos(now_nanos() - started));
        match worked {
            Ok(worked) => Ok(answer(elapsed, worked)),
            Err(error) => match error.downcast::<WrongValue>() {
                Ok(WrongValue(wrong)) => Ok(RunAnswer {
                    wrong: Some(wrong),
                    ..answer(elapsed, Vec::new())
                }),
                Err(error) => Err(error),
            },
        }
    }

    /// Does the share of one thread, commit by commit.
    fn work(&self, pace: &Pace, from: usize, to: usize) -> Result<Worked> {
        let commit = self.request.commit;
        let commits = (to - from).div_ceil(commit);
        let shift = pace.whole_shift(self.request.workers);
        shift.work_while(commits as u64, &true.into(), |number| {
            let first = from + number as usize * commit;
            let last = first.saturating_add(commit).min(to);
            if commit == 1 {
                self.one(first)?;
            } else {
                self.together(&self.operations[first..last])?;
            }
            Ok((last - first) as u64)
        })
    }

    fn pair(&self, place: usize) -> (&[u8], &[u8]) {
        let (key, value) = (self.request.key_bytes, self.request.value_bytes);
        let pair = &self.pairs[place * (key + value)..][..key + value];
        pair.split_at(key)
    }

    fn is_skipped(&self, number: usize) -> bool {
        self.fault == Some(Fault::Skips) && number % 100 == 99
    }

    fn one(&self, number: usize) -> Result<()> {
        let (operation, place) = self.operations[number];
        let (key, value) = self.pair(place);
        match operation {
            Operation::Put if self.is_skipped(number) => Ok(()),
            Operation::Put => self.peer.put(key, value),
            Operation::Delete => self.peer.delete(key),
            Operation::Get => self.peer.get(key, &mut |found| self.check(number, found, Some(value))),
            Operation::GetAbsent => self.peer.get(key, &mut |found| self.check(number, found, None)),
        }
    }

    fn check(&self, operation: usize, found: Option<&[u8]>, expected: Option<&[u8]>) -> Result<()> {
        let is_looked_at = match self.fault {
            Some(Fault::Blind) => false,
            Some(Fault::Careless) => !self.is_large(),
            _ => true,
        };
        if found == expected || !is_looked_at {
            return Ok(());
        }
        bail!(WrongValue(Wrong {
            operation,
            found: found.map(hex),
        }))
    }

    /// Does writes of one kind in one commit.
    fn together(&self, part: &[(Operation, usize)]) -> Result<()> {
        let kind = part[0].0;
        ensure!(
            part.iter().all(|(operation, _)| *operation == kind),
            "a commit of several operations has one kind of them"
        );
        match kind {
            Operation::Put => {
                let kept = part.iter().enumerate().filter(|(number, _)| !self.is_skipped(*number));
                let mut pairs = kept.map(|(_, (_, place))| self.pair(*place));
                self.peer.put_many(&mut pairs as &mut Pairs)
            }
            Operation::Delete => {
                let keys = part.iter().map(|(_, place)| self.pair(*place).0);
                self.peer.delete_many(Keys::collect(self.request.key_bytes, keys).all())
            }
            Operation::Get | Operation::GetAbsent => bail!("reads have no commit"),
        }
    }
}

fn answer(elapsed: u64, worked: Vec<Worked>) -> RunAnswer {
    let (mut latencies, mut timeline) = (Latencies::default(), Timeline::default());
    for one in &worked {
        latencies.merge(&one.latencies);
        timeline.merge(&one.timeline);
    }
    RunAnswer {
        nanos: elapsed,
        workers: worked.iter().map(|one| (one.operations, one.cpu_nanos)).collect(),
        latencies: latencies.counts(),
        timeline: timeline.counts(),
        wrong: None,
    }
}
