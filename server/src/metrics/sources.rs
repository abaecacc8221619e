//! Where the metrics come from, and all of them as one text.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::families::*;
use super::text::Text;
use super::{of_process, of_store, of_topics};
use crate::measure::{CODES, CallSums, Calls, Methods, Sums};
use crate::room::Room;
use crate::state::State;

/// What has the counts.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) state: State,
    pub(crate) room: Arc<Room>,
    pub(crate) methods: Arc<Methods>,
    /// Of each serving thread.
    pub(crate) calls: Vec<Arc<Calls>>,
}

impl Sources {
    /// All metrics. It reads the store, so it may take long: call it on a thread that may wait.
    pub(crate) fn text(&self) -> String {
        let mut text = Text::default();
        self.write_calls(&mut text);
        self.write_pipeline(&mut text);
        text.value(CONNECTIONS, self.room.taken());
        text.value(CONNECTION_LIMIT, self.room.most());
        text.value(CONNECTIONS_REFUSED, self.room.refused());
        text.value(SUBSCRIPTIONS, self.state.subscriptions.load(Ordering::Relaxed));
        of_store::write(&mut text, &self.state.store);
        of_topics::write(&mut text, &self.state.topics);
        of_process::write(&mut text);
        text.value(UPTIME, self.state.begun.elapsed().as_secs_f64());
        text.family(BUILD).sample(&[env!("CARGO_PKG_VERSION")], 1);
        text.into_string()
    }

    fn write_calls(&self, text: &mut Text) {
        let sums: Vec<_> = (0..self.methods.iter().len())
            .map(|method| CallSums::of(&self.calls, method))
            .collect();
        let mut samples = text.family(CALLS);
        for (method, sums) in self.methods.iter().zip(&sums) {
            for (code, count) in CODES.iter().zip(sums.by_code) {
                // The rate of a series that begins at 0 has its first call in it. For other codes that would be too many series.
                if count > 0 || *code == "OK" {
                    samples.sample(&[&method.service, &method.name, code], count);
                }
            }
        }
        let mut samples = text.family(CALL_TIME);
        for (method, sums) in self.methods.iter().zip(&sums) {
            if sums.latency.count() > 0 {
                samples.histogram(&[&method.service, &method.name], &sums.latency);
            }
        }
    }

    fn write_pipeline(&self, text: &mut Text) {
        let pipeline = &self.state.pipeline;
        let (commands, commits) = pipeline.counts();
        let times = pipeline.times();
        text.value(QUEUED, pipeline.queued_bytes());
        text.value(QUEUE_LIMIT, pipeline.limits().queued_bytes);
        text.value(OVERLOADED, pipeline.overloaded());
        text.value(COMMANDS, commands);
        text.value(COMMITS, commits);
        text.family(COMMIT_TIME).histogram(&[], &Sums::from(&times.commit));
        text.family(SYNC_WAIT).histogram(&[], &Sums::from(&times.sync_wait));
    }
}
