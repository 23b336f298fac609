//! Addresses that memory is put behind, and taken from, piece by piece.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{Handle, SegmentOptions};
use crate::device::{Device, DeviceCore};
use crate::error::{Error, ErrorKind, Result};
use crate::segment::Segment;
use crate::sync::Mutex;
use crate::util::{check_aligned, check_range, lock};

/// A range of a device's addresses that nothing else gets. [`Reservation::commit`] puts memory behind a part of it;
/// dropping that segment takes the memory back, and the part can be committed again. So memory grows and is given
/// back while every address stays what it is.
///
/// It lives as long as its last clone or segment. It costs addresses, and no memory.
#[derive(Clone)]
pub struct Reservation(Arc<Inner>);

struct Inner {
    buffer: Handle,
    len_bytes: u64,
    /// First byte and length of each part that has memory.
    committed: Mutex<BTreeMap<u64, u64>>,
    core: Arc<DeviceCore>,
}

/// A part's claim on its reservation, until it is dropped.
pub(crate) struct Committed {
    inner: Arc<Inner>,
    offset_bytes: u64,
}

impl Drop for Committed {
    fn drop(&mut self) {
        lock(&self.inner.committed).remove(&self.offset_bytes);
    }
}

impl Device {
    /// Reserves addresses for `len_bytes`, rounded up to the device's export granule.
    ///
    /// # Errors
    /// `Unsupported` (see `reserve` in the capabilities); `ZeroSize`; what the backend answers.
    pub fn reserve(&self, len_bytes: u64) -> Result<Reservation> {
        const DOING: &str = "reserving addresses";
        let core = self.core();
        core.require("reserve", &core.capabilities.reserve)?;
        if len_bytes == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, DOING));
        }
        let too_large = || Error::new(ErrorKind::TooLarge { need: len_bytes, max: u64::MAX }, DOING);
        let granule = core.limits.export_granule_bytes.max(1);
        let len_bytes = len_bytes.checked_next_multiple_of(granule).ok_or_else(too_large)?;
        let buffer = core.backend.reserve(&core.handle, len_bytes)?;
        let committed = Mutex::new(BTreeMap::new());
        Ok(Reservation(Arc::new(Inner { buffer, len_bytes, committed, core: Arc::clone(core) })))
    }
}

impl Reservation {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    /// The first address. That of a segment is this plus its offset.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        self.0.core.backend.address(&self.0.core.handle, &self.0.buffer).ok().flatten()
    }

    /// Bytes that have memory now.
    #[must_use]
    pub fn committed_bytes(&self) -> u64 {
        // What has run may hold the last reference to a part.
        Device::of(&self.0.core).collect();
        lock(&self.0.committed).values().sum()
    }

    /// Puts memory behind a part: a segment of its own, which can be lent if `options` say so. Offset and length
    /// are multiples of the device's export granule.
    ///
    /// # Errors
    /// `ZeroSize`; `OutOfBounds`; `Misaligned`; `Overlap` with a part that has memory; `OutOfDeviceMemory`;
    /// `Unsupported` if it has to be exportable and cannot.
    pub fn commit(&self, offset_bytes: u64, len_bytes: u64, options: SegmentOptions) -> Result<Segment> {
        const DOING: &str = "committing reserved addresses";
        let core = &self.0.core;
        if len_bytes == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, DOING));
        }
        check_range(offset_bytes, len_bytes, self.0.len_bytes, DOING)?;
        check_aligned(offset_bytes, core.limits.export_granule_bytes, DOING)?;
        check_aligned(len_bytes, core.limits.export_granule_bytes, DOING)?;
        if options.exportable {
            core.require("export_memory", &core.capabilities.export_memory)?;
        }
        // What has run may hold the last reference to memory that is needed now.
        Device::of(core).collect();
        let claim = self.claim(offset_bytes, len_bytes, DOING)?;
        let buffer = core.backend.commit(&core.handle, &self.0.buffer, (offset_bytes, len_bytes), options)?;
        Ok(Segment::committed(core, buffer, len_bytes, claim))
    }

    fn claim(&self, offset_bytes: u64, len_bytes: u64, doing: &'static str) -> Result<Committed> {
        let mut committed = lock(&self.0.committed);
        if let Some((first, len)) = committed.range(..offset_bytes + len_bytes).next_back()
            && first + len > offset_bytes
        {
            return Err(Error::new(ErrorKind::Overlap, doing)
                .with("offset_bytes", offset_bytes)
                .with("bytes", len_bytes)
                .with("committed_at", first));
        }
        committed.insert(offset_bytes, len_bytes);
        Ok(Committed { inner: Arc::clone(&self.0), offset_bytes })
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation").field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}
