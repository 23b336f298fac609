//! Reads that end where their bytes belong, and in no chunk.
//!
//! A read fills one unbroken stretch of memory, from its aligned start in the file to its aligned end. So it can go
//! straight into targets that lie in memory as they lie in the file, with room around them for what an aligned read
//! brings along. Everything else goes through a chunk and is copied on.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::{PlannedRead, ReadPlan};

/// Where a target of a plan lies in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// Its first byte.
    pub start: NonNull<u8>,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Bytes in front of it that a read may fill with what the file has there.
    pub before_bytes: u64,
    /// The same behind it.
    pub after_bytes: u64,
}

/// Targets that a [`crate::Reader`] may fill itself.
///
/// # Safety
/// From the moment the value is given to a reader until it is dropped:
/// - a spot never changes; its bytes and those around it are mapped, initialised, readable and writable;
/// - two spots with their surroundings overlap only if both lie to each other as their extents do in one file, so that
///   whatever fills a byte fills it alike;
/// - nobody else writes those bytes, and nobody reads them but through the [`crate::Chunk`] that came for them, before
///   the request has had its last completion.
pub unsafe trait HostTargets: Send + Sync + 'static {
    /// Where this target is; `None` if only a copy reaches it.
    fn spot(&self, target: u32) -> Option<Spot>;
}

/// Where each read of a request goes, of those that need no chunk.
pub(crate) struct Placed {
    targets: Arc<dyn HostTargets>,
    /// Null for a read that takes a chunk.
    at: Box<[*mut u8]>,
}

// SAFETY: the addresses are those of `targets`, which may be used from any thread and is kept beside them.
unsafe impl Send for Placed {}
// SAFETY: as above.
unsafe impl Sync for Placed {}

impl Placed {
    /// Finds out for every read of the plan whether it can go in place.
    pub(super) fn new(plan: &ReadPlan, targets: Arc<dyn HostTargets>) -> Self {
        let place = |read| linear(plan, read, &*targets).unwrap_or(std::ptr::null_mut());
        let at = plan.reads().iter().map(place).collect();
        Self { targets, at }
    }

    /// Whether every read goes in place, direct ones too: then none needs a chunk.
    pub(super) fn serves_all(&self, plan: &ReadPlan) -> bool {
        let step = |read: &PlannedRead| plan.files()[read.file as usize].direct_step() as usize;
        let fits = |(at, read): (&*mut u8, _)| !at.is_null() && at.addr().is_multiple_of(step(read));
        self.at.len() == plan.reads().len() && self.at.iter().zip(plan.reads()).all(fits)
    }

    /// Where the read goes; a direct one needs memory at a multiple of `align_bytes`.
    pub(super) fn landing(&self, read: u32, align_bytes: Option<u32>) -> Option<Landing> {
        let start = NonNull::new(*self.at.get(read as usize)?)?;
        let fits = align_bytes.is_none_or(|align| start.addr().get().is_multiple_of(align.max(1) as usize));
        fits.then(|| Landing { start, targets: Arc::clone(&self.targets) })
    }
}

/// Whether every read of the plan can go straight to its targets. The plan's reads may then be longer than the reader's
/// chunks, see [`Reader::submit_in_place`](crate::Reader::submit_in_place).
#[must_use]
pub fn goes_in_place(plan: &ReadPlan, targets: &Arc<dyn HostTargets>) -> bool {
    Placed::new(plan, Arc::clone(targets)).serves_all(plan)
}

/// Memory of targets for one read.
pub(super) struct Landing {
    pub(super) start: NonNull<u8>,
    pub(super) targets: Arc<dyn HostTargets>,
}

/// The address of the read's first byte, if all of its bytes may lie behind it as they do in the file.
fn linear(plan: &ReadPlan, read: &PlannedRead, targets: &dyn HostTargets) -> Option<*mut u8> {
    let mut start = None;
    // How far the read is accounted for, and how much more of it may be filled along.
    let (mut done, mut room) = (0, 0);
    for piece in plan.pieces_of(read) {
        let spot = targets.spot(piece.target)?;
        let end = piece
            .target_offset
            .checked_add(u64::from(piece.len_bytes))
            .filter(|end| *end <= spot.len_bytes)?;
        let own = spot.start.as_ptr().wrapping_add(usize::try_from(piece.target_offset).ok()?);
        let from = own.wrapping_sub(piece.chunk_offset as usize);
        if *start.get_or_insert(from) != from {
            return None;
        }
        let gap = u64::from(piece.chunk_offset.checked_sub(done)?);
        let before = if piece.target_offset == 0 { spot.before_bytes } else { 0 };
        // The first piece answers for what is in front of it, every other one together with the one before it.
        let may = if done == 0 { before } else { before.min(room) };
        if gap > may {
            return None;
        }
        done = piece.chunk_offset + piece.len_bytes;
        room = if end == spot.len_bytes { spot.after_bytes } else { 0 };
    }
    let behind = u64::from(read.len_bytes.checked_sub(done)?);
    start.filter(|_| behind <= room)
}
