//! Letting go of messages: which ones a topic does not have to keep, and removing them.
//!
//! Messages go from the front; from the middle only in topics that ask for it (see `sparse`). Times and positions grow with offsets, so each limit is a search by
//! halves. Nothing is trimmed that is not below every offset kept: a crash in between leaves a topic that keeps a little
//! more than it must.

use duramen_engine::{Batch, Durability, Result, Snapshot};

use crate::error::is_deleted;
use crate::group;
use crate::ids;
use crate::limits::TRIMMED_SINGLY_MAX;
use crate::publisher;
use crate::read::{Bounds, Reading};
use crate::record::{Retention, TopicOptions, millis};
use crate::sparse;
use crate::tables::{offset_key, offset_of};
use crate::topic::Topic;
use crate::topics::Home;

/// Trims every topic that has limits, until `is_over`.
pub(crate) fn trim_all(home: &Home, is_over: &dyn Fn() -> bool) -> Result<()> {
    let mut failed = None;
    for (name, record) in home.records("")? {
        if is_over() {
            return Ok(());
        }
        let topic = record.and_then(|record| home.topic(record.id, &name));
        match topic.and_then(|topic| trim_until(&topic, is_over)) {
            Ok(_) => {}
            // Meanwhile.
            Err(error) if is_deleted(&error) => {}
            // One topic that is damaged must not keep the others from being trimmed.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Lets go of what the topic does not have to keep. Returns how many messages went.
pub(crate) fn trim(topic: &Topic) -> Result<u64> {
    trim_until(topic, &|| false)
}

/// [`trim`], until `is_over`.
fn trim_until(topic: &Topic, is_over: &dyn Fn() -> bool) -> Result<u64> {
    let snapshot = topic.snapshot()?;
    let record = topic.home().same_record(&snapshot, topic.name(), topic.shared().id)?;
    publisher::forget_silent(topic, &snapshot, &record.options)?;
    ids::forget_old(topic, &record.options, is_over)?;
    let removed = sparse::maintain(topic, &record.options, is_over)?;
    if !record.options.has_limits() {
        return Ok(removed);
    }
    let snapshot = if removed > 0 { topic.snapshot()? } else { snapshot };
    let reading = Reading::new(topic, &snapshot);
    let bounds = reading.bounds()?;
    let kept = first_kept(&reading, &bounds, &record.options)?;
    if kept <= bounds.first {
        return Ok(removed);
    }
    sparse::forget(topic, &record.options, bounds.first..kept)?;
    remove(topic, &snapshot, bounds.first, kept)?;
    topic.trimmed_to(kept);
    Ok(removed + kept - bounds.first)
}

/// The first message that the topic has to keep.
pub(crate) fn first_kept(reading: &Reading<'_>, bounds: &Bounds, options: &TopicOptions) -> Result<u64> {
    let (first, next) = (bounds.first, bounds.state.next);
    let mut kept = first;
    let deletes = |limit: Option<u64>| limit.filter(|_| !options.discard_new);
    if let Some(messages) = deletes(options.keep_messages) {
        kept = kept.max(next.saturating_sub(messages));
    }
    if let Some(age) = options.keep_for {
        let now = millis(reading.topic.home().store.wall_clock());
        kept = kept.max(reading.first_at(kept..next, now.saturating_sub(millis(age)))?);
    }
    if let Some(bytes) = deletes(options.keep_bytes) {
        let position = bounds.state.bytes.saturating_sub(bytes);
        kept = reading.first_with(kept..next, |message| message.position >= position)?;
    }
    let is_protected = matches!(options.retention, Retention::ProtectGroups { .. });
    if (options.drop_acknowledged || is_protected)
        && let Some(floor) = group::acknowledged_by_all(reading)?
    {
        if is_protected {
            kept = kept.min(floor).max(first);
        }
        if options.drop_acknowledged {
            kept = kept.max(floor);
        }
    }
    Ok(kept)
}

/// Removes the messages from `first` to before `kept`.
fn remove(topic: &Topic, snapshot: &Snapshot, first: u64, kept: u64) -> Result<()> {
    let shared = topic.shared();
    let (low, high) = (offset_key(shared.id, first), offset_key(shared.id, kept));
    let (heads, bodies) = (shared.sequence.heads(), shared.sequence.bodies());
    let mut batch = Batch::new();
    // What is not durable yet is removed again after a crash.
    batch.durability(Durability::Written);
    if kept - first <= TRIMMED_SINGLY_MAX {
        (first..kept).try_for_each(|offset| batch.delete(heads, &offset_key(shared.id, offset)))?;
        let mut long = snapshot.range(bodies, &low[..]..&high[..])?;
        while let Some((key, _)) = long.next()? {
            batch.delete(bodies, &offset_key(shared.id, offset_of(key)))?;
        }
    } else {
        batch.delete_range(heads, &low[..]..&high[..])?;
        if snapshot.range(bodies, &low[..]..&high[..])?.next()?.is_some() {
            batch.delete_range(bodies, &low[..]..&high[..])?;
        }
    }
    topic.home().store.write(batch).map(|_| ())
}

#[cfg(test)]
mod tests {
    use duramen_engine::{Maintenance, Options, Reason};
    use duramen_io::SimDisk;

    use super::*;
    use crate::topics::{Topics, TopicsOptions};

    #[test]
    fn a_topic_that_is_damaged_keeps_no_other_from_being_trimmed() {
        let disk = SimDisk::new(1);
        let store = Options::new()
            .maintenance(Maintenance::Manual)
            .open_on(disk.platform())
            .unwrap();
        let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
        let options = TopicOptions::new().keep_bytes(60);
        let made = ["a", "b", "c"].map(|name| {
            let topic = topics.create(name, options.clone()).unwrap();
            topic.publish_all([b"message"; 8]).unwrap();
            topic
        });
        let home = topics.home();
        home.tables.topics.put(b"a", b"no record").unwrap();
        // The search for the first message that is kept meets these.
        let b = made[1].shared();
        (0..8).for_each(|offset| {
            home.tables
                .messages
                .put(&offset_key(b.id, offset), b"no message")
                .unwrap()
        });
        let error = trim_all(home, &|| false).expect_err("what is wrong is told");
        assert!(matches!(error.reason(), Reason::Damaged { .. }), "{error}");
        let kept = made[2].describe().unwrap();
        assert!((1..8).contains(&kept.first), "{kept:?}");
        assert_eq!(topics.list().unwrap(), ["a", "b", "c"]);
    }
}
