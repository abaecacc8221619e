//! What the door for etcd's clients promises beyond etcd's own tests: permissions, limits, compactions by itself, and waits that end
//! with their client. `cli/tests/etcd.rs` runs etcd's own tests, and `cli/tests/etcd_answers.rs` compares answers with etcd.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crate::common::*;
use duramen_proto::etcd::election::election_client::ElectionClient;
use duramen_proto::etcd::election::{CampaignRequest, LeaderRequest, ProclaimRequest, ResignRequest};
use duramen_proto::etcd::lock::lock_client::LockClient;
use duramen_proto::etcd::lock::{LockRequest, UnlockRequest};
use duramen_proto::etcd::server::alarm_request::AlarmAction;
use duramen_proto::etcd::server::auth_client::AuthClient;
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::lease_client::LeaseClient;
use duramen_proto::etcd::server::maintenance_client::MaintenanceClient;
use duramen_proto::etcd::server::request_op::Request as Operation;
use duramen_proto::etcd::server::watch_client::WatchClient;
use duramen_proto::etcd::server::watch_request::RequestUnion;
use duramen_proto::etcd::server::*;
use duramen_server::{Config, EtcdImport, EtcdRetention, NewToken, Running, create_token, start};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Code, Request};

fn config(directory: &Path) -> Config {
    let flags = [
        ("data_dir", directory.join("store").display().to_string()),
        ("listen", String::new()),
        ("etcd_listen", "127.0.0.1:0".to_string()),
        ("acknowledge", "written".to_string()),
        ("threads", "2".to_string()),
    ];
    Config::collect(&flags, None).unwrap()
}

async fn channel(server: &Running) -> Channel {
    let address = server.listening().etcd[0];
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}

fn pair(key: &str, value: &str) -> duramen_proto::etcd::server::PutRequest {
    duramen_proto::etcd::server::PutRequest {
        key: key.to_string().into(),
        value: value.to_string().into(),
        ..Default::default()
    }
}

fn one(key: &str) -> RangeRequest {
    RangeRequest {
        key: key.to_string().into(),
        ..Default::default()
    }
}

/// A stream of watches: what is sent there, and what comes back.
async fn watch(channel: &Channel) -> (mpsc::Sender<WatchRequest>, tonic::Streaming<WatchResponse>) {
    let (sender, receiver) = mpsc::channel(10);
    let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let responses = WatchClient::new(channel.clone()).watch(requests).await.unwrap();
    (sender, responses.into_inner())
}

fn create(request: WatchCreateRequest) -> WatchRequest {
    WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(request)),
    }
}

#[test]
fn a_principal_is_a_user_whose_password_is_its_token() {
    let directory = tempfile::tempdir().unwrap();
    let store = duramen::Store::open(directory.path().join("store")).unwrap();
    let token = |name: &str, permission: &str| {
        let new = NewToken {
            principal: name.into(),
            permissions: vec![permission.parse().unwrap()],
            is_for_certificates: false,
            valid_for: None,
            calls: 0,
            bytes_per_second: 0,
        };
        create_token(&store, &new).unwrap().text.unwrap()
    };
    let (reader, other) = (token("reader", "read:tree:etcd"), token("other", "read:tree:others"));
    store.close().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let (mut auth, mut kv) = (AuthClient::new(channel.clone()), KvClient::new(channel.clone()));
        assert!(auth.auth_status(AuthStatusRequest {}).await.unwrap().get_ref().enabled);
        let refused = kv.range(one("a")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        let user = |name: &str, password: &str| AuthenticateRequest {
            name: name.into(),
            password: password.into(),
        };
        for (name, password) in [("reader", "wrong"), ("other", &reader[..]), ("", &reader[..])] {
            let refused = auth.authenticate(user(name, password)).await.unwrap_err();
            assert_eq!(
                refused.message(),
                "etcdserver: authentication failed, invalid user ID or password"
            );
        }
        let given = auth
            .authenticate(user("reader", &reader))
            .await
            .unwrap()
            .into_inner()
            .token;
        let with = |token: &str, range| {
            let mut request = Request::new(range);
            request.metadata_mut().insert("token", token.parse().unwrap());
            request
        };
        kv.range(with(&given, one("a"))).await.unwrap();
        let refused = kv.range(with(&other, one("a"))).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert_eq!(refused.message(), "etcdserver: permission denied");
        // A caller that is not known is refused before its message is read.
        let refused = kv.put(pair("a", &"x".repeat(3_000_000))).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
        let mut put = Request::new(pair("a", "1"));
        put.metadata_mut().insert("token", given.parse().unwrap());
        assert_eq!(kv.put(put).await.unwrap_err().code(), Code::PermissionDenied);
    });
    server.stop().unwrap();
}

