//! Topics and a group against a model, with crashes at any call of the disk, on simulated time.
//!
//! After every crash the test checks that every message whose commit was acknowledged exists, in the same order,
//! without gaps. After a power cut every synced message exists, and a prefix of the others. The map that was written
//! with the messages agrees with the messages. At the end the group processes the rest. Then every message was
//! processed exactly once, because the work and the acknowledgement are one transaction.
//!
//! Each run draws the options of the group: order by key, a filter, many messages in flight or few, synced
//! acknowledgements, its own dead letters or the default. It also draws whether the group belongs to the topic or to a
//! pattern. A message that the filter skips is never processed. In an ordered group the steps of each key are processed
//! in their order, as long as none was given up and brought back.

use std::collections::HashSet;
use std::time::Duration;

use crate::common::{SECOND, check, text};
use duramen_engine::{Batch, Durability, Error, Map, Store, Transaction};
use duramen_io::SimDisk;
use duramen_topic::{
    Deliveries, Filter, Group, GroupOptions, Member, Message, Pattern, PatternGroup, PatternMember, Redriven, Start,
    Topic, TopicBatch, TopicError, TopicOptions, TopicWrites,
};
use fastrand::Rng;

/// What the program knows from returned calls.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Payloads of messages whose commits returned, in order.
    published: Vec<String>,
    /// How many of them survive a power cut.
    synced: usize,
    /// Messages of a commit that did not return.
    unknown: Vec<String>,
    number: u64,
    options: GroupOptions,
    /// Whether the group is a group over a pattern.
    has_pattern: bool,
    /// Whether a message may have overtaken others of its key: one was given up, or the group was reset.
    is_order_broken: bool,
}

const KEYS: u64 = 5;

/// The key of a message, derived from its payload. Some messages have none.
fn key_of(payload: &str) -> Option<String> {
    let number: u64 = payload.strip_prefix("message ")?.parse().ok()?;
    (!number.is_multiple_of(6)).then(|| format!("key {}", number % KEYS))
}

/// A message as it is published.
fn message<'m>(payload: &'m str, key: &'m Option<String>) -> Message<'m> {
    match key {
        Some(key) => Message::new(payload).key(key.as_bytes()),
        None => Message::new(payload),
    }
}

fn drawn(rng: &mut Rng) -> GroupOptions {
    let mut options = GroupOptions::new()
        .lease(10 * SECOND)
        .back_off(&[SECOND])
        .in_flight(if rng.u8(..3) == 0 { 20_000 } else { 40 })
        .order_by_key(rng.bool());
    options = match rng.u8(..3) {
        0 => options,
        _ => options.dead_letters("dead"),
    };
    if rng.u8(..3) == 0 {
        options = options.durability(Durability::Synced);
    }
    if rng.u8(..3) == 0 {
        options = options.filter(Filter::new().key("key *"));
    }
    options
}

struct Opened {
    store: Store,
    topic: Topic,
    group: AnyGroup,
    outbox: Map,
    counts: Map,
    /// The steps of each key in the order in which they were processed.
    steps: Map,
    members: Vec<AnyMember>,
    held: Vec<Deliveries>,
}

/// A group of the topic, or a group over a pattern that matches the topic.
enum AnyGroup {
    One(Group),
    Pattern(PatternGroup),
}

enum AnyMember {
    One(Member),
    Pattern(PatternMember),
}

impl AnyGroup {
    fn member(&self, name: &str) -> AnyMember {
        match self {
            AnyGroup::One(group) => AnyMember::One(group.member(name)),
            AnyGroup::Pattern(group) => AnyMember::Pattern(group.member(name)),
        }
    }

    fn redrive(&self, most: u64) -> Result<Redriven, Error> {
        match self {
            AnyGroup::One(group) => group.redrive(most),
            // In its topic too: both bring back each dead letter once.
            AnyGroup::Pattern(group) if most.is_multiple_of(2) => group.redrive(most),
            AnyGroup::Pattern(group) => group.at("orders")?.redrive(most),
        }
    }

