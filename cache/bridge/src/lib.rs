//! Joins the reader's staging memory to the driver's copies. The only unsafe code of the cache room:
//! marker implementations, each passing on what one side promises to what the other side asks.

use spoc_driver::{Device, HostMemory, HostMemoryOptions, HostSink, HostSource, Pin, Pinned};
use spoc_io::{Chunk, HostRegion};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// How a ring's memory is known to its device: the rungs of the ladder, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// Anonymous memory, registered with the device (and by the reader with the kernel, where it can).
    Registered,
    /// Memory of the device's driver.
    DriverPinned,
    /// Ordinary memory: copies may block or bounce.
    Pageable,
}

impl Rung {
    /// Stable name in snake case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Rung::Registered => "registered",
            Rung::DriverPinned => "driver_pinned",
            Rung::Pageable => "pageable",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rung that was not taken, and why.
#[derive(Debug, Clone)]
pub struct Missed {
    /// The rung.
    pub rung: Rung,
    /// Why not, as the device said.
    pub reason: String,
}

/// What keeps the bytes there. Never read through: the pointer beside it is.
enum Hold {
    Registered { _pin: Pin, _memory: HostMemory },
    Driver { _memory: Pinned },
    Pageable { _memory: HostMemory },
}

/// Memory of a staging ring, known to one device as well as it can be.
pub struct RingMemory {
    ptr: NonNull<u8>,
    len_bytes: usize,
    rung: Rung,
    missed: Vec<Missed>,
    _hold: Hold,
}

impl RingMemory {
    /// Takes `len_bytes` (≥ 1, rounded up to the page) on the best rung that the device offers.
    ///
    /// # Errors
    /// The host's, if it has not that much memory. Rungs that a device refuses are no errors: see
    /// [`missed`](RingMemory::missed).
    pub fn allocate(device: &Device, len_bytes: usize) -> spoc_driver::Result<RingMemory> {
        let mut missed = Vec::new();
        let memory = HostMemory::allocate(len_bytes, HostMemoryOptions::default())?;
        match device.pin(&memory) {
            Ok(pin) => {
                let start = NonNull::new(memory.as_ptr());
                return RingMemory::on(
                    start,
                    Hold::Registered { _pin: pin, _memory: memory },
                    len_bytes,
                    missed,
                );
            }
            Err(error) => missed.push(Missed { rung: Rung::Registered, reason: error.to_string() }),
        }
        match device.alloc_pinned(len_bytes as u64) {
            Ok(mut pinned) => {
                let start = NonNull::new(HostSink::as_mut_ptr(&mut pinned));
                if start.is_some_and(|start| start.addr().get().is_multiple_of(4096)) {
                    return RingMemory::on(start, Hold::Driver { _memory: pinned }, len_bytes, missed);
                }
                let reason = "the driver's memory is not page aligned".to_owned();
                missed.push(Missed { rung: Rung::DriverPinned, reason });
            }
            Err(error) => missed.push(Missed { rung: Rung::DriverPinned, reason: error.to_string() }),
        }
        tracing::warn!(device = %device.info().uuid, bytes = len_bytes, "staging memory is not pinned");
        let start = NonNull::new(memory.as_ptr());
        RingMemory::on(start, Hold::Pageable { _memory: memory }, len_bytes, missed)
    }

    fn on(
        start: Option<NonNull<u8>>,
        hold: Hold,
        len_bytes: usize,
        missed: Vec<Missed>,
    ) -> spoc_driver::Result<RingMemory> {
        let rung = match &hold {
            Hold::Registered { .. } => Rung::Registered,
            Hold::Driver { .. } => Rung::DriverPinned,
            Hold::Pageable { .. } => Rung::Pageable,
        };
        let ptr = start.ok_or_else(|| {
            spoc_driver::Error::new(spoc_driver::ErrorKind::Backend, "taking staging memory")
        })?;
        Ok(RingMemory { ptr, len_bytes, rung, missed, _hold: hold })
    }

    /// The rung it is on.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// The better rungs, and why not they.
    #[must_use]
    pub fn missed(&self) -> &[Missed] {
        &self.missed
    }
}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingMemory").field("len_bytes", &self.len_bytes).field("rung", &self.rung).finish()
    }
}

