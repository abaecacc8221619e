//! Workers in separate processes: how the cell starts them and tells them to begin, and how they report their work.
//!
//! ```text
//! cell ── starts ──▶ member ── "ready" ──▶ cell ── a line: begin ──▶ member ── a line: what its crews did ──▶ cell
//! ```
//!
//! The last two steps may be repeated. The members end with the cell, however it ends.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Context;
use crate::children::end_with_this_thread;
use crate::crew::Worked;
use crate::measure::{Done, Latencies, Timeline, TimelineCounts};

/// What a member is told.
#[derive(clap::Args)]
pub struct MemberArguments {
    /// Its number.
    #[arg(long)]
    pub(super) process: usize,
    /// The file with the counters that all share.
    #[arg(long)]
    pub(super) counters: PathBuf,
}

/// A member's report of its work.
#[derive(Serialize, Deserialize)]
struct Told {
    crews: Vec<ToldCrew>,
    process_cpu_nanos: u64,
}

#[derive(Serialize, Deserialize)]
struct ToldCrew {
    operations: u64,
    left: Option<u64>,
    hits: Option<u64>,
    cpu_nanos: u64,
    nanos: u64,
    latencies: Vec<(u64, u64)>,
    timeline: TimelineCounts,
}

/// The workers of one kind.
#[derive(Default)]
pub(super) struct Crew {
    done: Done,
    nanos: u64,
}

impl Crew {
    pub(super) fn add(&mut self, worked: Worked, hits: Option<u64>) {
        self.nanos = self.nanos.max(worked.nanos);
        let planned = worked
            .stopped_at_of
            .map(|planned| planned.saturating_sub(worked.operations));
        self.done.operations += worked.operations;
        self.done.workers_cpu_nanos += worked.cpu_nanos;
        self.done.hits = hits.map_or(self.done.hits, |hits| Some(self.done.hits.unwrap_or(0) + hits));
        self.done.latencies.get_or_insert_default().merge(&worked.latencies);
        self.done.timeline.get_or_insert_default().merge(&worked.timeline);
        if let Some(left) = planned {
            self.done.stopped_at_of = Some(self.done.stopped_at_of.unwrap_or(0).saturating_add(left));
        }
    }

    /// Converts the remaining operations to the planned ones, now that the number done is known.
    pub(super) fn into_done(mut self) -> Done {
        let done = self.done.operations;
        self.done.stopped_at_of = self.done.stopped_at_of.map(|left| left.saturating_add(done));
        self.done.wall_nanos = Some(self.nanos);
        self.done
    }
}

impl ToldCrew {
    fn of(crew: Crew) -> ToldCrew {
        ToldCrew {
            operations: crew.done.operations,
            left: crew.done.stopped_at_of,
            hits: crew.done.hits,
            cpu_nanos: crew.done.workers_cpu_nanos,
            nanos: crew.nanos,
            latencies: crew.done.latencies.unwrap_or_default().counts(),
            timeline: crew.done.timeline.unwrap_or_default().counts(),
        }
    }

    fn worked(&self) -> Worked {
        Worked {
            operations: self.operations,
            stopped_at_of: self.left.map(|left| left.saturating_add(self.operations)),
            cpu_nanos: self.cpu_nanos,
            nanos: self.nanos,
            latencies: Latencies::from_counts(&self.latencies),
            timeline: Timeline::from_counts(&self.timeline),
        }
    }
}

/// Waits, in a member, until the cell says that it should begin.
pub(super) fn await_start() -> Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}

/// Reports, in a member, the work of its crews to the cell.
pub(super) fn tell(crews: impl IntoIterator<Item = Crew>) -> Result<()> {
    let told = Told {
        crews: crews.into_iter().map(ToldCrew::of).collect(),
        process_cpu_nanos: crate::measure::process_cpu_nanos(),
    };
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

/// Processes that are killed on drop, so that none continues to write into a directory that is removed. When this
/// process is killed, the kernel kills them.
pub(super) struct Members {
    children: Vec<Child>,
    lines: Vec<Lines<BufReader<ChildStdout>>>,
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Killing a process that has already ended fails harmlessly.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Members {
    /// Starts `count` members of a workload, and waits until all of them are ready.
    pub(super) fn start(context: &Context, workload: &str, counters: &Path, count: usize) -> Result<Members> {
        let mut members = Members {
            children: Vec::new(),
            lines: Vec::new(),
        };
        for process in 0..count {
            let mut child = start_member(context, workload, counters, process)?;
            let output = child.stdout.take().context("a member's output is a pipe")?;
            members.lines.push(BufReader::new(output).lines());
            members.children.push(child);
        }
        for lines in &mut members.lines {
            let line = lines
                .next()
                .context("a process ended before it had opened the store")??;
            ensure!(line == "ready", "a process said {line:?}");
        }
        Ok(members)
    }

    /// Makes all members work. Returns the work of each kind of crew, and the processor time of all processes since
    /// their start.
    pub(super) fn work(&mut self) -> Result<(Vec<Crew>, u64)> {
        for child in &mut self.children {
            let input = child.stdin.as_mut().context("a member's input is a pipe")?;
            input.write_all(b"go\n")?;
        }
        let (mut crews, mut cpu) = (Vec::new(), 0);
        for lines in &mut self.lines {
            let line = lines
                .next()
                .context("a process ended before it had told what it did; its message is above")??;
            let told: Told = serde_json::from_str(&line)?;
            cpu += told.process_cpu_nanos;
            crews.resize_with(told.crews.len().max(crews.len()), Crew::default);
            for (crew, told) in crews.iter_mut().zip(told.crews) {
                crew.add(told.worked(), told.hits);
            }
        }
        Ok((crews, cpu))
    }

    /// Waits until all members have ended.
    pub(super) fn end(&mut self) -> Result<()> {
        for child in &mut self.children {
            drop(child.stdin.take());
            let status = child.wait()?;
            ensure!(status.success(), "a process ended with {status}");
        }
        Ok(())
    }
}

fn start_member(context: &Context, workload: &str, counters: &Path, process: usize) -> Result<Child> {
    let limit = context.pace.limit.saturating_sub(crate::measure::now_nanos()) / 1_000_000_000;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["member", workload])
        .args(["--process", &process.to_string()])
        .arg("--counters")
        .arg(counters)
        .args(["--peer", &context.driver.describe().name])
        .args(["--durability", &context.class.to_string()])
        .args(["--seed", &context.seed.to_string()])
        .args(["--scale", &context.scale.to_string()])
        .args(["--limit", &limit.max(1).to_string()])
        .arg("--directory")
        .arg(context.directory);
    if let Some(seconds) = context.pace.seconds {
        command.args(["--seconds", &seconds.to_string()]);
    }
    if let Some(rate) = context.pace.rate {
        command.args(["--rate", &rate.to_string()]);
    }
    end_with_this_thread(&mut command);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a process that shares the store")
}
