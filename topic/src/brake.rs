//! Slowing publishers down to a subscriber that wants them to wait, whatever process they are in.
//!
//! A publisher waits before its commit, outside of all locks, and at most for a time that the subscriber gave. Publishers pay a
//! load of a word that hardly ever changes while no subscriber wants it. Who waits for whom is in the store's shared memory:
//! see [`duramen_engine::Brake`].

use std::time::Duration;

use duramen_engine::{BRAKES_MAX, Brake, Result};

use crate::error::TopicError;
use crate::topic::Topic;

impl Topic {
    /// Holds publishers back until the brake is dropped.
    pub(crate) fn brake(&self, position: u64, max: u64, timeout: Duration) -> Result<Brake> {
        let brake = self
            .home()
            .store
            .brake(self.shared().id.into(), position, max, timeout)?;
        brake.ok_or_else(|| TopicError::TooManyHoldBack { max: BRAKES_MAX }.into())
    }

    /// Called by publishers before they commit.
    #[inline]
    pub(crate) fn wait_for_brakes(&self) -> Result<()> {
        let waited = self
            .home()
            .store
            .wait_for_brakes(self.shared().id.into(), || self.next())?;
        waited.map_err(|held| {
            TopicError::PublisherHeldBack {
                topic: self.name().into(),
                lag: held.lag,
                waited_millis: held.waited.as_millis() as u64,
            }
            .into()
        })
    }
}
