//! Random requests to every method: the server answers each with a status that means something, and goes on.
//!
//! The requests are made from the descriptors: each field of each message gets values, names and sizes that tend to be
//! wrong. `DURAMEN_SEED=n` makes the requests of a seed again, `DURAMEN_FUZZ_REQUESTS=n` sets their number.

mod common;

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use duramen_proto::DESCRIPTORS;
use duramen_proto::v1::admin_client::AdminClient;
use duramen_proto::v1::trees_client::TreesClient;
use duramen_proto::v1::*;
use fastrand::Rng;
use prost::Message as _;
use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Passes bytes on as they are.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A method, and the name of what it takes.
struct Method {
    path: String,
    input: String,
}

/// Makes requests.
struct Maker {
    rng: Rng,
    messages: HashMap<String, DescriptorProto>,
    methods: Vec<Method>,
}

const NAMES: &[&str] = &[
    "m",
    "m",
    "kept",
    "kept",
    "t",
    "t",
    "g",
    "",
    "missing",
    ".",
    "..",
    "a.b",
    "*",
    ">",
    "a..b",
    "\u{1}server.kept",
    "\u{1}server.principals",
    "\n",
    "\u{0}",
];
const NUMBERS: &[u64] = &[
    0,
    0,
    1,
    1,
    2,
    3,
    7,
    100,
    1_000,
    10_001,
    1 << 20,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

impl Maker {
    fn new(seed: u64) -> Maker {
        let files = FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
        let (mut messages, mut methods) = (HashMap::new(), Vec::new());
        for file in &files {
            for message in &file.message_type {
                add_message(&mut messages, &format!(".{}", file.package()), message);
            }
            for service in &file.service {
                // A server ends when its store is put back.
                let calls = service
                    .method
                    .iter()
                    .filter(|method| method.name() != "RestoreCheckpoint");
                methods.extend(calls.map(|method| Method {
                    path: format!("/{}.{}/{}", file.package(), service.name(), method.name()),
                    input: method.input_type().to_string(),
                }));
            }
        }
        Maker {
            rng: Rng::with_seed(seed),
            messages,
            methods,
        }
    }

    fn number(&mut self) -> u64 {
        match self.rng.u8(0..8) {
            0 => self.rng.u64(..),
            _ => *self.rng.choice(NUMBERS).unwrap(),
        }
    }

    fn text(&mut self) -> String {
        match self.rng.u8(0..20) {
            0 => "x".repeat(self.rng.usize(200..5_000)),
            _ => (*self.rng.choice(NAMES).unwrap()).into(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.rng.u8(0..12) {
            0 => self.rng.usize(4_000..5_000),
            1 => 16,
            2 => 8,
            _ => self.rng.usize(0..5),
        };
        (0..length).map(|_| self.rng.u8(0..3)).collect()
    }

    fn message(&mut self, name: &str, depth: usize) -> Vec<u8> {
        let fields = self.messages[name].field.clone();
        let mut made = Vec::new();
        for field in fields {
            let count = match field.label() {
                _ if self.rng.u8(0..5) == 0 => 0,
                Label::Repeated => self.rng.usize(0..4),
                _ => 1,
            };
            for _ in 0..count {
                self.field(&field, depth, &mut made);
            }
        }
        made
    }

    fn field(&mut self, field: &prost_types::FieldDescriptorProto, depth: usize, made: &mut Vec<u8>) {
        let number = field.number() as u32;
        match field.r#type() {
            Type::String | Type::Bytes | Type::Message => {
                let content = match field.r#type() {
                    Type::String => self.text().into_bytes(),
                    Type::Bytes => self.bytes(),
                    _ if depth == 0 => return,
                    _ => self.message(field.type_name(), depth - 1),
                };
                encode_key(number, WireType::LengthDelimited, made);
                encode_varint(content.len() as u64, made);
                made.extend(content);
            }
            Type::Fixed64 => {
                encode_key(number, WireType::SixtyFourBit, made);
                made.extend(self.number().to_le_bytes());
            }
            Type::Bool => {
                encode_key(number, WireType::Varint, made);
                encode_varint(self.rng.u64(0..2), made);
            }
            // Unknown values of enums, too.
            Type::Enum => {
                encode_key(number, WireType::Varint, made);
                encode_varint(self.rng.u64(0..6), made);
            }
            _ => {
                encode_key(number, WireType::Varint, made);
                encode_varint(self.number(), made);
            }
        }
    }

    /// The path of a method, and the messages of its stream of requests.
    fn request(&mut self) -> (String, Vec<Bytes>) {
        let method = self.rng.usize(0..self.methods.len());
        let (path, input) = (self.methods[method].path.clone(), self.methods[method].input.clone());
        let mut requests: Vec<Vec<u8>> = (0..self.rng.usize(1..4)).map(|_| self.message(&input, 4)).collect();
        if self.rng.u8(0..10) == 0
            && let Some(broken) = requests.last_mut()
        {
            // A field that ends too early, or bytes that are no message.
            broken.truncate(self.rng.usize(0..=broken.len()));
            broken.push(self.rng.u8(..));
        }
        (path, requests.into_iter().map(Bytes::from).collect())
    }
}

fn add_message(messages: &mut HashMap<String, DescriptorProto>, parent: &str, message: &DescriptorProto) {
    let name = format!("{parent}.{}", message.name());
    for nested in &message.nested_type {
        add_message(messages, &name, nested);
    }
    messages.insert(name, message.clone());
}

/// Calls a method, and reads some of what it answers. A call that waits for something is left.
async fn call(channel: &Channel, path: &str, requests: Vec<Bytes>) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    let answers = client.streaming(Request::new(tokio_stream::iter(requests)), path, Raw);
    let reads = async {
        let mut answers = answers.await?.into_inner();
        for _ in 0..4 {
            if answers.message().await?.is_none() {
                break;
            }
        }
        Ok(())
    };
    let read = tokio::time::timeout(Duration::from_millis(30), reads).await;
    read.unwrap_or(Ok(()))
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn random_requests_get_answers_that_mean_something() {
    let seed = env::var("DURAMEN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("DURAMEN_SEED={seed}");
    let requests = env::var("DURAMEN_FUZZ_REQUESTS")
        .ok()
        .and_then(|text| text.parse().ok());
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(panic);
    }));
    let directory = tempfile::tempdir().unwrap();
    let settings = [
        ("acknowledge", "written"),
        ("etcd_listen", "127.0.0.1:0"),
        ("etcd_tree", "t"),
    ];
    let server = serve_with(directory.path(), &settings);
    let mut maker = Maker::new(seed);
    client(async {
        let mut clients = connect(&server).await;
        clients.create_map("known").await;
        clients.maps.put(put("known", "key", "value")).await.unwrap();
        for number in 0..requests.unwrap_or(2_000) {
            if number % 200 == 0 {
                prepare(&mut clients).await;
            }
            let (path, requests) = maker.request();
            let told = format!("request {number} to {path}, seed {seed}: {requests:?}");
            if let Err(status) = call(&clients.channel, &path, requests).await {
                // etcd has no code of its own for an election without a leader, and clusters of several members are not there.
                let is_of_etcd = !path.starts_with("/duramen.v1.");
                let is_defect = matches!(status.code(), Code::Unknown | Code::Unimplemented) && !is_of_etcd
                    || status.code() == Code::DataLoss
                    // What is no protocol buffer at all is refused below the services.
                    || status.code() == Code::Internal && !status.message().contains("decode");
                assert!(!is_defect, "{told}: {status:?}");
                assert!(!status.message().is_empty(), "{told}: {status:?}");
            }
            assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{told}");
        }
        assert_eq!(clients.get("known", "key").await.as_deref(), Some(&b"value"[..]));
        let mut admin = AdminClient::new(clients.channel.clone());
        let checked = admin.check(CheckRequest {}).await.unwrap().into_inner();
        assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    });
    server.stop().unwrap();
    assert_eq!(PANICS.load(Ordering::SeqCst), 0, "seed {seed}");
}

/// What random requests drop is made again.
async fn prepare(clients: &mut Clients) {
    for (map, keep_changes) in [("m", None), ("kept", Some(KeepChanges::default()))] {
        let request = CreateMapRequest {
            map: map.into(),
            keep_changes,
            ..Default::default()
        };
        // It may be there in another form.
        let _ = clients.maps.create_map(request).await;
    }
    let topic = CreateTopicRequest {
        topic: "t".into(),
        if_missing: true,
        ..Default::default()
    };
    let _ = clients.topics.create_topic(topic).await;
    let group = CreateGroupRequest {
        topic: "t".into(),
        group: "g".into(),
        if_missing: true,
        ..Default::default()
    };
    let _ = clients.topics.create_group(group).await;
    let mut trees = TreesClient::new(clients.channel.clone());
    for tree in ["t", "m"] {
        let request = CreateTreeRequest {
            tree: tree.into(),
            ..Default::default()
        };
        let _ = trees.create_tree(request).await;
    }
}
