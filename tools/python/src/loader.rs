//! One device with its pump, and loads on it.

use crate::error::Failure;
use crate::memory::Memory;
use crate::model::Model;
use crate::waiting::{Progress, wait};
use crossbeam_channel::{Receiver, bounded};
use pyo3::prelude::*;
use spoc_backends::{ProbeOutcome, probe_only};
use spoc_cache::load::{LoadOptions, Loaded, Placement, Slice, load_model, load_slices};
use spoc_cache::{Pump, PumpOptions};
use spoc_driver::{BackendKind, DeviceSelector, Driver, Segment};
use spoc_io::{IoMode, Manifest};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Ends loads early, from any thread.
#[pyclass(frozen, module = "spoc._spoc")]
pub struct Cancel(spoc_cache::load::Cancel);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Cancel {
        Cancel(spoc_cache::load::Cancel::new())
    }

    /// Ends every load that has this switch, now and later.
    fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether it was thrown.
    #[getter]
    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Memory, and where in it each tensor is: index of the memory, offset and bytes.
type Parts = (Vec<Memory>, Vec<(u32, u64, u64)>);

/// A device with its reader and staging ring.
#[pyclass(frozen, module = "spoc._spoc")]
pub struct Loader {
    pump: ManuallyDrop<Arc<Pump>>,
    index: u32,
    process: u32,
}

impl Drop for Loader {
    fn drop(&mut self) {
        // A forked child has none of the threads that dropping would wait for.
        if self.process == std::process::id() {
            // SAFETY: dropped here only, and the value is gone afterwards.
            unsafe { ManuallyDrop::drop(&mut self.pump) };
        }
    }
}

fn start(backend: BackendKind, index: u32, staging_bytes: usize, mode: IoMode) -> Result<Arc<Pump>, Failure> {
    let mut found = Vec::new();
    for report in probe_only([backend]) {
        match report.outcome {
            ProbeOutcome::Found(probed) => found.push(probed),
            ProbeOutcome::Missing { reason } => {
                return Err(Failure::new("no_device", format!("no {backend} device: {reason}")));
            }
        }
    }
    let device = Driver::new(found).open(&DeviceSelector::index(backend, index))?;
    let mut options = PumpOptions::new(mode, staging_bytes)?;
    options.reader.check_threads = 2;
    Ok(Pump::start(&device, options)?)
}

fn memories(segments: Vec<Segment>, index: u32) -> Result<Vec<Memory>, Failure> {
    let refuse =
        || Failure::new("unsupported", "the device's memory has no address that Python can be given");
    segments.into_iter().map(|segment| Memory::new(segment, index).ok_or_else(refuse)).collect()
}

fn rows(placements: &[Placement]) -> Vec<(u32, u64, u64)> {
    placements
        .iter()
        .map(|placement| (placement.segment, placement.offset_bytes, placement.len_bytes))
        .collect()
}

fn check_range(model: &Model, indices: &[u32]) -> Result<(), Failure> {
    let count = model.get().tensors().len();
    match indices.iter().find(|index| **index as usize >= count) {
        Some(index) => Err(Failure::new("no_tensor", format!("tensor {index} of {count}"))),
        None => Ok(()),
    }
}

/// The digests of the manifest beside the model.
fn digests(model: &spoc_io::Model) -> Result<Arc<spoc_io::BlockDigests>, Failure> {
    let path = Manifest::default_path(model);
    Ok(Manifest::read(&path, model)?.expectations(model)?)
}

#[pymethods]
impl Loader {
    /// Opens a device: `"native"`, `"cuda"` or `"hip"`, by its index there.
    #[new]
    fn new(py: Python<'_>, backend: &str, index: u32, staging_bytes: usize, io: &str) -> PyResult<Loader> {
        let parse = || -> Result<(BackendKind, IoMode), Failure> {
            let backend =
                backend.parse().map_err(|_| Failure::new("usage", format!("no backend {backend:?}")))?;
            let mode = match io {
                "auto" => IoMode::Auto,
                "direct" => IoMode::Direct,
                "buffered" => IoMode::Buffered,
                "pread" => IoMode::Pread,
                other => {
                    let expected = "expected auto, direct, buffered or pread";
                    return Err(Failure::new("usage", format!("io={other:?}: {expected}")));
                }
            };
            Ok((backend, mode))
        };
        let (backend, mode) = parse().map_err(|failure| failure.raise(py))?;
        let pump = py.detach(|| start(backend, index, staging_bytes, mode));
        let pump = pump.map_err(|failure| failure.raise(py))?;
        Ok(Loader { pump: ManuallyDrop::new(pump), index, process: std::process::id() })
    }

    /// Name of the device.
    #[getter]
    fn device_name(&self) -> String {
        self.pump.device().info().name.clone()
    }

    /// Loads these tensors, in the order of the files, and returns when they are there.
    #[pyo3(signature = (model, indices, *, verify=false, progress=None, cancel=None))]
    fn load(
        &self,
        py: Python<'_>,
        model: &Model,
        indices: Vec<u32>,
        verify: bool,
        progress: Option<&Bound<'_, PyAny>>,
        cancel: Option<&Cancel>,
    ) -> PyResult<Parts> {
        self.check(py)?;
        check_range(model, &indices).map_err(|failure| failure.raise(py))?;
        let cancel = cancel.map(|cancel| cancel.0.clone()).unwrap_or_default();
        let told = Progress::default();
        let job = Job {
            pump: Arc::clone(&self.pump),
            model: Arc::clone(model.get()),
            cancel: cancel.clone(),
            verify,
        };
        let (index, counter) = (self.index, told.clone());
        let call = progress.map(|call| (&told, call));
        wait(py, &cancel, call, move || {
            job.run(indices, Some(counter)).and_then(|loaded| parts(loaded, index))
        })
    }

