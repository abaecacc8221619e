//! Streams of watches of a tree.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duramen::tree::{Event, WatchOptions, Watched};
use duramen_proto::v1::watch_nodes_request::Request as Asked;
use duramen_proto::v1::watch_nodes_response::Event as Told;
use duramen_proto::v1::{BeginWatch, NodeEvent, NodeEvents, WatchEnded, WatchNodesRequest, WatchNodesResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::selection;
use crate::command::{to_kind, to_node};
use crate::error::{failed, invalid, of_refusal, reason_of, status, stopping};
use crate::registry::Stream;
use crate::security::{Access, Credentials, Resource};
use crate::state::{State, Subscribed, check_space};

/// The most watches of a stream: each takes some memory.
const WATCHES_MAX: usize = 100_000;
/// How often a stream looks whether its token is still valid, and tells how far it has come.
const CHECK: Duration = Duration::from_secs(2);
/// Bytes of payloads of an event, which must fit into a message.
const EVENT_BYTES_MAX: usize = 16 << 20;

type Sender = mpsc::Sender<Result<WatchNodesResponse, Status>>;

/// Serves a stream of watches.
pub(super) fn begin(
    state: &State,
    credentials: Credentials,
    principal: &str,
    requests: Streaming<WatchNodesRequest>,
) -> ReceiverStream<Result<WatchNodesResponse, Status>> {
    // A slow watcher holds two responses; the rest waits in the store.
    let (sender, receiver) = mpsc::channel(2);
    let watcher = Watcher {
        state: state.clone(),
        credentials,
        number: state.store.random_number(),
        principal: principal.into(),
        stream: None,
        told: 0,
        checked: Instant::now(),
    };
    tokio::spawn(watcher.serve(requests, sender));
    ReceiverStream::new(receiver)
}

struct Watcher {
    state: State,
    credentials: Credentials,
    number: u64,
    principal: String,
    /// Made with the first watch.
    stream: Option<Arc<Stream>>,
    /// The revision that the client knows.
    told: u64,
    checked: Instant,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.state.watchers.remove(self.number);
    }
}

impl Watcher {
    /// Sends until the client or the server ends it.
    async fn serve(mut self, mut requests: Streaming<WatchNodesRequest>, sender: Sender) {
        let _counted = Subscribed::count(&self.state);
        let mut ends = self.state.ends.clone();
        let ended = tokio::select! {
            sent = self.send_all(&mut requests, &sender) => sent,
            () = sender.closed() => return,
            _ = ends.wait_for(|ends| *ends) => Err(stopping()),
        };
        if let Err(status) = ended {
            // A client that does not read finds out when its connection ends.
            let _ = tokio::time::timeout(CHECK, sender.send(Err(status))).await;
        }
    }

    /// Returns when the client does not take responses any more.
    async fn send_all(&mut self, requests: &mut Streaming<WatchNodesRequest>, sender: &Sender) -> Result<(), Status> {
        let mut is_asking = true;
        loop {
            let (responses, has_more) = self.look()?;
            for response in responses {
                if sender.send(Ok(response)).await.is_err() {
                    return Ok(());
                }
            }
            let stream = self.stream.clone();
            let request = tokio::select! {
                biased;
                request = requests.message(), if is_asking => request?,
                () = tokio::task::yield_now(), if has_more => continue,
                () = rung(stream) => continue,
                () = tokio::time::sleep(CHECK) => continue,
            };
            let Some(request) = request else {
                // It may have ended its side of the stream, and go on to read.
                is_asking = false;
                continue;
            };
            if let Some(response) = self.answer(request)?
                && sender.send(Ok(response)).await.is_err()
            {
                return Ok(());
            }
        }
    }

    fn may_read(&self, tree: &str) -> Result<(), Status> {
        let caller = self.state.guard.caller(&self.credentials)?;
        caller.may(Access::Read, Resource::Tree(tree))
    }

