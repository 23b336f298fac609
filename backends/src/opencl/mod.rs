//! OpenCL, every vendor's: any version from 1.2, loaded at run time.
//!
//! - A device is a context of its own. A stream is an in-order queue; how the default stream is ordered
//!   against blocking ones is told in `stream.rs`. Priorities are ignored: the core API has none.
//! - Everything is flushed as it is enqueued. No command but the end of a stream is given an event.
//! - Waiting sleeps until the runtime calls back; see `sleep.rs` for why.
//! - Device memory is filled with zeroes when it is allocated, because creating a buffer proves nothing.
//!   What is free is not the API's to say: it is what this adapter has not allocated, and where device
//!   memory is the machine's, no more than the machine can give.
//! - Kernels are OpenCL C 1.2: somebody's own, or translated from WGSL. Each is built once a device, when it is
//!   first launched, and kept on disk. A kernel's arguments are set and its launch enqueued behind a lock.
//! - Pinned memory is a mapped buffer, page-aligned. The API has no call that registers memory.
//! - Where the device has no UUID (`cl_khr_device_uuid`), one is derived from its names and its position.
//!
//! # Adopting
//! What is adopted is retained, and released when it is dropped; nothing of it is destroyed. The API cannot
//! tell a wrong pointer from a right one: those crash.
//!
//! | | word 0 | word 1 |
//! |---|---|---|
//! | context | `cl_context` | `cl_device_id`, or 0 if the context has one device |
//! | stream | `cl_command_queue`, in order | 1 for non-blocking, 0 for blocking |
//! | memory | `cl_mem`, a buffer | offset in it, in bytes |

mod adapter;
mod device;
mod error;
mod event;
mod handle;
mod info;
mod launch;
mod library;
mod memory;
mod program;
mod queue;
mod sleep;
mod stream;
mod trial;

use std::sync::{Arc, Mutex};

use spoc_driver::backend::{Probed, erase};

pub use handle::Objects;

/// Counts what a backend holds, for tests and reports.
#[derive(Clone)]
pub struct Census(Arc<handle::Api>);

impl Census {
    /// The API's objects that are alive now.
    #[must_use]
    pub fn objects(&self) -> Objects {
        self.0.objects()
    }
}

/// One survey at a time in a process: PoCL 3.1 crashes where two threads list its devices for the first time.
/// Holds no state.
static SURVEY: Mutex<()> = Mutex::new(());

/// Loads the API and looks for devices. Each call makes a backend of its own.
///
/// # Errors
/// A sentence for the operator: every library name tried, or every platform with what is wrong with it.
pub fn backend() -> Result<(Probed, Census), String> {
    let api = handle::Api::new(library::Library::load()?);
    let survey = {
        let _turn = crate::sync::lock(&SURVEY);
        device::Survey::of(&api).map_err(|error| format!("no OpenCL platform: {error}"))?
    };
    for remark in &survey.remarks {
        tracing::info!(remark, "an OpenCL device cannot be used");
    }
    if survey.devices.is_empty() {
        return Err(format!("no OpenCL device: {}", survey.remarks.join("; ")));
    }
    let census = Census(Arc::clone(&api));
    Ok((erase(adapter::OpenCl::new(api, survey.devices)), census))
}
