//! Device memory that stays where it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::{CopyOp, Exported, Foreign, Handle, HostMap, SegmentOptions};
use crate::device::{Device, DeviceCore};
use crate::error::{Error, ErrorKind, Result};
use crate::host::HostMemory;
use crate::reservation::Committed;
use crate::util::{check_aligned, check_range, host_len, lock};

/// A range of device memory, shared by its clones, at one address for life. It is freed once the last
/// clone and the last pending copy are gone.
#[derive(Clone)]
pub struct Segment(Arc<Inner>);

struct Inner {
    buffer: Handle,
    /// Host memory that the buffer lies over: dropped after it.
    _host: Option<HostMemory>,
    /// The reserved addresses that it lies at: free again after the buffer.
    _reserved: Option<Committed>,
    len_bytes: u64,
    core: Arc<DeviceCore>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.memory_in_use.fetch_sub(self.len_bytes, Ordering::Relaxed);
    }
}

impl Device {
    /// Allocates a segment of `len_bytes` (≥ 1). Its contents are unspecified.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge` (over `limits().segment_bytes_max`; the error names what sets it); `OutOfDeviceMemory`.
    pub fn allocate(&self, len_bytes: u64) -> Result<Segment> {
        self.allocate_with(len_bytes, SegmentOptions::default())
    }

    /// [`Device::allocate`] with options.
    ///
    /// # Errors
    /// As [`Device::allocate`]; `Unsupported` if it has to be exportable and cannot.
    pub fn allocate_with(&self, len_bytes: u64, options: SegmentOptions) -> Result<Segment> {
        const DOING: &str = "allocating a segment";
        self.check_segment(len_bytes, DOING)?;
        // What has run may hold the last reference to memory that is needed now.
        self.collect();
        let core = self.core();
        if options.exportable {
            core.require("export_memory", &core.capabilities.export_memory)?;
        }
        let buffer = core.backend.allocate(&core.handle, len_bytes, options)?;
        Ok(Segment::new(core, buffer, len_bytes))
    }

    /// Imports memory that another process exported. Closes the descriptor in any case.
    ///
    /// # Errors
    /// `Unsupported`; `WrongDevice`; `InvalidArgument` if the descriptor is not such memory or has another
    /// size.
    pub fn import(&self, exported: Exported) -> Result<Segment> {
        const DOING: &str = "importing a segment";
        let core = self.core();
        core.require("import_memory", &core.capabilities.import_memory)?;
        if (exported.backend, exported.device) != (core.info.backend, core.info.uuid) {
            return Err(Error::new(ErrorKind::WrongDevice, DOING)
                .with("backend", exported.backend)
                .with("device", exported.device));
        }
        let len_bytes = exported.len_bytes;
        self.check_segment(len_bytes, DOING)?;
        let buffer = core.backend.import(&core.handle, exported)?;
        Ok(Segment::new(core, buffer, len_bytes))
    }

    /// Borrows memory that another library allocated on this device.
    ///
    /// # Safety
    /// The words name `len_bytes` live bytes of this device that outlive `foreign.keep_alive`.
    ///
    /// # Errors
    /// `Unsupported`; what the backend answers.
    pub unsafe fn adopt_memory(&self, foreign: Foreign, len_bytes: u64) -> Result<Segment> {
        let core = self.core();
        core.require("adopt_memory", &core.capabilities.adopt_memory)?;
        self.check_segment(len_bytes, "adopting a segment")?;
        // SAFETY: the caller owes what the port asks for.
        let buffer = unsafe { core.backend.adopt_buffer(&core.handle, foreign, len_bytes) }?;
        Ok(Segment::new(core, buffer, len_bytes))
    }

    fn check_segment(&self, len_bytes: u64, doing: &'static str) -> Result<()> {
        let max = self.limits().segment_bytes_max;
        if len_bytes == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, doing));
        }
        if len_bytes > max {
            let core = self.core();
            let limit = core.backend.segment_limit_name(&core.handle)?;
            return Err(Error::new(ErrorKind::TooLarge { need: len_bytes, max }, doing)
                .with("unit", "bytes")
                .with("limit", limit));
        }
        Ok(())
    }
}

