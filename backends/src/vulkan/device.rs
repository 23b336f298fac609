//! An opened device: its lanes, what it knows of host memory, and what waits to be released.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ash::vk;
use spoc_driver::backend::Verdict;
use spoc_driver::{Capabilities, MemoryInfo, Result, StreamOptions};

use super::core::Core;
use super::counters::{Counters, add};
use super::host::{HostRange, HostRanges};
use super::identity::Physical;
use super::instance::Instance;
use super::memory::Allocation;
use super::pipeline::Pipelines;
use super::queue::{COPY_LANES_MAX, Lane, Waits};
use super::staging::Staging;
use super::stream::{Lanes, Role, State, Stream};
use super::{Options, host, share};
use crate::sync::lock;

/// Launches of a batch, unless the environment says otherwise.
pub(super) const BATCH: usize = 32;

/// An opened device.
pub(super) struct Device {
    pub(super) shared: Arc<Shared>,
    pub(super) capabilities: Capabilities,
}

/// What the device, its streams and its memory share.
pub(super) struct Shared {
    /// Those for copies first.
    lanes: Vec<Lane>,
    copy_lanes: usize,
    next_lane: AtomicUsize,
    pub(super) pipelines: Pipelines,
    default: Arc<Mutex<State>>,
    pub(super) ranges: HostRanges,
    staging: Mutex<Option<Arc<Staging>>>,
    /// Freed while work was pending, with the values that have to be reached first.
    deferred: Mutex<Vec<(Waits, Allocation)>>,
    // Last: everything above is made of it.
    pub(super) core: Arc<Core>,
}

impl Device {
    /// Opens a device and finds out, by doing, what it can.
    pub(super) fn open(
        instance: &Arc<Instance>,
        physical: &Physical,
        options: Options,
        counters: &Arc<Counters>,
    ) -> Result<Self> {
        let core = Core::open(instance, physical, options.lanes, counters)?;
        let shared = Shared::create(core, options)?;
        let capabilities = capabilities(&shared, options);
        tracing::info!(
            device = physical.info.name,
            driver = physical.driver,
            family = physical.family.index,
            queues = shared.core.queues.len(),
            lanes = shared.lanes.len(),
            "a Vulkan device is open"
        );
        Ok(Self { shared, capabilities })
    }

    /// A new stream, dealt to the next lane. The first of them does not share the default stream's lane,
    /// where there are two.
    pub(super) fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        self.shared.core.check("creating a Vulkan stream")?;
        let turn = self.shared.next_lane.fetch_add(1, Ordering::Relaxed);
        let role = if options.non_blocking { Role::NonBlocking } else { Role::Blocking };
        Ok(Stream::new(&self.shared, self.shared.lanes_of(turn), role, Arc::default()))
    }

    pub(super) fn default_stream(&self) -> Stream {
        Stream::new(&self.shared, self.shared.lanes_of(0), Role::Default, Arc::clone(&self.shared.default))
    }
}

/// What is found by doing, and why there is no more. What the port learns later is refused until it is built.
fn capabilities(shared: &Arc<Shared>, options: Options) -> Capabilities {
    let no = Verdict::unavailable;
    let mut found = Capabilities::all(&no("this build's Vulkan adapter does not have it"));
    found.async_copies = Verdict::Available;
    found.copy_many = Verdict::Available;
    found.fill = Verdict::Available;
    found.pageable_async =
        no("host memory that is not pinned goes through a bounded staging buffer, and may wait for it");
    found.pinned_alloc = host::pinned_verdict(shared);
    found.host_register = host::register_verdict(shared, options);
    (found.export_memory, found.import_memory) = share::verdicts(shared);
    found.write_value = no("Vulkan streams signal timelines, not words of memory");
    found.wait_value = no("Vulkan streams wait for timelines, not for words of memory");
    found.adopt_context = no("this build borrows no Vulkan devices");
    found.adopt_stream = no("this build borrows no Vulkan queues");
    found.adopt_memory = no("this build borrows no Vulkan memory");
    found.host_pointer = no("device memory is copied, never mapped");
    found.host_buffer = no("Vulkan buffers have memory of their own");
    found.device_address = no("Vulkan kernels are given buffers, not addresses");
    found.peer_copies = no("Vulkan devices do not see each other's memory");
    found.stream_capture = no("Vulkan streams cannot be recorded into graphs");
    found.launch = match shared.core.physical.compute {
        Some(_) => Verdict::Available,
        None => no("no queue family of the device runs kernels"),
    };
    found.stable_uuid = if shared.core.physical.info.uuid_is_stable {
        Verdict::Available
    } else {
        no("a software device's UUID is made from its driver's version: it changes with an update")
    };
    found
}

