//! Many small copies from pinned memory, by a kernel that reads it: a copy of its own costs the API as much as
//! moving 100 KiB, so at 16 KiB a chunk the copy engine reaches a tenth of the link, and a kernel nearly all.
//!
//! The copies are named in the launch's own arguments, so that there is no table to keep until it has run.

use spoc_driver::backend::{CopyBatch, CopyOp};
use spoc_driver::{Grid, Result};

use super::counters::add;
use super::device::Shared;
use super::launch::submit_places;
use super::memory::Buffer;
use super::module::Function;
use super::stream::Lane;

/// Copies of at least this on average are the copy engine's: it is as fast then, and leaves the processors of the
/// device to others (H200, GB/s by kernel and by batch: 51 and 27 at 16 KiB, 51 and 53 at 64 KiB).
const MEAN_BYTES_MAX: usize = 64 << 10;

/// The same where the API cannot take copies in batches, and one by one they reach 34 GB/s at 256 KiB.
const UNBATCHED_MEAN_BYTES_MAX: usize = 512 << 10;

/// As in the kernel's text. All of it has to fit into the 4 KiB of a launch's arguments.
pub(crate) const PIECES_MAX: usize = 338;

/// As in the text for launches with 32,764 bytes of arguments. The device stands still for some microseconds from
/// one launch to the next, which at 16 KiB a piece is a fifth of the time with the shorter list.
pub(crate) const WIDE_PIECES_MAX: usize = 2728;

/// Longer copies are cut, so that no group is left with more than others. A multiple of every unit.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// About two a processor of a large device, each with 16 KiB under way: less does not fill the link.
const GROUPS_MAX: u32 = 256;

/// Addresses are distances from a base in words of this many bytes.
const WORD_BYTES: u64 = 4;

/// Threads of a group.
const GROUP: u32 = 256;

/// The kernel's argument.
#[repr(C)]
struct Pieces<const MAX: usize> {
    from: u64,
    to: u64,
    from_words: [u32; MAX],
    to_words: [u32; MAX],
    bytes: [u32; MAX],
    count: u32,
}

const _: () = assert!(size_of::<Pieces<PIECES_MAX>>() <= 4096);
const _: () = assert!(size_of::<Pieces<WIDE_PIECES_MAX>>() <= 32_764);

/// The kernel in its two sizes.
#[derive(Clone, Copy)]
pub(crate) struct Carrier {
    pub(crate) narrow: Function,
    /// Where the driver and the device take as many arguments.
    pub(crate) wide: Option<Function>,
}

/// The kernel, if it serves for these copies: small, from pinned memory, and alike in alignment.
pub(crate) fn serves(
    shared: &Shared,
    batch: &CopyBatch<'_, Buffer>,
    total_bytes: usize,
    has_batches: bool,
) -> Option<Carrier> {
    let mean_max = if has_batches { MEAN_BYTES_MAX } else { UNBATCHED_MEAN_BYTES_MAX };
    let does = batch.len() > 1
        && total_bytes / batch.len() < mean_max
        && shared.found.facts.same_addresses
        && batch.iter().all(|op| is_aligned(&op) && shared.registrations.holds(op.src.addr(), op.len_bytes));
    if does { shared.modules.carrier() } else { None }
}

/// Byte by byte the kernel would be slower than anything.
fn is_aligned(op: &CopyOp<'_, Buffer>) -> bool {
    (op.src.addr() as u64 ^ op.dst.at(op.dst_offset)).is_multiple_of(4)
}

/// Enqueues the copies.
///
/// # Safety
/// As the port's, for each of them.
pub(crate) unsafe fn all(
    shared: &Shared,
    lane: &Lane,
    carrier: Carrier,
    batch: &CopyBatch<'_, Buffer>,
) -> Result<()> {
    let outcome = match carrier.wide.filter(|_| batch.len() > PIECES_MAX) {
        // SAFETY: the caller's word.
        Some(function) => unsafe { list::<WIDE_PIECES_MAX>(lane, function, batch) },
        // SAFETY: the caller's word.
        None => unsafe { list::<PIECES_MAX>(lane, carrier.narrow, batch) },
    };
    outcome?;
    add(&shared.counters.carried_copies, batch.len());
    Ok(())
}

