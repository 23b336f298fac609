//! What one stream's enqueued work keeps alive: one entry a submission, retired by a rising sequence.

use std::collections::VecDeque;

use super::Payload;
use crate::error::{Error, Result};
use crate::host::PinUse;
use crate::segment::Segment;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::util::lock;

/// Entries a stream has room for before it has to allocate.
const INITIAL_ENTRIES: usize = 64;

/// The work of one stream that has not been retired.
pub(crate) struct InFlight {
    state: Mutex<State>,
    /// Everything up to here has been handed to the backend.
    submitted: AtomicU64,
    entries: AtomicUsize,
    failed: Mutex<Option<Error>>,
    has_failed: AtomicBool,
}

struct State {
    entries: VecDeque<Entry>,
    /// The segments of all entries in order; each entry knows how many are its own.
    segments: VecDeque<Segment>,
    /// Read-backs that have run and whose buffer nobody has fetched yet.
    fetchable: Vec<(u64, Payload)>,
    last_sequence: u64,
}

struct Entry {
    sequence: u64,
    payload: Payload,
    segments: usize,
    /// Kept for [`InFlight::fetch`] instead of being dropped.
    fetched_later: bool,
    _pin: Option<PinUse>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        let state = State {
            entries: VecDeque::with_capacity(INITIAL_ENTRIES),
            segments: VecDeque::with_capacity(INITIAL_ENTRIES),
            fetchable: Vec::new(),
            last_sequence: 0,
        };
        Self {
            state: Mutex::new(state),
            submitted: AtomicU64::new(0),
            entries: AtomicUsize::new(0),
            failed: Mutex::new(None),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Makes room for `entries` submissions with `segments` different segments among them.
    pub(crate) fn reserve(&self, entries: usize, segments: usize) {
        let mut state = lock(&self.state);
        let (more_entries, more_segments) =
            (entries.saturating_sub(state.entries.len()), segments.saturating_sub(state.segments.len()));
        state.entries.reserve(more_entries);
        state.segments.reserve(more_segments);
    }

    /// Enters a submission that the backend has taken, and answers its sequence. The stream's submission
    /// lock is held from before the backend's call until here, so entries are in stream order; a query that
    /// finds the stream idle in between retires only what [`InFlight::submitted`] said before it.
    pub(crate) fn enter<'s>(
        &self,
        payload: Payload,
        fetched_later: bool,
        segments: impl Iterator<Item = &'s Segment>,
        pin: Option<PinUse>,
    ) -> u64 {
        let mut state = lock(&self.state);
        let before = state.segments.len();
        for segment in segments {
            // Neighbouring ranges are mostly of one segment; keeping it once is enough.
            let is_known =
                state.segments.len() > before && state.segments.back().is_some_and(|s| s.is(segment));
            if !is_known {
                state.segments.push_back(segment.clone());
            }
        }
        state.last_sequence += 1;
        let sequence = state.last_sequence;
        let segments = state.segments.len() - before;
        state.entries.push_back(Entry { sequence, payload, segments, fetched_later, _pin: pin });
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.submitted.store(sequence, Ordering::Release);
        sequence
    }

    /// The sequence of the youngest submission that the backend has.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Lets go of everything up to `sequence`, oldest first. Values are dropped here, with no lock held:
    /// their drops may come back to the driver.
    pub(crate) fn retire(&self, sequence: u64) {
        loop {
            let mut state = lock(&self.state);
            let Some(entry) = state.entries.pop_front_if(|entry| entry.sequence <= sequence) else { return };
            self.entries.fetch_sub(1, Ordering::Relaxed);
            let Entry { payload, segments, fetched_later, _pin, .. } = entry;
            let payload = if fetched_later {
                state.fetchable.push((entry.sequence, payload));
                None
            } else {
                Some(payload)
            };
            drop(state);
            // Also when another thread retires at the same time, each drops as many as it has popped.
            for _ in 0..segments {
                let segment = lock(&self.state).segments.pop_front();
                drop(segment);
            }
            drop(payload);
        }
    }

    /// Takes the value of a retired submission that was entered with `fetched_later`.
    pub(crate) fn fetch(&self, sequence: u64) -> Option<Payload> {
        let mut state = lock(&self.state);
        let position = state.fetchable.iter().position(|(of, _)| *of == sequence)?;
        Some(state.fetchable.swap_remove(position).1)
    }

    /// Nobody will fetch that value any more.
    pub(crate) fn forget(&self, sequence: u64) {
        let mut state = lock(&self.state);
        let pending = state.entries.binary_search_by_key(&sequence, |entry| entry.sequence);
        if let Ok(position) = pending {
            if let Some(entry) = state.entries.get_mut(position) {
                entry.fetched_later = false;
            }
            return;
        }
        drop(state);
        drop(self.fetch(sequence));
    }

    /// Whether an entry keeps this segment.
    pub(crate) fn uses(&self, segment: &Segment) -> bool {
        lock(&self.state).segments.iter().any(|kept| kept.is(segment))
    }

    /// How many entries are not retired.
    pub(crate) fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Remembers the first asynchronous failure.
    pub(crate) fn fail(&self, error: &Error) {
        lock(&self.failed).get_or_insert_with(|| error.clone());
        self.has_failed.store(true, Ordering::Release);
    }

    /// The failure, once there is one.
    ///
    /// # Errors
    /// That failure.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }
}
