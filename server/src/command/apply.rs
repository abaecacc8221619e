//! Applying entries to a store.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use duramen::topic::{Message, Ticket, TopicError, TopicWrites};
use duramen::{CommitFuture, Durability, Map, Result, Transaction, TransactionOptions};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Command, CreateMap, CreateTopic, Entry, Outcome};
use duramen_proto::v1::condition::Test;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::{self, CommitRequest, CommitResponse, Operation, OperationResult};
use tonic::Code;

use super::ENTRY_VERSION;
use super::applier::Applier;
use super::etcd;
use super::idempotency::Known;
use super::options::topic_options;
use super::stopped::{Ran, Stopped, outcome};
use super::token;
use super::trees::{self, OpenTrees};
use crate::refusal::refused;

/// What applying an entry led to.
pub struct Applied {
    /// The outcome of each command.
    pub outcomes: Vec<Outcome>,
    /// Resolves when the entry lasts as was asked.
    pub durable: CommitFuture,
}

impl Applier {
    /// Whether a command may have changed something when it is refused. A savepoint takes that back; each one makes the
    /// reads of the entry slower. One operation that writes one row changes nothing when it fails.
    pub fn takes_savepoint(command: &Command) -> bool {
        let is_one_row = |operations: &[Operation]| match operations {
            [] => true,
            [one] => match &one.change {
                Some(Operated::Publish(publish)) => publish.messages.len() <= 1,
                // What can be refused is refused before anything is written, but for what is buried.
                Some(Operated::Settle(settle)) => settle.offsets.len() <= 1 && is_done(settle),
                Some(Operated::Tree(operation)) => trees::is_whole(operation),
                _ => true,
            },
            _ => false,
        };
        match &command.change {
            Some(Change::Commit(commit)) => !(is_one_row(&commit.then) && is_one_row(&commit.otherwise)),
            Some(Change::Tree(command)) => !trees::is_whole_command(command),
            Some(Change::Etcd(command)) => !command.request.as_ref().is_none_or(etcd::changes_one_key),
            // It takes savepoints of its own where it needs them.
            Some(Change::Lease(_) | Change::EndSession(_) | Change::OpenSession(_) | Change::Extend(_)) => false,
            _ => true,
        }
    }

    /// Whether an entry ends with a command. Publishing follows the options of topics as they are committed, groups
    /// deliver what is committed, and trees are found among those that are committed. So what comes after a change of
    /// topics, groups or the list of trees belongs into the next entry.
    pub fn ends_entry(command: &Command) -> bool {
        match &command.change {
            Some(
                Change::CreateTopic(_)
                | Change::ConfigureTopic(_)
                | Change::DeleteTopic(_)
                | Change::CreateGroup(_)
                | Change::ConfigureGroup(_)
                | Change::DeleteGroup(_),
            ) => true,
            Some(Change::Tree(command)) => trees::is_of_the_tree_itself(command),
            _ => false,
        }
    }

    /// Applies an entry in one commit, which is visible when this returns. A command that is refused changes nothing,
    /// and the others take effect.
    ///
    /// # Errors
    /// `InvalidArgument` for an entry of another version, and for an entry that goes on after a command that ends it.
    /// When the store fails: then nothing of the entry took effect, unless the error says otherwise.
    pub fn apply(&mut self, entry: &Entry, durability: Durability) -> Result<Applied> {
        if entry.version != ENTRY_VERSION {
            let message = format!(
                "an entry has version {}, this server knows {ENTRY_VERSION}",
                entry.version
            );
            return Err(duramen::Reason::InvalidArgument(message).into());
        }
        let (last, all) = (
            entry.commands.iter().position(Applier::ends_entry),
            entry.commands.len(),
        );
        if let Some(last) = last.filter(|last| last + 1 < all) {
            let message = format!(
                "command {} of {all} ends its entry; put the next one into an entry of its own",
                last + 1
            );
            return Err(duramen::Reason::InvalidArgument(message).into());
        }
        let time = UNIX_EPOCH + Duration::from_micros(entry.time_us);
        let options = TransactionOptions::new()
            .exclusive()
            .guarded()
            .durability(durability)
            .commit_time(time)
            .shared_time(Duration::from_micros(entry.clock_us));
        let mut tx = self.store.begin(options)?;
        // A function of the entry alone, so that equal stores forget equal keys.
        if entry.commands.iter().any(|command| !command.idempotency_key.is_empty()) {
            self.keys.forget_old(&mut tx, entry.time_us)?;
        }
        let mut offsets = Offsets::default();
        let mut outcomes = Vec::with_capacity(entry.commands.len());
        for command in &entry.commands {
            outcomes.push(self.apply_one(&mut tx, command, entry, &mut offsets)?);
        }
        let durable = tx.commit_async()?;
        offsets.check();
        Ok(Applied { outcomes, durable })
    }

