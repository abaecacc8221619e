//! `Lock` and `Election`: etcd's own recipes on the server's side. A waiter has a key below the name of the lock, with its lease. The
//! oldest key has the lock, so each waiter waits for the deletion of the one before it.

use duramen::tree::{TreeError, WatchOptions, Watched};
use duramen_proto::etcd::election::election_server::Election;
use duramen_proto::etcd::election::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ProclaimResponse,
    ResignRequest, ResignResponse,
};
use duramen_proto::etcd::kv::KeyValue;
use duramen_proto::etcd::lock::lock_server::Lock;
use duramen_proto::etcd::lock::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use duramen_proto::etcd::server::compare::{CompareResult, CompareTarget, TargetUnion};
use duramen_proto::etcd::server::range_request::{SortOrder, SortTarget};
use duramen_proto::etcd::server::request_op::Request as Operation;
use duramen_proto::etcd::server::response_op::Response as Done;
use duramen_proto::etcd::server::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
};
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::EtcdDoor;
use super::watch::rung;
use crate::command::{of_etcd, to_key_value};
use crate::error::{failed, stopping};
use crate::security::Access;
use crate::services::send;

/// Seconds of the lease that a client without one gets.
const SESSION_SECONDS: i64 = 60;

const NO_LEADER: &str = "election: no leader";
const NOT_LEADER: &str = "election: not leader";
const NO_LEADER_KEY: &str = "\"leader\" field must be provided";
const SESSION_EXPIRED: &str = "mutex: session is expired";

/// A key that waits for its turn, or has it.
struct Place {
    prefix: Bytes,
    key: Bytes,
    /// The revision that created it.
    revision: i64,
    lease: i64,
    header: Option<ResponseHeader>,
    /// What the key held before, if it was there.
    found: Option<KeyValue>,
}

/// The range of all keys with a prefix.
fn with_prefix(prefix: &Bytes) -> RangeRequest {
    let mut end = prefix.to_vec();
    // The prefix ends with a slash, so the next byte is one more.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    RangeRequest {
        key: prefix.clone(),
        range_end: end.into(),
        limit: 1,
        sort_target: SortTarget::Create as i32,
        ..RangeRequest::default()
    }
}

/// A transaction that needs a key to have been created at a revision; 0: not to be there.
fn if_created(key: &Bytes, revision: i64, then: Operation) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Create as i32,
            key: key.clone(),
            range_end: Bytes::new(),
            target_union: Some(TargetUnion::CreateRevision(revision)),
        }],
        success: vec![RequestOp { request: Some(then) }],
        failure: Vec::new(),
    }
}

fn deletion(key: &Bytes) -> Operation {
    Operation::RequestDeleteRange(DeleteRangeRequest {
        key: key.clone(),
        ..DeleteRangeRequest::default()
    })
}

fn revision_of(response: &TxnResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}

impl EtcdDoor {
    /// Puts a key with a lease below a name, unless it is there.
    async fn take_place(&self, name: &Bytes, lease: i64, value: Bytes) -> Result<Place, Status> {
        let lease = match lease {
            0 => self.grant(0, SESSION_SECONDS).await?.0,
            lease => lease,
        };
        let prefix = Bytes::from([name, &b"/"[..]].concat());
        // As Go writes the number in hexadecimal.
        let suffix = match lease {
            0.. => format!("{lease:x}"),
            lease => format!("-{:x}", lease.unsigned_abs()),
        };
        let key = Bytes::from([&prefix, suffix.as_bytes()].concat());
        let put = Operation::RequestPut(PutRequest {
            key: key.clone(),
            value,
            lease,
            ..PutRequest::default()
        });
        let mut transaction = if_created(&key, 0, put);
        transaction.failure.push(RequestOp {
            request: Some(Operation::RequestRange(RangeRequest {
                key: key.clone(),
                ..RangeRequest::default()
            })),
        });
        let response = self.transact(transaction).await.map_err(|status| match status.code() {
            // As in etcd, whose service is a client of its own.
            Code::NotFound => Status::unknown(status.message()),
            _ => status,
        })?;
        let found = response.responses.iter().find_map(|one| match &one.response {
            Some(Done::ResponseRange(range)) => range.kvs.first().cloned(),
            _ => None,
        });
        Ok(Place {
            prefix,
            key,
            revision: found
                .as_ref()
                .map_or(revision_of(&response), |pair| pair.create_revision),
            lease,
            header: response.header,
            found,
        })
    }

    /// Waits until no key that was created before this one has its prefix.
    async fn wait_for_turn(&self, place: &Place) -> Result<(), Status> {
        loop {
            let request = RangeRequest {
                sort_order: SortOrder::Descend as i32,
                max_create_revision: place.revision - 1,
                ..with_prefix(&place.prefix)
            };
            // No revision is before the first one, and a limit of 0 would be none.
            if request.max_create_revision <= 0 {
                return Ok(());
            }
            let read = self.read(&request).await?;
            let Some(before) = read.kvs.first() else { return Ok(()) };
            let revision = read.header.map_or(0, |header| header.revision);
            self.wait_for_deletion(&before.key, revision.unsigned_abs() + 1).await?;
        }
    }

