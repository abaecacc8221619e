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

macro_rules! package_of_etcd {
    ($name:ident) => {
        #[allow(
            missing_docs,
            clippy::all,
            rustdoc::all,
            reason = "generated; the documentation is in the .proto files"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
        }
    };
}

// The generated code of a package looks for the others beside it.
package_of_etcd!(authpb);
package_of_etcd!(etcdserverpb);
package_of_etcd!(mvccpb);
package_of_etcd!(v3electionpb);
package_of_etcd!(v3lockpb);

/// The messages and services of etcd 3.7, from its own `.proto` files.
pub mod etcd {
    pub use crate::etcdserverpb as server;
    pub use crate::mvccpb as kv;
    pub use crate::v3electionpb as election;
    pub use crate::v3lockpb as lock;
}

/// What servers store and exchange, package `duramen.command.v1`.
pub use duramen::command::v1 as command;
/// The public services, package `duramen.v1`.
pub use duramen::v1;

/// The descriptors of all files, for reflection and for tools such as grpcurl.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
