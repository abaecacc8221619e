//! `Lease`: keys that end with the client that keeps them alive.

use duramen_proto::command::GrantTreeLease;
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::tree_command::Change as OfTree;
use duramen_proto::command::{TreeChanged, TreeCommand};
use duramen_proto::etcd::server::lease_server::Lease;
use duramen_proto::etcd::server::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use duramen_proto::v1::{Acknowledge, WriteOptions};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::EtcdDoor;
use crate::command::{EtcdError, of_etcd};
use crate::error::{failed, reason_of};
use crate::pipeline::Answer;
use crate::security::{Access, Credentials};
use crate::services::answer_in_order;
use crate::state::{State, led, unexpected};

/// The longest and the shortest lease of etcd, in seconds.
const TTL_MAX: i64 = 9_000_000_000;
const TTL_MIN: i64 = 2;

/// Leases that are renewed in one commit, when a server starts.
const RENEWED_TOGETHER: usize = 1_000;

impl EtcdDoor {
    /// Grants a lease; the id 0 means one of the server's choice. Returns id and seconds.
    pub(super) async fn grant(&self, id: i64, ttl: i64) -> Result<(i64, i64), Status> {
        if ttl > TTL_MAX {
            return Err(EtcdError::TtlTooLarge.into());
        }
        self.check_quota()?;
        let ttl = ttl.max(TTL_MIN);
        let lease = match id {
            0 => (self.state().store.random_number() >> 1).max(1),
            id => id as u64,
        };
        let ttl_ms = ttl.unsigned_abs() * 1_000;
        self.change(OfTree::GrantLease(GrantTreeLease { lease, ttl_ms }))
            .await?;
        Ok((lease as i64, ttl))
    }

    /// Queues a keep-alive. It need not survive a power cut: a lease has its remaining time after one.
    fn keep_alive(&self, credentials: &Credentials, id: i64) -> Result<Keeping, Status> {
        self.authorize_caller(credentials, Access::Write)?;
        // As in etcd, the revision is not newer than the keep-alive.
        let header = self.newest_header()?;
        let command = TreeCommand {
            tree: self.config().tree.clone(),
            change: Some(OfTree::KeepLeaseAlive(id as u64)),
        };
        let options = WriteOptions {
            acknowledge: Acknowledge::Written as i32,
            ..WriteOptions::default()
        };
        let answer = self
            .state()
            .enqueue(Change::Tree(command), Some(options))
            .map_err(of_etcd)?;
        let response = LeaseKeepAliveResponse {
            header: Some(header),
            id,
            ttl: 0,
        };
        Ok(Keeping { response, answer })
    }
}

/// Gives each lease its whole time again, as etcd does when it starts: clients had no server that they could ask.
///
/// # Errors
/// Those of a commit, such as a full disk. The leases that are left have the time that they had.
pub(crate) async fn renew_leases(state: &State, tree: &str) -> Result<(), Status> {
    let view = state.tree(tree)?.view().map_err(|error| failed(&error))?;
    let mut queued = Vec::new();
    for lease in view.leases().map_err(|error| failed(&error))? {
        match renewal(state, tree, lease.id) {
            // The queue is short.
            Err(status) if status.code() == Code::ResourceExhausted && !queued.is_empty() => {
                all_renewed(&mut queued).await?;
                queued.push(renewal(state, tree, lease.id)?);
            }
            renewal => queued.push(renewal?),
        }
        if queued.len() == RENEWED_TOGETHER {
            all_renewed(&mut queued).await?;
        }
    }
    all_renewed(&mut queued).await
}

/// Queues the renewal of a lease.
fn renewal(state: &State, tree: &str, lease: u64) -> Result<Answer, Status> {
    let command = TreeCommand {
        tree: tree.into(),
        change: Some(OfTree::KeepLeaseAlive(lease)),
    };
    let options = WriteOptions {
        acknowledge: Acknowledge::Written as i32,
        ..WriteOptions::default()
    };
    state.enqueue(Change::Tree(command), Some(options))
}

