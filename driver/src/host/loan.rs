//! Parts of pinned memory on loan to copies.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::registry::PinRange;
use super::{ElementSink, ElementSource, HostSink, HostSource};
use crate::error::{Error, ErrorKind, Result};
use crate::vector::Element;

/// How many copies have a handle's memory on loan.
#[derive(Default)]
pub(crate) struct Loans {
    readers: AtomicUsize,
    writers: AtomicUsize,
}

impl Loans {
    /// Acquire: what the copies did is seen by whoever finds them gone.
    pub(super) fn check_no_writer(&self) -> Result<()> {
        match self.writers.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Error::new(ErrorKind::InFlight, "using pinned memory")),
        }
    }

    pub(super) fn check_none(&self) -> Result<()> {
        self.check_no_writer()?;
        match self.readers.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Error::new(ErrorKind::InFlight, "using pinned memory")),
        }
    }
}

/// A part of a [`crate::PinnedHandle`] that a copy may read: pass it as a copy's source.
pub struct SourceLoan(Loan);

/// A part of a [`crate::PinnedHandle`] that a copy may write: pass it as a copy's destination.
pub struct SinkLoan(Loan);

struct Loan {
    /// Keeps the memory, also when the handle is gone.
    _owner: Arc<PinRange>,
    loans: Arc<Loans>,
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the bytes stay in place while the loan keeps their owner; who may touch them is counted.
unsafe impl Send for Loan {}
// SAFETY: a shared reference gives out a raw pointer and a length alone.
unsafe impl Sync for Loan {}

impl SourceLoan {
    pub(super) fn new(owner: Arc<PinRange>, loans: &Arc<Loans>, ptr: NonNull<u8>, len_bytes: usize) -> Self {
        loans.readers.fetch_add(1, Ordering::Relaxed);
        Self(Loan { _owner: owner, loans: Arc::clone(loans), ptr, len_bytes })
    }
}

impl SinkLoan {
    pub(super) fn new(owner: Arc<PinRange>, loans: &Arc<Loans>, ptr: NonNull<u8>, len_bytes: usize) -> Self {
        loans.writers.fetch_add(1, Ordering::Relaxed);
        Self(Loan { _owner: owner, loans: Arc::clone(loans), ptr, len_bytes })
    }
}

impl Drop for SourceLoan {
    fn drop(&mut self) {
        self.0.loans.readers.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for SinkLoan {
    fn drop(&mut self) {
        self.0.loans.writers.fetch_sub(1, Ordering::Release);
    }
}

// SAFETY: the bytes are initialised, and stay in place while the loan keeps their owner. The handle gives out no
// way to write them, to itself or to another copy, while a reader is out.
unsafe impl HostSource for SourceLoan {
    fn as_ptr(&self) -> *const u8 {
        self.0.ptr.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }
}

// SAFETY: as above; and while a writer is out, the handle gives out nothing at all.
unsafe impl HostSource for SinkLoan {
    fn as_ptr(&self) -> *const u8 {
        self.0.ptr.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }
}

// SAFETY: as above.
unsafe impl HostSink for SinkLoan {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.ptr.as_ptr()
    }
}

impl<T: Element> ElementSource<T> for SourceLoan {}
impl<T: Element> ElementSource<T> for SinkLoan {}
impl<T: Element> ElementSink<T> for SinkLoan {}

impl std::fmt::Debug for SourceLoan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLoan").field("len_bytes", &self.0.len_bytes).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SinkLoan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SinkLoan").field("len_bytes", &self.0.len_bytes).finish_non_exhaustive()
    }
}
