//! What users hold: the store, maps, batches, transactions, snapshots, streams of changes, sequences, and the options to open a
//! store.

pub(crate) mod batch;
pub(crate) mod brake;
pub(crate) mod changes;
pub(crate) mod checkpoints;
pub(crate) mod closing;
pub(crate) mod future;
pub(crate) mod map;
pub(crate) mod options;
pub(crate) mod pairs;
pub(crate) mod presence;
pub(crate) mod ringing;
pub(crate) mod sequence;
pub(crate) mod snapshot;
pub(crate) mod store;
pub(crate) mod transaction;