#[test]
fn what_is_too_large_is_refused_as_etcd_refuses_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let mut kv = KvClient::new(channel(&server).await);
        let text = |bytes: usize| "x".repeat(bytes);
        let refused = kv.put(pair("a", &text(1_600_000))).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: request is too large");
        let refused = kv.put(pair("a", &text(3_000_000))).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(
            refused.message(),
            "grpc: received message larger than max (3000008 vs. 2097152)"
        );
        let refused = kv.put(pair(&text(1_001), "")).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        kv.put(pair(&text(1_000), "")).await.unwrap();
        let put = |number: usize| RequestOp {
            request: Some(Operation::RequestPut(pair(&number.to_string(), ""))),
        };
        let transaction = |operations| TxnRequest {
            success: (0..operations).map(put).collect(),
            ..Default::default()
        };
        kv.txn(transaction(128)).await.unwrap();
        let refused = kv.txn(transaction(129)).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: too many operations in txn request");
        // Transactions in transactions end somewhere.
        let mut deep = transaction(1);
        for _ in 0..40 {
            deep = TxnRequest {
                success: vec![RequestOp {
                    request: Some(Operation::RequestTxn(deep)),
                }],
                ..Default::default()
            };
        }
        assert_eq!(kv.txn(deep).await.unwrap_err().code(), Code::InvalidArgument);
    });
    server.stop().unwrap();
}

#[test]
fn a_quota_stops_puts_until_its_alarm_is_disarmed() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.etcd.quota_bytes = 200_000;
    let server = start(&config).unwrap();
    client(async {
        let channel = channel(&server).await;
        let (mut kv, mut operator) = (KvClient::new(channel.clone()), MaintenanceClient::new(channel));
        let refused = loop {
            if let Err(refused) = kv.put(pair("a", &"x".repeat(10_000))).await {
                break refused;
            }
        };
        assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
        let ask = |action: AlarmAction| AlarmRequest {
            action: action as i32,
            ..Default::default()
        };
        let alarms = operator.alarm(ask(AlarmAction::Get)).await.unwrap().into_inner().alarms;
        assert_eq!(alarms.len(), 1);
        // Reading and deleting go on.
        let newest = kv.range(one("a")).await.unwrap().into_inner().header.unwrap().revision;
        let delete = DeleteRangeRequest {
            key: "a".into(),
            ..Default::default()
        };
        kv.delete_range(delete).await.unwrap();
        let compact = CompactionRequest {
            revision: newest + 1,
            physical: true,
        };
        kv.compact(compact).await.unwrap();
        operator.defragment(DefragmentRequest {}).await.unwrap();
        assert!(kv.put(pair("a", "1")).await.is_err());
        operator.alarm(ask(AlarmAction::Deactivate)).await.unwrap();
        kv.put(pair("a", "1")).await.unwrap();
    });
    server.stop().unwrap();
}

/// etcd accepts these too, each once.
#[test]
fn a_tree_that_was_not_compacted_can_be_compacted_to_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let mut kv = KvClient::new(channel(&server).await);
        for value in ["1", "2", "3"] {
            kv.put(pair("a", value)).await.unwrap();
        }
        let to = |revision| CompactionRequest {
            revision,
            physical: false,
        };
        for revision in [0, 1] {
            let header = kv.compact(to(revision)).await.unwrap().into_inner().header.unwrap();
            assert_eq!(header.revision, 4);
        }
        assert_eq!(kv.compact(to(-1)).await.unwrap_err().code(), Code::OutOfRange);
        assert_eq!(kv.compact(to(5)).await.unwrap_err().code(), Code::OutOfRange);
        let second = RangeRequest {
            revision: 2,
            ..one("a")
        };
        assert_eq!(kv.range(second.clone()).await.unwrap().into_inner().kvs[0].value, "1");
        kv.compact(to(3)).await.unwrap();
        for revision in [0, 1, 3] {
            assert_eq!(kv.compact(to(revision)).await.unwrap_err().code(), Code::OutOfRange);
        }
        assert_eq!(kv.range(second).await.unwrap_err().code(), Code::OutOfRange);
    });
    server.stop().unwrap();
}

