//! What the data file holds beside the tree: mapped pages, the meta page, one bit for each page, and what folds may take of the
//! free pages.

pub(crate) mod bitmap;
pub(crate) mod meta;
pub(crate) mod pages;
pub(crate) mod promises;
pub(crate) mod register;
