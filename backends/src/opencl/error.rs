//! The API's codes as errors of the driver.

use opencl_sys::{
    CL_DEVICE_NOT_AVAILABLE, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, CL_INVALID_BUFFER_SIZE,
    CL_INVALID_COMMAND_QUEUE, CL_INVALID_CONTEXT, CL_INVALID_DEVICE, CL_INVALID_MEM_OBJECT,
    CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES, CL_SUCCESS, cl_int,
};
use opencl3::error_codes::ClError;
use spoc_driver::{Error, ErrorKind, Result};

/// A code as the result of a call.
pub(super) fn check(code: cl_int, doing: &'static str) -> Result<()> {
    if code == CL_SUCCESS { Ok(()) } else { Err(of_call(code, doing)) }
}

/// What a failed call means. Nothing was enqueued, and the context is as it was.
///
/// A device that is not available is no `DeviceLost`: that would promise that pending copies have stopped
/// touching host memory, and the API has no word for it.
pub(super) fn of_call(code: cl_int, doing: &'static str) -> Error {
    let kind = match code {
        CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST => ErrorKind::AsyncFailure,
        CL_INVALID_MEM_OBJECT | CL_INVALID_COMMAND_QUEUE | CL_INVALID_CONTEXT => ErrorKind::InvalidArgument,
        CL_INVALID_DEVICE | CL_DEVICE_NOT_AVAILABLE => ErrorKind::NoSuchDevice,
        _ => ErrorKind::Backend,
    };
    named(Error::new(kind, doing), code)
}

/// What a failed allocation of device memory means.
pub(super) fn of_allocation(code: cl_int, need_bytes: u64, have_bytes: u64, max: u64) -> Error {
    const DOING: &str = "allocating OpenCL device memory";
    let kind = match code {
        CL_MEM_OBJECT_ALLOCATION_FAILURE | CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY => {
            ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes }
        }
        CL_INVALID_BUFFER_SIZE => ErrorKind::TooLarge { need: need_bytes, max },
        _ => return of_call(code, DOING),
    };
    named(Error::new(kind, DOING), code)
}

/// What a failed allocation of pinned memory means.
pub(super) fn of_pinning(code: cl_int, need_bytes: u64, max: u64) -> Error {
    const DOING: &str = "allocating pinned memory through OpenCL";
    let kind = match code {
        CL_MEM_OBJECT_ALLOCATION_FAILURE | CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY => {
            ErrorKind::OutOfHostMemory { need_bytes }
        }
        CL_INVALID_BUFFER_SIZE => ErrorKind::TooLarge { need: need_bytes, max },
        _ => return of_call(code, DOING),
    };
    named(Error::new(kind, DOING), code)
}

/// What the failure of a command that was enqueued earlier means.
pub(super) fn of_command(code: cl_int, doing: &'static str) -> Error {
    named(Error::new(ErrorKind::AsyncFailure, doing), code)
}

fn named(error: Error, code: cl_int) -> Error {
    error.with("code", code).because(ClError(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_named() {
        let error = of_call(-59, "testing");
        assert_eq!(*error.kind(), ErrorKind::Backend);
        assert!(error.to_string().ends_with("(code=-59): CL_INVALID_OPERATION"), "{error}");
    }

    #[test]
    fn lack_of_memory_is_told_from_excess() {
        let short = of_allocation(CL_MEM_OBJECT_ALLOCATION_FAILURE, 10, 5, 100);
        assert_eq!(*short.kind(), ErrorKind::OutOfDeviceMemory { need_bytes: 10, have_bytes: 5 });
        let wide = of_allocation(CL_INVALID_BUFFER_SIZE, 10, 5, 9);
        assert_eq!(*wide.kind(), ErrorKind::TooLarge { need: 10, max: 9 });
        let host = of_pinning(CL_OUT_OF_RESOURCES, 10, 100);
        assert_eq!(*host.kind(), ErrorKind::OutOfHostMemory { need_bytes: 10 });
    }

    #[test]
    fn failed_dependencies_are_asynchronous_failures() {
        let error = of_call(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "waiting");
        assert_eq!(*error.kind(), ErrorKind::AsyncFailure);
        assert_eq!(*of_command(-1, "querying").kind(), ErrorKind::AsyncFailure);
    }
}
