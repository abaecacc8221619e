//! The gRPC services, one file each.

mod admin;
mod checkpoints;
mod groups;
mod maps;
mod topics;
mod transactions;
mod trees;
mod watch;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::error::stopping;
use crate::state::State;

pub(crate) use admin::AdminService;
pub(crate) use maps::MapsService;
pub(crate) use topics::TopicsService;
pub(crate) use transactions::TransactionsService;
pub(crate) use trees::{TreesService, tend};
pub(crate) use watch::WatchService;

/// Sends a stream until it is complete, the client has gone, or the server ends. That the server ends is told also where the client
/// reads slowly, so the channel must have room for it beside the responses: a stream without an error would be taken for complete.
pub(crate) fn send<T: Send + 'static>(
    state: &State,
    sender: mpsc::Sender<Result<T, Status>>,
    sends: impl Future<Output = ()> + Send + 'static,
) {
    let mut ends = state.ends.clone();
    tokio::spawn(async move {
        let Ok(last) = sender.reserve_owned().await else {
            // The client has gone.
            return;
        };
        tokio::select! {
            () = sends => {}
            _ = ends.wait_for(|ends| *ends) => drop(last.send(Err(stopping()))),
        }
    });
}

/// Requests of a stream that wait for their commits. Beyond that the server reads no more of them.
const WAITING: usize = 1_000;

/// Answers a stream of requests in their order; the first error ends it. `queue` queues the command of a request, so that many requests
/// share a commit, and `answer` waits for its outcome.
pub(crate) fn answer_in_order<R, Q, A, F>(
    state: &State,
    mut requests: Streaming<R>,
    queue: impl Fn(R) -> Result<Q, Status> + Send + 'static,
    answer: impl Fn(Q) -> F + Send + 'static,
) -> ReceiverStream<Result<A, Status>>
where
    R: Send + 'static,
    Q: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    let (queued, mut waiting) = mpsc::channel(WAITING);
    let (sender, receiver) = mpsc::channel(WAITING);
    let closing = sender.clone();
    tokio::spawn(async move {
        loop {
            let request = tokio::select! {
                request = requests.message() => request,
                () = closing.closed() => return,
            };
            let one = match request {
                Ok(None) => return,
                Ok(Some(request)) => queue(request),
                Err(status) => Err(status),
            };
            let is_over = one.is_err();
            if queued.send(one).await.is_err() || is_over {
                return;
            }
        }
    });
    let answering = sender.clone();
    send(state, sender, async move {
        while let Some(one) = waiting.recv().await {
            let response = match one {
                Ok(one) => answer(one).await,
                Err(status) => Err(status),
            };
            let is_over = response.is_err();
            if answering.send(response).await.is_err() || is_over {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}
