//! Device memory: a buffer, and what is charged for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_driver::{Error, ErrorKind, MemoryInfo, Result};

use super::error::caught;
use super::identity::Physical;
use super::queue::Queue;
use crate::capacity::Capacity;

const DOING: &str = "allocating WebGPU memory";

/// What every buffer may be used for: kernels read and write them in place.
const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::COPY_SRC.union(wgpu::BufferUsages::COPY_DST).union(wgpu::BufferUsages::STORAGE);

/// Device memory. wgpu keeps it for as long as submitted work uses it.
pub(super) struct Buffer {
    raw: wgpu::Buffer,
    _charge: Charge,
}

impl Buffer {
    pub(super) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    /// Allocates whole words: kernels change the last one together with the bytes behind the end.
    pub(super) fn allocate(queue: &Queue, heap: &Arc<Heap>, len_bytes: u64) -> Result<Self> {
        queue.check(DOING)?;
        let bytes = len_bytes.next_multiple_of(4);
        let charge = heap.charge(bytes)?;
        let raw = match create(queue, bytes) {
            // What was dropped may still be held for work that has run.
            Err(error) if matches!(error.kind(), ErrorKind::OutOfDeviceMemory { .. }) => {
                queue.synchronize()?;
                queue.tend()?;
                create(queue, bytes)?
            }
            outcome => outcome?,
        };
        let buffer = Self { raw, _charge: charge };
        if heap.is_software {
            // The system gives it page by page at the first use: done here, so that "allocated" means "there".
            queue.record(|batch| {
                batch.encoder.clear_buffer(&buffer.raw, 0, None);
                Ok(())
            })?;
        }
        Ok(buffer)
    }
}

fn create(queue: &Queue, bytes: u64) -> Result<wgpu::Buffer> {
    let descriptor =
        wgpu::BufferDescriptor { label: None, size: bytes, usage: USAGE, mapped_at_creation: false };
    caught(&queue.device, DOING, bytes, || queue.device.create_buffer(&descriptor))
}

/// The memory of a device: how much, and how much of it this backend has given out, over all openings.
pub(super) struct Heap {
    total_bytes: u64,
    is_software: bool,
    charged_bytes: AtomicU64,
}

/// An allocation on the account, until it is dropped.
struct Charge {
    heap: Arc<Heap>,
    bytes: u64,
}

impl Heap {
    pub(super) fn of(physical: &Physical) -> Arc<Self> {
        let (total_bytes, is_software) = (physical.info.memory_bytes, physical.is_software);
        Arc::new(Self { total_bytes, is_software, charged_bytes: AtomicU64::new(0) })
    }

    /// What the API would still give, as far as this can be known: it does not tell.
    fn free_bytes(&self, charged_bytes: u64) -> u64 {
        let machine = if self.is_software { Capacity::now().free_bytes } else { u64::MAX };
        self.total_bytes.saturating_sub(charged_bytes).min(machine)
    }

    pub(super) fn memory(&self, physical: &Physical) -> MemoryInfo {
        let ours = self.free_bytes(self.charged_bytes.load(Ordering::Relaxed));
        let free_bytes = physical.free_bytes().map_or(ours, |free| free.min(ours));
        MemoryInfo { free_bytes, total_bytes: self.total_bytes }
    }

    fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        // Charged first, so that two threads cannot both be granted the last bytes.
        let charge = Charge { heap: Arc::clone(self), bytes };
        let have_bytes = self.free_bytes(self.charged_bytes.fetch_add(bytes, Ordering::Relaxed));
        if bytes > have_bytes {
            let kind = ErrorKind::OutOfDeviceMemory { need_bytes: bytes, have_bytes };
            return Err(Error::new(kind, DOING));
        }
        Ok(charge)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.heap.charged_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