#[test]
fn old_revisions_are_compacted_without_a_client() {
    for retention in [EtcdRetention::Time(Duration::from_millis(200)), EtcdRetention::All] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        config.etcd.retention = retention;
        let server = start(&config).unwrap();
        client(async {
            let mut kv = KvClient::new(channel(&server).await);
            for number in 0..10 {
                kv.put(pair("a", &number.to_string())).await.unwrap();
            }
            let old = RangeRequest {
                revision: 2,
                ..one("a")
            };
            match retention {
                EtcdRetention::All => drop(kv.range(old).await.unwrap()),
                _ => {
                    while kv.range(old.clone()).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    assert_eq!(kv.range(one("a")).await.unwrap().get_ref().count, 1);
                }
            }
        });
        server.stop().unwrap();
    }
}

#[test]
fn watches_come_in_fragments_begin_later_and_tell_how_far_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    // The second revision, with the values before, is more than a message takes.
    config.etcd.request_bytes_max = 600_000;
    config.etcd.progress_every = Duration::from_millis(50);
    let server = start(&config).unwrap();
    client(async {
        let channel = channel(&server).await;
        let mut kv = KvClient::new(channel.clone());
        let put = |number: usize| RequestOp {
            request: Some(Operation::RequestPut(pair(&format!("k{number}"), &"x".repeat(5_800)))),
        };
        let transaction = TxnRequest {
            success: (0..100).map(put).collect(),
            ..Default::default()
        };
        // Revisions 2 and 3 have 100 changes, and a deletion of all of them is revision 4.
        kv.txn(transaction.clone()).await.unwrap();
        kv.txn(transaction).await.unwrap();
        let all = DeleteRangeRequest {
            key: "k".into(),
            range_end: "l".into(),
            ..Default::default()
        };
        kv.delete_range(all).await.unwrap();
        let range = WatchCreateRequest {
            key: "k".into(),
            range_end: "l".into(),
            start_revision: 2,
            prev_kv: true,
            fragment: true,
            progress_notify: true,
            ..Default::default()
        };
        let (sender, mut responses) = watch(&channel).await;
        sender.send(create(range.clone())).await.unwrap();
        let (mut events, mut parts) = (0, 0);
        while events < 300 {
            let response = responses.message().await.unwrap().unwrap();
            events += response.events.len();
            parts += usize::from(!response.events.is_empty());
            let is_last = events % 100 == 0 && !response.fragment;
            assert!(response.created || response.fragment || is_last, "{events}");
        }
        assert!(parts > 3, "{parts}");
        // Without changes it learns how far it is, by its own id; a request for progress is for all watches.
        let response = responses.message().await.unwrap().unwrap();
        assert_eq!((response.watch_id, response.events.len()), (0, 0));
        let ask = WatchRequest {
            request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})),
        };
        sender.send(ask).await.unwrap();
        while responses.message().await.unwrap().unwrap().watch_id != -1 {}
        // A watch that begins later leaves out what comes before.
        let later = WatchCreateRequest {
            key: "late".into(),
            start_revision: 6,
            ..Default::default()
        };
        let (sender, mut responses) = watch(&channel).await;
        sender.send(create(later)).await.unwrap();
        assert!(responses.message().await.unwrap().unwrap().created);
        for number in 4..8 {
            kv.put(pair("late", &number.to_string())).await.unwrap();
        }
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let response = responses.message().await.unwrap().unwrap();
            seen.extend(response.events.into_iter().map(|event| event.kv.unwrap().mod_revision));
        }
        assert_eq!(seen, [6, 7]);
    });
    server.stop().unwrap();
}

