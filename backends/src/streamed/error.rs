//! The API's codes as errors of the driver. Both APIs use the same numbers.
//!
//! Three families: a call that was refused, with everything as it was before; a context that is gone; and a
//! fault on the device, after which every context of the process is dead and no reset helps, so that only a
//! new process does (seen on an H200 with CUDA: the primary context can be reset then, but not used).

use std::fmt;
use std::sync::Arc;

use spoc_driver::{Error, ErrorKind, Result};

use super::flavour::Flavour;
use super::table::{Code, Table};

/// The functions, and what was asked of them once.
pub(crate) struct Api {
    pub(crate) library: Table,
    pub(crate) flavour: Box<dyn Flavour>,
    /// As the API counts.
    pub(crate) version: i32,
    process: u32,
}

impl Api {
    pub(crate) fn new(library: Table, flavour: Box<dyn Flavour>, version: i32) -> Arc<Self> {
        Arc::new(Self { library, flavour, version, process: std::process::id() })
    }

    /// Whether this is still the process that loaded the API. A forked child can use none of it.
    pub(crate) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// A code as the result of a call.
    pub(crate) fn check(&self, code: Code, doing: &'static str) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(kind_of(code), code, doing)) }
    }

    /// An error of this kind, with the code's name and meaning.
    pub(crate) fn error(&self, kind: ErrorKind, code: Code, doing: &'static str) -> Error {
        let backend = self.flavour.kind();
        let mut error = Error::new(kind, doing).with("backend", backend).with("code", code);
        if code == NOT_INITIALIZED && !self.is_own_process() {
            let words =
                format_args!("the process was forked after {backend} was loaded, which the API forbids");
            error = error.with("fork", words);
        }
        error.because(ApiError(self.flavour.words(code)))
    }
}

/// A code with its name and the driver's words for it.
#[derive(Debug)]
struct ApiError(String);

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ApiError {}

macro_rules! codes {
    ($($name:ident = $code:literal,)*) => {
        $(pub(crate) const $name: Code = $code;)*
    };
}

codes! {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    INVALID_DEVICE_POINTER = 17,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    ECC_UNCORRECTABLE = 214,
    NVLINK_UNCORRECTABLE = 220,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_TIMEOUT = 702,
    CONTEXT_IS_DESTROYED = 709,
    ASSERT = 710,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    HARDWARE_STACK = 714,
    ILLEGAL_INSTRUCTION = 715,
    MISALIGNED_ADDRESS = 716,
    INVALID_ADDRESS_SPACE = 717,
    INVALID_PC = 718,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_WRONG_THREAD = 908,
}

/// A fault that was kept to this process, of CUDA 13.
const CONTAINED: Code = 721;

/// What a failed call means.
pub(crate) fn kind_of(code: Code) -> ErrorKind {
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
        INVALID_VALUE | INVALID_DEVICE_POINTER | INVALID_HANDLE | INVALID_CONTEXT | NOT_REGISTERED => {
            ErrorKind::InvalidArgument
        }
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
