//! From requests to commits: requests queue, and one of them applies all that wait in one commit.
//!
//! There is no thread for it. The first request that finds no task at work starts one on its own runtime. The task runs
//! after the other requests that are ready there, so they are in its first commit. It goes on until the queue is empty.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duramen::{Durability, Error, Kind};
use duramen_proto::command::{Command, Entry, Outcome};
use prost::Message;
use tokio::sync::oneshot;
use tonic::{Code, Status};

use crate::command::{Applied, Applier, ENTRY_VERSION};
use crate::error::{failed, not_synced, overloaded, stopping, unanswered};
use crate::level::Level;
use crate::measure::{Histogram, LogLimit};
use crate::refusal::refusal_of;

/// The most commands of a commit.
const ENTRY_COMMANDS: usize = 1_024;
/// The most bytes of the commands of a commit, unless one alone has more.
const ENTRY_BYTES: usize = 4 << 20;
/// The most commands of a commit that may have to be taken back alone: each makes the reads of the others slower.
const ENTRY_SAVEPOINTS: usize = 64;

/// A queued request.
struct Queued {
    command: Command,
    asked: Asked,
}

/// Who asked for a command, and for what.
struct Asked {
    level: Level,
    /// Closed when the client gave up or its deadline has passed.
    reply: oneshot::Sender<Result<Outcome, Status>>,
    reserved: Reserved,
}

/// Room in the queue, which is given back when the command is answered or dropped.
struct Reserved {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shared.queued_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Resolves with the outcome of a command. At [`Level::Memory`] it is dropped instead.
pub type Answer = oneshot::Receiver<Result<Outcome, Status>>;

/// Takes commands and answers with their outcomes.
#[derive(Clone)]
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Vec<Queued>>,
    queued_bytes: AtomicUsize,
    is_draining: AtomicBool,
    is_closed: AtomicBool,
    /// Commits whose requests wait until they survive a power cut.
    awaits_device: AtomicUsize,
    applier: Mutex<Applier>,
    limits: Limits,
    commands: AtomicU64,
    commits: AtomicU64,
    overloaded: AtomicU64,
    times: Times,
    failures: LogLimit,
}

/// How long commits take.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Applying an entry, with the wait for other writers.
    pub(crate) commit: Histogram,
    /// From then until the entry survives a power cut.
    pub(crate) sync_wait: Histogram,
}

/// What the queue may hold. Beyond that, requests are refused with a hint to retry.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of all queued commands.
    pub queued_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { queued_bytes: 64 << 20 }
    }
}

