//! From wanted extents to a list of reads: aligned, merged, cut to chunks, every byte read once.
//!
//! A read is aligned at both ends, so that it can be direct; the slack stays behind in the chunk, because each
//! [`Piece`] names the inner range that a target gets. Nothing here allocates per read: reads and pieces are counted
//! first, then written into vectors of exactly that size.

mod build;
mod filter;
mod slice;
mod split;

use std::ops::Range;
use std::sync::Arc;

pub use build::PlanBuilder;
pub use filter::TensorFilter;
pub use slice::SliceRuns;

use crate::BlockDigests;
use crate::file::WeightFile;

/// How to cut reads.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// Longest read in bytes, a multiple of 4096. Must not be above the reader's chunk. Default 1 MiB.
    pub chunk_bytes: u32,
    /// Unwanted bytes between two extents that are read along rather than split into two reads. Default 64 KiB, which a
    /// disk of 5 GB/s reads in the 13 µs that one more read costs; at most half a chunk has effect.
    pub gap_bytes: u32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { chunk_bytes: 1 << 20, gap_bytes: 64 << 10 }
    }
}

/// One read into one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRead {
    /// Position in [`ReadPlan::files`].
    pub file: u32,
    /// Aligned start in the file, in bytes.
    pub offset: u64,
    /// Aligned length in bytes; the last read of a file may reach past its end.
    pub len_bytes: u32,
    /// The part of the chunk that must arrive; never past the end of the file.
    pub need: Range<u32>,
    /// Positions in [`ReadPlan::pieces`].
    pub pieces: Range<u32>,
}

/// A range of a chunk that belongs to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Start in the chunk, in bytes.
    pub chunk_offset: u32,
    /// Length in bytes, above 0.
    pub len_bytes: u32,
    /// The caller's number for the target.
    pub target: u32,
    /// The caller's number for the device that the target lies on.
    pub device: u32,
    /// Start in the target, in bytes.
    pub target_offset: u64,
}

/// What to read, and where each byte goes.
#[derive(Debug)]
pub struct ReadPlan {
    files: Vec<Arc<WeightFile>>,
    reads: Vec<PlannedRead>,
    pieces: Vec<Piece>,
    empty_targets: Vec<u32>,
    wanted_bytes: u64,
    digests: Option<Arc<BlockDigests>>,
    chunk_bytes: u32,
}

impl ReadPlan {
    /// The files that [`PlannedRead::file`] counts in.
    #[must_use]
    pub fn files(&self) -> &[Arc<WeightFile>] {
        &self.files
    }

    /// The reads, in the order of file and offset.
    #[must_use]
    pub fn reads(&self) -> &[PlannedRead] {
        &self.reads
    }

    /// All pieces, grouped by read.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pieces of one read.
    #[must_use]
    pub fn pieces_of(&self, read: &PlannedRead) -> &[Piece] {
        self.pieces.get(read.pieces.start as usize..read.pieces.end as usize).unwrap_or_default()
    }

    /// Targets of extents without bytes, as often as they were added. No read completes them: they are complete.
    #[must_use]
    pub fn empty_targets(&self) -> &[u32] {
        &self.empty_targets
    }

    /// Sum of the wanted extents in bytes; bytes that several targets want count for each.
    #[must_use]
    pub fn wanted_bytes(&self) -> u64 {
        self.wanted_bytes
    }

    /// Sum of the reads in bytes, slack included.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.reads.iter().map(|r| u64::from(r.len_bytes)).sum()
    }

    /// What its reads are checked against.
    #[must_use]
    pub fn digests(&self) -> Option<&Arc<BlockDigests>> {
        self.digests.as_ref()
    }

    /// Longest read this plan may hold, in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }
}
