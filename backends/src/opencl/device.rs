//! Which devices there are, and what is known of each before it is opened.

use std::collections::HashMap;
use std::fs;
use std::ptr;
use std::sync::Arc;

use opencl_sys::{
    CL_DEVICE_AVAILABLE, CL_DEVICE_EXTENSIONS, CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_HOST_UNIFIED_MEMORY,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE, CL_DEVICE_MEM_BASE_ADDR_ALIGN, CL_DEVICE_NAME, CL_DEVICE_PCI_BUS_INFO_KHR,
    CL_DEVICE_TYPE, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU,
    CL_DEVICE_UUID_KHR, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DRIVER_VERSION, CL_PLATFORM_NAME,
    cl_device_id, cl_platform_id, cl_uint,
};
use spoc_driver::{BackendKind, DeviceInfo, DeviceUuid, Limits, Result};

use super::error::check;
use super::handle::Api;
use super::memory::Account;
use crate::identity;

/// A device, and what is known of it.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) id: DeviceId,
    pub(super) info: DeviceInfo,
    /// The API's version and the driver's, for records.
    pub(super) driver: String,
    pub(super) is_cpu: bool,
    pub(super) align_bytes: u64,
    pub(super) account: Arc<Account>,
}

/// The API's name of a device; root devices live as long as the process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceId(pub(super) cl_device_id);

// SAFETY: a name, good on every thread.
unsafe impl Send for DeviceId {}
// SAFETY: as above.
unsafe impl Sync for DeviceId {}

/// What there is, and why the rest cannot be used.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) devices: Vec<Found>,
    pub(super) remarks: Vec<String>,
}

impl Survey {
    /// Asks every platform for its devices.
    ///
    /// # Errors
    /// The API's word, if it has no platform.
    pub(super) fn of(api: &Api) -> Result<Self> {
        let mut survey = Self::default();
        for platform in platforms(api)? {
            let name = api.of_platform(platform, CL_PLATFORM_NAME).map(|name| name.text());
            let name = name.unwrap_or_else(|_| "a platform without a name".to_owned());
            if let Err(error) = survey.visit(api, platform, &name) {
                survey.remarks.push(format!("{name}: {error}"));
            }
        }
        survey.tell_apart();
        Ok(survey)
    }

    fn visit(&mut self, api: &Api, platform: cl_platform_id, name: &str) -> Result<()> {
        for device in devices(api, platform)? {
            match describe(api, device, name) {
                Ok(Ok(found)) => self.devices.push(found),
                Ok(Err(reason)) => self.remarks.push(format!("{name}: {reason}")),
                Err(error) => self.remarks.push(format!("{name}: {error}")),
            }
        }
        Ok(())
    }

    /// Numbers the devices, and gives names to those that the API names all alike.
    fn tell_apart(&mut self) {
        let mut alike: HashMap<String, u32> = HashMap::new();
        for (index, found) in (0..).zip(&mut self.devices) {
            found.info.index = index;
            let position = alike.entry(found.info.name.clone()).or_default();
            if !found.info.uuid_is_stable {
                found.info.uuid = identity::derived_uuid(&format!("opencl {} {position}", found.info.name));
            }
            *position += 1;
        }
    }
}

fn platforms(api: &Api) -> Result<Vec<cl_platform_id>> {
    const DOING: &str = "listing OpenCL platforms";
    let mut count: cl_uint = 0;
    // SAFETY: asks for the count only.
    check(unsafe { (api.library.get_platform_ids)(0, ptr::null_mut(), &raw mut count) }, DOING)?;
    let mut ids = vec![ptr::null_mut(); count as usize];
    // SAFETY: there is room for `count`.
    check(unsafe { (api.library.get_platform_ids)(count, ids.as_mut_ptr(), ptr::null_mut()) }, DOING)?;
    Ok(ids)
}

fn devices(api: &Api, platform: cl_platform_id) -> Result<Vec<cl_device_id>> {
    const DOING: &str = "listing OpenCL devices";
    let (all, mut count) = (CL_DEVICE_TYPE_ALL, 0);
    // SAFETY: asks for the count only.
    let code = unsafe { (api.library.get_device_ids)(platform, all, 0, ptr::null_mut(), &raw mut count) };
    check(code, DOING)?;
    let mut ids = vec![ptr::null_mut(); count as usize];
    // SAFETY: there is room for `count`.
    let code =
        unsafe { (api.library.get_device_ids)(platform, all, count, ids.as_mut_ptr(), ptr::null_mut()) };
    check(code, DOING)?;
    Ok(ids)
}

