//! Locks that nobody's panic closes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, poisoned or not: nothing that can panic runs while one of these is held.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
