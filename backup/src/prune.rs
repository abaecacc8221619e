//! Removing old exports.
//!
//! In two phases: first the manifests that the policy does not keep and that no kept export needs, the newest of them first. So no
//! chain is ever without its beginning, wherever this is interrupted. Then the packs that no manifest names. A pack that is young
//! stays: an export that is under way may have just sent it.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio_stream::StreamExt;

use crate::error::{BackupError, Result};
use crate::manifest::{Export, export_path, pack_name};
use crate::target::Backup;

/// Which exports stay.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    last: usize,
    within: Duration,
    grace: Duration,
}

impl Policy {
    /// Keeps the newest exports, of this number, and at least one. What they go on from stays too.
    pub fn keep_last(exports: usize) -> Policy {
        Policy {
            last: exports.max(1),
            within: Duration::ZERO,
            grace: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// Keeps those as well that are not older.
    pub fn keep_within(mut self, age: Duration) -> Policy {
        self.within = age;
        self
    }

    /// How old a pack must be that no export names before it goes. No export may take longer than that; it is two hours at least.
    /// Default: a day.
    pub fn grace(mut self, age: Duration) -> Policy {
        self.grace = age.max(GRACE_LEAST);
        self
    }
}

/// An export sends a pack again that is an hour old, see `export`. So it has another hour.
const GRACE_LEAST: Duration = Duration::from_secs(2 * 60 * 60);

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Numbers of the exports that are gone.
    pub exports: Vec<u64>,
    /// Packs that are gone.
    pub packs: u64,
    /// Bytes of these packs.
    pub bytes: u64,
    /// Exports that are left.
    pub kept: u64,
}

impl Backup {
    /// Removes the exports that a policy does not keep, and the packs that no export needs then.
    ///
    /// # Errors
    /// [`BackupError::NoExports`], [`BackupError::Object`], [`BackupError::Damaged`] and [`BackupError::NewerFormat`]: when a
    /// manifest cannot be read, nothing is removed.
    pub fn prune(&self, policy: Policy, progress: &mut dyn FnMut(&Pruned)) -> Result<Pruned> {
        self.runtime
            .block_on(self.prune_async(policy, SystemTime::now(), progress))
    }

    async fn prune_async(&self, policy: Policy, now: SystemTime, progress: &mut dyn FnMut(&Pruned)) -> Result<Pruned> {
        self.identity().await?.ok_or_else(|| BackupError::NoExports {
            place: self.place.clone(),
        })?;
        // Before the manifests are read: what an export sends from here on is younger than the grace.
        let old_packs = self
            .packs_before(now.checked_sub(policy.grace).unwrap_or(UNIX_EPOCH))
            .await?;
        let exports = self.exports().await?;
        let kept = kept(&exports, policy, now);
        let mut pruned = Pruned {
            kept: kept.len() as u64,
            ..Pruned::default()
        };
        for export in exports.iter().rev().filter(|export| !kept.contains(&export.number)) {
            self.delete(&export_path(export.number)).await?;
            pruned.exports.push(export.number);
            progress(&pruned);
        }
        // Exports that came meanwhile count as well.
        let exports = self.exports().await?;
        let named: HashSet<&str> = exports
            .iter()
            .flat_map(|export| &export.packs)
            .map(|pack| &pack.sha256[..])
            .collect();
        for (name, path, bytes) in old_packs.iter().filter(|(name, ..)| !named.contains(&name[..])) {
            self.delete(path).await?;
            pruned.packs += 1;
            pruned.bytes += bytes;
            let _ = name;
            progress(&pruned);
        }
        Ok(pruned)
    }

    async fn packs_before(&self, time: SystemTime) -> Result<Vec<(String, Path, u64)>> {
        let mut packs = Vec::new();
        let mut objects = self.objects.list(Some(&Path::from("packs")));
        while let Some(object) = objects.next().await {
            match object {
                Ok(object) if SystemTime::from(object.last_modified) < time => {
                    if let Some(name) = pack_name(&object.location) {
                        packs.push((name, object.location, object.size));
                    }
                }
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    return Err(BackupError::object(format!("listing the packs at {}", self.place))(
                        error,
                    ));
                }
            }
        }
        Ok(packs)
    }

    async fn delete(&self, path: &Path) -> Result<()> {
        match self.objects.delete(path).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            deleted => deleted.map_err(self.failed("deleting", path)),
        }
    }
}

/// The numbers of the exports that stay: those that the policy keeps, and all that these go on from.
fn kept(exports: &[Export], policy: Policy, now: SystemTime) -> HashSet<u64> {
    let oldest_ms = now
        .duration_since(UNIX_EPOCH + policy.within)
        .unwrap_or_default()
        .as_millis() as u64;
    let newest = exports.len().saturating_sub(policy.last);
    let mut kept = HashSet::new();
    let mut needed = HashSet::new();
    for (place, export) in exports.iter().enumerate().rev() {
        let is_kept = place >= newest || !policy.within.is_zero() && export.created_ms >= oldest_ms;
        if is_kept || needed.contains(&export.number) {
            kept.insert(export.number);
            needed.extend(export.parent.as_ref().map(|parent| parent.number));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Parent;

    fn export(number: u64, parent: Option<u64>) -> Export {
        Export {
            format: 1,
            number,
            id: String::new(),
            store: String::new(),
            commit: 0,
            created_ms: number * 1_000,
            metadata: String::new(),
            parent: parent.map(|number| Parent {
                number,
                id: String::new(),
            }),
            depth: 0,
            pairs: 0,
            digest: String::new(),
            next_map: 2,
            packs: Vec::new(),
        }
    }

    #[test]
    fn what_kept_exports_go_on_from_is_kept() {
        let exports = [
            export(1, None),
            export(2, Some(1)),
            export(3, None),
            export(4, Some(3)),
            export(5, Some(4)),
            export(6, None),
        ];
        let now = UNIX_EPOCH + Duration::from_secs(7);
        let numbers = |policy: Policy| {
            let mut numbers: Vec<_> = kept(&exports, policy, now).into_iter().collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(numbers(Policy::keep_last(0)), [6]);
        assert_eq!(numbers(Policy::keep_last(2)), [3, 4, 5, 6]);
        assert_eq!(numbers(Policy::keep_last(9)), [1, 2, 3, 4, 5, 6]);
        assert_eq!(
            numbers(Policy::keep_last(1).keep_within(Duration::from_secs(3))),
            [3, 4, 5, 6]
        );
        assert_eq!(
            numbers(Policy::keep_last(1).keep_within(Duration::from_secs(5))),
            [1, 2, 3, 4, 5, 6]
        );
        assert_eq!(Policy::keep_last(1).grace(Duration::ZERO).grace, GRACE_LEAST);
    }
}
