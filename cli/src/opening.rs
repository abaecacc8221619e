//! Arguments that most commands share: the store, the map, the keys, and the notation.

use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use duramen::{Error, Map, Options, Reason, Store};
use duramen_client::Keys;

use crate::exit::{Failure, Outcome};
use crate::output::say;
use crate::text::Notation;

/// Which store.
#[derive(Args, Debug)]
pub struct StoreArguments {
    /// Directory of the store
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Wait up to this long when another process has the store to itself
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, hide_default_value = true, value_parser = seconds)]
    wait: f64,
}

/// How keys and values are written.
#[derive(Args, Debug)]
pub struct NotationArguments {
    /// Keys and values are hexadecimal, both ways (default: text with \xNN escapes)
    #[arg(long)]
    hex: bool,
}

/// Which map.
#[derive(Args, Debug)]
pub struct MapArguments {
    /// The map (default: the store's only one)
    #[arg(long, short, value_name = "NAME")]
    map: Option<String>,
}

/// Which keys, in order.
#[derive(Args, Debug)]
pub struct RangeArguments {
    /// Only keys that are not before this one
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    from: Option<String>,

    /// Only keys before this one
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    to: Option<String>,

    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["from", "to"], allow_negative_numbers = true)]
    prefix: Option<String>,
}

/// A range of keys: `[from, to)`, or all keys with a prefix.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyRange {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);

fn seconds(text: &str) -> Result<f64, String> {
    const YEAR: f64 = 365.0 * 86400.0;
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_string())?;
    let is_sensible = (0.0..=YEAR).contains(&seconds);
    is_sensible.then_some(seconds).ok_or("not between 0 and a year".into())
}

impl StoreArguments {
    pub fn wait(&self) -> Duration {
        Duration::from_secs_f64(self.wait)
    }

    /// Opens the store for reading; nothing in its directory changes.
    pub fn open_to_read(&self) -> Outcome<Store> {
        self.open(Options::new().read_only(true))
    }

    /// Opens the remains of a possibly damaged store, for reading.
    pub fn open_to_salvage(&self) -> Outcome<Store> {
        self.open(Options::new().salvage(true))
    }

    /// Opens an existing store.
    pub fn open_to_write(&self) -> Outcome<Store> {
        self.open(Options::new().create(false))
    }

    /// Opens the store with other options, and creates it when it is missing.
    pub fn open_or_create(&self, options: Options) -> Outcome<Store> {
        let is_new = self
            .directory
            .read_dir()
            .is_ok_and(|mut entries| entries.next().is_none())
            || !self.directory.exists();
        let store = self.open(options.create(true))?;
        if is_new {
            say(format_args!("made a new store in {}", self.directory.display()));
        }
        Ok(store)
    }

    fn open(&self, options: Options) -> Outcome<Store> {
        let give_up = Instant::now() + self.wait();
        loop {
            match options.clone().open(&self.directory) {
                Err(error) if is_in_use(&error) && Instant::now() < give_up => std::thread::sleep(BETWEEN_ATTEMPTS),
                opened => return Ok(opened?),
            }
        }
    }
}

fn is_in_use(error: &Error) -> bool {
    matches!(error.reason(), Reason::InUse { .. })
}

impl NotationArguments {
    pub fn notation(&self) -> Notation {
        match self.hex {
            false => Notation::Escapes,
            true => Notation::Hexadecimal,
        }
    }
}

impl MapArguments {
    /// Returns the named map, or the only map of the store. The map must exist.
    pub fn existing(&self, store: &Store) -> Outcome<Map> {
        match &self.map {
            Some(name) => existing(store, name),
            None => only(store),
        }
    }

    /// Returns the name that the user gave.
    pub fn name(&self) -> Option<&str> {
        self.map.as_deref()
    }

    /// Returns the named map like [`MapArguments::existing`], but creates it when it is missing.
    pub fn existing_or_new(&self, store: &Store) -> Outcome<Map> {
        let Some(name) = &self.map else { return only(store) };
        if store.maps().get(name)?.is_none() {
            say(format_args!("made the map {name:?}"));
        }
        Ok(store.map(name)?)
    }
}

impl RangeArguments {
    /// Whether the user gave any bound.
    pub fn is_given(&self) -> bool {
        self.from.is_some() || self.to.is_some() || self.prefix.is_some()
    }

    pub fn range(&self, notation: Notation) -> Outcome<KeyRange> {
        if let Some(prefix) = &self.prefix {
            return Ok(KeyRange::of_prefix(notation.parse("--prefix", prefix)?));
        }
        let bound = |name, text: &Option<String>| text.as_ref().map(|text| notation.parse(name, text)).transpose();
        Ok(KeyRange {
            from: bound("--from", &self.from)?.map_or(Bound::Unbounded, Bound::Included),
            to: bound("--to", &self.to)?.map_or(Bound::Unbounded, Bound::Excluded),
        })
    }
}

impl KeyRange {
    fn of_prefix(prefix: Vec<u8>) -> KeyRange {
        let mut after = prefix.clone();
        while after.last() == Some(&0xFF) {
            after.pop();
        }
        let to = match after.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(after)
            }
            // No key follows those whose prefix consists of 0xFF bytes only.
            None => Bound::Unbounded,
        };
        KeyRange {
            from: Bound::Included(prefix),
            to,
        }
    }

    /// Returns the range in the form that the client of a server takes.
    pub fn keys(&self) -> Keys {
        let start = match &self.from {
            Bound::Included(start) => &start[..],
            _ => &[],
        };
        match &self.to {
            Bound::Excluded(end) => Keys::between(start, end),
            _ => Keys::starting_at(start),
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        RangeBounds::<[u8]>::contains(&self.bounds(), key)
    }

    /// Returns the range in the form that the engine takes.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (
            self.from.as_ref().map(Vec::as_slice),
            self.to.as_ref().map(Vec::as_slice),
        )
    }
}

/// Returns the map named `name`, or an error that lists the existing maps.
pub fn existing(store: &Store, name: &str) -> Outcome<Map> {
    let unknown = |names: Vec<String>| {
        Failure::wrong_call(format!(
            "there is no map named {name:?}; the store has {}",
            listed(&names)
        ))
    };
    match store.maps().get(name)? {
        Some(map) => Ok(map),
        None => Err(unknown(store.maps().list()?)),
    }
}

fn only(store: &Store) -> Outcome<Map> {
    existing(store, &only_name(store.maps().list()?)?)
}

/// Returns the only one of these names.
pub fn only_name(mut names: Vec<String>) -> Outcome<String> {
    match names.as_slice() {
        [_] => Ok(names.remove(0)),
        [] => Err(Failure::wrong_call("the store has no maps yet; name one with --map")),
        _ => Err(Failure::wrong_call(format!(
            "say which map with --map; the store has {}",
            listed(&names)
        ))),
    }
}

/// Lists names for an error message. A long list is shortened.
pub fn listed(names: &[String]) -> String {
    const SHOWN_MAX: usize = 20;
    if names.is_empty() {
        return "no maps".into();
    }
    let shown: Vec<&str> = names.iter().take(SHOWN_MAX).map(String::as_str).collect();
    match names.len() - shown.len() {
        0 => format!("the maps: {}", shown.join(", ")),
        more => format!(
            "the maps: {} and {more} more (`duramen maps` lists them)",
            shown.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_first_key_without_it() {
        let end = |prefix: &[u8]| KeyRange::of_prefix(prefix.to_vec()).to;
        assert_eq!(end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(end(b"a\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(end(b"\xff\xff"), Bound::Unbounded);
        assert_eq!(end(b""), Bound::Unbounded);
    }
}