impl Segment {
    fn new(core: &Arc<DeviceCore>, buffer: Handle, len_bytes: u64) -> Self {
        Self::with(core, buffer, len_bytes, None, None)
    }

    /// A segment behind a part of reserved addresses.
    pub(crate) fn committed(
        core: &Arc<DeviceCore>,
        buffer: Handle,
        len_bytes: u64,
        reserved: Committed,
    ) -> Self {
        Self::with(core, buffer, len_bytes, None, Some(reserved))
    }

    fn with(
        core: &Arc<DeviceCore>,
        buffer: Handle,
        len_bytes: u64,
        host: Option<HostMemory>,
        reserved: Option<Committed>,
    ) -> Self {
        core.memory_in_use.fetch_add(len_bytes, Ordering::Relaxed);
        let core = Arc::clone(core);
        Self(Arc::new(Inner { buffer, _host: host, _reserved: reserved, len_bytes, core }))
    }

    /// A segment that is host memory in place. The capability is Available; the address is aligned.
    ///
    /// # Safety
    /// `len_bytes` initialised bytes at `ptr` are part of `memory`; the host touches them only while nothing
    /// enqueued uses the segment, after [`Segment::map`].
    pub(crate) unsafe fn over_host(
        core: &Arc<DeviceCore>,
        memory: &HostMemory,
        ptr: *mut u8,
        len_bytes: u64,
    ) -> Result<Self> {
        // SAFETY: the segment keeps `memory` for longer than the buffer (field order); the caller owes the rest.
        let buffer = unsafe { core.backend.host_buffer(&core.handle, ptr, len_bytes) }?;
        Ok(Self::with(core, buffer, len_bytes, Some(memory.clone()), None))
    }

    /// Maps a segment that is host memory, and unmaps it.
    pub(crate) fn map(&self, map: HostMap) -> Result<()> {
        self.0.core.backend.map_host_buffer(&self.0.core.handle, &self.0.buffer, map)
    }

    pub(crate) fn buffer(&self) -> &Handle {
        &self.0.buffer
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.0.core
    }

