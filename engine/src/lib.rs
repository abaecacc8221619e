//! The ordered store of Duramen.
#![allow(dead_code)]

mod limits;
mod error;
mod checksum;

pub use error::{Error, Kind, Reason, Result};
pub use limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
