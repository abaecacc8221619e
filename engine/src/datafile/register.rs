//! The register of checkpoints: which roots are kept, beside that of the base.
//!
//! ```text
//! register    next id u64 | origin u64 | count u64 | checkpoints, ascending by id | zeros up to the end of the last page
//! checkpoint  id u64 | parent u64 | version u64 | commit u64 | time u64 | pairs u64 | root page u32 | root checksum u32
//!             | height u8 | zero u8 | name length u16 | metadata length u32 | name | metadata
//! ```
//!
//! It is written whole, to pages of its own, when it changes. The meta page refers to it, with a checksum of all its pages.
//! The *origin* is the checkpoint that the base comes from: every page of the base that is not younger than it belongs to
//! its tree too. The *parent* of a checkpoint is what was the origin when it was made. Both are 0 where there is none.

use duramen_io::File;

use crate::btree::Root;
use crate::checksum::checksum_with;
use crate::error::{Error, Result};
use crate::limits::PAGE_BYTES;

const HEAD_BYTES: usize = 24;
const ENTRY_BYTES: usize = 64;

/// Where the register is stored; without pages there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedRegister {
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) checksum: u32,
}

/// A root that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) id: u64,
    /// The checkpoint that its tree comes from; 0: none that is left.
    pub(crate) parent: u64,
    /// Pages that were born later do not belong to it.
    pub(crate) version: u64,
    /// The newest commit that it shows.
    pub(crate) commit: u64,
    /// When it was made, in microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) root: Root,
    /// Empty: it was dropped, and stays as long as several trees come from it.
    pub(crate) name: String,
    pub(crate) metadata: Vec<u8>,
}

/// All checkpoints of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Register {
    /// The id of the next checkpoint: no id is given twice.
    pub(crate) next_id: u64,
    pub(crate) origin: u64,
    /// Ascending by id.
    pub(crate) all: Vec<Kept>,
}

impl Default for Register {
    fn default() -> Register {
        Register {
            next_id: 1,
            origin: 0,
            all: Vec::new(),
        }
    }
}

impl Register {
    pub(crate) fn get(&self, id: u64) -> Option<&Kept> {
        let place = self.all.binary_search_by_key(&id, |kept| kept.id);
        place.ok().map(|place| &self.all[place])
    }

    /// Those that were not dropped.
    pub(crate) fn present(&self) -> impl DoubleEndedIterator<Item = &Kept> {
        self.all.iter().filter(|kept| !kept.name.is_empty())
    }

    /// Whether more than one tree comes from a checkpoint. They share pages that it has, and its parent may not have them: so
    /// their births would not tell any more which pages are shared.
    pub(crate) fn is_fork(&self, id: u64) -> bool {
        let children = self.all.iter().filter(|kept| kept.parent == id).count();
        children + usize::from(self.origin == id) > 1
    }

    /// Notes that a fork was dropped.
    pub(crate) fn forget_name(&mut self, id: u64) {
        if let Some(kept) = self.all.iter_mut().find(|kept| kept.id == id) {
            kept.name.clear();
            kept.metadata.clear();
        }
    }

    /// A checkpoint that was dropped while it was a fork, and is none any more.
    pub(crate) fn needless(&self) -> Option<&Kept> {
        let dropped = |kept: &&Kept| kept.name.is_empty() && !self.is_fork(kept.id);
        self.all.iter().find(dropped)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Kept> {
        self.present().find(|kept| kept.name == name)
    }

    /// The version of a checkpoint; 0, which is older than all pages, for none.
    pub(crate) fn version_of(&self, id: u64) -> u64 {
        self.get(id).map_or(0, |kept| kept.version)
    }

    /// The register with one more checkpoint, from which the base comes then.
    pub(crate) fn with(&self, kept: Kept) -> Register {
        let mut more = self.clone();
        more.next_id = kept.id + 1;
        more.origin = kept.id;
        more.all.push(kept);
        more
    }

    /// Takes a checkpoint out: what came from it comes from its parent now.
    pub(crate) fn without(&self, id: u64) -> Register {
        let mut rest = self.clone();
        let Some(gone) = self.get(id) else { return rest };
        rest.all.retain(|kept| kept.id != id);
        let children = rest.all.iter_mut().map(|kept| &mut kept.parent);
        for parent in children.chain([&mut rest.origin]).filter(|parent| **parent == id) {
            *parent = gone.parent;
        }
        rest
    }

    /// The pages of the register as they are stored.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut image = Vec::new();
        for number in [self.next_id, self.origin, self.all.len() as u64] {
            image.extend(number.to_le_bytes());
        }
        for kept in &self.all {
            for number in [
                kept.id,
                kept.parent,
                kept.version,
                kept.commit,
                kept.time,
                kept.root.pairs,
            ] {
                image.extend(number.to_le_bytes());
            }
            for number in [kept.root.page, kept.root.checksum] {
                image.extend(number.to_le_bytes());
            }
            image.extend([kept.root.height, 0]);
            image.extend((kept.name.len() as u16).to_le_bytes());
            image.extend((kept.metadata.len() as u32).to_le_bytes());
            image.extend(kept.name.as_bytes());
            image.extend(&kept.metadata);
        }
        image.resize(image.len().next_multiple_of(PAGE_BYTES), 0);
        image
    }

