//! The port's operations.

use std::sync::Arc;

use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, Launch, Limits,
    MemoryInfo, SegmentOptions, StreamOptions,
};
use spoc_driver::{Error, ErrorKind, Kernel, Result};

use super::api::{Api, Physical};
use super::device::Device;
use super::event::Event;
use super::memory::{Buffer, Pinned};
use super::stream::Stream;
use super::{Options, launch};
use crate::claims::Claim;
use crate::kernel::library::Library;
use crate::size::host_len;

/// The Metal backend.
pub(super) struct Metal<A: Api> {
    api: Arc<A>,
    devices: Vec<Physical>,
    options: Options,
    library: Library,
}

impl<A: Api> Metal<A> {
    pub(super) fn over(api: A, options: Options) -> Self {
        let devices = api.devices();
        Self { api: Arc::new(api), devices, options, library: Library::default() }
    }

    /// As [`Metal::over`], if there is a device.
    ///
    /// # Errors
    /// That there is none.
    #[cfg(target_vendor = "apple")]
    pub(super) fn probe(api: A, options: Options) -> Result<Self, String> {
        let found = Self::over(api, options);
        if found.devices.is_empty() {
            return Err("Metal lists no device".to_owned());
        }
        Ok(found)
    }
}

/// Copies when neither a kernel nor another thread works on either side.
///
/// # Safety
/// Both ranges are valid and do not overlap.
unsafe fn copy<A: Api>(
    device: &Device<A>,
    from: *const u8,
    to: *mut u8,
    len: usize,
    bound: &[&Buffer<A>],
) -> Result<()> {
    bound.iter().try_for_each(|buffer| device.0.pending.settle(buffer.id))?;
    let _held = device.0.claims.hold(&[Claim::read(from, len), Claim::write(to, len)]);
    // SAFETY: the caller's word; kernels that bind either side have run, and the claims keep other threads away.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    Ok(())
}

