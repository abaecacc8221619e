//! What the layer costs: unary calls over a connection, with and without it, by turns. It only prints:
//! `cargo test -p duramen-server --lib -- --ignored --nocapture the_cost_of`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, Service, service_fn};

use super::*;

const ROUNDS: usize = 41;
const CALLS: usize = 2_000;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A server with the health service alone, on a thread that ends with the test.
fn serve(is_measured: bool) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        runtime().block_on(async {
            let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            let incoming = incoming.map(|stream| stream.inspect(|stream| stream.set_nodelay(true).unwrap()));
            let (_, health) = tonic_health::server::health_reporter();
            if !is_measured {
                let server = Server::builder().add_service(health);
                return server.serve_with_incoming(incoming).await.unwrap();
            }
            let log = Arc::new(CallLog::new(Some(Duration::from_secs(1))));
            let calls = Calls::new(&Arc::new(Methods::of_server()), &log);
            let measure = MeasureLayer(Arc::new(calls));
            let server = Server::builder().layer(measure).add_service(health);
            server.serve_with_incoming(incoming).await.unwrap();
        });
    });
    address
}

async fn connect(address: SocketAddr) -> HealthClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

async fn round(client: &mut HealthClient<Channel>) -> f64 {
    let begun = Instant::now();
    for _ in 0..CALLS {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    begun.elapsed().as_secs_f64() / CALLS as f64 * 1e6
}

#[test]
#[ignore = "it measures"]
fn the_cost_of_the_layer() {
    let addresses = [serve(false), serve(true)];
    runtime().block_on(async {
        let (mut bare, mut measured) = (connect(addresses[0]).await, connect(addresses[1]).await);
        let mut rounds = Vec::new();
        for number in 0..ROUNDS {
            // Which of them goes first changes, so that a drift of the machine does not count.
            rounds.push(if number % 2 == 0 {
                let bare = round(&mut bare).await;
                (bare, round(&mut measured).await)
            } else {
                let measured = round(&mut measured).await;
                (round(&mut bare).await, measured)
            });
        }
        let mut ratios: Vec<_> = rounds.iter().map(|(bare, measured)| measured / bare).collect();
        ratios.sort_by(f64::total_cmp);
        let bare: f64 = rounds.iter().map(|(bare, _)| bare).sum::<f64>() / ROUNDS as f64;
        println!(
            "a call without the layer: {bare:.1} µs; with it, times: median {:.3}, quartiles {:.3} and {:.3}",
            ratios[ROUNDS / 2],
            ratios[ROUNDS / 4],
            ratios[ROUNDS * 3 / 4]
        );
    });
}

/// The time of a call whose service answers at once, in nanoseconds.
async fn alone<S, B>(mut service: S) -> f64
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    const TIMES: u32 = 1_000_000;
    let begun = Instant::now();
    for _ in 0..TIMES {
        let request = Request::builder().uri("/duramen.v1.Maps/Put").body(()).unwrap();
        drop(service.call(request).await);
    }
    begun.elapsed().as_secs_f64() / f64::from(TIMES) * 1e9
}

#[test]
#[ignore = "it measures"]
fn the_cost_of_the_layer_alone() {
    let answer = || {
        service_fn(async |_: Request<()>| {
            let response = Response::builder().header("grpc-status", "0").body(String::new());
            Ok::<_, Infallible>(response.unwrap())
        })
    };
    let log = Arc::new(CallLog::new(Some(Duration::from_secs(1))));
    let calls = Calls::new(&Arc::new(Methods::of_server()), &log);
    let measure = MeasureLayer(Arc::new(calls));
    runtime().block_on(async {
        for _ in 0..5 {
            let (bare, measured) = (alone(answer()).await, alone(measure.layer(answer())).await);
            println!("a call without the layer: {bare:.0} ns, with it: {measured:.0} ns");
        }
    });
}
