//! The other end of a connection: where it is, and who it is as far as the server has verified it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// The other end of a connection. Each call of the connection knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) address: Address,
    pub(crate) identity: Identity,
}

impl Peer {
    pub(crate) fn new(address: Address, identity: Identity) -> Peer {
        Peer { address, identity }
    }
}

/// Where it is, for logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix,
    #[default]
    Unknown,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix => f.write_str("unix"),
            Address::Unknown => f.write_str("unknown"),
        }
    }
}

/// Who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The connection says nothing about it.
    Unknown,
    /// It has a certificate of the client authority, for this name.
    Certificate(Arc<str>),
    /// It is a process of this machine with this user id.
    Process {
        /// The user id.
        uid: u32,
    },
}

/// The name that a verified certificate is for: its first DNS name, or else its common name.
pub(crate) fn name_of(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let dns = alternatives.and_then(|names| {
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
    });
    let common = || certificate.subject().iter_common_name().next()?.as_str().ok();
    dns.or_else(common).map(str::to_string)
}
