//! The API's functions, loaded at run time.
//!
//! Types, constants and signatures are those of `cudarc::driver::sys`; that ours are the same is checked when
//! this is compiled. The functions are looked up here, because the binding panics where the library or a
//! function is missing, and reads result codes as a Rust enumeration: a code of a newer driver, which it does
//! not know, would be undefined behaviour.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys;
use sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUjit_option, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemcpyAttributes, CUmodule, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};

/// What the library is called, in the order tried.
pub(super) const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// What a function answers: 0 for success.
pub(super) type Code = c_uint;

macro_rules! functions {
    (
        required { $($name:ident: $symbol:ident($($argument:ty),*);)* }
        optional { $($may:ident: $may_symbol:ident($($may_argument:ty),*);)* }
        unbound { $($own:ident: $own_symbol:ident($($own_argument:ty),*);)* }
    ) => {
        /// One pointer a function; those that older drivers lack are optional.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub(super) $may: Option<unsafe extern "C" fn($($may_argument),*) -> Code>,)*
            $(pub(super) $own: Option<unsafe extern "C" fn($($own_argument),*) -> Code>,)*
        }

        // The arguments are those of the binding.
        const _: () = {
            $(let _: unsafe fn($($argument),*) -> sys::CUresult = sys::$symbol;)*
            $(let _: unsafe fn($($may_argument),*) -> sys::CUresult = sys::$may_symbol;)*
        };

        impl Library {
            /// Looks every function up.
            ///
            /// # Errors
            /// The name of one that is missing.
            fn resolve(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let symbol = stringify!($symbol);
                        // SAFETY: the symbol is a function of the API; its arguments were compared with the
                        // binding's above, and its answer is an unsigned C enumeration.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> Code>(symbol.as_bytes())
                        };
                        *found.map_err(|_| format!("it has no {symbol}: CUDA 11.4 or newer is needed"))?
                    },)*
                    // SAFETY: as above.
                    $($may: unsafe { library.get(stringify!($may_symbol).as_bytes()) }.ok().map(|found| *found),)*
                    // SAFETY: as above; these arguments are those of the vendor's manual.
                    $($own: unsafe { library.get(stringify!($own_symbol).as_bytes()) }.ok().map(|found| *found),)*
                })
            }
        }
    };
}

functions! {
    required {
        init: cuInit(c_uint);
        driver_version: cuDriverGetVersion(*mut c_int);
        device_count: cuDeviceGetCount(*mut c_int);
        device_get: cuDeviceGet(*mut CUdevice, c_int);
        device_name: cuDeviceGetName(*mut c_char, c_int, CUdevice);
        device_uuid: cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        device_total_memory: cuDeviceTotalMem_v2(*mut usize, CUdevice);
        device_attribute: cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        device_pci_bus_id: cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        primary_retain: cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        primary_release: cuDevicePrimaryCtxRelease_v2(CUdevice);
        context_push: cuCtxPushCurrent_v2(CUcontext);
        context_pop: cuCtxPopCurrent_v2(*mut CUcontext);
        context_device: cuCtxGetDevice(*mut CUdevice);
        context_priorities: cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        memory_info: cuMemGetInfo_v2(*mut usize, *mut usize);
        stream_create: cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        stream_destroy: cuStreamDestroy_v2(CUstream);
        stream_query: cuStreamQuery(CUstream);
        stream_wait_event: cuStreamWaitEvent(CUstream, CUevent, c_uint);
        stream_is_capturing: cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        stream_context: cuStreamGetCtx(CUstream, *mut CUcontext);
        capture_mode: cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        event_create: cuEventCreate(*mut CUevent, c_uint);
        event_destroy: cuEventDestroy_v2(CUevent);
        event_record: cuEventRecord(CUevent, CUstream);
        event_query: cuEventQuery(CUevent);
        event_synchronize: cuEventSynchronize(CUevent);
        memory_allocate: cuMemAlloc_v2(*mut CUdeviceptr, usize);
        memory_free: cuMemFree_v2(CUdeviceptr);
        host_allocate: cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        host_free: cuMemFreeHost(*mut c_void);
        host_register: cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        host_unregister: cuMemHostUnregister(*mut c_void);
        copy_to_device: cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        copy_to_host: cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        copy_on_device: cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        fill: cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        pointer_attributes: cuPointerGetAttributes(
            c_uint, *mut CUpointer_attribute, *mut *mut c_void, CUdeviceptr
        );
        pointer_attribute: cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        module_load: cuModuleLoadDataEx(
            *mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void
        );
        module_unload: cuModuleUnload(CUmodule);
        module_function: cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        launch: cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void
        );
        address_reserve: cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        address_free: cuMemAddressFree(CUdeviceptr, usize);
        physical_create: cuMemCreate(
            *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong
        );
        physical_release: cuMemRelease(CUmemGenericAllocationHandle);
        physical_map: cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        physical_unmap: cuMemUnmap(CUdeviceptr, usize);
        physical_access: cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        physical_granularity: cuMemGetAllocationGranularity(
            *mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags
        );
        physical_export: cuMemExportToShareableHandle(
            *mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong
        );
        physical_properties: cuMemGetAllocationPropertiesFromHandle(
            *mut CUmemAllocationProp, CUmemGenericAllocationHandle
        );
        physical_import: cuMemImportFromShareableHandle(
            *mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType
        );
    }
    optional {
        write_value: cuStreamWriteValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
        wait_value: cuStreamWaitValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
        copy_batch_12: cuMemcpyBatchAsync(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes, *mut usize, usize,
            *mut usize, CUstream
        );
    }
    unbound {
        error_name: cuGetErrorName(c_uint, *mut *const c_char);
        error_text: cuGetErrorString(c_uint, *mut *const c_char);
        // The same as `copy_batch_12` without the index of the copy that failed: since CUDA 13.
        copy_batch_13: cuMemcpyBatchAsync_v2(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes, *mut usize, usize,
            CUstream
        );
    }
}

impl Library {
    /// Loads the driver's library.
    ///
    /// # Errors
    /// Every name tried with the reason it failed, or the function that is missing.
    pub(super) fn load() -> Result<Self, String> {
        let (name, library) =
            crate::probe::load(&NAMES).map_err(|errors| format!("no CUDA library: {errors}"))?;
        Self::resolve(&library).map_err(|missing| format!("{name}: {missing}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_refused_by_name() {
        let own = libloading::os::unix::Library::this();
        match Library::resolve(&own.into()) {
            Err(reason) => assert!(reason.contains("cuInit"), "{reason}"),
            // Something else in the process may have loaded the API with global visibility.
            Ok(_) => eprintln!("not run: CUDA is loaded already"),
        }
    }
}
