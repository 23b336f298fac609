//! Which slices are cut on the device, in which scratch memory, and the gathers that do it.

use super::{Placement, Slice};
use crate::{Error, ErrorKind, Result};
use spoc_driver::{Arguments, BuiltIn, Device, DeviceVector, Element, Event, Grid, Kernel, Segment, Stream};
use spoc_io::{Extent, SliceRuns};
use std::collections::HashMap;
use std::sync::Arc;

/// Runs from this length on are copied one by one: a copy costs about 2 µs, in which a link carries this much.
const SHORT_RUN_BYTES: u64 = 64 << 10;
/// Bytes that may be brought for each byte of a slice: eight ranks, and some that are padded.
const WHOLE_SHARE_MAX: u64 = 16;
/// Stretches are taken together until a wave has this many bytes: fewer would keep the reader waiting.
const WAVE_BYTES: u64 = 64 << 20;
/// Waves on their way at once, each with scratch memory of its own.
pub(super) const SCRATCHES: usize = 4;
/// Where stretches begin in scratch memory.
const ALIGN_BYTES: u64 = 256;

/// A stretch of a file in scratch memory.
pub(super) struct Stretch {
    pub extent: Extent,
    pub scratch_offset: u64,
}

/// One slice out of scratch memory: `count` runs, each `ratio` runs behind the one before.
pub(super) struct Cut {
    pub slice: usize,
    scratch_offset: u64,
    run_bytes: u64,
    count: u32,
    ratio: u32,
    placement: Placement,
}

/// What is read, copied and cut as one.
#[derive(Default)]
pub(super) struct Wave {
    pub stretches: Vec<Stretch>,
    pub cuts: Vec<Cut>,
    end: u64,
}

impl Wave {
    /// Bytes that go to the device.
    pub fn bytes(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.extent.len_bytes).sum()
    }
}

/// So many and so short runs that a copy for each is not worth it.
pub(super) fn is_many_short(runs: &SliceRuns) -> bool {
    runs.count() > 1 && runs.run_bytes() < SHORT_RUN_BYTES
}

/// Number of runs and their distance in runs, if a gather can name them.
fn even_steps(runs: &SliceRuns) -> Option<(u32, u32)> {
    let mut starts = runs.extents().map(|extent| extent.offset);
    let (first, second) = (starts.next()?, starts.next()?);
    let step = second - first;
    let even =
        runs.extents().zip(1u64..).all(|(extent, number)| extent.offset == first + step * (number - 1));
    let ratio = step.checked_div(runs.run_bytes()).filter(|_| step.is_multiple_of(runs.run_bytes()))?;
    let ratio = u32::try_from(ratio).ok().filter(|_| even)?;
    let count = u32::try_from(runs.count()).ok()?;
    count.checked_mul(ratio).map(|_| (count, ratio))
}

/// The slices worth cutting, by the stretches of their tensors.
pub(super) fn waves(slices: &[Slice], runs: &[SliceRuns], placements: &[Placement]) -> Vec<Wave> {
    let worth = |number: &usize| {
        let runs = &runs[*number];
        is_many_short(runs) && runs.stretch().len_bytes / WHOLE_SHARE_MAX <= runs.len_bytes()
    };
    let mut chosen: Vec<usize> = (0..slices.len()).filter(worth).collect();
    chosen.retain(|number| even_steps(&runs[*number]).is_some());
    // In the order of the files; slices of one tensor come together.
    chosen.sort_by_key(|number| (runs[*number].stretch().file, slices[*number].tensor, *number));
    let mut waves: Vec<Wave> = Vec::new();
    for of_tensor in chosen.chunk_by(|a, b| slices[*a].tensor == slices[*b].tensor) {
        let stretches = || of_tensor.iter().map(|number| runs[*number].stretch());
        let start = stretches().map(|extent| extent.offset).min().unwrap_or(0);
        let end = stretches().map(|extent| extent.end()).max().unwrap_or(0);
        let (file, len_bytes) = (stretches().next().map_or(0, |extent| extent.file), end - start);
        let fits = |wave: &&mut Wave| wave.end + len_bytes <= WAVE_BYTES;
        let wave = match waves.last_mut().filter(fits) {
            Some(_) => waves.len() - 1,
            None => {
                waves.push(Wave::default());
                waves.len() - 1
            }
        };
        let wave = &mut waves[wave];
        let scratch_offset = wave.end;
        wave.stretches.push(Stretch { extent: Extent { file, offset: start, len_bytes }, scratch_offset });
        wave.end = (scratch_offset + len_bytes).next_multiple_of(ALIGN_BYTES);
        for &slice in of_tensor {
            let Some((count, ratio)) = even_steps(&runs[slice]) else { continue };
            wave.cuts.push(Cut {
                slice,
                scratch_offset: scratch_offset + (runs[slice].stretch().offset - start),
                run_bytes: runs[slice].run_bytes(),
                count,
                ratio,
                placement: placements[slice],
            });
        }
    }
    waves
}

