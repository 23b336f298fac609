//! The port's operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, Exported, HostMap,
    Launch, Limits, MemoryInfo, SegmentOptions, StreamOptions, Verdict,
};
use spoc_driver::{Error, ErrorKind, HostBuffer, HostMemory, HostMemoryOptions, Kernel, Result};

use super::Options;
use crate::account::{Account, Charge};
use crate::claims::{Claim, Claims};
use crate::host_launch::{self, HostLaunch};
use crate::identity;
use crate::kernel::library::Library;
use crate::native::memory::{LENDS, LENDS_NOT, Memory, NOT_LENDABLE, page_bytes};
use crate::size::host_len;

/// Device memory begins at a multiple of this.
const ALIGN_BYTES: u64 = 4096;

pub(super) struct Interpreter {
    account: Arc<Account>,
    claims: Claims,
    library: Library,
}

pub(super) struct Device;

/// Streams differ in nothing: each operation is over before the next one is asked for.
pub(super) struct Stream;

pub(super) struct Event;

/// Device memory, charged until it is dropped; or host memory that the driver keeps.
pub(super) struct Buffer {
    ptr: *mut u8,
    own: Option<Memory>,
    _charge: Option<Charge>,
}

/// Pinned memory: ordinary memory serves.
pub(super) struct Pinned {
    ptr: *mut u8,
    _own: Option<HostMemory>,
}

// SAFETY: the pointer is followed by operations alone, which hold their claims, while the driver keeps the memory.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}
// SAFETY: the pointer is only handed back to the driver, never followed here.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Interpreter {
    pub(super) fn new(options: Options) -> Self {
        Self {
            account: Account::new(options.memory_bytes),
            claims: Claims::default(),
            library: Library::default(),
        }
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            backend: BackendKind::Interpreter,
            index: 0,
            uuid: identity::derived_uuid("interpreter"),
            uuid_is_stable: identity::has_machine_id(),
            name: format!("interpreter on {}", identity::name()),
            memory_bytes: self.account.memory().total_bytes,
            numa_node: identity::numa_node(),
            unified: true,
        }
    }

    /// Copies when nobody else works on either side.
    ///
    /// # Safety
    /// Both ranges are valid and do not overlap.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) {
        let _held = self.claims.hold(&[Claim::read(from, len), Claim::write(to, len)]);
        // SAFETY: the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}

fn at(buffer: &Buffer, offset: u64) -> *mut u8 {
    // The driver checked that the offset lies inside the memory, so it is addressable.
    buffer.ptr.wrapping_add(usize::try_from(offset).unwrap_or(usize::MAX))
}

