//! Work on whole stores: checking, salvage, copies, figures.

pub(crate) mod check;
pub(crate) mod copy;
pub(crate) mod salvage;
pub(crate) mod statistics;
pub(crate) mod transfer;
