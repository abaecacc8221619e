//! The workloads, one file each, and what they share: the context of a run and the record of its phases.
//!
//! A workload runs for one peer in a process of its own. It makes its data from the seed, does its phases through a
//! [`Recorder`], verifies everything it reads, and fails on the first wrong value.

mod first;
mod open;
mod synced_puts;

use std::path::Path;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::data::{Key, Tally, values_of, verify};
use crate::measure::{Done, Meter, Phase, Work};
use crate::peer::{Class, Driver, Peer, Unsupported};

pub use open::write_until_killed;

/// A workload that can be run.
pub struct Workload {
    /// The name on the command line.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// The classes that it is meant for: a peer runs in the first of them that it has.
    pub classes: &'static [Class],
    /// Whether it makes sense only for data that outlives a close.
    pub needs_persistence: bool,
    /// Does it.
    pub run: fn(&Context, &mut Recorder) -> Result<()>,
}

/// All workloads.
pub const ALL: &[Workload] = &[first::WORKLOAD, synced_puts::WORKLOAD, open::WORKLOAD];

/// The workload of this name.
pub fn named(name: &str) -> Result<&'static Workload> {
    let Some(found) = ALL.iter().find(|workload| workload.name == name) else {
        let known: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
        bail!("there is no workload {name:?}; the workloads are {}", known.join(", "));
    };
    Ok(found)
}

impl Workload {
    /// The class that a peer runs in, or why it does not run.
    pub fn class_for(&self, driver: &dyn Driver, wanted: Option<Class>) -> Result<Class, String> {
        let description = driver.describe();
        if self.needs_persistence && !description.is_persistent {
            return Err("keeps nothing on disk".to_string());
        }
        match wanted {
            Some(class) if description.has(class) => Ok(class),
            Some(class) => Err(format!("has no class {class}")),
            None => {
                let fitting = self.classes.iter().copied().find(|class| description.has(*class));
                fitting.ok_or_else(|| {
                    format!(
                        "has no class {}",
                        self.classes
                            .iter()
                            .map(Class::to_string)
                            .collect::<Vec<_>>()
                            .join(" or ")
                    )
                })
            }
        }
    }
}

/// What one run works with.
pub struct Context<'a> {
    /// The peer.
    pub driver: &'a dyn Driver,
    /// Its durability class.
    pub class: Class,
    /// An empty directory of its own.
    pub directory: &'a Path,
    /// Factor on all counts and times.
    pub scale: f64,
    /// Where all data comes from.
    pub seed: u64,
}

impl Context<'_> {
    /// Opens the peer in the directory of the run.
    pub fn open(&self) -> Result<Box<dyn Peer>> {
        self.driver.open(self.directory, self.class)
    }

    /// A count at the scale of the run.
    pub fn scaled(&self, count: usize) -> usize {
        ((count as f64 * self.scale) as usize).max(1)
    }
}

/// What came out of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// What was measured.
    pub phases: Vec<Phase>,
    /// Phases that the peer could not do, with the reason.
    pub unsupported: Vec<(String, String)>,
    /// Facts beside the measurements.
    pub notes: Vec<String>,
}

/// Measures the phases of one run.
pub struct Recorder<'a> {
    directory: &'a Path,
    record: Record,
}

