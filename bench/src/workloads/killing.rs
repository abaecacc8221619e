//! Kills a process of the lab in the middle of its work. The process writes a byte into a pipe for everything that the
//! peer acknowledged, and gets SIGKILL when there are enough bytes. The content of the pipe is what was acknowledged.

use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::Context;
use crate::children::end_with_this_thread;

/// Maximum time after which the writer is killed.
const WRITING_MAX: Duration = Duration::from_secs(10);
/// Capacity of a pipe: the number of acknowledgements by which the writer may be ahead of the counting process.
const PIPE_BYTES: usize = 1 << 16;

/// The work of a writer.
#[derive(Clone, Copy)]
pub struct Writing {
    /// Number of acknowledgements after which the writer is killed.
    enough: usize,
    /// Number of writes the writer would do without the kill.
    pub planned: usize,
}

impl Writing {
    /// Plans a writer that is killed after `enough` acknowledgements.
    pub fn planned(enough: usize) -> Writing {
        // There are so many writes that the writer must wait for us before it could end. On a busy machine it may run
        // long before we do.
        let planned = enough + PIPE_BYTES;
        Writing { enough, planned }
    }
}

/// Starts the writer of a workload, kills it, and returns the number of acknowledgements.
pub fn kill_after(context: &Context, workload: &str, writing: Writing) -> Result<usize> {
    let mut writer = start_writer(context, workload, writing.planned)?;
    let pipe = writer.stdout.take().context("the writer's output is a pipe")?;
    let acknowledged = count_until(&writer, BufReader::new(pipe), writing.enough);
    // The kill also happens after an error: no process may continue to write into a directory that is about to be
    // removed.
    kill_group(&writer);
    let status = writer.wait()?;
    wait_for_group(&writer);
    let acknowledged = acknowledged?;
    ensure!(
        !status.success() && acknowledged > 0,
        "the writer ended by itself ({status}) before it could be killed"
    );
    Ok(acknowledged)
}

fn start_writer(context: &Context, workload: &str, planned: usize) -> Result<Child> {
    // SAFETY: asks for the orphans of our children to become ours, and touches nothing else.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let mut command = Command::new("/proc/self/exe");
    end_with_this_thread(&mut command);
    command
        // A driver of another language is a child process of the writer; both are killed at the same moment.
        .process_group(0)
        .args([
            "writer",
            workload,
            "--peer",
            &context.driver.describe().name,
            "--durability",
            &context.class.to_string(),
        ])
        .args([
            "--seed",
            &context.seed.to_string(),
            "--puts",
            &planned.to_string(),
            "--directory",
        ])
        .arg(context.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the writing process")
}

/// Kills the writer and the processes that it started.
fn kill_group(writer: &Child) {
    // SAFETY: the group is the writer's own, and is there as long as the writer was not waited for.
    unsafe { libc::kill(-(writer.id() as libc::pid_t), libc::SIGKILL) };
}

/// Waits until all processes of the writer's group have ended, after the writer itself was waited for. A process that
/// is still ending may hold the lock of its store.
fn wait_for_group(writer: &Child) {
    let group = -(writer.id() as libc::pid_t);
    // SAFETY: only processes of the group are waited for, which no other code here waits for.
    while unsafe { libc::waitpid(group, std::ptr::null_mut(), 0) } > 0 {}
}

/// Counts acknowledgements, kills the writer when there are enough, and counts those left in the pipe.
fn count_until(writer: &Child, mut pipe: impl Read, enough: usize) -> Result<usize> {
    let started = Instant::now();
    let mut acknowledged = 0;
    let mut is_killed = false;
    let mut one = [0];
    loop {
        match pipe.read_exact(&mut one) {
            Ok(()) => acknowledged += 1,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(acknowledged),
            Err(error) => bail!("reading the writer's acknowledgements: {error}"),
        }
        if !is_killed && (acknowledged >= enough || started.elapsed() > WRITING_MAX) {
            kill_group(writer);
            is_killed = true;
        }
    }
}
