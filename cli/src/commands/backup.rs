//! `duramen export`, `import`, `verify`, `prune`, `exports` and `backup`: copies of a store in directories and object stores.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use duramen_backup::{
    Backup as Place, BackupError, Compression, Export as Exported, ExportOptions, Log, LogSize, Moment, Policy,
    Progress, State,
};
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
  Make a store of the newest state:
    $ duramen import backups copy
  Of the state at the end of a second, in seconds since 1970, or of an export by its number:
    $ duramen import backups copy-2 --until $(date +%s)
    $ duramen import backups copy-3 --number 1 --json

The command verifies what it reads. The store is there as a whole or not at all.";

const VERIFY_EXAMPLES: &str = r"Examples:
  Read the newest export, all that it goes on from and its log, and prove that they are good:
    $ duramen verify backups
    $ duramen verify backups --number 1 --json";

const PRUNE_EXAMPLES: &str = r"Examples:
  Keep the newest seven exports, those of the last 30 days, and what they go on from:
    $ duramen prune backups --keep-last 7 --keep-within 30d
    $ duramen prune backups --keep-last 7 --json

The log of an export goes with it. Packs that no export needs go when they are a day old.";

const EXPORTS_EXAMPLES: &str = r"Examples:
  Number, commit, age, pairs, bytes, what it goes on from, its log, and metadata, oldest first:
    $ duramen exports backups
    $ duramen exports backups --json";

const BACKUP_EXAMPLES: &str = r"Examples:
  Export once, and keep the exports of the last week:
    $ duramen backup shop backups --keep-within 7d
  Export every minute and send the log each second, until the command is stopped:
    # duramen backup shop s3://bucket/shop --follow --every 1m --keep-within 7d
  And the same once, for programs:
    $ duramen backup shop backups --json

With --follow a lost machine loses what was committed in its last seconds: see --ship-every. Each
export has what differs from the one before, so its cost grows with the changes. The log between two
exports is sent as it comes. What fails is tried again, with an export first.";

/// After how many exports the next one is full, unless the call says otherwise.
const FULL_EVERY: u32 = 256;

/// How much log comes between two exports at most, unless the call says otherwise.
const LOG_BYTES: u64 = 64 << 20;

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

/// Make a store of a backup
#[derive(Args, Debug)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct Import {
    #[command(flatten)]
    place: PlaceArguments,
    /// Directory of the store: missing or empty
    target: PathBuf,
    #[command(flatten)]
    moment: MomentArguments,
}

/// Which state of the backup
#[derive(Args, Debug)]
struct MomentArguments {
    /// That of an export, by its number (default: the newest state)
    #[arg(long)]
    number: Option<u64>,
    /// What was committed by the end of this second, counted since 1970
    #[arg(long, value_name = "SECONDS", conflicts_with = "number")]
    until: Option<u64>,
}

impl MomentArguments {
    fn moment(&self) -> Moment {
        let end_of = |second: u64| second.saturating_mul(1_000).saturating_add(999);
        match (self.number, self.until) {
            (Some(number), _) => Moment::Export(number),
            (None, Some(until)) => Moment::Until(end_of(until)),
            (None, None) => Moment::Newest,
        }
    }
}

impl Import {
    pub fn run(self, output: &mut Output) -> Outcome {
        let place = self.place.existing()?;
        let mut meter = Meter::new("importing", "pairs");
        let mut told = |now: Progress| meter.update(now.records, now.pairs);
        let imported = place.import(self.moment.moment(), &self.target, &mut told)?;
        drop(meter);
        if output.is_json {
            output.json(&shown_state(&imported))?;
        } else {
            say(format_args!(
                "{} has {}: commit {}, {} pairs",
                self.target.display(),
                name_of(&imported),
                imported.commit,
                grouped(imported.pairs),
            ));
        }
        Ok(Exit::Done)
    }
}

/// Prove that a backup has what was exported
#[derive(Args, Debug)]
#[command(after_help = VERIFY_EXAMPLES)]
pub struct Verify {
    #[command(flatten)]
    place: PlaceArguments,
    #[command(flatten)]
    moment: MomentArguments,
}

