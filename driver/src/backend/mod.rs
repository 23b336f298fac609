//! The port: what an adapter implements, and nothing more.
//!
//! [`Backend`] is typed; [`erase`] hides the types behind [`DynBackend`], so that the rest of the crate
//! is not generic. The driver validates, an adapter checks nothing twice: when a method of [`Backend`] is
//! called, the handles belong to the device, ranges lie inside their memory, offsets and lengths are
//! multiples of the granule, and the capability's verdict is [`Verdict::Available`].
//!
//! What an adapter owes in return:
//! - Every method may be called from any thread, and none calls back into the driver.
//! - A handle is dropped only when nothing enqueued uses it, or after [`crate::ErrorKind::DeviceLost`].
//! - `synchronize_*` return when the work is over, also when they report that it failed.
//! - An error of a query that is neither `AsyncFailure` nor a lost device says nothing about the work.
//! - Once any call has returned `DeviceLost` or `ProcessLost`, nothing enqueued on that device touches host
//!   memory.
//! - Recording implies submitting: what batches, submits before `record_event` returns. A wait binds at the
//!   call to the latest record; the driver never asks about an event that was not recorded.
//! - Capabilities are found by doing, where doing is harmless: a success code proves nothing.
//! - "Allocated" means that the memory is there.

mod erased;
mod launch;
mod port;
mod types;

pub use crate::host::present::{Steps, cannot_be_asked, populate, populate_or_touch};
pub use erased::{DynBackend, DynCopyOp, Handle, Probed, erase};
pub use launch::{Launch, LaunchArgument};
pub use port::{Backend, CopyBatch, CopyOp, Foreign};
pub use types::{
    BackendId, BackendKind, Capabilities, CaptureState, DeviceInfo, DeviceUuid, Exported, HostMap, Limits,
    MemoryInfo, SegmentOptions, StreamOptions, StreamPriority, Verdict,
};
