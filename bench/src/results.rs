//! The results: one dated JSON document with everything and a schema number. During a run, a journal beside it keeps
//! the cells, one line each. An interrupted run resumes from the journal. The document itself appears only when it is
//! complete.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::measure::Phase;
use crate::measure::Record;
use crate::peer::{Class, Description};
use crate::probe::Probe;

/// Number of the schema that this lab writes. It grows when a field changes its meaning.
///
/// In schema 3 the `storage_counter` of the phase defines the bytes to and from storage. Earlier they were always what
/// the kernel counted for the process, which also applies to a phase without that field.
pub const SCHEMA: u32 = 3;
/// The oldest schema that this lab reads.
const SCHEMA_OLDEST: u32 = 2;

/// All data of one call of `lab run` except its cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Number of the schema.
    pub schema: u32,
    /// Purpose of the results.
    pub label: Label,
    /// Version of the lab.
    pub lab: String,
    /// Commit of the build.
    pub commit: String,
    /// Start time for people, in UTC.
    pub started: String,
    /// Start time, in seconds since 1970.
    pub started_unix: u64,
    /// The command line.
    pub arguments: Vec<String>,
    /// Names of the tasks, in order.
    pub workloads: Vec<String>,
    /// The class that the user asked for, if any.
    pub durability: Option<Class>,
    /// The seed of all data.
    pub seed: u64,
    /// Factor on all counts and times.
    pub scale: f64,
    /// Number of repetitions of each peer.
    pub repeat: u32,
    /// Maximum seconds of one measured part, if the user asked for one.
    pub seconds: Option<f64>,
    /// Operations per second, if the loop was open.
    pub rate: Option<f64>,
    /// Time limit of a cell in seconds.
    pub limit_seconds: u64,
    /// Cache size given to stores with a cache of their own, by task. Older results lack it.
    #[serde(default)]
    pub cache_bytes: BTreeMap<String, u64>,
    /// Directory of the stores.
    pub directory: PathBuf,
    /// Machine of the run.
    pub machine: Machine,
    /// The peers, with their versions and options.
    pub peers: Vec<Description>,
}

impl Header {
    /// Formats the size of the caches: `1 GiB`, or with the tasks when sizes differ.
    pub fn cache_text(&self) -> String {
        let mut sizes: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for (task, bytes) in &self.cache_bytes {
            sizes.entry(*bytes).or_default().push(task);
        }
        let size = |bytes: u64| match bytes >> 30 {
            0 => format!("{} MiB", bytes >> 20),
            gibibytes => format!("{gibibytes} GiB"),
        };
        let texts: Vec<String> = match sizes.len() {
            0 => return "not stated: these results are from before it was noted".to_string(),
            1 => sizes.keys().map(|bytes| size(*bytes)).collect(),
            _ => sizes
                .iter()
                .map(|(bytes, tasks)| format!("{} in {}", size(*bytes), tasks.join(", ")))
                .collect(),
        };
        texts.join("; ")
    }
}

/// Purpose of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    /// A run that the user configured.
    Run,
    /// `lab quick`: a sanity check, not evidence.
    Quick,
}

/// All data of one call of `lab run`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Everything except the cells.
    #[serde(flatten)]
    pub header: Header,
    /// The cells.
    pub runs: Vec<Run>,
}

/// One run of one peer: a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Name of the task.
    pub workload: String,
    /// Name of the peer.
    pub peer: String,
    /// Class of the peer, if a class of the peer fits the workload.
    pub class: Option<Class>,
    /// Number of the repetition.
    pub repetition: u32,
    /// Seed of this repetition.
    pub seed: u64,
    /// The commit at which the cell ran; a resumed run may have several.
    pub commit: String,
    /// State of the machine beside the cell.
    pub probe: Option<Probe>,
    /// Outcome of the cell.
    pub outcome: Outcome,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All reads were verified.
    Passed(Record),
    /// The peer does not take part, for this reason.
    NotApplicable(String),
    /// An error, or a wrong value.
    Failed(String),
}

