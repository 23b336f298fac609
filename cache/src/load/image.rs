//! Where each tensor goes on a device whose memory a read can fill: as it lies in its file.
//!
//! A direct read moves whole blocks, and cannot shift a byte. So a stretch of neighbouring tensors becomes an image of
//! its part of the file, which begins at a multiple of the page in both: every aligned read then has its place.

use super::Placement;
use super::pack::{SEGMENT_BYTES, check_fits};
use crate::{Error, ErrorKind, Result};
use spoc_bridge::Within;
use spoc_driver::Limits;
use spoc_io::{Extent, Model};

/// Stretches begin at multiples of this, in the file and in memory: what every disk's direct reads are content with.
const PAGE: u64 = 4096;
/// Unwanted bytes between two tensors that a stretch keeps room for, rather than end.
const GAP_BYTES: u64 = 64 << 10;

/// The layout of a load.
#[derive(Debug, PartialEq)]
pub(super) struct Image {
    pub placements: Vec<Placement>,
    pub segment_bytes: Vec<u64>,
    /// Of each placement: the bytes of its stretch in front of it and behind it.
    pub margins: Vec<(u64, u64)>,
}

impl Image {
    /// Where the targets are, for the reader.
    pub fn targets(&self) -> Vec<Within> {
        let both = self.placements.iter().zip(&self.margins);
        both.map(|(placement, &(before, after))| Within {
            segment: placement.segment as usize,
            offset: placement.offset_bytes,
            len: placement.len_bytes,
            before,
            after,
        })
        .collect()
    }
}

/// One stretch that is being laid out.
struct Stretch {
    file: u32,
    /// The file's offset at its beginning, and the segment's.
    from: u64,
    low: u64,
    /// Where its last tensor ends in the file.
    end: u64,
    first: usize,
}

impl Stretch {
    /// Where the extent ends in the segment.
    fn stop(&self, extent: &Extent) -> Option<u64> {
        self.low.checked_add(extent.end() - self.from)?.checked_next_multiple_of(PAGE)
    }

    fn takes(&self, extent: &Extent, usual: u64) -> bool {
        let follows =
            extent.file == self.file && extent.offset >= self.end && extent.offset - self.end <= GAP_BYTES;
        follows && self.stop(extent).is_some_and(|stop| stop <= usual)
    }
}

/// The image of the tensors `chosen`, or why they cannot lie as in the file.
///
/// # Errors
/// A tensor that no segment holds.
pub(super) fn lay_out(model: &Model, chosen: &[u32], limits: &Limits) -> Result<Result<Image, &'static str>> {
    let tensors = || chosen.iter().map(|&index| (index, &model.tensors()[index as usize]));
    let aligned = |(_, tensor): (u32, &spoc_io::Tensor)| {
        // Quantised blocks have no alignment of their own; a number wants a multiple of its own length.
        let (elements, bytes) = tensor.dtype.block();
        elements != 1 || tensor.extent.offset.is_multiple_of(bytes.max(1))
    };
    if !tensors().all(aligned) {
        return Ok(Err("a tensor begins in the middle of an element of the file"));
    }
    let extents = tensors().map(|(index, tensor)| (index, tensor.name.as_str(), tensor.extent));
    place(extents, limits).map(Ok)
}

fn place<'a>(tensors: impl Iterator<Item = (u32, &'a str, Extent)>, limits: &Limits) -> Result<Image> {
    let widest = limits.segment_bytes_max.min(limits.binding_bytes_max);
    let usual = widest.min(SEGMENT_BYTES) / PAGE * PAGE;
    let count = tensors.size_hint().0;
    let mut image = Image {
        placements: Vec::with_capacity(count),
        segment_bytes: Vec::new(),
        margins: Vec::with_capacity(count),
    };
    let mut open: Option<Stretch> = None;
    for (tensor, name, extent) in tensors {
        check_fits(name, extent.len_bytes, widest)?;
        if !open.as_ref().is_some_and(|stretch| stretch.takes(&extent, usual)) {
            image.close(open.take());
            open = Some(image.begin(&extent, usual)?);
        }
        let Some(stretch) = &mut open else { continue };
        stretch.end = stretch.end.max(extent.end());
        image.add(tensor, stretch, &extent)?;
    }
    image.close(open);
    Ok(image)
}

impl Image {
    /// A stretch that begins with this extent: behind the last one, or in a segment of its own.
    fn begin(&mut self, extent: &Extent, usual: u64) -> Result<Stretch> {
        let from = extent.offset / PAGE * PAGE;
        let low = self.segment_bytes.last().copied().unwrap_or(0);
        let mut stretch =
            Stretch { file: extent.file, from, low, end: extent.offset, first: self.placements.len() };
        let fits = stretch.stop(extent).is_some_and(|stop| stop <= usual);
        if self.segment_bytes.is_empty() || !fits {
            self.segment_bytes.push(0);
            stretch.low = 0;
        }
        Ok(stretch)
    }

