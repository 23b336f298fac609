//! Parts of host memory with one owner each.

use crate::error::{Error, ErrorKind, Result};
use crate::host::{HostBuffer, HostMemory, HostMemoryOptions};
use crate::util::{check_range, host_len};

/// From here on huge pages are worth asking for.
const HUGE_FROM_BYTES: usize = 2 << 20;
/// Room is made for whole words, so that devices that copy in words can copy all of it.
const ROUND_BYTES: usize = 16;

/// A part of host memory that nobody else reads or writes: the host side of a [`crate::Vector`]. Made from a
/// [`HostBuffer`], and cut in two as often as needed.
pub struct HostSlice {
    memory: HostMemory,
    offset: usize,
    len_bytes: usize,
    /// What may be read behind `len_bytes` is up to here.
    capacity: usize,
}

impl From<HostBuffer> for HostSlice {
    fn from(buffer: HostBuffer) -> Self {
        let len_bytes = buffer.len();
        Self { memory: buffer.share(), offset: 0, len_bytes, capacity: len_bytes }
    }
}

impl HostSlice {
    /// Memory of its own, zeroed; not touched before it is used.
    pub(crate) fn allocate(len_bytes: u64) -> Result<Self> {
        const DOING: &str = "allocating a vector's host side";
        let len_bytes = host_len(len_bytes, DOING)?;
        let out_of_memory = || Error::new(ErrorKind::OutOfHostMemory { need_bytes: len_bytes as u64 }, DOING);
        let capacity = len_bytes.checked_next_multiple_of(ROUND_BYTES).ok_or_else(out_of_memory)?;
        let options = HostMemoryOptions {
            huge_pages: capacity >= HUGE_FROM_BYTES,
            populate: false,
            ..HostMemoryOptions::default()
        };
        Ok(Self { memory: HostMemory::allocate(capacity, options)?, offset: 0, len_bytes, capacity })
    }

    /// Cuts it in two; the first part has `len_bytes`.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn split_at(self, len_bytes: usize) -> Result<(Self, Self)> {
        check_range(0, len_bytes as u64, self.len_bytes as u64, "cutting host memory")?;
        let second = Self {
            memory: self.memory.clone(),
            offset: self.offset + len_bytes,
            len_bytes: self.len_bytes - len_bytes,
            capacity: self.capacity - len_bytes,
        };
        let first = Self { len_bytes, capacity: len_bytes, ..self };
        Ok((first, second))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// First byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.offset)
    }

    /// How much may be read and written, padding included.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// What keeps the memory mapped.
    pub(crate) fn memory(&self) -> &HostMemory {
        &self.memory
    }
}

impl std::fmt::Debug for HostSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSlice").field("offset", &self.offset).field("len_bytes", &self.len_bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let buffer = HostBuffer::allocate(100, HostMemoryOptions::default()).unwrap();
        let (first, second) = HostSlice::from(buffer).split_at(40).unwrap();
        assert_eq!((first.len_bytes(), second.len_bytes()), (40, 60));
        assert_eq!(second.as_ptr().addr(), first.as_ptr().addr() + 40);
        assert_eq!((first.capacity(), second.capacity()), (40, 60));
        let (middle, last) = second.split_at(60).unwrap();
        assert_eq!((middle.len_bytes(), last.len_bytes()), (60, 0));
        assert_eq!(middle.as_ptr().addr(), first.as_ptr().addr() + 40);
        assert!(matches!(last.split_at(1).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    }

    #[test]
    fn room_is_made_for_whole_words() {
        let slice = HostSlice::allocate(17).unwrap();
        assert_eq!((slice.len_bytes(), slice.capacity()), (17, 32));
        assert!(HostSlice::allocate(u64::MAX).is_err());
    }
}
