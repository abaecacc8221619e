//! Taking a mutex.

use std::sync::{Mutex, MutexGuard};

/// Takes a mutex. A thread that panicked while it held the mutex has left a usable state.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
