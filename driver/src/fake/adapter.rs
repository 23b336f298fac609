//! The port's operations on the fake machine.

use std::sync::Arc;

use super::control::Step;
use super::ops::{Mark, MemoryId, Op, Place};
use super::state::{Memory, POISON, State, StreamState, World};
use crate::backend::{
    Backend, BackendKind, Capabilities, CaptureState, CopyBatch, CopyOp, DeviceInfo, DeviceUuid, Limits,
    MemoryInfo, SegmentOptions, StreamOptions,
};
use crate::error::{Error, ErrorKind, Result};
use crate::host::{HostBuffer, HostMemory, HostMemoryOptions};
use crate::sync::Mutex;
use crate::util::{host_len, lock};

pub(super) struct Fake {
    world: Arc<World>,
}

pub(super) struct FakeDevice {
    index: u32,
}

pub(super) struct StreamHandle {
    pub(super) index: usize,
    world: Arc<World>,
    is_default: bool,
}

pub(super) struct EventHandle {
    pub(super) record: Mutex<Option<Mark>>,
    world: Arc<World>,
}

pub(super) struct BufferHandle {
    pub(super) memory: MemoryId,
    world: Arc<World>,
}

pub(super) struct PinnedHandle {
    ptr: *mut u8,
    _memory: Option<HostMemory>,
    world: Arc<World>,
}

// SAFETY: the pointer is only handed back to the driver, never followed here.
unsafe impl Send for PinnedHandle {}
// SAFETY: as above.
unsafe impl Sync for PinnedHandle {}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        if self.is_default {
            return;
        }
        state.live.streams -= 1;
        if !state.streams[self.index].queue.is_empty() && !state.is_lost {
            state.violate("a stream was destroyed with work pending");
        }
    }
}

impl Drop for EventHandle {
    fn drop(&mut self) {
        self.world.lock().live.events -= 1;
    }
}

impl Drop for BufferHandle {
    fn drop(&mut self) {
        self.world.lock().free(self.memory);
    }
}

impl Drop for PinnedHandle {
    fn drop(&mut self) {
        self.world.lock().live.pinned -= 1;
    }
}

impl Fake {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    fn info(state: &State, index: u32) -> DeviceInfo {
        let mut uuid = *b"spoc-fake-dev\0\0\0";
        uuid[15] = index.to_le_bytes()[0];
        DeviceInfo {
            backend: BackendKind::Fake,
            index,
            uuid: DeviceUuid(uuid),
            uuid_is_stable: true,
            name: format!("fake device {index}"),
            memory_bytes: state.options.memory_bytes,
            numa_node: state.options.numa_node,
            unified: false,
        }
    }

    /// Enqueues; on the default stream waits for the blocking streams and runs at once.
    fn submit(&self, stream: &StreamHandle, ops: impl Iterator<Item = Op>) -> Result<()> {
        const DOING: &str = "enqueuing work";
        self.world.lock().check_lost(DOING)?;
        if stream.is_default {
            self.wait_for_blocking(stream);
        }
        let mut state = self.world.lock();
        state.check_lost(DOING)?;
        for op in ops {
            if op.is_copy() && state.refuse_copy.fires() {
                return Err(Error::new(ErrorKind::Backend, DOING).with("injected", true));
            }
            let queue = &mut state.streams[stream.index];
            queue.queue.push_back(op);
            queue.submitted += 1;
        }
        while stream.is_default && state.step(stream.index) == Step::Ran {}
        drop(state);
        self.world.changed.notify_all();
        Ok(())
    }

    fn wait_for_blocking(&self, stream: &StreamHandle) {
        let marks: Vec<Mark> = {
            let state = self.world.lock();
            let device = state.streams[stream.index].device;
            let is_waited_for = |other: &StreamState| other.is_blocking && other.device == device;
            let chosen = state.streams.iter().enumerate().filter(|(_, other)| is_waited_for(other));
            chosen.map(|(index, _)| state.mark_of(index)).collect()
        };
        self.world.wait_for(&marks);
    }

    fn place(&self, at: (&BufferHandle, u64), len: u64) -> Result<Place> {
        const DOING: &str = "placing an operation";
        Ok(Place { memory: at.0.memory, offset: host_len(at.1, DOING)?, len: host_len(len, DOING)? })
    }

    fn copy_in(&self, op: &CopyOp<'_, BufferHandle>) -> Result<Op> {
        let dst = self.place((op.dst, op.dst_offset), op.len_bytes as u64)?;
        // SAFETY: the source is valid now, whatever happens to it until the copy runs.
        let seen = unsafe { std::slice::from_raw_parts(op.src, op.len_bytes) };
        Ok(Op::CopyIn { src: op.src, dst, seen: seen.into() })
    }

    fn pinned(&self, ptr: *mut u8, memory: Option<HostMemory>, len: usize) -> Result<PinnedHandle> {
        let mut state = self.world.lock();
        state.check_lost("pinning host memory")?;
        if state.fail_pin.fires() {
            let kind = ErrorKind::OutOfHostMemory { need_bytes: len as u64 };
            return Err(Error::new(kind, "pinning host memory").with("injected", true));
        }
        state.live.pinned += 1;
        Ok(PinnedHandle { ptr, _memory: memory, world: Arc::clone(&self.world) })
    }

