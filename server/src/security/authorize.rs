//! Decides whether a request may do what it asks for.
//!
//! ```text
//! no principal was ever created               everything is allowed
//! a token                                     its permissions; a wrong one is refused, whatever else the peer is
//! no token, a verified certificate            the permissions of its name
//! no token, a process of the server's user    everything is allowed, and to root as well
//! anything else                               UNAUTHENTICATED
//! ```
//! Each request reads the rows of the store, because another process may change them.

use std::time::{SystemTime, UNIX_EPOCH};

use duramen::Reason;
use duramen_proto::command::Token;
use duramen_proto::v1::operation::Change;
use duramen_proto::v1::{CommitRequest, TreeOperation};
use hyper::HeaderMap;
use tonic::{Code, Request, Status};

use super::limits::PrincipalLimits;
use super::peer::{Identity, Peer};
use super::permission::{Access, Permission, Resource};
use super::tokens::{Presented, Tokens};
use crate::error::{failed, status};

const ROOT: u32 = 0;

/// What a request shows of its sender. It has no `Debug`, so that no log shows a token.
#[derive(Clone)]
pub(crate) struct Credentials {
    authorization: Authorization,
    identity: Identity,
}

#[derive(Clone)]
enum Authorization {
    Absent,
    Malformed,
    Token(Presented),
}

impl Credentials {
    /// The credentials of a request.
    pub(crate) fn of<T>(request: &Request<T>) -> Credentials {
        Credentials::new(request.metadata().as_ref(), request.extensions().get::<Peer>())
    }

    /// The credentials in the headers of a request from a peer.
    pub(crate) fn new(headers: &HeaderMap, peer: Option<&Peer>) -> Credentials {
        Credentials {
            authorization: Authorization::of(headers),
            identity: peer.map_or(Identity::Unknown, |peer| peer.identity.clone()),
        }
    }
}

impl Authorization {
    fn of(headers: &HeaderMap) -> Authorization {
        let token = match (headers.get("authorization"), headers.get("token")) {
            (Some(value), _) => value.to_str().ok().and_then(|text| text.strip_prefix("Bearer ")),
            // So send etcd's clients what they got for a user and a password.
            (None, Some(value)) => value.to_str().ok(),
            (None, None) => return Authorization::Absent,
        };
        token
            .and_then(Presented::parse)
            .map_or(Authorization::Malformed, Authorization::Token)
    }
}

/// Who sent a request, as far as it matters for what it may do.
pub(crate) enum Caller {
    /// It may do everything.
    Unlimited,
    /// A principal may do what its permissions say.
    Principal {
        /// Its name.
        name: String,
        /// Its permissions.
        permissions: Vec<Permission>,
    },
}

/// Knows the tokens of a store.
pub(crate) struct Guard {
    tokens: Tokens,
    /// The user that runs the server.
    owner: u32,
}

impl Guard {
    pub(crate) fn new(tokens: Tokens) -> Guard {
        let owner = rustix::process::geteuid().as_raw();
        Guard { tokens, owner }
    }

    /// Finds out who sent a request.
    pub(crate) fn caller(&self, credentials: &Credentials) -> Result<Caller, Status> {
        self.token_of(credentials)?.map_or(Ok(Caller::Unlimited), Caller::of)
    }

    /// Whether requests need permissions.
    pub(crate) fn are_tokens_required(&self) -> duramen::Result<bool> {
        self.tokens.are_required()
    }

