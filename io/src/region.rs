//! Host memory that reads land in.

use std::ptr::NonNull;

use crate::{Error, ErrorKind, Result};

/// Memory that a [`crate::Reader`] may fill.
///
/// Huge pages matter: a direct read into 4 KiB pages is cut into as many segments as the device takes at once, and on
/// a virtio disk came at half the rate, for four times the processor time, of one into huge pages.
///
/// # Safety
/// From the moment the value is given to a reader until it is dropped:
/// - `as_ptr` and `len_bytes` never change; the pointer is page aligned (4096) and `len_bytes` bytes from it are
///   mapped, readable and writable;
/// - nobody touches the bytes except through a [`crate::Chunk`], so that the kernel may write to those that no
///   chunk covers at any time;
/// - a forked child never reads there (reads in flight land in the parent's pages).
pub unsafe trait HostRegion: Send + Sync + 'static {
    /// First byte.
    fn as_ptr(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len_bytes(&self) -> usize;
}

/// An anonymous, pre-faulted mapping: the region for tests, for `bench read` and for whoever needs no pinning.
#[derive(Debug)]
pub struct AnonymousRegion {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping belongs to the value alone; the pointer is only handed out, never read through here.
unsafe impl Send for AnonymousRegion {}
// SAFETY: as above; `&self` gives no access to the bytes.
unsafe impl Sync for AnonymousRegion {}

impl AnonymousRegion {
    /// Maps at least `len_bytes` (rounded up to 4096), asks for huge pages and touches every page.
    ///
    /// # Errors
    /// `staging_too_small` for 0 bytes or when the system cannot give them.
    pub fn new(len_bytes: usize) -> Result<Self> {
        Self::on_node(len_bytes, None)
    }

    /// As [`AnonymousRegion::new`], with memory of this NUMA node where the kernel has it: a preference, no promise.
    ///
    /// # Errors
    /// As of [`AnonymousRegion::new`].
    pub fn on_node(len_bytes: usize, node: Option<u32>) -> Result<Self> {
        let len = len_bytes.checked_next_multiple_of(4096).and_then(std::num::NonZeroUsize::new);
        let len = len
            .ok_or_else(|| Error::new(ErrorKind::StagingTooSmall, format!("{len_bytes} bytes of staging")))?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            nix::sys::mman::mmap_anonymous(
                None,
                len,
                nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE,
                nix::sys::mman::MapFlags::MAP_PRIVATE,
            )
        };
        let start = start.map_err(|e| {
            Error::new(
                ErrorKind::StagingTooSmall,
                format!("mapping {len} bytes of staging memory: {}", e.desc()),
            )
        })?;
        let made = Self { start: start.cast(), len_bytes: len.get() };
        if let Some(Err(reason)) =
            node.map(|node| crate::numa::prefer_memory(made.start.as_ptr(), made.len_bytes, node))
        {
            tracing::warn!(reason, "staging memory may be far from its device");
        }
        made.prepare();
        Ok(made)
    }

    fn prepare(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the range is this value's own mapping. Advice that is refused changes nothing.
        let _ = unsafe {
            nix::sys::mman::madvise(
                self.start.cast(),
                self.len_bytes,
                nix::sys::mman::MmapAdvise::MADV_HUGEPAGE,
            )
        };
        // SAFETY: the whole mapping is writable, and nobody else has its address yet.
        unsafe { std::ptr::write_bytes(self.start.as_ptr(), 0, self.len_bytes) };
    }
}

impl Drop for AnonymousRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and whoever reads into it owns this value.
        let _ = unsafe { nix::sys::mman::munmap(self.start.cast(), self.len_bytes) };
    }
}

// SAFETY: one private mapping, page aligned, fixed until drop; no other handle to its bytes exists.
unsafe impl HostRegion for AnonymousRegion {
    fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}
