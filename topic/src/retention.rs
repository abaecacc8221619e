//! Retention: which messages a topic no longer has to keep, and deleting them.
//!
//! Messages are deleted from the front; from the middle only in topics that ask for it (see `sparse`). Times and
//! positions grow with offsets, so each limit is a binary search. Only messages below all kept offsets are trimmed: a
//! crash in between leaves a topic that keeps a little more than it must.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use duramen_engine::{Batch, Durability, Map, Result, Snapshot, Transaction, TransactionOptions};

use crate::error::is_deleted;
use crate::group;
use crate::handle::Topic;
use crate::home::Home;
use crate::ids;
use crate::limits::TRIMMED_SINGLY_MAX;
use crate::publisher_rows;
use crate::read::{Bounds, Reading};
use crate::record::{Retention, TopicOptions, TopicRecord, millis};
use crate::registry::{Event, News};
use crate::sparse;
use crate::tables::{offset_key, offset_of};

/// How often the background checks the records of all topics, and publishers that were silent for too long. A topic
/// that remembers publishers for a shorter time is checked more often.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(3600);
/// Number of checks for silent publishers within the time for which a topic remembers them.
const LOOKS_AT_PUBLISHERS: u32 = 8;
/// Maximum topics whose publishers one round checks.
const TOPICS_AT_ONCE: usize = 1_000;

/// State of the background between its rounds. It makes the cost of a round depend on the topics with something to
/// trim.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// How often the registry had rung before the last check of it, and the entry where the next check begins.
    rings: Option<u64>,
    seen: Option<u64>,
    /// Time of the next check of everything.
    all_due: Duration,
    /// Topics with limits, by id.
    limited: BTreeMap<u32, String>,
    /// For topics that remember publishers for a short time: that time, and the time of the next check of their
    /// publishers.
    brief: BTreeMap<u32, (Duration, Duration)>,
    /// Topics whose publishers were not checked since the last check of everything, and the position in the last of
    /// them.
    publishers_due: Vec<(u32, Duration)>,
    resume: Option<Vec<u8>>,
    /// Number of topics checked so far.
    #[cfg(test)]
    looks: u64,
}

impl Rounds {
    /// Trims every topic that has something to trim, until `is_over`.
    pub(crate) fn trim(&mut self, home: &Home, is_over: &dyn Fn() -> bool) -> Result<()> {
        // Damage in one place must not prevent trimming elsewhere.
        let failed = home.run_deferred_deletes(is_over).err();
        let failed = failed.or(home.trim_registry(is_over).err());
        let mut failed = failed.or(self.learn(home)?);
        for (id, name) in &self.limited {
            if is_over() {
                return Ok(());
            }
            #[cfg(test)]
            (self.looks += 1);
            let trimmed = home.topic(*id, name).and_then(|topic| trim_until(&topic, is_over));
            // A topic that is deleted meanwhile has nothing to trim.
            let trimmed = trimmed.err().filter(|error| !is_deleted(error));
            failed = failed.or(trimmed);
        }
        let forgotten = self.forget_publishers(home, is_over);
        failed.or(forgotten.err()).map_or(Ok(()), Err)
    }

