//! The stream of changes of one map. After a break it goes on behind the last change.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duramen_proto::v1::watch_request::Start as Place;
use duramen_proto::v1::{MapChange, Pair, WatchRequest, WatchResponse};
use futures_core::Stream;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::client::{Client, send};
use crate::error::{Error, ErrorKind, Result};
use crate::following::{self, Follow};
use crate::options::Keys;

/// Where a watch begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchStart {
    /// With the next change.
    #[default]
    Next,
    /// With the pairs that the map has now; then the changes after that moment.
    Current,
    /// With the oldest change that the map keeps.
    Earliest,
    /// After the change of this number; see [`Watch::position`].
    After(u64),
}

/// What a watch shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Watched {
    /// A pair that the map had at the beginning; only with [`WatchStart::Current`].
    Pair(Pair),
    /// All pairs of the beginning were shown. Changes follow.
    Complete,
    /// A change.
    Changed(Changed),
}

/// A change of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// Number of the change; each change of a map has the next number.
    pub number: u64,
    /// The key.
    pub key: Bytes,
    /// What the key held before; `None`: nothing.
    pub old: Option<Bytes>,
    /// What the key holds since; `None`: it was deleted.
    pub new: Option<Bytes>,
    /// Time of the commit.
    pub time: SystemTime,
}

impl From<MapChange> for Changed {
    fn from(change: MapChange) -> Changed {
        Changed {
            number: change.number,
            key: change.key,
            old: change.old_value,
            new: change.new_value,
            time: UNIX_EPOCH + Duration::from_millis(change.time_ms),
        }
    }
}

/// A stream of changes; see [`crate::Map::watch`]. It ends with an error that a retry cannot cure, such as the reason
/// `CHANGES_GONE` when the map does not keep the changes after the position any more.
pub struct Watch {
    responses: mpsc::Receiver<Result<WatchResponse>>,
    ready: VecDeque<Watched>,
    /// Where to go on once `ready` is empty.
    after_ready: u64,
    position: u64,
}

impl Watch {
    pub(crate) async fn open(client: Client, map: String, keys: Keys, start: WatchStart) -> Result<Watch> {
        let place = match start {
            WatchStart::Next => None,
            WatchStart::Current => Some(Place::Current(true)),
            WatchStart::Earliest => Some(Place::Earliest(true)),
            WatchStart::After(number) => Some(Place::After(number)),
        };
        let request = WatchRequest {
            map,
            range: Some(keys.0),
            start: place,
            ..WatchRequest::default()
        };
        let mut watch = Watch {
            responses: following::open(client, Map(request)).await?,
            ready: VecDeque::new(),
            after_ready: 0,
            position: 0,
        };
        // The first response says where the watch begins: from here on it misses nothing.
        match watch.responses.recv().await {
            Some(Ok(response)) => watch.take(response),
            Some(Err(error)) => return Err(error),
            None => return Err(Error::bad_response()),
        }
        Ok(watch)
    }

    /// The next pair or change. `None`: the watch ended with the error before.
    pub async fn next(&mut self) -> Option<Result<Watched>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Where another watch goes on that has seen what this one has shown: `WatchStart::After(position)`. With
    /// [`WatchStart::Current`] this counts from [`Watched::Complete`] on.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn take(&mut self, response: WatchResponse) {
        let changes = response
            .changes
            .into_iter()
            .map(|change| Watched::Changed(change.into()));
        self.ready.extend(response.pairs.into_iter().map(Watched::Pair));
        self.ready
            .extend(response.current_complete.then_some(Watched::Complete));
        self.ready.extend(changes);
        self.after_ready = response.position;
        if self.ready.is_empty() {
            self.position = self.after_ready;
        }
    }
}

impl Stream for Watch {
    type Item = Result<Watched>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Watched>>> {
        loop {
            if let Some(watched) = self.ready.pop_front() {
                self.position = match &watched {
                    _ if self.ready.is_empty() => self.after_ready,
                    Watched::Changed(change) => change.number,
                    Watched::Pair(_) | Watched::Complete => self.position,
                };
                return Poll::Ready(Some(Ok(watched)));
            }
            match self.responses.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(response))) => self.take(response),
            }
        }
    }
}

struct Map(WatchRequest);

impl Follow for Map {
    type Response = WatchResponse;

    async fn open(&self, client: &Client) -> Result<Streaming<WatchResponse>> {
        client.open(self.0.clone(), send!(watch.watch)).await
    }

    fn received(&mut self, response: &WatchResponse) {
        if self.0.start != Some(Place::Current(true)) || response.current_complete {
            self.0.start = Some(Place::After(response.position));
        }
    }

    fn cannot_resume(&self) -> Option<Error> {
        let message = "the connection broke before all pairs of the beginning had arrived; begin the watch again";
        let is_current = self.0.start == Some(Place::Current(true));
        is_current.then(|| Error::new(ErrorKind::Unavailable, "CONNECTION_LOST", message))
    }
}
