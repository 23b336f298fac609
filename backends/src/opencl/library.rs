//! The API's functions, loaded at run time.
//!
//! Types, constants and C signatures are those of `opencl-sys`, the layer below `opencl3`. The functions
//! are looked up here, because `opencl3` calls them through pointers of the Rust calling convention, which
//! nothing promises to be C's, and asks every command for an event, which costs an allocation a copy.

use opencl_sys::cl_function_types as c;

/// What the loader is called, in the order tried.
pub(super) const NAMES: [&str; 2] = ["libOpenCL.so.1", "libOpenCL.so"];

/// The function behind an optional pointer.
pub(super) trait Present {
    type Function: Copy;
}

impl<F: Copy> Present for Option<F> {
    type Function = F;
}

macro_rules! functions {
    ($($name:ident: $pointer:ident = $symbol:literal),* $(,)?) => {
        /// One pointer a function; all are of OpenCL 1.2 or older.
        pub(super) struct Library {
            $(pub(super) $name: <c::$pointer as Present>::Function,)*
        }

        impl Library {
            /// Looks every function up.
            ///
            /// # Errors
            /// The name of one that is missing.
            fn resolve(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is a function of the API, whose C signature `opencl-sys` gives.
                        let symbol = unsafe {
                            library.get::<<c::$pointer as Present>::Function>($symbol.as_bytes())
                        };
                        *symbol.map_err(|_| format!("it has no {}: OpenCL 1.2 is needed", $symbol))?
                    },)*
                })
            }
        }
    };
}

functions! {
    get_platform_ids: clGetPlatformIDs_t = "clGetPlatformIDs",
    get_platform_info: clGetPlatformInfo_t = "clGetPlatformInfo",
    get_device_ids: clGetDeviceIDs_t = "clGetDeviceIDs",
    get_device_info: clGetDeviceInfo_t = "clGetDeviceInfo",
    create_context: clCreateContext_t = "clCreateContext",
    retain_context: clRetainContext_t = "clRetainContext",
    release_context: clReleaseContext_t = "clReleaseContext",
    get_context_info: clGetContextInfo_t = "clGetContextInfo",
    create_command_queue: clCreateCommandQueue_t = "clCreateCommandQueue",
    retain_command_queue: clRetainCommandQueue_t = "clRetainCommandQueue",
    release_command_queue: clReleaseCommandQueue_t = "clReleaseCommandQueue",
    get_command_queue_info: clGetCommandQueueInfo_t = "clGetCommandQueueInfo",
    flush: clFlush_t = "clFlush",
    finish: clFinish_t = "clFinish",
    create_buffer: clCreateBuffer_t = "clCreateBuffer",
    retain_mem_object: clRetainMemObject_t = "clRetainMemObject",
    release_mem_object: clReleaseMemObject_t = "clReleaseMemObject",
    get_mem_object_info: clGetMemObjectInfo_t = "clGetMemObjectInfo",
    create_user_event: clCreateUserEvent_t = "clCreateUserEvent",
    set_user_event_status: clSetUserEventStatus_t = "clSetUserEventStatus",
    retain_event: clRetainEvent_t = "clRetainEvent",
    release_event: clReleaseEvent_t = "clReleaseEvent",
    get_event_info: clGetEventInfo_t = "clGetEventInfo",
    set_event_callback: clSetEventCallback_t = "clSetEventCallback",
    wait_for_events: clWaitForEvents_t = "clWaitForEvents",
    enqueue_write_buffer: clEnqueueWriteBuffer_t = "clEnqueueWriteBuffer",
    enqueue_read_buffer: clEnqueueReadBuffer_t = "clEnqueueReadBuffer",
    enqueue_copy_buffer: clEnqueueCopyBuffer_t = "clEnqueueCopyBuffer",
    enqueue_fill_buffer: clEnqueueFillBuffer_t = "clEnqueueFillBuffer",
    enqueue_map_buffer: clEnqueueMapBuffer_t = "clEnqueueMapBuffer",
    enqueue_unmap_mem_object: clEnqueueUnmapMemObject_t = "clEnqueueUnmapMemObject",
    create_program: clCreateProgramWithSource_t = "clCreateProgramWithSource",
    create_program_with_binary: clCreateProgramWithBinary_t = "clCreateProgramWithBinary",
    retain_program: clRetainProgram_t = "clRetainProgram",
    release_program: clReleaseProgram_t = "clReleaseProgram",
    build_program: clBuildProgram_t = "clBuildProgram",
    get_program_info: clGetProgramInfo_t = "clGetProgramInfo",
    get_program_build_info: clGetProgramBuildInfo_t = "clGetProgramBuildInfo",
    create_kernel: clCreateKernel_t = "clCreateKernel",
    retain_kernel: clRetainKernel_t = "clRetainKernel",
    release_kernel: clReleaseKernel_t = "clReleaseKernel",
    set_kernel_arg: clSetKernelArg_t = "clSetKernelArg",
    enqueue_nd_range_kernel: clEnqueueNDRangeKernel_t = "clEnqueueNDRangeKernel",
    enqueue_marker: clEnqueueMarkerWithWaitList_t = "clEnqueueMarkerWithWaitList",
    enqueue_barrier: clEnqueueBarrierWithWaitList_t = "clEnqueueBarrierWithWaitList",
}

impl Library {
    /// Loads the API's loader, which loads the vendors' runtimes.
    ///
    /// # Errors
    /// Every name tried with the reason it failed, or the function that is missing.
    pub(super) fn load() -> Result<Self, String> {
        let (name, library) =
            crate::probe::load(&NAMES).map_err(|errors| format!("no OpenCL library: {errors}"))?;
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
            Err(reason) => assert!(reason.contains("clGetPlatformIDs"), "{reason}"),
            // Something else in the process may have loaded the API with global visibility.
            Ok(_) => eprintln!("not run: OpenCL is loaded already"),
        }
    }
}