impl Run {
    /// Returns the measurements, if there are any.
    pub fn phases(&self) -> &[Phase] {
        match &self.outcome {
            Outcome::Passed(record) => &record.phases,
            _ => &[],
        }
    }
}

impl Results {
    /// Describes the failed runs.
    pub fn failures(&self) -> Vec<String> {
        let failure = |run: &Run| match &run.outcome {
            Outcome::Failed(error) => Some(format!(
                "{} {} (repetition {}): {error}",
                run.workload,
                run.peer,
                run.repetition + 1
            )),
            _ => None,
        };
        self.runs.iter().filter_map(failure).collect()
    }

    /// Reads results, which may be compressed with gzip. The error says why a file is not valid.
    pub fn read(path: &Path) -> Result<Results> {
        let name = path.display();
        let bytes = plain(fs::read(path).with_context(|| format!("reading {name}"))?)
            .with_context(|| format!("{name} begins as a gzip file does, but it is damaged or cut short"))?;
        let json: serde_json::Value = match serde_json::from_slice(&bytes) {
            Ok(json) => json,
            Err(_) if path.extension().is_some_and(|extension| extension == PARTIAL) => {
                bail!("{name} is the journal of a run that did not end; finish it with `cargo lab run --resume {name}`")
            }
            Err(error) => bail!("{name} is not JSON: {error}"),
        };
        let number = json.get("schema").or_else(|| json.get("format"));
        let Some(schema) = number.and_then(serde_json::Value::as_u64) else {
            bail!("{name} has no results of the lab in it: there is no schema number");
        };
        ensure!(
            (u64::from(SCHEMA_OLDEST)..=u64::from(SCHEMA)).contains(&schema),
            "{name} has results of schema {schema}, this lab reads schemas {SCHEMA_OLDEST} to {SCHEMA}: run the workloads \
             again, or use the lab of the commit that wrote them ({})",
            json.get("commit")
                .and_then(serde_json::Value::as_str)
                .unwrap_or("not named")
        );
        serde_json::from_value(json).with_context(|| format!("{name} is damaged: it says schema {schema} but"))
    }

    /// Writes the results so that they appear complete or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_whole(path, &serde_json::to_vec_pretty(self)?)
    }
}

/// Decompresses the bytes of a file if they are compressed. Their beginning decides this, not the file name.
fn plain(bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut plain)?;
    Ok(plain)
}

/// Writes a file so that it appears complete or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().context("a file has a name")?.to_os_string();
    name.push(".new");
    let new = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|error| {
        // Half a file has no value. A failure to remove it would not make a better message.
        let _ = fs::remove_file(&new);
        anyhow::Error::new(error).context(format!("writing {}", path.display()))
    })
}

/// Whether the header of the journal at `path` is complete: its line has an end. A missing file also counts as
/// complete.
fn has_header(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    let mut line = Vec::new();
    let read = BufReader::new(file).read_until(b'\n', &mut line);
    read.is_err() || line.ends_with(b"\n")
}

/// Extension of a journal's name.
const PARTIAL: &str = "partial";

/// The cells of a run in progress.
pub struct Journal {
    path: PathBuf,
    file: File,
    /// The first line of the journal.
    pub header: Header,
    /// The finished cells.
    pub runs: Vec<Run>,
}

impl Journal {
    /// Creates a journal for results that will be at `results`.
    pub fn begin(results: &Path, header: Header) -> Result<Journal> {
        if let Some(parent) = results.parent() {
            fs::create_dir_all(parent).with_context(|| format!("making the directory {}", parent.display()))?;
        }
        let mut name = results.as_os_str().to_os_string();
        name.push(".");
        name.push(PARTIAL);
        let path = PathBuf::from(name);
        if !has_header(&path) {
            // The disk was full when the journal was created, or the lab was killed then; nothing was measured.
            fs::remove_file(&path)
                .with_context(|| format!("removing {}, which has no whole header", path.display()))?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| {
                format!(
                    "making {0}; if it is left from a run that was interrupted, finish that with `cargo lab run \
                     --resume {0}`, or remove it",
                    path.display()
                )
            })?;
        let mut journal = Journal {
            path,
            file,
            header,
            runs: Vec::new(),
        };
        let line = serde_json::to_string(&journal.header)?;
        journal.append(&line).inspect_err(|_| {
            // A journal whose creation failed must not be resumed. If it stays behind, the next run removes it.
            let _ = fs::remove_file(&journal.path);
        })?;
        Ok(journal)
    }

