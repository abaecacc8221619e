//! The command line: its arguments, and what each command does with the parts of the lab.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::bars;
use crate::compare::{self, Change};
use crate::crew::Pace;
use crate::doctor::{self, Health};
use crate::drivers;
use crate::machine::{self, Machine};
use crate::measure::{nanos, now_nanos};
use crate::page;
use crate::peer::{Class, Driver};
use crate::peers;
use crate::reasons::Reasons;
use crate::results::{Header, Journal, Label, Results, SCHEMA, utc, write_whole};
use crate::runner;
use crate::verdict::Verdict;
use crate::workloads::{self, Context, MemberArguments, Task, Workload};

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
    /// Write the report of results: one HTML page that opens offline.
    Report {
        /// Results of `lab run`, as they are or compressed by gzip.
        #[arg(required = true, value_name = "RESULTS")]
        results: Vec<PathBuf>,
        /// Where the page goes [default: beside the first results].
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Why the first peer does not lead where it does not: a line `ROW | REASON` for each such row.
        #[arg(long, value_name = "FILE")]
        reasons: Option<PathBuf>,
    },
    /// Write a chart of a few rows of results for a document, as an SVG file: bars that compare each store with the first.
    Bars {
        /// Results of `lab run`, as they are or compressed by gzip.
        #[arg(required = true, value_name = "RESULTS")]
        results: Vec<PathBuf>,
        /// The rows: a line `ROW | LABEL` for each, where ROW is the title that the report has, with or
        /// without its class.
        #[arg(long, value_name = "FILE")]
        rows: PathBuf,
        /// Where the chart goes.
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Compare two results, of two commits or machines, saying what is noise. It needs four repetitions at least: run both
    /// with `--repeat 5`. Exit code 1: something became slower.
    Compare {
        /// Results before, as they are or compressed by gzip.
        old: PathBuf,
        /// Results after.
        new: PathBuf,
    },
    /// Is this machine fit to measure on? Exit code 1: measurements would mean nothing.
    Doctor {
        /// Where the stores would be.
        #[arg(long, default_value = "/var/tmp")]
        directory: PathBuf,
    },
    /// Four peers, six workloads, under two minutes, and a report: sanity, not evidence.
    Quick {
        /// Factor on all counts and times.
        #[arg(long, default_value_t = QUICK_SCALE, value_name = "FACTOR")]
        scale: f64,
        /// Where the stores are made, and removed afterwards; it must be on a real disk.
        #[arg(long, default_value = "/var/tmp")]
        directory: PathBuf,
    },
    /// One run of one peer in this process; prints its record as JSON.
    #[command(hide = true)]
    Once {
        workload: String,
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// Writes pairs or publishes messages until it is killed; prints a byte for each that was acknowledged.
    #[command(hide = true)]
    Writer {
        workload: String,
        #[arg(long)]
        puts: usize,
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// A driver in the line protocol for a peer of the lab, as `served-lmdb`.
    #[command(hide = true)]
    Serve { name: String },
    /// A gRPC server with its store in a directory, or the floor; prints its address and ends with its standard input.
    #[command(hide = true)]
    GrpcServer {
        directory: Option<std::path::PathBuf>,
        /// Speaks etcd's protocol, and acknowledges in this class.
        #[arg(long)]
        etcd: Option<Class>,
        /// Goes on looking for bytes instead of sleeping.
        #[arg(long)]
        spin: bool,
    },
    /// One of several processes that share a store.
    #[command(hide = true)]
    Member {
        workload: String,
        #[command(flatten)]
        member: MemberArguments,
        #[command(flatten)]
        place: PlaceArguments,
    },
}

#[derive(Args, Default)]
struct RunArguments {
    /// What to run: a workload with all its forms, or one form as in `map/1M`; `lab list` shows what there is.
    #[arg(required_unless_present = "resume", value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// The peers to run [default: all; drivers of other languages where a workload has them]. Others are compared with duramen, or else with the first.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    peers: Vec<String>,
    /// Factor on all counts and times.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// Runs of each peer, interleaved.
    #[arg(long, default_value_t = 3, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// The longest that one measured part may take, if nothing after builds on it; it ends there, complete.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Only this durability class [default: for each workload and peer the one that fits].
    #[arg(long, value_name = "CLASS")]
    durability: Option<Class>,
    /// Open loop: so many operations a second are due, over all workers, whatever the store does.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Time limit of a cell in seconds; what is not done then is shown as "stopped at n of N".
    #[arg(long, default_value_t = 600, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Where the results go [default: lab-results/DATE-WORKLOADS.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Replace the results that --json names, if they are there already.
    #[arg(long)]
    force: bool,
    /// Go on with a run that was interrupted. Its journal says what it was, so nothing else can be given.
    #[arg(long, value_name = "JOURNAL", conflicts_with_all = ["workloads", "peers", "scale", "repeat", "seconds", "durability",
        "rate", "limit", "json", "force", "directory", "seed"])]
    resume: Option<PathBuf>,
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
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    #[arg(long, default_value_t = 600)]
    limit: u64,
    #[arg(long)]
    seconds: Option<f64>,
    #[arg(long)]
    rate: Option<f64>,
}

