//! Order-preserving keys: values of Rust types become bytes that sort as the values do.
//!
//! The store orders keys by their bytes, as `memcmp` does. This module turns integers, text, tuples and the like into
//! such bytes and back. It stands beside the engine, not below it: the bytes go in and out through the ordinary calls,
//! and a program that has its own encoding never comes here.
//!
//! # The format
//!
//! It is stable: these bytes are in people's stores, so no version of Duramen changes what is in this table.
//!
//! | type | bytes | example |
//! |---|---|---|
//! | `u8` .. `u128` | big-endian, full width | `258u16` is `01 02` |
//! | `i8` .. `i128` | big-endian, sign bit flipped | `-1i16` is `7F FF`, `0i16` is `80 00` |
//! | `f32`, `f64` | big-endian bits, the sign bit flipped; when negative, all bits | `1.0f32` is `BF 80 00 00` |
//! | `bool` | `00` false, `01` true | `true` is `01` |
//! | `char` | three bytes, big-endian | `'a'` is `00 00 61` |
//! | `str`, `[u8]` (and `String`, `Vec<u8>`) | each `00` becomes `00 FF`; then the end, `00 00` | `"a\0b"` is `61 00 FF 62 00 00` |
//! | `[u8; N]` | as it is | `[1u8, 0]` is `01 00` |
//! | `Option<T>` | `00` for `None`; `01` and the value for `Some` | `Some(7u8)` is `01 07` |
//! | tuples of up to 8, and `()` | the parts, one after the other | `("a", 7u8)` is `61 00 00 07` |
//! | [`Reverse<T>`] | the bytes of `T`, every bit flipped | `Reverse(1u8)` is `FE` |
//!
//! ```
//! use duramen_engine::encoding::{decode, encode};
//! use std::cmp::Reverse;
//!
//! assert_eq!(encode(&258u16), [0x01, 0x02]);
//! assert_eq!(encode(&-1i16), [0x7F, 0xFF]);
//! assert_eq!(encode(&0i16), [0x80, 0x00]);
//! assert_eq!(encode(&1.0f32), [0xBF, 0x80, 0x00, 0x00]);
//! assert_eq!(encode(&true), [0x01]);
//! assert_eq!(encode(&'a'), [0x00, 0x00, 0x61]);
//! assert_eq!(encode("a\0b"), [0x61, 0x00, 0xFF, 0x62, 0x00, 0x00]);
//! assert_eq!(encode(&[1u8, 0]), [0x01, 0x00]);
//! assert_eq!(encode(&Some(7u8)), [0x01, 0x07]);
//! assert_eq!(encode(&("a", 7u8)), [0x61, 0x00, 0x00, 0x07]);
//! assert_eq!(encode(&Reverse(1u8)), [0xFE]);
//!
//! let key = encode(&("orders", 2026u16, Reverse(41u64)));
//! assert_eq!(decode::<(String, u16, Reverse<u64>)>(&key)?, ("orders".to_string(), 2026, Reverse(41)));
//! # Ok::<(), duramen_engine::Error>(())
//! ```
//!
//! # What always holds
//!
//! 1. `encode(a)` compares with `encode(b)` as `a` compares with `b`.
//! 2. `decode(encode(a))` is `a`, to the bit.
//! 3. Of two different values of one type, neither encoding begins with the other. This is what makes 1 true inside
//!    tuples and under `Reverse`, and it is why text carries its end.
//! 4. The encoding of the leading parts of a tuple is where the encodings of all tuples with those parts begin, and of
//!    no others: [`KeyRange::starting_with`].
//!
//! The bytes do not say which type they are: decode with the types that were encoded. Their length counts against
//! [`crate::KEY_BYTES_MAX`]; a `00` in text counts twice.
//!
//! # Where to look twice
//!
//! - **Floats** have the order of [`f64::total_cmp`]: -NaN, -infinity, .. -0.0, +0.0, .. infinity, NaN. Every bit
//!   pattern is a key of its own, so `-0.0` and `0.0` are different keys although `==` calls them equal; where that is
//!   unwanted, encode `x + 0.0`, which turns the one into the other.
//! - **`[u8; N]` is not `[u8]`**: an array has a known length and needs no end, a slice does. `b"abc"` is an array;
//!   write `&b"abc"[..]` or `"abc"` for the other.
//! - **Text** is ordered by code point (that is, by its UTF-8 bytes), not by anybody's alphabet.
//! - **`usize` and `isize`** are missing on purpose: their width depends on the machine, a key must not.

