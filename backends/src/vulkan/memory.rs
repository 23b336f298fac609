//! Allocations: a buffer, the memory behind it, and the heap that is charged.

use std::ptr;
use std::sync::Arc;

use ash::vk;
use spoc_driver::backend::{MemoryInfo, SegmentOptions};
use spoc_driver::{Error, ErrorKind, Result};

use super::core::Core;
use super::device::Shared;
use super::error::{failed_for, is_out_of_memory};
use super::share;
use crate::capacity::Capacity;

/// What every buffer may be used for: kernels will read and write them in place.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::STORAGE_BUFFER.as_raw(),
);
/// Kinds of memory that need features or do not hold bytes: never used.
const STRANGE: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw()
        | vk::MemoryPropertyFlags::PROTECTED.as_raw()
        | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD.as_raw()
        | vk::MemoryPropertyFlags::DEVICE_UNCACHED_AMD.as_raw(),
);
const DOING: &str = "allocating Vulkan memory";

/// A buffer with memory of its own. Freed when dropped: the owner sees to it that nothing pending uses it.
pub(super) struct Allocation {
    pub(super) buffer: vk::Buffer,
    pub(super) memory: vk::DeviceMemory,
    /// The size of the allocation.
    pub(super) bytes: u64,
    heap: Option<usize>,
    /// Where it is mapped; null if it is not.
    pub(super) mapped: *mut u8,
    core: Arc<Core>,
}

// SAFETY: the pointer names memory that the value owns; whoever follows it answers for the order.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

/// Device memory. Its release is put off while work is pending.
pub(super) struct Buffer {
    allocation: Option<Allocation>,
    raw: vk::Buffer,
    pub(super) exportable: bool,
    shared: Arc<Shared>,
}

/// What the memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Device,
    Host,
}

impl Buffer {
    pub(super) fn new(shared: &Arc<Shared>, allocation: Allocation, exportable: bool) -> Self {
        let raw = allocation.buffer;
        Self { allocation: Some(allocation), raw, exportable, shared: Arc::clone(shared) }
    }

    /// Allocates `len_bytes` of the device's own memory.
    pub(super) fn allocate(shared: &Arc<Shared>, len_bytes: u64, options: SegmentOptions) -> Result<Self> {
        shared.core.check(DOING)?;
        shared.release_reached();
        let make = || Allocation::on_device(&shared.core, len_bytes, options.exportable);
        let allocation = match make() {
            // What was put off may be what is missing.
            Err(error) if is_exhausted(&error) && shared.release_all()? => make()?,
            outcome => outcome?,
        };
        Ok(Self::new(shared, allocation, options.exportable))
    }

    pub(super) fn raw(&self) -> vk::Buffer {
        self.raw
    }

    /// The allocation: there until the buffer is dropped.
    pub(super) fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            self.shared.release(allocation);
        }
    }
}

fn is_exhausted(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfDeviceMemory { .. } | ErrorKind::OutOfHostMemory { .. })
}

