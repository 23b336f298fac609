//! Which host ranges a device knows: refuses overlaps, and knows what is in flight.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::HostMemory;
use crate::backend::Handle;
use crate::device::DeviceCore;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::util::lock;

/// The ranges of one device, by first address.
#[derive(Default)]
pub(crate) struct Registry {
    ranges: Mutex<BTreeMap<usize, Registered>>,
}

struct Registered {
    len_bytes: usize,
    /// Empty while the backend is still registering it, and while it is being unregistered.
    range: Weak<PinRange>,
}

/// A registered range. The last owner unregisters it: a handle, or a copy that is still pending.
pub(crate) struct PinRange {
    start: usize,
    len_bytes: usize,
    handle: Option<Handle>,
    in_flight: AtomicU32,
    /// Registered memory is unregistered before it is unmapped.
    _memory: Option<HostMemory>,
    core: Arc<DeviceCore>,
}

/// Counts as in flight while it lives.
pub(crate) struct PinUse(Arc<PinRange>);

impl Drop for PinUse {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Release);
    }
}

impl PinRange {
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.core
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }
}

impl Drop for PinRange {
    fn drop(&mut self) {
        // The API forgets the range first: until then a new registration of it has to be refused.
        drop(self.handle.take());
        lock(&self.core.registry.ranges).remove(&self.start);
    }
}

impl Registry {
    /// Claims a range, lets `register` tell the backend, and keeps it until the result's last clone drops.
    pub(crate) fn register(
        core: &Arc<DeviceCore>,
        memory: HostMemory,
        register: impl FnOnce() -> Result<Handle>,
    ) -> Result<Arc<PinRange>> {
        let (start, len_bytes) = (memory.as_ptr().addr(), memory.len_bytes());
        Self::register_at(core, start, len_bytes, Some(memory), register)
    }

    /// [`Registry::register`] of memory that somebody else keeps, if `memory` does not.
    pub(crate) fn register_at(
        core: &Arc<DeviceCore>,
        start: usize,
        len_bytes: usize,
        memory: Option<HostMemory>,
        register: impl FnOnce() -> Result<Handle>,
    ) -> Result<Arc<PinRange>> {
        core.registry.claim(start, len_bytes)?;
        match register() {
            Ok(handle) => Ok(core.registry.settle(core, start, len_bytes, handle, memory)),
            Err(error) => {
                lock(&core.registry.ranges).remove(&start);
                Err(error)
            }
        }
    }

    /// Notes memory that the backend has just allocated.
    pub(crate) fn adopt(
        core: &Arc<DeviceCore>,
        start: usize,
        len_bytes: usize,
        handle: Handle,
    ) -> Result<Arc<PinRange>> {
        core.registry.claim(start, len_bytes)?;
        Ok(core.registry.settle(core, start, len_bytes, handle, None))
    }

    fn claim(&self, start: usize, len_bytes: usize) -> Result<()> {
        let mut ranges = lock(&self.ranges);
        let end = start.saturating_add(len_bytes);
        if let Some((&other, known)) = ranges.range(..end).next_back()
            && other.saturating_add(known.len_bytes) > start
        {
            return Err(Error::new(ErrorKind::Overlap, "registering host memory")
                .with("bytes", len_bytes)
                .with("registered_bytes", known.len_bytes));
        }
        ranges.insert(start, Registered { len_bytes, range: Weak::new() });
        Ok(())
    }

    fn settle(
        &self,
        core: &Arc<DeviceCore>,
        start: usize,
        len_bytes: usize,
        handle: Handle,
        memory: Option<HostMemory>,
    ) -> Arc<PinRange> {
        let range = Arc::new(PinRange {
            start,
            len_bytes,
            handle: Some(handle),
            in_flight: AtomicU32::new(0),
            _memory: memory,
            core: Arc::clone(core),
        });
        if let Some(entry) = lock(&self.ranges).get_mut(&start) {
            entry.range = Arc::downgrade(&range);
        }
        range
    }

    /// The registered range that holds these bytes, marked in use; `None` for ordinary memory.
    ///
    /// # Errors
    /// `Overlap` if they lie partly in a registered range: APIs refuse such copies, some of them late.
    pub(crate) fn hold(&self, start: usize, len_bytes: usize) -> Result<Option<PinUse>> {
        let ranges = lock(&self.ranges);
        let end = start.saturating_add(len_bytes);
        let Some((&first, known)) = ranges.range(..end.max(start.saturating_add(1))).next_back() else {
            return Ok(None);
        };
        let known_end = first.saturating_add(known.len_bytes);
        if known_end <= start {
            return Ok(None);
        }
        if first > start || known_end < end {
            return Err(Error::new(
                ErrorKind::Overlap,
                "copying host memory across the edge of a pinned range",
            )
            .with("bytes", len_bytes)
            .with("pinned_bytes", known.len_bytes));
        }
        Ok(known.range.upgrade().map(|range| {
            range.in_flight.fetch_add(1, Ordering::Relaxed);
            PinUse(range)
        }))
    }

    /// Ends the use of a range by copies to come; false while one is in flight. Looked at and ended under one
    /// lock: a copy from another thread either is seen here, or does not get the range any more.
    pub(crate) fn end(&self, range: &PinRange) -> bool {
        let mut ranges = lock(&self.ranges);
        if range.is_in_flight() {
            return false;
        }
        if let Some(entry) = ranges.get_mut(&range.start) {
            entry.range = Weak::new();
        }
        true
    }

    /// A registered range that shares a byte with this one.
    pub(crate) fn overlapping(&self, start: usize, len_bytes: usize) -> Option<Arc<PinRange>> {
        let ranges = lock(&self.ranges);
        let end = start.saturating_add(len_bytes.max(1));
        let (&first, known) = ranges.range(..end).next_back()?;
        let overlaps = first.saturating_add(known.len_bytes) > start;
        if overlaps { known.range.upgrade() } else { None }
    }

    /// How many ranges are registered.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ranges).len()
    }
}