impl Shared {
    fn create(core: Arc<Core>, options: Options) -> Result<Arc<Self>> {
        let wanted = options.lanes.unwrap_or(core.queues.len()).clamp(1, COPY_LANES_MAX);
        let batch_max = options.batch.unwrap_or(BATCH);
        let mut shared = Self {
            lanes: Vec::with_capacity(2 * wanted),
            copy_lanes: wanted,
            pipelines: Pipelines::new(&core),
            next_lane: AtomicUsize::new(1),
            default: Arc::default(),
            ranges: RwLock::new(BTreeMap::new()),
            staging: Mutex::new(None),
            deferred: Mutex::new(Vec::new()),
            core,
        };
        // Pushed one by one, so that `drop` frees those that were made if a later one fails.
        let core = Arc::clone(&shared.core);
        for queue in core.queues.iter().cycle().take(wanted) {
            shared.lanes.push(Lane::create(&core, queue, core.physical.family, batch_max)?);
        }
        let apart = match (core.physical.other_family(), core.physical.compute) {
            (Some(family), _) => Some((&core.compute_queues, family)),
            (None, Some(family)) if options.kernels_apart => Some((&core.queues, family)),
            _ => None,
        };
        if let Some((queues, family)) = apart {
            for queue in queues.iter().cycle().take(wanted) {
                shared.lanes.push(Lane::create(&core, queue, family, batch_max)?);
            }
        }
        Ok(Arc::new(shared))
    }

    /// The lanes of the stream that comes at a turn.
    fn lanes_of(&self, turn: usize) -> Lanes {
        let copies = turn % self.copy_lanes;
        let kernels = if self.lanes.len() > self.copy_lanes { self.copy_lanes + copies } else { copies };
        Lanes { copies, kernels }
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// A lane by its index: streams and points hold indices of this device's lanes only.
    pub(super) fn lane(&self, index: usize) -> &Lane {
        &self.lanes[index]
    }

    /// The pinned range that holds these bytes: its buffer, and the offset of the first byte in it.
    pub(super) fn find_host(&self, start: usize, len_bytes: usize) -> Option<(vk::Buffer, u64)> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (&first, range) = ranges.range(..=start).next_back()?;
        let HostRange { len_bytes: known, buffer, offset } = *range;
        let inside = start - first;
        (inside.checked_add(len_bytes)? <= known).then_some((buffer, offset + inside as u64))
    }

    /// The staging buffer, made at its first use.
    pub(super) fn staging(&self) -> Result<Arc<Staging>> {
        let mut slot = lock(&self.staging);
        if let Some(staging) = &*slot {
            return Ok(Arc::clone(staging));
        }
        let staging = Arc::new(Staging::create(&self.core)?);
        *slot = Some(Arc::clone(&staging));
        Ok(staging)
    }

    /// Waits until every lane has done what it was given so far.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.core.check("waiting for a Vulkan device")?;
        self.lanes.iter().try_for_each(|lane| lane.wait(&self.core, lane.promised()))?;
        self.release_reached();
        Ok(())
    }

    fn submitted(&self) -> Waits {
        let mut values = Waits::default();
        for (value, lane) in values.iter_mut().zip(&self.lanes) {
            *value = lane.promised();
        }
        values
    }

    /// Whether all values are reached. A lost device runs nothing any more.
    fn is_past(&self, values: &Waits) -> bool {
        self.lanes.iter().zip(values).all(|(lane, &value)| {
            lane.has_reached(&self.core, value).unwrap_or_else(|error| error.is_device_lost())
        })
    }

    /// Frees memory now if nothing is pending, else once what is pending now has completed.
    pub(super) fn release(&self, allocation: Allocation) {
        self.release_reached();
        let values = self.submitted();
        if self.is_past(&values) {
            drop(allocation);
        } else {
            add(&self.core.counters.releases_deferred, 1);
            lock(&self.deferred).push((values, allocation));
        }
    }

    /// Frees what was put off and may go by now.
    pub(super) fn release_reached(&self) {
        let mut deferred = lock(&self.deferred);
        if !deferred.is_empty() {
            deferred.retain(|(values, _)| !self.is_past(values));
        }
    }

    /// Waits for what keeps deferred releases from going, and lets them go. Says whether there were any.
    pub(super) fn release_all(&self) -> Result<bool> {
        let mut newest = Waits::default();
        let mut is_any = false;
        for (values, _) in &*lock(&self.deferred) {
            is_any = true;
            newest.iter_mut().zip(values).for_each(|(newest, &value)| *newest = value.max(*newest));
        }
        for (lane, &value) in self.lanes.iter().zip(&newest) {
            lane.wait(&self.core, value)?;
        }
        self.release_reached();
        Ok(is_any)
    }

    /// The device's own heaps: how large the largest is, and what is free of it.
    pub(super) fn memory(&self) -> Result<MemoryInfo> {
        self.core.check("asking for a Vulkan device's memory")?;
        self.release_reached();
        Ok(super::memory::info(&self.core))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nothing refers to the device any more, but its queues may still work, and batches were promised to.
        for lane in &self.lanes {
            if let Err(error) = lane.flush(&self.core) {
                tracing::error!(%error, "kernels that were enqueued did not run");
            }
        }
        self.core.settle();
        for lane in &self.lanes {
            lane.destroy(&self.core);
        }
        self.pipelines.destroy(&self.core);
    }
}
