//! The data of every workload: made from a seed before a clock starts, and checkable afterwards without a second copy.
//!
//! Two rules make that possible. A value is a function of its key, so a value that was read is verified by making it
//! again. The lowest bit of a key's last byte tells present from absent: keys that are stored have 0 there, keys that
//! are asked for and must be missing have 1. So absent keys lie evenly among the present ones and can never be one of them.

use anyhow::{Result, bail};

/// A key of 16 bytes.
pub type Key = [u8; 16];
/// A value of 100 bytes.
pub type Value = [u8; 100];

/// Random numbers from a seed (SplitMix64), the same on every machine and in every version of the lab.
pub struct Generator {
    state: u64,
}

impl Generator {
    /// One stream of numbers per purpose, so that a workload that draws more for one leaves the others as they were.
    pub fn new(seed: u64, purpose: &str) -> Generator {
        let state = purpose.bytes().fold(seed, |state, byte| mix(state ^ u64::from(byte)));
        Generator { state }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    fn key(&mut self, lowest_bit: u8) -> Key {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.next().to_be_bytes());
        key[8..].copy_from_slice(&self.next().to_be_bytes());
        key[15] = (key[15] & !1) | lowest_bit;
        key
    }

    /// Random keys to be stored. Two equal ones among `count` are as good as impossible (127 random bits).
    pub fn present_keys(&mut self, count: usize) -> Vec<Key> {
        (0..count).map(|_| self.key(0)).collect()
    }

    /// Random keys that are never stored.
    pub fn absent_keys(&mut self, count: usize) -> Vec<Key> {
        (0..count).map(|_| self.key(1)).collect()
    }

    /// Keys drawn at random from `keys`, in an order of their own. They are copied, so that reading them in the clock
    /// is sequential and costs no cache miss.
    pub fn sample(&mut self, keys: &[Key], count: usize) -> Vec<Key> {
        (0..count).map(|_| keys[self.below(keys.len())]).collect()
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// The value of a key: incompressible, and cheap to make (one multiplication per 8 bytes), because readers make it
/// inside the clock to compare.
#[inline]
pub fn value_of(key: &[u8]) -> Value {
    let mut state = key.chunks(8).fold(key.len() as u64, |state, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mix(state ^ u64::from_le_bytes(word))
    });
    let mut value = [0; 100];
    for part in value.chunks_mut(8) {
        state = state.wrapping_add(0xA076_1D64_78BD_642F);
        let product = u128::from(state) * u128::from(state ^ 0xE703_7ED1_A0B4_28DB);
        let word = (product as u64) ^ ((product >> 64) as u64);
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
    value
}

/// The values of many keys, for a load whose clock must not see them being made.
pub fn values_of(keys: &[Key]) -> Vec<Value> {
    keys.iter().map(|key| value_of(key)).collect()
}

/// Whether a key is one that workloads store.
pub fn is_present(key: &[u8]) -> bool {
    key.last().is_some_and(|byte| byte & 1 == 0)
}

/// Fails, naming the key, unless `found` is what a read of `key` must give.
#[inline]
pub fn verify(key: &[u8], found: Option<&[u8]>) -> Result<()> {
    let right = match found {
        Some(value) => is_present(key) && *value == value_of(key),
        None => !is_present(key),
    };
    if right { Ok(()) } else { wrong_read(key, found) }
}

#[cold]
fn wrong_read(key: &[u8], found: Option<&[u8]>) -> Result<()> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match found {
        None => bail!("key {} was stored and acknowledged, but is not there", hex(key)),
        Some(_) if !is_present(key) => bail!("key {} was never stored, but is there", hex(key)),
        Some(value) => bail!(
            "key {} holds {}, expected {}",
            hex(key),
            hex(value),
            hex(&value_of(key))
        ),
    }
}

/// What a scan saw: enough to tell in a few nanoseconds per pair that it was complete, in order and right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pairs: u64,
    sum: u64,
    last: Option<Key>,
    is_ordered: bool,
}

