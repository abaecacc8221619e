//! Keys: ranges in every form that users have, full keys (the id of a map and the key of a user), and the order-preserving
//! encoding of Rust types.

pub(crate) mod bounds;
pub mod encoding;
pub(crate) mod full_key;
