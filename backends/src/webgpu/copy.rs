//! Copies: words by the API's own copy, what sticks out byte by byte.

use spoc_driver::Result;
use spoc_driver::backend::{CopyBatch, CopyOp};

use super::counters::add;
use super::download::Slot;
use super::memory::Buffer;
use super::queue::Queue;
use super::staging::{Room, SLOT_BYTES};
use super::stream::Stream;
use super::words;
use crate::parts::Parts;

/// One copy from the host. The source has been read on return.
///
/// # Safety
/// `op.len_bytes` at `op.src` are readable.
pub(super) unsafe fn to_device(stream: &Stream, op: &CopyOp<'_, Buffer>) -> Result<()> {
    // SAFETY: the caller's word.
    let bytes = unsafe { std::slice::from_raw_parts(op.src, op.len_bytes) };
    let parts = Parts::of(op.dst_offset, op.len_bytes as u64);
    let [(head, head_len), (tail, tail_len)] = parts.ends;
    if head_len > 0 {
        words::patch(stream, (op.dst, head), &bytes[..head_len])?;
    }
    upload(stream, (op.dst, parts.words), &bytes[head_len..op.len_bytes - tail_len])?;
    if tail_len > 0 {
        words::patch(stream, (op.dst, tail), &bytes[op.len_bytes - tail_len..])?;
    }
    Ok(())
}

/// Copies whole words through the ring; waits while all its slots are in use.
fn upload(stream: &Stream, dst: (&Buffer, u64), bytes: &[u8]) -> Result<()> {
    let queue = stream.queue();
    let mut done = 0;
    while done < bytes.len() {
        let room = stream.record(|batch| {
            let room = batch.uploads.fill(&queue.device, &bytes[done..])?;
            if let Room::Taken { buffer, offset, len_bytes } = &room {
                let (to, size) = (dst.1 + done as u64, *len_bytes as u64);
                batch.encoder.copy_buffer_to_buffer(buffer, *offset, dst.0.raw(), to, size);
            }
            Ok(room)
        })?;
        match room {
            Room::Taken { len_bytes, .. } => done += len_bytes,
            Room::Full => _ = queue.flush()?,
            Room::WaitFor(ticket) => wait_for_room(queue, ticket)?,
        }
    }
    add(&queue.counters.staged_bytes, bytes.len() as u64);
    Ok(())
}

fn wait_for_room(queue: &Queue, ticket: u64) -> Result<()> {
    add(&queue.counters.ring_waits, 1);
    queue.wait(ticket)?;
    queue.tend()
}

/// One copy to the host, finished by whoever asks or waits.
///
/// # Safety
/// As the port asks: `len_bytes` at `dst` stay valid and untouched until the copy has run.
pub(super) unsafe fn to_host(
    stream: &Stream,
    src: (&Buffer, u64),
    dst: *mut u8,
    len_bytes: usize,
) -> Result<()> {
    // SAFETY: the caller's word.
    let outcome = unsafe { download(stream, src, dst, len_bytes) };
    if outcome.is_err() {
        // The memory goes back to its owner at once: earlier pieces must not arrive.
        stream.queue().downloads.cancel(dst, len_bytes);
    }
    outcome
}

/// # Safety
/// As [`to_host`]; if it fails, until the copy is cancelled.
unsafe fn download(stream: &Stream, src: (&Buffer, u64), dst: *mut u8, len_bytes: usize) -> Result<()> {
    let queue = stream.queue();
    let mut done = 0;
    while done < len_bytes {
        let from = src.1 + done as u64;
        let skipped = usize::try_from(from % 4).unwrap_or(0);
        let piece = (len_bytes - done).min(SLOT_BYTES - skipped);
        let slot = stream.record(|batch| {
            let slot = queue.downloads.take(&queue.device)?;
            if let Slot::Idle(buffer) = &slot {
                let size = (skipped + piece).next_multiple_of(4) as u64;
                batch.encoder.copy_buffer_to_buffer(src.0.raw(), from & !3, buffer, 0, size);
                let place = dst.wrapping_add(done);
                // SAFETY: the caller's word; this piece lies inside.
                unsafe { queue.downloads.enter(batch.ticket, buffer.clone(), skipped, place, piece) };
            }
            Ok(slot)
        })?;
        match slot {
            Slot::Idle(_) => done += piece,
            Slot::WaitFor(ticket) => {
                add(&queue.counters.ring_waits, 1);
                queue.wait(ticket)?;
            }
        }
    }
    add(&queue.counters.staged_bytes, len_bytes as u64);
    Ok(())
}

/// A copy within the device.
pub(super) fn on_device(
    stream: &Stream,
    src: (&Buffer, u64),
    dst: (&Buffer, u64),
    len_bytes: u64,
) -> Result<()> {
    let is_whole = [src.1, dst.1, len_bytes].iter().all(|number| number % 4 == 0);
    if !is_whole || src.0.raw() == dst.0.raw() {
        return words::shift(stream, src, dst, len_bytes);
    }
    stream.record(|batch| {
        batch.encoder.copy_buffer_to_buffer(src.0.raw(), src.1, dst.0.raw(), dst.1, len_bytes);
        Ok(())
    })
}

/// Many copies from the host.
///
/// # Safety
/// As [`to_device`], for each.
pub(super) unsafe fn many(stream: &Stream, batch: &CopyBatch<'_, Buffer>) -> Result<()> {
    // SAFETY: the caller's word, for each.
    batch.iter().try_for_each(|op| unsafe { to_device(stream, &op) })
}

/// Sets a range to one byte.
pub(super) fn fill(stream: &Stream, dst: (&Buffer, u64), len_bytes: u64, value: u8) -> Result<()> {
    let parts = Parts::of(dst.1, len_bytes);
    if parts.words_len > 0 {
        words::fill(stream, (dst.0, parts.words), parts.words_len, value)?;
    }
    for (offset, len) in parts.ends.into_iter().filter(|(_, len)| *len > 0) {
        words::patch(stream, (dst.0, offset), &[value; 4][..len])?;
    }
    Ok(())
}
