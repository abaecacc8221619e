//! Entries of all kinds of commands, some of them wrong, made from a seed.

use duramen::{Durability, Kind};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::tree_command::Change as InTree;
use duramen_proto::command::*;
use duramen_proto::etcd::server as etcd;
use duramen_proto::v1::condition::Test;
use duramen_proto::v1::node_test::Test as NodeIs;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::settlement::Verdict;
use duramen_proto::v1::tree_operation::Operation as OnNodes;
use duramen_proto::v1::tree_rule::Rule;
use duramen_proto::v1::{
    self, AddOperation, CommitRequest, Condition, DeleteOperation, DeleteRangeOperation, Header, KeyRange, Operation,
    PublishOperation, PutOperation,
};
use duramen_server::{Applier, ENTRY_VERSION, SESSION_BYTES};
use fastrand::Rng;

const ENTRIES: usize = 1_500;

/// The map in which each entry counts itself, so that a store knows how many it has applied.
pub const PROGRESS: &str = "progress";

/// Applies entries of all kinds of commands, some of them wrong, to a store. Returns them with their outcomes.
pub fn apply_random_entries(seed: u64, applier: &mut Applier) -> (Vec<Entry>, Vec<Vec<Outcome>>) {
    let mut rng = Rng::with_seed(seed);
    let mut time_us = 1_700_000_000_000_000;
    let mut clock_us = time_us;
    let (mut entries, mut outcomes) = (Vec::new(), Vec::new());
    let mut leases = Vec::new();
    let beginning = beginning(&mut rng);
    while entries.len() < ENTRIES {
        let is_random = entries.len() >= beginning.len() && !entries.len().is_multiple_of(25);
        let changes = match beginning.get(entries.len()) {
            Some(changes) => changes.clone(),
            None if !is_random => created_again(&mut rng),
            None => {
                // Time may run back: a leader may have another clock than the one before.
                time_us += rng.u64(0..50_000_000);
                time_us -= rng.u64(0..10_000_000);
                clock_us += rng.u64(0..8_000_000);
                (0..rng.usize(1..8)).map(|_| change(&mut rng, &leases)).collect()
            }
        };
        let mut made = entry(time_us, changes);
        made.clock_us = clock_us;
        for command in &mut made.commands {
            if is_random && rng.bool() {
                command.idempotency_key = vec![rng.u8(0..40)].into();
            }
        }
        if let Some(last) = made.commands.iter().position(Applier::ends_entry) {
            made.commands.truncate(last + 1);
        }
        let count = Operated::Add(AddOperation {
            map: PROGRESS.into(),
            key: "entries".into(),
            delta: 1,
        });
        // The first entry creates the map of the count.
        let place = usize::from(entries.is_empty());
        made.commands
            .insert(place, command(commit(vec![], vec![count], vec![])));
        let applied = match applier.apply(&made, Durability::Written) {
            Ok(applied) => applied.outcomes,
            // A command was refused after it had written something, and took no savepoint: nothing of the entry took effect.
            Err(error) if error.kind() == Kind::FixTheCall => continue,
            Err(error) => panic!("{error}; seed {seed}"),
        };
        for (command, outcome) in made.commands.iter().zip(&applied) {
            if let (Some(Change::Lease(asked)), Some(Led::Leased(leased))) = (&command.change, &outcome.outcome)
                && !leased.lease.is_empty()
            {
                leases.push((asked.clone(), leased.clone()));
            }
        }
        entries.push(made);
        outcomes.push(applied);
    }
    (entries, outcomes)
}

/// The changes of the first entries: they create what the others work on.
fn beginning(rng: &mut Rng) -> Vec<Vec<Change>> {
    let map = |map: String| {
        Change::CreateMap(CreateMap {
            map,
            ..Default::default()
        })
    };
    let mut entries = vec![
        vec![map(PROGRESS.into())],
        (0..4).map(|n| map(format!("map{n}"))).collect(),
        (4..7).map(|n| watched(rng, format!("map{n}"))).collect(),
        (0..3).map(|number| open_session(number, 1)).collect(),
        vec![of_tree(0, InTree::Create(true))],
        vec![of_tree(1, InTree::Create(true))],
    ];
    entries.extend((0..4).map(|n| vec![create_topic(rng, n)]));
    entries.extend((0..8).map(|n| vec![create_group(rng, n % 4, n / 4)]));
    entries
}

