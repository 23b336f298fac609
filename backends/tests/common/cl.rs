//! OpenCL as another library would use it: a context, queues that a test can hold, buffers to lend.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]
// SAFETY of this file: plain calls of the API on objects that it made itself, in a test.

use std::ffi::c_void;
use std::ptr;

use libloading::Library;
use opencl_sys::cl_function_types as c;
use opencl_sys::{
    CL_CONTEXT_REFERENCE_COUNT, CL_DEVICE_TYPE_ALL, CL_MEM_READ_WRITE, CL_MEM_REFERENCE_COUNT,
    CL_QUEUE_REFERENCE_COUNT, cl_command_queue_properties, cl_device_id, cl_int,
};
use spoc_driver::backend::Foreign;

trait Present {
    type Function: Copy;
}

impl<F: Copy> Present for Option<F> {
    type Function = F;
}

macro_rules! call {
    ($library:expr, $pointer:ident, $symbol:literal) => {
        *$library.get::<<c::$pointer as Present>::Function>($symbol).unwrap()
    };
}

/// One device in a context of its own.
pub struct Raw {
    library: Library,
    pub device: cl_device_id,
    pub context: *mut c_void,
}

impl Raw {
    /// A context of the `index`-th device of all platforms.
    pub fn new(index: u32) -> Self {
        unsafe {
            let library = Library::new("libOpenCL.so.1").unwrap();
            let device = all_devices(&library)[index as usize];
            let mut code = -1;
            let create = call!(library, clCreateContext_t, b"clCreateContext");
            let context = create(ptr::null(), 1, &raw const device, None, ptr::null_mut(), &raw mut code);
            assert_eq!(code, 0);
            Self { library, device, context }
        }
    }

    /// A queue, in order unless told otherwise.
    pub fn queue(&self, properties: cl_command_queue_properties) -> *mut c_void {
        let mut code = -1;
        let create = unsafe { call!(self.library, clCreateCommandQueue_t, b"clCreateCommandQueue") };
        let queue = unsafe { create(self.context, self.device, properties, &raw mut code) };
        assert_eq!(code, 0);
        queue
    }

