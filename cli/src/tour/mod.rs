//! The tour: a program that uses a store, and shows each call it makes with its result and its cost.
//!
//! The chapters are ordinary code. `shown!` wraps the statements to show: it prints them, from this very source, runs
//! them, and prints the time they took. Code outside `shown!` only prepares and verifies.

mod source;
mod stage;

/// Prints statements, runs them (their `let`s stay), and prints the time; with a number of calls, the time per call.
///
/// The statements must stand on lines of their own, and the file must have its own text in `SOURCE`.
macro_rules! shown {
    ($stage:ident, $calls:expr; $($code:tt)*) => {
        $stage.begin(source::shown(SOURCE, line!(), stringify!($($code)*)))?;
        let started = std::time::Instant::now();
        $($code)*
        $stage.end(started.elapsed(), $calls as u64)?;
    };
    ($stage:ident; $($code:tt)*) => {
        shown! { $stage, 1; $($code)* }
    };
}

mod announcing;
mod checking;
mod collision;
mod killing;
mod reading;
mod serving;
mod stillness;
mod victim;
mod writing;

use std::path::Path;
use std::time::Instant;

use serde_json::json;

use crate::exit::Outcome;
use crate::output::Output;
use stage::Stage;

pub use announcing::{account_until_killed, sell_until_killed};
pub use killing::write_until_killed;
pub use serving::publish_orders;
pub use victim::Part;

/// Takes the tour in a directory that is missing or empty.
pub fn take(directory: &Path, is_kept: bool, output: &mut Output) -> Outcome<()> {
    let started = Instant::now();
    let mut stage = Stage::new(output);
    let about = "    Every line of code below is run as you read it; at the right is what it took on this machine.";
    stage.title("A tour of Duramen", about)?;
    stage.figure("directory", json!(directory.display().to_string()));
    let store = writing::write(&mut stage, directory)?;
    reading::read(&mut stage, &store)?;
    stillness::stand_still(&mut stage, &store)?;
    collision::collide(&mut stage, &store)?;
    let store = killing::kill(&mut stage, store, directory)?;
    let store = announcing::announce(&mut stage, store, directory)?;
    let store = serving::serve(&mut stage, store, directory)?;
    checking::check(&mut stage, store)?;
    let seconds = started.elapsed().as_secs_f64();
    farewell(&mut stage, directory, is_kept, seconds)?;
    stage.finish(seconds)
}

fn farewell(stage: &mut Stage<'_>, directory: &Path, is_kept: bool, seconds: f64) -> Outcome<()> {
    if !is_kept {
        let about = "    The store is deleted now. To keep it and look around: duramen tour --keep DIR";
        return stage.title(&format!("That was all, in {seconds:.1} seconds"), about);
    }
    stage.title(
        &format!("That was all, in {seconds:.1} seconds. The store is yours; try"),
        "",
    )?;
    let directory = directory.display();
    for (command, why) in [
        (format!("duramen maps {directory} --count"), "what is in it"),
        (format!("duramen scan {directory} --map stock"), "all pairs of a map"),
        (
            format!("duramen scan {directory} --map orders --reverse --limit 3"),
            "the last three orders",
        ),
        (format!("duramen topics {directory}"), "what was announced"),
        (format!("duramen put {directory} pears 7 --map stock"), "a pair more"),
        (format!("duramen check {directory}"), "read and verify everything"),
        (format!("duramen dump {directory} --map journal"), "as text"),
    ] {
        stage.remark(&format!("{command:<64}  {why}"))?;
    }
    Ok(())
}
