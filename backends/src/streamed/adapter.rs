//! The port's operations.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, Exported, Foreign,
    Launch, Limits, MemoryInfo, SegmentOptions, StreamOptions, Verdict,
};
use spoc_driver::{Error, ErrorKind, Kernel, Result};

use super::context::Context;
use super::copy::{self, BatchRoom};
use super::counters::{CounterReader, Counters};
use super::device::{Device, Shared};
use super::error::Api;
use super::event::Event;
use super::host::{HostMemory, Registrations};
use super::launch::Kernels;
use super::memory::Buffer;
use super::module::Modules;
use super::stream::Stream;
use super::survey::Found;
use super::trial::{self, Findings};
use super::{launch, share};
use crate::size::host_len;
use crate::sync::lock;

/// Which family an adapter is of.
pub(crate) trait Family: Send + Sync + 'static {
    const KIND: BackendKind;
}

/// A backend.
pub(crate) struct Adapter<F> {
    family: PhantomData<F>,
    api: Arc<Api>,
    found: Vec<Found>,
    registrations: Arc<Registrations>,
    /// Primary contexts that were used, and what was found of their devices: kept for as long as the backend,
    /// because making a context takes a good part of a second.
    opened: Mutex<Vec<Opened>>,
    room: BatchRoom,
    counters: Arc<Counters>,
    kernels: Kernels,
}

struct Opened {
    context: Arc<Context>,
    findings: Findings,
    modules: Arc<Modules>,
}

impl<F: Family> Adapter<F> {
    pub(crate) fn new(api: Arc<Api>, found: Vec<Found>) -> Self {
        let (opened, room, counters, kernels) = Default::default();
        let registrations = Arc::new(Registrations::new(api.flavour.traits().cuts_at_registrations));
        Self { family: PhantomData, api, found, registrations, opened, room, counters, kernels }
    }

    pub(crate) fn counters(&self) -> CounterReader {
        CounterReader(Arc::clone(&self.counters))
    }

    fn set_up(&self, context: Arc<Context>, found: &Found, modules: Arc<Modules>) -> Result<Arc<Shared>> {
        let (registrations, counters) = (Arc::clone(&self.registrations), Arc::clone(&self.counters));
        Shared::new(context, found.clone(), registrations, counters, modules)
    }
}

/// A word of [`Foreign`] as a pointer of the API.
fn pointer<T>(word: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(usize::try_from(word).unwrap_or(0))
}

impl<F: Family> Backend for Adapter<F> {
    const KIND: BackendKind = F::KIND;
    type Device = Device;
    type Stream = Stream;
    type Event = Event;
    type Buffer = Buffer;
    type HostMemory = HostMemory;

    fn devices(&self) -> Vec<DeviceInfo> {
        self.found.iter().map(|found| found.info.clone()).collect()
    }

    fn open(&self, index: u32) -> Result<Device> {
        let found = self.found.iter().find(|found| found.info.index == index).ok_or_else(|| {
            Error::new(ErrorKind::NoSuchDevice, "opening a device")
                .with("index", index)
                .with("devices", self.found.len())
        })?;
        // Held while a context is made, so that a device is tried once.
        let mut opened = lock(&self.opened);
        if let Some(known) = opened.iter().find(|known| known.context.device == found.device) {
            let shared = self.set_up(Arc::clone(&known.context), found, Arc::clone(&known.modules))?;
            return Ok(Device { shared, findings: known.findings.clone() });
        }
        let context = Context::primary(&self.api, found.device)?;
        let modules = Arc::new(Modules::default());
        let shared = self.set_up(Arc::clone(&context), found, Arc::clone(&modules))?;
        let findings = trial::run(&shared);
        tracing::debug!(
            backend = %F::KIND,
            device = found.info.name,
            version = self.api.version,
            "a device is open"
        );
        opened.push(Opened { context, findings: findings.clone(), modules });
        Ok(Device { shared, findings })
    }

