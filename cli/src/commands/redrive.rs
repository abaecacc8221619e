//! `duramen redrive`: returns the messages that a group gave up.

use clap::Args;
use serde_json::json;

use super::groups::Meant;
use crate::exit::{Exit, Outcome};
use crate::opening::StoreArguments;
use crate::output::{Output, say};
use crate::text::counted;

const EXAMPLES: &str = r"Examples:
  Let a group try again what it gave up, all of it or some:
    $ duramen redrive shop sales packers
    $ duramen redrive shop sales packers --count 100 --json";

/// Deliver dead letters of a group to it again, and to no other group
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Redrive {
    #[command(flatten)]
    store: StoreArguments,

    /// The topic of the group, or its pattern
    topic: String,

    /// The group
    group: String,

    /// Messages at most
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

impl Redrive {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_write()?;
        let most = self.count.unwrap_or(u64::MAX);
        let redriven = match Meant::find(&store, &self.topic, &self.group)? {
            Meant::Everywhere(group) => group.redrive(most)?,
            Meant::InTopic(topic) => topic.existing_group(&self.group)?.redrive(most)?,
        };
        store.close()?;
        match output.is_json {
            true => output.json(&json!({"delivered": redriven.delivered, "gone": redriven.gone}))?,
            false => say(format_args!(
                "{} will be delivered again, {} no longer kept",
                counted(redriven.delivered, "message"),
                redriven.gone
            )),
        }
        Ok(Exit::Done)
    }
}
