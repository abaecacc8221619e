//! `duramen etcd import`: fills a tree with the keys and leases of an etcd.
//!
//! The source is checked as a whole before the first write. Then batches of keys go to the new tree, oldest revision first, and
//! both sides are read again and compared. A failure deletes the tree.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use duramen::tree::{LeaseChange, PATH_BYTES_MAX, PAYLOAD_BYTES_MAX, Tree, Trees, TreesOptions};
use duramen::{Durability, Options, Store, TransactionOptions};
use duramen_proto::etcd::kv::KeyValue;
use duramen_server::EtcdImport;
use serde_json::json;

use super::source::{Credentials, Source};
use crate::exit::{Exit, Failure, Outcome};
use crate::opening::StoreArguments;
use crate::output::{Output, say};
use crate::progress::Meter;
use crate::text::{Notation, counted};

const EXAMPLES: &str = r"Examples:
  A store of what `etcdctl snapshot save snapshot.db` has saved:
    $ duramen etcd import snapshot.db default.etcd
  Of a running etcd, into another tree:
    $ duramen etcd import http://127.0.0.1:2379 moved.etcd --tree config --json
  Of an etcd with TLS and users:
    # duramen etcd import https://10.0.0.7:2379 default.etcd --cacert ca.pem --user root:PASSWORD

The file is checked before anything is written: its SHA-256, its pages and its rows. A copy of the
file member/snap/db has no SHA-256. The store must not have the tree yet. A failure deletes it. A
kill leaves a part of it, which no server serves: the next import deletes it and begins again.

Keys, values and leases are imported, and then compared with the source. History, users and roles
are not. Revisions begin again: each key is as if created by the import, in the order of the
revisions that changed the keys last. Versions begin at 1. Each lease has its whole time again, and
3 seconds at least. From a running etcd, all keys are of one revision.";

/// Keys and bytes of a commit.
const BATCH_KEYS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;
/// Leases of a commit.
const BATCH_LEASES: usize = 256;
/// The clock of a tree may run two seconds ahead between two commits.
const TTL_MIN: i64 = 3;
const TTL_MAX: i64 = 9_000_000_000;
/// No import takes as long as leases that are not shorter.
const SHORT: Duration = Duration::from_secs(24 * 3_600);

/// Fill a tree with the keys and leases of an etcd
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Import {
    /// A snapshot file, a copy of member/snap/db, or the URL of an etcd: http://HOST:PORT or https://HOST:PORT
    from: String,

    #[command(flatten)]
    store: StoreArguments,

    /// The tree, which must not exist yet
    #[arg(long, value_name = "TREE", default_value = "etcd")]
    tree: String,

    #[command(flatten)]
    credentials: Credentials,
}

/// What an import did.
#[derive(Default)]
struct Imported {
    keys: u64,
    bytes: u64,
    /// Keys whose leases the file does not have. They have none now.
    without_lease: u64,
    /// Keys whose leases ended while a running etcd was read.
    left_out: u64,
    revision: u64,
}

/// A pair that waits for its commit, with its lease.
type Waiting = (KeyValue, i64);

impl Import {
    pub fn run(self, output: &mut Output) -> Outcome {
        let source = Source::open(&self.from, &self.credentials, &beside(&self.store.directory))?;
        check(&source)?;
        let options = Options::new().durability(Durability::Written);
        let store = self.store.open_or_create(options)?;
        // So no lease ends during the import, unless another process has the store open: short ones are kept alive.
        let trees = Trees::open_with(&store, TreesOptions::new().background(false))?;
        let Some(import) = EtcdImport::begin(&store, &trees, &self.tree)? else {
            let message = format!("the store has a tree {:?} already; nothing was imported", self.tree);
            return Err(Failure::wrong_call(message).hint("name another tree with --tree, or another directory"));
        };
        let filled = fill(&store, &trees, &self.tree, &source).and_then(|imported| match import.finish(&store)? {
            true => Ok(imported),
            false => Err(Failure::wrong_call("another import has begun again with this tree")),
        });
        let imported = match filled {
            Ok(imported) => imported,
            Err(failure) => {
                let hint = match import.undo(&store, &trees) {
                    Ok(()) => "the tree was deleted again: nothing was imported".to_string(),
                    Err(error) => format!(
                        "a part of the tree is left, because it cannot be deleted: {error}; another import begins again"
                    ),
                };
                return Err(failure.hint(hint));
            }
        };
        drop(trees);
        store.close()?;
        self.report(&source, &imported, output)?;
        Ok(Exit::Done)
    }