    unsafe fn adopt_device(&self, foreign: Foreign) -> Result<Device> {
        const DOING: &str = "adopting a context";
        let Foreign { words: [context, ..], keep_alive } = foreign;
        if !self.api.flavour.traits().adopts_contexts {
            return Err(Error::unsupported(F::KIND, "adopt_context"));
        }
        if context == 0 {
            return Err(
                Error::new(ErrorKind::InvalidArgument, DOING).with("because", "the first word is no context")
            );
        }
        // SAFETY: the caller's word: a live context.
        let context = unsafe { Context::lent(&self.api, pointer(context), keep_alive) }?;
        let found = self.found.iter().find(|found| found.device == context.device);
        let found = found
            .ok_or_else(|| Error::new(ErrorKind::NoSuchDevice, DOING).with("ordinal", context.device))?;
        let shared = self.set_up(context, found, Arc::default())?;
        let findings = trial::run(&shared);
        Ok(Device { shared, findings })
    }

    fn describe(&self, device: &Device) -> DeviceInfo {
        device.shared.found.info.clone()
    }

    fn driver_name(&self, _: &Device) -> String {
        self.api.flavour.driver_name(self.api.version)
    }

    fn capabilities(&self, device: &Device) -> Capabilities {
        let findings = device.findings.clone();
        let mut capabilities = Capabilities::all(&Verdict::Available);
        capabilities.pageable_async = Verdict::unavailable(
            "copies from and to memory that is not pinned hold the caller until the stream comes to them",
        );
        capabilities.pinned_alloc = findings.pinned_alloc;
        capabilities.host_register = findings.host_register;
        capabilities.write_value = findings.write_value;
        capabilities.wait_value = findings.wait_value;
        capabilities.export_memory = findings.export_memory;
        capabilities.import_memory = findings.import_memory;
        if !self.api.flavour.traits().adopts_contexts {
            capabilities.adopt_context =
                Verdict::unavailable("a device has one context, which all libraries of a process share");
        }
        if !device.shared.found.facts.virtual_memory {
            capabilities.reserve = Verdict::unavailable("the device has no virtual memory management");
        }
        capabilities.host_pointer =
            Verdict::unavailable("device memory is not addressed by the host: copies are faster");
        capabilities.host_buffer =
            Verdict::unavailable("host memory is a buffer in place on CPU devices alone");
        capabilities.peer_copies = Verdict::unavailable("this build copies through the host between devices");
        capabilities
    }

    fn limits(&self, device: &Device) -> Limits {
        let total = device.shared.found.info.memory_bytes;
        Limits {
            segment_bytes_max: total,
            binding_bytes_max: total,
            copy_granule_bytes: 1,
            // What the vendor's manual promises of allocations.
            address_align_bytes: 256,
            export_granule_bytes: device.shared.granule,
            free_waits_for_device: true,
        }
    }

