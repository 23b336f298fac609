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
        pub struct VulkanCounters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(super) fn read(&self) -> VulkanCounters {
                VulkanCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Submissions to a queue.
    submissions,
    /// Command buffers that were made: constant once the deepest queue has been seen.
    command_buffers,
    /// Kernels that were recorded.
    launches,
    /// Submissions that held kernels.
    batches,
    /// Pipelines that were made.
    pipelines,
    /// Bytes copied between pinned host memory and the device, by the device alone.
    direct_bytes,
    /// Bytes that the processor copied to or from the staging buffer, for host memory that is not pinned.
    staged_bytes,
    /// Stream waits that needed nothing: same queue, or reached already.
    waits_elided,
    /// Stream waits that a submission carried.
    waits_submitted,
    /// Releases that had to be put off until enqueued work had completed.
    releases_deferred,
    /// Messages of the validation layer, when it is on.
    validation_messages,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
