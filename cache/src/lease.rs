//! The right to use slots on a stream, and what comes before it.

use crate::cache::Shared;
use crate::engine::{Grant, SequenceWord, TicketState};
use crate::slots::NONE;
use crate::{Error, ErrorKind, Result};
use spoc_driver::{CaptureState, Segment, Stream};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What an acquire gives.
#[derive(Debug)]
#[must_use]
pub enum Acquire<S: Deref<Target = Stream>> {
    /// Everything was there.
    Ready(Lease<S>),
    /// Something is being read, or the set waits its turn.
    Pending(Pending<S>),
}

impl<S: Deref<Target = Stream>> Acquire<S> {
    /// The lease, waiting for reads if need be.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait(self) -> Result<Lease<S>> {
        match self {
            Acquire::Ready(lease) => Ok(lease),
            Acquire::Pending(pending) => pending.wait(),
        }
    }
}

/// A set on its way. Dropping it gives up: reads that nobody else wants are cancelled.
///
/// While it waits for its turn it holds nothing; from then on its slots are its own, and what is missing is
/// being read. It waits for the disk only: a lease is given as soon as the last copy is *enqueued*.
#[must_use]
pub struct Pending<S: Deref<Target = Stream>> {
    shared: Arc<Shared>,
    ticket: u32,
    stream: Option<S>,
}

impl<S: Deref<Target = Stream>> Pending<S> {
    pub(crate) fn new(shared: Arc<Shared>, ticket: u32, stream: S) -> Pending<S> {
        Pending { shared, ticket, stream: Some(stream) }
    }

    /// The lease if everything is there; itself again if not. Never blocks.
    ///
    /// # Errors
    /// Why a fill of the set failed, the same for everyone who waited for it; the stream's refusal.
    pub fn try_lease(mut self) -> Result<Acquire<S>> {
        let state = self.shared.with(|core| core.look(self.ticket));
        match state {
            TicketState::Reserved { loading: 0 } => self.lease().map(Acquire::Ready),
            TicketState::Failed(error) => Err(error),
            TicketState::Queued | TicketState::Reserved { .. } => Ok(Acquire::Pending(self)),
        }
    }

    /// Waits until [`try_lease`](Pending::try_lease) gives the lease, without touching the stream meanwhile: for
    /// a caller that shares the stream with others. `None` waits without end.
    ///
    /// # Errors
    /// Why a fill of the set failed; [`ErrorKind::TimedOut`].
    pub fn wait_ready(&self, timeout: Option<Duration>) -> Result<()> {
        // A deadline beyond what the clock counts is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.shared.wait_until(self.ticket, deadline)
    }

    /// Waits until everything has been read and its copies are enqueued.
    ///
    /// A thread that holds other leases while it waits keeps their slots from those before it in the queue;
    /// if these need them, both wait for ever.
    ///
    /// # Errors
    /// As [`try_lease`](Pending::try_lease).
    pub fn wait(mut self) -> Result<Lease<S>> {
        self.shared.wait_until(self.ticket, None)?;
        self.lease()
    }

    /// Like [`wait`](Pending::wait), giving up after `timeout`.
    ///
    /// # Errors
    /// As [`try_lease`](Pending::try_lease), and [`ErrorKind::TimedOut`].
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<Lease<S>> {
        self.shared.wait_until(self.ticket, Instant::now().checked_add(timeout))?;
        self.lease()
    }

    /// The ticket is ready.
    fn lease(&mut self) -> Result<Lease<S>> {
        let Some(stream) = self.stream.take() else { return Err(Error::new(ErrorKind::Closed)) };
        match self.shared.with(|core| core.grant(self.ticket, &stream)) {
            Ok(grant) => {
                self.ticket = NONE;
                Ok(Lease::new(Arc::clone(&self.shared), grant, stream))
            }
            // Dropping `self` gives the slots back.
            Err(error) => Err(error),
        }
    }
}

impl<S: Deref<Target = Stream>> Drop for Pending<S> {
    fn drop(&mut self) {
        if self.ticket != NONE {
            self.shared.with(|core| core.abandon(self.ticket));
        }
    }
}

impl<S: Deref<Target = Stream>> fmt::Debug for Pending<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// Where a leased group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The slot's number.
    pub slot: u32,
    /// Index of its segment in [`SlotCache::segments`](crate::SlotCache::segments).
    pub segment: u32,
    /// Offset in the segment, bytes; a multiple of 256.
    pub offset_bytes: u64,
    /// Device address, where the backend has such.
    pub address: Option<u64>,
}

/// The right to read slots in launches on the acquire stream (which waits for their copies on the device),
/// and on any stream ordered behind it.
///
/// Ends by [`release`](Lease::release) or by being dropped, which is a release on the acquire stream. Either
/// records events; the slots are filled anew only behind them. Writing to a leased slot is a defect of the
/// caller: other leases may share it.
#[must_use]
pub struct Lease<S: Deref<Target = Stream>> {
    shared: Arc<Shared>,
    grant: Option<Grant>,
    stream: S,
}

impl<S: Deref<Target = Stream>> Lease<S> {
    pub(crate) fn new(shared: Arc<Shared>, grant: Grant, stream: S) -> Lease<S> {
        Lease { shared, grant: Some(grant), stream }
    }

    fn wanted(&self) -> &[u32] {
        self.grant.as_ref().map_or(&[], |grant| &grant.wanted)
    }

    /// How many keys were asked for (duplicates count).
    #[must_use]
    pub fn len(&self) -> usize {
        self.wanted().len()
    }