    fn segment_limit_name(&self, _: &Device) -> &'static str {
        "totalGlobalMem"
    }

    fn memory(&self, device: &Device) -> Result<MemoryInfo> {
        device.shared.memory()
    }

    fn synchronize_device(&self, device: &Device) -> Result<()> {
        device.shared.synchronize()
    }

    fn create_stream(&self, device: &Device, options: StreamOptions) -> Result<Stream> {
        Stream::create(&device.shared, options)
    }

    fn default_stream(&self, device: &Device) -> Result<Stream> {
        Stream::default_of(&device.shared)
    }

    unsafe fn adopt_stream(&self, device: &Device, foreign: Foreign) -> Result<Stream> {
        let Foreign { words: [stream, ..], keep_alive } = foreign;
        // SAFETY: the caller's word: a live stream.
        unsafe { Stream::lent(&device.shared, pointer(stream), keep_alive) }
    }

    fn synchronize_stream(&self, _: &Device, stream: &Stream) -> Result<()> {
        stream.lane.synchronize()
    }

    fn query_stream(&self, _: &Device, stream: &Stream) -> Result<bool> {
        stream.lane.is_idle()
    }

    fn capture_state(&self, _: &Device, stream: &Stream) -> Result<CaptureState> {
        stream.lane.capture_state()
    }

    fn create_event(&self, device: &Device) -> Result<Event> {
        Event::create(&device.shared.context)
    }

    fn record_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        event.record(&stream.lane)
    }

    fn wait_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        event.hold(&stream.lane)
    }

    fn query_event(&self, _: &Device, event: &Event) -> Result<bool> {
        event.query()
    }

    fn synchronize_event(&self, _: &Device, event: &Event) -> Result<()> {
        event.synchronize()
    }

    fn allocate(&self, device: &Device, len_bytes: u64, options: SegmentOptions) -> Result<Buffer> {
        if options.exportable {
            Buffer::allocate_to_lend(&device.shared, len_bytes)
        } else {
            Buffer::allocate(&device.shared, len_bytes)
        }
    }

    fn address(&self, _: &Device, buffer: &Buffer) -> Option<u64> {
        Some(buffer.at(0))
    }

    unsafe fn adopt_buffer(&self, device: &Device, foreign: Foreign, len_bytes: u64) -> Result<Buffer> {
        let Foreign { words: [address, ..], keep_alive } = foreign;
        // SAFETY: the caller's word: so many live bytes.
        unsafe { Buffer::lent(&device.shared, address, len_bytes, keep_alive) }
    }

    fn export(&self, device: &Device, buffer: &Buffer) -> Result<Exported> {
        share::export(&device.shared, buffer)
    }

    fn import(&self, device: &Device, exported: Exported) -> Result<Buffer> {
        // The descriptor is closed when `exported` is dropped, in any case: the API leaves it open.
        share::import(&device.shared, &exported)
    }

    fn reserve(&self, device: &Device, len_bytes: u64) -> Result<Buffer> {
        Buffer::reserve(&device.shared, len_bytes)
    }

    fn commit(
        &self,
        device: &Device,
        reservation: &Buffer,
        part: (u64, u64),
        options: SegmentOptions,
    ) -> Result<Buffer> {
        reservation.commit(&device.shared, part.0, part.1, options.exportable)
    }

    fn alloc_pinned(&self, device: &Device, len_bytes: usize) -> Result<HostMemory> {
        HostMemory::allocate(&device.shared, len_bytes)
    }

    fn pinned_pointer(&self, _: &Device, memory: &HostMemory) -> *mut u8 {
        memory.as_ptr()
    }

    unsafe fn register_host(&self, device: &Device, ptr: *mut u8, len_bytes: usize) -> Result<HostMemory> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { HostMemory::register(&device.shared, ptr, len_bytes) }
    }

    unsafe fn copy_to_device(&self, device: &Device, stream: &Stream, op: CopyOp<'_, Buffer>) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::to_device(&device.shared, &stream.lane, &op) }
    }

    unsafe fn copy_to_host(
        &self,
        device: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::to_host(&device.shared, &stream.lane, src, dst, len_bytes) }
    }

    unsafe fn copy_on_device(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: (&Buffer, u64),
        len_bytes: u64,
    ) -> Result<()> {
        copy::on_device(&stream.lane, src.0.at(src.1), dst.0.at(dst.1), host_len(len_bytes)?)
    }

    unsafe fn copy_many(
        &self,
        device: &Device,
        stream: &Stream,
        batch: &CopyBatch<'_, Buffer>,
    ) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::many(&device.shared, &self.room, &stream.lane, batch) }
    }

    unsafe fn fill(
        &self,
        _: &Device,
        stream: &Stream,
        dst: (&Buffer, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        copy::fill(&stream.lane, dst.0.at(dst.1), host_len(len_bytes)?, value)
    }

    fn check_kernel(&self, device: &Device, kernel: &Kernel) -> Result<()> {
        launch::check(&device.shared, &self.kernels, kernel)
    }

    unsafe fn launch(&self, device: &Device, stream: &Stream, launch: &Launch<'_, Buffer>) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { launch::run(&device.shared, &self.kernels, &stream.lane, launch) }
    }

    unsafe fn write_value(&self, _: &Device, stream: &Stream, dst: (&Buffer, u64), value: u64) -> Result<()> {
        // The driver asked for the capability before.
        let write = self.api.library.write_value;
        let write = write.ok_or_else(|| Error::unsupported(F::KIND, "write_value"))?;
        stream.lane.enqueue("writing a word on a stream", |raw| {
            // SAFETY: the driver checked place and alignment, and keeps the buffer.
            unsafe { write(raw, dst.0.at(dst.1), value, 0) }
        })
    }

    unsafe fn wait_value(&self, _: &Device, stream: &Stream, src: (&Buffer, u64), value: u64) -> Result<()> {
        stream.lane.wait_for_word(|raw| {
            // SAFETY: as above.
            unsafe { self.api.flavour.wait_value(raw, src.0.at(src.1), value) }
        })
    }
}