impl<A: Api> Backend for Metal<A> {
    const KIND: BackendKind = BackendKind::Metal;
    type Device = Device<A>;
    type Stream = Stream<A>;
    type Event = Event<A>;
    type Buffer = Buffer<A>;
    type HostMemory = Pinned;

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.iter().map(|physical| physical.info.clone()).collect()
    }

    fn open(&self, index: u32) -> Result<Device<A>> {
        let physical = self.devices.get(index as usize).ok_or_else(|| {
            Error::new(ErrorKind::NoSuchDevice, "opening a Metal device").with("index", index)
        })?;
        Device::open(&self.api, physical, self.options)
    }

    fn describe(&self, device: &Device<A>) -> DeviceInfo {
        device.0.physical.info.clone()
    }

    fn capabilities(&self, device: &Device<A>) -> Capabilities {
        device.capabilities()
    }

    fn limits(&self, device: &Device<A>) -> Limits {
        device.limits()
    }

    fn segment_limit_name(&self, _: &Device<A>) -> &'static str {
        "maxBufferLength"
    }

    fn binding_limit_name(&self, _: &Device<A>) -> &'static str {
        "maxBufferLength"
    }

    fn memory(&self, device: &Device<A>) -> Result<MemoryInfo> {
        Ok(device.0.memory())
    }

    fn synchronize_device(&self, device: &Device<A>) -> Result<()> {
        device.0.lanes.synchronize()
    }

    fn create_stream(&self, device: &Device<A>, options: StreamOptions) -> Result<Stream<A>> {
        device.create_stream(options)
    }

    fn default_stream(&self, device: &Device<A>) -> Result<Stream<A>> {
        Ok(device.0.lanes.default_stream())
    }

    fn synchronize_stream(&self, _: &Device<A>, stream: &Stream<A>) -> Result<()> {
        stream.synchronize()
    }

    fn query_stream(&self, _: &Device<A>, stream: &Stream<A>) -> Result<bool> {
        stream.is_idle()
    }

    fn capture_state(&self, _: &Device<A>, _: &Stream<A>) -> Result<CaptureState> {
        Ok(CaptureState::None)
    }

    fn create_event(&self, _: &Device<A>) -> Result<Event<A>> {
        Ok(Event::default())
    }

    fn record_event(&self, _: &Device<A>, stream: &Stream<A>, event: &Event<A>) -> Result<()> {
        event.record(stream.points()?);
        Ok(())
    }

    fn wait_event(&self, _: &Device<A>, stream: &Stream<A>, event: &Event<A>) -> Result<()> {
        stream.wait(event.points());
        Ok(())
    }

    fn query_event(&self, _: &Device<A>, event: &Event<A>) -> Result<bool> {
        event.is_reached()
    }

    fn synchronize_event(&self, _: &Device<A>, event: &Event<A>) -> Result<()> {
        event.wait()
    }

    fn allocate(&self, device: &Device<A>, len_bytes: u64, _: SegmentOptions) -> Result<Buffer<A>> {
        Buffer::allocate(&device.0, len_bytes)
    }

    fn host_pointer(&self, _: &Device<A>, buffer: &Buffer<A>) -> Option<*mut u8> {
        Some(buffer.at(0))
    }

    fn alloc_pinned(&self, _: &Device<A>, len_bytes: usize) -> Result<Pinned> {
        Pinned::allocate(len_bytes)
    }

    fn pinned_pointer(&self, _: &Device<A>, memory: &Pinned) -> *mut u8 {
        memory.ptr
    }

    unsafe fn register_host(&self, _: &Device<A>, ptr: *mut u8, _: usize) -> Result<Pinned> {
        Ok(Pinned::of_others(ptr))
    }

    unsafe fn copy_to_device(
        &self,
        device: &Device<A>,
        stream: &Stream<A>,
        op: CopyOp<'_, Buffer<A>>,
    ) -> Result<()> {
        stream.lane().check()?;
        // SAFETY: the driver checked both ranges and keeps their memory.
        unsafe { copy(device, op.src, op.dst.at(op.dst_offset), op.len_bytes, &[op.dst]) }
    }

    unsafe fn copy_to_host(
        &self,
        device: &Device<A>,
        stream: &Stream<A>,
        src: (&Buffer<A>, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        stream.lane().check()?;
        // SAFETY: as above.
        unsafe { copy(device, src.0.at(src.1), dst, len_bytes, &[src.0]) }
    }

    unsafe fn copy_on_device(
        &self,
        device: &Device<A>,
        stream: &Stream<A>,
        src: (&Buffer<A>, u64),
        dst: (&Buffer<A>, u64),
        len_bytes: u64,
    ) -> Result<()> {
        stream.lane().check()?;
        let len = host_len(len_bytes)?;
        // SAFETY: as above; the driver refuses ranges that overlap.
        unsafe { copy(device, src.0.at(src.1), dst.0.at(dst.1), len, &[src.0, dst.0]) }
    }

    unsafe fn copy_many(
        &self,
        device: &Device<A>,
        stream: &Stream<A>,
        batch: &CopyBatch<'_, Buffer<A>>,
    ) -> Result<()> {
        // SAFETY: as above, for each of them.
        batch.iter().try_for_each(|op| unsafe { self.copy_to_device(device, stream, op) })
    }

    unsafe fn fill(
        &self,
        device: &Device<A>,
        stream: &Stream<A>,
        dst: (&Buffer<A>, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        stream.lane().check()?;
        let (to, len) = (dst.0.at(dst.1), host_len(len_bytes)?);
        device.0.pending.settle(dst.0.id)?;
        let _held = device.0.claims.hold(&[Claim::write(to, len)]);
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(to, value, len) };
        Ok(())
    }

    fn check_kernel(&self, _: &Device<A>, kernel: &Kernel) -> Result<()> {
        self.library.check(kernel, Self::KIND, launch::OWN)
    }

    unsafe fn launch(
        &self,
        device: &Device<A>,
        stream: &Stream<A>,
        launch: &Launch<'_, Buffer<A>>,
    ) -> Result<()> {
        launch::launch(&device.0, &self.library, stream, launch)
    }
}