    /// Resumes a journal that was left behind. An incomplete last line is a cell that has to run again.
    pub fn resume(path: &Path) -> Result<Journal> {
        ensure!(
            path.extension().is_some_and(|extension| extension == PARTIAL),
            "{} is not the journal of a run: those end in .{PARTIAL}",
            path.display()
        );
        let doing = || format!("reading {}", path.display());
        ensure!(
            has_header(path),
            "{} has no whole header, so nothing was measured: begin the run again, this file is not in its way",
            path.display()
        );
        let mut lines = BufReader::new(File::open(path).with_context(doing)?).lines();
        let first = lines.next().with_context(|| format!("{} is empty", path.display()))??;
        let header: Header = serde_json::from_str(&first).with_context(doing)?;
        ensure!(
            header.schema == SCHEMA,
            "{} is of schema {}, this lab writes schema {SCHEMA}: start again",
            path.display(),
            header.schema
        );
        let mut runs = Vec::new();
        let mut bytes = first.len() as u64 + 1;
        for line in lines {
            let line = line?;
            let Ok(run) = serde_json::from_str::<Run>(&line) else {
                break;
            };
            bytes += line.len() as u64 + 1;
            runs.push(run);
        }
        let mut file = OpenOptions::new().write(true).open(path).with_context(doing)?;
        file.set_len(bytes).with_context(doing)?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0))?;
        Ok(Journal {
            path: path.to_path_buf(),
            file,
            header,
            runs,
        })
    }

    fn append(&mut self, line: &str) -> Result<()> {
        let doing = || format!("writing {}", self.path.display());
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .with_context(doing)?;
        self.file.sync_data().with_context(doing)
    }

    /// Adds a cell.
    pub fn add(&mut self, run: Run) -> Result<()> {
        let line = serde_json::to_string(&run)?;
        self.append(&line)?;
        self.runs.push(run);
        Ok(())
    }

    /// Whether the journal has a cell.
    pub fn has(&self, workload: &str, peer: &str, repetition: u32) -> bool {
        self.runs
            .iter()
            .any(|run| run.workload == workload && run.peer == peer && run.repetition == repetition)
    }

    /// Returns the path of the journal.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the results.
    pub fn results_path(&self) -> PathBuf {
        self.path.with_extension("")
    }

    /// Writes the results and removes the journal.
    pub fn finish(self) -> Result<(Results, PathBuf)> {
        let target = self.results_path();
        let results = Results {
            header: self.header,
            runs: self.runs,
        };
        results
            .write(&target)
            .with_context(|| format!("the cells are safe in {}", self.path.display()))?;
        fs::remove_file(&self.path).with_context(|| format!("removing {}", self.path.display()))?;
        Ok((results, target))
    }
}

