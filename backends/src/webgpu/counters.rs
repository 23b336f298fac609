//! What the adapter did, counted. All only ever rise.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one opening of the backend, over all its devices.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $(pub(super) $name: AtomicU64,)* }

        /// A reading of what the adapter did so far. All only ever rise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct WebGpuCounters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(super) fn read(&self) -> WebGpuCounters {
                WebGpuCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Submissions to the queue.
    submissions,
    /// Kernels that were recorded, the adapter's own not among them.
    launches,
    /// Pipelines that were made.
    pipelines,
    /// Bytes that went through the staging rings.
    staged_bytes,
    /// Words of which only some bytes were written.
    patched_words,
    /// Bytes that a kernel moved, where the API's copy cannot.
    moved_bytes,
    /// Times that a copy waited for room in a staging ring.
    ring_waits,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
