//! Many small copies from pinned memory, by a kernel that reads it: a copy of its own costs the API as much as
//! moving 100 KiB, so at 16 KiB a chunk the copy engine reaches a tenth of the link, and a kernel nearly all.
//!
//! The copies are named in the launch's own arguments, so that there is no table to keep until it has run.

use std::sync::atomic::Ordering;

use spoc_driver::backend::{CopyBatch, CopyOp};
use spoc_driver::{Grid, Result};

use super::built_ins::{COPY, GROUP};
use super::counters::add;
use super::device::Shared;
use super::launch::submit_places;
use super::memory::Buffer;
use super::module::Function;
use super::stream::Lane;

/// Copies of at least this on average are the copy engine's: it is as fast then, and leaves the processors of the
/// device to others (H200, GB/s by kernel and by batch: 50.5 and 40 at 64 KiB, 50.5 and 49 at 256 KiB, 51 and 54
/// at 1 MiB).
const MEAN_BYTES_MAX: usize = 256 << 10;

/// As in the kernel's text. All of it has to fit into the 4 KiB of a launch's arguments.
const PIECES_MAX: usize = 160;

/// Longer copies are cut, so that no group is left with more than others. A multiple of every unit.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Enough to fill the link: more would only take processors from others.
const GROUPS_MAX: u32 = 64;

/// The kernel's argument.
#[repr(C)]
struct Pieces {
    from: [u64; PIECES_MAX],
    to: [u64; PIECES_MAX],
    bytes: [u32; PIECES_MAX],
    count: u32,
}

const _: () = assert!(size_of::<Pieces>() <= 4096);

/// Whether the kernel serves for these copies: small, from pinned memory, and alike in alignment.
pub(super) fn serves(shared: &Shared, batch: &CopyBatch<'_, Buffer>, total_bytes: usize) -> bool {
    batch.len() > 1
        && total_bytes / batch.len() < MEAN_BYTES_MAX
        && shared.found.facts.same_addresses
        && !shared.has_no_carrier.load(Ordering::Relaxed)
        && batch.iter().all(|op| is_aligned(&op) && shared.registrations.holds(op.src.addr(), op.len_bytes))
}

/// Byte by byte the kernel would be slower than anything.
fn is_aligned(op: &CopyOp<'_, Buffer>) -> bool {
    (op.src.addr() as u64 ^ op.dst.at(op.dst_offset)).is_multiple_of(4)
}

/// Enqueues the copies; false if the kernel cannot be had, which is told once.
///
/// # Safety
/// As the port's, for each of them.
pub(super) unsafe fn all(shared: &Shared, lane: &Lane, batch: &CopyBatch<'_, Buffer>) -> Result<bool> {
    let function = match shared.modules.built_in(&shared.context, &COPY, "carry_pieces") {
        Ok(function) => function,
        Err(error) if error.is_device_lost() => return Err(error),
        Err(error) => {
            shared.has_no_carrier.store(true, Ordering::Relaxed);
            tracing::warn!(%error, "small copies go one by one: their kernel cannot be had");
            return Ok(false);
        }
    };
    let mut pieces = Pieces::new();
    for op in batch.iter() {
        let mut offset = 0;
        while offset < op.len_bytes {
            let len = PIECE_BYTES_MAX.min(op.len_bytes - offset);
            let from = op.src.wrapping_add(offset).expose_provenance() as u64;
            if pieces.push(from, op.dst.at(op.dst_offset + offset as u64), len) {
                // SAFETY: the caller keeps sources and buffers.
                unsafe { pieces.submit(lane, function) }?;
            }
            offset += len;
        }
    }
    // SAFETY: as above.
    unsafe { pieces.submit(lane, function) }?;
    add(&shared.counters.carried_copies, batch.len());
    Ok(true)
}

impl Pieces {
    fn new() -> Self {
        Self { from: [0; PIECES_MAX], to: [0; PIECES_MAX], bytes: [0; PIECES_MAX], count: 0 }
    }

    /// Adds one; says whether it is full then.
    fn push(&mut self, from: u64, to: u64, len: usize) -> bool {
        let at = self.count as usize;
        // Pieces are no longer than `PIECE_BYTES_MAX`, and there is room: whoever fills it empties it.
        (self.from[at], self.to[at]) = (from, to);
        self.bytes[at] = u32::try_from(len).unwrap_or(0);
        self.count += 1;
        self.count as usize == PIECES_MAX
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
        let mut pieces = Pieces::new();
        for index in 1..PIECES_MAX {
            assert!(!pieces.push(index as u64, 0, PIECE_BYTES_MAX), "{index}");
        }
        assert!(pieces.push(7, 8, 9));
        assert_eq!(
            (pieces.from[PIECES_MAX - 1], pieces.to[PIECES_MAX - 1], pieces.bytes[PIECES_MAX - 1]),
            (7, 8, 9)
        );
    }

    #[test]
    fn the_structure_is_the_kernels() {
        assert!(COPY.source.contains(&format!("#define PIECES_MAX {PIECES_MAX}\n")));
        assert_eq!(size_of::<Pieces>(), 20 * PIECES_MAX + 8);
    }
}
