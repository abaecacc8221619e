//! The watches of `etcd-bench`: 100 watches over ten connections see every put of ten writers.
//!
//! Only the writers put meanwhile, each to a key of its own. So the revisions that a watch sees have no gap, and the
//! versions of each key none either: each event comes once, and in the order of the revisions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use duramen_client::Bytes;
use duramen_proto::etcd::kv::Event;
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::watch_client::WatchClient;
use duramen_proto::etcd::server::watch_request::RequestUnion;
use duramen_proto::etcd::server::{PutRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use futures_util::{StreamExt, stream};
use tokio::time::timeout;

use crate::answer::Answer;
use crate::crew::Worked;
use crate::data::Values;
use crate::flight::{Flight, on_connections};
use crate::measure::{Done, Work, now_nanos, thread_cpu_nanos};
use crate::trees::etcd::connect;
use crate::workloads::{Context, Recorder};

pub const ROWS: [(&str, Work); 2] = [
    ("watch: puts, 10 clients", Work::Writes),
    ("watch: events, 100 watches", Work::Reads),
];

/// Puts at scale 1, and the least.
const PUTS: usize = 20_000;
const PUTS_MIN: usize = 200;
const WRITERS: usize = 10;
/// Connections with watches, and watches of each.
const CONNECTIONS: usize = 10;
const WATCHES: i64 = 10;
/// Threads of the watching side.
const LANES: usize = 2;
const PATIENCE_NANOS: u64 = 10_000_000_000;
/// How long no event may come after the last one.
const QUIET: Duration = Duration::from_millis(50);

pub fn run(context: &Context, recorder: &mut Recorder, url: &str, values: &Values) -> Result<()> {
    let puts = context.scaled(PUTS).max(PUTS_MIN);
    recorder.phases(&ROWS, || {
        let watching = Watching {
            context,
            url,
            values,
            begun: (0..WRITERS)
                .map(|_| (0..puts).map(|_| AtomicU64::new(0)).collect())
                .collect(),
            watchers: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            total: AtomicU64::new(u64::MAX),
        };
        watching.run(puts as u64)
    })
}

struct Watching<'a> {
    context: &'a Context<'a>,
    url: &'a str,
    values: &'a Values,
    /// When each put of each writer began.
    begun: Vec<Vec<AtomicU64>>,
    /// Threads whose watches are there.
    watchers: AtomicUsize,
    /// When the writers began.
    started: AtomicU64,
    /// The number of puts, once they are done.
    total: AtomicU64,
}

/// What a watch has seen.
#[derive(Default)]
struct Seen {
    revision: i64,
    versions: [usize; WRITERS],
}

fn key(writer: usize) -> Bytes {
    format!("w{writer:07}").into()
}

