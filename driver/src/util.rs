//! Small things every file needs.

use std::sync::PoisonError;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, MutexGuard};

/// Locks, poisoned or not: no critical section here leaves its data half-changed when a source's or an
/// adapter's code unwinds, because none of that code runs inside one.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses `len_bytes` at `offset_bytes` if they leave `size_bytes`, overflow included.
pub(crate) fn check_range(
    offset_bytes: u64,
    len_bytes: u64,
    size_bytes: u64,
    doing: &'static str,
) -> Result<()> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(Error::new(ErrorKind::OutOfBounds { offset_bytes, len_bytes, size_bytes }, doing)),
    }
}

/// Refuses a value that is not a multiple of `align` bytes.
pub(crate) fn check_aligned(value: u64, align: u64, doing: &'static str) -> Result<()> {
    if align > 1 && !value.is_multiple_of(align) {
        return Err(Error::new(ErrorKind::Misaligned { value, align }, doing));
    }
    Ok(())
}

/// A size that has to be addressable on this host.
pub(crate) fn host_len(len_bytes: u64, doing: &'static str) -> Result<usize> {
    let max = usize::MAX as u64;
    usize::try_from(len_bytes).map_err(|_| Error::new(ErrorKind::TooLarge { need: len_bytes, max }, doing))
}
