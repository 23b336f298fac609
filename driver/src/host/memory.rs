//! Page-aligned anonymous memory, present before it is used.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::present::{self, Steps};
use super::{HostSink, HostSource};
use crate::error::{Error, ErrorKind, Result};

/// How host memory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemoryOptions {
    /// Ask for huge pages (a wish: the system may decline).
    pub huge_pages: bool,
    /// Fault every page in now, so that no later read or copy pays for it.
    pub populate: bool,
    /// Lock it into memory; fails where `RLIMIT_MEMLOCK` forbids it.
    pub lock: bool,
    /// The NUMA node to take it from, that of the device it feeds (a wish: another node serves if that one
    /// is full, or if a sandbox forbids asking).
    pub numa_node: Option<u32>,
}

impl Default for HostMemoryOptions {
    fn default() -> Self {
        Self { huge_pages: true, populate: true, lock: false, numa_node: None }
    }
}

/// An owned anonymous mapping.
struct Mapping {
    ptr: NonNull<u8>,
    len_bytes: usize,
    mapped_bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value; access goes through the owners' borrow rules.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference alone gives out only a raw pointer.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn create(len_bytes: usize, options: HostMemoryOptions) -> Result<Self> {
        const DOING: &str = "mapping host memory";
        if len_bytes == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, DOING));
        }
        let out_of_memory = || Error::new(ErrorKind::OutOfHostMemory { need_bytes: len_bytes as u64 }, DOING);
        let mapped_bytes = len_bytes.checked_next_multiple_of(page_bytes()).ok_or_else(out_of_memory)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
        let raw = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(out_of_memory().because(std::io::Error::last_os_error()));
        }
        let ptr = NonNull::new(raw.cast::<u8>()).ok_or_else(out_of_memory)?;
        let mapping = Self { ptr, len_bytes, mapped_bytes };
        mapping.prepare(options)?;
        Ok(mapping)
    }

    fn prepare(&self, options: HostMemoryOptions) -> Result<()> {
        if options.huge_pages {
            // A wish only: kernels without huge pages answer EINVAL, and other systems have no such advice.
            #[cfg(target_os = "linux")]
            // SAFETY: the range is this mapping, and the advice changes no byte.
            let _ =
                unsafe { libc::madvise(self.ptr.as_ptr().cast(), self.mapped_bytes, libc::MADV_HUGEPAGE) };
        }
        if let Some(node) = options.numa_node
            && let Err(error) = self.prefer(node)
        {
            tracing::debug!(node, %error, "host memory comes from any NUMA node");
        }
        if options.populate {
            // SAFETY: the mapping has not been given out yet, and each step is one thread's.
            self.populate(|ptr, len| unsafe { present::populate_or_touch(ptr, len) })?;
        }
        if options.lock {
            // SAFETY: the range is the mapping just made, owned by `self`.
            let answer = unsafe { libc::mlock(self.ptr.as_ptr().cast(), self.mapped_bytes) };
            if answer != 0 {
                let kind = ErrorKind::OutOfHostMemory { need_bytes: self.mapped_bytes as u64 };
                return Err(Error::new(kind, "locking host memory")
                    .with("remedy", "raise the memlock limit (ulimit -l)")
                    .because(std::io::Error::last_os_error()));
            }
        }
        Ok(())
    }

    /// Asks that pages not yet present come from a NUMA node.
    #[cfg(not(target_os = "linux"))]
    fn prefer(&self, _: u32) -> std::io::Result<()> {
        Err(std::io::Error::other("this system places memory by itself"))
    }

    /// Asks that pages not yet present come from a NUMA node.
    #[cfg(target_os = "linux")]
    fn prefer(&self, node: u32) -> std::io::Result<()> {
        // One bit a node, as many words as the kernel's largest configuration has nodes (1024).
        let mut nodes = [0_u64; 16];
        let word = usize::try_from(node / 64).ok().and_then(|word| nodes.get_mut(word));
        *word.ok_or_else(|| std::io::Error::other("no such node"))? |= 1 << (node % 64);
        // The kernel counts one bit more than it reads.
        let bits: libc::c_ulong = 1024 + 1;
        // SAFETY: the range is this mapping, and the mask is as long as is said; pages are not moved.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.ptr.as_ptr(),
                self.mapped_bytes,
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                bits,
                0,
            )
        };
        if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Faults every page in, by several threads.
    fn populate(&self, one: impl Fn(*mut u8, usize) -> std::io::Result<()> + Sync) -> Result<()> {
        Steps::of(self.ptr, self.mapped_bytes).each(one).map_err(|error| {
            let kind = ErrorKind::OutOfHostMemory { need_bytes: self.mapped_bytes as u64 };
            Error::new(kind, "faulting host memory in").because(error)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped in `create` and nothing borrows it any more: `self` is the last owner.
        let answer = unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.mapped_bytes) };
        if answer != 0 {
            tracing::error!(bytes = self.mapped_bytes, "unmapping host memory failed");
        }
    }
}

/// Host memory with one owner: page aligned, readable and writable as a slice, and something that copies
/// to the host can be written into. [`HostBuffer::share`] makes it a [`HostMemory`].
pub struct HostBuffer(Mapping);

