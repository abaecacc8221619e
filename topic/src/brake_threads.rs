//! Which thread of this process last moved each brake: a publisher of that thread waits for itself.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread::ThreadId;

use duramen_engine::{Brake, BrakeStatistics};

use crate::lock::locked;

/// The thread of this process that last moved each brake.
#[derive(Debug, Default)]
pub(crate) struct BrakeThreads(Mutex<HashMap<usize, ThreadId>>);

impl BrakeThreads {
    pub(crate) fn moved(&self, brake: &Brake) {
        locked(&self.0).insert(brake.number(), std::thread::current().id());
    }

    pub(crate) fn forget(&self, brake: &Brake) {
        locked(&self.0).remove(&brake.number());
    }

    pub(crate) fn is_this_thread(&self, by: &BrakeStatistics) -> bool {
        by.is_this && locked(&self.0).get(&by.number) == Some(&std::thread::current().id())
    }
}