    /// Reads the register of a data file of so many pages.
    pub(crate) fn load(file: &dyn File, saved: SavedRegister, pages: u64, seed: u32) -> Result<Register> {
        if saved.pages == 0 {
            return Ok(Register::default());
        }
        let place = saved.page;
        if u64::from(saved.page) + u64::from(saved.pages) > pages {
            return Err(Error::damaged(format!(
                "the register of checkpoints lies at page {place}, beyond the data file"
            )));
        }
        let mut image = vec![0u8; saved.pages as usize * PAGE_BYTES];
        file.read_at(&mut image, u64::from(saved.page) * PAGE_BYTES as u64)
            .map_err(|error| Error::io("reading the register of checkpoints", error))?;
        if checksum_with(seed, &image) != saved.checksum {
            return Err(Error::damaged(format!(
                "the register of checkpoints at page {place} has a wrong checksum"
            )));
        }
        let damaged = || Error::damaged(format!("the register of checkpoints at page {place} cannot be read"));
        Register::decode(&image).ok_or_else(damaged)
    }

    fn decode(image: &[u8]) -> Option<Register> {
        let long = |at: usize| Some(u64::from_le_bytes(*image.get(at..)?.first_chunk()?));
        let word = |at: usize| Some(u32::from_le_bytes(*image.get(at..)?.first_chunk()?));
        let mut register = Register {
            next_id: long(0)?,
            origin: long(8)?,
            all: Vec::new(),
        };
        let mut at = HEAD_BYTES;
        for _ in 0..long(16)? {
            let lengths = image.get(at + 58..at + ENTRY_BYTES)?;
            let name = u16::from_le_bytes(*lengths.first_chunk()?) as usize;
            let metadata = u32::from_le_bytes(*lengths.last_chunk()?) as usize;
            let texts = image.get(at + ENTRY_BYTES..at + ENTRY_BYTES + name + metadata)?;
            register.all.push(Kept {
                id: long(at)?,
                parent: long(at + 8)?,
                version: long(at + 16)?,
                commit: long(at + 24)?,
                time: long(at + 32)?,
                root: Root {
                    pairs: long(at + 40)?,
                    page: word(at + 48)?,
                    checksum: word(at + 52)?,
                    height: *image.get(at + 56)?,
                },
                name: String::from_utf8(texts[..name].to_vec()).ok()?,
                metadata: texts[name..].to_vec(),
            });
            at += ENTRY_BYTES + name + metadata;
        }
        let is_ordered = register.all.is_sorted_by(|one, next| one.id < next.id);
        let is_known = |id: u64| id == 0 || register.get(id).is_some();
        let are_known = register
            .all
            .iter()
            .all(|kept| kept.parent < kept.id && is_known(kept.parent));
        (is_ordered && are_known && is_known(register.origin)).then_some(register)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(id: u64, parent: u64) -> Kept {
        Kept {
            id,
            parent,
            version: 10 * id,
            commit: 100 * id,
            time: 1_700_000_000_000_000 + id,
            root: Root {
                page: 64 + id as u32,
                height: 2,
                pairs: 7,
                checksum: 9,
            },
            name: format!("checkpoint {id}"),
            metadata: vec![id as u8; 1_500],
        }
    }

    #[test]
    fn a_register_comes_back_and_any_other_bytes_do_not() {
        let register = Register {
            next_id: 12,
            origin: 9,
            all: vec![kept(3, 0), kept(7, 3), kept(9, 3)],
        };
        let image = register.encode();
        assert_eq!(image.len() % PAGE_BYTES, 0);
        assert_eq!(Register::decode(&image), Some(register.clone()));
        assert_eq!(
            Register::decode(&Register::default().encode()),
            Some(Register::default())
        );
        assert_eq!(Register::decode(&image[..100]), None);
        for (wrong, what) in [
            (
                Register {
                    origin: 8,
                    ..register.clone()
                },
                "an origin that is not there",
            ),
            (
                Register {
                    all: vec![kept(7, 0), kept(3, 0)],
                    ..register.clone()
                },
                "a wrong order",
            ),
            (
                Register {
                    all: vec![kept(3, 3), kept(9, 0)],
                    ..register.clone()
                },
                "its own parent",
            ),
        ] {
            assert_eq!(Register::decode(&wrong.encode()), None, "{what}");
        }
    }

    #[test]
    fn what_came_from_a_checkpoint_that_is_gone_comes_from_its_parent() {
        let register = Register {
            next_id: 12,
            origin: 3,
            all: vec![kept(1, 0), kept(3, 1), kept(7, 3), kept(9, 7)],
        };
        let rest = register.without(3);
        assert_eq!(rest.origin, 1);
        assert_eq!(
            rest.all.iter().map(|kept| (kept.id, kept.parent)).collect::<Vec<_>>(),
            [(1, 0), (7, 1), (9, 7)]
        );
        assert_eq!((rest.version_of(7), rest.version_of(3), rest.version_of(0)), (70, 0, 0));
        assert_eq!(register.without(5), register);
    }
}