use std::cmp::Reverse;

use crate::error::{Error, Reason, Result};

/// A value that has an order-preserving encoding. See [the module](self) for the format.
///
/// Borrowed forms encode as what they borrow: a `&str` gives the key of the `String`. Who implements this for a type of
/// their own owes it what [always holds](self#what-always-holds); encoding a tuple of parts that are keys is the sure
/// way.
pub trait Key {
    /// Appends the encoding to `out`.
    fn encode_to(&self, out: &mut Vec<u8>);
}

/// A [`Key`] that can be had back from its encoding.
///
/// Apart from [`Key`] because a `&str` can be encoded, but what comes back must own its bytes.
pub trait DecodeKey: Key + Sized {
    /// Takes one value off the front of `bytes`.
    ///
    /// Bytes that are no encoding of this type are an error of kind [`FixTheCall`](crate::Kind::FixTheCall); `bytes` is
    /// then where decoding stopped.
    fn decode_from(bytes: &mut &[u8]) -> Result<Self>;
}

/// The encoding of `key`.
pub fn encode<K: Key + ?Sized>(key: &K) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    key.encode_to(&mut out);
    out
}

/// The value that `bytes` is the encoding of, the whole of it.
pub fn decode<K: DecodeKey>(mut bytes: &[u8]) -> Result<K> {
    let key = K::decode_from(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(key);
    }
    let (rest, name) = (bytes.len(), std::any::type_name::<K>());
    Err(invalid(format!(
        "{rest} bytes follow a complete {name}; decode the key with the types it was encoded with"
    )))
}

/// A range of encoded keys that belong together.
///
/// ```
/// use duramen_engine::encoding::{encode, KeyRange};
/// use std::ops::RangeBounds;
///
/// // Every key of the form ("orders", 2026, ..).
/// let of_the_year = KeyRange::starting_with(&("orders", 2026u16));
/// assert!(of_the_year.contains(&encode(&("orders", 2026u16, 1u64))[..]));
/// assert!(!of_the_year.contains(&encode(&("orders", 2027u16, 1u64))[..]));
///
/// // Every key of the form ("user", name, ..) where the name begins with "An".
/// let named_an = KeyRange::text_starting_with(&("user",), "An");
/// assert!(named_an.contains(&encode(&("user", "Anna"))[..]));
/// assert!(!named_an.contains(&encode(&("user", "Ao"))[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    prefix: Vec<u8>,
    /// The first key behind the range; `None` where the range goes on to the last key there is.
    end: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys whose leading parts are `leading`: a tuple of them, or one value. `()` means every key.
    pub fn starting_with<K: Key + ?Sized>(leading: &K) -> KeyRange {
        KeyRange::of_prefix(encode(leading))
    }

    /// All keys whose leading parts are `leading` and whose next part, text or a byte slice, begins with `text`.
    pub fn text_starting_with<K: Key + ?Sized>(leading: &K, text: impl AsRef<[u8]>) -> KeyRange {
        let mut prefix = encode(leading);
        escape_to(text.as_ref(), &mut prefix);
        KeyRange::of_prefix(prefix)
    }

    /// All keys that begin with these bytes, however they were made.
    pub fn of_prefix(prefix: Vec<u8>) -> KeyRange {
        let end = successor_of_prefix(&prefix);
        KeyRange { prefix, end }
    }

    /// The bytes that all keys of the range begin with.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The first key behind the range, if there is one.
    pub(crate) fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }
}

