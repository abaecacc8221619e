//! Which Rust types are values of a typed map, and what can be passed where a key of a type is asked for.

use std::error::Error as StdError;

use duramen_engine::encoding::{self, DecodeKey, Key};

/// Whatever goes wrong in a codec.
pub type CodecError = Box<dyn StdError + Send + Sync>;

/// How a type is stored as a value.
///
/// Implemented for bytes and text (as they are), for integers, floats, `bool`, `char`, `Option` and tuples (in the
/// [`encoding`] of keys, big-endian), for [`Counter`], and, with the feature `json`, in `Json` for everything that serde knows. A
/// format of a program's own takes a few lines:
///
/// ```
/// use duramen::{CodecError, Store, TypedMap, ValueCodec};
///
/// struct Point {
///     x: f64,
///     y: f64,
/// }
///
/// impl ValueCodec for Point {
///     fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
///         (self.x, self.y).encode_value(out)
///     }
///     fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
///         let (x, y) = ValueCodec::decode_value(bytes)?;
///         Ok(Point { x, y })
///     }
/// }
///
/// # let directory = tempfile::tempdir()?;
/// let store = Store::open(directory.path().join("store"))?;
/// let points = TypedMap::<u64, Point>::new(store.map("points")?);
/// points.put(&7, &Point { x: 1.5, y: -2.0 })?;
/// assert_eq!(points.get(&7)?.unwrap().y, -2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ValueCodec: Sized {
    /// Appends the stored form to `out`.
    ///
    /// # Errors
    /// When this value has no stored form; nothing is written then.
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError>;

    /// The value that these bytes are the stored form of.
    ///
    /// # Errors
    /// When they are not one.
    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError>;
}

/// A type whose values encode to the same bytes as a `K`: what can be passed where a key of type `K` is asked for, for
/// instance a `&str` for a `String`, or a `(&str, u64)` for a `(String, u64)`.
///
/// Who implements [`Key`] and [`DecodeKey`] for a type of their own adds `impl KeyFor<Own> for Own {}`.
pub trait KeyFor<K: ?Sized>: Key {}

impl<K: ?Sized, Q: KeyFor<K> + ?Sized> KeyFor<K> for &Q {}
impl KeyFor<String> for str {}
impl KeyFor<Vec<u8>> for [u8] {}
impl KeyFor<()> for () {}
impl<const N: usize> KeyFor<[u8; N]> for [u8; N] {}
impl<K, Q: KeyFor<K>> KeyFor<Option<K>> for Option<Q> {}
impl<K, Q: KeyFor<K>> KeyFor<std::cmp::Reverse<K>> for std::cmp::Reverse<Q> {}

/// The leading parts of a key that is a tuple: a shorter tuple, each part as [`KeyFor`] has it. `("ada",)` and `("ada", 7)` lead keys of
/// type `(String, u64, u32)`. Parts of other types do not compile, for they would find nothing:
///
/// ```compile_fail,E0277
/// # fn scan(snapshot: &duramen::Snapshot, map: &duramen::TypedMap<(String, u64), u32>) -> duramen::Result<()> {
/// map.at(snapshot).prefix(&(7u64,))?;
/// # Ok(())
/// # }
/// ```
pub trait LeadingParts<K>: Key {}

macro_rules! leading_parts {
    ([$($part:ident $query:ident),+] [$($rest:ident)+]) => {
        impl<$($part,)+ $($rest,)+ $($query: KeyFor<$part>),+> LeadingParts<($($part,)+ $($rest,)+)> for ($($query,)+) {}
    };
    ($leading:tt [$($rest:ident)+] $more:ident $($others:ident)*) => {
        leading_parts! { $leading [$($rest)+] }
        leading_parts! { $leading [$($rest)+ $more] $($others)* }
    };
}
leading_parts! { [A P] [B] C D E F G H }
leading_parts! { [A P, B Q] [C] D E F G H }
leading_parts! { [A P, B Q, C R] [D] E F G H }
leading_parts! { [A P, B Q, C R, D S] [E] F G H }
leading_parts! { [A P, B Q, C R, D S, E T] [F] G H }
leading_parts! { [A P, B Q, C R, D S, E T, F U] [G] H }
leading_parts! { [A P, B Q, C R, D S, E T, F U, G V] [H] }

macro_rules! keys_for_themselves {
    ($($type:ty)+) => {$( impl KeyFor<$type> for $type {} )+};
}
keys_for_themselves! { u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 bool char String Vec<u8> }

macro_rules! encoded_values {
    ($({$($parameters:tt)*} $type:ty)+) => {$(
        impl<$($parameters)*> ValueCodec for $type {
            fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
                self.encode_to(out);
                Ok(())
            }

            fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
                Ok(encoding::decode(bytes)?)
            }
        }
    )+};
}
encoded_values! {
    {} u8 {} u16 {} u32 {} u64 {} u128 {} i8 {} i16 {} i32 {} i64 {} i128 {} f32 {} f64 {} bool {} char {} ()
    {const N: usize} [u8; N]
    {T: DecodeKey} Option<T>
}

macro_rules! tuples {
    ($(($($part:ident $query:ident),+))+) => {$(
        impl<$($part,)+ $($query: KeyFor<$part>),+> KeyFor<($($part,)+)> for ($($query,)+) {}
        encoded_values! { {$($part: DecodeKey),+} ($($part,)+) }
    )+};
}
tuples! {
    (A P)
    (A P, B Q)
    (A P, B Q, C R)
    (A P, B Q, C R, D S)
    (A P, B Q, C R, D S, E T)
    (A P, B Q, C R, D S, E T, F U)
    (A P, B Q, C R, D S, E T, F U, G V)
    (A P, B Q, C R, D S, E T, F U, G V, H W)
}

impl ValueCodec for Vec<u8> {
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(self);
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(bytes.to_vec())
    }
}

impl ValueCodec for String {
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(self.as_bytes());
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(std::str::from_utf8(bytes)?.to_string())
    }
}

/// A number that [`Map::add`](crate::Map::add) counts, in the form in which it stores it; an `i64` as a value is stored otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counter(pub i64);

impl ValueCodec for Counter {
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(Counter(i64::from_be_bytes(bytes.try_into()?)))
    }
}
