//! The operations of etcd's own `benchmark` tool, by one load generator against every server that speaks etcd's protocol.
//!
//! A client has one request in flight. Each client has a connection of its own, up to 50; more clients share these. Two
//! threads run the whole client side, so that it leaves the servers room. Keys have 8 digits, and values 256 bytes. A client
//! puts keys of its own in their order, so how often each was put is known: every read is compared with that number and
//! with the value. After the clock every key is read once more.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use duramen_client::Bytes;
use duramen_proto::etcd::kv::KeyValue;
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::lease_client::LeaseClient;
use duramen_proto::etcd::server::request_op::Request;
use duramen_proto::etcd::server::response_op::Response;
use duramen_proto::etcd::server::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse,
};
use futures_util::stream;
use tonic::transport::Channel;

use super::etcd_watch;
use crate::answer::Answer;
use crate::children;
use crate::crew::Shift;
use crate::data::{Checker, Generator, Length, Values, key_text};
use crate::flight::{Flight, on_connections};
use crate::measure::{Done, Work, status_bytes};
use crate::trees::etcd::connect;
use crate::workloads::{Context, Recorder, Workload, variant};

pub const WORKLOAD: Workload = Workload {
    name: "etcd-bench",
    about: "what etcd's benchmark tool does, by one client for etcd and for Duramen behind etcd's protocol: puts, ranges, transactions \
        and kept leases of 1, 50 and 200 clients, and 100 watches; values of 256 bytes; a connection for each client, up to 50",
    variants: &[variant("operations", 100_000), variant(MEMORY, 1_000_000)],
    run,
    ..Workload::USUAL
};

/// The form that shows how much memory the server takes, and how long it takes to start.
const MEMORY: &str = "memory";
const OPEN: (&str, Work) = ("start until the first range is answered", Work::Reads);
const CLIENTS: [usize; 3] = [1, 50, 200];
const LOADERS: usize = 50;
const CONNECTIONS_MAX: usize = 50;
/// Threads of the load generator.
const LANES_MAX: usize = 2;
/// The number of keys is a multiple of this: clients have equally many, and prefixes are complete.
const KEYS_OF: usize = 200;
/// Keys with a prefix of 6 digits.
const PREFIXED: usize = 100;
/// Keys of a request after the clock.
const PAGE: usize = 1_000;
/// Seconds of a row at scale 1, and the least.
const SECONDS: (f64, f64) = (5.0, 0.05);
/// Seconds that a lease lives. No row takes as long.
const LIFE: i64 = 3_600;

/// What a client does again and again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Puts the next key that no client has put yet.
    Load,
    /// Puts the client's next key.
    Put,
    /// Reads any key.
    Range,
    /// Reads all keys with a prefix.
    Prefix,
    /// A transaction that reads or puts one of the client's keys.
    Mixed,
    /// Keeps the client's lease alive.
    KeepAlive,
}

struct Row {
    name: String,
    work: Work,
    operation: Operation,
    clients: usize,
}

fn rows(form: &str) -> Vec<Row> {
    let row = |operation, name: &str, work, clients| Row {
        name: match clients {
            1 => format!("{name}, 1 client"),
            _ => format!("{name}, {clients} clients"),
        },
        work,
        operation,
        clients,
    };
    let mut rows = vec![row(Operation::Load, "load", Work::Writes, LOADERS)];
    if form != MEMORY {
        let all = [
            (Operation::Put, "put", Work::Writes),
            (Operation::Range, "range", Work::Reads),
            (Operation::Prefix, "range of 100 keys", Work::Reads),
            (Operation::Mixed, "txn-mixed", Work::Writes),
            (Operation::KeepAlive, "lease-keepalive", Work::Reads),
        ];
        let each = all.iter().flat_map(|one| CLIENTS.map(|clients| (one, clients)));
        rows.extend(each.map(|(&(operation, name, work), clients)| row(operation, name, work, clients)));
    }
    rows
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let form = context.variant.label;
    let rows = rows(form);
    let mut tree = context.open_tree()?;
    let url = match tree.etcd_url() {
        Ok(url) => url.to_string(),
        Err(reason) => {
            let mut names: Vec<_> = rows.iter().map(|row| (&*row.name, row.work)).collect();
            match form {
                MEMORY => names.push(OPEN),
                _ => names.extend(etcd_watch::ROWS),
            }
            recorder.not_done(&names, &reason.to_string());
            return tree.close();
        }
    };
    let values = Values::new(context.seed, Length::Fixed(256));
    let keys = context.records().next_multiple_of(KEYS_OF);
    let mut bench = Bench {
        context,
        url,
        values: &values,
        checker: context.checker(&values),
        puts: (0..keys).map(|_| AtomicU32::new(0)).collect(),
    };
    if form != MEMORY {
        etcd_watch::run(context, recorder, &bench.url, &values)?;
    }
    for row in &rows {
        recorder.phase(&row.name, row.work, || bench.work(row))?;
    }
    if form == MEMORY {
        bench.note_memory(recorder)?;
        if !recorder.is_stopped() {
            tree.close()?;
            let mut opened = None;
            recorder.phase(OPEN.0, OPEN.1, || {
                let tree = context.open_tree()?;
                bench.url = tree.etcd_url()?.to_string();
                opened = Some(tree);
                bench.first_range().map(|()| Done::untimed(1))
            })?;
            tree = opened.context("a phase that succeeded has opened the store")?;
        }
    }
    bench.verify()?;
    tree.close()
}