/// The first byte string behind all that begin with `prefix`; none when `prefix` is all `FF`.
fn successor_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xFF)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

fn invalid(message: String) -> Error {
    Reason::InvalidArgument(message).into()
}

/// Takes `count` bytes off the front of `bytes`.
fn take<'a>(bytes: &mut &'a [u8], count: usize, what: &str) -> Result<&'a [u8]> {
    let Some((front, rest)) = bytes.split_at_checked(count) else {
        let found = bytes.len();
        return Err(invalid(format!(
            "the key ends inside a {what}: {count} bytes are needed, {found} are left; decode it whole, \
             with the types it was encoded with"
        )));
    };
    *bytes = rest;
    Ok(front)
}

fn take_array<const N: usize>(bytes: &mut &[u8], what: &str) -> Result<[u8; N]> {
    Ok(take(bytes, N, what)?
        .try_into()
        .expect("take returns as many bytes as it was asked for"))
}

impl<K: Key + ?Sized> Key for &K {
    fn encode_to(&self, out: &mut Vec<u8>) {
        (**self).encode_to(out);
    }
}

macro_rules! unsigned_keys {
    ($($type:ident)+) => {$(
        impl Key for $type {
            fn encode_to(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl DecodeKey for $type {
            fn decode_from(bytes: &mut &[u8]) -> Result<$type> {
                Ok($type::from_be_bytes(take_array(bytes, stringify!($type))?))
            }
        }
    )+};
}
unsigned_keys! { u8 u16 u32 u64 u128 }

macro_rules! signed_keys {
    ($($type:ident as $unsigned:ident)+) => {$(
        impl Key for $type {
            // Flipping the sign bit moves the negative half below the other: it adds 2^(bits - 1), modulo 2^bits.
            fn encode_to(&self, out: &mut Vec<u8>) {
                ((*self ^ $type::MIN) as $unsigned).encode_to(out);
            }
        }

        impl DecodeKey for $type {
            fn decode_from(bytes: &mut &[u8]) -> Result<$type> {
                Ok($type::from_be_bytes(take_array(bytes, stringify!($type))?) ^ $type::MIN)
            }
        }
    )+};
}
signed_keys! { i8 as u8 i16 as u16 i32 as u32 i64 as u64 i128 as u128 }

macro_rules! float_keys {
    ($($type:ident as $bits:ident)+) => {$(
        impl Key for $type {
            // The bits of an IEEE float are sign and magnitude: among positives they sort as they are, among negatives
            // backwards.
            fn encode_to(&self, out: &mut Vec<u8>) {
                const SIGN: $bits = 1 << ($bits::BITS - 1);
                let bits = self.to_bits();
                (if bits & SIGN == 0 { bits | SIGN } else { !bits }).encode_to(out);
            }
        }

        impl DecodeKey for $type {
            fn decode_from(bytes: &mut &[u8]) -> Result<$type> {
                const SIGN: $bits = 1 << ($bits::BITS - 1);
                let stored = $bits::from_be_bytes(take_array(bytes, stringify!($type))?);
                Ok($type::from_bits(if stored & SIGN == 0 { !stored } else { stored & !SIGN }))
            }
        }
    )+};
}
float_keys! { f32 as u32 f64 as u64 }

impl Key for bool {
    fn encode_to(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl DecodeKey for bool {
    fn decode_from(bytes: &mut &[u8]) -> Result<bool> {
        decode_flag(bytes, "bool")
    }
}

/// A byte that must be 0 or 1: anything else is not ours, and taking it for `true` would break the order.
fn decode_flag(bytes: &mut &[u8], what: &str) -> Result<bool> {
    match take(bytes, 1, what)?[0] {
        0 => Ok(false),
        1 => Ok(true),
        byte => Err(invalid(format!(
            "{what} begins with 00 or 01, the key has {byte:02X}; decode it with the types it was encoded with"
        ))),
    }
}

impl Key for char {
    fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&u32::from(*self).to_be_bytes()[1..]);
    }
}

impl DecodeKey for char {
    fn decode_from(bytes: &mut &[u8]) -> Result<char> {
        let [high, middle, low] = take_array(bytes, "char")?;
        let number = u32::from_be_bytes([0, high, middle, low]);
        char::from_u32(number).ok_or_else(|| {
            invalid(format!(
                "{number:#X} is not a char; decode the key with the types it was encoded with"
            ))
        })
    }
}

/// Follows a `00` that belongs to the text.
const ESCAPED: u8 = 0xFF;
/// Follows the `00` that ends the text. The end is two bytes because what comes next in a tuple may begin with any
/// byte: a lone `00` before an `FF` would read as an escaped zero.
const END: u8 = 0x00;

/// Appends `text` with its zeros escaped, without the end.
fn escape_to(text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    let mut runs = text.split(|&byte| byte == 0);
    out.extend_from_slice(runs.next().unwrap_or_default());
    for run in runs {
        out.extend_from_slice(&[0, ESCAPED]);
        out.extend_from_slice(run);
    }
}

impl Key for [u8] {
    fn encode_to(&self, out: &mut Vec<u8>) {
        escape_to(self, out);
        out.extend_from_slice(&[0, END]);
    }
}

impl Key for Vec<u8> {
    fn encode_to(&self, out: &mut Vec<u8>) {
        self.as_slice().encode_to(out);
    }
}

impl DecodeKey for Vec<u8> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        loop {
            let Some(zero) = bytes.iter().position(|&byte| byte == 0) else {
                *bytes = &[];
                return Err(invalid(
                    "the key ends inside text or bytes: their end, 00 00, is missing; decode it \
                     whole, with the types it was encoded with"
                        .to_string(),
                ));
            };
            text.extend_from_slice(take(bytes, zero, "text")?);
            match take_array(bytes, "text")? {
                [_, END] => return Ok(text),
                [_, ESCAPED] => text.push(0),
                [_, byte] => {
                    return Err(invalid(format!(
                        "text or bytes in the key hold 00 {byte:02X}, only 00 00 and 00 FF can be; decode it with \
                         the types it was encoded with"
                    )));
                }
            }
        }
    }
}

