//! Where the time of a load goes.

use crate::stats::Counters;
use crate::stats::layout::Counter;

/// Bytes and waiting of each stage on a byte's path. All figures rise.
///
/// A stage that waits is faster than the one it waits for: if the pump waits for reads, the disk is the
/// bottleneck; if it waits for copies and the reader for chunks, the link is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    /// Bytes read into chunks, alignment slack included.
    pub read_bytes: u64,
    /// Bytes copied to the device.
    pub copied_bytes: u64,
    /// Chunks whose copies were enqueued.
    pub chunks: u64,
    /// Copies enqueued.
    pub copies: u64,
    /// Time the pump had no copy on the device and waited for a read, ns.
    pub wait_reads_ns: u64,
    /// Time the pump waited for copies to run, ns.
    pub wait_copies_ns: u64,
    /// Time the reader had work and waited for a free chunk, ns.
    pub wait_chunks_ns: u64,
    /// Time spent enqueuing copies, ns.
    pub enqueue_ns: u64,
}

impl Stages {
    pub(super) fn read(counters: &Counters) -> Stages {
        Stages {
            read_bytes: counters.get(Counter::ReadBytes),
            copied_bytes: counters.get(Counter::CopiedBytes),
            chunks: counters.get(Counter::Chunks),
            copies: counters.get(Counter::Copies),
            wait_reads_ns: counters.get(Counter::WaitReadsNs),
            wait_copies_ns: counters.get(Counter::WaitCopiesNs),
            wait_chunks_ns: counters.get(Counter::WaitChunksNs),
            enqueue_ns: counters.get(Counter::EnqueueNs),
        }
    }

    /// What happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Stages) -> Stages {
        Stages {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            chunks: self.chunks.saturating_sub(earlier.chunks),
            copies: self.copies.saturating_sub(earlier.copies),
            wait_reads_ns: self.wait_reads_ns.saturating_sub(earlier.wait_reads_ns),
            wait_copies_ns: self.wait_copies_ns.saturating_sub(earlier.wait_copies_ns),
            wait_chunks_ns: self.wait_chunks_ns.saturating_sub(earlier.wait_chunks_ns),
            enqueue_ns: self.enqueue_ns.saturating_sub(earlier.enqueue_ns),
        }
    }

    /// The stage that the others waited for most: "read", "copy" or "enqueue".
    #[must_use]
    pub fn bottleneck(&self) -> &'static str {
        let copy = self.wait_copies_ns;
        if self.enqueue_ns > self.wait_reads_ns && self.enqueue_ns > copy {
            "enqueue"
        } else if copy > self.wait_reads_ns {
            "copy"
        } else {
            "read"
        }
    }
}
