//! Pinned host memory cut into berths, each as wide as a slot: what a host tier keeps groups in.
//!
//! A berth goes home by itself when nobody holds it any more, a copy under way among the holders: memory is charged for
//! as long as the device may touch it, and no longer.

use crate::{RingMemory, Rung};
use spoc_driver::{CopyRange, ErrorKind, Event, HostSink, HostSource, Segment, Stream};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One piece of pinned memory, of which berths are cut.
struct Memory {
    ring: RingMemory,
    bytes: u64,
    /// Being given back: its berths do not go home.
    leaving: AtomicBool,
}

/// A place in one of them.
struct Spot {
    memory: Arc<Memory>,
    offset: usize,
}

#[derive(Default)]
struct State {
    unused: Vec<Spot>,
    memories: Vec<Arc<Memory>>,
}

/// Berths of one width.
pub struct Berths {
    stride: usize,
    state: Mutex<State>,
}

impl Berths {
    /// None yet, of `stride_bytes` each.
    #[must_use]
    pub fn new(stride_bytes: usize) -> Arc<Berths> {
        Arc::new(Berths { stride: stride_bytes.max(1), state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No call under this lock leaves the lists half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts a piece of memory into berths, unless it is not pinned: copies of it would block.
    ///
    /// # Errors
    /// Why it is not pinned.
    pub fn add(&self, ring: RingMemory) -> Result<(), String> {
        if ring.rung() == Rung::Pageable {
            let why = ring.missed().iter().map(|missed| format!("{}: {}", missed.rung, missed.reason));
            return Err(why.collect::<Vec<_>>().join("; "));
        }
        let bytes = ring.len_bytes;
        let memory = Arc::new(Memory { ring, bytes: bytes as u64, leaving: AtomicBool::new(false) });
        let spots = (0..bytes / self.stride)
            .rev()
            .map(|berth| Spot { memory: Arc::clone(&memory), offset: berth * self.stride });
        let mut state = self.lock();
        state.unused.extend(spots);
        state.memories.push(memory);
        Ok(())
    }

    /// A berth that nobody holds.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<Berth> {
        let spot = self.lock().unused.pop()?;
        Some(Berth { spot: Some(spot), home: Arc::clone(self) })
    }

    /// Bytes of all pieces of memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().memories.iter().map(|memory| memory.bytes).sum()
    }

    /// How many berths there are, in use or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().memories.iter().map(|memory| memory.ring.len_bytes / self.stride).sum()
    }

    /// Gives back whole pieces until at least `bytes` are on their way, or none is left. What is kept in them must be let go
    /// ([`Kept::is_leaving`]); the last holder frees a piece, and the answer is one: drop it where that may take a while.
    #[must_use]
    pub fn give_back(&self, bytes: u64) -> GivenBack {
        let mut state = self.lock();
        let mut given = GivenBack { memories: Vec::new() };
        while given.bytes() < bytes {
            let Some(memory) = state.memories.pop() else { break };
            memory.leaving.store(true, Ordering::Relaxed);
            given.memories.push(memory);
        }
        state.unused.retain(|spot| !spot.memory.leaving.load(Ordering::Relaxed));
        given
    }
}

impl fmt::Debug for Berths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Berths").field("stride", &self.stride).field("bytes", &self.bytes()).finish()
    }
}

/// Memory on its way back to the system.
pub struct GivenBack {
    memories: Vec<Arc<Memory>>,
}

impl GivenBack {
    /// How much.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memories.iter().map(|memory| memory.bytes).sum()
    }
}

/// The right to one berth: nobody else has it.
pub struct Berth {
    /// Empty while it is being dropped.
    spot: Option<Spot>,
    home: Arc<Berths>,
}

impl Berth {
    fn ptr(&self) -> *mut u8 {
        // A spot is taken out by the drop alone.
        self.spot
            .as_ref()
            .map_or(std::ptr::null_mut(), |spot| spot.memory.ring.ptr.as_ptr().wrapping_add(spot.offset))
    }

