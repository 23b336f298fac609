//! Making the pages of a mapping present: at once, or in the background.

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::memory::{advise, page_bytes};
use crate::account::{Absent, Account};

/// A mapping up to this size is present on return: a thread would cost more.
pub(super) const AT_ONCE_BYTES: usize = 64 << 20;
/// What one call makes present: a huge page. Between two of them a thread can be told to stop, and whoever maps memory
/// gets its turn.
const STEP_BYTES: usize = 2 << 20;
/// How much the background threads yield to others: who fills memory makes it present in passing, while it is in the
/// processor's caches, and threads ahead of it would only take its time. Where it waits for a disk, they run.
const NICE: libc::c_int = 19;
/// More threads than this gain nothing: the kernel's page zeroing is bound by memory.
const THREADS_MAX: usize = 8;

/// Threads that make a mapping present; dropping it ends them.
pub(super) struct Populating {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    next: AtomicUsize,
    stop: AtomicBool,
    absent: Absent,
}

/// The mapping as the threads share it.
#[derive(Clone, Copy)]
struct Range {
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the address is only named to the kernel, which checks it.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl Range {
    /// The `number`-th step, if there is one.
    fn step(self, number: usize) -> Option<(*mut u8, usize)> {
        let offset = number.checked_mul(STEP_BYTES).filter(|offset| *offset < self.len_bytes)?;
        Some((self.ptr.as_ptr().wrapping_add(offset), STEP_BYTES.min(self.len_bytes - offset)))
    }
}

fn threads_max() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX)
}

/// Makes a mapping present, by several threads before it returns: one is far slower than the memory.
///
/// # Safety
/// The mapping is private to the caller for the duration, zeroed and writable.
///
/// # Errors
/// The kernel has not that much.
pub(super) unsafe fn whole(ptr: NonNull<u8>, len_bytes: usize) -> std::io::Result<()> {
    let (range, next) = (Range { ptr, len_bytes }, AtomicUsize::new(0));
    let work = || {
        let mut steps = std::iter::from_fn(|| range.step(next.fetch_add(1, Ordering::Relaxed)));
        steps.try_for_each(|(ptr, len)| present_or_touched(ptr, len))
    };
    let helpers = threads_max().min(len_bytes.div_ceil(AT_ONCE_BYTES)) - 1;
    thread::scope(|scope| {
        // For those that cannot be had, the others do more.
        let spawned: Vec<_> =
            (0..helpers).map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let panicked = |_| Err(std::io::Error::other("a populating thread panicked"));
        spawned
            .into_iter()
            .fold(work(), |outcome, helper| outcome.and(helper.join().unwrap_or_else(panicked)))
    })
}

/// Makes a small mapping present, and begins to make a large one so.
///
/// # Safety
/// The mapping outlives what is returned; it is zeroed, writable, and nobody else's until this returns.
///
/// # Errors
/// The kernel has not that much.
pub(super) unsafe fn begin(
    ptr: NonNull<u8>,
    len_bytes: usize,
    account: &Account,
) -> std::io::Result<Option<Populating>> {
    let populate = |ptr, len| advise(ptr, len, libc::MADV_POPULATE_WRITE);
    // SAFETY: as the caller says.
    unsafe { begin_by(ptr, len_bytes, account, populate) }
}

/// As [`begin`], with the call that makes the first part present.
unsafe fn begin_by(
    ptr: NonNull<u8>,
    len_bytes: usize,
    account: &Account,
    populate: impl Fn(*mut u8, usize) -> std::io::Result<()>,
) -> std::io::Result<Option<Populating>> {
    if len_bytes <= AT_ONCE_BYTES {
        present_or_touched(ptr.as_ptr(), len_bytes)?;
        return Ok(None);
    }
    let first_bytes = STEP_BYTES.min(len_bytes);
    match populate(ptr.as_ptr(), first_bytes) {
        // Before Linux 5.14 nobody can do it beside the memory's user, and what is never noted as present would be missed
        // on the account for good: all of it at once.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // SAFETY: as the caller says.
            return unsafe { whole(ptr, len_bytes) }.map(|()| None);
        }
        outcome => outcome?,
    }
    let range = Range { ptr, len_bytes };
    let shared = Arc::new(Shared {
        next: AtomicUsize::new(1),
        stop: AtomicBool::new(false),
        absent: account.absent((len_bytes - first_bytes) as u64),
    });
    // Half of the processors are left to whoever fills the memory.
    let threads = (0..threads_max().div_ceil(2)).map_while(|_| {
        let shared = Arc::clone(&shared);
        let thread = thread::Builder::new().name("spoc-populate".to_owned());
        thread.spawn(move || in_background(range, &shared)).ok()
    });
    let threads: Vec<_> = threads.collect();
    // Without a thread it becomes present as it is used, and nobody would note that.
    Ok((!threads.is_empty()).then_some(Populating { threads, shared }))
}

fn in_background(range: Range, shared: &Shared) {
    // SAFETY: takes and gives plain integers; 0 is the calling thread. Where it is refused, nothing is lost but time.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    while !shared.stop.load(Ordering::Relaxed) {
        let Some((ptr, len)) = range.step(shared.next.fetch_add(1, Ordering::Relaxed)) else { return };
        if let Err(error) = advise(ptr, len, libc::MADV_POPULATE_WRITE) {
            // What is not present yet comes when it is touched, which nobody but its user may do.
            tracing::debug!(%error, "device memory becomes present as it is used");
            return;
        }
        shared.absent.present(len as u64);
    }
}

fn present_or_touched(ptr: *mut u8, len_bytes: usize) -> std::io::Result<()> {
    match advise(ptr, len_bytes, libc::MADV_POPULATE_WRITE) {
        // Before Linux 5.14 it does not exist: touch the pages instead.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            for page in (0..len_bytes).step_by(page_bytes()) {
                // SAFETY: inside a mapping that nobody else has seen yet; zero is what is there.
                unsafe { std::ptr::write_volatile(ptr.wrapping_add(page), 0) };
            }
            Ok(())
        }
        outcome => outcome,
    }
}

impl Drop for Populating {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a populating thread panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_kernel_cannot_do_it_in_the_background_all_is_present_at_once() {
        let len_bytes = AT_ONCE_BYTES + 3 * STEP_BYTES;
        let account = Account::new(None);
        let layout = std::alloc::Layout::from_size_align(len_bytes, page_bytes()).unwrap();
        // SAFETY: the layout is not empty.
        let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        let einval = |_, _| Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        // SAFETY: fresh, zeroed and this test's.
        let begun = unsafe { begin_by(ptr, len_bytes, &account, einval) }.unwrap();
        assert!(begun.is_none());
        assert_eq!(account.absent_now(), 0);
        let mut present = vec![0u8; len_bytes / page_bytes()];
        // SAFETY: whole pages of the allocation, and a byte of the answer for each.
        let answer = unsafe { libc::mincore(ptr.as_ptr().cast(), len_bytes, present.as_mut_ptr()) };
        assert!(answer == 0 && present.iter().all(|page| page & 1 == 1));
        let refused = |_, _| Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
        // SAFETY: as above.
        let error = unsafe { begin_by(ptr, len_bytes, &account, refused) }.err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(account.absent_now(), 0);
        // SAFETY: allocated above with this layout, and no thread names it any more.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) };
    }
}
