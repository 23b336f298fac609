//! Enqueued operations.

/// A piece of fake device memory, by number: an operation must not keep what the ledger has to keep.
pub(super) type MemoryId = usize;

/// Where an operation reads or writes on the device.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) memory: MemoryId,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// A point in a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) stream: usize,
    pub(super) position: u64,
}

/// One enqueued operation.
pub(super) enum Op {
    /// Host to device. The bytes seen at submission tell whether the source changed before the copy ran.
    CopyIn { src: *const u8, dst: Place, seen: Box<[u8]> },
    /// Device to host.
    CopyOut { src: Place, dst: *mut u8 },
    /// Within the device.
    CopyOn { src: Place, dst: Place },
    /// One byte, everywhere.
    Fill { dst: Place, value: u8 },
    /// A word.
    Write { dst: Place, value: u64 },
    /// Blocks the stream until the word is at least the value.
    WaitValue { src: Place, value: u64 },
    /// Blocks the stream until another has come so far.
    WaitMark(Mark),
}

// SAFETY: the pointers are of memory that any thread may use; the ledger keeps it until the operation ran.
unsafe impl Send for Op {}

impl Op {
    /// Whether it reads or writes this device memory.
    pub(super) fn uses_memory(&self, memory: MemoryId) -> bool {
        match self {
            Self::CopyIn { dst: place, .. }
            | Self::CopyOut { src: place, .. }
            | Self::Fill { dst: place, .. }
            | Self::Write { dst: place, .. }
            | Self::WaitValue { src: place, .. } => place.memory == memory,
            Self::CopyOn { src, dst } => src.memory == memory || dst.memory == memory,
            Self::WaitMark(_) => false,
        }
    }

    /// Whether it reads or writes the host memory that begins here. (Offsets into it are covered by the
    /// check when the copy runs.)
    pub(super) fn uses_host(&self, start: usize) -> bool {
        match self {
            Self::CopyIn { src, .. } => src.addr() == start,
            Self::CopyOut { dst, .. } => dst.addr() == start,
            _ => false,
        }
    }

    /// Whether it counts as a copy for failure injection.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self, Self::CopyIn { .. } | Self::CopyOut { .. } | Self::CopyOn { .. })
    }
}
