//! What is particular to CUDA: contexts are pushed and popped, and some kernels come as PTX.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use spoc_driver::backend::{BackendKind, Launch};
use spoc_driver::{BuiltIn, Language, Result, Source};

use super::built_ins::{CARRY, CARRY_WIDE, COMPUTE, is_known, plan};
use super::library::Own;
use super::nvrtc::Nvrtc;
use crate::kernel::write::Dialect;
use crate::streamed::error::{Api, NOT_SUPPORTED, SUCCESS};
use crate::streamed::flavour::{Attributes, Flavour, Plan, Text, Traits};
use crate::streamed::memory::Buffer;
use crate::streamed::module::check_code;
use crate::streamed::rtc::Compiler;
use crate::streamed::survey::attribute_of;
use crate::streamed::table::{Code, DevicePtr, Handle, Ordinal};

/// The API, beyond what it has in common with others.
pub(super) struct Cuda(pub(super) Own);

static TRAITS: Traits = Traits {
    name: "CUDA",
    attributes: Attributes {
        words: Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS as u32,
        registers: Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED as u32,
        virtual_memory: Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as u32,
        same_addresses: Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM as u32,
        descriptors: Some(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as u32),
        integrated: Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED as u32,
        numa_node: Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID as u32,
    },
    // The legacy one, by its own name.
    default_stream: 1,
    languages: &[Language::Cuda, Language::Ptx, Language::Cubin],
    dialect: Dialect::Cuda,
    staged_bytes_max: 64 << 10,
    has_load_log: true,
    cuts_at_registrations: false,
    times_first_copies: false,
    refuses_files: false,
    adopts_contexts: true,
    words_since: "the driver has no call for words of 64 bits: CUDA 11.7 or newer is needed",
};

impl Cuda {
    /// What the API is called with, and in which version. Starts it.
    pub(super) fn start(&self) -> Result<c_int, String> {
        // SAFETY: the flags must be zero.
        let code = unsafe { (self.0.init)(0) };
        if code != SUCCESS {
            return Err(format!("CUDA does not start: {}", self.words(code)));
        }
        let mut version = 0;
        // SAFETY: the place is valid.
        match unsafe { (self.0.version)(&raw mut version) } {
            SUCCESS => Ok(version),
            code => Err(format!("CUDA has no version: {}", self.words(code))),
        }
    }
}

impl Flavour for Cuda {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn words(&self, code: Code) -> String {
        type Ask = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;
        let ask = |function: Option<Ask>| {
            let mut text = std::ptr::null();
            // SAFETY: the function writes a pointer to a constant string, or null for unknown codes.
            let answer = unsafe { function?(code, &raw mut text) };
            if answer != SUCCESS || text.is_null() {
                return None;
            }
            // SAFETY: a constant of the library, which is never unloaded.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = ask(self.0.error_name).unwrap_or_else(|| format!("CUDA error {code}"));
        match ask(self.0.error_text) {
            Some(text) => format!("{name}, {text}"),
            None => name,
        }
    }

    fn traits(&self) -> &'static Traits {
        &TRAITS
    }

    fn driver_name(&self, version: c_int) -> String {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        let module = std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
        let driver = if module.trim().is_empty() { "of unknown version" } else { module.trim() };
        format!("CUDA {major}.{minor}, driver {driver}")
    }

    fn retain(&self, device: Ordinal) -> Result<Handle, Code> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the place is valid; the device was enumerated.
        match unsafe { (self.0.primary_retain)(&raw mut raw, device) } {
            SUCCESS => Ok(raw),
            code => Err(code),
        }
    }

    fn release(&self, device: Ordinal) -> Code {
        // SAFETY: retained before, and given back once.
        unsafe { (self.0.primary_release)(device) }
    }

    fn enter(&self, context: Handle, _: Ordinal) -> Result<Ordinal, Code> {
        // SAFETY: whoever enters holds a reference to the context.
        match unsafe { (self.0.context_push)(context) } {
            SUCCESS => Ok(0),
            code => Err(code),
        }
    }

    fn leave(&self, _: Ordinal) -> Code {
        let mut before = std::ptr::null_mut();
        // SAFETY: pushed by `enter` on this thread.
        unsafe { (self.0.context_pop)(&raw mut before) }
    }

    fn current_device(&self) -> Result<Ordinal, Code> {
        let mut device = 0;
        // SAFETY: the place is valid, and a context is current.
        match unsafe { (self.0.context_device)(&raw mut device) } {
            SUCCESS => Ok(device),
            code => Err(code),
        }
    }

    unsafe fn is_stream_of(&self, stream: Handle, context: Handle, _: Ordinal) -> Result<bool, Code> {
        let mut own = std::ptr::null_mut();
        // SAFETY: the caller's word: a live stream.
        match unsafe { (self.0.stream_context)(stream, &raw mut own) } {
            SUCCESS => Ok(own == context),
            code => Err(code),
        }
    }

    fn waits_for_words(&self) -> bool {
        self.0.wait_value.is_some()
    }

    unsafe fn wait_value(&self, stream: Handle, address: DevicePtr, value: u64) -> Code {
        /// At least, counted in a circle.
        const AT_LEAST: u32 = 0;
        match self.0.wait_value {
            // SAFETY: the caller's word.
            Some(wait) => unsafe { wait(stream, address, value, AT_LEAST) },
            None => NOT_SUPPORTED,
        }
    }

    fn descriptor(&self, place: &mut c_int) -> Handle {
        // Its number in a pointer's place.
        std::ptr::without_provenance_mut(usize::try_from(*place).unwrap_or(usize::MAX))
    }

    /// Compute capability times ten: 90 for 9.0.
    fn arch(&self, api: &Api, device: Ordinal) -> String {
        let number = |attribute| attribute_of(api, device, attribute as u32).unwrap_or(0).max(0);
        let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        (10 * major + minor).to_string()
    }

    fn load_compiler(&self) -> Result<Box<dyn Compiler>, String> {
        Ok(Box::new(Nvrtc::load()?))
    }

    fn image(&self, name: &str, source: &Source) -> Result<Vec<u8>> {
        let mut image = source.text.to_vec();
        if source.language == Language::Ptx {
            image.push(0);
        } else {
            check_code(&image, name)?;
        }
        Ok(image)
    }

    fn has_built_in(&self, which: BuiltIn) -> bool {
        is_known(which)
    }

    fn built_in(&self, which: BuiltIn, launch: &Launch<'_, Buffer>) -> Result<Option<Plan>> {
        plan(which, launch)
    }

    fn ahead(&self) -> Option<(&'static Text, &'static str)> {
        Some((&COMPUTE, "fill_u8"))
    }

    fn carriers(&self) -> Option<[(&'static Text, &'static str); 2]> {
        Some([(&CARRY, "carry_pieces"), (&CARRY_WIDE, "carry_many")])
    }
}
