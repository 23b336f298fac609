//! A plan as several: one for each ring that reads a share of it.

use super::{Piece, PlannedRead, ReadPlan};

impl ReadPlan {
    /// The devices that want something of a read, each once, in ascending order.
    pub fn devices_of(&self, read: u32) -> impl Iterator<Item = u32> {
        let pieces = self.reads().get(read as usize).map(|read| self.pieces_of(read)).unwrap_or_default();
        let mut seen = 0u64;
        for piece in pieces {
            seen |= 1u64.checked_shl(piece.device).unwrap_or(0);
        }
        (0..u64::BITS).filter(move |device| seen & (1 << device) != 0)
    }

    /// The plan as several, read n going to plan `of(n)`, below `count`. Each has all files, and its reads in order.
    #[must_use]
    pub fn split(&self, count: usize, mut of: impl FnMut(&Self, u32) -> usize) -> Vec<Self> {
        let mut plans: Vec<Self> = (0..count).map(|_| self.empty_like()).collect();
        for (number, read) in (0u32..).zip(self.reads()) {
            if let Some(plan) = plans.get_mut(of(self, number)) {
                plan.push(read, self.pieces_of(read));
            }
        }
        plans
    }

    fn empty_like(&self) -> Self {
        Self {
            files: self.files.clone(),
            reads: Vec::new(),
            pieces: Vec::new(),
            empty_targets: Vec::new(),
            wanted_bytes: 0,
            digests: self.digests.clone(),
            chunk_bytes: self.chunk_bytes,
        }
    }

    fn push(&mut self, read: &PlannedRead, pieces: &[Piece]) {
        // Of a plan whose pieces were counted by the same number.
        let first = u32::try_from(self.pieces.len()).unwrap_or(u32::MAX);
        self.pieces.extend_from_slice(pieces);
        self.wanted_bytes += pieces.iter().map(|piece| u64::from(piece.len_bytes)).sum::<u64>();
        let end = first + (read.pieces.end - read.pieces.start);
        self.reads.push(PlannedRead { pieces: first..end, ..read.clone() });
    }
}
