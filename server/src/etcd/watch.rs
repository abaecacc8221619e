//! `Watch`: streams of watches.
//!
//! A stream reads the changes of the tree as every other watch does. What etcd promises beyond that is added here: the events of a
//! revision come together, and a watch may begin at a revision that is still to come.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use duramen::tree::{ChangeKind, Event, Selection, TreeError, TreeWatches, WatchOptions, Watched};
use duramen_proto::etcd::kv::event::EventType;
use duramen_proto::etcd::kv::{Event as ToldEvent, KeyValue};
use duramen_proto::etcd::server::watch_create_request::FilterType;
use duramen_proto::etcd::server::watch_request::RequestUnion;
use duramen_proto::etcd::server::watch_server::Watch;
use duramen_proto::etcd::server::{WatchCreateRequest, WatchRequest, WatchResponse};
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::EtcdDoor;
use crate::command::{bounds, of_etcd, signed, to_key_value};
use crate::error::{failed, status, stopping};
use crate::security::{Access, Credentials};
use crate::state::Subscribed;

/// The id of a watch that there is not.
const NO_WATCH: i64 = -1;
/// The most watches of a stream: each takes some memory.
const WATCHES_MAX: usize = 100_000;
/// How often a stream looks whether its token is still valid.
const CHECK: Duration = Duration::from_secs(2);
/// Events of one revision are held until all of them are there. This is the most that a stream holds. A watch that would need more
/// ends: parts of a revision would be lost to a client that begins again after them.
const HELD_BYTES_MAX: usize = 1 << 30;

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const TOO_LARGE: &str =
    "duramen: a revision has more changes than a stream holds; read the keys, and watch from the revision after it";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// What the client asked of a watch.
struct Asked {
    /// The first revision that it wants.
    from: u64,
    wants_progress: bool,
    wants_fragments: bool,
    /// It wants neither puts nor deletions.
    is_silent: bool,
    /// Whether it was sent something since the last time for progress.
    was_told: bool,
    /// Events of a revision of which more may come.
    held: Vec<Event>,
    held_bytes: usize,
}

struct Watcher {
    door: EtcdDoor,
    credentials: Credentials,
    set: TreeWatches,
    asked: HashMap<i64, Asked>,
    /// Watches with events that are held.
    holding: HashSet<i64>,
    /// Bytes of the events that all of them hold.
    held_bytes: usize,
    next_id: i64,
    /// Whether the client asked how far all its watches have come.
    is_progress_asked: bool,
    checked: Instant,
    progressed: Instant,
}

type Sender = mpsc::Sender<Result<WatchResponse, Status>>;