/// What other entries have deleted or paused comes back soon, so that each seed makes many changes of every kind.
fn created_again(rng: &mut Rng) -> Vec<Change> {
    let mut changes: Vec<_> = (0..2).map(|n| of_tree(n, InTree::Create(true))).collect();
    changes.extend((0..4).map(|n| create_topic(rng, n)));
    for n in 0..8 {
        changes.push(create_group(rng, n % 4, n / 4));
        changes.push(Change::PauseGroup(PauseGroup {
            topic: format!("topic{}", n % 4),
            group: format!("group{}", n / 4),
            paused: false,
        }));
    }
    changes
}

pub fn create_topic(rng: &mut Rng, number: u8) -> Change {
    Change::CreateTopic(CreateTopic {
        topic: format!("topic{number}"),
        options: Some(v1::TopicOptions {
            latest_per_key: rng.bool(),
            message_expiry: rng.bool(),
            ..Default::default()
        }),
        if_missing: true,
    })
}

fn create_group(rng: &mut Rng, topic: u8, number: u8) -> Change {
    Change::CreateGroup(CreateGroup {
        topic: format!("topic{topic}"),
        group: format!("group{number}"),
        start: Some(v1::Position {
            at: Some(v1::position::At::Earliest(true)),
        }),
        options: Some(v1::GroupOptions {
            lease_ms: rng.u64(1_000..30_000),
            tries: Some(rng.u32(0..4)),
            in_flight: if rng.bool() { rng.u32(1..20) } else { 20_000 },
            back_off_ms: vec![rng.u64(0..5_000)],
            order_by_key: rng.bool(),
            filter: (rng.u8(0..4) == 0).then(|| v1::Filter {
                key: "1*".into(),
                headers: Vec::new(),
            }),
            ..Default::default()
        }),
        if_missing: rng.bool(),
    })
}

fn open_session(number: u8, stream: u64) -> Change {
    Change::OpenSession(duramen_proto::command::OpenSession {
        session: vec![number; SESSION_BYTES].into(),
        timeout_ms: 1_000,
        principal: if number == 0 { "ada" } else { "" }.into(),
        stream,
    })
}

fn session(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(0..5) {
        0 => Vec::new(),
        _ => vec![rng.u8(0..4); SESSION_BYTES],
    }
}

/// Changes of groups and of what their members hold.
fn of_group(rng: &mut Rng, leases: &[(Lease, Leased)]) -> Change {
    let (topic, group) = (topic(rng), format!("group{}", rng.u8(0..2)));
    match rng.u8(0..21) {
        20 => token(rng),
        0 => {
            let number = rng.u8(0..8);
            create_group(rng, number % 4, number / 4)
        }
        1 if rng.u8(0..4) == 0 => Change::DeleteGroup(DeleteGroup { topic, group }),
        2 if rng.u8(0..4) == 0 => Change::ResetGroup(ResetGroup {
            topic,
            group,
            start: Some(v1::Position {
                at: Some(v1::position::At::Earliest(true)),
            }),
        }),
        3 => Change::PauseGroup(PauseGroup {
            topic,
            group,
            paused: rng.u8(0..16) == 0,
        }),
        4 => Change::Redrive(Redrive {
            topic,
            group,
            messages: rng.u64(0..5),
        }),
        5 => Change::EndSession(EndSession {
            session: session(rng).into(),
            is_orderly: rng.bool(),
        }),
        6 => open_session(rng.u8(0..4), rng.u64(1..3)),
        7 if !leases.is_empty() => {
            let (asked, leased) = recent(rng, leases);
            Change::Extend(Extend {
                topic: asked.topic.clone(),
                group: asked.group.clone(),
                lease: leased.lease.clone(),
                by_ms: rng.u64(0..60_000),
            })
        }
        8..=12 if !leases.is_empty() => commit(vec![], vec![settle(rng, leases)], vec![]),
        _ => Change::Lease(Lease {
            topic,
            group,
            member: "member".into(),
            token: rng.u64(1..),
            messages: rng.u32(0..12),
            prefers_new: rng.bool(),
            session: session(rng).into(),
            stream: rng.u64(0..3),
        }),
    }
}

