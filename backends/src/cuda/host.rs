//! Pinned host memory: allocated by the driver, or registered with it.
//!
//! A registration holds for every context of the process, so ranges are known to the backend and not to a
//! device: two devices may register the same range, which is then registered once. What the API refuses as a
//! whole is tried in parts (drivers have refused 2 GiB at once), and a copy is split where two parts meet.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use spoc_driver::{Error, ErrorKind, Result};

use super::context::Context;
use super::device::Shared;
use super::error::{ALREADY_REGISTERED, Api, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, kind_of};
use super::library::Code;
use super::reaper::{Address, Doomed};
use crate::sync::lock;

/// The parts in which a range is registered that is refused as a whole, in bytes.
const PART_BYTES: usize = 256 << 20;

/// For every context, and mapped for kernels.
const FLAGS: u32 = PORTABLE | MAPPED;
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;

/// Pinned memory, freed or unregistered when it is dropped.
pub(super) enum HostMemory {
    Own { first: *mut u8, shared: Arc<Shared> },
    Registered { first: *mut u8, context: Arc<Context>, registrations: Arc<Registrations> },
}

// SAFETY: the pointer is handed to the driver, never followed here.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Page-locked memory of the driver's, cached by the processor as any other.
    pub(super) fn allocate(shared: &Arc<Shared>, len_bytes: usize) -> Result<Self> {
        const DOING: &str = "allocating pinned memory with CUDA";
        let api = &shared.context.api;
        let need_bytes = len_bytes as u64;
        // The API would try, and take everybody else's memory with it.
        if crate::capacity::Capacity::now().free_bytes < need_bytes {
            return Err(Error::new(ErrorKind::OutOfHostMemory { need_bytes }, DOING));
        }
        let mut first = std::ptr::null_mut();
        let _here = shared.context.enter()?;
        // SAFETY: the place is valid, and the context is current.
        match unsafe { (api.library.host_allocate)(&raw mut first, len_bytes, FLAGS) } {
            SUCCESS => {
                shared.registrations.note(first.addr(), len_bytes);
                Ok(Self::Own { first: first.cast(), shared: Arc::clone(shared) })
            }
            code => Err(api.error(pin_kind(code, need_bytes), code, DOING)),
        }
    }

    /// Registers memory of the process.
    ///
    /// # Safety
    /// The range stays mapped until the value is dropped.
    pub(super) unsafe fn register(shared: &Arc<Shared>, first: *mut u8, len_bytes: usize) -> Result<Self> {
        // SAFETY: the caller's word.
        unsafe { shared.registrations.add(&shared.context, first, len_bytes) }?;
        let (context, registrations) = (Arc::clone(&shared.context), Arc::clone(&shared.registrations));
        Ok(Self::Registered { first, context, registrations })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::Own { first, .. } | Self::Registered { first, .. } => *first,
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        match self {
            Self::Own { first, shared } => {
                // Before it is freed: the next allocation may get the address.
                shared.registrations.forget(first.addr());
                if shared.context.api.is_own_process() {
                    shared.reaper.bury(Doomed::Host(Address(*first)));
                }
            }
            // Here and now, although it may wait for the device: the memory is unmapped next, and the device
            // would go on copying from the pages that were there.
            Self::Registered { first, context, registrations } => {
                registrations.remove(context, first.addr());
            }
        }
    }
}

/// Pinned ranges by first address: those that are registered, and the driver's own.
#[derive(Default)]
pub(super) struct Registrations {
    ranges: Mutex<BTreeMap<usize, Range>>,
    /// How many of them lie in several parts: mostly none, and then no copy has to look.
    segmented: AtomicUsize,
}

struct Range {
    len_bytes: usize,
    /// How many registrations of exactly this range there are.
    users: usize,
    part_bytes: usize,
}

impl Range {
    fn is_segmented(&self) -> bool {
        self.part_bytes < self.len_bytes
    }

    /// Where its parts begin.
    fn parts(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        (first..first + self.len_bytes).step_by(self.part_bytes.max(1))
    }
}

