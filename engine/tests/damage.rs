//! Rot: one bit of one byte of a store's files is flipped at a time. Opening the store and reading all of it then
//! gives an error that says so, or exactly what was written; never a panic, never anything else.
//!
//! A log ends where its records end to make sense, so rot in a record that no later one says was synced looks like
//! the tail that a power cut tears off: then the state before that commit is right too.

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::crashes::panic_message;
use common::{Watchdog, seed, small_options};
use duramen_engine::{Error, Kind, ReadMode, Reason, Store};
use duramen_io::SimDisk;
use fastrand::Rng;

type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Bytes at the beginning of each page that are all flipped: headers of pages, of the log, of records.
const DENSE: usize = 64;
/// Of the others every so many: prime, so that all places in a page are met over several pages.
const STRIDE: usize = 101;

/// A store at rest, and what may be read from it.
struct Specimen {
    disk: SimDisk,
    /// What is in it, and what may be taken for it when the end of the log is lost.
    content: Content,
    before_the_end: Vec<Content>,
}

/// What the flips of a file came to.
#[derive(Clone, Copy, Debug, Default)]
struct Verdicts {
    found: u64,
    /// The store opened and everything in it was right.
    unused: u64,
    /// The store opened without the end of its log, of which nothing said that it was synced.
    torn: u64,
}

/// Everything in a store, read in every way.
fn read(store: &Store) -> Result<Content, Error> {
    let snapshot = store.snapshot()?;
    let mut content = Content::new();
    for name in store.maps().list()? {
        let map = store.maps().get(&name)?.expect("it was just listed");
        let mut pairs = BTreeMap::new();
        let mut cursor = snapshot.range(&map, ..)?;
        while let Some((key, value)) = cursor.next()? {
            pairs.insert(key.to_vec(), value.to_vec());
        }
        for (key, value) in pairs.iter().rev() {
            let (found, bytes) = cursor.prev()?.expect("as many pairs backwards");
            assert!(
                found == key.as_slice() && bytes == *value,
                "forwards and backwards differ"
            );
            let got = snapshot.get(&map, key)?.map(|value| value.to_vec());
            assert!(got.as_ref() == Some(value), "a scan and a get differ");
        }
        assert_eq!(snapshot.count(&map, ..)?, pairs.len() as u64);
        content.insert(name, pairs);
    }
    Ok(content)
}

fn fill(store: &Store, rng: &mut Rng) {
    for name in ["one", "another"] {
        let map = store.map(name).unwrap();
        for number in 0..50u32 {
            let length = if number == 7 {
                70_000
            } else {
                [20, 300, 2500][rng.usize(..3)]
            };
            let mut value = vec![0; length];
            rng.fill(&mut value);
            map.put(format!("a common prefix {number}").as_bytes(), &value).unwrap();
        }
        map.append(b"topic", b"message").unwrap();
    }
}

/// A store that was closed: all is in the base.
fn closed(seed: u64) -> Specimen {
    let disk = SimDisk::new(seed);
    let store = small_options().open_on(disk.platform()).unwrap();
    fill(&store, &mut Rng::with_seed(seed));
    store.maps().drop("another").unwrap();
    store.maintain().unwrap();
    let content = read(&store).unwrap();
    store.close().unwrap();
    Specimen {
        disk,
        content,
        before_the_end: Vec::new(),
    }
}

/// A store that was killed with a base and a log.
fn killed(seed: u64) -> Specimen {
    let disk = SimDisk::new(seed);
    let store = small_options().open_on(disk.platform()).unwrap();
    fill(&store, &mut Rng::with_seed(seed));
    store.maintain().unwrap();
    let map = store.map("one").unwrap();
    for number in 0..12u8 {
        map.put(&[number], &[number; 50]).unwrap();
    }
    map.put(b"long", &vec![1; 70_000]).unwrap();
    map.delete_range(&[3u8][..]..&[5u8][..]).unwrap();
    store.sync().unwrap();
    // From here on a record says so; of these three at least the first may be lost, but no hole goes unnoticed.
    let mut before_the_end = Vec::new();
    for number in 20..23u8 {
        before_the_end.push(read(&store).unwrap());
        map.put(&[number], b"after the sync").unwrap();
    }
    let content = read(&store).unwrap();
    Specimen {
        disk: disk.kill(),
        content,
        before_the_end,
    }
}

impl Specimen {
    fn flip_everything(&self, reads: ReadMode, rng: &mut Rng) {
        let mut all = Verdicts::default();
        for file in self.disk.files() {
            let bytes = self.disk.read_raw(&file);
            let mut verdicts = Verdicts::default();
            let places = (0..bytes.len()).filter(|place| place % 4096 < DENSE || place % STRIDE == 0);
            // Long stretches of zeros are free space.
            let is_near_something = |place: &usize| {
                let around = &bytes[place.saturating_sub(64)..(place + 64).min(bytes.len())];
                place.is_multiple_of(4096) || around.iter().any(|byte| *byte != 0)
            };
            for place in places.filter(is_near_something) {
                let flipped = bytes[place] ^ (1 << rng.u8(..8));
                self.disk.write_raw(&file, place as u64, &[flipped]);
                let seen = catch_unwind(AssertUnwindSafe(|| self.judge(reads, &mut verdicts)));
                let seen = seen.unwrap_or_else(|panic| Err(format!("panic: {}", panic_message(&*panic))));
                if let Err(cause) = seen {
                    panic!("byte {place} of {file} became {flipped:#x}, {reads:?}: {cause}");
                }
                self.disk.write_raw(&file, place as u64, &[bytes[place]]);
            }
            println!("{reads:?} {file}: {verdicts:?}");
            all.found += verdicts.found;
            all.unused += verdicts.unused;
        }
        assert!(all.found > 1000, "{all:?}: hardly anything of the store is in use");
    }

    fn judge(&self, reads: ReadMode, verdicts: &mut Verdicts) -> Result<(), String> {
        // Read-only, so that the flipped byte stays the only difference.
        let options = small_options().read_only(true).reads(reads);
        match options.open_on(self.disk.platform()).and_then(|store| read(&store)) {
            Ok(content) if content == self.content => verdicts.unused += 1,
            Ok(content) if self.before_the_end.contains(&content) => verdicts.torn += 1,
            Ok(_) => return Err("something else is read than was written".into()),
            Err(error) if says_so(&error) => verdicts.found += 1,
            Err(error) => return Err(format!("an error of the wrong kind: {error:?}")),
        }
        Ok(())
    }
}

fn says_so(error: &Error) -> bool {
    let refused = matches!(error.reason(), Reason::NotAStore { .. } | Reason::NewerFormat { .. });
    error.kind() == Kind::Damaged || refused
}

#[test]
fn rot_in_a_closed_store_is_found_or_harmless() {
    let seed = seed();
    let _watchdog = Watchdog::start("rot", seed, std::time::Duration::from_secs(600));
    let mut rng = Rng::with_seed(seed);
    for reads in [ReadMode::Mapped, ReadMode::Verified] {
        closed(seed).flip_everything(reads, &mut rng);
    }
}

#[test]
fn rot_in_a_killed_store_is_found_or_harmless() {
    let seed = seed();
    let _watchdog = Watchdog::start("rot", seed, std::time::Duration::from_secs(600));
    let mut rng = Rng::with_seed(seed);
    for reads in [ReadMode::Mapped, ReadMode::Verified] {
        killed(seed).flip_everything(reads, &mut rng);
    }
}
