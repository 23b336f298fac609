//! The backends that were found, and their devices.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::backend::{BackendId, BackendKind, DeviceInfo, DeviceUuid, Foreign, Probed};
use crate::device::{Device, DeviceCore};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::util::lock;

/// Which device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSelector {
    /// The API family to reach it through.
    pub backend: BackendKind,
    /// Which of that family's devices.
    pub device: DeviceName,
}

/// A device's name within its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// By position, for people.
    Index(u32),
    /// By its lasting name, for configuration.
    Uuid(DeviceUuid),
}

impl DeviceSelector {
    /// The `index`-th device of a backend.
    #[must_use]
    pub fn index(backend: BackendKind, index: u32) -> Self {
        Self { backend, device: DeviceName::Index(index) }
    }

    /// The device of a backend with this UUID.
    #[must_use]
    pub fn uuid(backend: BackendKind, uuid: DeviceUuid) -> Self {
        Self { backend, device: DeviceName::Uuid(uuid) }
    }
}

/// The backends that were found. Clones share everything; nothing is kept in statics, so two drivers know
/// nothing of each other.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    backends: Vec<Probed>,
    automatic: Arc<AtomicBool>,
    /// A device is opened once a driver: its ledger and its pinned ranges belong together.
    opened: Mutex<HashMap<(BackendId, u32), Weak<DeviceCore>>>,
}

impl Driver {
    /// A driver over what probing found.
    #[must_use]
    pub fn new(backends: Vec<Probed>) -> Self {
        let automatic = Arc::new(AtomicBool::new(true));
        Self(Arc::new(Inner { backends, automatic, opened: Mutex::new(HashMap::new()) }))
    }

    /// The backends, in the order given.
    pub fn backends(&self) -> impl Iterator<Item = BackendId> {
        self.0.backends.iter().map(|backend| backend.id())
    }

    /// Every device of every backend.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.0.backends.iter().flat_map(|backend| backend.devices()).collect()
    }

    /// Whether vectors on this driver's devices move by themselves, for host access and launches (on at first).
    #[must_use]
    pub fn automatic_transfers(&self) -> bool {
        self.0.automatic.load(Ordering::Relaxed)
    }

    /// Turns automatic transfers on or off, for this driver's devices and no other's. Off, what would have moved
    /// a vector is refused as `WrongLocation`; what asks for a transfer (`to_device`, `to_cpu`) still does it.
    pub fn set_automatic_transfers(&self, on: bool) {
        self.0.automatic.store(on, Ordering::Relaxed);
    }

    /// Opens a device; one that is open already is answered again.
    ///
    /// # Errors
    /// `NoSuchDevice`, with what there is; what the backend answers.
    pub fn open(&self, selector: &DeviceSelector) -> Result<Device> {
        let (backend, index) = self.find(selector)?;
        let mut opened = lock(&self.0.opened);
        let key = (backend.id(), index);
        if let Some(core) = opened.get(&key).and_then(Weak::upgrade) {
            return Ok(Device::of(&core));
        }
        let handle = backend.open(index)?;
        let core = DeviceCore::open(Arc::clone(backend), handle, Arc::clone(&self.0.automatic))?;
        opened.insert(key, Arc::downgrade(&core));
        Ok(Device::of(&core))
    }

    /// Borrows a context that another library opened.
    ///
    /// # Safety
    /// The words name a live context of this API that outlives `foreign.keep_alive`.
    ///
    /// # Errors
    /// `NoSuchDevice` if the backend was not found; `Unsupported`; what the backend answers.
    pub unsafe fn adopt(&self, backend: BackendKind, foreign: Foreign) -> Result<Device> {
        let backend = self.backend(backend)?;
        // SAFETY: the caller owes what the port asks for.
        let handle = unsafe { backend.adopt_device(foreign) }?;
        Ok(Device::of(&DeviceCore::open(Arc::clone(backend), handle, Arc::clone(&self.0.automatic))?))
    }

    fn backend(&self, kind: BackendKind) -> Result<&Probed> {
        self.0.backends.iter().find(|backend| backend.id().kind == kind).ok_or_else(|| {
            let found: Vec<_> = self.backends().map(|id| id.kind.as_str()).collect();
            Error::new(ErrorKind::NoSuchDevice, "opening a device")
                .with("backend", kind)
                .with("backends_found", found.join(" "))
        })
    }

    fn find(&self, selector: &DeviceSelector) -> Result<(&Probed, u32)> {
        let backend = self.backend(selector.backend)?;
        let devices = backend.devices();
        let matching = devices.iter().find(|info| match selector.device {
            DeviceName::Index(index) => info.index == index,
            DeviceName::Uuid(uuid) => info.uuid == uuid,
        });
        let missing = || {
            let wanted = match selector.device {
                DeviceName::Index(index) => index.to_string(),
                DeviceName::Uuid(uuid) => uuid.to_string(),
            };
            Error::new(ErrorKind::NoSuchDevice, "opening a device")
                .with("backend", selector.backend)
                .with("device", wanted)
                .with("devices_found", devices.len())
        };
        matching.map(|info| (backend, info.index)).ok_or_else(missing)
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.backends()).finish()
    }
}
