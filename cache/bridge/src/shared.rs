//! A staging ring that several devices copy from.

use crate::{Missed, Rung};
use spoc_driver::{Device, HostMemory, HostMemoryOptions, Pin};
use spoc_io::HostRegion;
use std::fmt;
use std::ptr::NonNull;

/// How one device knows the ring.
struct Known {
    device: Device,
    pin: Result<Pin, String>,
}

/// Memory of a staging ring, on one NUMA node and registered with every device that copies from it. A device that refuses
/// copies from it as from any memory.
pub struct SharedRing {
    ptr: NonNull<u8>,
    len_bytes: usize,
    known: Vec<Known>,
    /// After what registers it.
    _memory: HostMemory,
}

impl SharedRing {
    /// Takes `len_bytes` (≥ 1, rounded up to the page), makes them present and has each device register them.
    ///
    /// # Errors
    /// The host's, if it has not that much memory. A device that does not register them is no error: see
    /// [`missed`](SharedRing::missed).
    pub fn allocate(
        devices: &[Device],
        len_bytes: usize,
        numa_node: Option<u32>,
    ) -> spoc_driver::Result<SharedRing> {
        let options = HostMemoryOptions { numa_node, populate: true, ..HostMemoryOptions::default() };
        let memory = HostMemory::allocate(len_bytes, options)?;
        let nothing = || spoc_driver::Error::new(spoc_driver::ErrorKind::Backend, "taking staging memory");
        let ptr = NonNull::new(memory.as_ptr()).ok_or_else(nothing)?;
        let known = devices.iter().map(|device| {
            let pin = device.pin(&memory).map_err(|error| error.to_string());
            if let Err(reason) = &pin {
                let device = device.info().uuid;
                tracing::warn!(%device, bytes = len_bytes, reason, "staging memory is not pinned");
            }
            Known { device: device.clone(), pin }
        });
        Ok(SharedRing { ptr, len_bytes, known: known.collect(), _memory: memory })
    }

    /// How this device knows it: registered, or not at all.
    #[must_use]
    pub fn rung(&self, device: &Device) -> Rung {
        let pinned = self.known.iter().any(|known| known.device.is(device) && known.pin.is_ok());
        if pinned { Rung::Registered } else { Rung::Pageable }
    }

    /// Why this device has not registered it.
    #[must_use]
    pub fn missed(&self, device: &Device) -> Vec<Missed> {
        let of_device = self.known.iter().filter(|known| known.device.is(device));
        let reasons = of_device.filter_map(|known| known.pin.as_ref().err());
        reasons.map(|reason| Missed { rung: Rung::Registered, reason: reason.clone() }).collect()
    }
}

impl fmt::Debug for SharedRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRing")
            .field("len_bytes", &self.len_bytes)
            .field("devices", &self.known.len())
            .finish()
    }
}

// SAFETY: the memory and its registrations in here are Send and Sync values of the driver; the pointer is only handed
// out, to a reader that answers for who touches which bytes.
unsafe impl Send for SharedRing {}
// SAFETY: as above; nothing here reads or writes through the pointer.
unsafe impl Sync for SharedRing {}

// SAFETY: the driver mapped `len_bytes` zeroed bytes at a page-aligned address and keeps them in place until `_memory`,
// which this value owns, is dropped. Registrations read and write nothing, so only the reader's chunks touch the bytes.
unsafe impl HostRegion for SharedRing {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_driver::fake::{FakeOptions, backend_with};
    use spoc_driver::{BackendKind, DeviceSelector, Driver, Verdict};

    #[test]
    fn each_device_registers_the_ring_or_says_why_not() {
        let mut unable = FakeOptions::default();
        unable.capabilities.host_register = Verdict::unavailable("not here");
        let fakes = [FakeOptions::default(), unable].map(backend_with);
        let devices = fakes.each_ref().map(|(probed, _)| {
            let selector = DeviceSelector::index(BackendKind::Fake, 0);
            Driver::new(vec![probed.clone()]).open(&selector).unwrap()
        });
        let ring = SharedRing::allocate(&devices, 3 * 4096, None).unwrap();
        assert_eq!((ring.rung(&devices[0]), ring.missed(&devices[0]).len()), (Rung::Registered, 0));
        assert_eq!(ring.rung(&devices[1]), Rung::Pageable);
        assert!(ring.missed(&devices[1])[0].reason.contains("not here"));
        assert_eq!(devices.each_ref().map(Device::pinned_ranges), [1, 0]);
        drop(ring);
        assert_eq!(devices.each_ref().map(Device::pinned_ranges), [0, 0]);
        assert!(SharedRing::allocate(&devices, 0, None).is_err());
    }
}
