//! Stream copies. Pending copies own their memory.

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use crate::backend::{CopyOp, DynCopyOp};
use crate::error::{Error, ErrorKind, Result, Returned};
use crate::event::Event;
use crate::host::{HostSink, HostSource, PinUse};
use crate::ledger::Payload;
use crate::pending::PendingRead;
use crate::segment::Segment;
use crate::stream::Stream;
use crate::util::{check_range, lock};

/// One range of a source and where it goes.
#[derive(Debug, Clone, Copy)]
pub struct CopyRange<'a> {
    /// Offset in the source, in bytes.
    pub src_offset: usize,
    /// Where to.
    pub dst: &'a Segment,
    /// Offset in `dst`, in bytes.
    pub dst_offset: u64,
    /// How much, in bytes; 0 is allowed and copies nothing.
    pub len_bytes: usize,
}

/// The memory of a submission while it is handed to the backend. Should an adapter panic half-way, the
/// memory is leaked: copies that it had enqueued may still use it.
struct Held<S>(ManuallyDrop<S>);

impl<S> Held<S> {
    fn new(value: S) -> Self {
        Self(ManuallyDrop::new(value))
    }

    fn release(self) -> S {
        ManuallyDrop::into_inner(self.0)
    }
}

impl Stream {
    /// Enqueues copies of ranges of one host source. The ledger owns the source and the segments until
    /// the copies have run; the source is then dropped by whoever retires them (a wait, a query, `collect`).
    /// Ranges that overlap in the destination arrive in no particular order.
    ///
    /// # Errors
    /// With the source given back, and nothing of it in use: `WrongDevice`; `OutOfBounds`; `Misaligned`;
    /// `Overlap` at the edge of a pinned range; the stream's sticky failure; what the backend answers.
    pub fn copy_to_device<S: HostSource>(&self, src: S, ranges: &[CopyRange<'_>]) -> Result<(), Returned<S>> {
        let base = src.as_ptr();
        let (pin, bytes) = match self.check_to_device(base, src.len_bytes(), ranges) {
            Ok(checked) => checked,
            Err(error) => return Err(Returned::new(src, error)),
        };
        self.keep_short();
        let held = Held::new(src);
        let _turn = lock(&self.core().submission);
        match self.core().in_flight.check().and_then(|()| self.enqueue_to_device(base, ranges)) {
            Ok(()) => {
                let payload = Payload::new(held.release());
                self.enter(payload, false, ranges.iter().map(|range| range.dst), pin);
                self.device_core().counters.bytes_to_device.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(Returned::new(held.release(), error)),
        }
    }

    fn check_to_device(
        &self,
        base: *const u8,
        src_len: usize,
        ranges: &[CopyRange<'_>],
    ) -> Result<(Option<PinUse>, u64)> {
        const DOING: &str = "copying to the device";
        let (mut first, mut end, mut bytes) = (usize::MAX, 0, 0_u64);
        for range in ranges {
            self.device_core().check_same(range.dst.core(), DOING)?;
            check_range(range.src_offset as u64, range.len_bytes as u64, src_len as u64, DOING)?;
            range.dst.check(range.dst_offset, range.len_bytes as u64, DOING)?;
            first = first.min(range.src_offset);
            end = end.max(range.src_offset + range.len_bytes);
            bytes = bytes.saturating_add(range.len_bytes as u64);
        }
        if bytes == 0 {
            return Ok((None, 0));
        }
        let pin = self.device_core().hold_host(base.addr() + first, end - first)?;
        Ok((pin, bytes))
    }

    /// On an error nothing of the source is in use any more.
    fn enqueue_to_device(&self, base: *const u8, ranges: &[CopyRange<'_>]) -> Result<()> {
        let (device, stream) = (self.device_core(), &self.core().handle);
        let is_batch = ranges.len() > 1 && ranges.iter().all(|range| range.len_bytes > 0);
        if is_batch && device.capabilities.copy_many.is_available() {
            let get = |index: usize| copy_op(base, &ranges[index]);
            // SAFETY: the caller holds the source and the segments, then the ledger does, until the stream
            // has passed this point; all ranges were checked by `check_to_device`.
            let enqueued = unsafe { device.backend.copy_many(&device.handle, stream, ranges.len(), &get) };
            return enqueued.inspect_err(|_| self.stop_half_way());
        }
        for (done, range) in ranges.iter().filter(|range| range.len_bytes > 0).enumerate() {
            // SAFETY: as above.
            let enqueued =
                unsafe { device.backend.copy_to_device(&device.handle, stream, copy_op(base, range)) };
            if let Err(error) = enqueued {
                if done > 0 {
                    self.stop_half_way();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for what was enqueued before a failure: it still uses memory that is to be given back.
    fn stop_half_way(&self) {
        let device = self.device_core();
        if let Err(error) = device.backend.synchronize_stream(&device.handle, &self.core().handle) {
            self.core().in_flight.fail(&error);
        }
    }

    /// Enqueues a copy of `dst.len_bytes()` bytes to the host. The ledger owns `dst` until it has run;
    /// [`PendingRead::wait`] gives it back, so nobody can look at it before.
    ///
    /// # Errors
    /// With `dst` given back, and not in use: as [`Stream::copy_to_device`].
    pub fn copy_to_host<D: HostSink>(
        &self,
        src: &Segment,
        src_offset: u64,
        mut dst: D,
    ) -> Result<PendingRead<D>, Returned<D>> {
        let (ptr, len_bytes) = (dst.as_mut_ptr(), dst.len_bytes());
        let (pin, event) = match self.prepare_to_host(src, src_offset, ptr, len_bytes) {
            Ok(prepared) => prepared,
            Err(error) => return Err(Returned::new(dst, error)),
        };
        self.keep_short();
        let held = Held::new(dst);
        let turn = lock(&self.core().submission);
        let enqueued = self.core().in_flight.check().and_then(|()| {
            let device = self.device_core();
            if len_bytes == 0 {
                return Ok(());
            }
            // SAFETY: `held`, then the ledger, owns the destination until the stream has passed this point,
            // and gives it to nobody before; the range was checked by `prepare_to_host`.
            unsafe {
                let from = (src.buffer(), src_offset);
                device.backend.copy_to_host(&device.handle, &self.core().handle, from, ptr, len_bytes)
            }
        });
        if let Err(error) = enqueued {
            return Err(Returned::new(held.release(), error));
        }
        let recorded = self.record_locked(&event);
        if let Err(error) = recorded {
            self.stop_half_way();
            return Err(Returned::new(held.release(), error));
        }
        let sequence = self.enter(Payload::new(held.release()), true, [src].into_iter(), pin);
        drop(turn);
        self.device_core().counters.bytes_to_host.fetch_add(len_bytes as u64, Ordering::Relaxed);
        Ok(PendingRead::new(self.device().clone(), event, &self.core().in_flight, sequence))
    }

    fn prepare_to_host(
        &self,
        src: &Segment,
        src_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(Option<PinUse>, Event)> {
        const DOING: &str = "copying to the host";
        let device = self.device_core();
        device.check_same(src.core(), DOING)?;
        src.check(src_offset, len_bytes as u64, DOING)?;
        let pin = if len_bytes == 0 { None } else { device.hold_host(dst.addr(), len_bytes)? };
        let spare = self.device().ledger().take_event();
        Ok((pin, spare.map_or_else(|| self.device().create_event(), Ok)?))
    }

    /// Enqueues a copy within the device. The ledger keeps both segments until it has run.
    ///
    /// # Errors
    /// `WrongDevice`; `OutOfBounds`; `Misaligned`; `Overlap` if the two ranges do; the stream's sticky
    /// failure; what the backend answers.
    pub fn copy_device_to_device(
        &self,
        src: &Segment,
        src_offset: u64,
        dst: &Segment,
        dst_offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        const DOING: &str = "copying within the device";
        let device = self.device_core();
        device.check_same(src.core(), DOING)?;
        device.check_same(dst.core(), DOING)?;
        src.check(src_offset, len_bytes, DOING)?;
        dst.check(dst_offset, len_bytes, DOING)?;
        if len_bytes == 0 {
            return Ok(());
        }
        if src.is(dst) && src_offset.abs_diff(dst_offset) < len_bytes {
            return Err(Error::new(ErrorKind::Overlap, DOING).with("bytes", len_bytes));
        }
        self.keep_short();
        let _turn = lock(&self.core().submission);
        self.submit(Payload::new(()), [src, dst].into_iter(), |core, stream| {
            let (from, to) = ((src.buffer(), src_offset), (dst.buffer(), dst_offset));
            // SAFETY: the ledger keeps both segments until the stream has passed; the ranges were checked
            // just above.
            unsafe { core.backend.copy_on_device(&core.handle, stream, from, to, len_bytes) }
        })?;
        device.counters.bytes_on_device.fetch_add(len_bytes, Ordering::Relaxed);
        Ok(())
    }
}

fn copy_op<'a>(base: *const u8, range: &CopyRange<'a>) -> DynCopyOp<'a> {
    CopyOp {
        src: base.wrapping_add(range.src_offset),
        dst: range.dst.buffer(),
        dst_offset: range.dst_offset,
        len_bytes: range.len_bytes,
    }
}
