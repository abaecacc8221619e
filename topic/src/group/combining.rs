//! Combining: one member performs the concurrent requests of several members of a group in one transaction. (Flat
//! combining: Hendler, Incze, Shavit and Tzafrir, 2010.)
//!
//! The simple version: a member that wants messages, or has acknowledged a message, takes the turn (the group's lock)
//! and commits. This is not enough. A group of many members then makes two small commits for each message, one after
//! the other. A member that waits for another member sleeps and is woken, which costs more than the commit it waited
//! for. So a member that finds the turn taken queues a request. The next holder of the turn performs the queued requests
//! together with its own, and their members find them answered.
//!
//! Combining promises each member the result that it would get alone: a member returns after the commit that contains
//! its messages. A member handles every special case and every failure alone: an expired lease, a message that is due
//! for redelivery, a paused group, a reached limit, a failed commit. So no member gets the error of another member.
//!
//! No request is left in the queue. A member joins the queue before its last failed attempt to take the turn. The holder
//! looks into the queue after it releases the turn.

use duramen_engine::Result;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::Thread;

use super::hints::Hints;
use super::lease_key::LeaseKey;
use super::membership::{LeasedBatch, Membership};
use super::{Group, Shared};
use crate::lock::locked;
use crate::messages::Messages;

/// Maximum requests that are performed together. It bounds the size of a transaction, and how long the turn is held.
pub(super) const TOGETHER_MAX: usize = 64;
/// Checks for an answer before a thread yields: while it spins, no other thread that could be answered runs on its
/// processor.
const SPINS: u32 = 20;
const LOOKS_A_TRY: u32 = 10;
/// Checks for an answer before a thread sleeps: the spins, and then 40 yields.
const RESTS: u32 = SPINS + 40;

/// A member's request.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// Messages that no member has received yet.
    Messages { membership: Arc<Membership>, most: usize },
    /// To acknowledge a message that was delivered to the member.
    Acknowledged { lease_key: LeaseKey, offset: u64 },
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Answer {
    Messages(Arc<LeasedBatch>, Messages),
    /// The topic has no more messages for the group. There may be some at this time of the shared clock.
    Nothing(u64),
    Acknowledged,
}

/// A request in the queue.
pub(super) struct QueuedRequest {
    pub(super) request: Request,
    answer: Mutex<Option<RequestOutcome>>,
    is_answered: AtomicBool,
    thread: Thread,
}

/// The outcome of a request.
enum RequestOutcome {
    Answered(Result<Answer>),
    /// The requester performs the request alone.
    Alone,
}

impl QueuedRequest {
    fn new(request: &Request) -> QueuedRequest {
        QueuedRequest {
            request: request.clone(),
            answer: Mutex::new(None),
            is_answered: AtomicBool::new(false),
            thread: std::thread::current(),
        }
    }

    fn set(&self, outcome: RequestOutcome) {
        *locked(&self.answer) = Some(outcome);
        // Release: pairs with the acquire in `outcome`.
        self.is_answered.store(true, Ordering::Release);
    }

    fn outcome(&self) -> Option<RequestOutcome> {
        if !self.is_answered.load(Ordering::Acquire) {
            return None;
        }
        Some(locked(&self.answer).take().expect("an answer is taken once"))
    }
}

/// The queue of requests.
#[derive(Default)]
pub(super) struct RequestQueue {
    queue: Mutex<VecDeque<Arc<QueuedRequest>>>,
}

impl RequestQueue {
    fn join(&self, request: &Request) -> Arc<QueuedRequest> {
        let queued = Arc::new(QueuedRequest::new(request));
        locked(&self.queue).push_back(queued.clone());
        queued
    }

    /// Removes a request from the queue. `false`: another member performs it, or has performed it.
    fn leave(&self, queued: &Arc<QueuedRequest>) -> bool {
        let mut queue = locked(&self.queue);
        let place = queue.iter().position(|other| Arc::ptr_eq(other, queued));
        place.is_some_and(|place| queue.remove(place).is_some())
    }

    fn take(&self) -> Vec<Arc<QueuedRequest>> {
        let mut queue = locked(&self.queue);
        let count = queue.len().min(TOGETHER_MAX - 1);
        queue.drain(..count).collect()
    }

    fn first(&self) -> Option<Arc<QueuedRequest>> {
        locked(&self.queue).front().cloned()
    }
}

/// The turn of a group. Dropping it wakes the first member that waits in the queue.
pub(super) struct TurnGuard<'a> {
    hints: Option<MutexGuard<'a, Hints>>,
    queue: &'a RequestQueue,
}

impl Deref for TurnGuard<'_> {
    type Target = Hints;

    fn deref(&self) -> &Hints {
        self.hints.as_ref().expect("the turn is given back last")
    }
}

