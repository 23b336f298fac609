//! The CPU as a device: real asynchrony on explicit streams, memory that can be lent.
//!
//! - A stream is a thread behind a bounded queue, so ordering mistakes show here as they would on a GPU.
//!   Nothing spins: idle threads sleep.
//! - The default stream runs on the caller: complete on return, after all blocking streams.
//! - Device memory is anonymous, in huge pages where the system has them, and becomes present in the background; one
//!   that is exportable is a sealed memfd, present when allocated; exporting duplicates the descriptor.
//! - How much there is: what the machine and the control group can give, or `SPOC_NATIVE_BYTES`
//!   (`64M`, `1.5GiB`, `500MB`, or plain bytes: what [`parse_size`](crate::parse_size) reads).

mod adapter;
mod event;
pub(crate) mod memory;
mod populate;
mod queue;
mod stream;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use spoc_driver::backend::{Probed, erase};

use crate::host_launch::Counters;

/// How the native device is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Size of the device's memory in bytes; what the machine can give, if not said.
    pub memory_bytes: Option<u64>,
}

/// The variable that [`Options::from_env`] reads.
pub const MEMORY_VARIABLE: &str = "SPOC_NATIVE_BYTES";

impl Options {
    /// Options from the environment: `SPOC_NATIVE_BYTES`.
    ///
    /// # Errors
    /// A sentence for the operator, if the variable is not a size.
    pub fn from_env() -> Result<Self, String> {
        let Some(value) = std::env::var_os(MEMORY_VARIABLE) else { return Ok(Self::default()) };
        let text = value.to_string_lossy();
        match crate::parse_size(&text) {
            Ok(bytes) if bytes > 0 => Ok(Self { memory_bytes: Some(bytes) }),
            Ok(_) => Err(format!("{MEMORY_VARIABLE}={text}: a device has memory")),
            Err(_) => Err(format!("{MEMORY_VARIABLE}={text} is not a size: say for example 64M or 1.5GiB")),
        }
    }
}

/// The native backend. Each call makes a backend of its own, with its own account of memory.
#[must_use]
pub fn backend(options: Options) -> Probed {
    backend_with_counters(options).0
}

/// As [`backend`], with the counters of this one.
#[must_use]
pub fn backend_with_counters(options: Options) -> (Probed, CounterReader) {
    let native = adapter::Native::new(options);
    let counters = native.counters();
    (erase(native), CounterReader(counters))
}

/// How launches of kernels in WGSL ran. All only ever rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NativeCounters {
    /// Launches that ran compiled.
    pub launches_compiled: u64,
    /// Launches that had to be interpreted; the first one of a kernel logs why.
    pub launches_interpreted: u64,
}

/// Reads the counters of one backend.
#[derive(Debug, Clone)]
pub struct CounterReader(Arc<Counters>);

impl CounterReader {
    /// The counts so far.
    #[must_use]
    pub fn read(&self) -> NativeCounters {
        NativeCounters {
            launches_compiled: self.0.compiled.load(Ordering::Relaxed),
            launches_interpreted: self.0.interpreted.load(Ordering::Relaxed),
        }
    }
}
