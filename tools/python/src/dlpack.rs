//! DLPack's unversioned capsule, <https://dmlc.github.io/dlpack/latest/c_api.html>: one dimension of bytes.

use crate::memory::Shared;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};

/// Device types.
pub const CPU: i32 = 1;
pub const CUDA: i32 = 2;
pub const ROCM: i32 = 10;

const NAME: &CStr = c"dltensor";
/// `kDLUInt`.
const UINT: u8 = 1;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A managed tensor and what it points to, in one allocation.
#[repr(C)]
struct Holder {
    managed: Managed,
    shape: i64,
    _memory: Shared,
}

/// A capsule that keeps the memory until whoever takes it calls its deleter.
pub fn capsule(py: Python<'_>, memory: Shared) -> PyResult<Bound<'_, PyAny>> {
    let (device_type, device_id) = memory.device();
    let len = i64::try_from(memory.len_bytes())?;
    let data = std::ptr::with_exposed_provenance_mut::<c_void>(usize::try_from(memory.address())?);
    let tensor = Tensor {
        data,
        device_type,
        device_id,
        ndim: 1,
        code: UINT,
        bits: 8,
        lanes: 1,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Managed { tensor, manager: std::ptr::null_mut(), deleter: Some(delete) };
    let mut holder = Box::new(Holder { managed, shape: len, _memory: memory });
    // The box stays where it is until `delete`.
    holder.managed.tensor.shape = &raw mut holder.shape;
    let holder = Box::into_raw(holder);
    // SAFETY: the name lives for ever; `end` is called with this capsule.
    let raw = unsafe { ffi::PyCapsule_New(holder.cast(), NAME.as_ptr(), Some(end)) };
    if raw.is_null() {
        // SAFETY: no capsule took it over.
        unsafe { drop(Box::from_raw(holder)) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference that is ours.
    Ok(unsafe { Bound::from_owned_ptr(py, raw) })
}

/// Called by whoever took the tensor, on any thread, once.
unsafe extern "C" fn delete(managed: *mut Managed) {
    if !managed.is_null() {
        // SAFETY: `managed` is the first field of the holder that `capsule` boxed; the taker calls this once.
        drop(unsafe { Box::from_raw(managed.cast::<Holder>()) });
    }
}

/// Called with the capsule's end. A tensor that was taken has had its capsule renamed.
unsafe extern "C" fn end(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule, attached.
    if unsafe { ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) } == 1 {
        // SAFETY: it is valid by this name, so nobody took what it holds.
        let holder = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) };
        // SAFETY: as above.
        unsafe { delete(holder.cast()) };
    }
}
