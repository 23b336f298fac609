//! Vulkan's results as the driver's errors.

use ash::vk;
use spoc_driver::{Error, ErrorKind};

/// The result's name in the specification: `VK_ERROR_DEVICE_LOST`, …
pub(super) fn name_of(result: vk::Result) -> String {
    format!("VK_{result:?}")
}

/// An error of `result`, met while `doing` something. What is not a resource or the device's end is
/// [`ErrorKind::Backend`], with the name in its context.
pub(super) fn failed(result: vk::Result, doing: &'static str) -> Error {
    failed_for(result, doing, 0)
}

/// As [`failed`], for a call that asked for `need_bytes`.
pub(super) fn failed_for(result: vk::Result, doing: &'static str, need_bytes: u64) -> Error {
    let kind = match result {
        vk::Result::ERROR_DEVICE_LOST => ErrorKind::DeviceLost,
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => ErrorKind::OutOfHostMemory { need_bytes },
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes: 0 },
        vk::Result::ERROR_INVALID_EXTERNAL_HANDLE => ErrorKind::InvalidArgument,
        _ => ErrorKind::Backend,
    };
    Error::new(kind, doing).with("result", name_of(result))
}

/// Whether the call failed for want of memory, so that another kind of memory may serve.
pub(super) fn is_out_of_memory(result: vk::Result) -> bool {
    matches!(result, vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_names() {
        let error = failed(vk::Result::ERROR_TOO_MANY_OBJECTS, "allocating");
        assert_eq!(*error.kind(), ErrorKind::Backend);
        assert!(error.to_string().contains("VK_ERROR_TOO_MANY_OBJECTS"), "{error}");
        assert!(failed(vk::Result::ERROR_DEVICE_LOST, "waiting").is_device_lost());
        let kind = ErrorKind::OutOfDeviceMemory { need_bytes: 7, have_bytes: 0 };
        assert_eq!(*failed_for(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, "allocating", 7).kind(), kind);
    }
}
