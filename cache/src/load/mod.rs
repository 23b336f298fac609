//! A whole model, or a selection of its tensors, into device memory for good: exact segments, one merged plan
//! through the pump, and a check that reads back.

mod cancel;
mod image;
mod layout;
mod pack;
mod placed;
mod slices;
mod verify;

pub use cancel::Cancel;
pub use pack::Placement;
pub use placed::{PlaceOptions, Placed, PlacedDevice, PlacedReport, load_placed};
pub use slices::{LoadedSlices, Slice, load_slices, load_verified_slices};

use layout::Layout;

use crate::pump::{Begin, Feed, Job, Place, Pump, Sink, Stages};
use crate::{Error, ErrorKind, Result};
use globset::GlobMatcher;
use spoc_driver::{Segment, Stream};
use spoc_io::{
    BlockDigests, HostTargets, Model, PlanBuilder, PlanOptions, ReadClass, ReadPlan, ReaderReport,
    goes_in_place,
};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What to load.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// Only tensors whose name this matches (`*` within and across dots, `?`, `[a-z]`, `{a,b}`); all if `None`.
    pub tensors: Option<String>,
    /// Only these, by their index in the model; of them those that `tensors` matches, if that is set too. Named twice
    /// counts once.
    pub chosen: Option<Arc<[u32]>>,
    /// Told how many of how many bytes have been copied, by the copy thread: must be quick.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Every chunk is compared with these digests after it was read and before it is copied. The pump's reader needs
    /// [`check_threads`](spoc_io::ReaderOptions::check_threads).
    pub verify: Option<Arc<BlockDigests>>,
    /// Ends the load early, from any thread, the progress call among them.
    pub cancel: Option<Cancel>,
    /// Tensors at multiples of 256 bytes also where they could lie as in the file, and be read in place.
    pub packed: bool,
    /// Into memory that can be lent to other processes ([`Segment::export`]).
    pub exportable: bool,
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadOptions").field("tensors", &self.tensors).finish_non_exhaustive()
    }
}

/// A loaded model.
#[derive(Debug)]
pub struct Loaded {
    /// Device memory; freed when dropped.
    pub segments: Vec<Segment>,
    /// Where each loaded tensor is, in the order of file and offset.
    pub placements: Vec<Placement>,
    /// What happened.
    pub report: LoadReport,
}

/// What a load did.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Planning and allocating device memory. The pump's own start is [`Pump::prepare_time`].
    pub prepare_time: Duration,
    /// From the first read submitted to the last copy run.
    pub stream_time: Duration,
    /// Where the time went, for this load alone if nothing else used the pump meanwhile.
    pub stages: Stages,
    /// Why bytes were copied to the device, and not read in place; `None` if they were, [`ReaderReport::in_place_bytes`] of
    /// them.
    pub copied_because: Option<&'static str>,
    /// What the reader did since its start, and on which path.
    pub reader: ReaderReport,
}

impl LoadReport {
    /// 10⁹ bytes a second while streaming.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // a rate for people
    pub fn gb_per_s(&self) -> f64 {
        let seconds = self.stream_time.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / 1e9 / seconds } else { 0.0 }
    }
}

fn matcher(pattern: &str) -> Result<GlobMatcher> {
    globset::Glob::new(pattern)
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Error::new(ErrorKind::BadPattern { why: error.to_string() }))
}

/// Indices of the selected tensors, in the order of the model.
fn selected(model: &Model, options: &LoadOptions) -> Result<Vec<u32>> {
    let pattern = options.tensors.as_deref();
    let matcher = pattern.map(matcher).transpose()?;
    let tensors = model.tensors();
    let mut candidates: Vec<u32> = match &options.chosen {
        None => (0u32..).zip(tensors).map(|(index, _)| index).collect(),
        Some(chosen) => chosen.to_vec(),
    };
    candidates.sort_unstable();
    candidates.dedup();
    if let Some(&last) = candidates.last()
        && last as usize >= tensors.len()
    {
        return Err(Error::new(ErrorKind::NoTensor { pattern: format!("number {last}") }));
    }
    let matches =
        |index: &u32| matcher.as_ref().is_none_or(|glob| glob.is_match(&tensors[*index as usize].name));
    candidates.retain(matches);
    match pattern {
        Some(pattern) if candidates.is_empty() => {
            Err(Error::new(ErrorKind::NoTensor { pattern: pattern.to_owned() }))
        }
        _ => Ok(candidates),
    }
}