#[tonic::async_trait]
impl Watch for EtcdDoor {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let credentials = Credentials::of(&request);
        self.authorize_caller(&credentials, Access::Read)?;
        let watcher = Watcher {
            door: self.clone(),
            credentials,
            set: self.watches()?,
            asked: HashMap::new(),
            holding: HashSet::new(),
            held_bytes: 0,
            next_id: 0,
            is_progress_asked: false,
            checked: Instant::now(),
            progressed: Instant::now(),
        };
        // A slow watcher holds two responses; the rest waits in the store.
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(watcher.serve(request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

impl EtcdDoor {
    pub(super) fn watches(&self) -> Result<TreeWatches, Status> {
        let tree = self.state().tree(&self.config().tree)?;
        tree.watches().map_err(|error| of_etcd(failed(&error)))
    }
}

/// Returns when something was committed since the watches were armed.
pub(super) async fn rung(set: &TreeWatches) {
    poll_fn(|context| match set.is_rung(context.waker()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

impl Watcher {
    /// Sends until the client or the server ends it.
    async fn serve(mut self, mut requests: Streaming<WatchRequest>, sender: Sender) {
        let state = self.door.state().clone();
        let _counted = Subscribed::count(&state);
        let mut ends = state.ends.clone();
        let ended = tokio::select! {
            sent = self.send_all(&mut requests, &sender) => sent,
            () = sender.closed() => return,
            _ = ends.wait_for(|ends| *ends) => Err(of_etcd(stopping())),
        };
        if let Err(status) = ended {
            // A client that does not read finds out when its connection ends.
            let _ = tokio::time::timeout(CHECK, sender.send(Err(status))).await;
        }
    }

    async fn send_all(&mut self, requests: &mut Streaming<WatchRequest>, sender: &Sender) -> Result<(), Status> {
        let mut is_asking = true;
        loop {
            let (responses, has_more) = self.look()?;
            for response in responses {
                if sender.send(Ok(response)).await.is_err() {
                    return Ok(());
                }
            }
            let request = tokio::select! {
                biased;
                request = requests.message(), if is_asking => request?,
                () = tokio::task::yield_now(), if has_more => continue,
                () = rung(&self.set) => continue,
                () = tokio::time::sleep(CHECK.min(self.door.config().progress_every)) => continue,
            };
            let Some(request) = request else {
                // It may have ended its side of the stream, and go on to read.
                is_asking = false;
                continue;
            };
            for response in self.answer(request)? {
                if sender.send(Ok(response)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// What can be sent now, and whether there may be more.
    fn look(&mut self) -> Result<(Vec<WatchResponse>, bool), Status> {
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            self.door.authorize_caller(&self.credentials, Access::Read)?;
        }
        self.set.arm();
        let (seen, has_more) = self.set.take().map_err(|error| of_etcd(failed(&error)))?;
        let mut responses = Vec::with_capacity(seen.len());
        for (id, seen) in seen {
            let id = id as i64;
            match seen {
                Watched::Events(events) => self.tell(id, events, &mut responses),
                Watched::Ended(error) => responses.push(self.compacted(id, &error)?),
            }
        }
        for id in std::mem::take(&mut self.holding) {
            self.tell(id, Vec::new(), &mut responses);
        }
        if !has_more {
            self.tell_progress(&mut responses);
        }
        Ok((responses, has_more))
    }

    /// Tells events, but those of a revision of which more may come.
    fn tell(&mut self, id: i64, events: Vec<Event>, responses: &mut Vec<WatchResponse>) {
        let Some(asked) = self.asked.get_mut(&id) else { return };
        let next = self.set.resume_from(id as u64).unwrap_or(u64::MAX);
        self.held_bytes -= asked.held_bytes;
        // What is held is of one revision, which is whole once the watch has passed it.
        let mut told = match asked.held.first() {
            Some(held) if held.revision < next => {
                asked.held_bytes = 0;
                std::mem::take(&mut asked.held)
            }
            _ => Vec::new(),
        };
        let wanted = |event: &Event| event.revision >= asked.from && !asked.is_silent;
        for event in events.into_iter().filter(wanted) {
            if event.revision < next {
                told.push(event);
            } else {
                asked.held_bytes += bytes_of(&event);
                asked.held.push(event);
            }
        }
        let has_held = !asked.held.is_empty();
        self.held_bytes += asked.held_bytes;
        let parts = asked.wants_fragments.then(|| self.door.config().message_bytes_max());
        if let Some(last) = told.last() {
            asked.was_told = true;
            let response = WatchResponse {
                header: Some(self.door.header(last.revision.max(next.saturating_sub(1)))),
                watch_id: id,
                events: told.into_iter().map(to_event).collect(),
                ..WatchResponse::default()
            };
            match parts {
                Some(most) => divide(response, most, responses),
                None => responses.push(response),
            }
        }
        if has_held {
            self.holding.insert(id);
            if self.held_bytes > HELD_BYTES_MAX {
                self.end(id);
                responses.push(WatchResponse {
                    header: Some(self.door.header(next)),
                    watch_id: id,
                    canceled: true,
                    cancel_reason: TOO_LARGE.into(),
                    ..WatchResponse::default()
                });
            }
        }
    }

    /// A watch has ended, because the revision that it was at is compacted.
    fn compacted(&mut self, id: i64, error: &duramen::Error) -> Result<WatchResponse, Status> {
        self.forget(id);
        let Some(TreeError::Compacted { first, .. }) = TreeError::of(error) else {
            return Err(of_etcd(failed(error)));
        };
        Ok(WatchResponse {
            header: Some(self.door.newest_header()?),
            watch_id: id,
            canceled: true,
            compact_revision: signed(*first),
            cancel_reason: COMPACTED.into(),
            ..WatchResponse::default()
        })
    }

    /// All watches have come to the newest revision: those that want to know it are told.
    fn tell_progress(&mut self, responses: &mut Vec<WatchResponse>) {
        let revision = self.set.revision();
        let header = Some(self.door.header(revision));
        if self.progressed.elapsed() >= self.door.config().progress_every {
            self.progressed = Instant::now();
            for (id, asked) in &mut self.asked {
                let was_told = std::mem::take(&mut asked.was_told);
                if asked.wants_progress && !was_told && asked.from <= revision {
                    responses.push(WatchResponse {
                        header,
                        watch_id: *id,
                        ..WatchResponse::default()
                    });
                }
            }
        }
        if std::mem::take(&mut self.is_progress_asked) && !self.asked.is_empty() {
            responses.push(WatchResponse {
                header,
                watch_id: NO_WATCH,
                ..WatchResponse::default()
            });
        }
    }

    /// Does what the client asks for.
    fn answer(&mut self, request: WatchRequest) -> Result<Vec<WatchResponse>, Status> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create),
            Some(RequestUnion::CancelRequest(cancel)) => {
                self.cancel(cancel.watch_id).map(|told| told.into_iter().collect())
            }
            Some(RequestUnion::ProgressRequest(_)) => {
                // As in etcd, there is no answer while a watch has not begun.
                let newest = self.door.view()?.revision();
                self.is_progress_asked = self.asked.values().all(|asked| asked.from <= newest);
                Ok(Vec::new())
            }
            // As etcd, it does nothing for a request that it does not know.
            None => Ok(Vec::new()),
        }
    }

    fn create(&mut self, create: WatchCreateRequest) -> Result<Vec<WatchResponse>, Status> {
        let key = match create.key.is_empty() {
            true => Bytes::from_static(&[0]),
            false => create.key,
        };
        let refused = |watcher: &Watcher, reason: &str| {
            Ok(vec![WatchResponse {
                header: Some(watcher.door.newest_header()?),
                watch_id: NO_WATCH,
                created: true,
                canceled: true,
                cancel_reason: reason.into(),
                ..WatchResponse::default()
            }])
        };
        let Ok(start) = u64::try_from(create.start_revision) else {
            return refused(self, COMPACTED);
        };
        // Bounds are cut where they are longer than any key, so they may be equal when these are not.
        if !matches!(create.range_end[..], [] | [0]) && create.range_end <= key {
            return refused(self, EMPTY_RANGE);
        }
        let (low, high) = bounds(&key, &create.range_end);
        if self.asked.contains_key(&create.watch_id) && create.watch_id != 0 {
            return refused(self, DUPLICATE_ID);
        }
        if self.asked.len() >= WATCHES_MAX {
            let message = format!("the stream has {WATCHES_MAX} watches, which is the most; open another stream");
            return Err(status(Code::ResourceExhausted, "TOO_MANY_WATCHES", message));
        }
        let id = match create.watch_id {
            0 => self.free_id(),
            id => id,
        };
        let without = |filter: FilterType| create.filters.contains(&(filter as i32));
        let (without_puts, without_deletes) = (without(FilterType::Noput), without(FilterType::Nodelete));
        let mut options = WatchOptions::of(Selection::range(&low, high.as_deref()));
        if without_puts != without_deletes {
            options = options.only(if without_puts {
                ChangeKind::Delete
            } else {
                ChangeKind::Put
            });
        }
        if !create.prev_kv {
            options = options.without_old_nodes();
        }
        let newest = self.door.view()?.revision();
        // What begins later reads from the next change on, and leaves out what comes before its revision. That change may have been
        // committed by now, so it has to be named.
        if start > 0 {
            options = options.from_revision(start.min(newest + 1));
        }
        let added = self.set.add(id as u64, options);
        let created = |revision| WatchResponse {
            header: Some(self.door.header(revision)),
            watch_id: id,
            created: true,
            ..WatchResponse::default()
        };
        match added {
            Ok(begins) => {
                let response = created(newest.max(begins.saturating_sub(1)));
                let asked = Asked {
                    from: start,
                    wants_progress: create.progress_notify,
                    wants_fragments: create.fragment,
                    is_silent: without_puts && without_deletes,
                    was_told: false,
                    held: Vec::new(),
                    held_bytes: 0,
                };
                self.asked.insert(id, asked);
                Ok(vec![response])
            }
            // As in etcd, the watch is created before it turns out that it cannot go on.
            Err(error) => Ok(vec![created(newest), self.compacted(id, &error)?]),
        }
    }

    fn free_id(&mut self) -> i64 {
        while self.asked.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// Forgets a watch. Returns whether there was one.
    fn end(&mut self, id: i64) -> bool {
        self.set.remove(id as u64);
        self.forget(id)
    }

    /// Forgets what the client asked of a watch, and what it holds.
    fn forget(&mut self, id: i64) -> bool {
        self.holding.remove(&id);
        let forgotten = self.asked.remove(&id);
        self.held_bytes -= forgotten.as_ref().map_or(0, |asked| asked.held_bytes);
        forgotten.is_some()
    }

    /// Ends a watch. A watch that is not there is no mistake: it may have ended at the same time.
    fn cancel(&mut self, id: i64) -> Result<Option<WatchResponse>, Status> {
        if !self.end(id) {
            return Ok(None);
        }
        Ok(Some(WatchResponse {
            header: Some(self.door.newest_header()?),
            watch_id: id,
            canceled: true,
            ..WatchResponse::default()
        }))
    }
}

fn bytes_of(event: &Event) -> usize {
    let nodes = [&event.node, &event.old];
    let payloads = nodes.into_iter().flatten().map(|node| node.payload.len());
    event.path.len() + payloads.sum::<usize>()
}

fn to_event(event: Event) -> ToldEvent {
    let key = Bytes::from(event.path);
    let prev_kv = event.old.map(|node| to_key_value(key.clone(), node));
    match event.node {
        Some(node) => ToldEvent {
            r#type: EventType::Put as i32,
            kv: Some(to_key_value(key, node)),
            prev_kv,
        },
        None => ToldEvent {
            r#type: EventType::Delete as i32,
            kv: Some(KeyValue {
                key,
                mod_revision: signed(event.revision),
                ..KeyValue::default()
            }),
            prev_kv,
        },
    }
}

/// Divides a response into parts that are no larger than a request. They follow each other: etcd's client in Go loses events of a
/// response that comes between the parts of another watch.
fn divide(response: WatchResponse, most: usize, responses: &mut Vec<WatchResponse>) {
    if response.events.len() < 2 || response.encoded_len() < most {
        responses.push(response);
        return;
    }
    let part = |events| WatchResponse {
        header: response.header,
        watch_id: response.watch_id,
        fragment: true,
        events,
        ..WatchResponse::default()
    };
    let (mut events, mut bytes) = (Vec::new(), 0);
    for event in response.events {
        // Tag and length come before each event.
        let more = event.encoded_len() + 8;
        if !events.is_empty() && bytes + more >= most {
            responses.push(part(std::mem::take(&mut events)));
            bytes = 0;
        }
        bytes += more;
        events.push(event);
    }
    responses.push(WatchResponse {
        fragment: false,
        ..part(events)
    });
}
