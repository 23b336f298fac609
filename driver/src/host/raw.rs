//! Registrations by address, for callers that own their memory by other means: the C interface, frameworks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Registry;
use super::registry::PinRange;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::util::lock;

/// The registrations of a device that no handle owns, by first address.
#[derive(Default)]
pub(crate) struct RawPins(Mutex<BTreeMap<usize, Arc<PinRange>>>);

impl Device {
    /// Registers host memory by address.
    ///
    /// # Safety
    /// The `len_bytes` bytes (≥ 1) at `ptr` stay mapped until [`Device::unregister_raw`] has succeeded, or the
    /// last handle of this device is gone.
    ///
    /// # Errors
    /// `Unsupported` (see `host_register` in the capabilities); `ZeroSize`; `Overlap` with a registered range;
    /// what the backend answers.
    pub unsafe fn register_raw(&self, ptr: *mut u8, len_bytes: usize) -> Result<()> {
        let core = self.core();
        core.require("host_register", &core.capabilities.host_register)?;
        if len_bytes == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, "registering host memory"));
        }
        let range = Registry::register_at(core, ptr.addr(), len_bytes, None, || {
            // SAFETY: the caller keeps the memory mapped until it is unregistered.
            unsafe { core.backend.register_host(&core.handle, ptr, len_bytes) }
        })?;
        lock(&self.raw_pins().0).insert(ptr.addr(), range);
        Ok(())
    }

    /// Ends a registration by address, of exactly the range that was registered.
    ///
    /// # Errors
    /// `InFlight` if a copy still uses any byte of the range; `HandleOwned` if the range overlaps one that a
    /// handle owns; `InvalidArgument` if it is not a registered range.
    pub fn unregister_raw(&self, address: usize, len_bytes: usize) -> Result<()> {
        const DOING: &str = "unregistering host memory";
        self.collect();
        let known = self.core().registry.overlapping(address, len_bytes);
        let Some(known) = known else {
            return Err(Error::new(ErrorKind::InvalidArgument, DOING).with("range", "not registered"));
        };
        if known.is_in_flight() {
            return Err(Error::new(ErrorKind::InFlight, DOING).with("bytes", known.len_bytes()));
        }
        let mut raw = lock(&self.raw_pins().0);
        let is_raw = raw.get(&known.start()).is_some_and(|range| Arc::ptr_eq(range, &known));
        if !is_raw {
            return Err(Error::new(ErrorKind::HandleOwned, DOING).with("bytes", known.len_bytes()));
        }
        if (known.start(), known.len_bytes()) != (address, len_bytes) {
            return Err(Error::new(ErrorKind::InvalidArgument, DOING)
                .with("range", "only a part of what was registered")
                .with("registered_bytes", known.len_bytes()));
        }
        if !self.core().registry.end(&known) {
            return Err(Error::new(ErrorKind::InFlight, DOING).with("bytes", known.len_bytes()));
        }
        let gone = raw.remove(&address);
        drop(raw);
        drop((gone, known));
        Ok(())
    }
}
