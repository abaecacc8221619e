//! The brokers, one file each. Brokers that are also stores have their driver among the peers.

pub mod channels;
pub mod duramen;
pub mod faulty;
pub mod grpc;
mod nats;
pub mod null;
mod redis;

use crate::peer::Driver;
use crate::servers::grpc::Shape;

/// Brokers that are not stores, in the order of the reports.
pub const ALL: &[&dyn Driver] = &[
    &channels::Channels,
    &grpc::DuramenGrpc(Shape::Together),
    &grpc::DuramenGrpc(Shape::Apart),
    &grpc::DuramenGrpc(Shape::Spinning),
    &grpc::TonicFloor(Shape::Together),
    &grpc::TonicFloor(Shape::Apart),
    &grpc::TonicFloor(Shape::Spinning),
    &nats::Core,
    &nats::JetStream,
    &redis::Streams,
    &redis::PubSub,
];