async fn all_renewed(queued: &mut Vec<Answer>) -> Result<(), Status> {
    for answer in queued.drain(..) {
        let answer = answer.await.unwrap_or_else(|_| Err(crate::error::unanswered()));
        match answer.and_then(led) {
            // It ended meanwhile.
            Err(status) if reason_of(&status) == "LEASE_NOT_FOUND" => {}
            led => drop(led?),
        }
    }
    Ok(())
}

/// A keep-alive whose command is queued.
struct Keeping {
    response: LeaseKeepAliveResponse,
    answer: Answer,
}

async fn kept_alive(keeping: Keeping) -> Result<LeaseKeepAliveResponse, Status> {
    let Keeping { response, answer } = keeping;
    let outcome = answer.await.unwrap_or_else(|_| Err(crate::error::unanswered()))?;
    match led(outcome) {
        Ok(Led::Tree(TreeChanged { lease, .. })) => {
            let ttl = lease.map_or(0, |lease| seconds(lease.ttl_ms));
            Ok(LeaseKeepAliveResponse { ttl, ..response })
        }
        Ok(other) => Err(unexpected(&other)),
        Err(status) if reason_of(&status) == "LEASE_NOT_FOUND" => Ok(response),
        Err(status) => Err(of_etcd(status)),
    }
}

fn seconds(millis: u64) -> i64 {
    i64::try_from(millis / 1_000).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl Lease for EtcdDoor {
    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        self.authorize(&request, Access::Write)?;
        let request = request.into_inner();
        let (id, ttl) = self.grant(request.id, request.ttl).await?;
        Ok(Response::new(LeaseGrantResponse {
            header: Some(self.newest_header()?),
            id,
            ttl,
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        self.authorize(&request, Access::Write)?;
        self.change(OfTree::RevokeLease(request.into_inner().id as u64)).await?;
        let header = Some(self.newest_header()?);
        Ok(Response::new(LeaseRevokeResponse { header }))
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let credentials = Credentials::of(&request);
        self.authorize_caller(&credentials, Access::Write)?;
        let door = self.clone();
        let queue = move |request: LeaseKeepAliveRequest| door.keep_alive(&credentials, request.id);
        let answers = answer_in_order(self.state(), request.into_inner(), queue, kept_alive);
        Ok(Response::new(answers))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        let request = request.into_inner();
        let view = self.view()?;
        let mut response = LeaseTimeToLiveResponse {
            header: Some(self.header(view.revision())),
            id: request.id,
            ttl: -1,
            ..LeaseTimeToLiveResponse::default()
        };
        let id = request.id as u64;
        match view.lease(id) {
            Ok(lease) if !lease.remaining.is_zero() => {
                response.ttl = seconds(lease.remaining.as_millis() as u64);
                response.granted_ttl = seconds(lease.ttl.as_millis() as u64);
                if request.keys {
                    let paths = view.lease_paths(id, usize::MAX);
                    let paths = paths.map_err(|error| of_etcd(failed(&error)))?;
                    response.keys = paths.into_iter().map(Into::into).collect();
                }
            }
            Ok(_) => {}
            Err(error) => match of_etcd(failed(&error)) {
                status if reason_of(&status) == "LEASE_NOT_FOUND" => {}
                status => return Err(status),
            },
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        let view = self.view()?;
        let mut leases = view.leases().map_err(|error| of_etcd(failed(&error)))?;
        leases.sort_by_key(|lease| lease.remaining);
        let living = leases.iter().filter(|lease| !lease.remaining.is_zero());
        Ok(Response::new(LeaseLeasesResponse {
            header: Some(self.header(view.revision())),
            leases: living.map(|lease| LeaseStatus { id: lease.id as i64 }).collect(),
        }))
    }
}
