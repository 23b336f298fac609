//! The port's operations.

use std::sync::Arc;

use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, Exported, HostMap,
    Launch, Limits, MemoryInfo, SegmentOptions, StreamOptions, Verdict,
};
use spoc_driver::{Error, ErrorKind, HostBuffer, HostMemory, HostMemoryOptions, Kernel, Result};

use super::Options;
use super::event::Event;
use super::memory::{LENDS, LENDS_NOT, Memory, NOT_LENDABLE, page_bytes};
use super::queue::Command;
use super::stream::{Stream, Streams};
use crate::account::{Account, Charge};
use crate::claims::Claims;
use crate::host_launch::{self, Counters, HostLaunch, Native as Shared};
use crate::identity;
use crate::kernel::library::Library;
use crate::size::host_len;

/// The native backend.
pub(super) struct Native {
    account: Arc<Account>,
    devices: u32,
    link_bytes_per_second: Option<u64>,
    /// Who works on which memory: devices copy from each other.
    claims: Arc<Claims>,
    library: Library,
    shared: Arc<Shared>,
}

/// The opened device.
pub(super) struct Device {
    index: u32,
    streams: Arc<Streams>,
}

/// Device memory, charged until it is dropped.
pub(super) struct Buffer {
    place: Place,
    _charge: Option<Charge>,
}

/// Where a buffer's bytes are.
enum Place {
    /// In device memory.
    Own(Memory),
    /// In host memory that the driver keeps mapped.
    Host(*mut u8),
}

// SAFETY: the pointer is followed by streams alone, in their order, while the driver keeps its memory.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Buffer {
    fn as_ptr(&self) -> *mut u8 {
        match &self.place {
            Place::Own(memory) => memory.as_ptr(),
            Place::Host(ptr) => *ptr,
        }
    }
}

/// Pinned memory: ordinary memory serves.
pub(super) enum Pinned {
    Owned(HostMemory),
    Registered(*mut u8),
}

// SAFETY: the pointer is only handed back to the driver, never followed here.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Native {
    pub(super) fn new(options: Options) -> Self {
        Self {
            account: Account::new(options.memory_bytes),
            devices: options.devices.max(1),
            link_bytes_per_second: options.link_bytes_per_second,
            claims: Arc::default(),
            library: Library::default(),
            shared: Arc::default(),
        }
    }

    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    fn info(&self, index: u32) -> DeviceInfo {
        DeviceInfo {
            backend: BackendKind::Native,
            index,
            uuid: identity::uuid(index),
            uuid_is_stable: identity::has_machine_id(),
            name: identity::name(),
            memory_bytes: self.account.memory().total_bytes,
            numa_node: identity::numa_node(),
            unified: true,
        }
    }
}

fn at(buffer: &Buffer, offset: u64) -> *mut u8 {
    // The driver checked that the offset lies inside the mapping, so it is addressable.
    buffer.as_ptr().wrapping_add(usize::try_from(offset).unwrap_or(usize::MAX))
}

fn copy_in(op: &CopyOp<'_, Buffer>) -> Command {
    let (from, to, len) = (op.src, at(op.dst, op.dst_offset), op.len_bytes);
    Command::Copy { from, to, len, over_link: true }
}

impl Backend for Native {
    const KIND: BackendKind = BackendKind::Native;
    type Device = Device;
    type Stream = Stream;
    type Event = Event;
    type Buffer = Buffer;
    type HostMemory = Pinned;

    fn devices(&self) -> Vec<DeviceInfo> {
        (0..self.devices).map(|index| self.info(index)).collect()
    }

    fn open(&self, index: u32) -> Result<Device> {
        if index >= self.devices {
            return Err(Error::new(ErrorKind::NoSuchDevice, "opening a native device").with("index", index));
        }
        Ok(Device { index, streams: Arc::new(Streams::behind(self.link_bytes_per_second, &self.claims)) })
    }

    fn describe(&self, device: &Device) -> DeviceInfo {
        self.info(device.index)
    }

    fn driver_name(&self, _: &Device) -> String {
        identity::OURS.to_owned()
    }

