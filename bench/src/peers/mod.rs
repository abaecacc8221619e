//! The peers, one file each. An adapter states the version, every option that is not the default, and how it achieves
//! its durability classes. `tests/classes.rs` proves the claimed classes by killing the peer and by tracing its syncs.

mod btreemap;
mod canopydb;
mod duramen;
mod faulty;
mod fjall;
mod lmdb;
mod null;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sqlite;

use anyhow::{Context, Result, bail};

use crate::brokers;
use crate::drivers;
use crate::peer::Driver;
use crate::trees;

/// All peers, in the order of the reports. The first is the baseline of comparisons.
pub const ALL: &[&dyn Driver] = &[
    &duramen::Duramen,
    &lmdb::Lmdb,
    #[cfg(feature = "rocksdb")]
    &rocksdb::Rocksdb,
    &redb::Redb,
    &fjall::Fjall,
    &canopydb::Canopydb,
    &sqlite::Sqlite,
    &btreemap::Locked,
    &null::Null,
];

/// Returns the names of all peers. Those in programs of other languages come last.
pub fn names() -> Vec<String> {
    everybody().map(|driver| driver.name()).collect()
}

fn everybody() -> impl Iterator<Item = &'static dyn Driver> {
    let served = brokers::ALL.iter().chain(trees::ALL).copied();
    ALL.iter().copied().chain(served).chain(drivers::all())
}

/// Returns the peers of these names, in the order of [`names`]. Without names, returns all of them, but those in
/// programs of other languages only with `with_drivers`.
pub fn named(wanted: &[String], with_drivers: bool) -> Result<Vec<&'static dyn Driver>> {
    let known = names();
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        if unknown == "rocksdb" {
            bail!(
                "rocksdb is not built in, because its library builds for 20 to 30 minutes; for it, start the lab with \
                 `cargo run --release --manifest-path bench/Cargo.toml --features rocksdb -- ...`"
            );
        }
        bail!("there is no peer {unknown:?}; the peers are {}", known.join(", "));
    }
    if wanted.is_empty() {
        let inside = ALL.iter().copied();
        let outside = drivers::all().into_iter().filter(|_| with_drivers);
        return Ok(inside.chain(outside).collect());
    }
    Ok(everybody().filter(|driver| wanted.contains(&driver.name())).collect())
}

/// Returns the brokers among all peers, in the order of [`names`].
pub fn of_messages() -> Vec<&'static dyn Driver> {
    everybody().filter(|driver| driver.describe().is_broker).collect()
}

/// Returns the trees among all peers, in the order of [`names`].
pub fn of_trees() -> Vec<&'static dyn Driver> {
    everybody().filter(|driver| driver.describe().is_tree).collect()
}

