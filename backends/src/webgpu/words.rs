//! Bytes where the API moves words: parts of words, fills, and copies that its copy cannot make.

use std::num::NonZeroU64;

use spoc_driver::Result;

use super::counters::add;
use super::memory::Buffer;
use super::stream::Stream;

/// Threads of a group, as the text says.
const GROUP: u64 = 256;
/// More groups than this only share the same work further.
const GROUPS_MAX: u64 = 4096;
/// Bytes that one launch works on: 32 bits index them.
const PIECE_BYTES: u64 = 1 << 30;

/// A part of a buffer that is bound, and how far into it the bytes begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    begin: u64,
    len_bytes: u64,
    skipped: u64,
}

impl Window {
    /// Around `len_bytes` from `offset` on, from a multiple of `align` to a whole word.
    fn around(offset: u64, len_bytes: u64, align: u64) -> Self {
        let begin = offset - offset % align.max(4);
        let skipped = offset - begin;
        Self { begin, len_bytes: (skipped + len_bytes).next_multiple_of(4), skipped }
    }

    fn of<'b>(&self, buffer: &'b Buffer) -> wgpu::BufferBinding<'b> {
        let size = NonZeroU64::new(self.len_bytes);
        wgpu::BufferBinding { buffer: buffer.raw(), offset: self.begin, size }
    }
}

/// What the device's bindings allow.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    align: u64,
    /// Most bytes of one launch: a window around so many fits a binding.
    piece: u64,
}

impl Bounds {
    fn of(device: &wgpu::Device) -> Self {
        let limits = device.limits();
        let align = u64::from(limits.min_storage_buffer_offset_alignment.max(4));
        let most = limits.max_storage_buffer_binding_size.min(PIECE_BYTES);
        Self { align, piece: (most.saturating_sub(2 * align)).max(4) & !3 }
    }
}

fn numbers(numbers: [u64; 3]) -> [u8; 12] {
    let mut bytes = [0; 12];
    for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
        // Windows are bounded so that they fit.
        place.copy_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_ne_bytes());
    }
    bytes
}

fn groups(words: u64) -> [u32; 3] {
    [u32::try_from(words.div_ceil(GROUP).clamp(1, GROUPS_MAX)).unwrap_or(1), 1, 1]
}

/// Sets up to four bytes that lie in one word.
pub(super) fn patch(stream: &Stream, dst: (&Buffer, u64), bytes: &[u8]) -> Result<()> {
    let queue = stream.queue();
    let device = &queue.device;
    let (word, first) = (dst.1 & !3, usize::try_from(dst.1 % 4).unwrap_or(0));
    let (mut mask, mut value) = ([0_u8; 4], [0_u8; 4]);
    for (place, byte) in (first..4).zip(bytes) {
        (mask[place], value[place]) = (0xFF, *byte);
    }
    let bits = |bytes: [u8; 4]| u64::from(u32::from_le_bytes(bytes));
    let window = Window::around(word, 4, Bounds::of(device).align);
    let scalars = numbers([window.skipped / 4, bits(mask), bits(value)]);
    let pipeline = queue.pipelines.own(device, "patch_word", 1)?;
    let group = pipeline.bind(device, [(0, window.of(dst.0))].into_iter())?;
    stream.record(|batch| {
        batch.dispatch(&pipeline.raw, &group, &scalars, [1, 1, 1]);
        Ok(())
    })?;
    add(&queue.counters.patched_words, 1);
    Ok(())
}

/// Sets whole words; offset and length are multiples of four.
pub(super) fn fill(stream: &Stream, dst: (&Buffer, u64), len_bytes: u64, byte: u8) -> Result<()> {
    if byte == 0 {
        return stream.record(|batch| {
            batch.encoder.clear_buffer(dst.0.raw(), dst.1, Some(len_bytes));
            Ok(())
        });
    }
    let queue = stream.queue();
    let device = &queue.device;
    let pipeline = queue.pipelines.own(device, "fill_words", 1)?;
    let bounds = Bounds::of(device);
    let value = u64::from(u32::from_ne_bytes([byte; 4]));
    let mut done = 0;
    while done < len_bytes {
        let piece = bounds.piece.min(len_bytes - done);
        let window = Window::around(dst.1 + done, piece, bounds.align);
        let scalars = numbers([window.skipped / 4, piece / 4, value]);
        let group = pipeline.bind(device, [(0, window.of(dst.0))].into_iter())?;
        stream.record(|batch| {
            batch.dispatch(&pipeline.raw, &group, &scalars, groups(piece / 4));
            Ok(())
        })?;
        done += piece;
    }
    Ok(())
}

/// Copies any bytes to any place, also of the same buffer; the ranges do not overlap.
pub(super) fn shift(stream: &Stream, src: (&Buffer, u64), dst: (&Buffer, u64), len_bytes: u64) -> Result<()> {
    let queue = stream.queue();
    let device = &queue.device;
    let pipeline = queue.pipelines.own(device, "move_bytes", 2)?;
    let bounds = Bounds::of(device);
    let mut done = 0;
    while done < len_bytes {
        let piece = bounds.piece.min(len_bytes - done);
        let to = Window::around(dst.1 + done, piece, bounds.align);
        let from = Window::around(src.1 + done, piece, bounds.align);
        let scalars = numbers([to.skipped, from.skipped, piece]);
        let group = pipeline.bind(device, [(0, to.of(dst.0)), (1, from.of(src.0))].into_iter())?;
        stream.record(|batch| {
            batch.dispatch(&pipeline.raw, &group, &scalars, groups(piece.div_ceil(4) + 1));
            Ok(())
        })?;
        done += piece;
    }
    add(&queue.counters.moved_bytes, len_bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_their_bytes_and_begin_where_they_may() {
        for offset in [0, 1, 3, 4, 255, 256, 257, 1000] {
            for len_bytes in [1, 2, 4, 7, 300] {
                let window = Window::around(offset, len_bytes, 256);
                assert_eq!(window.begin % 256, 0);
                assert_eq!(window.begin + window.skipped, offset);
                assert_eq!(window.len_bytes % 4, 0);
                let end = window.begin + window.len_bytes;
                assert!(end >= offset + len_bytes && end < offset + len_bytes + 4);
            }
        }
    }
}
