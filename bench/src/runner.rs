//! Runs a plan: every cell in its own process, with interleaved repetitions and an alternating order of peers.
//!
//! With one process per cell, memory, processor time and written bytes belong to one peer, and a crash costs only that
//! peer's cell. The runner syncs the file system before each cell, because its device counts for all processes:
//! otherwise this cell would be charged for what the previous one left in the page cache. The process prints its record
//! as JSON to standard output and everything else to standard error. It stops by itself at the limit of the cell. If it
//! does not, because the store hangs in a call, the runner kills it some time later, and the cell fails.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::machine;
use crate::measure::Record;
use crate::memory_group::MemoryGroup;
use crate::peer::{Class, Driver};
use crate::peers;
use crate::probe::{self, Busy, Probe};
use crate::results::{Header, Journal, Outcome, Run};
use crate::scratch::Scratch;
use crate::storage::sync_file_system;
use crate::workloads::{self, Context, Recorder, Task};

/// Set by the signal that asks the lab to stop.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Makes an interrupt end the current cell and then the run, cleanly, from now on.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores to an atomic and does nothing else, which a signal handler may do.
        unsafe { libc::signal(signal, interrupted as *const () as libc::sighandler_t) };
    }
}

/// A cell: one task, one peer, one repetition.
struct Cell<'a> {
    header: &'a Header,
    task: Task,
    driver: &'a dyn Driver,
    repetition: u32,
}

/// Runs all cells that the journal lacks.
pub fn run(journal: &mut Journal) -> Result<()> {
    let header = journal.header.clone();
    let tasks = tasks_of(&header)?;
    let names: Vec<String> = header.peers.iter().map(|peer| peer.name.clone()).collect();
    let drivers: Vec<&dyn Driver> = names.iter().map(|name| peers::one(name)).collect::<Result<_>>()?;
    for task in &tasks {
        for repetition in 0..header.repeat {
            // The order alternates, so that no peer always runs on the disk and caches that one other peer left behind.
            let mut order = drivers.clone();
            if repetition % 2 == 1 {
                order.reverse();
            }
            for driver in order {
                if journal.has(&task.name(), &driver.name(), repetition) {
                    continue;
                }
                let cell = Cell {
                    header: &header,
                    task: *task,
                    driver,
                    repetition,
                };
                let run = cell.run().with_context(|| {
                    format!(
                        "what was done so far is kept; go on with `cargo lab run --resume {}`",
                        journal.path().display()
                    )
                })?;
                journal.add(run)?;
            }
        }
    }
    Ok(())
}

fn tasks_of(header: &Header) -> Result<Vec<Task>> {
    let mut tasks = Vec::new();
    for name in &header.workloads {
        tasks.extend(workloads::named(name)?);
    }
    Ok(tasks)
}