impl DerefMut for TurnGuard<'_> {
    fn deref_mut(&mut self) -> &mut Hints {
        self.hints.as_mut().expect("the turn is given back last")
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.hints = None;
        // After the release: a member that joined before it finds the turn free; a member that joined later is found
        // here.
        if let Some(next) = self.queue.first() {
            next.thread.unpark();
        }
    }
}

impl Shared {
    /// Waits for the turn.
    pub(super) fn turn(&self) -> TurnGuard<'_> {
        TurnGuard {
            hints: Some(locked(&self.turn)),
            queue: &self.queue,
        }
    }

    /// Takes the turn if it is free.
    fn try_turn(&self) -> Option<TurnGuard<'_>> {
        let hints = match self.turn.try_lock() {
            Ok(hints) => hints,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(TurnGuard {
            hints: Some(hints),
            queue: &self.queue,
        })
    }
}

/// Requests that the holder of the turn took from the queue. Their members perform alone what it leaves unanswered.
pub(super) struct RequestBatch {
    requests: Vec<Arc<QueuedRequest>>,
}

impl RequestBatch {
    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().map(|queued| &queued.request)
    }

    /// Answers requests, in their order. `None`: the requester performs its request alone.
    pub(super) fn answer(&self, answers: impl IntoIterator<Item = Option<Result<Answer>>>) {
        for (queued, answer) in self.requests.iter().zip(answers) {
            queued.set(answer.map_or(RequestOutcome::Alone, RequestOutcome::Answered));
        }
    }
}

impl Drop for RequestBatch {
    fn drop(&mut self) {
        for queued in &self.requests {
            if !queued.is_answered.load(Ordering::Relaxed) {
                queued.set(RequestOutcome::Alone);
            }
            queued.thread.unpark();
        }
    }
}

impl Group {
    /// Serves a request together with those of other members. `None`: the caller performs it alone.
    pub(super) fn combine(&self, request: &Request) -> Option<Result<Answer>> {
        if let Some(turn) = self.shared.try_turn() {
            return self.combine_as_holder(turn, request);
        }
        let queued = self.shared.queue.join(request);
        let mut looks = 0;
        loop {
            match queued.outcome() {
                Some(RequestOutcome::Answered(answer)) => return Some(answer),
                Some(RequestOutcome::Alone) => return None,
                None => {}
            }
            if is_time_to_try(looks)
                && let Some(turn) = self.shared.try_turn()
            {
                if self.shared.queue.leave(&queued) {
                    return self.combine_as_holder(turn, request);
                }
                // The member that took the request answered it before it released the turn.
                continue;
            }
            rest(looks);
            looks += 1;
        }
    }

    fn combine_as_holder(&self, mut turn: TurnGuard<'_>, request: &Request) -> Option<Result<Answer>> {
        let batch = RequestBatch {
            requests: self.shared.queue.take(),
        };
        let (answer, settles) = self.perform(&mut turn, request, &batch);
        // Wakes the answered members first: the next member in the queue may be asleep, and it does not answer them.
        drop(batch);
        drop(turn);
        if settles {
            self.made_room();
        }
        answer
    }
}

/// Whether to try to take the turn. Every attempt takes the cache line of the lock from the holder.
fn is_time_to_try(looks: u32) -> bool {
    looks >= SPINS || looks.is_multiple_of(LOOKS_A_TRY)
}

