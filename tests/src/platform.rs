//! The backends that the suite is stamped on, and what the contract says of each.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use spoc_backends::{ProbeOutcome, ProbeReport, metal, native, probe};
use spoc_driver::backend::Probed;
use spoc_driver::fake::{self, FakeControl, FakeOptions};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver, Error};

use crate::hold::{HoldWay, gate_holds, spin_holds};
use crate::stepper::Stepper;

/// One cell of the contract's table of what each backend offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It does.
    Yes,
    /// It does not: refused as unsupported.
    No,
    /// The device in hand decides; it must keep its word either way.
    Depends,
}

/// A backend's column of that table.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Copies on explicit streams return before they have run.
    pub async_copies: Offer,
    /// Pinned memory can be allocated (ordinary memory where that serves).
    pub pinned_alloc: Offer,
    /// Host memory can be registered.
    pub host_register: Offer,
    /// Device memory can be exported as a descriptor.
    pub export_memory: Offer,
    /// Host and kernels share the bytes of a buffer.
    pub host_pointer: Offer,
}

/// A backend to stamp the suite on.
#[derive(Clone, Copy)]
pub struct Platform {
    /// Which.
    pub kind: BackendKind,
    /// What the contract says it offers.
    pub table: Table,
    make: fn() -> Result<Bench, String>,
}

/// What one check gets to work with.
pub struct Bench {
    /// The backend.
    pub backend: Probed,
    /// How its streams are held.
    pub hold_way: HoldWay,
    /// How much memory its devices have, where that is so little that a check may use it up.
    pub memory_bytes: Option<u64>,
    /// Knows what was done wrong, where the backend watches.
    pub watcher: Option<FakeControl>,
}

impl Platform {
    /// The CPU, asynchronous on explicit streams.
    #[must_use]
    pub fn native() -> Self {
        let table = Table {
            async_copies: Offer::Yes,
            pinned_alloc: Offer::Yes,
            host_register: Offer::Yes,
            export_memory: Offer::Yes,
            host_pointer: Offer::Yes,
        };
        Self { kind: BackendKind::Native, table, make: make_native }
    }

    /// The CPU, everything complete on return.
    #[must_use]
    pub fn interpreter() -> Self {
        let table = Table {
            async_copies: Offer::No,
            pinned_alloc: Offer::Yes,
            host_register: Offer::Yes,
            export_memory: Offer::Yes,
            host_pointer: Offer::Yes,
        };
        Self { kind: BackendKind::Interpreter, table, make: || found(BackendKind::Interpreter) }
    }

    /// The deferred backend of tests, with two devices: whatever is not held runs a little later.
    #[must_use]
    pub fn fake() -> Self {
        let table = Table {
            async_copies: Offer::Yes,
            pinned_alloc: Offer::Yes,
            host_register: Offer::Yes,
            export_memory: Offer::No,
            host_pointer: Offer::No,
        };
        Self { kind: BackendKind::Fake, table, make: make_fake }
    }

    /// OpenCL, every device of it.
    #[must_use]
    pub fn opencl() -> Self {
        let table = Table {
            async_copies: Offer::Yes,
            pinned_alloc: Offer::Yes,
            host_register: Offer::No,
            export_memory: Offer::No,
            host_pointer: Offer::Depends,
        };
        Self { kind: BackendKind::OpenCl, table, make: || found(BackendKind::OpenCl) }
    }

    /// Vulkan, every device of it.
    #[must_use]
    pub fn vulkan() -> Self {
        let table = Table {
            async_copies: Offer::Yes,
            pinned_alloc: Offer::Yes,
            host_register: Offer::Depends,
            export_memory: Offer::Depends,
            host_pointer: Offer::No,
        };
        Self { kind: BackendKind::Vulkan, table, make: || found(BackendKind::Vulkan) }
    }

    /// CUDA, every device of it.
    #[must_use]
    pub fn cuda() -> Self {
        let table = Table {
            async_copies: Offer::Yes,
            pinned_alloc: Offer::Yes,
            host_register: Offer::Yes,
            export_memory: Offer::Yes,
            host_pointer: Offer::No,
        };
        Self { kind: BackendKind::Cuda, table, make: || found(BackendKind::Cuda) }
    }

    /// WebGPU, every device of it; there where the build has it.
    #[must_use]
    pub fn webgpu() -> Self {
        let table = Table {
            async_copies: Offer::Yes,
            pinned_alloc: Offer::No,
            host_register: Offer::No,
            export_memory: Offer::No,
            host_pointer: Offer::No,
        };
        Self { kind: BackendKind::WebGpu, table, make: || found(BackendKind::WebGpu) }
    }

    /// Metal's adapter over a test double of the API: the adapter's own logic, and no Metal device.
    #[must_use]
    pub fn metal_double() -> Self {
        let table = Table {
            async_copies: Offer::No,
            pinned_alloc: Offer::Yes,
            host_register: Offer::Yes,
            export_memory: Offer::No,
            host_pointer: Offer::Yes,
        };
        Self { kind: BackendKind::Metal, table, make: make_metal_double }
    }