    /// Whether both are the same memory.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    /// The device it lies on.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::of(&self.0.core)
    }

    /// The address that kernels and peers use, where there is one. The same for life.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        self.0.core.backend.address(&self.0.core.handle, &self.0.buffer).ok().flatten()
    }

    /// Where the host can address the segment, where it can. Valid while the segment lives; whoever reads
    /// or writes through it answers for the order against enqueued work.
    #[must_use]
    pub fn host_pointer(&self) -> Option<*mut u8> {
        self.0.core.backend.host_pointer(&self.0.core.handle, &self.0.buffer).ok().flatten()
    }

    /// A descriptor of the memory that another process can import, with what cannot be asked of it. The
    /// memory lives while either lives. Imported memory may be refused: whoever has to keep memory alive
    /// keeps the first descriptor.
    ///
    /// # Errors
    /// `Unsupported`; what the backend answers.
    pub fn export(&self) -> Result<Exported> {
        let core = &self.0.core;
        core.require("export_memory", &core.capabilities.export_memory)?;
        let exported = core.backend.export(&core.handle, &self.0.buffer)?;
        Ok(Exported { len_bytes: self.0.len_bytes, ..exported })
    }

    /// Refuses a range that leaves the segment or breaks the device's granule.
    pub(crate) fn check(&self, offset_bytes: u64, len_bytes: u64, doing: &'static str) -> Result<()> {
        check_range(offset_bytes, len_bytes, self.0.len_bytes, doing)?;
        let granule = self.0.core.limits.copy_granule_bytes;
        check_aligned(offset_bytes, granule, doing)?;
        check_aligned(len_bytes, granule, doing)
    }

    /// Copies bytes to the host on the default stream; complete on return. Waits for all blocking streams,
    /// and for those non-blocking ones whose enqueued work uses this segment.
    ///
    /// # Errors
    /// `OutOfBounds`; `Misaligned`; the failure of enqueued work; what the backend answers.
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<()> {
        self.check(offset_bytes, into.len() as u64, "reading a segment")?;
        let (ptr, len_bytes) = (into.as_mut_ptr(), into.len());
        self.0.core.counters.bytes_to_host.fetch_add(len_bytes as u64, Ordering::Relaxed);
        self.on_default(len_bytes, |core, stream| {
            // SAFETY: the slice is borrowed until this call returns, and `on_default` waits for the copy;
            // the range was checked just above; `self` keeps the buffer.
            unsafe {
                core.backend.copy_to_host(
                    &core.handle,
                    stream,
                    (&self.0.buffer, offset_bytes),
                    ptr,
                    len_bytes,
                )
            }
        })
    }

    /// Copies bytes from the host on the default stream; complete on return. Waits as [`Segment::read`].
    ///
    /// # Errors
    /// As [`Segment::read`].
    pub fn write(&self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        self.check(offset_bytes, from.len() as u64, "writing a segment")?;
        let op = CopyOp {
            src: from.as_ptr(),
            dst: &self.0.buffer,
            dst_offset: offset_bytes,
            len_bytes: from.len(),
        };
        self.0.core.counters.bytes_to_device.fetch_add(from.len() as u64, Ordering::Relaxed);
        self.on_default(from.len(), |core, stream| {
            // SAFETY: as in `read`.
            unsafe { core.backend.copy_to_device(&core.handle, stream, op) }
        })
    }

    /// Sets a range to one byte on the default stream; complete on return. Waits as [`Segment::read`].
    ///
    /// # Errors
    /// `Unsupported` (see `fill` in the capabilities); as [`Segment::read`].
    pub fn fill(&self, offset_bytes: u64, len_bytes: u64, value: u8) -> Result<()> {
        const DOING: &str = "filling a segment";
        self.0.core.require("fill", &self.0.core.capabilities.fill)?;
        self.check(offset_bytes, len_bytes, DOING)?;
        self.on_default(host_len(len_bytes, DOING)?, |core, stream| {
            // SAFETY: `self` keeps the buffer, and `on_default` waits; the range was checked just above.
            unsafe {
                core.backend.fill(&core.handle, stream, (&self.0.buffer, offset_bytes), len_bytes, value)
            }
        })
    }

    /// Copies from another segment of the device on the default stream; complete on return. The ranges do not
    /// overlap if the segments are the same.
    pub(crate) fn copy_from(
        &self,
        offset_bytes: u64,
        src: &Self,
        src_offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        const DOING: &str = "copying within the device";
        self.0.core.check_same(&src.0.core, DOING)?;
        self.check(offset_bytes, len_bytes, DOING)?;
        src.check(src_offset, len_bytes, DOING)?;
        Device::of(&self.0.core).ledger().settle(&self.0.core, src)?;
        self.0.core.counters.bytes_on_device.fetch_add(len_bytes, Ordering::Relaxed);
        self.on_default(host_len(len_bytes, DOING)?, |core, stream| {
            let (from, to) = ((&src.0.buffer, src_offset), (&self.0.buffer, offset_bytes));
            // SAFETY: both segments are borrowed until `on_default` has waited; the ranges were checked just
            // above, and by the caller not to overlap.
            unsafe { core.backend.copy_on_device(&core.handle, stream, from, to, len_bytes) }
        })
    }

    /// Runs one operation on the default stream and waits for it.
    fn on_default(&self, len: usize, enqueue: impl FnOnce(&DeviceCore, &Handle) -> Result<()>) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let core = &self.0.core;
        // Held for the duration: the ledger must not be torn down while it is being settled.
        let device = Device::of(core);
        device.hand_over_launches();
        device.ledger().settle(core, self)?;
        let stream = core.default_stream();
        let enqueued = {
            let _turn = lock(&stream.submission);
            stream.in_flight.check()?;
            enqueue(core, &stream.handle)
        };
        // Also after a failure: nothing may be left running on borrowed memory.
        let waited = stream.synchronize(core);
        enqueued.and(waited)
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment")
            .field("len_bytes", &self.len_bytes())
            .field("address", &self.address())
            .finish()
    }
}
