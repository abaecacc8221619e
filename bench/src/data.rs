//! The data of every workload: made from a seed before a clock starts, and checkable afterwards without a second copy.
//!
//! A value is a place in a pool of random bytes. The hash of the key and the version of the pair select the place, so
//! making a value costs a multiplication or two. A reader checks a value by comparing it with its place in the pool. No
//! two keys and no two versions of a key share a value, so an old value differs from a new one. The lab needs no second
//! copy of what it stored. The pool does not compress, and is small enough to stay in the processor's cache.

use anyhow::{Result, bail};

/// Random numbers from a seed (SplitMix64), equal on every machine and in every version of the lab.
pub struct Generator {
    state: u64,
}

impl Generator {
    /// Creates one stream of numbers per purpose. A workload that draws more for one purpose leaves the others
    /// unchanged.
    pub fn new(seed: u64, purpose: &str) -> Generator {
        let state = purpose.bytes().fold(seed, |state, byte| mix(state ^ u64::from(byte)));
        Generator { state }
    }

    /// Returns the next number.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Returns a number below `limit`.
    #[inline]
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// Returns a number from 0 to 1, excluding 1.
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns random keys of `width` bytes whose lowest bit is 0. From 16 bytes on, two equal keys are practically
    /// impossible.
    pub fn keys(&mut self, count: usize, width: usize) -> Keys {
        self.keys_with_lowest_bit(count, width, 0)
    }

    /// Returns random keys that [`Generator::keys`] never returns: their lowest bit is 1. They are spread evenly among
    /// the others.
    pub fn absent_keys(&mut self, count: usize, width: usize) -> Keys {
        self.keys_with_lowest_bit(count, width, 1)
    }

    fn keys_with_lowest_bit(&mut self, count: usize, width: usize, bit: u8) -> Keys {
        let mut bytes = vec![0; count * width];
        for key in bytes.chunks_mut(width) {
            for part in key.chunks_mut(8) {
                let random = self.next().to_be_bytes();
                part.copy_from_slice(&random[..part.len()]);
            }
            key[width - 1] = (key[width - 1] & !1) | bit;
        }
        Keys { bytes, width }
    }

    /// Returns keys of random letters from a to z.
    pub fn letters(&mut self, count: usize, width: usize) -> Keys {
        let bytes = (0..count * width).map(|_| b'a' + self.below(26) as u8).collect();
        Keys { bytes, width }
    }

    /// Returns `count` numbers below `limit`, each drawn independently.
    pub fn picks(&mut self, count: usize, limit: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(limit) as u32).collect()
    }
}

#[inline]
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Returns a number spread over all 64 bits, always equal for equal input. YCSB lays out its records in this order.
pub fn scrambled(number: u64) -> u64 {
    mix(number.wrapping_add(0x9E37_79B9_7F4A_7C15))
}

/// Keys of one width, stored side by side, so that reading them in order costs no cache miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    bytes: Vec<u8>,
    width: usize,
}

impl Keys {
    /// Creates an empty list.
    pub fn with_width(width: usize) -> Keys {
        assert!(width > 0, "a key has bytes");
        Keys {
            bytes: Vec::new(),
            width,
        }
    }

    /// Collects keys from an iterator.
    pub fn collect(width: usize, keys: impl Iterator<Item = impl AsRef<[u8]>>) -> Keys {
        let mut all = Keys::with_width(width);
        keys.for_each(|key| all.push(key.as_ref()));
        all
    }

    /// Appends a key.
    pub fn push(&mut self, key: &[u8]) {
        assert_eq!(key.len(), self.width, "keys of one list are of one width");
        self.bytes.extend_from_slice(key);
    }

    /// Returns all keys.
    pub fn all(&self) -> KeySlice<'_> {
        KeySlice {
            bytes: &self.bytes,
            width: self.width,
        }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// Returns the key at an index.
    #[inline]
    pub fn at(&self, index: usize) -> &[u8] {
        &self.bytes[index * self.width..(index + 1) * self.width]
    }

    /// Iterates over the keys.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(self.width)
    }

    /// Returns the keys at some indexes, copied side by side in that order.
    pub fn picked(&self, places: &[u32]) -> Keys {
        Keys::collect(self.width, places.iter().map(|place| self.at(*place as usize)))
    }

    /// Returns these keys in byte order.
    pub fn sorted(&self) -> Keys {
        let mut all: Vec<&[u8]> = self.iter().collect();
        all.sort_unstable();
        Keys::collect(self.width, all.into_iter())
    }
}

/// Some keys of a list.
#[derive(Clone, Copy, Debug)]
pub struct KeySlice<'a> {
    bytes: &'a [u8],
    width: usize,
}

