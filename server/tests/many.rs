//! Many clients at a time: idle connections, idle subscriptions, and a reader that has stopped among them.
//!
//! The server is a process of its own, so that its memory can be told from that of the clients. `DURAMEN_MANY=10000` is the
//! long form; `--nocapture` shows what each connection and each subscription takes.

mod common;

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::*;
use duramen_proto::v1::session_request::Say;
use duramen_proto::v1::subscribe_request::Start;
use duramen_proto::v1::topics_client::TopicsClient;
use duramen_proto::v1::*;
use duramen_server::{Config, start};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;

const DIRECTORY: &str = "DURAMEN_MANY_DIRECTORY";
const SESSIONS: usize = 10;

/// Connections, and subscriptions.
fn many() -> usize {
    let given = env::var("DURAMEN_MANY").ok().and_then(|many| many.parse().ok());
    given.unwrap_or(1_000)
}

/// A server in a process of its own. It is killed when it is dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(directory: &Path) -> Server {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["child_that_serves", "--exact", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        let address = lines.find_map(|line| line.strip_prefix("listening ").map(String::from));
        Server {
            process,
            address: address.unwrap(),
        }
    }

    /// Resident memory in bytes.
    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    }

    /// Processor time in ticks of 10 ms.
    fn processor_time(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    async fn connect(&self) -> Channel {
        let endpoint = Channel::from_shared(self.address.clone()).unwrap();
        endpoint.connect().await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "the server of the other tests"]
fn child_that_serves() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return;
    };
    let flags = [
        ("data_dir", Path::new(&directory).join("store").display().to_string()),
        ("listen", "127.0.0.1:0".to_string()),
        ("acknowledge", "written".to_string()),
    ];
    let server = start(&Config::collect(&flags, None).unwrap()).unwrap();
    println!("listening http://{}", server.listening().tcp.unwrap());
    std::thread::sleep(Duration::from_secs(3_600));
}

fn told(what: &str, number: usize, before: usize, after: usize) {
    let each = after.saturating_sub(before) / number.max(1);
    println!(
        "{number} {what}: {each} bytes of the server's memory each, {} MB in all",
        after >> 20
    );
}

async fn create(topics: &mut TopicsClient<Channel>, topic: &str) {
    let request = CreateTopicRequest {
        topic: topic.into(),
        if_missing: true,
        ..Default::default()
    };
    topics.create_topic(request).await.unwrap();
}

fn publish(topic: &str, payload: Vec<u8>) -> PublishRequest {
    PublishRequest {
        topic: topic.into(),
        message: Some(Message {
            payload: payload.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Each session has its part of the subscriptions, each to a topic of its own. Then each subscription gets a message.
#[test]
fn idle_subscriptions_get_their_messages() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    let each = many() / SESSIONS;
    client(async {
        let mut topics = TopicsClient::new(server.connect().await);
        for n in 0..each {
            create(&mut topics, &format!("topic{n}")).await;
        }
        let before = server.memory();
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            let (requests, receiver) = mpsc::unbounded_channel();
            let say = |say| requests.send(SessionRequest { say: Some(say) }).unwrap();
            say(Say::Open(OpenSession::default()));
            let mut topics = TopicsClient::new(server.connect().await);
            let session = topics.session(UnboundedReceiverStream::new(receiver)).await;
            let mut session = session.unwrap().into_inner();
            session.message().await.unwrap().unwrap();
            for n in 0..each {
                say(Say::Begin(BeginSubscription {
                    subscription: n as u32,
                    topic: format!("topic{n}"),
                    credit: 10,
                    ..Default::default()
                }));
            }
            // The answer to a request behind them tells that they have begun.
            say(Say::Settle(SettleInSession {
                request: 7,
                ..Default::default()
            }));
            loop {
                let response = session.message().await.unwrap().unwrap();
                match response.say.unwrap() {
                    session_response::Say::Answer(answer) if answer.request == 7 => break,
                    other => assert!(!matches!(other, session_response::Say::Ended(_)), "{other:?}"),
                }
            }
            sessions.push((requests, session));
        }
        told(
            "idle subscriptions on 10 sessions",
            each * SESSIONS,
            before,
            server.memory(),
        );
        let at_rest = server.processor_time();
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!(
            "processor time in a second at rest: {} ms",
            10 * (server.processor_time() - at_rest)
        );

        for n in 0..each {
            topics.publish(publish(&format!("topic{n}"), vec![1])).await.unwrap();
        }
        for (_, session) in &mut sessions {
            let mut missing: Vec<_> = (0..each as u32).collect();
            while !missing.is_empty() {
                let response = session.message().await.unwrap().unwrap();
                if let Some(session_response::Say::Messages(delivered)) = response.say {
                    assert_eq!(delivered.messages.len(), 1);
                    missing.retain(|subscription| *subscription != delivered.subscription);
                }
            }
        }
    });
}

/// Idle connections, of which one has stopped to read a stream. The others get their messages.
#[test]
fn a_reader_that_stops_disturbs_no_other_connection() {
    const READERS: usize = 20;
    const MESSAGES: usize = 2_000;
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path());
    client(async {
        let mut topics = TopicsClient::new(server.connect().await);
        create(&mut topics, "busy").await;
        let before = server.memory();
        let mut idle = Vec::new();
        for _ in 0..many() {
            let mut topics = TopicsClient::new(server.connect().await);
            topics.list_topics(ListTopicsRequest::default()).await.unwrap();
            idle.push(topics);
        }
        told("idle connections", idle.len(), before, server.memory());

        let subscribe = || SubscribeRequest {
            topic: "busy".into(),
            start: Some(Start::Earliest(true)),
            ..Default::default()
        };
        // It never looks at its messages, which are more than the windows of its connection hold.
        let stopped = idle[0].subscribe(subscribe()).await.unwrap().into_inner();
        let mut readers = Vec::new();
        for topics in idle[1..].iter_mut().take(READERS) {
            let mut messages = topics.subscribe(subscribe()).await.unwrap().into_inner();
            readers.push(tokio::spawn(async move {
                let mut offset = 0;
                while offset < MESSAGES as u64 {
                    for message in messages.message().await.unwrap().unwrap().messages {
                        assert_eq!(message.offset, offset);
                        offset += 1;
                    }
                }
            }));
        }
        for _ in 0..MESSAGES {
            topics.publish(publish("busy", vec![7; 4_096])).await.unwrap();
        }
        for reader in readers {
            reader.await.unwrap();
        }
        // The rest of the connections is served as well.
        for topics in &mut idle[1..] {
            topics.list_topics(ListTopicsRequest::default()).await.unwrap();
        }
        told("connections, one of them stopped", idle.len(), before, server.memory());
        drop(stopped);
    });
}