/// The changes of this revision are too many for one look of the watch.
#[test]
fn a_revision_comes_in_one_response_or_in_fragments_that_belong_together() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let mut kv = KvClient::new(channel.clone());
        for number in 0..10 {
            kv.put(pair(&format!("k{number}"), &"x".repeat(1_000_000)))
                .await
                .unwrap();
        }
        let all = DeleteRangeRequest {
            key: "k".into(),
            range_end: "l".into(),
            ..Default::default()
        };
        kv.delete_range(all).await.unwrap();
        kv.put(pair("k", "after")).await.unwrap();
        for fragment in [false, true] {
            let range = WatchCreateRequest {
                key: "k".into(),
                range_end: "l".into(),
                start_revision: 12,
                prev_kv: true,
                fragment,
                ..Default::default()
            };
            let mut client = WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
            let requests = tokio_stream::iter([create(range)]).chain(tokio_stream::pending());
            let mut responses = client.watch(requests).await.unwrap().into_inner();
            // The events of each response, and whether more of them follow.
            let mut seen = Vec::new();
            while seen.iter().map(|(events, _)| events).sum::<usize>() < 11 {
                let response = responses.message().await.unwrap().unwrap();
                if !response.created {
                    seen.push((response.events.len(), response.fragment));
                }
            }
            match fragment {
                false => assert_eq!(seen[0], (10, false), "{seen:?}"),
                true => {
                    let mut whole = 0;
                    for (events, has_more) in &seen {
                        whole += events;
                        assert_eq!(*has_more, whole < 10, "{seen:?}");
                    }
                    assert!(seen.len() > 4, "{seen:?}");
                }
            }
        }
    });
    server.stop().unwrap();
}

#[test]
fn a_lock_goes_to_the_next_waiter_also_when_one_has_gone() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let mut leases = LeaseClient::new(channel.clone());
        let mut granted = Vec::new();
        for id in 1..=3 {
            let grant = LeaseGrantRequest { ttl: 60, id };
            granted.push(leases.lease_grant(grant).await.unwrap().into_inner().id);
        }
        let lock = |lease: i64| {
            let mut locks = LockClient::new(channel.clone());
            let name = "name".into();
            async move {
                locks
                    .lock(LockRequest { name, lease })
                    .await
                    .map(|locked| locked.into_inner().key)
            }
        };
        let first = lock(granted[0]).await.unwrap();
        assert_eq!(&first[..], b"name/1");
        // The second waiter goes away while it waits; its place is given up.
        let second = tokio::time::timeout(Duration::from_millis(300), lock(granted[1])).await;
        assert!(second.is_err());
        let third = tokio::spawn(lock(granted[2]));
        let mut kv = KvClient::new(channel.clone());
        while kv.range(one("name/2")).await.unwrap().get_ref().count > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!third.is_finished());
        LockClient::new(channel.clone())
            .unlock(UnlockRequest { key: first })
            .await
            .unwrap();
        assert_eq!(&third.await.unwrap().unwrap()[..], b"name/3");
        let refused = LockClient::new(channel.clone())
            .unlock(UnlockRequest::default())
            .await
            .unwrap_err();
        assert_eq!(refused.message(), "etcdserver: key is not provided");
        let gone = lock(77).await.unwrap_err();
        assert_eq!(gone.message(), "etcdserver: requested lease not found");
    });
    server.stop().unwrap();
}

#[test]
fn an_election_has_one_leader_at_a_time_and_tells_of_each() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let campaign = |value: &str| {
            let mut election = ElectionClient::new(channel.clone());
            let request = CampaignRequest {
                name: "leader".into(),
                lease: 0,
                value: value.to_string().into(),
            };
            async move {
                election
                    .campaign(request)
                    .await
                    .map(|elected| elected.into_inner().leader.unwrap())
            }
        };
        let mut election = ElectionClient::new(channel.clone());
        let asked = LeaderRequest { name: "leader".into() };
        let refused = election.leader(asked.clone()).await.unwrap_err();
        assert_eq!(refused.message(), "election: no leader");
        let mut observed = election.observe(asked.clone()).await.unwrap().into_inner();
        let first = campaign("first").await.unwrap();
        let second = tokio::spawn(campaign("second"));
        let told = observed.message().await.unwrap().unwrap();
        assert_eq!(&told.kv.unwrap().value[..], b"first");
        let proclaim = |leader, value: &str| ProclaimRequest {
            leader: Some(leader),
            value: value.to_string().into(),
        };
        election.proclaim(proclaim(first.clone(), "again")).await.unwrap();
        let told = observed.message().await.unwrap().unwrap();
        assert_eq!(&told.kv.unwrap().value[..], b"again");
        let resign = ResignRequest {
            leader: Some(first.clone()),
        };
        election.resign(resign).await.unwrap();
        let second = second.await.unwrap().unwrap();
        let told = observed.message().await.unwrap().unwrap();
        assert_eq!(&told.kv.unwrap().value[..], b"second");
        let refused = election.proclaim(proclaim(first, "late")).await.unwrap_err();
        assert_eq!(refused.message(), "election: not leader");
        election.proclaim(proclaim(second, "still")).await.unwrap();
    });
    server.stop().unwrap();
}

