//! Removing old exports.
//!
//! In three phases: first the manifests that the policy does not keep and that no kept export needs, the newest of them first. So no
//! chain is ever without its beginning, wherever this is interrupted. Then the logs of exports that are gone. Then the packs that no manifest names. A pack that is young
//! stays: an export that is under way may have just sent it.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

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
    /// Segments of logs that are gone: a log goes with its export.
    pub segments: u64,
    /// Bytes of these packs and segments.
    pub bytes: u64,
    /// Exports that are left.
    pub kept: u64,
}

/// A pack that is as old as the grace.
struct OldPack {
    name: String,
    object: ObjectMeta,
}

impl Backup {
    /// Removes the exports that a policy does not keep, with their logs, and the packs that no export needs then.
    ///
    /// # Errors
    /// [`BackupError::NoExports`], [`BackupError::Object`], [`BackupError::Damaged`] and [`BackupError::NewerFormat`]: when a
    /// manifest cannot be read, nothing is removed.
    pub fn prune(&self, policy: Policy, progress: &mut dyn FnMut(&Pruned)) -> Result<Pruned> {
        self.runtime()
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
        // Before the manifests as well: each of them had its export, unless that is gone.
        let segments = self.segments(None).await?;
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
        let left: HashSet<u64> = exports.iter().map(|export| export.number).collect();
        for (_, _, object) in segments.iter().filter(|(export, ..)| !left.contains(export)) {
            self.delete(&object.location).await?;
            pruned.segments += 1;
            pruned.bytes += object.size;
            progress(&pruned);
        }
        let named: HashSet<&str> = exports
            .iter()
            .flat_map(|export| &export.packs)
            .map(|pack| &pack.blake3[..])
            .collect();
        for old in old_packs.iter().filter(|old| !named.contains(&old.name[..])) {
            if !self.is_as_listed(old).await? {
                continue;
            }
            self.delete(&old.object.location).await?;
            pruned.packs += 1;
            pruned.bytes += old.object.size;
            progress(&pruned);
        }
        Ok(pruned)
    }