    /// Whether no key was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wanted().is_empty()
    }

    /// Where the `index`-th key of the acquire is.
    #[must_use]
    pub fn slot(&self, index: usize) -> Option<Slot> {
        let grant = self.grant.as_ref()?;
        let slot = *grant.slots.get(*grant.wanted.get(index)? as usize)?;
        Some(self.shared.slot(slot))
    }

    /// Where each key is, in the order of the acquire.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.len()).filter_map(|index| self.slot(index))
    }

    /// The segment of the `index`-th key and its offset there, for copies and views.
    #[must_use]
    pub fn memory(&self, index: usize) -> Option<(Segment, u64)> {
        self.shared.memory(self.slot(index)?)
    }

    /// The stream it was acquired on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Ends the lease behind everything enqueued so far on these streams: all that used its slots. With none,
    /// nothing was launched. The acquire stream is not added by itself.
    ///
    /// # Errors
    /// If an event cannot be recorded. The slots are then kept aside, so nothing reads freed memory, until
    /// [`SlotCache::recover`](crate::SlotCache::recover).
    pub fn release(mut self, streams: &[&Stream]) -> Result<()> {
        self.end(streams)
    }

    /// Ends the lease when a word in host memory is at least `value`: a device writes it behind the launches, or a
    /// process that was lent the slots. Until then they stay leased; a cache that ends waits two seconds for it, and then
    /// leaves its memory allocated. Works on every backend; costs an allocation.
    pub fn release_at(mut self, word: Arc<dyn SequenceWord>, value: u64) {
        let Some(grant) = self.grant.take() else { return };
        self.shared.with(|core| {
            core.release_at_word(&grant.slots, word, value);
            core.retire_grant(grant);
        });
    }

    /// Ends the lease behind a 64-bit word in device memory that a launch raises to `value`: the next fill of its slots
    /// waits for that on the device.
    ///
    /// # Errors
    /// `Unsupported` where devices cannot wait for words; the device's refusals. The slots are then kept aside until
    /// [`SlotCache::recover`](crate::SlotCache::recover).
    pub fn release_behind(mut self, segment: &Segment, offset_bytes: u64, value: u64) -> Result<()> {
        let Some(grant) = self.grant.take() else { return Ok(()) };
        self.shared.with(|core| {
            let released = core.release_behind_word(&grant.slots, segment, offset_bytes, value);
            core.retire_grant(grant);
            released.map_err(Error::from)
        })
    }

    /// As a drop, on several streams; kept aside while one of them is captured.
    pub(crate) fn end_on(mut self, streams: &[&Stream], capturing: bool) {
        let Some(grant) = self.grant.take() else { return };
        give_back(&self.shared, grant, streams, capturing);
    }

    fn end(&mut self, streams: &[&Stream]) -> Result<()> {
        let Some(grant) = self.grant.take() else { return Ok(()) };
        self.shared.with(|core| {
            let released = core.release(&grant.slots, streams);
            core.retire_grant(grant);
            released.map_err(Error::from)
        })
    }
}

impl<S: Deref<Target = Stream> + Clone> Lease<S> {
    /// Splits off the keys from `at` on as a lease of their own, so that parts can end at different times.
    /// A key that both parts have stays leased until both have ended.
    pub fn split_off(&mut self, at: usize) -> Lease<S> {
        let mut part = Grant { ticket: NONE, slots: Vec::new(), wanted: Vec::new() };
        if let Some(grant) = &mut self.grant {
            let slots = &grant.slots;
            let tail = grant.wanted.split_off(at.min(grant.wanted.len()));
            // Slots are renumbered on both sides; shared ones are leased once more.
            let of = |wanted: &[u32]| {
                let mut own: Vec<u32> = wanted.iter().map(|&place| slots[place as usize]).collect();
                own.sort_unstable();
                own.dedup();
                own
            };
            let (left, right) = (of(&grant.wanted), of(&tail));
            let place =
                |own: &[u32], slot: u32| u32::try_from(own.partition_point(|&s| s < slot)).unwrap_or(NONE);
            part.wanted = tail.iter().map(|&at| place(&right, slots[at as usize])).collect();
            let wanted: Vec<u32> = grant.wanted.iter().map(|&at| place(&left, slots[at as usize])).collect();
            self.shared.with(|core| core.split(left.iter().filter(|slot| right.binary_search(slot).is_ok())));
            part.slots = right;
            grant.wanted = wanted;
            grant.slots = left;
        }
        Lease { shared: Arc::clone(&self.shared), grant: Some(part), stream: self.stream.clone() }
    }
}

impl<S: Deref<Target = Stream>> Drop for Lease<S> {
    fn drop(&mut self) {
        let Some(grant) = self.grant.take() else { return };
        // In a captured stream an event would belong to the graph and fire at each of its runs.
        let capturing = self.stream.is_capturing().is_ok_and(|state| state == CaptureState::Active);
        give_back(&self.shared, grant, &[&self.stream], capturing);
    }
}

/// Releases what nobody can be told an error about.
fn give_back(shared: &Shared, grant: Grant, streams: &[&Stream], capturing: bool) {
    shared.with(|core| {
        if capturing {
            core.quarantine(&grant.slots);
        } else if let Err(error) = core.release(&grant.slots, streams) {
            tracing::warn!(%error, "a dropped lease could not be ordered: its slots are kept aside");
        }
        core.retire_grant(grant);
    });
}

impl<S: Deref<Target = Stream>> fmt::Debug for Lease<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots().map(|slot| slot.slot)).finish()
    }
}
