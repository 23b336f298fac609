//! The CPU as a device: real asynchrony on explicit streams, memory that can be lent.
//!
//! - A stream is a thread behind a bounded queue, so ordering mistakes show here as they would on a GPU.
//!   Nothing spins: idle threads sleep.
//! - The default stream runs on the caller: complete on return, after all blocking streams.
//! - Device memory is anonymous, in huge pages where the system has them, and becomes present in the background; one
//!   that is exportable is a sealed memfd, present when allocated; exporting duplicates the descriptor.
//! - How much there is: what the machine and the control group can give, or `SPOC_NATIVE_BYTES`
//!   (`64M`, `1.5GiB`, `500MB`, or plain bytes: what [`parse_size`](crate::parse_size) reads).
//! - For tests and measurements there can be several, `SPOC_NATIVE_DEVICES`, each behind a link that copies between host and
//!   device are held to, `SPOC_NATIVE_LINK`.

mod adapter;
mod event;
mod link;
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
    /// Size of the device's memory in bytes; what the machine can give, if not said. Several devices share it.
    pub memory_bytes: Option<u64>,
    /// How many devices there are, 0 counting as one. More are for tests and measurements: they are the same processor.
    pub devices: u32,
    /// Bytes a second that copies between the host and each device are held to, as if a link were between; as fast as the
    /// processor copies, if not said.
    pub link_bytes_per_second: Option<u64>,
}

/// The variables that [`Options::from_env`] reads.
pub const MEMORY_VARIABLE: &str = "SPOC_NATIVE_BYTES";
/// As above: a number from 1 to 64.
pub const DEVICES_VARIABLE: &str = "SPOC_NATIVE_DEVICES";
/// As above: bytes a second.
pub const LINK_VARIABLE: &str = "SPOC_NATIVE_LINK";

/// As many as one word can name.
const DEVICES_MAX: u32 = 64;

impl Options {
    /// Options from the environment: `SPOC_NATIVE_BYTES`, `SPOC_NATIVE_DEVICES`, `SPOC_NATIVE_LINK`.
    ///
    /// # Errors
    /// A sentence for the operator, if a variable is not what it must be.
    pub fn from_env() -> Result<Self, String> {
        Ok(Self {
            memory_bytes: size(MEMORY_VARIABLE, "a device has memory")?,
            devices: count(DEVICES_VARIABLE)?,
            link_bytes_per_second: size(LINK_VARIABLE, "a link carries something in a second")?,
        })
    }
}

fn text_of(variable: &str) -> Option<String> {
    std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned())
}

fn size(variable: &str, not_zero: &str) -> Result<Option<u64>, String> {
    let Some(text) = text_of(variable) else { return Ok(None) };
    match crate::parse_size(&text) {
        Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
        Ok(_) => Err(format!("{variable}={text}: {not_zero}")),
        Err(_) => Err(format!("{variable}={text} is not a size: say for example 64M or 1.5GiB")),
    }
}

fn count(variable: &str) -> Result<u32, String> {
    let Some(text) = text_of(variable) else { return Ok(0) };
    let count = text.parse().ok().filter(|count| (1..=DEVICES_MAX).contains(count));
    count.ok_or_else(|| format!("{variable}={text}: expected a number from 1 to {DEVICES_MAX}"))
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
