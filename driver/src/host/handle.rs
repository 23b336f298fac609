//! Pinned memory as a handle that stays with its owner and lends its bytes to copies.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::loan::{Loans, SinkLoan, SourceLoan};
use super::registry::PinRange;
use super::{HostBuffer, HostMemory, Registry};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, Returned};
use crate::stream::Stream;
use crate::util::{check_aligned, check_range};
use crate::vector::Element;

/// Page-locked memory, allocated by the device's driver or registered with it, that copies borrow.
///
/// Nothing is pinned unless one of the constructors is called. While a copy has the memory on loan, it cannot be
/// written, and a destination cannot be read either: the slices are refused as `InFlight`. Dropping the handle
/// early is fine: the memory then belongs to the copies, and is freed after the last of them.
///
/// A slice cannot outlive the handle, nor be kept across a loan that writes:
/// ```compile_fail,E0502
/// # fn wrong(pinned: &mut spoc_driver::PinnedHandle) -> spoc_driver::Result<()> {
/// let slice = pinned.as_slice()?;
/// let loan = pinned.lend_mut(0..1)?;
/// assert_eq!(slice[0], 0);
/// # Ok(()) }
/// ```
pub struct PinnedHandle {
    range: Option<Arc<PinRange>>,
    ptr: NonNull<u8>,
    len_bytes: usize,
    loans: Arc<Loans>,
    /// What was registered, to be given back.
    registered: Option<HostMemory>,
}

// SAFETY: the bytes are reached through this handle and its loans alone, which count each other.
unsafe impl Send for PinnedHandle {}
// SAFETY: a shared reference reads, and lends for reading; both are refused while a writer is out.
unsafe impl Sync for PinnedHandle {}

impl PinnedHandle {
    /// Allocates `len_bytes` zeroed bytes (≥ 1) of page-locked memory.
    ///
    /// # Errors
    /// `Unsupported` (see `pinned_alloc` in the capabilities); `ZeroSize`; `OutOfHostMemory`.
    pub fn alloc(device: &Device, len_bytes: u64) -> Result<Self> {
        let (range, ptr, len_bytes) = device.alloc_pinned(len_bytes)?.into_parts()?;
        Ok(Self { range: Some(range), ptr, len_bytes, loans: Arc::default(), registered: None })
    }

    /// Page-locks memory of the caller's. [`PinnedHandle::unregister`] gives it back.
    ///
    /// # Errors
    /// With the memory, which nobody else has: `Unsupported` (see `host_register` in the capabilities); `Overlap` with a registered
    /// range; what the backend answers.
    pub fn register(device: &Device, buffer: HostBuffer) -> Result<Self, Returned<Option<HostBuffer>>> {
        let memory = buffer.share();
        match Self::register_shared(device, &memory) {
            Ok(handle) => Ok(handle),
            Err(error) => match memory.unshare() {
                Ok(buffer) => Err(Returned::new(Some(buffer), error)),
                Err(_) => Err(Returned::new(None, error)),
            },
        }
    }

