//! Joins the reader's staging memory to the driver's copies. The only unsafe code of the cache room:
//! marker implementations, each passing on what one side promises to what the other side asks.

mod batch;
mod berth;
pub mod in_place;
mod shared;

pub use batch::Batch;
pub use berth::{Berth, Berths, GivenBack, Kept};
pub use in_place::{InPlace, Within};
pub use shared::SharedRing;

use spoc_driver::{Device, HostMemory, HostMemoryOptions, HostSink, HostSource, Pin, Pinned};
use spoc_io::HostRegion;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

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
    Registered { _pin: Pin },
    Driver { _memory: Pinned },
    Pageable,
}

/// How the device came to know the bytes.
struct Known {
    rung: Rung,
    missed: Vec<Missed>,
    _hold: Hold,
}

/// Memory of a staging ring, known to one device as well as it can be.
pub struct RingMemory {
    ptr: NonNull<u8>,
    len_bytes: usize,
    known: OnceLock<Known>,
    /// Registers the memory meanwhile.
    pinning: Mutex<Option<JoinHandle<spoc_driver::Result<Pin>>>>,
    /// The device that is yet to register it.
    registrar: Option<Device>,
    /// After what registers it.
    _memory: Option<HostMemory>,
}

impl RingMemory {
    /// Takes `len_bytes` (≥ 1, rounded up to the page) on the best rung that the device offers.
    ///
    /// # Errors
    /// The host's, if it has not that much memory. Rungs that a device refuses are no errors: see
    /// [`missed`](RingMemory::missed).
    pub fn allocate(device: &Device, len_bytes: usize) -> spoc_driver::Result<RingMemory> {
        let mut missed = Vec::new();
        let memory = HostMemory::allocate(len_bytes, beside(device))?;
        match device.pin(&memory) {
            Ok(pin) => return RingMemory::on_host(memory, len_bytes, Hold::Registered { _pin: pin }, missed),
            Err(error) => missed.push(Missed { rung: Rung::Registered, reason: error.to_string() }),
        }
        match device.alloc_pinned(len_bytes as u64) {
            Ok(mut pinned) => {
                let start = NonNull::new(HostSink::as_mut_ptr(&mut pinned));
                if let Some(start) = start.filter(|start| start.addr().get().is_multiple_of(4096)) {
                    let known =
                        Known { rung: Rung::DriverPinned, missed, _hold: Hold::Driver { _memory: pinned } };
                    return Ok(RingMemory::at(start, len_bytes, Some(known), None));
                }
                let reason = "the driver's memory is not page aligned".to_owned();
                missed.push(Missed { rung: Rung::DriverPinned, reason });
            }
            Err(error) => missed.push(Missed { rung: Rung::DriverPinned, reason: error.to_string() }),
        }
        tracing::warn!(device = %device.info().uuid, bytes = len_bytes, "staging memory is not pinned");
        RingMemory::on_host(memory, len_bytes, Hold::Pageable, missed)
    }

    /// As [`allocate`](RingMemory::allocate), but waits neither for the pages nor for the registration, where the device
    /// has one: both take longer than the first reads, which need not wait for them. They come in the background from
    /// [`begin_pinning`](RingMemory::begin_pinning) on, and at the latest when something asks for them.
    ///
    /// # Errors
    /// As of [`allocate`](RingMemory::allocate).
    pub fn allocate_unpinned(device: &Device, len_bytes: usize) -> spoc_driver::Result<RingMemory> {
        // A device that cannot register at all is known by one page, while there is still a choice of memory.
        let page = HostMemory::allocate(1, HostMemoryOptions { huge_pages: false, ..Default::default() })?;
        if device.pin(&page).is_err() {
            return RingMemory::allocate(device, len_bytes);
        }
        let unpopulated = HostMemoryOptions { populate: false, ..beside(device) };
        let memory = HostMemory::allocate(len_bytes, unpopulated)?;
        let mut ring = RingMemory::at(start_of(&memory)?, len_bytes, None, Some(memory));
        ring.registrar = Some(device.clone());
        Ok(ring)
    }

