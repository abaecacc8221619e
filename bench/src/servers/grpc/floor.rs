//! A gRPC server that acknowledges messages at once and stores nothing. It has the messages, the framework and the one
//! serving thread of Duramen's server, so its cost is the floor of any server behind this interface.

use std::net::SocketAddr;
use std::pin::Pin;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};
use duramen_proto::v1::topics_server::{Topics, TopicsServer};
use duramen_proto::v1::*;
use futures_util::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// Most messages of a stream that one response acknowledges, as in Duramen's server.
const ACKNOWLEDGED_TOGETHER: usize = 4_096;
/// Memory that Duramen's server lets a connection and a stream fill.
const CONNECTION_WINDOW: u32 = 1 << 20;
const STREAM_WINDOW: u32 = 512 << 10;

/// A floor that runs.
pub struct Floor {
    pub address: SocketAddr,
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Floor {
    /// Starts the server on a free port.
    pub fn start(spins: bool) -> Result<Floor> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        if spins {
            runtime.spawn(super::spin());
        }
        let address = listener.local_addr()?;
        let (end, ended) = oneshot::channel();
        let connections = TcpListenerStream::new(listener).inspect(|connection| {
            if let Ok(connection) = connection {
                // A connection that failed already ends with its first read.
                let _ = connection.set_nodelay(true);
            }
        });
        let server = Server::builder()
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .add_service(TopicsServer::new(Service));
        let thread = std::thread::Builder::new().name("floor".into()).spawn(move || {
            let ended = async { ended.await.unwrap_or(()) };
            runtime.block_on(server.serve_with_incoming_shutdown(connections, ended))
        })?;
        Ok(Floor { address, end, thread })
    }

    /// Ends the server when its connections have ended.
    pub fn stop(self) -> Result<()> {
        drop(self.end);
        let ended = self.thread.join().map_err(|_| anyhow!("the floor panicked"))?;
        ended.context("the floor")
    }
}

struct Service;

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answered<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// Writes methods as the generated trait has them. A method without an answer refuses its requests.
macro_rules! methods {
    ($($method:ident: $request:ty => $response:ty $(= $answer:expr)?;)*) => {
        $(fn $method<'s, 'a>(&'s self, _request: Request<$request>) -> Answered<'a, $response>
        where
            's: 'a,
            Self: 'a,
        {
            $(return Box::pin(async move {
                let answer: fn($request) -> $response = $answer;
                Ok(Response::new(answer(_request.into_inner())))
            });)?
            #[allow(unreachable_code, reason = "methods with an answer have returned")]
            Box::pin(async { Err(Status::unimplemented("the floor only acknowledges messages; use duramen-grpc")) })
        })*
    };
}

impl Topics for Service {
    type PublishStreamStream = Responses<PublishStreamResponse>;
    type SubscribeStream = Responses<SubscribeResponse>;
    type SessionStream = Responses<SessionResponse>;

    methods! {
        describe_topic: DescribeTopicRequest => DescribeTopicResponse = |_| DescribeTopicResponse::default();
        publish: PublishRequest => PublishResponse = |_| PublishResponse { offset: Some(0) };
        publish_batch: PublishBatchRequest => PublishBatchResponse = |_| PublishBatchResponse { first_offset: Some(0) };
        publish_stream: Streaming<PublishStreamRequest> => Self::PublishStreamStream = acknowledged;
        create_topic: CreateTopicRequest => CreateTopicResponse;
        configure_topic: ConfigureTopicRequest => ConfigureTopicResponse;
        delete_topic: DeleteTopicRequest => DeleteTopicResponse;
        list_topics: ListTopicsRequest => ListTopicsResponse;
        subscribe: SubscribeRequest => Self::SubscribeStream;
        create_group: CreateGroupRequest => CreateGroupResponse;
        configure_group: ConfigureGroupRequest => ConfigureGroupResponse;
        delete_group: DeleteGroupRequest => DeleteGroupResponse;
        list_groups: ListGroupsRequest => ListGroupsResponse;
        pause_group: PauseGroupRequest => PauseGroupResponse;
        reset_group: ResetGroupRequest => ResetGroupResponse;
        list_pending: ListPendingRequest => ListPendingResponse;
        redrive: RedriveRequest => RedriveResponse;
        fetch: FetchRequest => FetchResponse;
        settle: SettleRequest => SettleResponse;
        extend: ExtendRequest => ExtendResponse;
        session: Streaming<SessionRequest> => Self::SessionStream;
    }
}

/// Acknowledges the messages of a stream. One response takes all requests that have arrived.
fn acknowledged(requests: Streaming<PublishStreamRequest>) -> Responses<PublishStreamResponse> {
    let mut acknowledged = 0;
    Box::pin(requests.ready_chunks(ACKNOWLEDGED_TOGETHER).map(move |requests| {
        for request in requests {
            acknowledged += request?.messages.len() as u64;
        }
        Ok(PublishStreamResponse {
            acknowledged,
            last_offset: Some(acknowledged.saturating_sub(1)),
        })
    }))
}