impl Watching<'_> {
    fn run(&self, puts: u64) -> Result<Vec<Done>> {
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| on_connections(LANES, async |lane| self.watch(lane).await));
            while self.watchers.load(Ordering::Acquire) < LANES && !watching.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.started.store(now_nanos(), Ordering::Release);
            let written = on_connections(1, async |_| self.write(puts).await);
            // The puts that there are, or an end for the watches when a writer failed.
            let total = written.as_ref().map_or(0, |done| done.operations);
            self.total.store(total, Ordering::Release);
            let watched = watching.join().map_err(|_| anyhow!("a watching thread panicked"))?;
            let watched = Done {
                timeline: None,
                ..watched.context("watching")?
            };
            Ok(vec![written?, watched])
        })
    }

    async fn write(&self, planned: u64) -> Result<Worked> {
        let mut connections = Vec::new();
        for _ in 0..WRITERS {
            connections.push(KvClient::new(connect(self.url).await?));
        }
        let mut turns = [0; WRITERS];
        let flight = Flight {
            planned,
            in_flight: WRITERS,
            each: 1,
        };
        let begin = |slot: usize| -> Answer<'_> {
            let (key, turn) = (key(slot), turns[slot]);
            turns[slot] += 1;
            let put = PutRequest {
                value: Bytes::copy_from_slice(self.values.of(&key, turn as u32)),
                key,
                ..PutRequest::default()
            };
            let mut kv = connections[slot].clone();
            Box::pin(async move {
                self.begun[slot][turn].store(now_nanos(), Ordering::Release);
                kv.put(put).await?;
                Ok(())
            })
        };
        flight.work(self.context.pace.whole_shift(1), begin).await
    }

    async fn watch(&self, lane: usize) -> Result<Worked> {
        let cpu_before = thread_cpu_nanos();
        let (mut clients, mut answers) = (Vec::new(), stream::SelectAll::new());
        for connection in (lane..CONNECTIONS).step_by(LANES) {
            let mut client = WatchClient::new(connect(self.url).await?);
            // The server ends the watches when the stream of requests ends.
            let requests = stream::iter((1..=WATCHES).map(watch_of_all)).chain(stream::pending());
            let stream = client.watch(requests).await?.into_inner();
            answers.push(stream.map(move |answer| (connection, answer)));
            clients.push(client);
        }
        let mut all = HashMap::new();
        let watches = clients.len() * WATCHES as usize;
        while all.len() < watches {
            let (connection, answer) = answers.next().await.context("a stream of watches ended")?;
            let answer = answer?;
            ensure!(answer.created && !answer.canceled, "a watch was not made: {answer:?}");
            let revision = answer.header.context("a header")?.revision;
            let seen = Seen {
                revision,
                ..Seen::default()
            };
            all.insert((connection, answer.watch_id), seen);
        }
        self.watchers.fetch_add(1, Ordering::AcqRel);
        let mut worked = Worked::default();
        let mut last = now_nanos();
        let is_complete = |seen| seen >= self.total.load(Ordering::Acquire).saturating_mul(watches as u64);
        while !is_complete(worked.operations) {
            match timeout(Duration::from_millis(100), answers.next()).await {
                Ok(Some((connection, answer))) => {
                    self.take(connection, answer?, &mut all, &mut worked)?;
                    last = now_nanos();
                }
                Ok(None) => bail!("the streams of the watches ended"),
                Err(_) => ensure!(
                    self.total.load(Ordering::Acquire) == u64::MAX || now_nanos() - last < PATIENCE_NANOS,
                    "the watches have seen {} changes, and no other for ten seconds",
                    worked.operations
                ),
            }
        }
        worked.nanos = last.saturating_sub(self.started.load(Ordering::Acquire));
        worked.cpu_nanos = thread_cpu_nanos() - cpu_before;
        // What came twice at the very end.
        while let Ok(Some((connection, answer))) = timeout(QUIET, answers.next()).await {
            self.take(connection, answer?, &mut all, &mut Worked::default())?;
        }
        Ok(worked)
    }

    fn take(
        &self,
        connection: usize,
        answer: WatchResponse,
        all: &mut HashMap<(usize, i64), Seen>,
        worked: &mut Worked,
    ) -> Result<()> {
        ensure!(!answer.canceled, "a watch was cancelled: {}", answer.cancel_reason);
        let seen = all
            .get_mut(&(connection, answer.watch_id))
            .context("a change of a watch that there is not")?;
        let now = now_nanos();
        for event in &answer.events {
            let begun = self.next(seen, event)?;
            worked.latencies.record(now.saturating_sub(begun));
            worked.operations += 1;
        }
        Ok(())
    }

    /// Fails unless the event is the next of its watch. Returns when its put began.
    fn next(&self, seen: &mut Seen, event: &Event) -> Result<u64> {
        let pair = event.kv.as_ref().context("a change without a key")?;
        let writer = (0..WRITERS).find(|&writer| key(writer) == pair.key);
        let writer = writer.context("a change of a key that no writer has")?;
        let (revision, version) = (seen.revision + 1, seen.versions[writer]);
        ensure!(
            (pair.mod_revision, pair.version) == (revision, version as i64 + 1)
                && pair.value == self.values.of(&pair.key, version as u32),
            "a watch has seen another change than revision {revision}, which is put {version} of writer {writer}: {pair:?}"
        );
        seen.revision = revision;
        seen.versions[writer] += 1;
        Ok(self.begun[writer][version].load(Ordering::Acquire))
    }
}

/// Returns the request for a watch of all writers' keys.
fn watch_of_all(watch_id: i64) -> WatchRequest {
    let create = WatchCreateRequest {
        key: Bytes::from_static(b"w"),
        range_end: Bytes::from_static(b"x"),
        watch_id,
        ..WatchCreateRequest::default()
    };
    WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    }
}
