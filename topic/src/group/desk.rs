//! The desk of a group: members that want something at the same time are served by one of them, in one transaction.
//!
//! The simple version: whoever wants messages, or has acknowledged one, takes the turn and commits. Why that is not enough:
//! a group of many members makes two small commits for each message, one after the other, and a member that waits for
//! another one sleeps and is woken, which costs more than what it waited for. So a member that finds the turn taken writes
//! down what it wants. Whoever has the turn next does all of that with its own, and the others find it done.
//!
//! What is promised is what it would be alone: a member returns after the commit that holds what it was given. What is not
//! plain, or fails, everybody does for himself: a lease that ran out, a message that is due again, a group that is paused, a
//! limit that is reached, an error of the commit. So nobody gets the error of somebody else.
//!
//! Nobody is slept through: who waits is in the queue before he finds the turn taken for the last time, and whoever gives
//! the turn back looks into the queue after that.

use duramen_engine::Result;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::Thread;

use super::deliveries::{Claim, Deliveries};
use super::membership::Membership;
use super::outlook::Outlook;
use super::{Group, Shared};
use crate::topics::locked;

/// Requests that are served together. It bounds a transaction, and how long the turn is held.
pub(super) const TOGETHER_MAX: usize = 64;
/// Looks at an answer before a thread lets others run: while it looks, nobody of those who could be served too does.
const SPINS: u32 = 20;
const LOOKS_A_TRY: u32 = 10;
/// Looks before it sleeps: how often it lets others run, and what is before that.
const RESTS: u32 = SPINS + 40;

/// What a member wants.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    /// Messages that nobody had yet.
    Messages { membership: Arc<Membership>, most: usize },
    /// To acknowledge one that it was handed.
    Acknowledged { claim: Claim, offset: u64 },
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    Messages(Deliveries),
    /// The topic has no more of them; at this time of the shared clock there may be some.
    Nothing(u64),
    Acknowledged,
}

/// A wish that waits to be served.
pub(super) struct Request {
    pub(super) wish: Wish,
    answer: Mutex<Option<Fate>>,
    is_answered: AtomicBool,
    thread: Thread,
}

/// What became of a request.
enum Fate {
    Answered(Result<Answer>),
    /// Whoever asked does it for himself.
    Alone,
}

impl Request {
    fn new(wish: &Wish) -> Request {
        Request {
            wish: wish.clone(),
            answer: Mutex::new(None),
            is_answered: AtomicBool::new(false),
            thread: std::thread::current(),
        }
    }

    fn set(&self, fate: Fate) {
        *locked(&self.answer) = Some(fate);
        // Release: pairs with the acquire in `fate`.
        self.is_answered.store(true, Ordering::Release);
    }

    fn fate(&self) -> Option<Fate> {
        if !self.is_answered.load(Ordering::Acquire) {
            return None;
        }
        Some(locked(&self.answer).take().expect("an answer is taken once"))
    }
}

/// Those who wait to be served.
#[derive(Default)]
pub(super) struct Desk {
    queue: Mutex<VecDeque<Arc<Request>>>,
}

impl Desk {
    fn join(&self, wish: &Wish) -> Arc<Request> {
        let request = Arc::new(Request::new(wish));
        locked(&self.queue).push_back(request.clone());
        request
    }

    /// Takes a request back; `false`: somebody serves it, or has served it.
    fn leave(&self, request: &Arc<Request>) -> bool {
        let mut queue = locked(&self.queue);
        let place = queue.iter().position(|other| Arc::ptr_eq(other, request));
        place.is_some_and(|place| queue.remove(place).is_some())
    }

    fn take(&self) -> Vec<Arc<Request>> {
        let mut queue = locked(&self.queue);
        let count = queue.len().min(TOGETHER_MAX - 1);
        queue.drain(..count).collect()
    }

    fn first(&self) -> Option<Arc<Request>> {
        locked(&self.queue).front().cloned()
    }
}

/// The turn of a group. Whoever waits at the desk takes it next.
pub(super) struct HeldTurn<'a> {
    outlook: Option<MutexGuard<'a, Outlook>>,
    desk: &'a Desk,
}

impl Deref for HeldTurn<'_> {
    type Target = Outlook;

    fn deref(&self) -> &Outlook {
        self.outlook.as_ref().expect("the turn is given back last")
    }
}

