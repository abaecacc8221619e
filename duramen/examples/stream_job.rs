//! A stream job: counts the clicks of each user in windows of a minute, by the time of the clicks. It reads the topic
//! `clicks`, keeps the open windows in keyed state, and publishes each window that closes to the topic `results`.
//!
//! Each batch is one transaction: counts, positions and results commit together. So each result is there exactly once,
//! however often the job is killed, and with however many workers it goes on.
//!
//!     cargo run --release -p duramen --example stream_job

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use duramen::encoding::{decode, encode};
use duramen::state::{KeyedState, MapState, ValueState};
use duramen::topic::{Messages, Start, Topic, TopicOptions, TopicWrites, Topics};
use duramen::{Durability, Options, Reason, Result, Store, Transaction, TypedMap};

/// Length of a window.
pub const WINDOW_SECONDS: u64 = 60;
/// How much later than a newer click a click may come.
pub const LATENESS_SECONDS: u64 = 30;
/// The time of the last message: no click follows, and all windows close.
pub const END: u64 = u64::MAX;

const KEY_GROUPS: u16 = 16;
const BATCH_MESSAGES: usize = 32;
/// Messages between two checkpoints, as the first worker reads them.
const CHECKPOINT_MESSAGES: u64 = 320;
const CHECKPOINTS_KEPT: usize = 3;

/// How far the clicks of a key group are processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Progress {
    /// The next offset.
    offset: u64,
    /// All windows that end here or earlier are closed. It follows from the clicks before `offset`.
    watermark: u64,
}

/// The topics and states of the job.
pub struct Job {
    store: Store,
    /// Messages: user and second of a click.
    pub clicks: Topic,
    /// Messages: user, first second of a window, and clicks in it.
    pub results: Topic,
    /// The keyed state, with the checkpoints.
    pub state: KeyedState,
}

impl Job {
    /// Opens the job. Makes its topics and state when they are missing.
    pub fn open(store: &Store) -> Result<Job> {
        let topics = Topics::open(store)?;
        Ok(Job {
            clicks: topics.ensure("clicks", TopicOptions::new())?,
            results: topics.ensure("results", TopicOptions::new())?,
            state: KeyedState::open(store, "clicks by minute", KEY_GROUPS)?,
            store: store.clone(),
        })
    }

    /// The clicks that came too late for their windows, by user.
    pub fn late(&self) -> Result<ValueState<String, u64>> {
        self.state.value("late")
    }

    /// Runs workers on threads until all clicks are counted, or `goes_on` says no. They call it with the next offset after each
    /// batch.
    pub fn run(&self, workers: u16, goes_on: &(dyn Fn(u64) -> bool + Sync)) -> Result<()> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..workers)
                .map(|index| scope.spawn(move || self.run_worker(index, workers, goes_on)))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a worker that does not panic"))
        })
    }

    /// Runs one worker, which may have a process of its own; see [`Job::run`].
    pub fn run_worker(&self, index: u16, workers: u16, goes_on: &dyn Fn(u64) -> bool) -> Result<()> {
        Worker::open(self, index, workers)?.run(goes_on)
    }
}

/// The part of the job that owns a range of key groups.
struct Worker<'j> {
    job: &'j Job,
    index: u16,
    /// Clicks by user and first second of a window.
    windows: MapState<String, u64, u64>,
    late: ValueState<String, u64>,
    /// Progress by key group: offset and watermark. With another number of workers, a worker gets key groups that came less far
    /// than others. So each key group has its own position in the topic.
    positions: TypedMap<u16, (u64, u64)>,
    progress: BTreeMap<u16, Progress>,
    /// Position of the worker: of its key group that came least far.
    at: Progress,
}

