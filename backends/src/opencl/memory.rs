//! Device memory, and pinned host memory.

use std::any::Any;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opencl_sys::{
    CL_MAP_READ, CL_MAP_WRITE_INVALIDATE_REGION, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE,
    CL_MEM_USE_HOST_PTR, CL_SUCCESS, cl_int, cl_mem_flags,
};
use spoc_driver::backend::HostMap;
use spoc_driver::{Error, ErrorKind, MemoryInfo, Result};

use super::error::{of_allocation, of_pinning};
use super::handle::{Context, Mem, Queue};
use crate::capacity::Capacity;

/// Pinned memory begins at a multiple of this, as reads past the page cache need it. Runtimes promise less.
const PINNED_ALIGN_BYTES: usize = 4096;

/// Device memory: a buffer, or the part of one that was lent.
pub(super) struct Buffer {
    pub(super) mem: Mem,
    /// Where it begins in `mem`.
    pub(super) base: usize,
    /// Address and length of the host memory that it lies over.
    host: Option<(usize, usize)>,
    _charge: Option<Charge>,
    // Last: what was lent goes after our reference to it.
    _keep_alive: Option<Box<dyn Any + Send + Sync>>,
}

/// What was allocated on a device through this adapter. The API does not say what is free.
pub(super) struct Account {
    pub(super) total_bytes: u64,
    pub(super) allocation_bytes_max: u64,
    /// Device memory is the machine's memory.
    pub(super) is_host_memory: bool,
    in_use_bytes: AtomicU64,
}

struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    pub(super) fn new(total_bytes: u64, allocation_bytes_max: u64, is_host_memory: bool) -> Arc<Self> {
        let in_use_bytes = AtomicU64::new(0);
        Arc::new(Self { total_bytes, allocation_bytes_max, is_host_memory, in_use_bytes })
    }

    pub(super) fn memory(&self) -> MemoryInfo {
        self.left(self.in_use_bytes.load(Ordering::Relaxed))
    }

    fn left(&self, in_use_bytes: u64) -> MemoryInfo {
        let left = self.total_bytes.saturating_sub(in_use_bytes);
        // The runtime's total is a fraction of the machine's memory, whatever else is in it.
        let free_bytes = if self.is_host_memory { left.min(Capacity::now().free_bytes) } else { left };
        MemoryInfo { free_bytes, total_bytes: self.total_bytes }
    }

    /// Charges an allocation. Where device memory is the machine's, more than there is would not fail: it
    /// would get the process killed when it is touched.
    fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        // Charged first, so that two threads cannot both be granted the last bytes.
        let charge = Charge { account: Arc::clone(self), bytes };
        let have_bytes = self.left(self.in_use_bytes.fetch_add(bytes, Ordering::Relaxed)).free_bytes;
        if bytes > have_bytes {
            let kind = ErrorKind::OutOfDeviceMemory { need_bytes: bytes, have_bytes };
            return Err(Error::new(kind, "allocating OpenCL device memory"));
        }
        Ok(charge)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.in_use_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Buffer {
    /// Allocates and touches: creating a buffer takes no memory on some runtimes, and lack of it would show
    /// as the failure of some later copy.
    pub(super) fn allocate(
        context: &Context,
        touching: &Queue,
        account: &Arc<Account>,
        len: usize,
    ) -> Result<Self> {
        let bytes = len as u64;
        let charge = account.charge(bytes)?;
        let have = account.memory().free_bytes;
        // Whole words: kernels read and change the last one together with the bytes behind the end.
        let mem = create(context, CL_MEM_READ_WRITE, len.next_multiple_of(4))
            .map_err(|code| of_allocation(code, bytes, have, account.allocation_bytes_max))?;
        // SAFETY: the range is the whole buffer.
        let touched = unsafe { touching.fill(&mem, 0, len, 0) };
        let touched = touched.and_then(|()| touching.drain());
        touched.map_err(|error| {
            let kind = ErrorKind::OutOfDeviceMemory { need_bytes: bytes, have_bytes: have };
            Error::new(kind, "touching OpenCL device memory").because(error)
        })?;
        Ok(Self { mem, base: 0, host: None, _charge: Some(charge), _keep_alive: None })
    }

    /// A buffer over host memory, in place. Its kernels see what the memory holds now.
    ///
    /// # Safety
    /// `len` bytes at `ptr` stay mapped until the buffer is dropped.
    pub(super) unsafe fn over_host(
        context: &Context,
        account: &Account,
        ptr: *mut u8,
        len: usize,
    ) -> Result<Self> {
        let flags = CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR;
        let (bytes, have) = (len as u64, account.memory().free_bytes);
        // SAFETY: the caller's word.
        let mem = unsafe { create_over(context, flags, len, ptr) }
            .map_err(|code| of_allocation(code, bytes, have, account.allocation_bytes_max))?;
        Ok(Self { mem, base: 0, host: Some((ptr.addr(), len)), _charge: None, _keep_alive: None })
    }

    /// Hands a buffer over host memory to the host or back. Nothing enqueued uses it.
    pub(super) fn hand_over(&self, service: &Queue, map: HostMap) -> Result<()> {
        const DOING: &str = "mapping host memory through OpenCL";
        let (address, len) = self.host.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, DOING))?;
        // Invalidating, or a runtime with a copy of its own would first overwrite what the host has written.
        let flags = match map {
            HostMap::Read => CL_MAP_READ,
            HostMap::Write => CL_MAP_WRITE_INVALIDATE_REGION,
        };
        let mapped = service.map_for(&self.mem, len, flags)?;
        service.unmap(&self.mem, mapped)?;
        service.drain()?;
        if mapped.addr() != address {
            return Err(Error::new(ErrorKind::Backend, DOING).with("because", "the runtime made a copy"));
        }
        Ok(())
    }

    /// Memory that another library allocated, and answers for.
    pub(super) fn lent(mem: Mem, base: usize, keep_alive: Option<Box<dyn Any + Send + Sync>>) -> Self {
        Self { mem, base, host: None, _charge: None, _keep_alive: keep_alive }
    }

    /// A place in the buffer behind it.
    pub(super) fn at(&self, offset: u64) -> (&Mem, usize) {
        // The driver checked that the offset lies inside a buffer, whose length is a `usize`.
        (&self.mem, self.base + usize::try_from(offset).unwrap_or(usize::MAX - self.base))
    }
}

