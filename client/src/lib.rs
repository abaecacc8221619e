//! The Rust client of Duramen servers: maps, topics, trees and transactions over gRPC.
//!
//! ```
//! # let directory = tempfile::tempdir().unwrap();
//! # let flags = [
//! #     ("data_dir", directory.path().join("store").display().to_string()),
//! #     ("listen", "127.0.0.1:0".to_string()),
//! # ];
//! # let server = duramen_server::start(&duramen_server::Config::collect(&flags, None).unwrap()).unwrap();
//! # let address = format!("http://{}", server.listening().tcp.unwrap());
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! use duramen_client::{Client, GroupOptions, Keys, NodeCondition, NodePut, Nodes, Start, TopicOptions, WatchNodes};
//!
//! # runtime.block_on(async {
//! // A program writes an address here, such as "http://127.0.0.1:7420" or "unix:/run/duramen.sock".
//! let client = Client::connect(&address)?;
//! client.create_map("stock").await?;
//! client.create_topic("orders", TopicOptions::default()).await?;
//!
//! let stock = client.map("stock");
//! stock.put("apples", "12").await?;
//! assert_eq!(stock.get("apples").await?.as_deref(), Some(&b"12"[..]));
//! let mut pairs = stock.range(Keys::prefix("app")).await?;
//! while let Some(pair) = pairs.next().await {
//!     println!("{:?}", pair?.key);
//! }
//!
//! let sold = client
//!     .transaction()
//!     .if_value("stock", "apples", "12")
//!     .put("stock", "apples", "11")
//!     .publish("orders", "one apple")
//!     .commit()
//!     .await?;
//! assert!(sold.succeeded);
//!
//! let mut orders = client.topic("orders").subscribe(Start::Earliest).await?;
//! let order = orders.next().await.expect("a subscription goes on")?;
//! assert_eq!((order.offset, &order.payload[..]), (0, &b"one apple"[..]));
//!
//! // A tree has paths with revisions. Conditions on its nodes, maps and topics are in one commit.
//! client.create_tree("config").await?;
//! let config = client.tree("config");
//! let mut watch = config.watch(WatchNodes::new(Nodes::subtree("web"))).await?;
//! config.put(NodePut::new("web/port", "80").create()).await?;
//! let changed = client
//!     .transaction()
//!     .if_node("config", "web/port", NodeCondition::payload("80"))
//!     .put_node("config", NodePut::new("web/port", "443"))
//!     .publish("orders", "another port")
//!     .commit()
//!     .await?;
//! assert!(changed.succeeded);
//! let event = watch.next().await.expect("a watch goes on")?;
//! assert_eq!((event.revision, event.node.unwrap().payload), (2, "80".into()));
//!
//! // The members of a group share the messages, and acknowledge each with its effects.
//! let packers = client.topic("orders").group("packers");
//! packers.create(Start::Earliest, GroupOptions::new()).await?;
//! let mut member = packers.join("worker 1").await?;
//! let deliveries = member.receive().await.expect("a member goes on")?;
//! client
//!     .transaction()
//!     .put("stock", "packed", "1")
//!     .acknowledge(&deliveries, &[])
//!     .commit()
//!     .await?;
//! # Ok::<(), duramen_client::Error>(())
//! # }).unwrap();
//! # drop(runtime);
//! # server.stop().unwrap();
//! ```
//!
//! # Retries and deadlines
//! A call repeats itself until its deadline when the connection breaks, the server is unavailable, or its queue is full.
//! The client gives each write a random idempotency key, so a repeated write takes effect once. Exceptions:
//! - A write at [`Acknowledge::Memory`] is not repeated once the client has sent it.
//! - A [`Publisher`] and the [`Pairs`] of a range end with an error when the connection breaks.
//! - A [`Subscription`] has no deadline. It resumes at the next offset.
//! - A [`Watch`] and a [`NodeWatch`] have no deadline. They resume behind the last change.
//! - An [`Exporting`], the [`Differences`] of two checkpoints, and the [`SelectedNodes`] and [`Children`] of a tree, end with an error when the connection breaks.
//! - A [`Member`] has no deadline. It resumes its session, and keeps what it has not settled.
//!
//! # Modules
//! ```text
//! error         kinds of errors, and what a status of the server means
//! options       options of writes, ranges of keys, messages
//! tls           the PEM files of a client, and an encrypted endpoint
//! call          one call: pooled connections, deadline, retries
//! differences   the stream of pairs that differ between two checkpoints
//! exporting     the stream that tells how far an export is
//! client        Client: its settings, and how it sends requests
//! parts         long values, in parts
//! map           reads and writes of one map
//! publisher     the pipelined stream of messages to one topic
//! following     streams that go on after a break
//! subscription  the stream of messages from one topic
//! watch         the stream of changes of one map
//! nodes         selections of nodes of a tree, conditions and puts
//! node_watch    the stream of changes of one tree
//! tree          the calls on one tree
//! group         the calls on one group of a topic
//! member        a member of a group: deliveries, and settling them
//! joining       getting messages of a group: once, or as a member
//! topic         the calls on one topic
//! transaction   several changes in one commit
//! store_calls   the calls on maps, topics and trees as a whole, and on the store
//! ```

mod error;
mod options;
mod tls;

mod call;
mod differences;
mod exporting;

mod client;

mod following;
mod parts;

mod map;
mod publisher;
mod subscription;
mod watch;

mod node_watch;
mod nodes;
mod tree;

mod group;
mod member;

mod joining;
mod topic;
mod transaction;

mod store_calls;

pub use client::{Builder, Client};
pub use differences::Differences;
pub use duramen_proto::v1::{
    Acknowledge, CheckResponse as CheckReport, Checkpoint, CheckpointDifference, Child, CompactResponse as Compaction,
    CopyResponse as Copied, DescribeTopicResponse as TopicDescription, DescribeTreeResponse as TreeDescription, Export,
    ExportResponse as ExportProgress, GroupDescription, KeepChanges, NodeEvent, Pair, PendingMessage,
    PutNodeResponse as StoredNode, RedriveResponse as Redriven, StatisticsResponse as Statistics, TopicOptions,
    TreeLease, TreeNode, TreeProjection, TreeQuota, TreeRule, TreeStatistics, TreeTrigger, WatchInfo, tree_rule::Rule,
};
pub use error::{Error, ErrorKind, Result};
pub use exporting::Exporting;
pub use group::{Group, GroupOptions};
pub use joining::Fetched;
pub use map::{Map, Page, PageToken, Pairs};
pub use member::{Deliveries, Delivery, Member, MemberOptions};
pub use node_watch::{NodeWatch, WatchNodes};
pub use nodes::{Compare, NodeCondition, NodePut, Nodes};
pub use options::{Keys, Message, Range, Start, WriteOptions};
pub use parts::Parts;
pub use prost::bytes::Bytes;
pub use publisher::{Publisher, Ticket};
pub use subscription::{Received, Subscription};
pub use tls::TlsOptions;
pub use topic::Topic;
pub use transaction::{Committed, OperationResult, Transaction};
pub use tree::{Children, ReadNodes, SelectedNodes, Tree};
pub use watch::{Changed, Watch, WatchStart, Watched};
