//! Pinned memory: registered, or allocated by the device's driver.

use std::ptr::NonNull;
use std::sync::Arc;

use super::registry::PinRange;
use super::{HostMemory, HostSink, HostSource, Registry};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::util::host_len;

/// Host memory registered with a device. Dropping it while copies are pending is fine: the ledger
/// unregisters the range after the last of them.
pub struct Pin {
    range: Option<Arc<PinRange>>,
}

/// Host memory allocated by the device's driver, with one owner.
pub struct Pinned {
    range: Option<Arc<PinRange>>,
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the bytes belong to this value alone; the handle inside `range` is Send.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Pinned {}

fn release(range: &mut Option<Arc<PinRange>>) -> Result<()> {
    let Some(held) = range else { return Ok(()) };
    // What has run but was not retired yet must not refuse the release.
    held.core().share().collect();
    if !held.core().registry.end(held) {
        return Err(
            Error::new(ErrorKind::InFlight, "releasing pinned memory").with("bytes", held.len_bytes())
        );
    }
    *range = None;
    Ok(())
}

impl Pin {
    /// Unregisters the range. Releasing twice is fine.
    ///
    /// # Errors
    /// `InFlight` while a copy that uses the range is pending; try again after waiting for it.
    pub fn release(&mut self) -> Result<()> {
        release(&mut self.range)
    }

    /// Whether it has not been released.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.range.is_some()
    }
}

impl Pinned {
    /// The bytes.
    ///
    /// # Errors
    /// `Released`.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.check_live()?;
        // SAFETY: the range is live (checked just above), initialised at allocation, and written only
        // through `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) })
    }

    /// The bytes, to write.
    ///
    /// # Errors
    /// `Released`.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.check_live()?;
        // SAFETY: as above, and `&mut self` is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) })
    }

    /// Length in bytes; 0 once released.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        if self.is_live() { self.len_bytes } else { 0 }
    }

    /// Frees the memory. Releasing twice is fine.
    ///
    /// # Errors
    /// `InFlight` while a copy that uses the memory is pending.
    pub fn release(&mut self) -> Result<()> {
        release(&mut self.range)
    }

    /// Whether it has not been released.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.range.is_some()
    }

    /// What keeps the memory, and where it is.
    pub(super) fn into_parts(self) -> Result<(Arc<PinRange>, NonNull<u8>, usize)> {
        self.check_live()?;
        let Self { range, ptr, len_bytes } = self;
        let range = range.ok_or_else(|| Error::new(ErrorKind::Released, "using pinned memory"))?;
        Ok((range, ptr, len_bytes))
    }

    fn check_live(&self) -> Result<()> {
        match self.range {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::Released, "reading pinned memory")),
        }
    }
}

// SAFETY: the memory stays where the driver put it until the range is dropped, which this value owns; a
// released one answers with a length of zero.
unsafe impl HostSource for Pinned {
    fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        Self::len_bytes(self)
    }
}

// SAFETY: as above; the value has one owner.
unsafe impl HostSink for Pinned {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Device {
    /// Registers host memory with the device, so that copies from it neither block nor bounce. Where
    /// ordinary memory serves, as on native, it costs nothing.
    ///
    /// # Errors
    /// `Unsupported` (see `host_register` in the capabilities); `Overlap` with a registered range; what the
    /// backend answers.
    pub fn pin(&self, memory: &HostMemory) -> Result<Pin> {
        let core = self.core();
        core.require("host_register", &core.capabilities.host_register)?;
        let range = Registry::register(core, memory.clone(), || {
            // SAFETY: the range holds a clone of the memory for longer than the backend's handle.
            unsafe { core.backend.register_host(&core.handle, memory.as_ptr(), memory.len_bytes()) }
        })?;
        Ok(Pin { range: Some(range) })
    }

    /// Allocates `len_bytes` zeroed bytes (≥ 1) of pinned memory.
    ///
    /// # Errors
    /// `Unsupported` (see `pinned_alloc` in the capabilities); `ZeroSize`; `OutOfHostMemory`.
    pub fn alloc_pinned(&self, len_bytes: u64) -> Result<Pinned> {
        const DOING: &str = "allocating pinned memory";
        let core = self.core();
        core.require("pinned_alloc", &core.capabilities.pinned_alloc)?;
        if len_bytes == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, DOING));
        }
        let len_bytes = host_len(len_bytes, DOING)?;
        let handle = core.backend.alloc_pinned(&core.handle, len_bytes)?;
        let raw = core.backend.pinned_pointer(&core.handle, &handle)?;
        let ptr = NonNull::new(raw).ok_or_else(|| Error::new(ErrorKind::Backend, DOING))?;
        // SAFETY: the backend has just allocated these bytes and nobody else knows them yet. Zeroing makes
        // them initialised, which the slices promise.
        unsafe { std::ptr::write_bytes(raw, 0, len_bytes) };
        let range = Registry::adopt(core, raw.addr(), len_bytes, handle)?;
        Ok(Pinned { range: Some(range), ptr, len_bytes })
    }

    /// Whether pinned memory can be had, found out by allocating one byte and freeing it.
    ///
    /// # Errors
    /// Anything but `Unsupported`, which is the answer `false`.
    pub fn pinned_available(&self) -> Result<bool> {
        match self.alloc_pinned(1) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let range = self.range.as_ref().map(|range| (range.start(), range.len_bytes()));
        f.debug_struct("Pin").field("range", &range).finish()
    }
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("len_bytes", &self.len_bytes()).finish()
    }
}