    fn apply_one(
        &mut self,
        tx: &mut Transaction,
        command: &Command,
        entry: &Entry,
        offsets: &mut Offsets,
    ) -> Result<Outcome> {
        let time_us = entry.time_us;
        if let Known::Answered(outcome) = self.keys.look_up(tx, command, time_us)? {
            return Ok(outcome);
        }
        let before = match Applier::takes_savepoint(command) {
            true => Some(tx.savepoint()?),
            false => None,
        };
        offsets.begin_command();
        let outcome = match self.run(tx, command, entry, offsets) {
            Ok(outcome) => outcome,
            // There is nothing to go back to. Alone, the command fails without the others.
            Err(Stopped::RefusedLate(_, error)) if before.is_none() => return Err(error),
            Err(Stopped::Refused(refusal) | Stopped::RefusedLate(refusal, _)) => {
                if let Some(before) = before {
                    tx.rollback_to(&before)?;
                    offsets.roll_back();
                }
                outcome(Led::Refused(refusal))
            }
            Err(Stopped::Failed(error)) => return Err(error),
        };
        self.keys.remember(tx, command, time_us, &outcome)?;
        Ok(outcome)
    }

    fn run(&mut self, tx: &mut Transaction, command: &Command, entry: &Entry, offsets: &mut Offsets) -> Ran {
        let Some(change) = &command.change else {
            return Err(refused(Code::InvalidArgument, "INVALID_ARGUMENT", "the command has no change").into());
        };
        match change {
            Change::Commit(commit) => return self.commit(tx, commit, entry.time_us, offsets),
            Change::CreateMap(create) => return self.create_map(tx, create),
            Change::ConfigureMap(configure) => {
                let map = self.map(tx, &configure.map)?;
                self.recorder
                    .configure(tx, &map, configure.keep_changes.unwrap_or_default())?;
            }
            Change::RenameMap(rename) => {
                self.maps.clear();
                tx.rename_map(&rename.map, &rename.new_name)?;
            }
            Change::DropMap(drop) => {
                self.maps.remove(&drop.map);
                if let Some(map) = tx.existing_map(&drop.map)?.filter(Map::is_guarded) {
                    self.recorder.end(tx, &map)?;
                }
                tx.drop_map(&drop.map)?;
            }
            Change::CreateTopic(create) => return self.create_topic(tx, create),
            Change::ConfigureTopic(configure) => {
                let options = topic_options(configure.options.as_ref());
                self.topics.configure_in(tx, &configure.topic, &options)?;
                self.known_topics.remove(&configure.topic);
            }
            Change::DeleteTopic(delete) => {
                self.known_topics.remove(&delete.topic);
                self.known_groups.retain(|(topic, _), _| *topic != delete.topic);
                self.topics.delete_in(tx, &delete.topic)?;
            }
            Change::CreateGroup(create) => return self.create_group(tx, create),
            Change::ConfigureGroup(configure) => return self.configure_group(tx, configure),
            Change::DeleteGroup(delete) => return self.delete_group(tx, &delete.topic, &delete.group),
            Change::PauseGroup(pause) => return self.pause_group(tx, (&pause.topic, &pause.group), pause.paused),
            Change::ResetGroup(reset) => {
                return self.reset_group(tx, (&reset.topic, &reset.group), reset.start.as_ref());
            }
            Change::Redrive(redrive) => return self.redrive(tx, redrive),
            Change::Lease(lease) => return self.lease(tx, lease, entry.clock_us / 1_000),
            Change::Extend(extend) => return self.extend(tx, extend),
            Change::OpenSession(open) => return self.open_session(tx, open),
            Change::EndSession(end) => return self.end_session(tx, end),
            Change::PutToken(put) => return Ok(outcome(Led::Changed(token::put(&self.tokens, tx, put)?))),
            Change::RevokeToken(revoke) => {
                return Ok(outcome(Led::Changed(token::revoke(&self.tokens, tx, revoke)?)));
            }
            Change::Tree(command) => return self.change_tree(tx, command),
            Change::Etcd(command) => return self.etcd(tx, command),
        }
        Ok(outcome(Led::Changed(true)))
    }