impl<'a> Recorder<'a> {
    /// Nothing recorded yet; the store's files are in `directory`.
    pub fn new(directory: &'a Path) -> Recorder<'a> {
        Recorder {
            directory,
            record: Record::default(),
        }
    }

    /// Measures `run`. A peer that cannot do it gets `n/a` for this phase; any other error ends the run.
    pub fn phase(&mut self, name: &str, work: Work, run: impl FnOnce() -> Result<Done>) -> Result<()> {
        let meter = Meter::start()?;
        match run() {
            Ok(done) => {
                let phase = meter.stop(done, self.directory)?;
                self.record.phases.push(Phase {
                    name: name.to_string(),
                    work,
                    ..phase
                });
                Ok(())
            }
            Err(error) => match error.downcast_ref::<Unsupported>() {
                Some(reason) => {
                    self.record.unsupported.push((name.to_string(), reason.to_string()));
                    Ok(())
                }
                None => Err(error.context(format!("in phase {name:?}"))),
            },
        }
    }

    /// Notes a fact.
    pub fn note(&mut self, fact: String) {
        self.record.notes.push(fact);
    }

    /// What was recorded.
    pub fn finish(self) -> Record {
        self.record
    }
}

/// Pairs in one commit where a workload loads and the load is not what it is about.
const BATCH_PAIRS: usize = 1000;

/// Loads keys in batches, making their values on the way.
fn load_in_batches(peer: &dyn Peer, keys: &[Key]) -> Result<()> {
    keys.chunks(BATCH_PAIRS)
        .try_for_each(|batch| peer.put_batch(batch, &values_of(batch)))
}

/// Scans everything, looking at every byte.
pub(crate) fn tally_scan(peer: &dyn Peer) -> Result<Tally> {
    let mut tally = Tally::new();
    peer.scan(&mut |key, value| {
        tally.add(key, value);
        Ok(())
    })?;
    Ok(tally)
}

/// Fails, naming a key where it can, unless a scan saw exactly `expected`. The second scan, for the culprit, is not
/// timed.
fn verify_scan(peer: &dyn Peer, seen: &Tally, expected: &Tally) -> Result<()> {
    if seen == expected {
        return Ok(());
    }
    let mut last: Option<Vec<u8>> = None;
    peer.scan(&mut |key, value| {
        verify(key, Some(value))?;
        if last.as_deref().is_some_and(|last| last >= key) {
            bail!("a scan gave key {key:02x?} after {last:02x?}");
        }
        last = Some(key.to_vec());
        Ok(())
    })?;
    bail!(
        "a scan saw {} pairs, {} are there, or saw pairs that are right alone but not together",
        seen.pairs(),
        expected.pairs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Generator, Value};
    use crate::peer::{Description, Found, Pair};
    use crate::peers;
    use crate::scratch::Scratch;
    use std::sync::Mutex;

    /// A peer with a planted bug: it changes one bit of one value when asked for the `spoiled`-th pair.
    struct Liar {
        inner: Box<dyn Peer>,
        spoiled: Mutex<u32>,
    }

    struct LiarDriver {
        spoiled: u32,
    }

    impl Driver for LiarDriver {
        fn describe(&self) -> Description {
            peers::one("btreemap").expect("a peer").describe()
        }
        fn open(&self, directory: &Path, class: Class) -> Result<Box<dyn Peer>> {
            let inner = peers::one("btreemap")?.open(directory, class)?;
            Ok(Box::new(Liar {
                inner,
                spoiled: Mutex::new(self.spoiled),
            }))
        }
    }

    impl Liar {
        fn spoil(&self, value: &[u8]) -> Vec<u8> {
            let mut left = self.spoiled.lock().expect("no panic inside");
            *left = left.wrapping_sub(1);
            let mut value = value.to_vec();
            value[50] ^= u8::from(*left == 0);
            value
        }
    }

    impl Peer for Liar {
        fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
            self.inner.put(key, value)
        }
        fn put_batch(&self, keys: &[Key], values: &[Value]) -> Result<()> {
            self.inner.put_batch(keys, values)
        }
        fn get_many(&self, keys: &[Key], found: &mut Found) -> Result<()> {
            self.inner.get_many(keys, &mut |key, value| {
                found(key, value.map(|value| self.spoil(value)).as_deref())
            })
        }
        fn scan(&self, pair: &mut Pair) -> Result<()> {
            self.inner.scan(&mut |key, value| pair(key, &self.spoil(value)))
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn close(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    fn run(name: &str, driver: &dyn Driver, scale: f64) -> Result<Record> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let workload = named(name)?;
        let class = workload.class_for(driver, None).map_err(anyhow::Error::msg)?;
        let context = Context {
            driver,
            class,
            directory: scratch.path(),
            scale,
            seed: 5,
        };
        let mut recorder = Recorder::new(scratch.path());
        (workload.run)(&context, &mut recorder)?;
        Ok(recorder.finish())
    }

    #[test]
    fn honest_peers_pass_the_first_workload() {
        for driver in peers::ALL {
            let name = driver.describe().name;
            let record = run("first", *driver, 0.002).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert_eq!(record.phases.len() + record.unsupported.len(), 7, "{name}: {record:?}");
            assert!(
                record.phases.iter().all(|phase| [2000, 1].contains(&phase.operations)),
                "{record:?}"
            );
        }
    }

    #[test]
    fn one_wrong_bit_in_one_read_or_scan_fails_the_run_and_names_the_key() {
        // 2,000 reads, 2,000 timed reads, then the scan; the second scan is right again, but the first had not been.
        for (spoiled, phase) in [
            (1000, "random reads"),
            (3000, "random reads, each timed"),
            (5000, "full scan"),
        ] {
            let error = run("first", &LiarDriver { spoiled }, 0.002).expect_err(phase);
            assert!(format!("{error:#}").contains(&format!("{phase:?}")), "{error:#}");
        }
        let error = run("first", &LiarDriver { spoiled: 1000 }, 0.002).expect_err("a wrong read");
        assert!(format!("{error:#}").contains("holds"), "{error:#}");
    }

    #[test]
    fn wrong_scan_is_explained_by_the_key() {
        let keys = Generator::new(9, "scan").present_keys(10);
        let liar = LiarDriver { spoiled: 15 }
            .open(Path::new("/"), Class::None)
            .expect("in memory");
        load_in_batches(&*liar, &keys).expect("in memory");
        let tally = tally_scan(&*liar).expect("in memory");
        assert_eq!(tally, Tally::expected(&keys));
        let error = verify_scan(&*liar, &Tally::new(), &tally).expect_err("the second scan lies");
        assert!(error.to_string().contains("expected"), "{error}");
    }

    #[test]
    fn peers_run_only_in_classes_that_they_have() {
        let class = |workload, peer, wanted| {
            named(workload)
                .expect("known")
                .class_for(peers::one(peer).expect("known"), wanted)
        };
        assert_eq!(class("first", "lmdb", None), Ok(Class::Written));
        assert_eq!(class("first", "redb", None), Ok(Class::None));
        assert_eq!(class("first", "redb", Some(Class::Synced)), Ok(Class::Synced));
        assert!(class("first", "redb", Some(Class::Written)).is_err());
        assert!(class("synced-puts", "btreemap", None).is_err());
        assert!(class("open", "btreemap", Some(Class::None)).is_err());
    }
}
