//! Values of any type that serde knows.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{CodecError, ValueCodec};

/// A value stored as JSON: any type with serde's `Serialize` and `Deserialize`, such as collections, dates, and the
/// program's own structs. Requires the feature `json`.
///
/// JSON names the fields. By serde's rules (`#[serde(default)]`), a program that knows more or fewer fields can still
/// read what another version wrote.
///
/// ```
/// use duramen::{Json, Store, TypedMap};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Invoice {
///     total: u32,
///     lines: Vec<String>,
/// }
///
/// # let directory = tempfile::tempdir()?;
/// let store = Store::open(directory.path().join("store"))?;
/// let invoices = TypedMap::<u64, Json<Invoice>>::new(store.map("invoices")?);
/// invoices.put(&7, &Json(Invoice { total: 12, lines: vec!["apples".into()] }))?;
/// let Json(invoice) = invoices.get(&7)?.unwrap();
/// assert_eq!((invoice.total, &invoice.lines[0][..]), (12, "apples"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Json<T>(pub T);

impl<T: Serialize + DeserializeOwned> ValueCodec for Json<T> {
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        Ok(serde_json::to_writer(out, &self.0)?)
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(Json(serde_json::from_slice(bytes)?))
    }
}