impl DerefMut for HeldTurn<'_> {
    fn deref_mut(&mut self) -> &mut Outlook {
        self.outlook.as_mut().expect("the turn is given back last")
    }
}

impl Drop for HeldTurn<'_> {
    fn drop(&mut self) {
        self.outlook = None;
        // After that: who came to the queue before it finds the turn free, and who came later is found here.
        if let Some(next) = self.desk.first() {
            next.thread.unpark();
        }
    }
}

impl Shared {
    /// Waits for the turn.
    pub(super) fn turn(&self) -> HeldTurn<'_> {
        HeldTurn {
            outlook: Some(locked(&self.turn)),
            desk: &self.desk,
        }
    }

    /// The turn, unless somebody has it.
    fn try_turn(&self) -> Option<HeldTurn<'_>> {
        let outlook = match self.turn.try_lock() {
            Ok(outlook) => outlook,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(HeldTurn {
            outlook: Some(outlook),
            desk: &self.desk,
        })
    }
}

/// Requests that somebody has taken from the queue. What he leaves without an answer, those who asked do for themselves.
pub(super) struct Served {
    requests: Vec<Arc<Request>>,
}

impl Served {
    pub(super) fn wishes(&self) -> impl Iterator<Item = &Wish> {
        self.requests.iter().map(|request| &request.wish)
    }

    /// Answers requests, in their order; `None`: he who asked does it for himself.
    pub(super) fn answer(&self, answers: impl IntoIterator<Item = Option<Result<Answer>>>) {
        for (request, answer) in self.requests.iter().zip(answers) {
            request.set(answer.map_or(Fate::Alone, Fate::Answered));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for request in &self.requests {
            if !request.is_answered.load(Ordering::Relaxed) {
                request.set(Fate::Alone);
            }
            request.thread.unpark();
        }
    }
}

impl Group {
    /// Serves a wish together with those of others; `None`: it is to be done alone.
    pub(super) fn ask(&self, wish: &Wish) -> Option<Result<Answer>> {
        if let Some(turn) = self.shared.try_turn() {
            return self.lead(turn, wish);
        }
        let request = self.shared.desk.join(wish);
        let mut looks = 0;
        loop {
            match request.fate() {
                Some(Fate::Answered(answer)) => return Some(answer),
                Some(Fate::Alone) => return None,
                None => {}
            }
            if is_time_to_try(looks)
                && let Some(turn) = self.shared.try_turn()
            {
                if self.shared.desk.leave(&request) {
                    return self.lead(turn, wish);
                }
                // Whoever took it has given the turn back after he answered.
                continue;
            }
            rest(looks);
            looks += 1;
        }
    }

    fn lead(&self, mut turn: HeldTurn<'_>, wish: &Wish) -> Option<Result<Answer>> {
        let served = Served {
            requests: self.shared.desk.take(),
        };
        let (answer, settles) = self.serve(&mut turn, wish, &served);
        // Those who were served first: one of them may sleep, and whoever is next in the queue serves nobody else.
        drop(served);
        drop(turn);
        if settles {
            self.made_room();
        }
        answer
    }
}

/// Whether to try to get the turn: every look would take the memory that its lock is in from whoever has it.
fn is_time_to_try(looks: u32) -> bool {
    looks >= SPINS || looks.is_multiple_of(LOOKS_A_TRY)
}

/// Waits for something that takes microseconds, and that takes longer if whoever does it does not run.
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
    use crate::{GroupOptions, Start, TopicOptions, Topics};

    fn group(directory: &std::path::Path, messages: usize, options: GroupOptions) -> (Store, Group) {
        let store = Store::open(directory).unwrap();
        let topic = Topics::open(&store).unwrap();
        let topic = topic.create("orders", TopicOptions::new()).unwrap();
        let group = topic.ensure_group("group", Start::Beginning, options).unwrap();
        // The first turn looks after what other processes left.
        assert!(group.member("first").receive(1, Duration::ZERO).unwrap().is_none());
        topic.publish_all(vec![b"message"; messages]).unwrap();
        (store, group)
    }

    fn messages(group: &Group, most: usize) -> Wish {
        let membership = Membership::new(group, "member");
        Wish::Messages { membership, most }
    }

