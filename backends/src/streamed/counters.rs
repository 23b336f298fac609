//! What the adapter counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::first::FirstCopies;

/// Monotonic counts of one opening of the backend.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) mapped_segments: AtomicU64,
    pub(crate) plain_segments: AtomicU64,
    pub(crate) plain_for_want_of_mapping: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) batched_copies: AtomicU64,
    pub(crate) single_copies: AtomicU64,
    pub(crate) carried_copies: AtomicU64,
    pub(crate) cut_copies: AtomicU64,
    pub(crate) first: FirstCopies,
}

/// Reads the counters of one opening of a backend.
#[derive(Debug, Clone)]
pub struct CounterReader(pub(crate) Arc<Counters>);

impl CounterReader {
    /// The counts so far, over all devices of the opening.
    #[must_use]
    pub fn read(&self) -> Counts {
        self.0.read()
    }
}

/// A reading of the counters. All only ever rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Segments that are mapped memory: freed without waiting, and lent where asked for.
    pub mapped_segments: u64,
    /// Segments that are plain allocations: those smaller than a granule, and those counted next.
    pub plain_segments: u64,
    /// Plain allocations because the driver refused to map memory. The log says why.
    pub plain_for_want_of_mapping: u64,
    /// Calls that carried many copies.
    pub batches: u64,
    /// Copies that they carried.
    pub batched_copies: u64,
    /// Copies from the host, one call each.
    pub single_copies: u64,
    /// Small copies from pinned memory that a kernel carried.
    pub carried_copies: u64,
    /// Copies that were cut where registrations meet.
    pub cut_copies: u64,
    /// First copies out of a registration, of a mebibyte or more, that were timed: where the API is known for slow ones.
    pub first_copies: u64,
    /// Those among them that were slower than a third of the fastest.
    pub slow_first_copies: u64,
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> Counts {
        let (first_copies, slow_first_copies) = self.first.read();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            mapped_segments: read(&self.mapped_segments),
            plain_segments: read(&self.plain_segments),
            plain_for_want_of_mapping: read(&self.plain_for_want_of_mapping),
            batches: read(&self.batches),
            batched_copies: read(&self.batched_copies),
            single_copies: read(&self.single_copies),
            carried_copies: read(&self.carried_copies),
            cut_copies: read(&self.cut_copies),
            first_copies,
            slow_first_copies,
        }
    }
}
