//! Metal: shared memory, copies by the processor, kernels in batches.
//!
//! - Device memory is **shared storage**: the processor reaches it. A copy is one `memcpy`, complete on return; before it,
//!   every command buffer that binds the memory is committed and waited for (the pending table, `pending.rs`).
//! - A stream is a **lane**: a command queue with a shared event whose value rises with every command buffer. A wait
//!   between lanes is a wait for a value, on the device, and only ever for one that has been committed.
//! - **Launches** are gathered in the lane's open command buffer. It is committed when the one before has completed, or
//!   with `SPOC_METAL_BATCH` launches in it (32; 1 commits each); else when an event is recorded, when somebody waits or
//!   asks, or when the host reaches for memory that it binds (`rule.rs`).
//! - **Blocking streams and the default stream**: a launch on one waits on the device for what the other was given.
//!
//! What calls the API is in `objc.rs` and exists on Apple's systems alone. Everything else is written over the trait in
//! `api.rs`, and runs in tests over a double of the API (`double.rs`). **None of this has run on a Mac.**

mod adapter;
mod api;
mod device;
#[cfg(any(test, feature = "doubles"))]
mod double;
mod event;
mod lane;
mod launch;
mod memory;
#[cfg(target_vendor = "apple")]
mod objc;
mod pending;
mod pipeline;
mod rule;
mod stream;

use spoc_driver::backend::{Probed, erase};

/// How the backend is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Launches that are committed together, 1 to 1024; 32 if not said.
    pub batch: Option<usize>,
}

/// How many launches are committed together.
pub const BATCH_VARIABLE: &str = "SPOC_METAL_BATCH";
/// Launches of a batch, unless the environment says otherwise.
const BATCH: usize = 32;
/// More launches than this are never committed together.
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

/// Looks for devices. Opens none.
///
/// # Errors
/// Why there is none, for the person who expected one.
#[cfg(target_vendor = "apple")]
pub fn backend(options: Options) -> Result<Probed, String> {
    adapter::Metal::probe(objc::Objc::find()?, options).map(erase)
}

/// A test double: this adapter over host memory and threads that run kernels a little late. Not a Metal device.
#[cfg(any(test, feature = "doubles"))]
#[must_use]
pub fn double(options: Options) -> Probed {
    erase(adapter::Metal::over(double::Double::new(), options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_29_sizes_beyond_the_limit_are_refused_by_its_name() {
        use spoc_driver::{BackendKind, DeviceSelector, Driver};
        let driver = Driver::new(vec![double(Options::default())]);
        let device = driver.open(&DeviceSelector::index(BackendKind::Metal, 0)).unwrap();
        let error = device.allocate(device.limits().segment_bytes_max + 1).unwrap_err();
        assert!(error.to_string().contains("maxBufferLength"), "{error}");
    }

    #[test]
    fn options_are_read_or_refused() {
        let parse = |text: &str| Options::parse(Some(text.to_owned()));
        assert_eq!(Options::parse(None), Ok(Options::default()));
        assert_eq!(parse("1024").unwrap().batch, Some(1024));
        for text in ["0", "1025", "-1", "x"] {
            assert!(parse(text).unwrap_err().contains("1 to 1024"), "{text}");
        }
    }
}
