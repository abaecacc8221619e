//! Runs workloads: every run of a peer in a process of its own, repetitions interleaved, in alternating order.
//!
//! A process per run makes memory, processor time and written bytes those of one peer, and a peer that crashes takes
//! only its own run with it. The process prints its record as JSON to its standard output and everything else to
//! standard error.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::peer::{Class, Driver};
use crate::scratch::Scratch;
use crate::workloads::{Context, Record, Recorder, Workload};

/// What was asked for on the command line.
pub struct Plan {
    /// What to run.
    pub workloads: Vec<&'static Workload>,
    /// With whom.
    pub peers: Vec<&'static dyn Driver>,
    /// In which class; each workload's own when none.
    pub class: Option<Class>,
    /// How often.
    pub repeat: u32,
    /// Factor on all counts and times.
    pub scale: f64,
    /// Where all data comes from. Repetition `n` uses `seed + n`.
    pub seed: u64,
    /// Where the stores are made.
    pub directory: PathBuf,
}

/// One run of one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Name of the workload.
    pub workload: String,
    /// Name of the peer.
    pub peer: String,
    /// Its class, if it has one that fits.
    pub class: Option<Class>,
    /// Which repetition.
    pub repetition: u32,
    /// Seed of this repetition.
    pub seed: u64,
    /// What came out.
    pub outcome: Outcome,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything was verified.
    Passed(Record),
    /// The peer does not take part, and why.
    NotApplicable(String),
    /// An error, or a wrong value.
    Failed(String),
}

/// Does the plan.
pub fn run(plan: &Plan) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for workload in &plan.workloads {
        for repetition in 0..plan.repeat {
            // Alternating, so that no peer always runs on the disk and caches that the same other one left behind.
            let mut order = plan.peers.clone();
            if repetition % 2 == 1 {
                order.reverse();
            }
            for driver in order {
                runs.push(run_one(plan, workload, driver, repetition)?);
            }
        }
    }
    Ok(runs)
}

fn run_one(plan: &Plan, workload: &Workload, driver: &dyn Driver, repetition: u32) -> Result<Run> {
    let peer = driver.describe().name;
    let seed = plan.seed.wrapping_add(u64::from(repetition));
    let class = workload.class_for(driver, plan.class);
    let outcome = match &class {
        Err(reason) => Outcome::NotApplicable(reason.clone()),
        Ok(class) => {
            eprintln!("{} {}/{}: {peer} ({class})", workload.name, repetition + 1, plan.repeat);
            let scratch = Scratch::new(&plan.directory)?;
            match run_in_process(workload, &peer, *class, plan.scale, seed, scratch.path()) {
                Ok(record) => Outcome::Passed(record),
                Err(error) => Outcome::Failed(format!("{error:#}")),
            }
        }
    };
    if let Outcome::Failed(error) = &outcome {
        eprintln!(
            "{} {}/{}: {peer} FAILED: {error}",
            workload.name,
            repetition + 1,
            plan.repeat
        );
    }
    Ok(Run {
        workload: workload.name.to_string(),
        peer,
        class: class.ok(),
        repetition,
        seed,
        outcome,
    })
}

fn run_in_process(
    workload: &Workload,
    peer: &str,
    class: Class,
    scale: f64,
    seed: u64,
    directory: &Path,
) -> Result<Record> {
    let child = Command::new("/proc/self/exe")
        .args([
            "once",
            workload.name,
            "--peer",
            peer,
            "--durability",
            &class.to_string(),
        ])
        .args([
            "--scale",
            &scale.to_string(),
            "--seed",
            &seed.to_string(),
            "--directory",
        ])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the process of a run")?;
    let output = child.wait_with_output()?;
    let talk = String::from_utf8_lossy(&output.stderr).trim().to_string();
    ensure!(
        output.status.success(),
        "{} ({})",
        if talk.is_empty() { "no message" } else { &talk },
        output.status
    );
    if !talk.is_empty() {
        eprintln!("{talk}");
    }
    serde_json::from_slice(&output.stdout).context("reading what the process of a run printed")
}

/// The inside of [`run_in_process`]: one run, in this process.
pub fn run_here(workload: &Workload, context: &Context) -> Result<Record> {
    if !context.driver.describe().has(context.class) {
        bail!("{} has no class {}", context.driver.describe().name, context.class);
    }
    let mut recorder = Recorder::new(context.directory);
    (workload.run)(context, &mut recorder)?;
    Ok(recorder.finish())
}
