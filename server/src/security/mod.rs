//! Who may connect to a server.
//!
//! ```text
//! tls           PEM files into the settings of TLS
//! certificates  the settings in use, and reading the files again when they change
//! ```

mod certificates;
mod tls;

pub(crate) use certificates::{Certificates, Renewal};
pub use tls::{TlsError, TlsFiles};
