//! Ordered device queues.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::{CaptureState, Handle, StreamOptions};
use crate::device::{Device, DeviceCore};
use crate::error::Result;
use crate::event::Event;
use crate::host::PinUse;
use crate::ledger::{Payload, StreamCore};
use crate::segment::Segment;
use crate::util::lock;

/// Entries a stream may have before the driver looks for itself how far it has come.
const ENTRIES_UNWATCHED: usize = 1024;

/// An ordered queue of device work, used by one thread at a time. Bare verbs enqueue and return.
///
/// Dropping a stream cancels nothing: its pending work belongs to the device's ledger. A failure of
/// enqueued work is sticky: every later call on the stream reports it.
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<spoc_driver::Stream>();
/// ```
/// ```
/// fn send<T: Send>() {}
/// send::<spoc_driver::Stream>();
/// ```
pub struct Stream {
    core: Arc<StreamCore>,
    device: Device,
    /// One thread submits at a time.
    _not_sync: PhantomData<Cell<()>>,
}

impl Stream {
    pub(crate) fn new(device: Device, core: Arc<StreamCore>) -> Self {
        Self { core, device, _not_sync: PhantomData }
    }

    pub(crate) fn core(&self) -> &StreamCore {
        &self.core
    }

    pub(crate) fn core_arc(&self) -> &Arc<StreamCore> {
        &self.core
    }

    pub(crate) fn device_core(&self) -> &Arc<DeviceCore> {
        self.device.core()
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A number that no other stream of the device has; 0 is the default stream.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.core.id
    }

    /// How it was made.
    #[must_use]
    pub fn options(&self) -> StreamOptions {
        self.core.options
    }

    /// Makes room for `in_flight_max` submissions that have not been retired, each with up to
    /// `segments_each` changes of segment, so that submitting allocates nothing.
    pub fn reserve(&self, in_flight_max: usize, segments_each: usize) {
        self.core.in_flight.reserve(in_flight_max, in_flight_max.saturating_mul(segments_each));
    }

