//! What a physical device is: its names, bounds, queues and kinds of memory.

use std::ffi::CStr;
use std::fs;

use ash::{ext, khr, vk};
use spoc_driver::{BackendKind, DeviceInfo, DeviceUuid};

use super::error::name_of;
use crate::identity;

/// AMD's vendor number on the PCI bus.
const AMD: u32 = 0x1002;

/// A device that serves, as it is before it is opened.
#[derive(Clone)]
pub(super) struct Physical {
    pub(super) raw: vk::PhysicalDevice,
    pub(super) info: DeviceInfo,
    /// It computes on the processor, in the machine's memory.
    pub(super) is_software: bool,
    /// Name and version of its driver, for messages.
    pub(super) driver: String,
    pub(super) memory: vk::PhysicalDeviceMemoryProperties,
    pub(super) segment_limit: SegmentLimit,
    pub(super) binding_bytes_max: u64,
    pub(super) storage_align_bytes: u64,
    pub(super) import_align_bytes: u64,
    pub(super) extensions: Extensions,
    pub(super) is_amd: bool,
    pub(super) family: Family,
    /// The family that runs kernels: the one that copies, where it can.
    pub(super) compute: Option<Family>,
    pub(super) features: Features,
    pub(super) bounds: LaunchBounds,
    /// Which device and driver a compiled kernel is good for.
    pub(super) cache_uuid: [u8; vk::UUID_SIZE],
}

/// Kinds of numbers that kernels may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Features {
    pub(super) i64: bool,
    pub(super) f64: bool,
    pub(super) f16: bool,
    pub(super) storage_16: bool,
}

/// What a launch may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LaunchBounds {
    pub(super) groups: [u32; 3],
    pub(super) group: [u32; 3],
    pub(super) group_threads: u32,
    pub(super) group_bytes: u32,
    pub(super) scalars_bytes: u32,
    pub(super) buffers: u32,
}

/// What bounds a single allocation, and what that bound is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentLimit {
    pub(super) bytes: u64,
    pub(super) name: &'static str,
}

/// Optional extensions that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Extensions {
    pub(super) memory_fd: bool,
    pub(super) host_import: bool,
    pub(super) memory_budget: bool,
    pci_bus_info: bool,
    maintenance4: bool,
}

/// A queue family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) index: u32,
    pub(super) queues: u32,
}

impl Physical {
    /// Describes a device.
    ///
    /// # Errors
    /// Why it does not serve.
    pub(super) fn describe(
        instance: &ash::Instance,
        raw: vk::PhysicalDevice,
        index: u32,
    ) -> Result<Self, String> {
        // SAFETY: `raw` was enumerated from this live instance; so in the other calls here.
        let basic = unsafe { instance.get_physical_device_properties(raw) };
        let name = basic.device_name_as_c_str().unwrap_or_default().to_string_lossy().into_owned();
        require_version(&name, basic.api_version)?;
        require_timelines(instance, raw, &name)?;
        let extensions = Extensions::read(instance, raw, basic.api_version)?;
        let asked = Asked::of(instance, raw, extensions);
        // SAFETY: as above.
        let memory = unsafe { instance.get_physical_device_memory_properties(raw) };
        // SAFETY: as above.
        let families = unsafe { instance.get_physical_device_queue_family_properties(raw) };
        let family = choose_family(&families).ok_or_else(|| format!("{name}: no queue that copies"))?;
        let compute = compute_family(&families, family);
        let heap_bytes = device_heap_bytes(&memory);
        let is_software = basic.device_type == vk::PhysicalDeviceType::CPU;
        let info = DeviceInfo {
            backend: BackendKind::Vulkan,
            index,
            uuid: asked.uuid,
            // A software device's is made from its driver's version: it changes with an update.
            uuid_is_stable: !is_software,
            name,
            memory_bytes: heap_bytes,
            numa_node: if is_software { identity::numa_node() } else { asked.numa_node },
            unified: matches!(
                basic.device_type,
                vk::PhysicalDeviceType::INTEGRATED_GPU | vk::PhysicalDeviceType::CPU
            ),
        };
        Ok(Self {
            raw,
            info,
            is_software,
            driver: asked.driver,
            memory,
            segment_limit: smallest(asked.allocation_bytes_max, asked.buffer_bytes_max, heap_bytes),
            binding_bytes_max: u64::from(basic.limits.max_storage_buffer_range),
            storage_align_bytes: basic.limits.min_storage_buffer_offset_alignment,
            import_align_bytes: asked.import_align_bytes,
            extensions,
            is_amd: is_amd(asked.driver_id, basic.vendor_id),
            family,
            compute,
            features: Features::read(instance, raw),
            bounds: LaunchBounds {
                groups: basic.limits.max_compute_work_group_count,
                group: basic.limits.max_compute_work_group_size,
                group_threads: basic.limits.max_compute_work_group_invocations,
                group_bytes: basic.limits.max_compute_shared_memory_size,
                scalars_bytes: basic.limits.max_push_constants_size,
                buffers: basic.limits.max_per_stage_descriptor_storage_buffers,
            },
            cache_uuid: basic.pipeline_cache_uuid,
        })
    }
}

