//! The port's operations.

use std::any::Any;
use std::sync::Arc;

use opencl_sys::{
    CL_CONTEXT_DEVICES, CL_DEVICE_PLATFORM, CL_MEM_CONTEXT, CL_MEM_OBJECT_BUFFER, CL_MEM_SIZE, CL_MEM_TYPE,
    CL_PLATFORM_NAME, CL_QUEUE_CONTEXT, CL_QUEUE_DEVICE, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
    CL_QUEUE_PROPERTIES, cl_device_id,
};
use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, Foreign, HostMap,
    Launch, Limits, MemoryInfo, SegmentOptions, StreamOptions, Verdict,
};
use spoc_driver::{Error, ErrorKind, Kernel, Result};

use super::device::{DeviceId, Found, describe};
use super::event::Event;
use super::handle::{Api, Context, Mem, Queue};
use super::launch::{self, Launcher};
use super::memory::{Buffer, Pinned};
use super::stream::{Order, Stream, Streams};
use super::trial::{self, Findings};
use crate::kernel::library::Library;
use crate::size::host_len;

/// The OpenCL backend.
pub(super) struct OpenCl {
    api: Arc<Api>,
    found: Vec<Found>,
    library: Library,
}

/// An opened device.
pub(super) struct Device {
    streams: Arc<Streams>,
    /// Touches what is allocated, and maps what is pinned: never behind a stream's work.
    service: Arc<Queue>,
    found: Found,
    findings: Findings,
    launcher: Launcher,
    context: Context,
    // Last: what was lent goes after our reference to it.
    _keep_alive: KeepAlive,
}

type KeepAlive = Option<Box<dyn Any + Send + Sync>>;

impl OpenCl {
    pub(super) fn new(api: Arc<Api>, found: Vec<Found>) -> Self {
        Self { api, found, library: Library::default() }
    }

    fn set_up(&self, context: Context, found: Found, keep_alive: KeepAlive) -> Result<Device> {
        let service = Arc::new(Queue::create(&context, found.id.0)?);
        let findings = trial::run(&context, &service, &found.account)?;
        let streams = Streams::new(Queue::create(&context, found.id.0)?);
        let launcher = Launcher::new(&self.api, found.id, &found.info.name)?;
        tracing::debug!(device = found.info.name, api = ?self.api.objects(), "an OpenCL device is open");
        Ok(Device { streams, service, found, findings, launcher, context, _keep_alive: keep_alive })
    }

    /// What is known of a device of somebody's context.
    fn recognise(&self, id: cl_device_id) -> Result<Found> {
        if let Some(found) = self.found.iter().find(|found| found.id == DeviceId(id)) {
            return Ok(found.clone());
        }
        // A part of a device, or one of a platform that the loader did not list.
        let platform = self.api.of_device(id, CL_DEVICE_PLATFORM)?.pointer();
        let platform = self.api.of_platform(platform, CL_PLATFORM_NAME)?.text();
        let mut found = describe(&self.api, id, &platform)?
            .map_err(|reason| invalid("adopting an OpenCL context", &reason))?;
        found.info.index = u32::try_from(self.found.len()).unwrap_or(u32::MAX);
        Ok(found)
    }
}

fn invalid(doing: &'static str, because: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, doing).with("because", because)
}

/// A word of [`Foreign`] as a pointer of the API.
fn pointer(word: u64, doing: &'static str) -> Result<*mut std::ffi::c_void> {
    match usize::try_from(word) {
        Ok(address) if address != 0 => Ok(std::ptr::with_exposed_provenance_mut(address)),
        _ => Err(invalid(doing, "the first word is no pointer")),
    }
}

/// # Safety
/// As [`Queue::write`].
unsafe fn copy_in(queue: &Queue, op: &CopyOp<'_, Buffer>) -> Result<()> {
    let (mem, offset) = op.dst.at(op.dst_offset);
    // SAFETY: the caller's word.
    unsafe { queue.write(op.src, op.len_bytes, mem, offset) }
}

fn only_device(context: &Context) -> Result<cl_device_id> {
    match *context.property(CL_CONTEXT_DEVICES)?.pointers().as_slice() {
        [only] => Ok(only),
        ref several => Err(invalid("adopting an OpenCL context", "it has several devices: name one of them")
            .with("devices", several.len())),
    }
}

impl Backend for OpenCl {
    const KIND: BackendKind = BackendKind::OpenCl;
    type Device = Device;
    type Stream = Stream;
    type Event = Event;
    type Buffer = Buffer;
    type HostMemory = Pinned;

    fn devices(&self) -> Vec<DeviceInfo> {
        self.found.iter().map(|found| found.info.clone()).collect()
    }

    fn open(&self, index: u32) -> Result<Device> {
        let found = self.found.iter().find(|found| found.info.index == index).ok_or_else(|| {
            Error::new(ErrorKind::NoSuchDevice, "opening an OpenCL device")
                .with("index", index)
                .with("devices", self.found.len())
        })?;
        self.set_up(Context::create(&self.api, found.id.0)?, found.clone(), None)
    }