impl Key for str {
    fn encode_to(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_to(out);
    }
}

impl Key for String {
    fn encode_to(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_to(out);
    }
}

impl DecodeKey for String {
    fn decode_from(bytes: &mut &[u8]) -> Result<String> {
        String::from_utf8(Vec::decode_from(bytes)?).map_err(|error| {
            invalid(format!(
                "text in the key is not UTF-8 ({}); decode it as Vec<u8>",
                error.utf8_error()
            ))
        })
    }
}

impl<const N: usize> Key for [u8; N] {
    fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> DecodeKey for [u8; N] {
    fn decode_from(bytes: &mut &[u8]) -> Result<[u8; N]> {
        take_array(bytes, "byte array")
    }
}

impl<K: Key> Key for Option<K> {
    fn encode_to(&self, out: &mut Vec<u8>) {
        self.is_some().encode_to(out);
        if let Some(key) = self {
            key.encode_to(out);
        }
    }
}

impl<K: DecodeKey> DecodeKey for Option<K> {
    fn decode_from(bytes: &mut &[u8]) -> Result<Option<K>> {
        decode_flag(bytes, "Option")?.then(|| K::decode_from(bytes)).transpose()
    }
}

impl<K: Key> Key for Reverse<K> {
    // No encoding begins with another (3 in the module's list), so two of them differ at a byte that both have, and
    // flipping that byte turns their order around.
    fn encode_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.0.encode_to(out);
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

impl<K: DecodeKey> DecodeKey for Reverse<K> {
    // Where the value ends is known only when it is decoded, so all that is left of the key is flipped for it: at most
    // `KEY_BYTES_MAX`.
    fn decode_from(bytes: &mut &[u8]) -> Result<Reverse<K>> {
        let flipped: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        let mut rest = flipped.as_slice();
        let decoded = K::decode_from(&mut rest);
        *bytes = &bytes[bytes.len() - rest.len()..];
        decoded.map(Reverse)
    }
}

impl Key for () {
    fn encode_to(&self, _out: &mut Vec<u8>) {}
}

impl DecodeKey for () {
    fn decode_from(_bytes: &mut &[u8]) -> Result<()> {
        Ok(())
    }
}

macro_rules! tuple_keys {
    ($(($($part:ident $index:tt),+))+) => {$(
        impl<$($part: Key),+> Key for ($($part,)+) {
            fn encode_to(&self, out: &mut Vec<u8>) {
                $(self.$index.encode_to(out);)+
            }
        }

        impl<$($part: DecodeKey),+> DecodeKey for ($($part,)+) {
            fn decode_from(bytes: &mut &[u8]) -> Result<Self> {
                Ok(($($part::decode_from(bytes)?,)+))
            }
        }
    )+};
}
tuple_keys! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;
    use std::fmt::Debug;
    use std::ops::{Bound, RangeBounds};