/// The device, or why it cannot be used. Position and derived UUID come later.
pub(super) fn describe(api: &Api, id: cl_device_id, platform: &str) -> Result<Result<Found, String>> {
    let number = |name| api.of_device(id, name).map(|property| property.number());
    let text = |name| api.of_device(id, name).map(|property| property.text());
    let (kind, model) = (number(CL_DEVICE_TYPE)?, text(CL_DEVICE_NAME)?);
    if number(CL_DEVICE_AVAILABLE)? == 0 {
        return Ok(Err(format!("{model} is not available")));
    }
    let version = text(CL_DEVICE_VERSION)?;
    if !has_markers(&version) {
        return Ok(Err(format!("{model} offers {version}, but 1.2 is needed")));
    }
    let is_cpu = kind & CL_DEVICE_TYPE_CPU != 0;
    // Deprecated, but still answered; where not, only CPUs are known to share the host's memory.
    let unified = number(CL_DEVICE_HOST_UNIFIED_MEMORY).map_or(is_cpu, |answer| answer != 0);
    let memory_bytes = number(CL_DEVICE_GLOBAL_MEM_SIZE)?;
    let uuid = own_uuid(api, id);
    let info = DeviceInfo {
        backend: BackendKind::OpenCl,
        index: 0,
        uuid: uuid.unwrap_or(DeviceUuid([0; 16])),
        uuid_is_stable: uuid.is_some(),
        name: format!("{model} ({platform} of {}, {})", text(CL_DEVICE_VENDOR)?, type_name(kind)),
        memory_bytes,
        numa_node: if is_cpu { identity::numa_node() } else { bus_numa_node(api, id) },
        unified,
    };
    let account = Account::new(memory_bytes, number(CL_DEVICE_MAX_MEM_ALLOC_SIZE)?, is_cpu || unified);
    let align_bytes = align_bytes(number(CL_DEVICE_MEM_BASE_ADDR_ALIGN)?);
    let driver = format!("{version}, driver {}", text(CL_DRIVER_VERSION)?);
    Ok(Ok(Found { id: DeviceId(id), info, driver, is_cpu, align_bytes, account }))
}

impl Found {
    pub(super) fn limits(&self) -> Limits {
        Limits {
            segment_bytes_max: self.account.allocation_bytes_max,
            binding_bytes_max: self.account.allocation_bytes_max,
            copy_granule_bytes: 1,
            address_align_bytes: self.align_bytes,
            export_granule_bytes: 1,
            // Nothing promises otherwise, and runtimes over a GPU's own API inherit its waits.
            free_waits_for_device: !self.is_cpu,
        }
    }
}

/// The API gives the alignment of buffers in bits.
fn align_bytes(align_bits: u64) -> u64 {
    (align_bits / 8).max(1)
}

/// `OpenCL <major>.<minor> <vendor's words>`: waits and fills came with 1.2.
fn has_markers(version: &str) -> bool {
    let number = version.strip_prefix("OpenCL ").and_then(|rest| rest.split_whitespace().next());
    let parsed = number.and_then(|number| {
        let (major, minor) = number.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    parsed.is_some_and(|version| version >= (1, 2))
}

fn type_name(kind: u64) -> &'static str {
    match kind {
        kind if kind & CL_DEVICE_TYPE_GPU != 0 => "GPU",
        kind if kind & CL_DEVICE_TYPE_CPU != 0 => "CPU",
        kind if kind & CL_DEVICE_TYPE_ACCELERATOR != 0 => "accelerator",
        _ => "other",
    }
}

fn has_extension(api: &Api, id: cl_device_id, extension: &str) -> bool {
    let all = api.of_device(id, CL_DEVICE_EXTENSIONS).map(|all| all.text()).unwrap_or_default();
    all.split_whitespace().any(|name| name == extension)
}

/// The vendor's UUID, where the device has one.
fn own_uuid(api: &Api, id: cl_device_id) -> Option<DeviceUuid> {
    if !has_extension(api, id, "cl_khr_device_uuid") {
        return None;
    }
    let uuid = api.of_device(id, CL_DEVICE_UUID_KHR).ok()?.uuid()?;
    (uuid != [0; 16]).then_some(DeviceUuid(uuid))
}

/// The NUMA node of the device's slot.
fn bus_numa_node(api: &Api, id: cl_device_id) -> Option<u32> {
    if !has_extension(api, id, "cl_khr_pci_bus_info") {
        return None;
    }
    let place = api.of_device(id, CL_DEVICE_PCI_BUS_INFO_KHR).ok()?.words();
    let [domain, bus, device, function] = *place.as_slice() else { return None };
    let slot = format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.{function}/numa_node");
    fs::read_to_string(slot).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_given_in_bits() {
        assert_eq!(align_bytes(1024), 128);
        assert_eq!(align_bytes(0), 1);
    }

    #[test]
    fn versions_before_markers_are_told_apart() {
        for fine in ["OpenCL 1.2 PoCL", "OpenCL 3.0 CUDA 13.0", "OpenCL 10.0"] {
            assert!(has_markers(fine), "{fine}");
        }
        for not in ["OpenCL 1.1 Mesa", "OpenCL", "", "3.0", "OpenCL x.y"] {
            assert!(!has_markers(not), "{not}");
        }
    }

    #[test]
    fn types_have_names() {
        assert_eq!(type_name(CL_DEVICE_TYPE_CPU | 1), "CPU");
        assert_eq!(type_name(CL_DEVICE_TYPE_GPU), "GPU");
        assert_eq!(type_name(0), "other");
    }
}
