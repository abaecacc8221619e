//! Encoded keys of many types: what decodes is what was encoded, and bytes order as values do.

use std::cmp::Reverse;
use std::fmt::Debug;

use duramen_engine::Kind;
use duramen_engine::encoding::{DecodeKey, decode, encode};

/// Decodes two halves of the input as keys of every kind of type.
pub fn encoding(data: &[u8]) {
    let (at, data) = data.split_first().map_or((0, data), |(at, rest)| (*at as usize, rest));
    let (one, other) = data.split_at(at.min(data.len()));
    check::<u8>(one, other);
    check::<i64>(one, other);
    check::<u128>(one, other);
    check::<bool>(one, other);
    check::<char>(one, other);
    check::<String>(one, other);
    check::<Vec<u8>>(one, other);
    check::<[u8; 5]>(one, other);
    check::<Option<String>>(one, other);
    check::<Reverse<Vec<u8>>>(one, other);
    check::<(String, u16, Reverse<i32>)>(one, other);
    check::<(Vec<u8>, Option<(bool, char)>, Reverse<String>)>(one, other);
    check::<(Reverse<Option<Vec<u8>>>, (), i8, u64)>(one, other);
    check_float(one, other);
}

fn check<K: DecodeKey + Ord + Debug>(one: &[u8], other: &[u8]) {
    if let (Some(a), Some(b)) = (checked::<K>(one), checked::<K>(other)) {
        assert_eq!(a.cmp(&b), one.cmp(other), "{a:?} and {b:?}");
    }
}

/// The value that these bytes encode; it must encode to these bytes.
fn checked<K: DecodeKey>(bytes: &[u8]) -> Option<K> {
    match decode::<K>(bytes) {
        Ok(key) => {
            assert_eq!(encode(&key), bytes);
            Some(key)
        }
        Err(error) => {
            assert_eq!(error.kind(), Kind::FixTheCall);
            None
        }
    }
}

/// Floats have no `Ord`, but an order all the same.
fn check_float(one: &[u8], other: &[u8]) {
    if let (Some(a), Some(b)) = (checked::<f64>(one), checked::<f64>(other)) {
        assert_eq!(a.total_cmp(&b), one.cmp(other), "{a:?} and {b:?}");
    }
    if let (Some(a), Some(b)) = (checked::<f32>(one), checked::<f32>(other)) {
        assert_eq!(a.total_cmp(&b), one.cmp(other), "{a:?} and {b:?}");
    }
}

/// Two encoded keys each, the first of which ends where the first byte says.
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let keys = [
        encode("text with \0 in it"),
        encode(&("a", 7u16, Reverse(-3i32))),
        encode(&(&b"bytes"[..], Some((true, 'x')), Reverse("end"))),
        encode(&(Reverse(Some(&b"\0"[..])), (), -1i8, 99u64)),
        encode(&-1.5f64),
        encode(&1.5f32),
        encode(&'\u{10FFFF}'),
        encode(&u128::MAX),
    ];
    let pair = |one: &Vec<u8>| [&[one.len() as u8][..], one, one].concat();
    keys.iter().map(pair).collect()
}
