//! What adapters there are, and what the Vulkan under each says that WebGPU does not: names and memory.

use std::fs;

use ash::{ext, vk};
use spoc_driver::backend::{BackendKind, DeviceInfo, DeviceUuid};

use super::error::ready;

/// An adapter that serves.
#[derive(Clone)]
pub(super) struct Physical {
    pub(super) adapter: wgpu::Adapter,
    pub(super) info: DeviceInfo,
    pub(super) is_software: bool,
    has_budget: bool,
}

/// What kernels may use, where the adapter has it.
pub(super) const WANTED: wgpu::Features = wgpu::Features::SHADER_F64
    .union(wgpu::Features::SHADER_INT64)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::IMMEDIATES);

/// The adapters that serve.
///
/// # Errors
/// Why there is none.
pub(super) fn find() -> Result<Vec<Physical>, String> {
    let descriptor = wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let instance = wgpu::Instance::new(descriptor);
    let adapters =
        ready(instance.enumerate_adapters(wgpu::Backends::VULKAN)).ok_or("wgpu does not answer at once")?;
    if adapters.is_empty() {
        return Err("wgpu finds no adapter: there is no Vulkan library, or no device of it".to_owned());
    }
    let (mut found, mut reasons) = (Vec::new(), Vec::new());
    for adapter in adapters {
        match Physical::of(adapter, found.len()) {
            Ok(physical) => found.push(physical),
            Err(reason) => reasons.push(reason),
        }
    }
    if found.is_empty() { Err(reasons.join("; ")) } else { Ok(found) }
}

impl Physical {
    fn of(adapter: wgpu::Adapter, index: usize) -> Result<Self, String> {
        let told = adapter.get_info();
        let name = told.name.clone();
        if !adapter.features().contains(wgpu::Features::IMMEDIATES) {
            return Err(format!("{name}: no immediate data, which numbers of kernels are given in"));
        }
        let asked = Asked::of(&adapter).ok_or_else(|| format!("{name}: not reached through Vulkan"))?;
        let is_software = told.device_type == wgpu::DeviceType::Cpu;
        let info = DeviceInfo {
            backend: BackendKind::WebGpu,
            index: u32::try_from(index).unwrap_or(u32::MAX),
            uuid: asked.uuid,
            uuid_is_stable: !is_software,
            name,
            memory_bytes: asked.heap_bytes,
            numa_node: numa_node(&told.device_pci_bus_id),
            unified: told.device_type == wgpu::DeviceType::IntegratedGpu || is_software,
        };
        Ok(Self { adapter, info, is_software, has_budget: asked.has_budget })
    }

    /// What the driver's budget leaves of the largest heap, where the driver keeps one.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        if !self.has_budget {
            return None;
        }
        with_vulkan(&self.adapter, |instance, raw| {
            let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
            let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
            // SAFETY: the device is of this live instance and has the extension.
            unsafe { instance.get_physical_device_memory_properties2(raw, &mut all) };
            let (index, _) = largest_heap(&all.memory_properties)?;
            Some(budget.heap_budget[index].saturating_sub(budget.heap_usage[index]))
        })?
    }
}

/// The largest heap that is the device's own: its index and size.
fn largest_heap(memory: &vk::PhysicalDeviceMemoryProperties) -> Option<(usize, u64)> {
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.map(|(index, heap)| (index, heap.size)).max_by_key(|(_, bytes)| *bytes)
}

/// Asks the Vulkan under an adapter.
fn with_vulkan<T>(
    adapter: &wgpu::Adapter,
    ask: impl FnOnce(&ash::Instance, vk::PhysicalDevice) -> T,
) -> Option<T> {
    // SAFETY: what it names is only asked, and nothing of it is destroyed or kept.
    let raw = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    Some(ask(raw.shared_instance().raw_instance(), raw.raw_physical_device()))
}

/// What WebGPU does not tell.
struct Asked {
    uuid: DeviceUuid,
    heap_bytes: u64,
    has_budget: bool,
}

impl Asked {
    fn of(adapter: &wgpu::Adapter) -> Option<Self> {
        with_vulkan(adapter, |instance, raw| {
            let mut id = vk::PhysicalDeviceIDProperties::default();
            let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
            // SAFETY: the device is of this live instance. wgpu asks for Vulkan 1.1 at least, which knows the chain.
            unsafe { instance.get_physical_device_properties2(raw, &mut all) };
            // SAFETY: as above.
            let memory = unsafe { instance.get_physical_device_memory_properties(raw) };
            // SAFETY: as above.
            let extensions = unsafe { instance.enumerate_device_extension_properties(raw) };
            let is_budget = |known: &vk::ExtensionProperties| {
                known.extension_name_as_c_str() == Ok(ext::memory_budget::NAME)
            };
            Self {
                uuid: DeviceUuid(id.device_uuid),
                heap_bytes: largest_heap(&memory).map_or(0, |(_, bytes)| bytes),
                has_budget: extensions.is_ok_and(|known| known.iter().any(is_budget)),
            }
        })
    }
}

/// The node that the kernel says the device hangs on; none where it says −1.
fn numa_node(bus_id: &str) -> Option<u32> {
    if bus_id.is_empty() {
        return None;
    }
    let path = format!("/sys/bus/pci/devices/{}/numa_node", bus_id.to_ascii_lowercase());
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_heap_of_its_own_counts() {
        let mut memory = vk::PhysicalDeviceMemoryProperties { memory_heap_count: 3, ..Default::default() };
        let heap = |size, flags| vk::MemoryHeap { size, flags };
        memory.memory_heaps[0] = heap(9, vk::MemoryHeapFlags::empty());
        memory.memory_heaps[1] = heap(2, vk::MemoryHeapFlags::DEVICE_LOCAL);
        memory.memory_heaps[2] = heap(5, vk::MemoryHeapFlags::DEVICE_LOCAL);
        assert_eq!(largest_heap(&memory), Some((2, 5)));
        assert_eq!(largest_heap(&vk::PhysicalDeviceMemoryProperties::default()), None);
    }
}
