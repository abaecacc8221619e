//! `duramen torture`: kills processes that share a store until something is lost. Also the hidden command of its
//! members.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::text::{counted, grouped};
use crate::torture::{Plan, Role, Sum, be_member, torture};

const EXAMPLES: &str = r"Examples:
  For some seconds; before you trust a machine and its file system with your data, --seconds 600:
    $ duramen torture --seconds 2 --dir torture
  The result for a program:
    $ duramen torture --seconds 2 --dir another --json

Several processes write and read one store. They are killed (kill -9), stopped (SIGSTOP) and
ended at random, in the middle of commits too, and others take their places; sometimes all are
killed at once. The supervisor holds the ledger of what was acknowledged, told by pipe after
each commit returned; the next writer looks whether it is there. Readers check in snapshots
that no money comes or goes, that counts are right, that lists show whole transactions in one
order, and that records, of which there are enough to be folded step by step, are those of the
transactions that wrote them last. Writers make checkpoints too; an acknowledged one must be there,
and show the moment at which it was made.

The last line is the sum. Exit code 0: nothing was lost, and the store is sound. Otherwise 1,
and the store is left as it is. Each run differs in what the machine does meanwhile; --seed
repeats what the supervisor does. It does not cut the power: for that, see the crash tests of
the source.";

/// Kill processes that share a store at random, and look whether anything is lost
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Torture {
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,

    /// Where to make the store; the directory must be missing or empty
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// What the supervisor's choices follow from; another one each time when it is not given
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Processes that write
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=32))]
    writers: u32,

    /// Processes that read
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=32))]
    readers: u32,
}

impl Torture {
    pub fn run(self, output: &mut Output) -> Outcome {
        let is_occupied = self.dir.read_dir().is_ok_and(|mut entries| entries.next().is_some());
        if is_occupied {
            let path = self.dir.display();
            return Err(Failure::wrong_call(format!(
                "{path} is not empty; name a missing or empty directory"
            )));
        }
        let plan = Plan {
            directory: self.dir,
            time: Duration::from_secs(self.seconds),
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            writers: self.writers,
            readers: self.readers,
        };
        let sum = torture(&plan)?;
        if output.is_json {
            output.json(&to_json(&plan, &sum))?;
        } else {
            print(&plan, &sum, output)?;
        }
        Ok(if sum.problems.is_empty() {
            Exit::Done
        } else {
            Exit::NotFound
        })
    }
}

fn to_json(plan: &Plan, sum: &Sum) -> serde_json::Value {
    json!({
        "lost_nothing": sum.problems.is_empty(),
        "problems": sum.problems,
        "seconds": sum.elapsed.as_secs_f64(),
        "seed": plan.seed,
        "commits": sum.commits,
        "checkpoints": sum.checkpoints,
        "looks": sum.looks,
        "kills": sum.kills,
        "writer_kills": sum.writer_kills,
        "kills_in_flight": sum.kills_in_flight,
        "kills_of_all": sum.massacres,
        "stops": sum.stops,
        "ended": sum.endings,
        "busy": sum.busy,
    })
}

fn print(plan: &Plan, sum: &Sum, output: &mut Output) -> Outcome<()> {
    for problem in &sum.problems {
        output.line(problem)?;
    }
    let verdict = match sum.problems.len() as u64 {
        0 => "nothing was lost".to_string(),
        found => format!(
            "{}; the store is left in {}",
            counted(found, "problem"),
            plan.directory.display()
        ),
    };
    let in_flight = sum.kills_in_flight * 100 / sum.writer_kills.max(1);
    output.line(format_args!(
        "{verdict}: {} s, seed {}, {}, {}, {} ({in_flight} % of writers with a commit in flight, {} of all at once), \
         {}, {} ended in order, {} told of a stopped process, {} looked at",
        sum.elapsed.as_secs(),
        plan.seed,
        counted(sum.commits, "commit"),
        counted(sum.checkpoints, "checkpoint"),
        counted(sum.kills, "kill"),
        grouped(sum.massacres),
        counted(sum.stops, "stop"),
        grouped(sum.endings),
        counted(sum.busy, "call"),
        counted(sum.looks, "snapshot"),
    ))
}

/// Take part in a torture (a part of `torture`)
#[derive(Args, Debug)]
pub struct TortureMember {
    directory: PathBuf,
    #[arg(long)]
    role: Role,
    #[arg(long)]
    slot: u32,
    #[arg(long)]
    slots: u32,
    #[arg(long)]
    seed: u64,
}

impl TortureMember {
    pub fn run(self, output: &mut Output) -> Outcome {
        be_member(&self.directory, self.role, self.slot, self.slots, self.seed, output)
    }
}
