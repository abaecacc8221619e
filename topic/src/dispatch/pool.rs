//! The threads of a dispatcher, the queue of topics that may have messages, and the watch over calls.
//!
//! A thread without work becomes the *leader* if there is none. The leader waits at the listener. Other idle threads
//! sleep until there is work or no leader. A topic is in the queue at most once, and at most one thread works on it.
//! The exception is a stuck thread: the watch puts its topic back into the queue, and a spare thread continues its
//! round.
//!
//! The watch sleeps while no thread calls a subscriber.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duramen_engine::{Listener, Result};

use super::subscriber_slots::{CallOutcome, RecentBatches, SubscriberSlots};
use super::{Callback, DispatcherReport, Stuck, SubscriberId};
use crate::error::TopicError;
use crate::follower::SlowPolicy;
use crate::handle::Topic;
use crate::lock::locked;
use crate::subscription::TICK;

/// The threads and the queue of a dispatcher, as described at the top of this file.
pub(super) struct Pool {
    listener: Arc<Listener>,
    state: Mutex<State>,
    /// Signalled when there is work, when there is no leader, and when the pool stops.
    work: Condvar,
    /// Signalled when a round begins, and when the pool stops.
    watched: Condvar,
    /// Threads that run a round. Partner of `is_watching`: a thread that begins a round counts itself and then checks
    /// whether the watch sleeps. The watch announces that it sleeps and then checks for rounds. All threads agree on
    /// the order of these steps (SeqCst).
    rounds: AtomicUsize,
    is_watching: AtomicBool,
    /// Counts the steps of the watch, while it watches.
    steps: AtomicU64,
    spare: usize,
    stuck_after: Duration,
    panicked: AtomicU64,
}

#[derive(Default)]
struct State {
    topics: HashMap<u32, Entry>,
    queue: VecDeque<u32>,
    has_leader: bool,
    asleep: usize,
    is_over: bool,
    workers: Vec<Worker>,
    started: u64,
    replaced: u64,
}

struct Entry {
    slots: Arc<SubscriberSlots>,
    is_queued: bool,
    /// The worker that has the topic.
    worker: Option<u64>,
    /// Its bell rang while the worker had the topic.
    rang: bool,
}

struct Worker {
    number: u64,
    thread: JoinHandle<()>,
    call: Arc<Call>,
}

/// A worker's current call, as the watch sees it.
#[derive(Default)]
struct Call {
    /// The step of the watch in which the call began, so that a call does not read a clock. 0: there is no call.
    /// `REPLACED`: another thread continues the round. The worker and the watch exchange the value atomically, so they
    /// agree on which thread continues.
    since: AtomicU64,
    topic: AtomicU32,
    slot: AtomicU32,
    holder: AtomicU32,
}

const REPLACED: u64 = u64::MAX;
const FIRST_STEP: u64 = 1;
/// Steps of the watch in the time that a call may take.
const STEPS: u32 = 2;

/// How long the end of a dispatcher waits for late calls.
const STUCK_AT_THE_END: Duration = Duration::from_secs(1);

impl Call {
    fn begin(&self, subscriber: SubscriberId, step: u64) {
        self.topic.store(subscriber.topic, Ordering::Relaxed);
        self.slot.store(subscriber.slot, Ordering::Relaxed);
        self.holder.store(subscriber.holder, Ordering::Relaxed);
        // Release: a thread that sees the step also sees which subscriber is called. Pairs with the loads of the watch.
        self.since.store(step, Ordering::Release);
    }

    /// `false`: another thread continues the round.
    fn end(&self) -> bool {
        self.since.swap(0, Ordering::AcqRel) != REPLACED
    }

    fn subscriber(&self) -> SubscriberId {
        SubscriberId {
            topic: self.topic.load(Ordering::Relaxed),
            slot: self.slot.load(Ordering::Relaxed),
            holder: self.holder.load(Ordering::Relaxed),
        }
    }
}

impl Pool {
    pub(super) fn start(threads: usize, spare: usize, stuck_after: Duration) -> Result<Arc<Pool>> {
        let pool = Arc::new(Pool {
            listener: Listener::new(),
            state: Mutex::default(),
            work: Condvar::new(),
            watched: Condvar::new(),
            rounds: AtomicUsize::new(0),
            is_watching: AtomicBool::new(false),
            steps: AtomicU64::new(FIRST_STEP),
            spare,
            stuck_after,
            panicked: AtomicU64::new(0),
        });
        let started = (0..threads).try_for_each(|_| pool.spawn_worker(&mut locked(&pool.state)));
        if started.and_then(|()| pool.spawn_watch()).is_err() {
            pool.stop();
            return Err(TopicError::NoThread.into());
        }
        Ok(pool)
    }

