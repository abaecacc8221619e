//! The services of etcd over one tree: etcd's own clients use a Duramen server unchanged.
//!
//! ```text
//! kv            Range, Put, DeleteRange, Txn, Compact
//! watch         Watch
//! lease         Lease
//! maintenance   Status, HashKV, Alarm, Snapshot and the like
//! snapshot      snapshot files in etcd's own format
//! import        which trees an import has not finished
//! cluster       the one member that there is
//! compaction    compactions that no client asks for
//! transport     messages that are too large
//! auth          tokens of the server as passwords of etcd
//! concurrency   Lock and Election, made of the services above
//! ```
//! Reads and transactions are in `command::etcd`: whatever changes the tree is a command.

mod auth;
mod cluster;
mod compaction;
mod concurrency;
mod import;
mod kv;
mod lease;
mod maintenance;
mod snapshot;
mod transport;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use duramen::tree::TreeView;
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::tree_command::Change as OfTree;
use duramen_proto::command::{EtcdTransaction, TreeChanged, TreeCommand};
use duramen_proto::etcd::election::election_server::ElectionServer;
use duramen_proto::etcd::lock::lock_server::LockServer;
use duramen_proto::etcd::server::auth_server::AuthServer;
use duramen_proto::etcd::server::cluster_server::ClusterServer;
use duramen_proto::etcd::server::kv_server::KvServer;
use duramen_proto::etcd::server::lease_server::LeaseServer;
use duramen_proto::etcd::server::maintenance_server::MaintenanceServer;
use duramen_proto::etcd::server::watch_server::WatchServer;
use duramen_proto::etcd::server::{ResponseHeader, TxnRequest, TxnResponse};
use prost::Message;
use tonic::service::Routes;
use tonic::{Request, Status};

use crate::command::{EtcdError, of_etcd};
use crate::config::EtcdConfig;
use crate::error::failed;
use crate::security::{Access, Credentials, OPEN_MESSAGE_BYTES_MAX, Resource};
use crate::state::{State, unexpected};

use self::transport::AsEtcd;

pub(crate) use compaction::compact_by_itself;
pub use import::EtcdImport;
pub(crate) use import::{IMPORTS, forget_import, is_a_part};
pub(crate) use lease::renew_leases;
pub use snapshot::{EtcdLease, EtcdSnapshot, EtcdSnapshotError};

/// The version of etcd whose services these are.
pub const ETCD_VERSION: &str = "3.6.0";
/// There is one member, which has led from the beginning.
const TERM: u64 = 1;
/// What a store takes before there is anything in it.
const EMPTY_BYTES: u64 = 288 << 10;

/// How often puts measure the store, where there is a quota.
const MEASURED_EVERY: Duration = Duration::from_millis(100);

/// The services of etcd, as far as they share something.
#[derive(Clone)]
pub(crate) struct EtcdDoor(Arc<Door>);

struct Door {
    state: State,
    config: EtcdConfig,
    /// The directory of the store, for temporary files.
    directory: PathBuf,
    cluster_id: u64,
    member_id: u64,
    /// The quota was reached: writes are refused until a client disarms the alarm.
    is_out_of_space: AtomicBool,
    /// Bytes of the store, and when they were measured.
    measured: Mutex<Option<(Instant, u64)>>,
}

impl EtcdDoor {
    /// The services in front of a tree that exists.
    pub(crate) fn new(state: &State, config: &EtcdConfig, directory: &Path) -> EtcdDoor {
        let [cluster_id, member_id] = ids(state.store.id(), &config.name);
        EtcdDoor(Arc::new(Door {
            state: state.clone(),
            config: config.clone(),
            directory: directory.into(),
            cluster_id,
            member_id,
            is_out_of_space: AtomicBool::new(false),
            measured: Mutex::default(),
        }))
    }

    /// Adds the services to those of a server.
    pub(crate) fn add_to(self, routes: Routes) -> Routes {
        let most = self.0.config.message_bytes_max();
        // A macro, because each of the services is of a type of its own.
        macro_rules! limited {
            ($server:ident, $most:expr) => {
                AsEtcd::new(
                    $server::new(self.clone())
                        .max_decoding_message_size($most)
                        .max_encoding_message_size(usize::MAX),
                )
            };
        }
        routes
            .add_service(limited!(KvServer, most))
            .add_service(limited!(WatchServer, most))
            .add_service(limited!(LeaseServer, most))
            .add_service(limited!(ClusterServer, most))
            .add_service(limited!(MaintenanceServer, most))
            .add_service(limited!(AuthServer, most.min(OPEN_MESSAGE_BYTES_MAX)))
            .add_service(limited!(LockServer, most))
            .add_service(limited!(ElectionServer, most))
    }

