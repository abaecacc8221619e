//! etcd, with its server in a process of its own, over gRPC. The usual client builds only where `protoc` is installed, so
//! the messages are here: the fields of etcd's `rpc.proto` that the lab uses.
//!
//! etcd syncs its log before it answers, which is class `synced`. With `--unsafe-no-fsync` it writes the log and does not
//! sync it, which is class `written`. A create is a transaction that compares the create revision with 0, as etcd's own
//! recipes do.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use prost::Message;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::brokers::server::{ETCD, PATIENCE, Server, free_port};
use crate::connection::Answer;
use crate::peer::{Class, Description, Driver, Peer, Setting, Unsupported};
use crate::tree::{ServedTree, Tree, TreeConnection};

/// The driver of etcd.
pub struct Etcd;

impl Driver for Etcd {
    fn describe(&self) -> Description {
        let description = Description {
            classes: vec![
                (Class::Synced, "as it comes".to_string()),
                (Class::Written, "--unsafe-no-fsync".to_string()),
            ],
            options: vec![
                "--quota-backend-bytes 8 GiB: the largest that etcd recommends".to_string(),
                "one member".to_string(),
            ],
            is_persistent: true,
            is_tree: true,
            is_no_store: true,
            ..Description::default()
        };
        ETCD.describe("etcd", "tonic", description)
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a tree"))
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        let peers = format!("http://127.0.0.1:{}", free_port()?);
        let server = ETCD.start(directory, |port| {
            let clients = format!("http://127.0.0.1:{port}");
            let data = directory.join("etcd").display().to_string();
            let mut arguments = vec![
                "--name=lab".to_string(),
                format!("--data-dir={data}"),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=lab={peers}"),
                format!("--quota-backend-bytes={}", 8u64 << 30),
            ];
            if setting.class == Class::Written {
                arguments.push("--unsafe-no-fsync".to_string());
            }
            Ok(arguments)
        })?;
        let opened = Opened { server };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The server takes connections before it has a leader.
        let started = Instant::now();
        while let Err(error) = runtime.block_on(async { opened.open().await?.read(b"ready".to_vec()).await }) {
            ensure!(started.elapsed() < PATIENCE, "etcd is not ready: {error}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(Tree::Served(Box::new(opened)))
    }
}

struct Opened {
    server: Server,
}

impl Opened {
    async fn open(&self) -> Result<Connected> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.server.address))?.tcp_nodelay(true);
        Ok(Connected(endpoint.connect().await?))
    }
}

impl ServedTree for Opened {
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>> {
        Box::pin(async { Ok(Box::new(self.open().await?) as Box<dyn TreeConnection>) })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Connected(Channel);

impl Connected {
    async fn call<M, A>(&self, method: &'static str, message: M) -> Result<A>
    where
        M: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await?;
        let path = PathAndQuery::from_static(method);
        let codec = ProstCodec::<M, A>::default();
        Ok(grpc.unary(Request::new(message), path, codec).await?.into_inner())
    }

    async fn read(&self, path: Vec<u8>) -> Result<RangeResponse> {
        self.call("/etcdserverpb.KV/Range", RangeRequest { key: path }).await
    }
}

impl TreeConnection for Connected {
    fn create(&self, path: &[u8], payload: &[u8]) -> Answer<'_, bool> {
        let is_missing = Compare {
            result: EQUAL,
            target: CREATE,
            key: path.to_vec(),
            create_revision: Some(0),
        };
        let put = PutRequest {
            key: path.to_vec(),
            value: payload.to_vec(),
        };
        let transaction = TxnRequest {
            compare: vec![is_missing],
            success: vec![RequestOp { request_put: Some(put) }],
        };
        Box::pin(async move {
            let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", transaction).await?;
            Ok(answer.succeeded)
        })
    }

    fn get(&self, path: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        let path = path.to_vec();
        Box::pin(async move { Ok(self.read(path).await?.kvs.pop().map(|pair| pair.value)) })
    }

    fn delete(&self, path: &[u8]) -> Answer<'_, bool> {
        let request = DeleteRangeRequest { key: path.to_vec() };
        Box::pin(async move {
            let answer: DeleteRangeResponse = self.call("/etcdserverpb.KV/DeleteRange", request).await?;
            Ok(answer.deleted == 1)
        })
    }
}

/// `Compare.CompareResult.EQUAL`, and `Compare.CompareTarget.CREATE`.
const EQUAL: i32 = 0;
const CREATE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes, tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
    #[prost(bytes, tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeRequest {
    #[prost(bytes, tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes, tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    request_put: Option<PutRequest>,
}