    fn gate(&self) -> Gate<'_> {
        let mut code = -1;
        let create = unsafe { call!(self.library, clCreateUserEvent_t, b"clCreateUserEvent") };
        let event = unsafe { create(self.context, &raw mut code) };
        assert_eq!(code, 0);
        Gate { raw: self, event, buffer: None, is_set: false }
    }

    /// Holds a queue by a command of its own; for failing it, which some runtimes survive only so.
    pub fn hold_by_write(&self, queue: *mut c_void) -> Gate<'_> {
        static BYTES: [u8; 64] = [0; 64];
        let (mut gate, buffer) = (self.gate(), self.buffer(64));
        gate.buffer = Some(buffer);
        unsafe {
            let write = call!(self.library, clEnqueueWriteBuffer_t, b"clEnqueueWriteBuffer");
            let (bytes, event) = (BYTES.as_ptr().cast(), &raw const gate.event);
            assert_eq!(write(queue, buffer, 0, 0, 64, bytes, 1, event, ptr::null_mut()), 0);
        }
        gate
    }

    /// Holds a queue until the gate's status is set.
    pub fn hold(&self, queue: *mut c_void) -> Gate<'_> {
        let gate = self.gate();
        unsafe {
            let barrier =
                call!(self.library, clEnqueueBarrierWithWaitList_t, b"clEnqueueBarrierWithWaitList");
            assert_eq!(barrier(queue, 1, &raw const gate.event, ptr::null_mut()), 0);
        }
        gate
    }

    /// A buffer.
    pub fn buffer(&self, len: usize) -> *mut c_void {
        let mut code = -1;
        let create = unsafe { call!(self.library, clCreateBuffer_t, b"clCreateBuffer") };
        let buffer = unsafe { create(self.context, CL_MEM_READ_WRITE, len, ptr::null_mut(), &raw mut code) };
        assert_eq!(code, 0);
        buffer
    }

    /// The API's counts of references to the context, a queue and a buffer.
    pub fn references(&self, queue: *mut c_void, buffer: *mut c_void) -> [u32; 3] {
        let (mut counts, four, none) = ([0_u32; 3], size_of::<u32>(), ptr::null_mut());
        unsafe {
            let context = call!(self.library, clGetContextInfo_t, b"clGetContextInfo");
            let of_queue = call!(self.library, clGetCommandQueueInfo_t, b"clGetCommandQueueInfo");
            let of_buffer = call!(self.library, clGetMemObjectInfo_t, b"clGetMemObjectInfo");
            let [a, b, c] = counts.each_mut().map(|count| ptr::from_mut(count).cast());
            assert_eq!(context(self.context, CL_CONTEXT_REFERENCE_COUNT, four, a, none), 0);
            assert_eq!(of_queue(queue, CL_QUEUE_REFERENCE_COUNT, four, b, none), 0);
            assert_eq!(of_buffer(buffer, CL_MEM_REFERENCE_COUNT, four, c, none), 0);
        }
        counts
    }

    pub fn release_queue(&self, queue: *mut c_void) {
        let release = unsafe { call!(self.library, clReleaseCommandQueue_t, b"clReleaseCommandQueue") };
        assert_eq!(unsafe { release(queue) }, 0);
    }

    pub fn release_buffer(&self, buffer: *mut c_void) {
        let release = unsafe { call!(self.library, clReleaseMemObject_t, b"clReleaseMemObject") };
        assert_eq!(unsafe { release(buffer) }, 0);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        unsafe {
            let release = call!(self.library, clReleaseContext_t, b"clReleaseContext");
            release(self.context);
        }
    }
}

/// Holds a queue. Opens when it is dropped.
pub struct Gate<'r> {
    raw: &'r Raw,
    event: *mut c_void,
    buffer: Option<*mut c_void>,
    is_set: bool,
}

impl Gate<'_> {
    /// Lets the queue go on.
    pub fn open(mut self) {
        self.set(0);
    }

    /// Makes what waits fail.
    pub fn fail(mut self) {
        self.set(-777);
    }

    fn set(&mut self, status: cl_int) {
        unsafe {
            let set = call!(self.raw.library, clSetUserEventStatus_t, b"clSetUserEventStatus");
            assert_eq!(set(self.event, status), 0);
        }
        self.is_set = true;
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        if !self.is_set {
            self.set(0);
        }
        unsafe {
            let release = call!(self.raw.library, clReleaseEvent_t, b"clReleaseEvent");
            release(self.event);
        }
        if let Some(buffer) = self.buffer {
            self.raw.release_buffer(buffer);
        }
    }
}

unsafe fn all_devices(library: &Library) -> Vec<cl_device_id> {
    unsafe {
        let platforms = call!(library, clGetPlatformIDs_t, b"clGetPlatformIDs");
        let devices = call!(library, clGetDeviceIDs_t, b"clGetDeviceIDs");
        let mut ids = [ptr::null_mut(); 16];
        let mut count = 0;
        assert_eq!(platforms(16, ids.as_mut_ptr(), &raw mut count), 0);
        let mut all = Vec::new();
        for platform in &ids[..count as usize] {
            let (mut found, mut several) = ([ptr::null_mut(); 16], 0);
            devices(*platform, CL_DEVICE_TYPE_ALL, 16, found.as_mut_ptr(), &raw mut several);
            all.extend_from_slice(&found[..several as usize]);
        }
        all
    }
}

/// The words that lend an object.
pub fn lend(object: *mut c_void, second: u64) -> Foreign {
    Foreign { words: [object.expose_provenance() as u64, second, 0, 0, 0, 0], keep_alive: None }
}