struct Bench<'a> {
    context: &'a Context<'a>,
    url: String,
    values: &'a Values,
    checker: Checker<'a>,
    /// How often each key was put: its version.
    puts: Vec<AtomicU32>,
}

/// A connection.
struct Connected {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
}

/// A client, with its keys `number`, `number + of`, `number + 2 of` and so on.
struct Client {
    number: usize,
    of: usize,
    /// Puts so far.
    turn: usize,
    lease: i64,
    picks: Generator,
}

/// Returns the key of a number.
fn key(number: usize) -> Bytes {
    format!("{number:08}").into()
}

impl Bench<'_> {
    /// Does one row.
    fn work(&self, row: &Row) -> Result<Done> {
        let lanes = row.clients.min(LANES_MAX);
        on_connections(lanes, async |lane| {
            let in_flight = row.clients / lanes;
            let mut connections = Vec::new();
            for _ in 0..in_flight.min(CONNECTIONS_MAX / lanes) {
                let channel = connect(&self.url).await?;
                connections.push(Connected {
                    kv: KvClient::new(channel.clone()),
                    lease: LeaseClient::new(channel),
                });
            }
            let of_slot = |slot: usize| &connections[slot % connections.len()];
            let mut clients = Vec::new();
            for slot in 0..in_flight {
                let number = lane * in_flight + slot;
                let lease = match row.operation {
                    Operation::KeepAlive => grant(of_slot(slot)).await?,
                    _ => 0,
                };
                clients.push(Client {
                    number,
                    of: row.clients,
                    turn: 0,
                    lease,
                    picks: Generator::new(self.context.seed, &format!("{} of {number}", row.name)),
                });
            }
            let mut loaded = (lane..self.puts.len()).step_by(lanes);
            let flight = Flight {
                planned: match row.operation {
                    Operation::Load => loaded.len() as u64,
                    _ => u64::MAX,
                },
                in_flight,
                each: 1,
            };
            let begin = |slot: usize| {
                let (to, client) = (of_slot(slot), &mut clients[slot]);
                match row.operation {
                    Operation::Load => self.put(to, loaded.next().unwrap_or_default()),
                    operation => self.request(operation, to, client),
                }
            };
            let worked = flight.work(self.shift(row.operation, lanes), begin).await?;
            if row.operation == Operation::KeepAlive {
                for (slot, client) in clients.iter().enumerate() {
                    let revoke = LeaseRevokeRequest { id: client.lease };
                    of_slot(slot).lease.clone().lease_revoke(revoke).await?;
                }
            }
            Ok(worked)
        })
    }

    fn shift(&self, operation: Operation, lanes: usize) -> Shift {
        let seconds = self.context.scaled_seconds(SECONDS.0, SECONDS.1);
        match operation {
            Operation::Load => self.context.pace.whole_shift(lanes),
            _ => self.context.pace.shift(lanes, Some(seconds)),
        }
    }

    fn request(&self, operation: Operation, to: &Connected, client: &mut Client) -> Answer<'_> {
        let own = self.puts.len() / client.of;
        match operation {
            Operation::Load | Operation::Put => {
                client.turn += 1;
                self.put(to, client.number + client.of * ((client.turn - 1) % own))
            }
            Operation::Range => {
                let number = client.picks.below(self.puts.len());
                self.range(to, number, 1)
            }
            Operation::Prefix => {
                let first = client.picks.below(self.puts.len() / PREFIXED) * PREFIXED;
                self.range(to, first, PREFIXED)
            }
            Operation::Mixed => {
                let number = client.number + client.of * client.picks.below(own);
                self.transaction(to, number, client.picks.below(2) == 0)
            }
            Operation::KeepAlive => keep_alive(to, client.lease),
        }
    }

    fn next_put(&self, number: usize) -> PutRequest {
        let key = key(number);
        let version = self.puts[number].load(Ordering::Relaxed);
        PutRequest {
            value: Bytes::copy_from_slice(self.values.of(&key, version)),
            key,
            ..PutRequest::default()
        }
    }

    fn was_put(&self, number: usize) {
        self.puts[number].fetch_add(1, Ordering::Relaxed);
    }

    fn put(&self, to: &Connected, number: usize) -> Answer<'_> {
        let (mut kv, request) = (to.kv.clone(), self.next_put(number));
        Box::pin(async move {
            kv.put(request).await?;
            self.was_put(number);
            Ok(())
        })
    }

    /// Reads `count` keys from a number on: one by itself, or all with a prefix.
    fn range(&self, to: &Connected, first: usize, count: usize) -> Answer<'_> {
        let mut kv = to.kv.clone();
        Box::pin(async move {
            let found = kv.range(range_of(first, count)).await?.into_inner();
            self.check_all(first, count, &found)
        })
    }

    fn transaction(&self, to: &Connected, number: usize, is_read: bool) -> Answer<'_> {
        let mut kv = to.kv.clone();
        let request = match is_read {
            true => Request::RequestRange(range_of(number, 1)),
            false => Request::RequestPut(self.next_put(number)),
        };
        let transaction = TxnRequest {
            success: vec![RequestOp { request: Some(request) }],
            ..TxnRequest::default()
        };
        Box::pin(async move {
            let TxnResponse { mut responses, .. } = kv.txn(transaction).await?.into_inner();
            match responses.pop().and_then(|response| response.response) {
                Some(Response::ResponseRange(found)) if is_read => self.check_all(number, 1, &found),
                Some(Response::ResponsePut(_)) if !is_read => {
                    self.was_put(number);
                    Ok(())
                }
                other => bail!("key {}: a transaction answered {other:?}", key_text(&key(number))),
            }
        })
    }

    /// Fails unless exactly these keys were found, each as it was put last.
    fn check_all(&self, first: usize, count: usize, found: &RangeResponse) -> Result<()> {
        let mut pairs = found.kvs.iter().peekable();
        for number in first..first + count {
            let key = key(number);
            self.check(number, &key, pairs.next_if(|pair| pair.key == key))?;
        }
        match pairs.next() {
            None => Ok(()),
            Some(pair) => bail!("key {} is not in the range that was read", key_text(&pair.key)),
        }
    }

    fn check(&self, number: usize, key: &[u8], pair: Option<&KeyValue>) -> Result<()> {
        let value = pair.map(|pair| &pair.value[..]);
        // Only a load that the limit of the cell stopped leaves keys out.
        let puts = self.puts[number].load(Ordering::Relaxed);
        let Some(last) = puts.checked_sub(1) else {
            return self.checker.absent(key, value);
        };
        let version = pair.map_or(i64::from(puts), |pair| pair.version);
        ensure!(
            version == i64::from(puts),
            "key {} has version {version}, and was put {puts} times",
            key_text(key)
        );
        self.checker.present(key, last, value)
    }

    /// Reads the key in the middle over a new connection.
    fn first_range(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let number = self.puts.len() / 2;
            let mut kv = KvClient::new(connect(&self.url).await?);
            let found = kv.range(range_of(number, 1)).await?.into_inner();
            self.check_all(number, 1, &found)
        })
    }

    /// Reads every key.
    fn verify(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut kv = KvClient::new(connect(&self.url).await?);
            for first in (0..self.puts.len()).step_by(PAGE) {
                let count = PAGE.min(self.puts.len() - first);
                let found = kv.range(range_of(first, count)).await?.into_inner();
                self.check_all(first, count, &found).context("after the clock")?;
            }
            Ok(())
        })
    }

    /// Notes the memory of the server, once it has been idle for a moment.
    fn note_memory(&self, recorder: &mut Recorder) -> Result<()> {
        std::thread::sleep(Duration::from_secs_f64(self.context.scaled_seconds(2.0, 0.0)));
        for process in children::measured() {
            let status = format!("/proc/{process}/status");
            let (resident, own) = (status_bytes(&status, "VmRSS")?, status_bytes(&status, "RssAnon")?);
            recorder.note(format!(
                "with {} keys the server has {resident} resident bytes, {own} of them in no file",
                self.puts.len()
            ));
        }
        Ok(())
    }
}

fn range_of(first: usize, count: usize) -> RangeRequest {
    let range_end = match count {
        1 => Bytes::new(),
        _ => key(first + count),
    };
    RangeRequest {
        key: key(first),
        range_end,
        ..RangeRequest::default()
    }
}

async fn grant(to: &Connected) -> Result<i64> {
    let request = LeaseGrantRequest { ttl: LIFE, id: 0 };
    Ok(to.lease.clone().lease_grant(request).await?.into_inner().id)
}

/// Keeps a lease alive once, in a stream of its own, as etcd's tool does.
fn keep_alive<'a>(to: &Connected, id: i64) -> Answer<'a> {
    let mut lease = to.lease.clone();
    Box::pin(async move {
        let requests = stream::iter([LeaseKeepAliveRequest { id }]);
        let mut answers = lease.lease_keep_alive(requests).await?.into_inner();
        let answer = answers.message().await?.context("a lease was not kept alive")?;
        ensure!(
            answer.id == id && answer.ttl == LIFE,
            "lease {id}: kept alive as {answer:?}"
        );
        ensure!(answers.message().await?.is_none(), "lease {id}: kept alive twice");
        Ok(())
    })
}
