//! Copies of a store at another place: all of it, what changed since, bringing it back, and what puts lose meanwhile. Beside each
//! stands what copying and syncing as many bytes takes.
//!
//! A copy counts as made when it is synced, and as brought back when the new store is. The lab reads each pair of the store that was
//! brought back, after the clock.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Result, anyhow, ensure};

use super::loads::{load_row, read_back_versions};
use super::state::copy_directory;
use super::{Context, Recorder, Workload, variant};
use crate::crew::{Pace, in_turn};
use crate::data::{Generator, Keys, Length, Values};
use crate::measure::{Done, Work};
use crate::peer::Peer;

pub const WORKLOAD: Workload = Workload {
    name: "backups",
    about: "pairs of 16 and 100 bytes: a synced copy of all at another place; of what changed after 1 % random puts, also after compacting; \
        bringing it back; 100,000 random puts a second, in windows that alternate: without and beside a copy of all",
    variants: &[variant("1M", 1_000_000), variant("10M", 10_000_000)],
    needs_persistence: true,
    run,
    ..Workload::USUAL
};

/// Puts a second, windows of each kind, and seconds of a window at scale 1, and the least.
const RATE: f64 = 100_000.0;
const WINDOWS: usize = 5;
const SECONDS: (f64, f64) = (4.0, 0.05);
/// One pair in so many changes before each copy of changes.
const CHANGES: usize = 100;

/// The rows of copies, in order. What a copy and the store that comes back take is beside what `cp` takes.
const COPIES: [&str; 3] = [
    "copy of all",
    "copy after 1 % random puts",
    "copy after compacting and 1 % random puts",
];
const PLAIN_COPY: &str = "cp and fsync of that copy";
const COMPACT: &str = "compact";
const BACK: &str = "bring back the newest copy";
const PLAIN_STORE: &str = "cp and fsync of that store";

/// The pairs, and how often each was put.
struct Load<'a> {
    context: &'a Context<'a>,
    peer: &'a dyn Peer,
    keys: &'a Keys,
    values: &'a Values,
    picks: Generator,
    versions: Vec<u32>,
}

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = Generator::new(context.seed, "load").keys(count, 16);
    let values = Values::new(context.seed, Length::Fixed(100));
    let directory = context.directory.join("store");
    let peer = context.open_in(&directory)?;
    let is_loaded = load_row(context, recorder, &*peer, &keys, &values)?;
    peer.close()?;
    if !is_loaded {
        return Ok(());
    }
    // What a store does later with what was loaded is no work of a copy.
    let peer = context.open_in(&directory)?;
    let mut load = Load {
        context,
        peer: &*peer,
        keys: &keys,
        values: &values,
        picks: Generator::new(context.seed, "puts"),
        versions: vec![0; count],
    };
    if load.copies(recorder)? {
        load.bring_back(recorder)?;
    }
    let rows = [("puts", Work::Writes), ("puts beside a copy of all", Work::Writes)];
    recorder.phases(&rows, || load.windows())?;
    read_back_versions(&*peer, &keys, &load.versions, context.checker(&values))?;
    peer.close()
}

impl Load<'_> {
    fn put(&mut self) -> Result<()> {
        let record = self.picks.below(self.keys.len());
        let key = self.keys.at(record);
        self.peer.put(key, self.values.of(key, self.versions[record] + 1))?;
        self.versions[record] += 1;
        Ok(())
    }

    /// Makes three copies at one place. Returns whether the peer can.
    fn copies(&mut self, recorder: &mut Recorder) -> Result<bool> {
        let place = self.context.directory.join("copies");
        let count = self.keys.len();
        let mut bytes = Vec::new();
        for (number, name) in COPIES.into_iter().enumerate() {
            if number > 0 {
                (0..count / CHANGES).try_for_each(|_| self.put())?;
            }
            if number == 2 {
                let peer = self.peer;
                recorder.phase(COMPACT, Work::Writes, || peer.compact().map(|()| Done::untimed(1)))?;
            }
            let peer = self.peer;
            recorder.phase(name, Work::Writes, || {
                bytes.push(peer.back_up(&place)?);
                Ok(Done::untimed(count))
            })?;
            if bytes.is_empty() {
                let rest = [PLAIN_COPY, COPIES[1], COMPACT, COPIES[2], BACK, PLAIN_STORE];
                recorder.not_done(&rest.map(|name| (name, Work::Writes)), "there is no copy");
                return Ok(false);
            }
            if bytes.len() <= number {
                // The limit of the cell stops all that comes then as well.
                return Ok(false);
            }
            if number == 0 {
                self.plain_copy(recorder, PLAIN_COPY, &place)?;
            }
        }
        recorder.note(format!(
            "the copies took {} bytes; the keys and values of 1 % of the pairs have {}",
            bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
            count / CHANGES * 116
        ));
        Ok(true)
    }

    /// Copies and syncs a directory, file by file, as `cp` does.
    fn plain_copy(&self, recorder: &mut Recorder, name: &str, from: &Path) -> Result<()> {
        let to = self.context.directory.join("plain");
        recorder.phase(name, Work::Writes, || {
            copy_directory(from, &to)?;
            sync_all(&to)?;
            Ok(Done::untimed(self.keys.len()))
        })?;
        if to.exists() {
            fs::remove_dir_all(to)?;
        }
        Ok(())
    }

    /// Makes a store of the newest copy, and reads it whole.
    fn bring_back(&self, recorder: &mut Recorder) -> Result<()> {
        let [place, back] = ["copies", "back"].map(|name| self.context.directory.join(name));
        let mut is_back = false;
        recorder.phase(BACK, Work::Writes, || {
            self.peer.bring_back(&place, &back)?;
            is_back = true;
            Ok(Done::untimed(self.keys.len()))
        })?;
        if !is_back {
            return Ok(());
        }
        self.plain_copy(recorder, PLAIN_STORE, &back)?;
        let store = self.context.open_in(&back)?;
        read_back_versions(&*store, self.keys, &self.versions, self.context.checker(self.values))?;
        store.close()?;
        Ok(fs::remove_dir_all(back)?)
    }

    fn windows(&mut self) -> Result<Vec<Done>> {
        let (peer, limit) = (self.peer, self.context.pace.limit);
        let seconds = self.context.scaled_seconds(SECONDS.0, SECONDS.1);
        let pace = Pace {
            rate: Some(RATE),
            seconds: None,
            limit,
        };
        let place = self.context.directory.join("beside");
        let (mut quiet, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..WINDOWS {
            quiet.push(pace.shift(1, Some(seconds)).work(u64::MAX, |_| self.put())?);
            let (worked, bytes) = std::thread::scope(|scope| {
                let copying = scope.spawn(|| peer.back_up(&place));
                let worked = pace.shift(1, Some(seconds)).work(u64::MAX, |_| self.put());
                let bytes = copying.join().map_err(|_| anyhow!("the other thread panicked"));
                (worked, bytes)
            });
            ensure!(bytes?? > 0, "a copy of all took no bytes");
            beside.push(worked?);
            fs::remove_dir_all(&place)?;
        }
        Ok([quiet, beside].into_iter().map(in_turn).collect())
    }
}

/// Syncs each file and directory below a directory, and the directory itself.
fn sync_all(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_all(&path)?;
        } else {
            File::open(path)?.sync_all()?;
        }
    }
    Ok(File::open(directory)?.sync_all()?)
}