fn token(rng: &mut Rng) -> Change {
    let id = vec![rng.u8(0..3); 8];
    if rng.bool() {
        return Change::RevokeToken(RevokeToken { id: id.into() });
    }
    Change::PutToken(PutToken {
        id: id.into(),
        token: Some(Token {
            principal: format!("principal{}", rng.u8(0..2)),
            permissions: vec![if rng.bool() { "read:*" } else { "wrong" }.into()],
            secret_sha256: if rng.bool() {
                vec![7; 32].into()
            } else {
                Vec::new().into()
            },
            expires_us: 0,
            calls: 0,
            bytes_per_second: 0,
        }),
    })
}

/// A lease that was made not long ago.
fn recent<'a>(rng: &mut Rng, leases: &'a [(Lease, Leased)]) -> &'a (Lease, Leased) {
    let low = leases.len().saturating_sub(12);
    &leases[rng.usize(low..leases.len())]
}

fn settle(rng: &mut Rng, leases: &[(Lease, Leased)]) -> Operated {
    let (asked, leased) = recent(rng, leases);
    let some = |rng: &mut Rng| leased.offsets.iter().copied().filter(|_| rng.bool()).collect();
    Operated::Settle(v1::Settlement {
        topic: asked.topic.clone(),
        group: asked.group.clone(),
        lease: leased.lease.clone(),
        offsets: if rng.bool() { some(rng) } else { Vec::new() },
        session: asked.session.clone(),
        verdict: match rng.u8(0..5) {
            0 => Some(Verdict::Release(true)),
            1 => Some(Verdict::Retry(v1::Retry {
                delay_ms: rng.bool().then(|| rng.u64(0..10_000)),
                reason: "not now".into(),
            })),
            2 => Some(Verdict::GiveUp(v1::GiveUp { reason: "never".into() })),
            _ => None,
        },
    })
}

pub fn entry(time_us: u64, changes: Vec<Change>) -> Entry {
    Entry {
        version: ENTRY_VERSION,
        time_us,
        clock_us: time_us,
        commands: changes.into_iter().map(command).collect(),
    }
}

fn command(change: Change) -> Command {
    Command {
        idempotency_key: Vec::new().into(),
        change: Some(change),
    }
}

pub fn commit(conditions: Vec<Condition>, then: Vec<Operated>, otherwise: Vec<Operated>) -> Change {
    let operations = |changes: Vec<Operated>| {
        let made = changes.into_iter().map(|change| Operation { change: Some(change) });
        made.collect::<Vec<_>>()
    };
    Change::Commit(CommitRequest {
        conditions,
        then: operations(then),
        otherwise: operations(otherwise),
        ..Default::default()
    })
}

fn map(rng: &mut Rng) -> String {
    format!("map{}", rng.u8(0..7))
}

fn limits(rng: &mut Rng) -> Option<v1::KeepChanges> {
    Some(v1::KeepChanges {
        age_ms: if rng.bool() { rng.u64(0..600_000) } else { 0 },
        bytes: if rng.bool() { rng.u64(0..4_000) } else { 0 },
    })
}

pub fn watched(rng: &mut Rng, map: String) -> Change {
    let keep_changes = limits(rng);
    Change::CreateMap(CreateMap { map, keep_changes })
}

fn topic(rng: &mut Rng) -> String {
    format!("topic{}", rng.u8(0..4))
}

