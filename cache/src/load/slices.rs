//! Parts of tensors into device memory, as the ranks of a tensor-parallel engine need them.
//!
//! A slice whose bytes lie in long runs is read run by run. One that is many short runs is not worth a copy a run: the
//! stretch of the file that holds it goes to scratch memory on the device as a whole, and a gather on the copy stream
//! cuts it there. What several slices want of one stretch is read and copied once.

mod cut;

use super::{LoadReport, Placement, pack};
use crate::pump::{Begin, Feed, Job, Place, Places, Pump, Sink};
use crate::{Error, ErrorKind, Result};
use cut::{Cutter, Wave};
use spoc_driver::{Segment, Stream};
use spoc_io::{BlockDigests, Model, PlanBuilder, ReadClass, SliceRuns};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A part of a tensor: elements, a range for each dimension in the order of the tensor's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Index of the tensor in the model.
    pub tensor: u32,
    /// A range of each dimension.
    pub ranges: Vec<Range<u64>>,
}

/// Slices in device memory.
#[derive(Debug)]
pub struct LoadedSlices {
    /// Device memory; freed when dropped.
    pub segments: Vec<Segment>,
    /// Where each slice is, its runs one behind the other, in the order in which they were asked for.
    pub placements: Vec<Placement>,
    /// Slices that were cut on the device.
    pub cut: usize,
    /// Bytes that went to the device for them, what was cut away included.
    pub cut_from_bytes: u64,
    /// Why slices of many short runs were not cut on the device, if they were not.
    pub not_cut: Option<String>,
    /// What happened; its bytes are those of the slices.
    pub report: LoadReport,
}

/// Loads slices and waits for them.
///
/// # Errors
/// As [`load_model`](super::load_model); what [`SliceRuns::of`] says of the ranges.
pub fn load_slices(pump: &Arc<Pump>, model: &Model, slices: &[Slice]) -> Result<LoadedSlices> {
    load(pump, model, slices, None)
}

/// As [`load_slices`], and every block that a slice touches is compared with its digest before a byte of it is copied:
/// the rest of such blocks is read along. The pump's reader needs
/// [`check_threads`](spoc_io::ReaderOptions::check_threads).
///
/// # Errors
/// As [`load_slices`], and `digest_mismatch`; device memory is freed then.
pub fn load_verified_slices(
    pump: &Arc<Pump>,
    model: &Model,
    slices: &[Slice],
    digests: &Arc<BlockDigests>,
) -> Result<LoadedSlices> {
    load(pump, model, slices, Some(digests))
}

fn load(
    pump: &Arc<Pump>,
    model: &Model,
    slices: &[Slice],
    digests: Option<&Arc<BlockDigests>>,
) -> Result<LoadedSlices> {
    let began = Instant::now();
    let device = pump.device();
    let runs = slices.iter().map(|slice| runs_of(model, slice)).collect::<Result<Vec<_>>>()?;
    let named = slices.iter().zip(&runs).map(|(slice, runs)| {
        (slice.tensor, model.tensors()[slice.tensor as usize].name.as_str(), runs.len_bytes())
    });
    let (placements, segment_bytes) = pack::place(named, device.limits())?;
    let not_cut = device.capabilities().launch.reason().map(str::to_owned);
    let waves = if not_cut.is_none() { cut::waves(slices, &runs, &placements) } else { Vec::new() };
    let scratch_bytes = cut::scratch_bytes(&waves);
    let need_bytes = segment_bytes.iter().sum::<u64>().saturating_add(scratch_bytes);
    let have_bytes = device.memory()?.free_bytes;
    if need_bytes > have_bytes {
        return Err(Error::new(ErrorKind::DeviceTooSmall { need_bytes, have_bytes }));
    }
    let allocate = |&bytes: &u64| device.allocate(bytes);
    let segments: Arc<[Segment]> = segment_bytes.iter().map(allocate).collect::<Result<Vec<_>, _>>()?.into();
    if let Some(reason) = not_cut.as_deref().filter(|_| runs.iter().any(cut::is_many_short)) {
        tracing::warn!(reason, "slices of many short runs are copied run by run");
    }
    let cutter = Cutter::new(device, &waves, Arc::clone(&segments))?;
    let direct = direct_plan(pump, model, &runs, &waves, digests)?;
    let prepare_time = began.elapsed();

    let (before, began) = (pump.stages(), Instant::now());
    let cut = waves.iter().map(|wave| wave.cuts.len()).sum();
    let cut_from_bytes = waves.iter().map(Wave::bytes).sum();
    stream(pump, model, &placements, cutter, waves, direct, digests)?;
    let report = LoadReport {
        bytes: runs.iter().map(SliceRuns::len_bytes).sum(),
        prepare_time,
        stream_time: began.elapsed(),
        stages: pump.stages().since(&before),
        copied_because: Some("slices are copied"),
        reader: pump.reader_report()?,
    };
    let segments = segments.to_vec();
    Ok(LoadedSlices { segments, placements, cut, cut_from_bytes, not_cut, report })
}

fn runs_of(model: &Model, slice: &Slice) -> Result<SliceRuns> {
    let tensor = model
        .tensors()
        .get(slice.tensor as usize)
        .ok_or_else(|| Error::new(ErrorKind::NoTensor { pattern: format!("number {}", slice.tensor) }))?;
    Ok(SliceRuns::of(tensor, &slice.ranges)?)
}

fn builder(pump: &Pump, model: &Model, digests: Option<&Arc<BlockDigests>>) -> Result<PlanBuilder> {
    let mut builder = PlanBuilder::new(model.files(), *pump.plan_options());
    if let Some(digests) = digests {
        builder.check_against(digests)?;
    }
    Ok(builder)
}

