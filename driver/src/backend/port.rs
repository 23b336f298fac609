//! The typed trait that an adapter implements.

use super::launch::Launch;
use super::types::{
    BackendKind, Capabilities, CaptureState, DeviceInfo, Exported, HostMap, Limits, MemoryInfo,
    SegmentOptions, StreamOptions, Verdict,
};
use crate::error::{Error, Result};
use crate::launch::Kernel;
use std::any::Any;

/// Raw handles of another library: a context, a stream or an allocation.
pub struct Foreign {
    /// What each word means is the adapter's to say (a pointer, a queue family, an index).
    pub words: [u64; 6],
    /// Held for as long as the adopted object is used.
    pub keep_alive: Option<Box<dyn Any + Send + Sync>>,
}

/// One copy of a batch: host memory to device memory.
#[derive(Debug)]
pub struct CopyOp<'a, Buffer> {
    /// First byte on the host.
    pub src: *const u8,
    /// Where to.
    pub dst: &'a Buffer,
    /// Offset in `dst`, in bytes.
    pub dst_offset: u64,
    /// How much, in bytes.
    pub len_bytes: usize,
}

/// The copies of one batch, readable as often as the adapter needs without allocating.
pub struct CopyBatch<'a, Buffer> {
    len: usize,
    get: &'a dyn Fn(usize) -> Option<CopyOp<'a, Buffer>>,
}

impl<'a, Buffer> CopyBatch<'a, Buffer> {
    /// A batch of `len` copies; `get` answers for every index below `len`.
    pub(super) fn new(len: usize, get: &'a dyn Fn(usize) -> Option<CopyOp<'a, Buffer>>) -> Self {
        Self { len, get }
    }

    /// How many copies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The copies in order.
    pub fn iter(&self) -> impl Iterator<Item = CopyOp<'a, Buffer>> {
        (0..self.len).filter_map(self.get)
    }
}

