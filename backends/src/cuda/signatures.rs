//! That the shared table's types are this API's: compared with `cudarc::driver::sys` when this is compiled.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use super::library::Own;
use crate::streamed::error;
use crate::streamed::table::{Access, Code, CopyAttributes, Location, MemoryProperties, Table};

/// A type of the binding that is passed as one of the table's is.
trait As<T> {
    /// The binding's enumerations and structures are as large as ours.
    const FITS: () = ();
}

impl<T> As<*mut c_void> for *mut T {}
impl<T> As<*mut *mut c_void> for *mut *mut T {}
impl As<*const c_void> for *const c_void {}
impl As<*const c_char> for *const c_char {}
impl As<*mut *const c_char> for *mut *const c_char {}

macro_rules! same {
    ($($theirs:ty => $ours:ty,)*) => {
        $(impl As<$ours> for $theirs {
            const FITS: () = assert!(size_of::<$theirs>() == size_of::<$ours>());
        })*
    };
}

same! {
    c_int => c_int, c_uint => c_uint, usize => usize, u64 => u64, u8 => u8,
    *mut c_int => *mut c_int, *mut usize => *mut usize, *mut u64 => *mut u64, *mut f32 => *mut f32,
    *mut c_char => *mut c_char,
    sys::CUdevice_attribute => c_uint, sys::CUpointer_attribute => c_uint, sys::CUmemAllocationHandleType => c_uint,
    sys::CUmemAllocationGranularity_flags => c_uint, sys::CUresult => Code,
    *mut sys::CUuuid => *mut [u8; 16],
    *mut sys::CUstreamCaptureStatus => *mut c_uint, *mut sys::CUstreamCaptureMode => *mut c_uint,
    *mut sys::CUpointer_attribute => *mut c_uint, *mut sys::CUjit_option => *mut c_uint,
    *mut sys::CUmemAllocationProp => *mut MemoryProperties, *const sys::CUmemAllocationProp => *const MemoryProperties,
    *const sys::CUmemAccessDesc => *const Access, *mut sys::CUmemcpyAttributes => *mut CopyAttributes,
}

/// One function of each arity: the table's pointer and the binding's function take the same.
macro_rules! arities {
    ($($check:ident($($ours:ident $theirs:ident),*);)*) => {
        $(#[allow(dead_code, clippy::too_many_arguments, clippy::type_complexity)]
        fn $check<$($ours, $theirs: As<$ours>),*>(
            _: fn(Table, Own) -> unsafe extern "C" fn($($ours),*) -> Code,
            _: unsafe fn($($theirs),*) -> sys::CUresult,
        ) {
            $(let () = <$theirs as As<$ours>>::FITS;)*
        })*
    };
}

arities! {
    check_1(A1 B1);
    check_2(A1 B1, A2 B2);
    check_3(A1 B1, A2 B2, A3 B3);
    check_4(A1 B1, A2 B2, A3 B3, A4 B4);
    check_5(A1 B1, A2 B2, A3 B3, A4 B4, A5 B5);
    check_9(A1 B1, A2 B2, A3 B3, A4 B4, A5 B5, A6 B6, A7 B7, A8 B8, A9 B9);
    check_11(A1 B1, A2 B2, A3 B3, A4 B4, A5 B5, A6 B6, A7 B7, A8 B8, A9 B9, A10 B10, A11 B11);
}

/// One that is there.
#[allow(dead_code)]
fn some<F>(function: Option<F>) -> F {
    match function {
        Some(function) => function,
        None => unreachable!(),
    }
}