    fn spawn_worker(self: &Arc<Self>, state: &mut State) -> std::io::Result<()> {
        let number = state.started;
        state.started += 1;
        let call = Arc::new(Call::default());
        let (pool, own) = (self.clone(), call.clone());
        let thread = std::thread::Builder::new().name(format!("duramen-call-{number}"));
        let thread = thread.spawn(move || pool.work(number, &own))?;
        state.workers.push(Worker { number, thread, call });
        Ok(())
    }

    fn spawn_watch(self: &Arc<Self>) -> std::io::Result<()> {
        let pool = self.clone();
        let thread = std::thread::Builder::new().name("duramen-watch".into());
        thread.spawn(move || pool.watch()).map(|_| ())
    }

    /// Duration of a step of the watch.
    fn step(&self) -> Duration {
        // Rounded up: `STEPS` steps are never shorter than the time that a call may take.
        (self.stuck_after / STEPS).saturating_add(Duration::from_nanos(1))
    }

    /// Minimum time that a call has run, given the step in which it began. The first step does not count: it was under
    /// way when the call began, and the watch may have noticed its end late, which says nothing about the call.
    fn at_least(&self, since: u64) -> Duration {
        let whole = self
            .steps
            .load(Ordering::Relaxed)
            .saturating_sub(since)
            .saturating_sub(1);
        self.step().saturating_mul(u32::try_from(whole).unwrap_or(u32::MAX))
    }

    pub(super) fn subscribe(
        &self,
        topic: &Topic,
        position: u64,
        policy: SlowPolicy,
        callback: Callback,
    ) -> SubscriberId {
        let id = topic.shared().id;
        loop {
            let slots = self.slots(topic);
            let mut state = locked(&self.state);
            // The end of a round removes a topic without subscribers, and may just have removed this topic.
            let is_known = |entry: &Entry| Arc::ptr_eq(&entry.slots, &slots);
            if state.topics.get(&id).is_some_and(is_known) {
                let subscriber = slots.add(position, policy, callback);
                self.ring(&mut state, id);
                return subscriber;
            }
        }
    }

    /// The slots of a topic. The listener hears the topic's bell from then on.
    fn slots(&self, topic: &Topic) -> Arc<SubscriberSlots> {
        let id = topic.shared().id;
        let mut state = locked(&self.state);
        if let Some(entry) = state.topics.get(&id) {
            return entry.slots.clone();
        }
        let slots = Arc::new(SubscriberSlots::new(topic));
        let entry = Entry {
            slots: slots.clone(),
            is_queued: false,
            worker: None,
            rang: false,
        };
        state.topics.insert(id, entry);
        drop(state);
        // Takes the commit lock, so it does not run under the pool's lock.
        let bell = topic.shared().sequence.bell();
        topic.home().store.listen(bell, &self.listener, u64::from(id));
        slots
    }

    pub(super) fn unsubscribe(&self, subscriber: SubscriberId) -> bool {
        let slots = locked(&self.state)
            .topics
            .get(&subscriber.topic)
            .map(|entry| entry.slots.clone());
        slots.is_some_and(|slots| slots.remove(subscriber))
    }

    pub(super) fn report(&self) -> DispatcherReport {
        let state = locked(&self.state);
        let stuck = state.workers.iter().filter_map(|worker| {
            let since = match worker.call.since.load(Ordering::Acquire) {
                0 => return None,
                // The start time is no longer known; the call has run for at least this long.
                REPLACED => self.stuck_after,
                since => self.at_least(since),
            };
            let subscriber = worker.call.subscriber();
            let entry = state
                .topics
                .get(&subscriber.topic)
                .filter(|_| since >= self.stuck_after)?;
            Some(Stuck {
                topic: entry.slots.topic.name().into(),
                subscriber,
                at_least: since,
            })
        });
        DispatcherReport {
            subscribers: state.topics.values().map(|entry| entry.slots.subscribers()).sum(),
            stuck: stuck.collect(),
            replaced: state.replaced,
            panicked: self.panicked.load(Ordering::Relaxed),
        }
    }

