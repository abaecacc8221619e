//! The gRPC services, one file each.

mod admin;
mod groups;
mod maps;
mod topics;
mod transactions;
mod watch;

pub(crate) use admin::AdminService;
pub(crate) use maps::MapsService;
pub(crate) use topics::TopicsService;
pub(crate) use transactions::TransactionsService;
pub(crate) use watch::WatchService;
