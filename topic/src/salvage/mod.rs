//! Salvages topics from a damaged store into a new store: messages with their offsets and times, topics and groups with
//! their settings and numbers, the state of groups and durable subscriptions, and the newest sequences of publishers.
//!
//! Rows are copied unchanged, under their old numbers, after a check that they can be decoded. A missing row has a
//! meaning, so a lost page must not be mistaken for missing rows. Where a page is lost:
//! - messages leave a gap, which readers are told of (see [`crate::read`]);
//! - a topic continues after the highest offset that any remaining row refers to, and no known offset is reused;
//! - a group goes back to the point where it is sure of what was acknowledged (see [`groups`]): it delivers twice
//!   rather than not at all;
//! - sequences of publishers are taken from their messages (see [`publishers`]).
//!
//! A topic and its counter appear in the new store after everything else of the topic. Salvage reports every
//! difference, a line each.

mod delayed;
mod groups;
mod ids;
mod messages;
mod names;
mod publishers;
mod source;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use duramen_engine::{Error, Lost, Map, Result, SequenceState, Snapshot, Store};

use crate::error::TopicError;
use crate::group::Rule;
use crate::group::deferred_deletes;
use crate::handle::Topics;
use crate::home::Home;
use crate::name::check_name;
use crate::record::{TopicOptions, TopicRecord, millis};
use crate::registry::Event;
use crate::tables::{CREATES, GONE, NEXT_ID, REGISTRY, RULES, rule_key};
use crate::topics::TopicsOptions;
use messages::Kept;
use source::Source;
use writer::Writer;

/// Result of salvaging the topics of a damaged store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedTopics {
    /// Number of topics in the new store.
    pub topics: u64,
    /// Number of their messages.
    pub messages: u64,
    /// Number of their groups and durable subscriptions.
    pub groups: u64,
    /// What is missing or changed, a line each: topic by topic, in order.
    pub lost: Vec<String>,
}

/// Salvages the readable part of the topics of a damaged store (see `duramen_engine::Options::salvage`) into another
/// store, which has no topics. `maps` is the result of `Snapshot::salvage_maps`. Salvage removes from it the maps that
/// belong to topics and have lost their names. It records unreadable pages in `lost`. It reports the number of saved
/// messages to `progress` from time to time.
///
/// Offsets, times, leases and sequences stay the same. Unreadable messages are missing between others; a reader that
/// reaches them gets [`TopicError::Trimmed`]. A group that is not completely readable delivers acknowledged messages
/// again.
///
/// # Errors
/// [`TopicError::InvalidOptions`] when the new store has topics; errors of a commit there. Damage causes no errors.
pub fn salvage(
    snapshot: &Snapshot,
    maps: &mut Vec<Map>,
    target: &Store,
    lost: &Lost,
    progress: &mut dyn FnMut(u64),
) -> Result<SavedTopics> {
    let names = Lost::new();
    let Some(source) = Source::find(snapshot, maps, &names, lost)? else {
        let mut saved = SavedTopics::default();
        if !names.list().is_empty() {
            let line = "topics, if there were any: the names of their maps, and what would tell which they are";
            saved.lost.push(line.into());
        }
        return Ok(saved);
    };
    let topics = Topics::open_with(target, TopicsOptions::new().background(false))?;
    if !topics.list()?.is_empty() {
        let cause = "the store that topics are to be saved into has some already; name an empty one".into();
        return Err(TopicError::InvalidOptions { cause }.into());
    }
    let mut saving = Saving {
        source,
        home: topics.home().clone(),
        writer: Writer::new(target),
        saved: SavedTopics::default(),
        next_id: 0,
        are_records_lost: false,
        group_ids: BTreeSet::new(),
        gone: Vec::new(),
        rules: Vec::new(),
        made_anew: Vec::new(),
        progress,
    };
    saving.all()?;
    Ok(saving.saved)
}

