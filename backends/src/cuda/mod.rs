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
//! - Kernels come in CUDA C (compiled by NVRTC, if that is installed; `SPOC_NVRTC` names it), in PTX, as machine
//!   code, or are the built-ins, which need no compiler. See `launch.rs` for how arguments are passed.
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

mod adapter;
mod built_ins;
mod carry;
mod context;
mod copy;
mod counters;
mod device;
mod error;
mod event;
mod gate;
mod host;
mod launch;
mod library;
mod memory;
mod module;
mod nvrtc;
mod reaper;
mod share;
mod stream;
mod survey;
mod trial;
mod vmm;

use std::sync::Arc;

use spoc_driver::backend::{Probed, erase};

pub use self::counters::CudaCounters;

/// Reads the counters of one opening of the backend.
#[derive(Debug, Clone)]
pub struct CounterReader(Arc<counters::Counters>);

impl CounterReader {
    /// The counts so far, over all devices of the opening.
    #[must_use]
    pub fn read(&self) -> CudaCounters {
        self.0.read()
    }
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
    let library = library::Library::load()?;
    // SAFETY: the flags must be zero.
    let code = unsafe { (library.init)(0) };
    if code != error::SUCCESS {
        return Err(format!("CUDA does not start: {}", error::CudaError::of(&library, code)));
    }
    let mut version = 0;
    // SAFETY: the place is valid.
    let code = unsafe { (library.driver_version)(&raw mut version) };
    if code != error::SUCCESS {
        return Err(format!("CUDA has no version: {}", error::CudaError::of(&library, code)));
    }
    let api = error::Api::new(library, version);
    let found = survey::Found::all(&api).map_err(|error| format!("no CUDA device: {error}"))?;
    if found.is_empty() {
        return Err("no CUDA device: the driver lists none".to_owned());
    }
    let cuda = adapter::Cuda::new(api, found);
    let reader = CounterReader(cuda.counters());
    Ok((erase(cuda), reader))
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
