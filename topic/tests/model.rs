//! Topics and a group against a model, with crashes at any call of the disk, on simulated time.
//!
//! What is checked after every crash: every message whose commit was acknowledged is there (after a power cut: every one that
//! was synced, and of the others a beginning), in the same order, without gaps; the map that was written with the messages
//! says the same as the messages. At the end the group works off what is left, and then every message was processed exactly
//! once, because the work and the acknowledgement are one transaction.

mod common;

use std::time::Duration;

use common::{SECOND, check, options, text};
use duramen_engine::{Batch, Error, Map, Store};
use duramen_io::SimDisk;
use duramen_topic::{Deliveries, Group, GroupOptions, Start, Topic, TopicBatch, TopicError, TopicOptions, TopicWrites};
use fastrand::Rng;

/// What the program was told.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Payloads of messages whose commits returned, in order.
    published: Vec<String>,
    /// How many of them survive a power cut.
    synced: usize,
    /// What a commit was to publish that did not return.
    unknown: Vec<String>,
    number: u64,
}

struct Opened {
    store: Store,
    topic: Topic,
    group: Group,
    outbox: Map,
    counts: Map,
    held: Vec<Deliveries>,
}

fn open(disk: &SimDisk) -> Result<Opened, Error> {
    let store = options().open_on(disk.platform())?;
    let topic = topics_of(&store)?.ensure("orders", TopicOptions::new())?;
    let group_options = GroupOptions::new()
        .lease(10 * SECOND)
        .back_off(&[SECOND])
        .in_flight(40)
        .dead_letters("dead");
    Ok(Opened {
        group: topic.ensure_group("group", Start::Beginning, group_options)?,
        outbox: store.map("outbox")?,
        counts: store.map("counts")?,
        topic,
        store,
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

    /// Publishes, and notes what came of it.
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

/// One thing that a program does.
fn step(opened: &mut Opened, model: &mut Model, disk: &SimDisk, rng: &mut Rng) -> Result<(), Error> {
    match rng.u32(..100) {
        0..20 => model.publish(1, |payloads| opened.topic.publish(&payloads[0]).map(|_| ())),
        20..25 => {
            let count = rng.usize(1..20);
            model.publish(count, |payloads| opened.topic.publish_all(payloads).map(|_| ()))
        }
        25..32 => model.publish(2, |payloads| {
            let mut batch = Batch::new();
            for payload in payloads {
                batch.put(&opened.outbox, payload.as_bytes(), b"")?;
                batch.publish(&opened.topic, payload)?;
            }
            opened.store.write(batch).map(|_| ())
        }),
        32..40 => model.publish(2, |payloads| {
            opened.store.transact(|tx| {
                for payload in payloads {
                    tx.put(&opened.outbox, payload.as_bytes(), b"")?;
                    tx.publish(&opened.topic, payload)?;
                }
                Ok(())
            })
        }),
        40..60 => {
            let member = opened
                .group
                .member("member")
                .receive(rng.usize(1..15), Duration::ZERO)?;
            opened.held.extend(member);
            Ok(())
        }
        60..85 if !opened.held.is_empty() => {
            let deliveries = opened.held.swap_remove(rng.usize(..opened.held.len()));
            settle(opened, deliveries, rng)
        }
        85..88 => opened.group.redrive(5).map(|_| ()),
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

/// Counts each message and acknowledges it, in one transaction; or leaves it to the next try.
fn settle(opened: &Opened, deliveries: Deliveries, rng: &mut Rng) -> Result<(), Error> {
    if rng.u32(..3) == 0 {
        let done = opened.store.transact(|tx| {
            for message in deliveries.messages().iter() {
                tx.add(&opened.counts, message.payload(), 1)?;
            }
            tx.acknowledge_all(&deliveries)
        });
        return unless_lost(done);
    }
    for delivery in deliveries {
        let done = match rng.u32(..10) {
            0 => delivery.retry("at random"),
            1 => delivery.give_up("at random"),
            2 => delivery.extend(rng.u32(1..20) * SECOND),
            3 => Ok(()),
            _ => opened.store.transact(|tx| {
                tx.add(&opened.counts, delivery.message().payload(), 1)?;
                tx.acknowledge(&delivery)
            }),
        };
        unless_lost(done)?;
    }
    Ok(())
}

/// A lease may have run out, and somebody else settled the message.
fn unless_lost(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(error) => match TopicError::of(&error) {
            Some(TopicError::LeaseLost { .. } | TopicError::AlreadySettled { .. }) => Ok(()),
            _ => Err(error),
        },
        done => done,
    }
}

/// Compares the store with the model, and takes over what it shows of commits that did not return.
fn compare(opened: &Opened, model: &mut Model, is_power_cut: bool) {
    let found: Vec<String> = common::all(&opened.topic)
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

/// Works until nothing is left to do.
fn drain(opened: &Opened, disk: &SimDisk, count: u64) {
    let mut member = opened.group.member("the last");
    for _ in 0..10_000 {
        opened.group.redrive(1000).unwrap();
        while let Some(deliveries) = member.receive(100, Duration::ZERO).unwrap() {
            opened
                .store
                .transact(|tx| {
                    for message in deliveries.messages().iter() {
                        tx.add(&opened.counts, message.payload(), 1)?;
                    }
                    tx.acknowledge_all(&deliveries)
                })
                .unwrap();
        }
        if opened.group.describe().unwrap().acknowledged == count {
            return;
        }
        disk.advance(5 * SECOND);
    }
    panic!(
        "the group does not get done: {:?} {:?}",
        opened.group.describe(),
        opened.group.pending()
    );
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(seed);
    let mut model = Model::default();
    for _ in 0..rng.u32(1..6) {
        if rng.u32(..4) != 0 {
            disk.stop_after(rng.u64(..900));
        }
        let opened = open(&disk).and_then(|mut opened| {
            for _ in 0..rng.u32(..400) {
                step(&mut opened, &mut model, &disk, &mut rng)?;
            }
            Ok(opened)
        });
        let is_power_cut = rng.bool();
        disk = match is_power_cut {
            true => disk.power_cut(rng.u64(..)),
            false => disk.kill(),
        };
        drop(opened);
        let again = open(&disk).expect("the store opens again");
        compare(&again, &mut model, is_power_cut);
        check(&again.store);
    }
    let opened = open(&disk).expect("the store opens at last");
    drain(&opened, &disk, model.published.len() as u64);
    let counts = opened.counts.count().unwrap();
    assert_eq!(
        counts,
        model.published.len() as u64,
        "messages that were never processed"
    );
    compare(&opened, &mut model, false);
    assert!(opened.group.pending().unwrap().is_empty());
    check(&opened.store);
}

#[test]
fn crashes_lose_no_message_and_process_none_twice() {
    let seed = common::seed();
    let runs = std::env::var("DURAMEN_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(60);
    for run_number in 0..runs {
        let seed = seed.wrapping_add(run_number);
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "DURAMEN_SEED={seed} DURAMEN_RUNS=1");
    }
}
