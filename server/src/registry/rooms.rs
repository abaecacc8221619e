//! Members of groups that wait until messages are settled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

/// Tells the members of a group that messages were settled.
#[derive(Default)]
pub(crate) struct Rooms {
    rooms: Mutex<HashMap<(String, String), Weak<Notify>>>,
}

impl Rooms {
    /// What wakes the members of a group.
    pub(crate) fn of(&self, topic: &str, group: &str) -> Arc<Notify> {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (topic.to_string(), group.to_string());
        if let Some(room) = rooms.get(&key).and_then(Weak::upgrade) {
            return room;
        }
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Notify::new());
        rooms.insert(key, Arc::downgrade(&room));
        room
    }

    /// Wakes the members of a group that wait for room.
    pub(crate) fn made(&self, topic: &str, group: &str) {
        let rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        let room = rooms.get(&(topic.to_string(), group.to_string()));
        if let Some(room) = room.and_then(Weak::upgrade) {
            room.notify_waiters();
        }
    }
}
