//! Making the pages of a mapping present: the first touch of memory is far slower than any later one.

use std::num::NonZero;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

/// What one call makes present: a huge page. Between two of them a thread can be told to stop, and whoever maps memory
/// gets its turn.
const STEP_BYTES: usize = 2 << 20;
/// A thread has at least this much to do: clearing it takes ten times as long as starting one.
const THREAD_BYTES_MIN: usize = 4 << 20;
/// More threads than this gain nothing: clearing pages is bound by memory.
const THREADS_MAX: usize = 16;

/// A mapping in steps, as the threads share it that make it present.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: an address that is named and not used.
unsafe impl Send for Steps {}
// SAFETY: as above.
unsafe impl Sync for Steps {}

impl Steps {
    /// Bytes of a step; the last one may be shorter.
    pub const BYTES: usize = STEP_BYTES;

    /// Of `len_bytes` from `ptr` on, a multiple of the page size.
    #[must_use]
    pub fn of(ptr: NonNull<u8>, len_bytes: usize) -> Self {
        Self { ptr, len_bytes }
    }

    /// Address and length of the `number`-th step, if there is one.
    #[must_use]
    pub fn get(self, number: usize) -> Option<(*mut u8, usize)> {
        let offset = number.checked_mul(STEP_BYTES).filter(|offset| *offset < self.len_bytes)?;
        Some((self.ptr.as_ptr().wrapping_add(offset), STEP_BYTES.min(self.len_bytes - offset)))
    }

    /// Does something to every step, by several threads before it returns: one does not reach what memory can.
    ///
    /// # Errors
    /// The first that a step answers; others may have been done or not.
    pub fn each(self, one: impl Fn(*mut u8, usize) -> io::Result<()> + Sync) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut steps = std::iter::from_fn(|| self.get(next.fetch_add(1, Ordering::Relaxed)));
            steps.try_for_each(|(ptr, len)| one(ptr, len))
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let helpers = threads.min(self.len_bytes / THREAD_BYTES_MIN).saturating_sub(1);
        thread::scope(|scope| {
            // For those that cannot be had, the others do more.
            let spawned: Vec<_> =
                (0..helpers).map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
            let panicked = |_| Err(io::Error::other("a populating thread panicked"));
            spawned
                .into_iter()
                .fold(work(), |outcome, helper| outcome.and(helper.join().unwrap_or_else(panicked)))
        })
    }
}

/// Asks the kernel to make pages present. What is in them stays, whoever uses them meanwhile.
///
/// # Errors
/// The kernel's: not that much memory, no such pages, or see [`cannot_be_asked`].
#[cfg(not(target_os = "linux"))]
pub fn populate(_: *mut u8, _: usize) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Asks the kernel to make pages present. What is in them stays, whoever uses them meanwhile.
///
/// # Errors
/// The kernel's: not that much memory, no such pages, or see [`cannot_be_asked`].
#[cfg(target_os = "linux")]
pub fn populate(ptr: *mut u8, len_bytes: usize) -> io::Result<()> {
    // SAFETY: the kernel checks the range, and this advice changes no byte.
    match unsafe { libc::madvise(ptr.cast(), len_bytes, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether [`populate`] does not exist, as before Linux 5.14, or a sandbox does not let it through. Any other error is
/// about the memory.
#[must_use]
pub fn cannot_be_asked(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM))
}

/// Makes fresh pages present: by asking, or by touching one after the other.
///
/// # Safety
/// The range is mapped, writable, zeroed, and nobody else's until this returns.
///
/// # Errors
/// The kernel has not that much.
pub unsafe fn populate_or_touch(ptr: *mut u8, len_bytes: usize) -> io::Result<()> {
    match populate(ptr, len_bytes) {
        Err(error) if cannot_be_asked(&error) => {
            // SAFETY: as the caller says.
            unsafe { touch(ptr, len_bytes) };
            Ok(())
        }
        outcome => outcome,
    }
}

/// # Safety
/// As of [`populate_or_touch`].
unsafe fn touch(ptr: *mut u8, len_bytes: usize) {
    for page in (0..len_bytes).step_by(super::memory::page_bytes()) {
        // SAFETY: inside the range, which is the caller's alone. Volatile, because writing the zero that is already
        // there must not be optimised away.
        unsafe { ptr::write_volatile(ptr.wrapping_add(page), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_step_comes_once_and_an_error_comes_back() {
        let len_bytes = 5 * STEP_BYTES + 1;
        // Never used, only named.
        let steps = Steps::of(NonNull::dangling(), len_bytes);
        let seen = Mutex::new(Vec::new());
        let note = |ptr: *mut u8, len: usize| {
            seen.lock().unwrap().push((ptr.addr() - NonNull::<u8>::dangling().addr().get(), len));
            Ok(())
        };
        steps.each(note).unwrap();
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        let mut expected: Vec<_> = (0..5).map(|n| (n * STEP_BYTES, STEP_BYTES)).collect();
        expected.push((5 * STEP_BYTES, 1));
        assert_eq!(seen, expected);
        let refused = steps.each(|_, len| if len == 1 { Err(io::Error::other("no")) } else { Ok(()) });
        assert_eq!(refused.unwrap_err().to_string(), "no");
        Steps::of(NonNull::dangling(), 0).each(|_, _| Err(io::Error::other("no step"))).unwrap();
    }

    #[test]
    fn touching_is_as_good_as_asking() {
        let len_bytes = 3 * crate::host::memory::page_bytes();
        let layout = std::alloc::Layout::from_size_align(len_bytes, len_bytes / 3).unwrap();
        // SAFETY: the layout is not empty.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        // SAFETY: fresh, zeroed and this test's.
        unsafe { touch(ptr, len_bytes) };
        let mut present = [0u8; 3];
        // SAFETY: whole pages of the allocation, and a byte of the answer for each.
        let answer = unsafe { libc::mincore(ptr.cast(), len_bytes, present.as_mut_ptr()) };
        assert!(answer == 0 && present.iter().all(|page| page & 1 == 1));
        // SAFETY: allocated above with this layout.
        unsafe { std::alloc::dealloc(ptr, layout) };
    }
}