/// Waits for a holder that needs microseconds, and longer if its thread does not get a processor.
fn rest(looks: u32) {
    match looks {
        0..SPINS => std::hint::spin_loop(),
        SPINS..RESTS => std::thread::yield_now(),
        _ => std::thread::park(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duramen_engine::Store;

    use super::*;
    use crate::error::TopicError;
    use crate::group::deliveries::Deliveries;
    use crate::{GroupOptions, Start, TopicOptions, Topics};

    fn group(directory: &std::path::Path, messages: usize, options: GroupOptions) -> (Store, Group) {
        let store = Store::open(directory).unwrap();
        let topic = Topics::open(&store).unwrap();
        let topic = topic.create("orders", TopicOptions::new()).unwrap();
        let group = topic.ensure_group("group", Start::Beginning, options).unwrap();
        // The first turn cleans up what other processes left.
        assert!(group.member("first").receive(1, Duration::ZERO).unwrap().is_none());
        topic.publish_all(vec![b"message"; messages]).unwrap();
        (store, group)
    }

    fn messages(group: &Group, most: usize) -> Request {
        let membership = Membership::new(group, "member");
        Request::Messages { membership, most }
    }

    fn handed(answer: Option<Result<Answer>>) -> Deliveries {
        match answer.unwrap().unwrap() {
            Answer::Messages(batch, messages) => Deliveries::new(batch, messages, Vec::new()),
            other => panic!("{other:?}"),
        }
    }

    fn outcome(queued: &QueuedRequest) -> Option<Result<Answer>> {
        match queued.outcome().expect("it was answered") {
            RequestOutcome::Answered(answer) => Some(answer),
            RequestOutcome::Alone => None,
        }
    }

    fn acknowledged(deliveries: &Deliveries) -> Request {
        let lease_key = deliveries.lease_key();
        let offset = deliveries.messages().offsets().start;
        Request::Acknowledged { lease_key, offset }
    }

    #[test]
    fn who_waits_is_served_in_the_same_commit_and_meets_only_errors_of_his_own() {
        let directory = tempfile::tempdir().unwrap();
        let (store, group) = group(directory.path(), 5, GroupOptions::new());
        let first = handed(group.combine(&messages(&group, 1)));
        let before = store.snapshot().unwrap().commit();
        let requests = [
            messages(&group, 2),
            acknowledged(&first),
            acknowledged(&first),
            messages(&group, 9),
            messages(&group, 1),
        ];
        let queued_requests = requests.each_ref().map(|request| group.shared.queue.join(request));
        let own = handed(group.combine(&messages(&group, 1)));
        assert_eq!(store.snapshot().unwrap().commit(), before + 1);
        assert_eq!(own.messages().offsets(), 1..2);
        let [two, done, again, rest, none] = queued_requests.each_ref().map(|queued| outcome(queued));
        assert_eq!(handed(two).messages().offsets(), 2..4);
        assert!(matches!(done, Some(Ok(Answer::Acknowledged))));
        let error = again.unwrap().unwrap_err();
        assert_eq!(TopicError::of(&error), Some(&TopicError::AlreadySettled { offset: 0 }));
        assert_eq!(handed(rest).messages().offsets(), 4..5);
        assert!(matches!(none, Some(Ok(Answer::Nothing(_)))));
        let tokens = [&first, &own].map(|deliveries| deliveries.lease_key().token());
        assert_ne!(tokens[0], tokens[1]);
        assert_eq!(group.describe().unwrap().pending, 4);
    }

    #[test]
    fn what_is_not_plain_everybody_does_for_himself() {
        let directory = tempfile::tempdir().unwrap();
        let (_store, group) = group(directory.path(), 9, GroupOptions::new().in_flight(3));
        let first = handed(group.combine(&messages(&group, 2)));
        let queued = group.shared.queue.join(&messages(&group, 2));
        assert_eq!(
            handed(group.combine(&messages(&group, 2))).len(),
            1,
            "there is room for one more"
        );
        assert!(outcome(&queued).is_none(), "there is room for none");
        assert!(group.combine(&messages(&group, 1)).is_none());
        group.pause().unwrap();
        let queued = group.shared.queue.join(&messages(&group, 1));
        assert!(group.combine(&acknowledged(&first)).unwrap().is_ok());
        assert!(outcome(&queued).is_none(), "the group is paused");
        group.resume().unwrap();
        group.topic().delete_group("group").unwrap();
        let queued = group.shared.queue.join(&acknowledged(&first));
        assert!(
            group.combine(&messages(&group, 1)).is_none(),
            "each is told by itself that the group is gone"
        );
        let error = outcome(&queued).unwrap().unwrap_err();
        assert!(matches!(TopicError::of(&error), Some(TopicError::GroupDeleted { .. })));
    }

    #[test]
    fn who_sleeps_is_woken_by_the_turn_that_comes_free_and_by_his_answer() {
        let directory = tempfile::tempdir().unwrap();
        let (_store, group) = group(directory.path(), 3, GroupOptions::new());
        let (done, answered) = std::sync::mpsc::channel();
        let turn = group.shared.turn();
        for _ in 0..3 {
            let (group, done) = (group.clone(), done.clone());
            std::thread::spawn(move || done.send(handed(group.combine(&messages(&group, 1))).len()));
        }
        while locked(&group.shared.queue.queue).len() < 3 {
            std::thread::yield_now();
        }
        // Now the threads check a few times, and then sleep.
        std::thread::sleep(Duration::from_millis(100));
        drop(turn);
        let soon = Duration::from_secs(60);
        assert!((0..3).all(|_| answered.recv_timeout(soon).expect("a member sleeps on") == 1));
    }

    #[test]
    fn who_comes_while_somebody_has_the_turn_is_not_slept_through() {
        let directory = tempfile::tempdir().unwrap();
        let (_store, group) = group(directory.path(), 3_000, GroupOptions::new());
        let taken = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let mut member = group.member("member");
                    while let Some(deliveries) = member.receive(1, Duration::ZERO).unwrap() {
                        for delivery in deliveries {
                            delivery.acknowledge().unwrap();
                            locked(&taken).push(delivery.offset());
                        }
                    }
                });
            }
        });
        let mut taken = taken.into_inner().unwrap();
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..3_000));
        let described = group.describe().unwrap();
        assert_eq!((described.acknowledged, described.pending), (3_000, 0));
    }
}