    fn handed(answer: Option<Result<Answer>>) -> Deliveries {
        match answer.unwrap().unwrap() {
            Answer::Messages(deliveries) => deliveries,
            other => panic!("{other:?}"),
        }
    }

    fn fate(request: &Request) -> Option<Result<Answer>> {
        match request.fate().expect("it was served") {
            Fate::Answered(answer) => Some(answer),
            Fate::Alone => None,
        }
    }

    fn acknowledged(deliveries: &Deliveries) -> Wish {
        let claim = deliveries.claim();
        let offset = deliveries.messages().offsets().start;
        Wish::Acknowledged { claim, offset }
    }

    #[test]
    fn who_waits_is_served_in_the_same_commit_and_meets_only_errors_of_his_own() {
        let directory = tempfile::tempdir().unwrap();
        let (store, group) = group(directory.path(), 5, GroupOptions::new());
        let first = handed(group.ask(&messages(&group, 1)));
        let before = store.snapshot().unwrap().commit();
        let wishes = [
            messages(&group, 2),
            acknowledged(&first),
            acknowledged(&first),
            messages(&group, 9),
            messages(&group, 1),
        ];
        let requests = wishes.each_ref().map(|wish| group.shared.desk.join(wish));
        let own = handed(group.ask(&messages(&group, 1)));
        assert_eq!(store.snapshot().unwrap().commit(), before + 1);
        assert_eq!(own.messages().offsets(), 1..2);
        let [two, done, again, rest, none] = requests.each_ref().map(|request| fate(request));
        assert_eq!(handed(two).messages().offsets(), 2..4);
        assert!(matches!(done, Some(Ok(Answer::Acknowledged))));
        let error = again.unwrap().unwrap_err();
        assert_eq!(TopicError::of(&error), Some(&TopicError::AlreadySettled { offset: 0 }));
        assert_eq!(handed(rest).messages().offsets(), 4..5);
        assert!(matches!(none, Some(Ok(Answer::Nothing(_)))));
        let tokens = [&first, &own].map(|deliveries| deliveries.claim().token());
        assert_ne!(tokens[0], tokens[1]);
        assert_eq!(group.describe().unwrap().pending, 4);
    }

    #[test]
    fn what_is_not_plain_everybody_does_for_himself() {
        let directory = tempfile::tempdir().unwrap();
        let (_store, group) = group(directory.path(), 9, GroupOptions::new().in_flight(3));
        let first = handed(group.ask(&messages(&group, 2)));
        let request = group.shared.desk.join(&messages(&group, 2));
        assert_eq!(
            handed(group.ask(&messages(&group, 2))).len(),
            1,
            "there is room for one more"
        );
        assert!(fate(&request).is_none(), "there is room for none");
        assert!(group.ask(&messages(&group, 1)).is_none());
        group.pause().unwrap();
        let request = group.shared.desk.join(&messages(&group, 1));
        assert!(group.ask(&acknowledged(&first)).unwrap().is_ok());
        assert!(fate(&request).is_none(), "the group is paused");
        group.resume().unwrap();
        group.topic().delete_group("group").unwrap();
        let request = group.shared.desk.join(&acknowledged(&first));
        assert!(
            group.ask(&messages(&group, 1)).is_none(),
            "each is told by itself that the group is gone"
        );
        let error = fate(&request).unwrap().unwrap_err();
        assert!(matches!(TopicError::of(&error), Some(TopicError::GroupDeleted { .. })));
    }

    #[test]
    fn who_sleeps_is_woken_by_the_turn_that_comes_free_and_by_his_answer() {
        let directory = tempfile::tempdir().unwrap();
        let (_store, group) = group(directory.path(), 3, GroupOptions::new());
        let (done, served) = std::sync::mpsc::channel();
        let turn = group.shared.turn();
        for _ in 0..3 {
            let (group, done) = (group.clone(), done.clone());
            std::thread::spawn(move || done.send(handed(group.ask(&messages(&group, 1))).len()));
        }
        while locked(&group.shared.desk.queue).len() < 3 {
            std::thread::yield_now();
        }
        // Now they look a few times, and sleep.
        std::thread::sleep(Duration::from_millis(100));
        drop(turn);
        let soon = Duration::from_secs(60);
        assert!((0..3).all(|_| served.recv_timeout(soon).expect("somebody sleeps on") == 1));
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