    fn used_bytes(state: &State, device: u32) -> u64 {
        let live = state.memories.iter().filter(|memory| !memory.is_freed && memory.device == device);
        live.map(|memory| memory.bytes.len() as u64).sum()
    }
}

impl Backend for Fake {
    const KIND: BackendKind = BackendKind::Fake;
    type Device = FakeDevice;
    type Stream = StreamHandle;
    type Event = EventHandle;
    type Buffer = BufferHandle;
    type HostMemory = PinnedHandle;

    fn devices(&self) -> Vec<DeviceInfo> {
        let state = self.world.lock();
        (0..state.options.devices).map(|index| Self::info(&state, index)).collect()
    }

    fn open(&self, index: u32) -> Result<FakeDevice> {
        if index >= self.world.lock().options.devices {
            return Err(Error::new(ErrorKind::NoSuchDevice, "opening a fake device").with("index", index));
        }
        Ok(FakeDevice { index })
    }

    fn describe(&self, device: &FakeDevice) -> DeviceInfo {
        Self::info(&self.world.lock(), device.index)
    }

    fn capabilities(&self, _: &FakeDevice) -> Capabilities {
        self.world.lock().options.capabilities.clone()
    }

    fn limits(&self, _: &FakeDevice) -> Limits {
        self.world.lock().options.limits
    }

    fn memory(&self, device: &FakeDevice) -> Result<MemoryInfo> {
        let state = self.world.lock();
        state.check_lost("asking for free memory")?;
        let total_bytes = state.options.memory_bytes;
        let used = Self::used_bytes(&state, device.index);
        Ok(MemoryInfo { free_bytes: total_bytes.saturating_sub(used), total_bytes })
    }

    /// Runs what is left, whatever the wait mode: the driver asks when the last handle goes.
    fn synchronize_device(&self, _: &FakeDevice) -> Result<()> {
        const DOING: &str = "waiting for the device";
        let mut state = self.world.lock();
        if state.fail_wait.fires() {
            return Err(Error::new(ErrorKind::Backend, DOING).with("injected", true));
        }
        state.run_all();
        let outcome = state.check_lost(DOING);
        drop(state);
        self.world.changed.notify_all();
        outcome
    }

    fn create_stream(&self, device: &FakeDevice, options: StreamOptions) -> Result<StreamHandle> {
        let mut state = self.world.lock();
        state.check_lost("creating a stream")?;
        state.live.streams += 1;
        let index = state.streams.len();
        let is_blocking = !options.non_blocking;
        state.streams.push(StreamState { device: device.index, is_blocking, ..StreamState::default() });
        Ok(StreamHandle { index, world: Arc::clone(&self.world), is_default: false })
    }

    fn default_stream(&self, device: &FakeDevice) -> Result<StreamHandle> {
        let index = device.index as usize;
        Ok(StreamHandle { index, world: Arc::clone(&self.world), is_default: true })
    }

    fn synchronize_stream(&self, _: &FakeDevice, stream: &StreamHandle) -> Result<()> {
        let mark = self.world.lock().mark_of(stream.index);
        self.world.wait_for(&[mark]);
        self.world.lock().check_failed(mark, "waiting for a stream")
    }

    fn query_stream(&self, _: &FakeDevice, stream: &StreamHandle) -> Result<bool> {
        let state = self.world.lock();
        let mark = state.mark_of(stream.index);
        let is_reached = state.is_reached(mark);
        if is_reached {
            state.check_failed(mark, "querying a stream")?;
        }
        Ok(is_reached)
    }

    fn capture_state(&self, _: &FakeDevice, stream: &StreamHandle) -> Result<CaptureState> {
        Ok(self.world.lock().streams[stream.index].capture.unwrap_or(CaptureState::None))
    }

    fn create_event(&self, _: &FakeDevice) -> Result<EventHandle> {
        let mut state = self.world.lock();
        state.check_lost("creating an event")?;
        state.live.events += 1;
        Ok(EventHandle { record: Mutex::new(None), world: Arc::clone(&self.world) })
    }

    fn record_event(&self, _: &FakeDevice, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        if stream.is_default {
            self.wait_for_blocking(stream);
        }
        let state = self.world.lock();
        state.check_lost("recording an event")?;
        *lock(&event.record) = Some(state.mark_of(stream.index));
        Ok(())
    }

    fn wait_event(&self, _: &FakeDevice, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        let Some(mark) = self.recorded(event) else { return Ok(()) };
        if stream.is_default {
            // Waiting is work of the default stream like any other: it comes after the blocking streams.
            self.wait_for_blocking(stream);
            self.world.wait_for(&[mark]);
            return self.world.lock().check_lost("waiting for an event");
        }
        self.submit(stream, [Op::WaitMark(mark)].into_iter())
    }

