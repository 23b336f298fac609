//! The way around for host memory that is not pinned: a small pinned buffer that the processor copies
//! through.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ash::vk;
use spoc_driver::Result;
use spoc_driver::backend::CopyOp;

use super::core::Core;
use super::counters::add;
use super::device::Shared;
use super::event::Point;
use super::memory::{Allocation, Buffer};
use super::stream::Stream;
use crate::sync::lock;

/// Slots, so that the processor fills one while the device empties others.
const SLOTS: usize = 4;
/// Bytes of a slot. Together they fit a processor's cache.
const SLOT_BYTES: usize = 2 << 20;
/// A read-back alternates between the two halves of one slot.
const HALF_BYTES: usize = SLOT_BYTES / 2;

/// The staging buffer of a device: 8 MiB.
pub(super) struct Staging {
    slots: [Mutex<Slot>; SLOTS],
    next: AtomicUsize,
}

struct Slot {
    memory: Allocation,
    /// The device uses the slot until here.
    used_until: Option<Point>,
    pieces: Vec<(vk::Buffer, vk::BufferCopy)>,
    filled: usize,
}

impl Staging {
    pub(super) fn create(core: &Arc<Core>) -> Result<Self> {
        let slot = || -> Result<_> {
            let memory = Allocation::on_host(core, SLOT_BYTES as u64)?;
            Ok(Mutex::new(Slot { memory, used_until: None, pieces: Vec::new(), filled: 0 }))
        };
        Ok(Self { slots: [slot()?, slot()?, slot()?, slot()?], next: AtomicUsize::new(0) })
    }

    /// The next slot, once the device is done with it.
    fn take(&self, shared: &Shared) -> Result<MutexGuard<'_, Slot>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut slot = lock(&self.slots[turn % SLOTS]);
        if let Some(point) = slot.used_until {
            shared.lane(point.lane).wait(&shared.core, point.value)?;
        }
        slot.used_until = None;
        slot.pieces.clear();
        slot.filled = 0;
        Ok(slot)
    }
}

impl Slot {
    /// Copies in as much of `bytes` as there is room for; answers how much that was.
    ///
    /// # Safety
    /// `len_bytes` at `src` are readable.
    unsafe fn fill(&mut self, src: *const u8, len_bytes: usize, dst: (vk::Buffer, u64)) -> usize {
        let taken = len_bytes.min(SLOT_BYTES - self.filled);
        let place = self.memory.mapped.wrapping_add(self.filled);
        // SAFETY: the caller answers for the source; the place and `taken` bytes after it lie in the slot,
        // which is locked and which the device does not use.
        unsafe { place.copy_from_nonoverlapping(src, taken) };
        let region = vk::BufferCopy { src_offset: self.filled as u64, dst_offset: dst.1, size: taken as u64 };
        self.pieces.push((dst.0, region));
        self.filled += taken;
        taken
    }

    /// Hands what was filled in to the stream.
    fn send(&mut self, shared: &Shared, stream: &Stream) -> Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        let from = self.memory.buffer;
        let point = stream.submit(|recording| {
            self.pieces.iter().for_each(|(dst, region)| recording.copy(from, *dst, *region));
        })?;
        self.used_until = Some(point);
        add(&shared.core.counters.staged_bytes, self.filled as u64);
        Ok(())
    }
}

/// Copies from ordinary memory. The sources have been read on return; waits while all slots are in use.
///
/// # Safety
/// Every source is readable, and every destination alive until the copy has run.
pub(super) unsafe fn upload<'b>(
    shared: &Shared,
    stream: &Stream,
    ops: impl Iterator<Item = CopyOp<'b, Buffer>>,
) -> Result<()> {
    let staging = shared.staging()?;
    let mut slot = staging.take(shared)?;
    for op in ops {
        let mut done = 0;
        while done < op.len_bytes {
            if slot.filled == SLOT_BYTES {
                slot.send(shared, stream)?;
                drop(slot);
                slot = staging.take(shared)?;
            }
            let dst = (op.dst.raw(), op.dst_offset + done as u64);
            // SAFETY: the caller answers for the source; `done` is less than its length.
            done += unsafe { slot.fill(op.src.wrapping_add(done), op.len_bytes - done, dst) };
        }
    }
    slot.send(shared, stream)
}

/// Copies to ordinary memory; complete on return.
///
/// # Safety
/// `len_bytes` at `dst` are writable, and nobody else looks at them.
pub(super) unsafe fn download(
    shared: &Shared,
    stream: &Stream,
    src: (vk::Buffer, u64),
    dst: *mut u8,
    len_bytes: usize,
) -> Result<()> {
    let staging = shared.staging()?;
    let mut slot = staging.take(shared)?;
    let mut pending: Option<Piece> = None;
    for (index, offset) in (0..len_bytes).step_by(HALF_BYTES).enumerate() {
        let piece_bytes = HALF_BYTES.min(len_bytes - offset);
        let half = (index % 2) * HALF_BYTES;
        let region = vk::BufferCopy {
            src_offset: src.1 + offset as u64,
            dst_offset: half as u64,
            size: piece_bytes as u64,
        };
        let point = stream.submit(|recording| {
            recording.copy(src.0, slot.memory.buffer, region);
            recording.show_to_host();
        })?;
        slot.used_until = Some(point);
        let before = pending.replace(Piece { point, half, offset, len_bytes: piece_bytes });
        // SAFETY: the caller answers for the destination.
        unsafe { fetch(shared, &slot, before.as_ref(), dst) }?;
    }
    // SAFETY: as above.
    unsafe { fetch(shared, &slot, pending.as_ref(), dst) }
}

/// A part of a read-back that is on its way into the slot.
struct Piece {
    point: Point,
    half: usize,
    offset: usize,
    len_bytes: usize,
}

/// Waits for a piece and copies it out.
///
/// # Safety
/// The piece's bytes at `dst` are writable, and nobody else looks at them.
unsafe fn fetch(shared: &Shared, slot: &Slot, piece: Option<&Piece>, dst: *mut u8) -> Result<()> {
    let Some(&Piece { point, half, offset, len_bytes }) = piece else { return Ok(()) };
    shared.lane(point.lane).wait(&shared.core, point.value)?;
    let from = slot.memory.mapped.wrapping_add(half);
    // SAFETY: the piece lies in its half of the locked slot, has arrived there and was made visible to the
    // host; the caller answers for the destination. This is host memory, cached where there is such.
    unsafe { dst.wrapping_add(offset).copy_from_nonoverlapping(from, len_bytes) };
    add(&shared.core.counters.staged_bytes, len_bytes as u64);
    Ok(())
}
