//! The interface that the lab requires of a broker, and the subscribers that check deliveries.
//!
//! A broker is a [`Driver`](crate::peer::Driver) that opens as one. Each broker has one adapter in `brokers/`.
//! Subscribers are the lab's own, [`Receiver`]. The broker calls them on threads of its choice with messages as they
//! arrive, mostly several at once. Each message carries its number in its topic and its publication time:
//!
//! ```text
//!  8  number in the topic, least byte first
//!  8  nanoseconds of the monotonic clock when its publish call began, least byte first
//! ..  random bytes
//! ```
//!
//! A receiver looks at every message, sums its offset and first byte, and compares its number with the expected next
//! one. A gap, a duplicate or a wrong order therefore fails the run at once; a missing message fails it at the end. A
//! receiver reads the clock once per call, and counts the age of each message in a table of its thread. Threads share
//! nothing while they deliver messages. The table is exact to 1.6 percent.

use std::cell::RefCell;
use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::answer::{Answer, Found, Unsupported};
use crate::connection::{Connection, Way};
use crate::data::Generator;
use crate::measure::{Latencies, now_nanos};

/// Shortest payload: number and time.
pub const PAYLOAD_BYTES_MIN: usize = 16;

/// An open broker. Topics are numbered from 0.
pub trait Broker: Send + Sync {
    /// Creates `count` topics that keep everything, unless they exist from before.
    fn make_topics(&mut self, count: usize) -> Result<()>;
    /// Publishes one message by itself. The class defines what the acknowledgement means.
    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()>;
    /// Publishes several messages together.
    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()>;
    /// Calls a receiver with every message published from now on. The broker must not skip any, however slow the
    /// receiver is.
    fn subscribe(&self, topic: usize, receiver: Receiver) -> Result<()>;
    /// Returns the maximum number of subscribers at a time.
    fn subscribers_max(&self) -> usize {
        usize::MAX
    }
    /// Whether messages stay after they were delivered, so that `follow` reads them.
    fn keeps_messages(&self) -> bool {
        true
    }
    /// Calls a receiver in this thread with the messages of a topic from the first one on, and waits for new ones.
    /// Returns after the given number of messages, or when the receiver found something wrong.
    fn follow(&self, _topic: usize, _receiver: &mut Receiver, _messages: u64) -> Result<()> {
        bail!(Unsupported("keeps no message that was delivered"))
    }
    /// Creates a group whose members share the messages of a topic from the first one on.
    fn make_group(&self, _topic: usize) -> Result<()> {
        bail!(Unsupported("has no groups"))
    }
    /// Returns a member of the group of a topic.
    fn member(&self, _topic: usize) -> Result<Box<dyn Member + '_>> {
        bail!(Unsupported("has no groups"))
    }
    /// Stores a pair by itself.
    fn put(&self, _key: &[u8], _value: &[u8]) -> Result<()> {
        bail!(Unsupported("stores no pairs"))
    }
    /// Stores a pair and publishes a message, both or neither.
    fn put_and_publish(&self, _how: Together, _pair: (&[u8], &[u8]), _topic: usize, _payload: &[u8]) -> Result<()> {
        bail!(Unsupported("stores no pairs"))
    }
    /// Reads a pair.
    fn get(&self, _key: &[u8], _found: &mut Found) -> Result<()> {
        bail!(Unsupported("stores no pairs"))
    }
    /// Opens a connection that belongs to the runtime of the caller. Its topics are those made before.
    fn connect(&self, _way: Way) -> Answer<'_, Box<dyn Connection + '_>> {
        Box::pin(async { bail!(Unsupported("has no connections: a call returns when it is done")) })
    }
    /// Closes the broker and drops the receivers.
    fn close(self: Box<Self>) -> Result<()>;
}

/// How a pair and a message are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// In a transaction, which could also read.
    Transaction,
    /// In a batch, which only writes.
    Batch,
}