    fn in_topic(&self) -> Group {
        match self {
            AnyGroup::One(group) => group.clone(),
            AnyGroup::Pattern(group) => group.at("orders").unwrap(),
        }
    }
}

impl AnyMember {
    fn receive(&mut self, messages: usize) -> Result<Option<Deliveries>, Error> {
        match self {
            AnyMember::One(member) => member.receive(messages, Duration::ZERO),
            AnyMember::Pattern(member) => member.receive(messages, Duration::ZERO),
        }
    }
}

fn open(disk: &SimDisk, model: &Model) -> Result<Opened, Error> {
    let store = crate::common::options().open_on(disk.platform())?;
    let topics = topics_of(&store)?;
    let topic = topics.ensure("orders", TopicOptions::new())?;
    let options = model.options.clone();
    let group = match model.has_pattern {
        true => {
            let pattern = Pattern::new("*").expect("a pattern");
            AnyGroup::Pattern(topics.ensure_group(&pattern, "group", Start::Beginning, options)?)
        }
        false => AnyGroup::One(topic.ensure_group("group", Start::Beginning, options)?),
    };
    Ok(Opened {
        group,
        outbox: store.map("outbox")?,
        counts: store.map("counts")?,
        steps: store.map("steps")?,
        topic,
        store,
        members: Vec::new(),
        held: Vec::new(),
    })
}

fn topics_of(store: &Store) -> Result<duramen_topic::Topics, Error> {
    duramen_topic::Topics::open_with(store, duramen_topic::TopicsOptions::new().background(false))
}

impl Model {
    fn next(&mut self) -> String {
        self.number += 1;
        format!("message {}", self.number)
    }

    /// Publishes, and records the result.
    fn publish(&mut self, count: usize, publish: impl FnOnce(&[String]) -> Result<(), Error>) -> Result<(), Error> {
        let payloads: Vec<String> = (0..count).map(|_| self.next()).collect();
        match publish(&payloads) {
            Ok(()) => {
                self.published.extend(payloads);
                Ok(())
            }
            Err(error) => {
                self.unknown = payloads;
                Err(error)
            }
        }
    }
}

/// One action of a program.
fn step(opened: &mut Opened, model: &mut Model, disk: &SimDisk, rng: &mut Rng) -> Result<(), Error> {
    match rng.u32(..100) {
        0..20 => model.publish(1, |payloads| {
            let key = key_of(&payloads[0]);
            opened.topic.publish(message(&payloads[0], &key)).map(|_| ())
        }),
        20..25 => {
            let count = rng.usize(1..20);
            model.publish(count, |payloads| {
                let keys: Vec<_> = payloads.iter().map(|payload| key_of(payload)).collect();
                let messages = payloads.iter().zip(&keys).map(|(payload, key)| message(payload, key));
                opened.topic.publish_all(messages).map(|_| ())
            })
        }
        25..32 => model.publish(2, |payloads| {
            let mut batch = Batch::new();
            for payload in payloads {
                batch.put(&opened.outbox, payload.as_bytes(), b"")?;
                let key = key_of(payload);
                batch.publish(&opened.topic, message(payload, &key))?;
            }
            opened.store.write(batch).map(|_| ())
        }),
        32..40 => model.publish(2, |payloads| {
            opened.store.transact(|tx| {
                for payload in payloads {
                    tx.put(&opened.outbox, payload.as_bytes(), b"")?;
                    let key = key_of(payload);
                    tx.publish(&opened.topic, message(payload, &key))?;
                }
                Ok(())
            })
        }),
        40..60 => {
            // Some members stay, some are dropped at once. They return their messages with the last delivery.
            if opened.members.is_empty() || rng.u8(..4) == 0 {
                opened.members.push(opened.group.member("member"));
            }
            if opened.members.len() > 2 {
                opened.members.remove(0);
            }
            let place = rng.usize(..opened.members.len());
            let received = opened.members[place].receive(rng.usize(1..15))?;
            opened.held.extend(received);
            Ok(())
        }
        60..85 if !opened.held.is_empty() => {
            let deliveries = opened.held.swap_remove(rng.usize(..opened.held.len()));
            settle(opened, deliveries, model, rng)
        }
        85..88 => opened.group.redrive(rng.u64(4..6)).map(|_| ()),
        88..92 => {
            opened.store.sync()?;
            model.synced = model.published.len();
            Ok(())
        }
        92..94 => opened
            .store
            .maintain()
            .inspect(|()| model.synced = model.published.len()),
        _ => {
            disk.advance(Duration::from_millis(rng.u64(..6_000)));
            if rng.u32(..10) == 0 {
                disk.set_wall(Duration::from_secs(1_800_000_000 + rng.u64(..100_000)));
            }
            Ok(())
        }
    }
}

