//! The stream of changes of one tree. After a break it goes on behind the last change.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use duramen_proto::v1::watch_nodes_request::Request as Asked;
use duramen_proto::v1::watch_nodes_response::Event as Told;
use duramen_proto::v1::{BeginWatch, NodeEvent, WatchNodesRequest, WatchNodesResponse};
use futures_core::Stream;
use tokio::sync::mpsc;
use tonic::{Request, Streaming};

use crate::client::{Client, trees};
use crate::error::{Error, Result};
use crate::following::{self, Follow};
use crate::nodes::Nodes;

/// What a watch of a tree shows.
#[derive(Clone, Debug, Default)]
pub struct WatchNodes {
    nodes: Nodes,
    from_revision: u64,
    without_old_nodes: bool,
    without_puts: bool,
    without_deletes: bool,
}

impl WatchNodes {
    /// The changes of these nodes that are committed from now on.
    pub fn new(nodes: Nodes) -> WatchNodes {
        WatchNodes {
            nodes,
            ..WatchNodes::default()
        }
    }

    /// Begins with the changes of a revision.
    pub fn from_revision(mut self, revision: u64) -> WatchNodes {
        self.from_revision = revision;
        self
    }

    /// Leaves the nodes before the changes out.
    pub fn without_old_nodes(mut self) -> WatchNodes {
        self.without_old_nodes = true;
        self
    }

    /// Shows deleted nodes only.
    pub fn only_deletes(mut self) -> WatchNodes {
        self.without_puts = true;
        self
    }

    /// Shows stored nodes only.
    pub fn only_puts(mut self) -> WatchNodes {
        self.without_deletes = true;
        self
    }
}

/// The only watch of the stream.
const WATCH: u64 = 1;

/// A stream of changes; see [`crate::Tree::watch`]. It ends with an error that a retry cannot cure, such as the reason
/// `COMPACTED` when the tree does not keep the changes after the position any more.
pub struct NodeWatch {
    responses: mpsc::Receiver<Result<WatchNodesResponse>>,
    ready: VecDeque<NodeEvent>,
    /// The revision up to which all changes are shown once `ready` is empty.
    after_ready: u64,
    revision: u64,
    /// Changes of the newest revision that were shown, or are in `ready`. The server sends a revision from its beginning again
    /// after a break.
    of_newest: (u64, usize),
    /// How many of them come again.
    again: usize,
    is_over: bool,
}

impl NodeWatch {
    pub(crate) async fn open(client: Client, tree: String, watch: WatchNodes) -> Result<NodeWatch> {
        let begin = BeginWatch {
            tree,
            watch: WATCH,
            nodes: watch.nodes.0,
            from_revision: watch.from_revision,
            without_old_nodes: watch.without_old_nodes,
            without_puts: watch.without_puts,
            without_deletes: watch.without_deletes,
        };
        let mut watch = NodeWatch {
            responses: following::open(client, Watching(begin)).await?,
            ready: VecDeque::new(),
            after_ready: 0,
            revision: 0,
            of_newest: (0, 0),
            again: 0,
            is_over: false,
        };
        // The first response says where the watch begins: from here on it misses nothing.
        match watch.responses.recv().await {
            Some(response) => watch.take(response?)?,
            None => return Err(Error::bad_response()),
        }
        Ok(watch)
    }

    /// The next change. `None`: the watch ended with the error before.
    pub async fn next(&mut self) -> Option<Result<NodeEvent>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// All changes up to this revision were shown. A watch that goes on where this one is begins with the revision after it.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn take(&mut self, response: WatchNodesResponse) -> Result<()> {
        match response.event {
            Some(Told::Begun(_)) => {
                let next = response.revision + 1;
                self.again = if self.of_newest.0 == next { self.of_newest.1 } else { 0 };
            }
            Some(Told::Events(events)) => {
                for event in events.events {
                    if event.revision == self.of_newest.0 && self.again > 0 {
                        self.again -= 1;
                        continue;
                    }
                    match event.revision == self.of_newest.0 {
                        true => self.of_newest.1 += 1,
                        false => self.of_newest = (event.revision, 1),
                    }
                    self.ready.push_back(event);
                }
            }
            Some(Told::Ended(ended)) => {
                self.is_over = true;
                return Err(Error::of_answer(ended.code, ended.reason, ended.message));
            }
            Some(Told::Progress(_)) | None => {}
        }
        self.after_ready = response.revision;
        if self.ready.is_empty() {
            self.revision = self.after_ready;
        }
        Ok(())
    }
}

impl Stream for NodeWatch {
    type Item = Result<NodeEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<NodeEvent>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.revision = match self.ready.is_empty() {
                    true => self.after_ready,
                    false => event.revision.saturating_sub(1),
                };
                return Poll::Ready(Some(Ok(event)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            match self.responses.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(response)) => {
                    if let Err(error) = response.and_then(|response| self.take(response)) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        }
    }
}

struct Watching(BeginWatch);

impl Follow for Watching {
    type Response = WatchNodesResponse;

    async fn open(&self, client: &Client) -> Result<Streaming<WatchNodesResponse>> {
        let request = WatchNodesRequest {
            request: Some(Asked::Begin(self.0.clone())),
            ..WatchNodesRequest::default()
        };
        // The client has nothing more to ask for, so its side of the stream ends.
        let send = async |channel, request: Request<WatchNodesRequest>| {
            trees(channel).watch_nodes(request.map(tokio_stream::once)).await
        };
        client.open(request, send).await
    }

    fn received(&mut self, response: &WatchNodesResponse) {
        self.0.from_revision = response.revision + 1;
    }
}
