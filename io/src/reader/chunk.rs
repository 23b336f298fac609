//! A piece of the staging region, owned by whoever holds it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::queue::Shared;

/// Bytes of a file in the staging region. Whoever holds the chunk alone may use its bytes; dropping it returns it to
/// the reader's ring and wakes the reader if it waits for one. It keeps the region alive, also after its reader.
pub struct Chunk {
    shared: Arc<Shared>,
    index: u32,
    len_bytes: u32,
}

impl Chunk {
    /// `index` must have left the list of free chunks, which makes this its only owner.
    pub(super) fn new(shared: Arc<Shared>, index: u32, len_bytes: u32) -> Self {
        Self { shared, index, len_bytes }
    }

    /// The bytes, from the start of the planned read to the end of its need.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region maps `chunk_bytes` bytes here for as long as `shared` lives; this chunk is their only
        // owner, and reads into them ended before a caller could get it; the slice borrows the chunk.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len_bytes()) }
    }

    /// Address of the first byte, page aligned; valid until the chunk is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start().as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes as usize
    }

    /// Position of the chunk's first byte in the region, in bytes.
    #[must_use]
    pub fn region_offset(&self) -> usize {
        self.index as usize * self.shared.chunk_bytes as usize
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        let offset = self.region_offset();
        // SAFETY: indexes come from the list of free chunks, which holds those that lie wholly inside the region.
        unsafe { self.shared.region.as_ptr().add(offset) }
    }

    /// The first `len_bytes` bytes for a reader that is about to fill them.
    pub(super) fn fill_target(&mut self, start: u32, end: u32) -> &mut [u8] {
        let end = end.min(self.shared.chunk_bytes);
        let start = start.min(end);
        // SAFETY: start ≤ the chunk's length.
        let first = unsafe { self.start().add(start as usize) };
        // SAFETY: the range is inside the chunk, whose only owner `self` is borrowed mutably; every byte of a region
        // is mapped and initialised (zeroed or filled), as its contract says.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), (end - start) as usize) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.give_back(self.index);
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({}, {} bytes)", self.index, self.len_bytes)
    }
}
