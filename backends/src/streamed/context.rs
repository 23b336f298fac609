//! Contexts, and what the calling thread has to be while it uses them.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use spoc_driver::Result;

use super::error::{Api, kind_of};
use super::event::Event;
use super::gate::{Blocking, Gate};
use super::reaper::tell;
use super::stream::Lanes;
use super::table::{Code, Handle, Ordinal, Table};

/// A device's primary context, or one that was lent.
pub(crate) struct Context {
    raw: Handle,
    pub(crate) device: Ordinal,
    pub(crate) api: Arc<Api>,
    is_primary: bool,
    /// The streams of all openings that share the context.
    pub(crate) lanes: Lanes,
    /// Between their waits for words and calls that wait for the device.
    pub(crate) gate: Gate<Event>,
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
    pub(crate) fn primary(api: &Arc<Api>, device: Ordinal) -> Result<Arc<Self>> {
        const DOING: &str = "retaining a primary context";
        let raw = api.flavour.retain(device).map_err(|code| api.error(kind_of(code), code, DOING))?;
        Ok(Arc::new(Self::new(api, raw, device, true, None)))
    }

    /// Somebody else's context.
    ///
    /// # Safety
    /// It is live, and outlives `keep_alive`.
    pub(crate) unsafe fn lent(api: &Arc<Api>, raw: Handle, keep_alive: KeepAlive) -> Result<Arc<Self>> {
        let mut context = Self::new(api, raw, 0, false, keep_alive);
        let device = {
            let _here = context.enter()?;
            let error = |code| api.error(kind_of(code), code, "asking a context for its device");
            api.flavour.current_device().map_err(error)?
        };
        context.device = device;
        Ok(Arc::new(context))
    }

    fn new(api: &Arc<Api>, raw: Handle, device: Ordinal, is_primary: bool, keep_alive: KeepAlive) -> Self {
        let (lanes, gate) = Default::default();
        Self { raw, device, api: Arc::clone(api), is_primary, lanes, gate, _keep_alive: keep_alive }
    }

    /// Leave to make a call that waits for the device, or holds the caller back until it has it.
    pub(crate) fn block(&self, doing: &'static str) -> Blocking<'_, Event> {
        self.gate.block(doing, PATIENCE)
    }

    pub(crate) fn raw(&self) -> Handle {
        self.raw
    }

    /// Makes it the calling thread's context until the result is dropped, and then the one it had before.
    /// The thread spoils no capture of others meanwhile.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        // `self` holds a reference to the context, or its lender keeps it.
        let entered = self.api.flavour.enter(self.raw, self.device);
        let error = |code| self.api.error(kind_of(code), code, "making a context current");
        let before = entered.map_err(error)?;
        let relaxed = Relaxed::new(&self.api);
        Ok(Entered { api: &self.api, before, _relaxed: relaxed, _of_this_thread: PhantomData })
    }

    /// Ends what an earlier call made here, with the context current. That it failed can only be told; a forked
    /// child has nothing to end.
    pub(crate) fn end(&self, doing: &'static str, call: impl FnOnce(&Table) -> Code) {
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
        // Retained in `primary`, and given back once.
        let code = self.api.flavour.release(self.device);
        if let Err(error) = self.api.check(code, "releasing a primary context") {
            tracing::debug!(%error, "a context was not released");
        }
    }
}

/// A context is current.
pub(crate) struct Entered<'a> {
    api: &'a Api,
    before: Ordinal,
    _relaxed: Relaxed<'a>,
    /// Each thread has a stack of contexts of its own.
    _of_this_thread: PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Entered by `enter` on this thread, which the value cannot leave.
        let code = self.api.flavour.leave(self.before);
        if let Err(error) = self.api.check(code, "leaving a context") {
            tracing::debug!(%error, "a context is still current");
        }
    }
}

/// The calling thread may query, wait and allocate while another thread captures a stream. In the default
/// mode such calls are refused on every thread, and spoil the capture.
pub(crate) struct Relaxed<'a> {
    api: &'a Api,
    before: u32,
}

/// The mode of a thread that harms no capture.
const RELAXED: u32 = 2;

impl<'a> Relaxed<'a> {
    pub(crate) fn new(api: &'a Api) -> Self {
        Self { api, before: exchange(api, RELAXED) }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        exchange(self.api, self.before);
    }
}

/// Sets the thread's mode and answers the one it had.
fn exchange(api: &Api, mut mode: u32) -> u32 {
    // SAFETY: the call reads and writes the place.
    unsafe { (api.library.capture_mode)(&raw mut mode) };
    mode
}
