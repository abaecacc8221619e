//! Who may connect to a server, and what they may do.
//!
//! ```text
//! tls           PEM files into the settings of TLS
//! certificates  the settings in use, and reading the files again when they change
//! permission    what a principal may do with which maps and topics
//! tokens        tokens, and the rows that the store keeps of them
//! peer          what a connection says of its other end
//! authorize     whether a request may do what it asks for
//! limits        how many calls and bytes a principal may use
//! ```

mod certificates;
mod tls;

mod permission;
mod tokens;

mod authorize;
mod limits;
mod peer;

pub(crate) use authorize::{Caller, Credentials, Guard};
pub(crate) use certificates::{Certificates, Renewal};
pub(crate) use limits::{Admitted, OPEN_MESSAGE_BYTES_MAX, Usages, is_open};
pub(crate) use peer::{Address, Identity, Peer, name_of};
pub(crate) use permission::{Access, Resource};
pub use permission::{NoPermission, Permission};
pub use tls::{TlsError, TlsFiles};
pub(crate) use tokens::{Presented, Tokens, from_hex, hex};