    unsafe fn adopt_device(&self, foreign: Foreign) -> Result<Device> {
        const DOING: &str = "adopting an OpenCL context";
        let Foreign { words: [context, device, ..], keep_alive } = foreign;
        // SAFETY: the caller's word: a live context.
        let context = unsafe { Context::retained(&self.api, pointer(context, DOING)?) }?;
        let id = if device == 0 { only_device(&context)? } else { pointer(device, DOING)? };
        if !context.property(CL_CONTEXT_DEVICES)?.pointers().contains(&id) {
            return Err(invalid(DOING, "the device is none of the context's"));
        }
        let found = self.recognise(id)?;
        self.set_up(context, found, keep_alive)
    }

    fn describe(&self, device: &Device) -> DeviceInfo {
        device.found.info.clone()
    }

    fn driver_name(&self, device: &Device) -> String {
        device.found.driver.clone()
    }

    fn capabilities(&self, device: &Device) -> Capabilities {
        const NO_WORDS: Verdict = Verdict::unavailable("OpenCL streams cannot write or wait for words");
        const NO_SHARING: Verdict =
            Verdict::unavailable("the core API cannot lend memory to another process");
        let mut capabilities = Capabilities::all(&Verdict::Available);
        capabilities.async_copies = device.findings.async_copies.clone();
        if !device.found.is_cpu {
            capabilities.pageable_async =
                Verdict::unknown("the API does not say whether copies from pageable memory block the caller");
        }
        capabilities.pinned_alloc = device.findings.pinned_alloc.clone();
        capabilities.host_register = Verdict::unavailable(
            "OpenCL has no call that registers memory, and a buffer over it may copy behind our back",
        );
        capabilities.reserve = Verdict::unavailable("OpenCL buffers have no addresses to reserve");
        capabilities.export_memory = NO_SHARING;
        capabilities.import_memory = NO_SHARING;
        capabilities.write_value = NO_WORDS;
        capabilities.wait_value = NO_WORDS;
        capabilities.host_pointer =
            Verdict::unavailable("OpenCL memory may be addressed by the host only while it is mapped");
        if !device.found.is_cpu {
            capabilities.host_buffer =
                Verdict::unavailable("host memory is a buffer in place on CPU devices alone");
        }
        capabilities.device_address = Verdict::unavailable("OpenCL buffers have no address");
        capabilities.peer_copies = Verdict::unavailable("a context is of one device");
        capabilities.stream_capture = Verdict::unavailable("OpenCL queues cannot be recorded");
        if !device.found.info.uuid_is_stable {
            capabilities.stable_uuid =
                Verdict::unavailable("the device has none: it was derived from names and position");
        }
        capabilities
    }

    fn limits(&self, device: &Device) -> Limits {
        device.found.limits()
    }

    fn memory(&self, device: &Device) -> Result<MemoryInfo> {
        Ok(device.found.account.memory())
    }

    fn synchronize_device(&self, device: &Device) -> Result<()> {
        device.streams.synchronize()
    }

    fn create_stream(&self, device: &Device, options: StreamOptions) -> Result<Stream> {
        let queue = Queue::create(&device.context, device.found.id.0)?;
        let order = if options.non_blocking { Order::NonBlocking } else { Order::Blocking };
        Ok(device.streams.add(queue, order, None))
    }

    fn default_stream(&self, device: &Device) -> Result<Stream> {
        Ok(device.streams.default_stream())
    }

    unsafe fn adopt_stream(&self, device: &Device, foreign: Foreign) -> Result<Stream> {
        const DOING: &str = "adopting an OpenCL queue";
        let Foreign { words: [queue, is_non_blocking, ..], keep_alive } = foreign;
        // SAFETY: the caller's word: a live queue.
        let queue = unsafe { Queue::retained(&self.api, pointer(queue, DOING)?) }?;
        let is_ours = queue.property(CL_QUEUE_CONTEXT)?.pointer() == device.context.raw()
            && queue.property(CL_QUEUE_DEVICE)?.pointer() == device.found.id.0;
        if !is_ours {
            return Err(Error::new(ErrorKind::WrongDevice, DOING));
        }
        if queue.property(CL_QUEUE_PROPERTIES)?.number() & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0 {
            return Err(invalid(DOING, "the queue is out of order, and streams are ordered"));
        }
        let order = if is_non_blocking == 1 { Order::NonBlocking } else { Order::Shared };
        Ok(device.streams.add(queue, order, keep_alive))
    }

    fn synchronize_stream(&self, _: &Device, stream: &Stream) -> Result<()> {
        stream.synchronize()
    }

    fn query_stream(&self, _: &Device, stream: &Stream) -> Result<bool> {
        stream.is_idle()
    }

