//! Device memory: sealed memfds, present when allocated.

use std::fs::File;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::thread;

use spoc_driver::{Error, ErrorKind, Result};

use crate::capacity::Capacity;

/// Populating is cut among threads in parts of at least this many bytes.
const POPULATE_PART_BYTES: usize = 64 << 20;
/// More threads than this gain nothing: the kernel's page zeroing is bound by memory.
const POPULATE_THREADS_MAX: usize = 8;

/// A mapped memfd, or the part of it that is asked for.
pub(crate) struct Memory {
    ptr: NonNull<u8>,
    mapped_bytes: usize,
    descriptor: OwnedFd,
}

// SAFETY: a shared mapping that this value owns; all access is by raw pointer, ordered by streams.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len_bytes` rounded up to pages: zeroed, sealed against changing its size, and present.
    pub(crate) fn allocate(len_bytes: usize) -> Result<Self> {
        const DOING: &str = "allocating native device memory";
        let out_of_memory = |cause: std::io::Error| {
            let have_bytes = Capacity::now().free_bytes;
            let kind = ErrorKind::OutOfDeviceMemory { need_bytes: len_bytes as u64, have_bytes };
            Error::new(kind, DOING).because(cause)
        };
        let descriptor = create_memfd()?;
        let too_large = || out_of_memory(std::io::Error::from_raw_os_error(libc::ENOMEM));
        let mapped_bytes = len_bytes.checked_next_multiple_of(page_bytes()).ok_or_else(too_large)?;
        File::from(descriptor.try_clone().map_err(|error| os(DOING, error))?)
            .set_len(mapped_bytes as u64)
            .map_err(|error| os(DOING, error))?;
        let ptr = map(descriptor.as_raw_fd(), mapped_bytes)
            .ok_or_else(|| out_of_memory(std::io::Error::last_os_error()))?;
        let memory = Self { ptr, mapped_bytes, descriptor };
        // A wish only: whether shared memory gets huge pages is the system's to say.
        let _ = advise(memory.ptr.as_ptr(), mapped_bytes, libc::MADV_HUGEPAGE);
        memory.populate().map_err(out_of_memory)?;
        memory.seal()?;
        Ok(memory)
    }

    /// Maps memory that `allocate` made, here or in another process.
    pub(crate) fn import(descriptor: OwnedFd, len_bytes: u64, allocation_bytes: u64) -> Result<Self> {
        const DOING: &str = "importing native device memory";
        let invalid =
            |what: &str| Error::new(ErrorKind::InvalidArgument, DOING).with("because", what.to_owned());
        // Without this seal, shrinking the file elsewhere would turn our next access into a SIGBUS.
        // SAFETY: asking for seals reads no memory.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(invalid("the descriptor is not a sealed memfd"));
        }
        let file = File::from(descriptor);
        let size = file.metadata().map_err(|error| os(DOING, error))?.len();
        if size != allocation_bytes || size < len_bytes {
            return Err(invalid("its size is not the one that was told").with("size_bytes", size));
        }
        let mapped_bytes =
            usize::try_from(size).map_err(|_| invalid("it is larger than the address space"))?;
        let ptr =
            map(file.as_raw_fd(), mapped_bytes).ok_or_else(|| os(DOING, std::io::Error::last_os_error()))?;
        let _ = advise(ptr.as_ptr(), mapped_bytes, libc::MADV_POPULATE_WRITE);
        Ok(Self { ptr, mapped_bytes, descriptor: file.into() })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes as u64
    }

    /// Another descriptor of the same memory.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let descriptor = self.descriptor.as_fd().try_clone_to_owned();
        descriptor.map_err(|error| os("exporting native device memory", error))
    }

    fn seal(&self) -> Result<()> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: sealing reads no memory; the descriptor is ours.
        match unsafe { libc::fcntl(self.descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(()),
            _ => Err(os("sealing native device memory", std::io::Error::last_os_error())),
        }
    }

    /// Makes every page present, by several threads: one is far slower than the memory.
    fn populate(&self) -> std::io::Result<()> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(POPULATE_THREADS_MAX);
        let share = self.mapped_bytes.div_ceil(threads).max(POPULATE_PART_BYTES);
        let part_bytes = share.next_multiple_of(page_bytes());
        let part_at = |offset| self.populate_part(offset, part_bytes.min(self.mapped_bytes - offset));
        thread::scope(|scope| {
            // The first part is this thread's own, and so are those for which no thread can be had.
            let spawn = |offset| {
                thread::Builder::new().spawn_scoped(scope, move || part_at(offset)).map_err(|_| offset)
            };
            let workers: Vec<_> = (part_bytes..self.mapped_bytes).step_by(part_bytes).map(spawn).collect();
            let panicked = |_| Err(std::io::Error::other("a populating thread panicked"));
            workers.into_iter().fold(part_at(0), |outcome, worker| {
                outcome.and(worker.map_or_else(part_at, |worker| worker.join().unwrap_or_else(panicked)))
            })
        })
    }

    fn populate_part(&self, offset: usize, len_bytes: usize) -> std::io::Result<()> {
        let ptr = self.ptr.as_ptr().wrapping_add(offset);
        match advise(ptr, len_bytes, libc::MADV_POPULATE_WRITE) {
            // Before Linux 5.14 it does not exist: touch the pages instead.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for page in (0..len_bytes).step_by(page_bytes()) {
                    // SAFETY: inside the mapping, which nobody else has seen yet; zero is what is there.
                    unsafe { ptr::write_volatile(ptr.wrapping_add(page), 0) };
                }
                Ok(())
            }
            outcome => outcome,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `allocate` or `import`; the driver drops a buffer only when nothing uses it.
        let answer = unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.mapped_bytes) };
        if answer != 0 {
            tracing::error!(bytes = self.mapped_bytes, "unmapping native device memory failed");
        }
    }
}

fn create_memfd() -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string, and the call makes a new descriptor.
    let raw: RawFd = unsafe { libc::memfd_create(c"spoc-device".as_ptr(), flags) };
    if raw < 0 {
        return Err(os("creating a memfd", std::io::Error::last_os_error()));
    }
    // SAFETY: just created, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn map(descriptor: RawFd, len_bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let raw = unsafe { libc::mmap(ptr::null_mut(), len_bytes, protection, libc::MAP_SHARED, descriptor, 0) };
    if raw == libc::MAP_FAILED { None } else { NonNull::new(raw.cast()) }
}

fn advise(ptr: *mut u8, len_bytes: usize, advice: libc::c_int) -> std::io::Result<()> {
    // SAFETY: callers pass parts of their own mapping, and no advice used here discards data.
    match unsafe { libc::madvise(ptr.cast(), len_bytes, advice) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn os(doing: &'static str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Os, doing).because(error)
}

/// The page size in bytes.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_mapped_is_refused_with_the_real_figures() {
        for len_bytes in [usize::MAX, (isize::MAX as usize) & !0xFFFF] {
            let error = Memory::allocate(len_bytes).err().unwrap();
            match error.kind() {
                ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes } => {
                    assert_eq!(*need_bytes, len_bytes as u64);
                    assert!(*have_bytes > 0, "{error}");
                }
                _ => panic!("{error}"),
            }
        }
    }
}
