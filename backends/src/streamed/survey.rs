//! What devices there are, and what each is.

use std::ffi::{CStr, c_char, c_int};
use std::fs;

use spoc_driver::{DeviceInfo, DeviceUuid, Error, ErrorKind, Result};

use super::error::Api;
use super::flavour::Attributes;
use super::table::Ordinal;

/// A device, as it is before it is opened.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) device: Ordinal,
    pub(crate) info: DeviceInfo,
    /// What its code is compiled for.
    pub(crate) arch: String,
    pub(crate) facts: Facts,
}

/// What the API says that a device can do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    pub(crate) words: bool,
    pub(crate) registers: bool,
    pub(crate) virtual_memory: bool,
    pub(crate) descriptors: bool,
    /// Kernels use registered host memory at the host's address.
    pub(crate) same_addresses: bool,
}

impl Found {
    /// Every device of the process, in the API's order.
    ///
    /// # Errors
    /// What the API answers.
    pub(crate) fn all(api: &Api) -> Result<Vec<Self>> {
        let mut count = 0;
        // SAFETY: the place is valid.
        let code = unsafe { (api.library.device_count)(&raw mut count) };
        api.check(code, "counting devices")?;
        (0..count).map(|ordinal| Self::describe(api, ordinal)).collect()
    }

    fn describe(api: &Api, ordinal: c_int) -> Result<Self> {
        const DOING: &str = "describing a device";
        let mut device = 0;
        // SAFETY: the place is valid.
        api.check(unsafe { (api.library.device_get)(&raw mut device, ordinal) }, DOING)?;
        let mut total = 0_usize;
        // SAFETY: the place is valid, the device was just named by the API; so in the calls below.
        api.check(unsafe { (api.library.device_total_memory)(&raw mut total, device) }, DOING)?;
        let mut uuid = [0_u8; 16];
        // SAFETY: as above.
        api.check(unsafe { (api.library.device_uuid)(&raw mut uuid, device) }, DOING)?;
        let attributes = &api.flavour.traits().attributes;
        let has = |attribute| attribute_of(api, device, attribute).unwrap_or(0) > 0;
        let Attributes { words, registers, virtual_memory, same_addresses, .. } = *attributes;
        let facts = Facts {
            words: has(words),
            registers: has(registers),
            virtual_memory: has(virtual_memory),
            same_addresses: has(same_addresses),
            descriptors: attributes.descriptors.is_none_or(has),
        };
        let info = DeviceInfo {
            backend: api.flavour.kind(),
            index: u32::try_from(ordinal).unwrap_or(0),
            uuid: DeviceUuid(uuid),
            uuid_is_stable: true,
            name: name(api, device)?,
            memory_bytes: total as u64,
            numa_node: numa_node(api, device),
            unified: has(attributes.integrated),
        };
        Ok(Self { device, info, arch: api.flavour.arch(api, device), facts })
    }
}

/// One attribute; nothing where the driver does not know it.
pub(crate) fn attribute_of(api: &Api, device: Ordinal, attribute: u32) -> Option<i32> {
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
        .map_err(|error| Error::new(ErrorKind::Backend, "reading a name").because(error))?;
    Ok(text.to_string_lossy().into_owned())
}

fn name(api: &Api, device: Ordinal) -> Result<String> {
    text(|buffer, len| {
        // SAFETY: the buffer has `len` bytes.
        let code = unsafe { (api.library.device_name)(buffer, len, device) };
        api.check(code, "asking for a device's name")
    })
}

/// The node of the host's memory next to the device, by the driver's word or else by the kernel's.
fn numa_node(api: &Api, device: Ordinal) -> Option<u32> {
    let by_driver = attribute_of(api, device, api.flavour.traits().attributes.numa_node);
    if let Some(node) = by_driver.and_then(|node| u32::try_from(node).ok()) {
        return Some(node);
    }
    let address = text(|buffer, len| {
        // SAFETY: the buffer has `len` bytes.
        let code = unsafe { (api.library.device_pci_bus_id)(buffer, len, device) };
        api.check(code, "asking for a device's PCI address")
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
