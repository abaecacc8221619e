//! The server answers as etcd does: random requests go to both, and the answers have to be equal, errors included.
//!
//! etcd is built from the module in `etcd/go`; without Go the test is skipped. `DURAMEN_SEED=n` makes the requests of a seed again.

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::toolchains::{Go, run, unless_skipped};
use common::{BINARY, seed};
use duramen_proto::etcd::kv::Event;
use duramen_proto::etcd::server::compare::TargetUnion;
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::lease_client::LeaseClient;
use duramen_proto::etcd::server::request_op::Request as Operation;
use duramen_proto::etcd::server::response_op::Response as Done;
use duramen_proto::etcd::server::watch_client::WatchClient;
use duramen_proto::etcd::server::watch_request::RequestUnion;
use duramen_proto::etcd::server::*;
use fastrand::Rng;
use tonic::transport::{Channel, Endpoint};

const REQUESTS: usize = 2_000;
const WATCHES: usize = 60;

/// A server process. It is killed when it is dropped.
struct Member {
    process: Child,
    channel: Channel,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts etcd, or what takes its place.
async fn start(program: &str, first: &[&str], directory: &Path) -> Member {
    let (clients, peers) = (free_port(), free_port());
    let (clients, peers) = (
        format!("http://127.0.0.1:{clients}"),
        format!("http://127.0.0.1:{peers}"),
    );
    let endpoint = Endpoint::from_shared(clients.clone()).unwrap();
    let member = Member {
        process: Command::new(program)
            .args(first)
            .args(["--name=member", "--log-level=error"])
            .arg(format!("--data-dir={}", directory.display()))
            .arg(format!("--listen-client-urls={clients}"))
            .arg(format!("--advertise-client-urls={clients}"))
            .arg(format!("--listen-peer-urls={peers}"))
            .arg(format!("--initial-advertise-peer-urls={peers}"))
            .arg(format!("--initial-cluster=member={peers}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
        channel: endpoint.connect_lazy(),
    };
    let begun = Instant::now();
    while KvClient::new(member.channel.clone()).range(all()).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{program} does not answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    member
}

fn all() -> RangeRequest {
    RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        ..RangeRequest::default()
    }
}

/// A request of a client.
#[derive(Clone, Debug)]
enum Asked {
    Range(RangeRequest),
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    Grant(LeaseGrantRequest),
    Revoke(LeaseRevokeRequest),
    TimeToLive(LeaseTimeToLiveRequest),
    Leases,
}

/// Makes random requests. It follows the revision, so that revisions in requests are near it.
struct Maker {
    rng: Rng,
    revision: i64,
    /// Whether keys are for puts.
    puts: bool,
    /// The newest revision up to the first that a compaction was asked for: 0 or 1; -1: none.
    compacted: i64,
}

impl Maker {
    fn one_in(&mut self, of: u32) -> bool {
        self.rng.u32(0..of) == 0
    }

    fn key(&mut self) -> Vec<u8> {
        let keys: [&[u8]; 14] = [
            b"a",
            b"b",
            b"c",
            b"a/",
            b"a/b",
            b"a/c",
            b"a/b/c",
            b"b\0",
            b"b\0c",
            b"\xFF",
            b"\xFF\xFF",
            b"d",
            b"/",
            b"\0",
        ];
        // No tree has keys that are longer than 1,000 bytes, so they are missing everywhere.
        let long = [&b"a"[..], &[b'b'; 1_500]].concat();
        match self.rng.u8(0..120) {
            0 => Vec::new(),
            1 if !self.puts => long,
            2 if !self.puts => [&b"b"[..], &[0; 700]].concat(),
            _ => self.rng.choice(keys).unwrap().to_vec(),
        }
    }

    fn end(&mut self, key: &[u8]) -> Vec<u8> {
        match self.rng.u8(0..8) {
            0 => vec![0],
            1 => self.key(),
            2 | 3 => {
                let mut end = key.to_vec();
                if let Some(last) = end.last_mut().filter(|last| **last < 255) {
                    *last += 1;
                }
                end
            }
            _ => Vec::new(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.u8(0..5) {
            0 => Vec::new(),
            1 => vec![b'v'; self.rng.usize(0..100)],
            number => vec![number],
        }
    }

    fn lease(&mut self) -> i64 {
        match self.rng.u8(0..4) {
            0 => self.rng.i64(1..6),
            _ => 0,
        }
    }

    fn near(&mut self) -> i64 {
        match self.revision - self.rng.i64(-2..30) {
            // In a transaction, etcd takes it for the newest revision until the first compaction.
            -1 => -2,
            near => near,
        }
    }

    fn compaction(&mut self) -> CompactionRequest {
        let mut revision = self.near();
        // etcd refuses the second compaction to the first revision, or to 0; Duramen accepts it.
        if (0..=1).contains(&revision) {
            if revision <= self.compacted {
                revision = 2;
            } else {
                self.compacted = revision;
            }
        }
        CompactionRequest {
            revision,
            physical: self.rng.bool(),
        }
    }

    fn range(&mut self) -> RangeRequest {
        let key = self.key();
        let bound = |maker: &mut Maker| if maker.one_in(8) { maker.near().max(0) } else { 0 };
        RangeRequest {
            range_end: self.end(&key).into(),
            key: key.into(),
            limit: if self.rng.bool() { self.rng.i64(0..4) } else { 0 },
            revision: if self.one_in(3) { self.near() } else { 0 },
            sort_order: if self.one_in(3) { self.rng.i32(0..3) } else { 0 },
            // Equal values, versions and revisions have no order among them that etcd promises.
            sort_target: [0, 0, 2, 3][self.rng.usize(0..4)],
            serializable: self.rng.bool(),
            keys_only: self.one_in(4),
            count_only: self.one_in(6),
            min_mod_revision: bound(self),
            max_mod_revision: bound(self),
            min_create_revision: bound(self),
            max_create_revision: bound(self),
        }
    }

    fn put(&mut self) -> PutRequest {
        let ignores = self.one_in(8);
        self.puts = true;
        let key = self.key();
        self.puts = false;
        PutRequest {
            key: key.into(),
            value: if ignores && !self.one_in(6) {
                Vec::new()
            } else {
                self.value()
            }
            .into(),
            lease: self.lease(),
            prev_kv: self.rng.bool(),
            ignore_value: ignores,
            ignore_lease: self.one_in(10),
        }
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        let key = self.key();
        DeleteRangeRequest {
            range_end: if self.one_in(3) { self.end(&key) } else { Vec::new() }.into(),
            key: key.into(),
            prev_kv: self.rng.bool(),
        }
    }

    fn compare(&mut self) -> Compare {
        let key = self.key();
        let number = match self.rng.u8(0..3) {
            0 => 0,
            1 => self.near(),
            _ => self.rng.i64(0..4),
        };
        let (target, union) = match self.rng.u8(0..6) {
            0 => (0, TargetUnion::Version(number)),
            1 => (1, TargetUnion::CreateRevision(number)),
            2 => (2, TargetUnion::ModRevision(number)),
            3 => (4, TargetUnion::Lease(number)),
            _ => (3, TargetUnion::Value(self.value().into())),
        };
        Compare {
            result: self.rng.i32(0..4),
            target,
            range_end: if self.one_in(4) { self.end(&key) } else { Vec::new() }.into(),
            key: key.into(),
            target_union: (!self.one_in(20)).then_some(union),
        }
    }

    fn operations(&mut self, depth: usize) -> Vec<RequestOp> {
        let most = if self.one_in(100) { 140 } else { 4 };
        let count = self.rng.usize(0..most);
        let operation = |maker: &mut Maker| match maker.rng.u8(0..8) {
            0 | 1 => Operation::RequestRange(RangeRequest {
                // Answers without values have leases in etcd 3.6, and none in 3.7.
                keys_only: false,
                ..maker.range()
            }),
            2 | 3 => {
                let mut delete = maker.delete();
                // etcd overlooks that a range to the end of all keys meets a key that is put, and changes the key twice.
                if delete.range_end[..] == [0] {
                    delete.range_end.clear();
                }
                Operation::RequestDeleteRange(delete)
            }
            4 if depth > 0 => Operation::RequestTxn(maker.transaction(depth - 1)),
            _ => Operation::RequestPut(maker.put()),
        };
        (0..count)
            .map(|_| RequestOp {
                request: (!self.one_in(200)).then(|| operation(self)),
            })
            .collect()
    }

    fn transaction(&mut self, depth: usize) -> TxnRequest {
        TxnRequest {
            compare: (0..self.rng.usize(0..3)).map(|_| self.compare()).collect(),
            success: self.operations(depth),
            failure: self.operations(depth),
        }
    }

    fn request(&mut self) -> Asked {
        match self.rng.u8(0..40) {
            0..10 => Asked::Range(self.range()),
            10..20 => Asked::Put(self.put()),
            20..25 => Asked::Delete(self.delete()),
            25..34 => loop {
                let transaction = self.transaction(2);
                // etcd overlooks a deletion in a nested transaction of a key that an earlier nested one put; its watches see both.
                if !deletes_what_it_put(&transaction) {
                    break Asked::Txn(transaction);
                }
            },
            34 if self.one_in(4) => Asked::Compact(self.compaction()),
            34 | 35 => Asked::Grant(LeaseGrantRequest {
                ttl: [-1, 0, 1, 1_000, 9_000_000_000, 9_000_000_001][self.rng.usize(0..6)].max(1_000),
                id: self.rng.i64(1..6),
            }),
            36 => Asked::Grant(LeaseGrantRequest {
                ttl: 9_000_000_001,
                id: self.rng.i64(1..6),
            }),
            37 => Asked::Revoke(LeaseRevokeRequest { id: self.rng.i64(1..7) }),
            38 => Asked::TimeToLive(LeaseTimeToLiveRequest {
                id: self.rng.i64(1..7),
                keys: self.rng.bool(),
            }),
            _ => Asked::Leases,
        }
    }
}

/// Whether a key that a nested transaction puts may be deleted later by the same request.
fn deletes_what_it_put(request: &TxnRequest) -> bool {
    [&request.success, &request.failure].into_iter().any(|operations| {
        let (mut put, mut found) = (Vec::<&[u8]>::new(), false);
        for operation in operations {
            let Some(Operation::RequestTxn(inner)) = &operation.request else {
                continue;
            };
            let (mut puts, mut deletes) = (Vec::new(), Vec::new());
            collect_changes(inner, &mut puts, &mut deletes);
            found |= deletes_what_it_put(inner);
            found |= deletes
                .iter()
                .any(|delete| put.iter().any(|key| deletes_key(delete, key)));
            put.extend(puts);
        }
        found
    })
}

fn collect_changes<'a>(request: &'a TxnRequest, puts: &mut Vec<&'a [u8]>, deletes: &mut Vec<&'a DeleteRangeRequest>) {
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Operation::RequestPut(put)) => puts.push(&put.key),
            Some(Operation::RequestDeleteRange(delete)) => deletes.push(delete),
            Some(Operation::RequestTxn(inner)) => collect_changes(inner, puts, deletes),
            _ => {}
        }
    }
}