    /// Every backend that has devices, in the order in which records list them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        vec![
            Self::native(),
            Self::interpreter(),
            Self::opencl(),
            Self::vulkan(),
            Self::cuda(),
            Self::webgpu(),
        ]
    }

    /// A fresh bench, or why there is none here.
    ///
    /// # Errors
    /// Why the backend is not there.
    pub fn bench(&self) -> Result<Bench, String> {
        (self.make)()
    }

    /// A bench on which nothing runs by itself, where the backend has one; else an ordinary one.
    ///
    /// # Errors
    /// As [`Platform::bench`].
    pub fn deferred_bench(&self) -> Result<Bench, String> {
        match self.kind {
            BackendKind::Fake => Ok(fake_bench().0),
            _ => self.bench(),
        }
    }

    /// What offsets and lengths must be multiples of on every device of the bench.
    ///
    /// # Errors
    /// If a device cannot be opened.
    pub fn granule(&self, bench: &Bench) -> Result<usize, Error> {
        let driver = Driver::new(vec![Probed::clone(&bench.backend)]);
        let mut most = 1;
        for info in bench.backend.devices() {
            let device = driver.open(&DeviceSelector::index(self.kind, info.index))?;
            most = most.max(usize::try_from(device.limits().copy_granule_bytes).unwrap_or(1));
        }
        Ok(most)
    }

    /// Whether `SPOC_REQUIRE` (names of backends with commas between) says that it has to be there.
    #[must_use]
    pub fn is_required(&self) -> bool {
        let required = std::env::var("SPOC_REQUIRE").unwrap_or_default();
        required.split(',').any(|name| name.trim() == self.kind.as_str())
    }
}

/// So little that a check can use it up.
const NATIVE_BYTES: u64 = 192 << 20;
const FAKE_BYTES: u64 = 64 << 20;

// The shape is that of the other makers, which can fail.
#[allow(clippy::unnecessary_wraps)]
fn make_native() -> Result<Bench, String> {
    let backend =
        native::backend(native::Options { memory_bytes: Some(NATIVE_BYTES), ..native::Options::default() });
    Ok(Bench { backend, hold_way: HoldWay::Gate, memory_bytes: Some(NATIVE_BYTES), watcher: None })
}

#[allow(clippy::unnecessary_wraps)]
fn make_metal_double() -> Result<Bench, String> {
    let backend = metal::double(metal::Options { batch: Some(4) });
    Ok(Bench { backend, hold_way: HoldWay::Load, memory_bytes: None, watcher: None })
}

#[allow(clippy::unnecessary_wraps)]
fn make_fake() -> Result<Bench, String> {
    let (bench, control) = fake_bench();
    Ok(Bench { hold_way: HoldWay::Steps(Stepper::start(control)), ..bench })
}

fn fake_bench() -> (Bench, FakeControl) {
    let options = FakeOptions { devices: 2, memory_bytes: FAKE_BYTES, ..FakeOptions::default() };
    let (backend, control) = fake::backend_with(options);
    let watcher = Some(control.clone());
    (Bench { backend, hold_way: HoldWay::Load, memory_bytes: Some(FAKE_BYTES), watcher }, control)
}

/// A backend that probing found, and whether a gate holds its streams.
fn found(kind: BackendKind) -> Result<Bench, String> {
    // Probing loads the APIs' libraries: once is enough for all checks, which then share the backend as
    // the parts of a program do.
    static REPORTS: OnceLock<Vec<ProbeReport>> = OnceLock::new();
    static WAYS: Mutex<BTreeMap<BackendKind, HoldWay>> = Mutex::new(BTreeMap::new());
    let reports = REPORTS.get_or_init(probe);
    let report = reports.iter().find(|report| report.kind == kind).ok_or("probing does not report it")?;
    let backend = match &report.outcome {
        ProbeOutcome::Found(backend) => Probed::clone(backend),
        ProbeOutcome::Missing { reason } => return Err(reason.clone()),
    };
    let mut ways = WAYS.lock().unwrap_or_else(PoisonError::into_inner);
    let hold_way = ways.entry(kind).or_insert_with(|| way_to_hold(&backend)).clone();
    Ok(Bench { backend, hold_way, memory_bytes: None, watcher: None })
}

/// The surest way to hold the streams of all the backend's devices.
fn way_to_hold(backend: &Probed) -> HoldWay {
    let kind = backend.id().kind;
    let driver = Driver::new(vec![Probed::clone(backend)]);
    let open = |index| driver.open(&DeviceSelector::index(kind, index)).unwrap();
    let devices: Vec<_> = backend.devices().iter().map(|info| open(info.index)).collect();
    // What completes on return cannot be held; a gate would hold the caller.
    let is_async = |device: &Device| device.capabilities().async_copies.is_available();
    let (way, words) = if devices.iter().all(|device| is_async(device) && spin_holds(device)) {
        (HoldWay::Spin, "by a kernel")
    } else if devices.iter().all(|device| is_async(device) && gate_holds(device)) {
        (HoldWay::OneGate, "by a gate")
    } else {
        (HoldWay::Load, "by load, which is no proof")
    };
    eprintln!("{kind}: work is held {words}");
    way
}
