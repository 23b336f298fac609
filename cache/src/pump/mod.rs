//! Joins the reader to a device: one thread that owns the copy stream, enqueues the copies of every chunk
//! that was read, and retires them in order.
//!
//! A [`Pump`] is started once a device and serves any number of caches and loads on it. Whoever wants bytes
//! hands it a [`Job`]: a read plan, where its targets are, and a [`Sink`] to call.

mod group;
mod jobs;
mod stages;
mod thread;

pub use group::PumpGroup;
pub(crate) use group::{GroupJob, Leg};
pub(crate) use jobs::{Begin, Feed, Job, JobId, Place, Places, Sink};
pub use stages::Stages;

use crate::stats::Counters;
use crate::{Error, ErrorKind, Result};
use jobs::Jobs;
use spoc_bridge::in_place::reads_in_place;
use spoc_bridge::{Missed, RingMemory, Rung};
use spoc_driver::{Device, StreamOptions};
use spoc_io::{HostRegion, IoMode, PlanOptions, ReadClass, Reader, ReaderOptions, ReaderReport};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Chunks a ring needs at least: one being read, one being copied, or neither side ever overlaps.
const CHUNKS_MIN: usize = 2;

/// How a pump is set up.
#[derive(Clone)]
pub struct PumpOptions {
    /// Bytes of the staging ring: all the host memory that loads take. Default 64 MiB.
    pub staging_bytes: usize,
    /// How the reader works, the chunk's size among it.
    pub reader: ReaderOptions,
    /// Where to count; by default on the heap, with room for no slot.
    pub counters: Option<Counters>,
}

impl Default for PumpOptions {
    fn default() -> PumpOptions {
        PumpOptions { staging_bytes: 64 << 20, reader: ReaderOptions::default(), counters: None }
    }
}

impl PumpOptions {
    /// The defaults with this I/O mode and staging budget. The chunk shrinks with the budget, so that the ring
    /// has chunks enough to keep disk and device busy.
    ///
    /// # Errors
    /// [`ErrorKind::StagingTooSmall`] if the budget cannot hold two of the smallest chunks.
    pub fn new(mode: IoMode, staging_bytes: usize) -> Result<PumpOptions> {
        const SMALLEST: usize = 4096;
        if staging_bytes < CHUNKS_MIN * SMALLEST {
            return Err(too_small(CHUNKS_MIN * SMALLEST, staging_bytes));
        }
        let reader = ReaderOptions::default();
        let room = staging_bytes / (2 * reader.depth as usize).max(CHUNKS_MIN);
        let chunk = (reader.chunk_bytes as usize).min(room / SMALLEST * SMALLEST).max(SMALLEST);
        let chunk_bytes = u32::try_from(chunk).unwrap_or(reader.chunk_bytes);
        Ok(PumpOptions {
            staging_bytes,
            reader: ReaderOptions { mode, chunk_bytes, ..reader },
            counters: None,
        })
    }
}

impl fmt::Debug for PumpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpOptions")
            .field("staging_bytes", &self.staging_bytes)
            .field("chunk_bytes", &self.reader.chunk_bytes)
            .finish_non_exhaustive()
    }
}

fn too_small(need: usize, have: usize) -> Error {
    Error::new(ErrorKind::StagingTooSmall { need_bytes: need as u64, have_bytes: have as u64 })
}

/// How the ring's memory came to be.
#[derive(Debug, Clone)]
pub struct RingReport {
    /// Bytes of the ring.
    pub bytes: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// How it is known to the device.
    pub rung: Rung,
    /// The better rungs, and why not they.
    pub missed: Vec<Missed>,
}

/// What the caches, the loads and the thread share.
pub(crate) struct Shared {
    pub jobs: Jobs,
    pub counters: Counters,
    pub stopping: AtomicBool,
    /// Has the thread look for jobs that no completion tells of.
    wake: crossbeam_channel::Sender<()>,
}

/// A reader, a staging ring and a copy thread for one device; or a share of those of a [`PumpGroup`].
///
/// An error that the device reports for enqueued copies is final for the copy stream: what was in flight
/// fails, and so does everything asked of this pump afterwards. Start another one.
pub struct Pump {
    device: Device,
    counters: Counters,
    ring: OnceLock<RingReport>,
    plan_options: PlanOptions,
    prepare: Duration,
    drive: Drive,
}

/// What carries jobs out.
enum Drive {
    Own { shared: Arc<Shared>, chunks: usize, memory: Arc<RingMemory>, thread: Option<JoinHandle<()>> },
    Lane(group::Lane),
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump")
            .field("device", &self.device.info().uuid)
            .field("ring", &self.ring.get())
            .finish()
    }
}

