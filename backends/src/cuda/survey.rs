//! What devices there are, and what each is.

use std::ffi::{CStr, c_char, c_int};
use std::fs;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};
use spoc_driver::{BackendKind, DeviceInfo, DeviceUuid, Error, ErrorKind, Result};

use super::error::Api;

/// A device, as it is before it is opened.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) device: CUdevice,
    pub(super) info: DeviceInfo,
    /// Compute capability times ten: 90 for 9.0.
    pub(super) arch: u32,
    pub(super) facts: Facts,
}

/// What the API says that a device can do.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    pub(super) words: bool,
    pub(super) registers: bool,
    pub(super) virtual_memory: bool,
    pub(super) descriptors: bool,
    /// Kernels use registered host memory at the host's address.
    pub(super) same_addresses: bool,
}

impl Found {
    /// Every device of the process, in the API's order.
    ///
    /// # Errors
    /// What the API answers.
    pub(super) fn all(api: &Api) -> Result<Vec<Self>> {
        let mut count = 0;
        // SAFETY: the place is valid.
        let code = unsafe { (api.library.device_count)(&raw mut count) };
        api.check(code, "counting CUDA devices")?;
        (0..count).map(|ordinal| Self::describe(api, ordinal)).collect()
    }

    fn describe(api: &Api, ordinal: c_int) -> Result<Self> {
        const DOING: &str = "describing a CUDA device";
        let mut device = 0;
        // SAFETY: the place is valid.
        api.check(unsafe { (api.library.device_get)(&raw mut device, ordinal) }, DOING)?;
        let mut total = 0_usize;
        // SAFETY: the place is valid, the device was just named by the API; so in the calls below.
        api.check(unsafe { (api.library.device_total_memory)(&raw mut total, device) }, DOING)?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: as above.
        api.check(unsafe { (api.library.device_uuid)(&raw mut uuid, device) }, DOING)?;
        let has = |attribute| attribute_of(api, device, attribute).unwrap_or(0) > 0;
        let number =
            |attribute| attribute_of(api, device, attribute).and_then(|number| u32::try_from(number).ok());
        let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).unwrap_or(0);
        let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR).unwrap_or(0);
        let facts = Facts {
            words: has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS),
            registers: has(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
            virtual_memory: has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
            same_addresses: has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
            descriptors: has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        };
        let info = DeviceInfo {
            backend: BackendKind::Cuda,
            index: u32::try_from(ordinal).unwrap_or(0),
            uuid: DeviceUuid(uuid.bytes.map(|byte| byte.to_ne_bytes()[0])),
            uuid_is_stable: true,
            name: name(api, device)?,
            memory_bytes: total as u64,
            numa_node: numa_node(api, device),
            unified: has(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
        };
        Ok(Self { device, info, arch: 10 * major + minor, facts })
    }
}

/// One attribute; nothing where the driver does not know it.
fn attribute_of(api: &Api, device: CUdevice, attribute: Attribute) -> Option<i32> {
    let mut value = 0;
    // SAFETY: the place is valid; drivers refuse attributes that they do not know.
    let code = unsafe { (api.library.device_attribute)(&raw mut value, attribute, device) };
    (code == super::error::SUCCESS).then_some(value)
}

/// A text that the API writes into a buffer of ours.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut buffer = [0_u8; 256];
    write(buffer.as_mut_ptr().cast(), 255)?;
    // The last byte stays zero whatever is written.
    let text = CStr::from_bytes_until_nul(&buffer)
        .map_err(|error| Error::new(ErrorKind::Backend, "reading a CUDA name").because(error))?;
    Ok(text.to_string_lossy().into_owned())
}

fn name(api: &Api, device: CUdevice) -> Result<String> {
    text(|buffer, len| {
        // SAFETY: the buffer has `len` bytes.
        let code = unsafe { (api.library.device_name)(buffer, len, device) };
        api.check(code, "asking for a CUDA device's name")
    })
}

/// The node of the host's memory next to the device, by the driver's word or else by the kernel's.
fn numa_node(api: &Api, device: CUdevice) -> Option<u32> {
    let by_driver = attribute_of(api, device, Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    if let Some(node) = by_driver.and_then(|node| u32::try_from(node).ok()) {
        return Some(node);
    }
    let address = text(|buffer, len| {
        // SAFETY: the buffer has `len` bytes.
        let code = unsafe { (api.library.device_pci_bus_id)(buffer, len, device) };
        api.check(code, "asking for a CUDA device's PCI address")
    });
    let path = format!("/sys/bus/pci/devices/{}/numa_node", sysfs_name(&address.ok()?));
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The kernel's name for a PCI address: lower case, and a domain of four digits (the API may write eight).
fn sysfs_name(address: &str) -> String {
    let lower = address.trim().to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            format!("{:0>4}:{rest}", domain.trim_start_matches('0'))
        }
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_those_of_the_kernel() {
        assert_eq!(sysfs_name("0000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(sysfs_name("00000000:AF:00.0"), "0000:af:00.0");
        assert_eq!(sysfs_name("00010000:01:00.0"), "10000:01:00.0");
    }

    #[test]
    fn texts_end_where_they_end() {
        let hello = |buffer: *mut c_char, len: c_int| {
            assert_eq!(len, 255);
            // SAFETY: the buffer is longer than the text.
            unsafe { std::ptr::copy_nonoverlapping(c"hello".as_ptr(), buffer, 6) };
            Ok(())
        };
        assert_eq!(text(hello).unwrap(), "hello");
    }
}
