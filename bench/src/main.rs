//! The lab: the same verified work for Duramen and its peers, measured the same way. See README.md beside this folder.

mod data;
mod machine;
mod measure;
mod peer;
mod peers;
mod report;
mod runner;
mod scratch;
mod statistics;
mod workloads;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Parser, Subcommand};

use machine::Machine;
use peer::Class;
use report::Report;
use runner::Plan;
use workloads::Context;

/// Runs the same verified work on Duramen and its peers, and compares.
#[derive(Parser)]
#[command(name = "lab", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the workloads, and the peers with their versions, classes and options.
    List,
    /// Run workloads and print the comparison. Exit code 1: a run failed or read a wrong value.
    Run(RunArguments),
    /// One run of one peer in this process; prints its record as JSON.
    #[command(hide = true)]
    Once {
        workload: String,
        #[arg(long)]
        scale: f64,
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// Writes pairs until it is killed; prints a byte for each that was acknowledged.
    #[command(hide = true)]
    Writer {
        #[arg(long)]
        puts: usize,
        #[command(flatten)]
        place: PlaceArguments,
    },
}

#[derive(Args)]
struct RunArguments {
    /// What to run; `lab list` shows what there is.
    #[arg(required = true, value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// The peers to run [default: all]. Others are compared with duramen, or else with the first.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    peers: Vec<String>,
    /// Factor on all counts and times.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// Runs of each peer, interleaved.
    #[arg(long, default_value_t = 3, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Only this durability class [default: for each workload and peer the one that fits].
    #[arg(long, value_name = "CLASS")]
    durability: Option<Class>,
    /// Also write everything as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the stores are made, and removed afterwards; it must be on a real disk.
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// Seed of all keys, to repeat a run exactly [default: a new one].
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Args)]
struct PlaceArguments {
    #[arg(long)]
    peer: String,
    #[arg(long)]
    durability: Class,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    directory: PathBuf,
}

impl PlaceArguments {
    fn context(&self, scale: f64) -> Result<Context<'_>> {
        let driver = peers::one(&self.peer)?;
        Ok(Context {
            driver,
            class: self.durability,
            directory: &self.directory,
            scale,
            seed: self.seed,
        })
    }
}

fn main() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(arguments) => run(&arguments),
        Command::Once { workload, scale, place } => once(&workload, scale, &place),
        Command::Writer { puts, place } => place
            .context(1.0)
            .and_then(|context| workloads::write_until_killed(&context, puts, std::io::stdout().lock()))
            .map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}

fn list() {
    println!("workloads");
    for workload in workloads::ALL {
        println!("  {:<12} {}", workload.name, workload.about);
    }
    println!("peers");
    for driver in peers::ALL {
        let peer = driver.describe();
        println!("  {:<12} {}", peer.name, peer.version);
        peer.classes
            .iter()
            .for_each(|(class, how)| println!("  {:<12}   {class}: {how}", ""));
        peer.options
            .iter()
            .for_each(|option| println!("  {:<12}   {option}", ""));
    }
}

fn run(arguments: &RunArguments) -> Result<ExitCode> {
    ensure!(
        arguments.scale > 0.0 && arguments.scale.is_finite(),
        "--scale must be a number above 0"
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let plan = Plan {
        workloads: arguments
            .workloads
            .iter()
            .map(|name| workloads::named(name))
            .collect::<Result<_>>()?,
        peers: peers::named(&arguments.peers)?,
        class: arguments.durability,
        repeat: arguments.repeat,
        scale: arguments.scale,
        seed: arguments.seed.unwrap_or(u64::from(now.subsec_nanos())),
        directory: arguments.directory.clone(),
    };
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build; its numbers mean nothing");
    }
    // Before hours of work, not after them.
    if let Some(path) = &arguments.json {
        fs::File::create(path).with_context(|| format!("writing {}", path.display()))?;
    }
    eprintln!("seed {}", plan.seed);
    let runs = runner::run(&plan)?;
    let report = Report {
        format: 1,
        lab: env!("CARGO_PKG_VERSION").to_string(),
        commit: machine::commit(),
        started_unix: now.as_secs(),
        seed: plan.seed,
        scale: plan.scale,
        repeat: plan.repeat,
        machine: Machine::here(&plan.directory),
        peers: plan.peers.iter().map(|driver| driver.describe()).collect(),
        runs,
    };
    print!("{}", report.text());
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report)?;
        fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(if report.failures().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn once(workload: &str, scale: f64, place: &PlaceArguments) -> Result<ExitCode> {
    let record = runner::run_here(workloads::named(workload)?, &place.context(scale)?)?;
    println!("{}", serde_json::to_string(&record)?);
    Ok(ExitCode::SUCCESS)
}
