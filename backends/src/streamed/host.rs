//! Pinned host memory: allocated by the driver, or registered with it.
//!
//! A registration holds for every context of the process, so ranges are known to the backend and not to a
//! device: two devices may register the same range, which is then registered once. What the API refuses as a
//! whole is tried in parts (drivers have refused 2 GiB at once), and a copy is split where two parts meet.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use spoc_driver::{Error, ErrorKind, Result};

use super::context::Context;
use super::device::Shared;
use super::error::{ALREADY_REGISTERED, Api, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, kind_of};
use super::reaper::{Address, Doomed};
use super::table::Code;
use crate::sync::lock;

/// The parts in which a range is registered that is refused as a whole, in bytes.
const PART_BYTES: usize = 256 << 20;

/// For every context, and mapped for kernels.
const FLAGS: u32 = PORTABLE | MAPPED;
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;

/// Pinned memory, freed or unregistered when it is dropped.
pub(crate) enum HostMemory {
    Own { first: *mut u8, shared: Arc<Shared> },
    Registered { first: *mut u8, context: Arc<Context>, registrations: Arc<Registrations> },
}

// SAFETY: the pointer is handed to the driver, never followed here.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Page-locked memory of the driver's, cached by the processor as any other.
    pub(crate) fn allocate(shared: &Arc<Shared>, len_bytes: usize) -> Result<Self> {
        const DOING: &str = "allocating pinned memory";
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
    pub(crate) unsafe fn register(shared: &Arc<Shared>, first: *mut u8, len_bytes: usize) -> Result<Self> {
        if shared.traits().refuses_files {
            super::files::refuse(first.addr(), len_bytes, "registering host memory")?;
        }
        // SAFETY: the caller's word.
        unsafe { shared.registrations.add(&shared.context, first, len_bytes) }?;
        let (context, registrations) = (Arc::clone(&shared.context), Arc::clone(&shared.registrations));
        Ok(Self::Registered { first, context, registrations })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
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
pub(crate) struct Registrations {
    /// Copies are cut at the ends of registrations, too.
    cuts: bool,
    ranges: Mutex<BTreeMap<usize, Range>>,
    /// A range has come or gone.
    changed: Condvar,
    /// How many of them lie in several parts: mostly none, and then no copy has to look.
    segmented: AtomicUsize,
}

struct Range {
    len_bytes: usize,
    /// How many registrations of exactly this range there are.
    users: usize,
    part_bytes: usize,
    /// On its way in or out: nobody's yet, or any more.
    is_moving: bool,
    /// No copy was made from it yet.
    is_fresh: bool,
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
    pub(crate) fn new(cuts: bool) -> Self {
        Self { cuts, ..Self::default() }
    }

    /// Registers a range, or counts one more user of it.
    ///
    /// # Safety
    /// The range stays mapped until it is removed.
    unsafe fn add(&self, context: &Context, first: *mut u8, len_bytes: usize) -> Result<()> {
        if !self.enter(first.addr(), len_bytes)? {
            return Ok(());
        }
        // Without the lock: this takes seconds for a large range, and copies look here.
        // SAFETY: the caller's word.
        let pin = |offset, len| unsafe { register_one(context, first.wrapping_add(offset), len) };
        let outcome =
            register(pin, |offset| unregister(context, first.addr() + offset), len_bytes, PART_BYTES);
        self.leave(first.addr(), outcome.as_ref().ok().copied());
        match outcome {
            Ok(part_bytes) if part_bytes < len_bytes => {
                tracing::info!(bytes = len_bytes, part_bytes, "host memory is registered in parts only");
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Refusal::Error(error)) => Err(error),
            Err(Refusal::Code { code, part_bytes }) => {
                let error = refused(&context.api, code, len_bytes);
                Err(if part_bytes < len_bytes { error.with("part_bytes", part_bytes) } else { error })
            }
        }
    }

    /// Whether the range is to be registered now; if not, somebody has done so.
    fn enter(&self, start: usize, len_bytes: usize) -> Result<bool> {
        let mut ranges = lock(&self.ranges);
        let end = start.saturating_add(len_bytes);
        while let Some((&other, range)) = ranges.range_mut(..end).next_back()
            && other.saturating_add(range.len_bytes) > start
        {
            if (other, range.len_bytes) != (start, len_bytes) {
                let doing = "registering host memory";
                return Err(Error::new(ErrorKind::Overlap, doing).with("bytes", len_bytes));
            }
            if !range.is_moving {
                range.users += 1;
                return Ok(false);
            }
            ranges = self.changed.wait(ranges).unwrap_or_else(PoisonError::into_inner);
        }
        ranges.insert(
            start,
            Range { len_bytes, users: 1, part_bytes: len_bytes, is_moving: true, is_fresh: true },
        );
        Ok(true)
    }

    /// A range that was entered is registered in such parts, or is not.
    fn leave(&self, start: usize, part_bytes: Option<usize>) {
        let mut ranges = lock(&self.ranges);
        match (part_bytes, ranges.get_mut(&start)) {
            (Some(part_bytes), Some(range)) => {
                (range.part_bytes, range.is_moving) = (part_bytes, false);
                if range.is_segmented() {
                    self.segmented.fetch_add(1, Ordering::Release);
                }
            }
            _ => drop(ranges.remove(&start)),
        }
        drop(ranges);
        self.changed.notify_all();
    }

    /// Counts one user less, and unregisters the range after the last.
    fn remove(&self, context: &Context, start: usize) {
        let Some(parts) = self.give_up(start) else { return };
        parts.for_each(|part| unregister(context, part));
        let range = lock(&self.ranges).remove(&start);
        if range.is_some_and(|range| range.is_segmented()) {
            self.segmented.fetch_sub(1, Ordering::Release);
        }
        self.changed.notify_all();
    }

    /// Where the parts begin of a range that its last user gives up.
    fn give_up(&self, start: usize) -> Option<impl Iterator<Item = usize> + use<>> {
        let mut ranges = lock(&self.ranges);
        let range = ranges.get_mut(&start)?;
        range.users -= 1;
        if range.users > 0 {
            return None;
        }
        range.is_moving = true;
        Some(range.parts(start))
    }

    /// Notes memory that the driver has just allocated.
    fn note(&self, start: usize, len_bytes: usize) {
        let (part_bytes, users) = (len_bytes, 1);
        let range = Range { len_bytes, users, part_bytes, is_moving: false, is_fresh: false };
        lock(&self.ranges).insert(start, range);
    }

    /// Forgets it.
    fn forget(&self, start: usize) {
        lock(&self.ranges).remove(&start);
    }

    /// Whether all of a range is pinned, so that the device can read it.
    pub(crate) fn holds(&self, start: usize, len_bytes: usize) -> bool {
        let ranges = lock(&self.ranges);
        let known = ranges.range(..=start).next_back();
        known.is_some_and(|(first, range)| !range.is_moving && start - first + len_bytes <= range.len_bytes)
    }

    /// How much of a copy from or to this address can be given to the API in one piece.
    pub(crate) fn piece(&self, start: usize, len_bytes: usize) -> usize {
        if !self.cuts && self.segmented.load(Ordering::Acquire) == 0 {
            return len_bytes;
        }
        let ranges = lock(&self.ranges);
        match ranges.range(..=start).next_back() {
            Some((&first, range)) if start - first < range.len_bytes => {
                let in_part = range.part_bytes - (start - first) % range.part_bytes;
                let in_range = range.len_bytes - (start - first);
                let len_bytes = if range.is_segmented() { len_bytes.min(in_part) } else { len_bytes };
                if self.cuts { len_bytes.min(in_range) } else { len_bytes }
            }
            // Up to the next that is registered.
            _ if self.cuts => {
                let next = ranges.range(start..).next().map_or(usize::MAX, |(first, _)| *first);
                len_bytes.min(next - start)
            }
            _ => len_bytes,
        }
    }

    /// Whether this is the first that is copied out of a registration.
    pub(crate) fn is_first(&self, start: usize) -> bool {
        let mut ranges = lock(&self.ranges);
        let Some((first, range)) = ranges.range_mut(..=start).next_back() else { return false };
        start - first < range.len_bytes && std::mem::take(&mut range.is_fresh)
    }
}

/// Why a range is not registered.
#[derive(Debug)]
enum Refusal {
    /// The call could not be made.
    Error(Error),
    /// What the API answered, for a part of this length.
    Code { code: Code, part_bytes: usize },
}

/// Registers a range as a whole, or else in parts, and answers their length: by `pin` of an offset and a length, whose
/// registrations `unpin` takes back if one is refused.
fn register(
    pin: impl Fn(usize, usize) -> Result<Code>,
    unpin: impl Fn(usize),
    len_bytes: usize,
    part_bytes: usize,
) -> Result<usize, Refusal> {
    let code = pin(0, len_bytes).map_err(Refusal::Error)?;
    if code == SUCCESS {
        return Ok(len_bytes);
    }
    // A range that is known already stays refused, in whatever parts.
    if code == ALREADY_REGISTERED || len_bytes <= part_bytes || kind_of(code) == ErrorKind::ProcessLost {
        return Err(Refusal::Code { code, part_bytes: len_bytes });
    }
    for offset in (0..len_bytes).step_by(part_bytes) {
        let part = part_bytes.min(len_bytes - offset);
        let refusal = match pin(offset, part) {
            Ok(SUCCESS) => continue,
            Ok(code) => Refusal::Code { code, part_bytes: part },
            Err(error) => Refusal::Error(error),
        };
        (0..offset).step_by(part_bytes).for_each(unpin);
        return Err(refusal);
    }
    Ok(part_bytes)
}

/// # Safety
/// The range stays mapped until it is unregistered.
unsafe fn register_one(context: &Context, first: *mut u8, len_bytes: usize) -> Result<Code> {
    let _here = context.enter()?;
    // SAFETY: the caller's word; the context is current.
    Ok(unsafe { (context.api.library.host_register)(first.cast::<c_void>(), len_bytes, FLAGS) })
}

fn unregister(context: &Context, first: usize) {
    if !context.api.is_own_process() {
        return;
    }
    let first = std::ptr::with_exposed_provenance_mut::<c_void>(first);
    let _leave = context.block("unregistering host memory");
    context.end("unregistering host memory", |library| {
        // SAFETY: registered before, and used by nothing enqueued; the address is only a name here.
        unsafe { (library.host_unregister)(first) }
    });
}

fn refused(api: &Api, code: Code, len_bytes: usize) -> Error {
    let kind = pin_kind(code, len_bytes as u64);
    let error = api.error(kind, code, "registering host memory").with("bytes", len_bytes);
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
    use std::cell::{Cell, RefCell};

    use super::*;

    fn known(ranges: &[(usize, usize, usize)]) -> Registrations {
        let known = Registrations::default();
        for &(start, len_bytes, part_bytes) in ranges {
            let range = Range { len_bytes, users: 1, part_bytes, is_moving: false, is_fresh: false };
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
    fn copies_are_cut_where_registrations_meet_if_the_api_wants_it() {
        let ranges = [(4096, 4096, 4096), (8192, 4096, 1024), (20_000, 50, 50)];
        let cut = Registrations { cuts: true, ..known(&ranges) };
        assert_eq!(cut.piece(4096, 8192), 4096);
        assert_eq!(cut.piece(8191, 8), 1);
        assert_eq!(cut.piece(8192, 4096), 1024);
        assert_eq!(cut.piece(12_287, 100), 1);
        assert_eq!(cut.piece(12_288, 100_000), 20_000 - 12_288, "up to the next");
        assert_eq!(cut.piece(20_010, 100_000), 40);
        assert_eq!(cut.piece(20_050, 100_000), 100_000);
        assert_eq!(cut.piece(10, 5000), 4086);
        assert_eq!(known(&ranges).piece(4096, 8192), 8192);
    }

    #[test]
    fn a_registration_is_copied_from_for_the_first_time_once() {
        let known = Registrations::default();
        assert!(known.enter(4096, 100).unwrap());
        known.leave(4096, Some(100));
        assert!(!known.is_first(4196) && !known.is_first(4095));
        assert!(known.is_first(4100) && !known.is_first(4100));
        known.note(8192, 10);
        assert!(!known.is_first(8192), "the driver's own");
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
        let range = Range { len_bytes: 10, users: 1, part_bytes: 4, is_moving: false, is_fresh: false };
        assert_eq!(range.parts(100).collect::<Vec<_>>(), [100, 104, 108]);
        let whole = Range { len_bytes: 10, users: 1, part_bytes: 10, is_moving: false, is_fresh: false };
        assert_eq!(whole.parts(100).collect::<Vec<_>>(), [100]);
        assert!(range.is_segmented() && !whole.is_segmented());
    }

    #[test]
    fn what_cannot_be_pinned_is_told_from_what_is_short() {
        assert_eq!(pin_kind(OUT_OF_MEMORY, 7), ErrorKind::OutOfHostMemory { need_bytes: 7 });
        assert_eq!(pin_kind(INVALID_VALUE, 7), ErrorKind::InvalidArgument);
        assert_eq!(pin_kind(ALREADY_REGISTERED, 7), ErrorKind::Overlap);
    }

    const REFUSED: Code = OUT_OF_MEMORY;

    /// Registers ten bytes in parts of four with an API that answers so, call by call, and says what is registered
    /// afterwards.
    fn with_faults(answers: &[Result<Code, ErrorKind>]) -> (Result<usize, Refusal>, Vec<(usize, usize)>) {
        let (pinned, calls) = (RefCell::new(Vec::new()), Cell::new(0));
        let pin = |offset, len| {
            let answer = answers[calls.replace(calls.get() + 1)].clone();
            if answer == Ok(SUCCESS) {
                pinned.borrow_mut().push((offset, len));
            }
            answer.map_err(|kind| Error::new(kind, "pinning"))
        };
        let unpin = |offset| {
            let before = pinned.borrow().len();
            pinned.borrow_mut().retain(|(known, _)| *known != offset);
            assert_eq!(pinned.borrow().len() + 1, before, "{offset} was not registered");
        };
        let outcome = register(pin, unpin, 10, 4);
        assert_eq!(calls.get(), answers.len(), "as many calls as answers");
        (outcome, pinned.into_inner())
    }

    #[test]
    fn what_is_refused_as_a_whole_is_registered_in_parts() {
        let (outcome, pinned) = with_faults(&[Ok(SUCCESS)]);
        assert_eq!((outcome.unwrap(), &*pinned), (10, &[(0, 10)][..]));
        let (outcome, pinned) = with_faults(&[Ok(REFUSED), Ok(SUCCESS), Ok(SUCCESS), Ok(SUCCESS)]);
        assert_eq!((outcome.unwrap(), &*pinned), (4, &[(0, 4), (4, 4), (8, 2)][..]));
    }

    #[test]
    fn what_is_refused_in_parts_leaves_nothing_registered() {
        let whole = [Ok(REFUSED)];
        for done in 0..3 {
            let parts = std::iter::repeat_n(Ok(SUCCESS), done);
            let faults = [Ok(INVALID_VALUE), Err(ErrorKind::ProcessLost)];
            for fault in faults {
                let answers: Vec<_> =
                    whole.iter().cloned().chain(parts.clone()).chain([fault.clone()]).collect();
                let (outcome, pinned) = with_faults(&answers);
                assert!(pinned.is_empty(), "{done} parts were done: {pinned:?}");
                match (outcome.unwrap_err(), fault) {
                    (Refusal::Code { code, part_bytes }, Ok(answer)) => {
                        assert_eq!((code, part_bytes), (answer, if done == 2 { 2 } else { 4 }));
                    }
                    (Refusal::Error(error), Err(kind)) => assert_eq!(*error.kind(), kind),
                    (refusal, fault) => panic!("{refusal:?} after {fault:?}"),
                }
            }
        }
    }

    #[test]
    fn what_is_registered_already_is_not_tried_in_parts() {
        let (outcome, pinned) = with_faults(&[Ok(ALREADY_REGISTERED)]);
        assert!(matches!(outcome, Err(Refusal::Code { code: ALREADY_REGISTERED, .. })), "{outcome:?}");
        assert!(pinned.is_empty());
    }

    #[test]
    fn a_range_on_its_way_is_waited_for_and_is_not_pinned_yet() {
        let known = Registrations::default();
        assert!(known.enter(4096, 100).unwrap());
        assert!(!known.holds(4096, 1));
        assert_eq!(*known.enter(4100, 100).unwrap_err().kind(), ErrorKind::Overlap);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| known.enter(4096, 100).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!second.is_finished());
            known.leave(4096, Some(40));
            assert!(!second.join().unwrap(), "the first did it for both");
        });
        assert!(known.holds(4096, 100) && known.piece(4096, 100) == 40);
        assert!(known.give_up(4096).is_none());
        assert_eq!(known.give_up(4096).unwrap().collect::<Vec<_>>(), [4096, 4136, 4176]);
        assert!(!known.holds(4096, 1), "on its way out");
        known.leave(4096, None);
        assert!(known.enter(4096, 100).unwrap(), "gone");
    }
}
