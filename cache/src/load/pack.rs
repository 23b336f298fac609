//! Where each tensor goes: exact segments, tensors in file order at multiples of 256.

use crate::catalogue::{TENSOR_ALIGN_BYTES, align_up};
use crate::{Error, ErrorKind, Result};
use spoc_driver::Limits;
use spoc_io::Model;

/// Where one tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Its index in the model.
    pub tensor: u32,
    /// Index of its segment.
    pub segment: u32,
    /// Where it begins there, bytes: a multiple of 256 where tensors are packed. Where they are read in place, it has the
    /// phase of its place in the file, which is a multiple of its element's length.
    pub offset_bytes: u64,
    /// Its length, bytes.
    pub len_bytes: u64,
}

/// Segments are cut here if the device allows it: views count bytes by i32.
pub(super) const SEGMENT_BYTES: u64 = i32::MAX as u64 / TENSOR_ALIGN_BYTES * TENSOR_ALIGN_BYTES;

/// Placements of the tensors `chosen`, and the sizes of the segments. A tensor longer than the usual segment
/// gets one of its own, if the device has such.
pub(super) fn pack(model: &Model, chosen: &[u32], limits: &Limits) -> Result<(Vec<Placement>, Vec<u64>)> {
    let tensors = chosen.iter().map(|&tensor| {
        let entry = &model.tensors()[tensor as usize];
        (tensor, entry.name.as_str(), entry.extent.len_bytes)
    });
    place(tensors, limits)
}

/// Refuses a tensor that no segment holds.
pub(super) fn check_fits(name: &str, len_bytes: u64, widest: u64) -> Result<()> {
    if len_bytes <= widest {
        return Ok(());
    }
    Err(Error::new(ErrorKind::WiderThanSegment {
        what: format!("tensor {name:?}"),
        need_bytes: len_bytes,
        segment_bytes: widest,
    }))
}

/// As [`pack`], of what has these numbers, names and lengths.
pub(super) fn place<'a>(
    tensors: impl Iterator<Item = (u32, &'a str, u64)>,
    limits: &Limits,
) -> Result<(Vec<Placement>, Vec<u64>)> {
    let widest = limits.segment_bytes_max.min(limits.binding_bytes_max);
    let usual = widest.min(SEGMENT_BYTES);
    let mut placements = Vec::with_capacity(tensors.size_hint().0);
    let mut segments: Vec<u64> = Vec::new();
    // The end of the open segment: nothing fits behind an absent one.
    let mut end = None;
    for (tensor, name, len_bytes) in tensors {
        check_fits(name, len_bytes, widest)?;
        let behind =
            end.and_then(align_up).and_then(|start: u64| Some((start, start.checked_add(len_bytes)?)));
        let (start, stop) = match behind {
            Some((start, stop)) if stop <= usual => (start, stop),
            _ => {
                segments.push(0);
                (0, len_bytes)
            }
        };
        if let Some(segment) = segments.last_mut() {
            // A segment of empty tensors still has to be one.
            *segment = stop.max(TENSOR_ALIGN_BYTES.min(widest)).max(1);
        }
        end = Some(stop);
        let segment =
            u32::try_from(segments.len() - 1).map_err(|_| Error::new(ErrorKind::CatalogueTooLarge))?;
        placements.push(Placement { tensor, segment, offset_bytes: start, len_bytes });
    }
    Ok((placements, segments))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn limits(segment: u64) -> Limits {
        Limits {
            segment_bytes_max: segment,
            binding_bytes_max: segment,
            copy_granule_bytes: 1,
            address_align_bytes: 256,
            export_granule_bytes: 1,
            free_waits_for_device: false,
        }
    }

    #[test]
    fn aligned_and_within_their_segments() {
        let lengths = [100, 0, 256, 1000, 1024, 1, 700];
        let tensors = lengths.iter().zip(0u32..).map(|(&len, index)| (index, "t", len));
        let (placements, segments) = place(tensors, &limits(1024)).unwrap();
        assert_eq!(placements.len(), lengths.len());
        for placement in &placements {
            assert_eq!(placement.offset_bytes % 256, 0);
            assert!(placement.offset_bytes + placement.len_bytes <= segments[placement.segment as usize]);
        }
        assert!(segments.iter().all(|&bytes| bytes <= 1024));
        assert_eq!(segments, vec![512, 1000, 1024, 956]);
    }

    #[test]
    fn a_tensor_wider_than_a_segment_is_refused_by_name() {
        let error = place([(0, "lm_head.weight", 2000)].into_iter(), &limits(1024)).unwrap_err();
        assert!(error.to_string().contains("lm_head.weight"), "{error}");
        assert_eq!(error.kind().as_str(), "wider_than_segment");
    }

    #[test]
    fn a_long_tensor_gets_a_segment_of_its_own() {
        let long = SEGMENT_BYTES + 1000;
        let tensors = [(0, "a", 10), (1, "b", long), (2, "c", 10)].into_iter();
        let (placements, segments) = place(tensors, &limits(u64::MAX)).unwrap();
        assert_eq!(segments, vec![256, long, 256]);
        assert_eq!(placements[2].segment, 2);
    }

    #[test]
    fn empty_tensors_have_a_place() {
        let (placements, segments) = place([(0, "a", 0), (1, "b", 0)].into_iter(), &limits(1024)).unwrap();
        assert_eq!(segments, vec![256]);
        assert_eq!(placements[1].offset_bytes, 0);
    }
}