/// How a member acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// Each message by itself.
    Each,
    /// All messages that were received together.
    Together,
}

/// A member of a group.
pub trait Member: Send {
    /// Receives up to `most` messages, does `work` for each with its offset and payload, and acknowledges them. Returns
    /// their number, or 0 when none arrived for a while.
    fn receive(
        &mut self,
        most: usize,
        acknowledge: Acknowledge,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<u64>;
}

/// The payload of messages published one after another.
pub struct Payload(Vec<u8>);

impl Payload {
    /// Creates a payload of `bytes` bytes.
    pub fn new(seed: u64, bytes: usize) -> Payload {
        assert!(bytes >= PAYLOAD_BYTES_MIN, "number and time have a place");
        let mut generator = Generator::new(seed, "payload");
        Payload((0..bytes).map(|_| generator.next() as u8).collect())
    }

    /// Returns the payload of message `number`, with the current time as its publication time.
    #[inline]
    pub fn of(&mut self, number: u64) -> &[u8] {
        self.0[..8].copy_from_slice(&number.to_le_bytes());
        self.0[8..16].copy_from_slice(&now_nanos().to_le_bytes());
        &self.0
    }
}

/// Returns the number and the publication time of a message.
#[inline]
pub fn number_and_time(payload: &[u8]) -> Option<(u64, u64)> {
    let number = payload.first_chunk::<8>()?;
    let time = payload[8..].first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), u64::from_le_bytes(*time)))
}

/// The reports of all receivers of a phase.
pub struct Board {
    id: u64,
    tables: Mutex<Vec<Arc<Table>>>,
    is_wrong: AtomicBool,
    wrong: Mutex<Option<String>>,
    ended: Mutex<Vec<Ended>>,
}

/// How far a receiver came.
struct Ended {
    topic: u32,
    next: u64,
    sum: u64,
}

/// The deliveries of one thread. Only that thread writes the table, so it reads its own writes (Relaxed).
struct Table {
    delivered: AtomicU64,
    ages: Vec<AtomicU64>,
}

/// Number of steps into which a doubling is divided.
const STEPS: u64 = 64;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = ((64 - STEP_BITS as usize) + 1) * STEPS as usize;

