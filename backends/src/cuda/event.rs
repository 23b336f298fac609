//! Events: the API's own. A wait binds when it is made, a query follows the latest record.

use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUevent_flags};
use spoc_driver::Result;

use super::context::{Context, Relaxed};
use super::error::NOT_READY;
use super::gate::Passing;
use super::stream::Lane;

/// An event. Without times, which make records five times as dear; waiting for it sleeps.
pub(super) struct Event {
    raw: CUevent,
    context: Arc<Context>,
}

// SAFETY: the API lets any thread use an event.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn create(context: &Arc<Context>) -> Result<Self> {
        let flags =
            CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut raw = std::ptr::null_mut();
        let _here = context.enter()?;
        // SAFETY: the place is valid, and the context is current.
        let code = unsafe { (context.api.library.event_create)(&raw mut raw, flags) };
        context.api.check(code, "creating a CUDA event")?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    pub(super) fn record(&self, lane: &Lane) -> Result<()> {
        lane.enqueue("recording a CUDA event", |stream| {
            // SAFETY: both are live and of one context.
            unsafe { (self.context.api.library.event_record)(self.raw, stream) }
        })
    }

    /// Makes later work of the stream wait.
    pub(super) fn hold(&self, lane: &Lane) -> Result<()> {
        lane.enqueue("waiting for a CUDA event on a stream", |stream| {
            // SAFETY: as above.
            unsafe { (self.context.api.library.stream_wait_event)(stream, self.raw, 0) }
        })
    }

    pub(super) fn query(&self) -> Result<bool> {
        let _relaxed = Relaxed::new(&self.context.api);
        // SAFETY: live while `self` is. A destroyed one would crash the process.
        let code = unsafe { (self.context.api.library.event_query)(self.raw) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.context.api.check(code, "querying a CUDA event").map(|()| true)
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        let _relaxed = Relaxed::new(&self.context.api);
        // SAFETY: as above.
        let code = unsafe { (self.context.api.library.event_synchronize)(self.raw) };
        self.context.api.check(code, "waiting for a CUDA event")
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
        if let Err(error) = self.context.api.check(code, "destroying a CUDA event") {
            super::reaper::tell(&error);
        }
    }
}