/// Pinned host memory: a buffer that the runtime placed for DMA, mapped for as long as it lives.
pub(super) struct Pinned {
    mem: Mem,
    mapped: *mut u8,
    first: *mut u8,
    mapping: Arc<Queue>,
}

// SAFETY: the value owns its mapping; nothing is bound to a thread.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn allocate(
        context: &Context,
        mapping: &Arc<Queue>,
        account: &Account,
        len: usize,
    ) -> Result<Self> {
        const DOING: &str = "allocating pinned memory through OpenCL";
        let bytes = len as u64;
        // The runtime promises its own alignment only, which may be less than a page.
        let room = len.saturating_add(PINNED_ALIGN_BYTES - 1);
        if Capacity::now().free_bytes < bytes {
            return Err(Error::new(ErrorKind::OutOfHostMemory { need_bytes: bytes }, DOING));
        }
        let mem = create(context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, room)
            .map_err(|code| of_pinning(code, bytes, account.allocation_bytes_max))?;
        let mapped = mapping.map(&mem, room)?;
        let first = mapped.wrapping_add(mapped.align_offset(PINNED_ALIGN_BYTES));
        Ok(Self { mem, mapped, first, mapping: Arc::clone(mapping) })
    }

    /// Its first byte.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.first
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The runtime keeps the buffer until the unmapping has run.
        if let Err(error) = self.mapping.unmap(&self.mem, self.mapped) {
            tracing::error!(%error, "pinned memory was not unmapped");
        }
    }
}

fn create(context: &Context, flags: cl_mem_flags, len: usize) -> Result<Mem, cl_int> {
    // SAFETY: without host memory of ours a null pointer is what belongs there.
    unsafe { create_over(context, flags, len, ptr::null_mut()) }
}

/// # Safety
/// `host` is null, or `len` bytes there stay mapped for as long as the buffer lives and `flags` say so.
unsafe fn create_over(
    context: &Context,
    flags: cl_mem_flags,
    len: usize,
    host: *mut u8,
) -> Result<Mem, cl_int> {
    let mut code = CL_SUCCESS;
    // SAFETY: `context` is alive; the caller's word for `host`.
    let raw = unsafe {
        (context.api().library.create_buffer)(context.raw(), flags, len, host.cast(), &raw mut code)
    };
    if code != CL_SUCCESS {
        return Err(code);
    }
    // SAFETY: just created.
    Ok(unsafe { Mem::owned(context.api(), raw) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_taken_back() {
        let account = Account::new(100, 100, false);
        let charge = account.charge(60).unwrap();
        assert_eq!(account.memory().free_bytes, 40);
        let refused = account.charge(41).err().unwrap();
        assert_eq!(*refused.kind(), ErrorKind::OutOfDeviceMemory { need_bytes: 41, have_bytes: 40 });
        assert_eq!(account.memory().free_bytes, 40);
        drop(charge);
        assert_eq!(account.memory(), MemoryInfo { free_bytes: 100, total_bytes: 100 });
    }
}