    /// Faults the pages in and registers them, on a thread of its own. Best after other threads were started: a new
    /// thread has to wait while pages come in.
    pub fn begin_pinning(&self) {
        let (Some(device), Some(memory)) = (self.registrar.clone(), self._memory.clone()) else { return };
        let pin = move || populated_pin(&device, &memory);
        match std::thread::Builder::new().name("spoc-pin".to_owned()).spawn(pin) {
            Ok(thread) => *self.pinning.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread),
            // Then whoever asks first does it.
            Err(error) => tracing::warn!(%error, "the thread that registers memory could not be started"),
        }
    }

    fn on_host(
        memory: HostMemory,
        len_bytes: usize,
        hold: Hold,
        missed: Vec<Missed>,
    ) -> spoc_driver::Result<RingMemory> {
        let rung = if matches!(hold, Hold::Pageable) { Rung::Pageable } else { Rung::Registered };
        let start = start_of(&memory)?;
        Ok(RingMemory::at(start, len_bytes, Some(Known { rung, missed, _hold: hold }), Some(memory)))
    }

    fn at(
        ptr: NonNull<u8>,
        len_bytes: usize,
        known: Option<Known>,
        memory: Option<HostMemory>,
    ) -> RingMemory {
        let cell = OnceLock::new();
        if let Some(known) = known {
            // A new cell is empty.
            let _ = cell.set(known);
        }
        RingMemory {
            ptr,
            len_bytes,
            known: cell,
            pinning: Mutex::new(None),
            registrar: None,
            _memory: memory,
        }
    }

    /// Waits until the device knows the memory as well as it will. At once after [`allocate`](RingMemory::allocate).
    pub fn settle(&self) {
        let _ = self.known();
    }

    fn known(&self) -> &Known {
        self.known.get_or_init(|| {
            let thread = self.pinning.lock().unwrap_or_else(PoisonError::into_inner).take();
            let pinned = match (thread.map(JoinHandle::join), &self.registrar, &self._memory) {
                (Some(Ok(pinned)), _, _) => pinned.map_err(|error| error.to_string()),
                (None, Some(device), Some(memory)) => {
                    populated_pin(device, memory).map_err(|error| error.to_string())
                }
                _ => Err("the thread that registers memory ended early".to_owned()),
            };
            let reason = match pinned {
                Ok(pin) => {
                    let hold = Hold::Registered { _pin: pin };
                    return Known { rung: Rung::Registered, missed: Vec::new(), _hold: hold };
                }
                Err(reason) => reason,
            };
            // Reads are on their way into this memory: it is too late for another one.
            tracing::warn!(bytes = self.len_bytes, reason, "staging memory is not pinned");
            let missed = vec![Missed { rung: Rung::Registered, reason }];
            Known { rung: Rung::Pageable, missed, _hold: Hold::Pageable }
        })
    }

    /// The rung it is on. Waits as [`settle`](RingMemory::settle).
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.known().rung
    }

    /// The better rungs, and why not they. Waits as [`settle`](RingMemory::settle).
    #[must_use]
    pub fn missed(&self) -> &[Missed] {
        &self.known().missed
    }
}

fn start_of(memory: &HostMemory) -> spoc_driver::Result<NonNull<u8>> {
    NonNull::new(memory.as_ptr())
        .ok_or_else(|| spoc_driver::Error::new(spoc_driver::ErrorKind::Backend, "taking staging memory"))
}

impl Drop for RingMemory {
    /// A registration on its way ends here, and not at some later time.
    fn drop(&mut self) {
        let thread = self.pinning.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Its result is dropped, and with it the registration.
            let _ = thread.join();
        }
    }
}

fn populated_pin(device: &Device, memory: &HostMemory) -> spoc_driver::Result<Pin> {
    let began = Instant::now();
    // Where reads end in device memory itself, the ring is hardly used.
    if in_place::reads_in_place(device).is_err() {
        memory.populate()?;
    }
    let populated = began.elapsed();
    let pin = device.pin(memory);
    let (populate_us, register_us) = (populated.as_micros(), (began.elapsed() - populated).as_micros());
    tracing::debug!(populate_us, register_us, ok = pin.is_ok(), "staging memory and its registration");
    pin
}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rung = self.known.get().map(|known| known.rung);
        f.debug_struct("RingMemory").field("len_bytes", &self.len_bytes).field("rung", &rung).finish()
    }
}

// SAFETY: the memory's owners in here are Send and Sync values of the driver; the pointer is only handed out, to a
// reader that answers for who touches which bytes.
unsafe impl Send for RingMemory {}
// SAFETY: as above; nothing here reads or writes through the pointer.
unsafe impl Sync for RingMemory {}

// SAFETY: the driver mapped `len_bytes` zeroed bytes at a page-aligned address (HostMemory by its contract,
// driver memory checked in `allocate`) and keeps them in place until its handle goes, which `_memory` or `known` owns
// until this value is dropped. No other handle to the bytes leaves this type but the registration's, which reads and
// writes nothing, so only the reader's chunks touch them.
unsafe impl HostRegion for RingMemory {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// Memory of the NUMA node that the device hangs on, where it names one: a wish. Where reads end in device memory itself
/// the ring is hardly used, and present when it is.
fn beside(device: &Device) -> HostMemoryOptions {
    let populate = in_place::reads_in_place(device).is_err();
    HostMemoryOptions { numa_node: device.numa_node(), populate, ..HostMemoryOptions::default() }
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
    fn pinning_meanwhile_comes_to_the_same_rungs() {
        for (register, pinned, rung) in [
            (true, true, Rung::Registered),
            (false, true, Rung::DriverPinned),
            (false, false, Rung::Pageable),
        ] {
            let (device, control) = device(register, pinned);
            let memory = RingMemory::allocate_unpinned(&device, 3 * 4096).unwrap();
            memory.begin_pinning();
            assert_eq!((memory.rung(), memory.missed().len()), (rung, rung as usize));
            drop(memory);
            assert_eq!((device.pinned_ranges(), control.live().pinned), (0, 0));
        }
    }

    #[test]
    fn a_pin_that_fails_meanwhile_leaves_ordinary_memory() {
        let (device, control) = device(true, true);
        control.fail_pin(2);
        let memory = RingMemory::allocate_unpinned(&device, 4096).unwrap();
        memory.begin_pinning();
        assert_eq!(memory.rung(), Rung::Pageable);
        assert_eq!(memory.missed()[0].rung, Rung::Registered);
        drop(memory);
        // Nobody asks, and it is not waited for by anything but the end.
        let unasked = RingMemory::allocate_unpinned(&device, 4096).unwrap();
        unasked.begin_pinning();
        drop(unasked);
        drop(RingMemory::allocate_unpinned(&device, 4096).unwrap());
        assert_eq!(RingMemory::allocate_unpinned(&device, 4096).unwrap().rung(), Rung::Registered);
        assert_eq!((device.pinned_ranges(), control.live().pinned), (0, 0));
    }

    #[test]
    fn nothing_is_refused() {
        let (device, _control) = device(true, true);
        assert!(RingMemory::allocate(&device, 0).is_err());
    }
}
