//! The subscribers of one topic, and the round in which they are called.
//!
//! Each subscriber has a seat. A round goes over all seats once; whoever takes the next seat takes its callback out, calls it
//! without any lock, and puts it back. So several threads can work at one round, which happens when one of them does not
//! come back, and no subscriber is ever called by two.
//!
//! Invariants: a callback is in its seat or with exactly one thread; the position of a seat moves only by its holder.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use duramen_engine::{Result, prefetch};

use super::{Callback, SubscriberId};
use crate::follower::{SlowPolicy, read_on};
use crate::messages::Messages;
use crate::read::{ReadLimits, Reading};
use crate::topic::Topic;
use crate::topics::locked;

/// The subscribers of a topic.
pub(super) struct Seats {
    pub(super) topic: Topic,
    round: Mutex<Round>,
}

#[derive(Default)]
struct Round {
    seats: Vec<Seat>,
    free: Vec<u32>,
    /// The next seat of the round.
    next: usize,
    /// Subscribers.
    taken: usize,
}

/// Small, because there are very many.
struct Seat {
    position: u64,
    callback: Option<Callback>,
    policy: Policy,
    /// Who has the seat, or had it last: see [`HOLDERS`].
    holder: u32,
    state: SeatState,
}

/// Numbers those who take seats, of whatever topic: seats are used again, and are made anew for a topic that had no
/// subscriber for a while. Relaxed: only the number counts.
static HOLDERS: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, PartialEq, Eq)]
enum SeatState {
    Free,
    Waits,
    Called,
    /// Called, and then never again.
    Leaves,
}

/// What a seat remembers of a policy.
#[derive(Clone, Copy)]
enum Policy {
    ReadOn,
    Skip(u64),
    Disconnect(u64),
}

impl Policy {
    fn of(policy: SlowPolicy) -> Policy {
        match policy {
            SlowPolicy::Skip { max } => Policy::Skip(max),
            SlowPolicy::Disconnect { max } => Policy::Disconnect(max),
            SlowPolicy::ReadOn | SlowPolicy::HoldBack { .. } => Policy::ReadOn,
        }
    }

    fn full(self) -> SlowPolicy {
        match self {
            Policy::ReadOn => SlowPolicy::ReadOn,
            Policy::Skip(max) => SlowPolicy::Skip { max },
            Policy::Disconnect(max) => SlowPolicy::Disconnect { max },
        }
    }
}

/// So far ahead the memory of subscribers is asked for. What they remember lies in as many places as there are subscribers, and
/// with very many of them in no cache: without this, rounds of 100 seats among 100,000 waited for it a third of their time.
const PREFETCHED_SEATS: usize = 4;

/// A subscriber that is to be called.
pub(super) struct Turn {
    seat: u32,
    holder: u32,
    position: u64,
    policy: Policy,
    callback: Callback,
}

impl Turn {
    pub(super) fn id(&self, topic: &Topic) -> SubscriberId {
        SubscriberId {
            topic: topic.shared().id,
            seat: self.seat,
            holder: self.holder,
        }
    }
}

/// Where the messages are that come next for a subscriber.
enum Next {
    Nothing,
    Batch,
    Own,
}

/// What a call came to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Called {
    /// There was nothing for it.
    Nothing,
    Done,
    /// It was called with an error.
    Over,
    Panicked,
}

/// The batches that were read last: subscribers mostly stand at the same place.
#[derive(Default)]
pub(super) struct Batches {
    batch: Option<Messages>,
    /// What was put together for one subscriber alone.
    own: Option<Messages>,
    /// Where nothing is yet.
    end: Option<u64>,
}

impl Seats {
    pub(super) fn new(topic: &Topic) -> Seats {
        Seats {
            topic: topic.clone(),
            round: Mutex::default(),
        }
    }

    pub(super) fn add(&self, position: u64, policy: SlowPolicy, callback: Callback) -> SubscriberId {
        let mut round = locked(&self.round);
        let seat = round.free.pop().unwrap_or_else(|| {
            round.seats.push(Seat {
                position: 0,
                callback: None,
                policy: Policy::ReadOn,
                holder: 0,
                state: SeatState::Free,
            });
            round.seats.len() as u32 - 1
        });
        round.taken += 1;
        let place = &mut round.seats[seat as usize];
        assert!(place.state == SeatState::Free && place.callback.is_none());
        place.holder = HOLDERS.fetch_add(1, Ordering::Relaxed);
        place.position = position;
        place.policy = Policy::of(policy);
        place.callback = Some(callback);
        place.state = SeatState::Waits;
        SubscriberId {
            topic: self.topic.shared().id,
            seat,
            holder: place.holder,
        }
    }

    /// Ends a subscriber; `false`: it has ended before.
    pub(super) fn remove(&self, id: SubscriberId) -> bool {
        let mut round = locked(&self.round);
        let seat = round.seats.get_mut(id.seat as usize);
        let Some(seat) = seat.filter(|seat| seat.holder == id.holder) else {
            return false;
        };
        match seat.state {
            SeatState::Free | SeatState::Leaves => false,
            SeatState::Called => {
                seat.state = SeatState::Leaves;
                true
            }
            SeatState::Waits => {
                let callback = round.leave(id.seat);
                drop(round);
                // The program's own code: what it does here must not find us locked.
                discard(callback);
                true
            }
        }
    }