    fn report(&self, source: &Source, imported: &Imported, output: &mut Output) -> Outcome<()> {
        if output.is_json {
            return output.json(&json!({
                "tree": self.tree,
                "keys": imported.keys,
                "bytes": imported.bytes,
                "leases": source.leases.len(),
                "keys_without_lease": imported.without_lease,
                "keys_left_out": imported.left_out,
                "source_revision": source.revision,
                "revision": imported.revision,
            }));
        }
        output.line(format_args!(
            "imported {} and {} into the tree {:?}, and compared them",
            counted(imported.keys, "key"),
            counted(source.leases.len() as u64, "lease"),
            self.tree
        ))?;
        output.line(format_args!(
            "revisions begin again: the newest is {}, and was {}",
            imported.revision, source.revision
        ))?;
        if imported.without_lease > 0 {
            let keys = counted(imported.without_lease, "key");
            say(format_args!(
                "{keys} had leases that the file does not have; they have none now"
            ));
        }
        if imported.left_out > 0 {
            let keys = counted(imported.left_out, "key");
            say(format_args!(
                "{keys} were left out, because their leases ended meanwhile"
            ));
        }
        Ok(())
    }
}

/// A directory on the disk of a store that may not exist yet.
fn beside(store: &Path) -> PathBuf {
    let mut parents = store.ancestors().skip(1);
    parents
        .find(|parent| parent.is_dir())
        .map_or_else(|| ".".into(), Path::to_path_buf)
}

/// Refuses what a tree cannot hold.
fn check(source: &Source) -> Outcome<()> {
    for (id, ttl) in &source.leases {
        if *id == 0 || !(1..=TTL_MAX).contains(ttl) {
            let message = format!("the lease {id:x} of {ttl} seconds cannot be imported");
            return Err(Failure::wrong_call(message).hint("a lease has an id, and 1 to 9,000,000,000 seconds"));
        }
    }
    let mut meter = Meter::new("checking", "keys");
    let mut checked = 0;
    source.each_in_order(|pair| {
        checked += 1;
        meter.update(checked, source.keys);
        let zeros = pair.key.iter().filter(|byte| **byte == 0).count();
        let cause = match (pair.key.len() + zeros, pair.value.len()) {
            (bytes, _) if bytes > PATH_BYTES_MAX => {
                "its key is longer than 1,000 bytes, of which a byte 0 counts twice"
            }
            (_, bytes) if bytes > PAYLOAD_BYTES_MAX => "its value is larger than 64 MiB",
            _ => return Ok(()),
        };
        let message = format!("{} cannot be imported: {cause}", shown(&pair.key));
        Err(Failure::wrong_call(message).hint("delete it in etcd, and import again; nothing was imported"))
    })
}

/// Fills a new tree, and compares it with the source.
fn fill(store: &Store, trees: &Trees, name: &str, source: &Source) -> Outcome<Imported> {
    let tree = trees.get(name)?;
    let tree = tree.ok_or_else(|| Failure::wrong_call(format!("another process has deleted the tree {name:?}")))?;
    grant(&tree, source)?;
    let mut short = ShortLeases::of(&tree, source);
    let mut imported = Imported::default();
    let mut meter = Meter::new("importing", "keys");
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    source.each_in_order(|pair| {
        let Some(lease) = source.lease_of(&pair) else {
            imported.left_out += 1;
            return Ok(());
        };
        imported.keys += 1;
        imported.without_lease += u64::from(lease != pair.lease);
        let bytes = pair.key.len() + pair.value.len();
        imported.bytes += bytes as u64;
        batch_bytes += bytes;
        batch.push((pair, lease));
        if batch.len() >= BATCH_KEYS || batch_bytes >= BATCH_BYTES {
            short.keep_alive()?;
            commit(store, &tree, &batch)?;
            batch.clear();
            batch_bytes = 0;
            meter.update(imported.keys, source.keys);
        }
        Ok(())
    })?;
    commit(store, &tree, &batch)?;
    drop(meter);
    compare(&tree, source, &imported, &mut short)?;
    imported.revision = tree.revision()?;
    Ok(imported)
}

