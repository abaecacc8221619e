//! `Cluster`: one member, for now.

use duramen_proto::etcd::server::cluster_server::Cluster;
use duramen_proto::etcd::server::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use super::EtcdDoor;
use crate::security::Access;

const ONE_MEMBER: &str = "a Duramen server is a cluster of one member, which cannot be changed";

impl EtcdDoor {
    fn members(&self) -> Vec<Member> {
        let config = self.config();
        vec![Member {
            id: self.0.member_id,
            name: config.name.clone(),
            peer_ur_ls: config.peer_urls.clone(),
            client_ur_ls: config.client_urls.clone(),
            is_learner: false,
        }]
    }
}

#[tonic::async_trait]
impl Cluster for EtcdDoor {
    async fn member_list(&self, request: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        // As in etcd, every client that has a way in may ask.
        self.state().caller(&request)?;
        Ok(Response::new(MemberListResponse {
            header: Some(self.newest_header()?),
            members: self.members(),
        }))
    }

    async fn member_add(&self, request: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        Err(Status::unimplemented(ONE_MEMBER))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        Err(Status::unimplemented(ONE_MEMBER))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        Err(Status::unimplemented(ONE_MEMBER))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        self.authorize(&request, Access::Admin)?;
        Err(Status::unimplemented(ONE_MEMBER))
    }
}
