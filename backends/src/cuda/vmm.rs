//! Device memory by virtual memory management: addresses are reserved, physical memory is mapped behind them.
//!
//! Nothing here waits for the device, unlike `cuMemFree`; and what was made to be lent can be. A handle of
//! physical memory is mapped as a whole or not at all, so it is what grows and shrinks.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use spoc_driver::Result;

use super::context::Context;
use super::device::Shared;
use crate::size::host_len;

/// The one kind of descriptor that is lent.
pub(super) const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Physical memory: ours, or another process's.
pub(super) struct Physical {
    pub(super) raw: CUmemGenericAllocationHandle,
    pub(super) len_bytes: u64,
    context: Arc<Context>,
}

fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: CUdevice, can_be_lent: bool) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: if can_be_lent {
            DESCRIPTOR
        } else {
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
        },
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// What sizes of physical memory are multiples of.
pub(super) fn granule(context: &Context) -> Result<u64> {
    let mut bytes = 0_usize;
    let properties = properties(context.device, false);
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the places are valid.
    let code =
        unsafe { (context.api.library.physical_granularity)(&raw mut bytes, &raw const properties, least) };
    context.api.check(code, "asking for CUDA's granularity of memory")?;
    Ok((bytes as u64).max(1))
}

impl Physical {
    /// New memory; `len_bytes` is a multiple of the granule.
    pub(super) fn create(shared: &Shared, len_bytes: u64, can_be_lent: bool) -> Result<Self> {
        let context = &shared.context;
        let properties = properties(context.device, can_be_lent);
        let raw = shared.take(len_bytes, |library, len| {
            let mut raw = 0;
            // SAFETY: the places are valid.
            let code = unsafe { (library.physical_create)(&raw mut raw, len, &raw const properties, 0) };
            (code, raw)
        })?;
        Ok(Self { raw, len_bytes, context: Arc::clone(context) })
    }

    /// Takes over a handle.
    ///
    /// # Safety
    /// It is live and nobody else's, of memory of `len_bytes`.
    pub(super) unsafe fn owned(
        context: &Arc<Context>,
        raw: CUmemGenericAllocationHandle,
        len_bytes: u64,
    ) -> Self {
        Self { raw, len_bytes, context: Arc::clone(context) }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.context.end("releasing CUDA device memory", |library| {
            // SAFETY: owned by this value. Memory that is mapped stays until it is unmapped.
            unsafe { (library.physical_release)(self.raw) }
        });
    }
}

/// A range of addresses that is nobody else's.
pub(super) struct Addresses {
    pub(super) first: CUdeviceptr,
    pub(super) len_bytes: u64,
    context: Arc<Context>,
}

impl Addresses {
    pub(super) fn reserve(context: &Arc<Context>, len_bytes: u64) -> Result<Self> {
        const DOING: &str = "reserving CUDA addresses";
        let len = host_len(len_bytes)?;
        let mut first = 0;
        let _here = context.enter()?;
        // SAFETY: the place is valid; no address is asked for.
        let code = unsafe { (context.api.library.address_reserve)(&raw mut first, len, 0, 0, 0) };
        context.api.check(code, DOING)?;
        Ok(Self { first, len_bytes, context: Arc::clone(context) })
    }

    /// Maps the whole of some memory at an offset, for reading and writing.
    pub(super) fn map(&self, offset: u64, memory: &Physical) -> Result<()> {
        const DOING: &str = "mapping CUDA device memory";
        let _here = self.context.enter()?;
        let library = &self.context.api.library;
        let (at, len) = (self.first + offset, usize::try_from(memory.len_bytes).unwrap_or(usize::MAX));
        // SAFETY: the caller gives a free part of the reserved addresses.
        let code = unsafe { (library.physical_map)(at, len, 0, memory.raw, 0) };
        self.context.api.check(code, DOING)?;
        let access = CUmemAccessDesc {
            location: location(self.context.device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: just mapped.
        let code = unsafe { (library.physical_access)(at, len, &raw const access, 1) };
        self.context.api.check(code, DOING).inspect_err(|_| self.unmap(offset, memory.len_bytes))
    }

    /// Unmaps what [`Addresses::map`] mapped. Nothing enqueued uses it: the device would fault.
    pub(super) fn unmap(&self, offset: u64, len_bytes: u64) {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        self.context.end("unmapping CUDA device memory", |library| {
            // SAFETY: mapped before, as the caller says.
            unsafe { (library.physical_unmap)(self.first + offset, len) }
        });
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let len = usize::try_from(self.len_bytes).unwrap_or(usize::MAX);
        self.context.end("giving CUDA addresses back", |library| {
            // SAFETY: reserved by this value; nothing is mapped there any more.
            unsafe { (library.address_free)(self.first, len) }
        });
    }
}

/// Memory at addresses of its own, or at a part of reserved ones, until it is dropped.
pub(super) struct Mapped {
    addresses: Arc<Addresses>,
    offset: u64,
    pub(super) memory: Physical,
    /// It was made to be lent.
    pub(super) can_be_lent: bool,
}

impl Mapped {
    pub(super) fn new(memory: Physical, can_be_lent: bool) -> Result<Self> {
        let addresses = Arc::new(Addresses::reserve(&memory.context, memory.len_bytes)?);
        Self::at(&addresses, 0, memory, can_be_lent)
    }

    /// At a part of the addresses that has no memory.
    pub(super) fn at(
        addresses: &Arc<Addresses>,
        offset: u64,
        memory: Physical,
        can_be_lent: bool,
    ) -> Result<Self> {
        addresses.map(offset, &memory)?;
        Ok(Self { addresses: Arc::clone(addresses), offset, memory, can_be_lent })
    }

    pub(super) fn first(&self) -> CUdeviceptr {
        self.addresses.first + self.offset
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.addresses.unmap(self.offset, self.memory.len_bytes);
    }
}
