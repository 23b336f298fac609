//! The one place where adapters' types are hidden, and where a stranger's handle is noticed.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::launch::{Launch, LaunchArgument};
use super::port::{Backend, CopyBatch, CopyOp, Foreign};
use super::types::{
    BackendId, Capabilities, CaptureState, DeviceInfo, Exported, HostMap, Limits, MemoryInfo, SegmentOptions,
    StreamOptions, Verdict,
};
use crate::error::{Error, ErrorKind, Result};
use crate::launch::Kernel;

/// A backend that was found, its types hidden.
pub type Probed = Arc<dyn DynBackend>;

/// A device, stream, event, buffer or pinned memory of one opening of one backend. Boxed once.
pub struct Handle {
    owner: BackendId,
    inner: Box<dyn Any + Send + Sync>,
}

impl Handle {
    /// Who made it.
    #[must_use]
    pub fn owner(&self) -> BackendId {
        self.owner
    }

    /// The adapter's own object, for adapters' test controls.
    #[must_use]
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        self.inner.downcast_ref()
    }
}

/// [`CopyOp`] with its buffer's type hidden.
pub type DynCopyOp<'a> = CopyOp<'a, Handle>;

/// Generations only have to differ; nothing else is kept in a static.
static GENERATION: AtomicU64 = AtomicU64::new(1);

struct Erased<B> {
    backend: B,
    id: BackendId,
}

/// Hides an adapter's types. Every call gives a new generation: handles do not mix between them.
pub fn erase<B: Backend>(backend: B) -> Probed {
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
    Arc::new(Erased { backend, id: BackendId { kind: B::KIND, generation } })
}

impl<B: Backend> Erased<B> {
    fn hide<T: Send + Sync + 'static>(&self, inner: T) -> Handle {
        Handle { owner: self.id, inner: Box::new(inner) }
    }

    fn show<'h, T: 'static>(&self, handle: &'h Handle) -> Result<&'h T> {
        let typed = if handle.owner == self.id { handle.inner.downcast_ref() } else { None };
        typed.ok_or_else(|| {
            let kind = ErrorKind::ForeignHandle { expected: self.id, found: handle.owner };
            Error::new(kind, "using a handle")
        })
    }

    fn device<'h>(&self, handle: &'h Handle) -> Result<&'h B::Device> {
        self.show(handle)
    }

    fn stream<'h>(&self, handle: &'h Handle) -> Result<&'h B::Stream> {
        self.show(handle)
    }

    fn event<'h>(&self, handle: &'h Handle) -> Result<&'h B::Event> {
        self.show(handle)
    }

    fn buffer<'h>(&self, handle: &'h Handle) -> Result<&'h B::Buffer> {
        self.show(handle)
    }

    fn argument<'h>(&self, argument: &LaunchArgument<'h, Handle>) -> Result<LaunchArgument<'h, B::Buffer>> {
        Ok(match *argument {
            LaunchArgument::Memory { buffer, offset_bytes, len_bytes, kind, access } => {
                let buffer = self.buffer(buffer)?;
                LaunchArgument::Memory { buffer, offset_bytes, len_bytes, kind, access }
            }
            LaunchArgument::Scalar(scalar) => LaunchArgument::Scalar(scalar),
        })
    }
}

