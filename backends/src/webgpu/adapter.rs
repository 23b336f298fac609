//! The port's operations.

use std::convert::Infallible;
use std::sync::Arc;

use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, Launch, Limits,
    MemoryInfo, SegmentOptions, StreamOptions,
};
use spoc_driver::{Error, ErrorKind, Kernel, Result};

use super::counters::Counters;
use super::device::Device;
use super::event::Event;
use super::identity::{self, Physical};
use super::memory::{Buffer, Heap};
use super::stream::Stream;
use super::{Options, copy, launch};
use crate::kernel::library::Library;

/// The WebGPU backend.
pub(super) struct WebGpu {
    devices: Vec<(Physical, Arc<Heap>)>,
    options: Options,
    counters: Arc<Counters>,
    library: Library,
}

/// There is none: the API neither gives nor takes it.
pub(super) struct HostMemory(Infallible);

impl WebGpu {
    /// Lists the adapters that serve.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn probe(options: Options) -> Result<Self, String> {
        let devices = identity::find()?.into_iter().map(|physical| {
            let heap = Heap::of(&physical);
            (physical, heap)
        });
        let (counters, library) = (Arc::default(), Library::default());
        Ok(Self { devices: devices.collect(), options, counters, library })
    }

    pub(super) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

impl Backend for WebGpu {
    const KIND: BackendKind = BackendKind::WebGpu;
    type Device = Device;
    type Stream = Stream;
    type Event = Event;
    type Buffer = Buffer;
    type HostMemory = HostMemory;

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.iter().map(|(physical, _)| physical.info.clone()).collect()
    }

    fn open(&self, index: u32) -> Result<Device> {
        let (physical, heap) = self.devices.get(index as usize).ok_or_else(|| {
            Error::new(ErrorKind::NoSuchDevice, "opening a WebGPU device").with("index", index)
        })?;
        Device::open(physical, heap, self.options, &self.counters)
    }

    fn describe(&self, device: &Device) -> DeviceInfo {
        device.physical.info.clone()
    }

    fn driver_name(&self, device: &Device) -> String {
        let told = device.physical.adapter.get_info();
        // Which API it drives it through belongs to it: the same device has others.
        format!("wgpu over {}: {} {}", told.backend, told.driver, told.driver_info).trim_end().to_owned()
    }

    fn capabilities(&self, device: &Device) -> Capabilities {
        device.capabilities()
    }

    fn limits(&self, device: &Device) -> Limits {
        device.limits()
    }

    fn segment_limit_name(&self, device: &Device) -> &'static str {
        device.segment_limit().1
    }

    fn binding_limit_name(&self, _: &Device) -> &'static str {
        "maxStorageBufferBindingSize"
    }

    fn memory(&self, device: &Device) -> Result<MemoryInfo> {
        device.queue.check("asking for a WebGPU device's memory")?;
        Ok(device.heap.memory(&device.physical))
    }

    fn synchronize_device(&self, device: &Device) -> Result<()> {
        device.queue.synchronize()
    }

    fn create_stream(&self, device: &Device, options: StreamOptions) -> Result<Stream> {
        device.create_stream(options)
    }

    fn default_stream(&self, device: &Device) -> Result<Stream> {
        Ok(device.default_stream())
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
        event.record(stream.point()?);
        Ok(())
    }

    fn wait_event(&self, _: &Device, stream: &Stream, event: &Event) -> Result<()> {
        // On the device the order is there already.
        if let Some(ticket) = event.ticket() {
            stream.wait(ticket);
        }
        Ok(())
    }

    fn query_event(&self, device: &Device, event: &Event) -> Result<bool> {
        event.ticket().map_or(Ok(true), |ticket| device.queue.is_reached(ticket))
    }

    fn synchronize_event(&self, device: &Device, event: &Event) -> Result<()> {
        event.ticket().map_or(Ok(()), |ticket| device.queue.wait(ticket))
    }

    fn allocate(&self, device: &Device, len_bytes: u64, _: SegmentOptions) -> Result<Buffer> {
        Buffer::allocate(&device.queue, &device.heap, len_bytes)
    }

    fn pinned_pointer(&self, _: &Device, memory: &HostMemory) -> *mut u8 {
        match memory.0 {}
    }

    unsafe fn copy_to_device(&self, _: &Device, stream: &Stream, op: CopyOp<'_, Buffer>) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::to_device(stream, &op) }
    }

    unsafe fn copy_to_host(
        &self,
        _: &Device,
        stream: &Stream,
        src: (&Buffer, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::to_host(stream, src, dst, len_bytes) }
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

    unsafe fn copy_many(&self, _: &Device, stream: &Stream, batch: &CopyBatch<'_, Buffer>) -> Result<()> {
        // SAFETY: the caller owes exactly what is asked.
        unsafe { copy::many(stream, batch) }
    }

    unsafe fn fill(
        &self,
        _: &Device,
        stream: &Stream,
        dst: (&Buffer, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        copy::fill(stream, dst, len_bytes, value)
    }

    fn check_kernel(&self, _: &Device, kernel: &Kernel) -> Result<()> {
        self.library.check(kernel, Self::KIND, launch::OWN)
    }

    unsafe fn launch(&self, device: &Device, stream: &Stream, launch: &Launch<'_, Buffer>) -> Result<()> {
        launch::launch(&device.limits, &self.library, stream, launch)
    }
}
