//! Several devices fed by one reader a NUMA node: a byte that several of them want is read once.
//!
//! A job has a leg for each device that wants something of it. What was read goes to the lane of each such leg, a thread
//! with a copy stream, events and a ledger of its own; the chunk returns to its ring when the last of their copies has run.
//! A lane that is slow holds chunks of the ring, and nothing else: the others go on until the ring is full, and then at the
//! pace of the slowest. A leg that fails takes nothing from the others; a job's reads are cancelled with its last leg.

mod dispatch;
mod lane;
mod table;

pub(crate) use table::{GroupJob, Leg};

use super::jobs::{Job, JobId, Sink};
use super::{CHUNKS_MIN, Drive, Pump, PumpOptions, RingReport, too_small};
use crate::stats::Counters;
use crate::stats::layout::Counter;
use crate::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, bounded};
use spoc_bridge::SharedRing;
use spoc_driver::{Device, StreamOptions};
use spoc_io::{HostRegion, PlanOptions, ReadClass, Reader, ReaderOptions, ReaderReport};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;
use table::{Core, ToLane};

/// A ring, its reader, and the devices beside it.
struct Ring {
    memory: Arc<SharedRing>,
    node: Option<u32>,
}

/// What all pumps of a group hold together. Ends with the last of them.
pub(super) struct Group {
    core: Arc<Core>,
    rings: Vec<Ring>,
    chunks: usize,
    dispatchers: Mutex<Vec<JoinHandle<()>>>,
    lanes: Mutex<Vec<JoinHandle<()>>>,
}

/// Readers, one a NUMA node that the devices hang on, and a copy thread a device.
///
/// [`pumps`](PumpGroup::pumps) are pumps like any other: caches and loads on them need not know of each other. Two that ask
/// for the same bytes of the same files at about the same time share one read.
pub struct PumpGroup {
    group: Arc<Group>,
    pumps: Vec<Arc<Pump>>,
    plan_options: PlanOptions,
}

impl PumpGroup {
    /// Takes a ring of `options.staging_bytes` for each NUMA node among the devices, has every device register each ring,
    /// and starts readers and copy threads. Every device counts on its own; `options.counters` are the first one's.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevices`] for an empty list, or for one device twice; else as of [`Pump::start`].
    pub fn start(devices: &[Device], options: &PumpOptions) -> Result<PumpGroup> {
        let began = Instant::now();
        let twice = (1..devices.len()).any(|n| devices[..n].iter().any(|other| other.is(&devices[n])));
        if devices.is_empty() || twice {
            return Err(Error::new(ErrorKind::NoDevices { found: devices.len() }));
        }
        let chunk_bytes = options.reader.chunk_bytes as usize;
        if chunk_bytes == 0 || options.staging_bytes / chunk_bytes < CHUNKS_MIN {
            return Err(too_small(CHUNKS_MIN * chunk_bytes.max(4096), options.staging_bytes));
        }
        let chunks = options.staging_bytes / chunk_bytes;
        let mut nodes: Vec<Option<u32>> = devices.iter().map(Device::numa_node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut readers = Vec::with_capacity(nodes.len());
        let mut rings = Vec::with_capacity(nodes.len());
        for node in nodes {
            let memory = Arc::new(SharedRing::allocate(devices, chunks * chunk_bytes, node)?);
            let numa_node = options.reader.numa_node.or(node);
            let reader_options = ReaderOptions { numa_node, ..options.reader.clone() };
            readers.push(Reader::start(Arc::clone(&memory) as Arc<dyn HostRegion>, reader_options)?);
            rings.push(Ring { memory, node });
        }
        let home = |device: &Device| {
            rings.iter().position(|ring| ring.node == device.numa_node()).unwrap_or_default()
        };
        let homes = devices.iter().map(home).collect();
        let completions: Vec<_> = readers.iter().map(|reader| reader.completions().clone()).collect();
        // Every chunk there is, and every job's last words, find room: a lane that is slow stops nobody.
        let room = rings.len() * chunks + LAST_WORDS;
        let (senders, inboxes): (Vec<_>, Vec<_>) = devices.iter().map(|_| bounded(room)).unzip();
        let core = Arc::new(Core::new(readers, senders, homes));
        let first = options.counters.clone();
        let counters: Vec<Counters> = (0..devices.len())
            .map(|n| first.clone().filter(|_| n == 0).unwrap_or_else(|| Counters::on_heap(0)))
            .collect();
        let group =
            Arc::new(Group { core, rings, chunks, dispatchers: Mutex::default(), lanes: Mutex::default() });
        group.start_lanes(devices, &counters, inboxes)?;
        group.start_dispatchers(completions)?;
        let plan_options = PlanOptions { chunk_bytes: options.reader.chunk_bytes, ..PlanOptions::default() };
        let pumps = devices.iter().zip(counters).enumerate().map(|(index, (device, counters))| {
            Arc::new(Pump {
                device: device.clone(),
                counters,
                ring: OnceLock::new(),
                plan_options,
                prepare: began.elapsed(),
                drive: Drive::Lane(Lane { group: Arc::clone(&group), index, device: device.clone() }),
            })
        });
        Ok(PumpGroup { pumps: pumps.collect(), group, plan_options })
    }

    /// A pump for each device, in the order of the devices.
    #[must_use]
    pub fn pumps(&self) -> &[Arc<Pump>] {
        &self.pumps
    }

    /// How many rings there are: one a NUMA node.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.group.rings.len()
    }

