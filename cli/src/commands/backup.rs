//! `duramen export`, `import`, `verify`, `prune`, `exports` and `backup`: copies of a store in directories and object stores.

use std::path::PathBuf;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use duramen_backup::{Backup as Place, BackupError, Compression, Export as Exported, ExportOptions, Policy, Progress};
use duramen_client::Export as Figures;
use serde_json::{Value, json};

use crate::commands::token::validity;
use crate::exit::{Exit, Failure, Outcome};
use crate::opening::StoreArguments;
use crate::output::{Output, say};
use crate::place::{Place as At, PlaceArguments as StoreOrServer};
use crate::progress::Meter;
use crate::text::{bytes, counted, grouped};

const EXPORT_EXAMPLES: &str = r"Examples:
  Export a store to a directory, or to a bucket:
    $ duramen export shop backups
    $ duramen export shop backups --metadata 'before the sale' --json
    # duramen export shop s3://bucket/shop --bytes-per-second 10000000
  A server exports to the place that its setting backup_place names:
    # duramen export --server 127.0.0.1:7420

The first export has all pairs, and the next ones have what differs. The store may be in use
meanwhile. It keeps a checkpoint of the newest export, or a few. An export that was interrupted goes
on when the command runs again.

A place is a directory, or a URL: s3, gs, az and http. Access keys and endpoints come from the
environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT, AWS_ALLOW_HTTP.";

const IMPORT_EXAMPLES: &str = r"Examples:
  Make a store of the newest export:
    $ duramen import backups copy
  Of the newest export until a time, in seconds since 1970, or of one by its number:
    $ duramen import backups copy-2 --until $(date +%s)
    $ duramen import backups copy-3 --number 1 --json

The command verifies what it reads. The store is there as a whole or not at all.";

const VERIFY_EXAMPLES: &str = r"Examples:
  Read the newest export and all that it goes on from, and prove that they are what was exported:
    $ duramen verify backups
    $ duramen verify backups --number 1 --json";

const PRUNE_EXAMPLES: &str = r"Examples:
  Keep the newest seven exports, those of the last 30 days, and what they go on from:
    $ duramen prune backups --keep-last 7 --keep-within 30d
    $ duramen prune backups --keep-last 7 --json

Packs that no export needs go when they are a day old.";

const EXPORTS_EXAMPLES: &str = r"Examples:
  Number, time, commit, pairs, bytes, what it goes on from, and metadata, oldest first:
    $ duramen exports backups
    $ duramen exports backups --json";

const BACKUP_EXAMPLES: &str = r"Examples:
  Export once, and keep the exports of the last week:
    $ duramen backup shop backups --keep-within 7d
  Export every ten seconds, until the command is stopped:
    # duramen backup shop s3://bucket/shop --follow --every 10s --keep-within 7d
  And the same once, for programs:
    $ duramen backup shop backups --json

With --follow a lost machine loses what was committed since the last export began. Each export has
what differs from the one before, so its cost grows with the changes. What fails is tried again.";

/// After how many exports the next one is full, unless the call says otherwise.
const FULL_EVERY: u32 = 256;

/// How often a backup that follows removes old exports: that reads the manifests of all.
const PRUNE_EVERY: Duration = Duration::from_secs(60 * 60);

/// Which place, and how to reach it
#[derive(Args, Debug)]
struct PlaceArguments {
    /// The place of the backup: a directory, or a URL such as s3://bucket/folder
    place: String,
    #[command(flatten)]
    transfer: TransferArguments,
}

/// How to reach a place
#[derive(Args, Debug, PartialEq, Eq)]
struct TransferArguments {
    /// Transfer at most so many bytes in a second (default: as many as possible)
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    bytes_per_second: u64,
    /// How many packs of 16 MiB are under way at a time
    #[arg(long, value_name = "COUNT", default_value_t = TransferArguments::USUAL.parallel)]
    parallel: usize,
}

impl PlaceArguments {
    /// Opens a place that has a backup.
    fn existing(&self) -> Outcome<Place> {
        Ok(self.transfer.configured(Place::open_existing(&self.place)?))
    }
}

impl TransferArguments {
    const USUAL: TransferArguments = TransferArguments {
        bytes_per_second: 0,
        parallel: 4,
    };

    /// Opens a place to export a store there, which must not be in the store itself.
    fn open_for(&self, place: &str, store: &StoreArguments) -> Outcome<Place> {
        if Place::is_in(place, &store.directory) {
            let message = format!("{place} is in the store that it would be a backup of");
            return Err(Failure::wrong_call(message).hint("name a directory elsewhere"));
        }
        Ok(self.configured(Place::open(place)?))
    }

    fn configured(&self, place: Place) -> Place {
        place.bytes_per_second(self.bytes_per_second).parallel(self.parallel)
    }
}