    /// Records the event after everything enqueued so far.
    ///
    /// # Errors
    /// `WrongDevice`; the stream's sticky failure; what the backend answers.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.device_core().check_same(event.core(), "recording an event")?;
        self.keep_short();
        let _turn = lock(&self.core.submission);
        self.record_locked(event)
    }

    /// Records while the caller holds the submission lock.
    pub(crate) fn record_locked(&self, event: &Event) -> Result<()> {
        event.record_with(&self.core.in_flight, |handle| {
            // The API may need the event until it fires, so the ledger keeps it as it keeps sources.
            self.submit(Payload::new(event.clone()), [].iter(), |core, stream| {
                core.backend.record_event(&core.handle, stream, handle)
            })
        })
    }

    /// Makes everything enqueued from now on wait for the event's latest record, on the device.
    ///
    /// # Errors
    /// `NotRecorded`: some APIs would silently wait for nothing; `WrongDevice`; the stream's sticky failure.
    pub fn wait(&self, event: &Event) -> Result<()> {
        const DOING: &str = "waiting for an event on a stream";
        self.device_core().check_same(event.core(), DOING)?;
        self.keep_short();
        let _turn = lock(&self.core.submission);
        event.while_recorded(DOING, |handle| {
            self.submit(Payload::new(event.clone()), [].iter(), |core, stream| {
                core.backend.wait_event(&core.handle, stream, handle)
            })
        })?;
        Ok(())
    }

    /// Waits until the stream is idle, and lets go of all that its work kept.
    ///
    /// # Errors
    /// The failure of enqueued work.
    pub fn synchronize(&self) -> Result<()> {
        self.device.hand_over_launches();
        self.core.synchronize(self.device_core())
    }

    /// Whether the stream is idle. If so, lets go of all that its work kept.
    ///
    /// # Errors
    /// The failure of enqueued work.
    pub fn query(&self) -> Result<bool> {
        self.device.hand_over_launches();
        self.core.query(self.device_core())
    }

    /// Whether the stream is being recorded into a graph. Asked of a borrowed stream before anything is
    /// enqueued on it: some calls would spoil the recording.
    ///
    /// # Errors
    /// `Unsupported`; what the backend answers.
    pub fn is_capturing(&self) -> Result<CaptureState> {
        let core = self.device_core();
        core.backend.capture_state(&core.handle, &self.core.handle)
    }

    /// Enqueues setting a range to one byte.
    ///
    /// # Errors
    /// `Unsupported` (see `fill`); `WrongDevice`; `OutOfBounds`; `Misaligned`; the sticky failure.
    pub fn fill(&self, dst: &Segment, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<()> {
        const DOING: &str = "filling a segment";
        let core = self.device_core();
        core.require("fill", &core.capabilities.fill)?;
        core.check_same(dst.core(), DOING)?;
        dst.check(offset_bytes, len_bytes, DOING)?;
        if len_bytes == 0 {
            // APIs refuse an empty fill.
            return Ok(());
        }
        self.keep_short();
        let _turn = lock(&self.core.submission);
        self.submit(Payload::new(()), [dst].into_iter(), |core, stream| {
            // SAFETY: the ledger keeps the segment until the stream has passed; the range was checked.
            unsafe { core.backend.fill(&core.handle, stream, (dst.buffer(), offset_bytes), len_bytes, value) }
        })?;
        Ok(())
    }

    /// Enqueues writing a 64-bit word (little endian, 8-byte aligned) after everything before it.
    ///
    /// # Errors
    /// `Unsupported` (see `write_value`); `WrongDevice`; `OutOfBounds`; `Misaligned`; the sticky failure.
    pub fn write_value(&self, dst: &Segment, offset_bytes: u64, value: u64) -> Result<()> {
        let core = self.device_core();
        core.require("write_value", &core.capabilities.write_value)?;
        self.check_word(dst, offset_bytes, "writing a word")?;
        self.keep_short();
        let _turn = lock(&self.core.submission);
        self.submit(Payload::new(()), [dst].into_iter(), |core, stream| {
            // SAFETY: as in `fill`.
            unsafe { core.backend.write_value(&core.handle, stream, (dst.buffer(), offset_bytes), value) }
        })?;
        Ok(())
    }

    /// Makes everything enqueued from now on wait until a 64-bit word is at least `value`.
    ///
    /// # Errors
    /// `Unsupported` (see `wait_value`); `WrongDevice`; `OutOfBounds`; `Misaligned`; the sticky failure.
    pub fn wait_value(&self, src: &Segment, offset_bytes: u64, value: u64) -> Result<()> {
        let core = self.device_core();
        core.require("wait_value", &core.capabilities.wait_value)?;
        self.check_word(src, offset_bytes, "waiting for a word")?;
        self.keep_short();
        let _turn = lock(&self.core.submission);
        self.submit(Payload::new(()), [src].into_iter(), |core, stream| {
            // SAFETY: as in `fill`.
            unsafe { core.backend.wait_value(&core.handle, stream, (src.buffer(), offset_bytes), value) }
        })?;
        Ok(())
    }

    fn check_word(&self, segment: &Segment, offset_bytes: u64, doing: &'static str) -> Result<()> {
        self.device_core().check_same(segment.core(), doing)?;
        segment.check(offset_bytes, 8, doing)?;
        crate::util::check_aligned(offset_bytes, 8, doing)
    }

    /// Hands one operation to the backend and enters it. The caller holds the submission lock, and the
    /// operation enqueues nothing if it fails.
    pub(crate) fn submit<'s>(
        &self,
        payload: Payload,
        segments: impl Iterator<Item = &'s Segment>,
        enqueue: impl FnOnce(&DeviceCore, &Handle) -> Result<()>,
    ) -> Result<u64> {
        self.core.in_flight.check()?;
        enqueue(self.device_core(), &self.core.handle)?;
        Ok(self.enter(payload, false, segments, None))
    }

    /// What comes before every submission: launches that the window holds go first. And lets go of old entries
    /// where nobody else does: a stream that is never waited for or queried must not
    /// keep everything it ever copied. Called before submissions, with no lock held, for sources may drop.
    pub(crate) fn keep_short(&self) {
        self.device.hand_over_launches();
        self.bound_entries();
    }

    pub(crate) fn bound_entries(&self) {
        if self.core.in_flight.len() < ENTRIES_UNWATCHED {
            return;
        }
        let checkpoint = lock(&self.core.checkpoint).take();
        if let Some(event) = checkpoint {
            match event.query() {
                Ok(false) => *lock(&self.core.checkpoint) = Some(event),
                // Reached, and what came before it is retired. A failure is the stream's to report.
                Ok(true) | Err(_) => self.device.ledger().give_event(event),
            }
            return;
        }
        // A capture may not be queried; whoever captures waits for the graph instead.
        if matches!(self.is_capturing(), Ok(CaptureState::Active | CaptureState::Spoiled)) {
            return;
        }
        let event = self.device.ledger().take_event().map_or_else(|| self.device.create_event(), Ok);
        let recorded = event.and_then(|event| {
            let _turn = lock(&self.core.submission);
            self.record_locked(&event).map(|()| event)
        });
        match recorded {
            Ok(event) => *lock(&self.core.checkpoint) = Some(event),
            Err(error) => tracing::debug!(stream = self.core.id, %error, "no checkpoint could be recorded"),
        }
    }

    pub(crate) fn enter<'s>(
        &self,
        payload: Payload,
        fetched_later: bool,
        segments: impl Iterator<Item = &'s Segment>,
        pin: Option<PinUse>,
    ) -> u64 {
        self.device_core().counters.submissions.fetch_add(1, Ordering::Relaxed);
        self.core.in_flight.enter(payload, fetched_later, segments, pin)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.core.id != 0 {
            self.device.ledger().orphan(&self.core, self.device.core());
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.id()).field("options", &self.options()).finish()
    }
}
