//! `Maintenance`: what operators ask of a member.

use std::sync::atomic::Ordering;

use duramen::tree::{Selection, TreeView};
use duramen_proto::command::tree_command::Change as OfTree;
use duramen_proto::etcd::server::alarm_request::AlarmAction;
use duramen_proto::etcd::server::downgrade_request::DowngradeAction;
use duramen_proto::etcd::server::maintenance_server::Maintenance;
use duramen_proto::etcd::server::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
    MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use xxhash_rust::xxh3::Xxh3;

use super::{ETCD_VERSION, EtcdDoor, TERM};
use crate::command::{EtcdError, of_etcd, signed};
use crate::error::failed;
use crate::security::Access;
use crate::services::send;

/// Nodes that a hash reads at once.
const HASHED_NODES: usize = 1_000;

impl EtcdDoor {
    /// Removes what is compacted.
    pub(super) async fn remove_compacted(&self) -> Result<(), Status> {
        while self.change(OfTree::Tend(false)).await?.has_more {}
        Ok(())
    }

    /// A hash of all keys at a revision; 0: the newest one. Returns it with the revision and the first readable revision.
    async fn hash(&self, revision: i64) -> Result<(u32, u64, u64), Status> {
        let view = self.view()?;
        let first = view.first_revision().map_err(|error| of_etcd(failed(&error)))?;
        let at = match u64::try_from(revision) {
            Ok(revision @ 1..) => revision,
            _ => view.revision(),
        };
        let past: TreeView = view.at_revision(at).map_err(|error| of_etcd(failed(&error)))?;
        let (all, mut after, mut hash) = (Selection::all(), None, Xxh3::new());
        loop {
            let page = past.page(&all, after.as_deref(), HASHED_NODES);
            let page = page.map_err(|error| of_etcd(failed(&error)))?;
            for (path, node) in &page.content {
                let numbers = [node.create_revision, node.revision, node.version, node.lease];
                hash.update(&(path.len() as u64).to_be_bytes());
                hash.update(path);
                numbers.iter().for_each(|number| hash.update(&number.to_be_bytes()));
                hash.update(&(node.payload.len() as u64).to_be_bytes());
                hash.update(&node.payload);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok((hash.digest() as u32, at, first))
    }

    fn alarms(&self) -> Vec<AlarmMember> {
        let is_out_of_space = self.0.is_out_of_space.load(Ordering::Relaxed);
        let alarm = is_out_of_space.then_some(AlarmMember {
            member_id: self.0.member_id,
            alarm: AlarmType::Nospace as i32,
        });
        alarm.into_iter().collect()
    }
}

#[tonic::async_trait]
impl Maintenance for EtcdDoor {
    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        let action = request.get_ref().action();
        self.authorize(
            &request,
            if action == AlarmAction::Get {
                Access::Read
            } else {
                Access::Admin
            },
        )?;
        let request = request.into_inner();
        let is_of_this = request.member_id == 0 || request.member_id == self.0.member_id;
        let is_space = matches!(request.alarm(), AlarmType::Nospace | AlarmType::None);
        let before = self.alarms();
        let alarms = match action {
            AlarmAction::Get => before,
            AlarmAction::Activate if is_of_this && request.alarm() == AlarmType::Nospace => {
                self.0.is_out_of_space.store(true, Ordering::Relaxed);
                self.alarms()
            }
            AlarmAction::Deactivate if is_of_this && is_space => {
                self.forget_measured();
                self.0.is_out_of_space.store(false, Ordering::Relaxed);
                before
            }
            AlarmAction::Activate | AlarmAction::Deactivate => Vec::new(),
        };
        let header = Some(self.newest_header()?);
        Ok(Response::new(AlarmResponse { header, alarms }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.state().caller(&request)?;
        let figures = self.state().store.stat().map_err(|error| of_etcd(failed(&error)))?;
        let errors = self.alarms().into_iter().map(|alarm| {
            let kind = alarm.alarm().as_str_name();
            format!("memberID:{} alarm:{kind} ", alarm.member_id)
        });
        Ok(Response::new(StatusResponse {
            header: Some(self.newest_header()?),
            version: ETCD_VERSION.into(),
            db_size: signed(figures.data_bytes + figures.log_bytes),
            leader: self.0.member_id,
            raft_index: figures.commit,
            raft_term: TERM,
            raft_applied_index: figures.commit,
            errors: errors.collect(),
            db_size_in_use: signed(self.used_bytes()?),
            is_learner: false,
            storage_version: ETCD_VERSION.into(),
            db_size_quota: signed(self.config().quota_bytes),
            downgrade_info: Some(DowngradeInfo::default()),
        }))
    }

    /// There is nothing to defragment. What is compacted and not removed yet is removed, and the log is folded.
    async fn defragment(&self, request: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        tracing::info!("a client asked for a defragmentation, which this store does not need");
        self.remove_compacted().await?;
        let store = self.state().store.clone();
        let folded = tokio::task::spawn_blocking(move || store.maintain()).await;
        let folded = folded.map_err(|error| Status::internal(error.to_string()))?;
        folded.map_err(|error| of_etcd(failed(&error)))?;
        Ok(Response::new(DefragmentResponse {
            header: Some(self.newest_header()?),
        }))
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        let (hash, revision, _) = EtcdDoor::hash(self, 0).await?;
        let header = Some(self.header(revision));
        Ok(Response::new(HashResponse { header, hash }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        self.authorize(&request, Access::Read)?;
        let (hash, revision, first) = EtcdDoor::hash(self, request.into_inner().revision).await?;
        Ok(Response::new(HashKvResponse {
            header: Some(self.newest_header()?),
            hash,
            compact_revision: signed(first),
            hash_revision: signed(revision),
        }))
    }

    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    /// Streams a file that `etcdutl snapshot restore` takes: the newest revision without its history, and the leases.
    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        self.authorize(&request, Access::Admin)?;
        let (messages, mut made) = mpsc::channel(1);
        let done = self.send_snapshot(messages)?;
        let (sender, receiver) = mpsc::channel(2);
        // When this ends early, it drops `made`, and the thread ends with its next message.
        send(self.state(), sender.clone(), async move {
            while let Some(message) = made.recv().await {
                if sender.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            let done = done.await;
            if let Err(status) = done.unwrap_or_else(|error| Err(Status::internal(error.to_string()))) {
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        match request.get_ref().target_id == self.0.member_id {
            true => Ok(Response::new(MoveLeaderResponse {
                header: Some(self.newest_header()?),
            })),
            false => Err(EtcdError::BadLeaderTransferee.into()),
        }
    }

    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        match request.get_ref().action() {
            DowngradeAction::Cancel => Err(EtcdError::NoInflightDowngrade.into()),
            DowngradeAction::Validate | DowngradeAction::Enable => Err(Status::unimplemented(
                "a Duramen server has no other storage version to go back to",
            )),
        }
    }
}