/// A stream that gives one thing at a time, so that each is sent in a frame of its own, as Go's clients do it.
fn one_by_one<T: Send + 'static>(all: Vec<T>) -> impl tokio_stream::Stream<Item = T> + Send + 'static {
    tokio_stream::iter(all).then(|one| async {
        tokio::task::yield_now().await;
        one
    })
}

#[test]
fn a_client_keeps_all_its_leases_alive_at_once_and_begins_all_its_watches_at_once() {
    const MANY: i64 = 12_000;
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let mut leases = LeaseClient::new(channel.clone());
        let all = (1..=MANY).map(|id| LeaseKeepAliveRequest { id }).collect();
        let mut kept = leases.lease_keep_alive(one_by_one(all)).await.unwrap().into_inner();
        for id in 1..=MANY {
            assert_eq!(kept.message().await.unwrap().unwrap().id, id);
        }
        let all = (1..=MANY).map(|number| {
            create(WatchCreateRequest {
                key: format!("{number}").into(),
                ..WatchCreateRequest::default()
            })
        });
        // Its side of the stream stays open.
        let requests = one_by_one(all.collect()).chain(tokio_stream::pending());
        let mut watches = WatchClient::new(channel).watch(requests).await.unwrap().into_inner();
        for id in 0..MANY {
            let response = watches.message().await.unwrap().unwrap();
            assert!(response.created && response.watch_id == id, "{response:?}");
        }
    });
    server.stop().unwrap();
}

#[test]
fn many_watches_of_one_stream_see_a_large_transaction() {
    const MANY: usize = 2_000;
    const PUTS: usize = 100;
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let (requests, mut responses) = watch(&channel).await;
        for _ in 0..MANY {
            let request = WatchCreateRequest {
                key: "a".into(),
                range_end: "b".into(),
                ..WatchCreateRequest::default()
            };
            requests.send(create(request)).await.unwrap();
            assert!(responses.message().await.unwrap().unwrap().created);
        }
        let puts = (0..PUTS).map(|number| RequestOp {
            request: Some(Operation::RequestPut(pair(&format!("a{number}"), "1"))),
        });
        let transaction = TxnRequest {
            success: puts.collect(),
            ..TxnRequest::default()
        };
        KvClient::new(channel.clone()).txn(transaction).await.unwrap();
        for _ in 0..MANY {
            let response = responses.message().await.unwrap().unwrap();
            assert_eq!(response.events.len(), PUTS);
        }
    });
    server.stop().unwrap();
}

#[test]
fn an_observer_hears_all_that_a_leader_proclaims_in_its_order() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let mut election = ElectionClient::new(channel.clone());
        let campaign = |value: &str| CampaignRequest {
            name: "leader".into(),
            lease: 0,
            value: value.to_string().into(),
        };
        let leader = election.campaign(campaign("0")).await.unwrap().into_inner().leader;
        let observe = LeaderRequest { name: "leader".into() };
        let mut observed = election.observe(observe).await.unwrap().into_inner();
        let mut next = async || observed.message().await.unwrap().unwrap().kv.unwrap().value;
        assert_eq!(next().await, "0");
        for number in 1..=100 {
            let proclaim = ProclaimRequest {
                leader: leader.clone(),
                value: number.to_string().into(),
            };
            election.proclaim(proclaim).await.unwrap();
        }
        election.resign(ResignRequest { leader }).await.unwrap();
        election.campaign(campaign("next")).await.unwrap();
        for number in 1..=100 {
            assert_eq!(next().await, number.to_string());
        }
        assert_eq!(next().await, "next");
    });
    server.stop().unwrap();
}

