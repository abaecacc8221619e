//! Shared code of the commands that change an object by name: maps, topics, groups.

use serde_json::Value;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::place::Place;

/// Closes the place. With `--json` it prints what was done; otherwise success prints nothing.
pub fn finish(place: Place, done: &Value, output: &mut Output) -> Outcome {
    place.close()?;
    if output.is_json {
        output.json(done)?;
    }
    Ok(Exit::Done)
}

/// Refuses to remove an object that is not empty, unless the user forces it: `held` says what the object holds, and
/// `remedy` what `--force` does.
pub fn refuse_unless(is_meant: bool, held: &str, remedy: &str) -> Outcome<()> {
    match is_meant {
        true => Ok(()),
        false => Err(Failure::wrong_call(format!("{held}; --force {remedy} it all the same"))),
    }
}
