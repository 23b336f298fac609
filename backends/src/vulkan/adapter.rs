//! The port's operations.

use std::sync::Arc;

use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, Exported, Launch,
    Limits, MemoryInfo, SegmentOptions, StreamOptions,
};
use spoc_driver::{Error, ErrorKind, Kernel, Result};

use super::counters::Counters;
use super::device::Device;
use super::event::{Event, Point};
use super::host::HostMemory;
use super::identity::Physical;
use super::instance::Instance;
use super::memory::Buffer;
use super::stream::Stream;
use super::{Options, copy, launch, share};
use crate::kernel::library::Library;

/// The Vulkan backend.
pub(super) struct Vulkan {
    instance: Arc<Instance>,
    devices: Vec<Physical>,
    options: Options,
    counters: Arc<Counters>,
    library: Library,
}

impl Vulkan {
    /// Loads the library and lists the devices that serve.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn probe(options: Options) -> Result<Self, String> {
        let counters = Arc::default();
        let instance = Instance::create(options.validation, &counters)?;
        let devices = instance.devices()?;
        Ok(Self { instance, devices, options, counters, library: Library::default() })
    }

    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

fn wait(device: &Device, point: Point) -> Result<()> {
    device.shared.lane(point.lane).wait(&device.shared.core, point.value)
}

impl Backend for Vulkan {
    const KIND: BackendKind = BackendKind::Vulkan;
    type Device = Device;
    type Stream = Stream;
    type Event = Event;
    type Buffer = Buffer;
    type HostMemory = HostMemory;

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.iter().map(|physical| physical.info.clone()).collect()
    }

    fn open(&self, index: u32) -> Result<Device> {
        let physical = self.devices.get(index as usize).ok_or_else(|| {
            Error::new(ErrorKind::NoSuchDevice, "opening a Vulkan device").with("index", index)
        })?;
        Device::open(&self.instance, physical, self.options, &self.counters)
    }

    fn describe(&self, device: &Device) -> DeviceInfo {
        device.shared.core.physical.info.clone()
    }

    fn driver_name(&self, device: &Device) -> String {
        device.shared.core.physical.driver.clone()
    }

    fn capabilities(&self, device: &Device) -> Capabilities {
        device.capabilities.clone()
    }

    fn limits(&self, device: &Device) -> Limits {
        let physical = &device.shared.core.physical;
        Limits {
            segment_bytes_max: physical.segment_limit.bytes,
            binding_bytes_max: physical.binding_bytes_max,
            copy_granule_bytes: 1,
            address_align_bytes: physical.storage_align_bytes.max(1),
            export_granule_bytes: 1,
            free_waits_for_device: false,
        }
    }

    fn segment_limit_name(&self, device: &Device) -> &'static str {
        device.shared.core.physical.segment_limit.name
    }

    fn binding_limit_name(&self, _: &Device) -> &'static str {
        "maxStorageBufferRange"
    }

    fn memory(&self, device: &Device) -> Result<MemoryInfo> {
        device.shared.memory()
    }

    fn synchronize_device(&self, device: &Device) -> Result<()> {
        device.shared.synchronize()
    }

    fn create_stream(&self, device: &Device, options: StreamOptions) -> Result<Stream> {
        device.create_stream(options)
    }

    fn default_stream(&self, device: &Device) -> Result<Stream> {
        Ok(device.default_stream())
    }

    fn synchronize_stream(&self, device: &Device, stream: &Stream) -> Result<()> {
        stream.synchronize()?;
        device.shared.release_reached();
        Ok(())
    }

    fn query_stream(&self, device: &Device, stream: &Stream) -> Result<bool> {
        let is_idle = stream.is_idle()?;
        if is_idle {
            device.shared.release_reached();
        }
        Ok(is_idle)
    }

    fn capture_state(&self, _: &Device, _: &Stream) -> Result<CaptureState> {
        Ok(CaptureState::None)
    }

    fn create_event(&self, _: &Device) -> Result<Event> {
        Ok(Event::default())
    }

    fn record_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        event.record(stream.point()?);
        Ok(())
    }

    fn wait_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        event.point().map_or(Ok(()), |point| stream.wait(point))
    }

    fn query_event(&self, device: &Device, event: &Event) -> Result<bool> {
        let core = &device.shared.core;
        core.check("querying a Vulkan event")?;
        event.point().map_or(Ok(true), |point| device.shared.lane(point.lane).is_reached(core, point.value))
    }

    fn synchronize_event(&self, device: &Device, event: &Event) -> Result<()> {
        device.shared.core.check("waiting for a Vulkan event")?;
        event.point().map_or(Ok(()), |point| wait(device, point))
    }

    fn allocate(&self, device: &Device, len_bytes: u64, options: SegmentOptions) -> Result<Buffer> {
        Buffer::allocate(&device.shared, len_bytes, options)
    }

    fn export(&self, device: &Device, buffer: &Buffer) -> Result<Exported> {
        share::export(&device.shared.core, buffer)
    }

    fn import(&self, device: &Device, exported: Exported) -> Result<Buffer> {
        // The descriptor is closed when `exported` is dropped, in any case: the API was given another.
        share::import(&device.shared, &exported)
    }

    fn alloc_pinned(&self, device: &Device, len_bytes: usize) -> Result<HostMemory> {
        HostMemory::allocate(&device.shared, len_bytes)
    }

    fn pinned_pointer(&self, _: &Device, memory: &HostMemory) -> *mut u8 {
        memory.as_ptr()
    }

    unsafe fn register_host(&self, device: &Device, ptr: *mut u8, len_bytes: usize) -> Result<HostMemory> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { HostMemory::import(&device.shared, ptr, len_bytes) }
    }

    unsafe fn copy_to_device(&self, device: &Device, stream: &Stream, op: CopyOp<'_, Buffer>) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::to_device(&device.shared, stream, op) }
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
        unsafe { copy::to_host(&device.shared, stream, src, dst, len_bytes) }
    }

    unsafe fn copy_on_device(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: (&Buffer, u64),
        len_bytes: u64,
    ) -> Result<()> {
        copy::on_device(stream, src, dst, len_bytes)
    }

    unsafe fn copy_many(
        &self,
        device: &Device,
        stream: &Stream,
        batch: &CopyBatch<'_, Buffer>,
    ) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::many(&device.shared, stream, batch) }
    }

    unsafe fn fill(
        &self,
        device: &Device,
        stream: &Stream,
        dst: (&Buffer, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        copy::fill(&device.shared, stream, dst, len_bytes, value)
    }

    fn check_kernel(&self, _: &Device, kernel: &Kernel) -> Result<()> {
        self.library.check(kernel, Self::KIND, launch::OWN)
    }

    unsafe fn launch(&self, device: &Device, stream: &Stream, launch: &Launch<'_, Buffer>) -> Result<()> {
        launch::launch(&device.shared, &self.library, stream, launch)
    }
}