#[test]
fn a_progress_request_without_a_watch_that_has_begun_is_not_answered_later() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let mut kv = KvClient::new(channel.clone());
        let (sender, mut responses) = watch(&channel).await;
        let progress = || WatchRequest {
            request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})),
        };
        sender.send(progress()).await.unwrap();
        let later = WatchCreateRequest {
            key: "a".into(),
            start_revision: 3,
            ..WatchCreateRequest::default()
        };
        sender.send(create(later)).await.unwrap();
        assert!(responses.message().await.unwrap().unwrap().created);
        sender.send(progress()).await.unwrap();
        for value in ["before", "seen"] {
            kv.put(pair("a", value)).await.unwrap();
        }
        let response = responses.message().await.unwrap().unwrap();
        assert_eq!((response.watch_id, response.events.len()), (0, 1), "{response:?}");
        sender.send(progress()).await.unwrap();
        let response = responses.message().await.unwrap().unwrap();
        assert_eq!((response.watch_id, response.events.len()), (-1, 0), "{response:?}");
    });
    server.stop().unwrap();
}

#[test]
fn leases_have_their_whole_time_when_the_server_starts() {
    const TTL: i64 = 1_000;
    let directory = tempfile::tempdir().unwrap();
    let remaining = |server: &Running| {
        client(async {
            let request = LeaseTimeToLiveRequest { id: 7, keys: false };
            let mut leases = LeaseClient::new(channel(server).await);
            leases.lease_time_to_live(request).await.unwrap().into_inner().ttl
        })
    };
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let mut leases = LeaseClient::new(channel(&server).await);
        leases.lease_grant(LeaseGrantRequest { ttl: TTL, id: 7 }).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
    });
    let before = remaining(&server);
    assert!(before <= TTL - 3);
    server.stop().unwrap();
    let server = start(&config(directory.path())).unwrap();
    let after = remaining(&server);
    assert!(after > before, "{before} before the start, {after} after it");
    server.stop().unwrap();
}

/// A change may be committed at the moment at which a watch that begins with it is created.
#[test]
fn a_watch_of_the_next_revision_misses_nothing_that_is_committed_meanwhile() {
    const WATCHES: usize = 1_000;
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    let url = format!("http://{}", server.listening().etcd[0]);
    let newest = AtomicI64::new(1);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client(async {
                let mut kv = KvClient::connect(url.clone()).await.unwrap();
                while !ends.load(Ordering::Relaxed) {
                    let done = kv.put(pair("a", "1")).await.unwrap().into_inner();
                    let revision = done.header.unwrap().revision;
                    newest.store(revision, Ordering::Release);
                }
            });
        });
        client(async {
            let channel = channel(&server).await;
            let (requests, mut responses) = watch(&channel).await;
            for id in 1..=WATCHES as i64 {
                let next = newest.load(Ordering::Acquire) + 1;
                let request = WatchCreateRequest {
                    key: "a".into(),
                    watch_id: id,
                    start_revision: next,
                    ..WatchCreateRequest::default()
                };
                requests.send(create(request)).await.unwrap();
                let first = loop {
                    let response = responses.message().await.unwrap().unwrap();
                    if response.watch_id == id && !response.events.is_empty() {
                        break response.events[0].kv.as_ref().unwrap().mod_revision;
                    }
                };
                // The others have no part in what comes.
                let cancel = WatchRequest {
                    request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id })),
                };
                requests.send(cancel).await.unwrap();
                if first != next {
                    ends.store(true, Ordering::Relaxed);
                }
                assert_eq!(first, next, "watch {id}");
            }
            ends.store(true, Ordering::Relaxed);
        });
    });
    server.stop().unwrap();
}

