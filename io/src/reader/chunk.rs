//! A piece of the staging region, owned by whoever holds it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::in_place::{HostTargets, Landing};
use super::queue::Shared;

/// Bytes of a file, in the staging region or in place. Only who holds the chunk may use its bytes. Dropping the last
/// [share](Chunk::share) of one of the region returns it to the reader's ring and wakes the reader if it waits for one. It
/// keeps its memory alive, also after its reader.
pub struct Chunk {
    hold: Hold,
    len_bytes: u32,
}

enum Hold {
    Ring { shared: Arc<Shared>, index: u32 },
    InPlace { start: NonNull<u8>, room_bytes: u32, _targets: Arc<dyn HostTargets> },
}

// SAFETY: the address is one of `_targets`, which may be used from any thread and is kept beside it.
unsafe impl Send for Chunk {}
// SAFETY: as above; `&Chunk` only reads.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// `index` must have left the list of free chunks, which makes this its only owner.
    pub(super) fn new(shared: Arc<Shared>, index: u32, len_bytes: u32) -> Self {
        shared.holders[index as usize].store(1, Ordering::Relaxed);
        Self { hold: Hold::Ring { shared, index }, len_bytes }
    }

    /// Of targets themselves: `room_bytes` from the landing's start, of which `len_bytes` are needed.
    pub(super) fn in_place(landing: Landing, room_bytes: u32, len_bytes: u32) -> Self {
        let Landing { start, targets } = landing;
        Self { hold: Hold::InPlace { start, room_bytes, _targets: targets }, len_bytes }
    }

    /// The same bytes for one more holder: the chunk returns to the ring with the last of them. `None` in place, where there
    /// is nothing to return. Allocates nothing.
    #[must_use]
    pub fn share(&self) -> Option<Self> {
        let Hold::Ring { shared, index } = &self.hold else { return None };
        // This holder keeps the count above 0 meanwhile.
        shared.holders[*index as usize].fetch_add(1, Ordering::Relaxed);
        Some(Self {
            hold: Hold::Ring { shared: Arc::clone(shared), index: *index },
            len_bytes: self.len_bytes,
        })
    }

    /// Whether the bytes are where they belong already, so that there is nothing to copy.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.hold, Hold::InPlace { .. })
    }

    /// The bytes, from the start of the planned read to the end of its need.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region, or the targets, map that many initialised bytes here for as long as `hold` lives; this
        // chunk and its shares are their only owners, reads into them ended before a caller could get it, and nobody
        // writes them afterwards; the slice borrows it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len_bytes()) }
    }

    /// Address of the first byte, page aligned in the region; valid until the chunk is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start().as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes as usize
    }

    /// Position of the chunk's first byte in the region, in bytes; `None` in place.
    #[must_use]
    pub fn region_offset(&self) -> Option<usize> {
        match &self.hold {
            Hold::Ring { shared, index } => Some(*index as usize * shared.chunk_bytes as usize),
            Hold::InPlace { .. } => None,
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        match &self.hold {
            Hold::InPlace { start, .. } => *start,
            Hold::Ring { shared, index } => {
                let offset = *index as usize * shared.chunk_bytes as usize;
                // SAFETY: indexes come from the list of free chunks, which holds those that lie wholly in the region.
                unsafe { shared.region.as_ptr().add(offset) }
            }
        }
    }

    fn room_bytes(&self) -> u32 {
        match &self.hold {
            Hold::Ring { shared, .. } => shared.chunk_bytes,
            Hold::InPlace { room_bytes, .. } => *room_bytes,
        }
    }

    /// The first `len_bytes` bytes for a reader that is about to fill them.
    pub(super) fn fill_target(&mut self, start: u32, end: u32) -> &mut [u8] {
        let end = end.min(self.room_bytes());
        let start = start.min(end);
        // SAFETY: start ≤ the chunk's length.
        let first = unsafe { self.start().add(start as usize) };
        // SAFETY: the range is inside the chunk, whose only owner `self`, which readers do not share before they deliver it,
        // is borrowed mutably; every byte of a region
        // or target is mapped and initialised (zeroed or filled), as its contract says.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), (end - start) as usize) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Hold::Ring { shared, index } = &self.hold
            // What the others did with the bytes happened before the next read into them.
            && shared.holders[*index as usize].fetch_sub(1, Ordering::AcqRel) == 1
        {
            shared.give_back(*index);
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hold {
            Hold::Ring { index, .. } => write!(f, "Chunk({index}, {} bytes)", self.len_bytes),
            Hold::InPlace { .. } => write!(f, "Chunk(in place, {} bytes)", self.len_bytes),
        }
    }
}
