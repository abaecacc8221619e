//! A guard that keeps a lease from ending during long work.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duramen_engine::{Error, Result};

use super::Group;
use super::membership::LeasedBatch;
use crate::lock::locked;
use crate::timer::Timed;

/// Extends the lease of delivered messages, every third of a lease, until the guard is dropped. For work of unknown
/// length. When the process dies, the messages still go to other members at once.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let store = duramen_engine::Store::open(directory.path())?;
/// # use duramen_topic::{GroupOptions, Start, TopicOptions, Topics};
/// # use std::time::Duration;
/// # let orders = Topics::open(&store)?.create("orders", TopicOptions::new())?;
/// # let group = orders.ensure_group("packers", Start::Beginning, GroupOptions::new())?;
/// # orders.publish(b"12 apples")?;
/// # let mut member = group.member("worker 1");
/// let deliveries = member.receive(10, Duration::from_secs(1))?.unwrap();
/// let guard = deliveries.keep_alive()?;
/// // Work that takes longer than the lease goes here.
/// deliveries.acknowledge()?;
/// drop(guard);
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the lease is extended only as long as the guard is there"]
pub struct KeepAlive {
    kept: Arc<ExtendedLease>,
}

#[derive(Debug)]
struct ExtendedLease {
    batch: Arc<LeasedBatch>,
    offset: u64,
    lease: Duration,
    failed: Mutex<Option<Arc<Error>>>,
}

impl KeepAlive {
    pub(super) fn begin(batch: &Arc<LeasedBatch>, offset: u64) -> Result<KeepAlive> {
        let topic = &batch.group().topic;
        let record = batch.group().record(&topic.snapshot()?)?;
        let lease = Group::options_of(&record).lease;
        batch.extend(offset, lease)?;
        let kept = Arc::new(ExtendedLease {
            batch: batch.clone(),
            offset,
            lease,
            failed: Mutex::new(None),
        });
        let weak = Arc::downgrade(&kept);
        topic.home().timer.at(kept.next(), weak)?;
        Ok(KeepAlive { kept })
    }

    /// Why the last extension failed; `None`: it succeeded. After [`crate::TopicError::LeaseLost`] the guard does not
    /// try again, and the member should drop the work.
    pub fn failed(&self) -> Option<Arc<Error>> {
        locked(&self.kept.failed).clone()
    }
}

impl ExtendedLease {
    fn next(&self) -> Instant {
        Instant::now() + (self.lease / 3).max(Duration::from_millis(1))
    }
}

impl Timed for ExtendedLease {
    fn ring(&self) -> Option<Instant> {
        let extended = self.batch.extend(self.offset, self.lease);
        let failed = extended.err();
        let is_over = failed.as_ref().is_some_and(super::is_over);
        *locked(&self.failed) = failed.map(Arc::new);
        (!is_over).then(|| self.next())
    }
}
