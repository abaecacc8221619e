//! What this process knows of the register of checkpoints.

use std::sync::{Arc, Mutex, PoisonError};

use crate::btree::Root;
use crate::core::Core;
use crate::datafile::register::{Register, SavedRegister};
use crate::error::Result;
use crate::limits::PAGE_BYTES;

/// The register that was read last, and the checkpoint that the base comes from.
#[derive(Debug, Default)]
pub(crate) struct KeptRoots {
    register: Mutex<Option<(SavedRegister, Arc<Register>)>>,
    origin: Mutex<Option<Origin>>,
}

/// The checkpoint that the base comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// Pages of the base that are not younger belong to the checkpoint too.
    pub(crate) version: u64,
    pub(crate) root: Root,
}

impl Core {
    /// Reads a register. The caller has pinned a version that refers to it, or has the maintenance lock.
    pub(crate) fn register(&self, saved: SavedRegister) -> Result<Arc<Register>> {
        let mut known = self.kept_roots.register.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((place, register)) if *place == saved => Ok(register.clone()),
            _ => {
                let pages = self.space.file_bytes() / PAGE_BYTES as u64;
                let register = Arc::new(Register::load(&*self.data, saved, pages, self.seeds.pages)?);
                *known = Some((saved, register.clone()));
                Ok(register)
            }
        }
    }

    /// Learns which checkpoint the published base comes from. The caller has the maintenance lock, or is recovery.
    pub(crate) fn learn_origin(&self) -> Result<()> {
        let saved = self.region.version().register;
        let register = self.register(saved)?;
        self.space
            .keeps_roots(if register.all.is_empty() { 0 } else { saved.pages });
        let origin = register.get(register.origin).map(|kept| Origin {
            version: kept.version,
            root: kept.root,
        });
        *self.kept_roots.origin.lock().unwrap_or_else(PoisonError::into_inner) = origin;
        Ok(())
    }

    /// The checkpoint that the base comes from, as the holder of the maintenance lock knows it.
    pub(crate) fn origin(&self) -> Option<Origin> {
        *self.kept_roots.origin.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
