//! Making the pages of a mapping present: at once, or in the background.

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use spoc_driver::backend::{Steps, cannot_be_asked, populate, populate_or_touch};

use crate::account::{Absent, Account};

/// A mapping up to this size is present on return: a thread would cost more.
pub(super) const AT_ONCE_BYTES: usize = 64 << 20;
/// How much the background threads yield to others: who fills memory makes it present in passing, while it is in the
/// processor's caches, and threads ahead of it would only take its time. Where it waits for a disk, they run.
#[cfg(target_os = "linux")]
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
    // SAFETY: as the caller says, and each step is one thread's.
    Steps::of(ptr, len_bytes).each(|ptr, len| unsafe { populate_or_touch(ptr, len) })
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
    // SAFETY: as the caller says.
    unsafe { begin_by(ptr, len_bytes, account, populate) }
}

/// Makes a part of a mapping present, and leaves alone what is in it.
type Populate = fn(*mut u8, usize) -> std::io::Result<()>;

/// As [`begin`], with the call that makes parts present.
unsafe fn begin_by(
    ptr: NonNull<u8>,
    len_bytes: usize,
    account: &Account,
    populate: Populate,
) -> std::io::Result<Option<Populating>> {
    if len_bytes <= AT_ONCE_BYTES {
        // SAFETY: as the caller says.
        unsafe { populate_or_touch(ptr.as_ptr(), len_bytes) }?;
        return Ok(None);
    }
    let first_bytes = Steps::BYTES.min(len_bytes);
    match populate(ptr.as_ptr(), first_bytes) {
        // Nobody can do it beside the memory's user then, and what is never noted as present would be missed on the
        // account for good: all of it at once.
        Err(error) if cannot_be_asked(&error) => {
            // SAFETY: as the caller says.
            return unsafe { whole(ptr, len_bytes) }.map(|()| None);
        }
        outcome => outcome?,
    }
    let steps = Steps::of(ptr, len_bytes);
    let shared = Arc::new(Shared {
        next: AtomicUsize::new(1),
        stop: AtomicBool::new(false),
        absent: account.absent((len_bytes - first_bytes) as u64),
    });
    // Half of the processors are left to whoever fills the memory.
    let threads = (0..threads_max().div_ceil(2)).map_while(|_| {
        let shared = Arc::clone(&shared);
        let thread = thread::Builder::new().name("spoc-populate".to_owned());
        thread.spawn(move || in_background(steps, &shared, populate)).ok()
    });
    let threads: Vec<_> = threads.collect();
    // Without a thread it becomes present as it is used, and nobody would note that.
    Ok((!threads.is_empty()).then_some(Populating { threads, shared }))
}

fn in_background(steps: Steps, shared: &Shared, populate: Populate) {
    // Elsewhere it would be the whole process.
    #[cfg(target_os = "linux")]
    // SAFETY: takes and gives plain integers; 0 is the calling thread. Where it is refused, nothing is lost but time.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    while !shared.stop.load(Ordering::Relaxed) {
        let Some((ptr, len)) = steps.get(shared.next.fetch_add(1, Ordering::Relaxed)) else { return };
        if let Err(error) = populate(ptr, len) {
            // What is not present yet comes when it is touched, which nobody but its user may do, and nobody notes.
            tracing::warn!(%error, "device memory becomes present as it is used");
            shared.stop.store(true, Ordering::Relaxed);
            shared.absent.write_off();
            return;
        }
        shared.absent.present(len as u64);
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
    use super::super::memory::page_bytes;
    use super::*;

    #[test]
    fn where_the_kernel_cannot_do_it_in_the_background_all_is_present_at_once() {
        let len_bytes = AT_ONCE_BYTES + 3 * Steps::BYTES;
        let account = Account::new(None);
        let layout = std::alloc::Layout::from_size_align(len_bytes, page_bytes()).unwrap();
        // SAFETY: the layout is not empty.
        let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        let cannot: [Populate; 3] = [
            |_, _| Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
            |_, _| Err(std::io::Error::from_raw_os_error(libc::ENOSYS)),
            |_, _| Err(std::io::Error::from_raw_os_error(libc::EPERM)),
        ];
        for populate in cannot {
            // SAFETY: fresh, zeroed and this test's.
            let begun = unsafe { begin_by(ptr, len_bytes, &account, populate) }.unwrap();
            assert!(begun.is_none());
        }
        assert_eq!(account.absent_now(), 0);
        let mut present = vec![0u8; len_bytes / page_bytes()];
        // SAFETY: whole pages of the allocation, and a byte of the answer for each.
        let answer = unsafe { libc::mincore(ptr.as_ptr().cast(), len_bytes, present.as_mut_ptr()) };
        assert!(answer == 0 && present.iter().all(|page| page & 1 == 1));
        let refused: Populate = |_, _| Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
        // SAFETY: as above.
        let error = unsafe { begin_by(ptr, len_bytes, &account, refused) }.err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(account.absent_now(), 0);
        // The first part is there; a later one is refused, for a reason of the memory's.
        let later: Populate = |_, _| {
            let mine = thread::current().name() == Some("spoc-populate");
            if mine { Err(std::io::Error::from_raw_os_error(libc::EHWPOISON)) } else { Ok(()) }
        };
        // SAFETY: as above; the threads end before the memory does.
        let begun = unsafe { begin_by(ptr, len_bytes, &account, later) }.unwrap();
        let mut populating = begun.expect("threads were started");
        for thread in populating.threads.drain(..) {
            thread.join().unwrap();
        }
        assert_eq!(account.absent_now(), 0, "while the memory is in use: nobody notes what becomes present");
        // Another thread that had begun before notes nothing twice.
        populating.shared.absent.present(1);
        assert_eq!(account.absent_now(), 0);
        drop(populating);
        // SAFETY: allocated above with this layout, and no thread names it any more.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) };
    }
}