/// Returns the peer of this name. Also finds peers with a planted fault, and those behind the lab's own driver.
pub fn one(name: &str) -> Result<&'static dyn Driver> {
    let faulty = faulty::ALL.iter().chain(brokers::faulty::ALL);
    let faulty = faulty.chain(trees::faulty::ALL).chain(trees::faulty_etcd::ALL);
    let faulty = faulty.copied().find(|driver| driver.name() == name);
    match faulty.or_else(|| drivers::served(name)) {
        Some(driver) => Ok(driver),
        None => named(&[name.to_string()], true)?
            .pop()
            .context("a known name has a peer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Unsupported;
    use crate::data::{Checker, Generator, Keys, Length, Tally, Values};
    use crate::peer::{CACHE_BYTES, Class, Peer, Setting};
    use crate::scratch::Scratch;
    use crate::workloads::tally_scan;

    #[test]
    fn every_peer_states_its_version_and_classes() {
        for driver in ALL {
            let description = driver.describe();
            assert!(!description.version.contains("unknown"), "{description:?}");
            assert!(!description.classes.is_empty(), "{description:?}");
        }
        assert!(named(&["nothing".to_string()], true).is_err());
        let two = named(&["redb".to_string(), "lmdb".to_string()], false).expect("known peers");
        assert_eq!(two.len(), 2);
    }

    #[test]
    fn faulty_peers_are_never_listed() {
        assert!(names().iter().all(|name| !name.contains("faulty")));
        assert!(named(&["faulty-stale".to_string()], true).is_err());
        assert_eq!(one("faulty-stale").expect("by name").describe().name, "faulty-stale");
    }

    struct Data {
        keys: Keys,
        absent: Keys,
        values: Values,
    }

    /// Tests every way of writing and reading, and the reopening of peers that keep data.
    fn gives_back_what_was_stored(driver: &dyn Driver, class: Class) -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let mut generator = Generator::new(11, "peer");
        let data = Data {
            keys: generator.keys(600, 16),
            absent: generator.absent_keys(100, 16),
            values: Values::new(11, Length::Fixed(100)),
        };
        let setting = Setting {
            class,
            cache_bytes: CACHE_BYTES >> 4,
            has_read_ahead: true,
        };
        let mut peer = driver.open(scratch.path(), setting)?;
        let is_exempt = driver.describe().is_exempt;
        store(&*peer, &data)?;
        for _ in 0..2 {
            verify_all(&*peer, &data, is_exempt)?;
            peer.sync()?;
            if driver.describe().is_persistent {
                peer.close()?;
                peer = driver.open(scratch.path(), setting)?;
            }
        }
        match peer.compact() {
            Err(error) if error.is::<Unsupported>() => {}
            done => done?,
        }
        verify_all(&*peer, &data, is_exempt)?;
        peer.close()
    }

    /// Stores 500 pairs in a batch and 100 one by one. Each key first gets the value of a later version. Some keys are
    /// stored and deleted again.
    fn store(peer: &dyn Peer, data: &Data) -> Result<()> {
        let Data { keys, absent, values } = data;
        let all = keys.all();
        let pair = |version| move |key| (key, values.of(key, version));
        peer.put_many(&mut all.iter().map(pair(1)))?;
        peer.put_many(&mut all.part(0, 500).iter().map(pair(0)))?;
        all.part(500, 600)
            .iter()
            .try_for_each(|key| peer.put(key, values.of(key, 0)))?;
        peer.put_many(&mut absent.iter().map(pair(0)))?;
        peer.delete_many(absent.all().part(0, 50))?;
        absent.all().part(50, 100).iter().try_for_each(|key| peer.delete(key))?;
        peer.delete(absent.at(0))
    }

    fn verify_all(peer: &dyn Peer, data: &Data, is_exempt: bool) -> Result<()> {
        let Data { keys, absent, values } = data;
        let checker = Checker::new(values, is_exempt);
        keys.iter()
            .try_for_each(|key| peer.get(key, &mut |found| checker.present(key, 0, found)))?;
        peer.read(&mut |reader| {
            keys.iter()
                .try_for_each(|key| reader.get(key, &mut |found| checker.present(key, 0, found)))?;
            absent
                .iter()
                .try_for_each(|key| reader.get(key, &mut |found| checker.absent(key, found)))
        })?;
        if is_exempt {
            return Ok(());
        }
        assert_eq!(tally_scan(peer)?, Tally::expected(keys, values, |_| 0));
        let sorted = keys.sorted();
        let mut seen = Vec::new();
        peer.read(&mut |reader| {
            reader.scan(sorted.at(100), 10, &mut |key, value| {
                checker.present(key, 0, Some(value))?;
                seen.push(key.to_vec());
                Ok(())
            })
        })?;
        assert!(
            seen.iter().eq(sorted.all().part(100, 110).iter()),
            "ten from the hundredth"
        );
        Ok(())
    }

    #[test]
    fn every_peer_gives_back_what_was_stored_in_each_of_its_classes() {
        for driver in ALL {
            let description = driver.describe();
            for (class, _) in &description.classes {
                let done = gives_back_what_was_stored(*driver, *class);
                done.unwrap_or_else(|error| panic!("{} in class {class}: {error:#}", description.name));
            }
        }
    }

    /// Opens a checkpoint as a separate store while the original store changes.
    #[test]
    fn checkpoint_keeps_the_state_of_its_moment() -> Result<()> {
        let values = Values::new(1, Length::Fixed(100));
        let keys = Generator::new(1, "checkpoint").keys(100, 16);
        let expected = Tally::expected(&keys, &values, |_| 0);
        let mut checked = 0;
        for driver in ALL {
            let description = driver.describe();
            let setting = Setting {
                class: description.classes[0].0,
                cache_bytes: CACHE_BYTES >> 4,
                has_read_ahead: true,
            };
            let scratch = Scratch::new(&std::env::temp_dir())?;
            let (live, kept) = (scratch.path().join("live"), scratch.path().join("kept"));
            std::fs::create_dir(&live)?;
            let peer = driver.open(&live, setting)?;
            peer.put_many(&mut keys.iter().map(|key| (key, values.of(key, 0))))?;
            match peer.checkpoint(&kept) {
                Err(error) if error.is::<Unsupported>() => continue,
                done => done?,
            }
            peer.put(keys.at(0), b"changed later")?;
            let copy = driver.open(&kept, setting)?;
            assert_eq!(tally_scan(&*copy)?, expected, "{}", description.name);
            copy.close()?;
            peer.close()?;
            checked += 1;
        }
        assert!(checked >= 2, "LMDB and SQLite have them");
        Ok(())
    }

    #[test]
    fn the_newest_of_several_copies_comes_back() -> Result<()> {
        let values = Values::new(1, Length::Fixed(100));
        let keys = Generator::new(1, "copies").keys(100, 16);
        let mut checked = 0;
        for driver in ALL {
            let description = driver.describe();
            let setting = Setting {
                class: description.classes[0].0,
                cache_bytes: CACHE_BYTES >> 4,
                has_read_ahead: true,
            };
            let scratch = Scratch::new(&std::env::temp_dir())?;
            let [live, place, back] = ["live", "place", "back"].map(|name| scratch.path().join(name));
            std::fs::create_dir(&live)?;
            let peer = driver.open(&live, setting)?;
            let put = |version| peer.put_many(&mut keys.iter().map(|key| (key, values.of(key, version))));
            put(0)?;
            match peer.back_up(&place) {
                Err(error) if error.is::<Unsupported>() => continue,
                done => assert!(done? > 0),
            }
            put(1)?;
            peer.back_up(&place)?;
            put(2)?;
            peer.bring_back(&place, &back)?;
            let store = driver.open(&back, setting)?;
            let expected = Tally::expected(&keys, &values, |_| 1);
            assert_eq!(tally_scan(&*store)?, expected, "{}", description.name);
            store.close()?;
            peer.close()?;
            checked += 1;
        }
        assert_eq!(checked, 2, "Duramen and LMDB have them");
        Ok(())
    }
}
