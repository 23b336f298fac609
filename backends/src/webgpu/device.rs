//! An opened device: its queue, its memory's account, and what it can do.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use spoc_driver::backend::{Limits, Verdict};
use spoc_driver::{Capabilities, Error, ErrorKind, Result, StreamOptions};

use super::counters::Counters;
use super::error::ready;
use super::identity::{Physical, WANTED};
use super::memory::Heap;
use super::pipeline::Pipelines;
use super::queue::Queue;
use super::stream::{Newest, Role, Stream};
use super::{BATCH, Options};

/// An opened device.
pub(super) struct Device {
    pub(super) queue: Arc<Queue>,
    pub(super) physical: Physical,
    pub(super) heap: Arc<Heap>,
    pub(super) limits: wgpu::Limits,
    newest: Arc<Newest>,
    default: Arc<AtomicU64>,
}

impl Device {
    /// Opens a device with all that the adapter allows: WebGPU's defaults are for the smallest.
    pub(super) fn open(
        physical: &Physical,
        heap: &Arc<Heap>,
        options: Options,
        counters: &Arc<Counters>,
    ) -> Result<Self> {
        const DOING: &str = "opening a WebGPU device";
        let limits = physical.adapter.limits();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("spoc"),
            required_features: physical.adapter.features() & WANTED,
            required_limits: limits.clone(),
            // Segments are large and few: nothing is gained by blocks that hold many.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let refused = |because: String| Error::new(ErrorKind::Backend, DOING).with("because", because);
        let (device, queue) = ready(physical.adapter.request_device(&descriptor))
            .ok_or_else(|| refused("wgpu does not answer at once".to_owned()))?
            .map_err(|error| refused(error.to_string()))?;
        let pipelines = Pipelines::new(counters);
        let queue = Queue::new(device, queue, options.batch.unwrap_or(BATCH), counters, pipelines);
        let info = physical.adapter.get_info();
        tracing::info!(
            device = physical.info.name,
            driver = format!("{} {}", info.driver, info.driver_info),
            through = %info.backend,
            "a WebGPU device is open"
        );
        Ok(Self {
            queue,
            physical: physical.clone(),
            heap: Arc::clone(heap),
            limits,
            newest: Arc::default(),
            default: Arc::default(),
        })
    }

    pub(super) fn create_stream(&self, options: StreamOptions) -> Result<Stream> {
        self.queue.check("creating a WebGPU stream")?;
        let role = if options.non_blocking { Role::NonBlocking } else { Role::Blocking };
        Ok(Stream::new(&self.queue, &self.newest, role, Arc::default()))
    }

    pub(super) fn default_stream(&self) -> Stream {
        Stream::new(&self.queue, &self.newest, Role::Default, Arc::clone(&self.default))
    }

    pub(super) fn limits(&self) -> Limits {
        let segment_limit = self.segment_limit();
        Limits {
            segment_bytes_max: segment_limit.0,
            binding_bytes_max: self.limits.max_storage_buffer_binding_size,
            copy_granule_bytes: 1,
            address_align_bytes: u64::from(self.limits.min_storage_buffer_offset_alignment.max(4)),
            export_granule_bytes: 1,
            free_waits_for_device: false,
        }
    }

    /// The largest segment, and what sets its size.
    pub(super) fn segment_limit(&self) -> (u64, &'static str) {
        let (buffer, heap) = (self.limits.max_buffer_size, self.physical.info.memory_bytes);
        // Buffers have whole words.
        if buffer <= heap {
            (buffer & !3, "maxBufferSize")
        } else {
            (heap & !3, "the size of the memory heap")
        }
    }

    /// What WebGPU has, and why there is no more.
    pub(super) fn capabilities(&self) -> Capabilities {
        let no = Verdict::unavailable;
        let mut found = Capabilities::all(&no("WebGPU does not have it"));
        found.async_copies = Verdict::Available;
        found.copy_many = Verdict::Available;
        found.fill = Verdict::Available;
        found.launch = Verdict::Available;
        found.pageable_async =
            no("host memory goes through a bounded ring of staging slots, and may wait for it");
        found.pinned_alloc =
            no("WebGPU's mapped memory is the device's while it copies: nobody else can hold it");
        found.host_register = no("WebGPU does not take memory that others allocated");
        found.export_memory = no("WebGPU memory is not shared between processes");
        found.import_memory = no("WebGPU memory is not shared between processes");
        found.reserve = no("WebGPU buffers have no addresses to reserve");
        found.write_value = no("WebGPU's queue signals nothing but the end of its work");
        found.wait_value = no("WebGPU's queue waits for nothing");
        found.adopt_context = no("this build borrows no WebGPU devices");
        found.adopt_stream = no("there is one queue, and it is the device's");
        found.adopt_memory = no("this build borrows no WebGPU buffers");
        found.host_pointer = no("device memory is copied, never mapped");
        found.host_buffer = no("WebGPU buffers have memory of their own");
        found.device_address = no("WebGPU kernels are given buffers, not addresses");
        found.peer_copies = no("WebGPU devices do not see each other's memory");
        found.stream_capture = no("WebGPU's queue cannot be recorded into graphs");
        found.stable_uuid = if self.physical.info.uuid_is_stable {
            Verdict::Available
        } else {
            no("a software device's UUID is made from its driver's version: it changes with an update")
        };
        found
    }
}
