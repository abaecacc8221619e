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
use tonic::Status;

use crate::error::stopping;
use crate::state::State;

pub(crate) use admin::AdminService;
pub(crate) use maps::MapsService;
pub(crate) use topics::TopicsService;
pub(crate) use transactions::TransactionsService;
pub(crate) use trees::{TreesService, Watchers, tend};
pub(crate) use watch::WatchService;

/// Sends a stream until it is complete, the client has gone, or the server ends.
pub(crate) fn send<T: Send + 'static>(
    state: &State,
    sender: mpsc::Sender<Result<T, Status>>,
    sends: impl Future<Output = ()> + Send + 'static,
) {
    let mut ends = state.ends.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = sends => {}
            _ = ends.wait_for(|ends| *ends) => drop(sender.try_send(Err(stopping()))),
        }
    });
}
