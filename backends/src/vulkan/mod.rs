//! Vulkan: transfers and kernels through the API's own queues.
//!
//! - The library is loaded when probing, never linked. A device serves if it has Vulkan 1.2 with timeline
//!   semaphores. The queue family is the one with the fewest other duties: a transfer family where there is
//!   one.
//! - A queue is a **lane** with a timeline of its own; every submission begins with a barrier after all that
//!   the lane was given before, and signals the next value. So a lane is in order, an event is a value, and
//!   a wait for an event of the same lane is nothing. Streams are dealt to the lanes in turn. A wait between
//!   lanes is a timeline wait, and only ever for a value that has been submitted.
//! - **Blocking streams and the default stream**: a submission of the default stream waits for the latest
//!   value that blocking streams have submitted on each other lane, and the other way round. On its own lane
//!   the order is there already, also with non-blocking streams: more order than promised, never less.
//! - **Kernels** are SPIR-V: somebody's own, or translated from WGSL. They run on the same lanes where the family
//!   can; else on lanes of a family that does, and a stream that turns from one to the other waits there for what
//!   it was given here. Launches are gathered in batches, a lane at a time; a batch is submitted when it is full
//!   (`SPOC_VULKAN_BATCH`, 32), and before anything else is submitted to the lane, waited for or asked about.
//! - Pinned memory is mapped memory that the driver allocates; a host range inside it is known by its
//!   address and copied by the device alone. Other host memory goes through a staging buffer of 8 MiB, so
//!   such copies may wait, and to the host they are complete on return. Device memory is never read with a
//!   processor's copy, even where the host could map it: through a PCIe window that is very slow.
//! - What is freed while work is pending is put off until the work submitted by then has completed.
//!
//! The environment: `SPOC_VULKAN_VALIDATION=1` turns the validation layer on, and refuses the backend if it
//! is not installed. `SPOC_VULKAN_HOST_IMPORT=1` allows registering host memory, never on AMD's drivers.
//! `SPOC_VULKAN_QUEUES` is how many lanes a device gets, 1 to 4 (as many as the family has queues, if not
//! said); lanes beyond the family's queues share one. `SPOC_VULKAN_BATCH` is how many launches are submitted
//! together, 1 to 1024; with 1 each is waited for.

mod adapter;
mod copy;
mod core;
mod counters;
mod device;
mod error;
mod event;
mod host;
mod identity;
mod instance;
mod launch;
mod maps;
mod memory;
mod pipeline;
mod queue;
mod sets;
mod share;
mod staging;
mod stream;
#[cfg(test)]
mod tests_on_device;

use std::sync::Arc;

use spoc_driver::backend::{Probed, erase};

use self::counters::Counters;
pub use self::counters::VulkanCounters;

/// How the backend is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Turn the validation layer on and count its messages.
    pub validation: bool,
    /// Allow registering host memory, except on AMD's drivers.
    pub host_import: bool,
    /// Lanes a device: 1 to 4, or as many as its family has queues.
    pub lanes: Option<usize>,
    /// Launches that are submitted together, 1 to 1024; 32 if not said. With 1 each launch is waited for.
    pub batch: Option<usize>,
    /// Give kernels lanes of their own where one family would do both: for tests.
    pub kernels_apart: bool,
}

/// Turns the validation layer on.
pub const VALIDATION_VARIABLE: &str = "SPOC_VULKAN_VALIDATION";
/// Allows registering host memory.
pub const HOST_IMPORT_VARIABLE: &str = "SPOC_VULKAN_HOST_IMPORT";
/// How many lanes a device gets.
pub const QUEUES_VARIABLE: &str = "SPOC_VULKAN_QUEUES";
/// How many launches are submitted together.
pub const BATCH_VARIABLE: &str = "SPOC_VULKAN_BATCH";
/// More launches than this are never submitted together.
const BATCH_MAX: usize = 1024;

impl Options {
    /// Options from the environment.
    ///
    /// # Errors
    /// A sentence for the operator, if a variable has a value that means nothing.
    pub fn from_env() -> Result<Self, String> {
        let read = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self::parse(read)
    }

    fn parse(read: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let flag = |name: &str| match read(name).as_deref() {
            None | Some("" | "0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(format!("{name}={other} means nothing: say 0 or 1")),
        };
        let number = |name: &str, max: usize| match read(name) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(number) if (1..=max).contains(&number) => Ok(Some(number)),
                _ => Err(format!("{name}={text} is not a number from 1 to {max}")),
            },
        };
        Ok(Self {
            validation: flag(VALIDATION_VARIABLE)?,
            host_import: flag(HOST_IMPORT_VARIABLE)?,
            lanes: number(QUEUES_VARIABLE, queue::COPY_LANES_MAX)?,
            batch: number(BATCH_VARIABLE, BATCH_MAX)?,
            kernels_apart: false,
        })
    }
}

/// Reads the counters of one opening of the backend.
#[derive(Debug, Clone)]
pub struct CounterReader(Arc<Counters>);

impl CounterReader {
    /// The counts so far, over all devices of the opening.
    #[must_use]
    pub fn read(&self) -> VulkanCounters {
        self.0.read()
    }
}

/// Loads Vulkan and looks for devices that serve. Opens none.
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
    let vulkan = adapter::Vulkan::probe(options)?;
    let reader = CounterReader(vulkan.counters());
    Ok((erase(vulkan), reader))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &'static str, value: &'static str) -> Result<Options, String> {
        Options::parse(move |asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn options_are_read_or_refused() {
        assert_eq!(Options::parse(|_| None), Ok(Options::default()));
        assert!(parse(VALIDATION_VARIABLE, "1").unwrap().validation);
        assert!(!parse(HOST_IMPORT_VARIABLE, "0").unwrap().host_import);
        assert_eq!(parse(QUEUES_VARIABLE, "3").unwrap().lanes, Some(3));
        assert!(parse(QUEUES_VARIABLE, "0").unwrap_err().contains("1 to 4"));
        assert_eq!(parse(BATCH_VARIABLE, "1").unwrap().batch, Some(1));
        assert!(parse(BATCH_VARIABLE, "1025").unwrap_err().contains("1 to 1024"));
        assert!(parse(HOST_IMPORT_VARIABLE, "yes").unwrap_err().contains("0 or 1"));
    }
}
