//! What the adapter counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Monotonic counts of one opening of the backend.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) mapped_segments: AtomicU64,
    pub(super) plain_segments: AtomicU64,
    pub(super) plain_for_want_of_mapping: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) batched_copies: AtomicU64,
    pub(super) single_copies: AtomicU64,
    pub(super) carried_copies: AtomicU64,
}

/// A reading of the counters. All only ever rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaCounters {
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
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn read(&self) -> CudaCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CudaCounters {
            mapped_segments: read(&self.mapped_segments),
            plain_segments: read(&self.plain_segments),
            plain_for_want_of_mapping: read(&self.plain_for_want_of_mapping),
            batches: read(&self.batches),
            batched_copies: read(&self.batched_copies),
            single_copies: read(&self.single_copies),
            carried_copies: read(&self.carried_copies),
        }
    }
}
