//! A model's tensors, before anything of them is read.

use crate::error::Failure;
use pyo3::prelude::*;
use spoc_io::{Format, OpenOptions, Tensor};
use std::path::PathBuf;
use std::sync::Arc;

/// Opened weight files: their headers are parsed and checked, their contents unread.
#[pyclass(frozen, module = "spoc._spoc")]
pub struct Model(Arc<spoc_io::Model>);

impl Model {
    pub fn get(&self) -> &Arc<spoc_io::Model> {
        &self.0
    }
}

/// Name, dtype, shape, bytes, file, offset in the file.
type Row = (String, &'static str, Vec<u64>, u64, u32, u64);

fn row(tensor: &Tensor, reversed: bool) -> Row {
    let mut shape = tensor.shape.to_vec();
    if reversed {
        // GGUF counts dimensions from the innermost one; arrays are indexed from the outermost.
        shape.reverse();
    }
    let extent = tensor.extent;
    (tensor.name.to_string(), tensor.dtype.name(), shape, extent.len_bytes, extent.file, extent.offset)
}

#[pymethods]
impl Model {
    /// Opens a file, a folder, or a Hugging Face name.
    #[new]
    #[allow(clippy::needless_pass_by_value, reason = "Python's arguments arrive owned")]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Model> {
        let opened = py.detach(|| spoc_io::open_model(&path, &OpenOptions::default()));
        opened.map(|model| Model(Arc::new(model))).map_err(|error| Failure::from(error).raise(py))
    }

    /// `"safetensors"` or `"gguf"`.
    #[getter]
    fn format(&self) -> &'static str {
        match self.0.format() {
            Format::Safetensors => "safetensors",
            Format::Gguf => "gguf",
            _ => "unknown",
        }
    }

    /// Name, dtype, shape (outermost dimension first), bytes, file and offset of each tensor, in the order of the files.
    fn tensors(&self) -> Vec<Row> {
        let reversed = self.0.format() == Format::Gguf;
        self.0.tensors().iter().map(|tensor| row(tensor, reversed)).collect()
    }

    /// Metadata of the header, as text.
    fn metadata(&self) -> Vec<(String, String)> {
        self.0.metadata().to_vec()
    }

    /// The weight files.
    fn files(&self) -> Vec<PathBuf> {
        self.0.files().iter().map(|file| file.path().to_path_buf()).collect()
    }
}