    use fastrand::Rng;

    /// Bytes that mean something to the escapes, and their neighbours.
    const AWKWARD_BYTES: [u8; 6] = [0, 1, 0x7F, 0xFE, 0xFF, b'a'];
    /// Values drawn per type; every pair of them is compared.
    const DRAWS: usize = if cfg!(miri) { 12 } else { 250 };
    /// Rounds of the tests that draw one value at a time.
    const ROUNDS: usize = if cfg!(miri) { 30 } else { 2000 };

    fn seeded() -> Rng {
        let seed = match std::env::var("DURAMEN_SEED") {
            Ok(text) => text.parse().expect("DURAMEN_SEED is a number"),
            Err(_) => fastrand::u64(..),
        };
        println!("DURAMEN_SEED={seed}");
        Rng::with_seed(seed)
    }

    /// A random value, with the edges of the type likely: neighbours and near misses are where orders break.
    trait Draw: DecodeKey + Debug {
        fn draw(rng: &mut Rng) -> Self;
        fn order(&self, other: &Self) -> Ordering;
    }

    macro_rules! draw_integers {
        ($($type:ident)+) => {$(
            impl Draw for $type {
                fn draw(rng: &mut Rng) -> $type {
                    let (middle, minus_one) = ($type::MAX / 2, (0 as $type).wrapping_sub(1));
                    let edges = [$type::MIN, $type::MAX, 0, 1, middle, middle + 1, minus_one];
                    match rng.u8(..4) {
                        0 => edges[rng.usize(..edges.len())],
                        1 => (rng.u128(..) as $type) >> rng.u32(..$type::BITS),
                        2 => rng.choice(edges).unwrap_or_default().wrapping_add(rng.i8(..3) as $type),
                        _ => rng.u128(..) as $type,
                    }
                }
                fn order(&self, other: &$type) -> Ordering {
                    self.cmp(other)
                }
            }
        )+};
    }
    draw_integers! { u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 }

    macro_rules! draw_floats {
        ($($type:ident as $bits:ident)+) => {$(
            impl Draw for $type {
                fn draw(rng: &mut Rng) -> $type {
                    let edges = [0.0, -0.0, 1.0, -1.0, $type::MIN, $type::MAX, $type::MIN_POSITIVE, $type::INFINITY,
                        $type::NEG_INFINITY, $type::NAN, -$type::NAN, $type::EPSILON];
                    match rng.bool() {
                        true => rng.choice(edges).unwrap_or_default(),
                        false => $type::from_bits($bits::draw(rng)),
                    }
                }
                fn order(&self, other: &$type) -> Ordering {
                    self.total_cmp(other)
                }
            }
        )+};
    }
    draw_floats! { f32 as u32 f64 as u64 }