impl Backend for Interpreter {
    const KIND: BackendKind = BackendKind::Interpreter;
    type Device = Device;
    type Stream = Stream;
    type Event = Event;
    type Buffer = Buffer;
    type HostMemory = Pinned;

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![self.info()]
    }

    fn open(&self, index: u32) -> Result<Device> {
        if index != 0 {
            return Err(Error::new(ErrorKind::NoSuchDevice, "opening the interpreter").with("index", index));
        }
        Ok(Device)
    }

    fn describe(&self, _: &Device) -> DeviceInfo {
        self.info()
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
        capabilities.reserve =
            Verdict::unavailable("the interpreter's memory is populated where it is allocated");
        if !cfg!(feature = "kernels") {
            capabilities.launch = Verdict::unavailable("built without its reader of WGSL (feature kernels)");
        }
        capabilities.async_copies = Verdict::unavailable("everything is complete on return");
        capabilities.pageable_async = Verdict::unavailable("everything is complete on return");
        capabilities.wait_value = Verdict::unavailable("what is complete on return cannot wait for later");
        capabilities.adopt_context = LENT;
        capabilities.adopt_stream = LENT;
        capabilities.adopt_memory = LENT;
        capabilities.peer_copies = Verdict::unavailable("there is one interpreter");
        capabilities.stream_capture = Verdict::unavailable("streams without a queue cannot be recorded");
        if !identity::has_machine_id() {
            capabilities.stable_uuid = Verdict::unavailable("the machine has no id");
        }
        capabilities
    }

    fn limits(&self, _: &Device) -> Limits {
        let max = isize::MAX.unsigned_abs() as u64 - ALIGN_BYTES;
        Limits {
            segment_bytes_max: max,
            binding_bytes_max: max,
            copy_granule_bytes: 1,
            address_align_bytes: ALIGN_BYTES,
            export_granule_bytes: page_bytes() as u64,
            free_waits_for_device: false,
        }
    }

    fn memory(&self, _: &Device) -> Result<MemoryInfo> {
        Ok(self.account.memory())
    }

    fn synchronize_device(&self, _: &Device) -> Result<()> {
        Ok(())
    }

    fn create_stream(&self, _: &Device, _: StreamOptions) -> Result<Stream> {
        Ok(Stream)
    }

    fn default_stream(&self, _: &Device) -> Result<Stream> {
        Ok(Stream)
    }

    fn synchronize_stream(&self, _: &Device, _: &Stream) -> Result<()> {
        Ok(())
    }

    fn query_stream(&self, _: &Device, _: &Stream) -> Result<bool> {
        Ok(true)
    }

    fn capture_state(&self, _: &Device, _: &Stream) -> Result<CaptureState> {
        Ok(CaptureState::None)
    }

    fn create_event(&self, _: &Device) -> Result<Event> {
        Ok(Event)
    }

    fn record_event(&self, _: &Device, _: &Stream, _: &Event) -> Result<()> {
        Ok(())
    }

    fn wait_event(&self, _: &Device, _: &Stream, _: &Event) -> Result<()> {
        Ok(())
    }

    fn query_event(&self, _: &Device, _: &Event) -> Result<bool> {
        Ok(true)
    }

    fn synchronize_event(&self, _: &Device, _: &Event) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: &Device, len_bytes: u64, options: SegmentOptions) -> Result<Buffer> {
        let charge = self.account.charge(len_bytes, "allocating the interpreter's memory")?;
        let memory = Memory::allocate(host_len(len_bytes)?, options.exportable, &self.account)?;
        Ok(Buffer { ptr: memory.as_ptr(), own: Some(memory), _charge: Some(charge) })
    }

    fn export(&self, _: &Device, buffer: &Buffer) -> Result<Exported> {
        let Some(memory) = &buffer.own else {
            return Err(Error::unsupported(Self::KIND, "export_memory").with("memory", "the host's"));
        };
        let allocation_bytes = memory.mapped_bytes();
        let not_lendable = || Error::unsupported(Self::KIND, "export_memory").with("because", NOT_LENDABLE);
        Ok(Exported {
            descriptor: memory.export().ok_or_else(not_lendable)??,
            len_bytes: allocation_bytes,
            allocation_bytes,
            backend: Self::KIND,
            device: self.info().uuid,
        })
    }

    fn import(&self, _: &Device, exported: Exported) -> Result<Buffer> {
        let Exported { descriptor, len_bytes, allocation_bytes, .. } = exported;
        let memory = Memory::import(descriptor, len_bytes, allocation_bytes)?;
        // Charged to whoever allocated it.
        Ok(Buffer { ptr: memory.as_ptr(), own: Some(memory), _charge: None })
    }

    fn address(&self, _: &Device, buffer: &Buffer) -> Option<u64> {
        Some(buffer.ptr.addr() as u64)
    }

    fn host_pointer(&self, _: &Device, buffer: &Buffer) -> Option<*mut u8> {
        Some(buffer.ptr)
    }

    unsafe fn host_buffer(&self, _: &Device, ptr: *mut u8, _: u64) -> Result<Buffer> {
        Ok(Buffer { ptr, own: None, _charge: None })
    }

    fn map_host_buffer(&self, _: &Device, _: &Buffer, _: HostMap) -> Result<()> {
        Ok(())
    }

    fn alloc_pinned(&self, _: &Device, len_bytes: usize) -> Result<Pinned> {
        let memory = HostBuffer::allocate(len_bytes, HostMemoryOptions::default())?.share();
        Ok(Pinned { ptr: memory.as_ptr(), _own: Some(memory) })
    }

    fn pinned_pointer(&self, _: &Device, memory: &Pinned) -> *mut u8 {
        memory.ptr
    }

    unsafe fn register_host(&self, _: &Device, ptr: *mut u8, _: usize) -> Result<Pinned> {
        Ok(Pinned { ptr, _own: None })
    }

    unsafe fn copy_to_device(&self, _: &Device, _: &Stream, op: CopyOp<'_, Buffer>) -> Result<()> {
        // SAFETY: the driver checked both ranges and keeps their memory.
        unsafe { self.copy(op.src, at(op.dst, op.dst_offset), op.len_bytes) };
        Ok(())
    }

    unsafe fn copy_to_host(
        &self,
        _: &Device,
        _: &Stream,
        src: (&Buffer, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copy(at(src.0, src.1), dst, len_bytes) };
        Ok(())
    }

    unsafe fn copy_on_device(
        &self,
        _: &Device,
        _: &Stream,
        src: (&Buffer, u64),
        dst: (&Buffer, u64),
        len_bytes: u64,
    ) -> Result<()> {
        // SAFETY: as above; the driver refuses ranges that overlap.
        unsafe { self.copy(at(src.0, src.1), at(dst.0, dst.1), host_len(len_bytes)?) };
        Ok(())
    }

    unsafe fn copy_many(&self, _: &Device, _: &Stream, batch: &CopyBatch<'_, Buffer>) -> Result<()> {
        for op in batch.iter() {
            // SAFETY: as above, for each of them.
            unsafe { self.copy(op.src, at(op.dst, op.dst_offset), op.len_bytes) };
        }
        Ok(())
    }

    unsafe fn fill(
        &self,
        _: &Device,
        _: &Stream,
        dst: (&Buffer, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        let (to, len) = (at(dst.0, dst.1), host_len(len_bytes)?);
        let _held = self.claims.hold(&[Claim::write(to, len)]);
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(to, value, len) };
        Ok(())
    }

    fn check_kernel(&self, _: &Device, kernel: &Kernel) -> Result<()> {
        host_launch::check(kernel, Self::KIND, &self.library, false)
    }

    unsafe fn launch(&self, _: &Device, _: &Stream, launch: &Launch<'_, Buffer>) -> Result<()> {
        let launch = HostLaunch::new(launch, Self::KIND, &self.library, None, at)?;
        let _held = self.claims.hold(&launch.claims);
        launch.run()
    }

    unsafe fn write_value(&self, _: &Device, _: &Stream, dst: (&Buffer, u64), value: u64) -> Result<()> {
        let to = at(dst.0, dst.1).cast::<u64>();
        let _held = self.claims.hold(&[Claim::write(to.cast(), size_of::<u64>())]);
        // SAFETY: as above; the driver checked that the word is aligned.
        let word = unsafe { AtomicU64::from_ptr(to) };
        word.store(value, Ordering::Release);
        Ok(())
    }
}
