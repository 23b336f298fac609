//! From a checked map to reads: what several devices want is read once.

use std::ops::Range;
use std::sync::Arc;

use super::CheckedMap;
use super::check::CheckedEntry;
use crate::{BlockDigests, Extent, Model, PlanBuilder, PlanOptions, ReadPlan, Result};

/// What a map moves, before anything is moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read from files, alignment slack and small gaps included.
    pub read_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// For each device, bytes that go over its link.
    pub link_bytes: Vec<u64>,
    /// For each device, bytes of its targets.
    pub target_bytes: Vec<u64>,
    /// For each device, bytes that no other device gets.
    pub own_bytes: Vec<u64>,
}

impl CheckedMap {
    /// Entries in the order of their files, cut where a part of at most `pieces_max` pieces ends (a tensor is never
    /// divided, and has a part of its own if it has more): what is planned at a time, so that a plan's memory, about 40
    /// bytes a piece, is bounded. Two plans read the block of the file at their border twice, and no other byte.
    #[must_use]
    pub fn parts(&self, pieces_max: usize) -> Vec<Vec<u32>> {
        let mut order: Vec<u32> = (0u32..).zip(&self.entries).map(|(number, _)| number).collect();
        let entry = |number: &u32| &self.entries[*number as usize];
        // Tensors have their numbers in the order of files and offsets.
        order.sort_by_key(|number| (entry(number).tensor, *number));
        let mut parts: Vec<Vec<u32>> = Vec::new();
        let mut pieces = 0;
        for of_tensor in order.chunk_by(|a, b| entry(a).tensor == entry(b).tensor) {
            let more: usize = of_tensor.iter().map(|number| entry(number).piece_count()).sum();
            match parts.last_mut() {
                Some(part) if pieces + more <= pieces_max => {
                    part.extend(of_tensor);
                    pieces += more;
                }
                _ => {
                    parts.push(of_tensor.to_vec());
                    pieces = more;
                }
            }
        }
        parts
    }

    /// The reads of these entries. A piece's target is the position of its target in the map.
    ///
    /// # Errors
    /// Those of [`PlanBuilder::build`] and, with digests, of [`PlanBuilder::check_against`].
    pub fn plan(
        &self,
        model: &Model,
        entries: &[u32],
        options: PlanOptions,
        digests: Option<&Arc<BlockDigests>>,
    ) -> Result<ReadPlan> {
        let mut builder = PlanBuilder::new(model.files(), options);
        if let Some(digests) = digests {
            builder.check_against(digests)?;
        }
        for entry in entries.iter().filter_map(|number| self.entries.get(*number as usize)) {
            let device = self.targets[entry.target as usize].device;
            for (file, offset, place, len_bytes) in entry.pieces() {
                builder.add_on(device, entry.target, Extent { file, offset, len_bytes }, place)?;
            }
        }
        builder.build()
    }

    /// What goes over each link.
    ///
    /// # Errors
    /// As of [`CheckedMap::plan`].
    pub fn traffic(&self, model: &Model, options: PlanOptions) -> Result<Traffic> {
        const PIECES_MAX: usize = 1 << 18;
        let blank = || vec![0; self.devices as usize];
        let mut traffic =
            Traffic { link_bytes: blank(), target_bytes: blank(), own_bytes: blank(), ..Traffic::default() };
        for target in &self.targets {
            traffic.target_bytes[target.device as usize] += target.len_bytes;
        }
        for part in self.parts(PIECES_MAX) {
            let plan = self.plan(model, &part, options, None)?;
            traffic.reads += plan.reads().len() as u64;
            traffic.read_bytes += plan.read_bytes();
            for piece in plan.pieces() {
                traffic.link_bytes[piece.device as usize] += u64::from(piece.len_bytes);
            }
            for read in plan.reads() {
                count_own(plan.pieces_of(read), &mut traffic.own_bytes);
            }
        }
        Ok(traffic)
    }
}

/// Bytes of a read that one device alone wants.
fn count_own(pieces: &[crate::Piece], own_bytes: &mut [u64]) {
    let mut edges: Vec<(u32, bool, u32)> = Vec::with_capacity(2 * pieces.len());
    for piece in pieces {
        edges.push((piece.chunk_offset, true, piece.device));
        edges.push((piece.chunk_offset + piece.len_bytes, false, piece.device));
    }
    edges.sort_unstable();
    let mut open: Vec<(u32, u32)> = Vec::new();
    let mut before = 0;
    for (at, begins, device) in edges {
        if let [(only, _)] = open[..] {
            own_bytes[only as usize] += u64::from(at - before);
        }
        before = at;
        match (open.iter().position(|(open, _)| *open == device), begins) {
            (Some(place), true) => open[place].1 += 1,
            (Some(place), false) => {
                open[place].1 -= 1;
                if open[place].1 == 0 {
                    open.swap_remove(place);
                }
            }
            (None, _) => open.push((device, 1)),
        }
    }
}

impl CheckedEntry {
    fn piece_count(&self) -> usize {
        let runs = self.runs.count();
        let rows = self.pitch.map_or(0, |pitch| self.runs.len_bytes() / pitch.row_bytes);
        usize::try_from(runs.max(rows)).unwrap_or(usize::MAX >> 1)
    }
}

/// Rows of a dimension of `count` that rank `rank` of `ranks` gets.
pub(super) fn share(count: u64, ranks: u32, rank: u32) -> Option<Range<u64>> {
    let each = count.checked_div(ranks.into()).filter(|each| each * u64::from(ranks) == count)?;
    Some(each * u64::from(rank)..each * (u64::from(rank) + 1))
}