    fn create_map(&mut self, tx: &mut Transaction, create: &CreateMap) -> Ran {
        self.maps.remove(&create.map);
        let existing = tx.existing_map(&create.map)?;
        let is_new = existing.is_none();
        match (create.keep_changes, existing) {
            (None, _) => drop(tx.map(&create.map)?),
            (Some(limits), None) => {
                self.recorder.begin(tx, &create.map, limits)?;
            }
            (Some(limits), Some(map)) => {
                let kept = self.recorder.limits(tx, &map)?;
                if kept != Some(limits) {
                    let what = match kept {
                        None => "keeps no changes; create another map",
                        Some(_) => "has other limits for its changes; replace them with ConfigureMap",
                    };
                    let message = format!("there is already a map named {:?}, and it {what}", create.map);
                    return Err(refused(Code::AlreadyExists, "MAP_EXISTS", message).into());
                }
            }
        }
        Ok(outcome(Led::Changed(is_new)))
    }

    fn create_topic(&mut self, tx: &mut Transaction, create: &CreateTopic) -> Ran {
        let options = topic_options(create.options.as_ref());
        match self.topics.create_in(tx, &create.topic, &options) {
            Ok(()) => Ok(outcome(Led::Changed(true))),
            Err(error) => match TopicError::of(&error) {
                Some(TopicError::TopicExists { differences, .. }) if create.if_missing && differences.is_empty() => {
                    Ok(outcome(Led::Changed(false)))
                }
                _ => Err(error.into()),
            },
        }
    }

    fn commit(&mut self, tx: &mut Transaction, commit: &CommitRequest, time_us: u64, offsets: &mut Offsets) -> Ran {
        let mut succeeded = true;
        for condition in &commit.conditions {
            let map = self.map(tx, &condition.map)?;
            let value = tx.get_ref(&map, &condition.key)?;
            succeeded &= match &condition.test {
                Some(Test::ValueIs(expected)) => value.is_some_and(|value| value == expected[..]),
                Some(Test::Exists(exists)) => value.is_some() == *exists,
                None => {
                    let message = "a condition has no test; set value_is or exists";
                    return Err(refused(Code::InvalidArgument, "INVALID_ARGUMENT", message).into());
                }
            };
        }
        let mut trees = OpenTrees::default();
        for condition in &commit.node_conditions {
            succeeded &= self.node_holds(tx, &mut trees, condition)?;
        }
        let operations = if succeeded { &commit.then } else { &commit.otherwise };
        let mut results = Vec::with_capacity(operations.len());
        for operation in operations {
            let given = self.operate(tx, operation, time_us, offsets, &mut trees)?;
            results.push(OperationResult { result: Some(given) });
        }
        Ok(outcome(Led::Committed(CommitResponse {
            succeeded,
            results,
            revisions: trees.revisions(),
        })))
    }

    fn operate(
        &mut self,
        tx: &mut Transaction,
        operation: &Operation,
        time_us: u64,
        offsets: &mut Offsets,
        trees: &mut OpenTrees,
    ) -> std::result::Result<Given, Stopped> {
        let Some(change) = &operation.change else {
            return Err(refused(Code::InvalidArgument, "INVALID_ARGUMENT", "an operation has no change").into());
        };
        match change {
            Operated::Put(put) => {
                let map = self.map(tx, &put.map)?;
                match map.is_guarded() {
                    false => tx.put(&map, &put.key, &put.value)?,
                    true => self.recorder.put(tx, &map, (&put.key, &put.value), time_us)?,
                }
            }
            Operated::Delete(delete) => {
                let map = self.map(tx, &delete.map)?;
                match map.is_guarded() {
                    false => tx.delete(&map, &delete.key)?,
                    true => self.recorder.delete(tx, &map, &delete.key, time_us)?,
                }
            }
            Operated::DeleteRange(delete) => {
                let map = self.map(tx, &delete.map)?;
                if map.is_guarded() {
                    let range = delete.range.clone().unwrap_or_default();
                    self.recorder.delete_range(tx, &map, &range, time_us)?;
                    return Ok(Given::Applied(v1::Applied {}));
                }
                match &delete.range {
                    None => tx.clear(&map)?,
                    Some(v1::KeyRange { start, end: None }) => tx.delete_range(&map, &start[..]..)?,
                    Some(v1::KeyRange { start, end: Some(end) }) => tx.delete_range(&map, &start[..]..&end[..])?,
                }
            }
            Operated::Add(add) => {
                let map = self.map(tx, &add.map)?;
                match map.is_guarded() {
                    false => tx.add(&map, &add.key, add.delta)?,
                    true => self.recorder.add(tx, &map, (&add.key, add.delta), time_us)?,
                }
                let sum = tx.get_ref(&map, &add.key)?;
                let sum = sum.and_then(|sum| <[u8; 8]>::try_from(&sum[..]).ok());
                return Ok(Given::Sum(sum.map_or(0, i64::from_be_bytes)));
            }
            Operated::Publish(publish) => return self.publish(tx, publish, offsets),
            Operated::Settle(settle) => self.settle(tx, settle)?,
            Operated::Tree(operation) => return Ok(Given::Tree(self.operate_tree(tx, trees, operation)?)),
        }
        Ok(Given::Applied(v1::Applied {}))
    }

