//! WebGPU, by way of wgpu: one queue, and everything in its order.
//!
//! - wgpu is built with its Vulkan half alone, so this finds what the Vulkan adapter finds; the difference is what the
//!   API allows. A device serves if it runs kernels with immediate data.
//! - **One order.** WebGPU has one queue. Work of every stream is recorded into one batch, which is submitted when an
//!   event is recorded, when somebody asks or waits, when a staging slot is full, or with `SPOC_WEBGPU_BATCH` launches in
//!   it (32; 1 submits each). Streams differ in what they wait for on the host, and in nothing else: a wait for an event
//!   on the device is always fulfilled. That is more order than streams promise, never less.
//! - **Host memory** is never the device's: copies go through two rings of slots that the API maps. An upload has read
//!   its source on return, and waits while the ring is full; a download is finished by whoever next asks or waits.
//! - **Whole words.** The API copies multiples of four bytes. Ends that stick out are set by a kernel that changes these
//!   bytes alone; so are copies between places that differ by less than a word, and within one buffer.
//! - Every vector is bound so that it could be written: a buffer cannot be bound for reading and for writing at once,
//!   and vectors share segments.

mod adapter;
mod copy;
mod counters;
mod device;
mod download;
mod error;
mod event;
mod identity;
mod launch;
mod memory;
mod pipeline;
mod queue;
mod staging;
mod stream;
mod words;

use std::sync::Arc;

use spoc_driver::backend::{Probed, erase};

use self::counters::Counters;
pub use self::counters::WebGpuCounters;

/// How the backend is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Launches that are submitted together, 1 to 1024; 32 if not said.
    pub batch: Option<usize>,
}

/// How many launches are submitted together.
pub const BATCH_VARIABLE: &str = "SPOC_WEBGPU_BATCH";
/// Launches of a batch, unless the environment says otherwise.
const BATCH: usize = 32;
/// More launches than this are never submitted together.
const BATCH_MAX: usize = 1024;

impl Options {
    /// Options from the environment.
    ///
    /// # Errors
    /// A sentence for the operator, if a variable has a value that means nothing.
    pub fn from_env() -> Result<Self, String> {
        Self::parse(std::env::var_os(BATCH_VARIABLE).map(|value| value.to_string_lossy().into_owned()))
    }

    fn parse(batch: Option<String>) -> Result<Self, String> {
        let Some(text) = batch else { return Ok(Self::default()) };
        match text.parse() {
            Ok(batch) if (1..=BATCH_MAX).contains(&batch) => Ok(Self { batch: Some(batch) }),
            _ => Err(format!("{BATCH_VARIABLE}={text} is not a number from 1 to {BATCH_MAX}")),
        }
    }
}

/// Reads the counters of one opening of the backend.
#[derive(Debug, Clone)]
pub struct CounterReader(Arc<Counters>);

impl CounterReader {
    /// The counts so far, over all devices of the opening.
    #[must_use]
    pub fn read(&self) -> WebGpuCounters {
        self.0.read()
    }
}

/// Looks for devices that serve. Opens none.
///
/// # Errors
/// Why there is none, for the person who expected one.
pub fn backend(options: Options) -> Result<Probed, String> {
    backend_with_counters(options).map(|(probed, _)| probed)
}

/// As [`backend`], with the counters of this opening.
///
/// # Errors
/// As [`backend`].
pub fn backend_with_counters(options: Options) -> Result<(Probed, CounterReader), String> {
    let webgpu = adapter::WebGpu::probe(options)?;
    let reader = CounterReader(webgpu.counters());
    Ok((erase(webgpu), reader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        let parse = |text: &str| Options::parse(Some(text.to_owned()));
        assert_eq!(Options::parse(None), Ok(Options::default()));
        assert_eq!(parse("1").unwrap().batch, Some(1));
        for text in ["0", "1025", "many", ""] {
            assert!(parse(text).unwrap_err().contains("1 to 1024"), "{text}");
        }
    }
}
