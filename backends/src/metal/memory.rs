//! Device memory: shared storage that the processor reaches, charged until it is dropped.

use std::sync::Arc;

use spoc_driver::{Error, ErrorKind, HostBuffer, HostMemory, HostMemoryOptions, Result};

use super::api::Api;
use super::device::Shared;
use super::pending::MemoryId;
use crate::size::host_len;

/// Device memory.
pub(super) struct Buffer<A: Api> {
    pub(super) memory: A::Memory,
    pub(super) id: MemoryId,
    ptr: *mut u8,
    shared: Arc<Shared<A>>,
}

// SAFETY: the pointer names memory that the value owns; it is followed by copies alone, which hold their claims.
unsafe impl<A: Api> Send for Buffer<A> {}
// SAFETY: as above.
unsafe impl<A: Api> Sync for Buffer<A> {}

impl<A: Api> Buffer<A> {
    /// Allocates whole words: kernels change the last one together with the bytes behind the end.
    pub(super) fn allocate(shared: &Arc<Shared<A>>, len_bytes: u64) -> Result<Self> {
        const DOING: &str = "allocating Metal memory";
        let bytes = len_bytes.next_multiple_of(4);
        let have_bytes = shared.memory().free_bytes;
        let kind = ErrorKind::OutOfDeviceMemory { need_bytes: bytes, have_bytes };
        if bytes > have_bytes {
            return Err(Error::new(kind, DOING).with("limit", "recommendedMaxWorkingSetSize"));
        }
        let memory = shared.api.allocate(&shared.device, host_len(bytes)?);
        let memory = memory.ok_or_else(|| Error::new(kind, DOING))?;
        let ptr = shared.api.contents(&memory);
        Ok(Self { memory, id: shared.next_id(), ptr, shared: Arc::clone(shared) })
    }

    /// Where an offset is for the processor.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        // The driver checked that the offset lies inside the memory, so it is addressable.
        self.ptr.wrapping_add(usize::try_from(offset).unwrap_or(usize::MAX))
    }
}

impl<A: Api> Drop for Buffer<A> {
    fn drop(&mut self) {
        self.shared.pending.forget(self.id);
    }
}

/// Pinned memory: ordinary memory serves, because the processor copies.
pub(super) struct Pinned {
    pub(super) ptr: *mut u8,
    _own: Option<HostMemory>,
}

// SAFETY: the pointer is only handed back to the driver, never followed here.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn allocate(len_bytes: usize) -> Result<Self> {
        let memory = HostBuffer::allocate(len_bytes, HostMemoryOptions::default())?.share();
        Ok(Self { ptr: memory.as_ptr(), _own: Some(memory) })
    }

    pub(super) fn of_others(ptr: *mut u8) -> Self {
        Self { ptr, _own: None }
    }
}