impl<'a> KeySlice<'a> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// Returns the key at an index.
    #[inline]
    pub fn at(&self, index: usize) -> &'a [u8] {
        &self.bytes[index * self.width..(index + 1) * self.width]
    }

    /// Iterates over the keys.
    pub fn iter(&self) -> std::slice::ChunksExact<'a, u8> {
        self.bytes.chunks_exact(self.width)
    }

    /// Returns the last key, if there is one.
    pub fn last(&self) -> Option<&'a [u8]> {
        self.len().checked_sub(1).map(|last| self.at(last))
    }

    /// Returns the keys from index `from` to before `to`, limited to the existing ones.
    pub fn part(&self, from: usize, to: usize) -> KeySlice<'a> {
        let (from, to) = (from.min(self.len()), to.min(self.len()));
        KeySlice {
            bytes: &self.bytes[from * self.width..to * self.width],
            width: self.width,
        }
    }

    /// Returns the share of one of `workers` workers that divide the keys evenly.
    pub fn share(&self, worker: usize, workers: usize) -> KeySlice<'a> {
        let each = self.len().div_ceil(workers);
        self.part(worker * each, (worker + 1) * each)
    }

    /// Returns parts of at most `count` keys.
    pub fn chunks(self, count: usize) -> impl Iterator<Item = KeySlice<'a>> {
        let width = self.width;
        self.bytes
            .chunks(count * width)
            .map(move |bytes| KeySlice { bytes, width })
    }
}

/// Length of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All values have this length.
    Fixed(usize),
    /// The value is the key.
    Key,
    /// As in elmdb's load: 150 bytes for a key that begins with `k`, otherwise 200 plus the key's number modulo 300.
    Mega,
}

/// Size of the pool, small enough to stay in the second-level cache. Two pairs in 260,000 share a place.
const POOL_BYTES: usize = 1 << 18;
const VALUE_BYTES_MAX: usize = 1 << 20;

/// The value of every key and version.
pub struct Values {
    pool: Vec<u8>,
    length: Length,
}

impl Values {
    /// Creates the values that belong to a seed.
    pub fn new(seed: u64, length: Length) -> Values {
        let mut generator = Generator::new(seed, "values");
        let words = (POOL_BYTES + VALUE_BYTES_MAX) / 8;
        let pool = (0..words).flat_map(|_| generator.next().to_le_bytes()).collect();
        Values { pool, length }
    }

    /// Returns the value of a key written for the `version`-th time, counted from 0.
    #[inline]
    pub fn of<'a>(&'a self, key: &'a [u8], version: u32) -> &'a [u8] {
        let length = match self.length {
            Length::Key => return key,
            Length::Fixed(length) => length,
            Length::Mega if key[0] == b'k' => 150,
            Length::Mega => 200 + number_at_end(key) % 300,
        };
        let hash = key
            .chunks(8)
            .fold(u64::from(version) << 8 | key.len() as u64, |state, part| {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                let product =
                    u128::from(state ^ u64::from_le_bytes(word) ^ 0xA076_1D64_78BD_642F) * 0xE703_7ED1_A0B4_28DB;
                (product >> 64) as u64 ^ product as u64
            });
        let start = mix(hash) as usize % POOL_BYTES;
        &self.pool[start..start + length]
    }
}

/// Returns the number in the last ten digits of a key.
fn number_at_end(key: &[u8]) -> usize {
    let digits = &key[key.len().saturating_sub(10)..];
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + usize::from(digit.wrapping_sub(b'0')))
}

/// Checks reads. For a peer that stores nothing, the checker does the same work on the expected value. The harness cost
/// that such a peer shows then includes the checks.
#[derive(Clone, Copy)]
pub struct Checker<'a> {
    values: &'a Values,
    is_exempt: bool,
}

