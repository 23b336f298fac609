//! Pinned memory: allocated by the driver and mapped, or imported where that is allowed.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use ash::vk;
use spoc_driver::backend::Verdict;
use spoc_driver::{Error, ErrorKind, HostBuffer, HostMemoryOptions, Result};

use super::device::Shared;
use super::memory::{Allocation, RawBuffer, types_for_host};
use super::{HOST_IMPORT_VARIABLE, Options, maps};

/// Pinned ranges by first address.
pub(super) type HostRanges = RwLock<BTreeMap<usize, HostRange>>;

/// A pinned range: its length, and where its first byte lies in which buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostRange {
    pub(super) len_bytes: usize,
    pub(super) buffer: vk::Buffer,
    pub(super) offset: u64,
}

const HANDLE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// Pinned memory, known to the device until it is dropped.
pub(super) struct HostMemory {
    ptr: *mut u8,
    allocation: Option<Allocation>,
    /// Somebody else's memory, which is unmapped right after this value is dropped.
    is_imported: bool,
    shared: Arc<Shared>,
}

// SAFETY: the pointer is handed to the driver, never followed here.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates whole pages, mapped for as long as the value lives.
    pub(super) fn allocate(shared: &Arc<Shared>, len_bytes: usize) -> Result<Self> {
        const DOING: &str = "allocating pinned memory with Vulkan";
        shared.core.check(DOING)?;
        shared.release_reached();
        let page = page_bytes();
        let need_bytes = len_bytes as u64;
        let too_large = || {
            let max = shared.core.physical.segment_limit.bytes;
            Error::new(ErrorKind::TooLarge { need: need_bytes, max }, DOING)
        };
        let len_bytes = len_bytes.checked_next_multiple_of(page).ok_or_else(too_large)?;
        let mut allocation = host_memory(shared, len_bytes as u64)?;
        let mut skip = allocation.mapped.align_offset(page);
        if skip > 0 {
            // The specification promises 64 bytes only. Rings are handed to the kernel, which wants pages.
            drop(allocation);
            allocation = host_memory(shared, (len_bytes + page) as u64)?;
            skip = allocation.mapped.align_offset(page);
        }
        let ptr = allocation.mapped.wrapping_add(skip);
        let range = HostRange { len_bytes, buffer: allocation.buffer, offset: skip as u64 };
        Ok(Self::enter(shared, ptr, range, allocation, false))
    }

    /// Imports memory of the process.
    ///
    /// # Safety
    /// The range stays mapped until the value is dropped.
    pub(super) unsafe fn import(shared: &Arc<Shared>, ptr: *mut u8, len_bytes: usize) -> Result<Self> {
        const DOING: &str = "registering host memory with Vulkan";
        let core = &shared.core;
        core.check(DOING)?;
        let Some(functions) = &core.host_import else {
            return Err(Error::unsupported(spoc_driver::BackendKind::Vulkan, "host_register"));
        };
        // Drivers accept misaligned, unmapped and read-only ranges: all of it is checked here.
        let align = core.physical.import_align_bytes.max(1);
        let misaligned =
            |value| Error::new(ErrorKind::Misaligned { value, align }, DOING).with("bytes", len_bytes);
        if !(ptr.addr() as u64).is_multiple_of(align) {
            return Err(misaligned(ptr.addr() as u64));
        }
        // The rest of the last page is mapped too; beyond it nothing is promised.
        let whole = len_bytes.checked_next_multiple_of(page_bytes()).unwrap_or(len_bytes);
        if !(whole as u64).is_multiple_of(align) {
            return Err(misaligned(len_bytes as u64));
        }
        maps::check_importable(ptr.addr(), whole)?;
        let mut answer = vk::MemoryHostPointerPropertiesEXT::default();
        let ask = functions.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the device is live; the range is mapped, readable and writable (checked just above).
        let asked = unsafe { ask(core.raw.handle(), HANDLE, ptr.cast(), &raw mut answer) };
        asked.result().map_err(|result| core.failed(result, DOING))?;
        let buffer = RawBuffer::create(core, whole as u64, Some(HANDLE))?;
        let allowed = answer.memory_type_bits & buffer.needs.memory_type_bits;
        let types = types_for_host(&core.physical.memory, allowed);
        let Some(&kind) = types.first() else {
            return Err(Error::new(ErrorKind::Backend, DOING).with("because", "no kind of memory takes it"));
        };
        let mut import =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HANDLE).host_pointer(ptr.cast());
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(whole as u64)
            .memory_type_index(kind)
            .push_next(&mut import);
        let allocation = buffer.back_with_import(info)?;
        let range = HostRange { len_bytes: whole, buffer: allocation.buffer, offset: 0 };
        Ok(Self::enter(shared, ptr, range, allocation, true))
    }

    fn enter(
        shared: &Arc<Shared>,
        ptr: *mut u8,
        range: HostRange,
        allocation: Allocation,
        is_imported: bool,
    ) -> Self {
        let mut ranges = shared.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.insert(ptr.addr(), range);
        drop(ranges);
        Self { ptr, allocation: Some(allocation), is_imported, shared: Arc::clone(shared) }
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.shared.ranges.write().unwrap_or_else(PoisonError::into_inner).remove(&self.ptr.addr());
        let Some(allocation) = self.allocation.take() else { return };
        self.shared.release(allocation);
        if self.is_imported
            && let Err(error) = self.shared.release_all()
        {
            tracing::error!(%error, "registered memory could not be waited for before it is unregistered");
        }
    }
}