impl Features {
    fn read(instance: &ash::Instance, raw: vk::PhysicalDevice) -> Self {
        let mut halves = vk::PhysicalDeviceShaderFloat16Int8Features::default();
        let mut storage = vk::PhysicalDevice16BitStorageFeatures::default();
        let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut halves).push_next(&mut storage);
        // SAFETY: the device belongs to this live instance and has 1.2, which knows what is chained.
        unsafe { instance.get_physical_device_features2(raw, &mut all) };
        let basic = all.features;
        Self {
            i64: basic.shader_int64 == vk::TRUE,
            f64: basic.shader_float64 == vk::TRUE,
            f16: halves.shader_float16 == vk::TRUE,
            storage_16: storage.storage_buffer16_bit_access == vk::TRUE,
        }
    }
}

impl Physical {
    /// The family that runs kernels, where it is not the one that copies.
    pub(super) fn other_family(&self) -> Option<Family> {
        self.compute.filter(|compute| compute.index != self.family.index)
    }
}

fn require_version(name: &str, version: u32) -> Result<(), String> {
    if version >= vk::API_VERSION_1_2 {
        return Ok(());
    }
    let (major, minor) = (vk::api_version_major(version), vk::api_version_minor(version));
    Err(format!("{name}: Vulkan {major}.{minor}, 1.2 is needed"))
}

fn require_timelines(instance: &ash::Instance, raw: vk::PhysicalDevice, name: &str) -> Result<(), String> {
    let mut timelines = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut timelines);
    // SAFETY: the device belongs to this live instance; the chain is of known structures.
    unsafe { instance.get_physical_device_features2(raw, &mut features) };
    if timelines.timeline_semaphore == vk::TRUE {
        return Ok(());
    }
    Err(format!("{name}: no timeline semaphores"))
}

impl Extensions {
    fn read(instance: &ash::Instance, raw: vk::PhysicalDevice, api_version: u32) -> Result<Self, String> {
        // SAFETY: the device belongs to this live instance.
        let list = unsafe { instance.enumerate_device_extension_properties(raw) }
            .map_err(|result| format!("a device lists no extensions: {}", name_of(result)))?;
        let has = |name: &CStr| list.iter().any(|known| known.extension_name_as_c_str() == Ok(name));
        Ok(Self {
            memory_fd: has(khr::external_memory_fd::NAME),
            host_import: has(ext::external_memory_host::NAME),
            memory_budget: has(ext::memory_budget::NAME),
            pci_bus_info: has(ext::pci_bus_info::NAME),
            maintenance4: api_version >= vk::API_VERSION_1_3 || has(khr::maintenance4::NAME),
        })
    }
}

/// What the extended properties say.
struct Asked {
    uuid: DeviceUuid,
    driver: String,
    driver_id: vk::DriverId,
    allocation_bytes_max: u64,
    buffer_bytes_max: Option<u64>,
    import_align_bytes: u64,
    numa_node: Option<u32>,
}

impl Asked {
    fn of(instance: &ash::Instance, raw: vk::PhysicalDevice, extensions: Extensions) -> Self {
        let mut id = vk::PhysicalDeviceIDProperties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut sizes = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut buffers = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut import = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut pci = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut id)
            .push_next(&mut driver)
            .push_next(&mut sizes);
        if extensions.maintenance4 {
            all = all.push_next(&mut buffers);
        }
        if extensions.host_import {
            all = all.push_next(&mut import);
        }
        if extensions.pci_bus_info {
            all = all.push_next(&mut pci);
        }
        // SAFETY: the device belongs to this live instance; only structures it knows are chained.
        unsafe { instance.get_physical_device_properties2(raw, &mut all) };
        let text = |text: Result<&CStr, _>| text.unwrap_or_default().to_string_lossy().into_owned();
        Self {
            uuid: DeviceUuid(id.device_uuid),
            driver: format!(
                "{} {}",
                text(driver.driver_name_as_c_str()),
                text(driver.driver_info_as_c_str())
            ),
            driver_id: driver.driver_id,
            allocation_bytes_max: sizes.max_memory_allocation_size,
            buffer_bytes_max: extensions.maintenance4.then_some(buffers.max_buffer_size),
            import_align_bytes: import.min_imported_host_pointer_alignment,
            numa_node: if extensions.pci_bus_info { numa_node(&pci) } else { None },
        }
    }
}

