//! Copies.

use std::ffi::c_void;
use std::sync::Mutex;

use spoc_driver::Result;
use spoc_driver::backend::{CopyBatch, CopyOp};

use super::carry;
use super::counters::add;
use super::device::Shared;
use super::error::SUCCESS;
use super::first;
use super::host::Registrations;
use super::memory::Buffer;
use super::stream::Lane;
use super::table::{CopyAttributes, DevicePtr, Location, Table};
use crate::sync::lock;

/// Copies of less than this on average go faster one by one (H200: at 16 KiB 4.8 against 2.7 GB/s, at 64 KiB
/// 14 against 40).
const BATCH_MEAN_BYTES_MIN: usize = 32 << 10;

/// Most copies that one call to the API is given.
const BATCH_COPIES_MAX: usize = 4096;

const TO_DEVICE: &str = "copying to a device";

/// Waits for the stream if the API would: for copies that it makes only when the stream has come to them. While it
/// waits itself, other threads' calls are not made, the one perhaps that writes the word that the stream waits for.
fn settle(shared: &Shared, lane: &Lane, start: usize, len_bytes: usize) -> Result<()> {
    if shared.registrations.holds(start, len_bytes) || is_pinned_by_others(shared, start)? {
        return Ok(());
    }
    // One that cannot be asked says why when it is given the copy.
    if lane.is_idle().unwrap_or(true) { Ok(()) } else { lane.synchronize() }
}

/// Whether the API knows host memory there.
fn is_pinned_by_others(shared: &Shared, start: usize) -> Result<bool> {
    const HOST: u32 = 1;
    let mut kind = 0_u32;
    let mut attribute = super::memory::MEMORY_TYPE;
    let mut place: *mut c_void = (&raw mut kind).cast();
    let _here = shared.context.enter()?;
    // Of several attributes, because this answers zero for what the API knows not, where asking for one is an error.
    let ask = shared.context.api.library.pointer_attributes;
    // SAFETY: one attribute, and one place as wide as it; the address is only a name here.
    let code = unsafe { ask(1, &raw mut attribute, &raw mut place, start as u64) };
    Ok(code == SUCCESS && kind == HOST)
}

/// # Safety
/// As the port's: the source stays, and the buffer, until the copy has run.
pub(crate) unsafe fn to_device(shared: &Shared, lane: &Lane, op: &CopyOp<'_, Buffer>) -> Result<()> {
    add(&shared.counters.single_copies, 1);
    if op.len_bytes > shared.traits().staged_bytes_max {
        settle(shared, lane, op.src.addr(), op.len_bytes)?;
    }
    let timed = if is_timed(shared, lane, op) {
        shared.counters.first.begin(&shared.context, lane, op.len_bytes)?
    } else {
        None
    };
    pieces(shared, op.src.addr(), op.len_bytes, |offset, len| {
        lane.enqueue(TO_DEVICE, |stream| {
            let (dst, src) = (op.dst.at(op.dst_offset + offset as u64), op.src.wrapping_add(offset));
            // SAFETY: the caller keeps both; the driver checked the range.
            unsafe { (lane.api().library.copy_to_device)(dst, src.cast::<c_void>(), len, stream) }
        })
    })?;
    timed.map_or(Ok(()), |timed| shared.counters.first.end(lane, timed))
}

/// Whether a copy is long enough, and the first out of its registration, where such are timed.
fn is_timed(shared: &Shared, lane: &Lane, op: &CopyOp<'_, Buffer>) -> bool {
    shared.traits().times_first_copies
        && op.len_bytes >= first::BYTES_MIN
        && lane.is_own()
        && shared.registrations.is_first(op.src.addr())
}

/// # Safety
/// As the port's: the destination stays, untouched by others, and the buffer, until the copy has run.
pub(crate) unsafe fn to_host(
    shared: &Shared,
    lane: &Lane,
    src: (&Buffer, u64),
    dst: *mut u8,
    len_bytes: usize,
) -> Result<()> {
    settle(shared, lane, dst.addr(), len_bytes)?;
    pieces(shared, dst.addr(), len_bytes, |offset, len| {
        lane.enqueue("copying from a device", |stream| {
            let (src, dst) = (src.0.at(src.1 + offset as u64), dst.wrapping_add(offset));
            // SAFETY: as above.
            unsafe { (lane.api().library.copy_to_host)(dst.cast::<c_void>(), src, len, stream) }
        })
    })
}

/// Cuts a host range where two registrations meet: the API refuses copies across.
fn pieces(
    shared: &Shared,
    start: usize,
    len_bytes: usize,
    copy: impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    if cut(&shared.registrations, start, len_bytes, copy)? > 1 {
        add(&shared.counters.cut_copies, 1);
    }
    Ok(())
}

/// As [`pieces`]; answers how many there were.
fn cut(
    registrations: &Registrations,
    start: usize,
    len_bytes: usize,
    mut copy: impl FnMut(usize, usize) -> Result<()>,
) -> Result<usize> {
    let (mut offset, mut count) = (0, 0);
    while offset < len_bytes {
        let len = registrations.piece(start + offset, len_bytes - offset);
        copy(offset, len)?;
        offset += len;
        count += 1;
    }
    Ok(count)
}