impl Pipeline {
    /// A pipeline in front of an applier.
    pub fn new(applier: Applier, limits: Limits) -> Pipeline {
        Pipeline {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                queued_bytes: AtomicUsize::new(0),
                is_draining: AtomicBool::new(false),
                is_closed: AtomicBool::new(false),
                awaits_device: AtomicUsize::new(0),
                applier: Mutex::new(applier),
                limits,
                commands: AtomicU64::new(0),
                commits: AtomicU64::new(0),
                overloaded: AtomicU64::new(0),
                times: Times::default(),
                failures: LogLimit::default(),
            }),
        }
    }

    /// Applies a command, and returns its outcome when it is as safe as the level says. At [`Level::Memory`] it returns
    /// `None` once the command is queued.
    ///
    /// When the caller stops waiting before the command is applied, it is not applied (but at [`Level::Memory`]).
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when too much is queued; what a failure of the store means for the request.
    pub async fn submit(&self, command: Command, level: Level) -> Result<Option<Outcome>, Status> {
        let answer = self.enqueue(command, level).inspect_err(|refused| {
            if refused.code() == Code::ResourceExhausted {
                self.shared.overloaded.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        if level == Level::Memory {
            return Ok(None);
        }
        answer.await.unwrap_or_else(|_| Err(unanswered())).map(Some)
    }

    /// As [`Pipeline::submit`], for a command whose bytes have room elsewhere until it is answered.
    pub(crate) async fn submit_beside(&self, command: Command, level: Level) -> Result<Outcome, Status> {
        let reserved = Reserved {
            shared: self.shared.clone(),
            bytes: 0,
        };
        let answer = self.push(command, level, reserved)?;
        answer.await.unwrap_or_else(|_| Err(unanswered()))
    }

    /// Queues a command. The answer comes through the receiver.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when too much is queued; UNAVAILABLE when the server stops.
    pub fn enqueue(&self, command: Command, level: Level) -> Result<Answer, Status> {
        let shared = &self.shared;
        let bytes = command.encoded_len() + mem::size_of::<Queued>();
        let before = shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Reserved {
            shared: shared.clone(),
            bytes,
        };
        if before > 0 && before + bytes > shared.limits.queued_bytes {
            return Err(overloaded());
        }
        self.push(command, level, reserved)
    }

    fn push(&self, command: Command, level: Level, reserved: Reserved) -> Result<Answer, Status> {
        let shared = &self.shared;
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(stopping());
        }
        let (reply, answer) = oneshot::channel();
        let asked = Asked { level, reply, reserved };
        locked(&shared.queue).push(Queued { command, asked });
        if !shared.is_draining.swap(true, Ordering::AcqRel) {
            tokio::spawn(drain(shared.clone()));
        }
        Ok(answer)
    }

    /// Refuses new commands, and returns when all queued ones are applied and answered.
    pub async fn close(&self) {
        let shared = &self.shared;
        shared.is_closed.store(true, Ordering::Release);
        loop {
            // The runtime of the task that was at work may have ended with its last connection.
            if !shared.is_draining.swap(true, Ordering::AcqRel) {
                drain(shared.clone()).await;
            }
            let is_empty = locked(&shared.queue).is_empty();
            if is_empty
                && !shared.is_draining.load(Ordering::Acquire)
                && shared.awaits_device.load(Ordering::Acquire) == 0
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Commands applied so far, and commits that applied them.
    pub fn counts(&self) -> (u64, u64) {
        (
            self.shared.commands.load(Ordering::Relaxed),
            self.shared.commits.load(Ordering::Relaxed),
        )
    }

    /// Requests that were refused because too much was queued.
    pub(crate) fn overloaded(&self) -> u64 {
        self.shared.overloaded.load(Ordering::Relaxed)
    }

    /// Bytes of the commands that are queued.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.shared.limits
    }

    pub(crate) fn times(&self) -> &Times {
        &self.shared.times
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies what is queued until nothing is.
async fn drain(shared: Arc<Shared>) {
    // A panic in between must not leave a queue that no task empties.
    let at_work = AtWork(&shared);
    loop {
        let waiting = mem::take(&mut *locked(&shared.queue));
        if waiting.is_empty() {
            shared.is_draining.store(false, Ordering::Release);
            // Who queued before the store above did not start another task.
            let is_more = !locked(&shared.queue).is_empty();
            if is_more && !shared.is_draining.swap(true, Ordering::AcqRel) {
                continue;
            }
            break;
        }
        for entry in entries(waiting) {
            shared.apply(entry);
        }
        tokio::task::yield_now().await;
    }
    mem::forget(at_work);
}

struct AtWork<'a>(&'a Shared);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.is_draining.store(false, Ordering::Release);
    }
}

/// Divides requests into those of one commit each. Requests whose callers have gone are left out.
fn entries(waiting: Vec<Queued>) -> Vec<Vec<Queued>> {
    let mut entries: Vec<Vec<Queued>> = Vec::new();
    let (mut bytes, mut savepoints, mut has_ended) = (0, 0, false);
    for queued in waiting {
        let takes_savepoint = usize::from(Applier::takes_savepoint(&queued.command));
        let is_full = |entry: &Vec<Queued>| {
            entry.len() >= ENTRY_COMMANDS
                || bytes + queued.asked.reserved.bytes > ENTRY_BYTES
                || savepoints + takes_savepoint > ENTRY_SAVEPOINTS
        };
        let ends = Applier::ends_entry(&queued.command);
        match entries.last_mut().filter(|entry| !has_ended && !is_full(entry)) {
            Some(entry) => {
                bytes += queued.asked.reserved.bytes;
                savepoints += takes_savepoint;
                entry.push(queued);
            }
            None => {
                (bytes, savepoints) = (queued.asked.reserved.bytes, takes_savepoint);
                entries.push(vec![queued]);
            }
        }
        has_ended = ends;
    }
    entries
}

impl Shared {
    fn apply(self: &Arc<Self>, mut entry: Vec<Queued>) {
        entry.retain(|queued| queued.asked.level == Level::Memory || !queued.asked.reply.is_closed());
        let (commands, asked): (Vec<_>, Vec<_>) =
            entry.into_iter().map(|queued| (queued.command, queued.asked)).unzip();
        if !commands.is_empty() {
            self.apply_all(commands, asked);
        }
    }

    fn apply_all(self: &Arc<Self>, commands: Vec<Command>, asked: Vec<Asked>) {
        let durability = match asked.iter().any(|asked| asked.level == Level::Synced) {
            true => Durability::Synced,
            false => Durability::Written,
        };
        let entry = Entry {
            version: ENTRY_VERSION,
            time_us: now_us(),
            clock_us: locked(&self.applier).clock_us(),
            commands,
        };
        let begun = Instant::now();
        let applied = locked(&self.applier).apply(&entry, durability);
        match applied {
            Ok(applied) => {
                self.times.commit.record(begun.elapsed());
                self.commands.fetch_add(entry.commands.len() as u64, Ordering::Relaxed);
                self.commits.fetch_add(1, Ordering::Relaxed);
                self.answer(applied, asked);
            }
            Err(error) if asked.len() > 1 && is_of_one_command(&error) => {
                for (command, asked) in entry.commands.into_iter().zip(asked) {
                    self.apply_all(vec![command], vec![asked]);
                }
            }
            Err(error) => {
                self.log_failure(&error);
                for asked in asked {
                    let _ = asked.reply.send(Err(failed(&error)));
                }
            }
        }
    }

    /// Answers the requests that wait for the commit, and starts a task for those that wait for the device.
    fn answer(self: &Arc<Self>, applied: Applied, asked: Vec<Asked>) {
        let mut waiting = Vec::new();
        for (outcome, asked) in applied.outcomes.into_iter().zip(asked) {
            match asked.level {
                // What waits for the device is not in the queue any more.
                Level::Synced => waiting.push((outcome, asked.reply)),
                // At the level of memory the receiver is gone.
                Level::Written | Level::Memory => drop(asked.reply.send(Ok(outcome))),
            }
        }
        if waiting.is_empty() {
            return;
        }
        let awaits = Awaits::device(self);
        let begun = Instant::now();
        tokio::spawn(async move {
            let synced = applied.durable.await;
            match &synced {
                Ok(_) => awaits.0.times.sync_wait.record(begun.elapsed()),
                Err(error) => awaits.0.log_failure(error),
            }
            for (outcome, reply) in waiting {
                let _ = reply.send(match &synced {
                    Ok(_) => Ok(outcome),
                    Err(error) => Err(not_synced(error)),
                });
            }
            drop(awaits);
        });
    }
}

impl Shared {
    /// Logs an error that the store has, and not the request.
    fn log_failure(&self, error: &Error) {
        if !matches!(error.kind(), Kind::FixTheCall | Kind::Retry | Kind::Closed)
            && let Some(left_out) = self.failures.admit()
        {
            tracing::error!(%error, left_out, "the store refuses writes");
        }
    }
}

/// Counts a commit that waits for the device, as long as it lives.
struct Awaits(Arc<Shared>);

impl Awaits {
    fn device(shared: &Arc<Shared>) -> Awaits {
        shared.awaits_device.fetch_add(1, Ordering::AcqRel);
        Awaits(shared.clone())
    }
}

impl Drop for Awaits {
    fn drop(&mut self) {
        self.0.awaits_device.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether a commit failed for what one of its commands needs, such as room: then the others must not suffer. Where the
/// store itself is stopped or held by others, each command would fail alike, perhaps after a long wait.
fn is_of_one_command(error: &Error) -> bool {
    // What has a reason of its own is a refusal, such as a topic that is full.
    let is_its_own = matches!(error.kind(), Kind::FixTheCall | Kind::MakeSpace) || refusal_of(error).is_some();
    is_its_own && !error.is_of_a_made_commit()
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