/// The state of a salvage from one store to another.
struct Saving<'a> {
    source: Source<'a>,
    home: Home,
    writer: Writer,
    saved: SavedTopics,
    /// Above every number of a topic or group that was seen.
    next_id: u32,
    /// Whether there may have been topics without a remaining record.
    are_records_lost: bool,
    /// Groups whose records were saved.
    group_ids: BTreeSet<u32>,
    /// Groups of deleted topics.
    gone: Vec<Range<u32>>,
    /// Durable subscriptions to patterns, with their names.
    rules: Vec<(String, Rule)>,
    /// Topics and names of subscriptions and groups to create again, their rules, and where they begin.
    made_anew: Vec<(u32, String, Rule, u64)>,
    progress: &'a mut dyn FnMut(u64),
}

/// A topic that is being salvaged.
struct Found {
    id: u32,
    name: String,
    record: TopicRecord,
    /// `None`: the counter is lost.
    state: Option<SequenceState>,
}

impl Saving<'_> {
    fn all(&mut self) -> Result<()> {
        let named = self.named_topics()?;
        let states = self.source.counters()?;
        for found in self.with_those_whose_names_are_lost(named, &states)? {
            self.topic(&found)?;
        }
        self.groups_without_a_record()?;
        self.make_anew()?;
        self.delayed()?;
        self.ids()?;
        let next_id = self.next_id.max(crate::tables::FIRST_ID);
        self.writer
            .put(&self.home.tables.topics, NEXT_ID, &next_id.to_be_bytes())?;
        self.writer.flush()
    }

    fn lose(&mut self, line: String) {
        self.saved.lost.push(line);
    }

    /// Records that a number is in use.
    fn has_id(&mut self, id: u32) {
        self.next_id = self.next_id.max(id.saturating_add(1));
    }

    /// The topics with readable records, by number.
    fn named_topics(&mut self) -> Result<BTreeMap<u32, (String, TopicRecord)>> {
        let mut named = BTreeMap::new();
        let (mut next_id, mut creates, mut lost) = (0, false, Vec::new());
        let (mut rules, mut lost_rules, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let is_whole = self.source.rows(&self.source.tables.topics, b"", &mut |key, value| {
            if key == NEXT_ID {
                next_id = value.try_into().map_or(0, u32::from_be_bytes);
            } else if key == CREATES {
                creates = true;
            } else if key.starts_with(GONE) {
                // Rows of deleted groups: no other store needs them.
                gone.extend(deferred_deletes::decode(key, value).ok());
            } else if let Some(name) = key.strip_prefix(RULES) {
                match text(name).and_then(|_| Rule::decode(value)) {
                    Ok(rule) => rules.push((String::from_utf8_lossy(name).into_owned(), rule)),
                    Err(_) => lost_rules.push(format!(
                        "the pattern of the durable subscription or group {:?}: it stays with the topics that it has",
                        String::from_utf8_lossy(name)
                    )),
                }
            } else {
                match understood(key, value) {
                    Ok((name, record)) if !named.contains_key(&record.id) => {
                        drop(named.insert(record.id, (name, record)))
                    }
                    _ => lost.push(format!("the record of topic {:?}", String::from_utf8_lossy(key))),
                }
            }
            Ok(())
        })?;
        self.are_records_lost = !is_whole || !lost.is_empty();
        self.saved.lost.append(&mut lost);
        self.saved.lost.append(&mut lost_rules);
        if !is_whole {
            self.lose(
                "records of topics, and of durable subscriptions and groups over patterns, if there were more than are left, and whether topics are made when they are first used"
                    .into(),
            );
        }
        self.next_id = next_id;
        self.gone = gone;
        for (name, rule) in rules {
            self.has_id(rule.record.id);
            self.writer
                .put(&self.home.tables.topics, &rule_key(&name), &rule.encode())?;
            self.rules.push((name, rule));
        }
        if creates {
            self.writer.put(&self.home.tables.topics, CREATES, b"")?;
        }
        Ok(named)
    }

    /// Adds the topics that have lost their names but not everything else.
    fn with_those_whose_names_are_lost(
        &mut self,
        mut named: BTreeMap<u32, (String, TopicRecord)>,
        states: &BTreeMap<u32, SequenceState>,
    ) -> Result<Vec<Found>> {
        let mut ids: BTreeSet<u32> = named.keys().chain(states.keys()).copied().collect();
        ids.extend(self.source.ids(&self.source.tables.messages)?);
        ids.extend(self.source.ids(&self.source.tables.groups)?);
        ids.remove(&REGISTRY);
        let mut names: BTreeMap<u32, String> = named.iter().map(|(id, (name, _))| (*id, name.clone())).collect();
        if self.are_records_lost || ids.len() > names.len() {
            names.extend(self.names_in_the_registry(&ids, &names)?);
        }
        let mut found = Vec::new();
        for id in ids {
            self.has_id(id);
            let (name, record) = match named.remove(&id) {
                Some(named) => named,
                None => self.without_a_record(id, &names),
            };
            let state = states.get(&id).copied();
            found.push(Found {
                id,
                name,
                record,
                state,
            });
        }
        Ok(found)
    }

    /// Makes up the name and record of a topic whose record is lost.
    fn without_a_record(&mut self, id: u32, names: &BTreeMap<u32, String>) -> (String, TopicRecord) {
        let name = match names.get(&id) {
            Some(name) => {
                self.lose(format!("topic {name:?}: what it keeps, so it keeps everything"));
                name.clone()
            }
            None => {
                let name = free_name(id, names);
                self.lose(format!(
                    "the name of topic number {id}, and what it keeps: it is called {name:?} now, and keeps everything"
                ));
                name
            }
        };
        let created = millis(self.home.store.wall_clock());
        let options = TopicOptions::new();
        let record = TopicRecord {
            id,
            created,
            options,
            is_sparse: false,
        };
        (name, record)
    }

    fn topic(&mut self, found: &Found) -> Result<()> {
        let (mut publishers, after_publishers) = self.publishers(found)?;
        let kept = self.messages(found, publishers.as_mut())?;
        publishers.map_or(Ok(()), |publishers| self.put_publishers(found, &publishers))?;
        let after_groups = self.groups(found, &kept)?;
        let next = kept.next.max(after_publishers).max(after_groups);
        let state = self.goes_on(found, &kept, next);
        self.writer.flush()?;
        let tables = &self.home.tables;
        let sequence = tables.sequence(found.id, &found.name)?;
        self.home.store.transact(|tx| {
            tx.put(&tables.topics, found.name.as_bytes(), found.record.encode())?;
            tx.begin_sequence_at(&sequence, state)?;
            self.home.register(tx, Event::Created, found.id, &found.name)
        })?;
        self.saved.topics += 1;
        Ok(())
    }

    /// Determines where a topic continues: at its counter, or after the highest offset that any row refers to.
    fn goes_on(&mut self, found: &Found, kept: &Kept, next: u64) -> SequenceState {
        let name = &found.name;
        match found.state {
            Some(state) if state.next < next => {
                self.lose(format!(
                    "topic {name:?}: its counter was behind, at {}; the next message gets offset {next}",
                    state.next
                ));
            }
            Some(_) => {}
            None => self.lose(format!(
                "topic {name:?}: how far it had come; the next message gets offset {next}, which is higher than all that are known"
            )),
        }
        let state = found.state.unwrap_or_default();
        SequenceState {
            next: state.next.max(next),
            time: state.time.max(kept.time),
            bytes: state.bytes.max(kept.bytes),
        }
    }
}

/// Decodes the name and record of a topic.
fn understood(name: &[u8], record: &[u8]) -> Result<(String, TopicRecord)> {
    let name = text(name)?;
    let record = TopicRecord::decode(record)?;
    check_id(record.id)?;
    record.options.check()?;
    Ok((name, record))
}

/// Decodes the name of a topic or group.
fn text(name: &[u8]) -> Result<String> {
    let name = std::str::from_utf8(name).map_err(|_| Error::damaged("a name that is not UTF-8"))?;
    check_name(name)?;
    Ok(name.into())
}

/// Refuses numbers that no topic or group has.
fn check_id(id: u32) -> Result<()> {
    match id {
        REGISTRY | u32::MAX => Err(Error::damaged(format!("the number {id}, which nothing has"))),
        _ => Ok(()),
    }
}

/// Chooses a name for a topic that has lost its name.
fn free_name(id: u32, taken: &BTreeMap<u32, String>) -> String {
    let mut name = format!("topic-{id}-whose-name-is-lost");
    while taken.values().any(|taken| *taken == name) {
        name.push('-');
    }
    name
}
