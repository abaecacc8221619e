//! Limits that the kernel sets on a process (`ulimit`), with the default action of their signals. Every call that meets
//! a limit returns an error with a remedy, nothing is lost, and all work continues once the limit is raised.
//!
//! A limit applies to a whole process, so the test program starts itself again for each case.

mod common;

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, assert_sound, by_hand, forwards, restless};
use duramen::{Error, Kind, Map, Options, Store};

const CASE: &str = "DURAMEN_LIMIT_CASE";
const PLACE: &str = "DURAMEN_LIMIT_PLACE";

/// Runs a test of this program alone in a new process, with one case, and returns its output.
fn in_new_process(test: &str, case: &str, place: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .env(PLACE, place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let signal = output.status.signal();
    assert!(output.status.success(), "case {case}, signal {signal:?}:\n{said}");
    said
}

/// Returns the case of this process and its place; `None` in the process that starts the others.
fn case() -> Option<(String, PathBuf)> {
    Some((std::env::var(CASE).ok()?, std::env::var_os(PLACE)?.into()))
}

/// Sets the soft limit of a resource; the hard limit stays.
fn limit(resource: libc::__rlimit_resource_t, to: u64) {
    let mut found = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes to `found`, and to nothing else.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut found) }, 0);
    found.rlim_cur = to.min(found.rlim_max);
    // SAFETY: the call only reads `found`.
    assert_eq!(unsafe { libc::setrlimit(resource, &found) }, 0);
}

/// Returns the number that the next descriptor gets.
fn next_descriptor() -> u64 {
    let file = std::fs::File::open("/dev/null").unwrap();
    file.as_raw_fd() as u64
}

#[test]
fn store_opens_once_there_are_descriptors_again_whichever_one_was_missing() {
    const NAME: &str = "store_opens_once_there_are_descriptors_again_whichever_one_was_missing";
    let Some((spare, place)) = case() else {
        let place = Place::new();
        let opened = |spare: u64| {
            let path = place.beside(&spare.to_string());
            in_new_process(NAME, &spare.to_string(), &path).contains("opened at once")
        };
        let enough = (0..100).find(|&spare| opened(spare)).expect("so many are enough");
        assert!(enough > 5, "{enough} descriptors were enough");
        return;
    };
    let spare: u64 = spare.parse().unwrap();
    let options = || by_hand().maintenance(duramen::Maintenance::Background);
    limit(libc::RLIMIT_NOFILE, next_descriptor() + spare);
    let mut was_refused = false;
    for _ in 0..3 {
        match options().open(&place) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), Kind::Retry, "{error}");
                was_refused = true;
            }
        }
    }
    limit(libc::RLIMIT_NOFILE, 256);
    let store = options().open(&place).unwrap();
    store.map("map").unwrap().put(b"key", b"value").unwrap();
    store.close().unwrap();
    let store = Options::new().open(&place).unwrap();
    assert_eq!(store.map("map").unwrap().get(b"key").unwrap().unwrap(), b"value");
    if !was_refused {
        println!("opened at once");
    }
}

// The maximum file size of a process.

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn change(store: &Store, map: &Map, model: &mut Model, rng: &mut fastrand::Rng) -> Result<(), Error> {
    let key = rng.u16(..2_000).to_be_bytes().to_vec();
    let value = vec![rng.u8(..); [50, 900, 9_000, 70_000][rng.usize(..4)]];
    match rng.u32(..12) {
        0 => {
            map.delete(&key)?;
            model.remove(&key);
        }
        1 => store.maintain()?,
        2 => store.sync()?,
        _ => {
            map.put(&key, &value)?;
            model.insert(key, value);
        }
    }
    Ok(())
}

#[track_caller]
fn assert_holds(store: &Store, model: &Model) {
    let map = store.map("map").unwrap();
    let snapshot = store.snapshot().unwrap();
    let found: Model = forwards(&mut snapshot.range(&map, ..).unwrap()).into_iter().collect();
    assert!(
        found == *model,
        "{} pairs, {} were acknowledged",
        found.len(),
        model.len()
    );
}