/// Counts each message and acknowledges it, in one transaction; or leaves it to the next attempt.
fn settle(opened: &Opened, deliveries: Deliveries, model: &mut Model, rng: &mut Rng) -> Result<(), Error> {
    match rng.u32(..8) {
        0..2 => {
            let done = opened.store.transact(|tx| {
                for message in deliveries.messages().iter() {
                    process(tx, opened, message.payload())?;
                }
                tx.acknowledge_all(&deliveries)
            });
            return unless_lost(done);
        }
        2 => return unless_lost(deliveries.release()),
        3 => return unless_lost(opened.store.transact(|tx| tx.release(&deliveries))),
        _ => {}
    }
    // A member that leaves a message keeps the order by also leaving the later messages of its key.
    let mut left = HashSet::new();
    for delivery in deliveries {
        let key = key_of(&text(delivery.message().payload()));
        let choice = if left.contains(&key) { 3 } else { rng.u32(..14) };
        if matches!(choice, 2 | 3) && key.is_some() {
            left.insert(key);
        }
        let done = match choice {
            0 => delivery.retry("at random"),
            1 => {
                model.is_order_broken = true;
                delivery.give_up("at random")
            }
            2 => delivery.extend(rng.u32(1..20) * SECOND),
            3 => Ok(()),
            4 => delivery.release(),
            5 => opened.store.transact(|tx| tx.retry(&delivery, None, "at random")),
            _ => opened.store.transact(|tx| {
                process(tx, opened, delivery.message().payload())?;
                tx.acknowledge(&delivery)
            }),
        };
        unless_lost(done)?;
    }
    Ok(())
}

/// Processes a message: counts it, and appends it to the steps of its key.
fn process(tx: &mut Transaction, opened: &Opened, payload: &[u8]) -> Result<(), Error> {
    tx.add(&opened.counts, payload, 1)?;
    let payload = text(payload);
    let Some(key) = key_of(&payload) else { return Ok(()) };
    let mut steps = tx
        .get(&opened.steps, key.as_bytes())?
        .map_or(Vec::new(), |steps| steps.to_vec());
    steps.extend_from_slice(format!("{payload};").as_bytes());
    tx.put(&opened.steps, key.as_bytes(), &steps)
}

/// Accepts a lost lease: it may have expired, and another member settled the message.
fn unless_lost(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(error) => match TopicError::of(&error) {
            Some(TopicError::LeaseLost { .. } | TopicError::AlreadySettled { .. }) => Ok(()),
            _ => Err(error),
        },
        done => done,
    }
}

/// Compares the store with the model, and adopts the visible results of commits that did not return.
fn compare(opened: &Opened, model: &mut Model, is_power_cut: bool) {
    let found: Vec<String> = crate::common::all(&opened.topic)
        .into_iter()
        .map(|(_, payload)| payload)
        .collect();
    let least = if is_power_cut {
        model.synced
    } else {
        model.published.len()
    };
    assert!(found.len() >= least, "{} of {least} messages are left", found.len());
    let known = found.len().min(model.published.len());
    assert_eq!(found[..known], model.published[..known]);
    let more = &found[known..];
    assert!(more.is_empty() || more == model.unknown, "{more:?} {:?}", model.unknown);
    let snapshot = opened.store.snapshot().unwrap();
    let mut cursor = snapshot.range(&opened.outbox, ..).unwrap();
    while let Some((key, _)) = cursor.next().unwrap() {
        assert!(
            found.contains(&text(key)),
            "what was announced is not there: {}",
            text(key)
        );
    }
    let mut cursor = snapshot.range(&opened.counts, ..).unwrap();
    while let Some((key, value)) = cursor.next().unwrap() {
        assert_eq!(i64::from_be_bytes((*value).try_into().unwrap()), 1, "{}", text(key));
    }
    model.published = found;
    model.synced = if is_power_cut {
        model.published.len()
    } else {
        model.synced.min(model.published.len())
    };
    model.unknown.clear();
}

