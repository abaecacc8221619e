//! The trees, one file each. `duramen` and `null` have their drivers among the peers, and `duramen-grpc` among the
//! brokers.

pub mod duramen;
pub mod etcd;
pub mod faulty;
pub mod faulty_etcd;
pub mod grpc;
mod nats_kv;
pub mod pairs;
mod redis;

use crate::peer::Driver;

/// Trees that are neither stores nor brokers, in the order of the reports.
pub const ALL: &[&dyn Driver] = &[&etcd::DuramenEtcd, &etcd::Etcd, &redis::Redis, &nats_kv::NatsKv];
