//! The API's codes as errors of the driver.
//!
//! Three families: a call that was refused, with everything as it was before; a context that is gone; and a
//! fault on the device, after which every context of the process is dead and no reset helps, so that only a
//! new process does (seen on an H200: the primary context can be reset then, but not used).

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use spoc_driver::{Error, ErrorKind, Result};

use super::library::{Code, Library};

/// The functions, and what was asked of them once.
pub(super) struct Api {
    pub(super) library: Library,
    /// As the API counts: 13000 is 13.0.
    pub(super) version: i32,
    process: u32,
}

impl Api {
    pub(super) fn new(library: Library, version: i32) -> Arc<Self> {
        Arc::new(Self { library, version, process: std::process::id() })
    }

    /// Whether this is still the process that loaded the API. A forked child can use none of it.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// A code as the result of a call.
    pub(super) fn check(&self, code: Code, doing: &'static str) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(kind_of(code), code, doing)) }
    }

    /// An error of this kind, with the code's name and meaning.
    pub(super) fn error(&self, kind: ErrorKind, code: Code, doing: &'static str) -> Error {
        let mut error = Error::new(kind, doing).with("code", code);
        if code == NOT_INITIALIZED && !self.is_own_process() {
            error = error.with("fork", "the process was forked after CUDA was loaded, which CUDA forbids");
        }
        error.because(CudaError::of(&self.library, code))
    }
}

/// A code with its name and the driver's words for it.
#[derive(Debug)]
pub(super) struct CudaError(String);

impl CudaError {
    pub(super) fn of(library: &Library, code: Code) -> Self {
        type Ask = unsafe extern "C" fn(Code, *mut *const std::ffi::c_char) -> Code;
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
        let name = ask(library.error_name).unwrap_or_else(|| format!("CUDA error {code}"));
        Self(match ask(library.error_text) {
            Some(text) => format!("{name}, {text}"),
            None => name,
        })
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CudaError {}

macro_rules! codes {
    ($($name:ident = $known:ident,)*) => {
        $(pub(super) const $name: Code = CUresult::$known as Code;)*
    };
}

codes! {
    SUCCESS = CUDA_SUCCESS,
    INVALID_VALUE = CUDA_ERROR_INVALID_VALUE,
    OUT_OF_MEMORY = CUDA_ERROR_OUT_OF_MEMORY,
    NOT_INITIALIZED = CUDA_ERROR_NOT_INITIALIZED,
    DEINITIALIZED = CUDA_ERROR_DEINITIALIZED,
    NO_DEVICE = CUDA_ERROR_NO_DEVICE,
    INVALID_DEVICE = CUDA_ERROR_INVALID_DEVICE,
    INVALID_CONTEXT = CUDA_ERROR_INVALID_CONTEXT,
    ECC_UNCORRECTABLE = CUDA_ERROR_ECC_UNCORRECTABLE,
    NVLINK_UNCORRECTABLE = CUDA_ERROR_NVLINK_UNCORRECTABLE,
    OPERATING_SYSTEM = CUDA_ERROR_OPERATING_SYSTEM,
    INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE,
    NOT_READY = CUDA_ERROR_NOT_READY,
    ILLEGAL_ADDRESS = CUDA_ERROR_ILLEGAL_ADDRESS,
    LAUNCH_TIMEOUT = CUDA_ERROR_LAUNCH_TIMEOUT,
    CONTEXT_IS_DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED,
    ASSERT = CUDA_ERROR_ASSERT,
    ALREADY_REGISTERED = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
    NOT_REGISTERED = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    HARDWARE_STACK = CUDA_ERROR_HARDWARE_STACK_ERROR,
    ILLEGAL_INSTRUCTION = CUDA_ERROR_ILLEGAL_INSTRUCTION,
    MISALIGNED_ADDRESS = CUDA_ERROR_MISALIGNED_ADDRESS,
    INVALID_ADDRESS_SPACE = CUDA_ERROR_INVALID_ADDRESS_SPACE,
    INVALID_PC = CUDA_ERROR_INVALID_PC,
    LAUNCH_FAILED = CUDA_ERROR_LAUNCH_FAILED,
    NOT_SUPPORTED = CUDA_ERROR_NOT_SUPPORTED,
    CAPTURE_UNSUPPORTED = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CAPTURE_WRONG_THREAD = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
}

/// `CUDA_ERROR_CONTAINED`: a fault that was kept to this process. Newer than the binding.
const CONTAINED: Code = 721;

/// What a failed call means.
pub(super) fn kind_of(code: Code) -> ErrorKind {
    match code {
        ECC_UNCORRECTABLE
        | NVLINK_UNCORRECTABLE
        | ILLEGAL_ADDRESS
        | LAUNCH_TIMEOUT
        | ASSERT
        | HARDWARE_STACK
        | ILLEGAL_INSTRUCTION
        | MISALIGNED_ADDRESS
        | INVALID_ADDRESS_SPACE
        | INVALID_PC
        | LAUNCH_FAILED
        | CONTAINED
        | DEINITIALIZED => ErrorKind::ProcessLost,
        CONTEXT_IS_DESTROYED => ErrorKind::DeviceLost,
        CAPTURE_UNSUPPORTED..=CAPTURE_WRONG_THREAD => ErrorKind::Capturing,
        NO_DEVICE | INVALID_DEVICE => ErrorKind::NoSuchDevice,
        INVALID_VALUE | INVALID_HANDLE | INVALID_CONTEXT | NOT_REGISTERED => ErrorKind::InvalidArgument,
        ALREADY_REGISTERED => ErrorKind::Overlap,
        OPERATING_SYSTEM => ErrorKind::Os,
        _ => ErrorKind::Backend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_from_refusals() {
        for fault in [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 4] {
            assert_eq!(kind_of(fault), ErrorKind::ProcessLost, "{fault}");
        }
        assert_eq!(kind_of(709), ErrorKind::DeviceLost);
        for refusal in [1, 201, 400, 713] {
            assert_eq!(kind_of(refusal), ErrorKind::InvalidArgument, "{refusal}");
        }
        assert_eq!(kind_of(712), ErrorKind::Overlap);
        // Memory can be short for reasons that only the caller knows; a code of a later driver is no fault.
        for other in [2, 3, 801, 999, 12_345] {
            assert_eq!(kind_of(other), ErrorKind::Backend, "{other}");
        }
    }

    #[test]
    fn captures_are_no_failures_of_work() {
        for code in 900..=908 {
            assert_eq!(kind_of(code), ErrorKind::Capturing, "{code}");
        }
    }
}