/// The slices that no wave cuts, target n being slice n.
fn direct_plan(
    pump: &Pump,
    model: &Model,
    runs: &[SliceRuns],
    waves: &[Wave],
    digests: Option<&Arc<BlockDigests>>,
) -> Result<spoc_io::ReadPlan> {
    let mut is_cut = vec![false; runs.len()];
    for cut in waves.iter().flat_map(|wave| &wave.cuts) {
        is_cut[cut.slice] = true;
    }
    let mut builder = builder(pump, model, digests)?;
    for ((target, runs), _) in (0u32..).zip(runs).zip(&is_cut).filter(|(_, is_cut)| !**is_cut) {
        builder.add_slice(0, target, runs, 0)?;
    }
    Ok(builder.build()?)
}

/// The tag of the job that reads what is not cut; waves have their numbers.
const DIRECT: u64 = u64::MAX;

fn stream(
    pump: &Arc<Pump>,
    model: &Model,
    placements: &[Placement],
    cutter: Cutter,
    waves: Vec<Wave>,
    direct: spoc_io::ReadPlan,
    digests: Option<&Arc<BlockDigests>>,
) -> Result<()> {
    let jobs = waves.len() + usize::from(!direct.reads().is_empty());
    let sink = Arc::new(SliceSink { cutter, waves, state: Mutex::default(), changed: Condvar::new() });
    if !direct.reads().is_empty() {
        let segments = sink.cutter.segments();
        let place = |placement: &Placement| Place {
            segment: segments[placement.segment as usize].clone(),
            offset_bytes: placement.offset_bytes,
        };
        let places = Places::Many(placements.iter().map(place).collect());
        sink.submit(pump, DIRECT, direct, places)?;
    }
    for number in 0..sink.waves.len() {
        // Its scratch memory is in use until the wave before that had it was cut.
        sink.wait(|state| state.waves_published + cut::SCRATCHES > number)?;
        let mut builder = builder(pump, model, digests)?;
        for stretch in &sink.waves[number].stretches {
            builder.add(0, stretch.extent, stretch.scratch_offset)?;
        }
        let places = Places::One { segment: sink.cutter.scratch(number).clone(), offset_bytes: 0 };
        sink.submit(pump, number as u64, builder.build()?, places)?;
    }
    sink.wait(|state| state.ended == jobs)?;
    sink.cutter.wait()
}

#[derive(Default)]
struct State {
    waves_published: usize,
    ended: usize,
    error: Option<Error>,
}

struct SliceSink {
    cutter: Cutter,
    waves: Vec<Wave>,
    state: Mutex<State>,
    changed: Condvar,
}

impl SliceSink {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(
        self: &Arc<Self>,
        pump: &Arc<Pump>,
        tag: u64,
        plan: spoc_io::ReadPlan,
        places: Places,
    ) -> Result<()> {
        let sink = Arc::clone(self) as Arc<dyn Sink>;
        let (plan, class) = (Arc::new(plan), ReadClass::Demand);
        pump.submit(Job { plan, places, sink, tag, class, in_place: None, held: None })?;
        Ok(())
    }

    /// Until `done`, or an error: what is in flight then keeps its memory by itself.
    fn wait(&self, done: impl Fn(&State) -> bool) -> Result<()> {
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if done(&state) {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn note(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Sink for SliceSink {
    fn begin(&self, _tag: u64, _copies: &Stream) -> Result<Begin> {
        Ok(Begin::Go)
    }

    fn published(&self, tag: u64, copies: &Stream) -> Result<()> {
        if tag == DIRECT {
            return Ok(());
        }
        let number = usize::try_from(tag).unwrap_or(usize::MAX);
        if let Some(wave) = self.waves.get(number) {
            // Behind the copies, and before those of the next wave in this scratch memory: one stream has both.
            self.cutter.cut(copies, number, wave)?;
        }
        self.note(|state| state.waves_published += 1);
        Ok(())
    }

    fn failed(&self, _tag: u64, error: &Error, _in_copy: bool) {
        self.note(|state| {
            state.error.get_or_insert_with(|| error.clone());
        });
    }

    fn ended(&self, _tag: u64) {
        self.note(|state| state.ended += 1);
    }
}

impl LoadedSlices {
    /// Compares every slice, as it is in device memory now, with its bytes in the file. Returns the bytes compared.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] with the first byte that differs, counted within the slice; what reading either side
    /// answers.
    pub fn verify(&self, model: &Model, slices: &[Slice]) -> Result<u64> {
        let mut compared = 0;
        for (slice, placement) in slices.iter().zip(&self.placements) {
            let tensor = &model.tensors()[slice.tensor as usize];
            let Some(file) = model.file_of(tensor) else { continue };
            let len = usize::try_from(placement.len_bytes).unwrap_or(usize::MAX);
            let (mut found, mut expected, mut at) = (vec![0; len], vec![0; len], 0);
            self.segments[placement.segment as usize].read(placement.offset_bytes, &mut found)?;
            for extent in runs_of(model, slice)?.extents() {
                let end = at + usize::try_from(extent.len_bytes).unwrap_or(usize::MAX);
                file.read_exact_at(&mut expected[at..end], extent.offset)?;
                at = end;
            }
            if let Some(first) = super::verify::first_difference(&expected, &found) {
                let at_byte = first as u64;
                return Err(Error::new(ErrorKind::Mismatch { tensor: tensor.name.clone(), at_byte }));
            }
            compared += placement.len_bytes;
        }
        Ok(compared)
    }
}
