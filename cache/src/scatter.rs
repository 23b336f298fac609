//! From a host tier to slots: many parts of one piece of host memory to many slots, in one submission.

use crate::arena::Geometry;
use crate::{Error, ErrorKind, Result};
use spoc_driver::{CopyRange, HostSource, Segment, Stream};

/// One part of the host memory and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Offset in the host memory, bytes.
    pub src_offset: usize,
    /// The slot.
    pub slot: u32,
    /// Offset in the slot, bytes.
    pub slot_offset: u64,
    /// How much, bytes.
    pub len_bytes: usize,
}

/// Enqueues the copies of `parts` out of `source`, which the ledger keeps until they have run, into the slots that
/// `segments` hold as `geometry` says. Parts that lie one behind the other on the host and on the device become one copy; how the rest is carried out, by copies of their own, by
/// batches or by a kernel that gathers, is the device's to choose, by their number and length. Answers how many copies
/// there were. The parts are sorted, and must not overlap on the device.
///
/// # Errors
/// [`ErrorKind::NoSuchSlot`] for a slot that the arena has not, or a part that leaves its slot; what the driver says of
/// the source's range and of the copies. Then nothing is enqueued.
pub fn fill_slots<S: HostSource>(
    stream: &Stream,
    segments: &[Segment],
    geometry: Geometry,
    source: S,
    parts: &mut [Part],
) -> Result<usize> {
    parts.sort_unstable_by_key(|part| part.src_offset);
    let mut ranges: Vec<CopyRange<'_>> = Vec::with_capacity(parts.len());
    for part in parts.iter() {
        let end = part.slot_offset.checked_add(part.len_bytes as u64);
        if part.slot >= geometry.slots || end.is_none_or(|end| end > geometry.stride_bytes) {
            return Err(no_such_slot(part, geometry));
        }
        let place = geometry.place(part.slot);
        let Some(dst) = segments.get(place.segment as usize) else {
            return Err(no_such_slot(part, geometry));
        };
        let dst_offset = place.offset_bytes + part.slot_offset;
        match ranges.last_mut() {
            Some(last)
                if last.src_offset + last.len_bytes == part.src_offset
                    && last.dst_offset + last.len_bytes as u64 == dst_offset
                    && last.dst.is(dst) =>
            {
                last.len_bytes += part.len_bytes;
            }
            _ if part.len_bytes == 0 => {}
            _ => ranges.push(CopyRange {
                src_offset: part.src_offset,
                dst,
                dst_offset,
                len_bytes: part.len_bytes,
            }),
        }
    }
    stream.copy_to_device(source, &ranges).map_err(spoc_driver::Error::from)?;
    Ok(ranges.len())
}

fn no_such_slot(part: &Part, geometry: Geometry) -> Error {
    Error::new(ErrorKind::NoSuchSlot {
        slot: part.slot,
        slots: geometry.slots,
        end_bytes: part.slot_offset.saturating_add(part.len_bytes as u64),
        slot_bytes: geometry.stride_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_driver::fake::{FakeOptions, backend_with};
    use spoc_driver::{BackendKind, DeviceSelector, Driver, StreamOptions};

    fn part(src_offset: usize, slot: u32, slot_offset: u64, len_bytes: usize) -> Part {
        Part { src_offset, slot, slot_offset, len_bytes }
    }

    #[test]
    fn parts_arrive_neighbours_are_one_copy_and_strays_are_refused() {
        let (probed, control) = backend_with(FakeOptions::default());
        let driver = Driver::new(vec![probed]);
        let device = driver.open(&DeviceSelector::index(BackendKind::Fake, 0)).unwrap();
        let geometry = Geometry::new(512, 5, 256, 1024).unwrap();
        let segments: Vec<_> = (0..3).map(|_| device.allocate(1024).unwrap()).collect();
        let stream = device.create_stream(StreamOptions::default()).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(3000).map(|n: u8| n.wrapping_mul(7)).collect();
        let mut parts = [
            part(700, 4, 100, 50),
            part(0, 0, 0, 200),
            part(200, 0, 200, 312),
            part(512, 1, 0, 10),
            part(9, 2, 5, 0),
        ];
        let copies = fill_slots(&stream, &segments, geometry, bytes.clone(), &mut parts).unwrap();
        // The slots 0 and 1 share a segment, so the first three parts are one run.
        assert_eq!(copies, 2);
        control.run_all();
        assert_eq!(control.peek(&segments[0], 0, 522), bytes[..522]);
        assert_eq!(control.peek(&segments[2], 100, 50), bytes[700..750]);
        for stray in [part(0, 5, 0, 1), part(0, 0, 500, 13), part(0, 0, u64::MAX, 1)] {
            let error = fill_slots(&stream, &segments, geometry, bytes.clone(), &mut [stray]).unwrap_err();
            assert_eq!(error.kind().as_str(), "no_such_slot");
        }
        let error = fill_slots(&stream, &segments, geometry, bytes, &mut [part(2999, 0, 0, 2)]).unwrap_err();
        assert_eq!(error.kind().as_str(), "out_of_bounds");
        assert_eq!(control.violations(), Vec::<String>::new());
    }
}