fn catalog(rng: &mut Rng) -> Change {
    match rng.u8(0..10) {
        2..5 => {
            let map = map(rng);
            watched(rng, map)
        }
        5 => Change::ConfigureMap(ConfigureMap {
            map: map(rng),
            keep_changes: limits(rng),
        }),
        0 => Change::DropMap(DropMap { map: map(rng) }),
        1 => Change::RenameMap(RenameMap {
            map: map(rng),
            new_name: map(rng),
        }),
        _ => Change::CreateMap(CreateMap {
            map: map(rng),
            ..Default::default()
        }),
    }
}

fn of_tree(number: u8, change: InTree) -> Change {
    Change::Tree(TreeCommand {
        tree: format!("tree{number}"),
        change: Some(change),
    })
}

fn path(rng: &mut Rng) -> String {
    match rng.u8(0..3) {
        0 => format!("{}", rng.u8(0..4)),
        _ => format!("{}/{}", rng.u8(0..4), rng.u8(0..6)),
    }
}

fn pattern(rng: &mut Rng) -> String {
    rng.choice(["*/1", "2/**", "{1|3}/*", "*", "wrong{"]).unwrap().into()
}

/// A change of what belongs to a tree beside its nodes.
fn beside_nodes(rng: &mut Rng) -> Change {
    let change = match rng.u8(0..16) {
        0 if rng.u8(0..8) == 0 => InTree::Delete(true),
        0 | 1 => InTree::Create(true),
        2 => InTree::Compact(rng.u64(0..150)),
        3 => InTree::CompactWithoutRoom(rng.u64(0..80)),
        4 => InTree::Purge(path(rng).into()),
        5..8 => InTree::Tend(true),
        8 | 9 => InTree::GrantLease(GrantTreeLease {
            lease: rng.u64(0..6),
            ttl_ms: rng.u64(0..20_000),
        }),
        10 => InTree::KeepLeaseAlive(rng.u64(0..6)),
        11 => InTree::RevokeLease(rng.u64(0..6)),
        12 => InTree::SetRule(rule(rng)),
        13 => InTree::RemoveTrigger("a".into()),
        14 => InTree::RemoveProjection("a".into()),
        _ => InTree::RemoveQuota(path(rng).into()),
    };
    of_tree(rng.u8(0..3), change)
}

fn rule(rng: &mut Rng) -> v1::TreeRule {
    let rule = match rng.u8(0..3) {
        0 => Rule::Trigger(v1::TreeTrigger {
            name: "a".into(),
            pattern: pattern(rng),
            without_puts: rng.bool(),
            without_deletes: rng.bool(),
            topic: topic(rng),
        }),
        1 => Rule::Projection(v1::TreeProjection {
            name: "a".into(),
            pattern: pattern(rng),
            map: format!("of_tree{}", rng.u8(0..2)),
        }),
        _ => Rule::Quota(v1::TreeQuota {
            path: path(rng).into(),
            max_nodes: rng.u64(0..8),
            max_bytes: rng.u64(0..2_000),
            ..Default::default()
        }),
    };
    v1::TreeRule { rule: Some(rule) }
}

fn node_test(rng: &mut Rng, depth: u8) -> v1::NodeTest {
    let number = |rng: &mut Rng| v1::NumberTest {
        test: Some(v1::number_test::Test::Less(rng.u64(0..200))),
    };
    let test = match rng.u8(0..if depth > 0 { 8 } else { 6 }) {
        0 | 1 => NodeIs::Exists(rng.bool()),
        2 => NodeIs::Version(number(rng)),
        3 => NodeIs::Revision(number(rng)),
        4 => NodeIs::Children(number(rng)),
        5 => NodeIs::PayloadLess(vec![rng.u8(..)].into()),
        6 => NodeIs::Not(Box::new(node_test(rng, depth - 1))),
        _ => NodeIs::Any(v1::NodeTests {
            tests: (0..rng.usize(0..3)).map(|_| node_test(rng, depth - 1)).collect(),
        }),
    };
    v1::NodeTest { test: Some(test) }
}