    /// Ends all threads. Waits until those that are not stuck end, and a second for those that are stuck.
    pub(super) fn stop(&self) {
        let mut state = locked(&self.state);
        state.is_over = true;
        let workers = std::mem::take(&mut state.workers);
        let topics = std::mem::take(&mut state.topics);
        drop(state);
        self.work.notify_all();
        self.watched.notify_all();
        self.listener.tell(u64::MAX);
        let bells = topics.values().map(|entry| entry.slots.topic.shared().sequence.bell());
        bells.for_each(|bell| bell.forget(&self.listener));
        let me = std::thread::current().id();
        let give_up = Instant::now() + STUCK_AT_THE_END;
        for worker in workers.into_iter().filter(|worker| worker.thread.thread().id() != me) {
            self.join(worker, give_up);
        }
    }

    /// Waits until a thread ends, or until `give_up` if it is stuck. On a busy machine a late call may only be waiting
    /// for a processor.
    fn join(&self, worker: Worker, give_up: Instant) {
        let mut stepped = Instant::now();
        while !worker.thread.is_finished() {
            let since = worker.call.since.load(Ordering::Acquire);
            let is_late = since != 0 && (since == REPLACED || self.at_least(since) >= self.stuck_after);
            if is_late && Instant::now() >= give_up {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
            // The watch has ended, so this loop counts the steps.
            if stepped.elapsed() >= self.step() {
                self.steps.fetch_add(1, Ordering::Relaxed);
                stepped = Instant::now();
            }
        }
        // Callbacks cannot end the thread; its own panic was reported when it happened.
        let _ = worker.thread.join();
    }

    /// Queues a topic that may have messages.
    fn ring(&self, state: &mut State, id: u32) {
        let Some(entry) = state.topics.get_mut(&id) else { return };
        match entry.worker {
            Some(_) => entry.rang = true,
            None if entry.is_queued => {}
            None => {
                entry.is_queued = true;
                state.queue.push_back(id);
                if state.asleep > 0 {
                    self.work.notify_one();
                } else if state.has_leader {
                    // Only the leader is idle.
                    self.listener.tell(u64::MAX);
                }
            }
        }
    }

    fn work(&self, number: u64, call: &Call) {
        while let Some((id, slots)) = self.next_topic(number) {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            if !self.is_watching.swap(true, Ordering::SeqCst) {
                // Takes the lock so that the watch is either before its check for rounds or asleep.
                drop(locked(&self.state));
                self.watched.notify_one();
            }
            let is_mine = self.go_round(number, call, id, &slots);
            self.rounds.fetch_sub(1, Ordering::SeqCst);
            if !is_mine {
                locked(&self.state).workers.retain(|worker| worker.number != number);
                return;
            }
        }
    }

    /// Waits for a topic that may have messages. `None`: the pool stops.
    fn next_topic(&self, number: u64) -> Option<(u32, Arc<SubscriberSlots>)> {
        let mut state = locked(&self.state);
        loop {
            if state.is_over {
                return None;
            }
            if let Some(id) = state.queue.pop_front() {
                let entry = state.topics.get_mut(&id).expect("what is queued is known");
                entry.is_queued = false;
                entry.rang = false;
                entry.worker = Some(number);
                let slots = entry.slots.clone();
                if state.asleep > 0 && (!state.has_leader || !state.queue.is_empty()) {
                    self.work.notify_one();
                }
                return Some((id, slots));
            }
            state = match state.has_leader {
                true => {
                    state.asleep += 1;
                    let mut state = self.work.wait(state).unwrap_or_else(|e| e.into_inner());
                    state.asleep -= 1;
                    state
                }
                false => self.lead(state),
            };
        }
    }

    /// Waits for bells.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.has_leader = true;
        drop(state);
        let tokens = self.listener.wait(TICK);
        let mut state = locked(&self.state);
        state.has_leader = false;
        for token in tokens {
            if let Ok(id) = u32::try_from(token) {
                self.ring(&mut state, id);
            }
        }
        state
    }

