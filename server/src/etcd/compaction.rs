//! Compacts the tree by itself, where its operator wants that: by time, or by the number of revisions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use duramen_proto::command::tree_command::Change as OfTree;
use tonic::Status;

use super::EtcdDoor;
use crate::command::of_etcd;
use crate::config::EtcdRetention;
use crate::error::failed;

/// How often a tree that keeps a number of revisions is compacted.
const BY_REVISIONS: Duration = Duration::from_secs(300);
const HOUR: Duration = Duration::from_secs(3_600);
/// Looks for each time that is kept, or for each hour of a longer one.
const LOOKS: u32 = 10;
const LOOK_MIN: Duration = Duration::from_millis(100);

/// Compacts as the configuration says, as long as the server runs. What fails is tried again at the next look.
pub(crate) async fn compact_by_itself(door: Option<EtcdDoor>) {
    let retention = door.as_ref().map_or(EtcdRetention::All, |door| door.config().retention);
    let (Some(door), false) = (door, retention == EtcdRetention::All) else {
        return std::future::pending().await;
    };
    let mut samples = VecDeque::new();
    loop {
        let pause = match retention {
            EtcdRetention::Time(kept) => (kept.min(HOUR) / LOOKS).max(LOOK_MIN),
            EtcdRetention::All | EtcdRetention::Revisions(_) => BY_REVISIONS,
        };
        tokio::time::sleep(pause).await;
        if let Err(status) = look(&door, retention, &mut samples).await {
            tracing::warn!(%status, "the tree of etcd's clients could not be compacted");
        }
    }
}

async fn look(door: &EtcdDoor, retention: EtcdRetention, samples: &mut VecDeque<(Instant, u64)>) -> Result<(), Status> {
    let view = door.view()?;
    let newest = view.revision();
    let first = view.first_revision().map_err(|error| of_etcd(failed(&error)))?;
    drop(view);
    let revision = match retention {
        EtcdRetention::All => None,
        EtcdRetention::Revisions(kept) => newest.checked_sub(kept),
        EtcdRetention::Time(kept) => {
            samples.push_back((Instant::now(), newest));
            let mut old = None;
            while let Some((at, revision)) = samples.front().copied().filter(|(at, _)| at.elapsed() >= kept) {
                old = Some((at, revision));
                samples.pop_front();
            }
            old.map(|(_, revision)| revision)
        }
    };
    if let Some(revision) = revision.filter(|revision| *revision > first) {
        door.change(OfTree::Compact(revision)).await?;
        tracing::debug!(revision, "compacted");
    }
    Ok(())
}
