//! Rot, byte by byte: every single byte of every file of a small store is changed once. Reading everything then gives an
//! error that says so, or exactly what was written, which proves that the byte is unused. `damage` does the same to
//! larger stores at chosen places.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::crashes::panic_message;
use crate::common::{Watchdog, seed, small_options};
use duramen_engine::{Error, Kind, Reason, Store};
use duramen_io::SimDisk;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the changes of one file came to.
#[derive(Clone, Copy, Debug, Default)]
struct Verdicts {
    found: usize,
    unused: usize,
    /// The store reads as it was before its last commit, of which nothing says that it was synced.
    torn: usize,
}

/// A branch over several leaves, a value in pages of its own, a deleted range.
fn fill(store: &Store) {
    let map = store.map("only").unwrap();
    for number in 0..8u8 {
        map.put([b'k', number], [number; 900]).unwrap();
    }
    map.put(b"long", [7; 5000]).unwrap();
    map.delete_range(&[b'k', 2][..]..&[b'k', 4][..]).unwrap();
}

fn read(store: &Store) -> Result<Content, Error> {
    let snapshot = store.snapshot()?;
    let mut content = Content::new();
    let Some(map) = store.maps().get("only")? else {
        return Ok(content);
    };
    let mut cursor = snapshot.range(&map, ..)?;
    while let Some((key, value)) = cursor.next()? {
        content.insert(key.to_vec(), value.to_vec());
    }
    for (key, value) in &content {
        let found = snapshot.get(&map, key)?;
        assert!(found.is_some_and(|found| *found == **value), "a scan and a get differ");
    }
    Ok(content)
}

/// Bytes that are changed together first: when that changes nothing, none of them is in use.
const GROUPS: [usize; 2] = [4096, 64];

/// A store at rest, and what may be read from it.
struct Specimen {
    disk: SimDisk,
    content: Content,
    before_the_end: Option<Content>,
}

impl Specimen {
    /// Changes each byte of each file.
    fn change_every_byte(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut found = 0;
        for file in self.disk.files() {
            let bytes = self.disk.read_raw(&file);
            let changed: Vec<u8> = bytes.iter().map(|byte| byte ^ (1 << random.u8(..8))).collect();
            let mut verdicts = Verdicts::default();
            self.change(&file, (&bytes, &changed), 0..bytes.len(), &GROUPS, &mut verdicts);
            println!("{file}: {} bytes, {verdicts:?}", bytes.len());
            assert_eq!(verdicts.found + verdicts.unused + verdicts.torn, bytes.len());
            found += verdicts.found;
        }
        assert!(found > 10_000, "only {found} bytes of the store are in use");
    }

    /// Changes a range: in groups as long as `groups` says, and where such a group matters in smaller ones, down to bytes.
    fn change(
        &self,
        file: &str,
        (bytes, changed): (&[u8], &[u8]),
        range: Range<usize>,
        groups: &[usize],
        verdicts: &mut Verdicts,
    ) {
        let step = groups.first().copied().unwrap_or(1);
        for start in range.clone().step_by(step) {
            let group = start..(start + step).min(range.end);
            self.disk.write_raw(file, start as u64, &changed[group.clone()]);
            let open = || small_options().read_only(true).open_on(self.disk.platform());
            let seen = catch_unwind(AssertUnwindSafe(|| open().and_then(|store| read(&store))));
            self.disk.write_raw(file, start as u64, &bytes[group.clone()]);
            match seen {
                Ok(Ok(seen)) if seen == self.content => verdicts.unused += group.len(),
                _ if !groups.is_empty() => self.change(file, (bytes, changed), group, &groups[1..], verdicts),
                seen => {
                    let what = format!("byte {start} of {file} became {:#x}", changed[start]);
                    self.judge(&what, seen, verdicts);
                }
            }
        }
    }

    /// A single byte made a difference.
    fn judge(&self, what: &str, seen: std::thread::Result<Result<Content, Error>>, verdicts: &mut Verdicts) {
        match seen {
            Ok(Ok(seen)) if Some(&seen) == self.before_the_end.as_ref() => verdicts.torn += 1,
            Ok(Ok(_)) => panic!("{what}: something else is read than was written"),
            Ok(Err(error)) if says_so(&error) => verdicts.found += 1,
            Ok(Err(error)) => panic!("{what}: an error of the wrong kind: {error:?}"),
            Err(panic) => panic!("{what}: panic: {}", panic_message(&*panic)),
        }
    }
}

fn says_so(error: &Error) -> bool {
    let refused = matches!(error.reason(), Reason::NotAStore { .. } | Reason::NewerFormat { .. });
    error.kind() == Kind::Damaged || refused
}

#[test]
fn every_byte_of_a_closed_store_is_found_or_unused() {
    let seed = seed();
    let _watchdog = Watchdog::start("rot", seed, std::time::Duration::from_secs(600));
    let disk = SimDisk::new(seed);
    let store = small_options().open_on(disk.platform()).unwrap();
    fill(&store);
    let content = read(&store).unwrap();
    store.close().unwrap();
    let specimen = Specimen {
        disk,
        content,
        before_the_end: None,
    };
    specimen.change_every_byte(seed);
}

#[test]
fn every_byte_of_a_killed_store_is_found_unused_or_its_torn_end() {
    let seed = seed();
    let _watchdog = Watchdog::start("rot", seed, std::time::Duration::from_secs(600));
    let disk = SimDisk::new(seed);
    let store = small_options().open_on(disk.platform()).unwrap();
    fill(&store);
    store.sync().unwrap();
    let before_the_end = Some(read(&store).unwrap());
    store.map("only").unwrap().put(b"last", b"after the sync").unwrap();
    let content = read(&store).unwrap();
    let specimen = Specimen {
        disk: disk.kill(),
        content,
        before_the_end,
    };
    specimen.change_every_byte(seed);
}