/// How to export
#[derive(Args, Debug)]
struct ExportArguments {
    /// Export all pairs, whatever there is already
    #[arg(long)]
    full: bool,
    /// Do not compress
    #[arg(long)]
    uncompressed: bool,
    /// After so many exports the next one is full
    #[arg(long, value_name = "COUNT", default_value_t = FULL_EVERY)]
    full_every: u32,
    /// Text to store with the export
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    metadata: String,
}

impl ExportArguments {
    fn options(&self) -> ExportOptions {
        let compression = match self.uncompressed {
            true => Compression::None,
            false => Compression::Zstd,
        };
        let options = ExportOptions::new().full(self.full).full_every(self.full_every);
        options.compression(compression).metadata(&self.metadata)
    }
}

/// Which exports stay
#[derive(Args, Debug)]
struct PolicyArguments {
    /// Keep the newest exports, of this number
    #[arg(long, value_name = "COUNT")]
    keep_last: Option<usize>,
    /// Keep the exports that are not older, as in 12h or 30d
    #[arg(long, value_name = "TIME", value_parser = validity)]
    keep_within: Option<Duration>,
}

impl PolicyArguments {
    fn policy(&self) -> Option<Policy> {
        let policy = Policy::keep_last(self.keep_last.unwrap_or(1));
        match (self.keep_last, self.keep_within) {
            (None, None) => None,
            (_, None) => Some(policy),
            (_, Some(age)) => Some(policy.keep_within(age)),
        }
    }
}

/// Export a store to a directory or an object store
#[derive(Args, Debug)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct Export {
    #[command(flatten)]
    from: StoreOrServer,
    /// The place of the backup: a directory, or a URL such as s3://bucket/folder; a server has its own
    #[arg(required_unless_present = "server", conflicts_with = "server")]
    place: Option<String>,
    #[command(flatten)]
    transfer: TransferArguments,
    #[command(flatten)]
    how: ExportArguments,
}

impl Export {
    pub fn run(self, output: &mut Output) -> Outcome {
        let (Some(directory), Some(place)) = (self.from.directory_only(), &self.place) else {
            return self.run_on_server(output);
        };
        let store = directory.open_to_write()?;
        let place = self.transfer.open_for(place, directory)?;
        export(&place, &store, &self.how.options(), output)?;
        store.close()?;
        Ok(Exit::Done)
    }

    fn run_on_server(&self, output: &mut Output) -> Outcome {
        let how = &self.how;
        if self.transfer != TransferArguments::USUAL || how.uncompressed || how.full_every != FULL_EVERY {
            let message = "a server takes --full and --metadata only";
            return Err(
                Failure::wrong_call(message).hint("leave the other options out, or name the directory of the store")
            );
        }
        let place = self.from.with_patience(self.from.open_to_write()?)?;
        let At::Server(server) = place else {
            return Err(Failure::wrong_call("the place of the backup is missing"));
        };
        let mut exporting = server.wait(server.client.export(how.full, &how.metadata))?;
        let mut meter = Meter::new("exporting", "changes");
        let mut exported = None;
        while let Some(now) = server.next(exporting.next())? {
            meter.update(now.changes, 0);
            exported = now.export;
        }
        drop(meter);
        let exported =
            exported.ok_or_else(|| Failure::new(Exit::TryAgain, "the server ended before the export did"))?;
        tell(&exported, output)?;
        Ok(Exit::Done)
    }
}

fn export(place: &Place, store: &duramen::Store, options: &ExportOptions, output: &mut Output) -> Outcome<Exported> {
    let mut meter = Meter::new("exporting", "changes");
    let mut last = Progress::default();
    let exported = place.export(store, options, &mut |now| {
        last = now;
        meter.update(now.records, 0);
    })?;
    drop(meter);
    tell(&figures(&exported), output)?;
    Ok(exported)
}

/// Make a store of an export
#[derive(Args, Debug)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct Import {
    #[command(flatten)]
    place: PlaceArguments,
    /// Directory of the store: missing or empty
    target: PathBuf,
    /// The number of the export (default: the newest)
    #[arg(long)]
    number: Option<u64>,
    /// The newest export that was made at this time or before, in seconds since 1970
    #[arg(long, value_name = "SECONDS", conflicts_with = "number")]
    until: Option<u64>,
}

