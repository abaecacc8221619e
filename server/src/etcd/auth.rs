//! `Auth`: users and roles of etcd are not there. A server with principals takes their names and tokens in place of users and
//! passwords.

use duramen_proto::etcd::server::auth_server::Auth;
use duramen_proto::etcd::server::*;
use tonic::{Request, Response, Status};

use super::EtcdDoor;
use crate::command::{EtcdError, of_etcd};
use crate::error::failed;

/// The answer to what changes or lists users and roles.
fn not_enabled<T>() -> Result<Response<T>, Status> {
    Err(EtcdError::AuthNotEnabled.into())
}

#[tonic::async_trait]
impl Auth for EtcdDoor {
    async fn auth_status(&self, _: Request<AuthStatusRequest>) -> Result<Response<AuthStatusResponse>, Status> {
        let required = self.state().guard.are_tokens_required();
        Ok(Response::new(AuthStatusResponse {
            header: Some(self.newest_header()?),
            enabled: required.map_err(|error| of_etcd(failed(&error)))?,
            auth_revision: 1,
        }))
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let guard = &self.state().guard;
        if !guard.are_tokens_required().map_err(|error| of_etcd(failed(&error)))? {
            return not_enabled();
        }
        let request = request.into_inner();
        match guard.principal_of(&request.password)? {
            Some(principal) if principal == request.name => Ok(Response::new(AuthenticateResponse {
                header: Some(self.newest_header()?),
                token: request.password,
            })),
            _ => Err(EtcdError::AuthFailed.into()),
        }
    }

    async fn auth_enable(&self, _: Request<AuthEnableRequest>) -> Result<Response<AuthEnableResponse>, Status> {
        not_enabled()
    }

    async fn auth_disable(&self, _: Request<AuthDisableRequest>) -> Result<Response<AuthDisableResponse>, Status> {
        not_enabled()
    }

    async fn user_add(&self, _: Request<AuthUserAddRequest>) -> Result<Response<AuthUserAddResponse>, Status> {
        not_enabled()
    }

    async fn user_get(&self, _: Request<AuthUserGetRequest>) -> Result<Response<AuthUserGetResponse>, Status> {
        not_enabled()
    }

    async fn user_list(&self, _: Request<AuthUserListRequest>) -> Result<Response<AuthUserListResponse>, Status> {
        not_enabled()
    }

    async fn user_delete(&self, _: Request<AuthUserDeleteRequest>) -> Result<Response<AuthUserDeleteResponse>, Status> {
        not_enabled()
    }

    async fn user_change_password(
        &self,
        _: Request<AuthUserChangePasswordRequest>,
    ) -> Result<Response<AuthUserChangePasswordResponse>, Status> {
        not_enabled()
    }

    async fn user_grant_role(
        &self,
        _: Request<AuthUserGrantRoleRequest>,
    ) -> Result<Response<AuthUserGrantRoleResponse>, Status> {
        not_enabled()
    }

    async fn user_revoke_role(
        &self,
        _: Request<AuthUserRevokeRoleRequest>,
    ) -> Result<Response<AuthUserRevokeRoleResponse>, Status> {
        not_enabled()
    }

    async fn role_add(&self, _: Request<AuthRoleAddRequest>) -> Result<Response<AuthRoleAddResponse>, Status> {
        not_enabled()
    }

    async fn role_get(&self, _: Request<AuthRoleGetRequest>) -> Result<Response<AuthRoleGetResponse>, Status> {
        not_enabled()
    }

    async fn role_list(&self, _: Request<AuthRoleListRequest>) -> Result<Response<AuthRoleListResponse>, Status> {
        not_enabled()
    }

    async fn role_delete(&self, _: Request<AuthRoleDeleteRequest>) -> Result<Response<AuthRoleDeleteResponse>, Status> {
        not_enabled()
    }

    async fn role_grant_permission(
        &self,
        _: Request<AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<AuthRoleGrantPermissionResponse>, Status> {
        not_enabled()
    }

    async fn role_revoke_permission(
        &self,
        _: Request<AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<AuthRoleRevokePermissionResponse>, Status> {
        not_enabled()
    }
}