impl Pump {
    /// Takes the ring, begins to pin it, starts the reader and the copy thread.
    ///
    /// # Errors
    /// A budget that cannot hold two chunks; the host's, the reader's or the device's refusals.
    pub fn start(device: &Device, options: PumpOptions) -> Result<Arc<Pump>> {
        let began = Instant::now();
        let chunk_bytes = options.reader.chunk_bytes as usize;
        if chunk_bytes == 0 || options.staging_bytes / chunk_bytes < CHUNKS_MIN {
            return Err(too_small(CHUNKS_MIN * chunk_bytes.max(4096), options.staging_bytes));
        }
        let chunks = options.staging_bytes / chunk_bytes;
        let memory = Arc::new(RingMemory::allocate_unpinned(device, chunks * chunk_bytes)?);
        // Beside the device, as the ring is, unless the caller knows better.
        let beside = options.reader.numa_node.or(device.numa_node());
        // Registering makes all of the ring present. Where reads end in device memory itself it is hardly used.
        let fixed_buffers = options.reader.fixed_buffers && reads_in_place(device).is_err();
        let reader_options = ReaderOptions { numa_node: beside, fixed_buffers, ..options.reader.clone() };
        let reader = Reader::start(Arc::clone(&memory) as Arc<dyn HostRegion>, reader_options)?;
        let completions = reader.completions().clone();
        let (wake, woken) = crossbeam_channel::bounded(1);
        let counters = options.counters.unwrap_or_else(|| Counters::on_heap(0));
        let shared = Arc::new(Shared {
            jobs: Jobs::new(reader),
            counters: counters.clone(),
            stopping: AtomicBool::new(false),
            wake,
        });
        let copies =
            device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
        let (to_serve, ring) = (Arc::clone(&shared), Arc::clone(&memory));
        let thread = thread::Copier::new(device, to_serve, (completions, woken), ring, copies, chunks)?;
        let thread = std::thread::Builder::new()
            .name("spoc-pump".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| spoc_io::Error::from_os(error, "starting the copy thread"))?;
        memory.begin_pinning();
        tracing::debug!(elapsed_us = began.elapsed().as_micros(), "a pump has started");
        Ok(Arc::new(Pump {
            device: device.clone(),
            counters,
            ring: OnceLock::new(),
            plan_options: PlanOptions { chunk_bytes: options.reader.chunk_bytes, ..PlanOptions::default() },
            prepare: began.elapsed(),
            drive: Drive::Own { shared, chunks, memory, thread: Some(thread) },
        }))
    }

    /// The device it copies to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it counts, together with every cache and load on it.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How its ring came to be. Waits for the ring's registration with the device, which begins at the
    /// end of [`start`](Pump::start) and is otherwise waited for by the first copy alone.
    #[must_use]
    pub fn ring(&self) -> &RingReport {
        self.ring.get_or_init(|| {
            let chunk_bytes = self.plan_options.chunk_bytes as usize;
            match &self.drive {
                Drive::Own { chunks, memory, .. } => RingReport {
                    bytes: chunks * chunk_bytes,
                    chunk_bytes,
                    rung: memory.rung(),
                    missed: memory.missed().to_vec(),
                },
                Drive::Lane(lane) => lane.ring_report(chunk_bytes),
            }
        })
    }

    /// Time that [`start`](Pump::start) took.
    #[must_use]
    pub fn prepare_time(&self) -> Duration {
        self.prepare
    }

    /// What the reader did so far, and on which path.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] while shutting down.
    pub fn reader_report(&self) -> Result<ReaderReport> {
        match &self.drive {
            Drive::Own { shared, .. } => shared.jobs.report(),
            Drive::Lane(lane) => lane.report(),
        }
    }

    /// Where time went so far, over everything that this pump served.
    #[must_use]
    pub fn stages(&self) -> Stages {
        match &self.drive {
            Drive::Own { shared, .. } => shared.note_reader(),
            Drive::Lane(lane) => lane.note_reader(&self.counters),
        }
        Stages::read(&self.counters)
    }

    /// How plans for this pump's chunks are cut.
    pub(crate) fn plan_options(&self) -> &PlanOptions {
        &self.plan_options
    }

    /// Calls `sink.tick` about twice a second while there is little to do.
    pub(crate) fn watch(&self, sink: Weak<dyn Sink>) {
        match &self.drive {
            Drive::Own { shared, .. } => shared.jobs.watch(sink),
            Drive::Lane(lane) => lane.watch(sink),
        }
    }
}

impl Feed for Pump {
    fn submit(&self, job: Job) -> Result<JobId> {
        match &self.drive {
            Drive::Own { shared, .. } => {
                let held = job.held.is_some();
                let id = shared.jobs.submit(job)?;
                if held {
                    // Full: it is about to look.
                    let _ = shared.wake.try_send(());
                }
                Ok(id)
            }
            Drive::Lane(lane) => lane.submit(job),
        }
    }

    fn cancel(&self, job: JobId) {
        match &self.drive {
            Drive::Own { shared, .. } => shared.jobs.cancel(job),
            Drive::Lane(lane) => lane.cancel(job),
        }
    }

    fn promote(&self, job: JobId, class: ReadClass) {
        match &self.drive {
            Drive::Own { shared, .. } => shared.jobs.promote(job, class),
            Drive::Lane(lane) => lane.promote(job, class),
        }
    }
}

impl Shared {
    /// The reader counts its own waiting; it belongs on the same page.
    pub(crate) fn note_reader(&self) {
        if let Ok((chunk_wait_ns, read_bytes)) = self.jobs.reader_figures() {
            self.counters.raise_to(crate::stats::layout::Counter::WaitChunksNs, chunk_wait_ns);
            self.counters.raise_to(crate::stats::layout::Counter::ReadBytes, read_bytes);
        }
    }
}

impl Drop for Pump {
    /// Ends the reader, then the thread, which fails what was not finished. Copies that are enqueued run.
    fn drop(&mut self) {
        let Drive::Own { shared, thread, .. } = &mut self.drive else { return };
        shared.stopping.store(true, Ordering::Release);
        let reader = shared.jobs.close();
        let Some(thread) = thread.take() else { return };
        if thread.thread().id() == std::thread::current().id() {
            // The last owner went away inside a sink's call. The reader needs this thread to take its
            // completions before it can end, and a thread cannot wait for itself.
            let ending = std::thread::Builder::new().name("spoc-pump-end".to_owned());
            if let Err(error) = ending.spawn(move || drop(reader)) {
                tracing::error!(%error, "the reader could not be ended");
            }
            return;
        }
        drop(reader);
        if thread.join().is_err() {
            tracing::error!("the copy thread panicked");
        }
    }
}
