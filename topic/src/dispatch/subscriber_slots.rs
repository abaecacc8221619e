//! The subscribers of one topic, and the round in which they are called.
//!
//! Each subscriber has a slot. A round visits all slots once. A thread that takes the next slot takes its callback out,
//! calls it without any lock, and puts it back. So several threads can work on one round, which happens when a callback
//! does not return in time. Two threads never call the same subscriber at once.
//!
//! Invariants: a callback is in its slot or with exactly one thread; only the thread that has taken a slot moves its
//! position.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use duramen_engine::{Result, prefetch};

use super::{Callback, SubscriberId};
use crate::follower::{SlowPolicy, read_on};
use crate::handle::Topic;
use crate::lock::locked;
use crate::messages::Messages;
use crate::read::{ReadLimits, Reading};

/// The subscribers of a topic.
pub(super) struct SubscriberSlots {
    pub(super) topic: Topic,
    round: Mutex<Round>,
}

#[derive(Default)]
struct Round {
    slots: Vec<SubscriberSlot>,
    free: Vec<u32>,
    /// The next slot of the round.
    next: usize,
    /// Number of subscribers.
    taken: usize,
}

/// Kept small, because there are very many slots.
struct SubscriberSlot {
    position: u64,
    callback: Option<Callback>,
    policy: Policy,
    /// Current or last holder of the slot: see [`HOLDERS`].
    holder: u32,
    state: SlotState,
}

/// Numbers the subscribers that take slots, across all topics. SubscriberSlots are reused, and created again for a topic that had
/// no subscriber for a while. Relaxed: only the number counts.
static HOLDERS: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Waits,
    Called,
    /// Being called for the last time.
    Leaves,
}

/// A subscriber's policy as its slot stores it.
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

/// How many slots ahead the memory of subscribers is prefetched. Each subscriber's state is in its own place, and with
/// very many subscribers in no cache. Without this, rounds of 100 slots among 100,000 waited for memory a third of
/// their time.
const PREFETCHED_SLOTS: usize = 4;

/// A subscriber that the thread calls next.
pub(super) struct NextSubscriber {
    slot: u32,
    holder: u32,
    position: u64,
    policy: Policy,
    callback: Callback,
}

impl NextSubscriber {
    pub(super) fn id(&self, topic: &Topic) -> SubscriberId {
        SubscriberId {
            topic: topic.shared().id,
            slot: self.slot,
            holder: self.holder,
        }
    }
}

/// Where the next messages of a subscriber are.
enum NextMessages {
    Nothing,
    Batch,
    Own,
}

/// Result of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// There was nothing to deliver.
    Nothing,
    Delivered,
    /// The subscriber was called with an error.
    Over,
    Panicked,
}

/// The batches that were read last: most subscribers are at the same position.
#[derive(Default)]
pub(super) struct RecentBatches {
    batch: Option<Messages>,
    /// Messages collected for a single subscriber.
    own: Option<Messages>,
    /// The offset from which on there are no messages yet.
    end: Option<u64>,
}

impl SubscriberSlots {
    pub(super) fn new(topic: &Topic) -> SubscriberSlots {
        SubscriberSlots {
            topic: topic.clone(),
            round: Mutex::default(),
        }
    }

    pub(super) fn add(&self, position: u64, policy: SlowPolicy, callback: Callback) -> SubscriberId {
        let mut round = locked(&self.round);
        let slot = round.free.pop().unwrap_or_else(|| {
            round.slots.push(SubscriberSlot {
                position: 0,
                callback: None,
                policy: Policy::ReadOn,
                holder: 0,
                state: SlotState::Free,
            });
            round.slots.len() as u32 - 1
        });
        round.taken += 1;
        let place = &mut round.slots[slot as usize];
        assert!(place.state == SlotState::Free && place.callback.is_none());
        place.holder = HOLDERS.fetch_add(1, Ordering::Relaxed);
        place.position = position;
        place.policy = Policy::of(policy);
        place.callback = Some(callback);
        place.state = SlotState::Waits;
        SubscriberId {
            topic: self.topic.shared().id,
            slot,
            holder: place.holder,
        }
    }

    /// Ends a subscriber. `false`: it had ended before.
    pub(super) fn remove(&self, id: SubscriberId) -> bool {
        let mut round = locked(&self.round);
        let slot = round.slots.get_mut(id.slot as usize);
        let Some(slot) = slot.filter(|slot| slot.holder == id.holder) else {
            return false;
        };
        match slot.state {
            SlotState::Free | SlotState::Leaves => false,
            SlotState::Called => {
                slot.state = SlotState::Leaves;
                true
            }
            SlotState::Waits => {
                let callback = round.leave(id.slot);
                drop(round);
                // Dropping runs the program's own code, which must not find the round locked.
                discard(callback);
                true
            }
        }
    }

    pub(super) fn subscribers(&self) -> usize {
        locked(&self.round).taken
    }

    /// Starts a round at the first slot, even if the previous round was not finished. A later subscriber brings newer
    /// messages for all subscribers.
    pub(super) fn begin_round(&self) {
        locked(&self.round).next = 0;
    }