    fn note_look(&mut self) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
    }

    /// Finds out which topics have something to trim, if any process changed that. Returns the error of a damaged
    /// record.
    fn learn(&mut self, home: &Home) -> Result<Option<duramen_engine::Error>> {
        let now = home.store.monotonic_clock();
        let is_all_due = now >= self.all_due;
        // Before the snapshot, see `registry_rings`.
        let rings = home.registry_rings();
        if self.rings == Some(rings) && !is_all_due {
            return Ok(None);
        }
        let snapshot = home.store.snapshot()?;
        let (news, next) = home.news(&snapshot, self.seen.filter(|_| !is_all_due))?;
        let mut failed = None;
        match news {
            News::Everything => {
                let brief = std::mem::take(&mut self.brief);
                self.limited.clear();
                // A slow check of publishers continues before the next check begins.
                let begins_look = is_all_due && self.publishers_due.is_empty();
                for (name, record) in home.records_in(&snapshot, "")? {
                    self.note_look();
                    match record {
                        Ok(record) => {
                            if begins_look && let Some(remembered) = record.options.remember_publishers_for {
                                self.publishers_due.push((record.id, remembered));
                            }
                            self.note(record, name, now);
                        }
                        Err(error) => failed = failed.or(Some(error)),
                    }
                }
                self.all_due = now + LOOK_AT_ALL_EVERY;
                // Checks that were due before stay due.
                for (id, (remembered, due)) in &mut self.brief {
                    let before = brief.get(id).filter(|before| before.0 == *remembered);
                    *due = before.map_or(*due, |before| before.1);
                }
            }
            News::Of(news) => {
                for (event, id, name) in news {
                    if event == Event::Exists {
                        continue;
                    }
                    self.note_look();
                    self.limited.remove(&id);
                    self.brief.remove(&id);
                    match home.existing_record(&snapshot, &name) {
                        Ok(Some(record)) if record.id == id => self.note(record, name, now),
                        Ok(_) => {}
                        Err(error) => failed = failed.or(Some(error)),
                    }
                }
            }
        }
        (self.rings, self.seen) = (Some(rings), Some(next));
        Ok(failed)
    }

    /// Records what a topic needs.
    fn note(&mut self, record: TopicRecord, name: String, now: Duration) {
        if record.options.needs_upkeep() {
            self.limited.insert(record.id, name);
        }
        let remembered = record.options.remember_publishers_for;
        if let Some(remembered) = remembered.filter(|remembered| *remembered < LOOK_AT_ALL_EVERY * LOOKS_AT_PUBLISHERS)
        {
            self.brief.insert(record.id, (remembered, now));
        }
    }

    /// Removes publishers that were silent for too long, limited to one round's share.
    fn forget_publishers(&mut self, home: &Home, is_over: &dyn Fn() -> bool) -> Result<()> {
        let now = home.store.monotonic_clock();
        let mut failed = None;
        for (id, (remembered, due)) in &mut self.brief {
            if is_over() {
                return Ok(());
            }
            if now >= *due {
                *due = now + *remembered / LOOKS_AT_PUBLISHERS;
                failed = failed.or(publisher_rows::forget_silent(home, *id, *remembered).err());
            }
        }
        for _ in 0..TOPICS_AT_ONCE {
            let Some((id, remembered)) = self.publishers_due.last().copied().filter(|_| !is_over()) else {
                break;
            };
            match publisher_rows::forget_part(home, id, remembered, self.resume.take()) {
                Ok(Some(rest)) => {
                    self.resume = Some(rest);
                    break;
                }
                Ok(None) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
            self.publishers_due.pop();
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Topic {
    /// Deletes now what retention no longer keeps. Otherwise the background deletes it. Returns the number of deleted
    /// messages.
    ///
    /// # Errors
    /// [`duramen_engine::Reason::TopicDeleted`], and those of a commit.
    pub fn trim(&self) -> Result<u64> {
        trim(self)
    }
}

/// Deletes what the topic no longer has to keep, and what deleted topics left behind. Returns the number of deleted
/// messages.
fn trim(topic: &Topic) -> Result<u64> {
    let home = topic.home();
    home.run_deferred_deletes(&|| false)?;
    home.trim_registry(&|| false)?;
    let record = home.same_record(&topic.snapshot()?, topic.name(), topic.shared().id)?;
    if let Some(remembered) = record.options.remember_publishers_for {
        publisher_rows::forget_silent(home, record.id, remembered)?;
    }
    trim_until(topic, &|| false)
}

/// Deletes messages and ids that the topic no longer has to keep, until `is_over`.
fn trim_until(topic: &Topic, is_over: &dyn Fn() -> bool) -> Result<u64> {
    let snapshot = topic.snapshot()?;
    let record = topic.home().same_record(&snapshot, topic.name(), topic.shared().id)?;
    ids::forget_old(topic, &record.options, is_over)?;
    let removed = sparse::maintain(topic, &record.options, is_over)?;
    if !record.options.has_limits() {
        return Ok(removed);
    }
    let trimmed = match record.options.asks_groups() {
        true => remove_what_groups_allow(topic, &record.options)?,
        false => remove_what_limits_allow(topic, &record.options)?,
    };
    topic.trimmed_to(trimmed.end);
    Ok(removed + (trimmed.end - trimmed.start))
}

/// Deletes messages regardless of groups. Returns their offsets.
fn remove_what_limits_allow(topic: &Topic, options: &TopicOptions) -> Result<Range<u64>> {
    let snapshot = topic.snapshot()?;
    let trimmed = trimmable(topic, &snapshot, options)?;
    if !trimmed.is_empty() {
        sparse::forget(topic, options, trimmed.clone())?;
        let mut batch = Batch::new();
        // After a crash, deletions that were not durable are made again.
        batch.durability(Durability::Written);
        remove(topic, &snapshot, &trimmed, &mut batch)?;
        topic.home().store.write(batch)?;
    }
    Ok(trimmed)
}

/// Deletes messages that groups are done with. A group that opens such a message again meanwhile, or is created at it,
/// causes a conflict. Then this checks again, and keeps the message.
fn remove_what_groups_allow(topic: &Topic, options: &TopicOptions) -> Result<Range<u64>> {
    let written = TransactionOptions::new().durability(Durability::Written);
    // This makes commits of its own, so it comes first. What else can be deleted meanwhile waits for the next time.
    let forgotten = trimmable(topic, &topic.snapshot()?, options)?;
    sparse::forget(topic, options, forgotten.clone())?;
    topic.home().store.transact_with(written, |tx| {
        // Newer than the snapshot of the transaction, since which no message may have been opened.
        let snapshot = topic.snapshot()?;
        let trimmed = trimmable(topic, &snapshot, options)?;
        let end = trimmed.end.min(forgotten.end).max(trimmed.start);
        let trimmed = trimmed.start..end;
        if !trimmed.is_empty() {
            group::depend_on_openings(tx, &Reading::new(topic, &snapshot))?;
            remove(topic, &snapshot, &trimmed, tx)?;
        }
        Ok(trimmed)
    })
}

/// Messages that the topic no longer has to keep.
fn trimmable(topic: &Topic, snapshot: &Snapshot, options: &TopicOptions) -> Result<Range<u64>> {
    let reading = Reading::new(topic, snapshot);
    let bounds = reading.bounds()?;
    let kept = first_kept(&reading, &bounds, options)?.max(bounds.first);
    Ok(bounds.first..kept)
}

/// The first message that the topic has to keep.
pub(crate) fn first_kept(reading: &Reading<'_>, bounds: &Bounds, options: &TopicOptions) -> Result<u64> {
    let (first, next) = (bounds.first, bounds.state.next);
    let mut kept = first;
    let deletes = |limit: Option<u64>| limit.filter(|_| !options.discard_new);
    if let Some(messages) = deletes(options.keep_messages) {
        kept = kept.max(reading.newest(messages, first..next)?);
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
    if options.asks_groups()
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

/// Accepts deletions: a batch or a transaction.
trait Deletes {
    fn delete(&mut self, map: &Map, key: &[u8]) -> Result<()>;

    fn delete_range(&mut self, map: &Map, low: &[u8], high: &[u8]) -> Result<()>;
}

impl Deletes for Batch {
    fn delete(&mut self, map: &Map, key: &[u8]) -> Result<()> {
        Batch::delete(self, map, key)
    }

    fn delete_range(&mut self, map: &Map, low: &[u8], high: &[u8]) -> Result<()> {
        Batch::delete_range(self, map, low..high)
    }
}

impl Deletes for Transaction {
    fn delete(&mut self, map: &Map, key: &[u8]) -> Result<()> {
        Transaction::delete(self, map, key)
    }

    fn delete_range(&mut self, map: &Map, low: &[u8], high: &[u8]) -> Result<()> {
        Transaction::delete_range(self, map, low..high)
    }
}

/// Removes messages from the front.
fn remove(topic: &Topic, snapshot: &Snapshot, offsets: &Range<u64>, deletes: &mut dyn Deletes) -> Result<()> {
    let shared = topic.shared();
    let (low, high) = (offset_key(shared.id, offsets.start), offset_key(shared.id, offsets.end));
    let (heads, bodies) = (shared.sequence.heads(), shared.sequence.bodies());
    let mut long = snapshot.range(bodies, &low[..]..&high[..])?;
    if offsets.end - offsets.start <= TRIMMED_SINGLY_MAX {
        for offset in offsets.clone() {
            deletes.delete(heads, &offset_key(shared.id, offset))?;
        }
        while let Some((key, _)) = long.next()? {
            deletes.delete(bodies, &offset_key(shared.id, offset_of(key)))?;
        }
        return Ok(());
    }
    deletes.delete_range(heads, &low, &high)?;
    match long.next()? {
        Some(_) => deletes.delete_range(bodies, &low, &high),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use duramen_engine::{Maintenance, Options, Reason};
    use duramen_io::SimDisk;

    use super::*;
    use crate::group::GroupOptions;
    use crate::handle::Topics;
    use crate::name::Pattern;
    use crate::read::Start;
    use crate::topics::TopicsOptions;

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
        // The search for the first kept message meets these.
        let b = made[1].shared();
        (0..8).for_each(|offset| {
            home.tables
                .messages
                .put(offset_key(b.id, offset), b"no message")
                .unwrap()
        });
        let error = Rounds::default()
            .trim(home, &|| false)
            .expect_err("what is wrong is told");
        assert!(matches!(error.reason(), Reason::Damaged { .. }), "{error}");
        let kept = made[2].describe().unwrap();
        assert!((1..8).contains(&kept.first), "{kept:?}");
        assert_eq!(topics.list().unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn a_round_looks_only_at_topics_that_have_limits_and_learns_of_others_from_all_processes() {
        let disk = SimDisk::new(2);
        let open = || {
            let options = Options::new().maintenance(Maintenance::Manual);
            let store = options.open_on(disk.platform()).unwrap();
            Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap()
        };
        let (one, other) = (open(), open());
        for number in 0..500 {
            one.create(&format!("topic.{number}"), TopicOptions::new()).unwrap();
        }
        let (home, mut rounds) = (one.home(), Rounds::default());
        let looks = |rounds: &mut Rounds| {
            let before = rounds.looks;
            rounds.trim(home, &|| false).unwrap();
            rounds.looks - before
        };
        assert_eq!(looks(&mut rounds), 500);
        assert_eq!(looks(&mut rounds), 0, "no topic has limits");
        let limited = other.topic("topic.7").unwrap();
        limited.publish_all([b"message"; 8]).unwrap();
        limited.configure(TopicOptions::new().keep_messages(3)).unwrap();
        assert_eq!(looks(&mut rounds), 2, "one record, and the topic");
        assert_eq!(limited.describe().unwrap().messages(), 3);
        limited.publish_all([b"message"; 8]).unwrap();
        assert_eq!(looks(&mut rounds), 1);
        assert_eq!(limited.describe().unwrap().messages(), 3);
        other.delete("topic.7").unwrap();
        assert_eq!((looks(&mut rounds), looks(&mut rounds)), (1, 0));
        // From time to time it checks everything, whatever the registry records.
        disk.advance(LOOK_AT_ALL_EVERY);
        assert_eq!((looks(&mut rounds), looks(&mut rounds)), (499, 0));
    }

    #[test]
    fn publishers_that_are_silent_are_forgotten_in_the_background() {
        let disk = SimDisk::new(3);
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(disk.platform()).unwrap();
        let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
        let minute = Duration::from_secs(60);
        let brief = TopicOptions::new().remember_publishers_for(Some(minute));
        let brief = topics.create("brief", brief).unwrap();
        let default = topics.create("default", TopicOptions::new()).unwrap();
        for topic in [&brief, &default] {
            topic.publisher("till").unwrap().publish(1, b"message").unwrap();
        }
        let is_known = |topic: &Topic| topic.publisher("till").unwrap().newest().unwrap().is_some();
        let mut rounds = Rounds::default();
        let mut round = |after: Duration| {
            disk.advance(after);
            rounds.trim(topics.home(), &|| false).unwrap();
            (is_known(&brief), is_known(&default))
        };
        assert_eq!(round(minute / 2), (true, true));
        assert_eq!(round(minute), (false, true));
        assert_eq!(round(minute), (false, true));
        assert_eq!(round(minute * 60 * 24 * 8), (false, false));
    }

    #[test]
    fn whatever_opens_messages_again_is_a_conflict_for_retention_that_asks_groups() {
        let disk = SimDisk::new(5);
        let options = Options::new().maintenance(Maintenance::Manual);
        let store = options.open_on(disk.platform()).unwrap();
        let topics = Topics::open_with(&store, TopicsOptions::new().background(false)).unwrap();
        let topic = topics.create("orders", TopicOptions::new()).unwrap();
        topic.publish_all([b"message"; 4]).unwrap();
        let group = topic
            .create_group("group", Start::Beginning, GroupOptions::new())
            .unwrap();
        let reader = topic.durable("reader", Start::Beginning).unwrap();
        let pattern = Pattern::new("orders").unwrap();
        let readers = topics.durable(&pattern, "readers", Start::Beginning).unwrap();
        let mut member = group.member("member");
        let mut received = member.receive(4, Duration::ZERO).unwrap().into_iter().flatten();
        received.next().unwrap().give_up("no").unwrap();
        let trims_beside = |act: &dyn Fn()| {
            let mut tx = store.begin(TransactionOptions::new()).unwrap();
            let snapshot = topic.snapshot().unwrap();
            group::depend_on_openings(&mut tx, &Reading::new(&topic, &snapshot)).unwrap();
            remove(&topic, &snapshot, &(0..1), &mut tx).unwrap();
            act();
            tx.commit().map(drop)
        };
        let acts: [(&str, &dyn Fn()); 5] = [
            ("redrive", &|| assert_eq!(group.redrive(9).unwrap().delivered, 1)),
            ("reset", &|| group.reset(Start::Beginning).unwrap()),
            ("reset of a reader", &|| reader.reset(Start::Beginning).unwrap()),
            ("reset of readers", &|| readers.reset(Start::Beginning).unwrap()),
            ("a new group", &|| drop(topic.durable("new", Start::Beginning).unwrap())),
        ];
        for (name, act) in acts {
            let error = trims_beside(act).expect_err(name);
            assert!(matches!(error.reason(), Reason::Conflict { .. }), "{name}: {error}");
        }
        // Ordinary work of groups causes no conflict.
        trims_beside(&|| reader.acknowledge_through(0).unwrap()).unwrap();
        let next = group.member("next").receive(1, Duration::ZERO).unwrap();
        trims_beside(&|| next.iter().for_each(|next| next.acknowledge().unwrap())).unwrap();
    }
}