impl<'a> Checker<'a> {
    /// Creates a checker against these values, unless the peer is exempt.
    pub fn new(values: &'a Values, is_exempt: bool) -> Checker<'a> {
        Checker { values, is_exempt }
    }

    /// The key must be present in this version.
    #[inline]
    pub fn present(&self, key: &[u8], version: u32, found: Option<&[u8]>) -> Result<()> {
        let expected = self.values.of(key, version);
        let found = if self.is_exempt {
            Some(std::hint::black_box(expected))
        } else {
            found
        };
        match found {
            Some(value) if value == expected => Ok(()),
            found => wrong_read(key, found, Some(expected)),
        }
    }

    /// The key must be absent.
    #[inline]
    pub fn absent(&self, key: &[u8], found: Option<&[u8]>) -> Result<()> {
        match found {
            None => Ok(()),
            found => wrong_read(key, found, None),
        }
    }

    /// The key may be present, but only in this version.
    #[inline]
    pub fn present_or_absent(&self, key: &[u8], version: u32, found: Option<&[u8]>) -> Result<()> {
        match found {
            None => Ok(()),
            found => self.present(key, version, found),
        }
    }

    /// The key must be present in one of these versions. The oldest was acknowledged before the read began; the write
    /// of the newest began before the read ended.
    pub fn present_between(&self, key: &[u8], oldest: u32, newest: u32, found: Option<&[u8]>) -> Result<()> {
        let is_one = |value| (oldest..=newest).any(|version| value == self.values.of(key, version));
        match found {
            Some(value) if is_one(value) => Ok(()),
            found => self.present(key, oldest, found),
        }
    }
}

/// Returns the error of a read that differs from the expected result; no error when both are equal.
#[cold]
pub fn wrong_read(key: &[u8], found: Option<&[u8]>, expected: Option<&[u8]>) -> Result<()> {
    let name = key_text(key);
    match (found, expected) {
        (found, expected) if found == expected => Ok(()),
        (None, _) => bail!("key {name} was stored and acknowledged, but is not there"),
        (Some(_), None) => bail!("key {name} was deleted or never stored, but is there"),
        (Some(value), Some(expected)) => {
            bail!("key {name} holds {}, expected {}", hex(value), hex(expected))
        }
    }
}

/// Formats a key for people.
pub fn key_text(key: &[u8]) -> String {
    if key.iter().all(u8::is_ascii_graphic) {
        format!("{:?}", String::from_utf8_lossy(key))
    } else {
        hex(key)
    }
}

/// Formats the first bytes in hexadecimal, and the number of bytes.
fn hex(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(24).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > 24 {
        format!("{shown}.. ({} bytes)", bytes.len())
    } else {
        shown
    }
}

/// A summary of a scan. In a few nanoseconds per pair it shows whether the scan was complete, in order and right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pairs: u64,
    sum: u64,
    last: Vec<u8>,
    is_ordered: bool,
}

impl Tally {
    /// Creates a tally before the first pair.
    pub fn new() -> Tally {
        Tally {
            pairs: 0,
            sum: 0,
            last: Vec::with_capacity(64),
            is_ordered: true,
        }
    }

    /// Returns the tally of a correct scan over exactly these keys in these versions.
    pub fn expected(keys: &Keys, values: &Values, version: impl Fn(usize) -> u32) -> Tally {
        let sum = keys.iter().enumerate().fold(0u64, |sum, (at, key)| {
            sum.wrapping_add(pair_sum(key, values.of(key, version(at))))
        });
        Tally {
            pairs: keys.len() as u64,
            sum,
            last: keys.iter().max().unwrap_or_default().to_vec(),
            is_ordered: true,
        }
    }

    /// Adds the next pair of a scan.
    #[inline]
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        self.pairs += 1;
        self.sum = self.sum.wrapping_add(pair_sum(key, value));
        self.is_ordered &= self.last.as_slice() < key;
        self.last.clear();
        self.last.extend_from_slice(key);
    }

    /// Returns the number of pairs seen.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }
}

/// Returns a sum over the words of a pair. Each word has a factor of its own place, so a value under the wrong key or
/// with swapped parts changes the sum. The products do not depend on each other.
#[inline]
fn pair_sum(key: &[u8], value: &[u8]) -> u64 {
    let mut factor = 0x9E37_79B9_7F4A_7C15u64;
    let mut sum = value.len() as u64;
    for bytes in [key, value] {
        let parts = bytes.chunks_exact(8);
        let rest = parts
            .remainder()
            .iter()
            .fold(0, |rest, byte| rest << 8 | u64::from(*byte));
        for word in parts
            .map(|part| u64::from_le_bytes(part.try_into().expect("8 bytes")))
            .chain([rest])
        {
            sum = sum.wrapping_add((word ^ (word >> 32)).wrapping_mul(factor));
            factor = factor.wrapping_add(0xC2B2_AE3D_27D4_EB4E);
        }
    }
    mix(sum)
}

/// Draws numbers below a limit so that a few of them occur often (Zipf's law with the exponent 0.99, as in YCSB; the
/// method of Gray and others, "Quickly generating billion-record synthetic databases").
pub struct Zipfian {
    limit: f64,
    theta: f64,
    alpha: f64,
    eta: f64,
    zeta: f64,
}

impl Zipfian {
    /// Creates a source of numbers below `limit`; the smallest occur most often.
    pub fn new(limit: usize) -> Zipfian {
        let theta = 0.99;
        let zeta_of = |count: usize| (1..=count).map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
        let zeta = zeta_of(limit);
        let count = limit as f64;
        Zipfian {
            limit: count,
            theta,
            alpha: 1.0 / (1.0 - theta),
            eta: (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - zeta_of(2.min(limit)) / zeta),
            zeta,
        }
    }

