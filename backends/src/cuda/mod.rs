//! NVIDIA CUDA, by the driver's own interface, loaded at run time: no toolkit is needed to build or to run.
//!
//! - A device is opened by its **primary context**, which everybody in the process shares. It is kept for as
//!   long as the backend. Streams are the API's; the default stream is the context's legacy one, which the
//!   API itself orders against blocking streams. Waiting sleeps.
//! - Calls that the API refuses while another thread captures a stream (queries, waits, allocations) are made
//!   in its relaxed mode, so that they neither fail nor spoil the capture. The default stream is not touched
//!   while a blocking stream is captured: `Capturing`.
//! - Device memory from 2 MiB on is mapped physical memory at addresses of its own, which can be lent where
//!   asked for; smaller segments, and all where the driver refuses to map, are plain allocations.
//! - Freeing plain allocations waits for the whole device, so a thread of its own does it. Unregistering does not leave the
//!   caller: the memory may be unmapped right after it.
//! - Host memory is registered for every device of the process at once, in parts where the driver refuses a
//!   large range; copies are split where parts meet.
//! - Many copies go in one call where the driver has it (CUDA 12.8); small ones from pinned memory are carried
//!   by a kernel.
//! - Kernels come in WGSL or CUDA C (compiled by NVRTC, if that is installed; `SPOC_NVRTC` names it), in PTX, as
//!   machine code, or are built-ins, of which five need no compiler. See `streamed/launch.rs` for how arguments are
//!   passed.
//! - What HIP does in the same way is in `streamed/`.
//! - A fault on the device ends every context of the process: `ProcessLost`.
//!
//! # Adopting
//! Nothing that is adopted is destroyed; its owner keeps it for longer than `keep_alive`. A pointer that is
//! none, or of something that was destroyed, is a crash within the driver and no error.
//!
//! | | word 0 |
//! |---|---|
//! | context | `CUcontext` |
//! | stream | `CUstream` of that context; 0 and 1 are its default stream, 2 (a thread's own) is refused |
//! | memory | `CUdeviceptr`; the length is the caller's word, which the API cannot check for mapped memory |

mod built_ins;
mod flavour;
mod library;
mod nvrtc;
mod signatures;

use spoc_driver::BackendKind;
use spoc_driver::backend::Probed;

pub use crate::streamed::{CounterReader, Counts as CudaCounters};

/// The family.
struct Family;

impl crate::streamed::adapter::Family for Family {
    const KIND: BackendKind = BackendKind::Cuda;
}

/// Loads the driver's library and looks for devices. Opens none.
///
/// # Errors
/// Why there is none, for the person who expected one.
pub fn backend() -> Result<Probed, String> {
    backend_with_counters().map(|(probed, _)| probed)
}

/// As [`backend`], with the counters of this opening.
///
/// # Errors
/// As [`backend`].
pub fn backend_with_counters() -> Result<(Probed, CounterReader), String> {
    let (table, own) = library::load()?;
    let cuda = flavour::Cuda(own);
    let version = cuda.start()?;
    crate::streamed::start::<Family>(table, Box::new(cuda), version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_a_sentence() {
        match backend() {
            Err(reason) => {
                assert!(reason.contains("CUDA"), "{reason}");
                assert!(!reason.contains('\n'), "{reason}");
            }
            Ok(probed) => assert!(!probed.devices().is_empty()),
        }
    }
}
