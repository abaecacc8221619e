//! What the commands have in common that change something by its name: maps, topics, groups.

use duramen::Store;
use serde_json::Value;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;

/// Closes the store, and says what was done to those who read JSON; others see that nothing was wrong.
pub fn finish(store: Store, done: &Value, output: &mut Output) -> Outcome {
    store.close()?;
    if output.is_json {
        output.json(done)?;
    }
    Ok(Exit::Done)
}

/// Refuses to remove what holds something, unless that is meant: `held` says what it holds, and `remedy` what `--force` does.
pub fn refuse_unless(is_meant: bool, held: &str, remedy: &str) -> Outcome<()> {
    match is_meant {
        true => Ok(()),
        false => Err(Failure::wrong_call(format!("{held}; --force {remedy} it all the same"))),
    }
}
