//! Copies: directly where the host memory is pinned, through the staging buffer where it is not.

use ash::vk;
use spoc_driver::Result;
use spoc_driver::backend::{CopyBatch, CopyOp};

use super::counters::add;
use super::device::Shared;
use super::memory::Buffer;
use super::staging;
use super::stream::Stream;
use crate::parts::Parts;

/// One copy from the host.
///
/// # Safety
/// As the port asks: the source stays as it is, and the destination alive, until the copy has run.
pub(super) unsafe fn to_device(shared: &Shared, stream: &Stream, op: CopyOp<'_, Buffer>) -> Result<()> {
    let Some((from, src_offset)) = shared.find_host(op.src.addr(), op.len_bytes) else {
        // SAFETY: the caller owes what is asked.
        return unsafe { staging::upload(shared, stream, std::iter::once(op)) };
    };
    let region = vk::BufferCopy { src_offset, dst_offset: op.dst_offset, size: op.len_bytes as u64 };
    stream.submit(|recording| recording.copy(from, op.dst.raw(), region))?;
    add(&shared.core.counters.direct_bytes, op.len_bytes as u64);
    Ok(())
}

/// One copy to the host.
///
/// # Safety
/// As the port asks: the destination stays valid and untouched, and the source alive, until it has run.
pub(super) unsafe fn to_host(
    shared: &Shared,
    stream: &Stream,
    src: (&Buffer, u64),
    dst: *mut u8,
    len_bytes: usize,
) -> Result<()> {
    let from = (src.0.raw(), src.1);
    let Some((to, dst_offset)) = shared.find_host(dst.addr(), len_bytes) else {
        // SAFETY: the caller owes what is asked.
        return unsafe { staging::download(shared, stream, from, dst, len_bytes) };
    };
    let region = vk::BufferCopy { src_offset: from.1, dst_offset, size: len_bytes as u64 };
    stream.submit(|recording| {
        recording.copy(from.0, to, region);
        recording.show_to_host();
    })?;
    add(&shared.core.counters.direct_bytes, len_bytes as u64);
    Ok(())
}

/// A copy within the device.
pub(super) fn on_device(
    stream: &Stream,
    src: (&Buffer, u64),
    dst: (&Buffer, u64),
    len_bytes: u64,
) -> Result<()> {
    let region = vk::BufferCopy { src_offset: src.1, dst_offset: dst.1, size: len_bytes };
    stream.submit_within(|recording| recording.copy(src.0.raw(), dst.0.raw(), region))?;
    Ok(())
}

/// Many copies from the host: those from pinned memory in one submission.
///
/// # Safety
/// As [`to_device`], for each.
pub(super) unsafe fn many(shared: &Shared, stream: &Stream, batch: &CopyBatch<'_, Buffer>) -> Result<()> {
    let place = |op: &CopyOp<'_, Buffer>| shared.find_host(op.src.addr(), op.len_bytes);
    let (mut direct, mut others) = (0_u64, 0_usize);
    for op in batch.iter() {
        match place(&op) {
            Some(_) => direct += op.len_bytes as u64,
            None => others += 1,
        }
    }
    if direct > 0 {
        stream.submit(|recording| {
            for op in batch.iter() {
                let Some((from, src_offset)) = place(&op) else { continue };
                let size = op.len_bytes as u64;
                let region = vk::BufferCopy { src_offset, dst_offset: op.dst_offset, size };
                recording.copy(from, op.dst.raw(), region);
            }
        })?;
        add(&shared.core.counters.direct_bytes, direct);
    }
    if others > 0 {
        let ops = batch.iter().filter(|op| place(op).is_none());
        // SAFETY: the caller owes what is asked.
        unsafe { staging::upload(shared, stream, ops) }?;
    }
    Ok(())
}

/// Sets a range to one byte. The API fills words: what sticks out at the ends is copied.
pub(super) fn fill(
    shared: &Shared,
    stream: &Stream,
    dst: (&Buffer, u64),
    len_bytes: u64,
    value: u8,
) -> Result<()> {
    let parts = Parts::of(dst.1, len_bytes);
    if parts.words_len > 0 {
        let word = u32::from_ne_bytes([value; 4]);
        stream.submit_within(|recording| recording.fill(dst.0.raw(), parts.words, parts.words_len, word))?;
    }
    let bytes = [value; 4];
    let ends = parts
        .ends
        .into_iter()
        .filter(|(_, len_bytes)| *len_bytes > 0)
        .map(|(dst_offset, len_bytes)| CopyOp { src: bytes.as_ptr(), dst: dst.0, dst_offset, len_bytes });
    // SAFETY: `bytes` has been read on return, and the ends are shorter than it; the caller keeps the buffer.
    if parts.has_ends() { unsafe { staging::upload(shared, stream, ends) } } else { Ok(()) }
}
