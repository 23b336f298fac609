//! Host memory: what copies read from and write to, and how it is pinned.

mod elements;
mod handle;
mod loan;
mod memory;
mod pinned;
pub(crate) mod present;
mod raw;
mod registry;

pub use elements::{ElementSink, ElementSource, Elements};
pub use handle::PinnedHandle;
pub use loan::{SinkLoan, SourceLoan};
pub use memory::{HostBuffer, HostMemory, HostMemoryOptions};
pub use pinned::{Pin, Pinned};
pub(crate) use raw::RawPins;
pub(crate) use registry::{PinUse, Registry};

/// Host bytes that an enqueued copy may read. The value moves into the ledger and is dropped there once
/// the copy has run, on the thread that retires it.
///
/// # Safety
/// `len_bytes()` bytes at `as_ptr()` are initialised, and stay mapped, in place (wherever the value is
/// moved) and unmodified until the value is dropped. Both methods always answer the same.
pub unsafe trait HostSource: Send + 'static {
    /// First byte.
    fn as_ptr(&self) -> *const u8;
    /// How many bytes.
    fn len_bytes(&self) -> usize;
}

/// Host bytes that an enqueued copy may write.
///
/// # Safety
/// As [`HostSource`], and nobody else reads or writes the bytes until the value is dropped or given back.
pub unsafe trait HostSink: HostSource {
    /// First byte.
    fn as_mut_ptr(&mut self) -> *mut u8;
}

// SAFETY: a vector's bytes live on the heap, so they stay in place when the vector moves; the ledger owns
// the vector, so nobody can grow or drop it before the copy has run.
unsafe impl HostSource for Vec<u8> {
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above, and an owned vector is reachable by nobody else.
unsafe impl HostSink for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr()
    }
}