/// The node that the kernel says the device hangs on; none where it says −1.
fn numa_node(pci: &vk::PhysicalDevicePCIBusInfoPropertiesEXT<'_>) -> Option<u32> {
    let (domain, bus, device, function) = (pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function);
    let path = format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.{function:x}/numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn is_amd(driver: vk::DriverId, vendor: u32) -> bool {
    let drivers = [vk::DriverId::AMD_PROPRIETARY, vk::DriverId::AMD_OPEN_SOURCE, vk::DriverId::MESA_RADV];
    drivers.contains(&driver) || vendor == AMD
}

fn smallest(allocation: u64, buffer: Option<u64>, heap: u64) -> SegmentLimit {
    [
        (allocation, "maxMemoryAllocationSize"),
        (buffer.unwrap_or(u64::MAX), "maxBufferSize"),
        (heap, "the size of the memory heap"),
    ]
    .into_iter()
    .map(|(bytes, name)| SegmentLimit { bytes, name })
    .min_by_key(|limit| limit.bytes)
    .unwrap_or(SegmentLimit { bytes: 0, name: "none" })
}

/// The family with the fewest duties beside copying. Video families copy too, but are left alone.
fn choose_family(families: &[vk::QueueFamilyProperties]) -> Option<Family> {
    const DUTIES: vk::QueueFlags =
        vk::QueueFlags::from_raw(vk::QueueFlags::GRAPHICS.as_raw() | vk::QueueFlags::COMPUTE.as_raw());
    const VIDEO: vk::QueueFlags = vk::QueueFlags::from_raw(
        vk::QueueFlags::VIDEO_DECODE_KHR.as_raw() | vk::QueueFlags::VIDEO_ENCODE_KHR.as_raw(),
    );
    // Graphics and compute imply copying, whether or not the flag is set.
    let copies = |flags: vk::QueueFlags| flags.intersects(DUTIES | vk::QueueFlags::TRANSFER);
    let usable = families.iter().zip(0_u32..).filter(|(family, _)| {
        family.queue_count > 0 && copies(family.queue_flags) && !family.queue_flags.intersects(VIDEO)
    });
    usable
        .min_by_key(|(family, _)| (family.queue_flags & DUTIES).as_raw().count_ones())
        .map(|(family, index)| Family { index, queues: family.queue_count })
}

/// The family that runs kernels: the one that copies, or the one with the fewest other duties.
fn compute_family(families: &[vk::QueueFamilyProperties], copies: Family) -> Option<Family> {
    let computes = |family: &vk::QueueFamilyProperties| {
        family.queue_count > 0 && family.queue_flags.contains(vk::QueueFlags::COMPUTE)
    };
    if families.get(copies.index as usize).is_some_and(computes) {
        return Some(copies);
    }
    let usable = families.iter().zip(0_u32..).filter(|(family, _)| computes(family));
    usable
        .min_by_key(|(family, _)| family.queue_flags.contains(vk::QueueFlags::GRAPHICS))
        .map(|(family, index)| Family { index, queues: family.queue_count })
}

/// The largest heap that is the device's own.
fn device_heap_bytes(memory: &vk::PhysicalDeviceMemoryProperties) -> u64 {
    memory
        .memory_heaps_as_slice()
        .iter()
        .filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .map(|heap| heap.size)
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_is_named() {
        assert_eq!(smallest(2, Some(3), 4).name, "maxMemoryAllocationSize");
        assert_eq!(smallest(9, Some(3), 4).name, "maxBufferSize");
        assert_eq!(smallest(9, None, 4), SegmentLimit { bytes: 4, name: "the size of the memory heap" });
    }

    #[test]
    fn a_transfer_family_is_preferred_and_video_is_left_alone() {
        let family = |flags, count| vk::QueueFamilyProperties {
            queue_flags: flags,
            queue_count: count,
            ..Default::default()
        };
        let all = vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER;
        let video = vk::QueueFlags::TRANSFER | vk::QueueFlags::VIDEO_DECODE_KHR;
        let families = [
            family(all, 16),
            family(video, 1),
            family(vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER, 8),
            family(vk::QueueFlags::TRANSFER, 2),
        ];
        assert_eq!(choose_family(&families), Some(Family { index: 3, queues: 2 }));
        assert_eq!(choose_family(&families[..3]), Some(Family { index: 2, queues: 8 }));
        assert_eq!(choose_family(&families[..2]), Some(Family { index: 0, queues: 16 }));
        assert_eq!(choose_family(&families[1..2]), None);
        let copies = Family { index: 3, queues: 2 };
        assert_eq!(compute_family(&families, copies), Some(Family { index: 2, queues: 8 }));
        let own = Family { index: 0, queues: 16 };
        assert_eq!(compute_family(&families, own), Some(own));
        assert_eq!(compute_family(&families[1..2], copies), None);
    }

    #[test]
    fn amd_is_known_by_driver_and_by_vendor() {
        assert!(is_amd(vk::DriverId::MESA_RADV, 0));
        assert!(is_amd(vk::DriverId::AMD_OPEN_SOURCE, 0));
        assert!(is_amd(vk::DriverId::AMD_PROPRIETARY, 0));
        assert!(is_amd(vk::DriverId::default(), AMD));
        assert!(!is_amd(vk::DriverId::MESA_LLVMPIPE, 0x10005));
    }

    #[test]
    fn versions_below_1_2_are_refused_by_number() {
        let error = require_version("card", vk::API_VERSION_1_1).unwrap_err();
        assert_eq!(error, "card: Vulkan 1.1, 1.2 is needed");
        assert!(require_version("card", vk::API_VERSION_1_2).is_ok());
    }
}