fn on_nodes(rng: &mut Rng) -> Operated {
    let operation = match rng.u8(0..16) {
        0..9 => OnNodes::Put(v1::PutNodeOperation {
            path: path(rng).into(),
            payload: vec![rng.u8(..); rng.usize(0..100)].into(),
            mode: rng.i32(0..4) & !1 | i32::from(rng.u8(0..6) == 0),
            lease: (rng.u8(0..4) == 0).then(|| v1::put_node_operation::Lease::Attach(rng.u64(1..6))),
            expected: None,
            keep_while: (rng.u8(0..8) == 0).then(|| v1::KeepWhile {
                conditions: vec![v1::PathCondition {
                    path: path(rng).into(),
                    test: Some(node_test(rng, 2)),
                }],
            }),
        }),
        9 => OnNodes::Get(v1::GetNodeOperation { path: path(rng).into() }),
        10 | 11 => OnNodes::Delete(v1::DeleteNodeOperation { path: path(rng).into() }),
        12 => OnNodes::DeleteSubtree(v1::DeleteNodeOperation { path: path(rng).into() }),
        13 => OnNodes::PutMatching(v1::PutMatchingOperation {
            pattern: pattern(rng),
            payload: vec![rng.u8(..); 3].into(),
        }),
        14 => OnNodes::DeleteMatching(v1::DeleteMatchingOperation { pattern: pattern(rng) }),
        _ => OnNodes::DeleteRange(KeyRange {
            start: path(rng).into(),
            end: Some(path(rng).into()),
        }),
    };
    Operated::Tree(v1::TreeOperation {
        tree: format!("tree{}", rng.u8(0..2)),
        operation: Some(operation),
    })
}

fn node_conditions(rng: &mut Rng) -> Vec<v1::NodeCondition> {
    let condition = |rng: &mut Rng| v1::NodeCondition {
        tree: format!("tree{}", rng.u8(0..2)),
        path: path(rng).into(),
        test: Some(node_test(rng, 3)),
    };
    (0..rng.usize(0..2)).map(|_| condition(rng)).collect()
}

/// A transaction of a client of etcd. Some of them are refused, also late: a node may end with another one.
fn of_etcd(rng: &mut Rng) -> Change {
    let request = etcd::TxnRequest {
        compare: (0..rng.usize(0..2))
            .map(|_| etcd::Compare {
                key: path(rng).into(),
                target: 1,
                target_union: Some(etcd::compare::TargetUnion::CreateRevision(rng.i64(0..3))),
                ..Default::default()
            })
            .collect(),
        success: (0..rng.usize(1..4)).map(|_| etcd_operation(rng)).collect(),
        failure: (0..rng.usize(0..3)).map(|_| etcd_operation(rng)).collect(),
    };
    Change::Etcd(EtcdTransaction {
        tree: format!("tree{}", rng.u8(0..3)),
        request: Some(request),
    })
}

fn etcd_operation(rng: &mut Rng) -> etcd::RequestOp {
    use etcd::request_op::Request;
    let request = match rng.u8(0..8) {
        0 => Request::RequestRange(etcd::RangeRequest {
            key: path(rng).into(),
            range_end: vec![0].into(),
            revision: rng.i64(0..40),
            ..Default::default()
        }),
        1 => Request::RequestDeleteRange(etcd::DeleteRangeRequest {
            key: path(rng).into(),
            range_end: path(rng).into(),
            prev_kv: true,
        }),
        2 => Request::RequestTxn(etcd::TxnRequest {
            success: vec![etcd::RequestOp::default(); rng.usize(0..2)],
            ..Default::default()
        }),
        _ => Request::RequestPut(etcd::PutRequest {
            key: path(rng).into(),
            value: vec![rng.u8(..); rng.usize(0..50)].into(),
            lease: if rng.u8(0..4) == 0 { rng.i64(1..5) } else { 0 },
            prev_kv: rng.bool(),
            ignore_lease: rng.u8(0..8) == 0,
            ..Default::default()
        }),
    };
    etcd::RequestOp { request: Some(request) }
}

