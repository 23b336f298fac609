//! Host memory: what copies read from and write to, and how it is pinned.

mod memory;
mod pinned;
mod registry;

pub use memory::{HostBuffer, HostMemory, HostMemoryOptions};
pub use pinned::{Pin, Pinned};
pub(crate) use registry::{PinUse, Registry};

use crate::vector::Element;

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

// SAFETY: a vector's elements live on the heap, so they stay in place when the vector moves; they are plain
// numbers without padding, so all bytes are initialised; the ledger owns the vector, so nobody can grow or drop it
// before the copy has run.
unsafe impl<T: Element> HostSource for Vec<T> {
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr().cast()
    }

    fn len_bytes(&self) -> usize {
        size_of_val(self.as_slice())
    }
}

// SAFETY: as above, every bit pattern is an element, and an owned vector is reachable by nobody else.
unsafe impl<T: Element> HostSink for Vec<T> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr().cast()
    }
}

/// A source of whole elements of one kind.
pub trait ElementSource<T: Element>: HostSource {}

/// A destination of whole elements of one kind.
pub trait ElementSink<T: Element>: HostSink {}

impl<T: Element> ElementSource<T> for Vec<T> {}
impl<T: Element> ElementSink<T> for Vec<T> {}