/// [`Backend`] with the types hidden: the same operations on [`Handle`]s. A handle of another opening, or
/// of another type, is [`ErrorKind::ForeignHandle`]. The unsafe methods ask for what their typed twins ask.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait DynBackend: Send + Sync + 'static {
    fn id(&self) -> BackendId;
    fn devices(&self) -> Vec<DeviceInfo>;
    fn open(&self, index: u32) -> Result<Handle>;
    unsafe fn adopt_device(&self, foreign: Foreign) -> Result<Handle>;
    fn describe(&self, device: &Handle) -> Result<DeviceInfo>;
    fn driver_name(&self, device: &Handle) -> Result<String>;
    fn capabilities(&self, device: &Handle) -> Result<Capabilities>;
    fn limits(&self, device: &Handle) -> Result<Limits>;
    fn segment_limit_name(&self, device: &Handle) -> Result<&'static str>;
    fn binding_limit_name(&self, device: &Handle) -> Result<&'static str>;
    fn memory(&self, device: &Handle) -> Result<MemoryInfo>;
    fn synchronize_device(&self, device: &Handle) -> Result<()>;
    fn create_stream(&self, device: &Handle, options: StreamOptions) -> Result<Handle>;
    fn default_stream(&self, device: &Handle) -> Result<Handle>;
    unsafe fn adopt_stream(&self, device: &Handle, foreign: Foreign) -> Result<Handle>;
    fn synchronize_stream(&self, device: &Handle, stream: &Handle) -> Result<()>;
    fn query_stream(&self, device: &Handle, stream: &Handle) -> Result<bool>;
    fn capture_state(&self, device: &Handle, stream: &Handle) -> Result<CaptureState>;
    fn create_event(&self, device: &Handle) -> Result<Handle>;
    fn record_event(&self, device: &Handle, stream: &Handle, event: &Handle) -> Result<()>;
    fn wait_event(&self, device: &Handle, stream: &Handle, event: &Handle) -> Result<()>;
    fn query_event(&self, device: &Handle, event: &Handle) -> Result<bool>;
    fn synchronize_event(&self, device: &Handle, event: &Handle) -> Result<()>;
    fn allocate(&self, device: &Handle, len_bytes: u64, options: SegmentOptions) -> Result<Handle>;
    fn address(&self, device: &Handle, buffer: &Handle) -> Result<Option<u64>>;
    fn host_pointer(&self, device: &Handle, buffer: &Handle) -> Result<Option<*mut u8>>;
    unsafe fn adopt_buffer(&self, device: &Handle, foreign: Foreign, len_bytes: u64) -> Result<Handle>;
    fn host_buffer_align_bytes(&self, device: &Handle) -> Result<u64>;
    unsafe fn host_buffer(&self, device: &Handle, ptr: *mut u8, len_bytes: u64) -> Result<Handle>;
    fn map_host_buffer(&self, device: &Handle, buffer: &Handle, map: HostMap) -> Result<()>;
    fn export(&self, device: &Handle, buffer: &Handle) -> Result<Exported>;
    fn import(&self, device: &Handle, exported: Exported) -> Result<Handle>;
    fn reserve(&self, device: &Handle, len_bytes: u64) -> Result<Handle>;
    fn commit(
        &self,
        device: &Handle,
        reservation: &Handle,
        part: (u64, u64),
        options: SegmentOptions,
    ) -> Result<Handle>;
    fn alloc_pinned(&self, device: &Handle, len_bytes: usize) -> Result<Handle>;
    fn pinned_pointer(&self, device: &Handle, memory: &Handle) -> Result<*mut u8>;
    unsafe fn register_host(&self, device: &Handle, ptr: *mut u8, len_bytes: usize) -> Result<Handle>;
    unsafe fn copy_to_device(&self, device: &Handle, stream: &Handle, op: DynCopyOp<'_>) -> Result<()>;
    unsafe fn copy_to_host(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()>;
    unsafe fn copy_on_device(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, u64),
        dst: (&Handle, u64),
        len_bytes: u64,
    ) -> Result<()>;
    fn peer_verdict(&self, device: &Handle, from: &Handle) -> Result<Verdict>;
    unsafe fn copy_from_peer(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, &Handle, u64),
        dst: (&Handle, u64),
        len_bytes: u64,
    ) -> Result<()>;
    /// `get` answers for every index below `len`, the same at every call.
    unsafe fn copy_many<'a>(
        &self,
        device: &Handle,
        stream: &Handle,
        len: usize,
        get: &'a dyn Fn(usize) -> DynCopyOp<'a>,
    ) -> Result<()>;
    unsafe fn fill(
        &self,
        device: &Handle,
        stream: &Handle,
        dst: (&Handle, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()>;
    fn check_kernel(&self, device: &Handle, kernel: &Kernel) -> Result<()>;
    unsafe fn launch(&self, device: &Handle, stream: &Handle, launch: &Launch<'_, Handle>) -> Result<()>;
    unsafe fn write_value(
        &self,
        device: &Handle,
        stream: &Handle,
        dst: (&Handle, u64),
        value: u64,
    ) -> Result<()>;
    unsafe fn wait_value(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, u64),
        value: u64,
    ) -> Result<()>;
}

impl<B: Backend> DynBackend for Erased<B> {
    fn id(&self) -> BackendId {
        self.id
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.backend.devices()
    }

    fn open(&self, index: u32) -> Result<Handle> {
        self.backend.open(index).map(|device| self.hide(device))
    }

    unsafe fn adopt_device(&self, foreign: Foreign) -> Result<Handle> {
        // SAFETY: the caller owes exactly what the typed method asks for.
        let device = unsafe { self.backend.adopt_device(foreign) }?;
        Ok(self.hide(device))
    }

    fn describe(&self, device: &Handle) -> Result<DeviceInfo> {
        Ok(self.backend.describe(self.device(device)?))
    }

    fn driver_name(&self, device: &Handle) -> Result<String> {
        Ok(self.backend.driver_name(self.device(device)?))
    }

    fn capabilities(&self, device: &Handle) -> Result<Capabilities> {
        Ok(self.backend.capabilities(self.device(device)?))
    }

    fn limits(&self, device: &Handle) -> Result<Limits> {
        Ok(self.backend.limits(self.device(device)?))
    }

    fn segment_limit_name(&self, device: &Handle) -> Result<&'static str> {
        Ok(self.backend.segment_limit_name(self.device(device)?))
    }

    fn binding_limit_name(&self, device: &Handle) -> Result<&'static str> {
        Ok(self.backend.binding_limit_name(self.device(device)?))
    }

    fn memory(&self, device: &Handle) -> Result<MemoryInfo> {
        self.backend.memory(self.device(device)?)
    }

    fn synchronize_device(&self, device: &Handle) -> Result<()> {
        self.backend.synchronize_device(self.device(device)?)
    }

    fn create_stream(&self, device: &Handle, options: StreamOptions) -> Result<Handle> {
        self.backend.create_stream(self.device(device)?, options).map(|stream| self.hide(stream))
    }

    fn default_stream(&self, device: &Handle) -> Result<Handle> {
        self.backend.default_stream(self.device(device)?).map(|stream| self.hide(stream))
    }

    unsafe fn adopt_stream(&self, device: &Handle, foreign: Foreign) -> Result<Handle> {
        let device = self.device(device)?;
        // SAFETY: the caller owes exactly what the typed method asks for.
        let stream = unsafe { self.backend.adopt_stream(device, foreign) }?;
        Ok(self.hide(stream))
    }

    fn synchronize_stream(&self, device: &Handle, stream: &Handle) -> Result<()> {
        self.backend.synchronize_stream(self.device(device)?, self.stream(stream)?)
    }

    fn query_stream(&self, device: &Handle, stream: &Handle) -> Result<bool> {
        self.backend.query_stream(self.device(device)?, self.stream(stream)?)
    }

    fn capture_state(&self, device: &Handle, stream: &Handle) -> Result<CaptureState> {
        self.backend.capture_state(self.device(device)?, self.stream(stream)?)
    }

    fn create_event(&self, device: &Handle) -> Result<Handle> {
        self.backend.create_event(self.device(device)?).map(|event| self.hide(event))
    }

    fn record_event(&self, device: &Handle, stream: &Handle, event: &Handle) -> Result<()> {
        self.backend.record_event(self.device(device)?, self.stream(stream)?, self.event(event)?)
    }

    fn wait_event(&self, device: &Handle, stream: &Handle, event: &Handle) -> Result<()> {
        self.backend.wait_event(self.device(device)?, self.stream(stream)?, self.event(event)?)
    }

    fn query_event(&self, device: &Handle, event: &Handle) -> Result<bool> {
        self.backend.query_event(self.device(device)?, self.event(event)?)
    }

    fn synchronize_event(&self, device: &Handle, event: &Handle) -> Result<()> {
        self.backend.synchronize_event(self.device(device)?, self.event(event)?)
    }

    fn allocate(&self, device: &Handle, len_bytes: u64, options: SegmentOptions) -> Result<Handle> {
        self.backend.allocate(self.device(device)?, len_bytes, options).map(|buffer| self.hide(buffer))
    }

    fn address(&self, device: &Handle, buffer: &Handle) -> Result<Option<u64>> {
        Ok(self.backend.address(self.device(device)?, self.buffer(buffer)?))
    }

    fn host_pointer(&self, device: &Handle, buffer: &Handle) -> Result<Option<*mut u8>> {
        Ok(self.backend.host_pointer(self.device(device)?, self.buffer(buffer)?))
    }

    unsafe fn adopt_buffer(&self, device: &Handle, foreign: Foreign, len_bytes: u64) -> Result<Handle> {
        let device = self.device(device)?;
        // SAFETY: the caller owes exactly what the typed method asks for.
        let buffer = unsafe { self.backend.adopt_buffer(device, foreign, len_bytes) }?;
        Ok(self.hide(buffer))
    }

    fn host_buffer_align_bytes(&self, device: &Handle) -> Result<u64> {
        Ok(self.backend.host_buffer_align_bytes(self.device(device)?))
    }

    unsafe fn host_buffer(&self, device: &Handle, ptr: *mut u8, len_bytes: u64) -> Result<Handle> {
        let device = self.device(device)?;
        // SAFETY: the caller owes exactly what the typed method asks for.
        let buffer = unsafe { self.backend.host_buffer(device, ptr, len_bytes) }?;
        Ok(self.hide(buffer))
    }

    fn map_host_buffer(&self, device: &Handle, buffer: &Handle, map: HostMap) -> Result<()> {
        self.backend.map_host_buffer(self.device(device)?, self.buffer(buffer)?, map)
    }

    fn export(&self, device: &Handle, buffer: &Handle) -> Result<Exported> {
        self.backend.export(self.device(device)?, self.buffer(buffer)?)
    }

    fn import(&self, device: &Handle, exported: Exported) -> Result<Handle> {
        let buffer = self.backend.import(self.device(device)?, exported)?;
        Ok(self.hide(buffer))
    }

    fn reserve(&self, device: &Handle, len_bytes: u64) -> Result<Handle> {
        self.backend.reserve(self.device(device)?, len_bytes).map(|buffer| self.hide(buffer))
    }

    fn commit(
        &self,
        device: &Handle,
        reservation: &Handle,
        part: (u64, u64),
        options: SegmentOptions,
    ) -> Result<Handle> {
        let (device, reservation) = (self.device(device)?, self.buffer(reservation)?);
        self.backend.commit(device, reservation, part, options).map(|buffer| self.hide(buffer))
    }

    fn alloc_pinned(&self, device: &Handle, len_bytes: usize) -> Result<Handle> {
        self.backend.alloc_pinned(self.device(device)?, len_bytes).map(|memory| self.hide(memory))
    }

    fn pinned_pointer(&self, device: &Handle, memory: &Handle) -> Result<*mut u8> {
        Ok(self.backend.pinned_pointer(self.device(device)?, self.show(memory)?))
    }

    unsafe fn register_host(&self, device: &Handle, ptr: *mut u8, len_bytes: usize) -> Result<Handle> {
        let device = self.device(device)?;
        // SAFETY: the caller owes exactly what the typed method asks for.
        let memory = unsafe { self.backend.register_host(device, ptr, len_bytes) }?;
        Ok(self.hide(memory))
    }

    unsafe fn copy_to_device(&self, device: &Handle, stream: &Handle, op: DynCopyOp<'_>) -> Result<()> {
        let (device, stream, dst) = (self.device(device)?, self.stream(stream)?, self.buffer(op.dst)?);
        let op = CopyOp { src: op.src, dst, dst_offset: op.dst_offset, len_bytes: op.len_bytes };
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.copy_to_device(device, stream, op) }
    }

    unsafe fn copy_to_host(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        let (device, stream, src) =
            (self.device(device)?, self.stream(stream)?, (self.buffer(src.0)?, src.1));
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.copy_to_host(device, stream, src, dst, len_bytes) }
    }

    unsafe fn copy_on_device(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, u64),
        dst: (&Handle, u64),
        len_bytes: u64,
    ) -> Result<()> {
        let (device, stream) = (self.device(device)?, self.stream(stream)?);
        let (src, dst) = ((self.buffer(src.0)?, src.1), (self.buffer(dst.0)?, dst.1));
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.copy_on_device(device, stream, src, dst, len_bytes) }
    }

    fn peer_verdict(&self, device: &Handle, from: &Handle) -> Result<Verdict> {
        Ok(self.backend.peer_verdict(self.device(device)?, self.device(from)?))
    }

    unsafe fn copy_from_peer(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, &Handle, u64),
        dst: (&Handle, u64),
        len_bytes: u64,
    ) -> Result<()> {
        let (device, stream) = (self.device(device)?, self.stream(stream)?);
        let src = (self.device(src.0)?, self.buffer(src.1)?, src.2);
        let dst = (self.buffer(dst.0)?, dst.1);
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.copy_from_peer(device, stream, src, dst, len_bytes) }
    }

    unsafe fn copy_many<'a>(
        &self,
        device: &Handle,
        stream: &Handle,
        len: usize,
        get: &'a dyn Fn(usize) -> DynCopyOp<'a>,
    ) -> Result<()> {
        let (device, stream) = (self.device(device)?, self.stream(stream)?);
        // All are checked before the first is enqueued, so that the batch below leaves none out.
        for index in 0..len {
            self.buffer(get(index).dst)?;
        }
        let typed = |index| {
            let CopyOp { src, dst, dst_offset, len_bytes } = get(index);
            Some(CopyOp { src, dst: self.buffer(dst).ok()?, dst_offset, len_bytes })
        };
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.copy_many(device, stream, &CopyBatch::new(len, &typed)) }
    }

    unsafe fn fill(
        &self,
        device: &Handle,
        stream: &Handle,
        dst: (&Handle, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        let (device, stream, dst) =
            (self.device(device)?, self.stream(stream)?, (self.buffer(dst.0)?, dst.1));
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.fill(device, stream, dst, len_bytes, value) }
    }

    fn check_kernel(&self, device: &Handle, kernel: &Kernel) -> Result<()> {
        self.backend.check_kernel(self.device(device)?, kernel)
    }

    unsafe fn launch(&self, device: &Handle, stream: &Handle, launch: &Launch<'_, Handle>) -> Result<()> {
        let (device, stream) = (self.device(device)?, self.stream(stream)?);
        let arguments = launch.arguments.iter().map(|argument| self.argument(argument));
        let arguments = arguments.collect::<Result<Vec<_>>>()?;
        let typed = Launch { kernel: launch.kernel, grid: launch.grid, arguments: &arguments };
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.launch(device, stream, &typed) }
    }

    unsafe fn write_value(
        &self,
        device: &Handle,
        stream: &Handle,
        dst: (&Handle, u64),
        value: u64,
    ) -> Result<()> {
        let (device, stream, dst) =
            (self.device(device)?, self.stream(stream)?, (self.buffer(dst.0)?, dst.1));
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.write_value(device, stream, dst, value) }
    }

    unsafe fn wait_value(
        &self,
        device: &Handle,
        stream: &Handle,
        src: (&Handle, u64),
        value: u64,
    ) -> Result<()> {
        let (device, stream, src) =
            (self.device(device)?, self.stream(stream)?, (self.buffer(src.0)?, src.1));
        // SAFETY: the caller owes exactly what the typed method asks for.
        unsafe { self.backend.wait_value(device, stream, src, value) }
    }
}
