//! The API's functions, loaded at run time.
//!
//! Types, constants and signatures are those of `cudarc::driver::sys`; that ours are the same is checked when
//! this is compiled. The functions are looked up here, because the binding panics where the library or a
//! function is missing, and reads result codes as a Rust enumeration: a code of a newer driver, which it does
//! not know, would be undefined behaviour.

use std::ffi::{c_char, c_int, c_uint};

use crate::streamed::table::{Code, DevicePtr, Handle, Ordinal, Symbols, Table, functions};

/// What the library is called, in the order tried.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

pub(super) const SYMBOLS: Symbols = Symbols {
    device_count: "cuDeviceGetCount",
    device_get: "cuDeviceGet",
    device_name: "cuDeviceGetName",
    device_uuid: "cuDeviceGetUuid_v2",
    device_total_memory: "cuDeviceTotalMem_v2",
    device_attribute: "cuDeviceGetAttribute",
    device_pci_bus_id: "cuDeviceGetPCIBusId",
    context_priorities: "cuCtxGetStreamPriorityRange",
    memory_info: "cuMemGetInfo_v2",
    stream_create: "cuStreamCreateWithPriority",
    stream_destroy: "cuStreamDestroy_v2",
    stream_query: "cuStreamQuery",
    stream_wait_event: "cuStreamWaitEvent",
    stream_is_capturing: "cuStreamIsCapturing",
    capture_mode: "cuThreadExchangeStreamCaptureMode",
    event_create: "cuEventCreate",
    event_destroy: "cuEventDestroy_v2",
    event_record: "cuEventRecord",
    event_query: "cuEventQuery",
    event_synchronize: "cuEventSynchronize",
    event_elapsed: "cuEventElapsedTime",
    memory_allocate: "cuMemAlloc_v2",
    memory_free: "cuMemFree_v2",
    host_allocate: "cuMemHostAlloc",
    host_free: "cuMemFreeHost",
    host_register: "cuMemHostRegister_v2",
    host_unregister: "cuMemHostUnregister",
    copy_to_device: "cuMemcpyHtoDAsync_v2",
    copy_to_host: "cuMemcpyDtoHAsync_v2",
    copy_on_device: "cuMemcpyDtoDAsync_v2",
    fill: "cuMemsetD8Async",
    pointer_attributes: "cuPointerGetAttributes",
    pointer_attribute: "cuPointerGetAttribute",
    module_load: "cuModuleLoadDataEx",
    module_unload: "cuModuleUnload",
    module_function: "cuModuleGetFunction",
    launch: "cuLaunchKernel",
    address_reserve: "cuMemAddressReserve",
    address_free: "cuMemAddressFree",
    physical_create: "cuMemCreate",
    physical_release: "cuMemRelease",
    physical_map: "cuMemMap",
    physical_unmap: "cuMemUnmap",
    physical_access: "cuMemSetAccess",
    physical_granularity: "cuMemGetAllocationGranularity",
    physical_export: "cuMemExportToShareableHandle",
    physical_properties: "cuMemGetAllocationPropertiesFromHandle",
    physical_import: "cuMemImportFromShareableHandle",
    write_value: "cuStreamWriteValue64_v2",
    // Since CUDA 13.
    copy_batch_short: "cuMemcpyBatchAsync_v2",
    copy_batch: "cuMemcpyBatchAsync",
};

functions! {
    /// What this API has of its own.
    Own by OwnSymbols
    required {
        init(c_uint);
        version(*mut c_int);
        primary_retain(*mut Handle, Ordinal);
        primary_release(Ordinal);
        context_push(Handle);
        context_pop(*mut Handle);
        context_device(*mut Ordinal);
        stream_context(Handle, *mut Handle);
    }
    optional {
        wait_value(Handle, DevicePtr, u64, c_uint);
        error_name(Code, *mut *const c_char);
        error_text(Code, *mut *const c_char);
    }
}

pub(super) const OWN_SYMBOLS: OwnSymbols = OwnSymbols {
    init: "cuInit",
    version: "cuDriverGetVersion",
    primary_retain: "cuDevicePrimaryCtxRetain",
    primary_release: "cuDevicePrimaryCtxRelease_v2",
    context_push: "cuCtxPushCurrent_v2",
    context_pop: "cuCtxPopCurrent_v2",
    context_device: "cuCtxGetDevice",
    stream_context: "cuStreamGetCtx",
    wait_value: "cuStreamWaitValue64_v2",
    error_name: "cuGetErrorName",
    error_text: "cuGetErrorString",
};

/// Loads the driver's library.
///
/// # Errors
/// Every name tried with the reason it failed, or the function that is missing.
pub(super) fn load() -> Result<(Table, Own), String> {
    let (name, library) =
        crate::probe::load(&NAMES).map_err(|errors| format!("no CUDA library: {errors}"))?;
    resolve(&library).map_err(|missing| format!("{name}: it has no {missing}: CUDA 11.4 or newer is needed"))
}

fn resolve(library: &libloading::Library) -> Result<(Table, Own), &'static str> {
    // SAFETY: the signatures were compared with the binding's when this was compiled (`signatures.rs`); those that
    // it lacks are by the vendor's manual. Answers are unsigned C enumerations.
    let own = unsafe { Own::resolve(library, &OWN_SYMBOLS) }?;
    // SAFETY: as above.
    Ok((unsafe { Table::resolve(library, &SYMBOLS) }?, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_refused_by_name() {
        let own = libloading::os::unix::Library::this();
        match resolve(&own.into()) {
            Err(missing) => assert_eq!(missing, "cuInit"),
            // Something else in the process may have loaded the API with global visibility.
            Ok(_) => eprintln!("not run: CUDA is loaded already"),
        }
    }
}
