//! The CPU as the simplest device there can be: everything is complete on return.
//!
//! For checking kernels, and as the second device where a test needs one. Its memory is ordinary memory, its streams
//! are nothing but their order, and it runs the built-in kernels alone.

mod adapter;

use spoc_driver::backend::{Probed, erase};

/// How the interpreter's device is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Size of the device's memory in bytes; what the machine can give, if not said.
    pub memory_bytes: Option<u64>,
}

/// The interpreter. Each call makes a backend of its own, with its own account of memory.
#[must_use]
pub fn backend(options: Options) -> Probed {
    erase(adapter::Interpreter::new(options))
}
