//! Generates the messages and services from the `.proto` files, without tools outside of cargo.

use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const FILES: &[&str] = &[
    "duramen/v1/common.proto",
    "duramen/v1/maps.proto",
    "duramen/v1/watch.proto",
    "duramen/v1/groups.proto",
    "duramen/v1/topics.proto",
    "duramen/v1/trees.proto",
    "duramen/v1/transactions.proto",
    "duramen/v1/admin.proto",
    "etcd/api/mvccpb/kv.proto",
    "etcd/api/authpb/auth.proto",
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/server/v3lockpb/v3lock.proto",
    "etcd/server/v3electionpb/v3election.proto",
    "duramen/command/v1/command.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    FILES.iter().for_each(|file| println!("cargo::rerun-if-changed={file}"));
    let descriptors = protox::compile(FILES, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Bytes of requests and responses are shared, not copied.
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