    fn capabilities(&self, _: &Device) -> Capabilities {
        const LENT: Verdict = Verdict::unavailable("no other library has contexts on the CPU");
        let mut capabilities = Capabilities::all(&Verdict::Available);
        if !LENDS {
            capabilities.export_memory = Verdict::unavailable(LENDS_NOT);
            capabilities.import_memory = Verdict::unavailable(LENDS_NOT);
        }
        capabilities.wait_value =
            Verdict::unavailable("a thread cannot sleep on a word of memory, and streams do not poll");
        capabilities.reserve = Verdict::unavailable("native memory is populated where it is allocated");
        capabilities.adopt_context = LENT;
        capabilities.adopt_stream = LENT;
        capabilities.adopt_memory = LENT;
        if !identity::has_machine_id() {
            capabilities.stable_uuid = Verdict::unavailable("the machine has no id, so the boot's is used");
        }
        if self.devices == 1 {
            capabilities.peer_copies = Verdict::unavailable("there is one native device");
        }
        capabilities.stream_capture = Verdict::unavailable("native streams cannot be recorded");
        capabilities
    }

    fn limits(&self, _: &Device) -> Limits {
        let page = page_bytes() as u64;
        Limits {
            segment_bytes_max: isize::MAX.unsigned_abs() as u64 - page,
            binding_bytes_max: isize::MAX.unsigned_abs() as u64 - page,
            copy_granule_bytes: 1,
            address_align_bytes: page,
            export_granule_bytes: page,
            free_waits_for_device: false,
        }
    }

    fn memory(&self, _: &Device) -> Result<MemoryInfo> {
        Ok(self.account.memory())
    }

    fn synchronize_device(&self, device: &Device) -> Result<()> {
        device.streams.wait_for_all();
        Ok(())
    }

    fn create_stream(&self, device: &Device, options: StreamOptions) -> Result<Stream> {
        device.streams.create(options)
    }

    fn default_stream(&self, device: &Device) -> Result<Stream> {
        Ok(Stream::Default(Arc::clone(&device.streams)))
    }

    fn synchronize_stream(&self, _: &Device, stream: &Stream) -> Result<()> {
        stream.idle_mark().map_or(Ok(()), |mark| mark.finish())
    }

    fn query_stream(&self, _: &Device, stream: &Stream) -> Result<bool> {
        stream.idle_mark().map_or(Ok(true), |mark| mark.query())
    }

    fn capture_state(&self, _: &Device, _: &Stream) -> Result<CaptureState> {
        Ok(CaptureState::None)
    }

    fn create_event(&self, _: &Device) -> Result<Event> {
        Ok(Event::default())
    }