impl Cell<'_> {
    fn run(&self) -> Result<Run> {
        let peer = self.driver.name();
        let class = self.class();
        let (outcome, probe) = match &class {
            Err(reason) => (Outcome::NotApplicable(reason.clone()), None),
            Ok(class) => {
                eprintln!(
                    "{} {}/{}: {peer} ({class})",
                    self.task.name(),
                    self.repetition + 1,
                    self.header.repeat
                );
                let (outcome, probe) = self.measure(*class)?;
                (outcome, Some(probe))
            }
        };
        if let Outcome::Failed(error) = &outcome {
            eprintln!("{} {}: {peer} FAILED: {error}", self.task.name(), self.repetition + 1);
        }
        Ok(Run {
            workload: self.task.name(),
            peer,
            class: class.ok(),
            repetition: self.repetition,
            seed: self.seed(),
            commit: machine::commit(),
            probe,
            outcome,
        })
    }

    /// Returns the class that the peer runs in, or why it does not run.
    fn class(&self) -> Result<Class, String> {
        if self.header.rate.is_some() && self.driver.describe().is_outside {
            return Err("drivers of other languages have no open loop".to_string());
        }
        self.task.workload.class_for(self.driver, self.header.durability)
    }

    fn seed(&self) -> u64 {
        self.header.seed.wrapping_add(u64::from(self.repetition))
    }

    fn measure(&self, class: Class) -> Result<(Outcome, Probe)> {
        let mut probe = probe::beside(&self.header.directory)?;
        let scratch = Scratch::new(&self.header.directory)?;
        // The store is below the scratch directory, so that files a workload puts beside the store are removed too.
        let store = scratch.path().join("store");
        std::fs::create_dir(&store).with_context(|| format!("making the directory {}", store.display()))?;
        sync_file_system(&store)?;
        let memory = self.task.memory_bytes(self.header.scale);
        let group = match memory.map(MemoryGroup::new).transpose() {
            Ok(group) => group,
            Err(error) => return Ok((Outcome::NotApplicable(format!("{error:#}")), probe)),
        };
        let (before, own_before) = (Busy::now(), children_cpu_nanos());
        let outcome = match self.run_in_process(class, &store, group.as_ref()) {
            Ok(mut record) => {
                record.notes.extend(memory.map(memory_note));
                Outcome::Passed(record)
            }
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => Outcome::Failed(format!("{error:#}{}", self.hint(&error, memory))),
        };
        probe.others_busy = before.others_until(Busy::now(), children_cpu_nanos() - own_before);
        Ok((outcome, probe))
    }

    /// Returns advice about an error that is not the peer's.
    fn hint(&self, error: &anyhow::Error, memory: Option<u64>) -> String {
        let text = format!("{error:#}");
        if let (Some(bytes), true) = (memory, text.contains("SIGKILL")) {
            let allowed = bytes >> 20;
            return format!(
                "; the kernel killed it, most likely because it needed more than the {allowed} MiB of memory of this cell"
            );
        }
        let free = probe::free_bytes(&self.header.directory).unwrap_or(u64::MAX);
        // Stores report a full disk in many ways, including a plain input/output error.
        let is_full = text.contains("No space left") || free < FULL_BYTES;
        if is_full {
            format!(
                "; the disk of {} is full ({} MB left): choose another one with --directory, or a smaller --scale",
                self.header.directory.display(),
                free >> 20
            )
        } else {
            String::new()
        }
    }

    fn run_in_process(&self, class: Class, directory: &Path, group: Option<&MemoryGroup>) -> Result<Record> {
        let header = self.header;
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["once", &self.task.name()])
            .args(["--peer", &self.driver.name()])
            .args(["--durability", &class.to_string()])
            .args(["--scale", &header.scale.to_string()])
            .args(["--seed", &self.seed().to_string()])
            .args(["--limit", &header.limit_seconds.to_string()])
            .arg("--directory")
            .arg(directory)
            // Temporary files of programs in other languages are removed with the store, even after a kill.
            .env("TMPDIR", directory.parent().unwrap_or(directory));
        if let Some(seconds) = header.seconds {
            command.args(["--seconds", &seconds.to_string()]);
        }
        if let Some(rate) = header.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        if let Some(group) = group {
            group.take(&mut command)?;
        }
        let output = run_until(command, Duration::from_secs(header.limit_seconds))?;
        let talk = output.errors.trim();
        ensure!(
            output.status.success(),
            "{} ({})",
            if talk.is_empty() { "no message" } else { talk },
            output.status
        );
        if !talk.is_empty() {
            eprintln!("{talk}");
        }
        serde_json::from_str(&output.text).context("reading what the process of a cell printed")
    }
}

/// Returns the note of a report about a memory limit.
fn memory_note(bytes: u64) -> String {
    format!(
        "the process of this cell had {} MiB of memory, with its page cache in it (a control group)",
        bytes >> 20
    )
}

/// The output of a process, and its exit status.
struct Output {
    status: ExitStatus,
    text: String,
    errors: String,
}

/// The error of a run that the user interrupted.
#[derive(Debug)]
struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// A disk with less free space than this counts as full.
const FULL_BYTES: u64 = 16 << 20;

/// Returns the time of a cell including the extra time for verification after the clock.
fn grace(limit: Duration) -> Duration {
    limit + Duration::from_secs(60)
}

fn run_until(mut command: Command, limit: Duration) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the process of a cell")?;
    let (text, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait_for(&mut child, limit)?;
    let joined = |thread: JoinHandle<Vec<u8>>| String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned();
    Ok(Output {
        status,
        text: joined(text),
        errors: joined(errors),
    })
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Only the output before the pipe broke can be shown.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait_for(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let last = Instant::now() + limit + grace(limit);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let is_interrupted = INTERRUPTED.load(Ordering::SeqCst);
        if is_interrupted || Instant::now() >= last {
            child.kill()?;
            child.wait()?;
            ensure!(!is_interrupted, Interrupted);
            bail!(
                "did not come to an end within its limit of {} s and the time for verification, and was killed",
                limit.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the processor time of all ended child processes.
fn children_cpu_nanos() -> u64 {
    // SAFETY: all fields of the structure are numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the place for the result is ours.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let nanos = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    nanos(usage.ru_utime) + nanos(usage.ru_stime)
}

/// Runs a cell inside its own process.
pub fn run_here(task: Task, context: &Context) -> Result<Record> {
    let description = context.driver.describe();
    if let Some(reason) = &description.unavailable {
        bail!("{} cannot run here: {reason}", description.name);
    }
    ensure!(
        description.has(context.class),
        "{} has no class {}",
        description.name,
        context.class
    );
    let mut recorder = Recorder::new(context.directory, context.driver);
    (task.workload.run)(context, &mut recorder)?;
    Ok(recorder.finish())
}