    /// What is there to send now, and whether there may be more.
    fn look(&mut self) -> Result<(Vec<WatchNodesResponse>, bool), Status> {
        let Some(stream) = self.stream.clone() else {
            return Ok((Vec::new(), false));
        };
        let is_time = self.checked.elapsed() >= CHECK;
        if is_time {
            self.checked = Instant::now();
            self.may_read(&stream.tree)?;
        }
        let mut watches = stream.watches();
        watches.set.arm();
        let (seen, has_more) = watches.set.take().map_err(|error| failed(&error))?;
        let mut responses = Vec::with_capacity(seen.len());
        for (watch, seen) in seen {
            let revision = watches.set.resume_from(watch).unwrap_or(0).saturating_sub(1);
            let (events, failed) = match seen {
                Watched::Ended(error) => (Vec::new(), Some((revision, failed(&error)))),
                Watched::Events(events) => to_events(events),
            };
            let revision = failed.as_ref().map_or(revision, |(revision, _)| *revision);
            if !events.is_empty() {
                responses.push(WatchNodesResponse {
                    watch,
                    revision,
                    event: Some(Told::Events(NodeEvents { events })),
                });
            }
            if let Some((revision, status)) = failed {
                watches.set.remove(watch);
                watches.since.remove(&watch);
                responses.push(ended(watch, revision, Some(&status)));
            }
        }
        let revision = watches.set.revision();
        if is_time && revision > self.told && !watches.set.is_empty() {
            responses.push(progress(revision));
        }
        if !responses.is_empty() {
            self.told = revision;
        }
        Ok((responses, has_more))
    }

    /// Does what the client asks for.
    fn answer(&mut self, request: WatchNodesRequest) -> Result<Option<WatchNodesResponse>, Status> {
        check_space(&request.space)?;
        match request.request {
            None => Err(invalid("a request of the stream is empty; begin or end a watch")),
            Some(Asked::Begin(begin)) => self.begin(begin).map(Some),
            Some(Asked::End(watch)) => Ok(self.end(watch)),
            Some(Asked::AskProgress(_)) => {
                let revision = self.stream.as_ref().map(|stream| stream.watches().set.revision());
                Ok(revision.map(progress))
            }
        }
    }

    /// Begins a watch. What is wrong with it ends the watch alone; what would be mistaken for another watch ends the stream.
    fn begin(&mut self, begin: BeginWatch) -> Result<WatchNodesResponse, Status> {
        let watch = begin.watch;
        if watch == 0 {
            return Err(invalid("a watch has the id 0; take a greater one"));
        }
        let known = self.stream.as_ref().map(|stream| &stream.tree);
        if let Some(tree) = known.filter(|tree| **tree != begin.tree) {
            return Err(invalid(format!(
                "the stream watches the tree {tree:?}, and the watch {watch} is for {:?}; open another stream for it",
                begin.tree
            )));
        }
        if self
            .stream
            .as_ref()
            .is_some_and(|stream| stream.watches().since.contains_key(&watch))
        {
            return Err(invalid(format!(
                "the stream has a watch {watch} already; take another id"
            )));
        }
        let begun = self.add(begin);
        Ok(match begun {
            Ok(from) => WatchNodesResponse {
                watch,
                revision: from.saturating_sub(1),
                event: Some(Told::Begun(true)),
            },
            // A client that may not read the tree gets nothing else from the stream.
            Err(status) if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) => {
                return Err(status);
            }
            Err(status) => ended(watch, 0, Some(&status)),
        })
    }

    fn add(&mut self, begin: BeginWatch) -> Result<u64, Status> {
        self.may_read(&begin.tree)?;
        let mut options = WatchOptions::of(selection(begin.nodes)?);
        if begin.from_revision > 0 {
            options = options.from_revision(begin.from_revision);
        }
        if begin.without_old_nodes {
            options = options.without_old_nodes();
        }
        let kind = to_kind(begin.without_puts, begin.without_deletes).map_err(|refusal| of_refusal(&refusal))?;
        if let Some(kind) = kind {
            options = options.only(kind);
        }
        let stream = match &self.stream {
            Some(stream) => stream.clone(),
            None => self.open(&begin.tree)?,
        };
        let mut watches = stream.watches();
        if watches.set.len() >= WATCHES_MAX {
            let message = format!("the stream has {WATCHES_MAX} watches, which is the most; open another stream");
            return Err(status(Code::ResourceExhausted, "TOO_MANY_WATCHES", message));
        }
        let from = watches.set.add(begin.watch, options).map_err(|error| failed(&error))?;
        watches.since.insert(begin.watch, now_ms());
        Ok(from)
    }

    fn open(&mut self, tree: &str) -> Result<Arc<Stream>, Status> {
        let set = self.state.tree(tree)?.watches().map_err(|error| failed(&error))?;
        let stream = Arc::new(Stream::new(tree, &self.principal, set));
        self.state.watchers.add(self.number, stream.clone());
        self.stream = Some(stream.clone());
        Ok(stream)
    }

    /// Ends a watch. A watch that has ended before is no mistake: both may have happened at once.
    fn end(&mut self, watch: u64) -> Option<WatchNodesResponse> {
        let stream = self.stream.as_ref()?;
        let mut watches = stream.watches();
        let revision = watches.set.resume_from(watch)?.saturating_sub(1);
        watches.set.remove(watch);
        watches.since.remove(&watch);
        Some(ended(watch, revision, None))
    }
}

