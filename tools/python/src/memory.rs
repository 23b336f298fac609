//! Device memory that Python objects keep alive.

use crate::dlpack;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use spoc_driver::{BackendKind, Segment};
use std::mem::ManuallyDrop;

/// One stretch of device memory; freed with the last array that was made of it.
#[pyclass(frozen, module = "spoc._spoc")]
pub struct Memory {
    inner: Shared,
}

/// What arrays hold on to.
#[derive(Clone)]
pub struct Shared {
    segment: ManuallyDrop<Segment>,
    address: u64,
    len_bytes: u64,
    device: (i32, i32),
    process: u32,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child has neither the memory nor the threads that would free it.
        if self.process == std::process::id() {
            // SAFETY: dropped here only, and the value is gone afterwards.
            unsafe { ManuallyDrop::drop(&mut self.segment) };
        }
    }
}

impl Shared {
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Type and number of the device, in DLPack's terms.
    pub fn device(&self) -> (i32, i32) {
        self.device
    }
}

impl Memory {
    /// `None` for memory that has no address that others understand.
    pub fn new(segment: Segment, index: u32) -> Option<Memory> {
        let kind = segment.device().info().backend;
        let (kind, address) = match kind {
            BackendKind::Native => (dlpack::CPU, segment.host_pointer()?.addr() as u64),
            BackendKind::Cuda => (dlpack::CUDA, segment.address()?),
            BackendKind::Hip => (dlpack::ROCM, segment.address()?),
            _ => return None,
        };
        let index = if kind == dlpack::CPU { 0 } else { i32::try_from(index).ok()? };
        let len_bytes = segment.len_bytes();
        let process = std::process::id();
        let segment = ManuallyDrop::new(segment);
        Some(Memory { inner: Shared { segment, address, len_bytes, device: (kind, index), process } })
    }
}

#[pymethods]
impl Memory {
    /// Bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.len_bytes
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.inner.len_bytes).unwrap_or(usize::MAX)
    }

    /// NumPy's view of memory on the host: bytes, writable.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.inner.device.0 != dlpack::CPU {
            return Err(pyo3::exceptions::PyAttributeError::new_err("the memory is not the host's"));
        }
        self.interface(py)
    }

    /// The same for CUDA, version 3 of that interface.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.inner.device.0 != dlpack::CUDA {
            return Err(pyo3::exceptions::PyAttributeError::new_err("the memory is not CUDA's"));
        }
        self.interface(py)
    }

    /// A DLPack capsule of bytes. Every copy into the memory has run: no stream needs to wait.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, max_version);
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.inner.device) {
            return Err(pyo3::exceptions::PyBufferError::new_err(
                "the memory is handed out where it is, uncopied",
            ));
        }
        dlpack::capsule(py, self.inner.clone())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.inner.device
    }

    fn __repr__(&self) -> String {
        format!("<spoc memory of {} bytes on device {:?}>", self.inner.len_bytes, self.inner.device)
    }
}

impl Memory {
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("shape", PyTuple::new(py, [self.inner.len_bytes])?)?;
        dict.set_item("typestr", "|u1")?;
        dict.set_item("data", (self.inner.address, false))?;
        dict.set_item("version", 3)?;
        Ok(dict)
    }
}