    fn record_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        event.record(stream.mark());
        Ok(())
    }

    fn wait_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        // Also where the event is reached: on the default stream a wait comes after the blocking streams.
        stream.submit(event.mark().map(Command::Wait))
    }

    fn query_event(&self, _: &Device, event: &Event) -> Result<bool> {
        event.mark().map_or(Ok(true), |mark| mark.query())
    }

    fn synchronize_event(&self, _: &Device, event: &Event) -> Result<()> {
        event.mark().map_or(Ok(()), |mark| mark.finish())
    }

    fn allocate(&self, _: &Device, len_bytes: u64, options: SegmentOptions) -> Result<Buffer> {
        let charge = self.account.charge(len_bytes, "allocating native device memory")?;
        let memory = Memory::allocate(host_len(len_bytes)?, options.exportable, &self.account)?;
        Ok(Buffer { place: Place::Own(memory), _charge: Some(charge) })
    }

    fn address(&self, _: &Device, buffer: &Buffer) -> Option<u64> {
        Some(buffer.as_ptr().addr() as u64)
    }

    fn host_pointer(&self, _: &Device, buffer: &Buffer) -> Option<*mut u8> {
        Some(buffer.as_ptr())
    }

    unsafe fn host_buffer(&self, _: &Device, ptr: *mut u8, _: u64) -> Result<Buffer> {
        Ok(Buffer { place: Place::Host(ptr), _charge: None })
    }

    fn map_host_buffer(&self, _: &Device, _: &Buffer, _: HostMap) -> Result<()> {
        // One memory: streams and the host's waits for them are all the order there is.
        Ok(())
    }

    fn export(&self, device: &Device, buffer: &Buffer) -> Result<Exported> {
        let Place::Own(memory) = &buffer.place else {
            return Err(Error::unsupported(Self::KIND, "export_memory").with("memory", "the host's"));
        };
        let allocation_bytes = memory.mapped_bytes();
        let not_lendable = || Error::unsupported(Self::KIND, "export_memory").with("because", NOT_LENDABLE);
        Ok(Exported {
            descriptor: memory.export().ok_or_else(not_lendable)??,
            len_bytes: allocation_bytes,
            allocation_bytes,
            backend: BackendKind::Native,
            device: identity::uuid(device.index),
        })
    }

    fn import(&self, _: &Device, exported: Exported) -> Result<Buffer> {
        let Exported { descriptor, len_bytes, allocation_bytes, .. } = exported;
        // Charged to whoever allocated it.
        let memory = Memory::import(descriptor, len_bytes, allocation_bytes)?;
        Ok(Buffer { place: Place::Own(memory), _charge: None })
    }

    fn alloc_pinned(&self, _: &Device, len_bytes: usize) -> Result<Pinned> {
        HostBuffer::allocate(len_bytes, HostMemoryOptions::default())
            .map(|memory| Pinned::Owned(memory.share()))
    }

    fn pinned_pointer(&self, _: &Device, memory: &Pinned) -> *mut u8 {
        match memory {
            Pinned::Owned(memory) => memory.as_ptr(),
            Pinned::Registered(ptr) => *ptr,
        }
    }

    unsafe fn register_host(&self, _: &Device, ptr: *mut u8, _: usize) -> Result<Pinned> {
        Ok(Pinned::Registered(ptr))
    }

    unsafe fn copy_to_device(&self, _: &Device, stream: &Stream, op: CopyOp<'_, Buffer>) -> Result<()> {
        stream.submit([copy_in(&op)])
    }

    unsafe fn copy_to_host(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        let from = at(src.0, src.1);
        stream.submit([Command::Copy { from, to: dst, len: len_bytes, over_link: true }])
    }

    unsafe fn copy_on_device(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: (&Buffer, u64),
        len_bytes: u64,
    ) -> Result<()> {
        let len = host_len(len_bytes)?;
        let (from, to) = (at(src.0, src.1), at(dst.0, dst.1));
        stream.submit([Command::Copy { from, to, len, over_link: false }])
    }

    fn peer_verdict(&self, _: &Device, _: &Device) -> Verdict {
        // One memory, and one set of claims on it.
        Verdict::Available
    }

    unsafe fn copy_from_peer(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Device, &Buffer, u64),
        dst: (&Buffer, u64),
        len_bytes: u64,
    ) -> Result<()> {
        let (from, to, len) = (at(src.1, src.2), at(dst.0, dst.1), host_len(len_bytes)?);
        stream.submit([Command::Copy { from, to, len, over_link: false }])
    }

    unsafe fn copy_many(&self, _: &Device, stream: &Stream, batch: &CopyBatch<'_, Buffer>) -> Result<()> {
        stream.submit(batch.iter().map(|op| copy_in(&op)))
    }

    unsafe fn fill(
        &self,
        _: &Device,
        stream: &Stream,
        dst: (&Buffer, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        stream.submit([Command::Fill { to: at(dst.0, dst.1), len: host_len(len_bytes)?, value }])
    }

    fn check_kernel(&self, _: &Device, kernel: &Kernel) -> Result<()> {
        host_launch::check(kernel, Self::KIND, &self.library, true)
    }

    unsafe fn launch(&self, _: &Device, stream: &Stream, launch: &Launch<'_, Buffer>) -> Result<()> {
        let launch = HostLaunch::new(launch, Self::KIND, &self.library, Some(&self.shared), at)?;
        stream.submit([Command::Launch(Box::new(launch))])
    }

    unsafe fn write_value(&self, _: &Device, stream: &Stream, dst: (&Buffer, u64), value: u64) -> Result<()> {
        stream.submit([Command::Write { to: at(dst.0, dst.1).cast(), value }])
    }
}