    /// Whether a pack was not sent again since. If it was, the export that sent it has no manifest yet.
    async fn is_as_listed(&self, old: &OldPack) -> Result<bool> {
        match self.objects.head(&old.object.location).await {
            Ok(found) => Ok(found.last_modified == old.object.last_modified),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed("looking at", &old.object.location)(error)),
        }
    }

    async fn packs_before(&self, time: SystemTime) -> Result<Vec<OldPack>> {
        let mut packs = Vec::new();
        let mut objects = self.objects.list(Some(&Path::from("packs")));
        while let Some(object) = objects.next().await {
            match object {
                Ok(object) if SystemTime::from(object.last_modified) < time => {
                    if let Some(name) = pack_name(&object.location) {
                        packs.push(OldPack { name, object });
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
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_sub(policy.within)
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
    use std::panic::AssertUnwindSafe;
    use std::sync::Arc;

    use object_store::PutPayload;
    use object_store::memory::InMemory;

    use super::*;
    use crate::chain::Moment;
    use crate::export::ExportOptions;
    use crate::manifest::Parent;

    fn export(number: u64, parent: Option<u64>) -> Export {
        Export {
            format: 2,
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
            full: 1,
            pairs: 0,
            digest: String::new(),
            next_map: 2,
            packs: Vec::new(),
            check: String::new(),
        }
    }

    /// Wherever it is interrupted, each export that is listed can be proven, and a later call ends the work.
    #[test]
    fn a_prune_that_is_interrupted_breaks_no_chain() {
        let directory = tempfile::tempdir().unwrap();
        let store = duramen::Store::open(directory.path()).unwrap();
        let map = store.map("map").unwrap();
        for stop in 0.. {
            let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
            for number in 1..=9u64 {
                map.put("key", number.to_be_bytes()).unwrap();
                let options = ExportOptions::new().full(number % 3 == 1);
                backup.export(&store, &options, &mut |_| ()).unwrap();
            }
            let later = SystemTime::now() + Duration::from_secs(48 * 60 * 60);
            let mut steps = 0;
            let mut prune = |backup: &Backup, stop: u64| {
                steps = 0;
                let mut count = |_: &Pruned| {
                    assert!(steps < stop, "interrupted");
                    steps += 1;
                };
                let pruned = backup.prune_async(Policy::keep_last(2), later, &mut count);
                std::panic::catch_unwind(AssertUnwindSafe(|| backup.runtime().block_on(pruned)))
            };
            let interrupted = prune(&backup, stop);
            for export in backup.list().unwrap() {
                backup.verify(Moment::Export(export.number), &mut |_| ()).unwrap();
            }
            let is_over = interrupted.is_ok();
            let pruned = interrupted
                .unwrap_or_else(|_| prune(&backup, u64::MAX).unwrap())
                .unwrap();
            let numbers: Vec<u64> = backup.list().unwrap().iter().map(|export| export.number).collect();
            // Export 8 goes on from export 7.
            assert_eq!((numbers, pruned.kept), (vec![7, 8, 9], 3));
            let packs = backup.runtime().block_on(backup.packs_before(later)).unwrap();
            assert_eq!(packs.len(), 3);
            // What is left goes on.
            map.put("key", "more").unwrap();
            backup.export(&store, &ExportOptions::new(), &mut |_| ()).unwrap();
            backup.verify(Moment::Newest, &mut |_| ()).unwrap();
            if is_over {
                assert_eq!((pruned.exports, pruned.packs), (vec![6, 5, 4, 3, 2, 1], 6));
                break;
            }
        }
    }

    /// An export that is under way may have just sent them.
    #[test]
    fn young_packs_stay() {
        let directory = tempfile::tempdir().unwrap();
        let store = duramen::Store::open(directory.path()).unwrap();
        store.map("map").unwrap().put("key", "value").unwrap();
        let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
        backup.export(&store, &ExportOptions::new(), &mut |_| ()).unwrap();
        let stray = PutPayload::from(vec![1; 10]);
        let path = crate::manifest::pack_path(&"a".repeat(64));
        backup.runtime().block_on(backup.objects.put(&path, stray)).unwrap();
        let at = |hours: u64| {
            let now = SystemTime::now() + Duration::from_secs(hours * 60 * 60);
            let mut quiet = |_: &Pruned| ();
            let pruned = backup.prune_async(Policy::keep_last(1), now, &mut quiet);
            backup.runtime().block_on(pruned).unwrap().packs
        };
        assert_eq!([at(0), at(23), at(25), at(25)], [0, 0, 1, 0]);
    }

    /// An export that is under way sends an old pack again. Its manifest comes after the packs were listed and looked at.
    #[test]
    fn a_pack_that_is_sent_again_beside_a_prune_stays() {
        let directory = tempfile::tempdir().unwrap();
        let store = duramen::Store::open(directory.path()).unwrap();
        let map = store.map("map").unwrap();
        let backup = Backup::over(Arc::new(InMemory::new()), "memory").unwrap();
        for value in ["one", "two"] {
            map.put("key", value).unwrap();
            let full = ExportOptions::new().full(true);
            backup.export(&store, &full, &mut |_| ()).unwrap();
        }
        let path = crate::manifest::pack_path(&backup.list().unwrap()[0].packs[0].blake3);
        let runtime = backup.runtime().handle();
        let again = || {
            let got = runtime.block_on(backup.read(&path)).unwrap();
            runtime
                .block_on(backup.objects.put(&path, PutPayload::from(got)))
                .unwrap();
        };
        let mut send = |now: &Pruned| {
            if now.exports == [1] && now.packs == 0 {
                std::thread::scope(|scope| scope.spawn(again).join().unwrap());
            }
        };
        let later = SystemTime::now() + Duration::from_secs(48 * 60 * 60);
        let prune = |send: &mut dyn FnMut(&Pruned)| {
            let pruned = backup.prune_async(Policy::keep_last(1), later, send);
            runtime.block_on(pruned).unwrap()
        };
        let pruned = prune(&mut send);
        assert_eq!((&pruned.exports[..], pruned.packs), (&[1][..], 0));
        runtime.block_on(backup.objects.head(&path)).unwrap();
        assert_eq!(prune(&mut |_| ()).packs, 1);
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
