//! Device memory by virtual memory management: addresses are reserved, physical memory is mapped behind them.
//!
//! Nothing here waits for the device, unlike freeing a plain allocation; and what was made to be lent can be. A handle of
//! physical memory is mapped as a whole or not at all, so it is what grows and shrinks.

use std::sync::Arc;

use spoc_driver::Result;

use super::context::Context;
use super::device::Shared;
use super::table::{Access, DevicePtr, Location, MemoryHandle, MemoryProperties, Ordinal};
use crate::size::host_len;

/// The one kind of descriptor that is lent: the system's.
pub(crate) const DESCRIPTOR: u32 = 1;
/// Memory that stays where it is, on a device, for reading and writing.
const PINNED: u32 = 1;
const ON_DEVICE: u32 = 1;
const READ_WRITE: u32 = 3;
const GRANULARITY_MINIMUM: u32 = 0;

/// Physical memory: ours, or another process's.
pub(crate) struct Physical {
    pub(crate) raw: MemoryHandle,
    pub(crate) len_bytes: u64,
    context: Arc<Context>,
}

fn location(device: Ordinal) -> Location {
    Location { kind: ON_DEVICE, id: device }
}

fn properties(device: Ordinal, can_be_lent: bool) -> MemoryProperties {
    MemoryProperties {
        kind: PINNED,
        handle_types: if can_be_lent { DESCRIPTOR } else { 0 },
        location: location(device),
        platform: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

/// What sizes of physical memory are multiples of.
pub(crate) fn granule(context: &Context) -> Result<u64> {
    let mut bytes = 0_usize;
    let properties = properties(context.device, false);
    // SAFETY: the places are valid.
    let code = unsafe {
        (context.api.library.physical_granularity)(&raw mut bytes, &raw const properties, GRANULARITY_MINIMUM)
    };
    context.api.check(code, "asking for the granularity of memory")?;
    Ok((bytes as u64).max(1))
}

impl Physical {
    /// New memory; `len_bytes` is a multiple of the granule.
    pub(crate) fn create(shared: &Shared, len_bytes: u64, can_be_lent: bool) -> Result<Self> {
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
    pub(crate) unsafe fn owned(context: &Arc<Context>, raw: MemoryHandle, len_bytes: u64) -> Self {
        Self { raw, len_bytes, context: Arc::clone(context) }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.context.end("releasing device memory", |library| {
            // SAFETY: owned by this value. Memory that is mapped stays until it is unmapped.
            unsafe { (library.physical_release)(self.raw) }
        });
    }
}

/// A range of addresses that is nobody else's.
pub(crate) struct Addresses {
    pub(crate) first: DevicePtr,
    pub(crate) len_bytes: u64,
    context: Arc<Context>,
}

impl Addresses {
    pub(crate) fn reserve(context: &Arc<Context>, len_bytes: u64) -> Result<Self> {
        const DOING: &str = "reserving addresses";
        let len = host_len(len_bytes)?;
        let mut first = 0;
        let _here = context.enter()?;
        // SAFETY: the place is valid; no address is asked for.
        let code = unsafe { (context.api.library.address_reserve)(&raw mut first, len, 0, 0, 0) };
        context.api.check(code, DOING)?;
        Ok(Self { first, len_bytes, context: Arc::clone(context) })
    }

    /// Maps the whole of some memory at an offset, for reading and writing.
    pub(crate) fn map(&self, offset: u64, memory: &Physical) -> Result<()> {
        const DOING: &str = "mapping device memory";
        let _here = self.context.enter()?;
        let library = &self.context.api.library;
        let (at, len) = (self.first + offset, usize::try_from(memory.len_bytes).unwrap_or(usize::MAX));
        // SAFETY: the caller gives a free part of the reserved addresses.
        let code = unsafe { (library.physical_map)(at, len, 0, memory.raw, 0) };
        self.context.api.check(code, DOING)?;
        let access = Access { location: location(self.context.device), flags: READ_WRITE };
        // SAFETY: just mapped.
        let code = unsafe { (library.physical_access)(at, len, &raw const access, 1) };
        self.context.api.check(code, DOING).inspect_err(|_| self.unmap(offset, memory.len_bytes))
    }

    /// Unmaps what [`Addresses::map`] mapped. Nothing enqueued uses it: the device would fault.
    pub(crate) fn unmap(&self, offset: u64, len_bytes: u64) {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        self.context.end("unmapping device memory", |library| {
            // SAFETY: mapped before, as the caller says.
            unsafe { (library.physical_unmap)(self.first + offset, len) }
        });
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let len = usize::try_from(self.len_bytes).unwrap_or(usize::MAX);
        self.context.end("giving addresses back", |library| {
            // SAFETY: reserved by this value; nothing is mapped there any more.
            unsafe { (library.address_free)(self.first, len) }
        });
    }
}

/// Memory at addresses of its own, or at a part of reserved ones, until it is dropped.
pub(crate) struct Mapped {
    addresses: Arc<Addresses>,
    offset: u64,
    pub(crate) memory: Physical,
    /// It was made to be lent.
    pub(crate) can_be_lent: bool,
}

impl Mapped {
    pub(crate) fn new(memory: Physical, can_be_lent: bool) -> Result<Self> {
        let addresses = Arc::new(Addresses::reserve(&memory.context, memory.len_bytes)?);
        Self::at(&addresses, 0, memory, can_be_lent)
    }

    /// At a part of the addresses that has no memory.
    pub(crate) fn at(
        addresses: &Arc<Addresses>,
        offset: u64,
        memory: Physical,
        can_be_lent: bool,
    ) -> Result<Self> {
        addresses.map(offset, &memory)?;
        Ok(Self { addresses: Arc::clone(addresses), offset, memory, can_be_lent })
    }

    pub(crate) fn first(&self) -> DevicePtr {
        self.addresses.first + self.offset
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.addresses.unmap(self.offset, self.memory.len_bytes);
    }
}