fn change(rng: &mut Rng, leases: &[(Lease, Leased)]) -> Change {
    match rng.u8(0..25) {
        22.. => of_etcd(rng),
        16..18 => beside_nodes(rng),
        18.. => {
            let then: Vec<_> = (0..rng.usize(1..4)).map(|_| on_nodes(rng)).collect();
            let otherwise = (0..rng.usize(0..2)).map(|_| on_nodes(rng)).collect();
            match commit(vec![], then, otherwise) {
                Change::Commit(made) => Change::Commit(CommitRequest {
                    node_conditions: node_conditions(rng),
                    ..made
                }),
                other => other,
            }
        }
        0 => {
            let number = rng.u8(0..4);
            create_topic(rng, number)
        }
        10..16 => of_group(rng, leases),
        1 => Change::ConfigureTopic(ConfigureTopic {
            topic: topic(rng),
            options: Some(v1::TopicOptions {
                message_expiry: rng.bool(),
                ..Default::default()
            }),
        }),
        2 if rng.u8(0..16) == 0 => Change::DeleteTopic(DeleteTopic { topic: topic(rng) }),
        3 => catalog(rng),
        _ => {
            let condition = |rng: &mut Rng| Condition {
                map: map(rng),
                key: key(rng).into(),
                test: Some(Test::Exists(rng.bool())),
            };
            let conditions = (0..rng.usize(0..2)).map(|_| condition(rng)).collect();
            let mut then: Vec<_> = (0..rng.usize(1..5)).map(|_| operation(rng)).collect();
            if !leases.is_empty() && rng.u8(0..4) == 0 {
                then.push(settle(rng, leases));
            }
            let otherwise = (0..rng.usize(0..3)).map(|_| operation(rng)).collect();
            commit(conditions, then, otherwise)
        }
    }
}

fn key(rng: &mut Rng) -> String {
    format!("{:02}", rng.u8(0..60))
}

fn operation(rng: &mut Rng) -> Operated {
    match rng.u8(0..13) {
        12 => on_nodes(rng),
        0..5 => Operated::Put(PutOperation {
            map: map(rng),
            key: key(rng).into(),
            // Some do not fit into a log record, and some are counters for the additions.
            value: match rng.u8(0..12) {
                0 => vec![rng.u8(..); 40_000].into(),
                1 => rng.i64(..).to_be_bytes().to_vec().into(),
                _ => vec![rng.u8(..); rng.usize(0..200)].into(),
            },
        }),
        5 => Operated::Delete(DeleteOperation {
            map: map(rng),
            key: key(rng).into(),
        }),
        6 => Operated::DeleteRange(DeleteRangeOperation {
            map: map(rng),
            range: Some(KeyRange {
                start: key(rng).into(),
                end: rng.bool().then(|| key(rng).into()),
            }),
        }),
        7 | 8 => Operated::Add(AddOperation {
            map: map(rng),
            key: format!("n{}", rng.u8(0..5)).into(),
            delta: if rng.u8(0..10) == 0 {
                i64::MAX
            } else {
                rng.i64(-100..100)
            },
        }),
        _ => Operated::Publish(PublishOperation {
            topic: topic(rng),
            messages: (0..rng.usize(0..12).min(3)).map(|_| message(rng)).collect(),
        }),
    }
}

fn message(rng: &mut Rng) -> v1::Message {
    v1::Message {
        payload: vec![rng.u8(..); rng.usize(0..300)].into(),
        key: if rng.bool() { key(rng).into() } else { Vec::new().into() },
        headers: (0..rng.usize(0..2))
            .map(|_| Header {
                name: "h".into(),
                value: vec![rng.u8(..)].into(),
            })
            .collect(),
        expires_after_ms: if rng.u8(0..8) == 0 { 1_000 } else { 0 },
    }
}