/// Grants the leases, the shortest last: time passes meanwhile.
fn grant(tree: &Tree, source: &Source) -> Outcome<()> {
    let mut leases: Vec<_> = source.leases.iter().collect();
    leases.sort_by_key(|(_, ttl)| std::cmp::Reverse(**ttl));
    for batch in leases.chunks(BATCH_LEASES) {
        tree.transact(|writes| {
            for (id, ttl) in batch {
                writes.grant_lease(**id as u64, granted(**ttl))?;
            }
            Ok::<_, duramen::Error>(())
        })?;
    }
    Ok(())
}

/// Leases that could end while the tree is filled, because another process has the store open.
struct ShortLeases<'t> {
    tree: &'t Tree,
    ids: Vec<u64>,
    every: Duration,
    renewed: Instant,
}

impl<'t> ShortLeases<'t> {
    fn of(tree: &'t Tree, source: &Source) -> ShortLeases<'t> {
        let short = || {
            source
                .leases
                .iter()
                .map(|(id, ttl)| (*id as u64, granted(*ttl)))
                .filter(|(_, ttl)| *ttl < SHORT)
        };
        let shortest = short().map(|(_, ttl)| ttl).min().unwrap_or(SHORT);
        ShortLeases {
            tree,
            ids: short().map(|(id, _)| id).collect(),
            every: shortest / 3,
            renewed: Instant::now(),
        }
    }

    /// Keeps them alive, if it is time.
    fn keep_alive(&mut self) -> Outcome<()> {
        if self.ids.is_empty() || self.renewed.elapsed() < self.every {
            return Ok(());
        }
        self.renewed = Instant::now();
        for batch in self.ids.chunks(BATCH_LEASES) {
            self.tree.transact(|writes| {
                batch.iter().try_for_each(|id| writes.keep_lease_alive(*id).map(drop))?;
                Ok::<_, duramen::Error>(())
            })?;
        }
        Ok(())
    }
}

fn granted(ttl: i64) -> Duration {
    Duration::from_secs(ttl.max(TTL_MIN).unsigned_abs())
}

/// Stores pairs in one transaction, with a revision for each revision of the source.
fn commit(store: &Store, tree: &Tree, batch: &[Waiting]) -> Outcome<()> {
    let exclusive = TransactionOptions::new().exclusive();
    let stored = store.transact_with(exclusive, |tx| {
        for of_revision in batch.chunk_by(|(one, _), (next, _)| one.mod_revision == next.mod_revision) {
            let mut writes = tree.writes(tx)?;
            for (pair, lease) in of_revision {
                let lease = match lease {
                    0 => LeaseChange::Detach,
                    id => LeaseChange::Attach(*id as u64),
                };
                writes.put_with(&pair.key, &pair.value, lease)?;
            }
        }
        Ok::<_, duramen::Error>(())
    });
    Ok(stored?)
}

/// Reads the source and the tree again, and compares keys, values and leases.
fn compare(tree: &Tree, source: &Source, imported: &Imported, short: &mut ShortLeases<'_>) -> Outcome<()> {
    let differs = |what: String| Err(Failure::damaged(format!("the tree is not what was imported: {what}")));
    let view = tree.view()?;
    let mut meter = Meter::new("comparing", "keys");
    let mut compared = 0;
    source.each_again(|pair| {
        let Some(lease) = source.lease_of(&pair) else {
            return Ok(());
        };
        compared += 1;
        meter.update(compared, imported.keys);
        short.keep_alive()?;
        match view.get(&pair.key)? {
            None => differs(format!("{} is missing", shown(&pair.key))),
            Some(node) if node.payload != pair.value => differs(format!("{} has another value", shown(&pair.key))),
            Some(node) if node.lease != lease as u64 => differs(format!("{} has another lease", shown(&pair.key))),
            Some(_) => Ok(()),
        }
    })?;
    let nodes = view.count_range([], None)?;
    if nodes != compared || compared != imported.keys {
        return differs(format!("it has {nodes} keys, and the source has {compared}"));
    }
    let leases = view.leases()?.into_iter().map(|lease| (lease.id as i64, lease.ttl));
    let leases: std::collections::BTreeMap<_, _> = leases.collect();
    let expected = source.leases.iter().map(|(id, ttl)| (*id, granted(*ttl)));
    if leases != expected.collect() {
        return differs("it has other leases".into());
    }
    Ok(())
}

fn shown(key: &[u8]) -> String {
    Notation::Escapes.show(&key[..key.len().min(100)])
}