/// An API family that was found. See the module's page for who checks what.
///
/// Methods with a body here refuse by name; an adapter that overrides one says so in its
/// [`Capabilities`].
pub trait Backend: Send + Sync + Sized + 'static {
    /// Which family.
    const KIND: BackendKind;
    /// An opened device (a context).
    type Device: Send + Sync + 'static;
    /// An ordered queue of work.
    type Stream: Send + Sync + 'static;
    /// A point in a stream.
    type Event: Send + Sync + 'static;
    /// An allocation; dropping it frees it.
    type Buffer: Send + Sync + 'static;
    /// Pinned or registered host memory; dropping it frees or unregisters it.
    type HostMemory: Send + Sync + 'static;

    /// The devices, in index order.
    fn devices(&self) -> Vec<DeviceInfo>;
    /// Opens a device by its index.
    fn open(&self, index: u32) -> Result<Self::Device>;
    /// Borrows a context that another library made.
    ///
    /// # Safety
    /// The words name a live context of this API that outlives `keep_alive`.
    unsafe fn adopt_device(&self, foreign: Foreign) -> Result<Self::Device> {
        drop(foreign);
        refuse::<Self, _>("adopt_context")
    }
    /// Describes an opened device.
    fn describe(&self, device: &Self::Device) -> DeviceInfo;
    /// Name and version of what drives the device, for records of runs; empty where nothing tells.
    fn driver_name(&self, device: &Self::Device) -> String {
        let _ = device;
        String::new()
    }
    /// What the device can do beyond the obligatory.
    fn capabilities(&self, device: &Self::Device) -> Capabilities;
    /// The device's bounds.
    fn limits(&self, device: &Self::Device) -> Limits;
    /// What sets [`Limits::segment_bytes_max`], by the API's name for it: an operator looks it up.
    fn segment_limit_name(&self, device: &Self::Device) -> &'static str {
        let _ = device;
        "segment_bytes_max"
    }
    /// What sets [`Limits::binding_bytes_max`], by the API's name for it.
    fn binding_limit_name(&self, device: &Self::Device) -> &'static str {
        let _ = device;
        "binding_bytes_max"
    }
    /// Free and total memory now.
    fn memory(&self, device: &Self::Device) -> Result<MemoryInfo>;
    /// Waits until every stream of the device is idle.
    fn synchronize_device(&self, device: &Self::Device) -> Result<()>;

    /// A new stream.
    fn create_stream(&self, device: &Self::Device, options: StreamOptions) -> Result<Self::Stream>;
    /// The stream that orders itself against every blocking stream.
    fn default_stream(&self, device: &Self::Device) -> Result<Self::Stream>;
    /// Borrows a stream that another library made.
    ///
    /// # Safety
    /// The words name a live stream of this device's context that outlives `keep_alive`.
    unsafe fn adopt_stream(&self, device: &Self::Device, foreign: Foreign) -> Result<Self::Stream> {
        let _ = (device, foreign);
        refuse::<Self, _>("adopt_stream")
    }
    /// Waits until the stream is idle.
    fn synchronize_stream(&self, device: &Self::Device, stream: &Self::Stream) -> Result<()>;
    /// Whether the stream is idle.
    fn query_stream(&self, device: &Self::Device, stream: &Self::Stream) -> Result<bool>;
    /// Whether the stream is being recorded into a graph.
    fn capture_state(&self, device: &Self::Device, stream: &Self::Stream) -> Result<CaptureState> {
        let _ = (device, stream);
        refuse::<Self, _>("stream_capture")
    }

    /// A new event, not recorded yet.
    fn create_event(&self, device: &Self::Device) -> Result<Self::Event>;
    /// Records the event after what the stream has been given so far.
    fn record_event(&self, device: &Self::Device, stream: &Self::Stream, event: &Self::Event) -> Result<()>;
    /// Makes later work of the stream wait for the event's latest record.
    fn wait_event(&self, device: &Self::Device, stream: &Self::Stream, event: &Self::Event) -> Result<()>;
    /// Whether the latest record has been reached.
    fn query_event(&self, device: &Self::Device, event: &Self::Event) -> Result<bool>;
    /// Waits on the host for the latest record.
    fn synchronize_event(&self, device: &Self::Device, event: &Self::Event) -> Result<()>;

    /// Allocates device memory.
    fn allocate(
        &self,
        device: &Self::Device,
        len_bytes: u64,
        options: SegmentOptions,
    ) -> Result<Self::Buffer>;
    /// The address kernels and peers use, where there is one.
    fn address(&self, device: &Self::Device, buffer: &Self::Buffer) -> Option<u64> {
        let _ = (device, buffer);
        None
    }
    /// Where the host can address the buffer, where it can.
    fn host_pointer(&self, device: &Self::Device, buffer: &Self::Buffer) -> Option<*mut u8> {
        let _ = (device, buffer);
        None
    }
    /// Borrows an allocation of another library.
    ///
    /// # Safety
    /// The words name `len_bytes` live bytes of this device that outlive `keep_alive`.
    unsafe fn adopt_buffer(
        &self,
        device: &Self::Device,
        foreign: Foreign,
        len_bytes: u64,
    ) -> Result<Self::Buffer> {
        let _ = (device, foreign, len_bytes);
        refuse::<Self, _>("adopt_memory")
    }
    /// What the address of host memory must be a multiple of, in bytes, to become a buffer without a copy.
    fn host_buffer_align_bytes(&self, device: &Self::Device) -> u64 {
        let _ = device;
        1
    }
    /// A buffer over existing host memory, in place.
    ///
    /// # Safety
    /// `len_bytes` initialised bytes at `ptr` stay mapped until the result is dropped; the host touches them
    /// only between [`Backend::map_host_buffer`] and the next operation enqueued on the buffer.
    unsafe fn host_buffer(
        &self,
        device: &Self::Device,
        ptr: *mut u8,
        len_bytes: u64,
    ) -> Result<Self::Buffer> {
        let _ = (device, ptr, len_bytes);
        refuse::<Self, _>("host_buffer")
    }
    /// Maps such a buffer and unmaps it, after which the host sees the device's writes, or the other way round.
    /// Nothing enqueued uses the buffer.
    fn map_host_buffer(&self, device: &Self::Device, buffer: &Self::Buffer, map: HostMap) -> Result<()> {
        let _ = (device, buffer, map);
        refuse::<Self, _>("host_buffer")
    }
    /// A descriptor that another process can import. The memory lives while either lives.
    fn export(&self, device: &Self::Device, buffer: &Self::Buffer) -> Result<Exported> {
        let _ = (device, buffer);
        refuse::<Self, _>("export_memory")
    }
    /// Memory that another process exported from this backend and device.
    fn import(&self, device: &Self::Device, exported: Exported) -> Result<Self::Buffer> {
        let _ = (device, exported);
        refuse::<Self, _>("import_memory")
    }

    /// Reserves addresses: a buffer without memory, which nothing is enqueued for. `len_bytes` is a multiple of the
    /// export granule.
    fn reserve(&self, device: &Self::Device, len_bytes: u64) -> Result<Self::Buffer> {
        let _ = (device, len_bytes);
        refuse::<Self, _>("reserve")
    }
    /// Puts memory behind a part of reserved addresses (offset and length in bytes, multiples of the export granule)
    /// that has none. Dropping the result takes it away; the reservation may be dropped before.
    fn commit(
        &self,
        device: &Self::Device,
        reservation: &Self::Buffer,
        part: (u64, u64),
        options: SegmentOptions,
    ) -> Result<Self::Buffer> {
        let _ = (device, reservation, part, options);
        refuse::<Self, _>("reserve")
    }

    /// Allocates pinned host memory.
    fn alloc_pinned(&self, device: &Self::Device, len_bytes: usize) -> Result<Self::HostMemory> {
        let _ = (device, len_bytes);
        refuse::<Self, _>("pinned_alloc")
    }
    /// First byte of pinned host memory.
    fn pinned_pointer(&self, device: &Self::Device, memory: &Self::HostMemory) -> *mut u8;
    /// Registers existing host memory for DMA.
    ///
    /// # Safety
    /// `len_bytes` bytes at `ptr` stay mapped until the result is dropped.
    unsafe fn register_host(
        &self,
        device: &Self::Device,
        ptr: *mut u8,
        len_bytes: usize,
    ) -> Result<Self::HostMemory> {
        let _ = (device, ptr, len_bytes);
        refuse::<Self, _>("host_register")
    }

    /// Enqueues a copy from host memory.
    ///
    /// # Safety
    /// The source stays valid and unmodified, and the buffer alive, until the copy has run.
    unsafe fn copy_to_device(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        op: CopyOp<'_, Self::Buffer>,
    ) -> Result<()>;
    /// Enqueues a copy to host memory.
    ///
    /// # Safety
    /// `len_bytes` at `dst` stay valid, and untouched by others, until the copy has run; so does the buffer.
    unsafe fn copy_to_host(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        src: (&Self::Buffer, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()>;
    /// Enqueues a copy within the device; the ranges do not overlap.
    ///
    /// # Safety
    /// Both buffers stay alive until the copy has run.
    unsafe fn copy_on_device(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        src: (&Self::Buffer, u64),
        dst: (&Self::Buffer, u64),
        len_bytes: u64,
    ) -> Result<()>;
    /// Whether `device` can copy out of memory of `from`, another device of this backend, without the host.
    fn peer_verdict(&self, device: &Self::Device, from: &Self::Device) -> Verdict {
        let _ = (device, from);
        Verdict::unavailable("this backend copies through the host between devices")
    }
    /// Enqueues a copy out of memory of another device, for which [`Backend::peer_verdict`] said that it can. What wrote the
    /// source has run.
    ///
    /// # Safety
    /// Both buffers stay alive, and the source unmodified, until the copy has run.
    unsafe fn copy_from_peer(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        src: (&Self::Device, &Self::Buffer, u64),
        dst: (&Self::Buffer, u64),
        len_bytes: u64,
    ) -> Result<()> {
        let _ = (device, stream, src, dst, len_bytes);
        refuse::<Self, _>("peer_copies")
    }
    /// Enqueues many copies from host memory, unordered among themselves. If it fails, some may be on their
    /// way.
    ///
    /// # Safety
    /// As [`Backend::copy_to_device`], for each of them.
    unsafe fn copy_many(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        batch: &CopyBatch<'_, Self::Buffer>,
    ) -> Result<()> {
        let _ = (device, stream, batch);
        refuse::<Self, _>("copy_many")
    }
    /// Enqueues setting a range to one byte.
    ///
    /// # Safety
    /// The buffer stays alive until it has run.
    unsafe fn fill(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        dst: (&Self::Buffer, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        let _ = (device, stream, dst, len_bytes, value);
        refuse::<Self, _>("fill")
    }

    /// Refuses a kernel that has no form this device runs. Asked before a launch is prepared.
    fn check_kernel(&self, device: &Self::Device, kernel: &Kernel) -> Result<()> {
        let _ = (device, kernel);
        refuse::<Self, _>("launch")
    }
    /// Enqueues running a kernel.
    ///
    /// # Safety
    /// The buffers stay alive until it has run; ranges lie in them.
    unsafe fn launch(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        launch: &Launch<'_, Self::Buffer>,
    ) -> Result<()> {
        let _ = (device, stream, launch);
        refuse::<Self, _>("launch")
    }

    /// Enqueues writing a word, visible to the host and to peers after everything before it.
    ///
    /// # Safety
    /// The buffer stays alive until it has run.
    unsafe fn write_value(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        dst: (&Self::Buffer, u64),
        value: u64,
    ) -> Result<()> {
        let _ = (device, stream, dst, value);
        refuse::<Self, _>("write_value")
    }
    /// Enqueues waiting until a word is at least `value`.
    ///
    /// # Safety
    /// The buffer stays alive until it has run.
    unsafe fn wait_value(
        &self,
        device: &Self::Device,
        stream: &Self::Stream,
        src: (&Self::Buffer, u64),
        value: u64,
    ) -> Result<()> {
        let _ = (device, stream, src, value);
        refuse::<Self, _>("wait_value")
    }
}

/// What the bodies above answer.
fn refuse<B: Backend, T>(feature: &'static str) -> Result<T> {
    Err(Error::unsupported(B::KIND, feature))
}