    /// Loads parts of tensors: index of the tensor, and a range for each dimension of the file's shape.
    #[pyo3(signature = (model, slices))]
    fn load_slices(
        &self,
        py: Python<'_>,
        model: &Model,
        slices: Vec<(u32, Vec<(u64, u64)>)>,
    ) -> PyResult<Parts> {
        self.check(py)?;
        let slices: Vec<Slice> = slices
            .into_iter()
            .map(|(tensor, ranges)| Slice {
                tensor,
                ranges: ranges.iter().map(|&(from, to)| from..to).collect(),
            })
            .collect();
        let (pump, model, index) = (Arc::clone(&self.pump), Arc::clone(model.get()), self.index);
        wait(py, &spoc_cache::load::Cancel::new(), None, move || {
            let loaded = load_slices(&pump, &model, &slices)?;
            Ok((memories(loaded.segments, index)?, rows(&loaded.placements)))
        })
    }

    /// Loads groups of tensors one behind the other, each handed out as it is there.
    #[pyo3(signature = (model, groups, *, verify=false, cancel=None))]
    fn stream(
        &self,
        py: Python<'_>,
        model: &Model,
        groups: Vec<Vec<u32>>,
        verify: bool,
        cancel: Option<&Cancel>,
    ) -> PyResult<Stream> {
        self.check(py)?;
        for group in &groups {
            check_range(model, group).map_err(|failure| failure.raise(py))?;
        }
        let cancel = cancel.map(|cancel| cancel.0.clone()).unwrap_or_default();
        let job = Job {
            pump: Arc::clone(&self.pump),
            model: Arc::clone(model.get()),
            cancel: cancel.clone(),
            verify,
        };
        Stream::start(job, groups, self.index, cancel).map_err(|failure| failure.raise(py))
    }
}

impl Loader {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let message = "the loader belongs to the process that was forked: open the file again in the child";
        Err(Failure::new("forked", message).raise(py))
    }
}

fn parts(loaded: Loaded, index: u32) -> Result<Parts, Failure> {
    let rows = rows(&loaded.placements);
    Ok((memories(loaded.segments, index)?, rows))
}

#[derive(Clone)]
struct Job {
    pump: Arc<Pump>,
    model: Arc<spoc_io::Model>,
    cancel: spoc_cache::load::Cancel,
    verify: bool,
}

impl Job {
    fn run(&self, indices: Vec<u32>, progress: Option<Progress>) -> Result<Loaded, Failure> {
        let verify = self.verify.then(|| digests(&self.model)).transpose()?;
        let progress = progress.map(|progress| {
            Arc::new(move |copied, bytes| progress.set(copied, bytes)) as Arc<dyn Fn(u64, u64) + Send + Sync>
        });
        let options = LoadOptions {
            chosen: Some(indices.into()),
            progress,
            verify,
            cancel: Some(self.cancel.clone()),
            ..LoadOptions::default()
        };
        Ok(load_model(&self.pump, &self.model, &options)?)
    }
}

/// Groups on their way, in their order.
#[pyclass(frozen, module = "spoc._spoc")]
pub struct Stream {
    groups: Mutex<Receiver<Result<Parts, Failure>>>,
    cancel: spoc_cache::load::Cancel,
}

impl Stream {
    /// Each group begins while the one before it ends, so that the disk always has something to do.
    fn start(
        job: Job,
        groups: Vec<Vec<u32>>,
        index: u32,
        cancel: spoc_cache::load::Cancel,
    ) -> Result<Stream, Failure> {
        let (sender, receiver) = bounded(1);
        let thread = thread::Builder::new().name("spoc-python".to_owned());
        let spawned = thread.spawn(move || {
            let begin = |group: Vec<u32>| {
                let job = job.clone();
                let (done, ended) = bounded(1);
                thread::spawn(move || {
                    let _ = done.send(job.run(group, None).and_then(|loaded| parts(loaded, index)));
                });
                ended
            };
            let mut ahead = None;
            for next in groups.into_iter().map(|group| Some(begin(group))).chain([None]) {
                let Some(ready) = std::mem::replace(&mut ahead, next) else { continue };
                let panicked = |_| Err(Failure::new("internal", "a loading thread panicked"));
                if sender.send(ready.recv().unwrap_or_else(panicked)).is_err() {
                    return;
                }
            }
        });
        spawned.map_err(|error| Failure::new("os", format!("starting a thread: {error}")))?;
        Ok(Stream { groups: Mutex::new(receiver), cancel })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

#[pymethods]
impl Stream {
    /// The next group; `None` behind the last.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Parts>> {
        loop {
            let step = std::time::Duration::from_millis(50);
            let next =
                py.detach(|| self.groups.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(step));
            match next {
                Ok(Ok(parts)) => return Ok(Some(parts)),
                Ok(Err(failure)) => return Err(failure.raise(py)),
                Err(crossbeam_channel::RecvTimeoutError::Disconnected) => return Ok(None),
                Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
            }
            if let Err(error) = py.check_signals() {
                self.cancel.cancel();
                return Err(error);
            }
        }
    }
}
