//! What the lab asks of a broker, and the subscribers that check what they are delivered.
//!
//! A broker is a [`Driver`](crate::peer::Driver) that opens as one. Each has one adapter in `brokers/`. Subscribers are the
//! lab's own, [`Receiver`]: the broker calls them, on threads of its choice, with messages as they come, mostly several at
//! once. Each message says its number in its topic and when it was published:
//!
//! ```text
//!  8  number in the topic, least byte first
//!  8  nanoseconds of the monotonic clock when its publish call began, least byte first
//! ..  random bytes
//! ```
//!
//! A receiver looks at every message, adds its offset and first byte, and compares the number with the one that must come
//! next; so a gap, a duplicate and a wrong order fail the run at once, and what never came does so at the end. The clock is
//! read once per call, and the age of each message in it counted in a table of the thread: nothing is shared while
//! messages are delivered. The table is exact to 1.6 percent.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::data::Generator;
use crate::measure::{Latencies, now_nanos};
use crate::peer::{Found, Unsupported};

/// Shortest payload: number and time.
pub const PAYLOAD_BYTES_MIN: usize = 16;

/// An open broker. Topics are numbered from 0.
pub trait Broker: Send + Sync {
    /// Makes so many topics, which keep everything, unless they are there from before.
    fn make_topics(&mut self, count: usize) -> Result<()>;
    /// Publishes a message by itself, acknowledged as the class says.
    fn publish(&self, topic: usize, payload: &[u8]) -> Result<()>;
    /// Publishes messages together.
    fn publish_many(&self, topic: usize, payloads: &[&[u8]]) -> Result<()>;
    /// Calls a receiver with every message that is published from now on; none may be left out, however slow it is.
    fn subscribe(&self, topic: usize, receiver: Receiver) -> Result<()>;
    /// Calls a receiver in this thread with the messages of a topic from the first one on, waiting for those to come, until
    /// it has had so many, or something was wrong.
    fn follow(&self, _topic: usize, _receiver: &mut Receiver, _messages: u64) -> Result<()> {
        bail!(Unsupported("keeps no message that was delivered"))
    }
    /// Makes a group, whose members share the messages of a topic from the first one on.
    fn make_group(&self, _topic: usize) -> Result<()> {
        bail!(Unsupported("has no groups"))
    }
    /// A member of the group of a topic.
    fn member(&self, _topic: usize) -> Result<Box<dyn Member + '_>> {
        bail!(Unsupported("has no groups"))
    }
    /// Stores a pair, by itself.
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
    /// Closes it. Receivers are dropped.
    fn close(self: Box<Self>) -> Result<()>;
}

/// How a pair and a message are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// In a transaction, which could read as well.
    Transaction,
    /// In a batch, which only writes.
    Batch,
}

/// How a member acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// Each message by itself.
    Each,
    /// All that were received together.
    Together,
}

/// A member of a group.
pub trait Member: Send {
    /// Receives up to so many messages, does `work` for each with its offset and payload, and acknowledges them. Returns how
    /// many there were; none came for a while: 0.
    fn receive(
        &mut self,
        most: usize,
        acknowledge: Acknowledge,
        work: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<u64>;
}

/// The payload of messages that are published one after the other.
pub struct Payload(Vec<u8>);

impl Payload {
    /// Of so many bytes.
    pub fn new(seed: u64, bytes: usize) -> Payload {
        assert!(bytes >= PAYLOAD_BYTES_MIN, "number and time have a place");
        let mut generator = Generator::new(seed, "payload");
        Payload((0..bytes).map(|_| generator.next() as u8).collect())
    }

    /// That of the message with this number, published now.
    #[inline]
    pub fn of(&mut self, number: u64) -> &[u8] {
        self.0[..8].copy_from_slice(&number.to_le_bytes());
        self.0[8..16].copy_from_slice(&now_nanos().to_le_bytes());
        &self.0
    }
}

/// The number of a message, and when it was published.
#[inline]
pub fn number_and_time(payload: &[u8]) -> Option<(u64, u64)> {
    let number = payload.first_chunk::<8>()?;
    let time = payload[8..].first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), u64::from_le_bytes(*time)))
}

/// What all receivers of a phase tell.
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

/// What one thread delivered. Only that thread writes, so that what it reads is what it wrote (Relaxed).
struct Table {
    delivered: AtomicU64,
    ages: Vec<AtomicU64>,
}

/// Steps of a doubling.
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

/// The longest time in a bucket.
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
    /// The table of this thread, and the board that it belongs to.
    static TABLE: RefCell<Option<(u64, Arc<Table>)>> = const { RefCell::new(None) };
}

static BOARDS: AtomicU64 = AtomicU64::new(0);

/// How long nothing is delivered before it is said that something is missing.
const STALLED: Duration = Duration::from_secs(20);
/// How often it is looked whether everything was delivered.
const LOOK: Duration = Duration::from_micros(100);

impl Board {
    /// For the receivers of a phase.
    pub fn new() -> Arc<Board> {
        Arc::new(Board {
            id: BOARDS.fetch_add(1, Ordering::Relaxed),
            tables: Mutex::default(),
            is_wrong: AtomicBool::new(false),
            wrong: Mutex::default(),
            ended: Mutex::default(),
        })
    }

    /// A receiver of a topic that expects its first message next.
    pub fn receiver(self: &Arc<Self>, topic: usize) -> Receiver {
        Receiver {
            board: self.clone(),
            topic: topic as u32,
            next: 0,
            sum: 0,
        }
    }

    /// Waits until so many messages were delivered.
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

    /// Fails when a receiver met something that was wrong.
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

    /// The ages of all messages when they were delivered.
    pub fn latencies(&self) -> Latencies {
        let tables = locked(&self.tables);
        let of_bucket = |bucket: usize| {
            let counts = tables.iter().map(|table| table.ages[bucket].load(Ordering::Relaxed));
            (upper(bucket), counts.sum::<u64>())
        };
        let counts: Vec<_> = (0..BUCKETS).map(of_bucket).filter(|(_, count)| *count > 0).collect();
        Latencies::from_counts(&counts)
    }

    /// After the broker was closed: so many receivers must have had every message of their topics, of which there were so
    /// many.
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

/// Offsets and first bytes of so many messages.
fn sum_of(messages: u64) -> u64 {
    (0..messages).map(|number| number + (number & 0xFF)).sum()
}

/// A subscriber. Small, because there are very many.
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

    /// Says that the broker will deliver no more, and why.
    pub fn fail(&self, why: String) {
        self.board.report(format!("topic {}: {why}", self.topic));
    }

    /// Messages that it has had.
    pub fn taken(&self) -> u64 {
        self.next
    }

    /// Whether there is no use in going on.
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

    /// What a board says of messages with these offsets and numbers, of which there were to be `published`.
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
