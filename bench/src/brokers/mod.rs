//! The brokers, one file each. Those that are stores too have their driver among the peers.

pub mod channels;
pub mod duramen;
pub mod faulty;
pub mod null;

use crate::peer::Driver;

/// Brokers that are nothing else, in the order of the reports.
pub const ALL: &[&dyn Driver] = &[&channels::Channels];
