//! The peers, one file each. An adapter states the version, every option that is not the default and how it reaches its
//! durability classes; the classes it claims are proven by killing it (`tests/lab.rs`).

mod btreemap;
mod duramen;
mod lmdb;
mod null;
mod redb;

use anyhow::{Context, Result, bail};

use crate::peer::Driver;

/// All peers, in the order of the reports; the first is the one that others are compared with.
pub const ALL: &[&dyn Driver] = &[
    &duramen::Duramen,
    &lmdb::Lmdb,
    &redb::Redb,
    &btreemap::Locked,
    &null::Null,
];

/// The peers of these names, in the order of [`ALL`]; all of them when there are no names.
pub fn named(names: &[String]) -> Result<Vec<&'static dyn Driver>> {
    let known = || ALL.iter().map(|driver| driver.describe().name).collect::<Vec<_>>();
    if let Some(unknown) = names.iter().find(|name| !known().contains(name)) {
        bail!("there is no peer {unknown:?}; the peers are {}", known().join(", "));
    }
    let is_wanted = |driver: &&&dyn Driver| names.is_empty() || names.contains(&driver.describe().name);
    Ok(ALL.iter().filter(is_wanted).copied().collect())
}

/// The peer of this name.
pub fn one(name: &str) -> Result<&'static dyn Driver> {
    named(&[name.to_string()])?.pop().context("a known name has a peer")
}

/// The version of a crate that was built in. It is read from the lock file, so it cannot be out of date.
fn locked_version(name: &str) -> String {
    let wanted = format!("name = \"{name}\"");
    let mut lines = include_str!("../../Cargo.lock")
        .lines()
        .skip_while(|line| *line != wanted)
        .skip(1);
    let version = lines
        .next()
        .and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    format!("{name} {}", version.unwrap_or("of unknown version"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Generator, Tally, values_of, verify};
    use crate::peer::{Class, Unsupported};
    use crate::scratch::Scratch;
    use crate::workloads::tally_scan;

    #[test]
    fn every_peer_states_its_version_and_classes() {
        for driver in ALL {
            let description = driver.describe();
            assert!(!description.version.contains("unknown"), "{description:?}");
            assert!(!description.classes.is_empty(), "{description:?}");
        }
        assert!(named(&["nothing".to_string()]).is_err());
        assert_eq!(
            named(&["redb".to_string(), "lmdb".to_string()])
                .expect("known peers")
                .len(),
            2
        );
    }

    /// Both ways of writing, both ways of reading, and the reopening of those that keep data.
    fn gives_back_what_was_stored(driver: &dyn Driver, class: Class) -> Result<()> {
        let scratch = Scratch::new(&std::env::temp_dir())?;
        let mut generator = Generator::new(11, "peer");
        let (keys, absent) = (generator.present_keys(600), generator.absent_keys(100));
        let values = values_of(&keys);
        let mut peer = driver.open(scratch.path(), class)?;
        peer.put_batch(&keys[..500], &values[..500])?;
        keys[500..]
            .iter()
            .zip(&values[500..])
            .try_for_each(|(key, value)| peer.put(key, value))?;
        for round in 0..2 {
            peer.get_many(&keys, &mut verify)?;
            peer.get_many(&absent, &mut verify)?;
            match tally_scan(&*peer) {
                Err(error) if error.is::<Unsupported>() => {}
                tally => assert_eq!(tally?, Tally::expected(&keys), "round {round}"),
            }
            peer.sync()?;
            if driver.describe().is_persistent {
                peer.close()?;
                peer = driver.open(scratch.path(), class)?;
            }
        }
        peer.close()
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
}
