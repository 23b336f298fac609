//! A box out of a tensor, as the runs of bytes that make it up.

use std::ops::Range;

use super::PlanOptions;
use crate::error::quoted;
use crate::{Error, ErrorKind, Extent, Result, Tensor};

/// Runs shorter than this cost more as copies of their own (about 2 µs each on a GPU) than as bytes of one.
const SHORT_RUN_BYTES: u64 = 64 << 10;
/// Bytes that a whole stretch may bring for each byte that is wanted.
const WHOLE_SHARE_MAX: u64 = 4;

/// Where the bytes of a slice lie: `count` runs of equal length, in the order of the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRuns {
    file: u32,
    start: u64,
    run_bytes: u64,
    /// Number and distance in bytes of the repetitions, outermost first.
    steps: Vec<(u64, u64)>,
}

impl SliceRuns {
    /// The whole tensor, one run.
    #[must_use]
    pub fn whole(tensor: &Tensor) -> Self {
        let Extent { file, offset, len_bytes } = tensor.extent;
        Self { file, start: offset, run_bytes: len_bytes, steps: Vec::new() }
    }

    /// `ranges` names elements, one range for each dimension in the order of [`Tensor::shape`]. Quantised elements are
    /// taken by whole blocks.
    ///
    /// # Errors
    /// `invalid_argument` for a wrong number of ranges, `offset_out_of_bounds` for one outside its dimension,
    /// `block_misaligned` for one that cuts a block, or a byte that several elements share.
    pub fn of(tensor: &Tensor, ranges: &[Range<u64>]) -> Result<Self> {
        check(tensor, ranges)?;
        let rank = ranges.len();
        let place =
            |i: usize| if matches!(tensor.dtype, crate::ElementType::Ggml(_)) { rank - 1 - i } else { i };
        let nothing = Self { run_bytes: 0, ..Self::whole(tensor) };
        if ranges.iter().any(|r| r.start == r.end) {
            return Ok(nothing);
        }
        // From the innermost dimension out: `elements` are contiguous as long as the dimensions inside are whole.
        let (mut elements, mut below, mut first, mut contiguous) = (1u64, 1u64, 0u64, true);
        let mut steps = Vec::with_capacity(rank);
        for (i, dimension) in tensor.outermost_first().enumerate().rev() {
            let range = &ranges[place(i)];
            // The tensor's own size was checked, and all of this is inside it.
            first += range.start * below;
            let wanted = range.end - range.start;
            if contiguous {
                elements *= wanted;
            } else {
                steps.push((wanted, below));
            }
            contiguous &= wanted == dimension;
            below *= dimension;
        }
        steps.reverse();
        Self::in_bytes(tensor, first, elements, &steps)
    }

    /// From elements to bytes; every run must begin and end on a block.
    fn in_bytes(tensor: &Tensor, first: u64, elements: u64, steps: &[(u64, u64)]) -> Result<Self> {
        let (block, bytes) = tensor.dtype.block();
        let cut = |what: &str, number: u64| {
            let message = format!(
                "tensor {}: the slice's runs {what} {number} elements, {} is stored in blocks of {block}",
                quoted(&tensor.name),
                tensor.dtype
            );
            Error::new(ErrorKind::BlockMisaligned, message)
        };
        let to_bytes = |what: &str, number: u64| match number % block {
            0 => Ok(number / block * bytes),
            _ => Err(cut(what, number)),
        };
        let start = to_bytes("begin after", first)?;
        let run_bytes = to_bytes("have", elements)?;
        let steps = steps.iter().filter(|(count, _)| *count > 1);
        let steps = steps.map(|(count, step)| Ok((*count, to_bytes("are apart by", *step)?)));
        let Extent { file, offset, .. } = tensor.extent;
        Ok(Self { file, start: offset + start, run_bytes, steps: steps.collect::<Result<_>>()? })
    }

    /// Number of runs; 0 for an empty slice.
    #[must_use]
    pub fn count(&self) -> u64 {
        if self.run_bytes == 0 { 0 } else { self.steps.iter().map(|(count, _)| count).product() }
    }

    /// Length of each run in bytes.
    #[must_use]
    pub fn run_bytes(&self) -> u64 {
        self.run_bytes
    }

    /// Length of all runs in bytes: what a target needs that gets them one after the other.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.count() * self.run_bytes
    }

    /// From the first byte of the first run to the last of the last.
    #[must_use]
    pub fn stretch(&self) -> Extent {
        let reach: u64 = self.steps.iter().map(|(count, step)| (count - 1) * step).sum();
        Extent { file: self.file, offset: self.start, len_bytes: reach + self.run_bytes }
    }

    /// The runs, in order.
    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        (0..self.count()).map(|number| {
            let mut left = number;
            let mut offset = self.start;
            for (count, step) in self.steps.iter().rev() {
                offset += left % count * step;
                left /= count;
            }
            Extent { file: self.file, offset, len_bytes: self.run_bytes }
        })
    }

    /// Whether who can cut on the device should take the whole [`SliceRuns::stretch`] there with
    /// [`super::PlanBuilder::add_on`]: the runs are many and below 64 KiB, the disk reads what is between them anyway,
    /// and the stretch is at most 4 times the slice.
    #[must_use]
    pub fn is_cheaper_whole(&self, options: &PlanOptions) -> bool {
        let gap = self.steps.last().map_or(0, |(_, step)| step - self.run_bytes);
        self.count() > 1
            && self.run_bytes < SHORT_RUN_BYTES
            && gap <= u64::from(options.gap_bytes.min(options.chunk_bytes / 2))
            && self.stretch().len_bytes / WHOLE_SHARE_MAX <= self.len_bytes()
    }
}

fn check(tensor: &Tensor, ranges: &[Range<u64>]) -> Result<()> {
    let name = || quoted(&tensor.name);
    if ranges.len() != tensor.shape.len() {
        let message = format!(
            "tensor {} has {} dimensions, the slice has {}",
            name(),
            tensor.shape.len(),
            ranges.len()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    for (i, (range, dimension)) in ranges.iter().zip(&tensor.shape).enumerate() {
        if range.start > range.end || range.end > *dimension {
            let (start, end) = (range.start, range.end);
            let message =
                format!("tensor {}: {start} to {end} of dimension {i}, which has {dimension}", name());
            return Err(Error::new(ErrorKind::OffsetOutOfBounds, message));
        }
    }
    Ok(())
}