/// Never called: that it compiles is what is wanted.
#[allow(dead_code)]
fn compared() {
    check_1(|t, _| t.device_count, sys::cuDeviceGetCount);
    check_2(|t, _| t.device_get, sys::cuDeviceGet);
    check_3(|t, _| t.device_name, sys::cuDeviceGetName);
    check_2(|t, _| t.device_uuid, sys::cuDeviceGetUuid_v2);
    check_2(|t, _| t.device_total_memory, sys::cuDeviceTotalMem_v2);
    check_3(|t, _| t.device_attribute, sys::cuDeviceGetAttribute);
    check_3(|t, _| t.device_pci_bus_id, sys::cuDeviceGetPCIBusId);
    check_2(|t, _| t.context_priorities, sys::cuCtxGetStreamPriorityRange);
    check_2(|t, _| t.memory_info, sys::cuMemGetInfo_v2);
    check_3(|t, _| t.stream_create, sys::cuStreamCreateWithPriority);
    check_1(|t, _| t.stream_destroy, sys::cuStreamDestroy_v2);
    check_1(|t, _| t.stream_query, sys::cuStreamQuery);
    check_3(|t, _| t.stream_wait_event, sys::cuStreamWaitEvent);
    check_2(|t, _| t.stream_is_capturing, sys::cuStreamIsCapturing);
    check_1(|t, _| t.capture_mode, sys::cuThreadExchangeStreamCaptureMode);
    check_2(|t, _| t.event_create, sys::cuEventCreate);
    check_1(|t, _| t.event_destroy, sys::cuEventDestroy_v2);
    check_2(|t, _| t.event_record, sys::cuEventRecord);
    check_1(|t, _| t.event_query, sys::cuEventQuery);
    check_1(|t, _| t.event_synchronize, sys::cuEventSynchronize);
    check_3(|t, _| t.event_elapsed, sys::cuEventElapsedTime);
    check_2(|t, _| t.memory_allocate, sys::cuMemAlloc_v2);
    check_1(|t, _| t.memory_free, sys::cuMemFree_v2);
    check_3(|t, _| t.host_allocate, sys::cuMemHostAlloc);
    check_1(|t, _| t.host_free, sys::cuMemFreeHost);
    check_3(|t, _| t.host_register, sys::cuMemHostRegister_v2);
    check_1(|t, _| t.host_unregister, sys::cuMemHostUnregister);
    check_4(|t, _| t.copy_to_device, sys::cuMemcpyHtoDAsync_v2);
    check_4(|t, _| t.copy_to_host, sys::cuMemcpyDtoHAsync_v2);
    check_4(|t, _| t.copy_on_device, sys::cuMemcpyDtoDAsync_v2);
    check_4(|t, _| t.fill, sys::cuMemsetD8Async);
    check_4(|t, _| t.pointer_attributes, sys::cuPointerGetAttributes);
    check_3(|t, _| t.pointer_attribute, sys::cuPointerGetAttribute);
    check_5(|t, _| t.module_load, sys::cuModuleLoadDataEx);
    check_1(|t, _| t.module_unload, sys::cuModuleUnload);
    check_3(|t, _| t.module_function, sys::cuModuleGetFunction);
    check_11(|t, _| t.launch, sys::cuLaunchKernel);
    check_5(|t, _| t.address_reserve, sys::cuMemAddressReserve);
    check_2(|t, _| t.address_free, sys::cuMemAddressFree);
    check_4(|t, _| t.physical_create, sys::cuMemCreate);
    check_1(|t, _| t.physical_release, sys::cuMemRelease);
    check_5(|t, _| t.physical_map, sys::cuMemMap);
    check_2(|t, _| t.physical_unmap, sys::cuMemUnmap);
    check_4(|t, _| t.physical_access, sys::cuMemSetAccess);
    check_3(|t, _| t.physical_granularity, sys::cuMemGetAllocationGranularity);
    check_4(|t, _| t.physical_export, sys::cuMemExportToShareableHandle);
    check_2(|t, _| t.physical_properties, sys::cuMemGetAllocationPropertiesFromHandle);
    check_3(|t, _| t.physical_import, sys::cuMemImportFromShareableHandle);
    check_4(|t, _| some(t.write_value), sys::cuStreamWriteValue64_v2);
    check_9(|t, _| some(t.copy_batch), sys::cuMemcpyBatchAsync);

    check_1(|_, own| own.init, sys::cuInit);
    check_1(|_, own| own.version, sys::cuDriverGetVersion);
    check_2(|_, own| own.primary_retain, sys::cuDevicePrimaryCtxRetain);
    check_1(|_, own| own.primary_release, sys::cuDevicePrimaryCtxRelease_v2);
    check_1(|_, own| own.context_push, sys::cuCtxPushCurrent_v2);
    check_1(|_, own| own.context_pop, sys::cuCtxPopCurrent_v2);
    check_1(|_, own| own.context_device, sys::cuCtxGetDevice);
    check_2(|_, own| own.stream_context, sys::cuStreamGetCtx);
    check_4(|_, own| some(own.wait_value), sys::cuStreamWaitValue64_v2);
}

macro_rules! layouts {
    ($($theirs:ty => $ours:ty { $($field:ident = $own:ident),* },)*) => {
        $($(const _: () = assert!(
            std::mem::offset_of!($theirs, $field) == std::mem::offset_of!($ours, $own)
        );)*
        const _: () = assert!(size_of::<$theirs>() == size_of::<$ours>());)*
    };
}

layouts! {
    sys::CUmemLocation => Location { type_ = kind, id = id },
    sys::CUmemAllocationProp => MemoryProperties {
        type_ = kind, requestedHandleTypes = handle_types, location = location, win32HandleMetaData = platform,
        allocFlags = flags
    },
    sys::CUmemAccessDesc => Access { location = location, flags = flags },
    sys::CUmemcpyAttributes => CopyAttributes {
        srcAccessOrder = source_order, srcLocHint = source, dstLocHint = destination, flags = flags
    },
}

macro_rules! codes {
    ($($ours:ident = $theirs:ident,)*) => {
        $(const _: () = assert!(error::$ours == sys::CUresult::$theirs as Code);)*
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

// Numbers that the shared module writes out.
const _: () = {
    use sys::*;
    assert!(CUstream_flags::CU_STREAM_NON_BLOCKING as u32 == 1);
    assert!(CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32 == 1);
    assert!(CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 == 2);
    assert!(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32 == 2);
    assert!(CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT as u32 == 1);
    assert!(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as u32 == 2);
    assert!(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as u32 == 9);
    assert!(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 == 1);
    assert!(CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32 == 1);
    assert!(CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID as u32 == 0);
    assert!(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32 == 1);
    assert!(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32 == 3);
    assert!(CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32 == 0);
    assert!(CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM as u32 == 1);
    assert!(CUjit_option::CU_JIT_ERROR_LOG_BUFFER as u32 == 5);
    assert!(CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as u32 == 6);
};
