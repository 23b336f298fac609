//! Device memory that is the host's, filled by the reader itself.

use spoc_driver::{Device, Segment, SegmentOptions};
use spoc_io::{HostTargets, Spot};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where one target is in the segments, and what around it a read may fill along. All in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Within {
    /// Index of the segment.
    pub segment: usize,
    /// Where the target begins there.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// Bytes before it that are an image of what the file has there, or nobody's.
    pub before: u64,
    /// The same behind it.
    pub after: u64,
}

/// Targets in fresh segments that the host can address. Keeps the segments.
pub struct InPlace {
    spots: Vec<Spot>,
    _segments: Vec<Segment>,
}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlace").field("targets", &self.spots.len()).finish_non_exhaustive()
    }
}

/// Whether the host can address the device's memory, so that a read can end there; the reason if not.
///
/// # Errors
/// The reason.
pub fn reads_in_place(device: &Device) -> Result<(), &'static str> {
    if !device.info().unified {
        return Err("the device has memory of its own");
    }
    if device.limits().copy_granule_bytes != 1 {
        return Err("the device's memory is not addressed by single bytes");
    }
    match device.allocate(1).ok().and_then(|trial| trial.host_pointer()) {
        Some(_) => Ok(()),
        None => Err("the host cannot address the device's memory"),
    }
}

/// Allocates segments of these sizes, and the targets in them that a reader may fill; none of those if the host cannot
/// address the memory, or a target leaves its segment.
///
/// Until the load that they are for has ended, its own copies are all that may write to them.
///
/// # Errors
/// What the device says to the allocation.
pub fn allocate(
    device: &Device,
    sizes: &[u64],
    targets: &[Within],
    options: SegmentOptions,
) -> spoc_driver::Result<(Vec<Segment>, Option<Arc<InPlace>>)> {
    let segments =
        sizes.iter().map(|&bytes| device.allocate_with(bytes, options)).collect::<Result<Vec<_>, _>>()?;
    let starts: Option<Vec<NonNull<u8>>> = segments.iter().map(start).collect();
    let spots = starts.and_then(|starts| {
        targets.iter().map(|target| spot(target, &starts, sizes)).collect::<Option<Vec<_>>>()
    });
    let in_place = spots.map(|spots| Arc::new(InPlace { spots, _segments: segments.clone() }));
    Ok((segments, in_place))
}

fn start(segment: &Segment) -> Option<NonNull<u8>> {
    segment.host_pointer().and_then(NonNull::new)
}

fn spot(target: &Within, starts: &[NonNull<u8>], sizes: &[u64]) -> Option<Spot> {
    let &Within { segment, offset, len, before, after } = target;
    let end = offset.checked_add(len)?.checked_add(after)?;
    if offset < before || end > *sizes.get(segment)? {
        return None;
    }
    let first = starts.get(segment)?.as_ptr().wrapping_add(usize::try_from(offset).ok()?);
    Some(Spot { start: NonNull::new(first)?, len_bytes: len, before_bytes: before, after_bytes: after })
}

// SAFETY: the addresses are those of `_segments`, which are Send and Sync and kept beside them.
unsafe impl Send for InPlace {}
// SAFETY: as above.
unsafe impl Sync for InPlace {}

// SAFETY: `allocate` took the segments from the device itself and checked that each spot and its surroundings lie inside
// one; they stay mapped, at one address, while this value keeps them, and such memory begins zeroed. Nothing else is
// enqueued on them before the load has ended, as `allocate` asks. Spots overlap only as the load's layout has them,
// which is the file's own.
unsafe impl HostTargets for InPlace {
    fn spot(&self, target: u32) -> Option<Spot> {
        self.spots.get(target as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_leaves_its_segment_has_no_spot() {
        let starts = [NonNull::<u8>::dangling()];
        let within = |offset, len, before, after| Within { segment: 0, offset, len, before, after };
        assert!(spot(&within(10, 80, 10, 10), &starts, &[100]).is_some());
        for bad in
            [within(10, 80, 11, 10), within(10, 80, 10, 11), within(u64::MAX, 1, 0, 0), within(0, 101, 0, 0)]
        {
            assert!(spot(&bad, &starts, &[100]).is_none(), "{bad:?}");
        }
        assert!(spot(&Within { segment: 1, ..within(0, 1, 0, 0) }, &starts, &[100]).is_none());
    }
}
