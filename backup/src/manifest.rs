//! What stands in the objects of a backup that people may read: JSON.
//!
//! ```text
//! backup.json               which backup this is
//! exports/NUMBER.json       an export: its packs, and what they come to; written last, and never again
//! packs/BLAKE3              a pack, named by the BLAKE3 hash of its bytes
//! log/NUMBER/NUMBER         what was committed after an export, see `log`
//! ```
//! The number of an export has twenty digits, so that names sort like numbers. Only one exporter can create a number: that is what
//! tells two exporters of one backup apart.

use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{BackupError, Result};
use crate::pack::hash_of;

/// The format that this version writes.
pub(crate) const FORMAT: u32 = 3;

/// Which backup this is: `backup.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) format: u32,
    /// A random number in hexadecimal digits.
    pub(crate) id: String,
}

/// An export. The state that it shows is that of its parent with its packs on top, or its packs alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The format of the export.
    pub format: u32,
    /// Its number; each backup counts from 1.
    pub number: u64,
    /// A random number, in hexadecimal digits.
    pub id: String,
    /// The id of the store, in hexadecimal digits.
    pub store: String,
    /// The newest commit that it shows.
    pub commit: u64,
    /// When the checkpoint was made that it shows, in milliseconds since 1970.
    pub created_ms: u64,
    /// What the program stored with it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metadata: String,
    /// The export that it goes on from; `None`: it is a full one.
    pub parent: Option<Parent>,
    /// The number of the full export that its chain begins with.
    pub full: u64,
    /// Pairs in the store then, those included that topics and trees consist of.
    pub pairs: u64,
    /// A digest of all these pairs.
    pub digest: String,
    /// The id of the next map.
    pub next_map: u32,
    /// Its packs, in the order of their keys.
    pub packs: Vec<Pack>,
    /// The BLAKE3 hash of everything else here, as JSON without spaces.
    pub check: String,
}

/// What an export goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The number of the export.
    pub number: u64,
    /// Its id.
    pub id: String,
}

/// A pack of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    /// The BLAKE3 hash of its bytes, which is its name.
    pub blake3: String,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes before compression.
    pub body_bytes: u64,
    /// Changes of keys in it.
    pub records: u64,
}

impl Export {
    /// What [`Export::check`] must be.
    pub(crate) fn expected_check(&self) -> String {
        let unchecked = Export {
            check: String::new(),
            ..self.clone()
        };
        check_of(&unchecked)
    }

    /// The export as what another one goes on from.
    pub(crate) fn as_parent(&self) -> Parent {
        Parent {
            number: self.number,
            id: self.id.clone(),
        }
    }

    /// The digest, as a number.
    pub(crate) fn known_digest(&self) -> Result<Digest> {
        Digest::of_text(&self.digest)
            .ok_or_else(|| BackupError::damaged(format!("export {} has no digest", self.number)))
    }

    /// Bytes of its packs.
    pub fn bytes(&self) -> u64 {
        self.packs.iter().map(|pack| pack.bytes).sum()
    }

    /// Whether it needs no other one.
    pub fn is_full(&self) -> bool {
        self.parent.is_none()
    }
}

/// The BLAKE3 hash of something as JSON without spaces.
pub(crate) fn check_of(unchecked: &impl Serialize) -> String {
    hash_of(&serde_json::to_vec(unchecked).expect("it is plain data"))
}

/// Where an export stands.
pub(crate) fn export_path(number: u64) -> Path {
    Path::from(format!("exports/{number:020}.json"))
}

/// The number of an export that stands there.
pub(crate) fn export_number(path: &Path) -> Option<u64> {
    let mut parts = path.parts().collect::<Vec<_>>();
    let name = parts.pop()?;
    let digits = name.as_ref().strip_suffix(".json")?;
    let is_number = digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Where a pack stands.
pub(crate) fn pack_path(hash: &str) -> Path {
    Path::from(format!("packs/{hash}"))
}

/// The BLAKE3 hash of a pack that stands there.
pub(crate) fn pack_name(path: &Path) -> Option<String> {
    let name = path.filename()?;
    (name.len() == 64 && name.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_sort_like_numbers_and_come_back() {
        let numbers = [1, 9, 10, 99_999, u64::MAX];
        let paths = numbers.map(export_path);
        assert!(paths.is_sorted());
        assert_eq!(paths.map(|path| export_number(&path)), numbers.map(Some));
        for other in [
            "exports/1.json",
            "exports/x.json",
            "exports/00000000000000000001",
            "exports",
        ] {
            assert_eq!(export_number(&Path::from(other)), None);
        }
        assert_eq!(pack_name(&pack_path(&"a".repeat(64))), Some("a".repeat(64)));
        assert_eq!(pack_name(&Path::from("packs/short")), None);
    }
}