// SAFETY: `hold` owns the memory and consists of Send and Sync values of the driver; the pointer is only
// handed out, to a reader that answers for who touches which bytes.
unsafe impl Send for RingMemory {}
// SAFETY: as above; nothing here reads or writes through the pointer.
unsafe impl Sync for RingMemory {}

// SAFETY: the driver mapped `len_bytes` zeroed bytes at a page-aligned address (HostMemory by its contract,
// driver memory checked in `allocate`) and keeps them in place until its handle goes, which `hold` owns until
// this value is dropped. No other handle to the bytes left `allocate`, so only the reader's chunks touch them.
unsafe impl HostRegion for RingMemory {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// A chunk that has been read, as a source of copies. Goes back to its ring when the copies have run.
#[derive(Debug)]
pub struct ChunkSource(Chunk);

impl ChunkSource {
    /// The chunk as a source.
    #[must_use]
    pub fn new(chunk: Chunk) -> ChunkSource {
        ChunkSource(chunk)
    }
}

// SAFETY: a chunk is the only owner of its bytes from the end of the read until it is dropped (io's
// contract), it keeps the region mapped and in place, and this value gives nobody access to it. Its bytes are
// initialised: the region was zeroed, then read into.
unsafe impl HostSource for ChunkSource {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }
}

/// A ring that no reader fills, as a source that any number of copies share: what measuring a link needs.
#[derive(Debug, Clone)]
pub struct StillRing(Arc<RingMemory>);

impl StillRing {
    /// Takes the ring away from readers for good.
    #[must_use]
    pub fn new(ring: RingMemory) -> StillRing {
        StillRing(Arc::new(ring))
    }

    /// The rung it is on.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.0.rung()
    }
}

// SAFETY: `new` took the ring by value and gives it to nobody, so no reader writes to it: its bytes, zeroed when
// they were mapped, are never modified. The ring stays mapped and in place until the last clone is dropped.
unsafe impl HostSource for StillRing {
    fn as_ptr(&self) -> *const u8 {
        self.0.ptr.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_driver::fake::{FakeOptions, backend_with};
    use spoc_driver::{BackendKind, DeviceSelector, Driver, Verdict};

    fn device(register: bool, pinned: bool) -> (Device, spoc_driver::fake::FakeControl) {
        let mut options = FakeOptions::default();
        if !register {
            options.capabilities.host_register = Verdict::unavailable("not here");
        }
        if !pinned {
            options.capabilities.pinned_alloc = Verdict::unavailable("nor here");
        }
        let (probed, control) = backend_with(options);
        let selector = DeviceSelector::index(BackendKind::Fake, 0);
        (Driver::new(vec![probed]).open(&selector).unwrap(), control)
    }

    #[test]
    fn the_ladder_steps_down_and_says_why() {
        for (register, pinned, rung) in [
            (true, true, Rung::Registered),
            (false, true, Rung::DriverPinned),
            (false, false, Rung::Pageable),
        ] {
            let (device, control) = device(register, pinned);
            let memory = RingMemory::allocate(&device, 3 * 4096).unwrap();
            assert_eq!((memory.rung(), memory.missed().len()), (rung, rung as usize));
            assert!(memory.missed().iter().all(|missed| missed.reason.contains("here")));
            assert_eq!(HostRegion::len_bytes(&memory), 3 * 4096);
            assert!(HostRegion::as_ptr(&memory).addr().get().is_multiple_of(4096));
            drop(memory);
            assert_eq!((device.pinned_ranges(), control.live().pinned), (0, 0));
        }
    }

    #[test]
    fn a_pin_that_fails_is_rolled_back() {
        let (device, control) = device(true, true);
        control.fail_pin(1);
        let memory = RingMemory::allocate(&device, 4096).unwrap();
        assert_eq!(memory.rung(), Rung::DriverPinned);
        drop(memory);
        assert_eq!(device.pinned_ranges(), 0);
    }

    #[test]
    fn nothing_is_refused() {
        let (device, _control) = device(true, true);
        assert!(RingMemory::allocate(&device, 0).is_err());
    }
}