/// Formats a time for people, in UTC: `2026-11-21T15:04:05Z`.
pub fn utc(seconds: u64) -> String {
    // Converts days to a date with the method of Howard Hinnant, "chrono-compatible low-level date algorithms".
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::measure::Work;
    use crate::peers;
    use crate::scratch::Scratch;
    use crate::storage::StorageCounter;

    /// Returns a phase in which each operation took `nanos`.
    pub fn phase(name: &str, work: Work, nanos: u64) -> Phase {
        Phase {
            name: name.to_string(),
            work,
            operations: 10,
            stopped_at_of: None,
            hits: None,
            wall_nanos: nanos * 10,
            process_cpu_nanos: 0,
            callers_cpu_nanos: 0,
            write_call_bytes: 0,
            storage_bytes: 0,
            read_call_bytes: 0,
            storage_read_bytes: 0,
            storage_counter: StorageCounter::Device,
            resident_bytes: 0,
            anonymous_bytes: 0,
            file_bytes: 0,
            latency: None,
            timed: None,
            curve: Vec::new(),
            timeline: None,
        }
    }

    /// Returns a run whose reads were twice as fast as its puts.
    pub fn run(peer: &str, class: Class, repetition: u32, nanos: u64) -> Run {
        let phases = vec![phase("put", Work::Writes, nanos), phase("get", Work::Reads, nanos / 2)];
        let outcome = Outcome::Passed(Record {
            phases,
            ..Record::default()
        });
        Run {
            workload: "first".to_string(),
            peer: peer.to_string(),
            class: Some(class),
            repetition,
            seed: 1,
            commit: "abc".to_string(),
            probe: None,
            outcome,
        }
    }

    /// Returns results of one repetition that began `started_unix` seconds after 1970.
    pub fn part(started_unix: u64, own: u64, rival: u64) -> Results {
        let mut part = results(vec![
            run("lmdb", Class::Written, 0, own),
            run("redb", Class::Written, 0, rival),
        ]);
        part.header.started_unix = started_unix;
        part
    }

    /// Returns the header of results with these peers.
    pub fn header(names: &[&str]) -> Header {
        let described = |name: &&str| peers::one(name).expect("known").describe();
        Header {
            schema: SCHEMA,
            label: Label::Run,
            lab: "0".to_string(),
            commit: "abc".to_string(),
            started: utc(0),
            started_unix: 0,
            arguments: vec!["run".to_string(), "first".to_string()],
            workloads: vec!["first".to_string()],
            durability: None,
            seed: 1,
            scale: 0.5,
            repeat: 2,
            seconds: None,
            rate: None,
            limit_seconds: 600,
            cache_bytes: BTreeMap::from([("first".to_string(), 1 << 30)]),
            directory: PathBuf::from("/"),
            machine: Machine::here(Path::new("/")),
            peers: names.iter().map(described).collect(),
        }
    }

    /// Returns results of these runs.
    pub fn results(runs: Vec<Run>) -> Results {
        Results {
            header: header(&["lmdb", "redb", "null"]),
            runs,
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_795_273_445), "2026-11-21T15:04:05Z");
    }

    #[test]
    fn interrupted_run_goes_on_after_its_last_whole_cell() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let target = scratch.path().join("results.json");
        let mut journal = Journal::begin(&target, header(&["lmdb"]))?;
        journal.add(run("lmdb", Class::Written, 0, 100))?;
        let path = journal.path().to_path_buf();
        drop(journal);
        let half = r#"{"workload":"first","peer":"lm"#;
        OpenOptions::new()
            .append(true)
            .open(&path)?
            .write_all(half.as_bytes())?;

        let refused = Results::read(&path)
            .expect_err("an unfinished run has no report")
            .to_string();
        assert!(refused.contains("--resume"), "{refused}");
        let error = Journal::begin(&target, header(&["lmdb"]))
            .err()
            .expect("the journal is there");
        assert!(format!("{error:#}").contains("--resume"), "{error:#}");

        let mut journal = Journal::resume(&path)?;
        assert!(journal.has("first", "lmdb", 0) && !journal.has("first", "lmdb", 1));
        journal.add(run("lmdb", Class::Written, 1, 100))?;
        assert!(!target.exists(), "no results before all cells are there");
        let (results, written) = journal.finish()?;
        assert_eq!((results.runs.len(), written), (2, target.clone()));
        assert!(!path.exists());
        assert_eq!(Results::read(&target)?.runs.len(), 2);
        Ok(())
    }

    #[test]
    fn journal_without_a_whole_header_is_treated_as_nothing() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let target = scratch.path().join("results.json");
        let path = scratch.path().join("results.json.partial");
        for torn in ["", r#"{"schema":3,"#] {
            fs::write(&path, torn)?;
            let error = Journal::resume(&path).err().expect("there is nothing to resume");
            assert!(error.to_string().contains("begin the run again"), "{error}");
            let journal = Journal::begin(&target, header(&["lmdb"]))?;
            assert_eq!(Journal::resume(journal.path())?.runs.len(), 0);
            fs::remove_file(&path)?;
        }
        Ok(())
    }

    #[test]
    fn compressed_results_are_read_whatever_their_name() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let path = scratch.path().join("results.json");
        let json = serde_json::to_vec(&results(vec![run("lmdb", Class::Written, 0, 100)]))?;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&json)?;
        let compressed = encoder.finish()?;
        fs::write(&path, &compressed)?;
        assert_eq!(Results::read(&path)?.runs.len(), 1);
        // Two gzip members, as in the output of `cat one.gz two.gz`.
        let (one, two) = json.split_at(json.len() / 2);
        let mut members = Vec::new();
        for part in [one, two] {
            let mut encoder = flate2::write::GzEncoder::new(&mut members, flate2::Compression::default());
            encoder.write_all(part)?;
            encoder.finish()?;
        }
        fs::write(&path, &members)?;
        assert_eq!(Results::read(&path)?.runs.len(), 1);
        fs::write(&path, &compressed[..compressed.len() / 2])?;
        let error = Results::read(&path).expect_err("half of a file");
        assert!(error.to_string().contains("cut short"), "{error:#}");
        Ok(())
    }

    #[test]
    fn caches_are_told_with_their_tasks_where_those_differ() {
        let mut header = header(&["lmdb"]);
        assert_eq!(header.cache_text(), "1 GiB");
        header.cache_bytes.insert("redb-table".to_string(), 4 << 30);
        assert_eq!(header.cache_text(), "1 GiB in first; 4 GiB in redb-table");
    }

    #[test]
    fn results_from_before_caches_were_noted_are_read() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let path = scratch.path().join("old.json");
        let mut old = serde_json::to_value(results(vec![run("lmdb", Class::Written, 0, 100)]))?;
        let removed = old.as_object_mut().and_then(|old| old.remove("cache_bytes"));
        assert!(removed.is_some());
        fs::write(&path, old.to_string())?;
        assert!(Results::read(&path)?.header.cache_text().contains("not stated"));
        Ok(())
    }

    #[test]
    fn results_of_another_schema_are_refused_with_what_to_do() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let path = scratch.path().join("old.json");
        let refused = |text: &str| {
            fs::write(&path, text).expect("a file");
            Results::read(&path).expect_err("refused").to_string()
        };
        let old = refused(r#"{"format": 1, "commit": "cafe"}"#);
        assert!(old.contains("schema 1") && old.contains("cafe"), "{old}");
        assert!(refused("{}").contains("no schema number"));
        assert!(refused("no json").contains("not JSON"));
        let new = refused(r#"{"schema": 4}"#);
        assert!(new.contains("schema 4") && new.contains("schemas 2 to 3"), "{new}");
        assert!(refused(r#"{"schema": 2}"#).contains("damaged: it says schema 2"));
        Ok(())
    }

    #[test]
    fn results_from_before_devices_were_asked_say_that_the_process_was() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let path = scratch.path().join("old.json");
        let new = serde_json::to_string(&results(vec![run("lmdb", Class::Written, 0, 100)]))?;
        let old = new
            .replace(r#""schema":3"#, r#""schema":2"#)
            .replace(r#","storage_counter":"device""#, "");
        assert!(!old.contains("storage_counter"), "{old}");
        fs::write(&path, old)?;
        let read = Results::read(&path)?;
        let counters: Vec<_> = read.runs[0]
            .phases()
            .iter()
            .map(|phase| phase.storage_counter)
            .collect();
        assert_eq!(counters, [StorageCounter::Process; 2]);
        Ok(())
    }

    #[test]
    fn file_that_cannot_be_written_leaves_nothing_behind() -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let target = scratch.path().join("taken");
        fs::create_dir(&target)?;
        fs::write(target.join("inside"), "1")?;
        let error = write_whole(&target, b"report").expect_err("a directory is in the way");
        assert!(error.to_string().contains("taken"), "{error}");
        assert_eq!(fs::read_dir(scratch.path())?.count(), 1, "no half of a file");
        Ok(())
    }
}