impl Registrations {
    /// Registers a range, or counts one more user of it.
    ///
    /// # Safety
    /// The range stays mapped until it is removed.
    unsafe fn add(&self, context: &Context, first: *mut u8, len_bytes: usize) -> Result<()> {
        const DOING: &str = "registering host memory with CUDA";
        let mut ranges = lock(&self.ranges);
        let (start, end) = (first.addr(), first.addr().saturating_add(len_bytes));
        if let Some((&other, range)) = ranges.range_mut(..end).next_back()
            && other.saturating_add(range.len_bytes) > start
        {
            if (other, range.len_bytes) == (start, len_bytes) {
                range.users += 1;
                return Ok(());
            }
            return Err(Error::new(ErrorKind::Overlap, DOING).with("bytes", len_bytes));
        }
        // SAFETY: the caller's word.
        let part_bytes = unsafe { register(context, first, len_bytes, PART_BYTES) }?;
        let range = Range { len_bytes, users: 1, part_bytes };
        if range.is_segmented() {
            self.segmented.fetch_add(1, Ordering::Release);
            tracing::info!(bytes = len_bytes, part_bytes, "CUDA registers host memory in parts only");
        }
        ranges.insert(start, range);
        Ok(())
    }

    /// Counts one user less, and unregisters the range after the last.
    fn remove(&self, context: &Context, start: usize) {
        let mut ranges = lock(&self.ranges);
        let Some(range) = ranges.get_mut(&start) else { return };
        range.users -= 1;
        if range.users > 0 {
            return;
        }
        unregister(context, range.parts(start));
        if range.is_segmented() {
            self.segmented.fetch_sub(1, Ordering::Release);
        }
        ranges.remove(&start);
    }

    /// Notes memory that the driver has just allocated.
    fn note(&self, start: usize, len_bytes: usize) {
        lock(&self.ranges).insert(start, Range { len_bytes, users: 1, part_bytes: len_bytes });
    }

    /// Forgets it.
    fn forget(&self, start: usize) {
        lock(&self.ranges).remove(&start);
    }

    /// Whether all of a range is pinned, so that the device can read it.
    pub(super) fn holds(&self, start: usize, len_bytes: usize) -> bool {
        let ranges = lock(&self.ranges);
        let known = ranges.range(..=start).next_back();
        known.is_some_and(|(first, range)| start - first + len_bytes <= range.len_bytes)
    }

    /// How much of a copy from or to this address can be given to the API in one piece.
    pub(super) fn piece(&self, start: usize, len_bytes: usize) -> usize {
        if self.segmented.load(Ordering::Acquire) == 0 {
            return len_bytes;
        }
        let ranges = lock(&self.ranges);
        match ranges.range(..=start).next_back() {
            Some((&first, range)) if range.is_segmented() && start - first < range.len_bytes => {
                len_bytes.min(range.part_bytes - (start - first) % range.part_bytes)
            }
            _ => len_bytes,
        }
    }
}

/// Registers a range as a whole, or else in parts, and answers their length.
///
/// # Safety
/// The range stays mapped until it is unregistered.
unsafe fn register(context: &Context, first: *mut u8, len_bytes: usize, part_bytes: usize) -> Result<usize> {
    // SAFETY: the caller's word.
    let code = unsafe { register_one(context, first, len_bytes) }?;
    if code == SUCCESS {
        return Ok(len_bytes);
    }
    // A range that is known already stays refused, in whatever parts.
    if code == ALREADY_REGISTERED || len_bytes <= part_bytes || kind_of(code) == ErrorKind::ProcessLost {
        return Err(refused(&context.api, code, len_bytes));
    }
    for offset in (0..len_bytes).step_by(part_bytes) {
        let part = part_bytes.min(len_bytes - offset);
        // SAFETY: inside the range, which the caller keeps.
        let code = unsafe { register_one(context, first.wrapping_add(offset), part) }?;
        if code != SUCCESS {
            let done = (0..offset).step_by(part_bytes).map(|offset| first.addr() + offset);
            unregister(context, done);
            return Err(refused(&context.api, code, len_bytes).with("part_bytes", part));
        }
    }
    Ok(part_bytes)
}