    macro_rules! draw_ordered {
        ($($type:ty: $draw:expr;)+) => {$(
            impl Draw for $type {
                fn draw(rng: &mut Rng) -> $type {
                    let draw: fn(&mut Rng) -> $type = $draw;
                    draw(rng)
                }
                fn order(&self, other: &$type) -> Ordering {
                    self.cmp(other)
                }
            }
        )+};
    }
    draw_ordered! {
        (): |_| ();
        bool: |rng| rng.bool();
        char: |rng| if rng.bool() { rng.char('\0'..='\u{3}') } else { rng.char(..) };
        Vec<u8>: |rng| (0..rng.usize(..5)).map(|_| rng.choice(AWKWARD_BYTES).unwrap_or_default()).collect();
        String: |rng| (0..rng.usize(..4)).map(|_| char::draw(rng)).collect();
        [u8; 0]: |_| [];
        [u8; 3]: |rng| [u8::draw(rng), u8::draw(rng), u8::draw(rng)];
    }

    impl<T: Draw> Draw for Option<T> {
        fn draw(rng: &mut Rng) -> Option<T> {
            (rng.u8(..4) > 0).then(|| T::draw(rng))
        }
        fn order(&self, other: &Option<T>) -> Ordering {
            match (self, other) {
                (Some(mine), Some(theirs)) => mine.order(theirs),
                _ => self.is_some().cmp(&other.is_some()),
            }
        }
    }

    impl<T: Draw> Draw for Reverse<T> {
        fn draw(rng: &mut Rng) -> Reverse<T> {
            Reverse(T::draw(rng))
        }
        fn order(&self, other: &Reverse<T>) -> Ordering {
            other.0.order(&self.0)
        }
    }