    fn capture_state(&self, _: &Device, _: &Stream) -> Result<CaptureState> {
        Ok(CaptureState::None)
    }

    fn create_event(&self, _: &Device) -> Result<Event> {
        Ok(Event::default())
    }

    fn record_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        event.record(stream)
    }

    fn wait_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        stream.wait_for(&event.mark()?)
    }

    fn query_event(&self, _: &Device, event: &Event) -> Result<bool> {
        event.query()
    }

    fn synchronize_event(&self, _: &Device, event: &Event) -> Result<()> {
        event.mark()?.wait()
    }

    fn allocate(&self, device: &Device, len_bytes: u64, _: SegmentOptions) -> Result<Buffer> {
        Buffer::allocate(&device.context, &device.service, &device.found.account, host_len(len_bytes)?)
    }

    unsafe fn adopt_buffer(&self, device: &Device, foreign: Foreign, len_bytes: u64) -> Result<Buffer> {
        const DOING: &str = "adopting an OpenCL buffer";
        let Foreign { words: [mem, base, ..], keep_alive } = foreign;
        // SAFETY: the caller's word: a live memory object.
        let mem = unsafe { Mem::retained(&self.api, pointer(mem, DOING)?) }?;
        if mem.property(CL_MEM_CONTEXT)?.pointer() != device.context.raw() {
            return Err(Error::new(ErrorKind::WrongDevice, DOING));
        }
        if mem.property(CL_MEM_TYPE)?.number() != u64::from(CL_MEM_OBJECT_BUFFER) {
            return Err(invalid(DOING, "the memory object is no buffer"));
        }
        let size_bytes = mem.property(CL_MEM_SIZE)?.number();
        if base.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            let kind = ErrorKind::OutOfBounds { offset_bytes: base, len_bytes, size_bytes };
            return Err(Error::new(kind, DOING));
        }
        Ok(Buffer::lent(mem, host_len(base)?, keep_alive))
    }

    fn host_buffer_align_bytes(&self, device: &Device) -> u64 {
        device.found.align_bytes
    }

    unsafe fn host_buffer(&self, device: &Device, ptr: *mut u8, len_bytes: u64) -> Result<Buffer> {
        let len = host_len(len_bytes)?;
        // SAFETY: the driver keeps the memory mapped for longer than the buffer.
        unsafe { Buffer::over_host(&device.context, &device.found.account, ptr, len) }
    }

    fn map_host_buffer(&self, device: &Device, buffer: &Buffer, map: HostMap) -> Result<()> {
        buffer.hand_over(&device.service, map)
    }

    fn alloc_pinned(&self, device: &Device, len_bytes: usize) -> Result<Pinned> {
        Pinned::allocate(&device.context, &device.service, &device.found.account, len_bytes)
    }

    fn pinned_pointer(&self, _: &Device, memory: &Pinned) -> *mut u8 {
        memory.as_ptr()
    }

    unsafe fn copy_to_device(&self, _: &Device, stream: &Stream, op: CopyOp<'_, Buffer>) -> Result<()> {
        // SAFETY: the driver checked the ranges, and keeps both sides until the copy has run.
        stream.submit(|queue| unsafe { copy_in(queue, &op) })
    }

    unsafe fn copy_to_host(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        let (mem, offset) = src.0.at(src.1);
        // SAFETY: as above.
        stream.submit(|queue| unsafe { queue.read(mem, offset, dst, len_bytes) })
    }

    unsafe fn copy_on_device(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: (&Buffer, u64),
        len_bytes: u64,
    ) -> Result<()> {
        let (src, dst, len) = (src.0.at(src.1), dst.0.at(dst.1), host_len(len_bytes)?);
        // SAFETY: as above; the ranges do not overlap.
        stream.submit(|queue| unsafe { queue.copy(src, dst, len) })
    }

    unsafe fn copy_many(&self, _: &Device, stream: &Stream, batch: &CopyBatch<'_, Buffer>) -> Result<()> {
        // The API has no command for many ranges: one each, submitted together.
        // SAFETY: as above, for each of them.
        stream.submit(|queue| batch.iter().try_for_each(|op| unsafe { copy_in(queue, &op) }))
    }

    unsafe fn fill(
        &self,
        _: &Device,
        stream: &Stream,
        dst: (&Buffer, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        let ((mem, offset), len) = (dst.0.at(dst.1), host_len(len_bytes)?);
        // SAFETY: as above.
        stream.submit(|queue| unsafe { queue.fill(mem, offset, len, value) })
    }

    fn check_kernel(&self, _: &Device, kernel: &Kernel) -> Result<()> {
        self.library.check(kernel, Self::KIND, launch::OWN)
    }

    unsafe fn launch(&self, device: &Device, stream: &Stream, launch: &Launch<'_, Buffer>) -> Result<()> {
        // SAFETY: the driver keeps the buffers until the launch has run.
        unsafe { device.launcher.launch(&device.context, &self.library, stream, launch) }
    }
}