#[test]
fn what_an_import_has_left_is_not_served_until_its_tree_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let store = duramen::Store::open(directory.path().join("store")).unwrap();
    let trees = duramen::tree::Trees::open(&store).unwrap();
    assert!(EtcdImport::begin(&store, &trees, "etcd").unwrap().is_some());
    let refused = start(&config(directory.path())).err().unwrap().to_string();
    assert!(refused.contains("an import has not finished"), "{refused}");
    assert!(trees.delete("etcd").unwrap());
    drop(trees);
    store.close().unwrap();
    // The second start finds the tree that the first one has made.
    for _ in 0..2 {
        start(&config(directory.path())).unwrap().stop().unwrap();
    }
}

/// The node of the lease matches a trigger whose topic is gone, so its deletion is refused.
#[test]
fn a_lease_that_cannot_end_holds_up_no_compaction() {
    use duramen::topic::{TopicOptions, Topics};
    use duramen::tree::{LeaseChange, Trees, TreesOptions, Trigger};
    let directory = tempfile::tempdir().unwrap();
    let tree = || {
        let store = duramen::Store::open(directory.path().join("store")).unwrap();
        let trees = Trees::open_with(&store, TreesOptions::new().background(false)).unwrap();
        (trees.ensure("etcd").unwrap(), store)
    };
    let (etcd, store) = tree();
    let topics = Topics::open(&store).unwrap();
    topics.create("news", TopicOptions::new()).unwrap();
    let trigger = Trigger {
        pattern: "leased".parse().unwrap(),
        kind: None,
        topic: "news".into(),
    };
    etcd.transact(|tree| {
        tree.set_trigger("news", &trigger)?;
        let lease = tree.grant_lease(1, Duration::from_secs(1))?;
        tree.put_with("leased", "", LeaseChange::Attach(lease.id))
    })
    .unwrap();
    topics.delete("news").unwrap();
    // More changes than one commit of a compaction forgets.
    for number in 0..500 {
        etcd.put("a", number.to_string()).unwrap();
    }
    drop((etcd, topics, store));
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let (mut kv, mut leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel));
        let asked = LeaseTimeToLiveRequest { id: 1, keys: false };
        while leases.lease_time_to_live(asked).await.unwrap().get_ref().ttl > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let revision = kv
            .range(one("a"))
            .await
            .unwrap()
            .get_ref()
            .header
            .as_ref()
            .unwrap()
            .revision;
        let request = CompactionRequest {
            revision,
            physical: true,
        };
        kv.compact(request).await.unwrap();
    });
    server.stop().unwrap();
    let (etcd, _store) = tree();
    assert!(etcd.exists("leased").unwrap());
    assert!(!etcd.transact(|tree| tree.remove_compacted()).unwrap(), "rows are left");
}

/// The deletion is one revision, and what is in it beside the keys of the watch comes last.
#[test]
fn fragments_follow_each_other_and_the_last_one_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(&config(directory.path())).unwrap();
    client(async {
        let channel = channel(&server).await;
        let mut kv = KvClient::new(channel.clone());
        let keys = ["a0", "a1", "a2", "a3", "a4", "a5", "b"];
        for key in keys {
            kv.put(pair(key, &"x".repeat(1_000_000))).await.unwrap();
        }
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let of = |from: &str, to: &str| {
            create(WatchCreateRequest {
                key: from.to_string().into(),
                range_end: to.to_string().into(),
                prev_kv: true,
                fragment: true,
                ..Default::default()
            })
        };
        let requests = tokio_stream::iter([of("a", "b"), of("b", "c")]).chain(tokio_stream::pending());
        let mut responses = client.watch(requests).await.unwrap().into_inner();
        for _ in 0..2 {
            assert!(responses.message().await.unwrap().unwrap().created);
        }
        let all = DeleteRangeRequest {
            key: "a".into(),
            range_end: "c".into(),
            ..Default::default()
        };
        kv.delete_range(all).await.unwrap();
        let (mut events, mut whole, mut pending) = ([0, 0], 0, None);
        while whole < 2 {
            let response = responses.message().await.unwrap().unwrap();
            let watch = response.watch_id;
            assert!(
                pending.is_none_or(|pending| pending == watch),
                "a response came between fragments"
            );
            events[watch as usize] += response.events.len();
            pending = response.fragment.then_some(watch);
            whole += usize::from(!response.fragment);
        }
        assert_eq!(events, [6, 1]);
    });
    server.stop().unwrap();
}
