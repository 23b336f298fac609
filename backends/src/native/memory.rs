//! Device memory: anonymous and in huge pages, or a sealed memfd where it is to be lent.

use std::fs::File;
#[cfg(target_os = "linux")]
use std::os::fd::FromRawFd;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use spoc_driver::{Error, ErrorKind, Result};

use super::populate::{self, Populating};
use crate::account::Account;
use crate::capacity::Capacity;

/// Huge pages begin at multiples of this; so does memory that is at least as long.
const HUGE_BYTES: usize = 2 << 20;

/// Advice that asks for huge pages, and that keeps memory from forked children; none where the system has no such advice.
#[cfg(target_os = "linux")]
const ADVICE: [Option<libc::c_int>; 2] = [Some(libc::MADV_HUGEPAGE), Some(libc::MADV_DONTFORK)];
#[cfg(not(target_os = "linux"))]
const ADVICE: [Option<libc::c_int>; 2] = [None, None];
const HUGE_PAGES: Option<libc::c_int> = ADVICE[0];
const DONT_FORK: Option<libc::c_int> = ADVICE[1];

/// Whether the system has memory with a descriptor that can be sealed.
pub(crate) const LENDS: bool = cfg!(target_os = "linux");
/// Why it cannot lend.
pub(crate) const LENDS_NOT: &str = "memory with a descriptor that can be sealed exists on Linux alone";

/// Why some memory has no descriptor.
pub(crate) const NOT_LENDABLE: &str = "the segment was not allocated as exportable";

/// A mapping of zeroed memory, or the part of a memfd that is asked for.
pub(crate) struct Memory {
    ptr: NonNull<u8>,
    mapped_bytes: usize,
    /// What another process can be given; none for memory that was not allocated to be lent.
    descriptor: Option<OwnedFd>,
    populating: Option<Populating>,
}

// SAFETY: a mapping that this value owns; all access is by raw pointer, ordered by streams.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len_bytes` rounded up to pages, zeroed. Memory that is to be lent is shared memory and present on return; any
    /// other is anonymous, because only that is given huge pages as systems are set up, and much of it becomes
    /// present in the background while its user begins: touching 4 KiB at a time costs more than filling it.
    pub(crate) fn allocate(len_bytes: usize, lendable: bool, account: &Account) -> Result<Self> {
        let out_of_memory = |cause: std::io::Error| {
            let have_bytes = Capacity::now().free_bytes;
            let kind = ErrorKind::OutOfDeviceMemory { need_bytes: len_bytes as u64, have_bytes };
            Error::new(kind, DOING).because(cause)
        };
        let too_large = || out_of_memory(std::io::Error::from_raw_os_error(libc::ENOMEM));
        let mapped_bytes = len_bytes.checked_next_multiple_of(page_bytes()).ok_or_else(too_large)?;
        if lendable {
            return Self::shared(mapped_bytes, out_of_memory);
        }
        let ptr = map_anonymous(mapped_bytes).map_err(out_of_memory)?;
        let mut memory = Self { ptr, mapped_bytes, descriptor: None, populating: None };
        // Wishes only: whether there are huge pages is the system's to say, and a forked child that keeps a view of
        // the memory costs copies and gains nothing.
        let _ = advise(memory.as_ptr(), mapped_bytes, HUGE_PAGES);
        let _ = advise(memory.as_ptr(), mapped_bytes, DONT_FORK);
        // SAFETY: the mapping lives until `drop`, which ends the populating first.
        let begun = unsafe { populate::begin(memory.ptr, mapped_bytes, account) };
        memory.populating = begun.map_err(out_of_memory)?;
        Ok(memory)
    }

    fn shared(mapped_bytes: usize, out_of_memory: impl Fn(std::io::Error) -> Error) -> Result<Self> {
        let descriptor = create_memfd()?;
        File::from(descriptor.try_clone().map_err(|error| os(DOING, error))?)
            .set_len(mapped_bytes as u64)
            .map_err(|error| os(DOING, error))?;
        let ptr = map(descriptor.as_raw_fd(), mapped_bytes)
            .ok_or_else(|| out_of_memory(std::io::Error::last_os_error()))?;
        let memory = Self { ptr, mapped_bytes, descriptor: Some(descriptor), populating: None };
        // As above.
        let _ = advise(memory.as_ptr(), mapped_bytes, HUGE_PAGES);
        // SAFETY: the mapping is this value's, and nobody else has seen it yet.
        unsafe { populate::whole(memory.ptr, mapped_bytes) }.map_err(out_of_memory)?;
        memory.seal()?;
        Ok(memory)
    }

    /// Maps memory that `allocate` made, here or in another process.
    pub(crate) fn import(descriptor: OwnedFd, len_bytes: u64, allocation_bytes: u64) -> Result<Self> {
        const DOING: &str = "importing native device memory";
        let invalid =
            |what: &str| Error::new(ErrorKind::InvalidArgument, DOING).with("because", what.to_owned());
        // Without this seal, shrinking the file elsewhere would turn our next access into a SIGBUS.
        if !seals::keep_size(&descriptor) {
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
        // Its pages are there, and become this process's as they are touched: importing takes no longer for more memory.
        Ok(Self { ptr, mapped_bytes, descriptor: Some(file.into()), populating: None })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes as u64
    }

    /// Another descriptor of the same memory; none where it was not allocated to be lent.
    pub(crate) fn export(&self) -> Option<Result<OwnedFd>> {
        let descriptor = self.descriptor.as_ref()?.as_fd().try_clone_to_owned();
        Some(descriptor.map_err(|error| os("exporting native device memory", error)))
    }

    fn seal(&self) -> Result<()> {
        let Some(descriptor) = &self.descriptor else { return Ok(()) };
        seals::seal(descriptor).map_err(|error| os("sealing native device memory", error))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Its threads still name the mapping.
        self.populating = None;
        // SAFETY: mapped by `allocate` or `import`; the driver drops a buffer only when nothing uses it.
        let answer = unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.mapped_bytes) };
        if answer != 0 {
            tracing::error!(bytes = self.mapped_bytes, "unmapping native device memory failed");
        }
    }
}