impl<'j> Worker<'j> {
    fn open(job: &'j Job, index: u16, workers: u16) -> Result<Worker<'j>> {
        let own = job.state.worker(index, workers)?;
        let positions = TypedMap::new(job.store.map("positions")?);
        let progress_of = |group| Ok((group, progress_in(positions.get(&group)?)));
        let progress: BTreeMap<u16, Progress> = own.own_key_groups().map(progress_of).collect::<Result<_>>()?;
        Ok(Worker {
            job,
            index,
            windows: own.map("windows")?,
            late: own.value("late")?,
            at: progress.values().min().copied().unwrap_or_default(),
            positions,
            progress,
        })
    }

    fn run(&mut self, goes_on: &dyn Fn(u64) -> bool) -> Result<()> {
        let mut clicks = self.job.clicks.subscribe(Start::Offset(self.at.offset))?;
        while self.at.watermark != END {
            let Some(batch) = clicks.next_batch(Duration::from_secs(1))? else {
                continue;
            };
            for first in (0..batch.len()).step_by(BATCH_MESSAGES) {
                let last = batch.len().min(first + BATCH_MESSAGES);
                let checkpoints_before = self.at.offset / CHECKPOINT_MESSAGES;
                self.process(&batch.part(first..last))?;
                if self.index == 0 && self.at.offset / CHECKPOINT_MESSAGES > checkpoints_before {
                    self.checkpoint()?;
                }
                if !goes_on(self.at.offset) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Makes a checkpoint. The other workers go on meanwhile: it shows whole transactions of theirs.
    fn checkpoint(&self) -> Result<()> {
        let newest = self.job.state.latest()?.map_or(0, |checkpoint| checkpoint.id);
        self.job.state.checkpoint(newest + 1, "")?;
        self.job.state.retain(CHECKPOINTS_KEPT)?;
        Ok(())
    }

    fn process(&mut self, batch: &Messages) -> Result<()> {
        let (progress, at) = self.job.store.transact(|tx| self.process_in(tx, batch))?;
        (self.progress, self.at) = (progress, at);
        Ok(())
    }

    fn process_in(&self, tx: &mut Transaction, batch: &Messages) -> Result<(BTreeMap<u16, Progress>, Progress)> {
        self.refuse_other_worker(tx)?;
        let key_groups = self.job.state.key_groups();
        let mut at = self.at;
        for message in batch.iter() {
            let (user, second) = decode::<(String, u64)>(message.payload())?;
            let group = key_groups.of_key(user.as_str());
            let own = self.progress.get(&group);
            if second == END {
                at.watermark = END;
            } else if own.is_some_and(|own| own.offset <= message.offset()) {
                self.count(tx, &user, second, at.watermark)?;
            }
            // The clicks of all workers move the watermark, so it follows from the offset alone.
            at.watermark = at.watermark.max(second.saturating_sub(LATENESS_SECONDS));
            at.offset = message.offset() + 1;
        }
        if second_of_window(at.watermark) > second_of_window(self.at.watermark) {
            self.close(tx, at.watermark)?;
        }
        let mut progress = self.progress.clone();
        for (group, own) in progress.iter_mut().filter(|(_, own)| own.offset < at.offset) {
            *own = at;
            self.positions.within(tx).put(group, &(at.offset, at.watermark))?;
        }
        Ok((progress, at))
    }

    /// A second worker with these key groups would count clicks twice. Both write the positions, so one of them conflicts, and
    /// sees here that it must stop.
    fn refuse_other_worker(&self, tx: &Transaction) -> Result<()> {
        for (group, own) in &self.progress {
            if progress_in(self.positions.at(tx).get(group)?) != *own {
                let text = format!("another worker has processed key group {group}; start one worker for each index");
                return Err(Reason::InvalidArgument(text).into());
            }
        }
        Ok(())
    }

    fn count(&self, tx: &mut Transaction, user: &str, second: u64, watermark: u64) -> Result<()> {
        let window = second_of_window(second);
        let one_more = |clicks: Option<u64>| Some(clicks.unwrap_or(0) + 1);
        if window + WINDOW_SECONDS <= watermark {
            return self.late.update(tx, user, one_more);
        }
        self.windows.update(tx, user, &window, one_more)
    }

    /// Publishes and deletes the windows that end at the watermark or earlier. It reads all open windows, once a minute of clicks.
    fn close(&self, tx: &mut Transaction, watermark: u64) -> Result<()> {
        let is_over = |window: u64| window + WINDOW_SECONDS <= watermark;
        let over: Vec<(String, u64, u64)> = self
            .windows
            .iter(tx)?
            .filter(|window| window.as_ref().map_or(true, |(_, window, _)| is_over(*window)))
            .collect::<Result<_>>()?;
        for (user, window, clicks) in over {
            tx.publish(&self.job.results, &encode(&(user.as_str(), window, clicks)))?;
            self.windows.delete(tx, &user, &window)?;
        }
        Ok(())
    }
}

fn progress_in(row: Option<(u64, u64)>) -> Progress {
    let (offset, watermark) = row.unwrap_or_default();
    Progress { offset, watermark }
}

/// The first second of the window that has a second.
pub fn second_of_window(second: u64) -> u64 {
    second - second % WINDOW_SECONDS
}

/// Runs the job with two workers, stops it in the middle, and goes on with three.
pub fn main() -> Result<()> {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Options::new().durability(Durability::Written).open(directory.path());
    let store = open()?;
    let users = ["ada", "bob", "cleo", "dora", "emil"];
    let clicks = (0..3_000u64).map(|second| encode(&(users[second as usize % users.len()], second)));
    let mut clicks: Vec<Vec<u8>> = clicks.collect();
    clicks.push(encode(&("", END)));
    Job::open(&store)?.clicks.publish_all(&clicks)?;

    Job::open(&store)?.run(2, &|offset| offset < 1_500)?;
    store.close()?;
    let store = open()?;
    let job = Job::open(&store)?;
    job.run(3, &|_| true)?;

    let results = job.results.read(Start::Beginning, 1_000)?;
    for result in results.iter().take(5) {
        let (user, window, clicks) = decode::<(String, u64, u64)>(result.payload())?;
        println!("{user}: {clicks} clicks from second {window}");
    }
    assert_eq!(results.len(), 3_000 / WINDOW_SECONDS as usize * users.len());
    let checkpoints = job.state.checkpoints()?;
    for checkpoint in &checkpoints {
        println!("checkpoint {} shows commit {}", checkpoint.id, checkpoint.commit);
    }
    assert_eq!(checkpoints.len(), CHECKPOINTS_KEPT);
    Ok(())
}
