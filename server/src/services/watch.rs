//! The service `Watch`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use duramen::{Listener, Map, Sequence, Snapshot};
use duramen_proto::command::{StoredChange, StoredKept};
use duramen_proto::v1::watch_request::Start;
use duramen_proto::v1::watch_server::Watch;
use duramen_proto::v1::*;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::maps::Walk;
use crate::command::{keeps_none, map_not_found, oldest};
use crate::error::{failed, of_refusal, status, stopping};
use crate::security::{Access, Credentials, Resource};
use crate::state::{State, Subscribed, check_space};

/// Changes and bytes after which a response ends.
const BATCH_CHANGES: usize = 1_000;
const BATCH_BYTES: usize = 256 << 10;
/// Changes that one look at the store reads at most: a range may leave most of them out.
const LOOK_CHANGES: usize = 10_000;
/// How often a watch looks whether its token is still valid, and tells its position when all changes were outside of its
/// range. A watcher that comes back with an old position may find that its changes are gone.
const CHECK: Duration = Duration::from_secs(2);

pub(crate) struct WatchService(pub(crate) State);

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let credentials = Credentials::of(&request);
        may_read(&self.0, &credentials, &request.get_ref().map)?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let watcher = Watcher::begin(self.0.clone(), credentials, request)?;
        // A slow watcher holds two responses; the rest waits in the store.
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(watcher.serve(sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

fn may_read(state: &State, credentials: &Credentials, map: &str) -> Result<(), Status> {
    state.guard.caller(credentials)?.may(Access::Read, Resource::Map(map))
}

/// Sends the changes of a map.
struct Watcher {
    state: State,
    credentials: Credentials,
    request: WatchRequest,
    map: Map,
    /// The number of the newest change that was sent, or left out because it is outside of the range.
    position: u64,
    /// The position that the client knows.
    told: u64,
    /// The moment whose pairs are sent first.
    current: Option<Snapshot>,
    bell: Bell,
    /// When it was last looked at whether the client may read the map.
    checked: Instant,
}

impl Watcher {
    fn begin(state: State, credentials: Credentials, request: WatchRequest) -> Result<Watcher, Status> {
        let map = state.map(&request.map)?;
        let sequence = state.kept.sequence(&map).map_err(|error| failed(&error))?;
        let bell = Bell::begin(&state, sequence);
        let snapshot = state.store.snapshot().map_err(|error| failed(&error))?;
        let kept = state.kept.state(&snapshot, &map).map_err(|error| failed(&error))?;
        let kept = kept.ok_or_else(|| of_refusal(&keeps_none(&request.map)))?;
        let (position, current) = match request.start {
            Some(Start::After(position)) => (position, None),
            Some(Start::Earliest(true)) => (oldest(&kept).saturating_sub(1), None),
            Some(Start::Current(true)) => (kept.next.saturating_sub(1), Some(snapshot)),
            _ => (kept.next.saturating_sub(1), None),
        };
        check_position(&request.map, &kept, position)?;
        Ok(Watcher {
            state,
            credentials,
            request,
            map,
            position,
            told: position,
            current,
            bell,
            checked: Instant::now(),
        })
    }

    /// Sends until the client, the map or the server ends it.
    async fn serve(mut self, sender: mpsc::Sender<Result<WatchResponse, Status>>) {
        let _counted = Subscribed::count(&self.state);
        let mut ends = self.state.ends.clone();
        let ended = tokio::select! {
            sent = self.send_all(&sender) => sent,
            () = sender.closed() => return,
            _ = ends.wait_for(|ends| *ends) => Err(stopping()),
        };
        if let Err(status) = ended {
            // A client that does not read finds out when its connection ends.
            let _ = tokio::time::timeout(CHECK, sender.send(Err(status))).await;
        }
    }

    /// Returns when the client has gone.
    async fn send_all(&mut self, sender: &mpsc::Sender<Result<WatchResponse, Status>>) -> Result<(), Status> {
        let is_sent = match self.current.take() {
            Some(snapshot) => self.send_pairs(&snapshot, sender).await?,
            None => sender.send(Ok(self.response(Vec::new()))).await.is_ok(),
        };
        if !is_sent {
            return Ok(());
        }
        loop {
            self.bell.arm();
            let (changes, has_more) = self.look()?;
            let is_time = self.check()?;
            if !changes.is_empty() || is_time && self.position > self.told {
                let response = self.response(changes);
                if sender.send(Ok(response)).await.is_err() {
                    return Ok(());
                }
            }
            if has_more {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = self.bell.rung() => {}
                () = tokio::time::sleep(CHECK) => {}
            }
        }
    }

    /// Refuses to go on when the client may not read the map any more. It looks from time to time, also while there is
    /// always something to send. Returns whether it looked.
    fn check(&mut self) -> Result<bool, Status> {
        if self.checked.elapsed() < CHECK {
            return Ok(false);
        }
        self.checked = Instant::now();
        may_read(&self.state, &self.credentials, &self.map.current_name())?;
        Ok(true)
    }

    /// Sends the pairs of a moment. Returns whether the client takes them.
    async fn send_pairs(
        &mut self,
        snapshot: &Snapshot,
        sender: &mpsc::Sender<Result<WatchResponse, Status>>,
    ) -> Result<bool, Status> {
        let walk = Walk {
            map: self.map.clone(),
            range: self.request.range.clone(),
            reverse: false,
            keys_only: false,
        };
        let mut after: Option<Bytes> = None;
        loop {
            self.check()?;
            let (pairs, has_more) = walk.batch(snapshot, after.as_deref(), BATCH_CHANGES)?;
            after = pairs.last().map(|pair| pair.key.clone());
            let response = WatchResponse {
                pairs,
                current_complete: !has_more,
                ..self.response(Vec::new())
            };
            if sender.send(Ok(response)).await.is_err() {
                return Ok(false);
            }
            if !has_more {
                return Ok(true);
            }
        }
    }

    fn response(&mut self, changes: Vec<MapChange>) -> WatchResponse {
        self.told = self.position;
        WatchResponse {
            position: self.position,
            changes,
            pairs: Vec::new(),
            current_complete: false,
        }
    }

    /// The next changes, and whether there may be more.
    fn look(&mut self) -> Result<(Vec<MapChange>, bool), Status> {
        let state = self.state.clone();
        let snapshot = state.store.snapshot().map_err(|error| failed(&error))?;
        let kept = state.kept.state(&snapshot, &self.map).map_err(|error| failed(&error))?;
        let kept = kept.ok_or_else(|| of_refusal(&map_not_found(&self.request.map)))?;
        check_position(&self.request.map, &kept, self.position)?;
        let from = self.position + 1;
        let (mut changes, mut bytes, mut looked) = (Vec::new(), 0, 0);
        let visit = |number, change: StoredChange| {
            looked += 1;
            // Those outside of the range count too: reading them holds up the other clients of this thread.
            bytes += prost::Message::encoded_len(&change);
            self.position = number;
            if is_within(self.request.range.as_ref(), &change.key) {
                changes.push(to_change(number, change, self.request.without_old_values));
            }
            changes.len() < BATCH_CHANGES && bytes < BATCH_BYTES && looked < LOOK_CHANGES
        };
        let read = state.kept.each_from(&snapshot, &self.map, from, visit);
        read.map_err(|error| failed(&error))?;
        Ok((changes, self.position + 1 < kept.next))
    }
}

/// Refuses a position after which changes are missing.
fn check_position(map: &str, kept: &StoredKept, position: u64) -> Result<(), Status> {
    // First, because the client may send the largest of all numbers.
    if position >= kept.next {
        let message = format!(
            "the newest change of the map {map:?} has the number {}, and the watch would go on after {position}; the \
             position belongs to another map, or to a newer copy of the store; read the pairs again",
            kept.next.saturating_sub(1)
        );
        return Err(status(Code::OutOfRange, "CHANGES_NOT_MADE", message));
    }
    if position + 1 < oldest(kept) {
        let message = format!(
            "the map {map:?} keeps its changes from number {} on, and the watch would go on after {position}; read the \
             pairs again, for example by a watch that begins with `current`",
            oldest(kept)
        );
        return Err(status(Code::OutOfRange, "CHANGES_GONE", message));
    }
    Ok(())
}

fn is_within(range: Option<&KeyRange>, key: &[u8]) -> bool {
    range.is_none_or(|range| key >= &range.start[..] && range.end.as_ref().is_none_or(|end| key < &end[..]))
}

fn to_change(number: u64, change: StoredChange, without_old_values: bool) -> MapChange {
    MapChange {
        number,
        key: change.key,
        old_value: change.old_value.filter(|_| !without_old_values),
        new_value: change.new_value,
        time_ms: change.time_us / 1_000,
    }
}

/// Tells a task of new changes of a map, also of those that another process makes.
struct Bell {
    sequence: Sequence,
    listener: Arc<Listener>,
}

impl Bell {
    fn begin(state: &State, sequence: Sequence) -> Bell {
        let listener = Listener::new();
        state.store.listen(sequence.bell(), &listener, 0);
        Bell { sequence, listener }
    }

    /// What is committed after this call rings.
    fn arm(&self) {
        self.listener.wait(Duration::ZERO);
        self.sequence.bell().arm();
    }

    async fn rung(&self) {
        poll_fn(|context| match self.listener.poll(context.waker()).is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.sequence.bell().forget(&self.listener);
    }
}