    /// Waits until a key is deleted by a change from a revision on.
    async fn wait_for_deletion(&self, key: &Bytes, from: u64) -> Result<(), Status> {
        let mut set = self.watches()?;
        let options = WatchOptions::path(key).from_revision(from).without_old_nodes();
        set.add(0, options).map_err(|error| of_etcd(failed(&error)))?;
        let mut ends = self.state().ends.clone();
        loop {
            set.arm();
            let (seen, has_more) = set.take().map_err(|error| of_etcd(failed(&error)))?;
            for (_, seen) in seen {
                match seen {
                    Watched::Events(events) if events.iter().any(|event| event.node.is_none()) => return Ok(()),
                    Watched::Events(_) => {}
                    Watched::Ended(error) => match TreeError::of(&error) {
                        // The key may be gone since. The caller looks again.
                        Some(TreeError::Compacted { .. }) => return Ok(()),
                        _ => return Err(of_etcd(failed(&error))),
                    },
                }
            }
            if has_more {
                continue;
            }
            tokio::select! {
                () = rung(&set) => {}
                _ = ends.wait_for(|ends| *ends) => return Err(of_etcd(stopping())),
            }
        }
    }

    /// Waits for the turn of a place. A caller that goes away, and a wait that fails, give the place up.
    async fn wait_or_leave(&self, place: &Place) -> Result<(), Status> {
        let leaving = Leaving {
            door: self.clone(),
            key: place.key.clone(),
            revision: place.revision,
            has_stayed: false,
        };
        self.wait_for_turn(place).await?;
        leaving.stay();
        Ok(())
    }

    async fn leader(&self, name: &Bytes) -> Result<Option<(ResponseHeader, KeyValue)>, Status> {
        let prefix = Bytes::from([name, &b"/"[..]].concat());
        let request = RangeRequest {
            sort_order: SortOrder::Ascend as i32,
            ..with_prefix(&prefix)
        };
        let response = self.read(&request).await?;
        Ok(response.header.zip(response.kvs.into_iter().next()))
    }

    /// Sends each leader of an election, and what it proclaims.
    async fn observe_all(
        &self,
        name: &Bytes,
        sender: &mpsc::Sender<Result<LeaderResponse, Status>>,
    ) -> Result<(), Status> {
        let prefix = Bytes::from([name, &b"/"[..]].concat());
        let range = with_prefix(&prefix);
        let mut told = None;
        let mut set = self.watches()?;
        let options = WatchOptions::range(&range.key, Some(&range.range_end)).without_old_nodes();
        set.add(0, options).map_err(|error| of_etcd(failed(&error)))?;
        loop {
            set.arm();
            let has_more = set.take().map_err(|error| of_etcd(failed(&error)))?.1;
            if let Some((header, pair)) = self.leader(name).await? {
                let from = header.revision.unsigned_abs() + 1;
                let key = pair.key.clone();
                let seen = (pair.create_revision, pair.mod_revision);
                if told != Some(seen) {
                    told = Some(seen);
                    let response = LeaderResponse {
                        header: Some(header),
                        kv: Some(pair),
                    };
                    if sender.send(Ok(response)).await.is_err() {
                        return Ok(());
                    }
                }
                self.tell_proclaimed(&key, from, &mut told, sender).await?;
            } else if !has_more {
                rung(&set).await;
            }
        }
    }

    /// Sends all that a leader proclaims from a revision on, in its order, until its key is deleted.
    async fn tell_proclaimed(
        &self,
        key: &Bytes,
        from: u64,
        told: &mut Option<(i64, i64)>,
        sender: &mpsc::Sender<Result<LeaderResponse, Status>>,
    ) -> Result<(), Status> {
        // What is compacted meanwhile cannot be told: the caller looks who leads now.
        let is_compacted = |error: &duramen::Error| matches!(TreeError::of(error), Some(TreeError::Compacted { .. }));
        let mut set = self.watches()?;
        let options = WatchOptions::path(key).from_revision(from).without_old_nodes();
        match set.add(0, options) {
            Ok(_) => {}
            Err(error) if is_compacted(&error) => return Ok(()),
            Err(error) => return Err(of_etcd(failed(&error))),
        }
        loop {
            set.arm();
            let (seen, has_more) = set.take().map_err(|error| of_etcd(failed(&error)))?;
            for (_, seen) in seen {
                let events = match seen {
                    Watched::Events(events) => events,
                    Watched::Ended(error) if is_compacted(&error) => return Ok(()),
                    Watched::Ended(error) => return Err(of_etcd(failed(&error))),
                };
                for event in events {
                    let Some(node) = event.node else { return Ok(()) };
                    let pair = to_key_value(key.clone(), node);
                    *told = Some((pair.create_revision, pair.mod_revision));
                    let response = LeaderResponse {
                        header: Some(self.header(event.revision)),
                        kv: Some(pair),
                    };
                    if sender.send(Ok(response)).await.is_err() {
                        return Ok(());
                    }
                }
            }
            if !has_more {
                rung(&set).await;
            }
        }
    }
}