fn deletes_key(delete: &DeleteRangeRequest, key: &[u8]) -> bool {
    match (&delete.key[..], &delete.range_end[..]) {
        (low, []) => key == low,
        (low, [0]) => key >= low,
        (low, high) => (low..high).contains(&key),
    }
}

/// The revision of a header, which is what both servers must agree on.
fn revision(header: &Option<ResponseHeader>) -> i64 {
    header.as_ref().map_or(0, |header| header.revision)
}

/// A response without what no client compares: the ids of a member.
fn bare(mut response: TxnResponse) -> TxnResponse {
    response.header = response.header.map(|header| ResponseHeader {
        revision: header.revision,
        ..ResponseHeader::default()
    });
    for operation in &mut response.responses {
        match &mut operation.response {
            Some(Done::ResponseTxn(inner)) => {
                *inner = bare(std::mem::take(inner));
            }
            Some(Done::ResponsePut(put)) => put.header = bare_header(&put.header),
            Some(Done::ResponseRange(range)) => range.header = bare_header(&range.header),
            Some(Done::ResponseDeleteRange(delete)) => delete.header = bare_header(&delete.header),
            None => {}
        }
    }
    response
}

fn bare_header(header: &Option<ResponseHeader>) -> Option<ResponseHeader> {
    header.as_ref().map(|header| ResponseHeader {
        revision: header.revision,
        ..ResponseHeader::default()
    })
}

