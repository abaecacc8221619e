//! The gRPC messages and services of Duramen, generated from the `.proto` files beside this crate.
//!
//! Programs use the `duramen-client` crate; this one is for those who write a client or a proxy of their own.

#[allow(
    missing_docs,
    clippy::all,
    reason = "generated; the documentation is in the .proto files"
)]
mod duramen {
    pub mod v1 {
        tonic::include_proto!("duramen.v1");
    }
    pub mod command {
        pub mod v1 {
            tonic::include_proto!("duramen.command.v1");
        }
    }
}

/// What servers store and exchange, package `duramen.command.v1`.
pub use duramen::command::v1 as command;
/// The public services, package `duramen.v1`.
pub use duramen::v1;

/// The descriptors of all files, for reflection and for tools such as grpcurl.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
