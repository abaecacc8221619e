//! The metrics of a server in the text format of Prometheus.
//!
//! ```text
//! http        answers GET /metrics, and probes
//! sources     where the values come from
//! text        families and samples as text
//! of_*        values of the store, its topics and the process
//! families    names, kinds and meanings
//! ```

mod capped;
mod families;
mod http;
mod of_process;
mod of_store;
mod of_topics;
mod sources;
mod text;

pub use families::{FAMILIES, Family, FamilyKind};
pub(crate) use http::{Listener, listen, serve};
pub(crate) use sources::Sources;
