//! Streams a snapshot file as etcd does: messages of 32 KiB, and a last one with the SHA-256 of all bytes.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use duramen::tree::TreeView;
use duramen_proto::etcd::server::{ResponseHeader, SnapshotResponse};
use prost::bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tonic::Status;

use super::save::{Origin, SaveError, save};
use crate::command::of_etcd;
use crate::error::failed;
use crate::etcd::{ETCD_VERSION, EtcdDoor};

const MESSAGE_BYTES: u64 = 32 << 10;

/// A snapshot that a client asked for.
struct Snapshot {
    view: TreeView,
    header: ResponseHeader,
    origin: Origin,
    directory: PathBuf,
}

impl EtcdDoor {
    /// Writes a snapshot of the tree to a file, and sends it. A thread of its own does it, which ends early when the receiver of
    /// the messages goes away.
    pub(in crate::etcd) fn send_snapshot(
        &self,
        messages: mpsc::Sender<SnapshotResponse>,
    ) -> Result<tokio::task::JoinHandle<Result<(), Status>>, Status> {
        let view = self.view()?;
        let figures = self.state().store.stat().map_err(|error| of_etcd(failed(&error)))?;
        let snapshot = Snapshot {
            header: self.header(view.revision()),
            view,
            origin: Origin {
                member_id: self.0.member_id,
                commit: figures.commit,
            },
            directory: self.0.directory.clone(),
        };
        Ok(tokio::task::spawn_blocking(move || snapshot.send(&messages)))
    }
}

impl Snapshot {
    fn send(self, messages: &mpsc::Sender<SnapshotResponse>) -> Result<(), Status> {
        let saved = save(&self.view, self.origin, &self.directory, &|| messages.is_closed());
        // The view keeps space of the store, and a client may be slow.
        drop(self.view);
        let sent = saved.and_then(|file| send_file(file, &self.header, messages));
        match sent {
            Ok(()) | Err(SaveError::Gone) => Ok(()),
            Err(SaveError::Store(error)) => Err(of_etcd(failed(&error))),
            Err(SaveError::File(error)) => Err(Status::internal(SaveError::File(error).to_string())),
        }
    }
}

fn send_file(
    mut file: File,
    header: &ResponseHeader,
    messages: &mpsc::Sender<SnapshotResponse>,
) -> Result<(), SaveError> {
    let mut remaining_bytes = file.metadata()?.len();
    tracing::info!(
        bytes = remaining_bytes,
        revision = header.revision,
        "sending a snapshot"
    );
    let send = |remaining_bytes, blob: Vec<u8>| {
        let message = SnapshotResponse {
            header: Some(*header),
            remaining_bytes,
            blob: Bytes::from(blob),
            version: ETCD_VERSION.into(),
        };
        messages.blocking_send(message).map_err(|_| SaveError::Gone)
    };
    let mut hash = Sha256::new();
    while remaining_bytes > 0 {
        let mut blob = vec![0; remaining_bytes.min(MESSAGE_BYTES) as usize];
        file.read_exact(&mut blob)?;
        hash.update(&blob);
        remaining_bytes -= blob.len() as u64;
        send(remaining_bytes, blob)?;
    }
    send(0, hash.finalize().to_vec())
}