    /// Puts the previous subscriber back in its slot, and takes the next subscriber with messages before `end`. `None`:
    /// the round is over. Also returns whether the previous subscriber has more to do.
    pub(super) fn next(
        &self,
        before: Option<(NextSubscriber, CallOutcome)>,
        end: u64,
    ) -> (Option<NextSubscriber>, bool) {
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

    /// Puts a subscriber back in its slot after a call so late that another thread has continued the round.
    pub(super) fn put_back_late(&self, turn: NextSubscriber, called: CallOutcome) {
        let (gone, _) = locked(&self.round).put_back(turn, called, 0);
        discard(gone);
    }

    /// Calls a subscriber with its next messages.
    pub(super) fn call(&self, turn: &mut NextSubscriber, batches: &mut RecentBatches) -> CallOutcome {
        let next = self.messages(turn, batches);
        let is_over = next.is_err();
        // No handle per subscriber: counting references costs as much as many a call.
        let messages = match &next {
            Ok(NextMessages::Nothing) => return CallOutcome::Nothing,
            Ok(NextMessages::Batch) => Ok(batches.batch.as_ref().expect("a batch was found")),
            Ok(NextMessages::Own) => Ok(batches.own.as_ref().expect("messages were put together")),
            Err(error) => Err(error),
        };
        let callback = &mut turn.callback;
        let called = catch_unwind(AssertUnwindSafe(|| callback(messages)));
        if let Ok(messages) = messages {
            turn.position = messages.offsets().end;
        }
        match called {
            Err(panic) => {
                // The panic payload may panic again when it is dropped.
                std::mem::forget(panic);
                CallOutcome::Panicked
            }
            Ok(()) if is_over => CallOutcome::Over,
            Ok(()) => CallOutcome::Delivered,
        }
    }

    /// Finds the next messages of a subscriber, in the last batch if its position is there.
    fn messages(&self, turn: &mut NextSubscriber, batches: &mut RecentBatches) -> Result<NextMessages> {
        if matches!(turn.policy, Policy::ReadOn) {
            let offsets = batches.batch.as_ref().map_or(0..0, Messages::offsets);
            if offsets.contains(&turn.position) {
                if offsets.start == turn.position {
                    return Ok(NextMessages::Batch);
                }
                batches.own = batches.batch.as_ref().map(|batch| batch.since(turn.position));
                return Ok(NextMessages::Own);
            }
            if batches.end == Some(turn.position) {
                return Ok(NextMessages::Nothing);
            }
        }
        let snapshot = self.topic.snapshot()?;
        let reading = Reading::new(&self.topic, &snapshot);
        let (from, messages) = read_on(&reading, turn.policy.full(), turn.position, ReadLimits::default())?;
        if messages.is_empty() {
            turn.position = turn.position.max(from);
            batches.end = Some(from);
            return Ok(NextMessages::Nothing);
        }
        if messages.gap().is_some() {
            batches.own = Some(messages);
            return Ok(NextMessages::Own);
        }
        batches.batch = Some(messages);
        Ok(NextMessages::Batch)
    }
}

impl Round {
    fn take_next(&mut self, end: u64) -> Option<NextSubscriber> {
        while self.next < self.slots.len() {
            let slot = self.next as u32;
            self.next += 1;
            let place = &mut self.slots[slot as usize];
            if place.state != SlotState::Waits || place.position >= end {
                continue;
            }
            place.state = SlotState::Called;
            let turn = NextSubscriber {
                slot,
                holder: place.holder,
                position: place.position,
                policy: place.policy,
                callback: place.callback.take().expect("a waiting subscriber has its callback"),
            };
            self.prefetch(slot as usize + PREFETCHED_SLOTS);
            return Some(turn);
        }
        self.next = 0;
        None
    }

    /// Prefetches the state of a subscriber that is called soon.
    #[inline]
    fn prefetch(&self, slot: usize) {
        if let Some(callback) = self.slots.get(slot).and_then(|slot| slot.callback.as_deref()) {
            prefetch(std::ptr::from_ref(callback).cast());
        }
    }

    /// Returns a callback that is no longer needed, and whether the subscriber has more to do.
    fn put_back(&mut self, turn: NextSubscriber, called: CallOutcome, end: u64) -> (Option<Callback>, bool) {
        let place = &mut self.slots[turn.slot as usize];
        assert_eq!(
            place.holder, turn.holder,
            "a slot is not given away while its holder is called"
        );
        let leaves = place.state == SlotState::Leaves || matches!(called, CallOutcome::Over | CallOutcome::Panicked);
        place.callback = Some(turn.callback);
        place.position = turn.position;
        place.state = SlotState::Waits;
        let is_behind = turn.position < end && called != CallOutcome::Nothing;
        match leaves {
            true => (self.leave(turn.slot), false),
            false => (None, is_behind),
        }
    }

    fn leave(&mut self, slot: u32) -> Option<Callback> {
        let place = &mut self.slots[slot as usize];
        place.state = SlotState::Free;
        self.taken -= 1;
        self.free.push(slot);
        place.callback.take()
    }
}

/// Drops a callback, which may panic.
fn discard(callback: Option<Callback>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(callback))) {
        std::mem::forget(panic);
    }
}