/// In an ordered group the steps of a key are processed in the order in which they were published.
fn check_order(opened: &Opened, model: &Model) {
    if !model.options.order_by_key || model.is_order_broken {
        return;
    }
    let snapshot = opened.store.snapshot().unwrap();
    let mut cursor = snapshot.range(&opened.steps, ..).unwrap();
    while let Some((key, steps)) = cursor.next().unwrap() {
        let steps = text(&steps);
        let place = |step: &str| model.published.iter().position(|payload| payload == step);
        let places: Vec<usize> = steps.split_terminator(';').map(|step| place(step).unwrap()).collect();
        assert!(places.is_sorted(), "{}: {steps}", text(key));
    }
}

/// Works until nothing is left to do.
fn drain(opened: &Opened, disk: &SimDisk, count: u64) {
    let mut member = opened.group.member("the last");
    for _ in 0..10_000 {
        opened.group.redrive(1000).unwrap();
        while let Some(deliveries) = member.receive(100).unwrap() {
            opened
                .store
                .transact(|tx| {
                    for message in deliveries.messages().iter() {
                        process(tx, opened, message.payload())?;
                    }
                    tx.acknowledge_all(&deliveries)
                })
                .unwrap();
        }
        if opened.group.in_topic().describe().unwrap().acknowledged == count {
            return;
        }
        disk.advance(5 * SECOND);
    }
    panic!(
        "the group does not get done: {:?} {:?}",
        opened.group.in_topic().describe(),
        opened.group.in_topic().pending()
    );
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let mut model = Model {
        options: drawn(&mut rng),
        has_pattern: rng.bool(),
        ..Model::default()
    };
    for _ in 0..rng.u32(1..6) {
        if rng.u32(..4) != 0 {
            disk.stop_after(rng.u64(..900));
        }
        let opened = open(&disk, &model).and_then(|mut opened| {
            for _ in 0..rng.u32(..400) {
                step(&mut opened, &mut model, &disk, &mut rng)?;
            }
            Ok(opened)
        });
        let is_power_cut = rng.bool();
        disk = crate::common::crash(&disk, is_power_cut, &mut rng);
        drop(opened);
        let again = open(&disk, &model).expect("the store opens again");
        compare(&again, &mut model, is_power_cut);
        check_order(&again, &model);
        check_counts(&again);
        check(&again.store);
    }
    let opened = open(&disk, &model).expect("the store opens at last");
    drain(&opened, &disk, model.published.len() as u64);
    let is_wanted = |payload: &&String| model.options.filter.is_empty() || key_of(payload).is_some();
    let wanted = model.published.iter().filter(is_wanted).count();
    assert_eq!(
        opened.counts.count().unwrap(),
        wanted as u64,
        "messages that were never processed"
    );
    compare(&opened, &mut model, false);
    check_order(&opened, &model);
    let group = opened.group.in_topic();
    assert!(group.pending().unwrap().is_empty());
    assert_eq!(group.describe().unwrap().pending, 0);
    check(&opened.store);
}

/// Asserts that the counts of a group match its rows.
fn check_counts(opened: &Opened) {
    let group = opened.group.in_topic();
    let (described, pending) = (group.describe().unwrap(), group.pending().unwrap());
    assert_eq!(described.pending, pending.len() as u64);
    let first = pending.first().map_or(described.next, |first| first.offset);
    assert_eq!(described.acknowledged, first);
}

#[test]
fn crashes_lose_no_message_and_process_none_twice() {
    crate::common::for_each_seed(run);
}