    macro_rules! draw_tuples {
        ($(($($part:ident $index:tt),+))+) => {$(
            impl<$($part: Draw),+> Draw for ($($part,)+) {
                fn draw(rng: &mut Rng) -> Self {
                    ($($part::draw(rng),)+)
                }
                fn order(&self, other: &Self) -> Ordering {
                    Ordering::Equal$(.then_with(|| self.$index.order(&other.$index)))+
                }
            }
        )+};
    }
    draw_tuples! {
        (A 0)
        (A 0, B 1)
        (A 0, B 1, C 2)
        (A 0, B 1, C 2, D 3)
        (A 0, B 1, C 2, D 3, E 4)
        (A 0, B 1, C 2, D 3, E 4, F 5)
        (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
        (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
    }

    /// Order, round trip and freedom from prefixes, over all pairs of `DRAWS` values.
    fn holds_for<T: Draw>(rng: &mut Rng) {
        let drawn: Vec<(T, Vec<u8>)> = (0..DRAWS)
            .map(|_| T::draw(rng))
            .map(|value| {
                let key = encode(&value);
                (value, key)
            })
            .collect();
        for (value, key) in &drawn {
            let back = decode::<T>(key).unwrap_or_else(|error| panic!("{value:?} is {key:02X?}: {error}"));
            assert!(back.order(value).is_eq(), "{value:?} came back as {back:?}");
            for (other, other_key) in &drawn {
                assert_eq!(
                    value.order(other),
                    key.cmp(other_key),
                    "{value:?} {key:02X?}, {other:?} {other_key:02X?}"
                );
                let is_prefix = key != other_key && other_key.starts_with(key);
                assert!(
                    !is_prefix,
                    "{value:?} {key:02X?} is where {other:?} {other_key:02X?} begins"
                );
            }
        }
    }

    macro_rules! holds_for_each {
        ($rng:expr; $($type:ty),+ $(,)?) => { $(holds_for::<$type>($rng);)+ };
    }

    #[test]
    fn simple_keys_keep_order_and_come_back() {
        let rng = &mut seeded();
        holds_for_each!(rng; u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, bool, char, ());
        holds_for_each!(rng; [u8; 0], [u8; 3]);
        holds_for_each!(rng; String, Vec<u8>, Option<u8>, Option<Vec<u8>>, Option<Option<String>>);
    }

    #[test]
    fn tuples_keep_order_and_come_back() {
        let rng = &mut seeded();
        holds_for_each!(rng;
            (Vec<u8>,), (Vec<u8>, Vec<u8>), (Vec<u8>, u8), (String, u64), (u8, String, i8), (Option<Vec<u8>>, u8),
            (Vec<u8>, [u8; 3], Vec<u8>), ((Vec<u8>, bool), (String, Option<u8>)), (f64, Vec<u8>, char, i16),
            (bool, Vec<u8>, bool, Vec<u8>, u8), (bool, u8, bool, Vec<u8>, bool, String),
            (bool, bool, bool, Vec<u8>, bool, String, i8),
            (bool, bool, Option<u8>, Vec<u8>, bool, String, bool, Vec<u8>),
        );
    }

    #[test]
    fn reversed_keys_turn_the_order_around() {
        let rng = &mut seeded();
        holds_for_each!(rng;
            Reverse<u64>, Reverse<i32>, Reverse<f64>, Reverse<Vec<u8>>, Reverse<String>, Reverse<Option<Vec<u8>>>,
            Reverse<Reverse<Vec<u8>>>, (Reverse<Vec<u8>>, u8), (Vec<u8>, Reverse<Vec<u8>>, Vec<u8>),
            Reverse<(Vec<u8>, Reverse<Vec<u8>>, u8)>, Option<Reverse<(Option<Vec<u8>>, i8)>>,
        );
    }

    #[test]
    fn borrowed_keys_encode_as_owned_ones() {
        let text = "wo\0rd";
        assert_eq!(encode(text), encode(&text.to_string()));
        assert_eq!(encode(&text), encode(text.as_bytes()));
        assert_eq!(encode(&(text, &7u8)), encode(&(text.to_string(), 7u8)));
        assert_eq!(encode(&Some(&[0u8, 1][..])), encode(&Some(vec![0u8, 1])));
    }

    #[test]
    fn the_stored_bytes_never_change() {
        let key = (
            (u32::MAX, -2i64, -1.5f64, '\u{1F980}'),
            ("é\0", Some([9u8; 2]), None::<u8>, Reverse("a\0")),
            (u128::from(u64::MAX), i128::MIN, -0.0f32, false),
        );
        let expected = "FFFFFFFF 7FFFFFFFFFFFFFFE 4007FFFFFFFFFFFF 01F980 \
            C3A900FF0000 010909 00 9EFF00FFFF \
            0000000000000000FFFFFFFFFFFFFFFF 00000000000000000000000000000000 7FFFFFFF 00";
        let found: String = encode(&key).iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(found, expected.replace(' ', ""));
    }

    #[test]
    fn bits_of_floats_come_back_even_of_nan() {
        for bits in [0, 1 << 63, f64::NAN.to_bits() | 0xABC, u64::MAX, 0x7FF0_0000_0000_0001] {
            let back: f64 = decode(&encode(&f64::from_bits(bits))).expect("every float has an encoding");
            assert_eq!(back.to_bits(), bits);
        }
        assert_eq!(encode(&(-0.0f64 + 0.0)), encode(&0.0f64));
    }

    #[test]
    fn leading_parts_bound_exactly_the_tuples_that_have_them() {
        let rng = &mut seeded();
        for _ in 0..ROUNDS {
            let (first, second) = (Vec::<u8>::draw(rng), u8::draw(rng));
            let range = KeyRange::starting_with(&(&first, second));
            let other = <(Vec<u8>, u8, Reverse<Vec<u8>>)>::draw(rng);
            let belongs = other.0 == first && other.1 == second;
            assert_eq!(
                range.contains(&encode(&other)[..]),
                belongs,
                "{first:?} {second} {other:?}"
            );
            assert_eq!(encode(&other).starts_with(range.prefix()), belongs);
            assert!(range.contains(&encode(&(&first, second, &other.2))[..]));

            let beginning = KeyRange::text_starting_with(&(second,), &first);
            let key = encode(&(other.1, &other.0, 5u8));
            let belongs = other.1 == second && other.0.starts_with(&first);
            assert_eq!(beginning.contains(&key[..]), belongs, "{first:?} {second} {other:?}");
        }
    }

    #[test]
    fn prefix_of_only_ff_has_no_end() {
        assert_eq!(KeyRange::of_prefix(vec![0xFF, 0xFF]).end_bound(), Bound::Unbounded);
        assert_eq!(
            KeyRange::of_prefix(vec![1, 0xFF]).end_bound(),
            Bound::Excluded(&[2][..])
        );
        let all = KeyRange::starting_with(&());
        assert_eq!(
            (all.start_bound(), all.end_bound()),
            (Bound::Included(&[][..]), Bound::Unbounded)
        );
    }

    /// Decodes garbage; whatever is accepted must be exactly what encoding gives.
    fn garbage_is_refused_or_canonical<T: Draw>(rng: &mut Rng) {
        for _ in 0..ROUNDS {
            let mut bytes = encode(&T::draw(rng));
            match rng.u8(..4) {
                0 => bytes.truncate(rng.usize(..=bytes.len())),
                1 => bytes.push(rng.choice([0, 1, 0xFF]).unwrap_or_default()),
                2 if !bytes.is_empty() => {
                    let place = rng.usize(..bytes.len());
                    bytes[place] = rng.u8(..);
                }
                _ => bytes = Vec::<u8>::draw(rng),
            }
            if let Ok(value) = decode::<T>(&bytes) {
                assert_eq!(encode(&value), bytes, "{value:?}");
            }
        }
    }

    #[test]
    fn decoding_accepts_only_what_encoding_makes() {
        let rng = &mut seeded();
        garbage_is_refused_or_canonical::<(String, Option<char>, bool)>(rng);
        garbage_is_refused_or_canonical::<(Reverse<Vec<u8>>, [u8; 3], i16)>(rng);
        garbage_is_refused_or_canonical::<Reverse<(String, Reverse<Option<f32>>)>>(rng);
    }

    #[test]
    fn refusals_name_cause_and_cure() {
        let refusals = [
            (
                decode::<u64>(&[1, 2, 3]).map(drop),
                "the key ends inside a u64: 8 bytes are needed, 3 are left",
            ),
            (decode::<u8>(&[1, 2]).map(drop), "1 bytes follow a complete u8"),
            (
                decode::<bool>(&[2]).map(drop),
                "bool begins with 00 or 01, the key has 02",
            ),
            (
                decode::<Option<u8>>(&[7, 1]).map(drop),
                "Option begins with 00 or 01, the key has 07",
            ),
            (decode::<char>(&[0, 0xD8, 0]).map(drop), "0xD800 is not a char"),
            (decode::<String>(b"abc").map(drop), "their end, 00 00, is missing"),
            (decode::<String>(b"a\0\x01").map(drop), "only 00 00 and 00 FF can be"),
            (decode::<String>(b"\xFF\0\0").map(drop), "is not UTF-8"),
        ];
        for (refusal, cause) in refusals {
            let error = refusal.expect_err(cause);
            assert!(error.to_string().contains(cause), "{error}");
            assert!(
                error.to_string().contains("; decode it") || error.to_string().contains("; decode the key"),
                "{error}"
            );
            assert_eq!(error.kind(), crate::Kind::FixTheCall);
        }
    }
}
