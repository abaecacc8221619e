//! The names of maps: pairs in map 0, `name -> id`, and the handles of this process, so that a dropped map is noticed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Reason, Result};
use crate::limits::MAP_NAME_BYTES_MAX;

/// What the handles of one map share.
#[derive(Debug)]
pub(crate) struct MapInfo {
    pub(crate) id: u32,
    pub(crate) name: Mutex<String>,
    dropped: AtomicBool,
}

impl MapInfo {
    /// Refuses to work with a map that was dropped.
    #[inline]
    pub(crate) fn alive(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Reason::MapDropped { name: self.name() }.into());
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }
}

/// The maps that this process has handles of.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    known: Mutex<HashMap<u32, Arc<MapInfo>>>,
}

impl Catalog {
    /// The shared part of all handles of a map.
    pub(crate) fn info(&self, id: u32, name: &str) -> Arc<MapInfo> {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let fresh = || {
            Arc::new(MapInfo {
                id,
                name: Mutex::new(name.to_string()),
                dropped: AtomicBool::new(false),
            })
        };
        known.entry(id).or_insert_with(fresh).clone()
    }

    /// Marks a map as dropped for all handles.
    pub(crate) fn dropped(&self, id: u32) {
        if let Some(info) = self.known.lock().unwrap_or_else(|e| e.into_inner()).remove(&id) {
            info.dropped.store(true, Ordering::Release);
        }
    }

    /// Gives a map its new name in messages.
    pub(crate) fn renamed(&self, id: u32, name: &str) {
        if let Some(info) = self.known.lock().unwrap_or_else(|e| e.into_inner()).get(&id) {
            *info.name.lock().unwrap_or_else(|e| e.into_inner()) = name.to_string();
        }
    }

    /// The name of a map, for messages.
    pub(crate) fn name_of(&self, id: u32) -> String {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        match id {
            crate::full_key::CATALOG => "(names of maps)".into(),
            crate::full_key::COUNTERS => "(numbers of appends)".into(),
            _ => known.get(&id).map_or_else(|| format!("#{id}"), |info| info.name()),
        }
    }
}

/// Refuses what cannot name a map.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAP_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Reason::InvalidMapName {
            name: name.to_string(),
            max: MAP_NAME_BYTES_MAX,
        }
        .into());
    }
    Ok(())
}