    /// Calls each subscriber of a topic once. `false`: another thread has replaced this thread meanwhile.
    fn go_round(&self, number: u64, call: &Call, id: u32, slots: &SubscriberSlots) -> bool {
        slots.topic.shared().sequence.bell().arm();
        // If the topic is gone, every subscriber is told.
        let end = slots.topic.next().unwrap_or(u64::MAX);
        slots.begin_round();
        let mut batches = RecentBatches::default();
        let mut before = None;
        let mut is_behind = false;
        loop {
            let (turn, was_behind) = slots.next(before.take(), end);
            is_behind |= was_behind;
            let Some(mut turn) = turn else { break };
            // Relaxed: a slightly old step makes the call look longer by less than the first step, which does not
            // count.
            call.begin(turn.id(&slots.topic), self.steps.load(Ordering::Relaxed));
            let called = slots.call(&mut turn, &mut batches);
            if called == CallOutcome::Panicked {
                self.panicked.fetch_add(1, Ordering::Relaxed);
            }
            if !call.end() {
                slots.put_back_late(turn, called);
                self.ring(&mut locked(&self.state), id);
                return false;
            }
            before = Some((turn, called));
        }
        self.end_round(number, id, is_behind);
        true
    }

    fn end_round(&self, number: u64, id: u32, is_behind: bool) {
        let mut state = locked(&self.state);
        let Some(entry) = state.topics.get_mut(&id).filter(|entry| entry.worker == Some(number)) else {
            return;
        };
        entry.worker = None;
        if entry.rang || is_behind {
            self.ring(&mut state, id);
        } else if entry.slots.subscribers() == 0 {
            // The topic was deleted, or all subscribers left: its bell need not be heard.
            entry.slots.topic.shared().sequence.bell().forget(&self.listener);
            let gone = state.topics.remove(&id);
            drop(state);
            // It may hold the last handle of the store.
            drop(gone);
        }
    }

    /// Number of topics that have slots.
    #[cfg(test)]
    pub(super) fn topics(&self) -> usize {
        locked(&self.state).topics.len()
    }

    fn watch(self: &Arc<Self>) {
        let mut state = locked(&self.state);
        while !state.is_over {
            self.is_watching.store(false, Ordering::SeqCst);
            state = match self.rounds.load(Ordering::SeqCst) {
                0 => self.watched.wait(state).unwrap_or_else(|e| e.into_inner()),
                _ => {
                    self.is_watching.store(true, Ordering::SeqCst);
                    let slept = self.watched.wait_timeout(state, self.step());
                    let (state, slept) = slept.unwrap_or_else(|e| e.into_inner());
                    // A notification may have woken the watch before the step ended.
                    self.steps.fetch_add(u64::from(slept.timed_out()), Ordering::Relaxed);
                    state
                }
            };
            self.replace_stuck(&mut state);
        }
    }

    /// Replaces threads whose calls do not return in time.
    fn replace_stuck(self: &Arc<Self>, state: &mut State) {
        let is_replaced = |worker: &&Worker| worker.call.since.load(Ordering::Relaxed) == REPLACED;
        let mut replaced = state.workers.iter().filter(is_replaced).count();
        for place in 0..state.workers.len() {
            let (number, call) = (state.workers[place].number, state.workers[place].call.clone());
            let since = call.since.load(Ordering::Acquire);
            let is_late = self.at_least(since) >= self.stuck_after;
            if since == 0 || since == REPLACED || !is_late || replaced >= self.spare || state.is_over {
                continue;
            }
            let topic = call.subscriber().topic;
            let exchanged = call
                .since
                .compare_exchange(since, REPLACED, Ordering::AcqRel, Ordering::Relaxed);
            if exchanged.is_err() {
                continue;
            }
            if self.spawn_worker(state).is_err() {
                // The system has no thread left: this worker continues when its call returns.
                let _ = call
                    .since
                    .compare_exchange(REPLACED, since, Ordering::AcqRel, Ordering::Relaxed);
                return;
            }
            replaced += 1;
            state.replaced += 1;
            if let Some(entry) = state
                .topics
                .get_mut(&topic)
                .filter(|entry| entry.worker == Some(number))
            {
                entry.worker = None;
                self.ring(state, topic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_late_after_two_whole_steps_of_the_watch() {
        let pool = Pool::start(1, 0, Duration::from_millis(10)).unwrap();
        // No subscriber is called, so the watch sleeps.
        let late_after = |steps: u64| {
            let since = pool.steps.load(Ordering::Relaxed);
            pool.steps.fetch_add(steps, Ordering::Relaxed);
            pool.at_least(since) >= pool.stuck_after
        };
        assert_eq!([0, 1, 2, 3, 4].map(late_after), [false, false, false, true, true]);
        pool.stop();
    }
}