impl Allocation {
    fn on_device(core: &Arc<Core>, len_bytes: u64, exportable: bool) -> Result<Self> {
        let external = exportable.then_some(share::HANDLE);
        let buffer = RawBuffer::create(core, len_bytes, external)?;
        let have_bytes = machine_bytes(core);
        if buffer.needs.size > have_bytes {
            let kind = ErrorKind::OutOfDeviceMemory { need_bytes: buffer.needs.size, have_bytes };
            return Err(Error::new(kind, DOING).with("limit", "what the machine can give"));
        }
        let types = types_for(&core.physical.memory, buffer.needs.memory_type_bits, Place::Device);
        // An importer has to find the same type by itself, so there is no second choice for what is lent.
        let choices = if exportable { 1 } else { types.len() };
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(share::HANDLE);
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer.raw);
        let mut info = vk::MemoryAllocateInfo::default();
        if exportable {
            info = info.push_next(&mut export).push_next(&mut dedicated);
        }
        let allocation = buffer.back(types.into_iter().take(choices), info)?;
        allocation.touch()?;
        Ok(allocation)
    }

    /// Mapped host memory that the device can copy: cached where there is such, coherent always.
    pub(super) fn on_host(core: &Arc<Core>, len_bytes: u64) -> Result<Self> {
        let limit = core.physical.segment_limit;
        if len_bytes > limit.bytes {
            let kind = ErrorKind::TooLarge { need: len_bytes, max: limit.bytes };
            return Err(Error::new(kind, "allocating pinned memory with Vulkan").with("limit", limit.name));
        }
        let buffer = RawBuffer::create(core, len_bytes, None)?;
        let types = types_for(&core.physical.memory, buffer.needs.memory_type_bits, Place::Host);
        let mut allocation = buffer.back(types.into_iter(), vk::MemoryAllocateInfo::default())?;
        allocation.map()?;
        Ok(allocation)
    }

    pub(super) fn map(&mut self) -> Result<()> {
        let (offset, size, flags) = (0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
        // SAFETY: the memory is live, host-visible (the caller chose its type so) and not mapped.
        let mapped = unsafe { self.core.raw.map_memory(self.memory, offset, size, flags) };
        self.mapped =
            mapped.map_err(|result| self.core.failed(result, "mapping Vulkan memory"))?.cast::<u8>();
        Ok(())
    }

    /// A software device takes memory from the system, which gives it page by page at the first use and may
    /// then have none. Touched here, so that "allocated" means "there".
    fn touch(&self) -> Result<()> {
        if !self.core.physical.is_software {
            return Ok(());
        }
        let (offset, size, flags) = (0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
        // SAFETY: the memory is live and not mapped; a software device's memory is all host-visible.
        let mapped = unsafe { self.core.raw.map_memory(self.memory, offset, size, flags) };
        let base = mapped.map_err(|result| self.core.failed(result, DOING))?.cast::<u8>();
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        for page in (0..bytes).step_by(4096) {
            // SAFETY: inside the mapping just made; nobody else has seen the memory.
            unsafe { ptr::write_volatile(base.wrapping_add(page), 0) };
        }
        // SAFETY: mapped just above.
        unsafe { self.core.raw.unmap_memory(self.memory) };
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the owner drops it only when nothing pending uses it, or when the device is lost.
        unsafe { self.core.raw.destroy_buffer(self.buffer, None) };
        // SAFETY: as above. Freeing unmaps.
        unsafe { self.core.raw.free_memory(self.memory, None) };
        if let Some(heap) = self.heap {
            self.core.discharge(heap, self.bytes);
        }
    }
}

/// A buffer that has no memory yet.
pub(super) struct RawBuffer {
    pub(super) raw: vk::Buffer,
    pub(super) needs: vk::MemoryRequirements,
    core: Arc<Core>,
}

impl RawBuffer {
    /// A buffer of `len_bytes`, its memory to be shared by `external` handles if any.
    pub(super) fn create(
        core: &Arc<Core>,
        len_bytes: u64,
        external: Option<vk::ExternalMemoryHandleTypeFlags>,
    ) -> Result<Self> {
        let mut handles = vk::ExternalMemoryBufferCreateInfo::default();
        let physical = &core.physical;
        let families = [physical.family.index, physical.other_family().map_or(0, |family| family.index)];
        // Whole words: kernels read and change the last one together with the bytes behind the end.
        let mut info = vk::BufferCreateInfo::default()
            .size(len_bytes.next_multiple_of(4))
            .usage(USAGE)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        if physical.other_family().is_some() {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&families);
        }
        if let Some(external) = external {
            handles = handles.handle_types(external);
            info = info.push_next(&mut handles);
        }
        // SAFETY: the device is live; `info` and what it points to live until the call returns.
        let raw = unsafe { core.raw.create_buffer(&info, None) }
            .map_err(|result| core.failed(result, "making a Vulkan buffer"))?;
        // SAFETY: made just above.
        let needs = unsafe { core.raw.get_buffer_memory_requirements(raw) };
        Ok(Self { raw, needs, core: Arc::clone(core) })
    }

    /// Gives the buffer memory of the first type that has any left.
    pub(super) fn back(
        self,
        types: impl Iterator<Item = u32>,
        info: vk::MemoryAllocateInfo<'_>,
    ) -> Result<Allocation> {
        let bytes = self.needs.size;
        let mut have_bytes = 0;
        let mut reason = None;
        for kind in types {
            let heap = self.heap_of(kind);
            if let Err(left) = self.core.charge(heap, bytes) {
                have_bytes = have_bytes.max(left);
                continue;
            }
            match self.take(info.allocation_size(bytes).memory_type_index(kind)) {
                Ok(memory) => return self.bind(memory, bytes, Some(heap)),
                Err(result) => {
                    self.core.discharge(heap, bytes);
                    if !is_out_of_memory(result) {
                        return Err(self.core.failed(result, DOING));
                    }
                    reason = Some(failed_for(result, DOING, bytes));
                }
            }
        }
        let kind = ErrorKind::OutOfDeviceMemory { need_bytes: bytes, have_bytes };
        Err(reason.unwrap_or_else(|| Error::new(kind, DOING)))
    }

    /// Gives the buffer memory of one type that exists already, and is charged to nobody.
    pub(super) fn back_with_import(self, info: vk::MemoryAllocateInfo<'_>) -> Result<Allocation> {
        let bytes = info.allocation_size;
        let memory =
            self.take(info).map_err(|result| self.core.failed(result, "importing memory into Vulkan"))?;
        self.bind(memory, bytes, None)
    }

    fn heap_of(&self, kind: u32) -> usize {
        let types = self.core.physical.memory.memory_types_as_slice();
        types.get(kind as usize).map_or(usize::MAX, |kind| kind.heap_index as usize)
    }

    fn take(&self, info: vk::MemoryAllocateInfo<'_>) -> Result<vk::DeviceMemory, vk::Result> {
        // SAFETY: the device is live; the type is one that the buffer's requirements name, and what `info`
        // points to lives until the call returns.
        unsafe { self.core.raw.allocate_memory(&info, None) }
    }

    fn bind(mut self, memory: vk::DeviceMemory, bytes: u64, heap: Option<usize>) -> Result<Allocation> {
        let buffer = std::mem::take(&mut self.raw);
        let core = Arc::clone(&self.core);
        // From here on the allocation frees both.
        let allocation = Allocation { buffer, memory, bytes, heap, mapped: ptr::null_mut(), core };
        // SAFETY: neither is bound yet; the memory was allocated for this buffer.
        unsafe { self.core.raw.bind_buffer_memory(buffer, memory, 0) }
            .map_err(|result| self.core.failed(result, "binding Vulkan memory"))?;
        Ok(allocation)
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        // SAFETY: bound to nothing and used by nothing; null, which is nothing, once it was given away.
        unsafe { self.core.raw.destroy_buffer(self.raw, None) };
    }
}