impl Import {
    pub fn run(self, output: &mut Output) -> Outcome {
        let place = self.place.existing()?;
        let number = match self.until {
            None => self.number,
            Some(until) => {
                let until_ms = until.saturating_mul(1_000).saturating_add(999);
                let exports = place.list()?;
                let found = exports.iter().rev().find(|export| export.created_ms <= until_ms);
                let missing = || Failure::new(Exit::NotFound, format!("there is no export of {until} or before"));
                Some(found.ok_or_else(missing)?.number)
            }
        };
        let mut meter = Meter::new("importing", "pairs");
        let imported = place.import(number, &self.target, &mut |now| meter.update(now.records, now.pairs))?;
        drop(meter);
        if output.is_json {
            output.json(&shown(&figures(&imported)))?;
        } else {
            say(format_args!(
                "{} has export {}: commit {}, {} pairs",
                self.target.display(),
                imported.number,
                imported.commit,
                grouped(imported.pairs),
            ));
        }
        Ok(Exit::Done)
    }
}

/// Prove that an export is what was exported
#[derive(Args, Debug)]
#[command(after_help = VERIFY_EXAMPLES)]
pub struct Verify {
    #[command(flatten)]
    place: PlaceArguments,
    /// The number of the export (default: the newest)
    #[arg(long)]
    number: Option<u64>,
}

impl Verify {
    pub fn run(self, output: &mut Output) -> Outcome {
        let mut meter = Meter::new("verifying", "pairs");
        let mut read = 0;
        let verified = self.place.existing()?.verify(self.number, &mut |now| {
            read = now.bytes;
            meter.update(now.records, now.pairs);
        })?;
        drop(meter);
        if output.is_json {
            output.json(&shown(&figures(&verified)))?;
        } else {
            say(format_args!(
                "export {} is good: {} pairs, {} read",
                verified.number,
                grouped(verified.pairs),
                bytes(read),
            ));
        }
        Ok(Exit::Done)
    }
}

/// List the exports of a backup
#[derive(Args, Debug)]
#[command(after_help = EXPORTS_EXAMPLES)]
pub struct Exports {
    #[command(flatten)]
    place: PlaceArguments,
}

impl Exports {
    pub fn run(self, output: &mut Output) -> Outcome {
        let mut rows = Vec::new();
        for export in self.place.existing()?.list()? {
            if output.is_json {
                output.json(&shown(&figures(&export)))?;
                continue;
            }
            let made = UNIX_EPOCH + Duration::from_millis(export.created_ms);
            let age = made.elapsed().unwrap_or_default();
            rows.push(format!(
                "{}\tcommit {}\t{} s ago\t{} pairs\t{}\t{}\t{}\n",
                export.number,
                export.commit,
                grouped(age.as_secs()),
                grouped(export.pairs),
                bytes(export.bytes()),
                of_what(&figures(&export)),
                export.metadata.escape_debug(),
            ));
        }
        std::io::Write::write_all(output, rows.concat().as_bytes())?;
        Ok(Exit::Done)
    }
}

/// Remove old exports
#[derive(Args, Debug)]
#[command(after_help = PRUNE_EXAMPLES)]
pub struct Prune {
    #[command(flatten)]
    place: PlaceArguments,
    #[command(flatten)]
    policy: PolicyArguments,
}

impl Prune {
    pub fn run(self, output: &mut Output) -> Outcome {
        let policy = self.policy.policy().ok_or_else(|| {
            Failure::wrong_call("which exports to keep is not said")
                .hint("add --keep-last COUNT, or --keep-within TIME")
        })?;
        prune(&self.place.existing()?, policy, output)?;
        Ok(Exit::Done)
    }
}

fn prune(place: &Place, policy: Policy, output: &mut Output) -> Outcome<()> {
    let mut meter = Meter::new("removing", "exports and packs");
    let pruned = place.prune(policy, &mut |now| meter.update(now.exports.len() as u64 + now.packs, 0))?;
    drop(meter);
    if output.is_json {
        output.json(&json!({
            "removed_exports": pruned.exports, "removed_packs": pruned.packs, "removed_bytes": pruned.bytes,
            "kept": pruned.kept,
        }))?;
    } else if !pruned.exports.is_empty() || pruned.packs > 0 {
        say(format_args!(
            "removed {} and {}, {}; {} left",
            counted(pruned.exports.len() as u64, "export"),
            counted(pruned.packs, "pack"),
            bytes(pruned.bytes),
            counted(pruned.kept, "export"),
        ));
    }
    Ok(())
}

/// Export a store, once or again and again, and remove old exports
#[derive(Args, Debug)]
#[command(after_help = BACKUP_EXAMPLES)]
pub struct Backup {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    place: PlaceArguments,
    #[command(flatten)]
    how: ExportArguments,
    #[command(flatten)]
    policy: PolicyArguments,
    /// Go on until the command is stopped
    #[arg(long)]
    follow: bool,
    /// Time between the beginnings of two exports, as in 10s or 5m
    #[arg(long, value_name = "TIME", value_parser = validity, default_value = "10s", requires = "follow")]
    every: Duration,
}

