//! The API's reference-counted objects, released when dropped, and a count of those alive.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use opencl_sys::cl_int;
use spoc_driver::Result;

use super::error::check;
use super::library::Library;
use super::sleep::Sleepers;

/// The functions, and what was made with them.
pub(super) struct Api {
    pub(super) library: Library,
    pub(super) sleepers: Sleepers,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    contexts: AtomicUsize,
    queues: AtomicUsize,
    buffers: AtomicUsize,
    events: AtomicUsize,
    programs: AtomicUsize,
    kernels: AtomicUsize,
}

/// How many of the API's objects the adapter holds a reference to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Objects {
    /// Contexts, one an opened device.
    pub contexts: usize,
    /// Command queues: the streams, and two of the device's own.
    pub queues: usize,
    /// Buffers: device memory and pinned host memory.
    pub buffers: usize,
    /// Events: the latest record of each event, and the latest end of each stream.
    pub events: usize,
    /// Programs, one a kernel that was launched on a device, for as long as the device is open.
    pub programs: usize,
    /// Kernels, as many.
    pub kernels: usize,
}

impl Api {
    pub(super) fn new(library: Library) -> Arc<Self> {
        Arc::new(Self { library, sleepers: Sleepers::default(), counts: Counts::default() })
    }

    pub(super) fn objects(&self) -> Objects {
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Objects {
            contexts: read(&self.counts.contexts),
            queues: read(&self.counts.queues),
            buffers: read(&self.counts.buffers),
            events: read(&self.counts.events),
            programs: read(&self.counts.programs),
            kernels: read(&self.counts.kernels),
        }
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident: $count:ident, $retain:ident, $release:ident);* $(;)?) => { $(
        $(#[$doc])*
        pub(super) struct $name {
            raw: *mut c_void,
            api: Arc<Api>,
        }

        // SAFETY: the API is thread-safe for everything but kernel arguments, which are set behind a lock.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        #[allow(dead_code)]
        impl $name {
            /// Takes over a reference.
            ///
            /// # Safety
            /// `raw` is such an object, and the caller owns the reference.
            pub(super) unsafe fn owned(api: &Arc<Api>, raw: *mut c_void) -> Self {
                api.counts.$count.fetch_add(1, Ordering::Relaxed);
                Self { raw, api: Arc::clone(api) }
            }

            /// Adds a reference.
            ///
            /// # Safety
            /// `raw` is such an object, and alive.
            pub(super) unsafe fn retained(api: &Arc<Api>, raw: *mut c_void) -> Result<Self> {
                // SAFETY: the caller's word.
                let code: cl_int = unsafe { (api.library.$retain)(raw) };
                check(code, "sharing an OpenCL object")?;
                // SAFETY: the reference was added just above.
                Ok(unsafe { Self::owned(api, raw) })
            }

            /// Another reference to the same object.
            pub(super) fn share(&self) -> Result<Self> {
                // SAFETY: `self` holds a reference.
                unsafe { Self::retained(&self.api, self.raw) }
            }

            /// The API's pointer, alive while `self` is.
            pub(super) fn raw(&self) -> *mut c_void {
                self.raw
            }

            pub(super) fn api(&self) -> &Arc<Api> {
                &self.api
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: this value owns one reference, and gives it back here.
                let code: cl_int = unsafe { (self.api.library.$release)(self.raw) };
                self.api.counts.$count.fetch_sub(1, Ordering::Relaxed);
                if let Err(error) = check(code, "releasing an OpenCL object") {
                    tracing::error!(object = stringify!($name), %error, "an OpenCL object is leaked");
                }
            }
        }
    )* };
}

handles! {
    /// What devices, queues and buffers belong to.
    Context: contexts, retain_context, release_context;
    /// A command queue; in order, unless it is another library's.
    Queue: queues, retain_command_queue, release_command_queue;
    /// A buffer.
    Mem: buffers, retain_mem_object, release_mem_object;
    /// The end of one command.
    Signal: events, retain_event, release_event;
    /// A compiled program.
    Program: programs, retain_program, release_program;
    /// A function of one, and the arguments that it was given: used behind a lock.
    Kernel: kernels, retain_kernel, release_kernel;
}
