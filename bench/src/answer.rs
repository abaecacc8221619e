//! What peers answer with.

use std::fmt;
use std::pin::Pin;

use anyhow::Result;

/// Receives the result of a read: the value, if there is one.
pub type Found<'a> = dyn FnMut(Option<&[u8]>) -> Result<()> + 'a;

/// The answer to a request.
pub type Answer<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// The error of a peer that cannot do what the lab asks. It becomes `n/a` in the report and fails nothing.
#[derive(Debug)]
pub struct Unsupported(pub &'static str);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsupported {}