    fn is_leaving(&self) -> bool {
        self.spot.as_ref().is_none_or(|spot| spot.memory.leaving.load(Ordering::Relaxed))
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        let Some(spot) = self.spot.take() else { return };
        let mut state = self.home.lock();
        // Looked at under the lock, or it could go home after the others were taken away.
        if !spot.memory.leaving.load(Ordering::Relaxed) {
            state.unused.push(spot);
        } else {
            drop(state);
            drop(spot);
        }
    }
}

/// The first bytes of a berth in the hands of a copy.
struct Part {
    berth: Arc<Berth>,
    len_bytes: usize,
}

// SAFETY: a berth is `stride` bytes of zeroed memory that stays mapped and in place while the spot holds it (RingMemory's
// promise), and `Kept` makes parts of no more than that. Unmodified: `Kept::demote` makes the only writer of a berth,
// before any reader; `Kept::copy_to` makes readers, and none before the host saw that writer's event.
unsafe impl HostSource for Part {
    fn as_ptr(&self) -> *const u8 {
        self.berth.ptr()
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

// SAFETY: as above; used once a berth, by `Kept::demote`, which took the berth by value: there is no other writer, the host
// never looks at the bytes, and copies that read them are made after the writer's event was seen.
unsafe impl HostSink for Part {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.berth.ptr()
    }
}

/// Bytes of a slot in a berth, or on their way there.
pub struct Kept {
    berth: Arc<Berth>,
    len_bytes: usize,
    /// Recorded behind the copy into the berth.
    written: Event,
}

impl Kept {
    /// Enqueues the copy of `len_bytes` bytes of a segment into a berth, and an event behind it. The ledger holds the berth
    /// until the copy has run.
    ///
    /// # Errors
    /// `len_bytes` beyond the berth's; what the driver says of the range and of the copy.
    pub fn demote(
        stream: &Stream,
        (segment, offset_bytes): (&Segment, u64),
        len_bytes: usize,
        berth: Berth,
    ) -> spoc_driver::Result<Kept> {
        if len_bytes > berth.home.stride {
            let size_bytes = berth.home.stride as u64;
            let kind = ErrorKind::OutOfBounds { offset_bytes: 0, len_bytes: len_bytes as u64, size_bytes };
            return Err(spoc_driver::Error::new(kind, "copying into a berth"));
        }
        let written = stream.device().create_event()?;
        let berth = Arc::new(berth);
        let part = Part { berth: Arc::clone(&berth), len_bytes };
        let pending = stream.copy_to_host(segment, offset_bytes, part).map_err(|returned| returned.error)?;
        // The part belongs to the ledger: nobody is to fetch it.
        drop(pending);
        stream.record(&written)?;
        Ok(Kept { berth, len_bytes, written })
    }

    /// Enqueues the copy back to device memory. The ledger holds the berth until it has run.
    ///
    /// # Errors
    /// `InFlight` before [`is_there`](Kept::is_there): an adapter may look at a source as soon as it gets it. What the driver
    /// says of the copies in and out.
    pub fn copy_to(&self, stream: &Stream, dst: &Segment, dst_offset: u64) -> spoc_driver::Result<()> {
        if !self.written.query()? {
            return Err(spoc_driver::Error::new(ErrorKind::InFlight, "copying out of a berth"));
        }
        let part = Part { berth: Arc::clone(&self.berth), len_bytes: self.len_bytes };
        let range = CopyRange { src_offset: 0, dst, dst_offset, len_bytes: self.len_bytes };
        stream.copy_to_device(part, &[range]).map_err(|returned| returned.error)
    }

    /// The event behind the copy into the berth: once it has fired, the segment's range was read.
    #[must_use]
    pub fn written(&self) -> &Event {
        &self.written
    }

    /// Whether the bytes are there.
    ///
    /// # Errors
    /// The copy that was to write them failed.
    pub fn is_there(&self) -> spoc_driver::Result<bool> {
        self.written.query()
    }

    /// How many bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Its memory is being given back.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.berth.is_leaving()
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("len_bytes", &self.len_bytes).finish_non_exhaustive()
    }
}
