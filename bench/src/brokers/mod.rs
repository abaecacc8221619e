//! The brokers, one file each. Brokers that are also stores have their driver among the peers.

pub mod channels;
pub mod duramen;
pub mod faulty;
pub mod grpc;
mod nats;
pub mod null;
mod redis;
pub mod server;

use crate::peer::Driver;

/// Brokers that are not stores, in the order of the reports.
pub const ALL: &[&dyn Driver] = &[
    &channels::Channels,
    &grpc::DuramenGrpc(grpc::Shape::Together),
    &grpc::DuramenGrpc(grpc::Shape::Apart),
    &grpc::TonicFloor(grpc::Shape::Together),
    &grpc::TonicFloor(grpc::Shape::Apart),
    &nats::Core,
    &nats::JetStream,
    &redis::Streams,
    &redis::PubSub,
];