impl HostBuffer {
    /// Maps `len_bytes` zeroed bytes (≥ 1).
    ///
    /// # Errors
    /// `ZeroSize`; `OutOfHostMemory` (also when locking is forbidden).
    pub fn allocate(len_bytes: usize, options: HostMemoryOptions) -> Result<Self> {
        Mapping::create(len_bytes, options).map(Self)
    }

    /// Gives up exclusive access, so that many can refer to the memory.
    #[must_use]
    pub fn share(self) -> HostMemory {
        HostMemory(Arc::new(self.0))
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is initialised (zeroed by the kernel), lives as long as `self`, and is
        // written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.ptr.as_ptr(), self.0.len_bytes) }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr.as_ptr(), self.0.len_bytes) }
    }
}

impl std::fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostBuffer").field("len_bytes", &self.0.len_bytes).finish()
    }
}

// SAFETY: a mapping stays at its address until dropped, and the value is its only owner.
unsafe impl HostSource for HostBuffer {
    fn as_ptr(&self) -> *const u8 {
        self.0.ptr.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }
}

// SAFETY: as above; the only owner is the only one who could read or write.
unsafe impl HostSink for HostBuffer {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.ptr.as_ptr()
    }
}

/// Host memory with many owners: page aligned and fixed, to be registered with devices and with the
/// kernel. Its bytes are reached by raw pointer only; who writes them answers for the order.
#[derive(Clone)]
pub struct HostMemory(Arc<Mapping>);

impl HostMemory {
    /// Maps `len_bytes` zeroed bytes (≥ 1).
    ///
    /// # Errors
    /// `ZeroSize`; `OutOfHostMemory` (also when locking is forbidden).
    pub fn allocate(len_bytes: usize, options: HostMemoryOptions) -> Result<Self> {
        HostBuffer::allocate(len_bytes, options).map(HostBuffer::share)
    }

    /// First byte: a multiple of the page size, the same until the last clone is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.ptr.as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// Faults every page in, by several threads, while others may already use the memory; what they wrote stays. For
    /// memory that was made without [`HostMemoryOptions::populate`]. Where the kernel cannot be asked to (before Linux
    /// 5.14, in some sandboxes), pages come as they are used.
    ///
    /// # Errors
    /// `OutOfHostMemory`.
    pub fn populate(&self) -> Result<()> {
        self.0.populate(|ptr, len| match present::populate(ptr, len) {
            // Somebody may be writing to it: it must not be touched.
            Err(error) if present::cannot_be_asked(&error) => Ok(()),
            outcome => outcome,
        })
    }

    /// Exclusive access again, if this is the last clone (a pin and a pending copy hold one each).
    ///
    /// # Errors
    /// Gives `self` back otherwise.
    pub fn unshare(self) -> Result<HostBuffer, Self> {
        Arc::try_unwrap(self.0).map(HostBuffer).map_err(Self)
    }
}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMemory").field("len_bytes", &self.len_bytes()).finish()
    }
}

// SAFETY: the mapping stays in place until the last clone is dropped; safe code cannot write while a clone
// lives, and unsafe code that writes by raw pointer owes the order.
unsafe impl HostSource for HostMemory {
    fn as_ptr(&self) -> *const u8 {
        self.0.ptr.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }
}

/// The page size in bytes.
pub(super) fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_writable() {
        let mut buffer = HostBuffer::allocate(10_000, HostMemoryOptions::default()).unwrap();
        assert_eq!(HostSource::as_ptr(&buffer).addr() % page_bytes(), 0);
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer[9_999] = 7;
        let shared = buffer.share();
        let clone = shared.clone();
        let shared = shared.unshare().unwrap_err();
        drop(clone);
        assert_eq!(shared.unshare().unwrap()[9_999], 7);
    }

    #[test]
    fn a_numa_node_is_a_wish() {
        let on_node = |node| HostMemoryOptions { numa_node: Some(node), ..Default::default() };
        let mapping = Mapping::create(4096, on_node(0)).unwrap();
        // Where the kernel knows nodes at all, it has the first one.
        if let Err(error) = mapping.prefer(0) {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
        }
        assert!(mapping.prefer(1023).is_err());
        assert!(mapping.prefer(u32::MAX).is_err());
        assert!(HostMemory::allocate(4096, on_node(1023)).is_ok());
    }

    #[test]
    fn locked_memory_is_within_the_limit_or_refused_with_a_remedy() {
        let options = HostMemoryOptions { lock: true, ..Default::default() };
        if let Err(error) = HostMemory::allocate(4096, options) {
            assert!(error.to_string().contains("ulimit -l"), "{error}");
        }
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        let options = HostMemoryOptions::default();
        assert_eq!(*HostMemory::allocate(0, options).unwrap_err().kind(), ErrorKind::ZeroSize);
        let too_much = HostMemory::allocate(usize::MAX - 1, options).unwrap_err();
        assert!(matches!(too_much.kind(), ErrorKind::OutOfHostMemory { .. }));
    }

    #[test]
    fn populating_keeps_what_was_written() {
        let options = HostMemoryOptions { populate: false, ..Default::default() };
        let mut buffer = HostBuffer::allocate(9 << 20, options).unwrap();
        buffer[5 << 20] = 9;
        let memory = buffer.share();
        memory.populate().unwrap();
        let buffer = memory.unshare().unwrap();
        assert_eq!((buffer[5 << 20], buffer[0]), (9, 0));
    }
}
