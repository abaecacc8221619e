//! Reading: values, point reads in a view, and the walk over base, generations and the writes of a transaction.

pub(crate) mod above;
pub(crate) mod around;
pub(crate) mod deleted;
pub(crate) mod generation_view;
pub(crate) mod scan;
pub(crate) mod value;
pub(crate) mod view;
pub(crate) mod write_set;
