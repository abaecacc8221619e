//! Duramen behind etcd's protocol with a planted fault, to test `etcd-bench`: a server that passes requests on, and does
//! some of them wrongly.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, anyhow, bail};
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::kv_server::{Kv, KvServer};
use duramen_proto::etcd::server::watch_client::WatchClient;
use duramen_proto::etcd::server::watch_server::{Watch, WatchServer};
use duramen_proto::etcd::server::*;
use futures_util::future::ready;
use futures_util::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use super::etcd::start_duramen;
use crate::answer::Answer;
use crate::answer::Unsupported;
use crate::peer::{Class, Description, Driver, Peer, Setting};
use crate::servers::grpc::Serving;
use crate::tree::{ServedTree, Tree, TreeConnection};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Every 97th key is read as it was before its last put.
    Stale,
    /// Every 97th put is acknowledged and not done.
    Loses,
    /// Every 97th response of a watch comes without its first event.
    Skips,
}

const EVERY: u64 = 97;

/// The driver of a faulty server.
pub struct Faulty(Fault);

/// All faulty servers.
pub const ALL: &[&dyn Driver] = &[&Faulty(Fault::Stale), &Faulty(Fault::Loses), &Faulty(Fault::Skips)];

impl Driver for Faulty {
    fn describe(&self) -> Description {
        let name = match self.0 {
            Fault::Stale => "faulty-stale-etcd",
            Fault::Loses => "faulty-loses-etcd",
            Fault::Skips => "faulty-skips-etcd",
        };
        Description {
            name: name.to_string(),
            version: "the lab's own".to_string(),
            classes: vec![(Class::Written, "claimed, wrongly".to_string())],
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
        let inner = start_duramen(directory, setting.class)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("http://{}", listener.local_addr()?);
        let endpoint = Endpoint::from_shared(inner.url())?;
        let (end, ended) = oneshot::channel::<()>();
        let fault = self.0;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let wrong = Wrong {
                    inner: endpoint.connect_lazy(),
                    fault,
                    turns: Arc::default(),
                };
                let server = Server::builder()
                    .add_service(KvServer::new(wrong.clone()))
                    .add_service(WatchServer::new(wrong));
                let ended = async { ended.await.unwrap_or(()) };
                let connections = TcpListenerStream::new(listener);
                server.serve_with_incoming_shutdown(connections, ended).await
            })
        });
        Ok(Tree::Served(Box::new(Opened {
            url,
            end,
            thread,
            inner,
        })))
    }
}

struct Opened {
    url: String,
    end: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<Result<(), tonic::transport::Error>>,
    inner: Serving,
}

impl ServedTree for Opened {
    fn connect(&self) -> Answer<'_, Box<dyn TreeConnection + '_>> {
        Box::pin(async { bail!(Unsupported("takes part in `etcd-bench` only")) })
    }

    fn etcd_url(&self) -> Result<&str> {
        Ok(&self.url)
    }

    fn close(self: Box<Self>) -> Result<()> {
        drop(self.end);
        self.thread
            .join()
            .map_err(|_| anyhow!("the faulty server panicked"))??;
        self.inner.stop()
    }
}

#[derive(Clone)]
struct Wrong {
    inner: Channel,
    fault: Fault,
    turns: Arc<AtomicU64>,
}

impl Wrong {
    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.inner.clone())
    }

    /// Whether it is the turn of a fault.
    fn is_turn(&self, fault: Fault) -> bool {
        self.fault == fault && self.turns.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Kv for Wrong {
    type RangeStreamStream = Responses<RangeStreamResponse>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        let found = self.kv().range(request.clone()).await?;
        match &found.get_ref().kvs[..] {
            [pair] if self.is_turn(Fault::Stale) => {
                let revision = pair.mod_revision - 1;
                self.kv().range(RangeRequest { revision, ..request }).await
            }
            _ => Ok(found),
        }
    }

    async fn range_stream(&self, _: Request<RangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("etcd-bench streams no ranges"))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        if self.is_turn(Fault::Loses) {
            return Ok(Response::new(PutResponse::default()));
        }
        self.kv().put(request.into_inner()).await
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.kv().delete_range(request.into_inner()).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.kv().txn(request.into_inner()).await
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        self.kv().compact(request.into_inner()).await
    }
}

#[tonic::async_trait]
impl Watch for Wrong {
    type WatchStream = Responses<WatchResponse>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let requests = request.into_inner().filter_map(|request| ready(request.ok()));
        let answers = WatchClient::new(self.inner.clone()).watch(requests).await?.into_inner();
        let wrong = self.clone();
        let answers = answers.map(move |answer| {
            let mut answer = answer?;
            if !answer.events.is_empty() && wrong.is_turn(Fault::Skips) {
                answer.events.remove(0);
            }
            Ok(answer)
        });
        Ok(Response::new(Box::pin(answers)))
    }
}
