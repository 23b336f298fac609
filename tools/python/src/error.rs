//! Errors become `spoc.SpocError`, with the kind of docs/errors.md.

use pyo3::prelude::*;
use pyo3::types::PyString;

/// An error of ours as the package's exception. The package chooses the class by the kind.
pub fn raise(py: Python<'_>, kind: &str, message: &str) -> PyErr {
    let made = py
        .import("spoc._errors")
        .and_then(|module| module.getattr("make"))
        .and_then(|make| make.call1((PyString::new(py, kind), PyString::new(py, message))));
    match made {
        Ok(error) => PyErr::from_value(error),
        // The package is not there whole: its own import error says more than ours would.
        Err(error) => error,
    }
}

/// What went wrong, before Python is asked to make an exception of it.
#[derive(Debug)]
pub struct Failure {
    pub kind: String,
    pub message: String,
}

impl Failure {
    pub fn new(kind: &str, message: impl std::fmt::Display) -> Failure {
        Failure { kind: kind.to_owned(), message: message.to_string() }
    }

    pub fn raise(&self, py: Python<'_>) -> PyErr {
        raise(py, &self.kind, &self.message)
    }
}

impl From<spoc_cache::Error> for Failure {
    fn from(error: spoc_cache::Error) -> Failure {
        Failure::new(error.kind().as_str(), &error)
    }
}

impl From<spoc_io::Error> for Failure {
    fn from(error: spoc_io::Error) -> Failure {
        Failure::new(error.kind().as_str(), &error)
    }
}

impl From<spoc_driver::Error> for Failure {
    fn from(error: spoc_driver::Error) -> Failure {
        Failure::new(error.kind().as_str(), &error)
    }
}
