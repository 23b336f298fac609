//! `spoc._spoc`: what the Python package `spoc` is made of. Frameworks are its business, files and devices are here.
//!
//! Everything here hands out untyped memory; the package gives it dtypes and shapes. Whatever waits lets other Python
//! threads run, and ends when the user interrupts.

mod dlpack;
mod error;
mod loader;
mod memory;
mod model;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
mod _spoc {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::loader::{Cancel, Loader, Stream};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::model::Model;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