    /// The principal of the text of a token; `None`: it is not valid.
    pub(crate) fn principal_of(&self, token: &str) -> Result<Option<String>, Status> {
        let Some(presented) = Presented::parse(token) else {
            return Ok(None);
        };
        let credentials = Credentials {
            authorization: Authorization::Token(presented),
            identity: Identity::Unknown,
        };
        match self.caller(&credentials) {
            Ok(caller) => Ok(Some(caller.name().into())),
            Err(status) if status.code() == Code::Unauthenticated => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// The principal that sent a request, with its limits; `None`: it has none.
    pub(crate) fn limits(&self, credentials: &Credentials) -> Result<Option<(String, PrincipalLimits)>, Status> {
        let limited = self.token_of(credentials)?.map(|token| {
            let limits = PrincipalLimits {
                calls: token.calls,
                bytes_per_second: token.bytes_per_second,
            };
            (token.principal, limits)
        });
        Ok(limited.filter(|(_, limits)| *limits != PrincipalLimits::default()))
    }

    /// The valid token of a request, or that of its certificate. `None`: the sender may do everything.
    fn token_of(&self, credentials: &Credentials) -> Result<Option<Token>, Status> {
        if !self.tokens.are_required().map_err(|error| failed(&error))? {
            return Ok(None);
        }
        let token = match (&credentials.authorization, &credentials.identity) {
            (Authorization::Token(presented), _) => {
                let token = self.tokens.of_id(&presented.id).map_err(|error| failed(&error))?;
                token.filter(|token| presented.is_of(token)).ok_or_else(wrong_token)?
            }
            (Authorization::Malformed, _) => return Err(wrong_token()),
            (Authorization::Absent, Identity::Certificate(name)) => {
                let token = self.tokens.of_certificate(name).map_err(|error| failed(&error))?;
                token.ok_or_else(|| unknown_certificate(name))?
            }
            (Authorization::Absent, Identity::Process { uid }) if *uid == self.owner || *uid == ROOT => {
                return Ok(None);
            }
            (Authorization::Absent, _) => return Err(no_token()),
        };
        if token.expires_us != 0 && token.expires_us <= now_us() {
            return Err(wrong_token());
        }
        Ok(Some(token))
    }
}

impl Caller {
    /// The name of the principal; empty: the caller may do everything.
    pub(crate) fn name(&self) -> &str {
        match self {
            Caller::Unlimited => "",
            Caller::Principal { name, .. } => name,
        }
    }

    fn of(token: Token) -> Result<Caller, Status> {
        let permissions = token.permissions.iter().map(|text| text.parse());
        let permissions = permissions.collect::<Result<_, _>>().map_err(|_| {
            let what = "the permissions of a token are damaged; run `duramen check`";
            failed(&Reason::Damaged(what.into()).into())
        })?;
        Ok(Caller::Principal {
            name: token.principal,
            permissions,
        })
    }

    /// Refuses what the caller may not do.
    pub(crate) fn may(&self, access: Access, resource: Resource<'_>) -> Result<(), Status> {
        match self {
            Caller::Unlimited => Ok(()),
            Caller::Principal { permissions, .. } if permissions.iter().any(|one| one.allows(access, resource)) => {
                Ok(())
            }
            Caller::Principal { name, .. } => {
                let message = format!(
                    "the principal {name:?} lacks the permission {access}:{resource}; create a token that has it with \
                     `duramen token create`"
                );
                Err(status(Code::PermissionDenied, "PERMISSION_DENIED", message))
            }
        }
    }

    /// Refuses a transaction that has a part which the caller may not do.
    pub(crate) fn may_commit(&self, commit: &CommitRequest) -> Result<(), Status> {
        for condition in &commit.conditions {
            self.may(Access::Read, Resource::Map(&condition.map))?;
        }
        for condition in &commit.node_conditions {
            self.may(Access::Read, Resource::Tree(&condition.tree))?;
        }
        let operations = commit.then.iter().chain(&commit.otherwise);
        for change in operations.filter_map(|operation| operation.change.as_ref()) {
            match change {
                Change::Put(put) => self.may(Access::Write, Resource::Map(&put.map))?,
                Change::Delete(delete) => self.may(Access::Write, Resource::Map(&delete.map))?,
                Change::DeleteRange(delete) => self.may(Access::Write, Resource::Map(&delete.map))?,
                Change::Add(add) => self.may_add(&add.map)?,
                Change::Publish(publish) => self.may(Access::Write, Resource::Topic(&publish.topic))?,
                Change::Settle(settle) => self.may(Access::Read, Resource::Topic(&settle.topic))?,
                Change::Tree(operation) => self.may_operate(operation)?,
            }
        }
        Ok(())
    }

    /// Refuses an operation on a tree. The result of a put or deletion has the node before, so it reads as well.
    fn may_operate(&self, operation: &TreeOperation) -> Result<(), Status> {
        use duramen_proto::v1::tree_operation::Operation;
        let tree = Resource::Tree(&operation.tree);
        match &operation.operation {
            Some(Operation::Get(_)) => self.may(Access::Read, tree),
            _ => self.may_change(&operation.tree),
        }
    }

    /// Refuses a change of a node whose result has the node before.
    pub(crate) fn may_change(&self, tree: &str) -> Result<(), Status> {
        self.may(Access::Read, Resource::Tree(tree))?;
        self.may(Access::Write, Resource::Tree(tree))
    }

    /// Refuses an addition to a counter. Its result is the sum, so it reads as well.
    pub(crate) fn may_add(&self, map: &str) -> Result<(), Status> {
        self.may(Access::Read, Resource::Map(map))?;
        self.may(Access::Write, Resource::Map(map))
    }

    /// Whether a listing shows a resource: the caller has some permission for it.
    pub(crate) fn sees(&self, resource: Resource<'_>) -> bool {
        match self {
            Caller::Unlimited => true,
            Caller::Principal { permissions, .. } => permissions.iter().any(|one| one.covers(resource)),
        }
    }
}

fn unauthenticated(message: impl Into<String>) -> Status {
    status(Code::Unauthenticated, "UNAUTHENTICATED", message)
}

fn no_token() -> Status {
    unauthenticated(
        "the request has no token; create one with `duramen token create`, and send it as `authorization: Bearer TOKEN`",
    )
}

/// One message for all causes: it must not help to guess a token.
fn wrong_token() -> Status {
    unauthenticated("the token is not valid, or not any more; create another one with `duramen token create`")
}

fn unknown_certificate(name: &str) -> Status {
    unauthenticated(format!(
        "the certificate is for {name:?}, which has no permissions; give it some with `duramen token create --certificate`"
    ))
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
