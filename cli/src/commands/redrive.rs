//! `duramen redrive`: returns the messages that a group gave up.

use clap::Args;
use serde_json::json;

use super::meant::Meant;
use crate::exit::{Exit, Outcome};
use crate::output::{Output, say};
use crate::place::{Place, PlaceArguments};
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
    place: PlaceArguments,

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
        let place = self.place.open_to_write()?;
        let most = self.count.unwrap_or(u64::MAX);
        let (delivered, gone) = match &place {
            Place::Directory(store) => {
                let redriven = match Meant::find(store, &self.topic, &self.group)? {
                    Meant::Everywhere(group) => group.redrive(most)?,
                    Meant::InTopic(topic) => topic.existing_group(&self.group)?.redrive(most)?,
                };
                (redriven.delivered, redriven.gone)
            }
            // The limit 0 stands for all there.
            Place::Server(_) if most == 0 => (0, 0),
            Place::Server(server) => {
                let redriven = server.wait(server.group(&self.topic, &self.group)?.redrive(most))?;
                (redriven.delivered, redriven.gone)
            }
        };
        place.close()?;
        match output.is_json {
            true => output.json(&json!({"delivered": delivered, "gone": gone}))?,
            false => say(format_args!(
                "{} will be delivered again, {gone} no longer kept",
                counted(delivered, "message"),
            )),
        }
        Ok(Exit::Done)
    }
}