    fn add(&mut self, tensor: u32, stretch: &Stretch, extent: &Extent) -> Result<()> {
        let too_large = || Error::new(ErrorKind::CatalogueTooLarge);
        let stop = stretch.stop(extent).ok_or_else(too_large)?;
        let segment = u32::try_from(self.segment_bytes.len() - 1).map_err(|_| too_large())?;
        if let Some(bytes) = self.segment_bytes.last_mut() {
            // A segment of empty tensors still has to be one.
            *bytes = stop.max(*bytes).max(PAGE);
        }
        let offset_bytes = stretch.low + (extent.offset - stretch.from);
        self.placements.push(Placement { tensor, segment, offset_bytes, len_bytes: extent.len_bytes });
        self.margins.push((offset_bytes - stretch.low, 0));
        Ok(())
    }

    /// The stretch's end is known: so is what is behind each of its tensors.
    fn close(&mut self, stretch: Option<Stretch>) {
        let (Some(stretch), Some(&high)) = (stretch, self.segment_bytes.last()) else { return };
        for (placement, margin) in self.placements.iter().zip(&mut self.margins).skip(stretch.first) {
            margin.1 = high - (placement.offset_bytes + placement.len_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::tests::limits;
    use super::*;

    fn lay(extents: &[(u32, u64, u64)], segment: u64) -> Image {
        let tensors = (0u32..)
            .zip(extents)
            .map(|(index, &(file, offset, len_bytes))| (index, "t", Extent { file, offset, len_bytes }));
        place(tensors, &limits(segment)).unwrap()
    }

    /// Every placement keeps its file's phase, stays in its segment with its margins, and shares bytes with another
    /// only as the file does.
    fn check(extents: &[(u32, u64, u64)], image: &Image) {
        let shift = |index: usize| {
            let (placement, (_, offset, _)) = (&image.placements[index], extents[index]);
            i128::from(placement.offset_bytes) - i128::from(offset)
        };
        for (index, placement) in image.placements.iter().enumerate() {
            let (before, after) = image.margins[index];
            let (low, high) =
                (placement.offset_bytes - before, placement.offset_bytes + placement.len_bytes + after);
            assert_eq!((shift(index) % 4096, low % 4096, high % 4096), (0, 0, 0), "{index}");
            assert!(high <= image.segment_bytes[placement.segment as usize]);
            for other in 0..index {
                let (theirs, (theirs_before, _)) = (&image.placements[other], image.margins[other]);
                let same = theirs.segment == placement.segment && theirs.offset_bytes - theirs_before == low;
                let same_image = same && extents[other].0 == extents[index].0 && shift(other) == shift(index);
                let apart = theirs.segment != placement.segment
                    || theirs.offset_bytes + theirs.len_bytes <= low
                    || theirs.offset_bytes >= high;
                assert!(same_image || apart, "{other} and {index}: {image:?}");
            }
        }
    }

    #[test]
    fn neighbours_make_one_stretch_and_others_their_own() {
        let extents = [
            (0, 1000, 5000),
            (0, 6000, 10),
            (0, 6100, 0),
            (0, 6100, 3),
            // Far away, in another file, and the same bytes again.
            (0, 1 << 20, 100),
            (1, 8, 4088),
            (1, 4096, 1),
            (1, 4096, 1),
        ];
        let image = lay(&extents, 1 << 30);
        check(&extents, &image);
        let lows: Vec<u64> =
            image.placements.iter().zip(&image.margins).map(|(p, m)| p.offset_bytes - m.0).collect();
        assert_eq!(lows, [0, 0, 0, 0, 8192, 12_288, 12_288, 20_480]);
        assert_eq!(image.segment_bytes, [24_576]);
    }

    #[test]
    fn a_full_segment_ends_a_stretch_and_a_long_tensor_has_its_own() {
        let long = 3 * 4096;
        let extents =
            [(0, 100, 4000), (0, 4100, 4000), (0, 8100, 4000), (0, 12_100, long), (0, 12_100 + long, 0)];
        let image = lay(&extents, 4 * 4096);
        check(&extents, &image);
        assert!(image.segment_bytes.iter().all(|&bytes| bytes <= 5 * 4096), "{image:?}");
        assert!(image.segment_bytes.len() >= 2);
    }

    #[test]
    fn random_files_keep_to_the_rules() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut file, mut offset, mut extents) = (0, random(9000), Vec::new());
            for _ in 0..random(40) {
                let len = random(3) * random(20_000);
                extents.push((file, offset, len));
                offset = match random(8) {
                    0 => offset,
                    1 => offset + len + random(200_000),
                    2 => offset + len / 2,
                    _ => offset + len,
                };
                if random(12) == 0 {
                    (file, offset) = (file + 1, random(9000));
                }
            }
            check(&extents, &lay(&extents, 64 * 4096));
        }
    }
}