#[inline]
fn bucket(nanos: u64) -> usize {
    if nanos < STEPS {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - STEP_BITS;
    ((u64::from(shift) + 1) * STEPS + ((nanos >> shift) & (STEPS - 1))) as usize
}

/// Returns the longest time in a bucket.
fn upper(bucket: usize) -> u64 {
    let (doubling, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    match doubling.checked_sub(1) {
        None => step,
        Some(shift) => ((STEPS + step + 1) << shift).wrapping_sub(1),
    }
}

#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Default for Table {
    fn default() -> Table {
        Table {
            delivered: AtomicU64::new(0),
            ages: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

thread_local! {
    /// The table of this thread, and the ID of its board.
    static TABLE: RefCell<Option<(u64, Arc<Table>)>> = const { RefCell::new(None) };
}

static BOARDS: AtomicU64 = AtomicU64::new(0);

/// Time without a delivery after which the board reports missing messages.
const STALLED: Duration = Duration::from_secs(20);
/// Interval at which the board checks whether everything was delivered.
const LOOK: Duration = Duration::from_micros(100);

impl Board {
    /// Creates a board for the receivers of a phase.
    pub fn new() -> Arc<Board> {
        Arc::new(Board {
            id: BOARDS.fetch_add(1, Ordering::Relaxed),
            tables: Mutex::default(),
            is_wrong: AtomicBool::new(false),
            wrong: Mutex::default(),
            ended: Mutex::default(),
        })
    }

    /// Returns a receiver of a topic that expects the first message next.
    pub fn receiver(self: &Arc<Self>, topic: usize) -> Receiver {
        Receiver {
            board: self.clone(),
            topic: topic as u32,
            next: 0,
            sum: 0,
        }
    }

    /// Waits until `deliveries` messages were delivered.
    pub fn wait_for(&self, deliveries: u64) -> Result<()> {
        let (mut before, mut since) = (0, now_nanos());
        loop {
            self.check()?;
            let delivered = self.delivered();
            if delivered >= deliveries {
                return Ok(());
            }
            if delivered != before {
                (before, since) = (delivered, now_nanos());
            }
            let waited = Duration::from_nanos(now_nanos() - since);
            ensure!(
                waited < STALLED,
                "message missing: {delivered} of {deliveries} deliveries were made, and then none for {STALLED:?}"
            );
            std::thread::sleep(LOOK);
        }
    }

    fn delivered(&self) -> u64 {
        let tables = locked(&self.tables);
        tables.iter().map(|table| table.delivered.load(Ordering::Relaxed)).sum()
    }

    /// Fails if a receiver found something wrong.
    pub fn check(&self) -> Result<()> {
        match self.is_wrong.load(Ordering::Relaxed) {
            false => Ok(()),
            true => bail!("{}", locked(&self.wrong).clone().unwrap_or_default()),
        }
    }

    fn report(&self, wrong: String) {
        locked(&self.wrong).get_or_insert(wrong);
        self.is_wrong.store(true, Ordering::Relaxed);
    }

    /// Returns the ages of all messages at their delivery.
    pub fn latencies(&self) -> Latencies {
        let tables = locked(&self.tables);
        let of_bucket = |bucket: usize| {
            let counts = tables.iter().map(|table| table.ages[bucket].load(Ordering::Relaxed));
            (upper(bucket), counts.sum::<u64>())
        };
        let counts: Vec<_> = (0..BUCKETS).map(of_bucket).filter(|(_, count)| *count > 0).collect();
        Latencies::from_counts(&counts)
    }

    /// Checks, after the broker was closed, that `receivers` receivers had every message of their topics. `published`
    /// has the number of messages of each topic.
    pub fn verify(&self, receivers: usize, published: &[u64]) -> Result<()> {
        self.check()?;
        let ended = locked(&self.ended);
        ensure!(
            ended.len() == receivers,
            "{} of {receivers} receivers came to an end",
            ended.len()
        );
        for one in ended.iter() {
            let expected = published[one.topic as usize];
            ensure!(
                one.next == expected,
                "message {} of topic {} was not delivered: a receiver had {} of {expected}",
                one.next,
                one.topic,
                one.next
            );
            ensure!(
                one.sum == sum_of(expected),
                "message sums of topic {} are wrong",
                one.topic
            );
        }
        Ok(())
    }

    fn with_table<T>(&self, work: impl FnOnce(&Table) -> T) -> T {
        TABLE.with_borrow_mut(|own| match own {
            Some((id, table)) if *id == self.id => work(table),
            _ => {
                let table = Arc::new(Table::default());
                locked(&self.tables).push(table.clone());
                let done = work(&table);
                *own = Some((self.id, table));
                done
            }
        })
    }
}

/// Returns the sum of offsets and first bytes of the first `messages` messages.
fn sum_of(messages: u64) -> u64 {
    (0..messages).map(|number| number + (number & 0xFF)).sum()
}

/// A subscriber. It is small, because there are very many.
pub struct Receiver {
    board: Arc<Board>,
    topic: u32,
    next: u64,
    sum: u64,
}

impl Receiver {
    /// Takes messages, each with its offset.
    #[inline]
    pub fn take<'m>(&mut self, messages: impl Iterator<Item = (u64, &'m [u8])>) {
        let now = now_nanos();
        let (mut next, mut sum) = (self.next, self.sum);
        let first = next;
        let wrong = self.board.with_table(|table| {
            for (offset, payload) in messages {
                let Some((number, time)) = number_and_time(payload) else {
                    return Some((offset, None));
                };
                if offset != next || number != next {
                    return Some((offset, Some(number)));
                }
                sum += offset + u64::from(payload[0]);
                next += 1;
                add(&table.ages[bucket(now.saturating_sub(time))], 1);
            }
            add(&table.delivered, next - first);
            None
        });
        (self.next, self.sum) = (next, sum);
        if let Some((offset, number)) = wrong {
            let found = number.map_or("none of the lab".to_string(), |number| format!("number {number}"));
            self.fail(format!("message {next} was due and offset {offset} came, {found}"));
        }
    }

    /// Reports that the broker will deliver no more, and why.
    pub fn fail(&self, why: String) {
        self.board.report(format!("topic {}: {why}", self.topic));
    }

    /// Returns the number of messages it has received.
    pub fn taken(&self) -> u64 {
        self.next
    }

    /// Whether there is no use in continuing.
    pub fn is_wrong(&self) -> bool {
        self.board.is_wrong.load(Ordering::Relaxed)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let &mut Receiver { topic, next, sum, .. } = self;
        locked(&self.board.ended).push(Ended { topic, next, sum });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a connection. Where `in_flight` is 1, the calls of a broker without connections take their place.
pub async fn connect<'b>(broker: &'b dyn Broker, way: Way, in_flight: usize) -> Result<Box<dyn Connection + 'b>> {
    match broker.connect(way).await {
        Err(error) if error.is::<Unsupported>() && way == Way::Calls && in_flight == 1 => Ok(Box::new(Direct(broker))),
        opened => opened,
    }
}

/// A broker whose calls return when they are done.
struct Direct<'b>(&'b dyn Broker);

impl Connection for Direct<'_> {
    fn publish(&self, topic: usize, payload: &[u8]) -> Answer<'_> {
        Box::pin(ready(self.0.publish(topic, payload)))
    }

    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Answer<'_> {
        Box::pin(ready(self.0.publish_many(topic, payloads)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_as_exact_as_is_said_and_in_order() {
        for nanos in (0..200).chain((8..63).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 7])) {
            let (bucket, upper) = (bucket(nanos), upper(bucket(nanos)));
            assert!(
                upper >= nanos && upper - nanos <= nanos / 64,
                "{nanos}: {bucket} {upper}"
            );
            assert!(bucket < BUCKETS);
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    /// Returns the board's verdict on messages with these offsets and numbers, when `published` messages were expected.
    fn verdict(messages: &[(u64, u64)], published: u64) -> Result<()> {
        let board = Board::new();
        let mut receiver = board.receiver(0);
        let mut payload = Payload::new(1, 32);
        for &(offset, number) in messages {
            receiver.take([(offset, payload.of(number))].into_iter());
        }
        drop(receiver);
        board.verify(1, &[published])
    }

    #[test]
    fn gaps_duplicates_wrong_orders_and_wrong_numbers_are_found() {
        assert!(verdict(&[(0, 0), (1, 1), (2, 2)], 3).is_ok());
        for wrong in [
            &[(0, 0), (2, 2)][..],
            &[(0, 0), (0, 0), (1, 1)],
            &[(1, 1), (0, 0)],
            &[(0, 0), (1, 2)],
            &[(1, 0)],
        ] {
            assert!(verdict(wrong, 3).is_err(), "{wrong:?}");
        }
        let error = verdict(&[(0, 0)], 3).expect_err("two are missing").to_string();
        assert!(error.contains("message 1"), "{error}");
    }

    #[test]
    fn every_delivery_has_its_age() {
        let board = Board::new();
        let mut receiver = board.receiver(0);
        let mut payload = Payload::new(1, 32);
        let all: Vec<Vec<u8>> = (0..300).map(|number| payload.of(number).to_vec()).collect();
        let with_offset = |(offset, payload): (usize, &'static [u8])| (offset as u64, payload);
        let all: &'static [Vec<u8>] = all.leak();
        receiver.take(all.iter().map(Vec::as_slice).enumerate().map(with_offset));
        assert_eq!((board.latencies().count(), board.delivered()), (300, 300));
    }
}
