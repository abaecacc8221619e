//! A digest of all pairs of a store that can be kept up from one export to the next.
//!
//! It is the sum, modulo 2^128, of a hash of each pair: so it does not depend on the order, and a change takes one hash away and adds
//! another (AdHash; Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing", 1997). The hash is XXH3. It proves that
//! nothing was lost or changed by accident; the BLAKE3 hash of packs proves each byte of these.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

/// The digest of a set of pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(u128);

impl Digest {
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        self.0 = self.0.wrapping_add(of_pair(key, value));
    }

    pub(crate) fn remove(&mut self, key: &[u8], value: &[u8]) {
        self.0 = self.0.wrapping_sub(of_pair(key, value));
    }

    pub(crate) fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }

    pub(crate) fn of_text(text: &str) -> Option<Digest> {
        u128::from_str_radix(text, 16).ok().map(Digest)
    }
}

fn of_pair(key: &[u8], value: &[u8]) -> u128 {
    xxh3_128_with_seed(value, xxh3_64(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_follows_changes_in_any_order() {
        let (mut one, mut other) = (Digest::default(), Digest::default());
        one.add(b"a", b"1");
        one.add(b"b", b"2");
        other.add(b"b", b"2");
        other.add(b"a", b"0");
        assert_ne!(one, other);
        other.remove(b"a", b"0");
        other.add(b"a", b"1");
        assert_eq!(one, other);
        assert_eq!(Digest::of_text(&one.to_text()), Some(one));
        let mut swapped = Digest::default();
        swapped.add(b"1", b"a");
        swapped.add(b"2", b"b");
        assert_ne!(one, swapped);
    }
}