    pub(super) fn subscribers(&self) -> usize {
        locked(&self.round).taken
    }

    /// Begins a round with the first seat, also when the one before was not brought to its end: who comes later comes with
    /// newer messages, for all.
    pub(super) fn begin_round(&self) {
        locked(&self.round).next = 0;
    }

    /// Puts the subscriber before back in its seat, and takes the next one that is behind `end`. `None`: the round is over.
    /// Says of the subscriber before whether it has more to do.
    pub(super) fn next(&self, before: Option<(Turn, Called)>, end: u64) -> (Option<Turn>, bool) {
        let mut round = locked(&self.round);
        let (gone, is_behind) = match before {
            Some((turn, called)) => round.put_back(turn, called, end),
            None => (None, false),
        };
        let turn = round.take_next(end);
        drop(round);
        discard(gone);
        (turn, is_behind)
    }

    /// Puts a subscriber back in its seat whose call came back so late that others went on with the round.
    pub(super) fn put_back_late(&self, turn: Turn, called: Called) {
        let (gone, _) = locked(&self.round).put_back(turn, called, 0);
        discard(gone);
    }

    /// Calls a subscriber with what comes next for it.
    pub(super) fn call(&self, turn: &mut Turn, batches: &mut Batches) -> Called {
        let next = self.messages(turn, batches);
        let is_over = next.is_err();
        // Not a handle of its own for each subscriber: counting those costs as much as many a call.
        let messages = match &next {
            Ok(Next::Nothing) => return Called::Nothing,
            Ok(Next::Batch) => Ok(batches.batch.as_ref().expect("a batch was found")),
            Ok(Next::Own) => Ok(batches.own.as_ref().expect("messages were put together")),
            Err(error) => Err(error),
        };
        let callback = &mut turn.callback;
        let called = catch_unwind(AssertUnwindSafe(|| callback(messages)));
        if let Ok(messages) = messages {
            turn.position = messages.offsets().end;
        }
        match called {
            Err(panic) => {
                // What was thrown may throw again when it is dropped.
                std::mem::forget(panic);
                Called::Panicked
            }
            Ok(()) if is_over => Called::Over,
            Ok(()) => Called::Done,
        }
    }

    /// What comes next for a subscriber: from the batch that was read last, if that is where it stands.
    fn messages(&self, turn: &mut Turn, batches: &mut Batches) -> Result<Next> {
        if matches!(turn.policy, Policy::ReadOn) {
            let offsets = batches.batch.as_ref().map_or(0..0, Messages::offsets);
            if offsets.contains(&turn.position) {
                if offsets.start == turn.position {
                    return Ok(Next::Batch);
                }
                batches.own = batches.batch.as_ref().map(|batch| batch.since(turn.position));
                return Ok(Next::Own);
            }
            if batches.end == Some(turn.position) {
                return Ok(Next::Nothing);
            }
        }
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::new(&self.topic, &snapshot);
        let (from, messages) = read_on(&reading, turn.policy.full(), turn.position, ReadLimits::default())?;
        if messages.is_empty() {
            turn.position = turn.position.max(from);
            batches.end = Some(from);
            return Ok(Next::Nothing);
        }
        if messages.gap().is_some() {
            batches.own = Some(messages);
            return Ok(Next::Own);
        }
        batches.batch = Some(messages);
        Ok(Next::Batch)
    }
}

impl Round {
    fn take_next(&mut self, end: u64) -> Option<Turn> {
        while self.next < self.seats.len() {
            let seat = self.next as u32;
            self.next += 1;
            let place = &mut self.seats[seat as usize];
            if place.state != SeatState::Waits || place.position >= end {
                continue;
            }
            place.state = SeatState::Called;
            let turn = Turn {
                seat,
                holder: place.holder,
                position: place.position,
                policy: place.policy,
                callback: place.callback.take().expect("who waits sits on his callback"),
            };
            self.prefetch(seat as usize + PREFETCHED_SEATS);
            return Some(turn);
        }
        self.next = 0;
        None
    }

    /// Asks for what a subscriber remembers: it is called soon.
    #[inline]
    fn prefetch(&self, seat: usize) {
        if let Some(callback) = self.seats.get(seat).and_then(|seat| seat.callback.as_deref()) {
            prefetch(std::ptr::from_ref(callback).cast());
        }
    }

    /// Returns a callback that is no longer needed, and whether there is more for it to do.
    fn put_back(&mut self, turn: Turn, called: Called, end: u64) -> (Option<Callback>, bool) {
        let place = &mut self.seats[turn.seat as usize];
        assert_eq!(
            place.holder, turn.holder,
            "a seat is not given away while its holder is called"
        );
        let leaves = place.state == SeatState::Leaves || matches!(called, Called::Over | Called::Panicked);
        place.callback = Some(turn.callback);
        place.position = turn.position;
        place.state = SeatState::Waits;
        let is_behind = turn.position < end && called != Called::Nothing;
        match leaves {
            true => (self.leave(turn.seat), false),
            false => (None, is_behind),
        }
    }

    fn leave(&mut self, seat: u32) -> Option<Callback> {
        let place = &mut self.seats[seat as usize];
        place.state = SeatState::Free;
        self.taken -= 1;
        self.free.push(seat);
        place.callback.take()
    }
}

/// Drops a callback, which may panic.
fn discard(callback: Option<Callback>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(callback))) {
        std::mem::forget(panic);
    }
}