    fn query_event(&self, _: &FakeDevice, event: &EventHandle) -> Result<bool> {
        let Some(mark) = self.recorded(event) else { return Ok(true) };
        let state = self.world.lock();
        let is_reached = state.is_reached(mark);
        if is_reached {
            state.check_failed(mark, "querying an event")?;
        }
        Ok(is_reached)
    }

    fn synchronize_event(&self, _: &FakeDevice, event: &EventHandle) -> Result<()> {
        let Some(mark) = self.recorded(event) else { return Ok(()) };
        self.world.wait_for(&[mark]);
        self.world.lock().check_failed(mark, "waiting for an event")
    }

    fn allocate(&self, device: &FakeDevice, len_bytes: u64, _: SegmentOptions) -> Result<BufferHandle> {
        const DOING: &str = "allocating fake device memory";
        let mut state = self.world.lock();
        state.check_lost(DOING)?;
        let have_bytes = state.options.memory_bytes.saturating_sub(Self::used_bytes(&state, device.index));
        if state.fail_allocation.fires() || len_bytes > have_bytes {
            return Err(Error::new(
                ErrorKind::OutOfDeviceMemory { need_bytes: len_bytes, have_bytes },
                DOING,
            ));
        }
        let address = state.next_address(len_bytes);
        let bytes = vec![POISON; host_len(len_bytes, DOING)?];
        state.live.segments += 1;
        let memory = state.memories.len();
        state.memories.push(Memory { bytes, address, device: device.index, is_freed: false });
        Ok(BufferHandle { memory, world: Arc::clone(&self.world) })
    }

    fn address(&self, _: &FakeDevice, buffer: &BufferHandle) -> Option<u64> {
        Some(self.world.lock().memories[buffer.memory].address)
    }

    fn alloc_pinned(&self, _: &FakeDevice, len_bytes: usize) -> Result<PinnedHandle> {
        let memory = HostBuffer::allocate(len_bytes, HostMemoryOptions::default())?.share();
        self.pinned(memory.as_ptr(), Some(memory), len_bytes)
    }

    fn pinned_pointer(&self, _: &FakeDevice, memory: &PinnedHandle) -> *mut u8 {
        memory.ptr
    }

    unsafe fn register_host(&self, _: &FakeDevice, ptr: *mut u8, len_bytes: usize) -> Result<PinnedHandle> {
        self.pinned(ptr, None, len_bytes)
    }

    unsafe fn copy_to_device(
        &self,
        _: &FakeDevice,
        stream: &StreamHandle,
        op: CopyOp<'_, BufferHandle>,
    ) -> Result<()> {
        let op = self.copy_in(&op)?;
        self.submit(stream, [op].into_iter())
    }

    unsafe fn copy_to_host(
        &self,
        _: &FakeDevice,
        stream: &StreamHandle,
        src: (&BufferHandle, u64),
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<()> {
        let op = Op::CopyOut { src: self.place(src, len_bytes as u64)?, dst };
        self.submit(stream, [op].into_iter())
    }

    unsafe fn copy_on_device(
        &self,
        _: &FakeDevice,
        stream: &StreamHandle,
        src: (&BufferHandle, u64),
        dst: (&BufferHandle, u64),
        len_bytes: u64,
    ) -> Result<()> {
        let op = Op::CopyOn { src: self.place(src, len_bytes)?, dst: self.place(dst, len_bytes)? };
        self.submit(stream, [op].into_iter())
    }

    unsafe fn copy_many(
        &self,
        _: &FakeDevice,
        stream: &StreamHandle,
        batch: &CopyBatch<'_, BufferHandle>,
    ) -> Result<()> {
        let ops = batch.iter().map(|op| self.copy_in(&op)).collect::<Result<Vec<_>>>()?;
        self.submit(stream, ops.into_iter())
    }

    unsafe fn fill(
        &self,
        _: &FakeDevice,
        stream: &StreamHandle,
        dst: (&BufferHandle, u64),
        len_bytes: u64,
        value: u8,
    ) -> Result<()> {
        let op = Op::Fill { dst: self.place(dst, len_bytes)?, value };
        self.submit(stream, [op].into_iter())
    }

    unsafe fn write_value(
        &self,
        _: &FakeDevice,
        stream: &StreamHandle,
        dst: (&BufferHandle, u64),
        value: u64,
    ) -> Result<()> {
        let op = Op::Write { dst: self.place(dst, 8)?, value };
        self.submit(stream, [op].into_iter())
    }

    unsafe fn wait_value(
        &self,
        _: &FakeDevice,
        stream: &StreamHandle,
        src: (&BufferHandle, u64),
        value: u64,
    ) -> Result<()> {
        let op = Op::WaitValue { src: self.place(src, 8)?, value };
        self.submit(stream, [op].into_iter())
    }
}

impl Fake {
    /// Where the event stands. One that was never recorded should not have come here: the driver refuses.
    fn recorded(&self, event: &EventHandle) -> Option<Mark> {
        let mark = *lock(&event.record);
        if mark.is_none() {
            self.world.lock().violate("an event was used that was never recorded");
        }
        mark
    }
}