/// # Safety
/// As [`register`].
unsafe fn register_one(context: &Context, first: *mut u8, len_bytes: usize) -> Result<Code> {
    let _here = context.enter()?;
    // SAFETY: the caller's word; the context is current.
    Ok(unsafe { (context.api.library.host_register)(first.cast::<c_void>(), len_bytes, FLAGS) })
}

fn unregister(context: &Context, parts: impl Iterator<Item = usize>) {
    for first in parts {
        let first = std::ptr::with_exposed_provenance_mut::<c_void>(first);
        context.end("unregistering host memory from CUDA", |library| {
            // SAFETY: registered before, and used by nothing enqueued; the address is only a name here.
            unsafe { (library.host_unregister)(first) }
        });
    }
}

fn refused(api: &Api, code: Code, len_bytes: usize) -> Error {
    let kind = pin_kind(code, len_bytes as u64);
    let error = api.error(kind, code, "registering host memory with CUDA").with("bytes", len_bytes);
    if code == ALREADY_REGISTERED {
        // Copies from such a range read whatever pages it named when it was registered.
        return error.with("because", "another library registered it, or freed it without unregistering it");
    }
    error
}

/// What a failed pinning means. Nothing of it stays behind, in this call or in later ones.
fn pin_kind(code: Code, need_bytes: u64) -> ErrorKind {
    match code {
        OUT_OF_MEMORY => ErrorKind::OutOfHostMemory { need_bytes },
        // What the API says of memory that it cannot pin: unmapped, read-only, or too much at once.
        INVALID_VALUE => ErrorKind::InvalidArgument,
        _ => kind_of(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(ranges: &[(usize, usize, usize)]) -> Registrations {
        let known = Registrations::default();
        for &(start, len_bytes, part_bytes) in ranges {
            let range = Range { len_bytes, users: 1, part_bytes };
            known.segmented.fetch_add(usize::from(range.is_segmented()), Ordering::Relaxed);
            lock(&known.ranges).insert(start, range);
        }
        known
    }

    #[test]
    fn copies_are_cut_where_parts_meet() {
        let whole = known(&[(4096, 8192, 8192)]);
        assert_eq!(whole.piece(4096, 8192), 8192);
        let parts = known(&[(4096, 10_000, 4096), (100_000, 50, 50)]);
        assert_eq!(parts.piece(4096, 10_000), 4096);
        assert_eq!(parts.piece(4096 + 100, 10), 10);
        assert_eq!(parts.piece(8191, 10), 1);
        assert_eq!(parts.piece(4096 + 8192, 1808), 1808);
        assert_eq!(parts.piece(100_000, 50), 50);
        assert_eq!(parts.piece(50, 40), 40, "before everything registered");
        assert_eq!(parts.piece(50_000, 40), 40, "between");
    }

    #[test]
    fn what_is_pinned_is_known_by_address() {
        let known = known(&[(4096, 8192, 8192), (100_000, 50, 50)]);
        assert!(known.holds(4096, 8192) && known.holds(100_049, 1) && known.holds(5000, 7));
        assert!(!known.holds(4096, 8193) && !known.holds(4095, 2) && !known.holds(100_050, 1));
        known.note(200_000, 10);
        assert!(known.holds(200_009, 1));
        known.forget(200_000);
        assert!(!known.holds(200_009, 1));
    }

    #[test]
    fn parts_of_a_range_are_whole_but_the_last() {
        let range = Range { len_bytes: 10, users: 1, part_bytes: 4 };
        assert_eq!(range.parts(100).collect::<Vec<_>>(), [100, 104, 108]);
        let whole = Range { len_bytes: 10, users: 1, part_bytes: 10 };
        assert_eq!(whole.parts(100).collect::<Vec<_>>(), [100]);
        assert!(range.is_segmented() && !whole.is_segmented());
    }

    #[test]
    fn what_cannot_be_pinned_is_told_from_what_is_short() {
        assert_eq!(pin_kind(OUT_OF_MEMORY, 7), ErrorKind::OutOfHostMemory { need_bytes: 7 });
        assert_eq!(pin_kind(INVALID_VALUE, 7), ErrorKind::InvalidArgument);
        assert_eq!(pin_kind(ALREADY_REGISTERED, 7), ErrorKind::Overlap);
    }
}