const DOING: &str = "allocating native device memory";

/// Memory with a descriptor whose size nobody can change any more.
#[cfg(target_os = "linux")]
mod seals {
    use std::os::fd::{AsRawFd, OwnedFd};

    /// Whether it cannot be shrunk.
    pub(super) fn keep_size(descriptor: &OwnedFd) -> bool {
        // SAFETY: asking for seals reads no memory.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
    }

    pub(super) fn seal(descriptor: &OwnedFd) -> std::io::Result<()> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: sealing reads no memory; the descriptor is ours.
        match unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// There is none here.
#[cfg(not(target_os = "linux"))]
mod seals {
    use std::os::fd::OwnedFd;

    pub(super) fn keep_size(_: &OwnedFd) -> bool {
        false
    }

    pub(super) fn seal(_: &OwnedFd) -> std::io::Result<()> {
        Err(std::io::Error::other(super::LENDS_NOT))
    }
}

#[cfg(not(target_os = "linux"))]
fn create_memfd() -> Result<OwnedFd> {
    Err(Error::new(ErrorKind::Os, DOING).with("because", LENDS_NOT))
}

#[cfg(target_os = "linux")]
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

/// Fresh anonymous memory, at a multiple of [`HUGE_BYTES`] if it is as long.
fn map_anonymous(len_bytes: usize) -> std::io::Result<NonNull<u8>> {
    let slack = if len_bytes < HUGE_BYTES { 0 } else { HUGE_BYTES - page_bytes() };
    let too_large = || std::io::Error::from_raw_os_error(libc::ENOMEM);
    let whole = len_bytes.checked_add(slack).ok_or_else(too_large)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let raw = unsafe { libc::mmap(ptr::null_mut(), whole, protection, flags, -1, 0) };
    if raw == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let raw = raw.cast::<u8>();
    let before = if slack == 0 { 0 } else { raw.addr().next_multiple_of(HUGE_BYTES) - raw.addr() };
    for (offset, len) in [(0, before), (before + len_bytes, slack - before)] {
        if len > 0 {
            // SAFETY: whole pages of the mapping just made, outside of what is handed out.
            unsafe { libc::munmap(raw.wrapping_add(offset).cast(), len) };
        }
    }
    NonNull::new(raw.wrapping_add(before)).ok_or_else(too_large)
}

fn advise(ptr: *mut u8, len_bytes: usize, advice: Option<libc::c_int>) -> std::io::Result<()> {
    // As a kernel answers that does not know the advice.
    let Some(advice) = advice else { return Err(std::io::Error::from_raw_os_error(libc::EINVAL)) };
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
        let sizes = [usize::MAX, (isize::MAX as usize) & !0xFFFF];
        for (len_bytes, lendable) in sizes.into_iter().flat_map(|len| [(len, false), (len, true)]) {
            let error = Memory::allocate(len_bytes, lendable, &Account::new(None)).err().unwrap();
            match error.kind() {
                ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes } => {
                    assert_eq!(*need_bytes, len_bytes as u64);
                    assert!(*have_bytes > 0, "{error}");
                }
                _ => panic!("{error}"),
            }
        }
    }

    #[test]
    fn memory_is_zeroed_aligned_and_outlived_by_nothing() {
        for len_bytes in [1, page_bytes() + 1, HUGE_BYTES, populate::AT_ONCE_BYTES + HUGE_BYTES + 1] {
            for lendable in [false, true] {
                let memory = Memory::allocate(len_bytes, lendable, &Account::new(None)).unwrap();
                assert_eq!(memory.mapped_bytes(), len_bytes.next_multiple_of(page_bytes()) as u64);
                let aligned = !lendable && len_bytes >= HUGE_BYTES;
                assert!(!aligned || memory.as_ptr().addr().is_multiple_of(HUGE_BYTES));
                assert_eq!(memory.export().is_some(), lendable);
                for at in [0, len_bytes / 2, len_bytes - 1] {
                    // SAFETY: inside the mapping, which only this test knows.
                    unsafe { assert_eq!(memory.as_ptr().wrapping_add(at).read(), 0) };
                }
                // SAFETY: as above.
                unsafe { memory.as_ptr().wrapping_add(len_bytes - 1).write(7) };
            }
        }
    }

    #[test]
    fn what_is_written_while_memory_becomes_present_stays() {
        let len_bytes = 2 * populate::AT_ONCE_BYTES;
        let mut memory = Memory::allocate(len_bytes, false, &Account::new(None)).unwrap();
        let bytes = memory.as_ptr();
        for page in (0..len_bytes).step_by(page_bytes()) {
            // SAFETY: inside the mapping, which only this test knows.
            unsafe { bytes.wrapping_add(page).write(1) };
        }
        memory.populating = None;
        // SAFETY: as above.
        let kept =
            (0..len_bytes).step_by(page_bytes()).all(|page| unsafe { bytes.wrapping_add(page).read() } == 1);
        assert!(kept);
    }
}
