//! A server in a directory of its own, and clients of it.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod authority;
pub mod scrape;

use std::future::Future;
use std::path::Path;

use duramen_proto::v1::maps_client::MapsClient;
use duramen_proto::v1::topics_client::TopicsClient;
use duramen_proto::v1::transactions_client::TransactionsClient;
use duramen_proto::v1::*;
use duramen_server::{Config, Running, start};
use tonic::transport::Channel;

/// A server of this process on a port that the system chose.
pub fn serve(directory: &Path) -> Running {
    serve_with(directory, &[])
}

/// A server with further settings.
pub fn serve_with(directory: &Path, settings: &[(&str, &str)]) -> Running {
    let mut flags = vec![
        ("data_dir", directory.join("store").display().to_string()),
        ("listen", "127.0.0.1:0".to_string()),
        ("threads", "2".to_string()),
    ];
    flags.extend(settings.iter().map(|(name, value)| (*name, value.to_string())));
    start(&Config::collect(&flags, None).unwrap()).unwrap()
}

/// Runs a client.
pub fn client<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(run)
}

/// The clients of all services over one connection.
pub struct Clients {
    pub maps: MapsClient<Channel>,
    pub topics: TopicsClient<Channel>,
    pub transactions: TransactionsClient<Channel>,
    pub channel: Channel,
}

pub async fn connect(server: &Running) -> Clients {
    let address = server.listening().tcp.unwrap();
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.unwrap();
    Clients {
        maps: MapsClient::new(channel.clone()),
        topics: TopicsClient::new(channel.clone()),
        transactions: TransactionsClient::new(channel.clone()),
        channel,
    }
}

impl Clients {
    pub async fn create_map(&mut self, map: &str) {
        let request = CreateMapRequest {
            map: map.into(),
            ..Default::default()
        };
        self.maps.create_map(request).await.unwrap();
    }

    pub async fn create_topic(&mut self, topic: &str) {
        let request = CreateTopicRequest {
            topic: topic.into(),
            ..Default::default()
        };
        self.topics.create_topic(request).await.unwrap();
    }

    pub async fn get(&mut self, map: &str, key: &str) -> Option<Vec<u8>> {
        let request = GetRequest {
            map: map.into(),
            key: key.to_string().into(),
            ..Default::default()
        };
        let response = self.maps.get(request).await.unwrap().into_inner();
        response.value.map(|value| value.to_vec())
    }
}

pub fn put(map: &str, key: &str, value: &str) -> PutRequest {
    PutRequest {
        map: map.into(),
        key: key.to_string().into(),
        value: value.to_string().into(),
        ..Default::default()
    }
}

pub fn message(payload: &str) -> Message {
    Message {
        payload: payload.to_string().into(),
        ..Default::default()
    }
}

pub fn written() -> Option<WriteOptions> {
    acknowledged(Acknowledge::Written)
}

pub fn acknowledged(level: Acknowledge) -> Option<WriteOptions> {
    Some(WriteOptions {
        acknowledge: level as i32,
        ..Default::default()
    })
}

pub fn with_key(key: &str) -> Option<WriteOptions> {
    Some(WriteOptions {
        acknowledge: Acknowledge::Written as i32,
        idempotency_key: key.to_string().into(),
    })
}