    fn publish(
        &mut self,
        tx: &mut Transaction,
        publish: &v1::PublishOperation,
        offsets: &mut Offsets,
    ) -> std::result::Result<Given, Stopped> {
        if publish.messages.is_empty() {
            let message = "there are no messages to publish; send at least one";
            return Err(refused(Code::InvalidArgument, "INVALID_ARGUMENT", message).into());
        }
        let (topic, next) = self.topic(tx, &publish.topic)?;
        // The transaction's own messages do not count in its view of the topic. Groups publish dead letters by themselves.
        let own = match offsets.total == tx.appended() {
            true => offsets.of(&publish.topic),
            false => tx.published_to(&topic),
        };
        let first = next + own;
        let tickets = tx.publish_all(&topic, publish.messages.iter().map(to_publish))?;
        offsets.add(&publish.topic, first, tickets);
        Ok(Given::FirstOffset(first))
    }
}

/// How many messages an entry has published to each topic.
#[derive(Default)]
struct Offsets {
    published: HashMap<String, u64>,
    /// To all of them.
    total: u64,
    /// What the command that runs has added.
    of_command: Vec<(String, u64)>,
    /// The first message of each operation, with the offset that its command was told.
    told: Vec<(Ticket, u64)>,
    told_before_command: usize,
}

impl Offsets {
    fn of(&self, topic: &str) -> u64 {
        self.published.get(topic).copied().unwrap_or(0)
    }

    fn begin_command(&mut self) {
        self.of_command.clear();
        self.told_before_command = self.told.len();
    }

    fn add(&mut self, topic: &str, first: u64, tickets: Vec<Ticket>) {
        let messages = tickets.len() as u64;
        *self.published.entry(topic.into()).or_default() += messages;
        self.total += messages;
        self.of_command.push((topic.into(), messages));
        self.told
            .extend(tickets.into_iter().next().map(|ticket| (ticket, first)));
    }

    /// Takes back what the command that runs has added.
    fn roll_back(&mut self) {
        for (topic, messages) in self.of_command.drain(..) {
            self.published
                .entry(topic)
                .and_modify(|published| *published -= messages);
            self.total -= messages;
        }
        self.told.truncate(self.told_before_command);
    }

    /// Compares the offsets that were told with those that the commit gave.
    ///
    /// # Panics
    /// When one is another: an answer would name the wrong message.
    fn check(&self) {
        for (ticket, told) in &self.told {
            assert_eq!(
                ticket.offset(),
                Some(*told),
                "the commit gave another offset than was told"
            );
        }
    }
}

/// Whether a settlement says that the messages are done.
fn is_done(settle: &v1::Settlement) -> bool {
    use v1::settlement::Verdict;
    matches!(settle.verdict, None | Some(Verdict::Acknowledge(_)))
}

fn to_publish(message: &v1::Message) -> Message<'_> {
    let mut published = Message::new(&message.payload);
    if !message.key.is_empty() {
        published = published.key(&message.key);
    }
    for header in &message.headers {
        published = published.header(&header.name, &header.value);
    }
    if message.expires_after_ms > 0 {
        published = published.expires_after(Duration::from_millis(message.expires_after_ms));
    }
    published
}