impl PlaceArguments {
    fn context(&self, task: &Task) -> Result<Context<'_>> {
        let pace = Pace {
            limit: now_nanos() + nanos(Duration::from_secs(self.limit)),
            seconds: self.seconds,
            rate: self.rate,
        };
        let driver = peers::one(&self.peer)?;
        Ok(Context {
            driver,
            is_exempt: driver.describe().is_exempt,
            class: self.durability,
            cache_bytes: task.cache_bytes(self.scale),
            directory: &self.directory,
            variant: task.variant,
            scale: self.scale,
            seed: self.seed,
            pace,
        })
    }
}

/// Runs the command.
pub fn run() -> Result<ExitCode> {
    match CommandLine::parse().command {
        Command::List => list(),
        Command::Run(arguments) => run_workloads(&arguments),
        Command::Report {
            results,
            output,
            reasons,
        } => report(&results, output, reasons.as_deref()),
        Command::Bars { results, rows, output } => draw_bars(&results, &rows, &output),
        Command::Compare { old, new } => compare_results(&old, &new),
        Command::Doctor { directory } => examine(&directory),
        Command::Quick { scale, directory } => quick(scale, directory),
        Command::Once { workload, place } => {
            let task = one_task(&workload)?;
            let record = runner::run_here(task, &place.context(&task)?)?;
            println!("{}", serde_json::to_string(&record)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Writer { workload, puts, place } => {
            let task = one_task(&workload)?;
            let (context, acknowledgements) = (place.context(&task)?, std::io::stdout().lock());
            match task.workload.is_of_messages() {
                true => workloads::publish_until_killed(&context, puts, acknowledgements)?,
                false => workloads::write_until_killed(&context, puts, acknowledgements)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Serve { name } => {
            let (peer, fault) = drivers::served_parts(&name)?;
            let mut server = drivers::Server::new(peers::one(peer)?, &name, fault);
            server.serve(std::io::stdin().lock(), std::io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::GrpcServer { directory, etcd, spin } => {
            crate::servers::grpc::serve(directory.as_deref(), etcd, spin)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Member {
            workload,
            member,
            place,
        } => {
            let task = one_task(&workload)?;
            workloads::run_member(&task, &place.context(&task)?, &member)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn draw_bars(paths: &[PathBuf], rows: &Path, output: &Path) -> Result<ExitCode> {
    let all: Vec<Results> = paths.iter().map(|path| Results::read(path)).collect::<Result<_>>()?;
    let parts: Vec<(usize, &Results)> = all.iter().enumerate().collect();
    let verdict = Verdict::over(&parts).context("the results have no peers in common, or different first peers")?;
    write_whole(output, bars::svg(&verdict, rows)?.as_bytes())?;
    println!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}

fn report(paths: &[PathBuf], output: Option<PathBuf>, reasons: Option<&Path>) -> Result<ExitCode> {
    let all: Vec<Results> = paths.iter().map(|path| Results::read(path)).collect::<Result<_>>()?;
    let reasons = reasons.map(Reasons::read).transpose()?.unwrap_or_default();
    let target = output.unwrap_or_else(|| page_beside(&paths[0]));
    write_whole(&target, page::page(&all, &reasons).as_bytes())?;
    for row in reasons.unused() {
        eprintln!("no row needs the reason of {row}: it leads there now, or there is no such row");
    }
    println!("{}", target.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the page's path: `X.html` for both `X.json` and `X.json.gz`.
fn page_beside(results: &Path) -> PathBuf {
    let is_compressed = results.extension().is_some_and(|extension| extension == "gz");
    let plain = if is_compressed {
        results.with_extension("")
    } else {
        results.to_path_buf()
    };
    plain.with_extension("html")
}

fn compare_results(old: &Path, new: &Path) -> Result<ExitCode> {
    let (old, new) = (Results::read(old)?, Results::read(new)?);
    let rows = compare::compare(&old, &new)?;
    show(&compare::text(&old, &new, &rows))?;
    let is_slower = rows.iter().any(|row| row.change == Change::Slower);
    Ok(if is_slower {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn examine(directory: &Path) -> Result<ExitCode> {
    let (text, health) = doctor::text(&doctor::examine(&existing(directory)?)?);
    show(&text)?;
    Ok(if health == Health::Unfit {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The peers of `lab quick`: all have class `written`, and each is of a different kind.
const QUICK_PEERS: [&str; 4] = ["duramen", "lmdb", "fjall", "sqlite"];
/// The workloads of `lab quick`.
const QUICK_WORKLOADS: [&str; 6] = [
    "first",
    "synced-puts",
    "map/100k",
    "map-mixed/100k",
    "state/10k",
    "ycsb-a",
];

/// The scale of `lab quick`. At this scale it takes less than two minutes.
const QUICK_SCALE: f64 = 0.05;

fn quick(scale: f64, directory: PathBuf) -> Result<ExitCode> {
    let arguments = RunArguments {
        workloads: QUICK_WORKLOADS.map(str::to_string).to_vec(),
        peers: QUICK_PEERS.map(str::to_string).to_vec(),
        scale,
        repeat: 2,
        // 48 cells: the slowest peers reach these limits, and the total stays within two minutes.
        seconds: Some(0.4),
        limit: 15,
        directory,
        ..RunArguments::default()
    };
    let mut header = header_of(&arguments)?;
    header.label = Label::Quick;
    let target = default_path(&header).with_file_name(format!("{}-quick.json", file_date(&header)));
    let (results, path) = finish(Journal::begin(&target, header)?)?;
    show(&results.text())?;
    let page_path = path.with_extension("html");
    write_whole(
        &page_path,
        page::page(std::slice::from_ref(&results), &Reasons::default()).as_bytes(),
    )?;
    let last = format!(
        "\nsanity, not evidence: for evidence, see `cargo lab run --help`\nresults: {}\nreport:  {}\n",
        path.display(),
        page_path.display()
    );
    show(&last)?;
    Ok(exit_code(&results))
}

fn one_task(name: &str) -> Result<Task> {
    let tasks = workloads::named(name)?;
    ensure!(tasks.len() == 1, "{name} has several forms");
    Ok(tasks[0])
}

fn list() -> Result<ExitCode> {
    let mut text = String::new();
    writeln!(text, "workloads")?;
    for workload in workloads::ALL {
        writeln!(text, "  {:<16} {}", workload.name, workload.about)?;
        let forms: Vec<String> = workload
            .variants
            .iter()
            .filter(|variant| !variant.label.is_empty())
            .map(|variant| format!("{}/{}", workload.name, variant.label))
            .collect();
        if !forms.is_empty() {
            writeln!(text, "  {:<16}   {}", "", forms.join(", "))?;
        }
    }
    writeln!(text, "peers")?;
    for name in peers::names() {
        let driver = peers::one(&name)?;
        let peer = driver.describe();
        writeln!(text, "  {:<16} {}", peer.name, peer.version)?;
        for (class, how) in &peer.classes {
            writeln!(text, "  {:<16}   {class}: {how}", "")?;
        }
        for option in &peer.options {
            writeln!(text, "  {:<16}   {option}", "")?;
        }
    }
    if cfg!(not(feature = "rocksdb")) {
        writeln!(
            text,
            "  {:<16} not built in; it builds for 20 to 30 minutes: --features rocksdb",
            "rocksdb"
        )?;
    }
    show(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints an answer. A reader that closes the pipe early, like `head`, is not an error.
fn show(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn run_workloads(arguments: &RunArguments) -> Result<ExitCode> {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build; its numbers mean nothing");
    }
    let journal = match &arguments.resume {
        Some(path) => Journal::resume(path)?,
        None => {
            let header = header_of(arguments)?;
            let target = arguments.json.clone().unwrap_or_else(|| default_path(&header));
            ensure_free(&target, arguments.force)?;
            Journal::begin(&target, header)?
        }
    };
    let (results, path) = finish(journal)?;
    show(&results.text())?;
    eprintln!("results: {0}; their report: cargo lab report {0}", path.display());
    Ok(exit_code(&results))
}

/// Refuses to replace existing results unless the user asked for it.
fn ensure_free(target: &Path, is_forced: bool) -> Result<()> {
    let name = target.display();
    ensure!(!target.is_dir(), "{name} is a directory: name a file with --json");
    ensure!(
        is_forced || !target.exists(),
        "{name} is there already: name another file with --json, or replace it with --force"
    );
    Ok(())
}

/// Runs the missing cells, and writes the results.
fn finish(mut journal: Journal) -> Result<(Results, PathBuf)> {
    eprintln!("seed {}", journal.header.seed);
    runner::catch_interrupts();
    runner::run(&mut journal)?;
    journal.finish()
}

fn exit_code(results: &Results) -> ExitCode {
    if results.failures().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn header_of(arguments: &RunArguments) -> Result<Header> {
    let is_positive = |number: f64| number > 0.0 && number.is_finite();
    ensure!(is_positive(arguments.scale), "--scale must be a number above 0");
    ensure!(
        arguments.seconds.is_none_or(is_positive),
        "--seconds must be a number above 0"
    );
    ensure!(
        arguments.rate.is_none_or(is_positive),
        "--rate must be a number above 0"
    );
    let mut tasks = Vec::new();
    for name in &arguments.workloads {
        for task in workloads::named(name)? {
            ensure!(
                arguments.rate.is_none() || task.workload.has_open_loop,
                "{name} has no open loop: its operations are not given one by one"
            );
            tasks.push(task);
        }
    }
    let has_drivers = tasks.iter().any(|task| task.workload.has_drivers);
    let mut drivers = Vec::new();
    let any = |is_of: fn(&Workload) -> bool| tasks.iter().any(|task| is_of(task.workload));
    if !arguments.peers.is_empty() || any(|workload| !workload.is_of_messages() && !workload.is_of_trees()) {
        drivers = peers::named(&arguments.peers, has_drivers)?;
    }
    if arguments.peers.is_empty() {
        let brokers = any(Workload::is_of_messages).then(peers::of_messages);
        let trees = any(Workload::is_of_trees).then(peers::of_trees);
        for driver in brokers.into_iter().chain(trees).flatten() {
            if drivers.iter().all(|known| known.name() != driver.name()) {
                drivers.push(driver);
            }
        }
    }
    header(arguments, &tasks, &drivers)
}

fn header(arguments: &RunArguments, tasks: &[Task], drivers: &[&dyn Driver]) -> Result<Header> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Header {
        schema: SCHEMA,
        label: Label::Run,
        lab: env!("CARGO_PKG_VERSION").to_string(),
        commit: machine::commit(),
        started: utc(now.as_secs()),
        started_unix: now.as_secs(),
        arguments: std::env::args().skip(1).collect(),
        workloads: tasks.iter().map(Task::name).collect(),
        durability: arguments.durability,
        seed: arguments.seed.unwrap_or(u64::from(now.subsec_nanos())),
        scale: arguments.scale,
        repeat: arguments.repeat,
        seconds: arguments.seconds,
        rate: arguments.rate,
        limit_seconds: arguments.limit,
        cache_bytes: tasks
            .iter()
            .map(|task| (task.name(), task.cache_bytes(arguments.scale)))
            .collect(),
        directory: arguments.directory.clone(),
        machine: Machine::here(&existing(&arguments.directory)?),
        peers: drivers.iter().map(|driver| driver.describe()).collect(),
    })
}

/// Returns the directory, and creates it when it is missing.
fn existing(directory: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(directory).with_context(|| format!("making the directory {}", directory.display()))?;
    Ok(directory.to_path_buf())
}

fn default_path(header: &Header) -> PathBuf {
    let mut names: Vec<&str> = header
        .workloads
        .iter()
        .map(|name| name.split('/').next().unwrap_or(name))
        .collect();
    names.dedup();
    PathBuf::from("lab-results").join(format!("{}-{}.json", file_date(header), names.join("-")))
}

/// Formats the start time of a run for a file name.
fn file_date(header: &Header) -> String {
    header.started.replace([':', 'T'], "-").replace('Z', "")
}
