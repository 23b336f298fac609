//! Events: the API's own. A wait binds when it is made, a query follows the latest record.

use std::sync::Arc;

use spoc_driver::Result;

use super::context::{Context, Relaxed};
use super::error::NOT_READY;
use super::gate::Passing;
use super::stream::Lane;
use super::table::Handle;

/// Whoever waits sleeps.
const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;

/// An event. Without times, which make records five times as dear; waiting for it sleeps.
pub(crate) struct Event {
    raw: Handle,
    context: Arc<Context>,
}

// SAFETY: the API lets any thread use an event.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, BLOCKING_SYNC | DISABLE_TIMING)
    }

    /// One that keeps the time of its record.
    pub(crate) fn create_timed(context: &Arc<Context>) -> Result<Self> {
        Self::with_flags(context, BLOCKING_SYNC)
    }

    fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let _here = context.enter()?;
        // SAFETY: the place is valid, and the context is current.
        let code = unsafe { (context.api.library.event_create)(&raw mut raw, flags) };
        context.api.check(code, "creating an event")?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    /// The time from this record to that of another, both reached, both of timed events.
    pub(crate) fn seconds_to(&self, end: &Self) -> Result<f64> {
        let mut milliseconds = 0.0;
        let elapsed = self.context.api.library.event_elapsed;
        // SAFETY: the place is valid; both are live.
        let code = unsafe { elapsed(&raw mut milliseconds, self.raw, end.raw) };
        self.context.api.check(code, "asking for the time between events")?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    pub(crate) fn record(&self, lane: &Lane) -> Result<()> {
        lane.enqueue("recording an event", |stream| {
            // SAFETY: both are live and of one context.
            unsafe { (self.context.api.library.event_record)(self.raw, stream) }
        })
    }

    /// Makes later work of the stream wait.
    pub(crate) fn hold(&self, lane: &Lane) -> Result<()> {
        lane.enqueue("waiting for an event on a stream", |stream| {
            // SAFETY: as above.
            unsafe { (self.context.api.library.stream_wait_event)(stream, self.raw, 0) }
        })
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let _relaxed = Relaxed::new(&self.context.api);
        // SAFETY: live while `self` is. A destroyed one would crash the process.
        let code = unsafe { (self.context.api.library.event_query)(self.raw) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.context.api.check(code, "querying an event").map(|()| true)
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        let _relaxed = Relaxed::new(&self.context.api);
        // SAFETY: as above.
        let code = unsafe { (self.context.api.library.event_synchronize)(self.raw) };
        self.context.api.check(code, "waiting for an event")
    }
}

impl Passing for Event {
    fn is_past(&self) -> bool {
        self.query().unwrap_or(true)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.context.api.is_own_process() {
            return;
        }
        // SAFETY: created here, destroyed once; waits that were made hold all the same.
        let code = unsafe { (self.context.api.library.event_destroy)(self.raw) };
        if let Err(error) = self.context.api.check(code, "destroying an event") {
            super::reaper::tell(&error);
        }
    }
}