fn host_memory(shared: &Arc<Shared>, len_bytes: u64) -> Result<Allocation> {
    Allocation::on_host(&shared.core, len_bytes).map_err(|error| match error.kind() {
        ErrorKind::OutOfDeviceMemory { .. } => {
            let kind = ErrorKind::OutOfHostMemory { need_bytes: len_bytes };
            Error::new(kind, "allocating pinned memory with Vulkan").because(error)
        }
        _ => error,
    })
}

/// Whether pinned memory can be had, found out by having some.
pub(super) fn pinned_verdict(shared: &Arc<Shared>) -> Verdict {
    match HostMemory::allocate(shared, 1) {
        Ok(_) => Verdict::Available,
        Err(error) => Verdict::Unavailable(error.to_string().into()),
    }
}

/// Whether host memory can be registered, found out by doing it where it is allowed.
pub(super) fn register_verdict(shared: &Arc<Shared>, options: Options) -> Verdict {
    let physical = &shared.core.physical;
    if let Some(refusal) = register_refusal(options.host_import, physical.is_amd) {
        return refusal;
    }
    if !physical.extensions.host_import {
        return Verdict::unavailable("the driver has no VK_EXT_external_memory_host");
    }
    match try_register(shared) {
        Ok(()) => Verdict::Available,
        Err(error) => Verdict::Unavailable(error.to_string().into()),
    }
}

/// Importing pageable memory into amdgpu was followed by a kernel oops (Linux 7.1.2): refused there, even
/// when asked for, and off everywhere else until asked for.
fn register_refusal(is_allowed: bool, is_amd: bool) -> Option<Verdict> {
    if is_amd {
        return Some(Verdict::unavailable(
            "refused on AMD's drivers: importing host memory was followed by a kernel oops",
        ));
    }
    if !is_allowed {
        let reason = format!("off unless {HOST_IMPORT_VARIABLE}=1; allocate pinned memory instead");
        return Some(Verdict::Unavailable(reason.into()));
    }
    None
}

fn try_register(shared: &Arc<Shared>) -> Result<()> {
    let align = usize::try_from(shared.core.physical.import_align_bytes).unwrap_or(usize::MAX);
    let memory = HostBuffer::allocate(align.max(page_bytes()), HostMemoryOptions::default())?;
    // SAFETY: the imported memory is dropped at once, before the buffer.
    unsafe { HostMemory::import(shared, memory.as_ptr().cast_mut(), memory.len()) }.map(drop)
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
    fn registering_is_opt_in_and_never_on_amd() {
        let reason = |allowed, amd| register_refusal(allowed, amd).map(|verdict| verdict.to_string());
        assert!(reason(false, false).unwrap().contains("SPOC_VULKAN_HOST_IMPORT=1"));
        assert!(reason(true, true).unwrap().contains("AMD"));
        assert!(reason(false, true).unwrap().contains("AMD"));
        assert_eq!(reason(true, false), None);
    }
}
