//! An opened device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::backend::{
    BackendId, Capabilities, DeviceInfo, Foreign, Handle, Limits, MemoryInfo, Probed, StreamOptions, Verdict,
};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::host::{PinUse, RawPins, Registry};
use crate::launch::Window;
use crate::ledger::{Ledger, StreamCore};
use crate::staging::Staging;
use crate::stream::Stream;
use crate::sync::Mutex;
use crate::util::lock;

/// What everything made by a device refers to. Its parts keep it alive, so the order in which they are
/// dropped does not matter.
pub(crate) struct DeviceCore {
    pub(crate) backend: Probed,
    pub(crate) info: DeviceInfo,
    pub(crate) capabilities: Capabilities,
    pub(crate) limits: Limits,
    pub(crate) registry: Registry,
    pub(crate) memory_in_use: AtomicU64,
    pub(crate) counters: Counters,
    /// The driver's setting: whether vectors move by themselves.
    pub(crate) automatic: Arc<AtomicBool>,
    default: Arc<StreamCore>,
    shared: Mutex<Weak<DeviceShared>>,
    next_stream: AtomicU64,
    // Last: the device goes after its default stream.
    pub(crate) handle: Handle,
}

/// The core and its ledger, for as long as somebody holds a device or a stream. Segments and events hold
/// the core alone: they sit in the ledger, and would keep it alive in a circle.
pub(crate) struct DeviceShared {
    pub(crate) core: Arc<DeviceCore>,
    pub(crate) ledger: Ledger,
    pub(crate) window: Window,
    pub(crate) staging: Staging,
    pub(crate) raw_pins: RawPins,
}

/// Monotonic counts of what a device was asked to do.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) submissions: AtomicU64,
    pub(crate) bytes_to_device: AtomicU64,
    pub(crate) bytes_to_host: AtomicU64,
    pub(crate) bytes_on_device: AtomicU64,
    pub(crate) pageable_copies: AtomicU64,
    pub(crate) staging_waits: AtomicU64,
    pub(crate) peer_bytes: AtomicU64,
    pub(crate) peer_bytes_by_host: AtomicU64,
    pub(crate) warned_of_peers: AtomicBool,
    warned_of_pageable: AtomicBool,
}

/// A reading of a device's counters. All only ever rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Submissions on explicit streams.
    pub submissions: u64,
    /// Bytes enqueued from host to device.
    pub bytes_to_device: u64,
    /// Bytes enqueued from device to host.
    pub bytes_to_host: u64,
    /// Bytes enqueued within the device.
    pub bytes_on_device: u64,
    /// Stream copies from or to host memory that is not pinned: some APIs block the host for those.
    pub pageable_copies: u64,
    /// Times that a staged write found the staging ring full and waited.
    pub staging_waits: u64,
    /// Bytes enqueued from other devices, without the host.
    pub peer_bytes: u64,
    /// Bytes from other devices that went through the host.
    pub peer_bytes_by_host: u64,
}

impl DeviceCore {
    pub(crate) fn open(backend: Probed, handle: Handle, automatic: Arc<AtomicBool>) -> Result<Arc<Self>> {
        let options = StreamOptions::default();
        let default = Arc::new(StreamCore::new(backend.default_stream(&handle)?, 0, options));
        Ok(Arc::new(Self {
            info: backend.describe(&handle)?,
            capabilities: backend.capabilities(&handle)?,
            limits: backend.limits(&handle)?,
            registry: Registry::default(),
            memory_in_use: AtomicU64::new(0),
            counters: Counters::default(),
            automatic,
            default,
            shared: Mutex::new(Weak::new()),
            next_stream: AtomicU64::new(1),
            backend,
            handle,
        }))
    }

    /// The core with its ledger: the living one, or a new one if nobody held it.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<DeviceShared> {
        let mut slot = lock(&self.shared);
        if let Some(shared) = slot.upgrade() {
            return shared;
        }
        let shared = Arc::new(DeviceShared {
            core: Arc::clone(self),
            ledger: Ledger::default(),
            window: Window::default(),
            staging: Staging::default(),
            raw_pins: RawPins::default(),
        });
        shared.ledger.add(&self.default);
        *slot = Arc::downgrade(&shared);
        shared
    }

    pub(crate) fn default_stream(&self) -> &Arc<StreamCore> {
        &self.default
    }

    /// Refuses what the device does not offer for certain, with the verdict's reason.
    pub(crate) fn require(&self, feature: &'static str, verdict: &Verdict) -> Result<()> {
        match verdict.reason() {
            None => Ok(()),
            Some(reason) => Err(Error::unsupported(self.info.backend, feature).with("reason", reason)),
        }
    }

    pub(crate) fn check_same(self: &Arc<Self>, other: &Arc<Self>, doing: &'static str) -> Result<()> {
        if Arc::ptr_eq(self, other) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::WrongDevice, doing)
            .with("device", self.info.uuid)
            .with("other", other.info.uuid))
    }

    /// The pinned range a stream copy uses, if any; ordinary memory is counted, and told of once.
    pub(crate) fn hold_host(&self, start: usize, len_bytes: usize) -> Result<Option<PinUse>> {
        let held = self.registry.hold(start, len_bytes)?;
        if held.is_none() {
            self.counters.pageable_copies.fetch_add(1, Ordering::Relaxed);
            let serves = self.capabilities.pageable_async.is_available();
            if !serves && !self.counters.warned_of_pageable.swap(true, Ordering::Relaxed) {
                tracing::warn!(device = %self.info.uuid, "a stream copy uses host memory that is not pinned");
            }
        }
        Ok(held)
    }
}