/// Returns when the tree of a stream has changed; without one never.
async fn rung(stream: Option<Arc<Stream>>) {
    let Some(stream) = stream else {
        return std::future::pending().await;
    };
    poll_fn(|context| match stream.watches().set.is_rung(context.waker()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

fn progress(revision: u64) -> WatchNodesResponse {
    WatchNodesResponse {
        watch: 0,
        revision,
        event: Some(Told::Progress(true)),
    }
}

fn ended(watch: u64, revision: u64, status: Option<&Status>) -> WatchNodesResponse {
    let ended = status.map_or_else(WatchEnded::default, |status| WatchEnded {
        code: status.code() as u32,
        reason: reason_of(status),
        message: status.message().into(),
    });
    WatchNodesResponse {
        watch,
        revision,
        event: Some(Told::Ended(ended)),
    }
}

/// Makes of events what is sent, up to the first event that is too large. Then it also returns the revision before that, and the reason.
fn to_events(events: Vec<Event>) -> (Vec<NodeEvent>, Option<(u64, Status)>) {
    let mut sent: Vec<NodeEvent> = Vec::with_capacity(events.len());
    for event in events {
        let revision = event.revision;
        match to_event(event) {
            Ok(event) => sent.push(event),
            Err(status) => {
                sent.retain(|event| event.revision < revision);
                return (sent, Some((revision.saturating_sub(1), status)));
            }
        }
    }
    (sent, None)
}

fn to_event(event: Event) -> Result<NodeEvent, Status> {
    let bytes: usize = [&event.node, &event.old]
        .into_iter()
        .flatten()
        .map(|node| node.payload.len())
        .sum();
    if bytes > EVENT_BYTES_MAX {
        let message = format!(
            "the change of {:?} in revision {} has payloads of {bytes} bytes, and a response holds at most \
             {EVENT_BYTES_MAX}; watch without old nodes, or begin after this revision",
            String::from_utf8_lossy(&event.path),
            event.revision
        );
        return Err(status(Code::OutOfRange, "EVENT_TOO_LONG", message));
    }
    let path = prost::bytes::Bytes::from(event.path);
    Ok(NodeEvent {
        revision: event.revision,
        node: event.node.map(|node| to_node(path.clone(), node)),
        before: event.old.map(|node| to_node(path.clone(), node)),
        path,
    })
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
