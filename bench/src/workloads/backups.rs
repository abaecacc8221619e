//! Copies of a store at another place: all of it, what changed since, bringing it back, and what puts lose meanwhile. Beside each
//! stands what copying and syncing as many bytes takes.
//!
//! A copy counts as made when it is synced, and as brought back when the new store is. The lab reads each pair of the store that was
//! brought back, after the clock.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Result, anyhow, ensure};

use super::loads::{RandomPuts, load_row, read_back_versions};
use super::state::copy_directory;
use super::{Context, Recorder, Workload, variant};
use crate::crew::{Pace, in_turn};
use crate::data::{Generator, Length, Values};
use crate::measure::{Done, Work};

pub const WORKLOAD: Workload = Workload {
    name: "backups",
    about: "pairs of 16 and 100 bytes: a synced copy of all at another place, twice; of what changed after 1 % random puts, also after compacting; \
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

/// The rows of copies, in order. The first one follows the load: a store that has left work for later, such as folding its log, does
/// it then. What a copy and the store that comes back take is beside what `cp` takes.
const FIRST: &str = "copy of all, after the load";
const COPIES: [&str; 3] = [
    "copy of all, again",
    "copy after 1 % random puts",
    "copy after compacting and 1 % random puts",
];
const PLAIN_COPY: &str = "cp and fsync of that copy";
const COMPACT: &str = "compact";
const BACK: &str = "bring back the newest copy";
const PLAIN_STORE: &str = "cp and fsync of that store";

const PUTS: &str = "puts";
const PUTS_BESIDE: &str = "puts beside a copy of all";

/// The puts of all rows, and the rows.
struct Load<'a>(RandomPuts<'a>);

fn run(context: &Context, recorder: &mut Recorder) -> Result<()> {
    let count = context.records();
    let keys = Generator::new(context.seed, "load").keys(count, 16);
    let values = Values::new(context.seed, Length::Fixed(100));
    let peer = context.open_in(&context.directory.join("store"))?;
    if !load_row(context, recorder, &*peer, &keys, &values)? {
        return peer.close();
    }
    let mut load = Load(RandomPuts::new(context, &*peer, &keys, &values));
    if load.copies(recorder)? {
        load.bring_back(recorder)?;
        let rows = [PUTS, PUTS_BESIDE].map(|name| (name, Work::Writes));
        recorder.phases(&rows, || load.windows())?;
    }
    load.0.read_back()?;
    peer.close()
}

impl Load<'_> {
    /// Makes a copy, and three at another place. Returns whether the peer can.
    fn copies(&mut self, recorder: &mut Recorder) -> Result<bool> {
        let (peer, count) = (self.0.peer, self.0.keys.len());
        let [first, place] = ["first", "copies"].map(|name| self.0.context.directory.join(name));
        let mut is_made = false;
        recorder.phase(FIRST, Work::Writes, || {
            peer.back_up(&first)?;
            is_made = true;
            Ok(Done::untimed(count))
        })?;
        if !is_made {
            let rest = [
                COPIES[0],
                PLAIN_COPY,
                COPIES[1],
                COMPACT,
                COPIES[2],
                BACK,
                PLAIN_STORE,
                PUTS,
                PUTS_BESIDE,
            ];
            recorder.not_done(&rest.map(|name| (name, Work::Writes)), "there is no copy");
            return Ok(false);
        }
        self.remove_copies(&first)?;
        let mut bytes = Vec::new();
        for (number, name) in COPIES.into_iter().enumerate() {
            if number > 0 {
                (0..count / CHANGES).try_for_each(|_| self.0.put())?;
            }
            if number == 2 {
                recorder.phase(COMPACT, Work::Writes, || peer.compact().map(|()| Done::untimed(1)))?;
            }
            recorder.phase(name, Work::Writes, || {
                bytes.push(peer.back_up(&place)?);
                Ok(Done::untimed(count))
            })?;
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

    /// Removes copies, and what the store keeps for the next one.
    fn remove_copies(&self, place: &Path) -> Result<()> {
        if place.exists() {
            fs::remove_dir_all(place)?;
        }
        self.0.peer.forget_copies()
    }

    /// Copies and syncs a directory, file by file, as `cp` does.
    fn plain_copy(&self, recorder: &mut Recorder, name: &str, from: &Path) -> Result<()> {
        let to = self.0.context.directory.join("plain");
        recorder.phase(name, Work::Writes, || {
            copy_directory(from, &to)?;
            sync_all(&to)?;
            Ok(Done::untimed(self.0.keys.len()))
        })?;
        if to.exists() {
            fs::remove_dir_all(to)?;
        }
        Ok(())
    }

    /// Makes a store of the newest copy, and reads it whole.
    fn bring_back(&self, recorder: &mut Recorder) -> Result<()> {
        let [place, back] = ["copies", "back"].map(|name| self.0.context.directory.join(name));
        let mut is_back = false;
        recorder.phase(BACK, Work::Writes, || {
            self.0.peer.bring_back(&place, &back)?;
            is_back = true;
            Ok(Done::untimed(self.0.keys.len()))
        })?;
        if !is_back {
            return Ok(());
        }
        self.plain_copy(recorder, PLAIN_STORE, &back)?;
        let store = self.0.context.open_in(&back)?;
        read_back_versions(
            &*store,
            self.0.keys,
            &self.0.versions,
            self.0.context.checker(self.0.values),
        )?;
        store.close()?;
        Ok(fs::remove_dir_all(back)?)
    }

    fn windows(&mut self) -> Result<Vec<Done>> {
        let (peer, limit) = (self.0.peer, self.0.context.pace.limit);
        let seconds = self.0.context.scaled_seconds(SECONDS.0, SECONDS.1);
        let pace = Pace {
            rate: Some(RATE),
            seconds: None,
            limit,
        };
        let place = self.0.context.directory.join("beside");
        let (mut quiet, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..WINDOWS {
            quiet.push(pace.shift(1, Some(seconds)).work(u64::MAX, |_| self.0.put())?);
            let (worked, bytes) = std::thread::scope(|scope| {
                let copying = scope.spawn(|| peer.back_up(&place));
                let worked = pace.shift(1, Some(seconds)).work(u64::MAX, |_| self.0.put());
                let bytes = copying.join().map_err(|_| anyhow!("the other thread panicked"));
                (worked, bytes)
            });
            ensure!(bytes?? > 0, "a copy of all took no bytes");
            beside.push(worked?);
            self.remove_copies(&place)?;
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
