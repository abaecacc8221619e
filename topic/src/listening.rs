//! Listening to a bell for the lifetime of a value.

use std::fmt;
use std::sync::Arc;

use duramen_engine::{Listener, Sequence, Store};

/// A listener at the bell of a sequence. Dropping this removes the listener from the bell.
pub struct Listening {
    sequence: Sequence,
    listener: Arc<Listener>,
}

impl Listening {
    /// Gives the listener `token` whenever the bell rings.
    pub fn begin(store: &Store, sequence: &Sequence, listener: &Arc<Listener>, token: u64) -> Listening {
        store.listen(sequence.bell(), listener, token);
        Listening {
            sequence: sequence.clone(),
            listener: listener.clone(),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.sequence.bell().forget(&self.listener);
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listening").field(&self.sequence.bell().name()).finish()
    }
}
