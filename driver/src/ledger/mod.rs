//! The keep-alive ledger of a device: which streams there are and what their work still needs.

mod in_flight;
mod payload;
mod users;

use std::sync::Arc;

pub(crate) use in_flight::InFlight;
pub(crate) use payload::Payload;

use crate::backend::{Handle, StreamOptions};
use crate::device::DeviceCore;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::segment::Segment;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::util::lock;

/// A stream as the ledger sees it. Outlives the user's handle while work is pending.
pub(crate) struct StreamCore {
    pub(crate) handle: Handle,
    pub(crate) id: u64,
    pub(crate) options: StreamOptions,
    pub(crate) in_flight: Arc<InFlight>,
    /// Held from the backend's call until the work has its entry, so that the order of the entries is the
    /// order of the stream. Uncontended but on the default stream, whose handles share one core.
    pub(crate) submission: Mutex<()>,
    /// Recorded by the driver itself when nobody waits for the stream; see `Stream::keep_short`.
    pub(crate) checkpoint: Mutex<Option<Event>>,
    is_orphan: AtomicBool,
}

impl StreamCore {
    pub(crate) fn new(handle: Handle, id: u64, options: StreamOptions) -> Self {
        Self {
            handle,
            id,
            options,
            in_flight: Arc::new(InFlight::new()),
            submission: Mutex::new(()),
            checkpoint: Mutex::new(None),
            is_orphan: AtomicBool::new(false),
        }
    }

    /// Waits until the stream is idle and retires what was enqueued before the call.
    pub(crate) fn synchronize(&self, core: &DeviceCore) -> Result<()> {
        let submitted = self.in_flight.submitted();
        let outcome = core.backend.synchronize_stream(&core.handle, &self.handle);
        // Over either way: the port promises it.
        self.in_flight.retire(submitted);
        self.note(outcome)?;
        self.in_flight.check()
    }

    /// Retires if the stream is idle; says whether it is.
    pub(crate) fn query(&self, core: &DeviceCore) -> Result<bool> {
        let submitted = self.in_flight.submitted();
        let outcome = core.backend.query_stream(&core.handle, &self.handle);
        if is_over(&outcome) {
            self.in_flight.retire(submitted);
        }
        let is_idle = self.note(outcome)?;
        self.in_flight.check().map(|()| is_idle)
    }

    fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| {
            if is_asynchronous(error) {
                self.in_flight.fail(error);
            }
        })
    }
}

/// Whether an error tells of work enqueued earlier, rather than of the call that returned it.
pub(crate) fn is_asynchronous(error: &Error) -> bool {
    *error.kind() == ErrorKind::AsyncFailure || error.is_device_lost()
}

/// Whether a query's answer means that the work will not run any more.
pub(crate) fn is_over(outcome: &Result<bool>) -> bool {
    match outcome {
        Ok(is_done) => *is_done,
        Err(error) => is_asynchronous(error),
    }
}

/// All streams of a device, and events to use again.
#[derive(Default)]
pub(crate) struct Ledger {
    streams: Mutex<Vec<Arc<StreamCore>>>,
    spare_events: Mutex<Vec<Event>>,
}

impl Ledger {
    pub(crate) fn add(&self, stream: &Arc<StreamCore>) {
        lock(&self.streams).push(Arc::clone(stream));
    }

    /// The user's handle is gone: the stream stays until its work is done.
    pub(crate) fn orphan(&self, stream: &Arc<StreamCore>, core: &DeviceCore) {
        stream.is_orphan.store(true, Ordering::Release);
        self.collect(core);
    }

    /// Retires what streams that are idle had kept, and lets orphans go. Waits for nothing.
    pub(crate) fn collect(&self, core: &DeviceCore) {
        // One at a time, without the lock: retiring drops sources, whose drops may create or drop streams.
        // Should the list change meanwhile, a stream may be left for the next time.
        let mut position = 0;
        while let Some(stream) = self.at(position) {
            position += 1;
            if (stream.in_flight.len() > 0 || stream.is_orphan.load(Ordering::Acquire))
                && let Err(error) = stream.query(core)
            {
                tracing::debug!(stream = stream.id, %error, "a stream has failed");
            }
        }
        let is_done =
            |stream: &StreamCore| stream.is_orphan.load(Ordering::Acquire) && stream.in_flight.len() == 0;
        let gone: Vec<_> = lock(&self.streams).extract_if(.., |stream| is_done(stream)).collect();
        drop(gone);
    }

    fn at(&self, position: usize) -> Option<Arc<StreamCore>> {
        lock(&self.streams).get(position).cloned()
    }

    /// Waits for every stream in turn and retires all that was enqueued before the call.
    pub(crate) fn flush(&self, core: &DeviceCore) -> Result<()> {
        let streams = lock(&self.streams).clone();
        let mut first_error = Ok(());
        for stream in &streams {
            first_error = first_error.and(stream.synchronize(core));
        }
        drop(streams);
        self.collect(core);
        first_error
    }

    /// Waits for the non-blocking streams whose work still uses the segment: the default stream does not.
    pub(crate) fn settle(&self, core: &DeviceCore, segment: &Segment) -> Result<()> {
        let users: Vec<_> = lock(&self.streams)
            .iter()
            .filter(|stream| stream.options.non_blocking && stream.in_flight.uses(segment))
            .cloned()
            .collect();
        users.iter().try_for_each(|stream| stream.synchronize(core))
    }

    /// Drops the events that the streams recorded for themselves.
    pub(crate) fn clear_checkpoints(&self) {
        let checkpoints: Vec<_> =
            lock(&self.streams).iter().map(|stream| lock(&stream.checkpoint).take()).collect();
        drop(checkpoints);
    }

    /// Retires everything: the device is idle, or lost.
    pub(crate) fn drain(&self) {
        let streams = std::mem::take(&mut *lock(&self.streams));
        for stream in &streams {
            stream.in_flight.retire(stream.in_flight.submitted());
        }
        lock(&self.spare_events).clear();
    }

    /// Gives up on memory that the device may still be using: leaked, never freed early.
    pub(crate) fn leak(&self) {
        for stream in std::mem::take(&mut *lock(&self.streams)) {
            std::mem::forget(stream);
        }
    }

    /// How many entries are not retired.
    pub(crate) fn len(&self) -> usize {
        lock(&self.streams).iter().map(|stream| stream.in_flight.len()).sum()
    }

    pub(crate) fn take_event(&self) -> Option<Event> {
        lock(&self.spare_events).pop()
    }

    pub(crate) fn give_event(&self, event: Event) {
        lock(&self.spare_events).push(event);
    }
}

#[cfg(test)]
mod tests;
