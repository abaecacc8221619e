//! etcd, and Duramen's server behind etcd's protocol, each in a process of its own, through the client that is
//! generated from etcd's `.proto` files.
//!
//! etcd syncs its log before it answers, which is class `synced`. With `--unsafe-no-fsync` it writes the log and does not
//! sync it, which is class `written`. A create is a transaction that compares the create revision with 0, as etcd's own
//! recipes do.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use duramen_proto::etcd::server::compare::{CompareResult, CompareTarget, TargetUnion};
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::request_op::Request;
use duramen_proto::etcd::server::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use tonic::transport::{Channel, Endpoint};

use crate::answer::Answer;
use crate::answer::Unsupported;
use crate::peer::{Class, Description, Driver, Peer, Setting};
use crate::servers::grpc::{Serving, Shape};
use crate::servers::{ETCD, PATIENCE, Server, free_port};
use crate::tree::{ServedTree, Tree, TreeConnection};
use crate::versions::locked_version;

/// The driver of etcd.
pub struct Etcd;
/// The driver of Duramen's server behind etcd's protocol.
pub struct DuramenEtcd;

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
        let url = format!("http://{}", server.address);
        let opened = Opened {
            url,
            process: Process::Etcd(server),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The server takes connections before it has a leader.
        let started = Instant::now();
        while let Err(error) = runtime.block_on(async { opened.open().await?.get(b"ready").await }) {
            ensure!(started.elapsed() < PATIENCE, "etcd is not ready: {error}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(Tree::Served(Box::new(opened)))
    }
}

/// Starts Duramen's server. The tests of the lab are a program that cannot serve, so there it runs in their process.
pub fn start_duramen(directory: &Path, class: Class) -> Result<Serving> {
    let shape = if cfg!(test) { Shape::Together } else { Shape::Apart };
    Serving::start_etcd(shape, directory, class)
}

impl Driver for DuramenEtcd {
    fn describe(&self) -> Description {
        let versions = ["duramen-server", "tonic"].map(locked_version);
        Description {
            name: "duramen-etcd".to_string(),
            version: versions.join(", "),
            classes: vec![
                (Class::Synced, "acknowledge=synced".to_string()),
                (Class::Written, "acknowledge=written".to_string()),
            ],
            options: vec!["etcd_listen: the server speaks etcd's protocol".to_string()],
            is_persistent: true,
            is_tree: true,
            is_no_store: true,
            ..Description::default()
        }
    }

    fn open(&self, _directory: &Path, _setting: Setting) -> Result<Box<dyn Peer>> {
        bail!(Unsupported("takes part as a tree"))
    }

    fn open_tree(&self, directory: &Path, setting: Setting) -> Result<Tree> {
        let serving = start_duramen(directory, setting.class)?;
        Ok(Tree::Served(Box::new(Opened {
            url: serving.url(),
            process: Process::Duramen(Box::new(serving)),
        })))
    }
}

enum Process {
    /// Killed on drop.
    Etcd(#[expect(dead_code, reason = "held for its drop")] Server),
    Duramen(Box<Serving>),
}

struct Opened {
    url: String,
    process: Process,
}

impl Opened {
    async fn open(&self) -> Result<Connected> {
        Ok(Connected(KvClient::new(connect(&self.url).await?)))
    }
}

/// Opens a connection to a server that speaks etcd's protocol.
pub async fn connect(url: &str) -> Result<Channel> {
    Ok(Endpoint::from_shared(url.to_string())?
        .tcp_nodelay(true)
        .connect()
        .await?)
}

impl ServedTree for Opened {
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>> {
        Box::pin(async { Ok(Box::new(self.open().await?) as Box<dyn TreeConnection>) })
    }

    fn etcd_url(&self) -> Result<&str> {
        Ok(&self.url)
    }

    fn close(self: Box<Self>) -> Result<()> {
        match self.process {
            Process::Etcd(_) => Ok(()),
            Process::Duramen(serving) => serving.stop(),
        }
    }
}

struct Connected(KvClient<Channel>);

impl TreeConnection for Connected {
    fn create(&self, path: &[u8], payload: &[u8]) -> Answer<'_, bool> {
        let is_missing = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: path.to_vec().into(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Compare::default()
        };
        let put = PutRequest {
            key: path.to_vec().into(),
            value: payload.to_vec().into(),
            ..PutRequest::default()
        };
        let transaction = TxnRequest {
            compare: vec![is_missing],
            success: vec![RequestOp {
                request: Some(Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        let mut client = self.0.clone();
        Box::pin(async move { Ok(client.txn(transaction).await?.into_inner().succeeded) })
    }

    fn get(&self, path: &[u8]) -> Answer<'_, Option<Vec<u8>>> {
        let (mut client, key) = (self.0.clone(), path.to_vec().into());
        Box::pin(async move {
            let request = RangeRequest {
                key,
                ..RangeRequest::default()
            };
            let mut found = client.range(request).await?.into_inner();
            Ok(found.kvs.pop().map(|pair| pair.value.into()))
        })
    }

    fn delete(&self, path: &[u8]) -> Answer<'_, bool> {
        let (mut client, key) = (self.0.clone(), path.to_vec().into());
        Box::pin(async move {
            let request = DeleteRangeRequest {
                key,
                ..DeleteRangeRequest::default()
            };
            Ok(client.delete_range(request).await?.into_inner().deleted == 1)
        })
    }
}
