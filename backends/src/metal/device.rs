//! An opened device: its lanes, its pending table, and what it can do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_driver::backend::{Limits, Verdict};
use spoc_driver::{Capabilities, MemoryInfo, Result, StreamOptions};

use super::api::{Api, Physical};
use super::lane::Lane;
use super::pending::{MemoryId, Pending};
use super::pipeline::Pipelines;
use super::stream::{Lanes, Role, Stream};
use super::{BATCH, Options};
use crate::claims::Claims;

/// Vectors of kernels begin at multiples of this in their memory: enough for every type that they have.
pub(super) const VECTOR_ALIGN_BYTES: u64 = 16;

/// An opened device.
pub(super) struct Device<A: Api>(pub(super) Arc<Shared<A>>);

/// What the device, its streams and its memory share.
pub(super) struct Shared<A: Api> {
    pub(super) api: Arc<A>,
    pub(super) device: A::Device,
    pub(super) physical: Physical,
    pub(super) lanes: Arc<Lanes<A>>,
    pub(super) pending: Pending<A>,
    pub(super) pipelines: Pipelines<A>,
    /// Who of the host's threads is working on which bytes.
    pub(super) claims: Claims,
    batch_max: usize,
    next_id: AtomicU64,
}

impl<A: Api> Device<A> {
    pub(super) fn open(api: &Arc<A>, physical: &Physical, options: Options) -> Result<Self> {
        let device = api.open(physical.info.index)?;
        let batch_max = options.batch.unwrap_or(BATCH);
        let lanes = Lanes::new(Lane::new(api, &device, batch_max)?);
        tracing::info!(device = physical.info.name, "a Metal device is open");
        Ok(Self(Arc::new(Shared {
            api: Arc::clone(api),
            device,
            physical: physical.clone(),
            lanes,
            pending: Pending::default(),
            pipelines: Pipelines::default(),
            claims: Claims::default(),
            batch_max,
            next_id: AtomicU64::new(0),
        })))
    }

    pub(super) fn create_stream(&self, options: StreamOptions) -> Result<Stream<A>> {
        let lane = Lane::new(&self.0.api, &self.0.device, self.0.batch_max)?;
        let role = if options.non_blocking { Role::NonBlocking } else { Role::Blocking };
        Ok(self.0.lanes.add(lane, role))
    }

    pub(super) fn limits(&self) -> Limits {
        let max = self.0.physical.buffer_bytes_max & !3;
        Limits {
            segment_bytes_max: max,
            binding_bytes_max: max,
            copy_granule_bytes: 1,
            address_align_bytes: VECTOR_ALIGN_BYTES,
            export_granule_bytes: 1,
            free_waits_for_device: false,
        }
    }

    /// What Metal has, and why there is no more.
    pub(super) fn capabilities(&self) -> Capabilities {
        let no = Verdict::unavailable;
        let mut found = Capabilities::all(&no("this build's Metal adapter does not have it"));
        for available in [
            &mut found.pinned_alloc,
            &mut found.host_register,
            &mut found.copy_many,
            &mut found.fill,
            &mut found.host_pointer,
            &mut found.launch,
        ] {
            *available = Verdict::Available;
        }
        found.async_copies =
            no("the memory is shared: the processor copies, and copies are complete on return");
        found.pageable_async =
            no("the memory is shared: the processor copies, and copies are complete on return");
        found.export_memory = no("Metal lends memory by Mach ports, not by descriptors");
        found.import_memory = no("Metal lends memory by Mach ports, not by descriptors");
        found.reserve = no("Metal buffers have no addresses to reserve");
        found.write_value = no("Metal's queues signal events, not words of memory");
        found.wait_value = no("Metal's queues wait for events, not for words of memory");
        found.adopt_context = no("this build borrows no Metal devices");
        found.adopt_stream = no("this build borrows no Metal queues");
        found.adopt_memory = no("this build borrows no Metal buffers");
        found.host_buffer = no("Metal buffers have memory of their own");
        found.device_address = no("Metal kernels are given buffers, not addresses");
        found.peer_copies = no("Metal devices do not see each other's memory");
        found.stream_capture = no("Metal's queues cannot be recorded into graphs");
        if self.0.physical.info.uuid_is_stable {
            found.stable_uuid = Verdict::Available;
        } else {
            found.stable_uuid = no("the device's registry number changes with a restart");
        }
        found
    }
}

impl<A: Api> Shared<A> {
    pub(super) fn next_id(&self) -> MemoryId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn memory(&self) -> MemoryInfo {
        let total_bytes = self.physical.info.memory_bytes;
        let taken = self.api.allocated_bytes(&self.device);
        MemoryInfo { free_bytes: total_bytes.saturating_sub(taken), total_bytes }
    }
}