/// Makes changes until `times` were refused. Each error must say that there is no space.
fn change_until_refused(store: &Store, map: &Map, model: &mut Model, times: u32) {
    let mut rng = fastrand::Rng::with_seed(common::seed());
    let mut refused = 0;
    for _ in 0..20_000 {
        if let Err(error) = change(store, map, model, &mut rng) {
            assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}");
            refused += 1;
        }
        if refused == times {
            return;
        }
    }
    panic!("{refused} calls were refused");
}

/// Checks what must work once the limit is raised.
fn assert_goes_on(store: Store, place: &Path, model: &mut Model) {
    limit(libc::RLIMIT_FSIZE, u64::MAX);
    assert_holds(&store, model);
    let map = store.map("map").unwrap();
    map.delete_range(&1_000u16.to_be_bytes()[..]..).unwrap();
    model.retain(|key, _| key.as_slice() < &1_000u16.to_be_bytes()[..]);
    for number in 0..1_000u16 {
        map.put(number.to_be_bytes(), [1; 5_000]).unwrap();
        model.insert(number.to_be_bytes().to_vec(), vec![1; 5_000]);
    }
    assert_holds(&store, model);
    assert_sound(&store);
    drop(map);
    store.close().unwrap();
    assert_holds(&Options::new().open(place).unwrap(), model);
}

#[test]
fn files_that_may_not_grow_are_a_full_disk() {
    const NAME: &str = "files_that_may_not_grow_are_a_full_disk";
    // Files of every kind meet the limit: the log has 0.5 MiB at first, the shared memory more than 6 MiB.
    const LIMITS_KIB: [u64; 9] = [0, 4, 100, 500, 1_000, 6_200, 6_500, 8_000, 16_000];
    let Some((case, place)) = case() else {
        for kib in LIMITS_KIB {
            for way in ["by hand", "restless"] {
                let place = Place::new();
                in_new_process(NAME, &format!("{kib} {way}"), &place.path());
            }
        }
        return;
    };
    let (kib, way) = case.split_once(' ').unwrap();
    let bytes = kib.parse::<u64>().unwrap() << 10;
    let options = || if way == "by hand" { by_hand() } else { restless() };
    limit(libc::RLIMIT_FSIZE, bytes);
    let mut model = Model::new();
    let store = match options().open(&place) {
        Ok(store) => store,
        Err(error) => {
            assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}");
            assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
            assert!(bytes < 7 << 20, "{error}");
            limit(libc::RLIMIT_FSIZE, u64::MAX);
            return assert_goes_on(options().open(&place).unwrap(), &place, &mut model);
        }
    };
    assert!(bytes > 5 << 20, "the shared memory is longer");
    let map = store.map("map").unwrap();
    change_until_refused(&store, &map, &mut model, 100);
    assert_holds(&store, &model);
    // This process leaves the store, and opens it again under the limit.
    drop((map, store));
    match options().open(&place) {
        Ok(store) => assert_holds(&store, &model),
        Err(error) => assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}"),
    }
    limit(libc::RLIMIT_FSIZE, u64::MAX);
    assert_goes_on(options().open(&place).unwrap(), &place, &mut model);
}

#[test]
fn files_that_are_longer_than_the_limit_lose_nothing() {
    const NAME: &str = "files_that_are_longer_than_the_limit_lose_nothing";
    let Some((case, place)) = case() else {
        for mib in [1, 4, 7] {
            let place = Place::new();
            in_new_process(NAME, &mib.to_string(), &place.path());
        }
        return;
    };
    let bytes = case.parse::<u64>().unwrap() << 20;
    let mut model = Model::new();
    {
        let store = by_hand().open(&place).unwrap();
        let map = store.map("map").unwrap();
        for number in 0..2_000u16 {
            map.put(number.to_be_bytes(), [2; 9_000]).unwrap();
            model.insert(number.to_be_bytes().to_vec(), vec![2; 9_000]);
        }
    }
    limit(libc::RLIMIT_FSIZE, bytes);
    match by_hand().open(&place) {
        Ok(store) => {
            let map = store.map("map").unwrap();
            change_until_refused(&store, &map, &mut model, 50);
            assert_holds(&store, &model);
        }
        Err(error) => assert_eq!(error.kind(), Kind::MakeSpace, "{error:?}"),
    }
    limit(libc::RLIMIT_FSIZE, u64::MAX);
    assert_goes_on(by_hand().open(&place).unwrap(), &place, &mut model);
}
