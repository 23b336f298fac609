//! What is counted.

use crate::args::{self, sized};
use crate::cache::{CacheObject, spoc_cache};
use crate::entry;
use crate::handles;
use crate::status::spoc_status;
use ::spoc_cache::State;
use ::spoc_cache::stats::layout::Counter;

/// Figures of a cache. Counters only rise, and count for the whole pump, other caches on it included; the slots are
/// this cache's, now.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_stats {
    /// Set by the caller: `sizeof(spoc_stats)`.
    pub struct_size: usize,
    /// Keys requested: hits and misses.
    pub requested: u64,
    /// Keys that were resident when their set was judged.
    pub hits: u64,
    /// Keys that were not.
    pub misses: u64,
    /// Misses that joined a fill already running.
    pub joins: u64,
    /// Sets served or refused for their width.
    pub acquires: u64,
    /// Sets that failed because a fill of theirs did.
    pub acquires_failed: u64,
    /// Time from acquires that were not ready at once to their readiness, ns.
    pub stall_ns: u64,
    /// Fills whose last copy was enqueued.
    pub fills_done: u64,
    /// Fills that failed.
    pub fills_failed: u64,
    /// Bytes of the fills done.
    pub filled_bytes: u64,
    /// Groups evicted.
    pub evictions: u64,
    /// Bytes read, alignment slack included.
    pub read_bytes: u64,
    /// Bytes of which copies to the device were enqueued.
    pub copied_bytes: u64,
    /// Slots that hold nothing.
    pub slots_free: u64,
    /// Slots being filled.
    pub slots_loading: u64,
    /// Slots that hold a group that nobody leases.
    pub slots_resident: u64,
    /// Slots under a lease.
    pub slots_leased: u64,
    /// Slots whose last use on the device may still run.
    pub slots_draining: u64,
    /// Slots whose fill failed.
    pub slots_failed: u64,
    /// Leases out.
    pub leases: u64,
    /// Sets waiting for room.
    pub queued: u64,
}

sized!(spoc_stats);

/// Figures of a cache and its pump. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_cache_stats(cache: spoc_cache, stats: *mut spoc_stats) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<CacheObject>(cache.id)?;
        let counters = object.cache.counters();
        let snapshot = object.cache.snapshot();
        let slots = |state: State| snapshot.states.get(state as usize).copied().unwrap_or(0);
        let figures = spoc_stats {
            struct_size: size_of::<spoc_stats>(),
            requested: counters.get(Counter::Requested),
            hits: counters.get(Counter::Hits),
            misses: counters.get(Counter::Misses),
            joins: counters.get(Counter::Joins),
            acquires: counters.get(Counter::Acquires),
            acquires_failed: counters.get(Counter::AcquiresFailed),
            stall_ns: counters.get(Counter::StallNs),
            fills_done: counters.get(Counter::FillsDone),
            fills_failed: counters.get(Counter::FillsFailed),
            filled_bytes: counters.get(Counter::FilledBytes),
            evictions: counters.get(Counter::Evictions),
            read_bytes: counters.get(Counter::ReadBytes),
            copied_bytes: counters.get(Counter::CopiedBytes),
            slots_free: slots(State::Free),
            slots_loading: slots(State::Loading),
            slots_resident: slots(State::Resident),
            slots_leased: slots(State::Leased),
            slots_draining: slots(State::Draining),
            slots_failed: slots(State::Failed),
            leases: snapshot.leases,
            queued: snapshot.queued,
        };
        // SAFETY: as the header asks.
        unsafe { args::fill(stats, &figures) }
    })
}