    /// What each ring's reader did so far.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] while shutting down.
    pub fn reader_reports(&self) -> Result<Vec<ReaderReport>> {
        self.group.core.reports()
    }

    /// Fills that joined the read of another device instead of reading again.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.group.core.joined()
    }

    /// How plans for this group's chunks are cut.
    #[must_use]
    pub fn plan_options(&self) -> PlanOptions {
        self.plan_options
    }

    pub(crate) fn submit(&self, job: GroupJob) -> Result<Vec<JobId>> {
        self.group.core.submit(job)
    }

    pub(crate) fn cancel(&self, legs: &[JobId]) {
        legs.iter().for_each(|leg| self.group.core.cancel(*leg));
    }
}

/// Messages beyond chunks that a lane's inbox has room for.
const LAST_WORDS: usize = 256;

impl fmt::Debug for PumpGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpGroup")
            .field("devices", &self.pumps.len())
            .field("rings", &self.group.rings.len())
            .finish_non_exhaustive()
    }
}

impl Group {
    fn start_lanes(
        &self,
        devices: &[Device],
        counters: &[Counters],
        inboxes: Vec<Receiver<ToLane>>,
    ) -> Result<()> {
        let chunks = self.rings.len() * self.chunks;
        for ((index, device), inbox) in devices.iter().enumerate().zip(inboxes) {
            let copies =
                device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
            let (core, counters) = (Arc::clone(&self.core), counters[index].clone());
            let shares = (chunks, devices.len());
            let lane = lane::Thread::new(device, index, core, counters, inbox, copies, shares)?;
            let thread = spawn(format!("spoc-lane-{index}"), move || lane.run())?;
            self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(())
    }

    fn start_dispatchers(&self, completions: Vec<Receiver<spoc_io::Completion>>) -> Result<()> {
        for (ring, completions) in completions.into_iter().enumerate() {
            let core = Arc::clone(&self.core);
            let thread =
                spawn(format!("spoc-dispatch-{ring}"), move || dispatch::run(&core, ring, &completions))?;
            self.dispatchers.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(())
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name).spawn(run);
    Ok(thread.map_err(|error| spoc_io::Error::from_os(error, "starting a thread of a group of pumps"))?)
}

impl Drop for Group {
    /// Ends the readers, then the dispatchers, then the lanes, which fail what was not finished. Copies that are enqueued
    /// run.
    fn drop(&mut self) {
        let take = |threads: &mut Mutex<Vec<JoinHandle<()>>>| {
            std::mem::take(threads.get_mut().unwrap_or_else(PoisonError::into_inner))
        };
        let (dispatchers, lanes) = (take(&mut self.dispatchers), take(&mut self.lanes));
        let here = std::thread::current().id();
        let is_own = dispatchers.iter().chain(&lanes).any(|thread| thread.thread().id() == here);
        let core = Arc::clone(&self.core);
        let end = move || end(&core, dispatchers, lanes);
        if !is_own {
            return end();
        }
        // The last owner went away inside a sink's call, and a thread cannot wait for itself.
        if let Err(error) = spawn("spoc-group-end".to_owned(), end) {
            tracing::error!(%error, "a group of pumps could not be ended");
        }
    }
}

fn end(core: &Core, dispatchers: Vec<JoinHandle<()>>, lanes: Vec<JoinHandle<()>>) {
    // A reader can only end while its completions are taken.
    drop(core.close());
    let join = |threads: Vec<JoinHandle<()>>, what: &str| {
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a {what} thread panicked");
            }
        }
    };
    join(dispatchers, "dispatching");
    core.stop_lanes();
    join(lanes, "copy");
}

/// One device's share of a group.
pub(super) struct Lane {
    group: Arc<Group>,
    index: usize,
    device: Device,
}

impl Lane {
    pub fn submit(&self, job: Job) -> Result<JobId> {
        self.group.core.submit_one(self.index, job)
    }

    pub fn cancel(&self, leg: JobId) {
        self.group.core.cancel(leg);
    }

    pub fn promote(&self, leg: JobId, class: ReadClass) {
        self.group.core.promote(leg, class);
    }

    pub fn watch(&self, sink: Weak<dyn Sink>) {
        self.group.core.watch(self.index, sink);
    }

    /// Of the ring beside the device.
    pub fn report(&self) -> Result<ReaderReport> {
        let reports = self.group.core.reports()?;
        let home = self.group.core.home(self.index);
        reports.into_iter().nth(home).ok_or_else(|| Error::new(ErrorKind::Closed))
    }

    pub fn ring_report(&self, chunk_bytes: usize) -> RingReport {
        let memory = &self.group.rings[self.group.core.home(self.index)].memory;
        RingReport {
            bytes: self.group.chunks * chunk_bytes,
            chunk_bytes,
            rung: memory.rung(&self.device),
            missed: memory.missed(&self.device),
        }
    }

    pub fn note_reader(&self, counters: &Counters) {
        if let Ok(report) = self.report() {
            counters.raise_to(Counter::WaitChunksNs, report.chunk_wait_ns);
            counters.raise_to(Counter::ReadBytes, report.read_bytes);
        }
    }
}