impl Tally {
    /// Before the first pair.
    pub fn new() -> Tally {
        Tally {
            pairs: 0,
            sum: 0,
            last: None,
            is_ordered: true,
        }
    }

    /// What a right scan over exactly these keys sees.
    pub fn expected(keys: &[Key]) -> Tally {
        let sum = keys
            .iter()
            .fold(0u64, |sum, key| sum.wrapping_add(pair_sum(key, &value_of(key))));
        Tally {
            pairs: keys.len() as u64,
            sum,
            last: keys.iter().max().copied(),
            is_ordered: true,
        }
    }

    /// Takes the next pair of a scan.
    #[inline]
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let Ok(key) = Key::try_from(key) else {
            self.is_ordered = false;
            return;
        };
        self.pairs += 1;
        self.sum = self.sum.wrapping_add(pair_sum(&key, value));
        self.is_ordered &= self.last.is_none_or(|last| last < key);
        self.last = Some(key);
    }

    /// How many pairs were seen.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }
}

/// A sum over the words of a pair, each with a factor of its own place, so that a value under the wrong key or with
/// swapped parts changes it. The products do not wait for each other.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_keys_and_another_purpose_others() {
        let keys = |seed, purpose| Generator::new(seed, purpose).present_keys(100);
        assert_eq!(keys(7, "load"), keys(7, "load"));
        assert_ne!(keys(7, "load"), keys(8, "load"));
        assert_ne!(keys(7, "load"), keys(7, "more"));
    }

    #[test]
    fn verification_accepts_the_right_value_and_catches_every_flipped_bit() {
        let key = Generator::new(1, "test").present_keys(1)[0];
        let value = value_of(&key);
        verify(&key, Some(&value)).expect("the right value");
        for bit in 0..value.len() * 8 {
            let mut wrong = value;
            wrong[bit / 8] ^= 1 << (bit % 8);
            verify(&key, Some(&wrong)).expect_err("a flipped bit");
        }
        verify(&key, Some(&value[..99])).expect_err("a short value");
    }

    #[test]
    fn verification_names_the_key_of_a_lost_pair_and_of_an_invented_one() {
        let mut generator = Generator::new(2, "test");
        let (present, absent) = (generator.present_keys(1)[0], generator.absent_keys(1)[0]);
        let lost = verify(&present, None).expect_err("a lost pair").to_string();
        assert!(
            lost.contains(&format!("{:02x}{:02x}", present[0], present[1])),
            "{lost}"
        );
        verify(&absent, None).expect("an absent key");
        verify(&absent, Some(&value_of(&absent))).expect_err("an invented pair");
    }

    fn tally_of(keys: &[Key], value: impl Fn(usize) -> Value) -> Tally {
        let mut tally = Tally::new();
        keys.iter().enumerate().for_each(|(at, key)| tally.add(key, &value(at)));
        tally
    }

    #[test]
    fn tally_catches_missing_swapped_unordered_and_changed_pairs() {
        let mut keys = Generator::new(3, "test").present_keys(500);
        let expected = Tally::expected(&keys);
        keys.sort_unstable();
        let right = |at: usize| value_of(&keys[at]);
        assert_eq!(tally_of(&keys, right), expected);
        assert_ne!(
            tally_of(&keys[1..], |at| value_of(&keys[at + 1])),
            expected,
            "a missing pair"
        );
        assert_ne!(
            tally_of(&keys, |at| right(if at < 2 { 1 - at } else { at })),
            expected,
            "two swapped values"
        );
        let mut unordered = keys.clone();
        unordered.swap(10, 11);
        assert_ne!(
            tally_of(&unordered, |at| value_of(&unordered[at])),
            expected,
            "two pairs out of order"
        );
        let changed = |at: usize| {
            let mut value = right(at);
            value[99] ^= u8::from(at == 250);
            value
        };
        assert_ne!(tally_of(&keys, changed), expected, "a changed byte");
    }
}