/// Room for the lists that one batch is made of, kept so that a batch allocates nothing.
#[derive(Default)]
pub(crate) struct BatchRoom(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    dsts: Vec<DevicePtr>,
    srcs: Vec<DevicePtr>,
    sizes: Vec<usize>,
}

/// # Safety
/// As [`to_device`], for each of them.
pub(crate) unsafe fn many(
    shared: &Shared,
    room: &BatchRoom,
    lane: &Lane,
    batch: &CopyBatch<'_, Buffer>,
) -> Result<()> {
    let total: usize = batch.iter().map(|op| op.len_bytes).sum();
    let has_call = lane.api().library.copy_batch_short.is_some() || lane.api().library.copy_batch.is_some();
    let has_batches = has_call && lane.takes_batches();
    if let Some(carrier) = carry::serves(shared, batch, total, has_batches) {
        // SAFETY: the caller's word.
        return unsafe { carry::all(shared, lane, carrier, batch) };
    }
    if batch.len() < 2 || !has_batches || total / batch.len() < BATCH_MEAN_BYTES_MIN {
        // SAFETY: the caller's word.
        return batch.iter().try_for_each(|op| unsafe { to_device(shared, lane, &op) });
    }
    if total > shared.traits().staged_bytes_max {
        batch.iter().try_for_each(|op| settle(shared, lane, op.src.addr(), op.len_bytes))?;
    }
    let mut lists = lock(&room.0);
    let lists = &mut *lists;
    let clear = |lists: &mut Lists| {
        lists.dsts.clear();
        lists.srcs.clear();
        lists.sizes.clear();
    };
    clear(lists);
    add(&shared.counters.batched_copies, batch.len());
    for op in batch.iter() {
        pieces(shared, op.src.addr(), op.len_bytes, |offset, len| {
            lists.dsts.push(op.dst.at(op.dst_offset + offset as u64));
            lists.srcs.push(op.src.wrapping_add(offset).expose_provenance() as u64);
            lists.sizes.push(len);
            if lists.sizes.len() < BATCH_COPIES_MAX {
                return Ok(());
            }
            // SAFETY: the caller keeps sources and buffers.
            let outcome = unsafe { submit(shared, lane, lists) };
            clear(lists);
            outcome
        })?;
    }
    if lists.sizes.is_empty() {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { submit(shared, lane, lists) }
}

/// Hands the lists to the API in one call.
///
/// # Safety
/// As [`to_device`], for each entry.
unsafe fn submit(shared: &Shared, lane: &Lane, lists: &mut Lists) -> Result<()> {
    add(&shared.counters.batches, 1);
    /// Sources are read when the stream comes to the copies.
    const IN_STREAM_ORDER: u32 = 1;
    let nowhere = Location { kind: 0, id: 0 };
    let (source, destination) = (nowhere, nowhere);
    let mut attributes = CopyAttributes { source_order: IN_STREAM_ORDER, source, destination, flags: 0 };
    let mut first = 0_usize;
    let count = lists.sizes.len();
    let (dsts, srcs, sizes) = (lists.dsts.as_mut_ptr(), lists.srcs.as_mut_ptr(), lists.sizes.as_mut_ptr());
    lane.enqueue_here("copying a batch to a device", |stream| {
        let Table { copy_batch_short, copy_batch, .. } = &lane.api().library;
        let (attributes, first) = (&raw mut attributes, &raw mut first);
        let mut failed = 0_usize;
        match (copy_batch_short, copy_batch) {
            // SAFETY: the lists have `count` entries each and one attribute holds for all; the caller keeps
            // what they name; the context is current.
            (Some(copy), _) => unsafe { copy(dsts, srcs, sizes, count, attributes, first, 1, stream) },
            // SAFETY: as above; the last place takes the index of a copy that fails.
            (None, Some(copy)) => unsafe {
                copy(dsts, srcs, sizes, count, attributes, first, 1, &raw mut failed, stream)
            },
            // Asked for by `many` before it comes here.
            (None, None) => super::error::NOT_SUPPORTED,
        }
    })
}

/// Within the device.
pub(crate) fn on_device(lane: &Lane, src: DevicePtr, dst: DevicePtr, len_bytes: usize) -> Result<()> {
    lane.enqueue("copying within a device", |stream| {
        // SAFETY: the driver checked both ranges, and keeps their buffers until the copy has run.
        unsafe { (lane.api().library.copy_on_device)(dst, src, len_bytes, stream) }
    })
}

/// Sets bytes.
pub(crate) fn fill(lane: &Lane, dst: DevicePtr, len_bytes: usize, value: u8) -> Result<()> {
    lane.enqueue_here("filling device memory", |stream| {
        // SAFETY: as above.
        unsafe { (lane.api().library.fill)(dst, value, len_bytes, stream) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_cut_where_nothing_is_registered_in_parts() {
        let mut cuts = Vec::new();
        cut(&Registrations::default(), 1000, 77, |offset, len| {
            cuts.push((offset, len));
            Ok(())
        })
        .unwrap();
        assert_eq!(cuts, [(0, 77)]);
        cut(&Registrations::default(), 1000, 0, |_, _| panic!("nothing to copy")).unwrap();
    }
}
