//! A backend for tests: enqueued work runs only when the test says so.
//!
//! [`backend`] gives the backend and its [`FakeControl`]. Copies move real bytes, but not before
//! [`FakeControl::step`], [`FakeControl::run_until`] or [`FakeControl::run_all`] lets them. The control
//! also fails allocations, pins and copies, loses the device, and keeps a list of violations: memory that
//! was freed or changed while enqueued work still needed it. Freed device memory, and the memory of dropped
//! [`FakeSource`]s, is poisoned and kept, so that such a mistake is a finding and never luck. A failed copy
//! fails its stream, and every stream that waits for an event after it.
//!
//! A host wait (`synchronize`, default-stream copies) blocks until the test has let the work run, or runs
//! it itself ([`WaitMode`]). Dropping the last handle of a device always runs what is left.
//!
//! ```
//! use spoc_driver::{BackendKind, CopyRange, DeviceSelector, Driver, StreamOptions, fake};
//!
//! let (probed, control) = fake::backend();
//! let device = Driver::new(vec![probed]).open(&DeviceSelector::index(BackendKind::Fake, 0))?;
//! let stream = device.create_stream(StreamOptions::default())?;
//! let (segment, event) = (device.allocate(4)?, device.create_event()?);
//! let range = CopyRange { src_offset: 0, dst: &segment, dst_offset: 0, len_bytes: 4 };
//! stream.copy_to_device(vec![1, 2, 3, 4], &[range])?;
//! stream.record(&event)?;
//! assert!(!event.query()?);
//! control.run_until(&event);
//! assert!(event.query()?);
//! assert_eq!(control.peek(&segment, 0, 4), [1, 2, 3, 4]);
//! assert_eq!(control.violations(), [""; 0]);
//! # Ok::<(), spoc_driver::Error>(())
//! ```

mod adapter;
mod control;
mod ops;
mod source;
mod state;

use std::sync::Arc;

pub use control::{FakeControl, FakeStream, Live, Step};
pub use source::FakeSource;
pub use state::WaitMode;

use crate::backend::{Capabilities, Limits, Probed, Verdict, erase};
use state::World;

/// What the fake devices are like.
#[derive(Debug, Clone)]
pub struct FakeOptions {
    /// How many devices.
    pub devices: u32,
    /// Memory of each, in bytes.
    pub memory_bytes: u64,
    /// Bounds of each.
    pub limits: Limits,
    /// Verdicts of each; what the fake cannot do stays refused.
    pub capabilities: Capabilities,
    /// NUMA node of each.
    pub numa_node: Option<u32>,
    /// What host waits do at the beginning.
    pub wait_mode: WaitMode,
}

impl Default for FakeOptions {
    fn default() -> Self {
        let mut capabilities = Capabilities::all(&Verdict::unavailable("the fake backend has none"));
        for offered in [
            &mut capabilities.async_copies,
            &mut capabilities.pageable_async,
            &mut capabilities.pinned_alloc,
            &mut capabilities.host_register,
            &mut capabilities.write_value,
            &mut capabilities.wait_value,
            &mut capabilities.copy_many,
            &mut capabilities.fill,
            &mut capabilities.device_address,
            &mut capabilities.stream_capture,
        ] {
            *offered = Verdict::Available;
        }
        Self {
            devices: 1,
            memory_bytes: 1 << 30,
            limits: Limits {
                segment_bytes_max: 1 << 30,
                binding_bytes_max: 1 << 30,
                copy_granule_bytes: 1,
                address_align_bytes: 4096,
                export_granule_bytes: 1,
                free_waits_for_device: false,
            },
            capabilities,
            numa_node: Some(0),
            wait_mode: WaitMode::Block,
        }
    }
}

/// One fake device of 1 GiB.
#[must_use]
pub fn backend() -> (Probed, FakeControl) {
    backend_with(FakeOptions::default())
}

/// Fake devices as the test wants them.
#[must_use]
pub fn backend_with(options: FakeOptions) -> (Probed, FakeControl) {
    let world = Arc::new(World::new(options));
    (erase(adapter::Fake::new(Arc::clone(&world))), FakeControl::new(world))
}