impl DeviceShared {
    pub(crate) fn collect(&self) {
        self.ledger.collect(&self.core);
    }
}

impl Drop for DeviceShared {
    /// The last device or stream is gone: waits for what is pending, so that nothing outlives its memory.
    fn drop(&mut self) {
        // The default stream outlives this, and an event in it would keep the core alive in a circle.
        self.ledger.clear_checkpoints();
        self.window.hand_over_last(&self.core);
        if self.ledger.len() == 0 {
            return;
        }
        match self.core.backend.synchronize_device(&self.core.handle) {
            Err(error) if !crate::ledger::is_asynchronous(&error) => {
                tracing::error!(%error, "a device could not be waited for: its pending memory is leaked");
                self.ledger.leak();
            }
            _ => self.ledger.drain(),
        }
    }
}

/// An opened device. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    shared: Arc<DeviceShared>,
}

impl Device {
    pub(crate) fn of(core: &Arc<DeviceCore>) -> Self {
        Self { shared: core.share() }
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.shared.core
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    pub(crate) fn window(&self) -> &Window {
        &self.shared.window
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.shared.staging
    }

    pub(crate) fn raw_pins(&self) -> &RawPins {
        &self.shared.raw_pins
    }

    /// The backend's kind and generation.
    #[must_use]
    pub fn backend(&self) -> BackendId {
        self.core().backend.id()
    }

    /// What the device is.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.core().info
    }

    /// Name and version of what drives it, for records of runs; empty where nothing tells.
    ///
    /// # Errors
    /// What the backend answers.
    pub fn driver_name(&self) -> Result<String> {
        self.core().backend.driver_name(&self.core().handle)
    }

    /// What it can do beyond the obligatory.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.core().capabilities
    }

    /// Its bounds.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.core().limits
    }

    /// The NUMA node it hangs on, where known.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        self.info().numa_node
    }

    /// Whether both are the same opened device.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }

    /// Free and total memory now.
    ///
    /// # Errors
    /// What the backend answers, `DeviceLost` among it.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.core().backend.memory(&self.core().handle)
    }

    /// A new stream. Blocking unless asked otherwise.
    ///
    /// # Errors
    /// What the backend answers.
    pub fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        self.collect();
        let core = self.core();
        let handle = core.backend.create_stream(&core.handle, options)?;
        Ok(self.enter_stream(handle, options))
    }

    /// Borrows a stream that another library made on this device.
    ///
    /// # Safety
    /// The words name a live stream of this device that outlives `foreign.keep_alive`.
    ///
    /// # Errors
    /// `Unsupported`; what the backend answers.
    pub unsafe fn adopt_stream(&self, foreign: Foreign, options: StreamOptions) -> Result<Stream> {
        let core = self.core();
        core.require("adopt_stream", &core.capabilities.adopt_stream)?;
        // SAFETY: the caller owes what the port asks for.
        let handle = unsafe { core.backend.adopt_stream(&core.handle, foreign) }?;
        Ok(self.enter_stream(handle, options))
    }

    fn enter_stream(&self, handle: Handle, options: StreamOptions) -> Stream {
        let id = self.core().next_stream.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(StreamCore::new(handle, id, options));
        self.ledger().add(&stream);
        Stream::new(self.clone(), stream)
    }

    /// A handle of the default stream: it waits for all blocking streams.
    #[must_use]
    pub fn default_stream(&self) -> Stream {
        Stream::new(self.clone(), Arc::clone(self.core().default_stream()))
    }

    /// A new event, not recorded yet.
    ///
    /// # Errors
    /// What the backend answers.
    pub fn create_event(&self) -> Result<Event> {
        Event::create(self.core())
    }

    /// Retires what has run, without waiting. Waiting for an event or a stream does it too.
    pub fn collect(&self) {
        self.shared.collect();
    }

    /// Waits for every stream of the device and retires their work.
    ///
    /// # Errors
    /// The first failure of enqueued work; the others are waited for all the same.
    pub fn flush(&self) -> Result<()> {
        self.hand_over_launches();
        self.ledger().flush(self.core())
    }

    /// Bytes held in segments of this device, those waiting for pending copies included.
    #[must_use]
    pub fn memory_in_use(&self) -> u64 {
        self.collect();
        self.core().memory_in_use.load(Ordering::Relaxed)
    }

    /// Submissions that the ledger still keeps memory for, after retiring what has run, and launches that are
    /// held in the window.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.collect();
        self.ledger().len() + self.window().len()
    }

    /// Host ranges that are pinned for this device.
    #[must_use]
    pub fn pinned_ranges(&self) -> usize {
        self.core().registry.len()
    }

    /// What the device was asked to do so far.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        let counters = &self.core().counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceCounters {
            submissions: read(&counters.submissions),
            bytes_to_device: read(&counters.bytes_to_device),
            bytes_to_host: read(&counters.bytes_to_host),
            bytes_on_device: read(&counters.bytes_on_device),
            pageable_copies: read(&counters.pageable_copies),
            staging_waits: read(&counters.staging_waits),
            peer_bytes: read(&counters.peer_bytes),
            peer_bytes_by_host: read(&counters.peer_bytes_by_host),
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let info = self.info();
        f.debug_struct("Device").field("backend", &self.backend()).field("uuid", &info.uuid).finish()
    }
}