/// # Safety
/// As [`all`]; the function is the one for lists of so many.
unsafe fn list<const MAX: usize>(
    lane: &Lane,
    function: Function,
    batch: &CopyBatch<'_, Buffer>,
) -> Result<()> {
    let mut pieces = Pieces::<MAX>::new();
    for op in batch.iter() {
        let mut offset = 0;
        while offset < op.len_bytes {
            let len = PIECE_BYTES_MAX.min(op.len_bytes - offset);
            let from = op.src.wrapping_add(offset).expose_provenance() as u64;
            let to = op.dst.at(op.dst_offset + offset as u64);
            if !pieces.push(from, to, len) {
                // SAFETY: the caller keeps sources and buffers.
                unsafe { pieces.submit(lane, function) }?;
                // An empty list takes any.
                pieces.push(from, to, len);
            }
            offset += len;
        }
    }
    // SAFETY: as above.
    unsafe { pieces.submit(lane, function) }
}

impl<const MAX: usize> Pieces<MAX> {
    fn new() -> Self {
        let none = [0; MAX];
        Self { from: 0, to: 0, from_words: none, to_words: none, bytes: none, count: 0 }
    }

    /// Adds one; false if there is no room, or if it is too far from the first. Both addresses are the same
    /// number of bytes past a word.
    fn push(&mut self, from: u64, to: u64, len: usize) -> bool {
        let past = from % WORD_BYTES;
        if self.count == 0 {
            // In the middle of what can be reached.
            let half = u64::from(u32::MAX / 2) * WORD_BYTES;
            (self.from, self.to) = ((from - past).saturating_sub(half), (to - past).saturating_sub(half));
        }
        let words = |address: u64, base: u64| {
            let distance = (address - past).checked_sub(base)?;
            u32::try_from(distance / WORD_BYTES).ok()
        };
        let at = self.count as usize;
        let (Some(from), Some(to)) = (words(from, self.from), words(to, self.to)) else { return false };
        if at == MAX {
            return false;
        }
        (self.from_words[at], self.to_words[at]) = (from, to);
        // Pieces are no longer than `PIECE_BYTES_MAX`, and `past` is below four.
        self.bytes[at] = u32::try_from(len).unwrap_or(0) | u32::try_from(past << 30).unwrap_or(0);
        self.count += 1;
        true
    }

    /// Launches what there is, and empties the list.
    ///
    /// # Safety
    /// Every piece names live memory until the launch has run.
    unsafe fn submit(&mut self, lane: &Lane, function: Function) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let grid = Grid { groups: [self.count.min(GROUPS_MAX), 1, 1], group: [GROUP, 1, 1] };
        // SAFETY: the kernel takes this one structure, which the API copies; the caller's word for the rest.
        let outcome = unsafe { submit_places(lane, function, grid, &mut [std::ptr::from_mut(self).cast()]) };
        self.count = 0;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_full_when_it_is() {
        let mut pieces = Pieces::<PIECES_MAX>::new();
        for index in 0..PIECES_MAX as u64 {
            assert!(pieces.push(1 << 40, (1 << 41) + 4 * index, PIECE_BYTES_MAX), "{index}");
        }
        assert!(!pieces.push(1 << 40, 1 << 41, 1));
    }

    #[test]
    fn what_is_far_away_begins_a_new_list() {
        let (from, to) = ((1 << 45) + 3, (1 << 46) + 7);
        let mut pieces = Pieces::<PIECES_MAX>::new();
        for (from, to) in
            [(from, to), (from - (7 << 30), to + (7 << 30)), (from - 3, to - 7), (from + 9, to - 3)]
        {
            assert!(pieces.push(from, to, 5), "{from:x} {to:x}");
            let at = pieces.count as usize - 1;
            let past = u64::from(pieces.bytes[at] >> 30);
            assert_eq!(pieces.from + 4 * u64::from(pieces.from_words[at]) + past, from);
            assert_eq!(pieces.to + 4 * u64::from(pieces.to_words[at]) + past, to);
            assert_eq!(pieces.bytes[at] & 0x3fff_ffff, 5);
        }
        assert!(!pieces.push(from + (9 << 30), to, 5));
        assert!(!pieces.push(from, to - (9 << 30), 5));
        let mut low = Pieces::<WIDE_PIECES_MAX>::new();
        assert!(low.push(4096, 8192, 1) && low.push(4, 8, 1));
    }

    #[test]
    fn the_structure_is_as_long_as_it_looks() {
        assert_eq!(size_of::<Pieces<PIECES_MAX>>(), 12 * PIECES_MAX + 24);
        assert_eq!(size_of::<Pieces<WIDE_PIECES_MAX>>(), 12 * WIDE_PIECES_MAX + 24);
    }
}