/// What a server answers, as text, and the revision that it told.
async fn ask(channel: &Channel, asked: Asked) -> (String, i64) {
    let (mut kv, mut leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    macro_rules! answer {
        ($call:expr, |$response:ident| $told:expr) => {
            $call.await.map(|response| {
                let $response = response.into_inner();
                (format!("{:?}", $told), revision(&$response.header))
            })
        };
    }
    let answered = match asked {
        Asked::Range(range) => {
            let without_leases = range.keys_only;
            let mut answered = kv.range(range).await;
            if let Ok(told) = &mut answered
                && without_leases
            {
                told.get_mut().kvs.iter_mut().for_each(|pair| pair.lease = 0);
            }
            let answered = async { answered };
            answer!(answered, |told| (&told.kvs, told.more, told.count))
        }
        Asked::Put(put) => answer!(kv.put(put), |told| &told.prev_kv),
        Asked::Delete(delete) => answer!(kv.delete_range(delete), |told| (told.deleted, &told.prev_kvs)),
        Asked::Txn(transaction) => answer!(kv.txn(transaction), |told| bare(told.clone())),
        Asked::Compact(compact) => answer!(kv.compact(compact), |told| ()),
        Asked::Grant(grant) => answer!(leases.lease_grant(grant), |told| (told.id, told.ttl)),
        Asked::Revoke(revoke) => answer!(leases.lease_revoke(revoke), |told| ()),
        Asked::TimeToLive(asked) => {
            let mut answered = leases.lease_time_to_live(asked).await;
            if let Ok(told) = &mut answered {
                told.get_mut().keys.sort();
            }
            let answered = async { answered };
            answer!(answered, |told| (told.ttl < 0, told.granted_ttl, &told.keys))
        }
        Asked::Leases => {
            let mut answered = leases.lease_leases(LeaseLeasesRequest {}).await;
            if let Ok(told) = &mut answered {
                told.get_mut().leases.sort_by_key(|lease| lease.id);
            }
            let answered = async { answered };
            answer!(answered, |told| &told.leases)
        }
    };
    answered.unwrap_or_else(|status| (format!("{:?}: {}", status.code(), status.message()), 0))
}

/// What a watch shows from its beginning up to the newest revision, as text.
async fn watch(channel: &Channel, create: WatchCreateRequest, newest: i64) -> String {
    let (sender, receiver) = tokio::sync::mpsc::channel(2);
    let ask = |request| WatchRequest {
        request_union: Some(request),
    };
    sender.send(ask(RequestUnion::CreateRequest(create))).await.unwrap();
    let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut responses = WatchClient::new(channel.clone())
        .watch(requests)
        .await
        .unwrap()
        .into_inner();
    let (mut lines, mut events): (Vec<String>, Vec<Event>) = (Vec::new(), Vec::new());
    let mut last = 0;
    loop {
        let next = tokio::time::timeout(Duration::from_millis(300), responses.message()).await;
        let Ok(response) = next else {
            // etcd forgets a request for progress while a watch is behind.
            sender
                .send(ask(RequestUnion::ProgressRequest(WatchProgressRequest {})))
                .await
                .unwrap();
            continue;
        };
        let response = response.unwrap().expect("the stream goes on");
        if response.created || response.canceled {
            let (id, reason) = (response.watch_id, &response.cancel_reason);
            let compacted = response.compact_revision;
            // etcd gives no reason for a compacted revision.
            let reason = if compacted > 0 { "" } else { &reason[..] };
            lines.push(format!(
                "{id} {} {} {compacted} {reason}",
                response.created, response.canceled
            ));
            if response.canceled {
                break;
            }
        }
        // The events of a revision come in one response.
        if let Some(first) = response.events.first().and_then(|event| event.kv.as_ref()) {
            assert!(first.mod_revision > last, "a revision was divided");
        }
        events.extend(response.events);
        last = events
            .last()
            .and_then(|event| event.kv.as_ref())
            .map_or(last, |pair| pair.mod_revision);
        if response.watch_id == -1 && revision(&response.header) >= newest {
            break;
        }
    }
    format!("{lines:?} {events:?}")
}

#[test]
fn random_requests_get_the_answers_of_etcd() {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/go");
    let Some(go) = unless_skipped("the comparison with etcd", Go::new(&module)) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("etcd");
    run(go
        .command(&["build", "-o"])
        .arg(&program)
        .arg("go.etcd.io/etcd/server/v3"));
    drop(go);
    let mut maker = Maker {
        rng: Rng::with_seed(seed()),
        revision: 1,
        puts: false,
        compacted: -1,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let etcd = start(program.to_str().unwrap(), &[], &directory.path().join("theirs")).await;
        let ours = start(BINARY, &["etcd"], &directory.path().join("ours")).await;
        for number in 0..REQUESTS {
            let asked = maker.request();
            let expected = ask(&etcd.channel, asked.clone()).await;
            let answered = ask(&ours.channel, asked.clone()).await;
            assert_eq!(answered, expected, "request {number}: {asked:?}");
            maker.revision = maker.revision.max(answered.1);
        }
        for number in 0..WATCHES {
            let key = maker.key();
            let create = WatchCreateRequest {
                range_end: maker.end(&key).into(),
                key: key.into(),
                start_revision: maker.rng.i64(-1..maker.revision + 1),
                filters: [vec![], vec![], vec![0], vec![1], vec![0, 1]][maker.rng.usize(0..5)].clone(),
                prev_kv: maker.rng.bool(),
                watch_id: maker.rng.i64(0..3),
                ..WatchCreateRequest::default()
            };
            let expected = watch(&etcd.channel, create.clone(), maker.revision).await;
            let answered = watch(&ours.channel, create.clone(), maker.revision).await;
            assert_eq!(answered, expected, "watch {number}: {create:?}");
        }
    });
}