    fn register_shared(device: &Device, memory: &HostMemory) -> Result<Self> {
        let core = device.core();
        core.require("host_register", &core.capabilities.host_register)?;
        let range = Registry::register(core, memory.clone(), || {
            // SAFETY: the range holds a clone of the memory for longer than the backend's handle.
            unsafe { core.backend.register_host(&core.handle, memory.as_ptr(), memory.len_bytes()) }
        })?;
        let ptr = NonNull::new(memory.as_ptr())
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "registering host memory"))?;
        Ok(Self {
            range: Some(range),
            ptr,
            len_bytes: memory.len_bytes(),
            loans: Arc::default(),
            registered: Some(memory.clone()),
        })
    }

    /// Allocates, lets `work` use the memory, and releases it on return. With a stream, that is synchronised
    /// first. On a panic the memory goes to the copies that still use it.
    ///
    /// # Errors
    /// As [`PinnedHandle::alloc`]; then the stream's failure, or `InFlight` if work on another stream still
    /// uses the memory, both with what `work` returned: the memory then belongs to that work, and is freed
    /// after it, never early.
    pub fn with_alloc<R>(
        device: &Device,
        len_bytes: u64,
        stream: Option<&Stream>,
        work: impl FnOnce(&mut Self) -> R,
    ) -> Result<R, Returned<Option<R>>> {
        let mut handle = Self::alloc(device, len_bytes).map_err(|error| Returned::new(None, error))?;
        let result = work(&mut handle);
        let released = stream.map_or(Ok(()), Stream::synchronize).and_then(|()| handle.release());
        match released {
            Ok(()) => Ok(result),
            Err(error) => Err(Returned::new(Some(result), error)),
        }
    }

    /// Whether pinned memory can be had, found out by allocating one byte and freeing it: on GPU backends that
    /// is a driver call each, so ask once.
    ///
    /// # Errors
    /// Anything but `Unsupported`, which is the answer `false`.
    pub fn is_available(device: &Device) -> Result<bool> {
        device.pinned_available()
    }

    /// The bytes.
    ///
    /// # Errors
    /// `Released`; `InFlight` while a copy may still write them.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.check_live()?;
        self.loans.check_no_writer()?;
        // SAFETY: live (checked above) and initialised at allocation; no writer is out, and none can be lent
        // while this borrow lasts: `lend_mut` takes `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) })
    }

    /// The bytes, to write.
    ///
    /// # Errors
    /// `Released`; `InFlight` while a copy may still use them.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.check_live()?;
        self.loans.check_none()?;
        // SAFETY: as above; nobody reads either, and nobody can be lent to while `self` is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) })
    }

    /// The bytes as elements of any kind; what is left over at the end is not shown.
    ///
    /// # Errors
    /// As [`PinnedHandle::as_slice`]; `Misaligned`.
    pub fn as_elements<T: Element>(&self) -> Result<&[T]> {
        let bytes = self.as_slice()?;
        check_aligned(bytes.as_ptr().addr() as u64, align_of::<T>() as u64, "reading pinned memory")?;
        // SAFETY: aligned (checked just above), within the bytes, and every bit pattern is an element.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) })
    }

    /// The bytes as elements of any kind, to write.
    ///
    /// # Errors
    /// As [`PinnedHandle::as_mut_slice`]; `Misaligned`.
    pub fn as_mut_elements<T: Element>(&mut self) -> Result<&mut [T]> {
        let bytes = self.as_mut_slice()?;
        check_aligned(bytes.as_ptr().addr() as u64, align_of::<T>() as u64, "writing pinned memory")?;
        let len = bytes.len() / size_of::<T>();
        // SAFETY: as above, and the borrow is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) })
    }

    /// Lends a part to a copy that reads it. The loan ends when the copy has run and was retired.
    ///
    /// # Errors
    /// `Released`; `OutOfBounds`; `InFlight` while a copy may still write the memory.
    pub fn lend(&self, range: Range<usize>) -> Result<SourceLoan> {
        let (owner, ptr, len) = self.part(&range)?;
        self.loans.check_no_writer()?;
        Ok(SourceLoan::new(owner, &self.loans, ptr, len))
    }

    /// Lends a part to a copy that writes it. The loan comes back from [`crate::PendingRead::wait`]; drop it to
    /// look at the bytes.
    ///
    /// # Errors
    /// `Released`; `OutOfBounds`; `InFlight` while another copy may still use the memory.
    pub fn lend_mut(&mut self, range: Range<usize>) -> Result<SinkLoan> {
        let (owner, ptr, len) = self.part(&range)?;
        self.loans.check_none()?;
        Ok(SinkLoan::new(owner, &self.loans, ptr, len))
    }

    fn part(&self, range: &Range<usize>) -> Result<(Arc<PinRange>, NonNull<u8>, usize)> {
        let owner = self.check_live()?;
        let len = range.end.saturating_sub(range.start);
        check_range(range.start as u64, len as u64, self.len_bytes as u64, "lending pinned memory")?;
        // SAFETY: inside the range, as checked just above.
        let ptr = unsafe { self.ptr.add(range.start) };
        Ok((Arc::clone(owner), ptr, len))
    }

    /// Frees or unregisters the memory. Releasing twice is fine.
    ///
    /// # Errors
    /// `InFlight` while a copy has it on loan; the handle stays live. Wait for the copy, and try again.
    pub fn release(&mut self) -> Result<()> {
        let Some(range) = &self.range else { return Ok(()) };
        // What has run but was not retired yet must not refuse the release.
        range.core().share().collect();
        self.loans.check_none().map_err(|error| error.with("bytes", self.len_bytes))?;
        self.range = None;
        Ok(())
    }

    /// Releases memory that was registered, and gives it back.
    ///
    /// # Errors
    /// With the handle: `InFlight` while a copy has it on loan; `Released`; `InvalidArgument` if it was
    /// allocated.
    pub fn unregister(mut self) -> Result<HostBuffer, Returned<Self>> {
        const DOING: &str = "unregistering pinned memory";
        if let Err(error) = self.check_live().map(drop).and_then(|()| self.check_registered(DOING)) {
            return Err(Returned::new(self, error));
        }
        if let Err(error) = self.release() {
            return Err(Returned::new(self, error));
        }
        let memory = self.registered.take().map(HostMemory::unshare);
        match memory {
            Some(Ok(buffer)) => Ok(buffer),
            // A range that is being dropped elsewhere right now still holds it.
            Some(Err(memory)) => {
                self.registered = Some(memory);
                Err(Returned::new(self, Error::new(ErrorKind::InFlight, DOING)))
            }
            None => Err(Returned::new(self, Error::new(ErrorKind::Released, DOING))),
        }
    }

    fn check_registered(&self, doing: &'static str) -> Result<()> {
        match self.registered {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::InvalidArgument, doing).with("memory", "allocated")),
        }
    }

    /// Whether it has not been released.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.range.is_some()
    }

    /// Length in bytes; 0 once released.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        if self.is_live() { self.len_bytes } else { 0 }
    }

    fn check_live(&self) -> Result<&Arc<PinRange>> {
        self.range.as_ref().ok_or_else(|| Error::new(ErrorKind::Released, "using pinned memory"))
    }
}

impl std::fmt::Debug for PinnedHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedHandle")
            .field("len_bytes", &self.len_bytes())
            .field("is_live", &self.is_live())
            .finish_non_exhaustive()
    }
}