/// Whether nothing was committed after a commit but checkpoints, which change nothing. Two followers of one store would never rest,
/// because each finds the checkpoints of the other.
fn only_checkpoints_since(store: &duramen::Store, commit: u64) -> duramen::Result<bool> {
    let visible = store.snapshot()?.commit();
    if visible <= commit {
        return Ok(true);
    }
    let all = store.checkpoints().list()?;
    let mut newest = visible;
    for checkpoint in all.iter().rev().skip_while(|checkpoint| checkpoint.commit > visible) {
        if newest <= commit || checkpoint.commit != newest {
            break;
        }
        newest -= 1;
    }
    Ok(newest <= commit)
}

impl Backup {
    pub fn run(self, output: &mut Output) -> Outcome {
        let store = self.store.open_to_write()?;
        let place = self.place.transfer.open_for(&self.place.place, &self.store)?;
        let (options, policy) = (self.how.options(), self.policy.policy());
        let mut shown = None;
        let mut pruned: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            // An export of nothing new would be one more to read.
            let is_shown = shown.map_or(Ok(false), |commit| only_checkpoints_since(&store, commit));
            let done = match is_shown? {
                true => Ok(()),
                false => export(&place, &store, &options, output).and_then(|exported| {
                    shown = Some(exported.commit);
                    let is_due = pruned.is_none_or(|pruned| pruned.elapsed() >= PRUNE_EVERY);
                    let Some(policy) = policy.filter(|_| is_due) else {
                        return Ok(());
                    };
                    prune(&place, policy, output)?;
                    pruned = Some(Instant::now());
                    Ok(())
                }),
            };
            match done {
                Ok(()) => {}
                Err(failure) if !self.follow || failure.is_broken_pipe || failure.exit == Exit::Reopen => {
                    return Err(failure);
                }
                // The place may be there again later.
                Err(failure) => eprintln!("{}", failure.message),
            }
            if !self.follow {
                store.close()?;
                return Ok(Exit::Done);
            }
            std::thread::sleep(self.every.saturating_sub(begun.elapsed()));
        }
    }
}

fn of_what(export: &Figures) -> String {
    match export.parent {
        None => "full".into(),
        Some(parent) => format!("after {parent}"),
    }
}

/// Tells what was exported, near or far.
fn tell(export: &Figures, output: &mut Output) -> Outcome<()> {
    if output.is_json {
        return output.json(&shown(export));
    }
    say(format_args!(
        "export {} shows commit {}: {}, {} in {}",
        export.number,
        export.commit,
        of_what(export),
        bytes(export.bytes),
        counted(export.packs, "pack"),
    ));
    Ok(())
}

/// The figures of an export as a server sends them.
fn figures(export: &Exported) -> Figures {
    Figures {
        number: export.number,
        commit: export.commit,
        pairs: export.pairs,
        bytes: export.bytes(),
        packs: export.packs.len() as u64,
        parent: export.parent.as_ref().map(|parent| parent.number),
        created_ms: export.created_ms,
        metadata: export.metadata.clone(),
    }
}

fn shown(export: &Figures) -> Value {
    json!({
        "number": export.number,
        "commit": export.commit,
        "created_ms": export.created_ms,
        "pairs": export.pairs,
        "bytes": export.bytes,
        "packs": export.packs,
        "after": export.parent,
        "metadata": export.metadata,
    })
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Failure {
        match error {
            BackupError::Store(error) => error.into(),
            BackupError::Damaged { .. } | BackupError::MissingLink { .. } => Failure::damaged(error.to_string()),
            BackupError::UnknownExport { .. } | BackupError::NoExports { .. } => {
                Failure::new(Exit::NotFound, error.to_string())
            }
            BackupError::Object { .. } | BackupError::TakenMeanwhile { .. } => {
                Failure::new(Exit::TryAgain, error.to_string())
            }
            BackupError::Io { ref error, ref doing } => Failure::of_io(doing, error),
            _ => Failure::wrong_call(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::only_checkpoints_since;
    use duramen::Store;

    #[test]
    fn checkpoints_alone_are_nothing_new() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let map = store.map("map").unwrap();
        map.put("key", "1").unwrap();
        let shown = store.checkpoints().create("shown", "").unwrap().commit;
        assert!(only_checkpoints_since(&store, shown).unwrap());
        store.checkpoints().create("another", "").unwrap();
        store.checkpoints().create("a third", "").unwrap();
        assert!(only_checkpoints_since(&store, shown).unwrap());
        map.put("key", "2").unwrap();
        assert!(!only_checkpoints_since(&store, shown).unwrap());
        store.checkpoints().create("a fourth", "").unwrap();
        assert!(!only_checkpoints_since(&store, shown).unwrap());
    }
}
