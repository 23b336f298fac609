//! Reading properties of the API's objects.

use std::ffi::c_void;
use std::ptr;

use opencl_sys::{cl_device_id, cl_int, cl_platform_id, cl_uint};
use spoc_driver::Result;

use super::error::check;
use super::handle::{Api, Context, Mem, Program, Queue};

/// A property's bytes.
pub(super) struct Property(Vec<u8>);

impl Property {
    /// Reads what `call` gives: once for the size, once for the bytes.
    fn read(call: impl Fn(usize, *mut c_void, *mut usize) -> cl_int) -> Result<Self> {
        const DOING: &str = "reading an OpenCL property";
        let mut len = 0;
        check(call(0, ptr::null_mut(), &raw mut len), DOING)?;
        let mut bytes = vec![0; len];
        if len > 0 {
            check(call(len, bytes.as_mut_ptr().cast(), ptr::null_mut()), DOING)?;
        }
        Ok(Self(bytes))
    }

    /// A number of 32 or 64 bits; 0 for anything else.
    pub(super) fn number(&self) -> u64 {
        match *self.0.as_slice() {
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        }
    }

    /// A number of 32 bits for every four bytes.
    pub(super) fn words(&self) -> Vec<u32> {
        self.0.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    }

    /// Pointers to objects of the API.
    pub(super) fn pointers(&self) -> Vec<*mut c_void> {
        let pointer =
            |bytes: &[u8; size_of::<usize>()]| ptr::with_exposed_provenance_mut(usize::from_ne_bytes(*bytes));
        self.0.as_chunks().0.iter().map(pointer).collect()
    }

    /// The first of them.
    pub(super) fn pointer(&self) -> *mut c_void {
        self.pointers().first().copied().unwrap_or(ptr::null_mut())
    }

    /// Text up to its terminator, without what surrounds it.
    pub(super) fn text(&self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).trim().to_owned()
    }

    /// Exactly 16 bytes.
    pub(super) fn uuid(&self) -> Option<[u8; 16]> {
        self.0.as_slice().try_into().ok()
    }
}

impl Api {
    pub(super) fn of_platform(&self, platform: cl_platform_id, name: cl_uint) -> Result<Property> {
        // SAFETY: the platform came from the API, and `read` gives room for what it says.
        Property::read(|len, to, needed| unsafe {
            (self.library.get_platform_info)(platform, name, len, to, needed)
        })
    }

    pub(super) fn of_device(&self, device: cl_device_id, name: cl_uint) -> Result<Property> {
        // SAFETY: as above; root devices live as long as the process.
        Property::read(|len, to, needed| unsafe {
            (self.library.get_device_info)(device, name, len, to, needed)
        })
    }
}

impl Context {
    pub(super) fn property(&self, name: cl_uint) -> Result<Property> {
        // SAFETY: as above; `self` keeps the object.
        Property::read(|len, to, needed| unsafe {
            (self.api().library.get_context_info)(self.raw(), name, len, to, needed)
        })
    }
}

impl Queue {
    pub(super) fn property(&self, name: cl_uint) -> Result<Property> {
        // SAFETY: as above.
        Property::read(|len, to, needed| unsafe {
            (self.api().library.get_command_queue_info)(self.raw(), name, len, to, needed)
        })
    }
}

impl Mem {
    pub(super) fn property(&self, name: cl_uint) -> Result<Property> {
        // SAFETY: as above.
        Property::read(|len, to, needed| unsafe {
            (self.api().library.get_mem_object_info)(self.raw(), name, len, to, needed)
        })
    }
}

impl Program {
    pub(super) fn property(&self, name: cl_uint) -> Result<Property> {
        // SAFETY: as above.
        Property::read(|len, to, needed| unsafe {
            (self.api().library.get_program_info)(self.raw(), name, len, to, needed)
        })
    }

    /// Of its build for a device.
    pub(super) fn build_property(&self, device: cl_device_id, name: cl_uint) -> Result<Property> {
        // SAFETY: as above; the program was built for this device.
        Property::read(|len, to, needed| unsafe {
            (self.api().library.get_program_build_info)(self.raw(), device, name, len, to, needed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_by_their_size() {
        assert_eq!(Property(7_u32.to_ne_bytes().to_vec()).number(), 7);
        assert_eq!(Property(u64::MAX.to_ne_bytes().to_vec()).number(), u64::MAX);
        assert_eq!(Property(vec![1, 2, 3]).number(), 0);
        assert_eq!(Property(b" a name \0rest".to_vec()).text(), "a name");
        assert_eq!(Property(vec![0; 8]).words(), [0, 0]);
        assert!(Property(vec![0; 15]).uuid().is_none());
        assert!(Property(Vec::new()).pointer().is_null());
    }
}
