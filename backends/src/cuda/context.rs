//! Contexts, and what the calling thread has to be while it uses them.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{CUcontext, CUdevice, CUstreamCaptureMode};
use spoc_driver::Result;

use super::error::Api;
use super::event::Event;
use super::gate::{Blocking, Gate};
use super::library::{Code, Library};
use super::reaper::tell;
use super::stream::Lanes;

/// A device's primary context, or one that was lent.
pub(super) struct Context {
    raw: CUcontext,
    pub(super) device: CUdevice,
    pub(super) api: Arc<Api>,
    is_primary: bool,
    /// The streams of all openings that share the context.
    pub(super) lanes: Lanes,
    /// Between their waits for words and calls that wait for the device.
    pub(super) gate: Gate<Event>,
    // Last: what was lent goes after our use of it.
    _keep_alive: KeepAlive,
}

/// How long a call that waits for the device is put off because a stream waits for a word.
const PATIENCE: Duration = Duration::from_secs(1);

type KeepAlive = Option<Box<dyn Any + Send + Sync>>;

// SAFETY: the API lets any thread use a context.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context that everybody in the process shares, other libraries included.
    pub(super) fn primary(api: &Arc<Api>, device: CUdevice) -> Result<Arc<Self>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the place is valid; the device was enumerated.
        let code = unsafe { (api.library.primary_retain)(&raw mut raw, device) };
        api.check(code, "retaining a CUDA primary context")?;
        Ok(Arc::new(Self::new(api, raw, device, true, None)))
    }

    /// Somebody else's context.
    ///
    /// # Safety
    /// It is live, and outlives `keep_alive`.
    pub(super) unsafe fn lent(api: &Arc<Api>, raw: CUcontext, keep_alive: KeepAlive) -> Result<Arc<Self>> {
        let mut context = Self::new(api, raw, 0, false, keep_alive);
        let mut device = 0;
        {
            let _here = context.enter()?;
            // SAFETY: the place is valid, and the context is current.
            let code = unsafe { (api.library.context_device)(&raw mut device) };
            api.check(code, "asking a CUDA context for its device")?;
        }
        context.device = device;
        Ok(Arc::new(context))
    }

    fn new(
        api: &Arc<Api>,
        raw: CUcontext,
        device: CUdevice,
        is_primary: bool,
        keep_alive: KeepAlive,
    ) -> Self {
        let (lanes, gate) = Default::default();
        Self { raw, device, api: Arc::clone(api), is_primary, lanes, gate, _keep_alive: keep_alive }
    }

    /// Leave to make a call that waits for the device, or holds the caller back until it has it.
    pub(super) fn block(&self, doing: &'static str) -> Blocking<'_, Event> {
        self.gate.block(doing, PATIENCE)
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes it the calling thread's context until the result is dropped, and then the one it had before.
    /// The thread spoils no capture of others meanwhile.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        // SAFETY: `self` holds a reference to the context, or its lender keeps it.
        let code = unsafe { (self.api.library.context_push)(self.raw) };
        self.api.check(code, "making a CUDA context current")?;
        Ok(Entered { api: &self.api, _relaxed: Relaxed::new(&self.api), _of_this_thread: PhantomData })
    }

    /// Ends what an earlier call made here, with the context current. That it failed can only be told; a forked
    /// child has nothing to end.
    pub(super) fn end(&self, doing: &'static str, call: impl FnOnce(&Library) -> Code) {
        if !self.api.is_own_process() {
            return;
        }
        let outcome = self.enter().and_then(|_here| self.api.check(call(&self.api.library), doing));
        if let Err(error) = outcome {
            tell(&error);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_primary || !self.api.is_own_process() {
            return;
        }
        // SAFETY: retained in `primary`, and given back once.
        let code = unsafe { (self.api.library.primary_release)(self.device) };
        if let Err(error) = self.api.check(code, "releasing a CUDA primary context") {
            tracing::debug!(%error, "a CUDA context was not released");
        }
    }
}

/// A context is current.
pub(super) struct Entered<'a> {
    api: &'a Api,
    _relaxed: Relaxed<'a>,
    /// Each thread has a stack of contexts of its own.
    _of_this_thread: PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut before = std::ptr::null_mut();
        // SAFETY: pushed by `enter` on this thread, which the value cannot leave.
        let code = unsafe { (self.api.library.context_pop)(&raw mut before) };
        if let Err(error) = self.api.check(code, "leaving a CUDA context") {
            tracing::debug!(%error, "a CUDA context is still current");
        }
    }
}

/// The calling thread may query, wait and allocate while another thread captures a stream. In the default
/// mode such calls are refused on every thread, and spoil the capture.
pub(super) struct Relaxed<'a> {
    api: &'a Api,
    before: CUstreamCaptureMode,
}

impl<'a> Relaxed<'a> {
    pub(super) fn new(api: &'a Api) -> Self {
        let before = exchange(api, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        Self { api, before }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        exchange(self.api, self.before);
    }
}

/// Sets the thread's mode and answers the one it had.
fn exchange(api: &Api, mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    use CUstreamCaptureMode::{
        CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    };
    let mut place = mode as u32;
    // SAFETY: an enumeration of C is as wide as a `u32`; the call reads and writes it.
    unsafe { (api.library.capture_mode)((&raw mut place).cast()) };
    match place {
        1 => CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        2 => CU_STREAM_CAPTURE_MODE_RELAXED,
        _ => CU_STREAM_CAPTURE_MODE_GLOBAL,
    }
}