    fn state(&self) -> &State {
        &self.0.state
    }

    fn config(&self) -> &EtcdConfig {
        &self.0.config
    }

    /// Refuses a request that its sender may not make.
    fn authorize<T>(&self, request: &Request<T>, access: Access) -> Result<(), Status> {
        self.authorize_caller(&Credentials::of(request), access)
    }

    fn authorize_caller(&self, credentials: &Credentials, access: Access) -> Result<(), Status> {
        let caller = self.state().guard.caller(credentials)?;
        caller.may(access, Resource::Tree(&self.config().tree)).map_err(of_etcd)
    }

    /// The tree as it is now.
    fn view(&self) -> Result<TreeView, Status> {
        let tree = self.state().tree(&self.config().tree)?;
        tree.view().map_err(|error| of_etcd(failed(&error)))
    }

    /// A header with a revision.
    fn header(&self, revision: u64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.0.cluster_id,
            member_id: self.0.member_id,
            revision: i64::try_from(revision).unwrap_or(i64::MAX),
            raft_term: TERM,
        }
    }

    /// The header of the newest revision.
    fn newest_header(&self) -> Result<ResponseHeader, Status> {
        Ok(self.header(self.view()?.revision()))
    }

    /// Completes the header of a response.
    fn completed(&self, header: Option<ResponseHeader>) -> Option<ResponseHeader> {
        header.map(|header| ResponseHeader {
            revision: header.revision,
            ..self.header(0)
        })
    }

    /// Does a transaction.
    async fn commit(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let command = EtcdTransaction {
            tree: self.config().tree.clone(),
            request: Some(request),
        };
        let led = self.state().write(Change::Etcd(command), None).await;
        match led.map_err(of_etcd)? {
            Led::Etcd(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a change that is no transaction.
    async fn change(&self, change: OfTree) -> Result<TreeChanged, Status> {
        let command = TreeCommand {
            tree: self.config().tree.clone(),
            change: Some(change),
        };
        let led = self.state().write(Change::Tree(command), None).await;
        match led.map_err(of_etcd)? {
            Led::Tree(changed) => Ok(changed),
            other => Err(unexpected(&other)),
        }
    }

    /// Refuses a request that is larger than etcd takes. What is larger than its transport takes was refused before.
    fn check_size(&self, request: &impl Message) -> Result<(), Status> {
        match request.encoded_len() <= self.config().request_bytes_max {
            true => Ok(()),
            false => Err(EtcdError::RequestTooLarge.into()),
        }
    }

    /// Refuses a write that needs room while there is none within the quota.
    fn check_quota(&self) -> Result<(), Status> {
        if self.config().quota_bytes == 0 {
            return Ok(());
        }
        let alarm = &self.0.is_out_of_space;
        if !alarm.load(Ordering::Relaxed) && self.recent_bytes()? > self.config().quota_bytes {
            alarm.store(true, Ordering::Relaxed);
            tracing::warn!(
                quota_bytes = self.config().quota_bytes,
                "the quota of the etcd door is reached"
            );
        }
        match alarm.load(Ordering::Relaxed) {
            true => Err(EtcdError::NoSpace.into()),
            false => Ok(()),
        }
    }

    /// As [`EtcdDoor::used_bytes`], but not newer than it has to be: the figures of a store cost more than a put.
    fn recent_bytes(&self) -> Result<u64, Status> {
        let mut measured = self.0.measured.lock().unwrap_or_else(PoisonError::into_inner);
        match *measured {
            Some((at, bytes)) if at.elapsed() < MEASURED_EVERY => Ok(bytes),
            _ => {
                let bytes = self.used_bytes()?;
                *measured = Some((Instant::now(), bytes));
                Ok(bytes)
            }
        }
    }

    /// Space may have become free: the next put measures it.
    fn forget_measured(&self) {
        *self.0.measured.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Bytes that the content of the store takes.
    fn used_bytes(&self) -> Result<u64, Status> {
        let figures = self.state().store.stat().map_err(|error| of_etcd(failed(&error)))?;
        let unused = (figures.free_pages + figures.retired_pages) * figures.page_bytes + EMPTY_BYTES;
        Ok(figures.data_bytes.saturating_sub(unused) + figures.unfolded_bytes)
    }
}

/// The ids of the cluster and of its member. They stay as long as the store and the name.
fn ids(store: u128, name: &str) -> [u64; 2] {
    let cluster = xxhash_rust::xxh3::xxh3_64(&store.to_be_bytes()).max(1);
    let member = xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), cluster).max(1);
    [cluster, member]
}