/// Loads a model and waits for it.
///
/// # Errors
/// A device or a staging budget too small, a tensor wider than a segment, no tensor selected: before a byte
/// is read. Then `digest_mismatch` for bytes that are not what [`LoadOptions::verify`] says, what the reader, the files'
/// changing, or the device says, and [`ErrorKind::Cancelled`]; device
/// memory is freed again.
pub fn load_model(pump: &Arc<Pump>, model: &Model, options: &LoadOptions) -> Result<Loaded> {
    let began = Instant::now();
    let chosen = selected(model, options)?;
    let layout = Layout::choose(pump.device(), model, &chosen, options)?;
    let Layout { placements, segment_bytes, .. } = &layout;
    let need_bytes: u64 = segment_bytes.iter().sum();
    let have_bytes = pump.device().memory()?.free_bytes;
    if need_bytes > have_bytes {
        return Err(Error::new(ErrorKind::DeviceTooSmall { need_bytes, have_bytes }));
    }
    let digests = options.verify.as_ref();
    let mut plan = plan(model, placements, layout.plan_options(pump.plan_options()), digests)?;
    let planned = began.elapsed();
    let (segments, in_place) = layout.allocate(pump.device())?;
    let in_place = in_place.map(|targets| targets as Arc<dyn HostTargets>);
    let is_long = plan.chunk_bytes() > pump.plan_options().chunk_bytes;
    if is_long && !in_place.as_ref().is_some_and(|targets| goes_in_place(&plan, targets)) {
        // Some reads need a chunk, and so have to fit it.
        plan = self::plan(model, placements, *pump.plan_options(), digests)?;
    }
    let plan = Arc::new(plan);
    let Layout { placements, copied_because, .. } = layout;
    let prepare_time = began.elapsed();
    tracing::debug!(
        plan_us = planned.as_micros(),
        allocate_us = (prepare_time - planned).as_micros(),
        "a load is planned, and has its device memory"
    );

    let before = pump.stages();
    let bytes: u64 = placements.iter().map(|placement| placement.len_bytes).sum();
    let began = Instant::now();
    if !plan.reads().is_empty() {
        let places = places(&placements, &segments);
        stream(pump, Arc::clone(&plan), places, in_place, options, bytes)?;
    } else {
        // Only empty tensors: there is nothing to read, but the files may still have changed.
        for file in plan.files() {
            file.check_unchanged()?;
        }
    }
    let stream_time = began.elapsed();
    let report = LoadReport {
        bytes,
        prepare_time,
        stream_time,
        stages: pump.stages().since(&before),
        copied_because,
        reader: pump.reader_report()?,
    };
    Ok(Loaded { segments, placements, report })
}

fn plan(
    model: &Model,
    placements: &[Placement],
    options: PlanOptions,
    digests: Option<&Arc<BlockDigests>>,
) -> Result<ReadPlan> {
    let mut builder = PlanBuilder::new(model.files(), options);
    if let Some(digests) = digests {
        builder.check_against(digests)?;
    }
    for (placement, target) in placements.iter().zip(0u32..) {
        builder.add(target, model.tensors()[placement.tensor as usize].extent, 0)?;
    }
    Ok(builder.build()?)
}

fn places(placements: &[Placement], segments: &[Segment]) -> Arc<[Place]> {
    let place = |placement: &Placement| Place {
        segment: segments[placement.segment as usize].clone(),
        offset_bytes: placement.offset_bytes,
    };
    placements.iter().map(place).collect()
}

fn stream(
    pump: &Arc<Pump>,
    plan: Arc<ReadPlan>,
    places: Arc<[Place]>,
    in_place: Option<Arc<dyn HostTargets>>,
    options: &LoadOptions,
    bytes: u64,
) -> Result<()> {
    let sink = Arc::new(LoadSink {
        state: Mutex::new(LoadState::default()),
        changed: Condvar::new(),
        copied: AtomicU64::new(0),
        bytes,
        progress: options.progress.clone(),
    });
    if let Some(cancel) = &options.cancel {
        cancel.watch(&sink);
    }
    let job = pump.submit(Job {
        plan,
        places: crate::pump::Places::Many(places),
        sink: Arc::clone(&sink) as Arc<dyn Sink>,
        tag: 0,
        class: ReadClass::Demand,
        in_place,
        held: None,
    })?;
    sink.wait(|| pump.cancel(job))
}

#[derive(Default)]
struct LoadState {
    published: bool,
    ended: bool,
    error: Option<Error>,
}

/// How long a failed load waits for its reads in flight.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Waits for one job.
struct LoadSink {
    state: Mutex<LoadState>,
    changed: Condvar,
    copied: AtomicU64,
    bytes: u64,
    progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
}

impl cancel::Stop for LoadSink {
    fn stop(&self) {
        let mut state = self.lock();
        if !state.ended {
            state.error.get_or_insert_with(|| Error::new(ErrorKind::Cancelled));
            self.changed.notify_all();
        }
    }
}

impl LoadSink {
    fn lock(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the job's end; once it failed, for [`AFTER_FAILURE`] at most, because a read that hangs must not hide
    /// an error that is there. What is in flight keeps its memory by itself.
    fn wait(&self, give_up: impl FnOnce()) -> Result<()> {
        let mut state = self.lock();
        while !state.ended && state.error.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.ended {
            // Locks are taken in one order: no call into the pump under the sink's own.
            drop(state);
            give_up();
            state = self.lock();
        }
        let open = |state: &mut LoadState| !state.ended;
        let waited = self.changed.wait_timeout_while(state, AFTER_FAILURE, open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.error.take() {
            Some(error) => Err(error),
            None if state.published => Ok(()),
            None => Err(Error::new(ErrorKind::Closed)),
        }
    }
}

impl Sink for LoadSink {
    fn begin(&self, _tag: u64, _copies: &Stream) -> Result<Begin> {
        Ok(Begin::Go)
    }

    fn published(&self, _tag: u64, _copies: &Stream) -> Result<()> {
        self.lock().published = true;
        Ok(())
    }

    fn failed(&self, _tag: u64, error: &Error, _in_copy: bool) {
        self.lock().error.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    fn ended(&self, _tag: u64) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn progress(&self, _tag: u64, bytes: u64) {
        let copied = self.copied.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = &self.progress {
            progress(copied, self.bytes);
        }
    }
}