impl Verify {
    pub fn run(self, output: &mut Output) -> Outcome {
        let mut meter = Meter::new("verifying", "pairs");
        let mut read = 0;
        let verified = self.place.existing()?.verify(self.moment.moment(), &mut |now| {
            read = now.bytes;
            meter.update(now.records, now.pairs);
        })?;
        drop(meter);
        if output.is_json {
            output.json(&shown_state(&verified))?;
        } else {
            say(format_args!(
                "good: {}, {} pairs, {} read",
                name_of(&verified),
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
        let place = self.place.existing()?;
        let logs = place.log_sizes()?;
        for export in place.list()? {
            let log = logs.get(&export.number).copied().unwrap_or_default();
            if output.is_json {
                let mut row = shown(&figures(&export));
                row["segments"] = log.segments.into();
                row["log_bytes"] = log.bytes.into();
                output.json(&row)?;
                continue;
            }
            let made = UNIX_EPOCH + Duration::from_millis(export.created_ms);
            let age = made.elapsed().unwrap_or_default();
            rows.push(format!(
                "{}\tcommit {}\t{} s ago\t{} pairs\t{}\t{}\t{}\t{}\n",
                export.number,
                export.commit,
                grouped(age.as_secs()),
                grouped(export.pairs),
                bytes(export.bytes()),
                of_what(&figures(&export)),
                log_text(log),
                export.metadata.escape_debug(),
            ));
        }
        output.write_all(rows.concat().as_bytes())?;
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
            "removed_exports": pruned.exports, "removed_packs": pruned.packs, "removed_segments": pruned.segments,
            "removed_bytes": pruned.bytes, "kept": pruned.kept,
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
    /// Time between the beginnings of two exports, as in 30s or 5m
    #[arg(long, value_name = "TIME", value_parser = validity, default_value = "1m", requires = "follow")]
    every: Duration,
    /// Time between two segments of the log: a lost machine loses about so much
    #[arg(long, value_name = "TIME", value_parser = validity, default_value = "1s", requires = "follow")]
    ship_every: Duration,
    /// Export at once when the log since the last export has so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = LOG_BYTES, requires = "follow")]
    log_bytes: u64,
    /// Export only, and send no log
    #[arg(long, requires = "follow")]
    no_log: bool,
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
        if !self.follow {
            export(&place, &store, &self.how.options(), output)?;
            if let Some(policy) = self.policy.policy() {
                prune(&place, policy, output)?;
            }
            store.close()?;
            return Ok(Exit::Done);
        }
        let mut following = Following {
            store: &store,
            place: &place,
            how: &self,
            shown: None,
            log: None,
            pruned: None,
        };
        loop {
            let next = Instant::now() + self.every;
            if let Err(failure) = following.export(output) {
                report(failure)?;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            } else if let Err(failure) = following.ship_until(next, output) {
                report(failure)?;
                std::thread::sleep(self.ship_every.min(self.every));
            }
        }
    }
}

/// Tells of a failure that may be over later, such as a place that cannot be reached, and returns any other.
fn report(failure: Failure) -> Outcome<()> {
    if failure.is_broken_pipe || failure.exit == Exit::Reopen {
        return Err(failure);
    }
    eprintln!("{}", failure.message);
    Ok(())
}

/// A backup that follows a store.
struct Following<'a> {
    store: &'a duramen::Store,
    place: &'a Place,
    how: &'a Backup,
    /// The commit that the newest export shows.
    shown: Option<u64>,
    log: Option<Log<'a>>,
    pruned: Option<Instant>,
}

impl Following<'_> {
    /// Exports what is new, and removes old exports if that is due.
    fn export(&mut self, output: &mut Output) -> Outcome<()> {
        // An export of nothing new would be one more to read.
        let is_shown = self
            .shown
            .map_or(Ok(false), |commit| only_checkpoints_since(self.store, commit));
        if is_shown? {
            return Ok(());
        }
        self.log = None;
        let options = self.how.how.options();
        let exported = match self.how.no_log {
            true => export(self.place, self.store, &options, output)?,
            false => {
                let mut meter = Meter::new("exporting", "changes");
                let mut told = |now: Progress| meter.update(now.records, 0);
                let (exported, log) = self.place.follow(self.store, &options, &mut told)?;
                drop(meter);
                self.log = Some(log);
                tell(&figures(&exported), output)?;
                exported
            }
        };
        self.shown = Some(exported.commit);
        let is_due = self.pruned.is_none_or(|pruned| pruned.elapsed() >= PRUNE_EVERY);
        if let Some(policy) = self.how.policy.policy().filter(|_| is_due) {
            prune(self.place, policy, output).or_else(report)?;
            self.pruned = Some(Instant::now());
        }
        Ok(output.flush()?)
    }

    /// Sends the log until the next export is due. An error ends the log, and an export comes next.
    fn ship_until(&mut self, next: Instant, output: &mut Output) -> Outcome<()> {
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let Some(log) = &mut self.log else {
                std::thread::sleep(left);
                return Ok(());
            };
            if log.bytes() >= self.how.log_bytes {
                return Ok(());
            }
            match log.ship(self.how.ship_every) {
                Ok(Some(segment)) if output.is_json => {
                    output.json(&json!({
                        "number": segment.export.number, "segment": segment.number, "commit": segment.commit,
                        "committed_ms": segment.committed_ms, "pairs": segment.pairs, "bytes": segment.bytes(),
                    }))?;
                    output.flush()?;
                }
                Ok(_) => {}
                Err(error) => {
                    (self.log, self.shown) = (None, None);
                    return Err(error.into());
                }
            }
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

fn shown_state(state: &State) -> Value {
    let mut shown = shown(&figures(&state.export));
    shown["commit"] = state.commit.into();
    shown["committed_ms"] = state.committed_ms.into();
    shown["pairs"] = state.pairs.into();
    shown["segments"] = state.segments.into();
    shown
}

fn name_of(state: &State) -> String {
    let number = state.export.number;
    match state.segments {
        0 => format!("export {number}"),
        segments => format!("export {number} and {} of its log", counted(segments, "segment")),
    }
}

fn log_text(log: LogSize) -> String {
    match log.segments {
        0 => "no log".into(),
        segments => format!("{} of log in {}", bytes(log.bytes), counted(segments, "segment")),
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Failure {
        match error {
            BackupError::Store(error) => error.into(),
            BackupError::Damaged { .. } | BackupError::MissingLink { .. } => Failure::damaged(error.to_string()),
            BackupError::UnknownExport { .. } | BackupError::NoExports { .. } | BackupError::NoneUntil { .. } => {
                Failure::new(Exit::NotFound, error.to_string())
            }
            BackupError::Object { .. }
            | BackupError::TakenMeanwhile { .. }
            | BackupError::LongCommit { .. }
            | BackupError::LogEnded => Failure::new(Exit::TryAgain, error.to_string()),
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