/// Deletes the key of a place unless it stays.
struct Leaving {
    door: EtcdDoor,
    key: Bytes,
    revision: i64,
    has_stayed: bool,
}

impl Leaving {
    fn stay(mut self) {
        self.has_stayed = true;
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.has_stayed {
            return;
        }
        let (door, transaction) = (
            self.door.clone(),
            if_created(&self.key, self.revision, deletion(&self.key)),
        );
        // The client has gone, so its lease ends if this fails, or where the server ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { drop(door.transact(transaction).await) });
        }
    }
}

#[tonic::async_trait]
impl Lock for EtcdDoor {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        self.authorize(&request, Access::Write)?;
        let request = request.into_inner();
        let place = self.take_place(&request.name, request.lease, Bytes::new()).await?;
        self.wait_or_leave(&place).await?;
        let own = RangeRequest {
            key: place.key.clone(),
            ..RangeRequest::default()
        };
        let read = self.read(&own).await?;
        if read.kvs.is_empty() {
            return Err(Status::unknown(SESSION_EXPIRED));
        }
        Ok(Response::new(LockResponse {
            header: read.header,
            key: place.key,
        }))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        self.authorize(&request, Access::Write)?;
        let key = request.into_inner().key;
        if key.is_empty() {
            return Err(crate::command::EtcdError::EmptyKey.into());
        }
        let header = match self.operate(deletion(&key)).await? {
            Done::ResponseDeleteRange(response) => self.completed(response.header),
            _ => None,
        };
        Ok(Response::new(UnlockResponse { header }))
    }
}

#[tonic::async_trait]
impl Election for EtcdDoor {
    async fn campaign(&self, request: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        self.authorize(&request, Access::Write)?;
        let request = request.into_inner();
        let place = self
            .take_place(&request.name, request.lease, request.value.clone())
            .await?;
        let mut header = place.header;
        if place.found.as_ref().is_some_and(|pair| pair.value != request.value) {
            header = self
                .proclaimed(&place.key, place.revision, place.lease, request.value)
                .await?;
        }
        self.wait_or_leave(&place).await?;
        Ok(Response::new(CampaignResponse {
            header,
            leader: Some(LeaderKey {
                name: request.name,
                key: place.key,
                rev: place.revision,
                lease: place.lease,
            }),
        }))
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Result<Response<ProclaimResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        self.authorize(&request, Access::Write)?;
        let request = request.into_inner();
        let leader = request.leader.ok_or_else(|| Status::invalid_argument(NO_LEADER_KEY))?;
        let header = self
            .proclaimed(&leader.key, leader.rev, leader.lease, request.value)
            .await?;
        Ok(Response::new(ProclaimResponse { header }))
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        let found = EtcdDoor::leader(self, &request.into_inner().name).await?;
        let (header, pair) = found.ok_or_else(|| Status::unknown(NO_LEADER))?;
        Ok(Response::new(LeaderResponse {
            header: Some(header),
            kv: Some(pair),
        }))
    }

    type ObserveStream = ReceiverStream<Result<LeaderResponse, Status>>;

    async fn observe(&self, request: Request<LeaderRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        self.authorize(&request, Access::Read)?;
        let name = request.into_inner().name;
        let (sender, receiver) = mpsc::channel(3);
        let (door, responses) = (self.clone(), sender.clone());
        send(self.state(), sender, async move {
            let observed = tokio::select! {
                observed = door.observe_all(&name, &responses) => observed,
                () = responses.closed() => return,
            };
            if let Err(status) = observed {
                let _ = responses.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        self.authorize(&request, Access::Write)?;
        let leader = request.into_inner().leader;
        let leader = leader.ok_or_else(|| Status::invalid_argument(NO_LEADER_KEY))?;
        if leader.key.is_empty() {
            return Err(crate::command::EtcdError::EmptyKey.into());
        }
        let transaction = if_created(&leader.key, leader.rev, deletion(&leader.key));
        let header = self.transact(transaction).await?.header;
        Ok(Response::new(ResignResponse { header }))
    }
}

impl EtcdDoor {
    /// Replaces the value of the leader's key, if it still has it.
    async fn proclaimed(
        &self,
        key: &Bytes,
        revision: i64,
        lease: i64,
        value: Bytes,
    ) -> Result<Option<ResponseHeader>, Status> {
        let put = PutRequest {
            key: key.clone(),
            value,
            lease,
            ..PutRequest::default()
        };
        crate::command::check_put(&put)?;
        let response = self
            .transact(if_created(key, revision, Operation::RequestPut(put)))
            .await?;
        match response.succeeded {
            true => Ok(response.header),
            false => Err(Status::unknown(NOT_LEADER)),
        }
    }
}