/// Scratch memory that these waves take together.
pub(super) fn scratch_bytes(waves: &[Wave]) -> u64 {
    let widest = waves.iter().map(|wave| wave.end).max().unwrap_or(0);
    widest.saturating_mul(waves.len().min(SCRATCHES) as u64)
}

/// Scratch memory, and what the gathers need.
pub(super) struct Cutter {
    scratches: Vec<Segment>,
    segments: Arc<[Segment]>,
    gather: Kernel,
    /// Behind the latest gathers.
    done: Event,
    /// The numbers 0, ratio, 2 · ratio … by how many and ratio.
    indices: HashMap<(u32, u32), Segment>,
}

impl Cutter {
    pub fn new(device: &Device, waves: &[Wave], segments: Arc<[Segment]>) -> Result<Cutter> {
        let widest = waves.iter().map(|wave| wave.end).max().unwrap_or(0);
        let scratches = (0..waves.len().min(SCRATCHES)).map(|_| device.allocate(widest));
        let scratches = scratches.collect::<Result<Vec<_>, _>>()?;
        let mut indices = HashMap::new();
        for cut in waves.iter().flat_map(|wave| &wave.cuts) {
            if indices.contains_key(&(cut.count, cut.ratio)) {
                continue;
            }
            let list: Vec<u32> = (0..cut.count).map(|number| number * cut.ratio).collect();
            let vector = DeviceVector::<u32>::allocate(device, list.len() as u64)?;
            vector.write(0, &list)?;
            indices.insert((cut.count, cut.ratio), vector.segment().clone());
        }
        let (gather, done) = (Kernel::built_in(BuiltIn::Gather), device.create_event()?);
        Ok(Cutter { scratches, segments, gather, done, indices })
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The scratch memory of a wave.
    pub fn scratch(&self, wave: usize) -> &Segment {
        &self.scratches[wave % self.scratches.len()]
    }

    /// Enqueues the gathers of a wave.
    pub fn cut(&self, copies: &Stream, number: usize, wave: &Wave) -> Result<()> {
        let scratch = self.scratch(number);
        for cut in &wave.cuts {
            let all = cut.run_bytes | cut.scratch_offset | cut.placement.offset_bytes;
            // The widest element that everything is a multiple of.
            match all.trailing_zeros() {
                0 => self.gather::<u8>(copies, scratch, cut)?,
                1 => self.gather::<u16>(copies, scratch, cut)?,
                2 => self.gather::<u32>(copies, scratch, cut)?,
                _ => self.gather::<u64>(copies, scratch, cut)?,
            }
        }
        Ok(copies.record(&self.done)?)
    }

    /// Waits for every gather: they come behind the events that the pump waits for.
    pub fn wait(&self) -> Result<()> {
        if self.done.is_recorded() { Ok(self.done.synchronize()?) } else { Ok(()) }
    }

    fn gather<T: Element>(&self, copies: &Stream, scratch: &Segment, cut: &Cut) -> Result<()> {
        let (size, placement) = (size_of::<T>() as u64, &cut.placement);
        let chunk = cut.run_bytes / size;
        let reach = (u64::from(cut.count - 1) * u64::from(cut.ratio) + 1) * chunk;
        let from = DeviceVector::<T>::view(scratch, cut.scratch_offset, reach)?;
        let target = &self.segments[placement.segment as usize];
        let mut to = DeviceVector::<T>::view(target, placement.offset_bytes, placement.len_bytes / size)?;
        let no_list = || Error::new(ErrorKind::CatalogueTooLarge);
        let list = self.indices.get(&(cut.count, cut.ratio)).ok_or_else(no_list)?;
        let list = DeviceVector::<u32>::view(list, 0, cut.count.into())?;
        let chunk = u32::try_from(chunk).map_err(|_| no_list())?;
        let threads = u32::try_from(to.len()).map_err(|_| no_list())?;
        let arguments = Arguments::new().read_view(&from).read_view(&list).scalar(chunk).write_view(&mut to);
        copies.launch(&self.gather, Grid::linear(threads), &arguments)?;
        Ok(())
    }
}