    /// Returns the next number.
    pub fn next(&self, generator: &mut Generator) -> usize {
        let fraction = generator.fraction();
        let weight = fraction * self.zeta;
        if weight < 1.0 {
            return 0;
        }
        if weight < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.limit as usize - 1);
        }
        let drawn = (self.limit * (self.eta * fraction - self.eta + 1.0).powf(self.alpha)) as usize;
        drawn.min(self.limit as usize - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_keys_and_another_purpose_others() {
        let keys = |seed, purpose| Generator::new(seed, purpose).keys(100, 16);
        assert_eq!(keys(7, "load"), keys(7, "load"));
        assert_ne!(keys(7, "load"), keys(8, "load"));
        assert_ne!(keys(7, "load"), keys(7, "more"));
    }

    #[test]
    fn verification_accepts_the_right_value_and_catches_every_flipped_bit_and_every_other_version() {
        let values = Values::new(1, Length::Fixed(100));
        let checker = Checker::new(&values, false);
        let keys = Generator::new(1, "test").keys(2, 16);
        let (key, other) = (keys.at(0), keys.at(1));
        let value = values.of(key, 0).to_vec();
        checker.present(key, 0, Some(&value)).expect("the right value");
        for bit in 0..value.len() * 8 {
            let mut wrong = value.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            checker.present(key, 0, Some(&wrong)).expect_err("a flipped bit");
        }
        checker.present(key, 0, Some(&value[..99])).expect_err("a short value");
        checker.present(key, 1, Some(&value)).expect_err("an older version");
        checker
            .present(other, 0, Some(&value))
            .expect_err("another key's value");
        checker
            .present_between(key, 0, 2, Some(values.of(key, 2)))
            .expect("a newer version");
        checker
            .present_between(key, 1, 2, Some(&value))
            .expect_err("a version that was replaced before the read");
    }

    #[test]
    fn verification_names_the_key_of_a_lost_pair_and_of_an_invented_one() {
        let values = Values::new(2, Length::Fixed(10));
        let checker = Checker::new(&values, false);
        let lost = checker.present(b"lost-key", 0, None).expect_err("a lost pair");
        assert!(lost.to_string().contains("lost-key"), "{lost}");
        checker.absent(b"absent", None).expect("an absent key");
        checker.absent(b"absent", Some(b"1")).expect_err("an invented pair");
        let binary = checker.present(&[0, 171], 0, None).expect_err("a lost pair");
        assert!(binary.to_string().contains("00ab"), "{binary}");
    }

    #[test]
    fn peer_that_is_exempt_passes_with_nothing() {
        let values = Values::new(2, Length::Fixed(10));
        Checker::new(&values, true).present(b"key", 0, None).expect("exempt");
    }

    #[test]
    fn tally_catches_missing_swapped_unordered_and_changed_pairs() {
        let values = Values::new(3, Length::Fixed(100));
        let keys = Generator::new(3, "test").keys(500, 16);
        let expected = Tally::expected(&keys, &values, |_| 0);
        let keys = keys.sorted();
        let tally = |order: &[usize], value: &dyn Fn(usize) -> Vec<u8>| {
            let mut tally = Tally::new();
            order.iter().for_each(|at| tally.add(keys.at(*at), &value(*at)));
            tally
        };
        let right = |at: usize| values.of(keys.at(at), 0).to_vec();
        let all: Vec<usize> = (0..500).collect();
        assert_eq!(tally(&all, &right), expected);
        assert_ne!(tally(&all[1..], &right), expected, "a missing pair");
        let swapped = |at: usize| right(if at < 2 { 1 - at } else { at });
        assert_ne!(tally(&all, &swapped), expected, "two swapped values");
        let mut unordered = all.clone();
        unordered.swap(10, 11);
        assert_ne!(tally(&unordered, &right), expected, "two pairs out of order");
        let changed = |at: usize| {
            let mut value = right(at);
            value[99] ^= u8::from(at == 250);
            value
        };
        assert_ne!(tally(&all, &changed), expected, "a changed byte");
    }

    #[test]
    fn mega_values_are_as_long_as_the_published_load_has_them() {
        let values = Values::new(4, Length::Mega);
        assert_eq!(values.of(b"key0000000007", 0).len(), 150);
        assert_eq!(values.of(b"mega_w3_key0030000007", 0).len(), 200 + 30_000_007 % 300);
        let letters = Values::new(4, Length::Key);
        assert_eq!(letters.of(b"abc", 0), b"abc");
    }

    #[test]
    fn zipfian_numbers_are_below_the_limit_and_prefer_the_smallest() {
        let zipfian = Zipfian::new(1000);
        let mut generator = Generator::new(5, "zipf");
        let mut counts = vec![0u32; 1000];
        (0..100_000).for_each(|_| counts[zipfian.next(&mut generator)] += 1);
        // 1 / zeta(1000, 0.99) is 0.128.
        assert!((12_000..14_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[1] && counts[1] > counts[10] && counts[10] > counts[500]);
        assert_eq!(Zipfian::new(1).next(&mut generator), 0);
    }
}