/// The memory types to try, best first.
pub(super) fn types_for_device(memory: &vk::PhysicalDeviceMemoryProperties, allowed: u32) -> Vec<u32> {
    types_for(memory, allowed, Place::Device)
}

/// As [`types_for_device`], for memory of the host.
pub(super) fn types_for_host(memory: &vk::PhysicalDeviceMemoryProperties, allowed: u32) -> Vec<u32> {
    types_for(memory, allowed, Place::Host)
}

fn types_for(memory: &vk::PhysicalDeviceMemoryProperties, allowed: u32, place: Place) -> Vec<u32> {
    const LOCAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    const VISIBLE: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_VISIBLE;
    const COHERENT: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_COHERENT;
    const CACHED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_CACHED;
    let required = match place {
        Place::Device => LOCAL,
        Place::Host => VISIBLE | COHERENT,
    };
    let mut types: Vec<_> = memory
        .memory_types_as_slice()
        .iter()
        .zip(0_u32..)
        .filter(|(kind, index)| {
            let flags = kind.property_flags;
            allowed & (1 << index) != 0 && flags.contains(required) && !flags.intersects(STRANGE)
        })
        .map(|(kind, index)| (kind.property_flags, index))
        .collect();
    // The window through which the host sees device memory is small: left to those who need it. The sort
    // keeps the driver's order, fastest first, among equals.
    types.sort_by_key(|(flags, _)| match place {
        Place::Device => (flags.contains(VISIBLE), false),
        Place::Host => (!flags.contains(CACHED), flags.contains(LOCAL)),
    });
    types.into_iter().map(|(_, index)| index).collect()
}

/// The largest of the device's own heaps: its size, and what is free of it by the driver's budget, or by
/// our account where the driver keeps none.
pub(super) fn info(core: &Core) -> MemoryInfo {
    let heaps = core.physical.memory.memory_heaps_as_slice();
    let own = |heap: &vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    let largest = heaps.iter().enumerate().filter(|(_, heap)| own(heap)).max_by_key(|(_, heap)| heap.size);
    let Some((index, heap)) = largest else { return MemoryInfo { free_bytes: 0, total_bytes: 0 } };
    let mut free_bytes = heap.size.saturating_sub(core.charged(index));
    if core.physical.extensions.memory_budget {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the physical device is of this live instance and has the extension.
        unsafe {
            core.instance.raw.get_physical_device_memory_properties2(core.physical.raw, &mut all);
        };
        let left = budget.heap_budget[index].saturating_sub(budget.heap_usage[index]);
        free_bytes = free_bytes.min(left);
    }
    MemoryInfo { free_bytes: free_bytes.min(machine_bytes(core)), total_bytes: heap.size }
}

/// What the machine can give to a device that lives in its memory; no bound for others.
fn machine_bytes(core: &Core) -> u64 {
    if core.physical.is_software { Capacity::now().free_bytes } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::DEVICE_LOCAL;

    /// A discrete card: own memory, host memory with and without cache, a window into its own memory.
    fn card() -> vk::PhysicalDeviceMemoryProperties {
        let host = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let cached = host | vk::MemoryPropertyFlags::HOST_CACHED;
        let strange = LOCAL | vk::MemoryPropertyFlags::LAZILY_ALLOCATED;
        let flags = [strange, LOCAL | host, LOCAL, host, LOCAL | cached, cached];
        let mut memory = vk::PhysicalDeviceMemoryProperties { memory_type_count: 6, ..Default::default() };
        for (kind, property_flags) in memory.memory_types.iter_mut().zip(flags) {
            *kind = vk::MemoryType { property_flags, heap_index: 0 };
        }
        memory
    }

    #[test]
    fn device_memory_is_the_devices_own_and_not_the_window_first() {
        assert_eq!(types_for_device(&card(), u32::MAX), [2, 1, 4]);
        assert_eq!(types_for_device(&card(), 0b10_1010), [1]);
        assert!(
            types_for_device(&card(), 0b10_1000).is_empty(),
            "host memory never passes for device memory"
        );
    }

    #[test]
    fn host_memory_is_cached_first_and_the_hosts_own_first() {
        assert_eq!(types_for_host(&card(), u32::MAX), [5, 4, 3, 1]);
        assert_eq!(types_for_host(&card(), 0b00_1010), [3, 1]);
    }
}
