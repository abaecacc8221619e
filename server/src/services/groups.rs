//! The calls of the service `Topics` that are about groups and their members.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duramen::topic::Group;
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{self, Extend, Redriven};
use duramen_proto::v1::*;
use tonic::Status;

use crate::command::to_group_options;
use crate::error::{failed, invalid};
use crate::level::Level;
use crate::session::{Holder, RemoteMember, extend_lease, settle_all};
use crate::state::{State, check_space, unexpected};

/// Messages of a fetch when the request names no number, and the most.
const FETCHED: u32 = 100;
const FETCHED_MAX: u32 = 1_000;
/// The longest wait of a fetch.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Pending messages of a response when the request names no number, and the most.
const PENDING: u32 = 1_000;
const PENDING_MAX: u32 = 10_000;
/// Dead letters that one command brings back.
const REDRIVEN: u64 = 100;

pub(super) async fn create(state: &State, request: CreateGroupRequest) -> Result<CreateGroupResponse, Status> {
    let change = Change::CreateGroup(command::CreateGroup {
        topic: request.topic,
        group: request.group,
        start: request.start,
        options: request.group_options,
        if_missing: request.if_missing,
    });
    let created = state.change(&request.space, change, request.options).await?;
    Ok(CreateGroupResponse { created })
}

pub(super) async fn configure(state: &State, request: ConfigureGroupRequest) -> Result<ConfigureGroupResponse, Status> {
    let change = Change::ConfigureGroup(command::ConfigureGroup {
        topic: request.topic,
        group: request.group,
        options: request.group_options,
    });
    state.change(&request.space, change, request.options).await?;
    Ok(ConfigureGroupResponse {})
}

pub(super) async fn delete(state: &State, request: DeleteGroupRequest) -> Result<DeleteGroupResponse, Status> {
    let change = Change::DeleteGroup(command::DeleteGroup {
        topic: request.topic,
        group: request.group,
    });
    state.change(&request.space, change, request.options).await?;
    Ok(DeleteGroupResponse {})
}

pub(super) async fn pause(state: &State, request: PauseGroupRequest) -> Result<PauseGroupResponse, Status> {
    let change = Change::PauseGroup(command::PauseGroup {
        topic: request.topic,
        group: request.group,
        paused: request.paused,
    });
    state.change(&request.space, change, request.options).await?;
    Ok(PauseGroupResponse {})
}

pub(super) async fn reset(state: &State, request: ResetGroupRequest) -> Result<ResetGroupResponse, Status> {
    let change = Change::ResetGroup(command::ResetGroup {
        topic: request.topic,
        group: request.group,
        start: request.start,
    });
    state.change(&request.space, change, request.options).await?;
    Ok(ResetGroupResponse {})
}

pub(super) fn list(state: &State, request: &ListGroupsRequest) -> Result<ListGroupsResponse, Status> {
    check_space(&request.space)?;
    let groups = state.topic(&request.topic)?.groups().map_err(|error| failed(&error))?;
    let described = groups.into_iter().map(|group| GroupDescription {
        group: group.name,
        group_options: group.options.as_ref().map(to_group_options),
        paused: group.is_paused,
        acknowledged: group.acknowledged,
        next_offset: group.next,
        pending: group.pending,
        lag: group.lag,
        skipped: group.skipped,
    });
    Ok(ListGroupsResponse {
        groups: described.collect(),
    })
}

fn existing(state: &State, topic: &str, group: &str) -> Result<Group, Status> {
    let group = state.topic(topic)?.existing_group(group);
    group.map_err(|error| failed(&error))
}

pub(super) fn pending(state: &State, request: &ListPendingRequest) -> Result<ListPendingResponse, Status> {
    check_space(&request.space)?;
    let limit = match request.limit {
        0 => PENDING,
        limit => limit.min(PENDING_MAX),
    };
    let group = existing(state, &request.topic, &request.group)?;
    let pending = group.pending().map_err(|error| failed(&error))?;
    let messages = pending.into_iter().take(limit as usize).map(|pending| PendingMessage {
        offset: pending.offset,
        tries: pending.tries,
        until_ms: pending.until.map(millis),
        member: pending.member.unwrap_or_default(),
        error: pending.error.unwrap_or_default(),
    });
    Ok(ListPendingResponse {
        messages: messages.collect(),
    })
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Brings dead letters back, some with each command. Each command is a commit of its own, and its dead letters do not come
/// twice: so a call that is repeated goes on where the first one ended.
pub(super) async fn redrive(state: &State, request: RedriveRequest) -> Result<RedriveResponse, Status> {
    check_space(&request.space)?;
    let options = request.options.unwrap_or_default();
    if !options.idempotency_key.is_empty() {
        return Err(invalid(
            "redriving brings each dead letter back once; leave the idempotency key empty",
        ));
    }
    let limit = match request.limit {
        0 => u64::MAX,
        limit => limit,
    };
    let mut total = RedriveResponse::default();
    loop {
        let left = limit - (total.delivered + total.gone).min(limit);
        if left == 0 {
            return Ok(total);
        }
        let change = Change::Redrive(command::Redrive {
            topic: request.topic.clone(),
            group: request.group.clone(),
            messages: left.min(REDRIVEN),
        });
        match state.write(change, Some(options.clone())).await? {
            Led::Redriven(Redriven { all: true, .. }) => return Ok(total),
            Led::Redriven(some) => {
                total.delivered += some.delivered;
                total.gone += some.gone;
            }
            other => return Err(unexpected(&other)),
        }
    }
}

pub(super) async fn fetch(state: &State, request: FetchRequest) -> Result<FetchResponse, Status> {
    check_space(&request.space)?;
    let most = match request.messages {
        0 => FETCHED,
        messages => messages.min(FETCHED_MAX),
    };
    let name = (&request.topic[..], &request.group[..]);
    let holder = Holder {
        session: request.session,
        stream: 0,
    };
    let mut member = RemoteMember::new(state, name, request.member, holder)?;
    let wait = Duration::from_millis(request.wait_ms).min(WAIT_MAX);
    let mut ends = state.ends.clone();
    let received = tokio::select! {
        received = member.receive(most, Some(wait)) => received?,
        _ = ends.wait_for(|ends| *ends) => return Err(crate::error::stopping()),
    };
    Ok(received.map_or_else(FetchResponse::default, |received| FetchResponse {
        lease: received.lease,
        deadline_ms: received.deadline_ms,
        messages: received.messages,
    }))
}

pub(super) async fn settle(state: &State, request: SettleRequest) -> Result<SettleResponse, Status> {
    check_space(&request.space)?;
    let options = request.options.unwrap_or_default();
    let level = Level::of(options.acknowledge, Level::Written)?;
    settle_all(state, request.settlements, options, level).await?;
    Ok(SettleResponse {})
}

pub(super) async fn extend(state: &State, request: ExtendRequest) -> Result<ExtendResponse, Status> {
    check_space(&request.space)?;
    let extend = Extend {
        topic: request.topic,
        group: request.group,
        lease: request.lease,
        by_ms: request.by_ms,
    };
    let deadline_ms = extend_lease(state, extend).await?;
    Ok(ExtendResponse { deadline_ms })
}
